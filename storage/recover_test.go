package storage

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/teralog/teralog/wire"
)

// golden writes n batches, flushed, in segments of about segmentBytes, and
// returns them with their positions in their files.
func golden(t testing.TB, o Options, n int) (*MemFS, *Log, []wire.Batch) {
	t.Helper()
	fs := NewMemFS(1)
	l := newTestLog(t, fs, o)
	if err := l.SetEpoch(0); err != nil {
		t.Fatal(err)
	}
	var bs []wire.Batch
	for i := range n {
		b := maker{mark: i, value: 30 + i%7, times: []int64{int64(i), int64(i) + 1}}.batch(t)
		mustAppend(t, l, int64(i+1), b)
		bs = append(bs, b)
	}
	if _, err := l.Flush(); err != nil {
		t.Fatal(err)
	}
	return fs, l, bs
}

// position returns where batch i starts in a log of one segment.
func position(bs []wire.Batch, i int) int { return len(join(bs[:i])) }

// recovered opens what file bytes leave and expects the first keep batches. It
// then appends, flushes and opens again.
func recovered(t *testing.T, how string, fs *MemFS, file []byte, bs []wire.Batch, keep int) RecoveryReport {
	t.Helper()
	disk := fs.Clone()
	putFile(t, disk, logName(0), file)
	l := reopen(t, disk, Options{}, nil)
	rep := l.Recovery()
	want := join(bs[:keep])
	if got := mustContents(t, l.View()); !bytes.Equal(got, want) || l.View().End() != wire.Offset(2*keep) {
		t.Fatalf("%s: %d bytes to offset %d, want %d batches: %v", how, len(got), l.View().End(), keep, rep)
	}
	if got := fileBytes(t, disk, logName(0)); !bytes.Equal(got, want) {
		t.Fatalf("%s: the file has %d bytes, want %d", how, len(got), len(want))
	}
	if disk.Pending() > 0 {
		t.Fatalf("%s: recovery left %d effects unsynced", how, disk.Pending())
	}
	b := maker{mark: 777}.batch(t)
	if a := mustAppend(t, l, 1, b); a.First != wire.Offset(2*keep) {
		t.Fatalf("%s: next append at offset %d", how, a.First)
	}
	l.Flush()
	again := reopen(t, disk.Crash(CrashNone), Options{}, nil)
	if got := mustContents(t, again.View()); !bytes.Equal(got, append(want, b...)) {
		t.Fatalf("%s: opened again: %d bytes", how, len(got))
	}
	return rep
}

func TestRecoverCutAtEveryByte(t *testing.T) {
	fs, _, bs := golden(t, Options{}, 3)
	all := join(bs)
	for n := position(bs, 2) + 1; n < len(all); n++ {
		rep := recovered(t, fmt.Sprintf("cut at byte %d", n), fs, all[:n], bs, 2)
		if rep.Cut != int64(n-position(bs, 2)) || rep.CutAt != 4 || len(rep.Kept) != 1 {
			t.Fatalf("cut at byte %d: %v", n, rep)
		}
	}
	recovered(t, "whole", fs, all, bs, 3)
	recovered(t, "empty", fs, nil, bs, 0)
}

func TestRecoverZeros(t *testing.T) {
	fs, _, bs := golden(t, Options{}, 3)
	for _, n := range []int{1, 95, 96, 4096, 65536, 300_000} {
		rep := recovered(t, fmt.Sprintf("%d zeros", n), fs, append(join(bs), make([]byte, n)...), bs, 3)
		if rep.Zeros != int64(n) || rep.Cut != 0 {
			t.Fatalf("%d zeros: %v", n, rep)
		}
	}
}

