package bench

import (
	"context"
	"time"

	"golang.org/x/sys/unix"
)

// tick is how often records fall due at rates above one a tick: in bursts,
// since a sleep cannot be much shorter.
const tick = time.Millisecond

// A pace says when records are due, whatever became of those before: the
// latency of a record counts from then, so a stall is felt by all records that
// fall due during it, as it would be by the users they stand for. Times count
// from the start of the schedule; records count from 0.
type pace struct {
	rate  int64         // records a second, at least 1
	phase time.Duration // all is later by this, so that several paces take turns
}

// paces splits rate among n, at most rate, which take turns.
func paces(rate int64, n int) []pace {
	ps := make([]pace, n)
	for i := range ps {
		ps[i].rate = part(rate, i, n)
		ps[i].phase = max(tick, time.Second/time.Duration(ps[i].rate)) * time.Duration(i) / time.Duration(n)
	}
	return ps
}

// step is the time between two moments at which anything falls due, and how
// many of them make a second.
func (p pace) step() (step time.Duration, perSecond int64) {
	if p.rate <= int64(time.Second/tick) {
		return 1, int64(time.Second)
	}
	return tick, int64(time.Second / tick)
}

// due returns how many records have fallen due by now, inclusive.
func (p pace) due(now time.Duration) int64 {
	step, perSecond := p.step()
	steps := int64(max(now-p.phase, 0) / step)
	return steps/perSecond*p.rate + steps%perSecond*p.rate/perSecond
}

// at returns when record n falls due: the least time with due(at) > n.
func (p pace) at(n int64) time.Duration {
	step, perSecond := p.step()
	seconds, rest := (n+1)/p.rate, (n+1)%p.rate
	steps := seconds*perSecond + (rest*perSecond+p.rate-1)/p.rate
	return p.phase + time.Duration(steps)*step
}

// pause sleeps for d, or until ctx ends. Timers of the runtime are good to a
// millisecond when nothing else happens, the kernel's to a twentieth of that.
func pause(ctx context.Context, d time.Duration) {
	const coarse = 5 * time.Millisecond
	if d > coarse {
		t := time.NewTimer(d - coarse/2)
		defer t.Stop()
		select {
		case <-t.C:
			d = coarse / 2
		case <-ctx.Done():
			return
		}
	}
	ts := unix.NsecToTimespec(int64(max(d, 0)))
	unix.Nanosleep(&ts, nil) // one that a signal cuts short is followed by another
}
