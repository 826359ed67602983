package client

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/teralog/teralog/wire"
)

// TestCallbacksElsewhere: no callback runs on the stack of a call of
// ProduceAsync, whose caller may hold locks that it takes.
func TestCallbacksElsewhere(t *testing.T) {
	f := func(o ProducerOptions, size int, fails bool) {
		t.Helper()
		bubble(t, map[string]int{"t": 2}, func(t *testing.T, b *fake) {
			synctest.Wait() // the server has begun
			b.srv.MaxFrame = 64 << 10
			o.BatchBytes, o.Linger = 1<<10, time.Hour
			p := newProducer(t, b.client(t), o)
			warm(t, p)
			told := 0
			for range 20 {
				if err := p.ProduceAsync(t.Context(), *pinned(0, size), func(_ Ack, err error) {
					if told++; (err != nil) != fails {
						t.Error(err)
					}
					if onStack("ProduceAsync") {
						t.Error("told on the stack of the giver")
					}
				}); err != nil {
					t.Fatal(err)
				}
			}
			if err := p.Flush(t.Context()); err != nil {
				t.Fatal(err)
			}
			if told != 20 {
				t.Fatalf("%d of 20 records told", told)
			}
		})
	}

	f(ProducerOptions{}, 600, false)
	f(ProducerOptions{Acks: AcksNone}, 600, false)
	f(ProducerOptions{}, 100<<10, true) // the connection takes no such request
}

// TestCallbacksGive: callbacks may give records, whatever the bounds.
func TestCallbacksGive(t *testing.T) {
	f := func(o ProducerOptions) {
		t.Helper()
		bubble(t, map[string]int{"t": 2}, func(t *testing.T, b *fake) {
			o.BatchBytes = 1 << 10
			p := newProducer(t, b.client(t), o)
			warm(t, p)
			const total = 300
			given, told := 0, 0
			var done Outcome
			give := func() {
				rs := []Record{*pinned(0, 300), *pinned(0, 300), *pinned(1, 300)}
				for given < total {
					n, err := p.TryProduceAll(context.Background(), rs, done)
					if err != nil && err != ErrBufferFull {
						t.Error(err)
					}
					if given += n; err != nil {
						return // those on their way give the next
					}
				}
			}
			done = func(from, to int, _ Ack, err error) {
				if err != nil {
					t.Error(err)
				}
				told += to - from
				give()
			}
			for given < total { // again when all that could give found the buffer full
				before := given
				if err := p.ProduceAsync(t.Context(), *pinned(0, 1), func(Ack, error) { give() }); err != nil {
					t.Fatal(err)
				}
				if err := p.Flush(t.Context()); err != nil { // and what the callbacks give
					t.Fatal(err)
				}
				if given == before {
					t.Fatalf("no more than %d records were given", given)
				}
			}
			if told < total || told != given {
				t.Fatalf("%d records given, %d told of, want %d", given, told, total)
			}
		})
	}

	for _, inFlight := range []int{1, 5} {
		for _, buffer := range []int64{500, 1500, 9000} {
			f(ProducerOptions{InFlight: inFlight, BufferBytes: buffer})
			f(ProducerOptions{InFlight: inFlight, BufferBytes: buffer, Acks: AcksNone})
			f(ProducerOptions{InFlight: inFlight, BufferBytes: buffer, NotIdempotent: true, Codec: wire.Gzip})
			f(ProducerOptions{InFlight: inFlight, BufferBytes: buffer, Linger: 5 * time.Millisecond})
		}
	}
}
