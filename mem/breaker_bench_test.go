package mem

import "testing"

func BenchmarkBreaker(b *testing.B) {
	var k Breaker
	rule := BreakerRule{Open: 80, Close: 20, Hold: second, Probe: 100 * ms}
	var now Now
	for b.Loop() {
		k.Admit(&rule, now, 10)
	}
}