// TestRecoverBadBytes damages one batch above the recovery point in every way. It
// and all behind it are cut and kept, good batches counted.
func TestRecoverBadBytes(t *testing.T) {
	fs, _, bs := golden(t, Options{}, 5)
	f := func(how string, i int, spoil func(file, b []byte)) {
		t.Helper()
		file := join(bs)
		spoil(file, file[position(bs, i):])
		rep := recovered(t, how, fs, file, bs, i)
		if rep.Cut != int64(len(file)-position(bs, i)) || rep.CutBatches < 4-i || rep.CutBatches > 5-i || rep.Reason == "" {
			t.Fatalf("%s: %v", how, rep)
		}
	}
	length := func(n uint32) func(file, b []byte) {
		return func(_, b []byte) { binary.LittleEndian.PutUint32(b[8:], n) }
	}
	// A length that a valid CRC vouches for.
	sealed := func(n uint32) func(file, b []byte) {
		return func(_, b []byte) {
			binary.LittleEndian.PutUint32(b[8:], n)
			binary.LittleEndian.PutUint32(b[4:], crcOf(b[8:96]))
		}
	}
	f("header of zeros", 2, func(_, b []byte) { clear(b[:96]) })
	f("no length, no CRC", 2, func(_, b []byte) { clear(b[4:12]) })
	left := uint32(len(join(bs)) - position(bs, 3))
	for _, n := range []uint32{0, 7, 48, 95, 0x7fffffff, 0x80000000, 0xffffffff, left + 1, left + 1<<31} {
		f(fmt.Sprintf("length %#x", n), 3, length(n))
		f(fmt.Sprintf("sealed length %#x", n), 3, sealed(n))
	}
	f("records", 1, func(_, b []byte) { b[100] ^= 1 })
	f("header", 1, func(_, b []byte) { b[24] ^= 1 }) // its append time: nothing but the CRC can tell
	f("a batch of another partition", 2, func(_, b []byte) {
		m := maker{mark: 2, value: 32, times: []int64{2, 3}, id: wire.PartitionID{Topic: orders3.Topic, Partition: orders3.Partition + 1}}
		copy(b, stampedAt(m.batch(t), 4))
	})
	f("the batch before once more", 2, func(file, b []byte) { copy(b[:len(bs[1])], bs[1]) })
	f("a batch of a later offset", 2, func(_, b []byte) {
		copy(b, stampedAt(maker{mark: 2, value: 32, times: []int64{2, 3}}.batch(t), 6))
	})
	f("a lower epoch", 2, func(_, b []byte) {
		wire.Batch(b[:len(bs[2])]).Stamp(4, -1, 1, false)
	})

	// A page keeps what the file had there before: the write was lost.
	big := make([]wire.Batch, 5)
	fs2 := NewMemFS(1)
	l := newTestLog(t, fs2, Options{})
	for i := range big {
		big[i] = maker{mark: i, times: []int64{1, 2}, value: 6000}.batch(t)
		mustAppend(t, l, 1, big[i])
	}
	l.Flush()
	for _, stale := range []byte{0, 0xa5} {
		file := join(big)
		page := (position(big, 2)/pageSize + 1) * pageSize
		copy(file[page:page+pageSize], bytes.Repeat([]byte{stale}, pageSize))
		recovered(t, "lost write", fs2, file, big, 2)
	}
}

