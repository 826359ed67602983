package storage

import (
	"bytes"
	"errors"
	"testing"
	"time"

	"github.com/teralog/teralog/wire"
)

// together makes batches of one record that wait for one flush.
func together(t testing.TB, n, mark, size int) []wire.Batch {
	t.Helper()
	b := wire.NewBuilder(wire.BuilderOptions{Topic: orders3.Topic, Partition: orders3.Partition})
	var bs []wire.Batch
	for i := range n {
		var hs []wire.Header
		if i > 0 {
			hs = append(hs, Unsynced(int64(i)))
		}
		if _, err := b.Add(1, nil, bytes.Repeat([]byte{byte(mark + i)}, size), hs); err != nil {
			t.Fatal(err)
		}
		buf, err := b.Build()
		if err != nil {
			t.Fatal(err)
		}
		bs = append(bs, wire.Batch(bytes.Clone(buf.B)))
		buf.Release()
	}
	return bs
}

// TestSyncedTogether cuts the power while several batches of an always-synced
// log wait for one flush, whatever pages of them the disk kept: what is bad is a
// torn tail, never damage, and all that was flushed before is there.
func TestSyncedTogether(t *testing.T) {
	for _, o := range []Options{{Synced: true}, {Synced: true, SegmentBytes: 16000}} {
		disk := NewMemFS(1)
		l := newTestLog(t, disk, o)
		if err := l.SetEpoch(0); err != nil {
			t.Fatal(err)
		}
		mustAppend(t, l, 1, together(t, 2, 1, 500)...)
		if _, err := l.Flush(); err != nil {
			t.Fatal(err)
		}
		mustAppend(t, l, 1, together(t, 8, 10, 3000)...)
		torn := 0
		for name, crashed := range disk.Crashes(2000) {
			again := reopen(t, crashed, o, nil)
			r := again.Recovery()
			if len(r.Damaged) > 0 || again.View().End() < 2 {
				t.Fatalf("%s: %v", name, r)
			}
			if r.CutBatches > 0 {
				torn++
			}
		}
		if torn == 0 {
			t.Fatal("no crash kept a later batch without an earlier one")
		}
	}
}

// TestSyncedAhead: the file of an always-synced log has the length of the space
// allocated ahead, so that it seldom changes. Whatever a crash leaves of that, it
// is neither damage nor torn, and a sealed or closed file ends with its batches.
func TestSyncedAhead(t *testing.T) {
	const step = 4 * pageSize
	o := Options{Synced: true, SegmentBytes: aheadParts * step, SegmentAge: time.Hour}
	disk := NewMemFS(1)
	l := newTestLog(t, disk, o)
	if err := l.SetEpoch(0); err != nil {
		t.Fatal(err)
	}
	one := func(now int64) {
		mustAppend(t, l, now, together(t, 1, 7, 500)...)
		if _, err := l.Flush(); err != nil {
			t.Fatal(err)
		}
	}
	size := func(fs FS, name string) int64 {
		e, err := fs.Stat(logDir + "/" + name)
		if err != nil {
			t.Fatal(err)
		}
		return e.Size
	}
	first, second := "00000000000000000000.log", "00000000000000000100.log"
	lengths := 0
	for n := range int64(100) {
		before := size(disk, first)
		one(1)
		if size(disk, first) != before {
			lengths++
		}
		if n%30 == 29 {
			mustAppend(t, l, 1, together(t, 3, 10, 3000)[:1]...)
			for name, crashed := range disk.Crashes(200) {
				again := reopen(t, crashed, o, nil)
				r := again.Recovery()
				if r.Zeros > 0 || len(r.Damaged) > 0 || r.End != wire.Offset(n+1) && r.End != wire.Offset(n+2) || size(crashed, first) != again.tail.size {
					t.Fatalf("%s after %d batches: %v; a file of %d bytes, a log of %d", name, n+1, r, size(crashed, first), again.tail.size)
				}
			}
			if err := l.Truncate(wire.Offset(n + 1)); err != nil {
				t.Fatal(err)
			}
		}
	}
	most := int(l.tail.size)/step + 1 + step/500 + 2*3 // steps, the first one without, and what the cuts undid
	if lengths > most {
		t.Fatalf("%d lengths for %d bytes; at most %d", lengths, l.tail.size, most)
	}
	if size(disk, first) == l.tail.size {
		t.Fatal("nothing lies ahead")
	}

	whole := l.tail.size
	one(2 * time.Hour.Milliseconds())
	for name, crashed := range disk.Crashes(200) {
		if n := size(crashed, first); n != whole {
			t.Fatalf("%s: a sealed file of %d bytes, the log had %d", name, n, whole)
		}
		if r := reopen(t, crashed, o, nil).Recovery(); r.End != 101 || r.Cut > 0 {
			t.Fatalf("%s: %v", name, r)
		}
	}
	for l.tail.size < 2*step {
		one(2 * time.Hour.Milliseconds())
	}
	whole = l.tail.size
	end := closeLog(t, l)
	for name, crashed := range disk.Crashes(200) {
		r := reopenClean(t, crashed, o, end).Recovery()
		if n := size(crashed, second); n != whole || !r.Clean {
			t.Fatalf("%s: a closed file of %d bytes, the log had %d: %v", name, n, whole, r)
		}
	}
}

