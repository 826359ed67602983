package storage

import (
	"testing"
	"time"

	"github.com/teralog/teralog/mem"
	"github.com/teralog/teralog/wire"
)

func TestExpired(t *testing.T) {
	hour := time.Hour.Milliseconds()
	now := 1000 * hour
	f := func(sealed []piece, active int64, bound wire.Offset, maxBytes int64, maxAge time.Duration, want int) {
		t.Helper()
		if got := expired(sealed, active, now, bound, maxBytes, maxAge); got != want {
			t.Fatalf("expired(%v, active %d, bound %d, %d bytes, %v) = %d, want %d", sealed, active, bound, maxBytes, maxAge, got, want)
		}
	}
	three := []piece{{10, 100, now - 30*hour, now}, {20, 100, now - 20*hour, now}, {30, 100, now - 10*hour, now}}
	f(three, 50, 99, 0, 0, 0)
	f(three, 50, 99, 350, 0, 0)
	f(three, 50, 99, 250, 0, 1) // what stays has the limit at least
	f(three, 50, 99, 251, 0, 0)
	f(three, 50, 99, 1, 0, 3)
	f(three, 0, 99, 1, 0, 2) // else nothing would be left
	f(three, 50, 99, 0, 20*time.Hour, 2)
	f(three, 50, 99, 0, 20*time.Hour+time.Millisecond, 1)
	f(three, 50, 99, 250, 20*time.Hour, 2)
	f(three, 50, 20, 1, time.Hour, 2) // the bound
	f(three, 50, 19, 1, time.Hour, 1)
	f(nil, 50, 99, 1, time.Hour, 0)

	// A clock far ahead stamped the first one: it ages from when it was sealed.
	ahead := []piece{{10, 100, now + 1000*hour, now - 5*hour}, {20, 100, now - 20*hour, now}}
	f(ahead, 0, 99, 0, 6*time.Hour, 0)
	f(ahead, 0, 99, 0, 5*time.Hour, 2)
	f([]piece{{10, 100, now + hour, now - 50*hour}}, 0, 99, 0, 5*time.Hour, 0) // an hour ahead is believed
	// A clock set back a day deletes nothing early.
	f([]piece{{10, 100, now + 24*hour, now - hour}}, 0, 99, 0, 2*time.Hour, 0)
}

// TestRetention: event times say nothing about what is old; an idle active
// segment goes in the end.
func TestRetention(t *testing.T) {
	const day = 24 * 3600 * 1000
	fs := NewMemFS(1)
	o := Options{SegmentBytes: 300, RetentionAge: 48 * time.Hour}
	l := newTestLog(t, fs, o)
	now := int64(1_700_000_000_000)
	for i := range 6 {
		micros := (now + int64(i)) * 1000 // sent as if they were milliseconds
		mustAppend(t, l, now+int64(i), maker{mark: i, times: []int64{micros}, value: 100}.batch(t))
	}
	f := func(after int64, wantRolled, wantTrimmed bool, start wire.Offset) {
		t.Helper()
		then := mem.Now{Mono: time.Duration(after) * time.Millisecond, Wall: now + after}
		rolled, err := l.RollIdle(then)
		trimmed := l.Retain(then, l.View().End())
		if err != nil || rolled != wantRolled || trimmed != wantTrimmed || l.View().Start() != start {
			t.Fatalf("after %d ms: rolled %v, trimmed %v, start %d: %v", after, rolled, trimmed, l.View().Start(), err)
		}
	}
	f(day, false, false, 0)
	f(2*day, false, true, 1) // segments of one batch; each one ms younger than the one before
	f(2*day+2, false, true, 3)
	f(2*day+5, true, true, 6)
	f(5*day, false, false, 6)
	l.Flush()
	if n, _ := l.Reclaim(); n != 0 {
		t.Fatal("unlinked before the start was durable")
	}
	p := mustPoint(t, l)
	if n, err := l.Reclaim(); n != 6 || err != nil {
		t.Fatalf("reclaimed %d: %v", n, err)
	}
	es, _ := fs.ReadDir(logDir)
	for _, e := range es {
		if base, ok := parseName(e, logSuffix); ok && base < 6 {
			t.Fatalf("%s is still there", e.Name)
		}
	}
	l = reopen(t, fs.Crash(CrashNone), o, &p)
	if v := l.View(); v.Start() != 6 || v.End() != 6 || len(l.Recovery().Damaged) > 0 {
		t.Fatalf("%v", l.Recovery())
	}
}