// TestRecoverDamageBelow: bad bytes below the recovery point are not cut.
func TestRecoverDamageBelow(t *testing.T) {
	fs, l, bs := golden(t, Options{SegmentBytes: 1000, IndexInterval: 300}, 40)
	p := mustPoint(t, l)
	end := closeLog(t, l)
	f := func(how string, segment wire.Offset, spoil func(disk *MemFS, name string)) {
		t.Helper()
		for _, clean := range []bool{false, true} {
			disk := fs.Clone()
			spoil(disk, logName(segment))
			before := tree(t, disk)
			in := openState{Point: &p, Quarantine: testQuarantine}
			if clean {
				in.Clean = &end
			}
			l, err := openLog(disk, logDir, "orders", orders3, Options{SegmentBytes: 1000, IndexInterval: 300}, in, at(1))
			if err != nil {
				t.Fatalf("%s: %v", how, err)
			}
			v := l.View()
			if v.End() != 80 || len(l.Recovery().Damaged) != 1 || l.Recovery().Cut > 0 {
				t.Fatalf("%s: end %d: %v\n%s", how, v.End(), l.Recovery(), before)
			}
			bad := l.Recovery().Damaged[0]
			low, err1 := contents(v, 0, bad.From, 1<<20)
			high, err2 := contents(v, bad.To, v.End(), 1<<20)
			want1, _ := between(bs, 0, bad.From)
			want2, _ := between(bs, bad.To, 80)
			if err1 != nil || err2 != nil || !bytes.Equal(low, want1) || !bytes.Equal(high, want2) {
				t.Fatalf("%s: around the damage: %v, %v", how, err1, err2)
			}
			if _, err := v.Find(bad.From, v.End(), 100); wire.CodeOf(err) != wire.CodeCorrupt {
				t.Fatalf("%s: in the damage: %v", how, err)
			}
			if a := mustAppend(t, l, 5000, maker{}.batch(t)); a.First != 80 {
				t.Fatalf("%s: next append at offset %d", how, a.First)
			}
		}
	}
	last := l.active.base
	middle := l.sealed[2].base
	f("a segment is missing", middle, func(disk *MemFS, name string) { disk.Remove(name) })
	f("the first is missing", 0, func(disk *MemFS, name string) { disk.Remove(name) })
	f("a segment is short", middle, func(disk *MemFS, name string) {
		b := fileBytes(t, disk, name)
		putFile(t, disk, name, b[:len(b)/2])
	})
	f("a segment is empty", middle, func(disk *MemFS, name string) { putFile(t, disk, name, nil) })
	f("the active one is missing", last, func(disk *MemFS, name string) { disk.Remove(name) })
	f("the active one is short", last, func(disk *MemFS, name string) {
		b := fileBytes(t, disk, name)
		putFile(t, disk, name, b[:len(b)-10])
	})
	f("the last header below the point", last, func(disk *MemFS, name string) { disk.FlipBit(name, end.Position+20, 3) })
}

// TestRecoverOtherEnd: a clean stop names the log's last batch. What stands
// behind that is no part of the log, another batch in its place is damage, and
// nothing below is cut.
func TestRecoverOtherEnd(t *testing.T) {
	fs, l, bs := golden(t, Options{}, 5)
	end := closeLog(t, l)
	f := func(how string, file []byte, keep int, check func(l *Log)) {
		t.Helper()
		disk := fs.Clone()
		putFile(t, disk, logName(0), file)
		l := reopenClean(t, disk, Options{}, end)
		if l.View().End() != 10 || l.Recovery().Clean || !l.Recovery().Touched() {
			t.Fatalf("%s: %v", how, l.Recovery())
		}
		if got, err := contents(l.View(), 0, wire.Offset(2*keep), 1<<20); err != nil || !bytes.Equal(got, join(bs[:keep])) {
			t.Fatalf("%s: below: %v", how, err)
		}
		check(l)
		if size := len(fileBytes(t, disk, logName(0))); size != len(join(bs)) {
			t.Fatalf("%s: the file has %d bytes, want %d", how, size, len(join(bs)))
		}
		if a := mustAppend(t, l, 9, maker{}.batch(t)); a.First != 10 {
			t.Fatalf("%s: next append at offset %d", how, a.First)
		}
	}
	f("bytes behind the end", append(join(bs), "left over"...), 5, func(l *Log) {
		if l.Recovery().Cut != 9 || len(l.Recovery().Kept) != 1 {
			t.Fatalf("%v", l.Recovery())
		}
	})
	other := bytes.Clone(bs[4])
	wire.Batch(other).Stamp(8, 0, 77, false)
	f("another last batch", append(join(bs[:4]), other...), 4, func(l *Log) {
		if d := l.Recovery().Damaged; len(d) != 1 || d[0] != (CorruptRange{8, 10}) {
			t.Fatalf("%v", l.Recovery())
		}
		if _, err := l.View().Find(8, 10, 100); wire.CodeOf(err) != wire.CodeCorrupt {
			t.Fatalf("the batch that was not closed: %v", err)
		}
	})
}

