package mem

import "testing"

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
