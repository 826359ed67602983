package client

import (
	"context"
	"errors"
	"fmt"
	"net"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/teralog/teralog/wire"
)

// TestOutcome: a record is failed only if every attempt was definite.
func TestOutcome(t *testing.T) {
	f := func(o ProducerOptions, wantErr error, inDoubt bool, wantLog int, codes ...wire.Code) {
		t.Helper()
		bubble(t, map[string]int{"t": 1}, func(t *testing.T, b *fake) {
			b.onProduce = func(wire.Batch) (wire.Code, bool) {
				code := codes[0]
				if len(codes) > 1 {
					codes = codes[1:]
				}
				return code, code == wire.CodeOK
			}
			o.DeliveryTimeout = 10 * time.Second
			_, err := newProducer(t, b.client(t), o).Produce(t.Context(), Record{Topic: "t", Value: counter(0)})
			if !errors.Is(err, wantErr) || errors.Is(err, ErrIndefinite) != inDoubt {
				t.Fatalf("got %v, want %v, in doubt %v", err, wantErr, inDoubt)
			}
			if got := len(b.counters("t", 0)); got != wantLog {
				t.Fatalf("%d records in the log, want %d", got, wantLog)
			}
		})
	}

	var o ProducerOptions
	f(o, nil, false, 1, wire.CodeOK)
	f(o, nil, false, 1, wire.CodeBusy, wire.CodeNotLeader, wire.CodeCorruptBatch, wire.CodeOK)
	f(o, nil, false, 1, wire.CodeTimeout, wire.CodeOK)
	f(o, wire.CodeInvalidBatch, false, 0, wire.CodeInvalidBatch)
	f(o, wire.CodeInvalidBatch, false, 0, wire.CodeBusy, wire.CodeInvalidBatch)
	f(o, wire.CodeInvalidBatch, true, 0, wire.CodeTimeout, wire.CodeInvalidBatch) // the first attempt may have been written
	f(o, wire.CodeInternal, true, 0, wire.CodeInternal)
	f(o, ErrTimeout, false, 0, wire.CodeDiskFull)                       // again and again, until time is over
	f(o, wire.CodeDiskFull, false, 0, wire.CodeDiskFull)                // with the reason
	f(o, ErrTimeout, true, 0, wire.CodeStorageError, wire.CodeDiskFull) // one of many
	f(o, wire.Code(999), true, 0, wire.Code(999))
	f(ProducerOptions{NotIdempotent: true}, nil, false, 1, wire.CodeTimeout, wire.CodeOK)
	f(ProducerOptions{Acks: AcksLeader, Linger: time.Millisecond}, nil, false, 1, wire.CodeNotLeader, wire.CodeOK)
}

// TestRetryAfter: the broker's wish is observed.
func TestRetryAfter(t *testing.T) {
	bubble(t, map[string]int{"t": 1}, func(t *testing.T, b *fake) {
		b.intercept(func(c *wire.Call) bool {
			if c.API != wire.APIProduce {
				return false
			}
			b.intercept(nil)
			c.Reply(&wire.ProduceResponse{Results: []wire.ProduceResult{{Code: wire.CodeBusy, RetryAfterMillis: 7000}}})
			return true
		})
		p := newProducer(t, b.client(t), ProducerOptions{})
		start := time.Now()
		if _, err := p.Produce(t.Context(), Record{Topic: "t"}); err != nil {
			t.Fatal(err)
		}
		if d := time.Since(start); d < 7*time.Second {
			t.Fatalf("came again after %v", d)
		}
	})
}

// TestForgottenProducer: the broker forgets a producer between
// batches; nothing is lost and nothing is there twice.
func TestForgottenProducer(t *testing.T) {
	bubble(t, map[string]int{"t": 1}, func(t *testing.T, b *fake) {
		p := newProducer(t, b.client(t), ProducerOptions{})
		for i := range 30 {
			if i%10 == 5 {
				b.mu.Lock()
				clear(b.topics["t"].parts[0].producers)
				b.mu.Unlock()
			}
			if ack, err := p.Produce(t.Context(), Record{Topic: "t", Value: counter(uint64(i))}); err != nil || ack.Offset != wire.Offset(i) {
				t.Fatal(i, ack, err)
			}
		}
		wantCounters(t, b.counters("t", 0), 30)
		if b.count(wire.APIInitProducer) != 4 {
			t.Fatalf("%d producer ids for 1 start and 3 losses", b.count(wire.APIInitProducer))
		}
	})
}

