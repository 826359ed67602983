package repl

import (
	"time"

	"github.com/teralog/teralog/mem"
	"github.com/teralog/teralog/storage"
	"github.com/teralog/teralog/wire"
)

// An ack is a write that is in the log and whose answer waits.
type ack struct {
	end     wire.Offset // exclusive: where the log must count to
	written int64       // flushState.written when it was appended
	all     bool        // acks=all: every replica that counts must have it
	at      storage.Appended
	done    func(storage.Appended, error) // nil once answered
	within  time.Duration                 // when it is answered TIMEOUT, 0: never
	since   time.Duration                 // when it was appended; 0: it is not timed
}

// acks are the waiting answers, ascending by end: they fall due in the order in
// which they were pushed, so a ring is enough, with no search and no timer.
//
// A duplicate stands behind what was appended before it came, although its
// original may be older: were it answered early, the order would go; were it
// answered when it came, a retry would succeed that the original could not yet.
type acks struct {
	ring     *mem.Ring[ack]
	deadline time.Duration // no within is earlier; 0: there is none
	waits    *mem.Latency  // of those that were not answered by the turn that appended them; nil: not kept
}

// waiting reports whether a write waits.
func (q *acks) waiting() bool { return q.ring.Len() > 0 }

// push queues a. The caller has seen to it that there is room.
func (q *acks) push(a ack) {
	if back := q.ring.Back(); back != nil {
		a.end = max(a.end, back.end)
		a.written = max(a.written, back.written)
	}
	if !q.ring.Push(a) {
		panic("BUG: a write was appended with no room for its ack")
	}
	if a.within > 0 && (q.deadline == 0 || a.within < q.deadline) {
		q.deadline = a.within
	}
}

// settle answers, in order, what the disk and the other replicas allow.
func (q *acks) settle(f *flushState, committed wire.Offset, now mem.Now) {
	for a := q.ring.Front(); a != nil; a = q.ring.Front() {
		if a.all && a.end > committed || !f.mayAck(a.end, a.written, now) {
			return
		}
		answered, _ := q.ring.Pop() // before the call, so that nothing answers it twice
		if q.waits != nil && answered.since > 0 && now.Mono > answered.since {
			q.waits.Record(now.Mono - answered.since)
		}
		if answered.done != nil {
			answered.done(answered.at, nil)
		}
	}
	q.deadline = 0
}

// expire answers those whose time is up. Their writes are in the log and may
// still count, so they keep their place. The ring is searched only when a
// deadline has passed, most of the time that of a write answered long ago.
func (q *acks) expire(now mem.Now) {
	if q.deadline == 0 || q.deadline > now.Mono {
		return
	}
	q.deadline = 0
	for i := range q.ring.Len() {
		a := q.ring.At(i)
		switch {
		case a.within == 0:
		case a.within <= now.Mono:
			done := a.done
			a.within, a.done = 0, nil
			done(storage.Appended{First: -1, Last: -1}, errAckTimeout)
		case q.deadline == 0 || a.within < q.deadline:
			q.deadline = a.within
		}
	}
}

// fail answers everything with err.
func (q *acks) fail(err error) {
	q.deadline = 0
	for a, ok := q.ring.Pop(); ok; a, ok = q.ring.Pop() {
		if a.done != nil {
			a.done(storage.Appended{First: -1, Last: -1}, err)
		}
	}
}
