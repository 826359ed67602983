package bench

import (
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"
)

func decimal(v float64) string { return strconv.FormatFloat(v, 'f', 3, 64) }

// group writes n with a comma between each three digits.
func group(n int64) string {
	s := strconv.FormatInt(n, 10)
	for i := len(s) - 3; i > 0 && s[i-1] != '-'; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// latency writes microseconds in the unit that reads best.
func latency(us float64) string {
	switch {
	case us < 1000:
		return fmt.Sprintf("%.0f µs", us)
	case us < 1e6:
		return fmt.Sprintf("%.2f ms", us/1e3)
	}
	return fmt.Sprintf("%.2f s", us/1e6)
}

// text is the result for a person.
func (r *Result) text() string {
	var b strings.Builder
	line := func(name, format string, args ...any) {
		fmt.Fprintf(&b, "%-12s %s\n", name, fmt.Sprintf(format, args...))
	}
	if r.Idle != nil {
		line("machine", "%v", r.Machine)
		r.Idle.text(line)
		return b.String()
	}
	line(r.Workload, "%s", r.Asked.text())
	line("machine", "%v", r.Machine)
	line("records", "%s in %.1f s", group(r.Records), r.Seconds)
	rate := fmt.Sprintf("%s records/s   %.1f MB/s", group(int64(r.RecordsPerSecond)), r.MBPerSecond)
	if r.AskedRate != nil && r.SentRate != nil {
		rate += fmt.Sprintf("   (asked: %s records/s, sent %s)", group(*r.AskedRate), group(int64(*r.SentRate)))
	}
	line("rate", "%s", rate)
	if r.Latency != nil {
		line("latency", "%s", r.Latency.text())
	}
	if r.AckLatency != nil {
		line("  of the ack", "%s", r.AckLatency.text())
	}
	r.costs(line)
	if r.TailRecords > 0 || r.TailMissing > 0 {
		line("tails", "%s records read, %s missing", group(r.TailRecords), group(r.TailMissing))
	}
	if r.Backlog != nil {
		r.Backlog.text(line)
	}
	if r.FirstError != nil {
		line("errors", "%s records were not acknowledged, the first: %s", group(r.Errors), *r.FirstError)
	}
	if r.GeneratorBound {
		line("attention", "the generator was the bottleneck: %s", *r.GeneratorReason)
	}
	if k := r.kafka(); k != "" {
		fmt.Fprintf(&b, "\n%s\n", k)
	}
	return b.String()
}

// costs tells what broker and client used.
func (r *Result) costs(line func(name, format string, args ...any)) {
	optional := func(format string, v *float64) string {
		if v == nil {
			return ""
		}
		return fmt.Sprintf(format, *v)
	}
	if r.BrokerCPUPerGB != nil {
		text := fmt.Sprintf("%.3f CPU s/GB, %.3f s per million records (%.2f cores)", *r.BrokerCPUPerGB, *r.BrokerCPUPerMillion, *r.BrokerCores)
		text += optional("; %.2f allocations a batch", r.BrokerAllocsPerBatch) + optional("; %.2f allocations a MiB fetched", r.BrokerAllocsPerMiB)
		text += optional("; collector %.1f %%", percent(r.BrokerGCShare))
		if r.BrokerResidentBytes != nil {
			text += fmt.Sprintf("; %.0f MB resident", float64(*r.BrokerResidentBytes)/1e6)
		}
		line("broker", "%s", text)
	}
	line("client", "%.3f CPU s/GB, %.3f s per million records (%.2f cores)%s; collector %.1f %%", r.ClientCPUPerGB, r.ClientCPUPerMillion, r.ClientCores,
		optional("; %.2f allocations a batch", r.ClientAllocsPerBatch), r.ClientGCShare*100)
}

func percent(v *float64) *float64 {
	if v == nil {
		return nil
	}
	return ratio(*v*100, 1)
}

func (l *Latency) text() string {
	return fmt.Sprintf("P50 %s   P95 %s   P99 %s   P99.9 %s   max %s", latency(l.P50), latency(l.P95), latency(l.P99), latency(l.P999), latency(l.Max))
}

func (a *Asked) text() string {
	text := fmt.Sprintf("records of %d bytes, %s", a.RecordBytes, few(a.Partitions, "partition"))
	if a.Keys > 0 {
		text += fmt.Sprintf(", %s keys", group(a.Keys))
	}
	text += fmt.Sprintf(", %s, acks=%s, batches of %s, window %s, flush=%s, codec %s", few(a.Producers, "producer"), a.Acks, kib(a.BatchBytes), kib(a.WindowBytes), a.Flush, a.Codec)
	if a.Consumers > 0 {
		text += ", " + few(a.Consumers, "consumer")
	}
	return text
}

func few(n int, noun string) string {
	if n != 1 {
		noun += "s"
	}
	return fmt.Sprintf("%d %s", n, noun)
}

func kib(n int64) string { return fmt.Sprintf("%.0f KiB", float64(n)/1024) }

// kafka is the last line of the Kafka tool of the same purpose, so that figures
// can be laid side by side. Its MB are 2^20 bytes.
func (r *Result) kafka() string {
	mb := float64(r.Bytes) / (1 << 20)
	switch r.Workload {
	case "produce":
		if r.Latency == nil {
			return ""
		}
		ms := func(us float64) string { return strconv.FormatFloat(us/1e3, 'f', 2, 64) }
		return fmt.Sprintf("%d records sent, %.1f records/sec (%.2f MB/sec), %s ms avg latency, %s ms max latency, %s ms 50th, %s ms 95th, %s ms 99th, %s ms 99.9th.",
			r.Records, r.RecordsPerSecond, over(mb, r.Seconds), ms(r.Latency.Mean), ms(r.Latency.Max), ms(r.Latency.P50), ms(r.Latency.P95), ms(r.Latency.P99), ms(r.Latency.P999))
	case "consume":
		begin, err := time.Parse(time.RFC3339, r.Started)
		if err != nil {
			return ""
		}
		const layout = "2006-01-02 15:04:05:000"
		end := begin.Add(time.Duration(r.Seconds * float64(time.Second)))
		return fmt.Sprintf("start.time, end.time, data.consumed.in.MB, MB.sec, data.consumed.in.nMsg, nMsg.sec, rebalance.time.ms, fetch.time.ms, fetch.MB.sec, fetch.nMsg.sec\n"+
			"%s, %s, %.4f, %.4f, %d, %.4f, 0, %.0f, %.4f, %.4f", begin.Format(layout), end.Format(layout), mb, over(mb, r.Seconds), r.Records, r.RecordsPerSecond,
			r.Seconds*1e3, over(mb, r.Seconds), r.RecordsPerSecond)
	case "e2e":
		if r.Latency == nil {
			return ""
		}
		return fmt.Sprintf("Avg latency: %.4f ms\nPercentiles: 50th = %.2f, 99th = %.2f, 99.9th = %.2f", r.Latency.Mean/1e3, r.Latency.P50/1e3, r.Latency.P99/1e3, r.Latency.P999/1e3)
	}
	return ""
}

// writeCSV writes a line for each interval, names first.
func (r *Result) writeCSV(out io.Writer) error {
	w := csv.NewWriter(out)
	w.Write([]string{"at_seconds", "seconds", "records", "bytes", "records_per_second", "mb_per_second", "broker_cores", "client_cores", "p50_us", "p99_us", "max_us"})
	for _, i := range r.Intervals {
		row := []string{decimal(i.At), decimal(i.Seconds), strconv.FormatInt(i.Records, 10), strconv.FormatInt(i.Bytes, 10)}
		for _, v := range []float64{over(float64(i.Records), i.Seconds), over(float64(i.Bytes)/1e6, i.Seconds), i.BrokerCPU, i.ClientCPU, i.P50, i.P99, i.Max} {
			row = append(row, decimal(v))
		}
		w.Write(row)
	}
	w.Flush()
	return w.Error()
}

func writeFile(name string, write func(io.Writer) error) error {
	f, err := os.Create(name)
	if err != nil {
		return err
	}
	return errors.Join(write(f), f.Close())
}