// TestRetentionAfterAJump sets the clock while sixteen segments of one batch age,
// an hour apart, in a log that keeps a day.
func TestRetentionAfterAJump(t *testing.T) {
	const hour = time.Hour
	o := Options{SegmentBytes: 300, RetentionAge: 24 * hour}
	begun := int64(1_700_000_000_000)
	var l *Log
	var now mem.Now // what the next look sees
	fill := func() {
		l = newTestLog(t, NewMemFS(1), o)
		l.looked = mem.Now{Wall: begun}
		for i := range 16 {
			now = mem.Now{Mono: time.Duration(i) * hour, Wall: begun + int64(i)*hour.Milliseconds()}
			if _, err := l.Append([]wire.Batch{maker{mark: i, value: 100}.batch(t)}, 0, now); err != nil {
				t.Fatal(err)
			}
			l.Retain(now, l.View().End())
		}
		l.Flush()
	}
	// f lets time pass and the clock jump by more, and looks.
	f := func(passed, by time.Duration, start wire.Offset, withheld bool) {
		t.Helper()
		now.Mono += passed
		now.Wall += (passed + by).Milliseconds()
		l.Retain(now, l.View().End())
		if got := l.View().Start(); got != start || (l.Withheld() > 0) != withheld {
			t.Fatalf("%v and a jump of %v later the log starts at %d, %d bytes withheld", passed, by, got, l.Withheld())
		}
	}

	fill() // no jump
	f(12*hour, 0, 4, false)
	f(30*hour, 0, 15, false)

	fill() // a jump that less than half falls to: the age is believed
	f(0, 12*hour, 4, false)
	f(0, 3*hour, 7, false)

	fill() // one that takes more is not, until a day has passed
	f(0, 10*365*24*hour, 0, true)
	f(hour, 0, 0, true)
	f(24*hour-hour-1, 0, 0, true)
	f(1, 0, 15, false)

	fill() // nor once it is taken back
	f(0, 10*365*24*hour, 0, true)
	f(10*time.Minute, -10*365*24*hour, 0, false)
	f(10*hour, 0, 2, false)
	f(13*hour, 0, 2, true) // less than a day after the jump back
	f(2*hour, 0, 15, false)

	fill() // an hour is no jump, more is one, back as well
	f(0, 19*hour, 0, true)
	fill()
	now.Mono, now.Wall = now.Mono+19*hour, now.Wall+19*hour.Milliseconds()
	f(0, time.Hour, 12, false)
	fill()
	f(0, -30*hour, 0, false)
	f(0, 60*hour, 0, true)

	fill() // size does not depend on clocks
	l.o.RetentionBytes = 4 * l.sealed[0].final.size
	f(0, 10*365*24*hour, 12, true)

	// A start: a short absence is no jump, a long one may be one.
	restart := func(absent time.Duration) {
		t.Helper()
		fill()
		p := mustPoint(t, l)
		fs := l.home.fs.(*MemFS).Clone()
		now = mem.Now{Wall: now.Wall + absent.Milliseconds()} // another process
		in := openState{Point: &p, Quarantine: testQuarantine, Alive: now.Wall - absent.Milliseconds()}
		var err error
		if l, err = openLog(fs, logDir, "orders", orders3, o, in, now); err != nil {
			t.Fatal(err)
		}
	}
	restart(hour)
	f(22*hour, 0, 15, false)
	restart(30 * hour)
	f(hour, 0, 0, true)
	f(24*hour, 0, 15, false)
}

