package storage

import (
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"math"
	"path"
	"slices"

	"github.com/teralog/teralog/mem"
	"github.com/teralog/teralog/wire"
)

// cutAt cuts the active file, number i of those found, behind its last good
// batch, and all later files.
func (r *recovery) cutAt(i int, why error) error {
	size := r.found[i].size
	zeros, err := onlyZeros(r.file, r.tail.size, size)
	if err != nil {
		return err
	}
	switch {
	case zeros && i+1 == len(r.found) && r.o.Synced: // it was allocated ahead
	case zeros && i+1 == len(r.found):
		r.report.Reason, r.report.Zeros = why.Error(), size-r.tail.size
	default:
		r.report.Reason = why.Error()
		r.report.CutAt = r.tail.end
		if err := r.quarantine(r.file, r.tail.size, size, r.tail.end); err != nil {
			return err
		}
		if err := r.cutFiles(i + 1); err != nil {
			return err
		}
	}
	r.cut = true
	return r.file.Truncate(r.tail.size)
}

// cutFrom cuts all files found from number i on.
func (r *recovery) cutFrom(i int, why string) error {
	r.report.Reason, r.report.CutAt = why, r.due
	r.report.Clean = false
	return r.cutFiles(i)
}

// cutFiles moves whole files into quarantine, the last one first: what is left
// is a log at every moment.
func (r *recovery) cutFiles(i int) error {
	for _, f := range slices.Backward(r.found[i:]) {
		s := newSegment(r.home, f.base)
		file, err := r.home.fs.Open(s.name(logSuffix), Read)
		if err != nil {
			return err
		}
		err = r.quarantine(file, 0, f.size, f.base)
		file.Close()
		if err != nil {
			return err
		}
		if err := s.unlink(); err != nil {
			return err
		}
		r.names = true
	}
	return nil
}

// quarantine copies the bytes of f from pos to size, where offset at is due,
// into a file of their own. Its name tells their content, so that a recovery
// done again makes no second copy and overwrites no other. Without room the
// bytes are dropped, and the report says so.
func (r *recovery) quarantine(f File, pos, size int64, at wire.Offset) error {
	if size == pos {
		return nil
	}
	good, err := countGood(f, r.home.id, pos, at, size)
	if err != nil {
		return err
	}
	r.report.Cut += size - pos
	r.report.CutBatches += good
	if r.in.Quarantine == "" {
		return nil
	}
	name, err := r.copyCut(f, pos, size, at)
	switch {
	case err == nil:
		r.report.Kept = append(r.report.Kept, name)
		return nil
	case isDiskFull(err):
		return nil
	}
	return fmt.Errorf("quarantine: %w", err)
}

func (r *recovery) copyCut(f File, pos, size int64, at wire.Offset) (name string, err error) {
	fs, dir := r.home.fs, r.in.Quarantine
	if err := fs.Mkdir(dir); err != nil {
		return "", err
	}
	temp := path.Join(dir, r.home.id.String()+tempSuffix)
	sum, err := copySynced(fs, temp, f, pos, size)
	if err != nil {
		fs.Remove(temp)
		return "", err
	}
	name = path.Join(dir, fmt.Sprintf("%v-%020d-%08x.cut", r.home.id, at, sum))
	if err := fs.Rename(temp, name); err != nil {
		fs.Remove(temp)
		return "", err
	}
	return name, syncDir(fs, dir)
}

// copySynced makes the file name from bytes of f and returns their CRC.
func copySynced(fs FS, name string, f File, pos, size int64) (sum uint32, err error) {
	to, err := fs.Open(name, Create)
	if err != nil {
		return 0, err
	}
	defer to.Close()
	if err := to.Truncate(0); err != nil {
		return 0, err
	}
	err = eachChunk(f, pos, size, func(at int64, p []byte) error {
		sum = crc32.Update(sum, castagnoli, p)
		_, err := to.WriteAt(p, at-pos)
		return err
	})
	if err != nil {
		return 0, err
	}
	return sum, syncFile(to)
}

// eachChunk reads the bytes of f from pos to size in bounded pieces.
func eachChunk(f io.ReaderAt, pos, size int64, use func(at int64, p []byte) error) error {
	buf := buffers.Get(scanBytes)
	defer buf.Release()
	for pos < size {
		p := buf.B[:min(scanBytes, size-pos)]
		n, err := f.ReadAt(p, pos)
		if n < len(p) && err == nil || n < len(p) && err == io.EOF {
			err = io.ErrUnexpectedEOF
		}
		if n < len(p) {
			return err
		}
		if err := use(pos, p); err != nil {
			return err
		}
		pos += int64(n)
	}
	return nil
}

var errNotZero = errors.New("not zero")

func onlyZeros(f io.ReaderAt, pos, size int64) (bool, error) {
	err := eachChunk(f, pos, size, func(_ int64, p []byte) error {
		for _, c := range p {
			if c != 0 {
				return errNotZero
			}
		}
		return nil
	})
	if err == errNotZero {
		return false, nil
	}
	return err == nil, err
}

