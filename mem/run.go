package mem

import (
	"sync"
	"time"
)

// A Clock reads the machine's clocks. It is made once per process, by whoever
// runs the loops, and everything else is told its Now.
//
// All methods may be called from any goroutine.
type Clock struct {
	start time.Time

	mu    sync.Mutex
	stamp *StampClock
	steps uint64
}

// NewClock returns a clock whose Mono starts at 0 now and whose Wall is the
// machine's.
func NewClock() *Clock {
	start := time.Now()
	return &Clock{start: start, stamp: NewStampClock(0, start.UnixMilli())}
}

// Now reads the clocks. Later calls never return an earlier Mono; nor an
// earlier Wall, but for a step.
func (c *Clock) Now() Now {
	c.mu.Lock()
	defer c.mu.Unlock()
	t := time.Now() // under the lock, else two readings could enter in the wrong order
	mono := t.Sub(c.start)
	wall, stepped := c.stamp.Stamp(mono, t.UnixMilli())
	if stepped {
		c.steps++
	}
	return Now{Mono: mono, Wall: wall}
}

// Stepped returns how many times Wall stepped to the machine's clock instead
// of being slewed to it: an event worth a line in the log.
func (c *Clock) Stepped() uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.steps
}
