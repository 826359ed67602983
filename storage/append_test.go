package storage

import (
	"bytes"
	"errors"
	"math"
	"syscall"
	"testing"
	"time"

	"github.com/teralog/teralog/mem"
	"github.com/teralog/teralog/wire"
)

func TestAppendIsOneWrite(t *testing.T) {
	fs := NewMemFS(1)
	l := newTestLog(t, fs, Options{})
	var bs []wire.Batch
	for i := range 64 {
		bs = append(bs, maker{mark: i, value: 1000}.batch(t))
	}
	fs.ResetCounts()
	a := mustAppend(t, l, 5, bs...)
	if n, all := fs.Count(OpWrite), ops(fs); n != 1 || all != 1 {
		t.Fatalf("64 batches: %d writes, %d operations, want one", n, all)
	}
	if l.tail.entries() < 15 {
		t.Fatalf("%d index entries over %d bytes", l.tail.entries(), a.Bytes)
	}
	if a.First != 0 || a.Last != 63 || l.View().End() != 64 {
		t.Fatalf("%+v", a)
	}
	mustContents(t, l.View())
}

// TestLargeAppendIsOneWrite: batches too large to be joined go out by one call
// too, and allocate nothing but the view.
func TestLargeAppendIsOneWrite(t *testing.T) {
	fs := NewMemFS(1)
	l := newTestLog(t, fs, Options{})
	f := func(l *Log) func() {
		var bs []wire.Batch
		for i := range 20 {
			bs = append(bs, maker{mark: i, value: gatherBytes}.batch(t))
		}
		return func() { mustAppend(t, l, 5, bs...) }
	}
	one := f(l)
	fs.ResetCounts()
	one()
	if n := fs.Count(OpWrite); n != 1 || l.View().End() != 20 {
		t.Fatalf("20 batches: %d writes, then the end is %d", n, l.View().End())
	}
	mustContents(t, l.View())

	if mem.Checked || raceEnabled { // released buffers are not used again, or at random
		return
	}
	l, err := createLog(OS(), t.TempDir(), "orders", orders3, Options{IndexInterval: 1 << 20, SnapshotBytes: 1 << 30}, nil, at(1))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if n := testing.AllocsPerRun(100, f(l)); n > 1 {
		t.Errorf("%v allocations for 20 batches, want one View", n)
	}
}

func ops(fs *MemFS) (n int) {
	for _, kind := range []string{OpOpen, OpMkdir, OpRename, OpRemove, OpReadDir, OpSyncDir, OpRead, OpWrite, OpTruncate, OpSync, OpAllocate, OpDropCache, OpMap, OpClose, OpSize} {
		n += fs.Count(kind)
	}
	return n
}

// TestIndexInterval: many batches appended at once are indexed as if they had
// come one by one.
func TestIndexInterval(t *testing.T) {
	one, many := newTestLog(t, NewMemFS(1), Options{}), newTestLog(t, NewMemFS(1), Options{})
	var bs []wire.Batch
	for i := range 1000 {
		bs = append(bs, maker{mark: i, value: 900}.batch(t))
		mustAppend(t, one, 5, maker{mark: i, value: 900}.batch(t))
	}
	a := mustAppend(t, many, 5, bs...)
	if n := many.tail.entries(); n < int(a.Bytes)/5200 || n > int(a.Bytes)/4096+1 {
		t.Fatalf("%d entries over %d bytes", n, a.Bytes)
	}
	if one.tail.sumOff != many.tail.sumOff || one.tail.sumTime != many.tail.sumTime || one.tail.entries() != many.tail.entries() {
		t.Fatalf("indexes differ: %d and %d entries", one.tail.entries(), many.tail.entries())
	}
}

