package storage

import (
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/teralog/teralog/mem"
	"github.com/teralog/teralog/wire"
)

// An openState is what the data directory knows of a log that is to be opened.
type openState struct {
	Point      *Point    // its entry in recovery-points; nil: none
	Clean      *CleanEnd // where it ended; nil unless the last stop was clean
	Warm       bool      // the machine has run since: its cache may show what the disk has not
	Alive      int64     // the newest append time in the data directory, ms; 0: not known
	Quarantine string    // folder for cut bytes
	Files      *openFiles
}

// A recovery opens one log: steps 3 to 7 of doc.go.
type recovery struct {
	*Log
	in    openState
	point Point
	has   map[string]int64 // sizes of the files in the directory
	found []foundLog       // .log files not taken over yet, ascending
	due   wire.Offset      // the offset that comes next
	last  wire.Epoch       // of the newest batch scanned
	cut   bool             // bytes of the active file were cut
	names bool             // names in the directory may not be durable
}

// A foundLog is one .log file on disk.
type foundLog struct {
	base wire.Offset
	size int64
}

// openLog opens the log in path. It leaves a state from which opening gives the
// same log again, wherever it is interrupted. An error that wraps ErrSync, or
// that the disk returned, ends the data directory.
func openLog(fs FS, path, topic string, id wire.PartitionID, o Options, in openState, now mem.Now) (*Log, error) {
	r := &recovery{Log: newLog(fs, path, topic, id, o, in.Files), in: in, last: wire.NoEpoch, has: map[string]int64{}}
	if err := r.run(now); err != nil {
		r.release()
		return nil, fmt.Errorf("recover %s: %w", path, err)
	}
	return r.Log, nil
}

func (r *recovery) run(now mem.Now) error {
	for _, step := range [...]func() error{
		r.list, r.choosePoint, r.loadEpochs, r.dropBelowStart, r.adopt, r.scan, r.settle, r.finishEpochs, r.finishProducers, r.makeDurable,
	} {
		if err := step(); err != nil {
			return err
		}
	}
	for _, s := range append(slices.Clone(r.sealed), r.active) {
		s.aged = now.Wall
	}
	r.looked = mem.Now{Mono: now.Mono, Wall: max(r.in.Alive, r.newest)}
	r.finish()
	return nil
}

