package wire

import (
	"testing"

	"github.com/teralog/teralog/mem"
)

// TestHasRange decides whether a response's first bytes are sent as the
// beginning of more. With nothing to follow they must not be: the socket would
// hold them back.
func TestHasRange(t *testing.T) {
	f := func(want bool, lens ...int64) {
		t.Helper()
		p := parcel{}
		for _, n := range lens {
			p.files = append(p.files, FileRange{Len: n})
		}
		if p.hasRange() != want {
			t.Errorf("ranges of %v bytes: %v", lens, !want)
		}
	}

	f(false)
	f(false, 0)
	f(false, 0, 0)
	f(true, 1)
	f(true, 0, 0, 7)
	f(true, 7, 0)
}

// TestJoin puts small answers behind one another and leaves others alone.
func TestJoin(t *testing.T) {
	pool := mem.NewPool("join")
	answer := func(n int) parcel { return parcel{buf: pool.Get(n), calls: 1} }
	first := func(n, room int) parcel {
		p := answer(room)
		p.buf.B = p.buf.B[:n]
		return p
	}
	f := func(last, next parcel, want bool) {
		t.Helper()
		o := outbox{queue: []parcel{last}}
		n := len(last.buf.B) + len(next.buf.B)
		if o.join(&next) != want {
			t.Errorf("joined: %v", !want)
		}
		if p := o.queue[0]; want && (len(p.buf.B) != n || p.calls != 2) {
			t.Errorf("%d bytes, %d calls after a join", len(p.buf.B), p.calls)
		}
		if !want {
			next.buf.Release()
		}
		o.queue[0].buf.Release()
		if s := pool.Stats(); s.Live != 0 {
			t.Errorf("%d buffers out", s.Live)
		}
	}

	f(first(50, replyBuf), answer(50), true)
	f(first(replyBuf-50, replyBuf), answer(50), true)
	f(first(replyBuf-50, replyBuf), answer(51), false)
	f(first(50, 4*replyBuf), answer(maxJoin), true)
	f(first(50, 4*replyBuf), answer(maxJoin+1), false)
	with := first(50, replyBuf)
	with.files = []FileRange{{Len: 1}}
	f(with, answer(50), false) // its ranges come first
	with = answer(50)
	with.files = []FileRange{{Len: 1}}
	f(first(50, replyBuf), with, false)
	with = answer(50)
	with.request = &exchange{}
	f(first(50, replyBuf), with, false) // a request is counted by itself
}

// TestReplySize expects buffers as large as responses have been of late.
func TestReplySize(t *testing.T) {
	var s replySize
	f := func(saw, want int) {
		t.Helper()
		s.saw(saw)
		if n := s.next(); n != want {
			t.Errorf("next buffer of %d bytes, want %d", n, want)
		}
	}

	f(100, replyBuf)
	f(80_000, 80_000)
	f(100, 70_000)
	f(100, 61_250)
	f(5<<20, maxReplyBuf)
	for range 100 {
		s.saw(100)
	}
	f(100, replyBuf)
}
