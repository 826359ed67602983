package broker

import (
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/teralog/teralog/mem"
	"github.com/teralog/teralog/storage"
	"github.com/teralog/teralog/wire"
)

// TestProduceRefusals sends each kind of bad batch amid good ones of the same
// and of another partition: it gets its code, takes no offset, and harms none.
func TestProduceRefusals(t *testing.T) {
	r := newRig(t)
	id := r.create("t", 2, wire.Setting{Key: "max.batch.bytes", Value: "2KiB"})
	gone := r.create("gone", 1)
	r.delete(gone)
	next := [2]wire.Offset{}

	f := func(want wire.Code, bad wire.Batch) {
		t.Helper()
		good := func(p int32) wire.Batch {
			return batchOf(t, wire.BuilderOptions{Topic: id, Partition: p}, "a", "b")
		}
		// The good ones of partition 0 stand on both sides, out of order.
		res := r.send(good(0), bad, good(1), good(0))
		if res[1].Code != want || res[1].Base != -1 || (res[1].Message == "") != (want == wire.CodeOK) {
			t.Fatalf("the bad batch: %+v, want %v", res[1], want)
		}
		if !want.Definite() {
			t.Fatalf("%v is not definite", want)
		}
		for i, want := range map[int]wire.Offset{0: next[0], 2: next[1], 3: next[0] + 2} {
			if res[i].Code != wire.CodeOK || res[i].Base != want || res[i].Epoch != 0 || res[i].LogStart != 0 || res[i].AppendTime < r.now.Wall-1 {
				t.Fatalf("good batch %d: %+v, want offset %d", i, res[i], want)
			}
		}
		next[0], next[1] = next[0]+4, next[1]+2
	}
	change := func(at int, v ...byte) wire.Batch {
		b := batchOf(t, wire.BuilderOptions{Topic: id}, "v")
		copy(b[at:], v)
		resum(b)
		return b
	}
	flip := func(at int) wire.Batch {
		b := batchOf(t, wire.BuilderOptions{Topic: id}, "v")
		b[at] ^= 1
		return b
	}

	f(wire.CodeTopicRecreated, batchOf(t, wire.BuilderOptions{Topic: gone}, "v"))
	f(wire.CodeTopicRecreated, batchOf(t, wire.BuilderOptions{Topic: 99}, "v"))
	f(wire.CodeTopicRecreated, batchOf(t, wire.BuilderOptions{Topic: wire.MetadataTopic}, "v"))
	f(wire.CodeUnknownPartition, batchOf(t, wire.BuilderOptions{Topic: id, Partition: 2}, "v"))
	f(wire.CodeInvalidBatch, batchOf(t, wire.BuilderOptions{Topic: id, Partition: -1}, "v"))
	f(wire.CodeTooLarge, batchOf(t, wire.BuilderOptions{Topic: id}, strings.Repeat("v", 2048)))
	f(wire.CodeInvalidBatch, flip(0))
	f(wire.CodeUnsupported, flip(3))
	f(wire.CodeCorruptBatch, flip(5))
	f(wire.CodeCorruptBatch, flip(57)) // of the topic's id: not its fault
	f(wire.CodeCorruptBatch, flip(81)) // of the partition
	f(wire.CodeCorruptBatch, flip(wire.HeaderSize))
	f(wire.CodeInvalidBatch, change(88, 1<<5))            // a client's control batch
	f(wire.CodeUnsupported, change(88, 1<<4))             // a transaction, while there are none
	f(wire.CodeUnsupported, change(88, 3))                // LZ4
	f(wire.CodeUnsupported, change(89, 0x80))             // a bit of the future
	f(wire.CodeInvalidBatch, change(72, 0, 0, 0, 0))      // no records
	f(wire.CodeInvalidBatch, change(68, 7, 0, 0, 0))      // more offsets than records
	f(wire.CodeInvalidBatch, change(84, 0xff, 0, 0, 0))   // a length that is not
	f(wire.CodeInvalidBatch, change(40, 1, 0, 0, 0, 0))   // maxTime below baseTime
	f(wire.CodeInvalidBatch, change(92, 1))               // reserved
	f(wire.CodeTooLarge, change(84, 0, 0, 0, 0x7f, 1, 0)) // it says it is a bomb
	f(wire.CodeInvalidBatch, change(8, 95))               // a length below the header's

	var want []string
	for range next[0] / 2 {
		want = append(want, "a", "b")
	}
	if got := r.readAll(id, 0); !slices.Equal(got, want) {
		t.Fatalf("partition 0 holds %q", got)
	}
}

