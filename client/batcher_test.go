package client

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/teralog/teralog/wire"
)

// A laneScript drives a lane by words and tells its state in one line.
type laneScript struct {
	l   *lane
	all []*batch
	now time.Duration
}

func newLaneScript() *laneScript {
	l := &lane{topic: &outTopic{name: "t", batchBytes: 1 << 20}, id: wire.PartitionID{Topic: 2000}, limit: 5, idempotent: true, producer: wire.NoProducer}
	l.adopt(1, 0)
	return &laneScript{l: l}
}

// add appends n batches of one record each.
func (s *laneScript) add(n int) {
	for range n {
		s.addOf(1)
	}
}

// addOf appends a batch of n records of a thousand bytes.
func (s *laneScript) addOf(n int) {
	b := s.fresh()
	for range n {
		b.builder.Add(0, nil, make([]byte, 1000), nil)
	}
	b.done, b.count, b.born, b.state = receipts{records: int32(n), one: make([]func(Ack, error), n)}, int32(n), s.now, waiting
	s.l.batches = append(s.l.batches, b)
}

// fresh returns an empty batch, which has the next number.
func (s *laneScript) fresh() *batch {
	b := &batch{lane: s.l, builder: wire.NewBuilder(wire.BuilderOptions{Topic: s.l.id.Topic})}
	s.all = append(s.all, b)
	return b
}

// send sends all that is due and returns the numbers sent.
func (s *laneScript) send() string {
	var sent []string
	for {
		b, _ := s.l.due(s.now, 0)
		if b == nil {
			return strings.Join(sent, " ")
		}
		if b.buf == nil {
			b.buf, _ = b.builder.Build()
			if s.l.idempotent {
				wire.Batch(b.buf.B).SetProducer(s.l.producer, s.l.epoch, b.nextSeq(s.l))
			}
		}
		s.l.sent(b)
		for i := range s.all {
			if s.all[i] == b {
				id, _, seq := wire.Batch(b.buf.B).Producer()
				sent = append(sent, fmt.Sprintf("%d:%d/%d", i, id, seq))
			}
		}
	}
}

// nextSeq is the sequence that sent is about to give.
func (b *batch) nextSeq(l *lane) int32 {
	if b.numbered {
		return b.seq
	}
	return l.next
}

// answer settles batch i.
func (s *laneScript) answer(i int, err error) {
	_, split := s.l.settle(s.all[i], err, s.now, func(n int, hint time.Duration) time.Duration { return max(time.Duration(n)*time.Second, hint) })
	if split {
		s.l.split(s.all[i], s.fresh)
	}
}

// outcomes pops what has its outcome: a number, with ! if failed, ? if in doubt.
func (s *laneScript) outcomes() string {
	var out []string
	for b := s.l.pop(); b != nil; b = s.l.pop() {
		for i := range s.all {
			if s.all[i] != b {
				continue
			}
			mark := ""
			if b.state == refused {
				mark = "!"
				if b.doubt {
					mark = "?"
				}
			}
			out = append(out, fmt.Sprint(i, mark))
		}
	}
	return strings.Join(out, " ")
}

func (s *laneScript) want(t *testing.T, got, want string) {
	t.Helper()
	if got != want {
		t.Fatalf("got %q, want %q", got, want)
	}
}

var errLost = fmt.Errorf("%w: test", wire.ErrConnLost)

// TestLaneOrder: a refused batch is sent again before all later ones, with
// the same bytes, and nothing goes out before all answers are in.
func TestLaneOrder(t *testing.T) {
	s := newLaneScript()
	s.add(7)
	s.want(t, s.send(), "0:1/0 1:1/1 2:1/2 3:1/3 4:1/4")
	s.answer(0, wire.CodeNotLeader)
	s.answer(1, wire.CodeUnknownProducer) // the echo of 0's refusal, not a lost producer
	s.answer(2, wire.CodeOutOfOrderSequence)
	s.now += time.Minute
	s.want(t, s.send(), "") // 3 and 4 are out yet
	s.answer(4, errLost)
	s.answer(3, errLost)
	s.want(t, s.send(), "") // back-off
	s.now += time.Minute
	s.want(t, s.send(), "0:1/0 1:1/1 2:1/2 3:1/3 4:1/4")
	for i := range 4 {
		s.answer(3-i, nil)
	}
	s.want(t, s.outcomes(), "0 1 2 3")
	s.answer(4, nil)
	s.want(t, s.outcomes(), "4")
	s.want(t, s.send(), "5:1/5 6:1/6")
}

// TestLaneWindow: the window counts from the oldest without outcome.
func TestLaneWindow(t *testing.T) {
	s := newLaneScript()
	s.add(9)
	s.send()
	for i := 1; i < 5; i++ {
		s.answer(i, nil)
	}
	s.want(t, s.outcomes()+s.send(), "") // 0 may yet have to be told its offset
	s.answer(0, nil)
	s.want(t, s.outcomes(), "0 1 2 3 4")
	s.want(t, s.send(), "5:1/5 6:1/6 7:1/7 8:1/8")
}

// TestLaneLostProducer: the broker forgot the producer.
func TestLaneLostProducer(t *testing.T) {
	s := newLaneScript()
	s.add(4)
	s.want(t, s.send(), "0:1/0 1:1/1 2:1/2 3:1/3")
	s.answer(0, nil)
	s.want(t, s.outcomes(), "0")
	for i := 1; i < 4; i++ {
		s.answer(i, wire.CodeUnknownProducer)
	}
	s.now += time.Minute
	s.want(t, s.send(), "") // under the old id nothing more
	s.l.adopt(9, 0)         // all were refused for certain: they may go under a new one
	s.want(t, s.send(), "1:9/0 2:9/1 3:9/2")
}

