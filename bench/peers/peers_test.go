package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/teralog/teralog/bench/peers/measure"
)

func TestParseNATS(t *testing.T) {
	f := func(text string, took time.Duration, l latency, fault string) {
		t.Helper()
		d, err := parseNATS([]byte(text))
		if fault != "" {
			if err == nil || !strings.Contains(err.Error(), fault) {
				t.Fatalf("%q: %v, want %q", text, err, fault)
			}
			return
		}
		if err != nil || d.took != took || d.latency != l {
			t.Fatalf("%q: %+v, %v", text, d, err)
		}
	}

	const head = "#RunID,ClientID,MsgCount,MsgBytes,MsgsPerSec,BytesPerSec,DurationSecs"
	const more = ",MinLatencyMicroSecs,AvgLatencyMicroSecs,MaxLatencyMicroSecs,P50LatencyMicroSecs,P90LatencyMicroSecs,P99LatencyMicroSecs,P99.9LatencyMicroSecs,StdDevLatencyMicroSecs\n"
	f(head+more+"ty4n,P0,6000,300000,12930,1293058.8,1.5,35.7,77.1,4130.5,60.0,110.1,204.7,2661.4,149.4\n",
		1500*time.Millisecond, latency{P50: 60, P99: 204.7, P999: 2661.4, Max: 4130.5}, "")
	f(head+"\nC4M0,S0,200800,25600000,155473,19900603.8,2\n", 2*time.Second, latency{}, "") // consumers are not timed
	f(head+"\n", 0, latency{}, "1 lines, not 2")
	f(head+"\na,P0,1,1,1,1,0\n", 0, latency{}, "no DurationSecs")
	f(head+"\na,P0\n", 0, latency{}, "wrong number of fields")
}

func TestParseRedis(t *testing.T) {
	f := func(text string, took time.Duration, l latency, fault string) {
		t.Helper()
		d, err := parseRedis([]byte(text), 1000)
		if fault != "" {
			if err == nil || !strings.Contains(err.Error(), fault) {
				t.Fatalf("%q: %v, want %q", text, err, fault)
			}
			return
		}
		if err != nil || d.records != 1000 || d.took != took || d.latency != l {
			t.Fatalf("%q: %+v, %v", text, d, err)
		}
	}

	const head = `"test","rps","avg_latency_ms","min_latency_ms","p50_latency_ms","p95_latency_ms","p99_latency_ms","max_latency_ms"` + "\n"
	f(head+`"XADD s * f x","500.00","1.488","0.112","0.5","4","11","24"`, 2*time.Second, latency{P50: 500, P95: 4000, P99: 11000, Max: 24000}, "")
	f(head, 0, latency{}, "1 lines, not 2")
	f(head+`"XADD s * f x","nan?","1","1","1","1","1","1"`, 0, latency{}, "no rps")
}

func TestParseTeralog(t *testing.T) {
	f := func(text string, took time.Duration, l latency, fault string) {
		t.Helper()
		d, err := parseTeralog([]byte(text), 1000)
		if fault != "" {
			if err == nil || !strings.Contains(err.Error(), fault) {
				t.Fatalf("%q: %v, want %q", text, err, fault)
			}
			return
		}
		if err != nil || d.records != 1000 || d.took != took || d.latency != l {
			t.Fatalf("%q: %+v, %v", text, d, err)
		}
	}

	f(`{"records_per_second": 500, "latency_us": {"p50": 1, "p95": 2, "p99": 3, "p999": 4, "max": 5}, "more": []}`, 2*time.Second, latency{1, 2, 3, 4, 5}, "")
	f(`{}`, 0, latency{}, "no records_per_second")
	f(`Usage:`, 0, latency{}, "invalid character")
}

// reply is a connection on which Redis has said text.
func reply(text string) *respConn {
	return &respConn{r: bufio.NewReader(strings.NewReader(text))}
}

func TestEntries(t *testing.T) {
	f := func(text string, n int, last, fault string) {
		t.Helper()
		got, id, err := reply(text).entries([]byte("before"))
		if fault != "" {
			if err == nil || !strings.Contains(err.Error(), fault) {
				t.Fatalf("%q: %v, want %q", text, err, fault)
			}
			return
		}
		if got != n || string(id) != last || err != nil {
			t.Fatalf("%q: %d, %q, %v", text, got, id, err)
		}
	}

	const one = "*2\r\n$3\r\n1-0\r\n*2\r\n$1\r\nf\r\n$5\r\na\r\nbc\r\n" // a value may hold line ends
	const two = "*2\r\n$4\r\n27-1\r\n*2\r\n$1\r\nf\r\n$0\r\n\r\n"
	f("*-1\r\n", 0, "before", "") // nothing after it
	f("*1\r\n*2\r\n$1\r\ns\r\n*1\r\n"+one, 1, "1-0", "")
	f("*1\r\n*2\r\n$1\r\ns\r\n*2\r\n"+one+two, 2, "27-1", "")
	f("*1\r\n*2\r\n$1\r\ns\r\n*-1\r\n", 0, "", "a stream of -1 entries")
	f("*1\r\n*2\r\n$1\r\ns\r\n*2\r\n"+one, 0, "", "EOF")
	f("*2\r\n", 0, "", "2 streams")
	f("*1\r\n*3\r\n", 0, "", "an array of 3, not of 2")
	f("*1\r\n*2\r\n$2000000\r\n", 0, "", "a string of 2000000 bytes")
	f("*1\r\n*2\r\n:1\r\n", 0, "", "':' where '$' should stand")
	f("-ERR no such thing\r\n", 0, "", "Redis: ERR no such thing")
	f("*-2\r\n", 0, "", "not a length")
	f("*1\n", 0, "", "does not end in CR LF")
	f("\n", 0, "", "does not end in CR LF")
}

