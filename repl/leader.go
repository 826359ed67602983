package repl

import (
	"errors"
	"fmt"
	"time"

	"github.com/teralog/teralog/mem"
	"github.com/teralog/teralog/storage"
	"github.com/teralog/teralog/wire"
)

// A leader appends what clients produce and answers them when enough copies
// count. It belongs to the holder of its partition's turn.
type leader struct {
	log   *storage.Log
	epoch wire.Epoch
	flush flushState
	acks  acks
	count counters
	times *Times

	// Of the turn that runs: what goes into the log together, and the
	// duplicates that came between.
	staged  []staged
	batches []wire.Batch
	next    wire.Offset // of the batch staged next, once there is one

	turns uint32        // that had writes
	timed time.Duration // when the turn that runs began; 0: it is not timed
	clock func() time.Duration

	rolled bool // by the last write
}

// A staged write has passed the checks of its producer.
type staged struct {
	write Write
	at    storage.Appended // where it will lie, or where its original does
	dup   bool
}

// stage checks w against what its producer sent before, this turn's writes
// included, and notes it for write. An error is definite and the caller's to
// answer.
func (l *leader) stage(w *Write, now mem.Now, slow bool) error {
	if l.acks.ring.Len()+len(l.staged) >= l.acks.ring.Cap() {
		if slow {
			return errDiskSlow
		}
		return errTooManyAcks
	}
	if len(l.batches) == 0 {
		l.next = l.flush.end
	}
	dup, isDup, err := l.log.Producers().Stage(w.Batch, l.next, now)
	if err == wire.CodeBusy {
		return errTooManyProducers
	}
	if err != nil {
		return err
	}
	s := staged{write: *w, at: dup, dup: isDup}
	if isDup {
		s.write.release()
	} else {
		s.at = storage.Appended{First: l.next, Last: l.next + wire.Offset(w.Batch.LastOffsetDelta()), Bytes: int64(len(w.Batch))}
		l.next = s.at.Last + 1
		l.batches = append(l.batches, w.Batch)
	}
	l.staged = append(l.staged, s)
	return nil
}

// write appends all staged batches, of which there is one at least, with one
// call. After an error none of them is in the log, unless the disk did not do as
// told.
func (l *leader) write(now mem.Now) error {
	n := int64(len(l.batches))
	at, err := l.append(now)
	clear(l.batches)
	l.batches = emptied(l.batches)
	if err != nil {
		l.log.Producers().Drop()
		return err
	}
	l.log.Producers().Commit()
	if at.First != l.flush.end || at.Last+1 != l.next {
		panic(fmt.Sprintf("BUG: appended offsets %d to %d, staged %d to %d", at.First, at.Last, l.flush.end, l.next-1))
	}
	l.flush.appended(l.next, at.Bytes, now)
	l.count.writes.Add(1)
	l.count.batches.Add(n)
	l.count.bytes.Add(at.Bytes)
	l.rolled = l.rolled || at.Rolled
	for i := range l.staged {
		if s := &l.staged[i]; !s.dup {
			s.at.Time = at.Time
			s.write.release()
		}
	}
	return nil
}

// append is the log's, timed.
func (l *leader) append(now mem.Now) (storage.Appended, error) {
	if l.timed == 0 {
		return l.log.Append(l.batches, l.epoch, now)
	}
	began := l.clock()
	at, err := l.log.Append(l.batches, l.epoch, now)
	l.times.Append.Record(l.clock() - began)
	return at, err
}

// enter hands what was staged to the acks. A write that wants none is answered
// here.
func (l *leader) enter() {
	written := l.flush.written
	for i := range l.staged {
		if s := &l.staged[i]; !s.dup {
			written -= s.at.Bytes
		}
	}
	for i := range l.staged {
		s := l.staged[i]
		l.staged[i] = staged{} // so that no panic answers it again
		if !s.dup {
			written += s.at.Bytes
		}
		end := s.at.Last + 1
		if s.dup && s.at.First < 0 {
			end = l.flush.end // where the original lies is forgotten: it is somewhere below
		}
		if s.write.Acks == wire.AcksNone || s.dup && mem.Mutant("duplicate answered before its original is durable") {
			s.write.Done(s.at, nil)
			continue
		}
		l.acks.push(ack{end: end, written: written, all: s.write.Acks == wire.AcksAll, at: s.at, done: s.write.Done, within: s.write.Deadline, since: l.timed})
	}
	l.staged = emptied(l.staged)
}

// failStaged answers what depends on an append that did not happen. Duplicates
// of batches that are in the log do not.
func (l *leader) failStaged(err error) {
	kept := l.staged[:0]
	for i := range l.staged {
		s := l.staged[i]
		l.staged[i] = staged{}
		if s.dup && s.at.First >= 0 && s.at.First < l.flush.end {
			kept = append(kept, s)
			continue
		}
		s.answer(err)
	}
	l.staged = kept
}

// fail answers everything with err.
func (l *leader) fail(err error) {
	l.acks.fail(err)
	for i := range l.staged {
		s := l.staged[i]
		l.staged[i] = staged{}
		s.answer(err)
	}
	clear(l.batches)
	l.staged, l.batches = l.staged[:0], l.batches[:0]
}

// answer fails a staged write; one that was answered is left alone.
func (s *staged) answer(err error) {
	if s.write.Done != nil {
		s.write.answer(storage.Appended{First: -1, Last: -1}, err)
	}
}

// definite returns the answer to an append that failed without touching the
// log, so that the partition goes on; nil if the disk is not to be trusted any
// more.
func definite(err error) error {
	code := wire.CodeOf(err)
	if !code.Definite() || errors.Is(err, storage.ErrBroken) {
		return nil
	}
	answer := &wire.Error{Code: code, Message: err.Error()}
	switch code {
	case wire.CodeDiskFull:
		answer.RetryAfter, answer.Limit = time.Second, wire.LimitDiskFull
	case wire.CodeBusy:
		answer.RetryAfter, answer.Limit = time.Second, wire.LimitFiles
	}
	return answer
}

// keep is how many elements of working memory a partition keeps for ever.
const keep = 64

// emptied returns s without its elements, which the caller has zeroed, and
// without its memory once a burst is over: a node has thousands of partitions.
func emptied[T any](s []T) []T {
	if cap(s) > keep && len(s) < cap(s)/4 {
		return nil
	}
	return s[:0]
}
