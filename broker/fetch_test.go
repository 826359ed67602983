package broker

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/teralog/teralog/mem"
	"github.com/teralog/teralog/storage"
	"github.com/teralog/teralog/wire"
)

// TestFetchRanges checks what one answer carries: whole batches, the first one
// whatever the limits say, and where to go on.
func TestFetchRanges(t *testing.T) {
	r := newRig(t)
	id := r.create("t", 2)
	for p := range int32(2) {
		for i := range 4 {
			r.write(id, p, fmt.Sprintf("%d-%d", p, i), strings.Repeat("x", 100)) // two records a batch
		}
	}
	one := len(batchOf(t, wire.BuilderOptions{Topic: id}, "0-0", strings.Repeat("x", 100)))

	f := func(maxBytes, perPartition int, from0, from1 wire.Offset, next0, next1 wire.Offset) {
		t.Helper()
		req := fetchOf(id, 0, from0)
		req.MaxBytes = uint32(maxBytes)
		req.Partitions = append(req.Partitions, position(id, 1, from1))
		req.Partitions[0].MaxBytes, req.Partitions[1].MaxBytes = uint32(perPartition), uint32(perPartition)
		res := r.read(req)
		if res[0].Next != next0 || res[1].Next != next1 {
			t.Fatalf("next offsets %d and %d, want %d and %d", res[0].Next, res[1].Next, next0, next1)
		}
		for i, want := range []struct{ from, next wire.Offset }{{from0, next0}, {from1, next1}} {
			if first := want.from / 2 * 2; int(res[i].Bytes) != int(want.next-first)/2*one && want.next != want.from {
				t.Fatalf("partition %d: %d bytes from %d to %d, a batch has %d", i, res[i].Bytes, want.from, want.next, one)
			}
			if r := res[i]; r.Committed != 8 || r.End != 8 || r.LogStart != 0 || r.Code != wire.CodeOK {
				t.Fatalf("partition %d: %+v", i, r)
			}
		}
	}

	f(1<<20, 1<<20, 0, 0, 8, 8)
	f(0, 0, 0, 0, 2, 0)           // one byte is too little for a batch: it comes whole, the other partition waits
	f(one-1, 1<<20, 2, 0, 4, 0)   // likewise
	f(one, 1<<20, 2, 0, 4, 0)     // nothing is left for the other
	f(2*one, one, 0, 0, 2, 2)     // a limit per partition
	f(2*one+1, 1<<20, 0, 0, 4, 0) // the rest of one byte takes no second first batch
	f(1<<20, 2*one-1, 1, 3, 2, 4) // an offset inside a batch gets all of it
	f(1<<20, 1<<20, 8, 6, 8, 8)   // the end is no error
	f(3*one, 1<<20, 4, 6, 8, 8)   // both fit
	f(3*one-1, 1<<20, 4, 6, 8, 6) // the second does not
	f(1<<20, 1<<20, 8, 8, 8, 8)   // nothing at all
}

// TestFetchErrors checks the answer of each partition that cannot be read, and
// that it does not keep the others from it.
func TestFetchErrors(t *testing.T) {
	r := newRig(t)
	id := r.create("t", 2)
	r.write(id, 0, "a")
	r.write(id, 1, "b")
	gone := r.create("gone", 1)
	r.delete(gone)

	f := func(q wire.FetchPartition, want wire.Code) {
		t.Helper()
		req := fetchOf(id, 1, 0)
		req.MaxWaitMillis = 10_000 // news wait for nothing
		req.MinBytes = 1 << 20
		req.Partitions = append(req.Partitions, q)
		res := r.read(req)
		if res[1].Code != want || want != wire.CodeOK && res[1].Bytes != 0 {
			t.Fatalf("%+v: %v with %d bytes, want %v", q, res[1].Code, res[1].Bytes, want)
		}
		if res[0].Code != wire.CodeOK || !slices.Equal(valuesOf(t, res[0].Data), []string{"b"}) || res[0].Next != 1 {
			t.Fatalf("%+v: the good partition answers %+v", q, res[0])
		}
	}

	f(position(gone, 0, 0), wire.CodeTopicRecreated)
	f(position(77, 0, 0), wire.CodeTopicRecreated)
	f(position(id, 2, 0), wire.CodeUnknownPartition)
	f(position(id, -1, 0), wire.CodeUnknownPartition)
	f(position(id, 0, 2), wire.CodeOutOfRange)
	f(position(id, 0, -1), wire.CodeOutOfRange)
	with := func(known, last wire.Epoch, at wire.Offset) wire.FetchPartition {
		q := position(id, 0, at)
		q.Epoch, q.LastEpoch = known, last
		return q
	}
	f(with(1, wire.NoEpoch, 0), wire.CodeUnknownEpoch)
	r.kill(true) // the next leader epoch is 1
	r.start()
	r.write(id, 1, "b") // what was not synced went with the power
	r.write(id, 0, "c")
	f(with(0, wire.NoEpoch, 0), wire.CodeFencedEpoch)
	f(with(1, 0, 1), wire.CodeTruncated) // epoch 0 ended before
	f(with(2, wire.NoEpoch, 0), wire.CodeUnknownEpoch)

	var resp wire.FetchResponse
	req := fetchOf(id, 0, 0)
	req.Replica = 3
	if err := r.ask(req, &resp); wire.CodeOf(err) != wire.CodeUnsupported {
		t.Fatalf("a replica's fetch: %v", err) // CVE-2018-1288: a client must not pose as a follower
	}
}