func FuzzEntries(f *testing.F) {
	f.Add("*1\r\n*2\r\n$1\r\ns\r\n*1\r\n*2\r\n$3\r\n1-0\r\n*2\r\n$1\r\nf\r\n$1\r\na\r\n")
	f.Fuzz(func(t *testing.T, text string) {
		n, _, err := reply(text).entries(nil)
		if n < 0 || n > len(text) || err != nil && n != 0 {
			t.Fatalf("%d entries, %v", n, err)
		}
	})
}

// measured is a report of two systems over three rounds, of which the second
// failed for the peer.
func measured() *report {
	run := func(rate, cpu float64, peak int64, p99 float64) sample {
		return sample{Records: 10, RecordsPerSecond: rate, BrokerPerGB: cpu, PeakBytes: peak, Latency: latency{P99: p99}}
	}
	r := &report{
		Skipped: []string{"redis: not installed"},
		Rows: []row{
			{Load: "ping", System: "teralog", single: true, Samples: []sample{run(100, 1, 50, 3), run(300, 2, 60, 3), run(200, 1, 70, 3)}},
			{Load: "ping", System: "teralog", How: "another way", single: true, Samples: []sample{run(1, 1, 1, 1), run(1, 1, 1, 1), run(1, 1, 1, 1)}},
			{Load: "ping", System: "jetstream", How: "sync", single: true, Samples: []sample{run(50, 10, 25, 6), {}, run(10, 30, 35, 6)}, Failures: []string{"it stalled"}},
		},
	}
	r.compare()
	return r
}

func TestCompare(t *testing.T) {
	r := measured()
	if ours := r.Rows[0]; ours.RecordsPerSecond != 200 || ours.Spread != 1 || ours.PeakBytes != 60 || ours.Versus != nil {
		t.Fatalf("%+v", ours)
	}
	peer := r.Rows[2]
	if peer.RecordsPerSecond != 30 || peer.Spread != 4./3 { // the failed run counts for neither
		t.Fatalf("%+v", peer)
	}
	ratio := func(median, least, most float64) measure.Ratio {
		return measure.Ratio{Median: median, Min: least, Max: most}
	}
	want := versus{Rate: ratio(11, 2, 20), CPU: ratio(20, 10, 30), Memory: ratio(0.5, 0.5, 0.5), P99: ratio(2, 2, 2)}
	if *peer.Versus != want {
		t.Fatalf("%+v, want %+v", *peer.Versus, want)
	}
	if want := []string{"ping: jetstream (sync) does better in the broker's peak memory by a factor of 2.00"}; !reflect.DeepEqual(r.Losses, want) {
		t.Fatalf("%q, want %q", r.Losses, want)
	}
}

// TestFormats expects in each format what a reader must not miss.
func TestFormats(t *testing.T) {
	for name, write := range formats {
		var b bytes.Buffer
		if err := write(&b, measured()); err != nil {
			t.Fatal(err)
		}
		for _, want := range []string{"redis: not installed", "it stalled", "does better in the broker's peak memory"} {
			if !strings.Contains(b.String(), want) {
				t.Errorf("%s: no %q in\n%s", name, want, b.String())
			}
		}
		if name == "json" && !json.Valid(b.Bytes()) {
			t.Errorf("not JSON:\n%s", b.String())
		}
	}
}

// TestStart expects a server that ends at once to be told from one that is
// slow, and its last words to be passed on.
func TestStart(t *testing.T) {
	addr, err := freeAddr()
	if err != nil {
		t.Fatal(err)
	}
	log := filepath.Join(t.TempDir(), "log")
	_, err = start(t.Context(), addr, log, "sh", "-c", "echo first; echo no room >&2; exit 3")
	if err == nil || !strings.Contains(err.Error(), "ended before it listened: no room") {
		t.Fatal(err)
	}
}

// TestFlags expects what makes no sense to be refused before anything starts.
func TestFlags(t *testing.T) {
	f := func(want string, args ...string) {
		t.Helper()
		if err := run(t.Context(), args); err == nil || !strings.Contains(err.Error(), want) {
			t.Fatalf("%q: %v, want %q", args, err, want)
		}
	}

	f(`unexpected argument "now"`, "now")
	f(`-o "html"`, "-o", "html")
	f("-only", "-only", "(")
	f("-rounds is at least 1", "-rounds", "0")
	f("at most 60", "-seconds", "61")
	if err := run(t.Context(), []string{"-help"}); !errors.Is(err, flag.ErrHelp) {
		t.Fatal(err)
	}
}

// TestMissing expects a peer that is not on the machine to say what to do.
func TestMissing(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	if _, err := redisStreams(t.Context(), ""); err == nil || !strings.Contains(err.Error(), "apt-get install redis-server redis-tools") {
		t.Fatal(err)
	}
}
