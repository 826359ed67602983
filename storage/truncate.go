package storage

import (
	"errors"
	"fmt"
	"math"
	"path"
	"slices"

	"github.com/teralog/teralog/wire"
)

// Truncate removes every batch that holds an offset at or behind to, which lies
// between start and end. It is durable when Truncate returns; after an error
// the data directory must fail. The recovery point on disk must be at or below
// to already, and no Checkpoint may be under way.
func (l *Log) Truncate(to wire.Offset) error {
	if to < l.start || to > l.tail.end {
		return wire.Errorf(wire.CodeOutOfRange, "truncate to %d outside %d to %d", to, l.start, l.tail.end)
	}
	if err := l.cut(to, false); err != nil {
		return fmt.Errorf("truncate to offset %d: %w", to, err)
	}
	if err := l.restoreProducers(l.firstBase()); err != nil {
		return fmt.Errorf("truncate to offset %d: %w", to, err)
	}
	return nil
}

// PointBelow returns a recovery point at or below to, which lies between start
// and end: the newest one, or the beginning of the segment that holds to. It is
// to be saved before a truncation to an offset below the newest one.
func (l *Log) PointBelow(to wire.Offset) Point {
	if l.point.Offset <= to {
		return l.point
	}
	base := l.active.base
	for i := len(l.sealed) - 1; base > to && i >= 0; i-- {
		base = l.sealed[i].base
	}
	base = min(base, to) // below it files may be missing
	return Point{ID: l.home.id, Start: min(l.start, base), Offset: base, SegmentBase: base, Committed: base,
		GreatestTime: math.MinInt64, AppendTime: math.MinInt64, Snapshot: -1}
}

// Reset drops every batch and makes the log begin at offset to, which need not
// lie in it. It is durable when Reset returns; what a crash before that leaves
// is to be reset again. After an error other than a full disk the data directory
// must fail. ResetPoint(to) is the recovery point that has to be saved before.
func (l *Log) Reset(to wire.Offset) error {
	l.flush.cuts.Add(1)
	for _, s := range slices.Concat(l.doomed, l.sealed, []*segment{l.active}) {
		if err := s.unlink(); err != nil {
			return fmt.Errorf("reset to offset %d: %w", to, err)
		}
	}
	l.sealed, l.doomed, l.snapshots = nil, nil, nil
	*l.producers = *newProducers(l.o)
	l.home.damage.drop(0)
	l.epochs.truncate(0)
	if err := l.begin(to); err != nil {
		return fmt.Errorf("reset to offset %d: %w", to, noRoom(err))
	}
	if err := l.home.fs.SyncDir(l.home.path); err != nil {
		return fmt.Errorf("reset to offset %d: %w", to, err)
	}
	l.active.named.Store(true)
	l.flush.flushed.Store(int64(to))
	l.start, l.dirty, l.unsnapped = to, true, 0
	l.resum()
	if !l.epochs.dirty {
		return nil
	}
	return l.epochs.save()
}

// ResetPoint returns the recovery point of an empty log that begins at to.
func (l *Log) ResetPoint(to wire.Offset) Point {
	return Point{ID: l.home.id, Start: to, Offset: to, SegmentBase: to, Committed: to,
		GreatestTime: math.MinInt64, AppendTime: math.MinInt64, Snapshot: -1}
}

// firstBase returns the base of the oldest segment.
func (l *Log) firstBase() wire.Offset {
	if len(l.sealed) > 0 {
		return l.sealed[0].base
	}
	return l.active.base
}

// cut is Truncate but for the producers. With ours, an epoch that begins at the
// cut stays: it is not another leader's history that goes. Later segments go first, the last one
// before all others, so that what stands is a log at every moment.
func (l *Log) cut(to wire.Offset, ours bool) error {
	l.flush.cuts.Add(1)
	l.flush.flushed.Store(min(l.flush.flushed.Load(), int64(to)))
	l.dirty = true
	reopen := to < l.active.base // a sealed segment becomes the active one
	for to < l.active.base {
		if err := l.active.unlink(); err != nil {
			return err
		}
		n := len(l.sealed) - 1
		if n < 0 { // the files before it are missing
			if err := l.begin(to); err != nil {
				return err
			}
			reopen = false
			break
		}
		l.active, l.tail, l.sealed = l.sealed[n], l.sealed[n].final, l.sealed[:n:n]
	}
	if l.tail.end > to || reopen {
		if err := l.cutActive(to); err != nil {
			return err
		}
	}
	l.home.damage.drop(l.tail.end)
	if ours {
		l.epochs.truncate(l.tail.end + 1)
	} else {
		l.epochs.truncate(l.tail.end)
	}
	if err := l.dropSnapshots(l.tail.end); err != nil {
		return err
	}
	if err := l.home.fs.SyncDir(l.home.path); err != nil {
		return err
	}
	l.resum()
	if !l.epochs.dirty {
		return nil
	}
	return l.epochs.save()
}

// cutActive shortens the last segment. It gets a new segment value and new
// index files, since old views and their maps go on with the old ones.
func (l *Log) cutActive(to wire.Offset) error {
	old := l.active
	t, err := old.until(&l.tail, to)
	if err != nil {
		return err
	}
	f, err := l.home.fs.Open(old.name(logSuffix), ReadWrite)
	if err != nil {
		return err
	}
	old.closeIndexes()
	for _, x := range indexFiles {
		if err := l.home.fs.Remove(old.name(x.suffix)); err != nil && !notExist(err) {
			f.Close()
			return err
		}
	}
	l.home.files.forget(old)
	s := newSegment(l.home, old.base)
	s.sound.set(t.size)
	l.home.files.pin(s, f)
	l.active, l.file, l.tail, l.ahead = s, f, t, 0
	if err := f.Truncate(t.size); err != nil {
		return err
	}
	return f.Sync()
}

