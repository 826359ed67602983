package mem

import "fmt"

// A Ring is a bounded first-in, first-out list for one owner. Its memory grows
// by doubling as it fills, up to its capacity, and is not given back.
//
// A pointer from Front, Back or At is good until the next Push or Pop.
type Ring[T any] struct {
	slots []T // a power of two of them, or none
	first int // index of the front, below len(slots)
	len   int
	cap   int
}

// NewRing returns an empty ring of at most capacity values, capacity > 0.
func NewRing[T any](capacity int) *Ring[T] {
	if capacity < 1 {
		panic(fmt.Sprintf("BUG: ring of capacity %d", capacity))
	}
	return &Ring[T]{cap: capacity}
}

// Push appends v at the back, or returns false if the ring is full.
func (r *Ring[T]) Push(v T) bool {
	if r.len == r.cap {
		return false
	}
	if r.len == len(r.slots) {
		r.grow()
	}
	*r.slot(r.len) = v
	r.len++
	return true
}

// grow doubles the slots and moves the front to the first of them.
func (r *Ring[T]) grow() {
	slots := make([]T, max(8, 2*len(r.slots)))
	n := copy(slots, r.slots[r.first:])
	copy(slots[n:], r.slots[:r.first])
	r.slots, r.first = slots, 0
}

// Pop removes the front and returns it; !ok says that the ring is empty.
func (r *Ring[T]) Pop() (v T, ok bool) {
	if r.len == 0 {
		return v, false
	}
	s := r.slot(0)
	v, *s = *s, v // the ring no longer points to what v points to
	r.first = (r.first + 1) & (len(r.slots) - 1)
	r.len--
	return v, true
}

// Front returns the value pushed first, nil if the ring is empty.
func (r *Ring[T]) Front() *T {
	if r.len == 0 {
		return nil
	}
	return r.slot(0)
}

// Back returns the value pushed last, nil if the ring is empty.
func (r *Ring[T]) Back() *T {
	if r.len == 0 {
		return nil
	}
	return r.slot(r.len - 1)
}

// At returns the value i places behind the front, 0 ≤ i < Len.
func (r *Ring[T]) At(i int) *T {
	if i < 0 || i >= r.len {
		panic(fmt.Sprintf("BUG: place %d of a ring of %d", i, r.len))
	}
	return r.slot(i)
}

func (r *Ring[T]) slot(i int) *T { return &r.slots[(r.first+i)&(len(r.slots)-1)] }

// Len returns the number of values in the ring.
func (r *Ring[T]) Len() int { return r.len }

// Cap returns the greatest number of values the ring may hold.
func (r *Ring[T]) Cap() int { return r.cap }
