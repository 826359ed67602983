package broker

import (
	"slices"
	"sync/atomic"
	"time"

	"github.com/teralog/teralog/mem"
	"github.com/teralog/teralog/repl"
	"github.com/teralog/teralog/wire"
)

// A metric is one row of /metrics: a counter, which never falls while the
// process lives, a gauge, or a histogram.
type metric struct {
	name, kind, help string
	// Either value gives the one sample of the metric, NaN if it is not known
	// here; or series gives one for each set of labels, in a fixed order; or
	// write writes all of them, where there may be many.
	value  func(*scrape) float64
	series func(*scrape, func(labels string, value float64))
	write  func(s *scrape, to *exposition, name string)
}

// metricRows is everything /metrics serves. Times are in seconds.
var metricRows = slices.Concat(processRows, serverRows, tlsRows, timeRows, dirRows, diskRows, fillRows, refusalRows, machineRows, topicRows, partitionRows)

var processRows = []metric{
	{name: "process_cpu_seconds_total", kind: "counter", help: "CPU time of the process, user and system.", value: cpuSeconds},
	{name: "process_resident_memory_bytes", kind: "gauge", help: "Memory of the process that is resident.", value: residentBytes},
	{name: "process_open_fds", kind: "gauge", help: "Open file descriptors.", value: openFiles},
	{name: "process_max_fds", kind: "gauge", help: "Greatest number of open file descriptors.", value: maxFiles},
	{name: "go_goroutines", kind: "gauge", help: "Goroutines.", value: runtimeValue("/sched/goroutines:goroutines")},
	{name: "go_heap_bytes", kind: "gauge", help: "Bytes of heap objects, those not yet swept included.", value: runtimeValue("/memory/classes/heap/objects:bytes")},
	{name: "go_mallocs_total", kind: "counter", help: "Heap objects allocated.", value: runtimeValue("/gc/heap/allocs:objects", "/gc/heap/tiny/allocs:objects")},
	{name: "go_gc_cpu_seconds_total", kind: "counter", help: "CPU time of the garbage collector as the runtime estimates it, idle time used included; renewed by each collection.", value: runtimeValue("/cpu/classes/gc/total:cpu-seconds")},
}

