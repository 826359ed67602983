package broker

import (
	"errors"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/teralog/teralog/wire"
)

// refusals counts what was refused, by the limit that was met, and makes it an
// event once in a while.
type refusals [wire.NumLimits]struct {
	n    atomic.Int64
	told atomic.Int64 // of n, by an event
	next atomic.Int64 // on the monotonic clock: when there may be another event
}

// refusedEvery is how long there is no second event about one limit.
const refusedEvery = time.Second

// refused notes one refusal; remote is asked for whose it was only if that is
// told.
func (b *Broker) refused(l wire.Limit, remote func() string) {
	r := &b.refusals[l]
	n := r.n.Add(1)
	now, next := b.time().Mono, r.next.Load()
	if int64(now) < next || !r.next.CompareAndSwap(next, int64(now+refusedEvery)) {
		return
	}
	b.event(EventClientRefused, slog.String("reason", l.String()), slog.String("remote", remote()), slog.Int64("count", n-r.told.Swap(n)))
}

// noteRefusal notes that c, or a part of it, is answered with err, if that is a
// refusal.
func (b *Broker) noteRefusal(c *wire.Call, err error) {
	if l := limitOf(err); l != wire.NoLimit {
		b.refused(l, c.Remote)
	}
}

// refuse answers with an error.
func (b *Broker) refuse(c *wire.Call, err error) {
	b.noteRefusal(c, err)
	c.ReplyError(err)
}

// limitOf returns what a refusal met. A disk that is full may be so anywhere.
func limitOf(err error) wire.Limit {
	var e *wire.Error
	switch {
	case errors.As(err, &e) && e.Limit != wire.NoLimit:
		return e.Limit
	case errors.Is(err, wire.CodeDiskFull):
		return wire.LimitDiskFull
	}
	return wire.NoLimit
}

// retryAfter returns how long err asks to wait.
func retryAfter(err error) time.Duration {
	var e *wire.Error
	if errors.As(err, &e) {
		return e.RetryAfter
	}
	return 0
}

// refusalRows are the metrics of refusals: every limit, also those not met, so
// that an alert can tell none from not there.
var refusalRows = []metric{
	{name: "teralog_refused_total", kind: "counter", help: "Requests, or parts of them, and connections refused, by the limit they met.", series: func(s *scrape, emit func(string, float64)) {
		for l := wire.NoLimit + 1; l < wire.NumLimits; l++ {
			emit(label("reason", l.String()), float64(s.b.refusals[l].n.Load()))
		}
	}},
}
