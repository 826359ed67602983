package repl

import (
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"slices"
	"syscall"
	"time"

	"github.com/teralog/teralog/mem"
	"github.com/teralog/teralog/storage"
	"github.com/teralog/teralog/wire"
)

// A janitor does for one directory what need not happen while anybody waits:
// recovery points, and with them the end of trims and the unlinking of old
// segments; retention, rolls of idle segments, deleted topics, the reserve.
//
// What belongs to the holder of a partition's turn it asks for by a chore; the
// disk work in between it does itself. A partition that is busy does its part
// when it comes to it, and the janitor picks it up on its next round.
type janitor struct {
	dir    *directory
	round  time.Duration // when the next one is due
	begun  bool          // the first is over
	rounds uint64        // made so far
	next   int           // whose checkpoint is next, in the list of partitions
	sweeps int           // whose old segments are next
	proofs []proof       // to be written with the recovery points, and told
}

// A proof is a recovery point whose bytes are durable.
type proof struct {
	p     *Partition
	point storage.Point
	saved bool // it stands in the recovery points
}

// A chore is a rare task.
type chore struct {
	kind  choreKind
	trim  trim
	point storage.Point
}

type choreKind uint8

const (
	choreTrim   choreKind = iota + 1
	choreTidy             // retention, idle roll
	chorePoint            // leave a checkpoint for the janitor
	choreProved           // point is in the recovery points
)

func (j *janitor) due(now mem.Now) bool { return now.Mono >= j.round && j.dir.failure() == nil }

// turn makes one round, if it is due. What panics in it outside of the work for
// one partition leaves nobody to write recovery points, so it ends the directory.
func (j *janitor) turn(now mem.Now) {
	if !j.due(now) {
		return
	}
	defer j.dir.endOnPanic("janitor")
	c := &j.dir.set.config
	j.round = now.Mono + c.PointEvery
	if !j.begun { // what recovery scanned is proved soon, else a node that dies young scans ever more
		j.begun, j.round = true, now.Mono+c.PointEvery/8
	}
	// Retention takes the partitions in turn: what it deletes of all at once would keep
	// the disk, and the memory that it frees, from the producers.
	turns := max(uint64(c.TidyEvery/c.PointEvery), 1)
	turn := j.rounds % turns
	j.rounds++
	all := j.dir.set.Partitions()
	for _, p := range all {
		if p.dir == j.dir && (uint64(p.id.Topic)+uint64(p.id.Partition))%turns == turn {
			p.tellDamage()
			p.ask(&chore{kind: choreTidy})
		}
		if p.dir == j.dir && p.changed.Load() && p.captured.Load() == nil {
			p.ask(&chore{kind: chorePoint})
		}
	}
	j.each(all, &j.next, c.PointEvery/4, func(p *Partition) bool { return p.captured.Load() != nil }, j.prove)
	j.save()
	j.each(all, &j.sweeps, c.PointEvery/2, func(p *Partition) bool { return p.doomed.Load() != nil }, j.sweep)
	if turn == 0 {
		j.purge()
	}
}

// endOnPanic is deferred by work for no partition alone, of whom. It ends the
// directory if that panics.
func (d *directory) endOnPanic(whom string) {
	if v := recover(); v != nil {
		d.set.config.Log.Error("panic in a directory's "+whom, "dir", d.dir.Path(), "err", v, slog.String("stack", string(debug.Stack())))
		d.fail(fmt.Errorf("panic in its %s: %v", whom, v))
	}
}

// each calls f with the partitions of the directory that have left something, for
// so long at most: the disk is there for the producers. The next round begins where
// this one stopped, which is next.
func (j *janitor) each(all []*Partition, next *int, long time.Duration, left func(*Partition) bool, f func(*Partition)) {
	until := j.dir.set.mono() + long
	for range all {
		*next = (*next + 1) % len(all)
		if p := all[*next]; p.dir == j.dir && left(p) {
			f(p)
			if j.dir.set.mono() > until {
				return
			}
		}
	}
}

// prove makes the checkpoint that p has left durable. It leaves the next one
// until p has heard of the last.
func (j *janitor) prove(p *Partition) {
	if p.unheard {
		return
	}
	c := j.dir.beginProof(p, j.dir.set.mono())
	if c == nil {
		return
	}
	var point storage.Point
	err := p.aside("recovery point", func() (err error) {
		point, err = c.Run()
		return err
	})
	j.dir.endProof()
	switch {
	case errors.Is(err, errPanic):
		return
	case err != nil:
		p.changed.Store(true) // if the disk was full, a later checkpoint may do
		j.failed(fmt.Errorf("recovery point of %s %d: %w", p.topic, p.id.Partition, err))
		return
	}
	p.unheard = true
	j.proofs = append(j.proofs, proof{p: p, point: point})
}

// save writes the recovery points, in one file for all, and tells their
// partitions. What the disk or a mailbox has no room for, the next round tries
// again.
func (j *janitor) save() {
	var points []storage.Point
	for _, proved := range j.proofs {
		if !proved.saved {
			points = append(points, proved.point)
		}
	}
	if len(points) > 0 {
		if err := j.dir.dir.SavePoints(points); err != nil {
			j.failed(fmt.Errorf("recovery points: %w", err))
			return
		}
	}
	j.proofs = slices.DeleteFunc(j.proofs, func(proved proof) bool { return j.told(proved) })
	for i := range j.proofs {
		j.proofs[i].saved = true
	}
}

// told tells a partition that its point stands, unless its mailbox is full.
func (j *janitor) told(proved proof) bool {
	p := proved.p
	if !p.ask(&chore{kind: choreProved, point: proved.point}) && p.closing.Load() == nil {
		return false
	}
	p.unheard = false
	return true
}

