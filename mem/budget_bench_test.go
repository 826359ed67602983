package mem

import "testing"

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
