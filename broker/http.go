package broker

import (
	"errors"
	"log/slog"
	"net"
	"net/http"
	"net/http/pprof"
	"sync/atomic"
	"time"
)

// A page is one address of the operator's view.
type page struct {
	path  string
	serve func(*Broker, http.ResponseWriter, *http.Request)
}

// pages is what of the operator's view needs a broker. Each answers GET and HEAD,
// and takes no body.
//
//	/healthz   "ok" while the process answers
//	/readyz    {"ready":…,"reasons":[…]}, 200 or 503: whether it serves, and what is not well
//	/metrics   the text format of Prometheus
//	/events    what happened, a line of JSON each: {"seq":…,"time":…,"kind":…,"fields":{…}};
//	           ?since=SEQ those after one, ?follow goes on, as server-sent events if asked for
//	/recovery  what the last start found and did, and what is damaged or offline now, as JSON
//	/config    what is in force, as a configuration file
//	/          the console, which needs no broker; /api is its own, and may change
//	/debug/pprof/  only with http-pprof
var pages = []page{
	{"/metrics", (*Broker).serveMetrics},
	{"/config", (*Broker).serveConfig},
	{"/events", (*Broker).serveEvents},
	{"/recovery", api((*Broker).recoveryPage)},
	{"/api/overview", api((*Broker).overview)},
	{"/api/topics", api((*Broker).listTopics)},
	{"/api/partitions", api((*Broker).listPartitions)},
	{"/api/records", api((*Broker).searchRecords)},
	{"/api/value", (*Broker).serveValue},
}

// maxViewers bounds the connections to the operator's view, inclusive; further
// ones are closed at once. They must not take the descriptors clients need.
const maxViewers = 64

// A front is the operator's view. It is there before the broker: while that
// starts, /healthz and /readyz are answered, all else with 503.
type front struct {
	b      atomic.Pointer[Broker] // nil: it is still to come
	config *Config
	log    *slog.Logger
}

// newView returns a server of the operator's view of b.
func newView(b *Broker) *http.Server {
	f := &front{config: &b.config, log: b.log}
	f.b.Store(b)
	return f.server()
}

func (f *front) server() *http.Server {
	return &http.Server{
		Handler:           onlyReads(f.pages()),
		ReadHeaderTimeout: 5 * time.Second,
		ReadTimeout:       10 * time.Second,
		WriteTimeout:      30 * time.Second,
		IdleTimeout:       time.Minute,
		MaxHeaderBytes:    16 << 10,
		ErrorLog:          slog.NewLogLogger(f.log.Handler(), slog.LevelDebug),
		ConnState:         boundViewers(),
	}
}

func (f *front) pages() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/healthz", serveHealth)
	mux.HandleFunc("/readyz", func(w http.ResponseWriter, r *http.Request) { serveReady(f.b.Load(), w, r) })
	mux.HandleFunc("/{$}", serveConsole)
	mux.HandleFunc("/console/{file}", serveConsole)
	for _, p := range pages {
		mux.HandleFunc(p.path, func(w http.ResponseWriter, r *http.Request) {
			if b := f.b.Load(); b != nil {
				p.serve(b, w, r)
				return
			}
			w.Header().Set("Retry-After", "1")
			http.Error(w, errStarting.Error(), http.StatusServiceUnavailable)
		})
	}
	if f.config.HTTPPprof {
		mux.HandleFunc("/debug/pprof/", pprof.Index) // the profiles by name, too
		mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
		mux.HandleFunc("/debug/pprof/trace", pprof.Trace)
	}
	return mux
}

// boundViewers returns a hook that keeps a server to maxViewers connections.
func boundViewers() func(net.Conn, http.ConnState) {
	var open atomic.Int64
	return func(c net.Conn, s http.ConnState) {
		switch s {
		case http.StateNew:
			if open.Add(1) > maxViewers {
				c.Close()
			}
		case http.StateClosed, http.StateHijacked:
			open.Add(-1)
		}
	}
}

// serve serves the view on ln until the returned function is called, which ends
// it at once. A view that fails is logged; the broker goes on.
func (f *front) serve(ln net.Listener) (stop func()) {
	server := f.server()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if err := server.Serve(ln); !errors.Is(err, http.ErrServerClosed) {
			f.log.Error("the operator's view has ended", "addr", ln.Addr().String(), "err", err)
		}
	}()
	return func() {
		server.Close()
		<-ended
	}
}

func (b *Broker) serveMetrics(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
	writeMetrics(w, metricRows, newScrape(b)) // who has gone needs no error
}

// serveConfig shows what is in force as a configuration file.
func (b *Broker) serveConfig(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	writeSettings(w, b.config.InForce())
}
