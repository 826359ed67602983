package repl

import (
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"time"

	"github.com/teralog/teralog/mem"
	"github.com/teralog/teralog/storage"
	"github.com/teralog/teralog/wire"
)

// turn does all waiting work once. It returns whether the log is to be flushed
// now, which the caller asks of the directory when it has given the turn away.
// A panic inside takes this partition offline and goes no farther.
func (p *Partition) turn(tasks []task, now mem.Now) (flush bool) {
	p.tasks = tasks
	defer p.isolate()
	p.leader.begin(tasks, now)
	p.lookAround()
	p.chores(now)
	p.stage(now)
	p.write(now)
	p.advance(now)
	p.park()
	flush = p.plan(now)
	clear(tasks) // what they point to is not kept from its owner, or the collector
	p.tasks = nil
	return flush
}

// lookAround takes in what came other than by a task.
func (p *Partition) lookAround() {
	to, err, landed := p.landing.take()
	if landed && err == nil && p.down == nil {
		p.leader.flush.done(to)
		p.dir.back.cleaned(p, p.leader.flush.durable)
		p.leader.count.flushes.Add(1)
		p.changed.Store(true)
		p.cut()
	}
	why := p.dir.failure()
	if broken := p.broken.Load(); broken != nil && why == nil {
		why = *broken
	}
	if why != nil && p.down == nil {
		p.goOffline(why)
	}
}

// stage takes the writes out of the tasks.
func (p *Partition) stage(now mem.Now) {
	full := p.dir.back.full()
	for i := range p.tasks {
		t := &p.tasks[i]
		p.queued.Give(t.bytes)
		t.bytes = 0
		p.leader.left(&p.set.times, t.writes)
		for len(t.writes) > 0 {
			w, err := &t.writes[0], p.down
			switch {
			case err != nil:
			case full:
				err = errDirty
			default:
				err = p.leader.stage(w, now, p.dir.slow.Load())
			}
			t.writes = t.writes[1:]
			if err != nil {
				w.answer(storage.Appended{First: -1, Last: -1}, err)
			}
		}
	}
}

// write appends what was staged.
func (p *Partition) write(now mem.Now) {
	if len(p.leader.batches) == 0 {
		return
	}
	before := p.leader.flush.written
	p.writing.Store(max(int64(now.Mono), 1))
	err := p.leader.write(now)
	p.writing.Store(0)
	if n := p.leader.flush.written - before; n > 0 {
		p.dir.back.dirtied(p, n)
	}
	if p.leader.rolled {
		p.leader.rolled = false
		p.tellRolled()
	}
	if err == nil {
		return
	}
	if answer := definite(err); answer != nil {
		p.leader.failStaged(answer)
		return
	}
	p.dir.fail(fmt.Errorf("append to %s %d: %w", p.topic, p.id.Partition, err))
	p.goOffline(err)
}

// advance moves the watermarks, publishes, and only then answers and wakes.
func (p *Partition) advance(now mem.Now) {
	if p.down != nil {
		return
	}
	f, start := &p.leader.flush, p.offsets.start
	p.offsets = p.offsets.after(p.log.View().Start(), f.flushed, f.end, f.counted())
	p.publish()
	p.leader.enter()
	p.leader.acks.settle(f, p.offsets.committed, now)
	p.leader.acks.expire(now)
	if p.offsets.start > start {
		p.set.event(Event{Kind: LogTrimmed, Dir: p.dir.dir, ID: p.id, From: start, To: p.offsets.start})
		p.waiters.wakeAll() // what some have waited to read more of may be gone
		return
	}
	p.waiters.wake(p.offsets.committed, f.volume(), &p.rest)
}

// wakeRest wakes those the turn has left. Whoever turned calls it, once the
// answers of the turn are on their way.
func (p *Partition) wakeRest() {
	if p.rest.left.Load() == 0 {
		return
	}
	p.aside("wake", func() error {
		p.rest.wake()
		return nil
	})
}

// publish stores a new View if anything in it changed.
func (p *Partition) publish() {
	o, v, old := p.offsets, p.next, p.view.Load()
	if v == nil {
		if old.Committed == o.committed && old.Flushed == o.flushed && old.Err == p.down {
			return
		}
		v = &View{Log: old.Log}
	}
	p.next = nil
	v.Epoch, v.Err, v.Reads = p.leader.epoch, p.down, p.reads
	v.Oldest = p.leader.flush.oldest
	v.Start, v.Stable, v.Committed, v.End, v.Flushed = o.start, o.stable, o.committed, o.end, o.flushed
	p.view.Store(v)
}

// placeView gives the log the place in the next View for its own.
func (p *Partition) placeView() *storage.View {
	p.next = new(View)
	p.next.Log = &p.next.log
	return p.next.Log
}