// TestRecoverZeroedHeader zeroes a header, and a page, in the middle of a sealed
// segment. Reading says so where it happens, and goes on behind it.
func TestRecoverZeroedHeader(t *testing.T) {
	o := Options{SegmentBytes: 100_000, IndexInterval: 4096}
	fs := NewMemFS(1)
	l := newTestLog(t, fs, o)
	var bs []wire.Batch
	for i := range 300 {
		bs = append(bs, maker{mark: i, value: 500}.batch(t))
		mustAppend(t, l, 1, bs[i])
	}
	end := closeLog(t, l)
	f := func(hit int, from, n int) {
		t.Helper()
		disk := fs.Clone()
		b := fileBytes(t, disk, logName(0))
		clear(b[from : from+n])
		putFile(t, disk, logName(0), b)
		v := reopenClean(t, disk, o, end).View()
		_, err := contents(v, 0, v.End(), 1<<16)
		for wire.CodeOf(err) != wire.CodeCorrupt {
			if err != nil {
				t.Fatal(err)
			}
			// Ranges go out unread; the reader finds the damage by its CRC check.
			r, err2 := v.Find(wire.Offset(hit), v.End(), 1)
			if err2 == nil {
				err2 = r.Check()
				r.Done()
			}
			if err = err2; err == nil {
				t.Fatalf("damage at byte %d is not seen", from)
			}
		}
		bad := v.home.damage.all()[0]
		if bad.From > wire.Offset(hit) || bad.To <= wire.Offset(hit) || int(bad.To-bad.From) > 20 {
			t.Fatalf("batch %d is damaged, said to be: %v", hit, bad)
		}
		got, err := contents(v, 0, bad.From, 1<<16)
		if err != nil || !bytes.Equal(got, join(bs[:bad.From])) {
			t.Fatalf("before the damage: %v", err)
		}
		if got, err = contents(v, bad.To, v.End(), 1<<16); err != nil || !bytes.Equal(got, join(bs[bad.To:])) {
			t.Fatalf("behind the damage: %v", err)
		}
	}
	f(50, position(bs, 50), 61)
	f(50, position(bs, 50), 96)
	f(57, position(bs, 57)+200, 100)
}

// TestRecoverSmallFiles spoils every small file of a partition in every way.
func TestRecoverSmallFiles(t *testing.T) {
	o := Options{SegmentBytes: 1000, IndexInterval: 100}
	fs, l, bs := golden(t, o, 60)
	if err := l.SetEpoch(3); err != nil {
		t.Fatal(err)
	}
	b := maker{mark: 100, times: []int64{1, 2}}.batch(t)
	mustAppend(t, l, 100, b)
	bs = append(bs, b)
	end := closeLog(t, l)
	other := NewMemFS(2)
	other.Mkdir(logDir)
	l2, err := createLog(other, logDir, "orders", wire.PartitionID{Topic: 4242, Partition: 9}, o, nil, at(1))
	if err != nil {
		t.Fatal(err)
	}
	for i := range 60 {
		mustAppend(t, l2, 1, maker{mark: i, value: 30 + i%7, times: []int64{9, 9}, id: l2.ID()}.batch(t))
	}
	closeLog(t, l2)

	es, _ := fs.ReadDir(logDir)
	spoilt := 0
	for _, e := range es {
		name := logDir + "/" + e.Name
		if strings.HasSuffix(name, logSuffix) {
			continue
		}
		good := fileBytes(t, fs, name)
		ways := map[string]func(disk *MemFS){
			"deleted":     func(disk *MemFS) { disk.Remove(name) },
			"empty":       func(disk *MemFS) { putFile(t, disk, name, nil) },
			"seven bytes": func(disk *MemFS) { putFile(t, disk, name, good[:min(7, len(good))]) },
			"ones":        func(disk *MemFS) { putFile(t, disk, name, bytes.Repeat([]byte{0xff}, len(good))) },
			"another's": func(disk *MemFS) {
				if _, err := other.Stat(name); err == nil {
					putFile(t, disk, name, fileBytes(t, other, name))
				} else {
					disk.Remove(name)
				}
			},
		}
		for how, spoil := range ways {
			disk := fs.Clone()
			spoil(disk)
			again := reopenClean(t, disk, o, end)
			v := again.View()
			if got := mustContents(t, v); !bytes.Equal(got, join(bs)) || v.Epoch() != 3 {
				t.Fatalf("%s %s: %d bytes, epoch %d", e.Name, how, len(got), v.Epoch())
			}
			for _, x := range [...]struct {
				epoch wire.Epoch
				end   wire.Offset
			}{{0, 120}, {2, 120}, {3, 122}} {
				if _, end := v.EpochEnd(x.epoch); end != x.end {
					t.Fatalf("%s %s: epoch %d ends at %d, want %d", e.Name, how, x.epoch, end, x.end)
				}
			}
			if at, _, err := v.FindTime(EventTime, 30, v.End(), nil); at != 59 || err != nil {
				t.Fatalf("%s %s: FindTime: %d, %v", e.Name, how, at, err)
			}
			if !again.Recovery().Touched() {
				t.Fatalf("%s %s: the report says nothing: %v", e.Name, how, again.Recovery())
			}
			spoilt++
		}
	}
	if spoilt < 50 {
		t.Fatalf("only %d files were spoilt", spoilt)
	}
}

