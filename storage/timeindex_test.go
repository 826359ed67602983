package storage

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/teralog/teralog/wire"
)

// A stamped is a record as brute force sees it.
type stamped struct {
	offset      wire.Offset
	time, clock int64
}

// firstStamped is FindTime by looking at everything.
func firstStamped(rs []stamped, c Clock, t int64, start, bound wire.Offset) (wire.Offset, int64) {
	for _, r := range rs {
		at := r.time
		if c == AppendTime {
			at = r.clock
		}
		if r.offset >= start && r.offset < bound && at >= t {
			return r.offset, at
		}
	}
	return -1, 0
}

// TestFindTimeDisorder looks up times in one partition that got them in
// disorder, with a segment boundary between any two batches, before and after a
// restart and with all indexes made anew.
func TestFindTimeDisorder(t *testing.T) {
	times := []int64{100, 300, 200, 50, 400, 350}
	check := func(how string, l *Log) {
		t.Helper()
		f := func(at int64, want wire.Offset, wantTime int64) {
			t.Helper()
			got, time, err := l.View().FindTime(EventTime, at, l.View().End(), nil)
			if err != nil || got != want || time != wantTime {
				t.Fatalf("%s: FindTime(%d) = %d, %d, %v; want %d, %d", how, at, got, time, err, want, wantTime)
			}
		}
		f(250, 1, 300)
		f(350, 4, 400)
		f(60, 0, 100)
		f(401, -1, 0)
		f(0, 0, 100)
		f(math.MinInt64, 0, 100)
		f(math.MaxInt64, -1, 0)
		if at, time, err := l.View().FindGreatest(l.View().End(), nil); at != 4 || time != 400 || err != nil {
			t.Fatalf("%s: greatest %d, %d, %v", how, at, time, err)
		}
	}
	for boundary := range len(times) {
		fs := NewMemFS(1)
		l := newTestLog(t, fs, Options{IndexInterval: 1})
		for i, at := range times {
			if i == boundary && i > 0 {
				if err := l.roll(); err != nil {
					t.Fatal(err)
				}
			}
			mustAppend(t, l, int64(i), maker{times: []int64{at}, mark: i}.batch(t))
		}
		check(fmt.Sprintf("boundary %d, written", boundary), l)
		end := closeLog(t, l)
		check(fmt.Sprintf("boundary %d, restarted", boundary), reopenClean(t, fs, Options{IndexInterval: 1}, end))
		es, _ := fs.ReadDir(logDir)
		for _, e := range es {
			for _, x := range indexFiles {
				if _, ok := parseName(e, x.suffix); ok {
					fs.Remove(logDir + "/" + e.Name)
				}
			}
		}
		again := reopenClean(t, fs, Options{IndexInterval: 1}, end)
		if len(again.Recovery().Rebuilt) == 0 {
			t.Fatalf("boundary %d: nothing was rebuilt", boundary)
		}
		check(fmt.Sprintf("boundary %d, rebuilt", boundary), again)
	}
}

