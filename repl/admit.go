package repl

import (
	"time"

	"github.com/teralog/teralog/mem"
)

// Admit says whether a write may be produced now. The error is a refusal, which
// is definite: BUSY while the mailbox is nearly full, DISK_SLOW while the disk
// takes too long, or has as much to write as it may have. Asking first spares the
// mailbox, which otherwise takes what fits and refuses the rest as it happens to
// come. Where all is well it costs a few loads.
func (p *Partition) Admit(now mem.Now) error {
	c := &p.set.config
	if wait := p.dir.trouble.Admit(&c.slowRule, now, p.dir.delay.Load()); wait > 0 {
		e := *errDiskSlow
		e.RetryAfter = wait
		return &e
	}
	if p.dir.back.full() {
		return errDirty
	}
	bytes, tasks := p.queued.Used(), p.inbox.Len()
	if bytes < c.QueueBytes/openFrom && tasks < c.QueueLimit/openFrom && p.pressure.Closed() {
		return nil
	}
	fill := max(bytes*100/c.QueueBytes, int64(tasks)*100/int64(c.QueueLimit))
	if wait := p.pressure.Admit(&queueRule, now, fill); wait > 0 {
		e := *errQueueFull
		e.RetryAfter = wait
		return &e
	}
	return nil
}

// queueRule goes by the per cent of a mailbox that are taken. Its times are
// short: a mailbox that is full holds less than a second's work, and while
// nothing is let in it runs dry.
var queueRule = mem.BreakerRule{Open: 80, Close: 20, Hold: 50 * time.Millisecond, Probe: time.Millisecond}

// openFrom is the part of a mailbox below which nobody works out per cents.
const openFrom = 2

// slowRule goes by what the append or flush that runs longest has taken so far.
func slowRule(refuseAfter time.Duration) mem.BreakerRule {
	return mem.BreakerRule{Open: int64(refuseAfter), Close: int64(refuseAfter / 4), Hold: refuseAfter, Probe: refuseAfter / 10}
}

// appended returns what the append to the directory that runs longest has taken,
// ns. An append that hangs ends no directory, but is as good a sign of a slow
// disk as a flush. The partitions may be many, and the caller comes round a
// thousand times a second: the answer is as old as a sixteenth of RefuseAfter.
func (d *directory) appended(now mem.Now) int64 {
	if now.Mono-time.Duration(d.scanned.Load()) < d.set.config.RefuseAfter/16 {
		return d.longestAppend.Load()
	}
	since := now.Mono
	for _, p := range d.set.Partitions() {
		if at := time.Duration(p.writing.Load()); at != 0 && p.dir == d {
			since = min(since, at)
		}
	}
	d.scanned.Store(int64(now.Mono))
	d.longestAppend.Store(int64(now.Mono - since))
	return int64(now.Mono - since)
}