// TestProduceStamps checks that what is the leader's to say, the leader says,
// whatever the client wrote there.
func TestProduceStamps(t *testing.T) {
	r := newRig(t)
	f := func(timeType string, wantType bool, time int64) {
		t.Helper()
		id := r.create("t-"+timeType, 1, wire.Setting{Key: "time.type", Value: timeType})
		r.write(id, 0, "before")
		b := batchOf(t, wire.BuilderOptions{Topic: id}, "v")
		binary.LittleEndian.PutUint64(b[16:], 1<<40) // baseOffset
		binary.LittleEndian.PutUint64(b[24:], 1<<50) // appendTime
		binary.LittleEndian.PutUint32(b[64:], 77)    // leaderEpoch
		b[88] |= 1 << 3                              // append time is the record's
		resum(b)
		if res := r.send(b)[0]; res.Code != wire.CodeOK || res.Base != 1 {
			t.Fatalf("%s: %+v", timeType, res)
		}
		got := wire.Batch(r.read(fetchOf(id, 0, 1))[0].Data)
		if got.BaseOffset() != 1 || got.AppendTime() != r.now.Wall || got.LeaderEpoch() != 0 || got.AppendTimeType() != wantType {
			t.Fatalf("%s: offset %d, append time %d, epoch %d, type %v", timeType, got.BaseOffset(), got.AppendTime(), got.LeaderEpoch(), got.AppendTimeType())
		}
		var d wire.Decoder
		defer d.Release()
		if err := got.Records(&d, func(x *wire.Record) error {
			if x.Time != time {
				t.Fatalf("%s: the record's time is %d, want %d", timeType, x.Time, time)
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
	}

	f("event", false, 1000)
	f("append", true, r.now.Wall)
}

// TestProduceAcks checks when a write is answered, in each flush mode.
func TestProduceAcks(t *testing.T) {
	f := func(flush string, acks int8, wantBefore, wantAfter int) {
		t.Helper()
		r := newRig(t)
		id := r.create("t", 1, wire.Setting{Key: "flush", Value: flush})
		p := r.begin(&wire.ProduceRequest{Acks: acks, Batches: []wire.Batch{batchOf(t, wire.BuilderOptions{Topic: id}, "v")}}, new(wire.ProduceResponse))
		leader, err := r.b.Set().Leader(wire.PartitionID{Topic: id})
		if err != nil {
			t.Fatal(err)
		}
		leader.Turn(r.now) // no flush has run yet
		if p.answers != wantBefore {
			t.Fatalf("flush=%s acks=%d: %d answers before the flush, want %d", flush, acks, p.answers, wantBefore)
		}
		if visible := leader.View().Committed; (visible == 0) != (flush == "sync") {
			t.Fatalf("flush=%s: %d records are visible before the flush", flush, visible)
		}
		r.settle()
		if p.answers != wantAfter || p.silent != (acks == wire.AcksNone) {
			t.Fatalf("flush=%s acks=%d: %d answers, silent %v", flush, acks, p.answers, p.silent)
		}
		if used := r.b.server.Budget.Used(); used != 0 {
			t.Fatalf("flush=%s acks=%d: %d bytes are still charged", flush, acks, used)
		}
		if got := r.readAll(id, 0); !slices.Equal(got, []string{"v"}) {
			t.Fatalf("flush=%s acks=%d: %q", flush, acks, got)
		}
	}

	f("async", wire.AcksNone, 1, 1)
	f("async", wire.AcksLeader, 1, 1)
	f("async", wire.AcksAll, 1, 1)
	f("interval", wire.AcksAll, 1, 1)
	f("sync", wire.AcksNone, 1, 1)
	f("sync", wire.AcksLeader, 0, 1)
	f("sync", wire.AcksAll, 0, 1)
}

// TestProduceTimeout checks that a write whose flush does not come is answered
// in time, as in doubt.
func TestProduceTimeout(t *testing.T) {
	r := newRig(t)
	id := r.create("t", 1, wire.Setting{Key: "flush", Value: "sync"})
	p := r.begin(&wire.ProduceRequest{Acks: wire.AcksAll, TimeoutMillis: 500,
		Batches: []wire.Batch{batchOf(t, wire.BuilderOptions{Topic: id}, "v")}}, new(wire.ProduceResponse))
	leader, err := r.b.Set().Leader(wire.PartitionID{Topic: id})
	if err != nil {
		t.Fatal(err)
	}
	leader.Turn(r.now)
	r.now.Mono += 499 * time.Millisecond
	r.b.Steps(nil)
	leader.Turn(r.now)
	if p.answers != 0 {
		t.Fatal("answered too early")
	}
	r.now.Mono += 2 * time.Millisecond
	r.b.Steps(nil)
	leader.Turn(r.now)
	if res := p.resp.(*wire.ProduceResponse).Results; p.answers != 1 || res[0].Code != wire.CodeTimeout || res[0].Code.Definite() {
		t.Fatalf("%d answers, %+v", p.answers, res)
	}
	r.settle()
	if got := r.readAll(id, 0); !slices.Equal(got, []string{"v"}) {
		t.Fatalf("the log holds %q", got)
	}
}

// TestProduceMerged checks that requests that wait together become one write,
// each batch for itself all or nothing.
func TestProduceMerged(t *testing.T) {
	r := newRig(t)
	id := r.create("t", 1)
	r.fs.ResetCounts()
	var all []*pending
	for i := range 64 {
		b := batchOf(t, wire.BuilderOptions{Topic: id, Producer: wire.ProducerID(i + 1)}, fmt.Sprint(i))
		if i == 13 {
			b = batchOf(t, wire.BuilderOptions{Topic: id, Producer: 14, BaseSequence: 5}, "of nobody known")
		}
		all = append(all, r.begin(&wire.ProduceRequest{Acks: wire.AcksAll, Batches: []wire.Batch{b}}, new(wire.ProduceResponse)))
	}
	leader, err := r.b.Set().Leader(wire.PartitionID{Topic: id})
	if err != nil {
		t.Fatal(err)
	}
	leader.Turn(r.now)
	if n := r.fs.Count(storage.OpWrite); n != 1 {
		t.Fatalf("%d writes, want 1", n)
	}
	at := wire.Offset(0)
	for i, p := range all {
		res := p.resp.(*wire.ProduceResponse).Results
		switch {
		case p.answers != 1 || p.err != nil || len(res) != 1:
			t.Fatalf("request %d: %d answers, %v", i, p.answers, p.err)
		case i == 13:
			if res[0].Code != wire.CodeUnknownProducer {
				t.Fatalf("request %d: %v", i, res[0].Code)
			}
		case res[0].Code != wire.CodeOK || res[0].Base != at:
			t.Fatalf("request %d: %+v, want offset %d", i, res[0], at)
		default:
			at++
		}
	}
}

// TestProduceDuplicates checks that what is sent twice is there once, with the
// answer of the first time.
func TestProduceDuplicates(t *testing.T) {
	r := newRig(t)
	id := r.create("t", 1)
	var init wire.InitProducerResponse
	if err := r.ask(&wire.InitProducerRequest{}, &init); err != nil {
		t.Fatal(err)
	}
	batch := func(seq int32, v ...string) wire.Batch {
		return batchOf(t, wire.BuilderOptions{Topic: id, Producer: init.Producer, ProducerEpoch: init.Epoch, BaseSequence: seq}, v...)
	}
	f := func(seq int32, v string, code wire.Code, base wire.Offset) {
		t.Helper()
		if res := r.send(batch(seq, v))[0]; res.Code != code || res.Base != base {
			t.Fatalf("sequence %d: %+v, want %v at %d", seq, res, code, base)
		}
	}

	f(0, "a", wire.CodeOK, 0)
	f(0, "a", wire.CodeOK, 0)
	f(0, "x", wire.CodeSequenceReused, -1)
	f(2, "c", wire.CodeOutOfOrderSequence, -1)
	f(1, "b", wire.CodeOK, 1)
	res := r.send(batch(2, "c"), batch(2, "c"), batch(3, "d")) // in one request, one turn
	for i, want := range []wire.Offset{2, 2, 3} {
		if res[i].Code != wire.CodeOK || res[i].Base != want {
			t.Fatalf("batch %d: %+v", i, res[i])
		}
	}
	for seq := range int32(6) {
		f(4+seq, "later", wire.CodeOK, wire.Offset(4+seq))
	}
	f(0, "a", wire.CodeOK, -1) // long ago
	r.kill(false)
	r.start()
	f(9, "later", wire.CodeOK, 9)
	f(10, "new", wire.CodeOK, 10)
	if got := r.readAll(id, 0); len(got) != 11 {
		t.Fatalf("%d records: %q", len(got), got)
	}

	r.delete(id) // X01: with the topic goes what was known of its producers
	again := r.create("t", 1)
	if res := r.send(batch(11, "for the old one"))[0]; res.Code != wire.CodeTopicRecreated {
		t.Fatalf("the old id: %+v", res)
	}
	b := batchOf(t, wire.BuilderOptions{Topic: again, Producer: init.Producer, BaseSequence: 11}, "v")
	if res := r.send(b)[0]; res.Code != wire.CodeUnknownProducer {
		t.Fatalf("sequence 11 of a new topic: %+v", res)
	}
}

// TestProduceEarly sends pipelined batches to a topic whose partitions are not
// made yet: the first is refused, so is the one behind it that arrives in time,
// and both get in, in order, when they are sent again.
func TestProduceEarly(t *testing.T) {
	r := newRig(t)
	r.begin(&wire.CreateTopicRequest{Name: "t", Partitions: 1}, new(wire.CreateTopicResponse))
	for r.b.Image().Topic("t") == nil {
		r.b.Step(Step{Kind: StepCoord})
	}
	id := r.b.Image().Topic("t").ID
	a := batchOf(t, wire.BuilderOptions{Topic: id, Producer: 5}, slices.Repeat([]string{"a"}, 17)...)
	b := batchOf(t, wire.BuilderOptions{Topic: id, Producer: 5, BaseSequence: 17}, slices.Repeat([]string{"b"}, 5)...)
	early := r.begin(&wire.ProduceRequest{Acks: wire.AcksAll, Batches: []wire.Batch{a}}, new(wire.ProduceResponse))
	if res := early.resp.(*wire.ProduceResponse).Results; early.answers != 1 || res[0].Code != wire.CodeNotLeader || !res[0].Code.Definite() || !res[0].Code.Retriable() {
		t.Fatalf("%d answers, %+v", early.answers, res)
	}
	r.settle()
	f := func(b wire.Batch, code wire.Code, base wire.Offset) {
		t.Helper()
		if res := r.send(b)[0]; res.Code != code || res.Base != base {
			t.Fatalf("%+v, want %v at %d", res, code, base)
		}
	}
	f(b, wire.CodeUnknownProducer, -1)
	f(a, wire.CodeOK, 0)
	f(b, wire.CodeOK, 17)
	if got := strings.Join(r.readAll(id, 0), ""); got != strings.Repeat("a", 17)+"bbbbb" {
		t.Fatalf("%q", got)
	}
}

// TestProduceBusy checks that what does not fit is refused at once, definitely,
// with a time to come again, and that nothing of it remains.
func TestProduceBusy(t *testing.T) {
	r := newRig(t)
	id := r.create("t", 2)
	one := func(p int32) *wire.ProduceRequest {
		return &wire.ProduceRequest{Acks: wire.AcksAll, Batches: []wire.Batch{batchOf(t, wire.BuilderOptions{Topic: id, Partition: p}, "v")}}
	}
	var queued []*pending
	var refused *pending
	for refused == nil && len(queued) < 10_000 {
		p := r.begin(one(0), new(wire.ProduceResponse))
		if p.answers > 0 {
			refused = p
			break
		}
		queued = append(queued, p)
	}
	if refused == nil {
		t.Fatal("the queue has no bound")
	}
	res := refused.resp.(*wire.ProduceResponse).Results[0]
	if refused.err != nil || res.Code != wire.CodeBusy || !res.Code.Definite() || res.RetryAfterMillis == 0 {
		t.Fatalf("request %d: %v, %+v", len(queued), refused.err, res)
	}
	if other := r.begin(one(1), new(wire.ProduceResponse)); other.answers != 0 {
		t.Fatalf("the other partition is refused too: %+v", other.resp)
	}
	r.settle()
	for i, p := range queued {
		if res := p.resp.(*wire.ProduceResponse).Results; p.answers != 1 || res[0].Base != wire.Offset(i) {
			t.Fatalf("request %d: %d answers, %+v", i, p.answers, res)
		}
	}
	if used := r.b.server.Budget.Used(); used != 0 {
		t.Fatalf("%d bytes are still charged", used)
	}

	r.b.server.Budget = mem.NewBudget(10) // too little for one
	p := r.begin(one(1), new(wire.ProduceResponse))
	if p.answers != 1 || wire.CodeOf(p.err) != wire.CodeBusy || p.after == 0 {
		t.Fatalf("without memory: %d answers, %v, retry after %v", p.answers, p.err, p.after)
	}
}

// TestProduceRequests checks the requests that are refused as a whole.
func TestProduceRequests(t *testing.T) {
	r := newRig(t)
	f := func(body []byte) {
		t.Helper()
		var code wire.Code
		answers := 0
		r.b.ServeCall(wire.NewCall(wire.APIProduce, 0, body, func(frame []byte, _ []wire.FileRange) {
			answers++
			code = wire.Code(binary.LittleEndian.Uint16(frame[8:]))
		}))
		if answers != 1 || code != wire.CodeInvalidRequest {
			t.Fatalf("% x: %d answers, %v", body, answers, code)
		}
	}

	f(nil)
	f([]byte{1, 0, 0, 0, 0})
	f((&wire.ProduceRequest{Acks: 1}).AppendTo(nil, 0))                                              // no batch
	f(append((&wire.ProduceRequest{Acks: 1}).AppendTo(nil, 0), 0))                                   // a byte too many
	f((&wire.ProduceRequest{Acks: 2, Batches: []wire.Batch{make(wire.Batch, 96)}}).AppendTo(nil, 0)) // acks=2
	f((&wire.ProduceRequest{Acks: 1, Batches: []wire.Batch{make(wire.Batch, 95)}}).AppendTo(nil, 0)) // less than a header
	f([]byte{1, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0x07})                                           // 2^31-1 batches in 10 bytes
	f((&wire.ProduceRequest{Acks: 1, Batches: make([]wire.Batch, 0)}).AppendTo(nil, 0))
}

// TestProduceDiskFull checks that a full disk refuses definitely, keeps reads
// and deletes going, and takes writes again once there is room.
func TestProduceDiskFull(t *testing.T) {
	r := newRig(t)
	id := r.create("t", 1)
	other := r.create("other", 1)
	value := strings.Repeat("v", 5000)
	want := []string{}
	for range 5 {
		r.write(id, 0, value)
		want = append(want, value)
	}
	r.pass(2 * time.Second)
	total, free, err := r.fs.Space("data")
	if err != nil {
		t.Fatal(err)
	}
	r.fs.SetCapacity(total - free)
	res := r.send(batchOf(t, wire.BuilderOptions{Topic: id}, value))[0]
	if res.Code != wire.CodeDiskFull || !res.Code.Definite() || res.RetryAfterMillis == 0 {
		t.Fatalf("%+v", res)
	}
	if got := r.readAll(id, 0); !slices.Equal(got, want) {
		t.Fatalf("%d records are left of %d", len(got), len(want))
	}
	r.delete(other)
	r.pass(time.Minute)
	r.kill(true) // and a machine that crashes meanwhile comes up again
	r.start()
	if got := r.readAll(id, 0); !slices.Equal(got, want) {
		t.Fatalf("%d records are left of %d after a restart", len(got), len(want))
	}
	r.fs.SetCapacity(0)
	r.write(id, 0, value)
}
