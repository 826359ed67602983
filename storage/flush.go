package storage

import (
	"errors"
	"fmt"
	"math"
	"path"
	"slices"
	"sync/atomic"

	"github.com/teralog/teralog/mem"
	"github.com/teralog/teralog/wire"
)

// A flusher is what flushes, which run beside the owner, know of a log.
type flusher struct {
	flushed atomic.Int64          // everything below this offset is durable
	cuts    atomic.Int64          // how often the log was truncated
	failed  atomic.Pointer[error] // the first fsync that failed; final
	again   atomic.Bool           // the last recovery point came to nothing
}

func (x *flusher) err() error {
	if e := x.failed.Load(); e != nil {
		return *e
	}
	return nil
}

// raise notes that all below end is durable, unless the log was cut since.
func (x *flusher) raise(end wire.Offset, cuts int64) {
	for {
		old := x.flushed.Load()
		if old >= int64(end) || x.cuts.Load() != cuts || x.flushed.CompareAndSwap(old, int64(end)) {
			return
		}
	}
}

// Flush makes everything durable that was appended before it started, the names
// of new segments included, and returns the offset below which all is. It may
// run beside appends. After a failure, which wraps ErrSync and is final, it
// always fails: no later fsync can prove what the first one lost.
func (l *Log) Flush() (wire.Offset, error) {
	cuts := l.flush.cuts.Load()
	v := l.View()
	if err := l.flush.err(); err != nil {
		return l.Flushed(), err
	}
	if l.Flushed() >= v.End() && v.active.named.Load() {
		return l.Flushed(), nil
	}
	if err := v.sync(); err != nil {
		err = fmt.Errorf("flush %s: %w: %w", l.home.path, ErrSync, err)
		l.flush.failed.CompareAndSwap(nil, &err)
		return l.Flushed(), err
	}
	l.flush.raise(v.End(), cuts)
	return v.End(), nil
}

// Flushed returns the offset below which everything is durable. Any goroutine
// may ask.
func (l *Log) Flushed() wire.Offset { return wire.Offset(l.flush.flushed.Load()) }

// FlushLogs is Flush of many logs of the directory by one call for the whole file
// system they lie on, however many they are. It returns for each the offset
// below which all is durable, -1 for one whose own Flush has to tell.
// The call waits for whatever else is written to that file system.
//
// If it returns false nothing is known to be durable, it always will, and each log
// has to be flushed by itself: only that tells which has failed, if any. The file
// system tells an error once. The file it stands for may be of a log that is not
// among these, and whose lost pages a later call would call durable.
func (d *Dir) FlushLogs(logs []*Log) (ends []wire.Offset, ok bool) {
	if d.volume == nil || d.doubted.Load() || d.Failed() != nil {
		return nil, false
	}
	views, cuts := make([]*View, len(logs)), make([]int64, len(logs))
	for i, l := range logs {
		cuts[i] = l.flush.cuts.Load()
		views[i] = l.View()
	}
	if err := d.volume.Sync(); err != nil {
		d.doubted.Store(true)
		return nil, false
	}
	ends = make([]wire.Offset, len(logs))
	for i, l := range logs {
		ends[i] = -1
		if l.flush.err() == nil {
			views[i].synced(views[i].unsynced())
			l.flush.raise(views[i].End(), cuts[i])
			ends[i] = views[i].End()
		}
	}
	return ends, true
}

// unsynced returns the segments that may not be durable yet, the oldest first.
func (v *View) unsynced() []*segment {
	from := len(v.sealed)
	for from > 0 && !v.sealed[from-1].synced.Load() {
		from--
	}
	return append(slices.Clone(v.sealed[from:]), v.active)
}

// synced notes that segments are durable with their names.
func (v *View) synced(fresh []*segment) {
	for _, s := range fresh {
		s.named.Store(true)
		if s != v.active {
			s.synced.Store(true)
			v.home.files.unpin(s)
		}
	}
}

// sync fsyncs all of v that is not durable yet, oldest first, then the names.
func (v *View) sync() error {
	fresh := v.unsynced()
	names := false
	for _, s := range fresh {
		if err := s.sync(); err != nil {
			return err
		}
		names = names || !s.named.Load()
	}
	if names && !mem.Mutant("no directory fsync on roll") {
		if err := v.home.fs.SyncDir(v.home.path); err != nil {
			return err
		}
	}
	v.synced(fresh)
	return nil
}

