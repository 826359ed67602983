package mem

import (
	"context"
	"os"
	"runtime"
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

// Calm keeps the runtime's monitor thread calm while the process is busy, until
// ctx ends. work returns how many operations there have been; it is asked ten
// times a second. kept is how many goroutines may at most be in long system calls
// at once.
//
// Between two requests all of a process's processors are idle for a moment, and
// the monitor lies down. The next system call wakes it, and for some
// milliseconds it gets up every 20 µs to look around; under load that is
// thousands of times a second, each with a timer and two changes of thread. Where
// these are dear, on virtual machines above all, they took a fifth of a broker's
// CPU time. So one more processor than there are is given to a goroutine that
// spends the busy times in system calls of a few milliseconds: the others are
// never all there is, and the monitor's pauses grow to 10 ms.
//
// What the monitor is for still happens: the goroutine looks around between two
// naps. But a processor kept in a long system call, an fdatasync say, is taken back
// only with the monitor's next round, so there has to be one for each of those
// too: with too few, an answer waits 10 ms for one. Who sets GOMAXPROCS in the
// environment knows better; then Calm does nothing.
func Calm(ctx context.Context, kept int, work func() int64) {
	if _, set := os.LookupEnv("GOMAXPROCS"); set || !canNap {
		return
	}
	tick := time.NewTicker(calmLook)
	defer tick.Stop()
	own := 0 // processors added
	defer func() {
		if own > 0 {
			runtime.GOMAXPROCS(runtime.GOMAXPROCS(0) - own)
		}
	}()
	for load := new(load); ; {
		for load.busy(work()) {
			if own == 0 {
				own = 1 + kept
				runtime.GOMAXPROCS(runtime.GOMAXPROCS(0) + own)
			}
			for range calmLook / calmNap {
				nap(calmNap)
				runtime.Gosched() // else the monitor takes the processor away
			}
			if ctx.Err() != nil {
				return
			}
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

const (
	calmLook = 100 * time.Millisecond // between two looks at the work done
	calmNap  = 4 * time.Millisecond
	calmWork = 200 // operations between two looks that are worth it
)

// CollectRarely has the garbage collector of a busy process run more rarely than
// it would, until ctx ends. work returns how many operations there have been; it
// is asked once a second, and calmWork of them since then are busy.
//
// By itself the collector runs once the heap has doubled, which for a broker that
// holds 3 MB is every one or two seconds, each time on a quarter of the processors,
// with a stop at each of the others and an end to what a sync.Pool keeps. With
// garbageRoom it does so some times a minute, for memory that is taken once: what
// the heap grows to depends less on what it holds, and is reached at once. A
// process that holds more than garbageRoom is left alone, and so is one that has
// GOGC in its environment: its user knows better.
func CollectRarely(ctx context.Context, work func() int64) {
	if _, set := os.LookupEnv("GOGC"); set {
		return
	}
	tick := time.NewTicker(collectLook)
	defer tick.Stop()
	g := newCollector()
	defer g.set(gcPercent)
	for load := new(load); ; {
		g.look(load.busy(work()))
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

const collectLook = time.Second // between two looks at the work done

// A load is what a process has to do, seen from time to time.
type load struct{ seen int64 }

// busy reports whether there was much to do since the last look, given all the
// work done so far.
func (l *load) busy(done int64) bool {
	n := done - l.seen
	l.seen = done
	return n >= calmWork
}
