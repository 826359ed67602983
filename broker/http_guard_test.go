package broker

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/teralog/teralog/storage"
	"github.com/teralog/teralog/wire"
)

// TestOnlyReads is what somebody tries who means no good.
func TestOnlyReads(t *testing.T) {
	r := newRig(t)
	defer r.stop()
	view := newView(r.b).Handler
	f := func(method, path, local, host, body string, want int) {
		t.Helper()
		req := httptest.NewRequest(method, path, strings.NewReader(body))
		req.Host = host
		req = req.WithContext(context.WithValue(req.Context(), http.LocalAddrContextKey, &net.TCPAddr{IP: net.ParseIP(local), Port: 7480}))
		w := httptest.NewRecorder()
		view.ServeHTTP(w, req)
		if w.Code != want {
			t.Fatalf("%s %s at %s as %q: %d %s, want %d", method, path, local, host, w.Code, w.Body, want)
		}
		if h := w.Header(); h.Get("X-Content-Type-Options") != "nosniff" || h.Get("Access-Control-Allow-Origin") != "" {
			t.Fatalf("%s %s: %v", method, path, h)
		}
		if strings.Contains(w.Body.String(), "root:") {
			t.Fatalf("%s: %s", path, w.Body)
		}
	}

	for _, path := range []string{"/", "/metrics", "/healthz", "/readyz", "/events", "/recovery", "/config", "/api/overview", "/none"} {
		for _, method := range []string{"TRACE", "POST", "PUT", "DELETE", "PATCH", "CONNECT", "OPTIONS", "BREW"} {
			f(method, path, "127.0.0.1", "127.0.0.1:7480", "", 405)
		}
		f("GET", path, "127.0.0.1", "127.0.0.1:7480", "a body", 413)
		f("GET", path, "127.0.0.1", "evil.example:7480", "", 421) // a name that was made to lead here
		f("GET", path, "::1", "evil.example", "", 421)
		f("GET", path, "127.0.0.1", "", "", 421)
	}
	f("GET", "/metrics", "127.0.0.1", "localhost:9000", "", 200) // through a tunnel
	f("GET", "/metrics", "::1", "[::1]:7480", "", 200)
	f("GET", "/metrics", "10.0.0.5", "broker.example:7480", "", 200) // where others reach it, names are fine
	for _, path := range []string{"/console/../../../../etc/passwd", "/console/..%2f..%2f..%2fetc%2fpasswd", "/..%2fetc/passwd", "/console/%2e%2e/http.go", "/console//etc/passwd"} {
		req := httptest.NewRequest("GET", path, nil)
		w := httptest.NewRecorder()
		view.ServeHTTP(w, req)
		if w.Code == 200 || strings.Contains(w.Body.String(), "root:") {
			t.Fatalf("%s: %d %s", path, w.Code, w.Body)
		}
	}
}

