package storage

import (
	"bytes"
	"testing"

	"github.com/teralog/teralog/wire"
)

func TestAppendAndReopen(t *testing.T) {
	f := func(o Options, batches, size int) {
		t.Helper()
		fs := NewMemFS(1)
		l := newTestLog(t, fs, o)
		if err := l.SetEpoch(0); err != nil {
			t.Fatal(err)
		}
		var want []byte
		var mid Point
		for i := range batches {
			b := maker{mark: i, value: size, times: []int64{int64(i), int64(i) * 7 % 100}}.batch(t)
			a := mustAppend(t, l, int64(10+i), b)
			if a.First != wire.Offset(2*i) || a.Last != a.First+1 || a.Time != int64(10+i) {
				t.Fatalf("append %d: %+v", i, a)
			}
			want = append(want, b...)
			if i == batches/2 {
				mid = mustPoint(t, l)
			}
		}
		check := func(how string, l *Log) {
			t.Helper()
			if l.View().End() != wire.Offset(2*batches) {
				t.Fatalf("%s: end %d, want %d: %v", how, l.View().End(), 2*batches, l.Recovery())
			}
			if got := mustContents(t, l.View()); !bytes.Equal(got, want) {
				t.Fatalf("%s: %d bytes, want %d", how, len(got), len(want))
			}
		}
		check("written", l)
		if _, err := l.Flush(); err != nil {
			t.Fatal(err)
		}
		check("crash, recovery point", reopen(t, fs.Crash(CrashAny), o, &mid))
		check("crash, no recovery point", reopen(t, fs.Crash(CrashAny), o, nil))
		end := closeLog(t, l)
		again := reopenClean(t, fs, o, end)
		check("clean", again)
		if !again.Recovery().Clean || again.Recovery().Touched() {
			t.Fatalf("clean stop was scanned: %v", again.Recovery())
		}
		mustAppend(t, again, 5, maker{}.batch(t))
	}

	f(Options{}, 1, 0)
	f(Options{}, 40, 0)
	f(Options{SegmentBytes: 1000}, 40, 100)
	f(Options{SegmentBytes: 100}, 10, 100)
	f(Options{SegmentBytes: 10_000, IndexInterval: 100}, 500, 100)
	f(Options{IndexInterval: 100}, 3000, 10)
}

// TestCloseBeforeThePointIsHeardOf closes logs whose newest recovery point was
// made, and perhaps saved, but never came to their owner: the clean end is not
// an older point, of which a lower start could come back, and not none.
func TestCloseBeforeThePointIsHeardOf(t *testing.T) {
	f := func(records, trim int, want wire.Offset) {
		t.Helper()
		l := newTestLog(t, NewMemFS(1), Options{})
		for i := range records {
			mustAppend(t, l, 5, maker{mark: i}.batch(t))
		}
		if trim > 0 {
			mustPoint(t, l)
			if err := l.Trim(wire.Offset(trim)); err != nil {
				t.Fatal(err)
			}
		}
		unheard, err := l.Checkpoint(at(1)).Run()
		if err != nil {
			t.Fatal(err)
		}
		end, err := l.Close()
		if err != nil || end.Point.ID != orders3 || end.Point.Offset != wire.Offset(records) || end.Point.Start != want || unheard.Start != want {
			t.Errorf("%d records, trimmed to %d: closed with %+v, %v; made was %+v", records, trim, end.Point, err, unheard)
		}
	}
	f(0, 0, 0)
	f(10, 0, 0)
	f(10, 5, 5)
}
