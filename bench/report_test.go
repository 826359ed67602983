package bench

import (
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/teralog/teralog/mem"
)

func TestAccount(t *testing.T) {
	at := time.Unix(1_750_000_000, 0)
	from := mark{at: at, broker: 10 * time.Second, client: time.Second, allocs: 100, gc: 0.5, page: map[string]float64{
		"go_mallocs_total": 1000, "go_gc_cpu_seconds_total": 1, "process_cpu_seconds_total": 10, "teralog_produce_batches_total": 5, "teralog_fetch_bytes_total": 0}}
	to := mark{at: at.Add(4 * time.Second), broker: 13 * time.Second, client: 2 * time.Second, allocs: 2100, gc: 0.52, resident: 77, page: map[string]float64{
		"go_mallocs_total": 3000, "go_gc_cpu_seconds_total": 1.03, "process_cpu_seconds_total": 13, "teralog_produce_batches_total": 1005, "teralog_fetch_bytes_total": 4 << 20}}
	r := &Result{Records: 2_000_000, Bytes: 500e6}
	r.account(from, to)
	f := func(name string, got *float64, want float64) {
		t.Helper()
		if got == nil || math.Abs(*got-want) > 1e-9 {
			t.Fatalf("%s is %v, want %v", name, got, want)
		}
	}
	f("seconds", &r.Seconds, 4)
	f("records/s", &r.RecordsPerSecond, 500_000)
	f("MB/s", &r.MBPerSecond, 125)
	f("broker s/GB", r.BrokerCPUPerGB, 6)
	f("broker s/million", r.BrokerCPUPerMillion, 1.5)
	f("broker cores", r.BrokerCores, 0.75)
	f("broker allocations a batch", r.BrokerAllocsPerBatch, 2)
	f("broker collector", r.BrokerGCShare, 0.01)
	f("client s/GB", &r.ClientCPUPerGB, 2)
	f("client s/million", &r.ClientCPUPerMillion, 0.5)
	f("client cores", &r.ClientCores, 0.25)
	f("client allocations a batch", r.ClientAllocsPerBatch, 2)
	f("client allocations a record", &r.ClientAllocsPerRecord, 0.001)
	f("client collector", &r.ClientGCShare, 0.02)
	if r.BrokerAllocsPerMiB != nil || *r.BrokerResidentBytes != 77 {
		t.Fatal(r.BrokerAllocsPerMiB, *r.BrokerResidentBytes)
	}

	// Who only reads produces no batches.
	to.page["teralog_produce_batches_total"] = 5
	r = &Result{Records: 1, Bytes: 1}
	r.account(from, to)
	f("broker allocations a MiB", r.BrokerAllocsPerMiB, 500)
	if r.BrokerAllocsPerBatch != nil || r.ClientAllocsPerBatch != nil {
		t.Fatal("allocations a batch where there was none")
	}

	// Of a broker elsewhere nothing is known, and of no records nothing is said.
	r = &Result{}
	r.account(mark{at: at, client: 1}, mark{at: at.Add(time.Second), client: 2})
	if r.BrokerCPUPerGB != nil || r.BrokerCores != nil || r.BrokerGCShare != nil || r.BrokerResidentBytes != nil || r.ClientCPUPerGB != 0 || r.RecordsPerSecond != 0 {
		t.Fatalf("%+v", r)
	}
}

func TestInterval(t *testing.T) {
	at := time.Unix(1_750_000_000, 0)
	h := &mem.Hist{}
	for i := range int64(100) {
		h.Record((i + 1) * 1000)
	}
	got := interval(at, mark{at: at.Add(time.Second), broker: 1e9, client: 2e9}, mark{at: at.Add(3 * time.Second), broker: 2e9, client: 5e9}, 10, 20, h)
	if got.P50 < 49 || got.P50 > 51 || got.P99 < 98 || got.P99 > 100 {
		t.Fatal(got.P50, got.P99)
	}
	got.P50, got.P99 = 0, 0
	if want := (Interval{At: 3, Seconds: 2, Records: 10, Bytes: 20, BrokerCPU: 0.5, ClientCPU: 1.5, Max: 100}); got != want {
		t.Fatalf("%+v\nwant\n%+v", got, want)
	}
}

// TestLaps says that a latency recorded between two laps is counted once.
func TestLaps(t *testing.T) {
	m := newMeter()
	m.observe(1000)
	late := m.hist.Load()
	if n := m.lap().Count(); n != 1 {
		t.Fatal(n)
	}
	late.Record(2000) // by one who had looked just before
	m.observe(3000)
	if n := m.lap().Count(); n != 1 {
		t.Fatal(n)
	}
	m.observe(4000)
	if l := latencyOf(m.end()); l.Samples != 4 || l.Mean != 2.5 || l.Max != 4 {
		t.Fatalf("%+v", l)
	}
	if latencyOf(&mem.Hist{}) != nil {
		t.Fatal("latency of nothing")
	}
}

