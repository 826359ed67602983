package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/teralog/teralog/mem"
)

// A Result is what a run found. Every key is always there; null means that it
// was not measured. MB are 10^6 bytes, GB 10^9.
type Result struct {
	Workload string  `json:"workload"`
	Command  string  `json:"command"`
	Started  string  `json:"started"` // RFC 3339, UTC
	Machine  Machine `json:"machine"`
	Commit   string  `json:"commit"`
	Asked    Asked   `json:"asked"`

	AskedRate        *int64   `json:"asked_rate"` // records a second
	SentRate         *float64 `json:"sent_rate"`  // while records were being given
	RecordsPerSecond float64  `json:"records_per_second"`
	MBPerSecond      float64  `json:"mb_per_second"`
	Records          int64    `json:"records"`
	Bytes            int64    `json:"bytes"` // of keys and values
	Seconds          float64  `json:"seconds"`
	Errors           int64    `json:"errors"` // records not acknowledged
	FirstError       *string  `json:"first_error"`
	Interrupted      bool     `json:"interrupted"`

	Latency    *Latency `json:"latency_us"`
	AckLatency *Latency `json:"ack_latency_us"` // where latency_us is another

	BrokerCPUPerGB        *float64 `json:"broker_cpu_seconds_per_gb"`
	BrokerCPUPerMillion   *float64 `json:"broker_cpu_seconds_per_million"` // records
	BrokerCores           *float64 `json:"broker_cores"`
	BrokerAllocsPerBatch  *float64 `json:"broker_allocs_per_batch"`       // produced
	BrokerAllocsPerMiB    *float64 `json:"broker_allocs_per_fetched_mib"` // all allocations, if nothing was produced
	BrokerGCShare         *float64 `json:"broker_gc_share"`               // of its CPU time, 0 to 1
	BrokerResidentBytes   *int64   `json:"broker_resident_bytes"`         // at the end
	ClientCPUPerGB        float64  `json:"client_cpu_seconds_per_gb"`
	ClientCPUPerMillion   float64  `json:"client_cpu_seconds_per_million"`
	ClientCores           float64  `json:"client_cores"`
	ClientAllocsPerBatch  *float64 `json:"client_allocs_per_batch"`
	ClientAllocsPerRecord float64  `json:"client_allocs_per_record"`
	ClientGCShare         float64  `json:"client_gc_share"`

	GeneratorBound  bool     `json:"generator_bound"`
	GeneratorReason *string  `json:"generator_reason"`
	WaitedShare     *float64 `json:"waited_share"` // of the producers' time, for room in their windows
	LatestMillis    *float64 `json:"latest_ms"`    // the most that a record was given after it was due

	TailRecords int64    `json:"tail_records"` // read by those who followed
	TailMissing int64    `json:"tail_missing"` // of all that was written
	Idle        *Idle    `json:"idle"`
	Backlog     *Backlog `json:"backlog"`

	Intervals []Interval `json:"intervals"`
}

// Asked is the load as it was asked for.
type Asked struct {
	RecordBytes int64  `json:"record_bytes"` // of a value
	Keys        int64  `json:"keys"`
	Partitions  int    `json:"partitions"`
	Producers   int    `json:"producers"`
	Consumers   int    `json:"consumers"`
	Acks        string `json:"acks"`
	Flush       string `json:"flush"`
	Codec       string `json:"codec"`
	BatchBytes  int64  `json:"batch_bytes"`
	WindowBytes int64  `json:"window_bytes"`
	InFlight    int    `json:"in_flight"`
	LingerMS    int64  `json:"linger_ms"`
}

// Latency is in microseconds.
type Latency struct {
	Samples uint64  `json:"samples"` // how many records were timed
	Mean    float64 `json:"mean"`
	P50     float64 `json:"p50"`
	P95     float64 `json:"p95"`
	P99     float64 `json:"p99"`
	P999    float64 `json:"p999"`
	P9999   float64 `json:"p9999"`
	Max     float64 `json:"max"`
}

// latencyOf returns the quantiles of a histogram of nanoseconds, nil if it is
// empty.
func latencyOf(h *mem.Hist) *Latency {
	n := h.Count()
	if n == 0 {
		return nil
	}
	q := func(share float64) float64 { return micros(h.Quantile(share)) }
	return &Latency{n, micros(h.Sum()) / float64(n), q(0.5), q(0.95), q(0.99), q(0.999), q(0.9999), micros(h.Max())}
}

