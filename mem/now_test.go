package mem

import (
	"math/rand/v2"
	"testing"
	"time"
)

const (
	second = time.Second
	minute = time.Minute
	hour   = time.Hour
	day    = 24 * hour
)

// epoch is where the clocks of these tests start, milliseconds.
const epoch = 1_700_000_000_000

// A piece of time during which the wall clock is off by the same.
type piece struct {
	lasts time.Duration
	off   time.Duration // wall less what it should be
}

// TestStampClock reads the clock every step through pieces of time, and says
// by how much it is off at the end and how often it stepped.
func TestStampClock(t *testing.T) {
	f := func(name string, step, wantOff time.Duration, wantSteps int, pieces ...piece) {
		t.Helper()
		var mono time.Duration
		c := NewStampClock(0, epoch)
		last, steps := int64(epoch), 0
		for _, p := range pieces {
			for end := mono + p.lasts; mono < end; {
				mono += step
				ms, stepped := c.Stamp(mono, epoch+(mono+p.off).Milliseconds())
				grown := time.Duration(ms-last) * time.Millisecond
				switch {
				case stepped:
					steps++
				case grown < step*9/10-time.Millisecond || grown > step*11/10+time.Millisecond:
					t.Fatalf("%s: in the %v before %v the clock went %v", name, step, mono, grown)
				}
				last = ms
			}
		}
		off := time.Duration(last-epoch)*time.Millisecond - mono
		if (off-wantOff).Abs() > time.Millisecond || steps != wantSteps {
			t.Fatalf("%s: off by %v after %d steps; want %v after %d", name, off, steps, wantOff, wantSteps)
		}
	}

	f("right", second, 0, 0, piece{hour, 0})
	f("right, read by the millisecond", time.Millisecond, 0, 0, piece{minute, 0})

	// Near: followed by a tenth, up and down, however often one reads.
	f("ahead, on its way", second, 9*second, 0, piece{90 * second, 10 * second})
	f("ahead, there", second, 10*second, 0, piece{100 * second, 10 * second})
	f("ahead, stays there", second, 10*second, 0, piece{hour, 10 * second})
	f("behind, on its way", second, -9*second, 0, piece{90 * second, -10 * second})
	f("behind, there", second, -10*second, 0, piece{100 * second, -10 * second})
	f("a minute is near", second, minute, 0, piece{10 * minute, minute})
	f("back again", second, 0, 0, piece{100 * second, 10 * second}, piece{100 * second, 0})
	f("read by the ms", time.Millisecond, 5*second, 0, piece{50 * second, 10 * second})
	f("read by the us", time.Microsecond, 200*time.Millisecond, 0, piece{2 * second, 10 * second})
	f("read by the hour", hour, minute, 0, piece{hour, minute})

	// Far: not followed, then stepped to.
	f("+1 h", second, 0, 0, piece{10 * minute, hour})
	f("+1 h, believed", second, hour, 1, piece{10*minute + second, hour})
	f("-1 h", second, 0, 0, piece{10 * minute, -hour})
	f("-1 h, believed", second, -hour, 1, piece{10*minute + second, -hour})
	f("+400 days", second, 0, 0, piece{10 * minute, 400 * day})
	f("+400 days, believed", second, 400*day, 1, piece{10*minute + second, 400 * day})
	f("-400 days, believed", second, -400*day, 1, piece{10*minute + second, -400 * day})
	f("just far", second, 0, 0, piece{10 * minute, minute + second})
	f("just far, believed", second, minute+second, 1, piece{10*minute + second, minute + second})
	f("+1 h and back in time", second, 0, 0, piece{9 * minute, hour}, piece{9 * minute, 0})
	f("+1 h and back too late", second, 0, 2, piece{11 * minute, hour}, piece{11 * minute, 0})
	f("nearly back", second, 30*second, 0, piece{9 * minute, hour}, piece{5 * minute, 30 * second})
	f("a look at the truth starts anew", second, 0, 0,
		piece{9 * minute, hour}, piece{second, 0}, piece{9 * minute, hour})
	f("another difference starts anew", second, 0, 0, piece{9 * minute, hour}, piece{9 * minute, 2 * hour})
	f("the other side starts anew", second, 0, 0, piece{9 * minute, hour}, piece{9 * minute, -hour})
	f("nearly the same is the same", second, hour+second/2, 1,
		piece{9 * minute, hour}, piece{minute + second, hour + second/2})
	f("twice", second, 2*hour, 2, piece{11 * minute, hour}, piece{11 * minute, 2 * hour})
	f("twice, without a moment between", second, hour, 1, piece{10*minute + second, hour}, piece{9 * minute, 2 * hour})
	f("asleep for a day", day, 0, 0, piece{day, 400 * day}) // the first look does not know since when
	f("asleep for two", day, 400*day, 1, piece{2 * day, 400 * day})

	// Strobing: to and fro, for an hour.
	strobe := func(lasts time.Duration, offs ...time.Duration) (ps []piece) {
		for range int(hour/lasts) / len(offs) {
			for _, off := range offs {
				ps = append(ps, piece{lasts, off})
			}
		}
		return ps
	}
	f("strobe of 1 h", second, 0, 0, strobe(second, hour, -hour)...)
	f("strobe of 1 h, slow", second, 0, 0, strobe(5*minute, hour, -hour)...)
	f("strobe of 400 days and nothing", second, 0, 0, strobe(second, 400*day, 0)...)
	f("strobe of 10 s", second, 0, 0, strobe(second, 10*second, -10*second)...)
	f("wild", second, 0, 0, strobe(7*second, hour, 2*hour, -day, 5*minute, -400*day)...)
}

