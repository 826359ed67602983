package repl

import (
	"fmt"
	"time"

	"github.com/teralog/teralog/mem"
	"github.com/teralog/teralog/wire"
)

// A FlushMode says what an acknowledgement waits for on this node's disk.
type FlushMode uint8

// The flush modes of a topic. What each may lose stands in GUARANTEES.
const (
	Async    FlushMode = iota // an ack waits for the write; a flush follows in the background
	Interval                  // an ack waits for a flush only if more than a bound would be at stake otherwise
	Sync                      // an ack waits for a flush that covers it
)

// String returns the mode as topic settings name it.
func (m FlushMode) String() string {
	switch m {
	case Async:
		return "async"
	case Interval:
		return "interval"
	case Sync:
		return "sync"
	}
	return fmt.Sprintf("FlushMode(%d)", uint8(m))
}

// What FlushBytes and FlushEvery are when the settings leave them 0.
const (
	asyncBytes    = 64 << 20
	asyncEvery    = time.Second
	intervalBytes = 1 << 20
	intervalEvery = 100 * time.Millisecond
)

// A flushState knows what of one log is durable: what may be acknowledged, and
// when the next flush must start. One flush of a log runs at a time, and
// appends go on beside it.
//
// It keeps no list of appends. Two ages are enough: of the oldest byte not yet
// durable, and of the oldest that the running flush does not cover, which is
// the oldest once that flush is done.
type flushState struct {
	mode  FlushMode
	bytes int64         // how much may be unflushed
	every time.Duration // and for how long

	end, flushed     wire.Offset
	written, durable int64         // bytes appended since the log was opened, and those known durable
	oldest           time.Duration // when the first byte after durable was appended

	running bool
	lazy    bool     // nobody waits for the running flush
	patient bool     // and it is due by age only
	covers  struct { // what had been appended when the running flush was asked for
		end     wire.Offset
		written int64
	}
	next time.Duration // when the first byte after covers was appended
}

func newFlushState(s Settings, end wire.Offset) flushState {
	f := flushState{mode: s.Flush, bytes: s.FlushBytes, every: s.FlushEvery, end: end, flushed: end}
	bytes, every := int64(asyncBytes), asyncEvery
	if f.mode == Interval {
		bytes, every = intervalBytes, intervalEvery
	}
	if f.bytes <= 0 {
		f.bytes = bytes
	}
	if f.every <= 0 {
		f.every = every
	}
	return f
}

// appended notes n bytes that took the log to end.
func (f *flushState) appended(end wire.Offset, n int64, now mem.Now) {
	if f.written == f.durable {
		f.oldest = now.Mono
	}
	if f.running && f.written == f.covers.written {
		f.next = now.Mono
	}
	f.end = end
	f.written += n
}

// counted returns up to where this node's copy counts: for the commit, for
// acks=1 and for what consumers see.
func (f *flushState) counted() wire.Offset {
	if f.mode == Sync && !mem.Mutant("ack before fsync") {
		return f.flushed
	}
	return f.end
}

// volume is counted in bytes since the log was opened. Between a flush that
// covered more than it had to and the one that follows it may lag behind.
func (f *flushState) volume() int64 {
	if f.mode == Sync {
		return f.durable
	}
	return f.written
}

// mayAck reports whether the write that ends at end, when so much had been
// written, may be acknowledged as far as this disk goes.
//
// In interval mode it may while all that would be acknowledged and lost is
// within the bound, whatever the disk does from now on: a stalled flush stops
// the acks, it does not widen the loss.
func (f *flushState) mayAck(end wire.Offset, written int64, now mem.Now) bool {
	switch {
	case end <= f.flushed || f.mode == Async:
		return true
	case f.mode == Sync:
		return mem.Mutant("ack before fsync")
	}
	return written-f.durable <= f.bytes && now.Mono-f.oldest <= f.every
}

// due returns when the next flush must start at the latest, a time gone by if
// at once; !ok: no flush is needed, or one runs. waiting says that acks wait
// for it. In interval mode it starts at half of the bound, so that a healthy
// disk is done before an ack would have to wait.
func (f *flushState) due(waiting bool) (at time.Duration, ok bool) {
	if f.running || f.written == f.durable {
		return 0, false
	}
	unflushed := f.written - f.durable
	switch {
	case f.mode == Sync || waiting:
		return f.oldest, true
	case f.mode == Interval && unflushed < f.bytes/2:
		return f.oldest + f.every/2, true
	case f.mode == Async && unflushed < f.bytes:
		return f.oldest + f.every, true
	}
	return f.oldest, true
}

// start notes that a flush was asked for. waited says that acks wait for it.
func (f *flushState) start(waited bool) {
	if f.running {
		panic(fmt.Sprintf("BUG: a second flush of one log at offset %d, the first at %d", f.end, f.covers.end))
	}
	f.running = true
	f.lazy = f.mode == Async && !waited
	f.patient = f.lazy && f.written-f.durable < f.bytes
	f.covers.end, f.covers.written = f.end, f.written
}

// done notes that the running flush made everything below to durable. It may
// have covered more than there was when it was asked for.
func (f *flushState) done(to wire.Offset) {
	if !f.running || to < f.covers.end || to > f.end {
		panic(fmt.Sprintf("BUG: flushed to offset %d; running %t, asked for at %d, log ends at %d", to, f.running, f.covers.end, f.end))
	}
	f.running = false
	f.flushed = to
	if to == f.end {
		f.durable = f.written
		return
	}
	// How many bytes to stands for is not known, only that it is at least this.
	f.durable, f.oldest = f.covers.written, f.next
}

// closed notes that the log was closed with everything durable.
func (f *flushState) closed() {
	f.running = false
	f.flushed, f.durable = f.end, f.written
}