// sync makes .log durable. What is much it has written piece by piece first, so
// that no call takes long for the amount alone.
func (s *segment) sync() error {
	f, err := s.home.files.take(s)
	if err == errGone {
		return nil
	}
	if err != nil {
		return err
	}
	defer s.done()
	size, err := s.writeAhead(f)
	if err == nil {
		err = syncFile(f)
	}
	if err == nil {
		s.hasWritten(size)
	}
	return err
}

// writeAhead has the disk write most of what a sync would have to, and again what
// was appended meanwhile, as often as it has become much. It returns the size of
// the file that it found last. Several may be about it at once.
func (s *segment) writeAhead(f File) (size int64, err error) {
	for range 8 {
		if size, err = f.Size(); err != nil {
			return 0, err
		}
		from := min(s.written.Load(), size)
		if size-from <= aheadFrom {
			return size, nil
		}
		for begun := (span{from, from}); begun.from < size; {
			last := begun
			begun = span{last.to, min(last.to+pieceBytes, size)}
			err := haveWritten(f, begun, false) // the next, while the disk writes the last
			if err == nil {
				err = haveWritten(f, last, true)
			}
			switch {
			case errors.Is(err, errors.ErrUnsupported):
				return size, nil
			case err != nil:
				return 0, err
			}
		}
		s.hasWritten(size)
	}
	return size, nil
}

// hasWritten notes that the disk has written .log up to size.
func (s *segment) hasWritten(size int64) {
	for was := s.written.Load(); was < size && !s.written.CompareAndSwap(was, size); {
		was = s.written.Load()
	}
}

// A Checkpoint is what the owner saw of the log when it asked for a recovery
// point. It is run once, beside the owner's work.
type Checkpoint struct {
	log      *Log
	point    Point
	pages    []indexPage
	finished []*segment  // sealed ones whose index files are to be synced
	snapshot []byte      // nil: none is due
	older    wire.Offset // what Point.Snapshot is if the disk has no room for it
	needed   bool        // batches that an older one was to be followed by are given up
	epochs   []epochStart
	spare    bool // the epochs on disk will do
	names    bool // files were made since the last one
}

// An indexPage is the part of an index that only the heap has.
type indexPage struct {
	kind indexFile
	name string
	at   int
	es   []entry
}

// Checkpoint captures what a recovery point at the log's end needs; nil if
// nothing changed since the last one. It is cheap. The owner calls it between
// turns, and does not truncate until the point is saved.
func (l *Log) Checkpoint(now mem.Now) *Checkpoint {
	if l.flush.again.Swap(false) {
		l.dirty, l.epochs.dirty, l.unsnapped = true, true, l.o.SnapshotBytes
	}
	if !l.dirty || l.broken != nil {
		return nil
	}
	return l.checkpoint(l.unsnapped >= l.o.SnapshotBytes)
}

func (l *Log) checkpoint(snapshot bool) *Checkpoint {
	c := &Checkpoint{log: l, point: Point{
		ID: l.home.id, Start: l.start, Offset: l.tail.end, Committed: l.tail.end,
		SegmentBase: l.active.base, Position: l.tail.size,
		GreatestTime: l.tail.maxTime, AppendTime: l.tail.maxAppend,
		Snapshot: l.replayFrom(),
	}}
	c.takePages(l)
	for _, s := range l.sealed {
		s.short = s.short && s.finishIndexes(&s.final) != nil
		if s.loose.Load() {
			c.finished = append(c.finished, s)
		}
	}
	c.needed = l.newestSnapshot() < l.firstBase()
	if (snapshot || c.needed) && l.producers.Len() > 0 {
		c.older = c.point.Snapshot
		c.snapshot, c.point.Snapshot = l.producers.encode(l.home.id, l.tail.end), l.tail.end
		l.unsnapped = 0
	}
	if l.epochs.dirty || l.epochs.trimmed {
		c.epochs, c.spare = l.epochs.list, !l.epochs.dirty
		l.epochs.dirty, l.epochs.trimmed = false, false
	}
	c.names, l.home.newNames = l.home.newNames, false
	l.dirty, l.unheard = false, true
	return c
}

// replayFrom returns the offset from which recovery has to replay batches to
// know the producers: that of the newest snapshot, the log's first without
// one; -1 says that there is no producer to know.
func (l *Log) replayFrom() wire.Offset {
	if l.producers.Len() == 0 {
		return -1
	}
	return max(l.newestSnapshot(), l.firstBase())
}