// measure runs work twice, to warm up and to be counted. The result is nil only
// if nothing could be measured.
func (t *target) measure(ctx context.Context, l *load, d *Display, work func(context.Context, *meter, span) error) (*Result, error) {
	warm, m := newMeter(), newMeter()
	if l.rate > 0 {
		mem.Prompt() // it is to be on time, however busy the machine is; what cannot be asked for shows in Latest
	}
	calm, end := context.WithCancel(ctx)
	defer end()
	go mem.Calm(calm, 0, func() int64 { return warm.records.Load() + m.records.Load() })
	if l.warmUp > 0 {
		s := span{duration: l.warmUp}
		stop := t.watch(d, "warm-up ", warm, s)
		err := work(ctx, warm, s)
		stop()
		if err = errors.Join(err, warm.failure()); err != nil || ctx.Err() != nil {
			return nil, errors.Join(err, context.Cause(ctx))
		}
	}
	r := l.result(t)
	s := span{duration: l.duration, records: l.records}
	from, err := t.mark(ctx)
	if err != nil {
		return nil, err
	}
	stop := t.watch(d, "", m, s)
	err = l.profiled(func() error { return work(ctx, m, s) })
	to, markErr := t.mark(ctx)
	r.Intervals = stop()
	r.Interrupted = ctx.Err() != nil
	r.Records, r.Bytes, r.Latency = m.records.Load(), m.bytes.Load(), latencyOf(m.end())
	r.account(from, to)
	if failure := m.failure(); failure != nil {
		first := failure.Error()
		r.Errors, r.FirstError = m.failed.Load(), &first
		err = errors.Join(err, fmt.Errorf("%d records were not acknowledged, the first: %w", r.Errors, failure))
	}
	return r, errors.Join(err, markErr)
}

// result returns a result that says what was asked, of whom and when.
func (l *load) result(t *target) *Result {
	dir := t.dir
	if dir == "" {
		dir = "."
	}
	machine := machineOf(dir)
	r := &Result{Workload: l.workload, Command: l.command, Started: time.Now().UTC().Format(time.RFC3339), Machine: machine, Commit: machine.Commit}
	r.Asked = Asked{RecordBytes: l.size, Keys: l.keys, Partitions: l.partitions, Producers: l.producers, Consumers: l.consumers, Acks: l.acks,
		Flush: l.flush, Codec: l.codec.String(), BatchBytes: l.batch, WindowBytes: l.window(), InFlight: l.inFlight, LingerMS: l.linger.Milliseconds()}
	if l.rate > 0 {
		r.AskedRate = &l.rate
	}
	return r
}

// account fills in what follows from records, bytes and what the processes
// used between two marks.
func (r *Result) account(from, to mark) {
	r.Seconds = to.at.Sub(from.at).Seconds()
	r.RecordsPerSecond = over(float64(r.Records), r.Seconds)
	r.MBPerSecond = over(float64(r.Bytes)/1e6, r.Seconds)
	gb, millions := float64(r.Bytes)/1e9, float64(r.Records)/1e6

	client := (to.client - from.client).Seconds()
	r.ClientCPUPerGB, r.ClientCPUPerMillion, r.ClientCores = over(client, gb), over(client, millions), over(client, r.Seconds)
	r.ClientAllocsPerRecord = over(to.allocs-from.allocs, float64(r.Records))
	r.ClientGCShare = over(to.gc-from.gc, client)
	if from.broker != 0 && to.broker != 0 {
		broker := (to.broker - from.broker).Seconds()
		r.BrokerCPUPerGB, r.BrokerCPUPerMillion, r.BrokerCores = ratio(broker, gb), ratio(broker, millions), ratio(broker, r.Seconds)
	}
	if to.resident > 0 {
		r.BrokerResidentBytes = &to.resident
	}
	if from.page == nil || to.page == nil {
		return
	}
	grown := func(name string) float64 { return to.page[name] - from.page[name] }
	batches, mib := grown("teralog_produce_batches_total"), grown("teralog_fetch_bytes_total")/(1<<20)
	r.BrokerGCShare = ratio(grown("go_gc_cpu_seconds_total"), grown("process_cpu_seconds_total"))
	r.BrokerAllocsPerBatch = ratio(grown("go_mallocs_total"), batches)
	r.ClientAllocsPerBatch = ratio(to.allocs-from.allocs, batches)
	if batches == 0 {
		r.BrokerAllocsPerMiB = ratio(grown("go_mallocs_total"), mib)
	}
}

// over returns a/b, 0 if b is 0.
func over(a, b float64) float64 {
	if b == 0 {
		return 0
	}
	return a / b
}

// ratio returns a/b, nil if b is 0.
func ratio(a, b float64) *float64 {
	if b == 0 {
		return nil
	}
	a /= b
	return &a
}

// write prints the result to out and into the files that were asked for.
func (r *Result) write(l *load, out io.Writer) error {
	var err error
	if l.format == "json" {
		e := json.NewEncoder(out)
		e.SetIndent("", "  ")
		err = e.Encode(r)
	} else {
		_, err = io.WriteString(out, r.text())
	}
	if l.csv != "" {
		err = errors.Join(err, writeFile(l.csv, r.writeCSV))
	}
	if l.html != "" {
		err = errors.Join(err, writeFile(l.html, func(w io.Writer) error { return writePage(w, r) }))
	}
	return err
}
