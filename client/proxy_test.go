package client_test

import (
	"encoding/binary"
	"errors"
	"flag"
	"log/slog"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/teralog/teralog/broker"
	"github.com/teralog/teralog/client"
	"github.com/teralog/teralog/wire"
)

// A proxy stands between client and broker on real sockets. Each connection
// through it lives for a random number of bytes in each direction and then
// ends badly: reset with half a frame delivered, or with answers swallowed
// although the broker has done what was asked.
type proxy struct {
	ln     net.Listener
	target string
	conns  sync.WaitGroup

	mu     sync.Mutex
	rand   *rand.Rand
	mean   int
	open   map[net.Conn]struct{}
	closed bool
	ends   [3]int // resets on the way up, on the way down, swallowed answers
}

func newProxy(t *testing.T, seed uint64, mean int) *proxy {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return &proxy{ln: ln, rand: rand.New(rand.NewPCG(seed, 0)), mean: mean, open: map[net.Conn]struct{}{}}
}

func (p *proxy) run() {
	for {
		near, err := p.ln.Accept()
		if err != nil {
			return
		}
		far, err := net.Dial("tcp", p.target)
		if err != nil {
			near.Close()
			continue
		}
		p.mu.Lock()
		up, down, swallow := p.rand.IntN(2*p.mean), p.rand.IntN(2*p.mean), p.rand.IntN(3) == 0
		p.open[near], p.open[far] = struct{}{}, struct{}{}
		if p.closed {
			near.Close()
			far.Close()
		}
		p.mu.Unlock()
		end := sync.OnceFunc(func() { p.end(near, far) })
		p.conns.Go(func() { p.pass(far, near, up, 0, false); end() })
		p.conns.Go(func() { p.pass(near, far, down, 1, swallow); end() })
	}
}

// pass copies budget bytes from one side to the other.
func (p *proxy) pass(to, from net.Conn, budget, way int, swallow bool) {
	buf := make([]byte, 64<<10)
	for budget > 0 {
		n, err := from.Read(buf[:min(budget, len(buf))])
		if err != nil {
			return
		}
		budget -= n
		if _, err := to.Write(buf[:n]); err != nil {
			return
		}
	}
	if swallow {
		way = 2
		from.SetReadDeadline(time.Now().Add(20 * time.Millisecond)) // time for the broker to do what it was asked
		for {
			if _, err := from.Read(buf); err != nil {
				break
			}
		}
	}
	p.mu.Lock()
	p.ends[way]++
	p.mu.Unlock()
}

// end resets both sides.
func (p *proxy) end(near, far net.Conn) {
	for _, c := range []net.Conn{near, far} {
		c.(*net.TCPConn).SetLinger(0)
		c.Close()
	}
	p.mu.Lock()
	delete(p.open, near)
	delete(p.open, far)
	p.mu.Unlock()
}

func (p *proxy) close() {
	p.ln.Close()
	p.mu.Lock()
	p.closed = true
	for c := range p.open {
		c.Close()
	}
	p.mu.Unlock()
	p.conns.Wait()
}

// TestProxy sends counters to a real broker on the real disk through the
// proxy and reads them back through it: each is there once, in order, at the
// offset it was acknowledged with.
func TestProxy(t *testing.T) {
	total := 100_000
	if flag.Lookup("long").Value.(flag.Getter).Get().(bool) {
		total = 1_000_000
	}
	const parts = 4
	px := newProxy(t, 5, 100<<10)
	env, err := broker.NewEnv(slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	conf := broker.DefaultConfig()
	conf.DataDirs, conf.Reserve, conf.Advertise = []string{t.TempDir()}, 0, px.ln.Addr().String()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer runBrokerOn(conf, env, ln)()
	px.target = ln.Addr().String()
	go px.run()
	defer px.close()

	ctx := t.Context()
	c := dial(t, client.Options{Servers: []string{px.ln.Addr().String()}, BackoffMin: time.Millisecond, BackoffMax: 10 * time.Millisecond})
	if _, err := c.CreateTopic(ctx, client.TopicSpec{Name: "t", Partitions: parts}); err != nil {
		t.Fatal(err)
	}
	p, err := c.NewProducer(client.ProducerOptions{BatchBytes: 8 << 10})
	if err != nil {
		t.Fatal(err)
	}
	var bad atomic.Value
	var acked [parts]uint64 // callbacks come one at a time
	for i := range total {
		r := client.Record{Topic: "t", Pinned: true, Partition: int32(i % parts), Value: binary.LittleEndian.AppendUint64(make([]byte, 0, 48), uint64(i/parts))}
		err := p.ProduceAsync(ctx, r, func(a client.Ack, err error) {
			switch {
			case err != nil:
				bad.CompareAndSwap(nil, err)
			case a.Offset != wire.Offset(acked[a.Partition]):
				bad.CompareAndSwap(nil, errors.New("acknowledged at another offset"))
			}
			acked[a.Partition]++
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := p.Flush(ctx); err != nil {
		t.Fatal(err)
	}
	if err := bad.Load(); err != nil {
		t.Fatal(err)
	}

	x, err := c.NewConsumer(client.ConsumerOptions{PartitionBytes: 16 << 10})
	if err != nil {
		t.Fatal(err)
	}
	if err := x.AssignTopic(ctx, "t", client.Range{To: client.End()}); err != nil {
		t.Fatal(err)
	}
	var next [parts]uint64
	for {
		ms, err := x.Poll(ctx)
		if err == client.ErrEnd {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range ms {
			if v := binary.LittleEndian.Uint64(m.Value); v != next[m.Partition] || uint64(m.Offset) != v {
				t.Fatalf("partition %d: offset %d holds %d, want %d", m.Partition, m.Offset, v, next[m.Partition])
			}
			next[m.Partition]++
		}
	}
	for part, n := range next {
		if n != uint64(total/parts) || acked[part] != n {
			t.Fatalf("partition %d: %d records, %d acknowledged, want %d", part, n, acked[part], total/parts)
		}
	}
	px.mu.Lock()
	defer px.mu.Unlock()
	t.Logf("resets on the way up %d, down %d, swallowed answers %d", px.ends[0], px.ends[1], px.ends[2])
	if px.ends[0] == 0 || px.ends[1]+px.ends[2] == 0 {
		t.Fatal("the proxy did no harm")
	}
}
