//go:build linux

package sim

import (
	"context"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/teralog/teralog/bench"
	"github.com/teralog/teralog/storage"
	"github.com/teralog/teralog/wire"
)

// look compares what a start found with what was promised.
func (b *box) look(t *testing.T, n int, standing *loadTopic) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	lines, err := b.c.Recovery(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range lines {
		for _, what := range []string{"; cut ", "zero bytes", "rebuilt", "DAMAGED", "LOST", "cannot be opened"} {
			if strings.Contains(line, what) {
				b.found[strings.Trim(what, "; ")]++
			}
		}
		if strings.Contains(line, "DAMAGED") || strings.Contains(line, "LOST") || strings.Contains(line, "cannot be opened") {
			t.Errorf("cut %d: %s", n, line)
		}
	}
	for _, topic := range b.topics {
		for p := range topic.partitions {
			b.lookAt(t, ctx, n, topic, wire.PartitionID{Topic: topic.id, Partition: p})
		}
	}
	b.askPositions(t, ctx, n)
	if standing != nil {
		l := &load{h: b.h, c: b.c}
		if err := l.expect(ctx, *standing, true); err != nil {
			t.Fatalf("cut %d: topic %s: %v", n, standing.name, err)
		}
		if err := l.end(ctx, standing); err != nil {
			t.Fatalf("cut %d: topic %s: %v", n, standing.name, err)
		}
	}
}

// lookAt does so for one partition.
func (b *box) lookAt(t *testing.T, ctx context.Context, n int, topic loadTopic, id wire.PartitionID) {
	ds, err := b.c.DescribeTopics(ctx, topic.name)
	if err != nil || len(ds) != 1 || ds[0].Code != wire.CodeOK || ds[0].Partitions[id.Partition].Code != wire.CodeOK {
		t.Fatalf("cut %d: describe %s: %+v, %v", n, topic.name, ds, err)
	}
	d := ds[0].Partitions[id.Partition]
	if d.Committed != d.End {
		t.Fatalf("cut %d: %s/%d: committed %d, end %d after the start", n, topic.name, id.Partition, d.Committed, d.End)
	}
	if d.End < b.ends[id] {
		t.Errorf("cut %d: %s/%d ends at %d; it was served up to %d after an earlier start", n, topic.name, id.Partition, d.End, b.ends[id])
	}
	b.ends[id] = d.End

	b.h.mu.Lock()
	defer b.h.mu.Unlock()
	var count, bytes int64
	first, last := int64(1<<62), int64(0)
	for _, r := range b.acked[id] {
		if r.offset >= d.End {
			count++
			bytes += r.size
			first, last = min(first, r.time), max(last, r.time)
		}
	}
	delete(b.acked, id)
	b.lost[topic.flush] += int(count)
	switch {
	case count == 0:
	case topic.flush == "sync":
		t.Errorf("cut %d: %s/%d lost %d acknowledged records", n, topic.name, id.Partition, count)
	case topic.flush == "interval" && (bytes > boxFlushBytes || last-first > boxFlushEvery):
		t.Errorf("cut %d: %s/%d lost %d B of acknowledged records over %d ms; the bounds are %d B and %d ms",
			n, topic.name, id.Partition, bytes, last-first, boxFlushBytes, boxFlushEvery)
	}
	for i := range b.positions {
		if p := &b.positions[i]; p.partition == id && p.keep < 0 {
			p.keep = d.End
		}
	}
	if topic.flush != "sync" {
		b.h.checker.Apply(&bench.Lossy{Partition: id, Keep: d.End, Epoch: d.Epoch})
		b.h.owners[id] = b.h.owners[id][:min(len(b.h.owners[id]), int(d.End))]
	}
}

// askPositions goes on reading where readers stood before this cut and those
// before it. Where what they had read is gone, and by now something else lies
// there, they must be told.
func (b *box) askPositions(t *testing.T, ctx context.Context, n int) {
	conn, err := wire.Dial(ctx, &net.Dialer{}, b.p.addr, wire.DialOptions{Client: "torture"})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	b.positions = b.positions[max(0, len(b.positions)-60):]
	for _, p := range b.positions {
		req := wire.FetchRequest{Replica: wire.NoNode, MaxBytes: 1 << 20, Partitions: []wire.FetchPartition{{
			Topic: p.partition.Topic, Partition: p.partition.Partition, Offset: p.next, Epoch: wire.NoEpoch, LastEpoch: p.epoch, MaxBytes: 4096}}}
		var resp wire.FetchResponse
		buf, err := conn.DoBuf(ctx, &req, &resp)
		if err != nil {
			t.Fatal(err)
		}
		buf.Release()
		r, want := resp.Partitions[0], wire.CodeOK
		gone := p.next < r.LogStart // retention was there: it is told that, or what it would have been
		switch {
		case p.next > p.keep:
			want = wire.CodeTruncated
			b.told[p.mode]++
		case gone:
			want = wire.CodeOutOfRange
		}
		if r.Code != want && !(gone && r.Code == wire.CodeOutOfRange) || r.Code == wire.CodeTruncated && r.DivergeEnd > max(p.keep, r.LogStart) {
			t.Errorf("cut %d: a reader of %v (%s) at %d, epoch %d, of which the next start still had %d: %v (epoch %d ends at %d), want %v; the log has %d to %d, epoch %d",
				n, p.partition, p.mode, p.next, p.epoch, p.keep, r.Code, r.Diverge, r.DivergeEnd, want, r.LogStart, r.End, r.Epoch)
		}
	}
}

// end reads everything back.
func (b *box) end(t *testing.T) {
	b.readBack(t)
	t.Logf("acknowledged records lost: %v; positions answered TRUNCATED: %v", b.lost, b.told)
	if b.lost["async"] == 0 || b.found["cut"]+b.found["zero bytes"] == 0 {
		t.Error("nothing was lost, or no tail was torn: the power was not really cut")
	}
}

// readBack reads everything back, stops the broker and holds all that happened
// against what may.
func (b *box) readBack(t *testing.T) {
	l := &load{h: b.h, c: b.c}
	for _, topic := range b.topics {
		for p := range topic.partitions {
			all, err := l.drain(t.Context(), topic, p)
			if err == nil {
				_, err = l.lookUps(t.Context(), topic, p, all, b.rnd)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	b.c.Close()
	if err := b.p.stop(); err != nil {
		t.Fatal(err)
	}
	b.p = nil
	found, _ := b.h.checker.Finish()
	for _, a := range found {
		t.Error(a)
	}
	for _, w := range b.h.violations() {
		t.Error(w)
	}
	bad, err := suspicious(b.log())
	for _, line := range bad {
		t.Error(line)
	}
	var said strings.Builder
	damaged, verr := storage.VerifyPath(&said, storage.OS(), b.data())
	if err != nil || verr != nil || damaged > 0 {
		t.Errorf("%v, %v, %d damaged places\n%s", err, verr, damaged, &said)
	}
	c := &b.h.counts
	t.Logf("%d starts, found %v; %d records sent, %d acknowledged, %d in doubt, %d read; topics: %d created, %d deleted",
		b.boots, b.found, c.sent, c.acked, c.doubtful, c.read, c.created, c.deleted)
}
