package repl

import (
	"fmt"

	"github.com/teralog/teralog/mem"
	"github.com/teralog/teralog/wire"
)

// A Step is one thing that may happen next in a manual set. The simulator
// draws one from Steps; in production they happen at once, on goroutines.
type Step struct {
	Kind StepKind
	ID   wire.PartitionID // none for StepTidy
	Dir  int              // of StepTidy: index in SetConfig.Dirs
}

// A StepKind says what a Step does.
type StepKind uint8

// The kinds of steps. A flush is two: it takes effect with the first, for all
// that is appended by then, and the partition hears of it with the second. A
// flush that never lands is a disk that hangs.
const (
	StepTurn       StepKind = iota + 1 // a partition does what waits in its mailbox
	StepFlushStart                     // a log that wants a flush has got a slot
	StepFlushDone                      // a flush lands
	StepTidy                           // a directory's janitor makes its round
)

// String returns the name used in traces.
func (k StepKind) String() string {
	return [...]string{"none", "turn", "start", "done", "tidy"}[k]
}

// Steps appends to dst what may happen at now, in an order that depends on
// nothing but the set's history.
func (s *Set) Steps(dst []Step, now mem.Now) []Step {
	s.advance(now)
	for _, p := range s.Partitions() {
		if p.inbox.Len() > 0 {
			dst = append(dst, Step{Kind: StepTurn, ID: p.id})
		}
	}
	for i, d := range s.dirs {
		if len(d.running) < s.config.Flushers {
			for i := range d.line.Len() {
				dst = append(dst, Step{Kind: StepFlushStart, ID: (*d.line.At(i)).id})
			}
		}
		for i := range d.running {
			dst = append(dst, Step{Kind: StepFlushDone, ID: d.running[i].p.id})
		}
		if d.janitor.due(now) {
			dst = append(dst, Step{Kind: StepTidy, Dir: i})
		}
	}
	return dst
}

// Step lets st happen. A step that is not possible any more does nothing.
func (s *Set) Step(st Step, now mem.Now) {
	s.advance(now)
	p := s.get(st.ID)
	switch {
	case st.Kind == StepTidy:
		s.dirs[st.Dir].janitor.turn(now)
	case p == nil:
	case st.Kind == StepTurn:
		p.Turn(now)
	case st.Kind == StepFlushStart:
		p.dir.startManual(p, now)
	case st.Kind == StepFlushDone:
		p.dir.landManual(p)
	}
}

// Turn lets everything happen once that can: mailboxes, flushes from start to
// end, janitors. It reports whether there was anything.
func (s *Set) Turn(now mem.Now) (worked bool) {
	steps := s.Steps(nil, now)
	for _, st := range steps {
		s.Step(st, now)
		if st.Kind == StepFlushStart {
			s.Step(Step{Kind: StepFlushDone, ID: st.ID}, now)
		}
	}
	return len(steps) > 0
}

// Turn does what waits in the partition's mailbox. Manual sets only.
func (p *Partition) Turn(now mem.Now) (worked bool) {
	if !p.inbox.Take() {
		panic(fmt.Sprintf("BUG: the turn of %v is held", p.id))
	}
	p.spare = p.inbox.PopOrFree(p.spare)
	if len(p.spare) == 0 {
		return false
	}
	if p.turn(p.spare, now) {
		p.dir.begin(p, now.Mono)
	}
	p.spare = emptied(p.spare)
	p.inbox.Free()
	p.wakeRest()
	return true
}

// advance brings a manual set to now.
func (s *Set) advance(now mem.Now) {
	if !s.config.Manual {
		panic("BUG: a set with loops is stepped")
	}
	s.now = now
	s.wheel.Advance(now.Mono)
	s.watch(now)
	for len(s.later) > 0 {
		f := s.later[0]
		s.later = s.later[1:]
		f()
	}
}

// startManual takes p out of the line and flushes it, to be told later.
func (d *directory) startManual(p *Partition, now mem.Now) {
	if len(d.running) >= d.set.config.Flushers || !d.unline(p) {
		return
	}
	f := flight{p: p, since: now.Mono}
	f.to, f.err = p.flushLog()
	d.running = append(d.running, f)
}

// landManual tells p how its flush ended.
func (d *directory) landManual(p *Partition) {
	for i := range d.running {
		if f := d.running[i]; f.p == p {
			d.end(p, d.set.now.Mono)
			p.land(f.to, f.err)
			return
		}
	}
}

// unline takes p out of the line.
func (d *directory) unline(p *Partition) (found bool) {
	for range d.line.Len() {
		q, _ := d.line.Pop()
		if q == p && !found {
			found = true
			continue
		}
		d.line.Push(q)
	}
	return found
}

// closeManual ends a partition of a manual set: a flush under way is overtaken
// by the one that closes the log.
func (p *Partition) closeManual() {
	if !p.inbox.Take() {
		panic(fmt.Sprintf("BUG: the turn of %v is held", p.id))
	}
	d, now := p.dir, p.set.now
	d.unline(p)
	for i := range d.running {
		if d.running[i].p == p {
			d.end(p, now.Mono)
			break
		}
	}
	if tasks := p.inbox.PopOrFree(nil); len(tasks) > 0 {
		p.turn(tasks, now)
	}
	p.leader.flush.running = false
	p.busy()
	p.finish(now)
	p.wakeRest()
}