// TestRecoverNested cuts the power during recovery, at every operation, three
// times nested: the end is that of one undisturbed recovery.
func TestRecoverNested(t *testing.T) {
	o := Options{SegmentBytes: 600, IndexInterval: 100}
	fs, l, bs := golden(t, o, 6)
	p := mustPoint(t, l)
	for i := range 12 {
		b := maker{mark: 50 + i, value: 40, times: []int64{1, 2}}.batch(t)
		mustAppend(t, l, 99, b)
		bs = append(bs, b)
	}
	l.Flush()
	// The batch at offset 16 is torn; good segments follow.
	s, x := l.View().picture(l.View().holds(16))
	at0, err := s.find(x, probe{rel: clamp(int64(16 - s.base)), pos: 1 << 30})
	if err != nil {
		t.Fatal(err)
	}
	fs.FlipBit(s.name(logSuffix), int64(at0.pos)+30, 1)
	open := func(disk FS) (*Log, error) {
		return openLog(disk, logDir, "orders", orders3, o, openState{Point: &p, Quarantine: testQuarantine}, at(1))
	}
	calm := fs.Clone()
	l, err = open(calm)
	if err != nil || l.View().End() != 16 || l.Recovery().Cut == 0 {
		t.Fatalf("undisturbed: %v, %v", err, l.Recovery())
	}
	want := tree(t, calm)
	rnd := rand.New(rand.NewPCG(5, 5))
	disks := 0
	var nest func(disk *MemFS, depth int)
	nest = func(disk *MemFS, depth int) {
		for n := 0; ; n++ {
			if depth > 1 {
				n += 2 + rnd.IntN(20) // deeper, a few moments will do
			}
			run := disk.Clone()
			run.StopAfter(n)
			_, err := open(run)
			run.Heal()
			after := run.Crash(CrashAny)
			disks++
			final := after.Clone()
			l, err2 := open(final)
			if err2 != nil || !bytes.Equal(mustContents(t, l.View()), join(bs[:8])) {
				t.Fatalf("depth %d, cut after %d operations: %v", depth, n, err2)
			}
			if got := tree(t, final); got != want {
				t.Fatalf("depth %d, cut after %d operations:\n%s\nwant\n%s", depth, n, got, want)
			}
			if err == nil {
				return // nothing was left to stop
			}
			if depth < 3 {
				nest(after, depth+1)
			}
		}
	}
	nest(fs, 1)
	if disks < 100 {
		t.Fatalf("only %d recoveries were stopped", disks)
	}
}

// TestRecoverSynced: in a log that is always synced before anything depends on
// it, bad bytes with a good batch behind them were durable.
func TestRecoverSynced(t *testing.T) {
	fs, _, bs := golden(t, Options{}, 5)
	o := Options{Synced: true}
	open := func(spoil int) *Log {
		disk := fs.Clone()
		disk.FlipBit(logName(0), int64(position(bs, spoil)+110), 0)
		return reopen(t, disk, o, nil)
	}
	l := open(2)
	if d := l.Recovery().Damaged; len(d) != 1 || d[0] != (CorruptRange{4, 6}) || l.View().End() != 10 {
		t.Fatalf("%v", l.Recovery())
	}
	if got, err := contents(l.View(), 6, 10, 1<<20); err != nil || !bytes.Equal(got, join(bs[3:])) {
		t.Fatalf("behind the damage: %v", err)
	}
	if l = open(4); len(l.Recovery().Damaged) > 0 || l.View().End() != 8 || l.Recovery().Cut == 0 {
		t.Fatalf("a torn tail: %v", l.Recovery())
	}
}

