package client

import (
	"context"
	"net"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/teralog/teralog/wire"
)

// pinned returns a record of size bytes for a partition of topic t.
func pinned(part int32, size int) *Record {
	return &Record{Topic: "t", Partition: part, Pinned: true, Value: make([]byte, size)}
}

// claimed gives p two records, of which the second completes a batch, and
// returns the request with it, which the caller is to carry.
func claimed(t *testing.T, p *Producer, done func(Ack, error)) *flight {
	t.Helper()
	for i := range 2 {
		f, _, err := p.accept(t.Context(), pinned(0, 600), done, acceptWait)
		if err != nil || (f != nil) != (i == 1) {
			t.Fatalf("record %d: request %v, %v", i, f != nil, err)
		}
		if f != nil {
			return f
		}
	}
	return nil
}

// warm has p know its topic, its producer id and its broker.
func warm(t *testing.T, p *Producer) {
	t.Helper()
	if err := p.ProduceAsync(t.Context(), *pinned(1, 1), nil); err != nil {
		t.Fatal(err)
	}
	if err := p.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	synctest.Wait()
}

// TestLookAfterLaunch: what comes while somebody launches a request, whose
// answer comes before he is done, is not forgotten: the link's goroutine does
// not look meanwhile.
func TestLookAfterLaunch(t *testing.T) {
	f := func(cut bool) {
		t.Helper()
		bubble(t, map[string]int{"t": 2}, func(t *testing.T, b *fake) {
			p := newProducer(t, b.client(t), ProducerOptions{BatchBytes: 1 << 10, Linger: 30 * time.Millisecond})
			warm(t, p)
			var acked atomic.Int32
			done := func(_ Ack, err error) {
				if err != nil {
					t.Error(err)
				}
				acked.Add(1)
			}
			f := claimed(t, p, done)
			synctest.Wait()
			if err := p.ProduceAsync(t.Context(), *pinned(1, 1), done); err != nil {
				t.Fatal(err)
			}
			if cut {
				b.net.Cut(fakeAddr)
			}
			k := f.link
			f.launch()
			synctest.Wait() // it has landed, and the goroutine has found it being launched
			if next := k.launched(); next != nil {
				t.Fatal("there is nothing to carry yet")
			}
			time.Sleep(time.Second)
			if n := acked.Load(); n != 3 {
				t.Fatalf("%d of 3 records were sent within a second", n)
			}
		})
	}

	f(false)
	f(true)
}

// TestOneLaunches: while somebody is about to send a request, nobody sends
// another one, which might overtake it.
func TestOneLaunches(t *testing.T) {
	bubble(t, map[string]int{"t": 2}, func(t *testing.T, b *fake) {
		p := newProducer(t, b.client(t), ProducerOptions{BatchBytes: 1 << 10, BufferBytes: 8 << 10, Linger: time.Hour})
		warm(t, p)
		f := claimed(t, p, nil)
		before := b.count(wire.APIProduce)
		for range 5 {
			if err := p.ProduceAsync(t.Context(), *pinned(0, 600), nil); err != nil {
				t.Fatal(err)
			}
		}
		synctest.Wait()
		if n := b.count(wire.APIProduce) - before; n != 0 {
			t.Errorf("%d requests overtook one", n)
		}
		f.carry()
		if err := p.Flush(t.Context()); err != nil {
			t.Fatal(err)
		}
		b.mu.Lock()
		end := b.topics["t"].parts[0].end
		b.mu.Unlock()
		if end != 7 {
			t.Errorf("%d of 7 records were written", end)
		}
	})
}

