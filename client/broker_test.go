package client_test

import (
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/teralog/teralog/client"
	"github.com/teralog/teralog/storage"
	"github.com/teralog/teralog/wire"
)

func dial(t *testing.T, o client.Options) *client.Client {
	t.Helper()
	c, err := client.New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// TestAdmin goes through the admin calls against a real broker.
func TestAdmin(t *testing.T) {
	addr, stop := startBroker()
	defer stop()
	ctx, c := t.Context(), dial(t, client.Options{Servers: []string{addr}})

	spec := client.TopicSpec{Name: "t", Partitions: 2, ValidateOnly: true}
	if id, err := c.CreateTopic(ctx, spec); err != nil || id != 0 {
		t.Fatal(id, err)
	}
	spec.ValidateOnly = false
	id, err := c.CreateTopic(ctx, spec)
	if err != nil || id < wire.FirstUserTopic {
		t.Fatal(id, err)
	}
	if _, err := c.CreateTopic(ctx, spec); !errors.Is(err, wire.CodeTopicExists) {
		t.Fatal(err)
	}
	if _, err := c.CreateTopic(ctx, client.TopicSpec{Name: "a b"}); !errors.Is(err, wire.CodeInvalidName) {
		t.Fatal(err)
	}
	if n, err := c.Partitions(ctx, "t"); n != 2 || err != nil {
		t.Fatal(n, err)
	}
	if _, err := c.Partitions(ctx, "u"); !errors.Is(err, wire.CodeUnknownTopic) {
		t.Fatal(err)
	}
	if ts, err := c.ListTopics(ctx); err != nil || len(ts) != 1 || ts[0].Name != "t" || ts[0].ID != id {
		t.Fatal(ts, err)
	}

	p, err := c.NewProducer(client.ProducerOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for i := range 10 {
		r := client.Record{Topic: "t", Pinned: true, Time: time.UnixMilli(int64(1000 + i*7%10)), Value: []byte{byte(i)}}
		if ack, err := p.Produce(ctx, r); err != nil || ack.Offset != wire.Offset(i) {
			t.Fatal(i, ack, err)
		}
	}
	f := func(at client.Position, want wire.Offset, wantTime int64) {
		t.Helper()
		found, err := c.Offset(ctx, "t", 0, at)
		if err != nil || found.Offset != want || wantTime != 0 && found.Time != wantTime {
			t.Fatalf("%s: %+v, %v; want offset %d, time %d", at, found, err, want, wantTime)
		}
	}
	f(client.Start(), 0, 0)
	f(client.End(), 10, 0)
	f(client.Greatest(), 7, 1009)
	f(client.AtTime(client.EventTime, 1005), 1, 1007)
	f(client.AtTime(client.EventTime, 1010), -1, 0)
	f(client.At(4), 4, 0)
	if all, err := c.Offsets(ctx, "t", client.End()); err != nil || len(all) != 2 || all[0].Offset != 10 || all[1].Offset != 0 {
		t.Fatal(all, err)
	}

	if start, err := c.Trim(ctx, "t", 0, 6); start != 6 || err != nil {
		t.Fatal(start, err)
	}
	x, err := c.NewConsumer(client.ConsumerOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if err := x.Assign(ctx, "t", 0, client.Range{From: client.At(2)}); err != nil {
		t.Fatal(err)
	}
	var fe *client.FetchError
	if _, err := x.Poll(ctx); !errors.As(err, &fe) || !errors.Is(err, wire.CodeOutOfRange) || fe.Start != 6 || fe.End != 10 {
		t.Fatal(err)
	}
	if ds, err := c.DescribeTopics(ctx, "t", "u"); err != nil || len(ds) != 2 || ds[0].Partitions[0].Start != 6 || ds[1].Code != wire.CodeUnknownTopic {
		t.Fatal(ds, err)
	}

	if err := c.DeleteTopic(ctx, id); err != nil {
		t.Fatal(err)
	}
	again, err := c.CreateTopic(ctx, spec)
	if err != nil || again == id {
		t.Fatal(again, err)
	}
	if _, err := p.Produce(ctx, client.Record{Topic: "t", Pinned: true}); !errors.Is(err, wire.CodeTopicRecreated) || errors.Is(err, client.ErrIndefinite) {
		t.Fatal(err)
	}
	if err := x.Seek(ctx, "t", 0, client.Start()); !errors.Is(err, wire.CodeTopicRecreated) {
		t.Fatal(err)
	}
	f(client.End(), 0, 0) // the client itself is bound to no id
	if err := c.DeleteTopic(ctx, id); err == nil {
		t.Fatal("the old id was deleted again")
	}
	if _, err := c.Recovery(ctx); err != nil {
		t.Fatal(err)
	}
}

// TestRestarts produces and consumes while the broker stops and starts again
// at the same address: every record is there once and in order.
func TestRestarts(t *testing.T) {
	fs, network := storage.NewMemFS(12), wire.NewMemNet()
	start := func() func() {
		ln, err := network.Listen("broker:1")
		if err != nil {
			panic(err)
		}
		return runBroker(fs, ln)
	}
	stop := start()
	defer func() { stop() }()
	ctx, c := t.Context(), dial(t, client.Options{Servers: []string{"broker:1"}, Dialer: network})
	const parts, total = 3, 6000
	if _, err := c.CreateTopic(ctx, client.TopicSpec{Name: "t", Partitions: parts}); err != nil {
		t.Fatal(err)
	}
	x, err := c.NewConsumer(client.ConsumerOptions{MaxWait: 20 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	if err := x.AssignTopic(ctx, "t", client.Range{}); err != nil {
		t.Fatal(err)
	}
	p, err := c.NewProducer(client.ProducerOptions{BatchBytes: 2048})
	if err != nil {
		t.Fatal(err)
	}

	var failed error
	var sending sync.WaitGroup
	sending.Go(func() {
		for i := range total {
			r := client.Record{Topic: "t", Pinned: true, Partition: int32(i % parts), Value: binary.LittleEndian.AppendUint64(nil, uint64(i/parts))}
			err := p.ProduceAsync(ctx, r, func(a client.Ack, err error) {
				if failed == nil {
					failed = err
				}
			})
			if err != nil {
				panic(err)
			}
			if i%1500 == 1499 { // in mid-flight
				stop()
				stop = start()
			}
		}
		if err := p.Flush(ctx); err != nil {
			panic(err)
		}
	})
	var next [parts]uint64
	for got := 0; got < total; {
		ms, err := x.Poll(ctx)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range ms {
			if v := binary.LittleEndian.Uint64(m.Value); v != next[m.Partition] || uint64(m.Offset) != v {
				t.Fatalf("partition %d: offset %d holds %d, want %d", m.Partition, m.Offset, v, next[m.Partition])
			}
			next[m.Partition]++
			got++
		}
	}
	sending.Wait()
	if failed != nil {
		t.Fatal(failed)
	}
}

// TestSplitBroker gives a real broker more than a topic takes in one batch:
// what fits alone is written in order, what does not fails for sure.
func TestSplitBroker(t *testing.T) {
	addr, stop := startBroker()
	defer stop()
	ctx, c := t.Context(), dial(t, client.Options{Servers: []string{addr}})
	f := func(topic string, o client.ProducerOptions) {
		t.Helper()
		small := []wire.Setting{{Key: "max.batch.bytes", Value: "1KiB"}, {Key: "segment.bytes", Value: "1MiB"}}
		if _, err := c.CreateTopic(ctx, client.TopicSpec{Name: topic, Settings: small}); err != nil {
			t.Fatal(err)
		}
		p, err := c.NewProducer(o)
		if err != nil {
			t.Fatal(err)
		}
		const total = 5000
		noise := rand.NewChaCha8([32]byte{})
		var good []uint64
		for i := range uint64(total) {
			value, fits := binary.LittleEndian.AppendUint64(nil, i), i%1000 != 700
			if !fits {
				value = append(value, make([]byte, 2000)...)
				noise.Read(value[8:]) // no codec helps
			}
			if err := p.ProduceAsync(ctx, client.Record{Topic: topic, Value: value}, func(a client.Ack, err error) {
				switch {
				case !fits && (!errors.Is(err, wire.CodeTooLarge) || errors.Is(err, client.ErrIndefinite)):
					t.Errorf("%d, too large: %v, %v", i, a, err)
				case fits && (err != nil || a.Offset != wire.Offset(len(good))):
					t.Errorf("%d: %v, %v; want offset %d", i, a, err, len(good))
				case fits:
					good = append(good, i)
				}
			}); err != nil {
				t.Fatal(err)
			}
		}
		if err := p.Flush(ctx); err != nil || len(good) != total-5 {
			t.Fatal(err, len(good))
		}
		x, err := c.NewConsumer(client.ConsumerOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if err := x.AssignTopic(ctx, topic, client.Range{To: client.End()}); err != nil {
			t.Fatal(err)
		}
		for {
			ms, err := x.Poll(ctx)
			if err == client.ErrEnd {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			for _, m := range ms {
				if v := binary.LittleEndian.Uint64(m.Value); len(good) == 0 || v != good[0] {
					t.Fatalf("offset %d holds %d, %d records were to come", m.Offset, v, len(good))
				}
				good = good[1:]
			}
		}
		if len(good) > 0 {
			t.Fatalf("%d records are missing", len(good))
		}
	}

	f("a", client.ProducerOptions{})
	f("b", client.ProducerOptions{Codec: wire.Zstd})
	f("c", client.ProducerOptions{NotIdempotent: true})
}