// TestAppendAllocations: warm, an append allocates its View and no more, and a
// Find of the newest batches nothing.
func TestAppendAllocations(t *testing.T) {
	if mem.Checked {
		t.Skip("released buffers are not used again")
	}
	dir := t.TempDir()
	l, err := createLog(OS(), dir, "orders", orders3, Options{}, nil, at(1))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	bs := []wire.Batch{maker{value: 100, producer: 5}.batch(t), maker{value: 50}.batch(t)}
	seq := int32(0)
	turn := func() {
		bs[0].SetProducer(5, 0, seq)
		seq++
		if _, dup, err := l.producers.Stage(bs[0], l.View().End(), at(1)); dup || err != nil {
			t.Fatal(dup, err)
		}
		if _, err := l.Append(bs, 0, at(1)); err != nil {
			t.Fatal(err)
		}
		l.producers.Commit()
	}
	for range 5000 {
		turn()
	}
	if n := testing.AllocsPerRun(2000, turn); n > 1 {
		t.Errorf("%v allocations an append, want one View", n)
	}
	f := func(how string, from wire.Offset, bound wire.Offset) {
		t.Helper()
		v := l.View()
		find := func() {
			r, err := v.Find(from, bound, 1<<16)
			if err != nil || r.Len == 0 {
				t.Fatal(r, err)
			}
			if !r.Sound() {
				t.Fatalf("%s: just written, not in memory", how)
			}
			r.Done()
		}
		find()
		if n := testing.AllocsPerRun(500, find); n > 0 {
			t.Errorf("%s: %v allocations a Find, want none", how, n)
		}
	}
	f("newest", l.View().End()-10, l.View().End())
	f("older", 500, l.View().End())
	f("older, bound near", 500, 510)
}

// TestRollBeforeOverflow: a segment ends before an offset or a position in it
// would need more than 31 bits.
func TestRollBeforeOverflow(t *testing.T) {
	f := func(base wire.Offset, delta int32, wantRoll bool) {
		t.Helper()
		l := newTestLog(t, NewMemFS(1), Options{})
		l.active.base, l.tail.end, l.start = 0, base, base // as if batches of compaction covered what is below
		l.tail.size = 1
		b := wideBatch(t, delta)
		n, _ := l.fit([]wire.Batch{stampedAt(b, base)})
		if (n == 0) != wantRoll {
			t.Fatalf("batch of offsets %d to %d rolls: %v, want %v", base, base+wire.Offset(delta), n == 0, wantRoll)
		}
	}
	f(math.MaxInt32, 0, false)
	f(math.MaxInt32+1, 0, true)
	f(math.MaxInt32-5, 5, false)
	f(math.MaxInt32-5, 6, true)
	f(1<<32, 0, true)

	g := func(size int64, wantRoll bool) {
		t.Helper()
		l := newTestLog(t, NewMemFS(1), Options{SegmentBytes: 1 << 40})
		l.tail.size = size
		n, _ := l.fit([]wire.Batch{stampedAt(maker{}.sized(t, 200), 0)})
		if (n == 0) != wantRoll {
			t.Fatalf("batch at position %d rolls: %v, want %v", size, n == 0, wantRoll)
		}
	}
	g(math.MaxInt32-200, false)
	g(math.MaxInt32-199, true)
	g(1<<32, true)
}

// TestSparseOffsets: batches that cover a thousand million offsets each, as
// compaction leaves them, are found again across segments.
func TestSparseOffsets(t *testing.T) {
	fs := NewMemFS(1)
	o := Options{IndexInterval: 1}
	l := newTestLog(t, fs, o)
	next := wire.Offset(0)
	for i := range 10 {
		b := stampedAt(wideBatch(t, 1_000_000_000), next)
		if _, err := l.AppendStamped([]wire.Batch{b}); err != nil {
			t.Fatalf("batch %d: %v", i, err)
		}
		next = b.NextOffset()
	}
	check := func(l *Log) {
		t.Helper()
		mustContents(t, l.View())
		r, err := l.View().Find(7_500_000_000, next, 1)
		if err != nil || r.First != 7_000_000_007 || r.Next != 8_000_000_008 {
			t.Fatalf("found %d to %d: %v", r.First, r.Next, err)
		}
		r.Done()
	}
	check(l)
	if len(l.sealed) != 4 {
		t.Fatalf("%d sealed segments, want 4", len(l.sealed))
	}
	check(reopenClean(t, fs, o, closeLog(t, l)))
}

