package repl

import (
	"errors"
	"fmt"
	"slices"

	"github.com/teralog/teralog/mem"
	"github.com/teralog/teralog/wire"
)

// beginClose refuses what comes from now on and lets the rest run dry.
func (p *Partition) beginClose(why *wire.Error) {
	p.closing.CompareAndSwap(nil, why)
	p.inbox.Close()
	if !p.set.config.Manual {
		p.startAppender()
	}
}

// close ends the partition and returns once nothing of it runs any more. The
// exception is a log that hangs in its own close: its directory is given up
// then, and so is the wait.
func (p *Partition) close(why *wire.Error) error {
	p.beginClose(why)
	if p.set.config.Manual {
		p.closeManual()
		return p.closeErr
	}
	select {
	case <-p.stopped:
		return p.closeErr
	case <-p.dir.dead:
	}
	if p.dir.closes(p) {
		return p.dir.failure()
	}
	<-p.stopped
	return p.closeErr
}

// busy reports whether a flush or the janitor still works on the log. It is for
// the end only, when the inbox is closed and drained.
func (p *Partition) busy() bool {
	// First take what the janitor has not, then ask whether it has taken it.
	if c := p.captured.Swap(nil); c != nil {
		p.unproved = c
	}
	if d := p.doomed.Swap(nil); d != nil {
		d.Leave()
	}
	return p.down == nil && (p.leader.flush.running || p.dir.proves(p))
}

var errUnclosed = errors.New("the log was not closed")

// finish closes the log, with which all of it is durable, and answers what
// waited for that. It is the last thing the turn does.
func (p *Partition) finish(now mem.Now) {
	defer p.isolate()
	p.closeErr = errUnclosed
	p.set.wheel.Stop(&p.timer)
	if p.down != nil {
		p.closeErr = p.down
		return
	}
	if err := p.closeLog(); err != nil {
		p.closeErr = fmt.Errorf("close %s %d: %w", p.topic, p.id.Partition, err)
		if !passes(err) {
			p.dir.fail(p.closeErr)
		}
		p.goOffline(p.closeErr)
		return
	}
	p.leader.flush.closed()
	p.dir.back.cleaned(p, p.leader.flush.written)
	p.advance(now)
	p.down = p.closing.Load()
	p.publish()
	p.answerAll(wire.Errorf(wire.CodeStorageError, "not known to be durable: %v", p.down)) // trims only
	p.closeErr = nil
}

func (p *Partition) closeLog() (err error) {
	if p.unproved != nil {
		if _, err := p.unproved.Run(); err != nil && !passes(err) {
			return err
		}
	}
	p.cleanEnd, err = p.log.Close()
	return err
}

// enterClose waits for one of a few places to close p's log in: a node that
// stops must not fsync ten thousand logs at once. It returns false if the
// directory failed, and its logs are not to be touched.
func (d *directory) enterClose(p *Partition) bool {
	select {
	case d.closers <- struct{}{}:
	case <-d.dead:
		return false
	}
	now := d.set.mono()
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.failure() != nil {
		<-d.closers
		return false
	}
	d.closing = append(d.closing, flight{p: p, since: now})
	return true
}

func (d *directory) leaveClose(p *Partition) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.closing = slices.DeleteFunc(d.closing, func(f flight) bool { return f.p == p })
	<-d.closers
}

// closes reports whether p's log is being closed.
func (d *directory) closes(p *Partition) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.ContainsFunc(d.closing, func(f flight) bool { return f.p == p })
}
