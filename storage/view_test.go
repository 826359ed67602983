package storage

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"syscall"
	"testing"

	"github.com/teralog/teralog/wire"
)

// TestFindWhole asks for every offset, bound and size: whole batches from the
// one that holds the offset, below the bound, the first one whatever its size.
func TestFindWhole(t *testing.T) {
	for _, o := range []Options{{}, {SegmentBytes: 900, IndexInterval: 1}, {SegmentBytes: 2500, IndexInterval: 700}} {
		fs := NewMemFS(1)
		l := newTestLog(t, fs, o)
		var bs []wire.Batch
		for i := range 30 {
			b := maker{mark: i, value: i * 13 % 90, times: make([]int64, 1+i%3)}.batch(t)
			mustAppend(t, l, 1, b)
			bs = append(bs, b)
		}
		check := func(v *View) {
			t.Helper()
			for from := wire.Offset(0); from <= v.End(); from++ {
				for bound := from; bound <= v.End()+1; bound += 1 + from%3 {
					for _, size := range []int{0, 1, 200, 500, 5000} {
						judgeFind(t, v, bs, from, bound, size)
					}
				}
			}
		}
		check(l.View())
		check(reopenClean(t, fs, o, closeLog(t, l)).View())
	}
}

func judgeFind(t *testing.T, v *View, bs []wire.Batch, from, bound wire.Offset, size int) {
	t.Helper()
	r, err := v.Find(from, bound, size)
	if err != nil {
		t.Fatalf("Find(%d, %d, %d): %v", from, bound, size, err)
	}
	i := 0
	for i < len(bs) && bs[i].NextOffset() <= from {
		i++
	}
	if i == len(bs) || bs[i].NextOffset() > bound {
		if r.Len != 0 || r.Next != from {
			t.Fatalf("Find(%d, %d, %d) = %d bytes to %d, want none", from, bound, size, r.Len, r.Next)
		}
		return
	}
	if r.Len == 0 {
		t.Fatalf("Find(%d, %d, %d) found nothing", from, bound, size)
	}
	p := make([]byte, r.Len)
	if _, err := r.R.ReadAt(p, r.Off); err != nil && err != io.EOF {
		t.Fatal(err)
	}
	r.Done()
	rest := p
	next := bs[i].BaseOffset()
	for ; len(rest) > 0; i++ {
		if i == len(bs) || !bytes.HasPrefix(rest, bs[i]) || bs[i].NextOffset() > bound {
			t.Fatalf("Find(%d, %d, %d): not whole batches below the bound", from, bound, size)
		}
		rest, next = rest[len(bs[i]):], bs[i].NextOffset()
	}
	if r.Next != next || len(p) > size && len(p) != len(firstBatch(p)) {
		t.Fatalf("Find(%d, %d, %d) = %d bytes, next %d, want %d", from, bound, size, len(p), r.Next, next)
	}
}

func firstBatch(p []byte) wire.Batch { return wire.Batch(p[:wire.Batch(p).Len()]) }

func TestFindOutside(t *testing.T) {
	l := newTestLog(t, NewMemFS(1), Options{})
	for i := range 5 {
		mustAppend(t, l, 1, maker{mark: i}.batch(t))
	}
	l.Trim(2)
	f := func(from wire.Offset, want wire.Code) {
		t.Helper()
		if _, err := l.View().Find(from, 5, 100); wire.CodeOf(err) != want {
			t.Fatalf("Find(%d): %v, want %v", from, err, want)
		}
	}
	f(-1, wire.CodeOutOfRange)
	f(1, wire.CodeOutOfRange)
	f(2, wire.CodeOK)
	f(5, wire.CodeOK)
	f(6, wire.CodeOutOfRange)
}

// TestNewestWithoutDisk: who follows the end reads nothing to find it, even just
// after a roll.
func TestNewestWithoutDisk(t *testing.T) {
	fs := NewMemFS(1)
	l := newTestLog(t, fs, Options{SegmentBytes: 5000})
	for i := range 200 {
		before := l.View().End()
		mustAppend(t, l, 1, maker{mark: i, value: 40}.batch(t), maker{mark: i}.batch(t))
		fs.ResetCounts()
		for _, from := range []wire.Offset{before, before + 1, max(before-2, 0)} {
			r, err := l.View().Find(from, l.View().End(), 1<<20)
			if err != nil || r.Len == 0 {
				t.Fatal(r, err)
			}
			r.Done()
		}
		if n := ops(fs); n != 0 {
			t.Fatalf("append %d: the newest batches cost %d operations", i, n)
		}
	}
}

