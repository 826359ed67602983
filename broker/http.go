package broker

import (
	"errors"
	"log/slog"
	"net"
	"net/http"
	"sync/atomic"
	"time"
)

// A page is one address of the operator's view.
type page struct {
	path  string
	serve func(*Broker, http.ResponseWriter, *http.Request)
}

// pages is the operator's view. Each answers GET and HEAD.
var pages = []page{
	{"/healthz", (*Broker).serveHealth},
	{"/metrics", (*Broker).serveMetrics},
	{"/config", (*Broker).serveConfig},
	{"/events", (*Broker).serveEvents},
	{"/{$}", (*Broker).serveConsole},
	{"/console/{file}", (*Broker).serveConsoleFile},
	{"/api/overview", api((*Broker).overview)},
	{"/api/topics", api((*Broker).listTopics)},
	{"/api/partitions", api((*Broker).listPartitions)},
	{"/api/records", api((*Broker).searchRecords)},
	{"/api/value", (*Broker).serveValue},
}

// maxViewers bounds the connections to the operator's view, inclusive; further
// ones are closed at once. They must not take the descriptors clients need.
const maxViewers = 64

// newView returns a server of the operator's view of b.
func newView(b *Broker) *http.Server {
	mux := http.NewServeMux()
	for _, p := range pages {
		mux.HandleFunc("GET "+p.path, func(w http.ResponseWriter, r *http.Request) { p.serve(b, w, r) })
	}
	return &http.Server{
		Handler:           mux,
		ReadHeaderTimeout: 5 * time.Second,
		ReadTimeout:       10 * time.Second,
		WriteTimeout:      30 * time.Second,
		IdleTimeout:       time.Minute,
		MaxHeaderBytes:    16 << 10,
		ErrorLog:          slog.NewLogLogger(b.log.Handler(), slog.LevelDebug),
		ConnState:         boundViewers(),
	}
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

// view serves the operator's view on ln until the returned function is called,
// which ends it at once. A view that fails is logged; the broker goes on.
func (b *Broker) view(ln net.Listener) (stop func()) {
	server := newView(b)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if err := server.Serve(ln); !errors.Is(err, http.ErrServerClosed) {
			b.log.Error("the operator's view has ended", "addr", ln.Addr().String(), "err", err)
		}
	}()
	return func() {
		server.Close()
		<-ended
	}
}

// serveHealth says that the process lives and answers, not that every
// partition is in service.
func (b *Broker) serveHealth(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Write([]byte("ok\n"))
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
