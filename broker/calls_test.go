package broker

import "testing"

// TestEffort: a large request is much work, a small one is one.
func TestEffort(t *testing.T) {
	b := new(Broker)
	for i, step := range []struct {
		do   func()
		want int64
	}{
		{func() { b.count.requests[3].Add(5) }, 5},
		{func() { b.count.produced(1000, 10) }, 5},
		{func() { b.count.produced(1<<20, 10) }, 5 + 16},
		{func() { b.count.fetched.Add(4 << 20) }, 5 + 16 + 64},
	} {
		step.do()
		if got := b.effort(); got != step.want {
			t.Errorf("step %d: %d, want %d", i, got, step.want)
		}
	}
}