// TestLookupCost: among 1,000 segments a look-up reads a logarithm of index
// entries, one index interval of headers, and one batch.
func TestLookupCost(t *testing.T) {
	fs := NewMemFS(1)
	o := Options{SegmentBytes: 8000, IndexInterval: 1000}
	l := newTestLog(t, fs, o)
	rnd := rand.New(rand.NewPCG(1, 2))
	for i := 0; len(l.sealed) < 1000; i++ {
		mustAppend(t, l, int64(i), maker{mark: i, times: []int64{int64(i) * 10}, value: 100}.batch(t))
	}
	l = reopenClean(t, fs, o, closeLog(t, l))
	v := l.View()
	batch := int64(maker{mark: 99999, times: []int64{1}, value: 100}.batch(t).Len())
	window := int64(o.IndexInterval + wire.HeaderSize)
	for range 300 {
		from := below(rnd, v.End())
		warm := func() {
			r, err := v.Find(from, v.End(), 1)
			if err != nil || r.First != from {
				t.Fatal(r, err)
			}
			r.Done()
		}
		warm() // opens and maps the segment's files, once
		fs.ResetCounts()
		warm()
		if n, b := ops(fs), fs.CountBytes(OpRead); n > 1 || b > window {
			t.Fatalf("Find(%d): %d operations, %d bytes; want one read of an index interval", from, n, b)
		}
		for _, c := range []Clock{EventTime, AppendTime} {
			fs.ResetCounts()
			at, _, err := v.FindTime(c, v.sealedTime(c, from), v.End(), nil)
			if err != nil || at != from {
				t.Fatalf("FindTime: %d, want %d: %v", at, from, err)
			}
			if n, b := ops(fs), fs.CountBytes(OpRead); n > 2 || b > window+batch {
				t.Fatalf("FindTime(%d) of offset %d: %d operations, %d bytes; want an index interval and a batch", c, from, n, b)
			}
		}
		s, x := v.picture(v.holds(from))
		e, err := s.entries(x)
		if err != nil {
			t.Fatal(err)
		}
		before := v.home.probes.Load()
		warm()
		if n := v.home.probes.Load() - before; n > 10 || e.len() < 7 {
			t.Fatalf("%d probes into %d index entries", n, e.len())
		}
	}
}

// sealedTime returns a time that offset is the first to reach in the log above.
func (v *View) sealedTime(c Clock, offset wire.Offset) int64 {
	if c == AppendTime {
		return int64(offset)
	}
	return int64(offset)*10 - 9
}