// until returns the picture of s up to the last batch boundary at or before to,
// all entries in the heap.
func (s *segment) until(x *tail, to wire.Offset) (tail, error) {
	f, err := s.home.files.take(s)
	if err != nil {
		return tail{}, err
	}
	defer s.done()
	t := newTail(s.base)
	if to == s.base || x.size == 0 {
		return t, nil
	}
	t.first = x.first
	e, err := s.prefix(&t, x, clamp(int64(to-s.base-1)))
	if err != nil {
		return tail{}, err
	}
	t.size, t.maxTime, t.maxAppend = int64(e.pos), e.maxTime, e.maxAppend
	w := newWalker(f, s.home.id, t.size, s.base+wire.Offset(e.rel), x.size, int(s.home.every)+wire.HeaderSize)
	defer w.close()
	for w.pos < x.size && w.next < to { // what stands behind may be damaged: it goes
		b, err := w.header()
		if from := w.next; errors.Is(err, wire.ErrCorrupt) && w.resync(to) {
			s.home.damage.add(from, w.next)
			t.size = w.pos
			t.old, t.new = nil, nil // places follow each other without a gap
			continue
		}
		if err != nil {
			return tail{}, err
		}
		if b.NextOffset() > to {
			break
		}
		t.add(s.base, b, s.home.every)
		w.skip(b)
	}
	t.end = w.next
	return t, nil
}

// prefix enters into t the entries of x before the one that holds rel, and
// returns that one.
func (s *segment) prefix(t, x *tail, rel uint32) (entry, error) {
	all, err := s.entries(x)
	if err == nil {
		if e, ok := all.copyTo(t, rel); ok {
			return e, nil
		}
		*t = tail{end: t.end, maxTime: math.MinInt64, maxAppend: math.MinInt64, first: t.first, last: -1, lastPos: -1}
	}
	if err := s.rebuild(x); err != nil {
		return entry{}, err
	}
	if all, err = s.entries(x); err != nil {
		return entry{}, err
	}
	e, _ := all.copyTo(t, rel)
	return e, nil
}

// copyTo enters the entries before the one that holds rel into t; ok is false
// if the mapped file faults.
func (x *entries) copyTo(t *tail, rel uint32) (e entry, ok bool) {
	ok = guard(func() {
		e = x.at(0)
		for i := 1; i < x.len() && x.place(i).rel <= rel; i++ {
			t.enter(e)
			e = x.at(i)
		}
	})
	return e, ok
}

// dropSnapshots removes producer snapshots of offsets behind end. Had one come
// back after other batches took those offsets, it would be believed.
func (l *Log) dropSnapshots(end wire.Offset) error {
	for n := len(l.snapshots); n > 0 && l.snapshots[n-1] > end; n-- {
		err := l.home.fs.Remove(segmentName(l.home.path, l.snapshots[n-1], snapshotSuffix))
		if err != nil && !notExist(err) {
			return err
		}
		l.snapshots = l.snapshots[:n-1]
	}
	return nil
}

// Trim makes before the first offset that may be read; the caller guarantees
// that it is committed. Whole segments below go with the next Reclaim. Before
// start it changes nothing, behind the end it is OUT_OF_RANGE.
func (l *Log) Trim(before wire.Offset) error {
	if before > l.tail.end {
		return wire.Errorf(wire.CodeOutOfRange, "trim to %d behind the end %d", before, l.tail.end)
	}
	if before <= l.start {
		return nil
	}
	l.start, l.dirty = before, true
	if !l.doom() {
		l.publish()
	}
	return nil
}

// doom gives up the segments that lie wholly below the start, as far as they
// are durable. Were one given up before, later flushes would pass it by, and if
// the power went before the new start stood in recovery-points, the log would
// end in that segment's hole.
func (l *Log) doom() bool {
	n := 0
	for n < len(l.sealed) && l.sealed[n].final.end <= l.start && l.sealed[n].synced.Load() {
		n++
	}
	if n == 0 {
		return false
	}
	l.doomed = append(l.doomed, l.sealed[:n]...)
	l.sealed = slices.Clone(l.sealed[n:])
	l.resum()
	return true
}

// Reclaim unlinks the segments that lie wholly below the start recovery-points
// names, and returns how many. Those that a trim or retention gave up since
// then wait: were they gone first, a power cut would leave a log without its
// beginning.
func (l *Log) Reclaim() (n int, err error) { return l.TakeDoomed(math.MaxInt64).Unlink() }

// A Doomed holds segments that nothing needs any more.
type Doomed []*segment

// TakeDoomed takes from the log what Reclaim would unlink, so that another
// goroutine can, before the log is closed: the oldest segments of about most
// bytes, inclusive, or a larger one alone.
func (l *Log) TakeDoomed(most int64) Doomed {
	l.doom()
	n := 0
	for n < len(l.doomed) && (n == 0 || most >= l.doomed[n].final.size) && l.doomed[n].final.end <= l.durableStart {
		most -= l.doomed[n].final.size
		n++
	}
	taken := Doomed(l.doomed[:n:n])
	l.doomed = l.doomed[n:]
	return taken
}

// Leave closes the files, and leaves their removal to the next start.
func (d Doomed) Leave() {
	for _, s := range d {
		s.closeIndexes()
		s.home.files.forget(s)
	}
}

// Unlink removes the files and returns how many segments are gone. What an error
// leaves goes at the next start.
func (d Doomed) Unlink() (n int, err error) {
	for _, s := range d {
		if err := s.unlink(); err != nil {
			return n, fmt.Errorf("reclaim %s: %w", path.Base(s.name(logSuffix)), err)
		}
		n++
	}
	return n, nil
}
