package mem

import "testing"

func BenchmarkClock(b *testing.B) {
	c := NewClock()
	b.ReportAllocs()
	for b.Loop() {
		c.Now()
	}
}