// TestRecoverCommitted: what consumers may have seen is told as far as it is
// there. A recovery point that names more, or none, is no reason to believe so.
func TestRecoverCommitted(t *testing.T) {
	fs, l, _ := golden(t, Options{}, 5)
	p := mustPoint(t, l)
	f := func(p *Point, want wire.Offset) {
		t.Helper()
		l := reopen(t, fs.Clone(), Options{}, p)
		if got := l.Recovery().Committed; got != want || l.View().End() != 10 {
			t.Fatalf("committed %d, want %d; the log ends at %d", got, want, l.View().End())
		}
	}
	above, below := p, p
	above.Committed, below.Committed = 99, 4
	f(&above, 10)
	f(&p, 10)
	f(&below, 4)
	f(nil, 0)
}

// TestRecoverLostPoint: the recovery point vouches for more than there is. It is
// said, and the offsets are not given out again.
func TestRecoverLostPoint(t *testing.T) {
	fs, l, bs := golden(t, Options{}, 5)
	p := mustPoint(t, l)
	f := func(how string, lose func(disk *MemFS), from wire.Offset) {
		t.Helper()
		disk := fs.Clone()
		lose(disk)
		again := reopen(t, disk, Options{}, &p)
		if rep := again.Recovery(); rep.Lost != 10 || !strings.Contains(rep.String(), "LOST") {
			t.Fatalf("%s: %v", how, rep)
		}
		if a := mustAppend(t, again, 1, maker{}.batch(t)); a.First != 10 {
			t.Fatalf("%s: offset %d was given out twice", how, a.First)
		}
		again.Flush()
		p2 := mustPoint(t, again)
		third := reopen(t, disk.Crash(CrashNone), Options{}, &p2)
		if third.View().End() != 11 || len(third.Recovery().Damaged) != 1 || third.Recovery().Damaged[0] != (CorruptRange{from, 10}) {
			t.Fatalf("%s: third start: %v", how, third.Recovery())
		}
	}
	f("cut", func(disk *MemFS) { putFile(t, disk, logName(0), join(bs[:3])) }, 6)
	f("empty", func(disk *MemFS) { putFile(t, disk, logName(0), nil) }, 0)
	f("gone", func(disk *MemFS) { disk.Remove(logName(0)) }, 0)
}

// TestOffsetsOnce kills a log in async mode and starts it twice: an offset that
// was answered is never another record's under the same epoch.
func TestOffsetsOnce(t *testing.T) {
	fs := NewMemFS(1)
	l := newTestLog(t, fs, Options{})
	l.SetEpoch(0)
	var bs []wire.Batch
	for i := range 500 {
		bs = append(bs, maker{mark: i}.batch(t))
		mustAppend(t, l, 1, bs[i])
	}
	killed := fs.Clone() // the page cache lives
	l = reopen(t, killed, Options{}, nil)
	if got := mustContents(t, l.View()); !bytes.Equal(got, join(bs)) {
		t.Fatalf("%d bytes after a kill, want %d", len(got), len(join(bs)))
	}
	if a := mustAppend(t, l, 1, maker{mark: 1000}.batch(t)); a.First != 500 {
		t.Fatalf("offset %d", a.First)
	}
	end := closeLog(t, l)
	if l = reopenClean(t, killed, Options{}, end); l.View().End() != 501 {
		t.Fatalf("third start: end %d", l.View().End())
	}
}

