package client

import (
	"errors"
	"time"

	"github.com/teralog/teralog/wire"
)

// backoff says how long to wait after failures in a row: min after the first,
// doubled with each further one up to max, less up to half of it by chance,
// so that clients which failed together do not come back together.
type backoff struct{ min, max time.Duration }

// maxHint bounds the patience a broker can ask for.
const maxHint = time.Minute

// after returns the wait after the nth failure in a row, n at least 1. It is
// never shorter than hint, the time the broker asked for, up to maxHint.
// chance is in [0, 1).
func (b backoff) after(n int, hint time.Duration, chance float64) time.Duration {
	d := b.max
	if shift := n - 1; shift < 30 && b.min<<shift < b.max {
		d = b.min << shift
	}
	return max(d-time.Duration(chance*float64(d)/2), min(hint, maxHint))
}

// A verdict is what the outcome of one attempt means for the next.
type verdict struct {
	definite bool          // what this attempt wrote will surely never become visible
	again    bool          // another attempt may end better
	stale    bool          // the answer puts the metadata in doubt: refresh it first
	wait     time.Duration // the broker asked for this much patience
}

// judge reads the outcome of an attempt that failed. What carries no code of
// the protocol happened on the way: unless the transport vouches that nothing
// was sent, it may have arrived.
func judge(err error) verdict {
	var stop final
	if errors.As(err, &stop) {
		return verdict{definite: true}
	}
	notSent := errors.Is(err, wire.ErrNotSent)
	var code wire.Code
	if !errors.As(err, &code) {
		return verdict{definite: notSent, again: true, stale: true}
	}
	v := verdict{definite: notSent || code.Definite(), again: code.Retriable(), stale: notSent}
	var e *wire.Error
	if errors.As(err, &e) {
		v.wait = e.RetryAfter
	}
	switch code {
	case wire.CodeNotLeader, wire.CodeFencedEpoch, wire.CodeUnknownEpoch,
		wire.CodeUnknownTopic, wire.CodeUnknownPartition, wire.CodeTopicRecreated,
		wire.CodeOffline, wire.CodeShuttingDown, wire.CodeTimeout:
		v.stale = true
	}
	return v
}

// final marks an error of a retriable code that another attempt would only
// repeat, found out on this side without anything having been written.
type final struct{ error }

func (f final) Unwrap() error { return f.error }
