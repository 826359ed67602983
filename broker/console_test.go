package broker

import (
	"context"
	"encoding/json"
	"net"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/teralog/teralog/wire"
)

// get asks the view of a broker from its own machine.
func get(t *testing.T, b *Broker, path string, header ...string) *httptest.ResponseRecorder {
	t.Helper()
	r := httptest.NewRequest("GET", path, nil)
	r.Host = "127.0.0.1:7480"
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	r = r.WithContext(context.WithValue(r.Context(), http.LocalAddrContextKey, &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 7480}))
	w := httptest.NewRecorder()
	newView(b).Handler.ServeHTTP(w, r)
	return w
}

// asked returns what a path answers, which must be JSON for nobody else.
func asked[T any](t *testing.T, b *Broker, path string) (answer T) {
	t.Helper()
	w := get(t, b, path)
	h := w.Header()
	if w.Code != 200 || h.Get("Content-Type") != "application/json; charset=utf-8" || h.Get("Cache-Control") != "no-store" ||
		h.Get("X-Content-Type-Options") != "nosniff" || h.Get("Cross-Origin-Resource-Policy") != "same-origin" {
		t.Fatalf("%s: %d %v %s", path, w.Code, h, w.Body)
	}
	if err := json.Unmarshal(w.Body.Bytes(), &answer); err != nil {
		t.Fatalf("%s: %v in %s", path, err, w.Body)
	}
	return answer
}

// refused asks a path and expects an error, in JSON, with words in it.
func refused(t *testing.T, b *Broker, path string, status int, code, words string) {
	t.Helper()
	w := get(t, b, path)
	var e jsonError
	if err := json.Unmarshal(w.Body.Bytes(), &e); err != nil || w.Code != status || e.Error.Code != code || !strings.Contains(e.Error.Message, words) {
		t.Fatalf("%s: %d %s, want %d %s with %q", path, w.Code, w.Body, status, code, words)
	}
}

// TestConsoleFiles asks for every file of the page as a browser does.
func TestConsoleFiles(t *testing.T) {
	r := newRig(t)
	defer r.stop()
	page := get(t, r.b, "/")
	names := []string{}
	for _, m := range regexp.MustCompile(`(?:href|src)="(/[^"]*)"`).FindAllStringSubmatch(page.Body.String(), -1) {
		names = append(names, m[1])
	}
	for _, m := range regexp.MustCompile(`from "\./([a-z]+\.js)"`).FindAllStringSubmatch(allOf(".js"), -1) {
		names = append(names, "/console/"+m[1])
	}
	if len(names) < 10 {
		t.Fatalf("the page names %v", names)
	}
	for _, name := range append(names, "/") {
		w := get(t, r.b, name)
		if w.Code != 200 || w.Body.Len() == 0 {
			t.Fatalf("%s: %d", name, w.Code)
		}
		if name != "/" && !strings.HasPrefix(name, "/console/") {
			continue
		}
		h := w.Header()
		if p := h.Get("Content-Security-Policy"); !strings.HasPrefix(p, "default-src 'none';") || strings.Contains(p, "unsafe") || strings.Contains(p, "*") {
			t.Fatalf("%s: %q", name, p)
		}
		if h.Get("X-Content-Type-Options") != "nosniff" || h.Get("ETag") == "" || h.Get("Content-Type") == "" {
			t.Fatalf("%s: %v", name, h)
		}
		if w := get(t, r.b, name, "If-None-Match", h.Get("ETag")); w.Code != 304 {
			t.Fatalf("%s again: %d", name, w.Code)
		}
	}
	for _, name := range []string{"/console/", "/console/none.js", "/console/..%2fconsole.go", "/index.html", "/api", "/api/"} {
		if w := get(t, r.b, name); w.Code != 404 {
			t.Fatalf("%s: %d", name, w.Code)
		}
	}
}

// allOf returns the text of all files of the page with an ending.
func allOf(ending string) (text string) {
	for name, f := range consoleFiles {
		if strings.HasSuffix(name, ending) {
			text += string(f.body) + "\n"
		}
	}
	return text
}

// TestConsoleSource holds the page to what its policy and its promise need:
// nothing from elsewhere, nothing made markup that was text.
func TestConsoleSource(t *testing.T) {
	f := func(ending string, words ...string) {
		t.Helper()
		text := strings.ReplaceAll(allOf(ending), "http://www.w3.org/2000/svg", "") // a name, asked for by nobody
		if text == "" {
			t.Fatalf("no file ends with %s", ending)
		}
		for _, w := range words {
			if m := regexp.MustCompile(w).FindString(text); m != "" {
				t.Errorf("a file %s has %q", ending, m)
			}
		}
	}

	f(".js", "innerHTML", "outerHTML", "insertAdjacentHTML", "document\\.write", "\\beval\\(", "new Function", "DOMParser", "https?://[a-z]", "localStorage", "cookie")
	f(".html", "https?://", "<script(?:>| [^s>]*>)", "<style", " style=", " on[a-z]+=")
	f(".css", "https?://", "@import", "url\\(")
	f(".svg", "https?://", "<script", " on[a-z]+=")
}

