package storage

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"github.com/teralog/teralog/wire"
)

// TestSoundRanges tells what became of a file of 100 bytes, step by step, and
// asks for ranges of it.
func TestSoundRanges(t *testing.T) {
	f := func(own int64, story string, do func(s *sound), sound, unsound [][2]int64) {
		t.Helper()
		s := newSegment(&home{}, 0)
		s.sound.set(own)
		do(&s.sound)
		for _, r := range sound {
			if !s.sound.holds(r[0], r[1]) {
				t.Errorf("%s: %d to %d is not sound", story, r[0], r[1])
			}
		}
		for _, r := range unsound {
			if s.sound.holds(r[0], r[1]) {
				t.Errorf("%s: %d to %d is sound", story, r[0], r[1])
			}
		}
	}
	type ranges = [][2]int64

	f(0, "written here", func(s *sound) {}, ranges{{0, 10}, {50, 1000}}, nil)
	f(nothing, "found at the start", func(s *sound) {}, nil, ranges{{0, 10}, {90, 100}})
	f(60, "found, then written on", func(s *sound) {}, ranges{{60, 70}}, ranges{{59, 70}})
	f(nothing, "read in order", func(s *sound) { s.verified(10, 20); s.verified(20, 40) }, ranges{{10, 40}, {15, 35}}, ranges{{9, 20}, {30, 41}})
	f(nothing, "read backwards", func(s *sound) { s.verified(20, 40); s.verified(10, 20) }, ranges{{10, 40}}, ranges{{9, 20}, {30, 41}})
	f(nothing, "read here and there", func(s *sound) { s.verified(10, 20); s.verified(30, 40) }, ranges{{30, 40}}, ranges{{10, 20}, {20, 30}})
	f(60, "read up to what was written", func(s *sound) { s.verified(10, 40); s.verified(40, 60) }, ranges{{10, 1000}}, ranges{{9, 20}})
	f(60, "read across", func(s *sound) { s.verified(50, 70) }, ranges{{50, 1000}}, ranges{{49, 70}})
	f(0, "pages left", func(s *sound) { s.left(20, 25, 100) }, ranges{{100, 110}}, ranges{{0, 10}, {90, 100}, {90, 110}})
	f(0, "pages left, read again", func(s *sound) { s.left(20, 25, 100); s.verified(0, 30) }, ranges{{0, 30}, {100, 110}}, ranges{{30, 40}})
	f(60, "others left", func(s *sound) { s.verified(0, 15); s.left(20, 25, 100) }, ranges{{0, 15}, {60, 110}}, ranges{{15, 60}})
	f(nothing, "read, pages left", func(s *sound) { s.verified(0, 30); s.left(20, 25, 100) }, nil, ranges{{0, 30}})
}

// TestColdReads damages a batch on the disk of a log that was written here and
// has left memory, and reads on from before it in ranges so small that each is in
// memory by the reads of the one before: none goes out unread.
func TestColdReads(t *testing.T) {
	const batches, size, hit = 64, 3000, 20
	dir := t.TempDir()
	o := Options{SegmentBytes: batches / 2 * size}
	l, err := createLog(OS(), dir, "orders", orders3, o, nil, at(1))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	for i := range batches {
		mustAppend(t, l, int64(i), maker{mark: i}.sized(t, size))
	}
	if _, err := l.Flush(); err != nil {
		t.Fatal(err)
	}
	v := l.View()
	read := func(from wire.Offset, maxBytes int) (next wire.Offset, checked bool, err error) {
		t.Helper()
		r, err := v.Find(from, v.End(), maxBytes)
		if err != nil {
			return from, false, err
		}
		defer r.Done()
		if !r.Sound() {
			return r.Next, true, r.Check()
		}
		return r.Next, false, nil
	}
	for from := wire.Offset(0); from < v.End(); {
		next, checked, err := read(from, 2*size)
		if checked || err != nil {
			t.Fatalf("offset %d, just written: checked %v, %v", from, checked, err)
		}
		from = next
	}

	drop := func(hurt bool) {
		t.Helper()
		f, err := OS().Open(segmentName(dir, 0, logSuffix), ReadWrite)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if hurt {
			_, err = f.WriteAt([]byte("!"), hit*size+1000)
		}
		if err != nil {
			t.Fatal(err)
		}
		evict(t, f.(osFile), batches/2*size)
	}
	drop(true)
	for from := wire.Offset(10); from < hit; {
		next, checked, err := read(from, 1)
		if !checked || err != nil {
			t.Fatalf("offset %d, cold: checked %v, %v", from, checked, err)
		}
		from = next
	}
	var bad *CorruptRange
	if _, _, err := read(hit, 1); !errors.As(err, &bad) || bad.From != hit || !strings.Contains(bad.Error(), "damaged") {
		t.Fatalf("the damaged batch: %v", err)
	}
	if _, checked, err := read(10, (hit-11)*size); checked || err != nil {
		t.Fatalf("read again: checked %v, %v", checked, err)
	}
	drop(false)
	if _, checked, err := read(15, size); !checked || err != nil {
		t.Fatalf("left memory again: checked %v, %v", checked, err)
	}
	if _, checked, err := read(batches-1, 1); checked || err != nil {
		t.Fatalf("the newest batch: checked %v, %v", checked, err)
	}
}