// TestDeletedSegmentStaysOpen: what a reader holds it can read to the end; the
// file closes with the last Done.
func TestDeletedSegmentStaysOpen(t *testing.T) {
	fs := NewMemFS(1)
	l := newTestLog(t, fs, Options{SegmentBytes: 300})
	for i := range 20 {
		mustAppend(t, l, 1, maker{mark: i, value: 50}.batch(t))
	}
	old := l.View()
	want := mustContents(t, old)
	r, err := old.Find(0, old.End(), 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	r2, _ := old.Find(0, old.End(), 1)
	l.Trim(l.View().End())
	mustPoint(t, l)
	if n, err := l.Reclaim(); n == 0 || err != nil {
		t.Fatal(n, err)
	}
	s := r.s
	p := make([]byte, r.Len)
	if _, err := r.R.ReadAt(p, r.Off); err != nil && err != io.EOF || !bytes.HasPrefix(want, p) {
		t.Fatalf("read of a deleted segment: %v", err)
	}
	r.Done()
	if s.slot.log == nil {
		t.Fatal("closed while a reader holds it")
	}
	r2.Done()
	if s.slot.log != nil {
		t.Fatal("still open after the last reader")
	}
	if _, err := old.Find(0, old.End(), 10); wire.CodeOf(err) != wire.CodeOutOfRange {
		t.Fatalf("an old view finds in a deleted segment: %v", err)
	}
}

// TestOpenFilesBound: sealed segments nobody reads are closed, the least recently
// used first.
func TestOpenFilesBound(t *testing.T) {
	fs := NewMemFS(1)
	files := newOpenFiles(3)
	fs.Mkdir(logDir)
	l, err := createLog(fs, logDir, "orders", orders3, Options{SegmentBytes: 200}, files, at(1))
	if err != nil {
		t.Fatal(err)
	}
	for i := range 10 {
		mustAppend(t, l, 1, maker{mark: i, value: 100}.batch(t))
	}
	l.Flush()
	open := func() (n int) {
		for _, s := range l.sealed {
			if s.slot.log != nil {
				n++
			}
		}
		return n
	}
	if n := open(); n != 3 {
		t.Fatalf("%d sealed segments open, want 3", n)
	}
	for from := range l.View().End() {
		r, err := l.View().Find(from, l.View().End(), 1)
		if err != nil {
			t.Fatal(err)
		}
		r.Done()
	}
	if n := open(); n != 3 || files.count != 3 {
		t.Fatalf("%d sealed segments open, %d counted, want 3", n, files.count)
	}
}

// TestCrowded: where many logs are written each has its log file open and no
// index file, and all of them come back with their index.
func TestCrowded(t *testing.T) {
	f := func(logs, wantEach int) {
		t.Helper()
		fs := NewMemFS(1)
		files := newOpenFiles(4)
		var all []*Log
		for i := range logs {
			dir := fmt.Sprintf("%s-%d", logDir, i)
			fs.Mkdir(dir)
			l, err := createLog(fs, dir, "orders", wire.PartitionID{Topic: 3, Partition: int32(i)}, Options{SegmentBytes: 80_000, IndexInterval: 1}, files, at(1))
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, l)
		}
		for round := range 2 {
			for i, l := range all {
				for n := range 1300 { // at least one roll, and then a page of entries
					mustAppend(t, l, int64(n), maker{mark: n, value: 10}.batch(t))
				}
				p, err := l.Checkpoint(at(1)).Run()
				if err != nil || p.IndexCount == 0 {
					t.Fatalf("log %d: %d entries vouched for, %v", i, p.IndexCount, err)
				}
				l.Checkpointed(p)
			}
			if n := handles(fs.root) - files.count; n != logs*wantEach {
				t.Fatalf("round %d: %d logs have %d files open, want %d each", round, logs, n, wantEach)
			}
		}
		for i, l := range all {
			if len(l.sealed) == 0 {
				t.Fatalf("log %d has not rolled", i)
			}
			for _, s := range l.sealed {
				if s.loose.Load() || s.short {
					t.Fatalf("log %d: the index of %s is not durable", i, s.name(logSuffix))
				}
			}
			if _, err := l.Close(); err != nil {
				t.Fatal(err)
			}
		}
	}
	f(2, 3)
	f(5, 1)
}

// handles returns how many files are open below n.
func handles(n *memNode) (open int) {
	for _, c := range n.names {
		open += handles(c)
	}
	return open + n.handles
}

// TestUnreadable: the disk cannot read a part of a sealed segment. That is no end
// of the log, the rest is served, and nothing spins.
func TestUnreadable(t *testing.T) {
	fs := NewMemFS(1)
	o := Options{SegmentBytes: 20_000, IndexInterval: 1000}
	l := newTestLog(t, fs, o)
	for i := range 100 {
		mustAppend(t, l, int64(i), maker{mark: i, value: 500}.batch(t))
	}
	l = reopenClean(t, fs, o, closeLog(t, l))
	fs.FailReads(logName(0), 8192, 4096, syscall.EIO)
	v, bad := l.View(), 0
	for from := range v.End() {
		r, err := v.Find(from, v.End(), 1)
		if err == nil {
			r.Done()
			continue
		}
		if wire.CodeOf(err) != wire.CodeStorageError {
			t.Fatalf("Find(%d): %v", from, err)
		}
		bad++
	}
	if bad == 0 || bad > 15 {
		t.Fatalf("%d offsets cannot be found", bad)
	}
	if _, err := contents(v, 50, v.End(), 1<<20); err != nil {
		t.Fatalf("behind the bad sectors: %v", err)
	}
}

