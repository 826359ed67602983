package repl

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/teralog/teralog/mem"
	"github.com/teralog/teralog/storage"
	"github.com/teralog/teralog/wire"
)

var testID = wire.PartitionID{Topic: 5000, Partition: 3}

// testDir formats a data directory on fs.
func testDir(t testing.TB, fs storage.FS, path string) *storage.Dir {
	t.Helper()
	n := byte(0)
	d, err := storage.OpenDir(fs, path, storage.DirOptions{
		Node: 1, Boot: "boot", Format: true, Reserve: 1 << 16,
		NewID: func() (id wire.UUID) { n++; id[0] = n; return id },
	})
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// A rig is a manual set with one partition on a disk in memory, told what to
// do by a story. Each line is a command, a bar, and what is seen since the line
// before: who was answered how, what happened, and the offsets if they moved.
type rig struct {
	t      testing.TB
	fs     *storage.MemFS
	set    *Set
	p      *Partition
	seen   []string
	ms     int
	last   offsets
	sent   map[wire.ProducerID]int32 // next sequence
	bodies *mem.Pool

	segments bool // what happens to segments is seen, too
}

func newRig(t testing.TB, st Settings, c SetConfig) *rig {
	r := &rig{t: t, fs: storage.NewMemFS(1), sent: map[wire.ProducerID]int32{}, bodies: mem.NewPool("bodies")}
	c.Manual = true
	c.Dirs = []*storage.Dir{testDir(t, r.fs, "data")}
	c.OnEvent = func(e Event) {
		switch {
		case e.Kind != LogTrimmed && e.Kind != SegmentRolled:
			r.note("%v", e.Kind)
		case r.segments:
			r.note("%v:%d,%d", e.Kind, e.From, e.To)
		}
	}
	r.set = NewSet(c)
	if err := r.set.Host("t", testID, c.Dirs[0], st, 0, true, r.now()); err != nil {
		t.Fatal(err)
	}
	r.p, _ = r.set.Leader(testID)
	return r
}

func (r *rig) now() mem.Now { return at(r.ms) }

func (r *rig) note(format string, args ...any) {
	r.seen = append(r.seen, fmt.Sprintf(format, args...))
}

// play tells the story and compares.
func (r *rig) play(story string) {
	r.t.Helper()
	for line := range strings.Lines(strings.TrimSpace(story)) {
		command, want, _ := strings.Cut(strings.TrimSpace(line), "|")
		if command == "" {
			continue
		}
		r.seen = nil
		for one := range strings.SplitSeq(command, ";") {
			r.do(strings.Fields(one))
		}
		v := r.p.View()
		if o := (offsets{v.Start, v.Stable, v.Committed, v.Flushed, v.End}); o != r.last {
			r.last = o
			r.note("%d≤%d≤%d,%d", o.start, o.committed, o.end, o.flushed)
		}
		if got := strings.Join(r.seen, " "); got != strings.Join(strings.Fields(want), " ") {
			r.t.Fatalf("%s: got %q, want %q\nof%s", command, got, strings.TrimSpace(want), story)
		}
	}
}

func (r *rig) do(args []string) {
	r.t.Helper()
	rest := args[1:]
	switch args[0] {
	case "produce":
		r.produce(rest)
	case "admit":
		var e *wire.Error
		switch err := r.p.Admit(r.now()); {
		case errors.As(err, &e):
			r.note("%v,%v,%v", e.Limit, e.Code, e.RetryAfter)
		default:
			r.note("%v", err)
		}
	case "turn":
		r.p.Turn(r.now())
		if n := r.bodies.Stats().Live; n != 0 {
			r.t.Fatalf("%d bodies are held after the turn", n)
		}
	case "start":
		r.set.Step(Step{Kind: StepFlushStart, ID: testID}, r.now())
	case "done":
		r.set.Step(Step{Kind: StepFlushDone, ID: testID}, r.now())
	case "tidy":
		r.set.Step(Step{Kind: StepTidy}, r.now())
	case "all": // whatever is possible, until nothing is
		for r.set.Turn(r.now()) {
		}
	case "steps":
		for _, s := range r.set.Steps(nil, r.now()) {
			if s.Kind != StepTidy {
				r.note("%v", s.Kind)
			}
		}
	case "clock":
		r.ms, _ = strconv.Atoi(rest[0])
		r.set.Steps(nil, r.now())
	case "await": // name from minBytes
		from, _ := strconv.Atoi(rest[1])
		bytes, _ := strconv.Atoi(rest[2])
		w := &Waiter{From: wire.Offset(from), MinBytes: bytes}
		w.Wake = func() { r.note("wake:%s", rest[0]) }
		if err := r.p.Await(w); err != nil {
			r.note("%s=%v", rest[0], wire.CodeOf(err))
		}
	case "trim":
		before, _ := strconv.Atoi(rest[0])
		r.p.Trim(wire.Offset(before), func(start wire.Offset, err error) { r.note("trimmed=%d,%v", start, wire.CodeOf(err)) })
	case "fail": // kind nth error
		nth, _ := strconv.Atoi(rest[1])
		r.fs.Fail(rest[0], nth, map[string]error{"EIO": syscall.EIO, "ENOSPC": syscall.ENOSPC, "EMFILE": syscall.EMFILE}[rest[2]])
	case "heal":
		r.fs.Heal()
	case "reset":
		r.fs.ResetCounts()
	case "count":
		r.note("%s=%d", rest[0], r.fs.Count(rest[0]))
	case "explode": // the next call of a kind on a file of that name
		kind, name, _ := strings.Cut(rest[0], ":")
		r.fs.BeforeOp(func(op storage.Op) error {
			if op.Kind == kind && strings.Contains(op.Name+op.To, name) {
				r.fs.BeforeOp(nil)
				panic("in the disk")
			}
			return nil
		})
	case "bug": // the next turn ends in a panic, after its append
		r.p.leader.flush.flushed = 1 << 40
	case "drop":
		if err := r.set.Drop(testID); err != nil {
			r.note("%v", err)
		}
	case "close":
		r.note("ends=%d", len(r.set.Close()[r.p.dir.dir]))
	default:
		r.t.Fatalf("unknown command %q", args)
	}
}

// produce queues one write a name, all with one push. Options: acks, of (records
// each), bytes (of padding a record), from (a producer), seq (its sequence), within
// (a deadline in ms).
func (r *rig) produce(args []string) {
	o := map[string]int{"acks": int(wire.AcksAll), "of": 1}
	var names []string
	for _, arg := range args {
		if key, value, ok := strings.Cut(arg, "="); ok {
			o[key], _ = strconv.Atoi(value)
			continue
		}
		names = append(names, arg)
	}
	producer := wire.ProducerID(o["from"])
	seq := r.sent[producer]
	if again, ok := o["seq"]; ok {
		seq = int32(again)
	}
	var ws []Write
	for _, name := range names {
		b := testBatch(r.t, producer, seq, o["of"], o["bytes"], name)
		body := r.bodies.Get(len(b))
		copy(body.B, b)
		ws = append(ws, Write{
			Batch: body.B, Body: body,
			Acks: int8(o["acks"]), Deadline: time.Duration(o["within"]) * time.Millisecond,
			Done: func(at storage.Appended, err error) { r.answered(name, at, err) },
		})
		seq += int32(o["of"])
	}
	r.sent[producer] = max(r.sent[producer], seq)
	produce(r.p, ws, false)
}

func (r *rig) answered(name string, at storage.Appended, err error) {
	switch {
	case name == "boom":
		r.note("boom")
		panic("in the answer")
	case err != nil:
		r.note("%s=%v", name, wire.CodeOf(err))
	default:
		r.note("%s=%d", name, at.First)
		if end := r.p.View().End; at.Last >= end {
			r.t.Errorf("%s at offset %d was answered while the view ended at %d", name, at.Last, end)
		}
	}
}

// testBatch returns a batch of n records that hold text, padded to bytes.
func testBatch(t testing.TB, producer wire.ProducerID, seq int32, n, bytes int, text string) wire.Batch {
	t.Helper()
	o := wire.BuilderOptions{Topic: testID.Topic, Partition: testID.Partition}
	if producer > 0 {
		o.Producer, o.ProducerEpoch, o.BaseSequence = producer, 0, seq
	}
	b := wire.NewBuilder(o)
	value := []byte(text)
	if bytes > 0 {
		value = append(value, make([]byte, bytes)...)
	}
	for range n {
		if ok, err := b.Add(at(0).Wall, nil, value, nil); !ok || err != nil {
			t.Fatal(ok, err)
		}
	}
	buf, err := b.Build()
	if err != nil {
		t.Fatal(err)
	}
	return slices.Clone(wire.Batch(buf.B))
}

// produce gives p writes: inline does their work here, as a connection's reader
// does that has nothing else at hand, else it is left to the appender.
func produce(p *Partition, ws []Write, inline bool) {
	switch {
	case !p.Produce(ws):
	case inline:
		p.Enter(true)
		p.Leave()
	default:
		p.leave()
	}
}