// wideBatch is a batch of one record that covers delta+1 offsets.
func wideBatch(t testing.TB, delta int32) wire.Batch {
	b := maker{}.batch(t)
	b[68], b[69], b[70], b[71] = byte(delta), byte(delta>>8), byte(delta>>16), byte(delta>>24)
	return b
}

func stampedAt(b wire.Batch, at wire.Offset) wire.Batch {
	b.Stamp(at, 0, 1, false)
	return b
}

func TestOffsetLimit(t *testing.T) {
	f := func(end wire.Offset, records int, want error) {
		t.Helper()
		l := newTestLog(t, NewMemFS(1), Options{})
		if err := l.begin(end); err != nil {
			t.Fatal(err)
		}
		l.start = end
		l.resum()
		_, err := l.Append([]wire.Batch{maker{times: make([]int64, records)}.batch(t)}, 0, at(1))
		if !errors.Is(err, want) || err != nil && !wire.CodeOf(err).Definite() {
			t.Fatalf("%d records at offset %d: %v, want %v", records, end, err, want)
		}
		if want != nil && l.View().End() != end {
			t.Fatalf("a refused append moved the end to %d", l.View().End())
		}
	}
	f(math.MaxInt64-4, 3, nil)
	f(math.MaxInt64-3, 3, ErrOffsetLimit)
	f(math.MaxInt64-1, 1, ErrOffsetLimit)
	f(math.MaxInt64-2, 1, nil)
}

// TestAppendFails lets each operation of appends that roll fail in turn. What is
// refused left nothing behind, and the log goes on.
func TestAppendFails(t *testing.T) {
	o := Options{SegmentBytes: 400, IndexInterval: 100}
	f := func(kind string, fail error, wantCode wire.Code) {
		t.Helper()
		for nth := 1; ; nth++ {
			fs := NewMemFS(uint64(nth))
			l := newTestLog(t, fs, o)
			want := []wire.Batch{maker{mark: 1, value: 60}.batch(t)}
			mustAppend(t, l, 1, want...)
			fs.Fail(kind, nth, fail)
			more := []wire.Batch{maker{mark: 2, value: 100}.batch(t), maker{mark: 3, value: 100}.batch(t), maker{mark: 4, value: 200}.batch(t)}
			_, err := l.Append(more, 0, at(2))
			if err == nil {
				want = append(want, more...)
			} else if errors.Is(err, ErrBroken) {
				t.Fatalf("operation %d: %v", nth, err)
			} else if wire.CodeOf(err) != wantCode {
				t.Fatalf("operation %d: %v, want %v", nth, err, wantCode)
			}
			fs.Heal()
			last := maker{mark: 5, value: 10}.batch(t)
			mustAppend(t, l, 3, last)
			want = append(want, last)
			check := func(how string, l *Log) {
				t.Helper()
				if got := mustContents(t, l.View()); !bytes.Equal(got, join(want)) {
					t.Fatalf("operation %d, %s: %d bytes, want %d", nth, how, len(got), len(join(want)))
				}
			}
			check("written", l)
			if _, err := l.Flush(); err != nil {
				t.Fatal(err)
			}
			check("restarted", reopen(t, fs.Crash(CrashNone), o, nil))
			if err == nil && nth > 30 { // no operation is left to fail
				return
			}
		}
	}
	f("", syscall.ENOSPC, wire.CodeDiskFull)
	f("write", ShortWrite{N: 30, Err: syscall.ENOSPC}, wire.CodeDiskFull)
	f("", syscall.EIO, wire.CodeInternal)
	f("open", syscall.EMFILE, wire.CodeBusy)
	f("open", syscall.ENFILE, wire.CodeBusy)
}

func join(bs []wire.Batch) (all []byte) {
	for _, b := range bs {
		all = append(all, b...)
	}
	return all
}