func TestBound(t *testing.T) {
	f := func(reason string, bound bool) {
		t.Helper()
		r := &Result{}
		if r.bound(reason); r.GeneratorBound != bound || r.GeneratorBound != (r.GeneratorReason != nil) {
			t.Fatalf("%q: %+v", reason, r)
		}
	}
	share := func(v float64) *float64 { return &v }
	f(lateVerdict(10*time.Millisecond), false)
	f(lateVerdict(11*time.Millisecond), true)
	f(waitedVerdict(0.05, 1, 5), false)
	f(waitedVerdict(0.04, 4.9, 5), true)
	f(waitedVerdict(0.04, 5, 5), false) // much was on its way, only not all that the window holds
	f(readersBusy(&Result{ClientCores: 0.95, BrokerCores: share(0.3)}, 1), true)
	f(readersBusy(&Result{ClientCores: 0.95, BrokerCores: share(0.5)}, 1), false) // the broker is not far from its end either
	f(readersBusy(&Result{ClientCores: 0.3, BrokerCores: share(0.1)}, 1), false)  // nobody was busy
	f(readersBusy(&Result{ClientCores: 5}, 1), false)                             // who knows
}

func TestParsePage(t *testing.T) {
	f := func(text string, want map[string]float64) {
		t.Helper()
		got, err := parsePage(strings.NewReader(text))
		if err == nil != (want != nil) || !maps.Equal(got, want) {
			t.Fatalf("%q: %v, %v; want %v", text, got, err, want)
		}
	}
	f("# HELP a what\n# TYPE a counter\na 1\n\nb{api=\"Produce\"} 2\nb{api=\"x y\"} 3.5\n", map[string]float64{"a": 1, "b": 5.5})
	f("", map[string]float64{})
	f("a 1e3\nb +Inf\n", map[string]float64{"a": 1000, "b": math.Inf(1)})
	f("a\n", nil)
	f("a b\n", nil)
}

func TestWords(t *testing.T) {
	f := func(got, want string) {
		t.Helper()
		if got != want {
			t.Fatalf("%q, want %q", got, want)
		}
	}
	f(group(0), "0")
	f(group(999), "999")
	f(group(1000), "1,000")
	f(group(-123456), "-123,456")
	f(group(1234567), "1,234,567")
	f(latency(27.2), "27 µs")
	f(latency(1500), "1.50 ms")
	f(latency(2.5e6), "2.50 s")
	f(few(1, "partition")+few(12, "partition"), "1 partition12 partitions")
}

func TestKafkaLines(t *testing.T) {
	f := func(r *Result, want string) {
		t.Helper()
		if got := r.kafka(); got != want {
			t.Fatalf("%q\nwant\n%q", got, want)
		}
	}
	r := &Result{Workload: "produce", Records: 1000, Bytes: 10 << 20, Seconds: 2, RecordsPerSecond: 500,
		Latency: &Latency{Samples: 1000, Mean: 1500, P50: 1000, P95: 2000, P99: 3000, P999: 4000, P9999: 5000, Max: 6000}}
	f(r, "1000 records sent, 500.0 records/sec (5.00 MB/sec), 1.50 ms avg latency, 6.00 ms max latency, 1.00 ms 50th, 2.00 ms 95th, 3.00 ms 99th, 4.00 ms 99.9th.")
	r.Workload = "e2e"
	f(r, "Avg latency: 1.5000 ms\nPercentiles: 50th = 1.00, 99th = 3.00, 99.9th = 4.00")
	r.Workload, r.Started = "consume", "2026-11-29T10:00:00Z"
	f(r, "start.time, end.time, data.consumed.in.MB, MB.sec, data.consumed.in.nMsg, nMsg.sec, rebalance.time.ms, fetch.time.ms, fetch.MB.sec, fetch.nMsg.sec\n"+
		"2026-11-29 10:00:00:000, 2026-11-29 10:00:02:000, 10.0000, 5.0000, 1000, 500.0000, 0, 2000, 5.0000, 500.0000")
	f(&Result{Workload: "produce"}, "")
	f(&Result{Workload: "idle"}, "")
}

