package repl

import (
	"time"

	"github.com/teralog/teralog/mem"
	"github.com/teralog/teralog/storage"
)

// Times are how long the parts of writes take: those of one turn with writes in
// timedEvery of each partition. They may be read at any time.
type Times struct {
	Queue  mem.Latency // from Write.Since to the turn that takes it
	Append mem.Latency // one append, of all that a turn has
	Flush  mem.Latency // from there to the answer, of those that wait for the disk
}

// timedEvery is how many turns with writes there are to one that is timed.
const timedEvery = 7

// Times returns how long the parts of writes take.
func (s *Set) Times() *Times { return &s.times }

// A FlushState says how a directory's fdatasyncs do.
type FlushState struct {
	Took    *mem.Latency  // those of logs that came back
	Running time.Duration // how long the fsync that runs longest, of whatever file, has run; 0: none
	Waiting int           // logs in line for one
}

// Flushes returns how the fdatasyncs of a directory do.
func (s *Set) Flushes(dir *storage.Dir, now mem.Now) FlushState {
	d := s.directory(dir)
	since, _ := d.oldest(now)
	running := now.Mono - since
	d.mu.Lock()
	defer d.mu.Unlock()
	return FlushState{Took: &d.took, Running: max(running, 0), Waiting: d.line.Len() + d.lazyLine.Len() + len(d.many.line)}
}

// begin decides whether a turn with these tasks is timed.
func (l *leader) begin(tasks []task, now mem.Now) {
	l.timed = 0
	for i := range tasks {
		if len(tasks[i].writes) > 0 {
			if l.turns++; l.turns%timedEvery == 0 {
				l.timed = now.Mono
			}
			return
		}
	}
}

// left notes that a timed turn took the first of ws from the queue.
func (l *leader) left(t *Times, ws []Write) {
	if l.timed > 0 && len(ws) > 0 && ws[0].Since > 0 {
		t.Queue.Record(l.timed - ws[0].Since)
	}
}