// TestFetchWaits checks what a parked fetch waits for, and what ends its wait.
func TestFetchWaits(t *testing.T) {
	f := func(name string, minBytes int, wake func(r *rig, id wire.TopicID), after time.Duration, check func(t *testing.T, res []wire.FetchResult)) {
		t.Helper()
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			id := r.create("t", 3)
			r.write(id, 0, "before")
			req := fetchOf(id, 0, 1)
			req.MinBytes, req.MaxWaitMillis = uint32(minBytes), 5000
			for p := int32(1); p < 3; p++ {
				req.Partitions = append(req.Partitions, position(id, p, 0))
			}
			p := r.begin(req, new(wire.FetchResponse))
			r.settle()
			if p.answers != 0 {
				t.Fatal("answered at once")
			}
			wake(r, id)
			r.settle()
			r.pass(after)
			if p.answers != 1 || p.err != nil {
				t.Fatalf("answered %d times, error %v", p.answers, p.err)
			}
			check(t, p.resp.(*wire.FetchResponse).Partitions)
			if len(r.b.lot.parked) > 0 {
				t.Fatal("it still stands in the lot")
			}
			r.pass(10 * time.Second) // neither timer nor waiters bring a second answer
			if p.answers != 1 {
				t.Fatalf("answered %d times", p.answers)
			}
		})
	}
	values := func(want ...string) func(*testing.T, []wire.FetchResult) {
		return func(t *testing.T, res []wire.FetchResult) {
			t.Helper()
			var got []string
			for _, r := range res {
				if r.Code != wire.CodeOK {
					t.Fatalf("%+v", r)
				}
				got = append(got, valuesOf(t, r.Data)...)
			}
			if !slices.Equal(got, want) {
				t.Fatalf("read %q, want %q", got, want)
			}
		}
	}
	code := func(want wire.Code) func(*testing.T, []wire.FetchResult) {
		return func(t *testing.T, res []wire.FetchResult) {
			t.Helper()
			if res[0].Code != want {
				t.Fatalf("%v, want %v", res[0].Code, want)
			}
		}
	}

	f("append", 1, func(r *rig, id wire.TopicID) { r.write(id, 2, "x") }, 0, values("x"))
	f("enough over two partitions", 200, func(r *rig, id wire.TopicID) { r.write(id, 1, "y"); r.write(id, 2, "z") }, 0, values("y", "z"))
	f("too little until the time is up", 200, func(r *rig, id wire.TopicID) { r.write(id, 1, "y") }, 5*time.Second, values("y"))
	f("nothing until the time is up", 1, func(*rig, wire.TopicID) {}, 5*time.Second, values())
	f("trim", 1<<20, func(r *rig, id wire.TopicID) {
		r.write(id, 0, "1", "2", "3")
		r.write(id, 0, "4")
		p, err := r.b.Set().Leader(wire.PartitionID{Topic: id})
		if err != nil {
			r.t.Fatal(err)
		}
		p.Trim(5, func(wire.Offset, error) {})
	}, time.Second, code(wire.CodeOutOfRange))
	f("delete", 1, func(r *rig, id wire.TopicID) { r.delete(id) }, 0, code(wire.CodeTopicRecreated))
	f("offline", 1, func(r *rig, id wire.TopicID) {
		r.fs.Fail(storage.OpWrite, 0, storage.ErrStopped)
		r.begin(&wire.ProduceRequest{Acks: 1, Batches: []wire.Batch{batchOf(r.t, wire.BuilderOptions{Topic: id}, "v")}}, new(wire.ProduceResponse))
	}, time.Second, code(wire.CodeOffline))
	f("shutdown", 1, func(r *rig, id wire.TopicID) { r.b.unpark() }, 0, values())
}

