package mem

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"
)

func TestBucket(t *testing.T) {
	var b *Bucket
	f := func(mono time.Duration, n int64, want time.Duration) {
		t.Helper()
		if got := b.Take(Now{Mono: mono, Wall: -1}, n); got != want {
			t.Fatalf("at %v Take(%d) = %v, want %v", mono, n, got, want)
		}
	}

	b = NewBucket(10, 5) // a unit every 100 ms
	f(0, 5, 0)           // full at first
	f(0, 0, 0)
	f(0, 1, 100*ms)
	f(0, 1, 100*ms) // what was not taken costs nothing
	f(100*ms-1, 1, 1)
	f(100*ms, 1, 0)
	f(200*ms, 3, 200*ms)
	f(400*ms, 3, 0)
	f(hour, 5, 0) // no fuller than full
	f(hour, 1, 100*ms)

	b = NewBucket(10, 5)
	f(minute, 12, 0) // more than it holds: when full, and into debt
	f(minute, 1, 800*ms)
	f(minute, 12, 700*ms+500*ms)
	f(minute+1200*ms, 12, 0)
	f(minute+1200*ms, 0, 700*ms) // in debt nothing passes

	b = NewBucket(3, 1)
	f(0, 1, 0)
	f(0, 1, 333333334) // rounded up: never faster than the rate

	b = NewBucket(10<<30, 100<<20) // bytes of a fast network
	f(0, 100<<20, 0)
	f(0, 10<<20, 976563)

	b = NewBucket(1, 1)
	f(0, math.MaxInt64, 0) // a debt for ever, not an overflow
	f(100*365*day/2, 1, maxWorth-100*365*day/2)
	b = NewBucket(math.MaxInt64, math.MaxInt64)
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
		var mono time.Duration
		var taken, largest int64
		for mono < hour {
			n := r.Int64N(2 * burst)
			wait := b.Take(Now{Mono: mono}, n)
			if wait > ms {
				mono += wait - 1
				if b.Take(Now{Mono: mono}, n) != 1 {
					t.Fatalf("seed %d: not a nanosecond was left to wait", seed)
				}
				mono++
				if got := b.Take(Now{Mono: mono}, n); got != 0 {
					t.Fatalf("seed %d: after the wait, wait %v", seed, got)
				}
			} else if wait > 0 {
				mono += wait
				continue
			}
			taken, largest = taken+n, max(largest, n)
		}
		allowed := burst + largest + int64(mono.Seconds()*float64(rate))
		if least := int64(hour.Seconds()*float64(rate)) * 99 / 100; taken > allowed || taken < least {
			t.Fatalf("seed %d: took %d at rate %d and burst %d; want %d to %d", seed, taken, rate, burst, least, allowed)
		}
	}
}
