package mem

import (
	"fmt"
	"math"
	"math/bits"
	"sync"
	"time"
)

// A Bucket lets through so many units per second on average, and so many at
// once after a quiet time. All methods may be called from any goroutine.
//
// It keeps no level, only the moment at which the bucket was, or in debt will
// be, empty: time fills it without anybody doing so.
type Bucket struct {
	rate  int64
	burst int64
	full  time.Duration // how long an empty bucket takes to fill

	mu    sync.Mutex
	empty time.Duration // mono
}

// NewBucket returns a full bucket of burst units, refilled with rate units per
// second; both > 0.
func NewBucket(rate, burst int64) *Bucket {
	if rate <= 0 || burst <= 0 {
		panic(fmt.Sprintf("BUG: bucket of rate %d and burst %d", rate, burst))
	}
	b := &Bucket{rate: rate, burst: burst, empty: -maxWorth}
	b.full = b.worth(burst)
	return b
}

// Take takes n units, n ≥ 0, and returns 0; or takes none and returns how long
// it is until they are there, if nobody else takes them first.
//
// More than burst units are let through when the bucket is full, and leave it
// in debt for those that it did not hold: the average stays the rate.
func (b *Bucket) Take(now Now, n int64) (wait time.Duration) {
	if n < 0 {
		panic(fmt.Sprintf("BUG: %d units taken from a bucket", n))
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.empty = max(b.empty, now.Mono-b.full) // no fuller than full
	if wait = b.empty + b.worth(min(n, b.burst)) - now.Mono; wait > 0 {
		return wait
	}
	b.empty += b.worth(n)
	return 0
}

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
