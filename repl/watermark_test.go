package repl

import (
	"testing"

	"github.com/teralog/teralog/wire"
)

func TestCommitted(t *testing.T) {
	f := func(old wire.Offset, counted []wire.Offset, want wire.Offset) {
		t.Helper()
		if got := committed(old, counted); got != want {
			t.Fatalf("committed(%d, %v) = %d, want %d", old, counted, got, want)
		}
	}

	f(0, []wire.Offset{10, 7, 9}, 7) // the slowest in-sync replica decides
	f(3, []wire.Offset{12}, 12)      // a lone leader commits what counts for it
	f(8, []wire.Offset{12, 5}, 8)    // a short replica must not pull it back
	f(8, nil, 8)                     // nobody in sync commits nothing
}

func TestOffsetsAfter(t *testing.T) {
	f := func(o offsets, start, flushed, end, counted wire.Offset, want offsets) {
		t.Helper()
		if got := o.after(start, flushed, end, counted); got != want {
			t.Fatalf("got %+v, want %+v", got, want)
		}
	}

	f(offsets{}, 0, 0, 5, 5, offsets{0, 5, 5, 0, 5})                   // appended, not flushed, counted by its end
	f(offsets{}, 0, 3, 5, 3, offsets{0, 3, 3, 3, 5})                   // counted by what is flushed
	f(offsets{0, 5, 5, 5, 5}, 4, 5, 9, 9, offsets{4, 9, 9, 5, 9})      // trimmed
	f(offsets{0, 7, 7, 7, 7}, 0, 7, 9, 3, offsets{0, 7, 7, 7, 9})      // committed never falls
	f(offsets{0, 0, 0, 0, 0}, 0, 0, 0, 0, offsets{})                   // nothing
	f(offsets{0, 9, 9, 9, 9}, 9, 9, 9, 9, offsets{9, 9, 9, 9, 9})      // all of it trimmed
	f(offsets{0, 9, 9, 4, 9}, 0, 9, 12, 12, offsets{0, 12, 12, 9, 12}) // a flush lands behind newer appends
}

func TestOffsetsOutOfOrder(t *testing.T) {
	f := func(o offsets) {
		t.Helper()
		defer func() {
			if recover() == nil {
				t.Fatalf("%+v passed the check", o)
			}
		}()
		o.check()
	}

	f(offsets{start: 1})
	f(offsets{stable: 2, committed: 1, end: 2})
	f(offsets{committed: 3, end: 2})
	f(offsets{flushed: 3, end: 2})
}