// TestLaneLostProducerInDoubt: what may be in the log under the old id is not
// sent again under a new one, nor what came before it.
func TestLaneLostProducerInDoubt(t *testing.T) {
	s := newLaneScript()
	s.add(4)
	s.send()
	s.answer(0, errLost)
	s.answer(1, wire.CodeBusy)
	s.answer(2, errLost)
	s.answer(3, wire.CodeBusy)
	s.now += time.Minute
	s.want(t, s.send(), "0:1/0 1:1/1 2:1/2 3:1/3")
	for i := range 4 {
		s.answer(i, wire.CodeUnknownProducer)
	}
	s.l.adopt(9, 0)
	s.want(t, s.outcomes(), "0? 1! 2?")
	s.now += time.Minute
	s.want(t, s.send(), "3:9/0")
}

// TestLaneRefused: a batch that fails for good leaves no gap behind.
func TestLaneRefused(t *testing.T) {
	s := newLaneScript()
	s.add(4)
	s.want(t, s.send(), "0:1/0 1:1/1 2:1/2 3:1/3")
	s.answer(0, nil)
	s.answer(1, wire.CodeTooLarge)
	s.want(t, s.outcomes(), "0 1!")
	s.answer(2, wire.CodeOutOfOrderSequence)
	s.answer(3, wire.CodeOutOfOrderSequence)
	s.now += time.Minute
	s.want(t, s.send(), "")
	if !s.l.needsID() {
		t.Fatal("no fresh id wanted")
	}
	s.l.adopt(9, 0)
	s.want(t, s.send(), "2:9/0 3:9/1")
}

// TestLaneOwns: a batch that a failed connection may still be sending is not
// changed under its hands when it gets a new producer id.
func TestLaneOwns(t *testing.T) {
	s := newLaneScript()
	s.add(1)
	s.want(t, s.send(), "0:1/0")
	sending := s.all[0].buf.Retain()
	was := bytes.Clone(sending.B)
	s.answer(0, wire.CodeUnknownProducer)
	s.now += time.Minute
	s.l.adopt(9, 0)
	s.want(t, s.send(), "0:9/0")
	if !bytes.Equal(sending.B, was) || bytes.Equal(s.all[0].buf.B, was) {
		t.Fatal("the bytes being sent were changed")
	}
	sending.Release()
}

// TestLaneExpire: time runs out for one batch in flight and one waiting.
func TestLaneExpire(t *testing.T) {
	s := newLaneScript()
	s.add(1)
	s.want(t, s.send(), "0:1/0")
	s.now = time.Second
	s.add(1)
	s.now = 10 * time.Second
	var given []*batch
	giveUp := func(b *batch) { b.told = true; given = append(given, b) }
	if next := s.l.expire(s.now, 10*time.Second, giveUp); next != 11*time.Second || len(given) != 1 {
		t.Fatalf("next %v, given up %d", next, len(given))
	}
	s.want(t, s.outcomes(), "") // it is in flight: its place stays taken
	s.now = 11 * time.Second
	s.l.expire(s.now, 10*time.Second, giveUp)
	s.answer(0, nil)
	s.want(t, s.outcomes(), "0 1!")
	if !errors.Is(s.all[1].err, ErrTimeout) {
		t.Fatal(s.all[1].err)
	}
}

// TestLaneKill: the topic is gone.
func TestLaneKill(t *testing.T) {
	s := newLaneScript()
	s.add(2)
	s.send()
	s.add(1)
	s.l.kill(wire.CodeTopicRecreated)
	s.answer(0, errLost)
	s.answer(1, wire.CodeTopicRecreated)
	s.want(t, s.outcomes(), "0? 1! 2!")
}

func TestJudge(t *testing.T) {
	f := func(err error, want verdict) {
		t.Helper()
		if got := judge(err); got != want {
			t.Fatalf("judge(%v) = %+v, want %+v", err, got, want)
		}
	}

	f(errLost, verdict{again: true, stale: true})
	f(errors.New("anything"), verdict{again: true, stale: true})
	f(fmt.Errorf("dial: %w", wire.ErrNotSent), verdict{definite: true, again: true, stale: true})
	f(fmt.Errorf("%w: %w", wire.ErrNotSent, wire.CodeTimeout), verdict{definite: true, again: true, stale: true})
	f(wire.CodeTimeout, verdict{again: true, stale: true})
	f(wire.CodeStorageError, verdict{again: true})
	f(wire.CodeInternal, verdict{})
	f(wire.CodeNotLeader, verdict{definite: true, again: true, stale: true})
	f(wire.CodeTooLarge, verdict{definite: true})
	f(&wire.Error{Code: wire.CodeBusy, RetryAfter: time.Second}, verdict{definite: true, again: true, wait: time.Second})
	f(final{wire.CodeUnknownTopic}, verdict{definite: true})
	f(wire.Code(999), verdict{}) // a code of a later version promises nothing
}

func TestBackoff(t *testing.T) {
	b := backoff{min: 100 * time.Millisecond, max: time.Second}
	f := func(n int, hint time.Duration, chance float64, want time.Duration) {
		t.Helper()
		if got := b.after(n, hint, chance); got != want {
			t.Fatalf("after(%d, %v, %v) = %v, want %v", n, hint, chance, got, want)
		}
	}

	f(1, 0, 0, 100*time.Millisecond)
	f(2, 0, 0, 200*time.Millisecond)
	f(2, 0, 0.5, 150*time.Millisecond)
	f(4, 0, 0, 800*time.Millisecond)
	f(5, 0, 0, time.Second)
	f(1000, 0, 0, time.Second)
	f(1, 3*time.Second, 0.9, 3*time.Second) // the broker knows better
	f(1, 49*24*time.Hour, 0, time.Minute)   // but not everything
}
