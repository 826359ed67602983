package broker

import (
	"errors"
	"fmt"
	"net/http"

	"github.com/teralog/teralog/raft"
	"github.com/teralog/teralog/storage"
)

// The states of a broker as clients see it.
const (
	begins int32 = iota
	serves
	ends
)

var (
	errStarting = errors.New("the broker starts: it opens and recovers its directories")
	errStopping = errors.New("the broker stops")
)

// readiness says whether a broker can be sent clients; if so, Reasons are what
// is not well nevertheless.
type readiness struct {
	Ready   bool     `json:"ready"`
	Reasons []string `json:"reasons"`
}

// serveReady answers /readyz, also before there is a broker.
func serveReady(b *Broker, w http.ResponseWriter, _ *http.Request) {
	is := readiness{Reasons: []string{errStarting.Error()}}
	if b != nil {
		is = b.readiness(newScrape(b))
	}
	status := http.StatusOK
	if !is.Ready {
		status = http.StatusServiceUnavailable
	}
	writeJSON(w, status, is)
}

// readiness returns how b is. Some partitions offline, or a directory, do not
// keep clients from the others.
func (b *Broker) readiness(s *scrape) readiness {
	is := readiness{Reasons: []string{}}
	no := func(format string, args ...any) { is.Reasons = append(is.Reasons, fmt.Sprintf(format, args...)) }
	state := b.state.Load()
	switch state {
	case begins:
		no("%v", errStarting)
	case ends:
		no("%v", errStopping)
	}
	leaderless := b.leaderless()
	if leaderless {
		no("no node leads the metadata")
	}
	b.eachDir(func(path string, d *storage.Dir) {
		if err := dirError(d); err != nil {
			no("data directory %s is offline: %v", path, err)
			return
		}
		if b.set.Slow(d) {
			no("data directory %s is slow: a flush takes longer than flush-slow", path)
		}
		if mark := b.markOf(d); mark > roomy {
			no("data directory %s fills up: %v is reached", path, mark)
		}
	})
	if s.damaged > 0 {
		no("%d ranges of records are damaged on disk; /recovery has them", s.damaged)
	}
	expected := b.partitions()
	if offline := expected - s.serving; offline > 0 {
		no("%d of %d partitions are out of service", offline, expected)
	}
	is.Ready = state == serves && !leaderless && (expected == 0 || s.serving > 0)
	return is
}

// dirError returns why a data directory is offline, nil if it is not. d is nil if
// it could not be opened.
func dirError(d *storage.Dir) error {
	if d == nil {
		return errors.New("it could not be opened at the start")
	}
	return d.Failed()
}

// leaderless reports whether no node is known to lead the metadata.
func (b *Broker) leaderless() bool {
	return b.peers != nil && b.coord.Status().Leader == raft.Peer{}
}

// serveHealth says that the process lives and answers, not that any partition
// is in service.
func serveHealth(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Write([]byte("ok\n"))
}