var serverRows = []metric{
	{name: "teralog_build", kind: "gauge", help: "1, with the version of the software.", series: func(s *scrape, emit func(string, float64)) {
		emit(label("version", wire.Software), 1)
	}},
	{name: "teralog_ready", kind: "gauge", help: "1 while clients are served, as /readyz says.", value: func(s *scrape) float64 {
		if s.b.readiness(s).Ready {
			return 1
		}
		return 0
	}},
	{name: "teralog_metadata_leader_known", kind: "gauge", help: "1 while some node is known to lead the metadata; a node alone leads it.", value: func(s *scrape) float64 {
		if s.b.leaderless() {
			return 0
		}
		return 1
	}},
	{name: "teralog_topics", kind: "gauge", help: "Topics of the cluster.", value: func(s *scrape) float64 { return float64(len(s.b.Image().Topics())) }},
	{name: "teralog_partitions", kind: "gauge", help: "Partitions hosted here.", value: func(s *scrape) float64 { return float64(s.partitions) }},
	{name: "teralog_partitions_with_future_times", kind: "gauge", help: "Of these, those with an event time more than an hour ahead of their last append.", value: func(s *scrape) float64 { return float64(s.future) }},
	{name: "teralog_partitions_in_service", kind: "gauge", help: "Of these, those that can be produced to and read.", value: func(s *scrape) float64 { return float64(s.serving) }},
	{name: "teralog_partitions_expected", kind: "gauge", help: "Partitions that belong here; more than are in service means that some are offline.", value: func(s *scrape) float64 { return float64(s.b.partitions()) }},
	{name: "teralog_damaged_ranges", kind: "gauge", help: "Ranges of offsets known to be damaged on disk; /recovery has them.", value: func(s *scrape) float64 { return float64(s.damaged) }},
	{name: "teralog_retention_withheld_bytes", kind: "gauge", help: "Bytes kept though they seem old enough to go, since the clock jumped.", value: func(s *scrape) float64 { return float64(s.queued.Withheld) }},
	{name: "teralog_queued_batches", kind: "gauge", help: "Tasks in the mailboxes of the partitions.", value: func(s *scrape) float64 { return float64(s.queued.Queued) }},
	{name: "teralog_queued_bytes", kind: "gauge", help: "Bytes of batches in the mailboxes of the partitions.", value: func(s *scrape) float64 { return float64(s.queued.QueuedBytes) }},
	{name: "teralog_parked_fetches", kind: "gauge", help: "Fetches that wait for records.", value: func(s *scrape) float64 { return float64(s.b.lot.count()) }},

	{name: "teralog_produce_batches_total", kind: "counter", help: "Batches acknowledged, or appended without an ack asked for; duplicates included.", value: func(s *scrape) float64 { return float64(s.b.count.batches.Load()) }},
	{name: "teralog_produce_bytes_total", kind: "counter", help: "Bytes of these batches, as stored.", value: func(s *scrape) float64 { return float64(s.b.count.bytes.Load()) }},
	{name: "teralog_produce_records_total", kind: "counter", help: "Records in these batches.", value: func(s *scrape) float64 { return float64(s.b.count.records.Load()) }},
	{name: "teralog_fetch_bytes_total", kind: "counter", help: "Bytes of batches in the answers to fetches.", value: func(s *scrape) float64 { return float64(s.b.count.fetched.Load()) }},
	{name: "teralog_fetch_sendfile_bytes_total", kind: "counter", help: "Of these, bytes that went from the page cache to the socket, counted once sent.", value: func(s *scrape) float64 { return float64(s.server.SentFileBytes) }},
	{name: "teralog_fetch_copied_bytes_total", kind: "counter", help: "Of these, bytes that went through memory, counted once sent.", value: func(s *scrape) float64 { return float64(s.server.SentCopyBytes) }},

	{name: "teralog_connections", kind: "gauge", help: "Clients connected.", value: func(s *scrape) float64 { return float64(s.server.Conns) }},
	{name: "teralog_connections_accepted_total", kind: "counter", help: "Connections accepted, those refused included.", value: func(s *scrape) float64 { return float64(s.server.Accepted) }},
	{name: "teralog_connections_refused_total", kind: "counter", help: "Connections closed at once: too many, or shutting down.", value: func(s *scrape) float64 { return float64(s.server.Refused) }},
	{name: "teralog_accept_failures_total", kind: "counter", help: "Attempts to accept a connection that failed, for want of descriptors as a rule; then none is accepted for up to a second.", value: func(s *scrape) float64 { return float64(s.server.Failed) }},
	{name: "teralog_connections_damaged_total", kind: "counter", help: "Connections ended for what they sent.", value: func(s *scrape) float64 { return float64(s.server.BadFrames) }},
	{name: "teralog_connections_timed_out_total", kind: "counter", help: "Connections ended for sending or taking nothing.", value: func(s *scrape) float64 { return float64(s.server.Timeouts) }},

	{name: "teralog_requests_total", kind: "counter", help: "Requests by API.", series: func(s *scrape, emit func(string, float64)) {
		for a := range s.b.count.requests {
			if n := s.b.count.requests[a].Load(); n > 0 {
				emit(label("api", wire.API(a).String()), float64(n))
			}
		}
	}},
	{name: "teralog_requests_without_memory_total", kind: "counter", help: "Requests refused unread for want of memory.", value: func(s *scrape) float64 { return float64(s.server.Busy) }},
	{name: "teralog_request_panics_total", kind: "counter", help: "Requests that failed by a fault of the broker.", value: func(s *scrape) float64 { return float64(s.server.Panics) }},
	{name: "teralog_request_memory_bytes", kind: "gauge", help: "Bytes of requests held.", value: func(s *scrape) float64 { return float64(s.b.server.Budget.Used()) }},
	{name: "teralog_reply_bytes_total", kind: "counter", help: "Bytes of replies sent, without the batches in them.", value: func(s *scrape) float64 { return float64(s.server.SentBytes) }},
	{name: "teralog_reply_writers_total", kind: "counter", help: "Goroutines started to send what a reader could not.", value: func(s *scrape) float64 { return float64(s.server.Writers) }},
}

// counts are what the broker counts itself, an atomic add each.
type counts struct {
	batches, bytes, records atomic.Int64 // produced
	fetched                 atomic.Int64 // bytes
	verify                  mem.Latency

	requests [maxAPI + 1]atomic.Int64 // handed to their handler, by API
}

// produced notes one batch.
func (c *counts) produced(bytes, records int64) {
	c.batches.Add(1)
	c.bytes.Add(bytes)
	c.records.Add(records)
}

// maxAPI is the greatest API number that is counted, inclusive.
const maxAPI = 63

// A scrape is one look at the broker, so that what is costly to sum up is
// summed up once.
type scrape struct {
	b          *Broker
	server     wire.ServerStats
	partitions int
	serving    int        // of these, in service
	future     int        // of these, with event times that cannot be
	queued     repl.Stats // summed up over all partitions
	unflushed  time.Duration
	damaged    int // ranges known to be damaged
}

func newScrape(b *Broker) *scrape {
	s := &scrape{b: b, server: b.Stats()}
	now := b.time()
	for _, p := range b.set.Partitions() {
		of := p.Stats()
		s.partitions++
		if v := p.View(); v.Err == nil {
			s.serving++
			if v.Flushed < v.End {
				s.unflushed = max(s.unflushed, now.Mono-v.Oldest)
			}
		}
		s.damaged += len(p.View().Log.Damage())
		if v := p.View().Log; wire.FutureTime(v.GreatestTime(), v.LastAppendTime()) {
			s.future++
		}
		s.queued.Queued += of.Queued
		s.queued.QueuedBytes += of.QueuedBytes
		s.queued.Withheld += of.Withheld
	}
	return s
}
