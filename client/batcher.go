package client

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/teralog/teralog/mem"
	"github.com/teralog/teralog/wire"
)

// A batch is what one partition was given to send, from its first record to
// the call of its last callback. It is built once: a retry sends the same
// bytes, so the broker recognises what it already has.
type batch struct {
	lane  *lane
	done  receipts      // empty after they were told
	cost  int64         // bytes charged to the producer's buffer
	born  time.Duration // when the first record came
	state batchState
	told  bool // given up while in flight: nobody wants its outcome any more

	written bool // somebody encodes records into it, without the mutex: it stays as it is
	passed  bool // it was due meanwhile, so its writer has it sent

	alone   bool          // one record larger than a batch
	builder *wire.Builder // until it is built
	buf     *mem.Buf      // since then
	count   int32
	seq     int32 // of the first record; meaningful once numbered

	numbered bool // seq was assigned, so later batches count on it
	attempts int
	doubt    bool // an attempt may have been carried out
	err      error

	base  wire.Offset // of the first record once acked, -1 if not told
	time  int64       // of the append
	epoch wire.Epoch  // of the leader that acknowledged
}

type batchState uint8

const (
	filling  batchState = iota // takes records; only the last batch of a lane
	waiting                    // to be sent, or sent again
	inFlight                   // a request carries it
	acked                      // in the log
	refused                    // failed
)

// full says that no more records go in.
func (b *batch) full() {
	if b.state == filling {
		b.state = waiting
	}
}

// report calls the callbacks.
func (b *batch) report() {
	var err error
	ack := Ack{Topic: b.lane.topic.name, Partition: b.lane.id.Partition, Offset: -1}
	if b.state == refused {
		err = &DeliveryError{Topic: ack.Topic, Partition: ack.Partition, Attempts: b.attempts, Indefinite: b.doubt, Err: b.err}
	} else {
		ack.Offset, ack.Time, ack.Epoch = b.base, b.time, b.epoch
	}
	b.done.report(ack, err)
}

// bytes returns what the batch will take in a request.
func (b *batch) bytes() int {
	if b.buf != nil {
		return len(b.buf.B)
	}
	return b.builder.Len()
}

// own makes the batch's bytes its own before they are changed: a connection that
// has failed may still be about to send them.
func (b *batch) own() {
	if !b.buf.Shared() {
		return
	}
	c := frames.Get(len(b.buf.B))
	copy(c.B, b.buf.B)
	b.buf.Release()
	b.buf = c
}

// A lane is the outgoing side of one partition: batches oldest first, of which
// a prefix may be in flight. It is a state machine without lock or clock; the
// producer's mutex guards it.
//
// Order is kept by three rules. Batches are sent oldest first. After a batch
// failed, nothing is sent until every answer of the lane is in, and then the
// oldest goes first again. With a producer id the broker refuses what does not
// follow, so several may be in flight; without, only one is. The limit counts
// from the oldest batch without outcome, not from the number in flight: a
// broker remembers the last five batches, and one sent again after five later
// ones were taken could not be told its offset any more.
//
// Sequences never have a gap. When a numbered batch fails, or the broker no
// longer knows the producer, the lane asks for a fresh id and numbers what is
// left from 0, but only what was surely not carried out under the old one: a
// batch in doubt is given up, with everything before it. A batch that was too
// large leaves no gap: smaller ones take its place and its sequences.
type lane struct {
	topic *outTopic
	id    wire.PartitionID

	batches []*batch // oldest first
	flying  int      // batches in flight
	limit   int      // only so many of the oldest may be

	idempotent bool
	producer   wire.ProducerID // wire.NoProducer: none yet
	epoch      int16
	next       int32 // sequence of the next new batch
	stale      bool  // the producer id is used up: a fresh one is needed

	draining bool          // a batch failed: wait for all answers
	failures int           // attempts in a row that failed
	until    time.Duration // nothing is sent before this
	dead     error         // the topic is gone: everything fails with this

	link   *link // where the leader is reached; nil: not known
	listed bool  // the lane is in link.busy
	tended bool  // the lane is in the producer's lanes

	builders []*wire.Builder // not in use
}

// idle reports whether nothing is buffered or in flight.
func (l *lane) idle() bool { return len(l.batches) == 0 }

// stuck reports whether records wait here with nobody to send them to, or after
// a failure that nothing has succeeded since.
func (l *lane) stuck() bool { return !l.idle() && (l.link == nil || l.failures > 0) }

// last returns the batch that takes records, or nil.
func (l *lane) last() *batch {
	if n := len(l.batches); n > 0 && l.batches[n-1].state == filling {
		return l.batches[n-1]
	}
	return nil
}

// due returns the oldest batch that may be sent now. If there is none, wait
// says after which time there may be, 0 if only an answer or a record can
// change that.
func (l *lane) due(now, linger time.Duration) (b *batch, wait time.Duration) {
	if l.draining && l.flying > 0 || l.needsID() {
		return nil, 0
	}
	for _, b := range l.batches[:min(l.limit, len(l.batches))] {
		switch {
		case b.state != filling && b.state != waiting:
			continue
		case b.written:
			b.passed = true
			return nil, 0
		case now < l.until:
			return nil, l.until - now
		case b.state == filling && now < b.born+linger:
			return nil, b.born + linger - now
		}
		return b, 0
	}
	return nil, 0
}

