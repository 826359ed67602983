package mem

import (
	"math"
	"sync"
	"sync/atomic"
	"testing"
)

func TestBudget(t *testing.T) {
	b := NewBudget(100)
	f := func(n int64, want bool, used int64) {
		t.Helper()
		if got := b.TryTake(n); got != want || b.Used() != used {
			t.Fatalf("TryTake(%d) = %v with %d used; want %v, %d", n, got, b.Used(), want, used)
		}
	}

	f(0, true, 0)
	f(101, false, 0)
	f(math.MaxInt64, false, 0)
	f(60, true, 60)
	f(41, false, 60) // all or nothing
	f(math.MaxInt64, false, 60)
	f(40, true, 100)
	f(1, false, 100)
	f(0, true, 100)
	b.Give(30)
	f(31, false, 70)
	f(30, true, 100)
	b.Give(100)
	f(0, true, 0)
	if b.Max() != 100 {
		t.Fatalf("Max = %d", b.Max())
	}

	mustPanic(t, "1 bytes given back to a budget of which 0 were taken", func() { b.Give(1) })
	mustPanic(t, "-1 bytes given back", func() { NewBudget(1).Give(-1) })
	mustPanic(t, "-1 bytes taken", func() { b.TryTake(-1) })
	mustPanic(t, "budget of -1 bytes", func() { NewBudget(-1) })
}

// TestBudgetShared counts what goroutines hold at once, all they can.
func TestBudgetShared(t *testing.T) {
	b := NewBudget(10)
	var holds atomic.Int64
	var wg sync.WaitGroup
	for g := range int64(4) {
		wg.Go(func() {
			for range 50_000 {
				if !b.TryTake(g + 2) {
					continue
				}
				if n := holds.Add(g + 2); n > 10 {
					t.Errorf("%d bytes held of a budget of 10", n)
				}
				holds.Add(-g - 2)
				b.Give(g + 2)
			}
		})
	}
	wg.Wait()
	if b.Used() != 0 {
		t.Fatalf("%d bytes are still taken", b.Used())
	}
}
