package mem

import (
	"sync"
	"sync/atomic"
	"time"
)

// A BreakerRule says when a Breaker refuses. Measures are of whatever its owner
// looks at: bytes that wait, or the time a disk takes.
type BreakerRule struct {
	Open  int64         // it opens at a measure of this and above, below what the queue can hold
	Close int64         // calm is a measure of at most this; below Open
	Hold  time.Duration // it stays open that long, and then closes after as long a calm; > 0
	Probe time.Duration // meanwhile one passes each time this has gone by; > 0
}

// A Breaker refuses work while a measure is too high, early and for a stated
// time, instead of letting a queue fill up and refuse at random. The zero one is
// closed. All methods may be called from any goroutine.
//
//	closed   everything passes, until a measure reaches Open
//	open     nothing passes for Hold
//	probing  one passes every Probe; a measure of Open opens it again, one above
//	         Close lets nobody pass and begins the calm anew, and after a calm of
//	         Hold it closes
//
// Between Close and Open a closed one stays closed and a probing one goes on
// probing, so a measure that moves there and back flips nothing; and who was
// let in again at once must first show, for Hold, that there is room.
type Breaker struct {
	state atomic.Uint32 // a breakerState; written with mu held

	mu    sync.Mutex
	until time.Duration // open: when that ends
	calm  time.Duration // probing: since when the measure is no higher than Close
	probe time.Duration // probing: when the next may pass
}

type breakerState uint32

const (
	closed breakerState = iota
	opened
	probing
)

func (s breakerState) String() string { return [...]string{"closed", "open", "probing"}[s] }

// Admit returns 0 if work may pass, measure being what it finds; else how long
// it is until it is worth asking again. A closed breaker costs an atomic load.
func (b *Breaker) Admit(r *BreakerRule, now Now, measure int64) (wait time.Duration) {
	if breakerState(b.state.Load()) == closed && measure < r.Open {
		return 0
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	switch breakerState(b.state.Load()) {
	case closed:
		if measure < r.Open {
			return 0
		}
		return b.open(r, now)
	case opened:
		if now.Mono < b.until {
			return b.until - now.Mono
		}
		b.become(probing)
		b.calm, b.probe = now.Mono, now.Mono
	}
	switch {
	case measure >= r.Open:
		return b.open(r, now)
	case measure > r.Close:
		b.calm = now.Mono
		return r.Probe
	case now.Mono-b.calm >= r.Hold:
		b.become(closed)
		return 0
	case now.Mono < b.probe:
		return b.probe - now.Mono
	}
	b.probe = now.Mono + r.Probe
	return 0
}

func (b *Breaker) open(r *BreakerRule, now Now) time.Duration {
	b.become(opened)
	b.until = now.Mono + r.Hold
	return r.Hold
}

func (b *Breaker) become(s breakerState) { b.state.Store(uint32(s)) }

// Closed reports whether everything passes, as far as is known.
func (b *Breaker) Closed() bool { return breakerState(b.state.Load()) == closed }
