package mem

import (
	"fmt"
	"sync/atomic"
)

// A Budget is a number of bytes that may be in use at once. Nobody waits for
// it: what does not fit is refused. All methods may be called from any goroutine.
type Budget struct {
	max  int64
	used atomic.Int64
}

// NewBudget returns a budget of max bytes, none of them taken; max ≥ 0.
func NewBudget(max int64) *Budget {
	if max < 0 {
		panic(fmt.Sprintf("BUG: budget of %d bytes", max))
	}
	return &Budget{max: max}
}

// TryTake takes n bytes, n ≥ 0, or none and returns false if fewer are left.
// What was taken must come back by Give.
func (b *Budget) TryTake(n int64) bool {
	if n < 0 {
		panic(fmt.Sprintf("BUG: %d bytes taken from a budget", n))
	}
	for {
		used := b.used.Load()
		if n > b.max-used {
			return false
		}
		if b.used.CompareAndSwap(used, used+n) {
			return true
		}
	}
}

// Give gives back n bytes taken before, n ≥ 0, in as many parts as one likes.
func (b *Budget) Give(n int64) {
	if left := b.used.Add(-n); n < 0 || left < 0 {
		panic(fmt.Sprintf("BUG: %d bytes given back to a budget of which %d were taken", n, left+n))
	}
}

// Used returns the number of bytes taken and not given back.
func (b *Budget) Used() int64 { return b.used.Load() }

// Max returns the size of the budget in bytes.
func (b *Budget) Max() int64 { return b.max }
