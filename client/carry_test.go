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
			if next := k.launched(true); next != nil {
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

// TestDirectLaunches: neither does anybody overtake a Produce that is about to send
// its request, nor it them, and what came meanwhile goes behind it.
func TestDirectLaunches(t *testing.T) {
	bubble(t, map[string]int{"t": 2}, func(t *testing.T, b *fake) {
		p := newProducer(t, b.client(t), ProducerOptions{})
		warm(t, p)
		f, alone, err := p.accept(t.Context(), pinned(0, 1), nil, acceptDirect)
		if err != nil || !alone {
			t.Fatal(f, alone, err)
		}
		acked := 0
		if err := p.ProduceAsync(t.Context(), *pinned(0, 1), func(Ack, error) { acked++ }); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		if n := b.count(wire.APIProduce); n != 1 {
			t.Errorf("%d requests overtook one", n-1)
		}
		f.direct(t.Context())
		time.Sleep(time.Second)
		synctest.Wait()
		if n := b.count(wire.APIProduce); n != 3 || acked != 1 {
			t.Errorf("%d requests were sent, want 3; %d records acknowledged", n, acked)
		}

		p.mu.Lock()
		k := p.topics["t"].lanes[0].link
		k.launching = true
		p.mu.Unlock()
		if _, alone, err = p.accept(t.Context(), pinned(0, 1), nil, acceptDirect); err != nil || alone {
			t.Errorf("overtakes a request being launched: %v, %v", alone, err)
		}
		k.launched(false)
		if err := p.Flush(t.Context()); err != nil {
			t.Fatal(err)
		}
	})
}

// TestCarryEnds: who has carried enough leaves what is due to the goroutine.
func TestCarryEnds(t *testing.T) {
	f := func(more bool) {
		t.Helper()
		bubble(t, map[string]int{"t": 2}, func(t *testing.T, b *fake) {
			p := newProducer(t, b.client(t), ProducerOptions{BatchBytes: 1 << 10, BufferBytes: 8 << 10, Linger: time.Hour})
			warm(t, p)
			f := claimed(t, p, nil)
			k := f.link
			f.launch()
			for range 5 { // much has come meanwhile
				if err := p.ProduceAsync(t.Context(), *pinned(0, 600), nil); err != nil {
					t.Fatal(err)
				}
			}
			synctest.Wait()
			next := k.launched(more)
			if (next != nil) != more {
				t.Fatalf("another request: %v, want %v", next != nil, more)
			}
			if next != nil {
				next.carry()
			}
			synctest.Wait()
			if n := b.count(wire.APIProduce); n != 3 {
				t.Errorf("%d requests were sent, want 3", n)
			}
		})
	}

	f(true)
	f(false)
}

// A busyDialer makes connections on which meanwhile runs before each write by who
// carries a request.
type busyDialer struct {
	wire.Dialer
	meanwhile func()
}

type busyConn struct {
	net.Conn
	d *busyDialer
}

func (d *busyDialer) DialContext(ctx context.Context, network, addr string) (net.Conn, error) {
	c, err := d.Dialer.DialContext(ctx, network, addr)
	return &busyConn{c, d}, err
}

func (c *busyConn) TryWrite(p []byte) (int, error) {
	if onStack("carry") {
		c.d.meanwhile()
	}
	return c.Conn.(interface{ TryWrite([]byte) (int, error) }).TryWrite(p)
}

// TestCarryBounded: others give records as fast as the carrier sends them, and
// the answers come as fast; he is let go nevertheless.
func TestCarryBounded(t *testing.T) {
	bubble(t, map[string]int{"t": 2}, func(t *testing.T, b *fake) {
		d := &busyDialer{Dialer: b.net}
		p := newProducer(t, b.client(t, func(o *Options) { o.Dialer = d }), ProducerOptions{BatchBytes: 1 << 10, Linger: time.Hour})
		warm(t, p)
		carried := 0
		d.meanwhile = func() {
			if carried++; carried > 3*maxInFlight {
				return
			}
			for range 3 {
				if err := p.TryProduce(t.Context(), *pinned(0, 600), nil); err != nil {
					t.Error(err)
				}
			}
			synctest.Wait()
		}
		claimed(t, p, nil).carry()
		if carried != maxInFlight {
			t.Errorf("%d requests were carried, want %d", carried, maxInFlight)
		}
		if err := p.Flush(t.Context()); err != nil {
			t.Fatal(err)
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