// TestSoundAfterAStart has a log opened that others wrote: what is read first is
// checked, in memory or not, what is appended is not.
func TestSoundAfterAStart(t *testing.T) {
	dir := t.TempDir()
	l, err := createLog(OS(), dir, "orders", orders3, Options{SegmentBytes: 3 * 3000}, nil, at(1))
	if err != nil {
		t.Fatal(err)
	}
	for i := range 8 {
		mustAppend(t, l, int64(i), maker{mark: i}.sized(t, 3000))
	}
	end := closeLog(t, l)
	l, err = openLog(OS(), dir, "orders", orders3, Options{SegmentBytes: 3 * 3000}, openState{Point: &end.Point, Clean: &end}, at(1))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	mustAppend(t, l, 9, maker{mark: 9}.sized(t, 3000))
	for round, want := range []string{"CCC CCC CC.", "... ... ..."} {
		got := ""
		for at := range wire.Offset(9) {
			r, err := l.View().Find(at, l.View().End(), 1)
			if err != nil {
				t.Fatal(err)
			}
			if r.Sound() {
				got += "."
			} else if got += "C"; r.Check() != nil {
				t.Fatalf("offset %d is damaged", at)
			}
			r.Done()
		}
		if want = strings.ReplaceAll(want, " ", ""); got != want {
			t.Errorf("round %d: %s, want %s", round, got, want)
		}
	}
}

// TestReadNow: the bytes of the active segment are at hand if this process wrote
// or verified them and they are in memory.
func TestReadNow(t *testing.T) {
	dir := t.TempDir()
	o := Options{SegmentBytes: 5 * 3000}
	l, err := createLog(OS(), dir, "orders", orders3, o, nil, at(1))
	if err != nil {
		t.Fatal(err)
	}
	for i := range 8 {
		mustAppend(t, l, int64(i), maker{mark: i}.sized(t, 3000))
	}
	f := func(what string, want string) {
		t.Helper()
		got, all := "", mustContents(t, l.View())
		for at := range l.View().End() {
			r, err := l.View().Find(at, l.View().End(), 1)
			if err != nil {
				t.Fatal(err)
			}
			p := make([]byte, r.Len)
			switch {
			case !r.ReadNow(p):
				got += "-"
			case bytes.Equal(p, all[at*3000:][:3000]):
				got += "+"
			default:
				got += "!"
			}
			r.Done()
		}
		if got != want {
			t.Errorf("%s: %s, want %s", what, got, want)
		}
	}
	f("written", "-----+++")
	end := closeLog(t, l)
	if l, err = openLog(OS(), dir, "orders", orders3, o, openState{Point: &end.Point, Clean: &end}, at(1)); err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	f("opened", "--------")
	mustAppend(t, l, 9, maker{mark: 9}.sized(t, 3000))
	f("appended to", "--------+")
	evict(t, l.file.(osFile), 9000)
	r, err := l.View().Find(8, 9, 1)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Done()
	if r.ReadNow(make([]byte, r.Len)) {
		t.Error("read from the disk")
	}
}