// countGood returns how many whole batches of the log lie between pos and size.
func countGood(f io.ReaderAt, id wire.PartitionID, pos int64, next wire.Offset, size int64) (n int, err error) {
	w := newWalker(f, id, pos, next, size, scanBytes)
	defer w.close()
	for {
		b, err := w.batch()
		switch {
		case err == nil:
			n++
			w.skip(b)
		case err == io.EOF:
			return n, nil
		case !errors.Is(err, wire.ErrCorrupt):
			return n, err
		case !w.resync(math.MaxInt64):
			return n, nil
		}
	}
}

// settle gives the log an active segment and files its index entries.
func (r *recovery) settle() error {
	if r.active == nil {
		r.names, r.report.Clean = true, false
		if err := r.begin(r.due); err != nil {
			return noRoom(err)
		}
	}
	if err := r.settleIndex(); err != nil {
		return err
	}
	r.resum()
	return nil
}

// settleIndex leaves on disk what the active segment's entries say, no more.
// If the files hold just what the recovery point vouched for they stay.
func (r *recovery) settleIndex() error {
	s, t := r.active, &r.tail
	same := true
	for _, x := range indexFiles {
		size := r.has[path.Base(s.name(x.suffix))]
		same = same && size == int64(t.entries()*x.width)
	}
	switch {
	case same && r.report.Scanned == 0 && len(r.report.Rebuilt) == 0:
	case t.entries() == 0:
		for _, x := range indexFiles {
			if err := r.home.fs.Remove(s.name(x.suffix)); err != nil && !notExist(err) {
				return err
			}
		}
		r.names = true
	default:
		r.names = true
		if err := s.replaceIndexes(t, false); errors.Is(err, ErrSync) {
			return err
		} else if err != nil {
			return nil // no room: they stay in the heap
		}
	}
	t.filed = len(t.heap) - len(t.heap)%pageEntries
	t.heap = slices.Clone(t.heap[t.filed:])
	return nil
}

// finishEpochs makes the epoch history whole: entries the file lacks come from
// the batches, those behind the end move to it.
func (r *recovery) finishEpochs() error {
	h := &r.epochs
	if r.tail.end > r.firstBase() && (len(h.list) == 0 || h.list[0].start > r.start) {
		if err := r.rebuildEpochs(); err != nil {
			return err
		}
	}
	if r.o.Synced {
		h.truncate(r.tail.end) // who appends here keeps his terms elsewhere, and may go back
	}
	h.clamp(r.tail.end)
	return nil
}

func (r *recovery) rebuildEpochs() error {
	if !slices.Contains(r.report.Rebuilt, epochsName) && r.in.Point != nil {
		r.report.Rebuilt = append(r.report.Rebuilt, epochsName)
	}
	filed := r.epochs.list
	r.epochs.list, r.epochs.dirty = nil, true
	err := r.eachBatch(r.firstBase(), func(b wire.Batch) { r.epochs.note(b.LeaderEpoch(), b.BaseOffset()) })
	if err != nil {
		return err
	}
	// Epochs that wrote nothing are known from the file alone.
	all := r.epochs.list
	for _, x := range filed {
		i, had := slices.BinarySearchFunc(all, x.epoch, func(a epochStart, e wire.Epoch) int { return int(a.epoch) - int(e) })
		fits := (i == 0 || all[i-1].start <= x.start) && (i == len(all) || x.start <= all[i].start)
		if !had && fits {
			all = slices.Insert(all, i, x)
		}
	}
	r.epochs.list = all
	return nil
}

// finishProducers makes the producer state at the end. Snapshots of what is no
// longer there go first.
func (r *recovery) finishProducers() error {
	n := len(r.snapshots)
	if err := r.dropSnapshots(r.tail.end); err != nil {
		return err
	}
	r.names = r.names || len(r.snapshots) < n
	snapshots, from := r.snapshots, r.firstBase()
	if r.point.Snapshot < 0 { // no producer was known there
		r.snapshots, from = nil, r.point.Offset
	}
	err := r.restoreProducers(from)
	r.snapshots = snapshots
	return err
}

// makeDurable fsyncs what was kept, cut and made again. What is served from now
// on then outlives the next power cut.
func (r *recovery) makeDurable() error {
	if r.cut && !mem.Mutant("no fsync after a recovery cut") {
		if err := syncFile(r.file); err != nil {
			return err
		}
	}
	if r.names || r.in.Point == nil && r.in.Clean == nil {
		if err := syncDir(r.home.fs, r.home.path); err != nil {
			return err
		}
	}
	if !r.epochs.dirty {
		return nil
	}
	if err := r.epochs.save(); !isDiskFull(err) {
		return err
	}
	return nil // the next recovery finds the same, until a recovery point has saved them
}

func (r *recovery) finish() {
	r.active.named.Store(true)
	r.active.sound.set(r.tail.size)
	r.flush.flushed.Store(int64(r.tail.end))
	r.dirty = !r.report.Clean || len(r.report.Rebuilt) > 0 || r.epochs.dirty
	r.Log.point = r.point
	r.report.ID, r.report.Topic = r.home.id, r.topic
	r.report.Start, r.report.End, r.report.Point = r.start, r.tail.end, r.point.Offset
	r.report.Committed = min(r.point.Committed, r.tail.end)
	r.report.Damaged = r.home.damage.all()
	r.publish()
}