// TestFetchAtOnce checks what does not wait, though there is less than asked.
func TestFetchAtOnce(t *testing.T) {
	r := newRig(t)
	id := r.create("t", 1, wire.Setting{Key: "segment.bytes", Value: "4KiB"}, wire.Setting{Key: "max.batch.bytes", Value: "4KiB"})
	for range 5 {
		r.write(id, 0, strings.Repeat("v", 1500))
	}
	f := func(req *wire.FetchRequest, next wire.Offset) {
		t.Helper()
		req.MaxWaitMillis = 5000
		if res := r.read(req)[0]; res.Next != next {
			t.Fatalf("next is %d, want %d", res.Next, next)
		}
	}

	req := fetchOf(id, 0, 0) // the rest lies in the next segment
	req.MinBytes = 1 << 20
	f(req, 2)
	req = fetchOf(id, 0, 0) // the answer is full
	req.MinBytes, req.MaxBytes = 1<<20, 100
	f(req, 1)
	req = fetchOf(id, 0, 5) // whoever wants nothing has it
	req.MinBytes = 0
	f(req, 5)
	req.Partitions = nil
	req.MinBytes = 1
	if res := r.read(req); len(res) != 0 {
		t.Fatalf("%d results of none", len(res))
	}
}

// TestFetchFull checks that one fetch too many is refused, with a time to come
// again, and that the places of answered ones are free again.
func TestFetchFull(t *testing.T) {
	r := newRig(t)
	id := r.create("t", 1)
	r.b.lot.max = 500
	var parked []*pending
	for range r.b.lot.max {
		req := fetchOf(id, 0, 0)
		req.MaxWaitMillis = 5000
		parked = append(parked, r.begin(req, new(wire.FetchResponse)))
	}
	r.settle()
	req := fetchOf(id, 0, 0)
	req.MaxWaitMillis = 5000
	p := r.begin(req, new(wire.FetchResponse))
	r.settle()
	if p.answers != 1 || wire.CodeOf(p.err) != wire.CodeBusy || p.after == 0 {
		t.Fatalf("one fetch too many: %d answers, %v, retry after %v", p.answers, p.err, p.after)
	}
	r.write(id, 0, "v")
	for i, p := range parked {
		if p.answers != 1 || p.err != nil {
			t.Fatalf("fetch %d: %d answers, %v", i, p.answers, p.err)
		}
	}
	if len(r.b.lot.parked) != 0 {
		t.Fatalf("%d fetches stand in the lot", len(r.b.lot.parked))
	}
}

