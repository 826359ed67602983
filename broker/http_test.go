package broker

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/teralog/teralog/mem"
	"github.com/teralog/teralog/wire"
)

// A sample is one line of /metrics that is no comment.
type sample struct {
	name, labels string
	value        float64
}

// parseMetrics reads the text format strictly: each name has its HELP and its
// TYPE once, in this order and before its samples, which stand together. Those of
// a histogram have one of three endings, and its buckets only grow.
func parseMetrics(text string) (samples []sample, err error) {
	line := regexp.MustCompile(`^([a-z_][a-z0-9_]*)(?:\{((?:[a-z_]+="(?:[^"\\\n]|\\["\\n])*",?)+)\})? (\S+)$`)
	seen := map[string]bool{}
	current, typed, kind := "", false, ""
	inBucket := 0.0
	if !strings.HasSuffix(text, "\n") {
		return nil, fmt.Errorf("the last line is not ended")
	}
	for l := range strings.Lines(text) {
		l = strings.TrimSuffix(l, "\n")
		if rest, ok := strings.CutPrefix(l, "# HELP "); ok {
			name, help, _ := strings.Cut(rest, " ")
			if seen[name] || help == "" {
				return nil, fmt.Errorf("%q: told before, or nothing told", l)
			}
			seen[name], current, typed = true, name, false
			continue
		}
		if rest, ok := strings.CutPrefix(l, "# TYPE "); ok {
			var name string
			name, kind, _ = strings.Cut(rest, " ")
			if name != current || typed || kind != "counter" && kind != "gauge" && kind != "histogram" {
				return nil, fmt.Errorf("%q stands wrongly", l)
			}
			typed = true
			continue
		}
		m := line.FindStringSubmatch(l)
		if m == nil || !typed {
			return nil, fmt.Errorf("%q stands wrongly", l)
		}
		switch ending, of := strings.CutPrefix(m[1], current); {
		case !of, kind != "histogram" && ending != "":
			return nil, fmt.Errorf("%q stands wrongly", l)
		case kind == "histogram" && ending != "_bucket" && ending != "_sum" && ending != "_count":
			return nil, fmt.Errorf("%q is no line of a histogram", l)
		}
		v, err := strconv.ParseFloat(m[3], 64)
		if err != nil {
			return nil, err
		}
		if kind == "histogram" && strings.Contains(m[2], `le="`) {
			if strings.Contains(m[2], `le="5e-06"`) {
				inBucket = 0
			}
			if v < inBucket {
				return nil, fmt.Errorf("%q: the bucket before had %v", l, inBucket)
			}
			inBucket = v
		} else if strings.HasSuffix(m[1], "_count") && kind == "histogram" && v != inBucket {
			return nil, fmt.Errorf("%q: the buckets have %v", l, inBucket)
		}
		samples = append(samples, sample{m[1], m[2], v})
	}
	return samples, nil
}

// valueOf returns the value of the sample, which must be there once.
func valueOf(t *testing.T, samples []sample, name, labels string) float64 {
	t.Helper()
	found := []float64{}
	for _, s := range samples {
		if s.name == name && s.labels == labels {
			found = append(found, s.value)
		}
	}
	if len(found) != 1 {
		t.Fatalf("%s{%s} has values %v", name, labels, found)
	}
	return found[0]
}

// scraped asks the view of a broker for its metrics.
func scraped(t *testing.T, b *Broker) []sample {
	t.Helper()
	w := httptest.NewRecorder()
	newView(b).Handler.ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	if got := w.Header().Get("Content-Type"); w.Code != 200 || got != "text/plain; version=0.0.4; charset=utf-8" {
		t.Fatalf("%d, %s", w.Code, got)
	}
	samples, err := parseMetrics(w.Body.String())
	if err != nil {
		t.Fatal(err)
	}
	return samples
}

// TestMetricRows checks the table itself: names as Prometheus wants them, a
// counter's ending in _total, every row with what gives its value.
func TestMetricRows(t *testing.T) {
	name := regexp.MustCompile(`^(process|go|teralog)_[a-z_]*[a-z]$`)
	for _, m := range metricRows {
		if !name.MatchString(m.name) || (m.kind == "counter") != strings.HasSuffix(m.name, "_total") || !strings.HasSuffix(m.help, ".") {
			t.Errorf("%s is a %s: %s", m.name, m.kind, m.help)
		}
		given := 0
		for _, is := range []bool{m.value != nil, m.series != nil, m.write != nil} {
			if is {
				given++
			}
		}
		if given != 1 {
			t.Errorf("%s needs a value, a series, or what writes it", m.name)
		}
	}
	for api := range calls {
		if api > maxAPI {
			t.Errorf("%v is number %d; counted are those up to %d", api, api, maxAPI)
		}
	}
}