func TestCSV(t *testing.T) {
	var b strings.Builder
	r := &Result{Intervals: []Interval{{At: 1, Seconds: 0.5, Records: 10, Bytes: 1e6, BrokerCPU: 0.25, ClientCPU: 0.5, P50: 1, P99: 2, Max: 3}}}
	if err := r.writeCSV(&b); err != nil {
		t.Fatal(err)
	}
	want := "at_seconds,seconds,records,bytes,records_per_second,mb_per_second,broker_cores,client_cores,p50_us,p99_us,max_us\n" +
		"1.000,0.500,10,1000000,20.000,2.000,0.250,0.500,1.000,2.000,3.000\n"
	if b.String() != want {
		t.Fatalf("%q\nwant\n%q", b.String(), want)
	}
}

// TestKeys freezes the names under which others read a result. A key may be
// added here, never renamed or removed.
func TestKeys(t *testing.T) {
	r := &Result{Intervals: []Interval{{}}}
	fillPointers(reflect.ValueOf(r).Elem())
	b, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	var v any
	if err := json.Unmarshal(b, &v); err != nil {
		t.Fatal(err)
	}
	v.(map[string]any)["machine"] = nil // has a test of its own
	got := keysOf("", v)
	slices.Sort(got)
	if text := strings.Join(got, "\n"); text != strings.TrimSpace(frozenKeys) {
		t.Fatalf("the keys of a result are now:\n%s", text)
	}

	// What was not measured is null, not absent.
	b, _ = json.Marshal(&Result{})
	if err := json.Unmarshal(b, &v); err != nil {
		t.Fatal(err)
	}
	for _, k := range []string{"latency_us", "broker_cpu_seconds_per_gb", "asked_rate", "first_error", "idle", "backlog"} {
		if got, ok := v.(map[string]any)[k]; !ok || got != nil {
			t.Fatalf("%s is %v, there: %v", k, got, ok)
		}
	}
}

// fillPointers points every nil pointer of a struct at a zero value.
func fillPointers(v reflect.Value) {
	for i := range v.NumField() {
		if f := v.Field(i); f.Kind() == reflect.Pointer {
			f.Set(reflect.New(f.Type().Elem()))
			if f.Elem().Kind() == reflect.Struct {
				fillPointers(f.Elem())
			}
		}
	}
}

func keysOf(in string, v any) (keys []string) {
	switch v := v.(type) {
	case map[string]any:
		for k, inner := range v {
			keys = append(append(keys, in+k), keysOf(in+k+".", inner)...)
		}
	case []any:
		for _, inner := range v {
			keys = append(keys, keysOf(fmt.Sprintf("%s[].", strings.TrimSuffix(in, ".")), inner)...)
		}
	}
	return keys
}

const frozenKeys = `
ack_latency_us
ack_latency_us.max
ack_latency_us.mean
ack_latency_us.p50
ack_latency_us.p95
ack_latency_us.p99
ack_latency_us.p999
ack_latency_us.p9999
ack_latency_us.samples
asked
asked.acks
asked.batch_bytes
asked.codec
asked.consumers
asked.flush
asked.in_flight
asked.keys
asked.linger_ms
asked.partitions
asked.producers
asked.record_bytes
asked.window_bytes
asked_rate
backlog
backlog.bytes
backlog.cold
backlog.mb_per_second
backlog.p99_ratio
backlog.read_mb_each_second
backlog.records
backlog.seconds
backlog.tail_bytes
backlog.tail_resident
backlog.undisturbed_us
backlog.undisturbed_us.max
backlog.undisturbed_us.mean
backlog.undisturbed_us.p50
backlog.undisturbed_us.p95
backlog.undisturbed_us.p99
backlog.undisturbed_us.p999
backlog.undisturbed_us.p9999
backlog.undisturbed_us.samples
broker_allocs_per_batch
broker_allocs_per_fetched_mib
broker_cores
broker_cpu_seconds_per_gb
broker_cpu_seconds_per_million
broker_gc_share
broker_resident_bytes
bytes
client_allocs_per_batch
client_allocs_per_record
client_cores
client_cpu_seconds_per_gb
client_cpu_seconds_per_million
client_gc_share
command
commit
errors
first_error
generator_bound
generator_reason
idle
idle.broker_bytes_after
idle.broker_bytes_before
idle.broker_bytes_each
idle.connections
idle.opened_per_second
interrupted
intervals
intervals[].at
intervals[].broker_cpu
intervals[].bytes
intervals[].client_cpu
intervals[].max
intervals[].p50
intervals[].p99
intervals[].records
intervals[].seconds
latency_us
latency_us.max
latency_us.mean
latency_us.p50
latency_us.p95
latency_us.p99
latency_us.p999
latency_us.p9999
latency_us.samples
latest_ms
machine
mb_per_second
records
records_per_second
seconds
sent_rate
started
tail_missing
tail_records
waited_share
workload
`