// TestDamage flips bits in sealed segments: headers are found by Find, payloads by
// Check; then what runs towards the damage stops before it, what starts in it is
// told, and the rest is served.
func TestDamage(t *testing.T) {
	fs := NewMemFS(1)
	o := Options{SegmentBytes: 4000, IndexInterval: 500}
	l := newTestLog(t, fs, o)
	var bs []wire.Batch
	for i := range 40 {
		bs = append(bs, maker{mark: i, value: 100}.batch(t))
		mustAppend(t, l, int64(i), bs[i])
	}
	end := closeLog(t, l)
	rnd := rand.New(rand.NewPCG(3, 3))
	for range 400 {
		disk := fs.Clone()
		hit := rnd.IntN(len(bs) - 20)
		segment := wire.Offset(0)
		pos := int64(0)
		for i := range hit {
			pos += int64(len(bs[i]))
			if i+1 < len(bs) && segmentOf(l, wire.Offset(i+1)) != segment {
				segment, pos = segmentOf(l, wire.Offset(i+1)), 0
			}
		}
		at := pos + rnd.Int64N(int64(len(bs[hit])))
		if err := disk.FlipBit(logName(segment), at, uint(rnd.IntN(8))); err != nil {
			t.Fatal(err)
		}
		judgeDamage(t, reopenClean(t, disk, o, end), bs, wire.Offset(hit))
		if n := len(fileBytes(t, disk, logName(segment))); n != len(fileBytes(t, fs, logName(segment))) {
			t.Fatalf("segment %d was cut to %d bytes", segment, n)
		}
	}
}

func segmentOf(l *Log, at wire.Offset) wire.Offset {
	v := l.View()
	s, _ := v.picture(v.holds(at))
	return s.base
}

func judgeDamage(t *testing.T, l *Log, bs []wire.Batch, hit wire.Offset) {
	t.Helper()
	v := l.View()
	for from := wire.Offset(0); from < v.End(); {
		r, err := v.Find(from, v.End(), 1000)
		var bad *CorruptRange
		if err == nil {
			err = r.Check()
			r.Done()
		}
		if errors.As(err, &bad) {
			if hit < bad.From || hit >= bad.To || wire.CodeOf(err) != wire.CodeCorrupt {
				t.Fatalf("offset %d is damaged, %v is said to be", hit, bad)
			}
			if from >= bad.From {
				from = bad.To
			}
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		if from <= hit && hit < r.Next {
			t.Fatalf("the damaged batch at offset %d was handed out by Find(%d)", hit, from)
		}
		from = r.Next
	}
	if _, err := v.Find(hit, v.End(), 1); wire.CodeOf(err) != wire.CodeCorrupt {
		t.Fatalf("the damage at offset %d is forgotten: %v", hit, err)
	}
	all := v.home.damage.all()
	got, _ := contents(v, all[len(all)-1].To, v.End(), 1<<20)
	if want := join(bs[all[len(all)-1].To:]); !bytes.Equal(got, want) {
		t.Fatalf("behind the damage: %d bytes, want %d", len(got), len(want))
	}
}

func TestEpochEnd(t *testing.T) {
	f := func(list []epochStart, start wire.Offset, e, want wire.Epoch, wantEnd wire.Offset) {
		t.Helper()
		v := &View{epochs: list, start: start, tail: tail{end: 100}}
		if got, end := v.EpochEnd(e); got != want || end != wantEnd {
			t.Fatalf("EpochEnd(%d) in %v = %d, %d; want %d, %d", e, list, got, end, want, wantEnd)
		}
	}
	list := []epochStart{{2, 10}, {5, 40}, {6, 40}}
	f(nil, 7, 3, wire.NoEpoch, 7)
	f(list, 15, 1, wire.NoEpoch, 10) // ended where the oldest known begins, at the latest
	f(list, 0, 2, 2, 40)
	f(list, 0, 4, 2, 40)
	f(list, 0, 5, 5, 40) // wrote nothing
	f(list, 0, 6, 6, 100)
	f(list, 0, 9, 6, 100)
}