// TestAppendBreaks: the write fails and so does cutting it off.
func TestAppendBreaks(t *testing.T) {
	fs := NewMemFS(1)
	l := newTestLog(t, fs, Options{})
	mustAppend(t, l, 1, maker{}.batch(t))
	fs.Fail("write", 1, ShortWrite{N: 40, Err: syscall.ENOSPC})
	fs.Fail("truncate", 1, syscall.EIO)
	_, err := l.Append([]wire.Batch{maker{}.batch(t)}, 0, at(1))
	if !errors.Is(err, ErrBroken) || wire.CodeOf(err).Definite() {
		t.Fatalf("%v, want a broken log", err)
	}
	if _, again := l.Append([]wire.Batch{maker{}.batch(t)}, 0, at(1)); !errors.Is(again, ErrBroken) {
		t.Fatalf("a broken log took more: %v", again)
	}
	if _, err := l.Close(); err == nil {
		t.Fatal("a broken log has a clean end")
	}
	if again := reopen(t, fs.Clone(), Options{}, nil); again.View().End() != 1 {
		t.Fatalf("recovered end %d", again.View().End())
	}
}

func TestDiskFull(t *testing.T) {
	fs := NewMemFS(1)
	o := Options{SegmentBytes: 20_000, IndexInterval: 100}
	l := newTestLog(t, fs, o)
	if err := l.SetEpoch(0); err != nil {
		t.Fatal(err)
	}
	fs.SetCapacity(200_000)
	var err error
	n := 0
	for ; err == nil; n++ {
		_, err = l.Append([]wire.Batch{maker{value: 3000, mark: n}.batch(t)}, 0, at(1))
	}
	if !errors.Is(err, ErrDiskFull) || !wire.CodeOf(err).Definite() {
		t.Fatalf("%v, want DISK_FULL", err)
	}
	if end := l.View().End(); end != wire.Offset(n-1) {
		t.Fatalf("end %d after %d appends", end, n-1)
	}
	mustContents(t, l.View())
	l.start = 0
	if err := l.Trim(l.sealed[2].base); err != nil {
		t.Fatal(err)
	}
	p := mustPoint(t, l)
	if n, err := l.Reclaim(); n != 2 || err != nil {
		t.Fatalf("reclaimed %d: %v", n, err)
	}
	mustAppend(t, l, 1, maker{value: 3000}.batch(t))
	if _, err := l.Flush(); err != nil {
		t.Fatal(err)
	}
	mustContents(t, reopen(t, fs.Crash(CrashNone), o, &p).View())
}

// TestFailedSync: after one failure no flush is ever a success again.
func TestFailedSync(t *testing.T) {
	for _, fail := range []error{syscall.EIO, syscall.ENOSPC} {
		fs := NewMemFS(1)
		l := newTestLog(t, fs, Options{})
		mustAppend(t, l, 1, maker{}.batch(t))
		if _, err := l.Flush(); err != nil {
			t.Fatal(err)
		}
		mustAppend(t, l, 1, maker{}.batch(t))
		fs.Fail("sync", 1, fail)
		for range 3 {
			if end, err := l.Flush(); !errors.Is(err, ErrSync) || end != 1 {
				t.Fatalf("flushed to %d: %v", end, err)
			}
		}
		if _, err := l.Checkpoint(at(1)).Run(); !errors.Is(err, ErrSync) {
			t.Fatalf("recovery point: %v", err)
		}
	}
}

func TestRollByAge(t *testing.T) {
	l := newTestLog(t, NewMemFS(1), Options{SegmentAge: time.Second})
	f := func(now int64, want bool) {
		t.Helper()
		if a := mustAppend(t, l, now, maker{}.batch(t)); a.Rolled != want {
			t.Fatalf("append at %d rolled: %v, want %v", now, a.Rolled, want)
		}
	}
	f(1000, false)
	f(1999, false)
	f(2000, true)
	f(2500, false)
	f(100, false) // the clock went back: stamps do not
	f(9000, true)
	if got := l.View().LastAppendTime(); got != 9000 {
		t.Fatalf("last append time %d", got)
	}
}

