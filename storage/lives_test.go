package storage

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"slices"
	"syscall"
	"testing"

	"github.com/teralog/teralog/wire"
)

// A life is a log that is written, flushed, trimmed, killed, cut from its power
// and restarted at random, beside a model of what it may hold.
type life struct {
	t     *testing.T
	seed  uint64
	rnd   *rand.Rand
	o     Options
	fs    *MemFS
	l     *Log
	point *Point

	batches  []wire.Batch // in the log, all that were ever there from offset 0
	flushed  wire.Offset
	start    wire.Offset
	seqs     map[wire.ProducerID]int32
	mark     int
	now      int64
	restarts int
}

// TestRandomLives: whatever happens, in whatever order, the log holds a prefix of
// what was appended, all that was flushed, and its look-ups agree with it.
func TestRandomLives(t *testing.T) {
	t.Parallel()
	restarts := 0
	for seed := range uint64(80) {
		x := newLife(t, seed)
		for range 60 {
			x.step()
		}
		x.restart()
		restarts += x.restarts
	}
	if restarts < 400 {
		t.Fatalf("only %d restarts", restarts)
	}
}

func newLife(t *testing.T, seed uint64) *life {
	rnd := rand.New(rand.NewPCG(seed, 99))
	x := &life{t: t, seed: seed, rnd: rnd, fs: NewMemFS(seed), now: 1000, seqs: map[wire.ProducerID]int32{}}
	x.o = Options{
		SegmentBytes: 500 + rnd.Int64N(30_000), IndexInterval: 1 + rnd.IntN(5000),
		SnapshotBytes: 1 + rnd.Int64N(20_000), RetentionBytes: 5000 + rnd.Int64N(60_000),
	}
	x.l = newTestLog(t, x.fs, x.o)
	if err := x.l.SetEpoch(0); err != nil {
		t.Fatal(err)
	}
	return x
}

func (x *life) fatal(format string, args ...any) {
	x.t.Helper()
	x.t.Fatalf("seed %d: "+format, append([]any{x.seed}, args...)...)
}

func (x *life) step() {
	switch x.rnd.IntN(12) {
	case 0, 1, 2, 3, 4:
		x.append(nil)
	case 5:
		x.append(syscall.ENOSPC)
	case 6:
		x.flush()
	case 7:
		x.checkpoint()
	case 8:
		x.trim()
	case 9:
		if _, err := x.l.RollIdle(at(1 << 50)); err != nil {
			x.fatal("roll: %v", err)
		}
	case 10:
		x.look()
	case 11:
		x.restart()
	}
}

// append writes a few batches; with fail, one of its operations fails.
func (x *life) append(fail error) {
	if fail != nil {
		x.fs.Fail("", 1+x.rnd.IntN(6), fail)
		defer x.fs.Heal()
	}
	x.now += x.rnd.Int64N(50)
	end := x.l.View().End()
	var bs []wire.Batch
	seqs := map[wire.ProducerID]int32{}
	for range 1 + x.rnd.IntN(6) {
		x.mark++
		m := maker{mark: x.mark, value: x.rnd.IntN(1 << x.rnd.IntN(13)), times: make([]int64, 1+x.rnd.IntN(3))}
		if x.rnd.IntN(200) == 0 {
			m.value = 2 * scanBytes
		}
		for i := range m.times {
			m.times[i] = x.rnd.Int64N(3000)
		}
		if x.rnd.IntN(2) == 0 {
			m.producer = wire.ProducerID(1 + x.rnd.IntN(3))
			seq, ok := seqs[m.producer]
			if !ok {
				seq = x.seqs[m.producer]
			}
			m.seq, seqs[m.producer] = seq, seq+int32(len(m.times))
		}
		b := m.batch(x.t)
		if _, dup, err := x.l.producers.Stage(b, end, at(x.now)); dup || err != nil {
			x.fatal("stage: %v, %v", dup, err)
		}
		end += wire.Offset(len(m.times))
		bs = append(bs, b)
	}
	_, err := x.l.Append(bs, x.l.View().Epoch(), at(x.now))
	if err != nil {
		x.l.producers.Drop()
		if !errors.Is(err, ErrDiskFull) || fail == nil {
			x.fatal("append: %v", err)
		}
		return
	}
	x.l.producers.Commit()
	x.batches = append(x.batches, bs...)
	for id, seq := range seqs {
		x.seqs[id] = seq
	}
}

func (x *life) flush() {
	end, err := x.l.Flush()
	if err != nil {
		x.fatal("flush: %v", err)
	}
	x.flushed = end
}

func (x *life) checkpoint() {
	c := x.l.Checkpoint(at(x.now))
	if c == nil {
		return
	}
	p, err := c.Run()
	if err != nil {
		x.fatal("recovery point: %v", err)
	}
	x.flushed, x.point = p.Offset, &p
	x.l.Checkpointed(p)
	if _, err := x.l.Reclaim(); err != nil {
		x.fatal("reclaim: %v", err)
	}
}

func (x *life) trim() {
	if x.rnd.IntN(2) == 0 {
		x.l.Retain(at(x.now), x.flushed)
	} else if err := x.l.Trim(x.start + below(x.rnd, x.l.View().End()-x.start+1)); err != nil {
		x.fatal("trim: %v", err)
	}
	x.start = x.l.View().Start()
}

