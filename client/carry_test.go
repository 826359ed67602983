package client

import (
	"context"
	"net"
	"runtime"
	"slices"
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

// TestStuckPartition: records that may go anywhere do not gather where none can
// be sent, and come back to it later.
func TestStuckPartition(t *testing.T) {
	bubble(t, map[string]int{"t": 3}, func(t *testing.T, b *fake) {
		var well atomic.Bool
		b.onProduce = func(m wire.Batch) (wire.Code, bool) {
			if m.Partition() == 1 && !well.Load() {
				return wire.CodeNotLeader, false
			}
			return wire.CodeOK, true
		}
		p := newProducer(t, b.client(t), ProducerOptions{})
		var acked [3]int
		give := func(n int) {
			t.Helper()
			for range n {
				if err := p.ProduceAsync(t.Context(), Record{Topic: "t"}, func(a Ack, err error) {
					if err != nil {
						t.Error(err)
					}
					acked[a.Partition]++
				}); err != nil {
					t.Fatal(err)
				}
				time.Sleep(10 * time.Millisecond)
				synctest.Wait()
			}
		}
		give(100)
		if n := acked[0] + acked[2]; n != 99 {
			t.Fatalf("%d of 100 records were sent; one may wait for the partition that is stuck", n)
		}
		well.Store(true)
		time.Sleep(time.Second)
		give(99)
		if acked[1] < 30 {
			t.Fatalf("partition 1 got %d records after it was well again", acked[1])
		}
	})
}

// TestStickyShare: what other records fill does not count as the share of the
// partition that is being filled.
func TestStickyShare(t *testing.T) {
	s := sticky{at: 1, begun: true}
	s.took(0, 3, 500)
	s.took(1, 3, 70)
	if s.filled != 70 {
		t.Fatalf("filled %d", s.filled)
	}
	if s.moved(0, 3); s.at != 1 {
		t.Fatal("moved by another partition")
	}
	if s.moved(1, 3); s.at != 2 || s.filled != 0 {
		t.Fatalf("%+v", s)
	}
	fresh := sticky{}
	if fresh.took(0, 3, 500); fresh.filled != 0 {
		t.Fatal("filled before it began")
	}
}

// TestCompleteElsewhere: a batch that is complete goes at once even if the record
// that found it full joins the open batch of another partition.
func TestCompleteElsewhere(t *testing.T) {
	bubble(t, map[string]int{"t": 2}, func(t *testing.T, b *fake) {
		p := newProducer(t, b.client(t), ProducerOptions{BatchBytes: 1 << 10, BufferBytes: 2400, Linger: time.Hour})
		warm(t, p)
		p.mu.Lock()
		p.topics["t"].sticky = sticky{begun: true}
		p.mu.Unlock()
		var acked atomic.Int32
		for _, r := range []Record{*pinned(1, 10), {Topic: "t", Value: make([]byte, 600)}, {Topic: "t", Value: make([]byte, 600)}} {
			if err := p.ProduceAsync(t.Context(), r, func(a Ack, _ error) {
				if a.Partition == 0 {
					acked.Add(1)
				}
			}); err != nil {
				t.Fatal(err)
			}
			synctest.Wait() // else one look might see it all
		}
		if n := acked.Load(); n != 1 {
			t.Errorf("%d records of the complete batch were sent, want 1", n)
		}
	})
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

// TestStickyRun: records that may go anywhere fill several batches of a partition
// before the next one's turn, but not more than may be on their way, and never
// begin a batch that nobody goes on to fill.
func TestStickyRun(t *testing.T) {
	f := func(o ProducerOptions, records int, want ...int) {
		t.Helper()
		bubble(t, map[string]int{"t": 4}, func(t *testing.T, b *fake) {
			o.BatchBytes, o.Linger = 1<<10, time.Hour
			p := newProducer(t, b.client(t), o)
			warm(t, p)
			b.net.Stall(fakeAddr, true)
			p.mu.Lock()
			p.topics["t"].sticky = sticky{begun: true}
			p.mu.Unlock()
			for range records {
				if err := p.ProduceAsync(t.Context(), Record{Topic: "t", Value: make([]byte, 400)}, nil); err != nil {
					t.Fatal(err)
				}
			}
			synctest.Wait()
			p.mu.Lock()
			var got []int
			for _, l := range p.topics["t"].lanes {
				got = append(got, len(l.batches))
			}
			p.mu.Unlock()
			if !slices.Equal(got, want) {
				t.Errorf("batches in the partitions: %v, want %v", got, want)
			}
			b.net.Stall(fakeAddr, false)
			if err := p.Flush(t.Context()); err != nil {
				t.Fatal(err)
			}
		})
	}

	f(ProducerOptions{}, 2, 1, 0, 0, 0)
	f(ProducerOptions{}, 4, 2, 0, 0, 0)
	f(ProducerOptions{}, 8, 4, 0, 0, 0)
	f(ProducerOptions{}, 9, 4, 1, 0, 0)
	f(ProducerOptions{}, 17, 4, 4, 1, 0)
	f(ProducerOptions{BufferBytes: 6 << 10}, 5, 2, 1, 0, 0) // 1.5 KiB are the share of each
	f(ProducerOptions{NotIdempotent: true}, 5, 1, 1, 1, 0)
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
