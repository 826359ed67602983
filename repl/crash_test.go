package repl

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/teralog/teralog/storage"
	"github.com/teralog/teralog/wire"
)

// A sentBatch is one batch of one record, as the world outside knows it.
type sentBatch struct {
	batch    wire.Batch // as sent, before any stamp
	value    string
	seq      int32
	acked    bool
	offset   wire.Offset // once acked
	appended int64       // ms, as its ack says
}

// A history is everything sent to one partition, in order, less what was
// refused definitely: its log must be a prefix of that, whatever happens.
type history struct {
	t     *testing.T
	seed  uint64
	rand  *rand.Rand
	st    Settings
	fs    *storage.MemFS
	set   *Set
	p     *Partition
	ms    int
	boot  int
	epoch wire.Epoch
	sent  []*sentBatch
	count int
	seen  wire.Offset // the highest bound a consumer has seen
	start wire.Offset // acknowledged by a trim
	trace []Step
	lied  bool // a sync failed: pages that look clean may not be on the disk
}

// TestCrash lets a partition live through process crashes, power cuts, failing
// syncs and full disks, and compares what is left with what was promised: N1 to
// N5, I1, I2.
func TestCrash(t *testing.T) {
	modes := []Settings{
		{Flush: Async, FlushEvery: 50 * time.Millisecond},
		{Flush: Interval, FlushBytes: 600, FlushEvery: 40 * time.Millisecond},
		{Flush: Sync},
	}
	seeds := uint64(40)
	if testing.Short() {
		seeds = 20
	}
	for seed := range seeds {
		for _, st := range modes {
			h := newHistory(t, seed, st)
			for range 4 {
				h.live()
				h.crash()
			}
			h.set.Close()
		}
	}
}

func newHistory(t *testing.T, seed uint64, st Settings) *history {
	st.Log = storage.Options{SegmentBytes: 1500, IndexInterval: 128, SnapshotBytes: 2000}
	h := &history{t: t, seed: seed, rand: rand.New(rand.NewPCG(seed, uint64(st.Flush))), st: st, fs: storage.NewMemFS(seed)}
	h.open(true)
	return h
}

func (h *history) fatalf(format string, args ...any) {
	h.t.Helper()
	h.t.Fatalf("seed %d, %v: %s", h.seed, h.st.Flush, fmt.Sprintf(format, args...))
}

// open starts the node on the disk as it is.
func (h *history) open(format bool) {
	h.t.Helper()
	h.lied = false
	h.fs.AfterOp(func(op storage.Op) { h.lied = h.lied || op.Kind == storage.OpSync && op.Err != nil })
	d, err := storage.OpenDir(h.fs, "data", storage.DirOptions{
		Node: 1, Boot: fmt.Sprint(h.boot), Format: format, Reserve: -1,
		NewID: func() wire.UUID { return wire.UUID{1} },
	})
	if err != nil {
		h.fatalf("%v", err)
	}
	if start := d.Start(); !start.Clean && !start.SameBoot {
		h.epoch++
	}
	h.set = NewSet(SetConfig{Manual: true, Dirs: []*storage.Dir{d}, PointEvery: 30 * time.Millisecond, TidyEvery: 100 * time.Millisecond})
	if err := h.set.Host("t", testID, d, h.st, h.epoch, format, at(h.ms)); err != nil {
		h.fatalf("%v", err)
	}
	if err := d.Recovered(); err != nil {
		h.fatalf("%v", err)
	}
	h.p, _ = h.set.Leader(testID)
	if e := h.p.View().Epoch; e != h.epoch {
		h.fatalf("epoch %d, want %d", e, h.epoch)
	}
}

// live does what clients, disk and time may do for a while.
func (h *history) live() {
	sick := h.rand.IntN(5) == 0
	for range 20 + h.rand.IntN(100) {
		switch n := h.rand.IntN(20); {
		case n < 6:
			h.produce()
		case n < 7:
			h.ms += h.rand.IntN(30)
		case n < 8:
			h.trim()
		case n < 9 && sick:
			h.fs.Fail(storage.OpSync, 1+h.rand.IntN(10), syscall.EIO)
		case n < 10 && sick:
			h.fs.Fail("write:.log", 1, syscall.ENOSPC)
		default:
			h.step()
		}
		if v := h.p.View(); v.Err == nil {
			h.seen = max(h.seen, v.Committed)
		}
	}
	h.fs.Heal()
}

func (h *history) step() {
	if steps := h.set.Steps(nil, at(h.ms)); len(steps) > 0 {
		next := steps[h.rand.IntN(len(steps))]
		h.trace = append(h.trace, next)
		h.set.Step(next, at(h.ms))
	}
}

// produce sends the next batch of an idempotent producer. If an earlier one was
// refused, its sequence is used again, as a producer that keeps order does.
func (h *history) produce() {
	h.count++
	b := &sentBatch{value: fmt.Sprint("v", h.count), seq: int32(len(h.sent))}
	b.batch = testBatch(h.t, 7, b.seq, 1, h.rand.IntN(200), b.value)
	h.sent = append(h.sent, b)
	h.send(b, func(err error) {
		if wire.CodeOf(err).Definite() { // and so is whatever was sent behind it
			i := slices.Index(h.sent, b)
			if i >= 0 {
				h.sent = h.sent[:i]
			}
		}
	})
}

