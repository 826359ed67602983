package mem

import (
	"testing"
	"time"
	"unsafe"
)

func TestLatency(t *testing.T) {
	f := func(d time.Duration, bucket int, sum time.Duration) {
		t.Helper()
		var l Latency
		l.Record(d)
		counts, got := l.Read()
		for i, n := range counts {
			if (n == 1) != (i == bucket) {
				t.Fatalf("%v is counted in bucket %d: %v", d, i, counts)
			}
		}
		if got != sum {
			t.Fatalf("the sum of %v is %v", d, got)
		}
	}

	last := len(LatencyBounds)
	f(-time.Second, 0, 0)
	f(0, 0, 0)
	f(5*time.Microsecond, 0, 5*time.Microsecond)
	f(5*time.Microsecond+1, 1, 5*time.Microsecond+1)
	f(time.Millisecond, 7, time.Millisecond)
	f(25*time.Second, last-1, 25*time.Second)
	f(time.Hour, last, time.Hour)
	for i := 1; i < last; i++ {
		if LatencyBounds[i] <= LatencyBounds[i-1] {
			t.Errorf("bound %v comes after %v", LatencyBounds[i], LatencyBounds[i-1])
		}
	}
	if size := unsafe.Sizeof(Latency{}); size > 192 {
		t.Errorf("it takes %d bytes", size)
	}
}

func TestLatencyAllocations(t *testing.T) {
	var l Latency
	if n := testing.AllocsPerRun(100, func() { l.Record(time.Millisecond); l.Read() }); n != 0 {
		t.Fatalf("%v allocations", n)
	}
}