// TestFirstRefused: the first batch of a new partition is refused
// while later ones are on their way; they wait for it.
func TestFirstRefused(t *testing.T) {
	bubble(t, map[string]int{"t": 1}, func(t *testing.T, b *fake) {
		start := time.Now()
		b.onProduce = func(wire.Batch) (wire.Code, bool) {
			if time.Since(start) < 200*time.Millisecond {
				return wire.CodeNotLeader, false
			}
			return wire.CodeOK, true
		}
		p := newProducer(t, b.client(t), ProducerOptions{BatchBytes: 1024})
		for i := range 220 {
			if err := p.ProduceAsync(t.Context(), Record{Topic: "t", Value: counter(uint64(i))}, nil); err != nil {
				t.Fatal(err)
			}
		}
		if err := p.Flush(t.Context()); err != nil {
			t.Fatal(err)
		}
		wantCounters(t, b.counters("t", 0), 220)
	})
}

// TestRecreated: a topic is deleted and its name used again under
// a producer and a consumer that know the old one.
func TestRecreated(t *testing.T) {
	bubble(t, map[string]int{"t": 1}, func(t *testing.T, b *fake) {
		c := b.client(t)
		p := newProducer(t, c, ProducerOptions{})
		x := newConsumer(t, c, ConsumerOptions{})
		for i := range 3 {
			if _, err := p.Produce(t.Context(), Record{Topic: "t", Value: counter(uint64(i))}); err != nil {
				t.Fatal(err)
			}
		}
		if err := x.Assign(t.Context(), "t", 0, Range{}); err != nil {
			t.Fatal(err)
		}
		if ms, err := x.Poll(t.Context()); err != nil || len(ms) != 3 {
			t.Fatal(len(ms), err)
		}
		b.delete(b.topics["t"].id)
		b.create("t", 1)

		_, err := p.Produce(t.Context(), Record{Topic: "t", Value: counter(9)})
		if !errors.Is(err, wire.CodeTopicRecreated) || errors.Is(err, ErrIndefinite) {
			t.Fatalf("for the old topic: %v", err)
		}
		synctest.Wait()
		for i := range 5 {
			if _, err := p.Produce(t.Context(), Record{Topic: "t", Value: counter(uint64(i))}); err != nil {
				t.Fatal(err)
			}
		}
		wantCounters(t, b.counters("t", 0), 5)

		var fe *FetchError
		if ms, err := x.Poll(t.Context()); !errors.As(err, &fe) || !errors.Is(err, wire.CodeTopicRecreated) || fe.Offset != 3 {
			t.Fatalf("old offsets applied to the new topic: %d records, %v", len(ms), err)
		}
		if err := x.Seek(t.Context(), "t", 0, Start()); !errors.Is(err, wire.CodeTopicRecreated) {
			t.Fatalf("seek in the old topic: %v", err)
		}
		if err := x.Assign(t.Context(), "t", 0, Range{}); err != nil {
			t.Fatal(err)
		}
		if ms, err := x.Poll(t.Context()); err != nil || len(ms) != 5 {
			t.Fatal(len(ms), err)
		}
	})
}

// TestAcksNone: no answer is waited for, order is kept.
func TestAcksNone(t *testing.T) {
	bubble(t, map[string]int{"t": 1}, func(t *testing.T, b *fake) {
		p := newProducer(t, b.client(t), ProducerOptions{Acks: AcksNone, BatchBytes: 1024})
		for i := range 500 {
			if err := p.ProduceAsync(t.Context(), Record{Topic: "t", Value: counter(uint64(i))}, func(a Ack, err error) {
				if a.Offset != -1 || err != nil {
					t.Errorf("%v, %v", a, err)
				}
			}); err != nil {
				t.Fatal(err)
			}
		}
		if ack, err := p.Produce(t.Context(), Record{Topic: "t", Value: counter(500)}); ack.Offset != -1 || err != nil {
			t.Fatal(ack, err)
		}
		synctest.Wait()
		wantCounters(t, b.counters("t", 0), 501)
		if b.count(wire.APIInitProducer) != 0 {
			t.Fatal("idempotent without acknowledgements")
		}
	})
}