// list reads the directory. Temporaries and index files without a log go.
func (r *recovery) list() error {
	h := r.home
	es, err := h.fs.ReadDir(h.path)
	if err != nil {
		return err
	}
	if err := removeTemps(h.fs, h.path, es); err != nil {
		return err
	}
	for _, e := range es {
		r.has[e.Name] = e.Size
		if base, ok := parseName(e, logSuffix); ok {
			r.found = append(r.found, foundLog{base, e.Size})
		} else if at, ok := parseName(e, snapshotSuffix); ok {
			r.snapshots = append(r.snapshots, at)
		}
	}
	for _, e := range es {
		for _, x := range indexFiles {
			base, ok := parseName(e, x.suffix)
			if ok && !slices.ContainsFunc(r.found, func(f foundLog) bool { return f.base == base }) {
				if err := h.fs.Remove(segmentName(h.path, base, x.suffix)); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// parseName returns the offset that names the file e.
func parseName(e Entry, suffix string) (wire.Offset, bool) {
	digits, ok := strings.CutSuffix(e.Name, suffix)
	if e.Dir || !ok || len(digits) != 20 || strings.Trim(digits, "0123456789") != "" {
		return 0, false
	}
	n, err := strconv.ParseInt(digits, 10, 64)
	return wire.Offset(n), err == nil
}

// choosePoint decides from where on bytes must be scanned. Without a recovery
// point that is the beginning. A clean stop vouches for all, if the last batch
// is the one it names; else it vouches for nothing, and yet nothing is cut.
func (r *recovery) choosePoint() error {
	switch {
	case r.in.Clean != nil:
		r.point = r.in.Clean.Point
		r.report.Clean = true
	case r.in.Point != nil:
		r.point = *r.in.Point
	default:
		r.point = Point{ID: r.home.id, GreatestTime: math.MinInt64, AppendTime: math.MinInt64}
		if len(r.found) > 0 {
			at := r.found[0].base
			r.point.Start, r.point.Offset, r.point.SegmentBase, r.point.Snapshot = at, at, at, at
		}
	}
	r.start, r.durableStart = r.point.Start, r.point.Start
	r.newest = r.point.AppendTime
	return nil
}

func (r *recovery) loadEpochs() error {
	err := r.epochs.load()
	if errors.Is(err, wire.ErrCorrupt) {
		r.report.Rebuilt = append(r.report.Rebuilt, epochsName)
		r.epochs.dirty = true
		return nil
	}
	return err
}

// dropBelowStart finishes what a Reclaim began.
func (r *recovery) dropBelowStart() error {
	for len(r.found) > 1 && r.found[1].base <= r.start && r.found[1].base <= r.point.SegmentBase {
		if err := newSegment(r.home, r.found[0].base).unlink(); err != nil {
			return err
		}
		r.found = r.found[1:]
	}
	return nil
}

// adopt takes over the segments that end below the recovery point.
func (r *recovery) adopt() error {
	due := r.start
	for len(r.found) > 0 && r.found[0].base < r.point.SegmentBase {
		f := r.found[0]
		r.found = r.found[1:]
		if f.base > due {
			r.home.damage.add(due, f.base)
		}
		end := r.point.SegmentBase
		if len(r.found) > 0 {
			end = min(end, r.found[0].base)
		}
		s := newSegment(r.home, f.base)
		if err := r.adoptOne(s, f.size, end); err != nil {
			return err
		}
		r.keep(s)
		due = end
	}
	if due < r.point.SegmentBase {
		r.home.damage.add(due, r.point.SegmentBase)
	}
	r.due = r.point.SegmentBase
	return nil
}

// keep appends s to the sealed segments.
func (r *recovery) keep(s *segment) {
	s.named.Store(true)
	s.synced.Store(true)
	r.sealed = append(r.sealed, s)
	r.newest = max(r.newest, s.final.maxAppend)
}

// adoptOne makes the final picture of s from the trailers of its index files,
// or, if they do not fit the segment, from its headers.
func (r *recovery) adoptOne(s *segment, size int64, end wire.Offset) error {
	if t, ok := r.readTrailers(s, size); ok {
		if t.end < end {
			r.home.damage.add(t.end, end)
		}
		s.final = t
		return nil
	}
	return r.readopt(s, size, end)
}

func (r *recovery) readTrailers(s *segment, size int64) (t tail, ok bool) {
	var got [2]trailer
	for i, x := range indexFiles {
		f, err := r.home.fs.Open(s.name(x.suffix), Read)
		if err != nil {
			return t, false
		}
		got[i], err = x.readTrailer(f, r.home.id, s.base)
		f.Close()
		if err != nil || got[i].length != size {
			return t, false
		}
	}
	a, b := got[0], got[1]
	t = newTail(s.base)
	t.size, t.end, t.maxTime, t.maxAppend, t.filed = a.length, a.end, a.maxTime, a.maxAppend, a.count
	t.sumOff, t.sumTime = a.sum, b.sum
	a.magic, a.sum = b.magic, b.sum
	return t, a == b && t.end > s.base
}

// readopt makes picture and index of a sealed segment from its headers. Damage
// is remembered; nothing is cut.
func (r *recovery) readopt(s *segment, size int64, end wire.Offset) error {
	f, err := r.home.files.take(s)
	if err != nil {
		return err
	}
	defer s.done()
	t := newTail(s.base)
	err = s.walk(f, 0, s.base, size, end, func(b wire.Batch, pos int64) {
		t.size = pos
		t.add(s.base, b, r.home.every)
	})
	if err != nil {
		return err
	}
	t.old, t.new = nil, nil
	s.final = t
	return r.remakeIndexes(s, &s.final)
}

// remakeIndexes files the entries of a sealed segment. Without room they stay
// in the heap.
func (r *recovery) remakeIndexes(s *segment, t *tail) error {
	r.report.Rebuilt = append(r.report.Rebuilt, s.name(offsetSuffix)[len(r.home.path)+1:])
	r.names = true
	switch err := s.replaceIndexes(t, true); {
	case err == nil:
		t.filed, t.heap = t.entries(), nil
	case errors.Is(err, ErrSync):
		return err
	}
	return nil
}

// scan reads what lies above the recovery point.
func (r *recovery) scan() error {
	if r.point.Offset > r.due && (len(r.found) == 0 || r.found[0].base != r.due) {
		r.home.damage.add(r.due, r.point.Offset)
		r.due, r.report.Lost = r.point.Offset, r.point.Offset
	}
	for i, f := range r.found {
		if f.base > r.due && r.o.Synced && r.proven(i, r.due) {
			r.home.damage.add(r.due, f.base)
			r.due = f.base
		}
		if f.base != r.due {
			return r.cutFrom(i, fmt.Sprintf("a segment begins at offset %d", f.base))
		}
		if err := r.push(f); err != nil {
			return err
		}
		if r.active == nil || r.report.Clean {
			continue // lost, or all there is
		}
		bad, err := r.scanActive(i)
		if err != nil {
			return err
		}
		r.due = r.tail.end
		if bad != nil && !(r.o.Synced && r.proven(i+1, r.due)) {
			return r.cutAt(i, bad)
		}
	}
	return nil
}

// push makes f the active segment, and the one before a sealed one.
func (r *recovery) push(f foundLog) error {
	if err := r.pop(); err != nil {
		return err
	}
	s := newSegment(r.home, f.base)
	file, err := r.home.fs.Open(s.name(logSuffix), ReadWrite)
	if err != nil {
		return err
	}
	r.home.files.pin(s, file)
	r.active, r.file, r.tail = s, file, newTail(f.base)
	if f.base == r.point.SegmentBase {
		return r.vouched(f.size)
	}
	r.names = true // it was begun after the recovery point
	r.report.Clean = false
	return nil
}

// pop seals the active segment.
func (r *recovery) pop() error {
	if r.active == nil {
		return nil
	}
	s, t := r.active, r.tail
	t.old, t.new = nil, nil
	if had, ok := r.readTrailers(s, t.size); ok && t.filed == 0 && had.sumOff == t.sumOff && had.sumTime == t.sumTime {
		t.filed, t.heap = t.entries(), nil
		s.final = t
	} else {
		s.final = t
		if err := r.remakeIndexes(s, &s.final); err != nil {
			return err
		}
	}
	r.keep(s)
	r.home.files.unpin(s)
	r.active = nil
	return nil
}

// scanActive takes in the good batches of the active file, number i of those
// found, from the tail's end on. bad says what stands behind them; nil if the
// file ends there.
//
// Before a byte is judged, the file is made durable and dropped from memory, so
// that what is judged is what the disk holds. That holds for its length too: if
// the machine has run since, a truncation may stand in memory only.
func (r *recovery) scanActive(i int) (bad, err error) {
	size := r.found[i].size
	if size == r.tail.size && !r.in.Warm {
		return nil, nil
	}
	if err := syncFile(r.file); err != nil {
		return nil, err
	}
	r.file.DropCache(0, 0) // advice: the pages are clean now
	w := newWalker(r.file, r.home.id, r.tail.size, r.tail.end, size, scanBytes)
	defer w.close()
	for {
		b, err := w.batch()
		switch {
		case err == io.EOF:
			return nil, nil
		case errors.Is(err, wire.ErrCorrupt):
			if !r.o.Synced || !r.step(&w, i) {
				return err, nil
			}
		case err != nil:
			return nil, err
		case b.LeaderEpoch() < r.last:
			return fmt.Errorf("%w: a batch of epoch %d after epoch %d", wire.ErrCorrupt, b.LeaderEpoch(), r.last), nil
		default:
			r.take(b)
			w.skip(b)
		}
	}
}

func (r *recovery) take(b wire.Batch) {
	r.last = b.LeaderEpoch()
	r.report.Scanned += int64(b.Len())
	r.tail.add(r.active.base, b, r.home.every)
	r.epochs.note(b.LeaderEpoch(), b.BaseOffset())
	r.newest = max(r.newest, b.AppendTime())
}

// step moves a walk through file i of an always-synced log behind bad bytes, if
// what follows proves that they were durable once: then they are damage.
func (r *recovery) step(w *walker, i int) bool {
	from, at := w.next, w.pos
	for w.resync(math.MaxInt64) {
		if _, err := w.batch(); err != nil {
			w.next = from
			continue
		}
		pos, next := w.pos, w.next
		if !w.proves(from) && !r.proven(i+1, from) {
			break
		}
		w.pos, w.next = pos, next
		r.home.damage.add(from, next)
		r.tail.size, r.tail.end = pos, next
		r.tail.old, r.tail.new = nil, nil // places follow each other without a gap
		return true
	}
	w.pos, w.next = at, from
	return false
}