// TestStampClockDrift has the wall clock itself slewed by those who keep it: as
// long as the difference moves it is not the same, and not believed.
func TestStampClockDrift(t *testing.T) {
	c := NewStampClock(0, epoch)
	off := hour
	for mono := second; off > 2*minute; mono += second {
		off -= 50 * time.Millisecond
		if ms, stepped := c.Stamp(mono, epoch+(mono+off).Milliseconds()); stepped || ms != epoch+mono.Milliseconds() {
			t.Fatalf("after %v, %v apart: %d ms off, stepped: %v", mono, off, ms-epoch-mono.Milliseconds(), stepped)
		}
	}
}

// TestStampClockStopped has the wall clock stop: it slows the stamps a little
// until it is far away, and then not at all.
func TestStampClockStopped(t *testing.T) {
	c := NewStampClock(0, epoch)
	for mono := second; mono < day; mono += second {
		ms, stepped := c.Stamp(mono, epoch)
		if behind := mono.Milliseconds() - (ms - epoch); behind > 7000 || stepped {
			t.Fatalf("after %v: %d ms behind, stepped: %v", mono, behind, stepped)
		}
	}
}

// TestStampClockRandom reads at random moments with the wall clock anywhere:
// but for a step, no stamp is below the one before or runs off by more than a
// tenth.
func TestStampClockRandom(t *testing.T) {
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 0))
		var mono time.Duration
		c := NewStampClock(0, epoch)
		last, at, off := int64(epoch), mono, time.Duration(0)
		for range 500 {
			if r.IntN(20) == 0 {
				off = time.Duration(r.Int64N(int64(2*second)<<r.IntN(24)) - int64(second)<<r.IntN(24))
			}
			mono += time.Duration(r.Int64N(int64(time.Millisecond) << r.IntN(20)))
			read := mono
			if r.IntN(10) == 0 {
				read -= time.Duration(r.Int64N(int64(second))) // a reading that comes late
			}
			ms, stepped := c.Stamp(read, epoch+(mono+off).Milliseconds())
			passed := max(0, read-at)
			at += passed
			grown := time.Duration(ms-last) * time.Millisecond
			slack := passed/10 + time.Millisecond
			if !stepped && (ms < last || (grown-passed).Abs() > slack) {
				t.Fatalf("seed %d: in %v the clock went %v", seed, passed, grown)
			}
			last = ms
		}
	}
}

// TestStampClockBounds shows wall clocks nobody believes.
func TestStampClockBounds(t *testing.T) {
	f := func(wall, want int64) {
		t.Helper()
		if ms, _ := NewStampClock(0, wall).Stamp(0, wall); ms != want {
			t.Fatalf("a clock started at %d shows %d; want %d", wall, ms, want)
		}
		c := NewStampClock(0, epoch)
		if ms, stepped := c.Stamp(0, wall); ms != epoch || stepped {
			t.Fatalf("wall clock at %d: %d, stepped: %v", wall, ms, stepped)
		}
	}

	f(-1, 0)
	f(-1<<63, 0)
	f(0, 0)
	f(maxWallMillis, maxWallMillis)
	f(maxWallMillis+1, maxWallMillis)
	f(1<<63-1, maxWallMillis)

	if got := time.UnixMilli(maxWallMillis).UTC().Format(time.DateTime); got != "2200-01-01 00:00:00" {
		t.Fatalf("maxWallMillis is %s", got)
	}
}