// TestSyncedProof flips a bit in each batch of a log of three flushes: whatever
// a later flush proves is damage, what only its own flush holds is torn.
func TestSyncedProof(t *testing.T) {
	for _, segment := range []int64{0, 700} {
		o := Options{Synced: true, SegmentBytes: segment}
		disk := NewMemFS(1)
		l := newTestLog(t, disk, o)
		if err := l.SetEpoch(0); err != nil {
			t.Fatal(err)
		}
		for i, n := range []int{1, 3, 3} {
			mustAppend(t, l, 1, together(t, n, 10*i, 100)...)
			if _, err := l.Flush(); err != nil {
				t.Fatal(err)
			}
		}
		f := func(spoil, end wire.Offset, damaged ...CorruptRange) {
			t.Helper()
			r, err := l.View().Find(spoil, spoil+1, 1)
			if err != nil {
				t.Fatal(err)
			}
			name := r.R.(File).Name()
			r.Done()
			for _, at := range []int64{20, 110} { // in the header, in the records
				disk := disk.Clone()
				if err := disk.FlipBit(name, r.Off+at, 0); err != nil {
					t.Fatal(err)
				}
				again := reopen(t, disk, o, nil)
				got := again.Recovery().Damaged
				if again.View().End() != end || len(got) != len(damaged) || len(got) == 1 && got[0] != damaged[0] {
					t.Fatalf("offset %d spoiled: %v", spoil, again.Recovery())
				}
			}
		}

		f(0, 7, CorruptRange{0, 1})
		f(1, 7, CorruptRange{1, 2})
		f(2, 7, CorruptRange{2, 3}) // the next one of its flush is good, the next flush proves
		f(3, 7, CorruptRange{3, 4})
		f(4, 4) // the last flush proves nothing of itself
		f(5, 5)
		f(6, 6)
	}
}

// TestTruncateDamaged truncates a log at, behind and before a damaged batch.
func TestTruncateDamaged(t *testing.T) {
	disk := NewMemFS(1)
	o := Options{Synced: true}
	l := newTestLog(t, disk, o)
	if err := l.SetEpoch(0); err != nil {
		t.Fatal(err)
	}
	for i := range 9 {
		mustAppend(t, l, 1, together(t, 1, i, 100)...)
		if _, err := l.Flush(); err != nil {
			t.Fatal(err)
		}
	}
	r, err := l.View().Find(4, 5, 1)
	if err != nil {
		t.Fatal(err)
	}
	r.Done()
	if err := disk.FlipBit(logName(0), r.Off+20, 0); err != nil {
		t.Fatal(err)
	}
	for to, damaged := range map[wire.Offset]int{4: 0, 3: 0, 7: 1, 9: 1} {
		disk := disk.Clone()
		again := reopen(t, disk, o, nil)
		if err := again.Truncate(to); err != nil {
			t.Fatalf("to %d: %v", to, err)
		}
		mustAppend(t, again, 1, together(t, 1, 50, 10)...)
		if _, err := again.Flush(); err != nil {
			t.Fatal(err)
		}
		again = reopen(t, disk.Crash(CrashNone), o, nil)
		if rep := again.Recovery(); again.View().End() != to+1 || len(rep.Damaged) != damaged {
			t.Fatalf("truncated to %d: %v", to, rep)
		}
	}
}

// TestFindBehindDamage reads a batch whose index entry leads over a damaged one.
func TestFindBehindDamage(t *testing.T) {
	disk := NewMemFS(1)
	l := newTestLog(t, disk, Options{})
	if err := l.SetEpoch(0); err != nil {
		t.Fatal(err)
	}
	for i := range 9 {
		mustAppend(t, l, 1, together(t, 1, i, 100)...)
	}
	r, err := l.View().Find(4, 5, 1)
	if err != nil {
		t.Fatal(err)
	}
	r.Done()
	end := closeLog(t, l)
	if err := disk.FlipBit(logName(0), r.Off+20, 0); err != nil {
		t.Fatal(err)
	}
	again := reopenClean(t, disk, Options{}, end)
	for _, at := range []wire.Offset{0, 7, 5, 8} {
		r, err := again.View().Find(at, at+1, 1)
		if err != nil || r.Next != at+1 {
			t.Fatalf("offset %d: %+v, %v", at, r, err)
		}
		r.Done()
	}
	var bad *CorruptRange
	if _, err := again.View().Find(4, 9, 1); !errors.As(err, &bad) || bad.From != 4 || bad.To != 5 {
		t.Fatalf("the damaged one: %v", err)
	}
}