// TestFetchPlain checks that a reader without decompressors gets every record,
// within the bounds of an answer and of memory.
func TestFetchPlain(t *testing.T) {
	r := newRig(t)
	id := r.create("t", 2, wire.Setting{Key: "max.batch.bytes", Value: "4MiB"})
	long := strings.Repeat("compressible ", 400_000) // 5 MB
	for p := range int32(2) {
		for _, codec := range []wire.Codec{wire.None, wire.Gzip, wire.Snappy, wire.Zstd} {
			v := long
			if codec == wire.None {
				v = "short"
			}
			res := r.send(batchOf(t, wire.BuilderOptions{Topic: id, Partition: p, Codec: codec}, v))[0]
			if res.Code != wire.CodeOK {
				t.Fatalf("%v: %v %s", codec, res.Code, res.Message)
			}
		}
	}
	plain := func(at0, at1 wire.Offset) []wire.FetchResult {
		t.Helper()
		req := fetchOf(id, 0, at0)
		req.Plain, req.MaxBytes = true, 64<<20
		req.Partitions[0].MaxBytes = 64 << 20
		req.Partitions = append(req.Partitions, position(id, 1, at1))
		req.Partitions[1].MaxBytes = 64 << 20
		res := r.read(req)
		for i := range res {
			for b := range wire.Batches(res[i].Data) {
				if err := b.Verify(); err != nil || b.Codec() != wire.None {
					t.Fatalf("partition %d, offset %d: codec %v, %v", i, b.BaseOffset(), b.Codec(), err)
				}
			}
		}
		if used := r.b.server.Budget.Used(); used != 0 {
			t.Fatalf("%d bytes are still charged", used)
		}
		return res
	}
	res := plain(0, 0)
	if got := valuesOf(t, res[0].Data); res[0].Next != 4 || !slices.Equal(got, []string{"short", long, long, long}) {
		t.Fatalf("%d values up to %d, code %v", len(got), res[0].Next, res[0].Code)
	}
	if got := valuesOf(t, res[1].Data); res[1].Next != 1 || !slices.Equal(got, []string{"short"}) {
		t.Fatalf("%d values up to %d, code %v: the bound of the answer", len(got), res[1].Next, res[1].Code)
	}
	if res = plain(4, 1); res[1].Next != 4 {
		t.Fatalf("the next answer ends at %d", res[1].Next)
	}

	// Sound, and too large without its codec for any reader.
	room := wire.MaxBatchBytes + 10_000 - wire.HeaderSize - 20
	huge := hugeBatch(t, id, room)
	if res := r.send(huge)[0]; res.Code != wire.CodeOK {
		t.Fatalf("%v %s", res.Code, res.Message)
	}
	if res = plain(4, 4); res[0].Code != wire.CodeTooLarge || res[0].Next != 4 {
		t.Fatalf("%v, next %d", res[0].Code, res[0].Next)
	}
	if res := r.read(fetchOf(id, 0, 4))[0]; res.Code != wire.CodeOK || res.Next != 5 {
		t.Fatalf("in its stored form it is %v, next %d", res.Code, res.Next)
	}

	// A section that its codec cannot read: CORRUPT, and where the reader may go on.
	bad := batchOf(t, wire.BuilderOptions{Topic: id, Partition: 1, Codec: wire.Zstd}, long)
	for i := range 8 {
		bad[wire.HeaderSize+4+i] ^= 0x55
	}
	resum(bad)
	if res := r.send(bad)[0]; res.Code != wire.CodeOK {
		t.Fatalf("the broker looks into sections: %v", res.Code)
	}
	if res = plain(5, 4); res[1].Code != wire.CodeCorrupt || res[1].CorruptFrom != 4 || res[1].CorruptTo != 5 || res[1].Next != 4 {
		t.Fatalf("%+v", res[1])
	}

	// Too many look-ups, or no memory: BUSY at once, and nothing leaks.
	for r.b.work.submit(func() {}, func() {}) {
	}
	req := fetchOf(id, 0, 0)
	req.Plain = true
	busy := func() {
		t.Helper()
		p := r.begin(req, new(wire.FetchResponse))
		r.settle()
		if p.answers != 1 || wire.CodeOf(p.err) != wire.CodeBusy || p.after == 0 {
			t.Fatalf("%d answers, %v, retry after %v", p.answers, p.err, p.after)
		}
	}
	busy()
	r.b.server.Budget = mem.NewBudget(10)
	busy()
	if used := r.b.server.Budget.Used(); used != 0 {
		t.Fatalf("%d bytes are still charged", used)
	}
}

// TestFetchHeld checks that a range found and not sent yet outlives the delete
// of its topic, and is let go of.
func TestFetchHeld(t *testing.T) {
	r := newRig(t)
	id := r.create("t", 1)
	want := r.write(id, 0, "kept")
	p, err := r.b.Set().Leader(wire.PartitionID{Topic: id})
	if err != nil {
		t.Fatal(err)
	}
	held, err := p.View().Log.Find(want, 1, 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	r.delete(id)
	r.pass(20 * time.Second) // the janitor has unlinked everything
	if es, err := r.fs.ReadDir("data/deleted"); len(es) != 0 || err != nil {
		t.Fatalf("%v, %v", es, err)
	}
	b := make([]byte, held.Len)
	if _, err := held.R.ReadAt(b, held.Off); err != nil || !slices.Equal(valuesOf(t, b), []string{"kept"}) {
		t.Fatalf("read of what is held: %v", err)
	}
	held.Done()
	if _, err := held.R.ReadAt(b, held.Off); err == nil {
		t.Fatal("the file is still open")
	}
	if len(r.b.Image().DeletedTopics()) != 1 {
		t.Fatal("forgotten before the sweep")
	}
	r.b.sweep()
	r.settle()
	if len(r.b.Image().DeletedTopics()) != 0 {
		t.Fatal("the topic is not forgotten")
	}
}