// needsID reports whether the lane can send nothing before adopt.
func (l *lane) needsID() bool {
	return l.idempotent && (l.producer == wire.NoProducer || l.stale)
}

// sent marks a batch that due returned as in flight, numbering it at its
// first time.
func (l *lane) sent(b *batch) {
	if l.idempotent && !b.numbered {
		b.seq, b.numbered = l.next, true
		l.next = wire.NextSequence(l.next, b.count)
	}
	b.state = inFlight
	b.attempts++
	l.flying++
	l.draining = false
}

// settle takes the outcome of one attempt, nil for success, and returns
// whether the metadata is in doubt and whether b must be split before anything
// else happens. wait is the back-off to observe, given the number of failures
// in a row and what the broker asked for.
func (l *lane) settle(b *batch, err error, now time.Duration, wait func(n int, hint time.Duration) time.Duration) (stale, split bool) {
	if b.state != inFlight {
		panic(fmt.Sprintf("BUG: %s: answer to a batch in state %d", l.id, b.state))
	}
	l.flying--
	if err == nil {
		b.state = acked
		if !l.draining {
			l.failures, l.until = 0, 0
		}
		return false, false
	}
	v := judge(err)
	b.err = err
	b.doubt = b.doubt || !v.definite
	b.state = waiting
	first := !l.draining
	l.draining = true
	switch {
	case l.dead != nil:
		l.refuse(b, l.dead)
	case l.lostCount(err):
		// Behind a batch that failed this is only the echo of that failure.
		// At the head it means that the broker's state is gone.
		l.stale = l.stale || l.head() == b
	case b.tooLarge(err):
		return v.stale, true // smaller ones need no patience
	case !v.again, b.told: // or given up meanwhile: nobody wants another attempt
		l.refuse(b, err)
	}
	if b.state == waiting {
		if first {
			l.failures++
		}
		l.until = max(l.until, now+wait(max(l.failures, 1), v.wait))
	}
	return v.stale, false
}

// lostCount reports whether err says that the broker misses batches before
// this one.
func (l *lane) lostCount(err error) bool {
	return l.idempotent && (errors.Is(err, wire.CodeUnknownProducer) || errors.Is(err, wire.CodeOutOfOrderSequence))
}

// head returns the oldest batch without an outcome, or nil.
func (l *lane) head() *batch {
	for _, b := range l.batches {
		if b.state != acked && b.state != refused {
			return b
		}
	}
	return nil
}

// refuse ends a batch in failure. What was numbered after it could never
// follow, so the lane needs a fresh producer id.
func (l *lane) refuse(b *batch, err error) {
	b.state, b.err = refused, err
	if b.numbered {
		l.stale = true
	}
}

// adopt gives the lane a producer id that no other session of this partition
// has used, and numbers from 0 what is left. Nothing may be in flight.
func (l *lane) adopt(id wire.ProducerID, epoch int16) {
	if l.flying > 0 {
		panic(fmt.Sprintf("BUG: %s: new producer id with %d batches in flight", l.id, l.flying))
	}
	l.abandonDoubt()
	l.producer, l.epoch, l.next, l.stale = id, epoch, 0, false
	for _, b := range l.batches {
		if !b.numbered || b.state != waiting {
			continue
		}
		b.seq = l.next
		l.next = wire.NextSequence(l.next, b.count)
		if b.buf != nil {
			b.own()
			wire.Batch(b.buf.B).SetProducer(id, epoch, b.seq)
		}
	}
}

// abandonDoubt gives up each batch that may be in the log under the old
// producer id, and what comes before it: sent under a new one it might stand
// there twice, and out of order.
func (l *lane) abandonDoubt() {
	last := -1
	for i, b := range l.batches {
		if b.state == waiting && b.doubt {
			last = i
		}
	}
	for _, b := range l.batches[:last+1] {
		if b.state == waiting {
			l.refuse(b, b.err)
		}
	}
}

// kill ends the lane: what waits fails now, what is in flight when its answer
// comes.
func (l *lane) kill(err error) {
	l.dead = err
	for _, b := range l.batches {
		if b.state == filling || b.state == waiting {
			l.refuse(b, err)
		}
	}
}

// expire gives up batches older than timeout, calling giveUp for each, and
// returns when the next is due, 0 if none is. One in flight keeps its place
// until its answer comes, since what follows depends on it.
func (l *lane) expire(now, timeout time.Duration, giveUp func(*batch)) (next time.Duration) {
	for _, b := range l.batches {
		switch {
		case b.told || b.state == acked || b.state == refused:
		case now < b.born+timeout:
			return b.born + timeout
		case b.state == inFlight:
			b.doubt = true
			giveUp(b)
		default:
			err := ErrTimeout
			if b.err != nil {
				err = fmt.Errorf("%w: %w", ErrTimeout, b.err)
			}
			l.refuse(b, err)
		}
	}
	return 0
}

// pop removes and returns the oldest batch if it has its outcome and nobody
// writes it. Taking them in this order calls the callbacks in the order the
// records were sent.
func (l *lane) pop() *batch {
	if len(l.batches) == 0 {
		return nil
	}
	b := l.batches[0]
	if b.written || b.state != acked && b.state != refused {
		return nil
	}
	l.batches = slices.Delete(l.batches, 0, 1) // keeps the memory, for a lane of one batch at a time
	if len(l.batches) == 0 {
		l.draining = false
		if !l.stale {
			l.failures, l.until = 0, 0
		}
	}
	return b
}