// TestTrimUnsynced trims over a segment whose end was never fsynced, flushes, and
// cuts the power before any recovery point names the new start.
func TestTrimUnsynced(t *testing.T) {
	fs := NewMemFS(1)
	o := Options{SegmentBytes: 3 * pageSize}
	l := newTestLog(t, fs, o)
	for i := range 12 {
		mustAppend(t, l, 1, maker{mark: i}.sized(t, pageSize))
		if i == 1 {
			l.Flush()
		}
	}
	if err := l.Trim(8); err != nil {
		t.Fatal(err)
	}
	end, err := l.Flush()
	if err != nil || end != 12 {
		t.Fatalf("flushed to %d: %v", end, err)
	}
	if again := reopen(t, fs.Crash(CrashNone), o, nil); again.View().End() != end {
		t.Fatalf("%d was flushed: %v", end, again.Recovery())
	}
	p := mustPoint(t, l)
	if n, err := l.Reclaim(); n != 2 || err != nil {
		t.Fatalf("reclaimed %d: %v", n, err)
	}
	if again := reopen(t, fs.Crash(CrashNone), o, &p); again.View().End() != end || again.View().Start() != 8 {
		t.Fatalf("%v", again.Recovery())
	}
}

// TestAppendTimeTopic: where append time is the records' time, what clients
// claim is ignored everywhere.
func TestAppendTimeTopic(t *testing.T) {
	fs := NewMemFS(1)
	o := Options{AppendTime: true, SegmentBytes: 400, IndexInterval: 1}
	l := newTestLog(t, fs, o)
	for i := range 10 {
		mustAppend(t, l, 1000+int64(i), maker{mark: i, times: []int64{1 << 50, 3}, value: 50}.batch(t))
	}
	check := func(l *Log) {
		t.Helper()
		v := l.View()
		if v.GreatestTime() != 1009 {
			t.Fatalf("greatest time %d", v.GreatestTime())
		}
		if at, time, err := v.FindTime(EventTime, 1004, v.End(), nil); at != 8 || time != 1004 || err != nil {
			t.Fatalf("FindTime = %d, %d, %v", at, time, err)
		}
		if at, _, _ := v.FindTime(EventTime, 1010, v.End(), nil); at != -1 {
			t.Fatalf("a client's claim was believed: %d", at)
		}
	}
	check(l)
	check(reopenClean(t, fs, o, closeLog(t, l)))
}

// TestTruncate cuts a log at every offset, and goes on writing there.
func TestTruncate(t *testing.T) {
	o := Options{SegmentBytes: 700, IndexInterval: 150}
	for to := wire.Offset(0); to <= 40; to++ {
		fs, l, bs := golden(t, o, 20)
		l.Flush()
		old := l.View()
		if err := l.Truncate(to); err != nil {
			t.Fatal(err)
		}
		want := bs[:to/2] // whole batches of two
		check := func(how string, l *Log, want []wire.Batch) {
			t.Helper()
			if got := mustContents(t, l.View()); string(got) != string(join(want)) {
				t.Fatalf("truncate to %d, %s: %d bytes, want %d", to, how, len(got), len(join(want)))
			}
			greatest := int64(-1) // of times that were cut nothing is left
			for _, b := range want {
				greatest = max(greatest, b.MaxTime())
			}
			v := l.View()
			_, time, err := v.FindGreatest(v.End(), nil)
			if after, _, err2 := v.FindTime(EventTime, greatest+1, v.End(), nil); err != nil || err2 != nil || time != max(greatest, 0) || after != -1 {
				t.Fatalf("truncate to %d, %s: greatest time %d, %v, want %d; behind it offset %d, %v", to, how, time, err, greatest, after, err2)
			}
		}
		check("then", l, want)
		check("a power cut", reopen(t, fs.Crash(CrashNone), o, nil), want)
		b := maker{mark: 500, times: []int64{7, 7}, value: 40}.batch(t)
		mustAppend(t, l, 50, b)
		want = append(want[:len(want):len(want)], b)
		check("appended", l, want)
		if n, _ := l.Flush(); n != l.View().End() {
			t.Fatalf("flushed to %d of %d", n, l.View().End())
		}
		check("restarted", reopenClean(t, fs, o, closeLog(t, l)), want)
		if _, err := old.Find(39, 40, 100); err != nil && wire.CodeOf(err) == wire.CodeInternal {
			t.Fatalf("an old view: %v", err)
		}
	}
}
