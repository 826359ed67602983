package mem

import (
	"testing"
	"time"
)

func BenchmarkBucket(b *testing.B) {
	bucket := NewBucket(1<<30, 1<<30)
	var now Now
	for b.Loop() {
		now.Mono += time.Microsecond
		if bucket.Wait(now) == 0 {
			bucket.Take(now, 1024)
		}
	}
}