// send writes b, for the first time or again.
func (h *history) send(b *sentBatch, failed func(error)) {
	produce(h.p, []Write{{Batch: slices.Clone(b.batch), Acks: wire.AcksAll, Done: func(at storage.Appended, err error) {
		switch {
		case err != nil:
			failed(err)
		case b.acked && at.First != b.offset:
			h.fatalf("%s was acknowledged at offset %d, and again at %d", b.value, b.offset, at.First)
		default:
			b.acked, b.offset, b.appended = true, at.First, max(b.appended, at.Time)
			if v := h.p.View(); v.Committed <= at.Last {
				h.fatalf("%s at offset %d was acknowledged while %d was committed", b.value, at.First, v.Committed)
			}
		}
	}}}, false)
}

func (h *history) trim() {
	if v := h.p.View(); v.Committed > v.Start {
		before := v.Start + wire.Offset(h.rand.Int64N(int64(v.Committed-v.Start)))
		h.p.Trim(before, func(start wire.Offset, err error) {
			if err == nil {
				h.start = max(h.start, start)
			}
		})
	}
}

// crash ends the node, by a process crash or a power cut, starts it again and
// judges what is left.
func (h *history) crash() {
	h.t.Helper()
	power := h.rand.IntN(3) > 0
	if power {
		h.fs = h.fs.Crash(storage.CrashAny)
		h.boot++
	} else {
		h.fs = h.fs.Clone()
	}
	lossy := power || h.lied
	h.open(false)
	h.judge(lossy)

	// What is served after a start outlives the next power cut.
	end := h.p.View().End
	h.fs = h.fs.Crash(storage.CrashAny)
	h.boot++
	h.open(false)
	if again := h.p.View().End; again != end {
		h.fatalf("the log ended at %d after the start, at %d after the next power cut", end, again)
	}
	h.resend()
}

// judge compares the log with the history, and forgets what was lost.
func (h *history) judge(lossy bool) {
	h.t.Helper()
	values := h.read()
	v := h.p.View()
	if v.Start < h.start {
		h.fatalf("a trim to %d was acknowledged, the log starts at %d", h.start, v.Start)
	}
	if int(v.End) > len(h.sent) {
		h.fatalf("the log ends at %d, only %d batches were sent", v.End, len(h.sent))
	}
	for i, value := range values {
		if want := h.sent[int(v.Start)+i].value; value != want {
			h.fatalf("offset %d holds %s, want %s", int(v.Start)+i, value, want)
		}
	}
	var bytes, first, last int64
	for _, b := range h.sent[v.End:] {
		if !b.acked {
			continue
		}
		if bytes == 0 {
			first = b.appended
		}
		bytes, last = bytes+int64(len(b.batch)), b.appended
	}
	switch {
	case bytes > 0 && (!lossy || h.st.Flush == Sync):
		h.fatalf("%d acknowledged bytes are lost, the log ends at %d", bytes, v.End)
	case h.st.Flush == Interval && (bytes > h.st.FlushBytes || last-first > h.st.FlushEvery.Milliseconds()):
		h.fatalf("%d acknowledged bytes over %d ms are lost", bytes, last-first)
	case h.st.Flush == Sync && v.End < h.seen:
		h.fatalf("consumers saw records below %d, the log ends at %d", h.seen, v.End)
	}
	h.sent, h.seen = h.sent[:v.End], v.End
}

// read returns the values in the log.
func (h *history) read() (values []string) {
	v := h.p.View()
	for at := v.Start; at < v.End; {
		r, err := v.Log.Find(at, v.Committed, 1000)
		if err != nil {
			h.fatalf("find offset %d of %d to %d: %v", at, v.Start, v.End, err)
		}
		b := make([]byte, r.Len)
		if _, err := r.R.ReadAt(b, r.Off); err != nil {
			h.fatalf("%v", err)
		}
		r.Done()
		for batch, err := range wire.Batches(b) {
			if err == nil {
				err = batch.Verify()
			}
			if err != nil {
				h.fatalf("batch at offset %d: %v", at, err)
			}
			d := wire.Decoder{MaxRecords: 1 << 20}
			batch.Records(&d, func(r *wire.Record) error {
				value := string(r.Value)
				for i := range value {
					if value[i] == 0 {
						value = value[:i]
						break
					}
				}
				values = append(values, value)
				return nil
			})
			d.Release()
			at = batch.NextOffset()
		}
	}
	return values
}

// resend sends the newest batches again, as a producer that got no answer does:
// each must get the offset it has.
func (h *history) resend() {
	for i := max(0, len(h.sent)-5); i < len(h.sent); i++ {
		b := h.sent[i]
		if wire.Offset(i) < h.p.View().Start {
			continue
		}
		b.acked, b.offset = true, wire.Offset(i)
		h.send(b, func(err error) { h.fatalf("%s, at offset %d, was sent again: %v", b.value, i, err) })
	}
	for range 10 {
		h.set.Turn(at(h.ms))
	}
	if v := h.p.View(); int(v.End) != len(h.sent) {
		h.fatalf("%d batches, the log ends at %d", len(h.sent), v.End)
	}
}
