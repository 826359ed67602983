package client

import (
	"errors"
	"flag"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/teralog/teralog/wire"
)

var long = flag.Bool("long", false, "run the long form of the fault tests")

// bubble runs f with a fake broker under fake time. That the bubble ends says
// that no goroutine is left.
func bubble(t *testing.T, topics map[string]int, f func(t *testing.T, b *fake)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		t.Cleanup(func() { time.Sleep(time.Minute) }) // runs last: what is about to end ends
		f(t, newFake(t, topics))
	})
}

func newProducer(t testing.TB, c *Client, o ProducerOptions) *Producer {
	t.Helper()
	p, err := c.NewProducer(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	return p
}

func newConsumer(t testing.TB, c *Client, o ConsumerOptions) *Consumer {
	t.Helper()
	x, err := c.NewConsumer(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { x.Close() })
	return x
}

func TestProduce(t *testing.T) {
	bubble(t, map[string]int{"t": 3}, func(t *testing.T, b *fake) {
		p := newProducer(t, b.client(t), ProducerOptions{})
		f := func(r Record, part int32, at wire.Offset) {
			t.Helper()
			r.Topic = "t"
			ack, err := p.Produce(t.Context(), r)
			if want := (Ack{"t", part, 1, at, 1000 + int64(at)}); err != nil || ack != want {
				t.Fatalf("got %v, %v; want %v", ack, err, want)
			}
		}

		f(Record{Key: []byte("k"), Value: []byte("1")}, PartitionOf([]byte("k"), 3), 0)
		f(Record{Key: []byte("k"), Value: []byte("2")}, PartitionOf([]byte("k"), 3), 1)
		other := (PartitionOf([]byte("k"), 3) + 1) % 3
		f(Record{Partition: other, Pinned: true}, other, 0)
		f(Record{Partition: other, Pinned: true, Value: make([]byte, 300<<10)}, other, 1) // larger than a batch

		_, err := p.Produce(t.Context(), Record{Topic: "t", Partition: 3, Pinned: true})
		if !errors.Is(err, wire.CodeUnknownPartition) || errors.Is(err, ErrIndefinite) {
			t.Fatalf("partition 3 of 3: %v", err)
		}
		if _, err = p.Produce(t.Context(), Record{Topic: "none"}); !errors.Is(err, wire.CodeUnknownTopic) {
			t.Fatalf("unknown topic: %v", err)
		}
	})
}

// TestIDArrivesWithARecord: the record that finds the producer id there before
// the housekeeping does has what was waiting for it sent. Nobody else would: the
// buffer may be full, so that no further record comes.
func TestIDArrivesWithARecord(t *testing.T) {
	bubble(t, map[string]int{"t": 1}, func(t *testing.T, b *fake) {
		var asked *wire.Call
		b.onCall = func(c *wire.Call) bool {
			if c.API == wire.APIInitProducer {
				asked = c
			}
			return c.API == wire.APIInitProducer
		}
		p := newProducer(t, b.client(t), ProducerOptions{})
		var acked atomic.Int32
		give := func() {
			t.Helper()
			err := p.ProduceAsync(t.Context(), Record{Topic: "t", Value: []byte("v")}, func(_ Ack, err error) {
				if err == nil {
					acked.Add(1)
				}
			})
			if err != nil {
				t.Fatal(err)
			}
		}
		give()
		synctest.Wait()
		p.mu.Lock()
		p.producer, p.epoch = 77, 0 // as supply does, before it tells anybody
		p.mu.Unlock()
		give()
		synctest.Wait()
		if n := acked.Load(); n != 2 {
			t.Errorf("%d of 2 records were sent", n)
		}
		asked.Reply(&wire.InitProducerResponse{Producer: 78})
	})
}

// TestProduceLossy sends counters through connections that are reset,
// half-deliver and swallow answers, to a broker that also refuses now and
// then, and expects each record once and in order, and each acknowledged
// offset to hold it; then reads them back through the same network.
func TestProduceLossy(t *testing.T) {
	total := 100_000
	if *long {
		total = 1_000_000
	}
	f := func(name string, inFlight, parts int, codec wire.Codec, acks Acks) {
		t.Run(name, func(t *testing.T) {
			bubble(t, map[string]int{"t": parts}, func(t *testing.T, b *fake) {
				produceLossy(t, b, total, parts, ProducerOptions{InFlight: inFlight, Codec: codec, Acks: acks, BatchBytes: 4 << 10})
			})
		})
	}

	f("one in flight", 1, 3, wire.None, AcksAll)
	f("five in flight", 5, 3, wire.None, AcksAll)
	f("one partition", 5, 1, wire.Snappy, AcksAll)
	f("leader only", 5, 7, wire.Gzip, AcksLeader)
}

func produceLossy(t *testing.T, b *fake, total, parts int, o ProducerOptions) {
	rnd := rand.New(rand.NewPCG(uint64(parts), uint64(o.InFlight)))
	net := &lossy{Dialer: b.net, rand: rnd, mean: 24 << 10}
	chance := rand.New(rand.NewPCG(7, 7)) // of the broker, used under its mutex
	codes := []wire.Code{wire.CodeNotLeader, wire.CodeBusy, wire.CodeTimeout, wire.CodeShuttingDown}
	b.onProduce = func(wire.Batch) (wire.Code, bool) {
		if chance.IntN(20) > 0 {
			return wire.CodeOK, true
		}
		code := codes[chance.IntN(len(codes))]
		return code, code == wire.CodeTimeout && chance.IntN(2) == 0
	}
	c := b.client(t, func(o *Options) { o.Dialer = net; o.RequestTimeout = 500 * time.Millisecond })
	o.DeliveryTimeout = time.Hour
	p := newProducer(t, c, o)

	offsets := make([][]wire.Offset, parts)
	sent := make([]int, parts)
	for i := range offsets {
		offsets[i] = make([]wire.Offset, 0, total)
	}
	var bad atomic.Pointer[error]
	told := func(n int, a Ack, err error) {
		if err != nil {
			bad.Store(&err)
			return
		}
		for i := range n { // one callback at a time
			offsets[a.Partition] = append(offsets[a.Partition], a.Offset+wire.Offset(i))
		}
	}
	how := rand.New(rand.NewPCG(uint64(total), uint64(parts)))
	for i := 0; i < total; {
		group := make([]Record, min(how.IntN(40), total-i))
		if len(group) == 0 {
			group = make([]Record, 1)
		}
		for k := range group {
			part := int32(i*7%parts+i%2) % int32(parts)
			if k > 0 && how.IntN(8) > 0 {
				part = group[k-1].Partition
			}
			group[k] = Record{Topic: "t", Partition: part, Pinned: true, Value: counter(uint64(sent[part]))}
			sent[part]++
			i++
		}
		var err error
		if len(group) == 1 {
			err = p.ProduceAsync(t.Context(), group[0], func(a Ack, err error) { told(1, a, err) })
		} else {
			_, err = p.ProduceAll(t.Context(), group, func(from, to int, a Ack, err error) { told(to-from, a, err) })
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := p.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := bad.Load(); err != nil {
		t.Fatal(*err)
	}
	for part := range parts {
		wantCounters(t, b.counters("t", part), sent[part])
		for i, o := range offsets[part] {
			if o != wire.Offset(i) {
				t.Fatalf("partition %d: record %d acknowledged at offset %d", part, i, o)
			}
		}
		if len(offsets[part]) != sent[part] {
			t.Fatalf("partition %d: %d of %d callbacks", part, len(offsets[part]), sent[part])
		}
	}
	x := newConsumer(t, c, ConsumerOptions{PartitionBytes: 2 << 10})
	if err := x.AssignTopic(t.Context(), "t", Range{To: End()}); err != nil {
		t.Fatal(err)
	}
	readBack(t, x, sent)
	t.Logf("ends by write, swallow, read: %v", net.ends)
	if net.ends[0] == 0 || net.ends[1] == 0 || net.ends[2] == 0 {
		t.Fatalf("some way of failing did not happen: %v", net.ends)
	}
}

// readBack reads until ErrEnd and expects n[p] counters of each partition p.
func readBack(t *testing.T, x *Consumer, n []int) {
	t.Helper()
	next := make([]uint64, len(n))
	for {
		ms, err := x.Poll(t.Context())
		if err == ErrEnd {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range ms {
			if v := m.Value; uint64(m.Offset) != next[m.Partition] || string(v) != string(counter(next[m.Partition])) {
				t.Fatalf("partition %d: offset %d holds %x, want %d", m.Partition, m.Offset, v, next[m.Partition])
			}
			next[m.Partition]++
		}
	}
	for part, want := range n {
		if next[part] != uint64(want) {
			t.Fatalf("partition %d: read %d records of %d", part, next[part], want)
		}
	}
}