// TestHugeBody announces 1 GiB: it is refused at once, and the connection ended.
func TestHugeBody(t *testing.T) {
	r := newRig(t)
	defer r.stop()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	f := &front{config: &r.b.config, log: slog.New(slog.DiscardHandler)}
	f.b.Store(r.b)
	defer f.serve(ln)()
	for _, head := range []string{"Content-Length: 1073741824", "Transfer-Encoding: chunked"} {
		c, err := net.Dial("tcp", ln.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		fmt.Fprintf(c, "GET /metrics HTTP/1.1\r\nHost: 127.0.0.1\r\n%s\r\n\r\n", head)
		in := bufio.NewReader(c)
		resp, err := http.ReadResponse(in, nil)
		if err != nil || resp.StatusCode != 413 || !resp.Close {
			t.Fatalf("%s: %+v, %v", head, resp, err)
		}
		io.Copy(io.Discard, resp.Body)
	}
}

// TestFront asks before there is a broker.
func TestFront(t *testing.T) {
	c := DefaultConfig()
	f := &front{config: &c, log: slog.New(slog.DiscardHandler)}
	ask := func(path string, code int, want string) {
		t.Helper()
		w := httptest.NewRecorder()
		f.server().Handler.ServeHTTP(w, httptest.NewRequest("GET", path, nil))
		if w.Code != code || !strings.Contains(w.Body.String(), want) {
			t.Fatalf("%s: %d %s", path, w.Code, w.Body)
		}
	}

	ask("/healthz", 200, "ok\n")
	ask("/readyz", 503, `{"ready":false,"reasons":["the broker starts`)
	ask("/metrics", 503, "starts")
	ask("/api/overview", 503, "starts") // the page, which is there, says so
	ask("/", 200, "<title>Teralog</title>")
	ask("/console/main.js", 200, "/api/overview")
	r := newRig(t)
	defer r.stop()
	f.b.Store(r.b)
	ask("/readyz", 200, `{"ready":true,"reasons":[]}`)
	ask("/metrics", 200, "teralog_build")
	ask("/debug/pprof/", 404, "")
	c.HTTPPprof = true
	ask("/debug/pprof/", 200, "goroutine")
	ask("/debug/pprof/heap?debug=1", 200, "heap profile")
}

// TestReady has a broker begin, serve with one of two directories gone, and end.
func TestReady(t *testing.T) {
	r := &rig{t: t, fs: storage.NewMemFS(1), config: DefaultConfig()}
	r.config.DataDirs, r.config.Reserve = []string{"data", "more"}, 64<<10
	r.start()
	defer func() { r.b.Close() }()
	for i := range 4 {
		r.create(fmt.Sprintf("t%d", i), 2)
	}
	f := func(want bool, reasons ...string) {
		t.Helper()
		is := r.b.readiness(newScrape(r.b))
		if is.Ready != want || len(is.Reasons) != len(reasons) {
			t.Fatalf("%+v", is)
		}
		for i := range reasons {
			if !strings.Contains(is.Reasons[i], reasons[i]) {
				t.Fatalf("%q, want %q", is.Reasons[i], reasons[i])
			}
		}
	}

	f(true)
	r.b.state.Store(begins)
	f(false, "starts")
	r.b.state.Store(serves)
	r.b.dirs[1].Fail(errors.New("it burns"))
	r.pass(5 * 1e9)
	lost := len(r.b.offline())
	if lost == 0 {
		t.Fatal("no partition lay there")
	}
	f(true, "data directory more is offline: it burns", fmt.Sprintf("%d of 8 partitions", lost))
	r.b.state.Store(ends)
	f(false, "stops", "more", "partitions")
}

// TestRecoveryPage starts after a death with a torn log and one that is damaged.
func TestRecoveryPage(t *testing.T) {
	r := newRig(t)
	id := r.create("t", 2)
	for i := range 10 {
		r.write(id, 0, fmt.Sprint(i))
	}
	r.pass(2e9)
	r.write(id, 0, "torn")
	r.kill(false)
	r.overwrite(folder+"/00000000000000000000.log", func(b []byte) []byte {
		b[len(b)/2] ^= 1 // of a batch below the recovery point
		return b[:len(b)-3]
	})
	r.start()
	r.readAll(id, 1)
	w := httptest.NewRecorder()
	newView(r.b).Handler.ServeHTTP(w, httptest.NewRequest("GET", "/recovery", nil))
	var p recoveryPage
	if err := json.Unmarshal(w.Body.Bytes(), &p); err != nil {
		t.Fatal(err)
	}
	if len(p.Directories) != 1 || p.Directories[0].Start != 2 || p.Directories[0].Clean || !p.Directories[0].SameBoot || !p.Directories[0].Epochs {
		t.Fatalf("%+v", p.Directories)
	}
	i := slices.IndexFunc(p.Partitions, func(x recovered) bool { return x.Partition == 0 })
	if i < 0 || p.Touched != len(p.Partitions) {
		t.Fatalf("%+v", p.Partitions)
	}
	if x := p.Partitions[i]; x.Topic != "t" || x.End != 10 || x.Point != 10 || x.Cut == 0 || x.CutAt != 10 || len(x.Kept) != 1 || x.Reason == "" {
		t.Fatalf("%+v", x)
	}
	var res wire.FetchResponse
	if err := r.ask(fetchOf(id, 0, 0), &res); err != nil {
		t.Fatal(err)
	}
	r.ask(fetchOf(id, 0, res.Partitions[0].Next), &res)
	w = httptest.NewRecorder()
	newView(r.b).Handler.ServeHTTP(w, httptest.NewRequest("GET", "/recovery", nil))
	if !strings.Contains(w.Body.String(), `"damaged":1,"damage":[{"topic":"t","partition":0,"from":5,"to":6}]`) {
		t.Fatalf("%s", w.Body)
	}
	r.stop()
}