func TestEpochFence(t *testing.T) {
	l := newTestLog(t, NewMemFS(1), Options{})
	if err := l.SetEpoch(5); err != nil {
		t.Fatal(err)
	}
	if err := l.SetEpoch(4); wire.CodeOf(err) != wire.CodeFencedEpoch {
		t.Fatalf("epoch 4 after 5: %v", err)
	}
	if _, err := l.Append([]wire.Batch{maker{}.batch(t)}, 4, at(1)); wire.CodeOf(err) != wire.CodeFencedEpoch {
		t.Fatalf("append under epoch 4 after 5: %v", err)
	}
	bad := stampedAt(maker{}.batch(t), 7)
	if _, err := l.AppendStamped([]wire.Batch{bad}); err == nil {
		t.Fatal("a gap was appended")
	}
}

// TestCrossedRolls appends from batches large and small over every segment size.
func TestCrossedRolls(t *testing.T) {
	for size := int64(100); size < 1500; size += 97 {
		fs := NewMemFS(1)
		o := Options{SegmentBytes: size, IndexInterval: 150}
		l := newTestLog(t, fs, o)
		var want []wire.Batch
		for turn := range 8 {
			var bs []wire.Batch
			for i := range 1 + turn%5 {
				bs = append(bs, maker{mark: turn*10 + i, value: (turn*31 + i*57) % 200}.batch(t))
			}
			mustAppend(t, l, 1, bs...)
			want = append(want, bs...)
		}
		check := func(how string, l *Log) {
			t.Helper()
			if got := mustContents(t, l.View()); !bytes.Equal(got, join(want)) {
				t.Fatalf("segments of %d bytes, %s: %d bytes, want %d", size, how, len(got), len(join(want)))
			}
		}
		check("written", l)
		check("restarted", reopenClean(t, fs, o, closeLog(t, l)))
		check("unclean", reopen(t, fs, o, nil))
	}
}

// TestAllocatesAhead: a file that grows has disk space up to a step ahead of
// it, taken with few calls, and none once it is sealed or closed. A disk
// without room for a step takes writes to its last page.
func TestAllocatesAhead(t *testing.T) {
	const step, parts = 8 << 20, 5
	fs := NewMemFS(1)
	l := newTestLog(t, fs, Options{SegmentBytes: parts * step, IndexInterval: 1 << 20})
	used := func() int64 {
		total, free, err := fs.Space(".")
		if err != nil {
			t.Fatal(err)
		}
		return total - free
	}
	unused := func() int64 { return used() - l.View().Bytes() } // slack of the last page and other files included
	one := func() { mustAppend(t, l, 5, maker{value: 50_000}.batch(t)) }

	idle := unused()
	for l.tail.size < step {
		one()
	}
	if n := fs.Count(OpAllocate); n != 0 || unused() > idle+pageSize {
		t.Fatalf("a file of %d bytes: %d allocations, %d bytes beside its own", l.tail.size, n, unused())
	}
	for len(l.sealed) == 0 && l.tail.size < (parts-1)*step {
		one()
		if unused() < idle || unused() > idle+2*step {
			t.Fatalf("at %d bytes of log %d more are taken", l.tail.size, unused())
		}
	}
	if n := fs.Count(OpAllocate); n < parts-2 || n > parts-1 {
		t.Fatalf("%d allocations for %d bytes", n, l.tail.size)
	}
	for len(l.sealed) == 0 {
		one()
	}
	if unused() > idle+step/8 {
		t.Fatalf("a sealed segment keeps %d bytes it does not use", unused()-idle)
	}
	for n := fs.Count(OpAllocate); fs.Count(OpAllocate) == n; { // to where most of a step lies ahead
		one()
	}
	if unused() < idle+step*3/4 {
		t.Fatalf("only %d bytes lie ahead", unused()-idle)
	}
	closeLog(t, l)
	if unused() > idle+step/2 {
		t.Fatalf("a closed log keeps %d bytes it does not use", unused()-idle)
	}

	fs = NewMemFS(1)
	l = newTestLog(t, fs, Options{SegmentBytes: 1 << 20, IndexInterval: 1 << 20})
	fs.SetCapacity(used() + 40*pageSize)
	for {
		_, err := l.Append([]wire.Batch{maker{value: 1000}.batch(t)}, 5, mem.Now{})
		if errors.Is(err, ErrDiskFull) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if l.tail.size < 39*pageSize {
		t.Fatalf("full after %d bytes with room for %d", l.tail.size, 40*pageSize)
	}
}
