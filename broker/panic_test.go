package broker

import (
	"strings"
	"testing"

	"github.com/teralog/teralog/storage"
	"github.com/teralog/teralog/wire"
)

// explode lets the next call of a kind on a file whose path holds name panic.
func (r *rig) explode(kind, name string) {
	r.fs.BeforeOp(func(op storage.Op) error {
		if op.Kind == kind && strings.Contains(op.Name, name) {
			r.fs.BeforeOp(nil)
			panic("in the disk")
		}
		return nil
	})
}

// TestPanicInARequest lets work for one request panic outside of its
// connection: that one is answered, holds nothing, and all others go on.
func TestPanicInARequest(t *testing.T) {
	r := newRig(t)
	id := r.create("t", 1)
	r.send(batchOf(t, wire.BuilderOptions{Topic: id, Codec: wire.Zstd}, "a", "b"))
	f := func(what string, req, resp wire.Message, later func()) {
		t.Helper()
		p := r.begin(req, resp)
		if p.answers != 0 {
			t.Fatalf("%s was answered on the spot", what)
		}
		r.explode(storage.OpRead, ".log")
		if later != nil {
			later()
		}
		r.settle()
		if p.answers != 1 || wire.CodeOf(p.err) != wire.CodeInternal {
			t.Fatalf("%s: %d answers, %v", what, p.answers, p.err)
		}
		if used := r.b.server.Budget.Used(); used != 0 {
			t.Fatalf("%s: %d bytes stay taken", what, used)
		}
		if n := len(r.b.lot.parked); n != 0 {
			t.Fatalf("%s: %d fetches stay parked", what, n)
		}
		if err := r.ask(req, resp); err != nil {
			t.Fatalf("%s, asked again: %v", what, err)
		}
	}
	plain := fetchOf(id, 0, 0)
	plain.Plain = true
	f("a plain fetch", plain, new(wire.FetchResponse), nil)
	f("a look-up by time", &wire.ListOffsetsRequest{Queries: []wire.OffsetQuery{{Topic: id, Epoch: wire.NoEpoch, Kind: wire.AtEventTime, Time: 1001}}},
		new(wire.ListOffsetsResponse), nil)
	waits := fetchOf(id, 0, 2)
	waits.MaxWaitMillis, waits.Plain = 1000, true
	f("a fetch that was woken", waits, new(wire.FetchResponse), func() {
		r.settle()
		r.write(id, 0, "c")
	})

	r.stop()
	r.start() // now the first look reads the disk
	r.explode(storage.OpRead, ".log")
	if err := r.ask(fetchOf(id, 0, 0), new(wire.FetchResponse)); wire.CodeOf(err) != wire.CodeInternal {
		t.Fatalf("a fetch whose first look panics: %v", err)
	}
	if got := r.readAll(id, 0); len(got) != 3 {
		t.Fatalf("then %q", got)
	}
}

// TestPanicInAPartition lets the making, then the recovery, of one partition
// panic: it is offline, what needs it is told so, and the others are served.
func TestPanicInAPartition(t *testing.T) {
	r := newRig(t)
	r.explode(storage.OpSyncDir, "partition-0001")
	var created wire.CreateTopicResponse
	if err := r.ask(&wire.CreateTopicRequest{Name: "t", Partitions: 3}, &created); wire.CodeOf(err) != wire.CodeOffline {
		t.Fatalf("create: %v", err)
	}
	id := r.b.Image().Topic("t").ID
	f := func() {
		t.Helper()
		r.write(id, 0, "a")
		r.write(id, 2, "b")
		if res := r.send(batchOf(t, wire.BuilderOptions{Topic: id, Partition: 1}, "c"))[0]; res.Code != wire.CodeOffline {
			t.Fatalf("produce to the partition that is down: %v", res.Code)
		}
	}

	f()
	r.kill(false)
	r.start() // which makes it
	r.write(id, 1, "d")
	r.kill(true)
	r.explode(storage.OpRead, "partition-0001/leader-epoch")
	r.start()
	f()
	if err := r.ask(&wire.DeleteTopicRequest{ID: id}, &wire.DeleteTopicResponse{}); err != nil {
		t.Fatalf("delete: %v", err)
	}
}