// TestMayRead asks for records from here and there.
func TestMayRead(t *testing.T) {
	r := newRig(t)
	defer r.stop()
	f := func(records, local, host string, want bool) {
		t.Helper()
		r.b.config.HTTPRecords = records
		req := httptest.NewRequest("GET", "/", nil)
		req.Host = host
		if local != "" {
			req = req.WithContext(context.WithValue(req.Context(), http.LocalAddrContextKey, &net.TCPAddr{IP: net.ParseIP(local), Port: 7480}))
		}
		if err := r.b.mayRead(req); (err == nil) != want {
			t.Errorf("http-records = %s, at %s as %s: %v", records, local, host, err)
		}
	}

	f("local", "127.0.0.1", "127.0.0.1:7480", true)
	f("local", "127.0.0.1", "localhost:9000", true) // through a tunnel
	f("local", "::1", "[::1]:7480", true)
	f("local", "::1", "[::1]", true)
	f("local", "127.0.0.1", "127.0.0.1", true)
	f("local", "127.0.0.1", "evil.example:7480", false) // a name of another site that leads here
	f("local", "127.0.0.1", "localhost.evil.example", false)
	f("local", "127.0.0.1", "", false)
	f("local", "10.0.0.5", "10.0.0.5:7480", false)
	f("local", "", "127.0.0.1:7480", false)
	f("on", "10.0.0.5", "teralog.example", true)
	f("off", "127.0.0.1", "127.0.0.1:7480", false)

	r.create("t", 1)
	r.b.config.HTTPRecords = "off"
	refused(t, r.b, "/api/records?topic=t", 403, "UNSUPPORTED", "http-records = off")
	refused(t, r.b, "/api/value?topic=t&offset=0", 403, "UNSUPPORTED", "http-records = off")
	if o := asked[overview](t, r.b, "/api/overview"); !strings.Contains(o.RecordsOff, "http-records = off") {
		t.Fatalf("%q", o.RecordsOff)
	}
	r.b.config.HTTPRecords = DefaultConfig().HTTPRecords
	if o := asked[overview](t, r.b, "/api/overview"); o.RecordsOff != "" {
		t.Fatalf("%q", o.RecordsOff)
	}
}

// TestOverview does some things and expects them told.
func TestOverview(t *testing.T) {
	r := newRig(t)
	r.config.DataDirs = []string{"data", "other"}
	r.stop()
	r.start()
	r.create("t", 1)
	id := r.create("u", 3)
	r.write(id, 1, "a", "b")
	r.read(fetchOf(id, 1, 0))
	o := asked[overview](t, r.b, "/api/overview")
	if !o.Ready || len(o.Reasons) != 0 || o.Topics != 2 || o.Partitions != 4 || o.Offline != 0 || o.Node != 1 || o.Start != 2 {
		t.Fatalf("%+v", o)
	}
	if o.Counters.Records != 2 || o.Counters.BytesIn == 0 || o.Counters.BytesIn != o.Counters.BytesOut {
		t.Fatalf("%+v", o.Counters)
	}
	lat := &r.b.server.Times().Calls[wire.APIProduce]
	for _, d := range []time.Duration{time.Microsecond, 3 * time.Millisecond, 4 * time.Millisecond, time.Hour} {
		lat.Record(d)
	}
	l := asked[overview](t, r.b, "/api/overview").Latency
	if n := len(l.Counts); n != len(l.Bounds)+1 || l.Counts[0] != 1 || l.Counts[n-1] != 4 || l.Counts[n-2] != 3 || l.Counts[slices.Index(l.Bounds, 0.005)] != 3 || l.Counts[slices.Index(l.Bounds, 0.0025)] != 1 {
		t.Fatalf("%+v", l)
	}
	limits := []string{}
	for _, l := range o.Limits {
		limits = append(limits, l.Name)
		if l.Max <= 0 || l.Used < 0 || l.Used > l.Max {
			t.Errorf("%+v", l)
		}
	}
	if !slices.Contains(limits, "connections") || !slices.Contains(limits, "memory of requests") || !slices.Contains(limits, "file descriptors") {
		t.Fatalf("limits %v", limits)
	}
	if d := o.Directories; len(d) != 2 || d[0].Path != "data" || !d[0].Clean || d[0].Free <= 0 || d[0].Free > d[0].Total || d[0].Partitions+d[1].Partitions != 4 || d[1].Path != "other" {
		t.Fatalf("%+v", d)
	}
	if len(o.Recovery) == 0 {
		t.Fatal("nothing told of the start")
	}
	kinds := []string{}
	for _, line := range o.Events {
		var e struct {
			Seq  uint64
			Kind string
		}
		if err := json.Unmarshal(line, &e); err != nil {
			t.Fatal(err)
		}
		kinds = append(kinds, e.Kind)
	}
	if n := len(kinds); n < 2 || kinds[n-1] != "topic_created" || kinds[n-2] != "topic_created" {
		t.Fatalf("events %v", kinds)
	}
	refused(t, r.b, "/api/overview?x=1", 400, "INVALID_REQUEST", `no parameter "x"`)

	r.fs.SetCapacity(1 << 20)
	r.b.config.Disk = Marks{Warn: 1, Refuse: 1, Protect: 1}
	for i := range r.b.gauges {
		r.b.look(&r.b.gauges[i])
	}
	o = asked[overview](t, r.b, "/api/overview")
	if d := o.Directories[0]; d.Warn != 1 || len(o.Reasons) != 2 || !strings.Contains(o.Reasons[0], "data fills up: disk-protect") {
		t.Fatalf("%+v", o)
	}

	placed := o.Directories[1].Partitions
	r.b.directory(r.b.dirs[1].ID()).Fail(http.ErrBodyNotAllowed) // any error
	r.settle()
	r.pass(2e9)
	o = asked[overview](t, r.b, "/api/overview")
	if placed == 0 || o.Directories[1].Error == "" || !strings.Contains(strings.Join(o.Reasons, "\n"), "other is offline") {
		t.Fatalf("%d placed; %+v", placed, o)
	}
}
