package mem

import (
	"testing"
	"time"
)

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