// TestBufferBound: what does not fit waits, or is refused at once.
func TestBufferBound(t *testing.T) {
	bubble(t, map[string]int{"t": 1}, func(t *testing.T, b *fake) {
		b.net.Stall(fakeAddr, false)
		p := newProducer(t, b.client(t), ProducerOptions{BufferBytes: 10_000})
		if _, err := p.Produce(t.Context(), Record{Topic: "t", Value: counter(0)}); err != nil {
			t.Fatal(err)
		}
		b.net.Stall(fakeAddr, true)
		r := Record{Topic: "t", Value: make([]byte, 968)} // 1000 with what is charged beside
		for i := range 10 {
			if err := p.TryProduce(t.Context(), r, nil); err != nil {
				t.Fatal(i, err)
			}
		}
		if err := p.TryProduce(t.Context(), r, nil); err != ErrBufferFull {
			t.Fatal(err)
		}
		if n, err := p.TryProduceAll(t.Context(), []Record{r, r}, nil); n != 0 || err != ErrBufferFull {
			t.Fatal(n, err)
		}
		if p.Buffered() != 10_000 {
			t.Fatal(p.Buffered())
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		if err := p.ProduceAsync(ctx, r, nil); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatal(err)
		}
		cancel()
		if err := p.TryProduce(t.Context(), Record{Topic: "t", Value: make([]byte, 10_000)}, nil); !errors.Is(err, wire.CodeTooLarge) {
			t.Fatal(err)
		}
		time.AfterFunc(time.Second, func() { b.net.Stall(fakeAddr, false) })
		if err := p.ProduceAsync(t.Context(), r, nil); err != nil {
			t.Fatal(err)
		}
		if err := p.Flush(t.Context()); err != nil || p.Buffered() != 0 {
			t.Fatal(err, p.Buffered())
		}
	})
}

// TestProduceCancelled: the caller leaves, the record does not.
func TestProduceCancelled(t *testing.T) {
	bubble(t, map[string]int{"t": 1}, func(t *testing.T, b *fake) {
		p := newProducer(t, b.client(t), ProducerOptions{})
		if _, err := p.Produce(t.Context(), Record{Topic: "t", Value: counter(0)}); err != nil {
			t.Fatal(err)
		}
		b.net.Stall(fakeAddr, true)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := p.Produce(ctx, Record{Topic: "t", Value: counter(1)})
		if !errors.Is(err, ErrIndefinite) || !errors.Is(err, context.DeadlineExceeded) {
			t.Fatal(err)
		}
		b.net.Stall(fakeAddr, false)
		if _, err := p.Produce(t.Context(), Record{Topic: "t", Value: counter(2)}); err != nil {
			t.Fatal(err)
		}
		wantCounters(t, b.counters("t", 0), 3)
	})
}

// TestClose: callbacks are called, with what is known.
func TestClose(t *testing.T) {
	bubble(t, map[string]int{"t": 2}, func(t *testing.T, b *fake) {
		p := newProducer(t, b.client(t), ProducerOptions{BatchBytes: 1024})
		if _, err := p.Produce(t.Context(), Record{Topic: "t"}); err != nil {
			t.Fatal(err)
		}
		b.net.Stall(fakeAddr, true)
		var calls, doubt int
		for range 200 {
			if err := p.ProduceAsync(t.Context(), Record{Topic: "t", Value: make([]byte, 50)}, func(_ Ack, err error) {
				calls++
				if errors.Is(err, ErrIndefinite) {
					doubt++
				} else if !errors.Is(err, ErrClosed) {
					t.Errorf("neither sent nor closed: %v", err)
				}
			}); err != nil {
				t.Fatal(err)
			}
		}
		synctest.Wait()
		p.Close()
		if calls != 200 || doubt == 0 || doubt == 200 {
			t.Fatalf("%d callbacks, %d in doubt", calls, doubt)
		}
		if _, err := p.Produce(t.Context(), Record{Topic: "t"}); err != ErrClosed {
			t.Fatal(err)
		}
		p.Close()
	})
}