// sweep unlinks the old segments that p has left. That takes a processor 10 ms
// and more a segment, since its pages leave memory, so no partition does it in its
// turn.
func (j *janitor) sweep(p *Partition) {
	d := j.dir.beginSweep(p)
	if d == nil {
		return
	}
	defer j.dir.endSweep()
	if _, err := d.Unlink(); err != nil {
		j.unlinked(err)
	}
}

// maxDoomed is about how many bytes of segments a partition leaves at once to be
// unlinked, which bounds how long the janitor is away from others.
const maxDoomed = 1 << 30

// leaveDoomed leaves old segments for the janitor to unlink, unless it has not
// come for the last ones. Holder only.
func (p *Partition) leaveDoomed() {
	if p.doomed.Load() != nil {
		p.changed.Store(true) // what is left comes with the next recovery point
		return
	}
	d := p.log.TakeDoomed(maxDoomed)
	if len(d) > 0 {
		p.changed.Store(true) // likewise
		p.doomed.Store(&d)
	}
}

// purge unlinks what nobody needs any more.
func (j *janitor) purge() {
	if _, err := j.dir.dir.Purge(); err != nil {
		j.unlinked(fmt.Errorf("purge: %w", err))
	}
}

// failed judges an error of writing: all that may not pass end the directory.
func (j *janitor) failed(err error) {
	if passes(err) {
		j.dir.set.config.Log.Warn("no room", "dir", j.dir.dir.Path(), "err", err)
		return
	}
	j.dir.fail(err)
}

// unlinked judges an error of deleting, which takes nothing from anybody but
// space, unless an fsync failed.
func (j *janitor) unlinked(err error) {
	if errors.Is(err, storage.ErrSync) {
		j.dir.fail(err)
		return
	}
	j.dir.set.config.Log.Warn("delete", "dir", j.dir.dir.Path(), "err", err)
}

// full reports whether the disk had no room for what was asked. One that only an
// fsync tells of is not: that is a failed fsync.
func full(err error) bool {
	return !errors.Is(err, storage.ErrSync) &&
		(errors.Is(err, storage.ErrDiskFull) || errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT))
}

// passes reports whether what failed undid itself, and may succeed another time:
// the disk was full, or the process had too many files open.
func passes(err error) bool {
	return full(err) || !errors.Is(err, storage.ErrSync) && (errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE))
}

// do does a chore in the partition's turn.
func (p *Partition) do(c *chore, now mem.Now) {
	switch {
	case p.down != nil && c.kind == choreTrim:
		c.trim.done(-1, p.down)
		return
	case p.down != nil:
		return
	}
	switch c.kind {
	case choreTrim:
		p.trim(c.trim)
	case choreTidy:
		p.tidy(now)
	case chorePoint:
		if p.captured.Load() == nil { // else the janitor has not come for the last one
			p.changed.Store(false)
			p.captured.Store(p.log.Checkpoint(now))
		}
	case choreProved:
		p.proved(c.point)
	}
}

// tidy gives up old segments and rolls an idle one.
func (p *Partition) tidy(now mem.Now) {
	trimmed := p.log.Retain(now, min(p.offsets.committed, p.leader.flush.flushed)) // see cut
	if held := p.log.Withheld(); p.leader.count.withheld.Swap(held) == 0 && held > 0 {
		p.set.event(Event{Kind: RetentionHeld, Dir: p.dir.dir, ID: p.id, Bytes: held})
	}
	rolled, err := p.log.RollIdle(now)
	if err != nil && !passes(err) {
		p.dir.fail(fmt.Errorf("roll of %s %d: %w", p.topic, p.id.Partition, err))
	}
	if rolled {
		p.tellRolled()
	}
	if trimmed || rolled {
		p.changed.Store(true)
	}
}

// maxTrims bounds the trims of a partition that wait.
const maxTrims = 1024

func (p *Partition) trim(t trim) {
	switch {
	case t.before > p.offsets.committed:
		t.done(-1, wire.Errorf(wire.CodeOutOfRange, "trim before offset %d, committed is %d", t.before, p.offsets.committed))
	case t.before <= p.provedStart:
		t.done(p.provedStart, nil)
	case len(p.trims) >= maxTrims:
		t.done(-1, errTooManyTrims)
	default:
		p.trims = append(p.trims, t)
		p.cut()
	}
}

// cut trims the log for those who asked, as far as it is durable: until the new
// start is, a power cut brings the old one back, and what lies behind a hole
// would be lost with it. It leaves the others to the next flush that lands.
func (p *Partition) cut() {
	p.uncut = 0
	for i := range p.trims {
		t := &p.trims[i]
		switch {
		case t.cut:
		case t.before > p.leader.flush.flushed:
			p.uncut++
		default:
			if err := p.log.Trim(t.before); err != nil {
				panic(fmt.Sprintf("BUG: trim before offset %d: %v", t.before, err))
			}
			t.cut = true
			p.changed.Store(true)
		}
	}
}

// proved hears that a recovery point is durable: no crash brings back what lies
// below its start, so its files may go, and whoever trimmed hears of it.
func (p *Partition) proved(point storage.Point) {
	p.log.Checkpointed(point)
	p.provedStart = point.Start
	p.leaveDoomed()
	waiting := p.trims
	p.trims = nil
	for len(waiting) > 0 {
		t := waiting[0]
		waiting = waiting[1:]
		if !t.cut || t.before > point.Start {
			p.trims = append(p.trims, t)
			continue
		}
		t.done(point.Start, nil)
	}
}
