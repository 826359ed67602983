package mem

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"
)

func TestBucket(t *testing.T) {
	var b *Bucket
	// f asks for n units at mono, and takes them if it may.
	f := func(mono time.Duration, n int64, want time.Duration) {
		t.Helper()
		now := Now{Mono: mono, Wall: -1}
		got := b.Wait(now)
		if got != want {
			t.Fatalf("at %v Wait = %v, want %v", mono, got, want)
		}
		if got == 0 {
			b.Take(now, n)
		}
	}

	b = NewBucket(10, 5) // a unit every 100 ms
	f(0, 5, 0)           // full at first
	f(0, 0, 0)
	f(0, 1, 0) // empty, but not in debt
	f(0, 1, 100*ms)
	f(0, 1, 100*ms) // what was not taken costs nothing
	f(100*ms-1, 1, 1)
	f(100*ms, 3, 0)
	f(100*ms, 1, 300*ms)
	f(400*ms, 0, 0)
	f(hour, 5, 0) // no fuller than full
	f(hour, 1, 0)
	f(hour, 1, 100*ms)

	b = NewBucket(64<<10, 64<<10) // a quota of 64 KiB/s, batches of 1 MiB
	f(minute, 1<<20, 0)           // more than it holds
	f(minute, 1, 15*second)       // and nobody passes until that is paid
	f(minute+15*second, 1<<20, 0)
	f(minute+15*second, 1, 16*second)

	b = NewBucket(3, 1)
	f(0, 1, 0)
	f(0, 1, 0)
	f(0, 1, 333333334) // rounded up: never faster than the rate

	b = NewBucket(10<<30, 100<<20) // bytes of a fast network
	f(0, 100<<20, 0)
	f(0, 10<<20, 0)
	f(0, 10<<20, 976563)

	b = NewBucket(1, 1)
	f(0, math.MaxInt64, 0) // a debt for ever, not an overflow
	f(100*365*day/2, 1, maxWorth-1*second-100*365*day/2)
	b.Take(Now{}, math.MaxInt64)
	b.Take(Now{}, math.MaxInt64)
	f(0, 1, maxWorth)
	b = NewBucket(math.MaxInt64, math.MaxInt64)
	f(0, math.MaxInt64, 0)
	f(0, math.MaxInt64, 0)
	f(0, math.MaxInt64, second)

	mustPanic(t, "rate 0", func() { NewBucket(0, 1) })
	mustPanic(t, "burst 0", func() { NewBucket(1, 0) })
	mustPanic(t, "-1 units", func() { b.Take(Now{}, -1) })
}

// TestBucketRate takes as much as it can for an hour: no stretch of time may
// see more than the burst, the rate, and what the last taker overdrew.
func TestBucketRate(t *testing.T) {
	for seed := range uint64(30) {
		r := rand.New(rand.NewPCG(seed, 0))
		rate, burst := 1+r.Int64N(1000), 1+r.Int64N(1000)
		b := NewBucket(rate, burst)
		var now Now
		var taken, largest int64
		for now.Mono < hour {
			if wait := b.Wait(now); wait > 0 {
				if now.Mono += wait - 1; b.Wait(now) != 1 {
					t.Fatalf("seed %d: not a nanosecond was left to wait", seed)
				}
				if now.Mono++; b.Wait(now) != 0 {
					t.Fatalf("seed %d: after the wait, wait %v", seed, b.Wait(now))
				}
			}
			n := r.Int64N(2 * burst)
			b.Take(now, n)
			taken, largest = taken+n, max(largest, n)
		}
		allowed := burst + largest + int64(now.Mono.Seconds()*float64(rate))
		if least := int64(hour.Seconds()*float64(rate)) * 99 / 100; taken > allowed || taken < least {
			t.Fatalf("seed %d: took %d at rate %d and burst %d; want %d to %d", seed, taken, rate, burst, least, allowed)
		}
	}
}