// TestCloseMidway closes clients at any moment of their work; that the bubble
// ends shows that nothing is left behind.
func TestCloseMidway(t *testing.T) {
	for d := range 40 {
		bubble(t, map[string]int{"t": 2}, func(t *testing.T, b *fake) {
			b.net.SetDelay(time.Millisecond)
			c := b.client(t)
			p, x := newProducer(t, c, ProducerOptions{}), newConsumer(t, c, ConsumerOptions{})
			var all sync.WaitGroup
			all.Go(func() {
				for p.ProduceAsync(t.Context(), Record{Topic: "t", Value: make([]byte, 100_000)}, nil) == nil {
				}
			})
			all.Go(func() {
				for {
					if _, err := p.Produce(t.Context(), Record{Topic: "t"}); errors.Is(err, ErrClosed) {
						return
					}
				}
			})
			all.Go(func() {
				if x.AssignTopic(t.Context(), "t", Range{}) != nil {
					return
				}
				for {
					if _, err := x.Poll(t.Context()); err == ErrClosed {
						return
					}
				}
			})
			time.Sleep(time.Duration(d) * 500 * time.Microsecond)
			c.Close()
			all.Wait()
		})
	}
}

// TestBatching: natural batching grows with what waits; linger waits for more.
func TestBatching(t *testing.T) {
	f := func(o ProducerOptions, gap time.Duration, most int) {
		t.Helper()
		bubble(t, map[string]int{"t": 1}, func(t *testing.T, b *fake) {
			b.net.SetDelay(10 * time.Millisecond)
			p := newProducer(t, b.client(t), o)
			if _, err := p.Produce(t.Context(), Record{Topic: "t"}); err != nil {
				t.Fatal(err)
			}
			for range 1000 {
				p.ProduceAsync(t.Context(), Record{Topic: "t", Value: counter(0)}, nil)
				time.Sleep(gap)
			}
			if err := p.Flush(t.Context()); err != nil {
				t.Fatal(err)
			}
			if n := b.count(wire.APIProduce) - 1; n > most {
				t.Fatalf("%d requests for 1000 records, want at most %d", n, most)
			}
		})
	}

	f(ProducerOptions{}, 0, 7)                                                                     // five at once, then the rest
	f(ProducerOptions{}, 100*time.Microsecond, 30)                                                 // a tenth of a second, 20 ms a round
	f(ProducerOptions{InFlight: 1}, 100*time.Microsecond, 7)                                       // one round after the other
	f(ProducerOptions{Linger: 30 * time.Millisecond}, 100*time.Microsecond, 5)                     // the time divided by linger
	f(ProducerOptions{Linger: 30 * time.Millisecond, BatchBytes: 1 << 20}, 0, 1)                   // Flush does not linger
	f(ProducerOptions{Linger: 30 * time.Millisecond, BatchBytes: 2 << 10}, 0, 1+1000*17/(2<<10)+1) // full batches go at once
}

// TestProduceAll: what is given together goes in order, as far as it goes.
func TestProduceAll(t *testing.T) {
	bubble(t, map[string]int{"t": 3, "u": 1}, func(t *testing.T, b *fake) {
		p := newProducer(t, b.client(t), ProducerOptions{BufferBytes: 10_000, BatchBytes: 1 << 10})
		var told []string
		f := func(taken int, cause error, want string, rs ...Record) {
			t.Helper()
			told = nil
			n, err := p.ProduceAll(t.Context(), rs, func(from, to int, a Ack, err error) {
				told = append(told, fmt.Sprintf("%d-%d:%s/%d@%d%v", from, to, a.Topic, a.Partition, a.Offset, err))
			})
			if n != taken || !errors.Is(err, cause) {
				t.Fatalf("%d taken, %v; want %d, %v", n, err, taken, cause)
			}
			if err := p.Flush(t.Context()); err != nil {
				t.Fatal(err)
			}
			slices.Sort(told)
			if got := strings.ReplaceAll(strings.Join(told, " "), "<nil>", ""); got != want {
				t.Fatalf("told %q, want %q", got, want)
			}
		}
		at := func(topic string, part int32, size int) Record {
			return Record{Topic: topic, Partition: part, Pinned: true, Value: make([]byte, size)}
		}

		f(0, nil, "")
		f(3, nil, "0-3:u/0@0", at("u", 0, 1), at("u", 0, 1), at("u", 0, 1))
		f(4, nil, "0-1:t/1@0 1-3:t/2@0 3-4:t/1@1", at("t", 1, 1), at("t", 2, 1), at("t", 2, 1), at("t", 1, 1))
		f(3, nil, "0-1:u/0@3 1-2:t/0@0 2-3:u/0@4", at("u", 0, 1), at("t", 0, 1), at("u", 0, 1))
		f(4, nil, "0-1:u/0@5 1-2:u/0@6 2-3:u/0@7 3-4:u/0@8", at("u", 0, 600), at("u", 0, 600), at("u", 0, 2000), at("u", 0, 600)) // each fills a batch
		f(1, wire.CodeUnknownPartition, "0-1:u/0@9", at("u", 0, 1), at("u", 1, 1), at("u", 0, 1))
		f(1, wire.CodeTooLarge, "0-1:u/0@10", at("u", 0, 1), at("u", 0, 10_000), at("u", 0, 1))
		f(2, wire.CodeUnknownTopic, "0-2:u/0@11", at("u", 0, 1), at("u", 0, 1), at("none", 0, 1))

		// More than the buffer holds goes as room comes free.
		var all []Record
		for range 100 {
			all = append(all, at("u", 0, 468)) // 500 with what is charged beside
		}
		b.net.Stall(fakeAddr, true)
		if n, err := p.TryProduceAll(t.Context(), all, nil); n != 20 || err != ErrBufferFull {
			t.Fatal(n, err)
		}
		time.AfterFunc(time.Second, func() { b.net.Stall(fakeAddr, false) })
		if n, err := p.ProduceAll(t.Context(), all[20:], nil); n != 80 || err != nil {
			t.Fatal(n, err)
		}
		if err := p.Flush(t.Context()); err != nil {
			t.Fatal(err)
		}
		if ack, err := p.Produce(t.Context(), at("u", 0, 1)); err != nil || ack.Offset != 113 {
			t.Fatal(ack, err)
		}
	})
}

