//go:build checked

package mem

import (
	"bytes"
	"testing"
)

// TestPoison reads, overwrites and releases a buffer that is no longer held.
func TestPoison(t *testing.T) {
	p := NewPool("poison")
	a := p.Get(100)
	stale := a.B
	copy(stale, "a batch")
	a.Release()
	if !bytes.Equal(stale, bytes.Repeat([]byte{0xDB}, 100)) {
		t.Fatalf("a released buffer reads % x", stale)
	}

	b := p.Get(100) // the same memory
	if &b.B[0] != &stale[0] {
		t.Fatal("the memory was not given out again")
	}
	mustPanic(t, "too often", func() { a.Release() })
	mustPanic(t, "after its last release", func() { a.Retain() })

	b.Release()
	stale[99] = 7
	mustPanic(t, "byte 99 of a released buffer", func() { p.Get(100) })
}

// TestTwoHolders lets a second goroutine use a turn that the first one holds.
func TestTwoHolders(t *testing.T) {
	f := func(op string, use func(q *Queue[int])) {
		t.Helper()
		q := NewQueue[int](4)
		if _, mine := q.Push(1); !mine {
			t.Fatal("a free turn was not given")
		}
		done := make(chan struct{})
		go func() {
			defer close(done)
			mustPanic(t, "two holders of one turn: "+op, func() { use(q) })
		}()
		<-done
		if got := q.PopOrFree(nil); len(got) != 1 {
			t.Fatalf("the holder found %v", got)
		}
	}

	f("PopOrFree", func(q *Queue[int]) { q.PopOrFree(nil) })
	f("Hand", func(q *Queue[int]) { q.Hand() })
	f("HandOrFree", func(q *Queue[int]) { q.HandOrFree() })
	f("Free", func(q *Queue[int]) { q.Free() })
}