// newestSnapshot returns the offset of the newest producer snapshot, 0 without
// one: before the first record there was no producer.
func (l *Log) newestSnapshot() wire.Offset {
	if n := len(l.snapshots); n > 0 {
		return l.snapshots[n-1]
	}
	return 0
}

// takePages captures the entries that stand in the heap. Without index files
// the recovery point vouches for no entry, and recovery walks the segment. They
// are made here, not in Run, which may come after the segment was deleted.
func (c *Checkpoint) takePages(l *Log) {
	if l.tail.entries() == 0 || l.active.makeIndexes() != nil {
		return
	}
	for _, x := range indexFiles {
		c.pages = append(c.pages, indexPage{x, l.active.name(x.suffix), l.tail.filed, l.tail.heap})
	}
	n := uint32(l.tail.entries())
	c.point.IndexCount, c.point.TimeCount = n, n
	c.point.IndexCRC, c.point.TimeCRC = l.tail.sumOff, l.tail.sumTime
}

// Run makes everything durable that the point vouches for, and returns it. What
// consumers may have seen, Point.Committed, is set to the point itself; a caller
// that knows less lowers it. After an error that wraps ErrSync the data
// directory must fail. On a full disk the point vouches for less, or, after an
// error, a later Checkpoint tries again.
func (c *Checkpoint) Run() (p Point, err error) {
	l := c.log
	defer func() { l.flush.again.Store(err != nil) }()
	pages, err := c.writePages()
	defer closeAll(pages)
	if err != nil {
		c.point.vouchNoIndex()
	}
	if _, err := l.Flush(); err != nil {
		return Point{}, err
	}
	if err := c.syncIndexes(pages); err != nil {
		return Point{}, fmt.Errorf("recovery point of %s: %w", l.home.path, err)
	}
	// A snapshot must never speak of batches that a power cut can take back, so
	// it comes after the log's fsync.
	if err := c.writeSmall(); err != nil {
		return Point{}, fmt.Errorf("recovery point of %s: %w", l.home.path, err)
	}
	if c.names {
		if err := l.home.fs.SyncDir(l.home.path); err != nil {
			return Point{}, fmt.Errorf("recovery point of %s: %w: %w", l.home.path, ErrSync, err)
		}
	}
	return c.point, nil
}

func (p *Point) vouchNoIndex() {
	p.IndexCount, p.TimeCount, p.IndexCRC, p.TimeCRC = 0, 0, 0, 0
}

// writePages writes the captured entries and returns the files, to be synced
// and closed. It opens them itself: the owner may close its own.
func (c *Checkpoint) writePages() (files []File, err error) {
	for _, p := range c.pages {
		f, err := c.log.home.fs.Open(p.name, ReadWrite)
		if err != nil {
			return files, err
		}
		files = append(files, f)
		if err := p.kind.writeEntries(f, p.at, p.es, nil); err != nil {
			return files, err
		}
	}
	return files, nil
}

func closeAll(files []File) {
	for _, f := range files {
		f.Close()
	}
}

func (c *Checkpoint) syncIndexes(pages []File) error {
	for _, f := range pages {
		if err := syncFile(f); err != nil {
			return err
		}
	}
	for _, s := range c.finished {
		if err := s.syncIndexes(); err != nil {
			return err
		}
		s.loose.Store(false)
	}
	return nil
}

// syncIndexes makes the index files of a sealed segment durable, unless it
// was deleted meanwhile.
func (s *segment) syncIndexes() error {
	for _, x := range indexFiles {
		f, err := s.home.fs.Open(s.name(x.suffix), ReadWrite)
		if notExist(err) {
			continue
		}
		if err != nil {
			return err
		}
		err = syncFile(f)
		f.Close()
		if err != nil {
			return err
		}
	}
	return nil
}

// writeSmall writes the producer snapshot and the epochs, if they are due.
func (c *Checkpoint) writeSmall() error {
	h := c.log.home
	if c.snapshot != nil {
		name := segmentName(h.path, c.point.Offset, snapshotSuffix)
		err := snapshotFile.write(h.fs, name, c.snapshot)
		if isDiskFull(err) && !c.needed {
			c.point.Snapshot, err = c.older, nil
		}
		if err != nil {
			return err
		}
	}
	if c.epochs == nil {
		return nil
	}
	err := saveEpochs(h, c.epochs)
	if c.spare && isDiskFull(err) {
		return nil
	}
	return err
}