// buckets returns the lines of a histogram's buckets.
func buckets(name, labels string, counts ...int) (text string) {
	bounds := strings.Fields("5e-06 1e-05 2.5e-05 5e-05 0.0001 0.00025 0.0005 0.001 0.0025 0.005 0.01 0.025 0.05 0.1 0.25 0.5 1 2.5 5 10 25 +Inf")
	for i, n := range counts {
		text += fmt.Sprintf("%s_bucket{%sle=%q} %d\n", name, labels, bounds[i], n)
	}
	return text
}

func TestWriteMetrics(t *testing.T) {
	f := func(m metric, want string) {
		t.Helper()
		var b bytes.Buffer
		writeMetrics(&b, []metric{m}, nil)
		if b.String() != want {
			t.Fatalf("%q, want %q", &b, want)
		}
	}
	value := func(v float64) func(*scrape) float64 { return func(*scrape) float64 { return v } }

	f(metric{name: "a", kind: "gauge", help: "A.", value: value(0.25)}, "# HELP a A.\n# TYPE a gauge\na 0.25\n")
	f(metric{name: "a", kind: "gauge", help: "A.", value: value(math.Inf(1))}, "# HELP a A.\n# TYPE a gauge\na +Inf\n")
	f(metric{name: "a", kind: "gauge", help: "Not known.", value: value(math.NaN())}, "# HELP a Not known.\n# TYPE a gauge\n")
	f(metric{name: "a", kind: "gauge", help: "one\\two\nlines.", value: value(1)}, "# HELP a one\\\\two\\nlines.\n# TYPE a gauge\na 1\n")
	f(metric{name: "h_seconds", kind: "histogram", help: "H.", write: func(_ *scrape, to *exposition, name string) {
		var l mem.Latency
		l.Record(7 * time.Microsecond)
		l.Record(20 * time.Second)
		l.Record(time.Hour)
		to.histogram(name, label("dir", "d"), &l)
	}}, "# HELP h_seconds H.\n# TYPE h_seconds histogram\n"+buckets("h_seconds", `dir="d",`, 0, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 2, 3)+
		"h_seconds_sum{dir=\"d\"} 3620.000007\nh_seconds_count{dir=\"d\"} 3\n")
	f(metric{name: "b_total", kind: "counter", help: "B.", series: func(_ *scrape, emit func(string, float64)) {
		emit(label("topic", "x"), 1<<53)
		emit(label("topic", "a\"b\\c\nd"), 2)
	}}, "# HELP b_total B.\n# TYPE b_total counter\nb_total{topic=\"x\"} 9.007199254740992e+15\nb_total{topic=\"a\\\"b\\\\c\\nd\"} 2\n")
}

// TestMetrics produces and fetches, and expects what was done in the counters.
func TestMetrics(t *testing.T) {
	r := newRig(t)
	before := scraped(t, r.b)
	if n := valueOf(t, before, "teralog_produce_records_total", ""); n != 0 {
		t.Fatalf("%v records before the first", n)
	}
	id := r.create("t", 2)
	a := batchOf(t, wire.BuilderOptions{Topic: id}, "one", "two")
	b := batchOf(t, wire.BuilderOptions{Topic: id, Partition: 1}, "three")
	binary.LittleEndian.PutUint64(b[40:], uint64(r.now.Wall*1000)) // its greatest time, microseconds taken for milliseconds
	resum(b)
	bad := batchOf(t, wire.BuilderOptions{Topic: id, Partition: 2}, "there is no such partition")
	r.send(a, b, bad)
	r.ask(&wire.ProduceRequest{Acks: wire.AcksNone, Batches: []wire.Batch{a}}, &wire.ProduceResponse{})
	stored, plain := fetchOf(id, 0, 0), fetchOf(id, 1, 0)
	plain.Plain = true
	r.read(stored)
	r.read(plain)
	wait := fetchOf(id, 0, 4)
	wait.MaxWaitMillis = 1000
	parked := r.begin(wait, &wire.FetchResponse{})
	r.settle()

	s := scraped(t, r.b)
	f := func(want float64, name, labels string) {
		t.Helper()
		if got := valueOf(t, s, name, labels); got != want {
			t.Fatalf("%s{%s} is %v, want %v", name, labels, got, want)
		}
	}
	f(3, "teralog_produce_batches_total", "")
	f(5, "teralog_produce_records_total", "")
	f(float64(2*len(a)+len(b)), "teralog_produce_bytes_total", "")
	f(float64(2*len(a)+len(b)), "teralog_fetch_bytes_total", "")
	f(1, "teralog_requests_total", `api="CreateTopic"`)
	f(2, "teralog_requests_total", `api="Produce"`)
	f(3, "teralog_requests_total", `api="Fetch"`)
	f(1, "teralog_topics", "")
	f(2, "teralog_partitions", "")
	f(1, "teralog_partitions_with_future_times", "")
	f(1, "teralog_parked_fetches", "")
	f(0, "teralog_queued_batches", "")
	f(0, "teralog_connections", "")
	for _, m := range metricRows {
		if strings.HasPrefix(m.name, "teralog_") || m.name == "go_gc_cpu_seconds_total" {
			continue
		}
		if v := valueOf(t, s, m.name, ""); v <= 0 {
			t.Errorf("%s is %v", m.name, v)
		}
	}
	was, is := valueOf(t, before, "go_mallocs_total", ""), valueOf(t, s, "go_mallocs_total", "")
	if is <= was {
		t.Errorf("%v objects allocated, then %v", was, is)
	}

	r.pass(2 * 1e9)
	if parked.answers != 1 || valueOf(t, scraped(t, r.b), "teralog_parked_fetches", "") != 0 {
		t.Fatalf("the parked fetch has %d answers", parked.answers)
	}
	r.stop()
}