// restart ends the log in one of three ways, opens it and compares.
func (x *life) restart() {
	x.restarts++
	in := openState{Quarantine: testQuarantine}
	switch x.rnd.IntN(3) {
	case 0:
		end := closeLog(x.t, x.l)
		in.Clean, x.point, x.flushed = &end, &end.Point, end.Point.Offset
	case 1:
		x.fs, in.Warm = x.fs.Clone(), true
	case 2:
		x.fs = x.fs.Crash(CrashAny)
	}
	in.Point = x.point
	epoch := x.l.View().Epoch()
	l, err := openLog(x.fs, logDir, "orders", orders3, x.o, in, at(x.now))
	if err != nil {
		x.fatal("open: %v", err)
	}
	v, rep := l.View(), l.Recovery()
	if v.End() < x.flushed || v.Start() > x.start || v.Epoch() != epoch || len(rep.Damaged) > 0 || rep.Lost > 0 {
		x.fatal("opened: epoch %d, %d was flushed, start %d: %v", v.Epoch(), x.flushed, x.start, rep)
	}
	if in.Clean != nil && (!rep.Clean || rep.Touched()) {
		x.fatal("a clean stop was not one: %v", rep)
	}
	if in.Warm && v.End() != x.l.View().End() {
		x.fatal("a kill lost %d to %d: %v", v.End(), x.l.View().End(), rep)
	}
	x.batches = slices.DeleteFunc(x.batches, func(b wire.Batch) bool { return b.BaseOffset() >= v.End() })
	x.l, x.start, x.flushed = l, v.Start(), v.End()
	x.look()
	x.judgeProducers()
	if err := l.SetEpoch(epoch + 1); err != nil {
		x.fatal("epoch: %v", err)
	}
}

// look compares what can be read with the model.
func (x *life) look() {
	v := x.l.View()
	got, err := contents(v, v.Start(), v.End(), 1+x.rnd.IntN(20_000))
	if err != nil {
		x.fatal("read: %v", err)
	}
	var want []byte
	var rs []stamped
	d := &wire.Decoder{}
	defer d.Release()
	for _, b := range x.batches {
		if b.NextOffset() > v.Start() {
			want = append(want, b...)
			if err := b.Records(d, func(r *wire.Record) error {
				rs = append(rs, stamped{r.Offset, r.Time, b.AppendTime()})
				return nil
			}); err != nil {
				x.fatal("%v", err)
			}
		}
	}
	if !bytes.Equal(got, want) {
		x.fatal("offsets %d to %d: %d bytes, want %d", v.Start(), v.End(), len(got), len(want))
	}
	for range 5 {
		c, t := Clock(x.rnd.IntN(2)), x.rnd.Int64N(max(x.now, 3000)+100)
		bound := v.Start() + below(x.rnd, v.End()-v.Start()+1)
		want, _ := firstStamped(rs, c, t, v.Start(), bound)
		if at, _, err := v.FindTime(c, t, bound, nil); at != want || err != nil {
			x.fatal("FindTime(%d, %d, %d) = %d, %v; want %d", c, t, bound, at, err, want)
		}
	}
}

// judgeProducers compares the recovered state with one made from all batches.
func (x *life) judgeProducers() {
	want := newProducers(x.o.filled())
	clear(x.seqs)
	for _, b := range x.batches {
		want.replay(b)
		if id, _, _ := b.Producer(); id != wire.NoProducer {
			x.seqs[id] = wire.NextSequence(b.LastSequence(), 1)
		}
	}
	if got, want := x.l.producers.encode(orders3, 0), want.encode(orders3, 0); !bytes.Equal(got, want) {
		x.fatal("producers\n%x, want\n%x", got, want)
	}
}

// TestNoteEpoch has a full disk that cannot record a new leader epoch. The log is
// read under it, and once there is room the epoch is recorded, or its batches tell
// of it.
func TestNoteEpoch(t *testing.T) {
	f := func(point bool) {
		t.Helper()
		fs := NewMemFS(1)
		l := newTestLog(t, fs, Options{})
		mustAppend(t, l, 1, maker{}.batch(t))
		p := mustPoint(t, l)
		fs.SetCapacity(pageSize)
		if err := l.SetEpoch(5); !isDiskFull(err) {
			t.Fatalf("recorded on a full disk: %v", err)
		}
		l.NoteEpoch(5)
		if e := l.View().Epoch(); e != 5 || len(mustContents(t, l.View())) == 0 {
			t.Fatalf("epoch %d", e)
		}
		fs.SetCapacity(0)
		if _, err := l.Append([]wire.Batch{maker{}.batch(t)}, 5, at(2)); err != nil {
			t.Fatal(err)
		}
		if point {
			p = mustPoint(t, l)
		} else if _, err := l.Flush(); err != nil {
			t.Fatal(err)
		}
		end := l.View().End()
		l = reopen(t, fs.Crash(CrashNone), Options{}, &p)
		if e, from := l.View().EpochEnd(l.View().Epoch()); l.View().Epoch() != 5 || e != 5 || from != end {
			t.Fatalf("with a recovery point %v: epoch %d, which ends at %d", point, l.View().Epoch(), from)
		}
	}
	f(true)
	f(false)
}
