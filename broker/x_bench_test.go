package broker

import (
	"context"
	"strings"
	"testing"

	"github.com/teralog/teralog/wire"
)

// benchProduce sends requests of one batch through ServeCall to a broker on a
// disk in memory, without a socket.
func benchProduce(b *testing.B, size int) {
	r := newRig(b)
	id := r.create("t", 1, wire.Setting{Key: "segment.bytes", Value: "64MiB"}, wire.Setting{Key: "retention.bytes", Value: "1KiB"})
	batch := batchOf(b, wire.BuilderOptions{Topic: id}, strings.Repeat("v", size))
	body := (&wire.ProduceRequest{Acks: wire.AcksLeader, Batches: []wire.Batch{batch}}).AppendTo(nil, 0)
	leader, err := r.b.Set().Leader(wire.PartitionID{Topic: id})
	if err != nil {
		b.Fatal(err)
	}
	answers := 0
	b.SetBytes(int64(len(batch)))
	b.ReportAllocs()
	for n := 0; b.Loop(); n++ {
		r.b.ServeCall(wire.NewCall(wire.APIProduce, 0, body, func([]byte, []wire.FileRange) { answers++ }))
		leader.Turn(r.now)
		if n%4096 == 4095 { // let the old segments go
			r.pass(11e9)
			r.pass(11e9)
		}
	}
	if answers == 0 {
		b.Fatal("no answers")
	}
}

func BenchmarkProduce100B(b *testing.B)  { benchProduce(b, 100) }
func BenchmarkProduce64KiB(b *testing.B) { benchProduce(b, 64<<10) }

// BenchmarkProduceLoopback is a request of one batch of 100 B with its answer,
// over a real socket to real files.
func BenchmarkProduceLoopback(b *testing.B) {
	_, c := loopback(b)
	id := createOn(b, c, "t", 1)
	req := &wire.ProduceRequest{Acks: wire.AcksLeader, Batches: []wire.Batch{batchOf(b, wire.BuilderOptions{Topic: id}, strings.Repeat("v", 100))}}
	var resp wire.ProduceResponse
	b.ReportAllocs()
	for b.Loop() {
		if err := c.Do(context.Background(), req, &resp); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkFetchWarm fetches 1 MiB again and again: real socket, real files,
// sendfile.
func BenchmarkFetchWarm(b *testing.B) {
	_, c := loopback(b)
	id := createOn(b, c, "t", 1)
	for range 32 {
		sendOn(b, c, batchOf(b, wire.BuilderOptions{Topic: id}, strings.Repeat("v", 64<<10)))
	}
	req := fetchOf(id, 0, 0)
	var resp wire.FetchResponse
	b.ReportAllocs()
	for b.Loop() {
		buf, err := c.DoBuf(context.Background(), req, &resp)
		if err != nil {
			b.Fatal(err)
		}
		b.SetBytes(int64(resp.Partitions[0].Bytes))
		buf.Release()
	}
}

// BenchmarkLook is what a fetch costs before anything is sent.
func BenchmarkLook(b *testing.B) {
	r := newRig(b)
	id := r.create("t", 1)
	for range 100 {
		r.write(id, 0, strings.Repeat("v", 100))
	}
	f := &fetch{b: r.b, req: *fetchOf(id, 0, 50), call: wire.NewCall(wire.APIFetch, 0, nil, nil)}
	b.ReportAllocs()
	for b.Loop() {
		f.look()
		if f.total == 0 {
			b.Fatal("nothing found")
		}
		f.drop()
	}
}
