package mem

import "time"

// Now is the moment something is told it is.
type Now struct {
	// Mono is the time since some fixed moment of this process. It never goes
	// back and never jumps: deadlines, ages, sessions and rates go by it.
	Mono time.Duration
	// Wall is the stamp clock in milliseconds since the Unix epoch: what
	// records are stamped with and retention goes by.
	Wall int64
}

const (
	slewShare  = 10               // the stamp clock gains or loses at most a tenth,
	maxSlew    = time.Minute      // while the wall clock is at most this far away;
	stepAfter  = 10 * time.Minute // farther away it must stay for this long
	stepJitter = time.Second      // with a difference that moves less than this
)

// The wall clock is believed between 1970 and the year 2200, so that the sums
// below stay inside 64 bits of nanoseconds.
const maxWallMillis = 7_258_118_400_000

// A StampClock turns a wall clock that people and protocols set into one that
// records can be stamped with.
//
// It starts at the wall time and runs with the monotonic clock. A wall clock
// up to a minute away is followed by running at most a tenth faster or slower,
// so a minute takes ten. One that is farther away is not followed at all,
// since it may be wrong and come back; after ten minutes of the same
// difference it is right, and the stamp clock steps to it. A wall clock that
// jumps far to and fro therefore never moves the stamps.
//
// The stamps never go back but by such a step. One goroutine at a time.
type StampClock struct {
	mono  time.Duration // of the last stamp
	stamp time.Duration // the last stamp, since the Unix epoch

	apart bool          // the wall clock is more than maxSlew away,
	since time.Duration // since this mono,
	by    time.Duration // by this much, wall less stamp
}

// NewStampClock returns a clock that shows wallMillis, milliseconds since the
// Unix epoch, at mono.
func NewStampClock(mono time.Duration, wallMillis int64) *StampClock {
	return &StampClock{mono: mono, stamp: wallTime(wallMillis)}
}

// Stamp returns the stamp clock's time in milliseconds since the Unix epoch,
// given what the two clocks show. stepped says that this reading stepped to
// the wall clock. A mono below the last one counts as equal to it.
func (c *StampClock) Stamp(mono time.Duration, wallMillis int64) (ms int64, stepped bool) {
	passed := max(0, mono-c.mono)
	c.mono += passed
	c.stamp += passed
	by := wallTime(wallMillis) - c.stamp
	if by.Abs() <= maxSlew {
		c.apart = false
		c.stamp += min(max(by, -passed/slewShare), passed/slewShare)
	} else if stepped = c.believes(by); stepped {
		c.stamp += by
	}
	return c.stamp.Milliseconds(), stepped
}

// believes notes that the wall clock is far away by so much, and returns
// whether it has been so for long enough to be right.
func (c *StampClock) believes(by time.Duration) bool {
	if !c.apart || (by-c.by).Abs() > stepJitter {
		c.apart, c.since, c.by = true, c.mono, by
	}
	if c.mono-c.since < stepAfter {
		return false
	}
	c.apart = false
	return true
}

// wallTime returns a wall clock's reading as time since the Unix epoch.
func wallTime(ms int64) time.Duration {
	return time.Duration(min(max(ms, 0), maxWallMillis)) * time.Millisecond
}