// TestProduceAllTimes: records given together keep each its own time, or have that of
// the call.
func TestProduceAllTimes(t *testing.T) {
	bubble(t, map[string]int{"t": 1}, func(t *testing.T, b *fake) {
		p := newProducer(t, b.client(t), ProducerOptions{})
		now := time.Now().UnixMilli()
		var rs []Record
		var want []int64
		for _, ms := range []int64{0, 0, 7, 7, 8, 0, 7, -1, -1, 0} {
			r := *pinned(0, 1)
			if ms != 0 {
				r.Time = time.UnixMilli(ms)
			} else {
				ms = now
			}
			rs, want = append(rs, r), append(want, ms)
		}
		if n, err := p.ProduceAll(t.Context(), rs, nil); n != len(rs) || err != nil {
			t.Fatal(n, err)
		}
		if err := p.Flush(t.Context()); err != nil {
			t.Fatal(err)
		}
		var got []int64
		b.mu.Lock()
		b.topics["t"].parts[0].each(func(_ wire.Batch, r *wire.Record) { got = append(got, r.Time) })
		b.mu.Unlock()
		if !slices.Equal(got, want) {
			t.Errorf("times %d, want %d", got, want)
		}
	})
}

// TestProduceAllRoom: records given together stop at the one for which there is no
// room, wherever in a batch that is.
func TestProduceAllRoom(t *testing.T) {
	const size = 68
	cost := cost(pinned(0, size))
	rs := make([]Record, 100)
	for i := range rs {
		rs[i] = *pinned(0, size)
	}
	for room := 1; room <= 40; room++ {
		bubble(t, map[string]int{"t": 1}, func(t *testing.T, b *fake) {
			p := newProducer(t, b.client(t), ProducerOptions{BufferBytes: int64(room+1)*cost - 1, BatchBytes: 1 << 10})
			if _, err := p.Produce(t.Context(), rs[0]); err != nil { // the topic is known from then on
				t.Fatal(err)
			}
			if err := p.Flush(t.Context()); err != nil { // what it took of the room is free, too
				t.Fatal(err)
			}
			b.net.Stall(fakeAddr, true)
			defer b.net.Stall(fakeAddr, false)
			if n, err := p.TryProduceAll(t.Context(), rs, nil); n != room || err != ErrBufferFull || p.Buffered() != int64(room)*cost {
				t.Errorf("room for %d: took %d, %d bytes, %v", room, n, p.Buffered(), err)
			}
		})
	}
}

// A spy notes on whose stack bytes are written and read.
type spy struct {
	wire.Dialer
	mu     sync.Mutex
	stacks []string
}

