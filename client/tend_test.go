package client

import (
	"testing"
	"testing/synctest"
	"time"
)

// TestTendRarely: what a lane has to do does not wake the housekeeping each time it
// falls idle and has something again, and records still expire in time.
func TestTendRarely(t *testing.T) {
	bubble(t, map[string]int{"t": 2}, func(t *testing.T, b *fake) {
		const timeout = 10 * time.Second
		p := newProducer(t, b.client(t), ProducerOptions{DeliveryTimeout: timeout})
		warm(t, p)
		planned := func() time.Duration {
			synctest.Wait()
			p.mu.Lock()
			defer p.mu.Unlock()
			return p.tendsAt
		}
		at := planned()
		for i := range 50 {
			if _, err := p.Produce(t.Context(), *pinned(int32(i%2), 10)); err != nil {
				t.Fatal(err)
			}
			time.Sleep(timeout / 100)
			if now := planned(); now != at {
				t.Fatalf("record %d: the next look moved from %v to %v", i, at, now)
			}
		}

		expires := func() {
			t.Helper()
			b.net.Stall(fakeAddr, true)
			defer b.net.Stall(fakeAddr, false)
			given := time.Now()
			_, err := p.Produce(t.Context(), *pinned(0, 10))
			if took := time.Since(given); err == nil || took != timeout {
				t.Errorf("%v after %v, want an error after %v", err, took, timeout)
			}
		}
		expires()
		time.Sleep(3 * timeout)
		if at := planned(); at != 0 {
			t.Errorf("with nothing to do the next look is planned for %v", at)
		}
		expires()
	})
}
