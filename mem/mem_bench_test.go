package mem

import (
	"testing"
	"time"
)

func BenchmarkClock(b *testing.B) {
	c := NewClock()
	b.ReportAllocs()
	for b.Loop() {
		c.Now()
	}
}

func BenchmarkHist(b *testing.B) {
	var h Hist
	b.Run("record", func(b *testing.B) {
		b.ReportAllocs()
		for v := int64(1); b.Loop(); v = v*3%1_000_003 + 1 {
			h.Record(v)
		}
	})
	b.Run("record-parallel", func(b *testing.B) {
		b.RunParallel(func(pb *testing.PB) {
			for v := int64(1); pb.Next(); v = v*3%1_000_003 + 1 {
				h.Record(v)
			}
		})
	})
	b.Run("snapshot", func(b *testing.B) {
		for b.Loop() {
			h.Snapshot()
		}
	})
}

// BenchmarkWheel sets and stops a timer, as a long poll that finds its bytes
// in time does, beside so many others.
func BenchmarkWheel(b *testing.B) {
	w := NewWheel()
	for i := range 100_000 {
		w.At(time.Hour+time.Duration(i)*time.Millisecond, func() {})
	}
	b.Run("set-stop", func(b *testing.B) {
		b.ReportAllocs()
		t := Timer{F: func() {}}
		for b.Loop() {
			w.Set(&t, 500*time.Millisecond)
			w.Stop(&t)
		}
	})
	b.Run("set-call", func(b *testing.B) {
		b.ReportAllocs()
		w := NewWheel()
		t := Timer{F: func() {}}
		var now time.Duration
		for b.Loop() {
			now += 500 * time.Millisecond
			w.Set(&t, now)
			w.Advance(now)
		}
	})
}

func BenchmarkBucket(b *testing.B) {
	bucket := NewBucket(1<<30, 1<<30)
	var now Now
	for b.Loop() {
		now.Mono += time.Microsecond
		bucket.Take(now, 1024)
	}
}

func BenchmarkBudget(b *testing.B) {
	budget := NewBudget(1 << 30)
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			if budget.TryTake(64 << 10) {
				budget.Give(64 << 10)
			}
		}
	})
}
