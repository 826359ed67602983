package mem

import (
	"strconv"
	"testing"
)

func BenchmarkPool(b *testing.B) {
	p := NewPool("bench")
	for _, size := range []int{96, 4 << 10, 64 << 10, 1 << 20} {
		b.Run(strconv.Itoa(size), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				p.Get(size).Release()
			}
		})
	}
	b.Run("parallel", func(b *testing.B) {
		b.ReportAllocs()
		b.RunParallel(func(pb *testing.PB) {
			for pb.Next() {
				p.Get(64 << 10).Release()
			}
		})
	})
}
