package client

import (
	"context"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/teralog/teralog/wire"
)

// sink is a broker over TCP that takes batches unseen, or serves the same
// fetch answer again and again: what is measured is the client and the
// transport.
type sink struct {
	ln  net.Listener
	srv *wire.Server

	mu     sync.Mutex
	stored []byte // whole batches, served again and again
}

func newSink(tb testing.TB) *sink {
	tb.Helper()
	s := &sink{}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	s.ln = ln
	s.srv = &wire.Server{Handler: s, Hello: func() wire.HelloResponse { return wire.HelloResponse{Node: 1} }}
	go s.srv.Serve(ln)
	tb.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		s.srv.Shutdown(ctx)
	})
	return s
}

func (s *sink) client(tb testing.TB) *Client {
	c, err := New(Options{Servers: []string{s.ln.Addr().String()}})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { c.Close() })
	return c
}

func (s *sink) ServeCall(c *wire.Call) {
	switch c.API {
	case wire.APIProduce:
		var m wire.ProduceRequest
		c.Decode(&m)
		c.Reply(&wire.ProduceResponse{Results: make([]wire.ProduceResult, len(m.Batches))})
	case wire.APIFetch:
		var m wire.FetchRequest
		c.Decode(&m)
		q := m.Partitions[0]
		s.mu.Lock()
		data := append([]byte(nil), s.stored...)
		s.mu.Unlock()
		at := q.Offset
		for b := range wire.Batches(data) {
			b.Stamp(at, 1, 1, false)
			at = b.NextOffset()
		}
		c.Reply(&wire.FetchResponse{Partitions: []wire.FetchResult{{Topic: q.Topic, Partition: q.Partition, Committed: at, Next: at,
			Bytes: uint32(len(data)), Data: data}}})
	case wire.APIMetadata:
		c.Reply(&wire.MetadataResponse{Nodes: []wire.NodeAddr{{ID: 1, Addr: s.ln.Addr().String()}}, Controller: 1,
			Topics: []wire.TopicMeta{{Name: "t", ID: 2000, Partitions: []wire.PartitionMeta{{Leader: 1}}}}})
	case wire.APIInitProducer:
		c.Reply(&wire.InitProducerResponse{Producer: 1})
	case wire.APIListOffsets:
		c.Reply(&wire.ListOffsetsResponse{Results: make([]wire.OffsetResult, 1)})
	}
}

func benchProduce(b *testing.B, o ProducerOptions, size int) {
	p := newProducer(b, newSink(b).client(b), o)
	r := Record{Topic: "t", Key: []byte("key-0001"), Value: make([]byte, size), Time: time.UnixMilli(1)}
	done := func(Ack, error) {}
	produce := func() {
		if err := p.ProduceAsync(b.Context(), r, done); err != nil {
			b.Fatal(err)
		}
	}
	for range 100_000 {
		produce()
	}
	p.Flush(b.Context())
	b.SetBytes(int64(size))
	b.ReportAllocs()
	b.ResetTimer()
	for range b.N {
		produce()
	}
	if err := p.Flush(b.Context()); err != nil {
		b.Fatal(err)
	}
}

func BenchmarkProduceAsync100B(b *testing.B) { benchProduce(b, ProducerOptions{}, 100) }
func BenchmarkProduceAsync1KiB(b *testing.B) { benchProduce(b, ProducerOptions{}, 1024) }
func BenchmarkProduceAsync100B1MiB(b *testing.B) {
	benchProduce(b, ProducerOptions{BatchBytes: 1 << 20}, 100)
}

func BenchmarkProduceSync100B(b *testing.B) {
	p := newProducer(b, newSink(b).client(b), ProducerOptions{})
	r := Record{Topic: "t", Value: make([]byte, 100), Time: time.UnixMilli(1)}
	b.ReportAllocs()
	for range b.N {
		if _, err := p.Produce(b.Context(), r); err != nil {
			b.Fatal(err)
		}
	}
}

// fill makes the sink serve n batches of so many records of 100 bytes.
func (s *sink) fill(tb testing.TB, n, records int, codec wire.Codec) {
	for range n {
		w := wire.NewBuilder(wire.BuilderOptions{Topic: 2000, Codec: codec})
		for i := range records {
			w.Add(int64(i), []byte("key-0001"), make([]byte, 100), nil)
		}
		buf, err := w.Build()
		if err != nil {
			tb.Fatal(err)
		}
		s.mu.Lock()
		s.stored = append(s.stored, buf.B...)
		s.mu.Unlock()
		buf.Release()
	}
}

func benchConsume(b *testing.B, codec wire.Codec) {
	s := newSink(b)
	s.fill(b, 8, 1000, codec)
	x := newConsumer(b, s.client(b), ConsumerOptions{})
	if err := x.Assign(b.Context(), "t", 0, Range{}); err != nil {
		b.Fatal(err)
	}
	b.SetBytes(100)
	b.ReportAllocs()
	for got := 0; got < b.N; {
		ms, err := x.Poll(b.Context())
		if err != nil {
			b.Fatal(err)
		}
		got += len(ms)
	}
}

func BenchmarkConsume100B(b *testing.B)       { benchConsume(b, wire.None) }
func BenchmarkConsume100BSnappy(b *testing.B) { benchConsume(b, wire.Snappy) }

// TestProduceAllocs pins what a record costs the warm asynchronous path: no
// allocation of its own, and few per batch.
func TestProduceAllocs(t *testing.T) {
	p := newProducer(t, newSink(t).client(t), ProducerOptions{})
	r := Record{Topic: "t", Key: []byte("key-0001"), Value: make([]byte, 100), Time: time.UnixMilli(1)}
	done := func(Ack, error) {}
	burst := func() {
		for range 20_000 {
			if err := p.ProduceAsync(t.Context(), r, done); err != nil {
				t.Fatal(err)
			}
		}
		if err := p.Flush(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	for range 5 {
		burst()
	}
	if n := testing.AllocsPerRun(5, burst); n > 1000 { // broker and transport included
		t.Fatalf("%.0f allocations for 20,000 records", n)
	}
}

// TestConsumeAllocs pins what Poll costs once warm: nothing per record, and
// little per fetch, broker and transport included.
func TestConsumeAllocs(t *testing.T) {
	s := newSink(t)
	s.fill(t, 8, 1000, wire.Snappy)
	x := newConsumer(t, s.client(t), ConsumerOptions{})
	if err := x.Assign(t.Context(), "t", 0, Range{}); err != nil {
		t.Fatal(err)
	}
	read := func() {
		for got := 0; got < 80_000; {
			ms, err := x.Poll(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			got += len(ms)
		}
	}
	read()
	if n := testing.AllocsPerRun(5, read); n > 1000 {
		t.Fatalf("%.0f allocations for 80,000 records in 10 fetches", n)
	}
}