func (s *spy) DialContext(ctx context.Context, network, addr string) (net.Conn, error) {
	c, err := s.Dialer.DialContext(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	return &spyConn{c, s}, nil
}

type spyConn struct {
	net.Conn
	s *spy
}

func (c *spyConn) note() {
	buf := make([]byte, 16<<10)
	buf = buf[:runtime.Stack(buf, false)]
	c.s.mu.Lock()
	c.s.stacks = append(c.s.stacks, string(buf))
	c.s.mu.Unlock()
}

func (c *spyConn) Read(p []byte) (int, error)  { c.note(); return c.Conn.Read(p) }
func (c *spyConn) Write(p []byte) (int, error) { c.note(); return c.Conn.Write(p) }
func (c *spyConn) TryWrite(p []byte) (int, error) {
	c.note()
	return c.Conn.(interface{ TryWrite([]byte) (int, error) }).TryWrite(p)
}

// TestProduceWithoutHop: with nothing else in flight, request and answer pass
// on the caller's goroutine.
func TestProduceWithoutHop(t *testing.T) {
	bubble(t, map[string]int{"t": 1}, func(t *testing.T, b *fake) {
		s := &spy{Dialer: b.net}
		p := newProducer(t, b.client(t, func(o *Options) { o.Dialer = s }), ProducerOptions{})
		for i := range 10 {
			if _, err := p.Produce(t.Context(), Record{Topic: "t"}); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			s.mu.Lock()
			for _, stack := range s.stacks {
				if i > 0 && !strings.Contains(stack, "(*Producer).Produce") {
					t.Fatalf("record %d went by another goroutine:\n%s", i, stack)
				}
			}
			if i > 0 && len(s.stacks) < 2 {
				t.Fatalf("%d reads and writes seen", len(s.stacks))
			}
			s.stacks = nil
			s.mu.Unlock()
		}
	})
}

// TestLeaderMoves: the leader known first is gone; metadata names another.
func TestLeaderMoves(t *testing.T) {
	bubble(t, map[string]int{"t": 1}, func(t *testing.T, b *fake) {
		b.nodes = append(b.nodes, wire.NodeAddr{ID: 2, Addr: "gone:1"})
		b.leader = 2
		time.AfterFunc(3*time.Second, func() { b.mu.Lock(); b.leader = wire.NoNode; b.mu.Unlock() })
		time.AfterFunc(6*time.Second, func() { b.mu.Lock(); b.leader = 1; b.mu.Unlock() })
		c := b.client(t)
		p := newProducer(t, c, ProducerOptions{})
		for i := range 5 {
			if err := p.ProduceAsync(t.Context(), Record{Topic: "t", Value: counter(uint64(i))}, nil); err != nil {
				t.Fatal(err)
			}
		}
		if err := p.Flush(t.Context()); err != nil {
			t.Fatal(err)
		}
		wantCounters(t, b.counters("t", 0), 5)
		if n := b.count(wire.APIMetadata); n > 500 {
			t.Fatalf("metadata asked %d times in 6 s", n)
		}
		x := newConsumer(t, c, ConsumerOptions{})
		if err := x.Assign(t.Context(), "t", 0, Range{To: End()}); err != nil {
			t.Fatal(err)
		}
		readBack(t, x, []int{5})
	})
}

// TestProduceFromCallback: a callback may give further records with
// TryProduce, and callbacks of a partition come in the order of its records.
func TestProduceFromCallback(t *testing.T) {
	bubble(t, map[string]int{"t": 1}, func(t *testing.T, b *fake) {
		p := newProducer(t, b.client(t), ProducerOptions{BatchBytes: 1024})
		var acked []wire.Offset
		var told atomic.Int32 // len(acked), for who waits
		next := uint64(50)
		done := func(a Ack, err error) {
			if err != nil {
				t.Error(err)
			}
			acked = append(acked, a.Offset)
			told.Add(1)
		}
		more := func(a Ack, err error) {
			done(a, err)
			if err := p.TryProduce(t.Context(), Record{Topic: "t", Value: counter(next)}, done); err != nil {
				t.Error(err)
			}
			next++
		}
		for i := range uint64(50) {
			if err := p.ProduceAsync(t.Context(), Record{Topic: "t", Value: counter(i)}, more); err != nil {
				t.Fatal(err)
			}
		}
		for told.Load() < 100 {
			if err := p.Flush(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		all := b.counters("t", 0)
		slices.Sort(all) // the two kinds may have come in any order
		wantCounters(t, all, 100)
		if !slices.Equal(acked, upTo(0, 100)) {
			t.Fatal(acked)
		}
	})
}