// TestFindTimeRandom compares FindTime and FindGreatest with a look at every
// record, over logs of random times, sizes, rolls, trims and restarts.
func TestFindTimeRandom(t *testing.T) {
	for seed := range uint64(60) {
		rnd := rand.New(rand.NewPCG(seed, 1))
		o := Options{SegmentBytes: 300 + rnd.Int64N(3000), IndexInterval: 1 + rnd.IntN(600), AppendTime: seed%7 == 6}
		fs := NewMemFS(seed)
		l := newTestLog(t, fs, o)
		var rs []stamped
		now := int64(1000)
		for i := range 10 + rnd.IntN(60) {
			m := maker{mark: i, value: rnd.IntN(80), codec: []wire.Codec{wire.None, wire.Zstd}[rnd.IntN(2)]}
			now += rnd.Int64N(40)
			for range 1 + rnd.IntN(4) {
				m.times = append(m.times, rnd.Int64N(2000))
			}
			a := mustAppend(t, l, now, m.batch(t))
			for j, at := range m.times {
				if o.AppendTime {
					at = a.Time
				}
				rs = append(rs, stamped{a.First + wire.Offset(j), at, a.Time})
			}
		}
		if rnd.IntN(2) == 0 {
			if err := l.Trim(below(rnd, l.View().End())); err != nil {
				t.Fatal(err)
			}
		}
		check := func(how string, v *View) {
			t.Helper()
			for range 40 {
				c, at := Clock(rnd.IntN(2)), rnd.Int64N(2200)
				bound := v.Start() + below(rnd, v.End()-v.Start()+1)
				got, time, err := v.FindTime(c, at, bound, nil)
				want, wantTime := firstStamped(rs, c, at, v.Start(), bound)
				if err != nil || got != want || got >= 0 && time != wantTime {
					t.Fatalf("seed %d, %s: FindTime(%d, %d, bound %d) = %d, %d, %v; want %d, %d", seed, how, c, at, bound, got, time, err, want, wantTime)
				}
				greatest := int64(math.MinInt64)
				for _, r := range rs {
					if r.offset >= v.Start() && r.offset < bound {
						greatest = max(greatest, r.time)
					}
				}
				want, _ = firstStamped(rs, EventTime, greatest, v.Start(), bound)
				if got, _, err := v.FindGreatest(bound, nil); err != nil || got != want {
					t.Fatalf("seed %d, %s: FindGreatest(%d) = %d, %v; want %d", seed, how, bound, got, err, want)
				}
			}
		}
		check("written", l.View())
		p := mustPoint(t, l)
		check("crashed", reopen(t, fs.Crash(CrashNone), o, &p).View())
		check("restarted", reopenClean(t, fs, o, closeLog(t, l)).View())
	}
}

// TestFindTimeLies puts into .timeindex what must not be believed.
func TestFindTimeLies(t *testing.T) {
	o := Options{SegmentBytes: 2000, IndexInterval: 200}
	fs := NewMemFS(1)
	l := newTestLog(t, fs, o)
	var rs []stamped
	for i := range 40 {
		at := int64(i*37%40) * 10
		if i == 3 {
			at = 253_402_300_799_000 // the last second of the year 9999
		}
		a := mustAppend(t, l, int64(i), maker{times: []int64{at}, value: 60, mark: i}.batch(t))
		rs = append(rs, stamped{a.First, at, a.Time})
	}
	end := closeLog(t, l)
	f := func(how string, spoil func(name string, b []byte) []byte) {
		t.Helper()
		disk := fs.Clone()
		es, _ := disk.ReadDir(logDir)
		for _, e := range es {
			if _, ok := parseName(e, timeSuffix); ok {
				name := logDir + "/" + e.Name
				if b := spoil(name, fileBytes(t, disk, name)); b == nil {
					disk.Remove(name)
				} else {
					putFile(t, disk, name, b)
				}
			}
		}
		l := reopenClean(t, disk, o, end)
		for at := int64(0); at <= 410; at += 5 {
			got, _, err := l.View().FindTime(EventTime, at, l.View().End(), nil)
			if want, _ := firstStamped(rs, EventTime, at, 0, 40); got != want || err != nil {
				t.Fatalf("%s: FindTime(%d) = %d, %v; want %d", how, at, got, err, want)
			}
		}
	}
	f("as it is", func(_ string, b []byte) []byte { return b })
	f("missing", func(string, []byte) []byte { return nil })
	f("empty", func(string, []byte) []byte { return []byte{} })
	f("seven bytes", func(_ string, b []byte) []byte { return b[:7] })
	f("ones", func(_ string, b []byte) []byte {
		for i := range b {
			b[i] = 0xff
		}
		return b
	})
	f("every entry greatest", func(_ string, b []byte) []byte {
		for i := 0; i+timeEntry+trailerSize <= len(b); i += timeEntry {
			copy(b[i:], "\xff\xff\xff\xff\xff\xff\xff\x7f")
		}
		return b
	})
	f("every entry least", func(_ string, b []byte) []byte {
		for i := 0; i+timeEntry+trailerSize <= len(b); i += timeEntry {
			copy(b[i:], "\x00\x00\x00\x00\x00\x00\x00\x80")
		}
		return b
	})
	f("one entry more", func(_ string, b []byte) []byte { return append(b[:timeEntry:timeEntry], b...) })
}