// TestRecoverEpochs opens a log of epochs 0 and 1, and of 3 that wrote nothing,
// with a file of epochs that says other than its batches.
func TestRecoverEpochs(t *testing.T) {
	fs := NewMemFS(1)
	l := newTestLog(t, fs, Options{})
	for i, e := range []wire.Epoch{0, 0, 1, 1, 1, 3} {
		if err := l.SetEpoch(e); err != nil {
			t.Fatal(err)
		}
		if e == 3 {
			break
		}
		if _, err := l.Append([]wire.Batch{maker{mark: i, times: []int64{1, 2}}.batch(t)}, e, at(1)); err != nil {
			t.Fatal(err)
		}
	}
	p := mustPoint(t, l)
	f := func(how string, list, want []epochStart) {
		t.Helper()
		for _, p := range []*Point{&p, nil} {
			disk := fs.Clone()
			if err := saveEpochs(&home{fs: disk, path: logDir, id: orders3}, list); err != nil {
				t.Fatal(err)
			}
			for range 2 { // and what it made of them
				l := reopen(t, disk, Options{}, p)
				if got := l.epochs.list; !slices.Equal(got, want) {
					t.Fatalf("%s: %v, want %v", how, got, want)
				}
			}
		}
	}
	whole := []epochStart{{0, 0}, {1, 4}, {3, 10}}
	f("as they are", whole, whole)
	f("none", nil, whole[:2])
	f("the first is missing", whole[1:], whole)
	f("only the newest", whole[2:], whole)
	f("epochs fall", []epochStart{{0, 0}, {3, 4}, {2, 10}}, whole[:2])
	f("starts fall", []epochStart{{0, 0}, {1, 4}, {3, 2}}, whole[:2])
	f("behind the end", []epochStart{{0, 0}, {1, 4}, {3, 77}}, whole)
	f("two behind the end", []epochStart{{0, 0}, {1, 4}, {3, 77}, {5, 78}}, []epochStart{{0, 0}, {1, 4}, {5, 10}})
}

// TestEpochsAtEnd: an epoch without a record goes with a truncation right there,
// and stays through restarts and truncations behind it.
func TestEpochsAtEnd(t *testing.T) {
	fs, l, _ := golden(t, Options{}, 3)
	for e := range wire.Epoch(3) {
		if err := l.SetEpoch(e + 1); err != nil {
			t.Fatal(err)
		}
	}
	mustAppend(t, l, 1, maker{}.batch(t))
	p := mustPoint(t, l)
	l = reopen(t, fs.Clone(), Options{}, &p)
	if len(l.epochs.list) != 4 {
		t.Fatalf("after a restart: %v", l.epochs.list)
	}
	if err := l.Truncate(6); err != nil {
		t.Fatal(err)
	}
	if got := l.View().Epoch(); got != 0 {
		t.Fatalf("epoch %d after a truncation to where 1 to 3 began", got)
	}
	l.SetEpoch(4)
	if err := l.Truncate(6); err != nil || l.View().Epoch() != 0 {
		t.Fatalf("truncation to the end, where epoch 4 began: epoch %d, %v", l.View().Epoch(), err)
	}
	l.SetEpoch(5)
	mustAppend(t, l, 1, maker{}.batch(t))
	l.Truncate(7)
	if got := l.View().Epoch(); got != 5 {
		t.Fatalf("epoch %d after a truncation that cuts nothing", got)
	}
}

// TestCompactedTails: a batch of which compaction left nothing, and one that
// lost its last records, are walked over; the answer says where to go on.
func TestCompactedTails(t *testing.T) {
	fs := NewMemFS(1)
	l := newTestLog(t, fs, Options{})
	short := wideBatch(t, 9) // offsets 0 to 9, one record left
	empty := emptied(t, 991_580)
	last := maker{mark: 3}.batch(t)
	next := wire.Offset(0)
	for _, b := range []wire.Batch{short, empty, last} {
		stampedAt(b, next)
		next = b.NextOffset()
		if _, err := l.AppendStamped([]wire.Batch{b}); err != nil {
			t.Fatal(err)
		}
	}
	check := func(l *Log) {
		t.Helper()
		f := func(from, first, next wire.Offset) {
			t.Helper()
			r, err := l.View().Find(from, l.View().End(), 1)
			if err != nil || r.First != first || r.Next != next {
				t.Fatalf("Find(%d) = %d, next %d, %v; want %d, next %d", from, r.First, r.Next, err, first, next)
			}
			r.Done()
		}
		f(7, 0, 10)
		f(10, 10, 991_591)
		f(500_000, 10, 991_591)
		f(991_591, 991_591, 991_592)
		if at, _, err := l.View().FindTime(AppendTime, 1, l.View().End(), nil); at != 0 || err != nil {
			t.Fatalf("FindTime: %d, %v", at, err)
		}
	}
	check(l)
	check(reopenClean(t, fs, Options{}, closeLog(t, l)))
}

