package mem

import (
	"math/rand/v2"
	"testing"
)

// TestRing compares a ring with a slice under random pushes and pops.
func TestRing(t *testing.T) {
	for _, capacity := range []int{1, 2, 7, 8, 9, 16, 33, 70} {
		r := NewRing[*int](capacity)
		var want []*int
		rnd := rand.New(rand.NewPCG(1, uint64(capacity)))
		for i := range 1000 {
			if filling := i/100%2 == 0; filling == (rnd.IntN(4) > 0) {
				v := new(int)
				ok := r.Push(v)
				if ok != (len(want) < capacity) {
					t.Fatalf("capacity %d, %d values: Push = %v", capacity, len(want), ok)
				}
				if ok {
					want = append(want, v)
				}
			} else {
				v, ok := r.Pop()
				if ok != (len(want) > 0) || ok && v != want[0] {
					t.Fatalf("capacity %d, %d values: Pop = %p, %v", capacity, len(want), v, ok)
				}
				if ok {
					want = want[1:]
				}
			}
			sameRing(t, r, want)
		}
	}
	mustPanic(t, "capacity 0", func() { NewRing[int](0) })
}

func sameRing(t *testing.T, r *Ring[*int], want []*int) {
	t.Helper()
	if r.Len() != len(want) {
		t.Fatalf("%d values, want %d", r.Len(), len(want))
	}
	for i, v := range want {
		if *r.At(i) != v {
			t.Fatalf("place %d of %d is wrong", i, len(want))
		}
	}
	if len(want) == 0 {
		if r.Front() != nil || r.Back() != nil {
			t.Fatal("an empty ring has a front or a back")
		}
	} else if *r.Front() != want[0] || *r.Back() != want[len(want)-1] {
		t.Fatal("the front or the back is wrong")
	}
	kept := 0
	for _, v := range r.slots {
		if v != nil {
			kept++
		}
	}
	if kept != len(want) {
		t.Fatalf("the ring points to %d values and has %d", kept, len(want))
	}
	mustPanic(t, "of a ring of", func() { r.At(len(want)) })
	mustPanic(t, "place -1", func() { r.At(-1) })
}

func TestRingGrows(t *testing.T) {
	r := NewRing[int](1 << 20)
	if r.Cap() != 1<<20 || len(r.slots) != 0 {
		t.Fatalf("an empty ring of capacity %d has %d slots", r.Cap(), len(r.slots))
	}
	for i := range 100 {
		r.Push(i)
	}
	if len(r.slots) != 128 {
		t.Fatalf("100 values take %d slots", len(r.slots))
	}
	*r.Front() = 7
	if v, _ := r.Pop(); v != 7 {
		t.Fatal("Front does not point into the ring")
	}
	if a := testing.AllocsPerRun(1000, func() { r.Push(1); r.Pop() }); a != 0 {
		t.Fatalf("a warm ring allocates %v times", a)
	}
}