// Checkpointed tells the owner that p stands in recovery-points, durably. Old
// producer snapshots go: the newest two at or below the point stay, whatever
// else is deleted.
func (l *Log) Checkpointed(p Point) {
	l.point, l.durableStart, l.unheard = p, p.Start, false
	l.epochs.trim(p.Start)
	if p.Snapshot == p.Offset && (len(l.snapshots) == 0 || l.snapshots[len(l.snapshots)-1] < p.Snapshot) {
		l.snapshots = append(l.snapshots, p.Snapshot)
	}
	for len(l.snapshots) > 2 {
		l.home.fs.Remove(segmentName(l.home.path, l.snapshots[0], snapshotSuffix))
		l.snapshots = l.snapshots[1:]
	}
}

// Close flushes everything, closes the files and returns where the log ends.
// The log is not used again; readers that hold a Range may finish. A log that
// failed returns an error and has no clean end.
func (l *Log) Close() (CleanEnd, error) {
	defer l.release()
	if l.broken != nil {
		return CleanEnd{}, l.broken
	}
	if err := l.giveBack(); err != nil {
		return CleanEnd{}, err
	}
	p := l.point
	if l.dirty || l.unheard || p.Offset != l.tail.end {
		var err error
		if p, err = l.checkpoint(l.unsnapped > 0).Run(); err != nil {
			return CleanEnd{}, err
		}
	}
	return CleanEnd{Point: p, Position: l.tail.lastPos, HeaderCRC: l.tail.lastCRC}, nil
}

// release closes what the log has open. A recovery that failed early has no
// active segment.
func (l *Log) release() {
	open := slices.Clone(l.sealed)
	if l.active != nil {
		open = append(open, l.active)
	}
	for _, s := range open {
		s.closeIndexes()
		l.home.files.forget(s)
	}
	for _, s := range l.doomed {
		l.home.files.forget(s)
	}
}

// restoreProducers makes the producer state at the log's end again: from the
// newest snapshot that holds, then from the batches behind it. from is where
// to begin without one.
func (l *Log) restoreProducers(from wire.Offset) error {
	state := newProducers(l.o)
	for _, at := range slices.Backward(l.snapshots) {
		p, err := readProducers(l.home, at, l.o)
		if err == nil {
			state, from = p, at
			break
		}
		l.report.Rebuilt = append(l.report.Rebuilt, path.Base(segmentName("", at, snapshotSuffix)))
	}
	l.unsnapped = 0
	err := l.eachBatch(from, func(b wire.Batch) {
		state.replay(b)
		l.unsnapped += int64(b.Len())
	})
	*l.producers = *state
	return err
}

func readProducers(h *home, at wire.Offset, o Options) (*Producers, error) {
	b, err := snapshotFile.read(h.fs, segmentName(h.path, at, snapshotSuffix))
	if err != nil {
		return nil, err
	}
	p, id, of, err := decodeProducers(b, o)
	if err == nil && (of != at || id != h.id) {
		err = fmt.Errorf("%w: snapshot of partition %v at offset %d under the name of %v at %d", wire.ErrCorrupt, id, of, h.id, at)
	}
	return p, err
}

// eachBatch calls note with the header of each batch at or behind from.
func (l *Log) eachBatch(from wire.Offset, note func(wire.Batch)) error {
	v := l.View()
	for i := v.holds(from); i <= len(v.sealed); i++ {
		s, x := v.picture(i)
		if x.size == 0 || x.end <= from {
			continue
		}
		if err := l.eachIn(s, x, from, note); err != nil {
			return err
		}
	}
	return nil
}

func (l *Log) eachIn(s *segment, x *tail, from wire.Offset, note func(wire.Batch)) error {
	f, err := l.home.files.take(s)
	if err != nil {
		return err
	}
	defer s.done()
	w, _, err := s.walkFrom(f, x, probe{rel: clamp(int64(from - s.base)), pos: math.MaxUint32})
	if err != nil {
		return err
	}
	w.close()
	return s.walk(f, w.pos, w.next, x.size, x.end, func(b wire.Batch, _ int64) {
		if b.BaseOffset() >= from {
			note(b)
		}
	})
}
