package storage

import (
	"slices"
	"testing"

	"github.com/teralog/teralog/wire"
)

// TestWakes sends readers through a segment of 100 MiB and asks what is to be
// dropped behind them.
func TestWakes(t *testing.T) {
	const size = 100 << 20
	s := newSegment(&home{}, 0)
	s.final.size = size
	in := func(from, to int64) stretch { return stretch{s, span{from, to}} }
	type step func(w *wakes)
	// read is a range in MiB that a reader has sent.
	read := func(from, to int64, sound, absent bool) step {
		return func(w *wakes) {
			r := in(from<<20, to<<20)
			if follows, _ := w.enter(r, sound, absent); follows {
				w.passed(r)
			}
		}
	}
	cold := func(from, to int64) step { return read(from, to, false, true) }   // from the disk
	ahead := func(from, to int64) step { return read(from, to, false, false) } // read ahead, not verified
	warm := func(from, to int64) step { return read(from, to, true, false) }
	enter := func(from, to int64) step {
		return func(w *wakes) { w.enter(in(from<<20, to<<20), true, false) }
	}
	pass := func(from, to int64) step {
		return func(w *wakes) { w.passed(in(from<<20, to<<20)) }
	}
	f := func(story string, steps []step, want ...[2]int64) {
		t.Helper()
		var w wakes
		var got [][2]int64
		for _, do := range steps {
			do(&w)
			for _, s := range w.due() {
				got = append(got, [2]int64{s.from >> 20, s.to >> 20})
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s: dropped %v, want %v", story, got, want)
		}
	}
	type steps = []step

	f("less than is worth it", steps{cold(10, 13)})
	f("one reader", steps{cold(10, 13), ahead(13, 14), ahead(14, 20)}, [2]int64{10, 14}, [2]int64{14, 20})
	f("to the end", steps{cold(96, 99), ahead(99, 100)}, [2]int64{96, 100})
	f("in memory before", steps{warm(10, 20), read(20, 30, false, false)})
	f("from the disk into what is sound", steps{cold(10, 14), warm(14, 30)}, [2]int64{10, 14})
	f("one that follows", steps{cold(10, 16), warm(10, 12), ahead(16, 20), warm(12, 18), warm(18, 20)},
		[2]int64{10, 16}, [2]int64{16, 20}) // it came when the first ones were gone
	f("one that follows near", steps{cold(10, 13), warm(10, 11), ahead(13, 16), ahead(16, 20), warm(11, 16)}, [2]int64{10, 16})
	f("one that is about to send", steps{cold(10, 13), enter(10, 12), ahead(13, 20)})
	two := steps{cold(10, 13), enter(10, 13), enter(10, 13), pass(10, 13), ahead(13, 20), warm(13, 20)}
	f("two at one place", two)
	f("two at one place, gone on", append(two, pass(10, 13), warm(13, 20)), [2]int64{10, 20})
	f("one that stopped", steps{cold(10, 13), enter(10, 12), ahead(13, 40), ahead(40, 43)}, [2]int64{10, 43})
	f("two places", steps{cold(10, 13), cold(60, 63), ahead(13, 14), ahead(63, 64)}, [2]int64{10, 14}, [2]int64{60, 64})

	var w wakes
	if follows, brought := w.enter(in(0, 10), false, true); !follows || brought != 10 {
		t.Errorf("from the disk: %v, %d bytes", follows, brought)
	}
	if follows, brought := w.enter(in(5, 15), false, false); !follows || brought != 5 {
		t.Errorf("half of it again: %v, %d bytes", follows, brought)
	}
	for i := range int64(3 * maxWakes) {
		w.enter(in(1000+100*i, 1010+100*i), false, true)
	}
	if len(w.list) != maxWakes {
		t.Errorf("%d places are known, at most %d should be", len(w.list), maxWakes)
	}
	for i := range int64(3 * maxFollowers) {
		w.enter(in(w.list[0].from+i%10, w.list[0].from+10), true, false)
	}
	for _, k := range w.list {
		if len(k.readers) > maxFollowers {
			t.Errorf("%d readers are known at one place", len(k.readers))
		}
	}
}

// A coldLog is a log on a disk that keeps its cache: several sealed segments of
// 8 MiB, of which nothing is in memory, and an active one.
func coldLog(t *testing.T) (*MemFS, *Log) {
	t.Helper()
	m := NewMemFS(1)
	m.KeepCache()
	const size = 64 << 10
	if err := m.Mkdir("p"); err != nil {
		t.Fatal(err)
	}
	l, err := createLog(m, "p", "orders", orders3, Options{SegmentBytes: 8 << 20}, nil, at(1))
	if err != nil {
		t.Fatal(err)
	}
	for i := range 3*(8<<20)/size + 5 {
		mustAppend(t, l, int64(i), maker{mark: i}.sized(t, size))
	}
	end := closeLog(t, l)
	l, err = openLog(m, "p", "orders", orders3, Options{SegmentBytes: 8 << 20}, openState{Point: &end.Point, Clean: &end}, at(1))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	for _, s := range l.View().sealed {
		f, err := m.Open(s.name(logSuffix), Read)
		if err != nil {
			t.Fatal(err)
		}
		f.DropCache(0, 0)
		f.Close()
	}
	return m, l
}

// cached returns how many bytes of a sealed segment are in memory.
func cachedOf(t *testing.T, m *MemFS, s *segment) int64 {
	t.Helper()
	f, err := m.Open(s.name(logSuffix), Read)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	n := pagesOf(s.final.size) * pageSize
	for _, x := range f.(cacheFile).absent(0, s.final.size) {
		n -= x.to - x.from
	}
	return n
}

// TestCatchUp reads a log that is on the disk from its start. Behind the reader
// nothing stays in memory, but for the newest segment and what somebody else had
// there before.
func TestCatchUp(t *testing.T) {
	m, l := coldLog(t)
	v := l.View()
	used := v.sealed[1]
	f, err := m.Open(used.name(logSuffix), Read)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.ReadAt(make([]byte, used.final.size), 0); err != nil {
		t.Fatal(err)
	}
	used.sound.verified(0, used.final.size) // as one who reads it does
	asked := 0
	for from := wire.Offset(0); from < v.End(); {
		r, err := v.FindCached(from, v.End(), 1<<20)
		if err == ErrNotCached {
			asked++
			r, err = v.Find(from, v.End(), 1<<20)
		}
		if err != nil {
			t.Fatal(err)
		}
		if !r.Sound() {
			if err := r.Check(); err != nil {
				t.Fatal(err)
			}
		}
		from = r.Next
		r.Done()
	}
	v.home.dropBehind()
	if asked == 0 {
		t.Error("all of a log on the disk could be found without reading it")
	}
	for i, want := range []int64{0, pagesOf(used.final.size) * pageSize, 0} {
		if got := cachedOf(t, m, v.sealed[i]); got != want {
			t.Errorf("segment %d has %d bytes in memory, want %d", i, got, want)
		}
	}
	c := &l.home.files.cache
	if brought := v.sealed[0].final.size + v.sealed[2].final.size; c.cold.Load() != brought || c.dropped.Load() < brought-dropBytes {
		t.Errorf("%d bytes brought in and %d dropped, want %d", c.cold.Load(), c.dropped.Load(), brought)
	}
}

// TestFindCached: who must not wait for the disk reads nothing from it.
func TestFindCached(t *testing.T) {
	m, l := coldLog(t)
	v := l.View()
	reads := 0
	m.BeforeOp(func(op Op) error {
		if op.Kind == OpRead && op.Cold || op.Kind == OpMap {
			reads++
		}
		return nil
	})
	f := func(from wire.Offset, want error) {
		t.Helper()
		reads = 0
		r, err := v.FindCached(from, v.End(), 1<<20)
		if r.Len > 0 {
			r.Done()
		}
		if err != want || reads > 0 {
			t.Errorf("offset %d: %v after %d reads from the disk, want %v", from, err, reads, want)
		}
	}

	f(0, ErrNotCached)
	f(v.sealed[2].base+3, ErrNotCached)
	f(v.active.base+1, nil)
	f(v.End(), nil)
	r, err := v.Find(0, v.End(), 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	r.Done()
	f(0, nil) // where it begins is in memory now; that the rest is not, Sound says
	if r.Sound() {
		t.Error("what is on the disk only passes for sound")
	}
}