// tellRolled says that a new segment has begun.
func (p *Partition) tellRolled() {
	p.set.event(Event{Kind: SegmentRolled, Dir: p.dir.dir, ID: p.id, From: p.log.View().ActiveBase()})
}

// chores does the rare tasks.
func (p *Partition) chores(now mem.Now) {
	for i := range p.tasks {
		if c := p.tasks[i].rare; c != nil {
			p.tasks[i].rare = nil
			p.do(c, now)
		}
	}
}

// park parks the fetches among the tasks.
func (p *Partition) park() {
	for i := range p.tasks {
		t := &p.tasks[i]
		f := t.fetch
		t.fetch = parked{}
		switch {
		case f.w == nil:
		case p.down != nil:
			f.wake(over)
		default:
			p.waiters.add(f, p.offsets.committed, p.leader.flush.volume())
		}
	}
}

// plan returns whether a flush must start now, and sets the timer for what falls
// due later.
func (p *Partition) plan(now mem.Now) (flush bool) {
	if p.down != nil {
		return false
	}
	if p.armed <= now.Mono {
		p.armed = 0
	}
	waited := p.leader.acks.waiting() || p.uncut > 0
	at, ok := p.leader.flush.due(waited)
	switch {
	case ok && at <= now.Mono:
		p.leader.flush.start(waited)
		flush = true
	case ok:
		p.arm(at)
	}
	if at := p.leader.acks.deadline; at > 0 {
		p.arm(at)
	}
	return flush
}

// arm has the partition turned at that time, or earlier.
func (p *Partition) arm(at time.Duration) {
	if p.armed == 0 || at < p.armed {
		p.armed = at
		p.set.wheel.Set(&p.timer, at)
	}
}

// goOffline ends the partition's service for good. The writes that wait may or
// may not survive, so their answer is indefinite.
func (p *Partition) goOffline(why error) {
	p.condemn(why)
	p.answerAll(wire.Errorf(wire.CodeStorageError, "%v", why))
}

// condemn marks the partition as offline, for anyone to see.
func (p *Partition) condemn(why error) {
	p.down = wire.Errorf(wire.CodeOffline, "the partition is offline: %v", why)
	p.dir.back.cleaned(p, p.dirt.written.Load()) // nothing is appended any more that others would have to wait for
	p.reads = p.dir.failure() != nil && !errors.Is(why, ErrHangs)
	p.publish()
	p.set.event(Event{Kind: PartitionOffline, Dir: p.dir.dir, ID: p.id, Err: why})
}

// answerAll ends whatever waits: writes with err, the rest with why the
// partition is offline.
func (p *Partition) answerAll(err error) {
	p.leader.fail(err)
	p.waiters.wakeAll()
	for len(p.trims) > 0 {
		t := p.trims[0]
		p.trims = p.trims[1:]
		t.done(-1, err)
	}
}

// isolate ends a turn that panicked.
func (p *Partition) isolate() {
	v := recover()
	if v == nil {
		return
	}
	why := p.panicked("turn", v)
	p.writing.Store(0)
	// Whatever is answered is taken off its list before the call, so each
	// attempt gets farther, even if it is an answer that panics.
	for !p.bury(why) {
	}
}

// panicked logs a panic in work for this partition alone.
func (p *Partition) panicked(in string, v any) error {
	why := fmt.Errorf("panic: %v", v)
	p.set.config.Log.Error("panic in a partition's "+in, "topic", p.topic, "part", p.id.Partition,
		"err", why, slog.String("stack", string(debug.Stack())))
	return why
}

// aside does work for this partition alone outside of its turns. After a panic
// in it the partition goes offline with its next turn, and the error, which is
// not the directory's, wraps errPanic.
func (p *Partition) aside(name string, work func() error) (err error) {
	defer func() {
		if v := recover(); v != nil {
			why := p.panicked(name, v)
			p.broken.CompareAndSwap(nil, &why)
			p.nudge()
			err = fmt.Errorf("%w: %w", errPanic, why)
		}
	}()
	return work()
}

func (p *Partition) flushLog() (to wire.Offset, err error) {
	err = p.aside("flush", func() (err error) {
		to, err = p.log.Flush()
		return err
	})
	return to, err
}

var errPanic = errors.New("work for one partition went wrong")

// bury answers everything after a panic. It returns false if it panicked too.
func (p *Partition) bury(why error) (done bool) {
	defer func() { done = recover() == nil }()
	if p.down == nil {
		p.condemn(why)
	}
	p.answerAll(wire.Errorf(wire.CodeInternal, "%v", why))
	for i := range p.tasks {
		t := &p.tasks[i]
		p.queued.Give(t.bytes)
		t.bytes = 0
		for len(t.writes) > 0 {
			w := &t.writes[0]
			t.writes = t.writes[1:]
			w.answer(storage.Appended{First: -1, Last: -1}, p.down)
		}
	}
	p.chores(mem.Now{})
	p.park()
	return true
}