// TestMovedInFlight: the leader moves while a request to the old one is on its
// way; what waits for that answer then goes to the new one.
func TestMovedInFlight(t *testing.T) {
	f := func(o ProducerOptions, code wire.Code) {
		t.Helper()
		bubble(t, map[string]int{"t": 1}, func(t *testing.T, b *fake) {
			b.nodes = append(b.nodes, wire.NodeAddr{ID: 2, Addr: fakeAddr})
			p := newProducer(t, b.client(t), o)
			give := func(done func(Ack, error)) {
				t.Helper()
				if err := p.ProduceAsync(t.Context(), *pinned(0, 1), done); err != nil {
					t.Fatal(err)
				}
				synctest.Wait()
			}
			give(nil)
			var held *wire.Call
			b.intercept(func(c *wire.Call) bool {
				if c.API == wire.APIProduce && held == nil {
					held = c
					return true
				}
				return false
			})
			var acked atomic.Int32
			done := func(_ Ack, err error) {
				if err != nil {
					t.Error(err)
				}
				acked.Add(1)
			}
			give(done)
			b.mu.Lock()
			b.leader = 2
			b.mu.Unlock()
			p.mu.Lock()
			p.doubtful = true
			p.mu.Unlock()
			p.nudge()
			synctest.Wait()
			give(done)
			if code == wire.CodeOK {
				b.ServeCall(held)
			} else {
				held.Reply(&wire.ProduceResponse{Results: []wire.ProduceResult{{Code: code}}})
			}
			time.Sleep(time.Second)
			if n := acked.Load(); n != 2 {
				t.Fatalf("%d of 2 records were sent within a second", n)
			}
		})
	}

	f(ProducerOptions{}, wire.CodeNotLeader)
	f(ProducerOptions{NotIdempotent: true}, wire.CodeNotLeader)
	f(ProducerOptions{NotIdempotent: true}, wire.CodeOK)
}

// onStack reports whether the caller's stack has a frame of that method.
func onStack(method string) bool {
	buf := make([]byte, 16<<10)
	return strings.Contains(string(buf[:runtime.Stack(buf, false)]), method+"(")
}

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

// A dialSpy counts dials on the stack of who carries a request.
type dialSpy struct {
	wire.Dialer
	carried atomic.Int32
}

func (d *dialSpy) DialContext(ctx context.Context, network, addr string) (net.Conn, error) {
	if onStack("carry") {
		d.carried.Add(1)
	}
	return d.Dialer.DialContext(ctx, network, addr)
}

// TestCarryNoDial: who carries a request never dials, which takes long, even if
// the connection ends behind his back.
func TestCarryNoDial(t *testing.T) {
	bubble(t, map[string]int{"t": 2}, func(t *testing.T, b *fake) {
		d := &dialSpy{Dialer: b.net}
		p := newProducer(t, b.client(t, func(o *Options) { o.Dialer = d }), ProducerOptions{BatchBytes: 1 << 10, Linger: time.Hour})
		warm(t, p)
		f := claimed(t, p, nil)
		f.link.ready().Close()
		f.carry()
		if n := d.carried.Load(); n != 0 {
			t.Errorf("%d dials on the stack of the carrier", n)
		}
		if err := p.Flush(t.Context()); err != nil {
			t.Fatal(err)
		}
	})
}

// TestCloseWhileCarried: Close waits for a request that a caller is about to
// send, and its records are told of before Close returns.
func TestCloseWhileCarried(t *testing.T) {
	bubble(t, map[string]int{"t": 2}, func(t *testing.T, b *fake) {
		p := newProducer(t, b.client(t), ProducerOptions{BatchBytes: 1 << 10, Linger: time.Hour})
		warm(t, p)
		told := 0
		f := claimed(t, p, func(_ Ack, err error) {
			if told++; err == nil || onStack("carry") {
				t.Errorf("%v; on the stack of the carrier: %v", err, onStack("carry"))
			}
		})
		closed := make(chan struct{})
		go func() { defer close(closed); p.Close() }()
		synctest.Wait()
		select {
		case <-closed:
			t.Fatal("closed with a request in a caller's hands")
		default:
		}
		f.carry()
		<-closed
		if told != 2 {
			t.Errorf("%d of 2 records were told of", told)
		}
	})
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