// TestTruncateMissing truncates a log to an offset whose file is gone.
func TestTruncateMissing(t *testing.T) {
	disk := NewMemFS(1)
	o := Options{Synced: true, SegmentBytes: 700}
	l := newTestLog(t, disk, o)
	if err := l.SetEpoch(0); err != nil {
		t.Fatal(err)
	}
	for i := range 9 {
		mustAppend(t, l, 1, together(t, 1, i, 100)...)
	}
	p := mustPoint(t, l)
	for base, gone := range map[wire.Offset][]wire.Offset{0: {0}, l.active.base: {0, 3, 6}} {
		disk := disk.Clone()
		for _, at := range gone {
			if err := disk.Remove(logName(at)); err != nil {
				t.Fatalf("%d of %v: %v", at, gone, err)
			}
		}
		again := reopen(t, disk, o, &p)
		if len(again.Recovery().Damaged) == 0 {
			t.Fatalf("without %v: %v", gone, again.Recovery())
		}
		below := again.PointBelow(2)
		if err := again.Truncate(2); err != nil {
			t.Fatal(err)
		}
		again = reopen(t, disk.Crash(CrashNone), o, &below)
		if r := again.Recovery(); len(r.Damaged) > 0 && r.Damaged[0].To > 2 || r.Lost > 0 || again.View().End() != 2 {
			t.Fatalf("without %v, base %d: %v, point %+v", gone, base, r, below)
		}
		if a := mustAppend(t, again, 1, together(t, 1, 1, 10)...); a.First != 2 {
			t.Fatalf("offset %d", a.First)
		}
	}
}

// TestPointBelow truncates a log below its recovery point.
func TestPointBelow(t *testing.T) {
	disk := NewMemFS(1)
	o := Options{Synced: true, SegmentBytes: 700}
	l := newTestLog(t, disk, o)
	if err := l.SetEpoch(0); err != nil {
		t.Fatal(err)
	}
	for i := range 20 {
		mustAppend(t, l, 1, together(t, 1, i, 100)...)
		if _, err := l.Flush(); err != nil {
			t.Fatal(err)
		}
	}
	newest := mustPoint(t, l)
	if p := l.PointBelow(20); p != newest {
		t.Fatalf("%+v, want the newest point", p)
	}
	for to := range wire.Offset(20) {
		p := l.PointBelow(to)
		if p.Offset > to || p.Offset != p.SegmentBase || p.Position != 0 || !p.plausible() {
			t.Fatalf("below %d: %+v", to, p)
		}
		disk := disk.Clone()
		cut := reopen(t, disk, o, &newest)
		if err := cut.Truncate(to); err != nil {
			t.Fatal(err)
		}
		for _, again := range []*Log{reopen(t, disk.Clone(), o, &p), reopen(t, disk.Crash(CrashNone), o, &p)} {
			if r := again.Recovery(); again.View().End() != to || len(r.Damaged) > 0 || r.Lost > 0 {
				t.Fatalf("truncated to %d: %v", to, r)
			}
		}
	}
}

// TestReset makes logs, whole and damaged ones, begin elsewhere, stops that after
// each operation, and does it again: there is nothing of the old log then.
func TestReset(t *testing.T) {
	for _, to := range []wire.Offset{0, 4, 6, 9, 30} {
		for stop := 0; ; stop++ {
			disk := NewMemFS(uint64(stop))
			o := Options{Synced: true, SegmentBytes: 700}
			l := newTestLog(t, disk, o)
			if err := l.SetEpoch(5); err != nil {
				t.Fatal(err)
			}
			for i := range 9 {
				mustAppend(t, l, 1, together(t, 1, i, 100)...)
			}
			mustPoint(t, l)
			if to == 6 {
				if err := disk.FlipBit(logName(3), 20, 0); err != nil {
					t.Fatal(err)
				}
			}
			point := l.ResetPoint(to) // saved
			disk.StopAfter(stop)
			err := l.Reset(to)
			disk = disk.Crash(CrashAny)
			l = reopen(t, disk, o, &point)
			if err != nil {
				if err := l.Reset(to); err != nil {
					t.Fatalf("to %d again, after it was stopped at operation %d: %v", to, stop, err)
				}
			}
			if v := l.View(); v.Start() != to || v.End() != to || l.Stats().Damaged > 0 {
				t.Fatalf("to %d: %v", to, l.Recovery())
			}
			b := together(t, 1, 99, 10)[0]
			b.Stamp(to, 1, 1, false)
			if _, err := l.AppendStamped([]wire.Batch{b}); err != nil {
				t.Fatalf("to %d: %v", to, err)
			}
			if _, err := l.Flush(); err != nil {
				t.Fatal(err)
			}
			again := reopen(t, disk.Crash(CrashNone), o, &point)
			if r := again.Recovery(); again.View().Start() != to || again.View().End() != to+1 || len(r.Damaged) > 0 || r.Lost > 0 {
				t.Fatalf("to %d: %v", to, r)
			}
			if err == nil {
				break
			}
		}
	}
}
