package mem

import (
	"math"
	"math/bits"
	"sync/atomic"
)

// A value below exactBelow has a bucket of its own. Above, each doubling is cut
// into steps of equal width, so that a bucket is no wider than 1/64 of where it
// begins and its middle is off by less than 1 %.
const (
	steps      = 64
	exactBelow = 2 * steps
	buckets    = (63-6)*steps + steps // up to MaxInt64
)

// A Hist counts values ≥ 0, say latencies in nanoseconds, in logarithmic
// buckets. Its zero value is empty and ready. It takes 29 KB, whatever is
// recorded, and must not be copied.
//
// All methods may be called from any goroutine and take no lock. What is
// recorded while a reading runs may be in it or not.
type Hist struct {
	counts [buckets]atomic.Uint64
	sum    atomic.Int64
	max    atomic.Int64
}

// Record counts v. A negative v, which only a broken clock yields, counts as 0.
func (h *Hist) Record(v int64) {
	v = max(v, 0)
	h.counts[bucketOf(v)].Add(1)
	h.sum.Add(v)
	h.raise(v)
}

func (h *Hist) raise(v int64) {
	for old := h.max.Load(); v > old && !h.max.CompareAndSwap(old, v); {
		old = h.max.Load()
	}
}

// Merge adds to h what o has counted so far.
func (h *Hist) Merge(o *Hist) {
	for i := range o.counts {
		if n := o.counts[i].Load(); n > 0 {
			h.counts[i].Add(n)
		}
	}
	h.sum.Add(o.sum.Load())
	h.raise(o.max.Load())
}

// Count returns how many values were recorded.
func (h *Hist) Count() uint64 {
	var n uint64
	for i := range h.counts {
		n += h.counts[i].Load()
	}
	return n
}

// Sum returns the sum of the values recorded, modulo 2^64.
func (h *Hist) Sum() int64 { return h.sum.Load() }

// Max returns the greatest value recorded, exactly; 0 if there is none.
func (h *Hist) Max() int64 { return h.max.Load() }

// Quantile returns the smallest value, to within 1 %, that the share q of the
// values recorded does not exceed; 0 ≤ q ≤ 1, so 0.5 gives the median and 1
// the maximum. It is 0 if nothing was recorded.
func (h *Hist) Quantile(q float64) int64 {
	return h.rank(q, h.Count())
}

// rank returns the quantile q of the first n values in ascending order.
func (h *Hist) rank(q float64, n uint64) int64 {
	if n == 0 {
		return 0
	}
	want := max(uint64(math.Ceil(q*float64(n))), 1)
	if want >= n {
		return h.Max()
	}
	i := 0
	for seen := h.counts[0].Load(); seen < want; seen += h.counts[i].Load() {
		i++ // ends, since counts only grow and had want in them
	}
	return min(middle(i), h.Max())
}

// A Snapshot is what a histogram says at one moment.
type Snapshot struct {
	Count               uint64
	Sum                 int64
	P50, P95, P99, P999 int64
	Max                 int64
}

// Snapshot returns the counts and the usual quantiles.
func (h *Hist) Snapshot() Snapshot {
	n := h.Count()
	return Snapshot{
		Count: n, Sum: h.Sum(), Max: h.Max(),
		P50: h.rank(0.5, n), P95: h.rank(0.95, n), P99: h.rank(0.99, n), P999: h.rank(0.999, n),
	}
}

// bucketOf returns the index of v's bucket.
func bucketOf(v int64) int {
	if v < exactBelow {
		return int(v)
	}
	e := bits.Len64(uint64(v)) - bits.Len(steps)
	return e*steps + int(v>>e)
}

// middle returns the value in the middle of bucket i.
func middle(i int) int64 {
	if i < exactBelow {
		return int64(i)
	}
	e := i/steps - 1
	return int64(i-e*steps)<<e + 1<<e/2
}
