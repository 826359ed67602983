package repl

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/teralog/teralog/mem"
	"github.com/teralog/teralog/storage"
	"github.com/teralog/teralog/wire"
)

// TestAcks pushes writes named a, b, … and looks at who is answered when.
func TestAcks(t *testing.T) {
	type write struct {
		end     wire.Offset
		written int64
		all     bool
	}
	f := func(s Settings, end, flushed, committed wire.Offset, ws []write, want string) {
		t.Helper()
		state := newFlushState(s, 0)
		if end > 0 {
			state.appended(end, int64(end)*10, at(0))
		}
		if flushed > 0 {
			state.start(false)
			state.done(flushed)
		}
		got := ""
		q := acks{ring: mem.NewRing[ack](8)}
		for i, w := range ws {
			q.push(ack{end: w.end, written: w.written, all: w.all, done: func(storage.Appended, error) { got += string(rune('a' + i)) }})
		}
		q.settle(&state, committed, at(0))
		if got != want {
			t.Fatalf("answered %q, want %q", got, want)
		}
		q.fail(errors.New("gone"))
		if len(got) != len(ws) {
			t.Fatalf("answered %q in the end, want all %d", got, len(ws))
		}
	}

	async, sync := Settings{}, Settings{Flush: Sync}
	f(async, 3, 0, 3, []write{{1, 10, false}, {2, 20, true}, {3, 30, false}}, "abc")
	f(async, 3, 0, 1, []write{{1, 10, true}, {2, 20, true}, {3, 30, false}}, "a") // the order is kept
	f(sync, 3, 0, 0, []write{{1, 10, false}, {2, 20, true}}, "")
	f(sync, 3, 3, 3, []write{{1, 10, false}, {2, 20, true}, {3, 30, true}}, "abc")
	f(sync, 3, 0, 0, []write{{3, 30, false}, {1, 10, false}}, "") // a duplicate of an old batch stands in line
	f(Settings{Flush: Interval, FlushBytes: 20}, 3, 0, 3, []write{{1, 10, false}, {2, 20, true}, {3, 30, true}}, "ab")
}

// TestAcksStayAscending pushes a duplicate whose original is far below.
func TestAcksStayAscending(t *testing.T) {
	q := acks{ring: mem.NewRing[ack](8)}
	for _, end := range []wire.Offset{5, 9, 2, 9, 12} {
		q.push(ack{end: end, written: int64(end) * 10})
	}
	var ends []wire.Offset
	for i := range q.ring.Len() {
		a := q.ring.At(i)
		if a.written != int64(a.end)*10 {
			t.Fatalf("ack %d: offset %d with byte %d", i, a.end, a.written)
		}
		ends = append(ends, a.end)
	}
	if want := []wire.Offset{5, 9, 9, 9, 12}; !slices.Equal(ends, want) {
		t.Fatalf("ends %v, want %v", ends, want)
	}
}

// TestAcksPanicOnce lets an answer panic: it is not given again.
func TestAcksPanicOnce(t *testing.T) {
	got := ""
	q := acks{ring: mem.NewRing[ack](8)}
	q.push(ack{done: func(storage.Appended, error) { got += "a"; panic("in the answer") }})
	q.push(ack{done: func(_ storage.Appended, err error) { got += fmt.Sprint("b", err) }})
	f := func(do func()) {
		defer func() { recover() }()
		do()
	}
	f(func() { q.fail(errors.New("!")) })
	f(func() { q.fail(errors.New("!")) })
	if got != "ab!" {
		t.Fatalf("answered %q", got)
	}
}
