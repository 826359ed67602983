package client

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/teralog/teralog/wire"
)

// TestHoldBack: behind a request without answer little waits for that, but no
// longer than holdBack, and much does not wait.
func TestHoldBack(t *testing.T) {
	f := func(o ProducerOptions, age time.Duration, part int32, records int, flush bool, wait time.Duration) {
		t.Helper()
		bubble(t, map[string]int{"t": 2}, func(t *testing.T, b *fake) {
			o.BatchBytes, o.BufferBytes = 1<<10, 16<<10 // 2 records fill a batch, 5 batches are much
			p := newProducer(t, b.client(t), o)
			if _, err := p.Produce(t.Context(), Record{Topic: "t"}); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			var held *wire.Call
			var came []time.Time
			b.intercept(func(c *wire.Call) bool {
				if c.API != wire.APIProduce {
					return false
				}
				came = append(came, time.Now())
				if held == nil {
					held = c // the first is answered late
					return true
				}
				return false
			})
			done := make(chan error)
			go func() { // carries its request itself, so that nobody else looks at the time
				_, err := p.Produce(t.Context(), Record{Topic: "t", Pinned: true})
				done <- err
			}()
			synctest.Wait()
			flushing, end := context.WithCancel(t.Context())
			defer end()
			for range 2 { // the second time nobody else looks either
				time.Sleep(age)
				before, began := len(came), time.Now()
				for range records {
					if err := p.ProduceAsync(t.Context(), *pinned(part, 400), nil); err != nil {
						t.Fatal(err)
					}
				}
				if flush {
					go p.Flush(flushing)
				}
				synctest.Wait()
				time.Sleep(time.Second)
				synctest.Wait()
				if len(came) == before || came[before].Sub(began) != wait {
					t.Fatalf("%d records behind a request at %v: requests came at %v, want one after %v", records, began, came, wait)
				}
				if age == 0 || part == 0 {
					break
				}
			}
			b.intercept(nil)
			b.ServeCall(held)
			if err := <-done; err != nil {
				t.Fatal(err)
			}
			if err := p.Flush(t.Context()); err != nil {
				t.Fatal(err)
			}
		})
	}

	var o ProducerOptions
	f(o, 0, 1, 1, false, holdBack)
	f(o, 0, 1, 2, false, holdBack)
	f(o, 0, 1, 3, false, holdBack) // a batch is complete
	f(o, 5*time.Second, 1, 1, false, holdBack)
	f(o, 5*time.Second, 1, 3, false, 0) // waits no more for an answer so late
	f(o, 0, 1, 12, false, 0)            // more than a quarter of the buffer in complete batches
	f(ProducerOptions{Codec: wire.Gzip}, 0, 1, 12, false, 0)
	f(o, 0, 0, 3, false, holdBack)
	f(o, 0, 0, 5, false, 0) // half of what a partition may have on its way
	f(o, 0, 1, 1, true, 0)
}

// TestPartialStays: with a batch that is complete, one that is not stays behind.
func TestPartialStays(t *testing.T) {
	bubble(t, map[string]int{"t": 2}, func(t *testing.T, b *fake) {
		p := newProducer(t, b.client(t), ProducerOptions{BatchBytes: 1 << 10})
		warm(t, p)
		p.mu.Lock()
		k := p.topics["t"].lanes[0].link
		k.launching = true // keeps the goroutine from looking
		p.mu.Unlock()
		if _, _, err := p.accept(t.Context(), pinned(0, 600), nil, acceptWait); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		p.mu.Lock()
		k.launching = false
		p.mu.Unlock()
		f, _, err := p.accept(t.Context(), pinned(0, 600), nil, acceptWait)
		if err != nil || f == nil || len(f.batches) != 1 {
			t.Fatalf("request %+v, %v, want one with the complete batch", f, err)
		}
		f.carry()
		if err := p.Flush(t.Context()); err != nil {
			t.Fatal(err)
		}
	})
}

// TestBehindFull: what a full request had no room for is not held back.
func TestBehindFull(t *testing.T) {
	const parts = 40
	bubble(t, map[string]int{"t": parts}, func(t *testing.T, b *fake) {
		var id *wire.Call
		var produces []*wire.Call
		var came []time.Time
		b.onCall = func(c *wire.Call) bool {
			if c.API == wire.APIInitProducer {
				id = c
			}
			return c.API == wire.APIInitProducer
		}
		p := newProducer(t, b.client(t), ProducerOptions{})
		for i := range int32(parts) {
			if err := p.ProduceAsync(t.Context(), *pinned(i, 130<<10), nil); err != nil { // a batch of its own
				t.Fatal(err)
			}
		}
		synctest.Wait()
		b.intercept(func(c *wire.Call) bool {
			if c.API == wire.APIProduce {
				produces, came = append(produces, c), append(came, time.Now())
			}
			return c.API == wire.APIProduce
		})
		b.ServeCall(id)
		time.Sleep(time.Second)
		synctest.Wait()
		if len(came) != 2 || came[1] != came[0] {
			t.Errorf("requests came at %v, want 2 at once", came)
		}
		b.intercept(nil)
		for _, c := range produces {
			b.ServeCall(c)
		}
		if err := p.Flush(t.Context()); err != nil {
			t.Fatal(err)
		}
	})
}

// TestLookFull: with as many requests on their way as may be, nobody is woken in
// vain; the next answer has what came sent.
func TestLookFull(t *testing.T) {
	bubble(t, map[string]int{"t": 2}, func(t *testing.T, b *fake) {
		p := newProducer(t, b.client(t), ProducerOptions{BatchBytes: 1 << 10, InFlight: 1, Linger: 10 * time.Millisecond})
		warm(t, p)
		b.net.Stall(fakeAddr, true)
		f := claimed(t, p, nil)
		k := f.link
		f.launch()
		synctest.Wait()
		p.mu.Lock()
		k.complete = p.enough
		wake := k.wake
		k.wake = make(chan struct{}, 1) // nobody takes from this one
		k.look()
		if len(k.wake) > 0 || k.guarded {
			t.Error("the goroutine is to look, though it can do nothing")
		}
		k.wake = wake
		p.mu.Unlock()
		b.net.Stall(fakeAddr, false)
		if next := k.launched(true); next != nil {
			t.Error("a second request is on its way")
		}
		time.Sleep(time.Second)
		if n := p.Buffered(); n != 0 {
			t.Errorf("%d bytes are still there", n)
		}
	})
}
