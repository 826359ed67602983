package mem

import (
	"context"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
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

// TestLoad: busy is who did enough since the last look.
func TestLoad(t *testing.T) {
	var l load
	f := func(done int64, want bool) {
		t.Helper()
		if got := l.busy(done); got != want {
			t.Fatalf("busy after %d operations: %v", done, got)
		}
	}
	f(0, false)
	f(calmWork-1, false)
	f(2*calmWork-1, true)
	f(2*calmWork-1, false)
	f(9*calmWork, true)
}

// TestCalm: a busy process gets processors for naps and long system calls, for as long as Calm runs; one
// whose user has set their number gets none.
func TestCalm(t *testing.T) {
	if !canNap {
		t.Skip("not on this system")
	}
	procs := runtime.GOMAXPROCS(0)
	defer runtime.GOMAXPROCS(procs)
	var asked atomic.Int64
	start := func() (stop func()) {
		asked.Store(0)
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { Calm(ctx, 3, func() int64 { return asked.Add(1) * calmWork }) })
		return func() {
			cancel()
			running.Wait()
		}
	}

	if old, set := os.LookupEnv("GOMAXPROCS"); set {
		defer os.Setenv("GOMAXPROCS", old)
		os.Unsetenv("GOMAXPROCS")
	}
	stop := start()
	for asked.Load() < 3 { // it has been busy twice
		runtime.Gosched()
	}
	if n := runtime.GOMAXPROCS(0); n != procs+1+3 {
		t.Errorf("%d processors, there were %d", n, procs)
	}
	stop()
	if n := runtime.GOMAXPROCS(0); n != procs {
		t.Errorf("%d processors are left, there were %d", n, procs)
	}

	t.Setenv("GOMAXPROCS", "4")
	start()()
	if n := asked.Load(); n != 0 {
		t.Errorf("asked %d times by one who knows better", n)
	}
}