// emptied is a batch without records over delta+1 offsets.
func emptied(t testing.TB, delta int32) wire.Batch {
	b := wideBatch(t, delta)[:wire.HeaderSize:wire.HeaderSize]
	binary.LittleEndian.PutUint32(b[8:], wire.HeaderSize)
	binary.LittleEndian.PutUint32(b[12:], 0)
	binary.LittleEndian.PutUint32(b[72:], 0)
	binary.LittleEndian.PutUint32(b[84:], 0)
	return b
}

// FuzzRecover opens arbitrary bytes as log, index, epochs and snapshot: recovery
// gives a log that can be read and appended to, and the same one again. way is
// which options and which recovery point it gets.
func FuzzRecover(f *testing.F) {
	fs, l, bs := golden(f, Options{SegmentBytes: 700, IndexInterval: 100}, 12)
	closeLog(f, l)
	read := func(name string) []byte { return fileBytes(f, fs, logDir+"/"+name) }
	base := l.sealed[0].final.end
	options := []Options{{SegmentBytes: 700}, {Synced: true}}
	points := []*Point{nil, {ID: orders3, Offset: base, SegmentBase: base, Snapshot: -1}, {ID: orders3, Offset: 5, Position: 300, IndexCount: 2, TimeCount: 2}}
	for way := range len(options) * len(points) {
		f.Add(uint8(way), []byte(nil), []byte(nil), []byte(nil), []byte(nil), []byte(nil))
		f.Add(uint8(way), join(bs), join(bs[:2]), []byte("x"), []byte("y"), []byte("z"))
		f.Add(uint8(way), read(segmentName("", 0, logSuffix)[1:]), read(segmentName("", base, logSuffix)[1:]),
			read(segmentName("", 0, offsetSuffix)[1:]), read(segmentName("", 0, timeSuffix)[1:]), read(epochsName))
	}
	f.Fuzz(func(t *testing.T, way uint8, first, second, index, timeindex, epochs []byte) {
		disk := NewMemFS(1)
		disk.Mkdir(logDir)
		disk.SyncDir(".")
		putFile(t, disk, logName(0), first)
		putFile(t, disk, logName(base), second)
		putFile(t, disk, segmentName(logDir, 0, offsetSuffix), index)
		putFile(t, disk, segmentName(logDir, 0, timeSuffix), timeindex)
		putFile(t, disk, logDir+"/"+epochsName, epochs)
		putFile(t, disk, segmentName(logDir, 2, snapshotSuffix), epochs)
		n := len(options)
		fuzzOpen(t, disk, options[int(way)%n], points[int(way)/n%len(points)])
	})
}

func fuzzOpen(t *testing.T, disk *MemFS, o Options, p *Point) {
	l := reopen(t, disk, o, p)
	v := l.View()
	for from := v.Start(); from < v.End(); {
		r, err := v.Find(from, v.End(), 1000)
		if bad := (*CorruptRange)(nil); err != nil {
			if wire.CodeOf(err) != wire.CodeCorrupt {
				t.Fatal(err)
			}
			if bad, _ = v.home.damage.ahead(from, v.End()); bad == nil {
				t.Fatalf("offset %d is corrupt and nothing is marked", from)
			}
			from = bad.To
			continue
		}
		if r.Len == 0 || r.Next <= from {
			t.Fatalf("Find(%d) goes on at %d: %v, options %+v, point %+v", from, r.Next, l.Recovery(), o, p)
		}
		r.Done()
		from = r.Next
	}
	v.FindTime(EventTime, 5, v.End(), nil)
	a := mustAppend(t, l, 1, maker{}.batch(t))
	p2 := mustPoint(t, l)
	again := reopen(t, disk.Crash(CrashNone), o, &p2)
	if again.View().End() != a.Last+1 || again.View().Start() != v.Start() {
		t.Fatalf("opened again: %d to %d, want %d to %d", again.View().Start(), again.View().End(), v.Start(), a.Last+1)
	}
}
