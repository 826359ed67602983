package mem

import (
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

func TestClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := NewClock()
		start := time.Now().UnixMilli()
		f := func(mono time.Duration) {
			t.Helper()
			want := Now{Mono: mono, Wall: start + mono.Milliseconds()}
			if got := c.Now(); got != want {
				t.Fatalf("after %v: %v, want %v", mono, got, want)
			}
		}

		f(0)
		f(0)
		time.Sleep(1500 * time.Microsecond) // the bubble's time
		f(1500 * time.Microsecond)
		time.Sleep(hour)
		f(hour + 1500*time.Microsecond)
		if c.Stepped() != 0 {
			t.Fatalf("stepped %d times", c.Stepped())
		}

		c.stamp = NewStampClock(hour, start) // an hour behind the machine's clock
		for range 700 {
			time.Sleep(second)
			c.Now()
		}
		f(hour + 700*second + 1500*time.Microsecond)
		if c.Stepped() != 1 {
			t.Fatalf("stepped %d times; want 1", c.Stepped())
		}
	})
}

// TestClockShared has many readers of one clock: none may see time go back.
func TestClockShared(t *testing.T) {
	c := NewClock()
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			last := c.Now()
			for range 5000 {
				now := c.Now()
				if now.Mono < last.Mono || now.Wall < last.Wall {
					t.Errorf("%v came after %v", now, last)
				}
				last = now
			}
		})
	}
	wg.Wait()
}
