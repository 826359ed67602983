package bench

import (
	"strings"
	"testing"
)

// sampleResult is a run in which everything was measured.
func sampleResult() *Result {
	f := func(v float64) *float64 { return &v }
	rate, resident, reason, first := int64(1_000_000), int64(29e6), "it had no time", `broken <pipe> & "more"`
	return &Result{
		Workload: "produce", Command: `teralog bench produce --topic '<script>alert(1)</script>'`, Started: "2026-01-02T03:04:05Z", Commit: "0123456789ab",
		Asked:     Asked{RecordBytes: 100, Partitions: 12, Producers: 1, Acks: "all", Flush: "async", Codec: "none", BatchBytes: 64 << 10, WindowBytes: 640_000},
		AskedRate: &rate, RecordsPerSecond: 999_999.5, MBPerSecond: 99.99, Records: 2_999_998, Bytes: 299_999_800, Seconds: 3, Errors: 7, FirstError: &first,
		Latency:        &Latency{Samples: 1000, Mean: 800, P50: 700, P95: 1500, P99: 2500, P999: 31_000, P9999: 420_000, Max: 1_300_000},
		AckLatency:     &Latency{Samples: 1000, Mean: 80, P50: 71, P95: 72, P99: 73, P999: 74, P9999: 75, Max: 76},
		BrokerCPUPerGB: f(0.777), BrokerCPUPerMillion: f(0.0777), BrokerCores: f(0.5), BrokerAllocsPerBatch: f(1.25), BrokerGCShare: f(0.0123), BrokerResidentBytes: &resident,
		ClientCPUPerGB: 0.888, ClientCPUPerMillion: 0.0888, ClientCores: 0.6, ClientGCShare: 0.02,
		GeneratorBound: true, GeneratorReason: &reason, Interrupted: true, TailRecords: 10, TailMissing: 3,
		Intervals: []Interval{
			{At: 1, Seconds: 1, Records: 1_000_000, Bytes: 100e6, BrokerCPU: 0.5, ClientCPU: 0.7, P50: 700, P99: 2400, Max: 30_000},
			{At: 2, Seconds: 1, Records: 0, Bytes: 0, BrokerCPU: 0, ClientCPU: 0},
			{At: 3.2, Seconds: 1.2, Records: 1_999_998, Bytes: 199_999_800, BrokerCPU: 0.4, ClientCPU: 0.5, P50: 800, P99: 2600, Max: 1_300_000},
		},
	}
}

// TestWritePage writes pages of runs in which less and less was measured.
func TestWritePage(t *testing.T) {
	f := func(change func(*Result), drawings int, texts ...string) {
		t.Helper()
		r := sampleResult()
		change(r)
		var b strings.Builder
		if err := writePage(&b, r); err != nil {
			t.Fatal(err)
		}
		page := b.String()
		n := elementsOf(t, page)
		if n["html"] != 1 || n["svg"] != drawings || n["script"] != 0 || n["link"] != 0 || n["img"] != 0 {
			t.Fatalf("%v, want %d drawings", n, drawings)
		}
		if strings.Contains(page, "ZgotmplZ") || strings.Contains(page, "NaN") || strings.Contains(page, "%!") || strings.Contains(page, "Inf") {
			t.Fatalf("something was not written:\n%s", page)
		}
		for _, want := range texts {
			if !strings.Contains(page, want) {
				t.Fatalf("nothing says %q in:\n%s", want, page)
			}
		}
	}

	f(func(*Result) {}, 4, "teralog bench produce", "&lt;script&gt;", "0123456789ab", "2026-01-02T03:04:05Z", "100.0 MB/s", "999,999 records/s", "P99.9 31.00 ms",
		"0.777 s/GB", "0.888 s/GB", "it had no time", "broken &lt;pipe&gt; &amp;", "was interrupted", "slowest 1.30 s", "1.25", "1.23 %", "29.0 MB", "10, 3 missing", "1,999,998", "420.00 ms")
	f(func(r *Result) { r.Latency, r.AckLatency = nil, nil }, 3)
	f(func(r *Result) {
		for i := range r.Intervals {
			r.Intervals[i].P50, r.Intervals[i].P99, r.Intervals[i].Max = 0, 0, 0
		}
	}, 3)
	f(func(r *Result) { r.Intervals = r.Intervals[:1] }, 1)
	f(func(r *Result) {
		*r = Result{Workload: "consume", Asked: r.Asked, Intervals: r.Intervals[1:2]}
	}, 0, "teralog bench consume")
	f(func(r *Result) { r.Latency.P50, r.Latency.P9999 = 5, 5 }, 4)
	f(func(r *Result) { r.Bytes, r.Records, r.BrokerCPUPerGB = 0, 0, nil }, 4)
}

func TestShort(t *testing.T) {
	f := func(v float64, want, want3 string) {
		t.Helper()
		if got, got3 := short(v), short3(v); got != want || got3 != want3 {
			t.Fatalf("%v reads %q and %q, want %q and %q", v, got, got3, want, want3)
		}
	}
	f(0, "0", "0")
	f(0.00123, "0.00123", "0.00123")
	f(0.999, "1.00", "0.999")
	f(1.5, "1.50", "1.5")
	f(12.34, "12.3", "12.3")
	f(1234.5, "1234", "1234")
}
