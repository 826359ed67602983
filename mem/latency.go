package mem

import (
	"sync/atomic"
	"time"
)

// LatencyBounds are the upper bounds, inclusive, of the buckets of a Latency;
// what is longer than the last has a bucket of its own.
var LatencyBounds = [...]time.Duration{
	5 * time.Microsecond, 10 * time.Microsecond, 25 * time.Microsecond,
	50 * time.Microsecond, 100 * time.Microsecond, 250 * time.Microsecond,
	500 * time.Microsecond, time.Millisecond, 2500 * time.Microsecond,
	5 * time.Millisecond, 10 * time.Millisecond, 25 * time.Millisecond,
	50 * time.Millisecond, 100 * time.Millisecond, 250 * time.Millisecond,
	500 * time.Millisecond, time.Second, 2500 * time.Millisecond,
	5 * time.Second, 10 * time.Second, 25 * time.Second,
}

// A Latency counts durations for those who watch a process. It is a Hist with
// few buckets: 192 bytes, so that there may be many, and 22 lines when it is
// shown. Its zero value is empty and ready; it must not be copied. All methods
// may be called from any goroutine and take no lock.
type Latency struct {
	counts [len(LatencyBounds) + 1]atomic.Int64
	sum    atomic.Int64 // ns
}

// Record counts d. A negative d, which only a broken clock yields, counts as 0.
func (l *Latency) Record(d time.Duration) {
	d = max(d, 0)
	i := 0
	for i < len(LatencyBounds) && d > LatencyBounds[i] {
		i++
	}
	l.counts[i].Add(1)
	l.sum.Add(int64(d))
}

// Read returns how many durations fell into each bucket, and their sum. What is
// recorded meanwhile may be in it or not.
func (l *Latency) Read() (counts [len(LatencyBounds) + 1]int64, sum time.Duration) {
	for i := range counts {
		counts[i] = l.counts[i].Load()
	}
	return counts, time.Duration(l.sum.Load())
}