// TestView asks for pages: which there are, and with which methods.
func TestView(t *testing.T) {
	r := newRig(t)
	defer r.stop()
	view := newView(r.b).Handler
	f := func(method, path string, code int, want string) {
		t.Helper()
		w := httptest.NewRecorder()
		view.ServeHTTP(w, httptest.NewRequest(method, path, nil))
		if w.Code != code || !strings.Contains(w.Body.String(), want) {
			t.Fatalf("%s %s: %d %q", method, path, w.Code, w.Body)
		}
	}
	f("GET", "/healthz", 200, "ok\n")
	f("HEAD", "/healthz", 200, "")
	f("POST", "/healthz", 405, "")
	f("GET", "/metrics", 200, "teralog_build{version=")
	f("DELETE", "/metrics", 405, "")
	f("GET", "/config", 200, "data-dir = data")
	f("GET", "/config", 200, "# default\n")
	f("POST", "/config", 405, "")
	f("GET", "/", 200, "<title>Teralog</title>")
	f("POST", "/", 405, "")
	f("GET", "/api/overview", 200, `"ready":true`)
	f("PUT", "/api/records", 405, "")
	f("GET", "/none", 404, "")
	f("GET", "/readyz", 200, `{"ready":true,"reasons":[]}`)
	f("GET", "/recovery", 200, `"directories":[{"path":"data","start":1,"clean":true,`)
	f("GET", "/debug/pprof/", 404, "") // only if asked for
	f("GET", "/debug/pprof/heap", 404, "")
}

// TestServeHTTP runs the command with a view: its address in the ready line,
// a bound on connections, and nothing left when the broker ends.
func TestServeHTTP(t *testing.T) {
	line, stop := serving(t, t.TempDir(), "--http", "127.0.0.1:0")
	_, rest, ok := strings.Cut(line, ", http ")
	addr, _, _ := strings.Cut(rest, ",")
	if !ok {
		t.Fatalf("%q", line)
	}
	get := func(c net.Conn) (int, string, error) {
		fmt.Fprintf(c, "GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
		resp, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err != nil {
			return 0, "", err
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		return resp.StatusCode, string(body), err
	}
	connect := func() net.Conn {
		c, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		return c
	}
	for range maxViewers {
		if code, body, err := get(connect()); code != 200 || body != "ok\n" || err != nil {
			t.Fatalf("%d %q, %v", code, body, err)
		}
	}
	if code, _, err := get(connect()); err == nil {
		t.Fatalf("connection %d was answered with %d", maxViewers+1, code)
	}
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	if c, err := net.Dial("tcp", addr); err == nil {
		c.Close()
		t.Fatal("the view outlives its broker")
	}

	// An address in use ends the command, and without the flag there is none.
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	args := []string{"--data-dir", t.TempDir(), "--listen", "127.0.0.1:0", "--http", taken.Addr().String()}
	if err := Serve(t.Context(), args, nil, io.Discard, io.Discard); exitCode(err) != 1 || !strings.Contains(err.Error(), taken.Addr().String()) {
		t.Fatalf("an address in use: %v", err)
	}
	line, stop = serving(t, t.TempDir())
	if strings.Contains(line, "http") {
		t.Fatalf("%q", line)
	}
	if err := stop(); err != nil {
		t.Fatal(err)
	}
}
