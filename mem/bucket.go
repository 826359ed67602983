package mem

import (
	"fmt"
	"math"
	"math/bits"
	"sync/atomic"
	"time"
)

// A Bucket lets through so many units per second on average, and so many at
// once after a quiet time. All methods may be called from any goroutine; none
// waits for another.
//
// Who finds it not in debt may take any number of units, also more than it
// holds: what it lacked is a debt, and until time has paid that nobody passes.
// So what is larger than the bucket gets through at the bucket's rate, and never
// starves behind a stream of smaller ones, as it would if it had to find the
// bucket full.
//
// It keeps no level, only the moment at which the bucket was, or in debt will
// be, empty: time fills it without anybody doing so.
type Bucket struct {
	rate  int64
	burst int64
	full  time.Duration // how long an empty bucket takes to fill

	empty atomic.Int64 // mono
}

// NewBucket returns a full bucket of burst units, refilled with rate units per
// second; both > 0.
func NewBucket(rate, burst int64) *Bucket {
	if rate <= 0 || burst <= 0 {
		panic(fmt.Sprintf("BUG: bucket of rate %d and burst %d", rate, burst))
	}
	b := &Bucket{rate: rate, burst: burst}
	b.empty.Store(-int64(maxWorth))
	b.full = b.worth(burst)
	return b
}

// Wait returns 0 if the bucket is not in debt; else how long it will be, if
// nobody takes more.
func (b *Bucket) Wait(now Now) time.Duration {
	return max(time.Duration(b.empty.Load())-now.Mono, 0)
}

// Take takes n units, n ≥ 0, whatever the bucket holds. Whoever may choose asks
// Wait before; those who do so at the same moment all pass, and pay together.
func (b *Bucket) Take(now Now, n int64) {
	if n < 0 {
		panic(fmt.Sprintf("BUG: %d units taken from a bucket", n))
	}
	worth := int64(b.worth(n))
	for {
		was := b.empty.Load()
		next := max(was, int64(now.Mono-b.full)) + worth // no fuller than full
		next = min(next, max(was, int64(now.Mono)+maxWorth))
		if b.empty.CompareAndSwap(was, next) {
			return
		}
	}
}

// Burst returns how many units it holds when full.
func (b *Bucket) Burst() int64 { return b.burst }

// maxWorth bounds a debt, and with it every sum of moments.
const maxWorth = math.MaxInt64 / 4

// worth returns how long the bucket takes to gain n units, rounded up.
func (b *Bucket) worth(n int64) time.Duration {
	hi, lo := bits.Mul64(uint64(n), uint64(time.Second))
	if hi >= uint64(b.rate) {
		return maxWorth
	}
	t, rest := bits.Div64(hi, lo, uint64(b.rate))
	if rest > 0 {
		t++
	}
	return time.Duration(min(t, maxWorth))
}
