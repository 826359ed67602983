package broker

import (
	"strconv"
	"strings"

	"github.com/teralog/teralog/repl"
)

// maxPartitionSeries bounds the partitions that /metrics tells of one by one,
// inclusive: five lines each, of about 80 bytes. What further ones have is in
// the sums.
const maxPartitionSeries = 16_384

// partitionRows have a sample for each partition.
var partitionRows = []metric{
	{name: "teralog_partition_start_offset", kind: "gauge", help: "The first offset kept.", write: eachPartition(func(p *repl.Partition) int64 { return int64(p.View().Start) })},
	{name: "teralog_partition_committed_offset", kind: "gauge", help: "The offset below which consumers see records.", write: eachPartition(func(p *repl.Partition) int64 { return int64(p.View().Committed) })},
	{name: "teralog_partition_end_offset", kind: "gauge", help: "The offset the next record gets.", write: eachPartition(func(p *repl.Partition) int64 { return int64(p.View().End) })},
	{name: "teralog_partition_bytes", kind: "gauge", help: "Bytes of its log.", write: eachPartition(func(p *repl.Partition) int64 { return p.View().Log.Bytes() })},
	{name: "teralog_partition_queued_bytes", kind: "gauge", help: "Bytes of batches in its mailbox.", write: eachPartition(func(p *repl.Partition) int64 { return p.Stats().QueuedBytes })},
}

// eachPartition returns what writes a sample for each partition. It allocates
// nothing: there may be ten thousand.
func eachPartition(value func(*repl.Partition) int64) func(*scrape, *exposition, string) {
	return func(s *scrape, to *exposition, name string) {
		for i, p := range s.b.set.Partitions() {
			if i == maxPartitionSeries || to.err != nil {
				return
			}
			to.text(name).text(`{topic="`).text(escapeLabel(p.Topic())).text(`",partition="`)
			to.b = strconv.AppendInt(to.b, int64(p.ID().Partition), 10)
			to.text(`"}`).count(value(p))
		}
	}
}

// topicRows have a sample for each topic with a partition among the first
// maxPartitionSeries.
var topicRows = []metric{
	{name: "teralog_topic_append_batches_total", kind: "counter", help: "Batches appended to the topic's partitions here.", write: eachTopic(func(s repl.Stats) int64 { return s.Batches })},
	{name: "teralog_topic_append_bytes_total", kind: "counter", help: "Bytes of these batches.", write: eachTopic(func(s repl.Stats) int64 { return s.Bytes })},
}

// eachTopic returns what writes a sample for each topic. The partitions of one
// stand together.
func eachTopic(value func(repl.Stats) int64) func(*scrape, *exposition, string) {
	return func(s *scrape, to *exposition, name string) {
		all := s.b.set.Partitions()
		all = all[:min(len(all), maxPartitionSeries)]
		sum := int64(0)
		for i, p := range all {
			sum += value(p.Stats())
			if i+1 < len(all) && all[i+1].ID().Topic == p.ID().Topic {
				continue
			}
			to.text(name).text(`{topic="`).text(escapeLabel(p.Topic())).text(`"}`).count(sum)
			sum = 0
		}
	}
}

// escapeLabel returns a label's value as it stands between quotes.
func escapeLabel(s string) string {
	if !strings.ContainsAny(s, "\\\"\n") {
		return s
	}
	return labelEscapes.Replace(s)
}
