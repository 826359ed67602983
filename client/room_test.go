package client

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// TestReadsForRoom: who waits for room takes the answers himself, all of them in
// order, and nobody else need be woken.
func TestReadsForRoom(t *testing.T) {
	bubble(t, map[string]int{"t": 2}, func(t *testing.T, b *fake) {
		b.net.SetDelay(100 * time.Microsecond)
		p := newProducer(t, b.client(t), ProducerOptions{BufferBytes: 8 << 10, BatchBytes: 1 << 10})
		const records = 1000
		told, here := 0, 0
		rs := []Record{*pinned(0, 300), *pinned(0, 300), *pinned(0, 300)}
		for range records / len(rs) {
			n, err := p.ProduceAll(t.Context(), rs, func(from, to int, a Ack, err error) {
				if err != nil || a.Offset >= 0 && int(a.Offset) != told {
					t.Errorf("offset %d after %d records: %v", a.Offset, told, err)
				}
				told += to - from
				if onStack("ProduceAll") {
					here += to - from
				}
			})
			if n != len(rs) || err != nil {
				t.Fatal(n, err)
			}
		}
		before := time.Now()
		if err := p.Flush(t.Context()); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(before); took > time.Millisecond { // who waited for room is away now, and Flush knows
			t.Errorf("Flush took %v", took)
		}
		if told != records/len(rs)*len(rs) || here < told*9/10 {
			t.Errorf("%d records told, %d of them by who waited for room", told, here)
		}
	})
}

// TestProduceAfterRoom: who read answers while he waited for room and went has them
// read again by somebody once he waits for the outcome of a record.
func TestProduceAfterRoom(t *testing.T) {
	bubble(t, map[string]int{"t": 2}, func(t *testing.T, b *fake) {
		b.net.SetDelay(100 * time.Microsecond)
		p := newProducer(t, b.client(t), ProducerOptions{BufferBytes: 8 << 10, BatchBytes: 1 << 10})
		rs := []Record{*pinned(0, 300), *pinned(0, 300), *pinned(0, 300)}
		attended := 0
		for range 300 {
			if n, err := p.ProduceAll(t.Context(), rs, nil); n != len(rs) || err != nil {
				t.Fatal(n, err)
			}
			if p.attended == nil || p.Buffered() == 0 {
				continue
			}
			attended++
			before := time.Now()
			if _, err := p.Produce(t.Context(), *pinned(1, 1)); err != nil {
				t.Fatal(err)
			}
			if took := time.Since(before); took > time.Millisecond {
				t.Fatalf("Produce took %v", took)
			}
		}
		if attended < 10 {
			t.Errorf("answers were read for room %d times", attended)
		}
	})
}

// TestRoomOtherwise: what else ends a wait for room of one who reads, at once.
func TestRoomOtherwise(t *testing.T) {
	f := func(what string, end func(b *fake, p *Producer, cancel func()), want error) {
		t.Helper()
		bubble(t, map[string]int{"t": 2}, func(t *testing.T, b *fake) {
			p := newProducer(t, b.client(t), ProducerOptions{BufferBytes: 8 << 10, BatchBytes: 1 << 10})
			fill := func() {
				for {
					if err := p.TryProduce(t.Context(), *pinned(0, 300), nil); err == ErrBufferFull {
						return
					} else if err != nil {
						t.Fatal(err)
					}
				}
			}
			warm(t, p)
			fill()
			for range 50 { // he who waits is let read
				if err := p.ProduceAsync(t.Context(), *pinned(0, 300), nil); err != nil {
					t.Fatal(err)
				}
			}
			b.net.Stall(fakeAddr, true)
			fill()
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			const after = time.Second
			from := time.Now()
			time.AfterFunc(after, func() { end(b, p, cancel) })
			err := p.ProduceAsync(ctx, *pinned(0, 300), nil)
			if took := time.Since(from); took != after || !errors.Is(err, want) {
				t.Errorf("%s: %v after %v, want %v after %v", what, err, took, want, after)
			}
			b.net.Stall(fakeAddr, false)
			synctest.Wait()
		})
	}

	f("context", func(_ *fake, _ *Producer, cancel func()) { cancel() }, context.Canceled)
	f("closed", func(_ *fake, p *Producer, _ func()) { go p.Close() }, ErrClosed)
	f("answers", func(b *fake, _ *Producer, _ func()) { b.net.Stall(fakeAddr, false) }, nil)
	f("others", func(_ *fake, p *Producer, _ func()) { // records that were not on this connection have their outcome
		p.mu.Lock()
		defer p.mu.Unlock()
		p.used += 1000
		p.finished = append(p.finished, &batch{lane: p.recent.lanes[1], state: acked, cost: 2000})
		p.deliver(nil)
	}, nil)
}
