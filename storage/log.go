package storage

import (
	"errors"
	"fmt"
	"math"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/teralog/teralog/mem"
	"github.com/teralog/teralog/wire"
)

// ErrDiskFull says that the disk had no room. What was asked for has been
// undone: no record is in the log because of it.
var ErrDiskFull error = &wire.Error{Code: wire.CodeDiskFull, Message: "no space left for the log"}

// ErrNoFiles says that no descriptor was left for the log's next file. No record
// is in the log because of what was asked for.
var ErrNoFiles error = &wire.Error{Code: wire.CodeBusy, Message: "too many files are open"}

// ErrOffsetLimit says that the batches would reach offset 2^63-1. Nothing was
// appended.
var ErrOffsetLimit error = &wire.Error{Code: wire.CodeOffsetLimit, Message: "offsets would pass 2^63-1"}

// ErrBroken says that the log no longer knows what its file holds, since
// undoing a failed write failed too. Its data directory must fail.
var ErrBroken = errors.New("log is broken")

// maxRelative bounds offsets and positions within a segment, inclusive: index
// entries hold both in 32 bits.
const maxRelative = math.MaxInt32

// writeBytes bounds what one write joins from several batches, in bytes.
const writeBytes = 8 << 20

// gatherBytes is from what average size on batches are not joined, in bytes.
const gatherBytes = 16 << 10

// buffers lends the memory for joined writes and header reads.
var buffers = mem.NewPool("storage")

// Options are the settings of one log. A zero field means the default.
type Options struct {
	SegmentBytes      int64         // roll before a segment grows past it; default 1 GiB
	SegmentAge        time.Duration // roll when the first batch is older; default 7 days
	IndexInterval     int           // bytes of log between index entries; default 4 KiB
	SnapshotBytes     int64         // log between two producer snapshots at most; default 64 MiB
	RetentionBytes    int64         // oldest segments go while more remains; default no limit
	RetentionAge      time.Duration // segments go when their last append is older; default no limit
	ProducerRetention time.Duration // producers are known at least so long; default 24 h
	MaxProducers      int           // producers known at once; default 100,000
	AppendTime        bool          // records' time is the leader's append time

	// Synced says that nothing ever depended on this log's bytes before they
	// were flushed. Bad bytes followed by a valid, contiguous batch were then
	// durable once: recovery calls them damage, not a torn tail.
	Synced bool
}

func (o Options) filled() Options {
	o.SegmentBytes = min(orDefault(o.SegmentBytes, 1<<30), maxRelative)
	o.SegmentAge = orDefault(o.SegmentAge, 7*24*time.Hour)
	o.IndexInterval = orDefault(o.IndexInterval, 4<<10)
	o.SnapshotBytes = orDefault(o.SnapshotBytes, 64<<20)
	o.ProducerRetention = orDefault(o.ProducerRetention, 24*time.Hour)
	o.MaxProducers = orDefault(o.MaxProducers, 100_000)
	return o
}

func orDefault[T int | int64 | time.Duration](v, otherwise T) T {
	if v <= 0 {
		return otherwise
	}
	return v
}

// A Log is one partition's log on disk.
//
// One goroutine owns it and may call every method. View may be called from
// anywhere, and so may Flush and Checkpoint.Run, each by one goroutine at a
// time. Everything readers need they find in the View.
type Log struct {
	home      *home
	topic     string
	o         Options
	producers *Producers
	epochs    epochs
	report    RecoveryReport

	view   atomic.Pointer[View]
	place  func() *View // where the next view is written
	sealed []*segment   // ascending, without the active one; shared with views, replaced on change
	doomed []*segment   // below start, still on disk
	active *segment
	file   File     // of active
	parts  [][]byte // of one write
	ahead  int64    // disk space of file is allocated up to here; 0: nothing was
	tail   tail
	start  wire.Offset
	sums   sums  // of sealed
	newest int64 // greatest append time there ever was, ms
	broken error

	dirty        bool          // something changed that the last recovery point does not say
	unheard      bool          // what became of the last one is not known
	unsnapped    int64         // bytes appended since the last producer snapshot
	snapshots    []wire.Offset // the producer snapshots on disk, ascending
	point        Point         // the newest one made
	durableStart wire.Offset   // the start that recovery-points names

	looked   mem.Now       // when Retain looked last, or the log was opened
	careful  time.Duration // on the monotonic clock: until then age is not quite believed
	withheld int64         // bytes that the last Retain kept for that

	flush flusher
	back  writeBack // WriteBack's
}

// sums are taken over sealed segments.
type sums struct{ bytes, maxTime int64 }

// A home is what the segments of one log share.
type home struct {
	fs     FS
	path   string
	id     wire.PartitionID
	files  *openFiles
	damage damages
	wakes  wakes
	every  int64        // bytes of log between index entries
	mapped int          // entries an active segment's index may have
	probes atomic.Int64 // index entries that look-ups compared

	newNames bool // index files were made since the last recovery point; the owner's
}

// Appended says where a write went.
type Appended struct {
	First, Last wire.Offset // both inclusive; First -1: a duplicate too old to be found
	Time        int64       // append time, ms; -1 for a duplicate
	Bytes       int64
	Rolled      bool // a new segment was begun
}

// createLog makes the empty log in path, whose manifest is already durable.
func createLog(fs FS, path, topic string, id wire.PartitionID, o Options, files *openFiles, now mem.Now) (*Log, error) {
	l := newLog(fs, path, topic, id, o, files)
	if err := l.begin(0); err != nil {
		return nil, fmt.Errorf("create log %s: %w", path, noRoom(err))
	}
	if err := fs.SyncDir(path); err != nil {
		return nil, fmt.Errorf("create log %s: %w: %w", path, ErrSync, err)
	}
	l.active.named.Store(true)
	l.dirty, l.durableStart, l.looked = true, 0, now
	l.resum()
	return l, nil
}

func newLog(fs FS, path, topic string, id wire.PartitionID, o Options, files *openFiles) *Log {
	o = o.filled()
	if files == nil {
		files = newOpenFiles(0)
	}
	h := &home{fs: fs, path: path, id: id, files: files, every: int64(o.IndexInterval)}
	h.mapped = int(min(o.SegmentBytes+wire.MaxBatchBytes, maxRelative)/h.every) + 2
	l := &Log{home: h, topic: topic, o: o, producers: newProducers(o), newest: math.MinInt64}
	l.place = func() *View { return new(View) }
	l.epochs = epochs{home: h}
	return l
}

// begin makes the segment at base the active one. Its name is durable only
// after the next Flush.
func (l *Log) begin(base wire.Offset) error {
	s := newSegment(l.home, base)
	f, err := l.home.fs.Open(s.name(logSuffix), CreateNew)
	if err != nil {
		return err
	}
	l.home.files.pin(s, f)
	s.sound.set(0)
	l.active, l.file, l.tail, l.ahead = s, f, newTail(base), 0
	return nil
}

// reach allocates disk space ahead of a write that ends at end, in steps and
// not before a file has shown that it grows: that makes each write cheaper and
// keeps the file in one piece. Where there is no room for a step, or the file
// system has no such call, writes take their space as they go.
//
// The file of an always-synced log takes the length of its space at once, zeros:
// an fsync after each write would else have to write a new length, too.
func (l *Log) reach(end int64) {
	if end <= l.ahead || l.tail.size < l.step() {
		return
	}
	l.ahead = max(end, min(end+l.step(), l.o.SegmentBytes))
	if l.file.Allocate(l.tail.size, l.ahead-l.tail.size) == nil && l.o.Synced {
		l.file.Truncate(l.ahead)
	}
}

// step is how much reach allocates at a time: 16 MiB of the usual 1 GiB, and a
// larger part of a small segment, since each time can wait for the disk. An
// always-synced log, which is small, has its length grow by it.
func (l *Log) step() int64 {
	n := l.o.SegmentBytes / aheadParts
	if l.o.Synced {
		return n
	}
	return min(max(n, 8<<20), l.o.SegmentBytes/4)
}

const aheadParts = 64

// Steady reports whether n bytes more are likely to go in by plain writes. What
// else an append may have to do, a new segment, index files, more space, changes
// what the file system keeps in its journal, and can wait there as long as others'
// fsyncs take. The owner's.
func (l *Log) Steady(n int64) bool {
	end := l.tail.size + n
	return end <= l.o.SegmentBytes &&
		(end <= l.ahead || l.tail.size < l.step()) &&
		(l.active.made || int64(len(l.tail.heap))+n/l.home.every+1 < pageEntries)
}

// giveBack frees what reach allocated and no write used. A file that has grown
// must end with its last batch before another one follows it: what is bad behind
// that would be judged by what follows.
func (l *Log) giveBack() error {
	if l.ahead > l.tail.size {
		err := l.file.Truncate(l.tail.size)
		if err == nil && l.o.Synced {
			err = syncFile(l.file)
		}
		if err != nil && l.o.Synced {
			return err
		}
	}
	l.ahead = 0
	return nil
}

// ID returns the partition's id.
func (l *Log) ID() wire.PartitionID { return l.home.id }

// Topic returns the name of the partition's topic.
func (l *Log) Topic() string { return l.topic }

// View returns the newest picture of the log. Any goroutine may call it.
func (l *Log) View() *View { return l.view.Load() }

// PlaceViews has each later View written to where place points, which must be
// memory that nobody reads yet; the log never writes to it again. Whoever wraps
// views in larger ones of their own need not allocate twice. The owner's.
func (l *Log) PlaceViews(place func() *View) { l.place = place }

// Producers returns what the log knows of idempotent producers; the owner's.
func (l *Log) Producers() *Producers { return l.producers }

// Recovery returns what opening the log found; zero after a create.
func (l *Log) Recovery() RecoveryReport { return l.report }

// LogStats are a log's counters at one moment.
type LogStats struct {
	Start, End, Flushed wire.Offset
	Bytes               int64
	Segments            int
	Damaged             int   // ranges known to be damaged
	Probes              int64 // index entries that look-ups compared
}

// Stats returns the log's counters. Any goroutine may call it.
func (l *Log) Stats() LogStats {
	v := l.View()
	return LogStats{
		Start: v.start, End: v.End(), Flushed: l.Flushed(), Bytes: v.bytes,
		Segments: len(v.sealed) + 1, Damaged: len(v.home.damage.all()), Probes: v.home.probes.Load(),
	}
}

// publish shows readers the log as it is now.
func (l *Log) publish() {
	v := l.place()
	*v = View{
		home: l.home, sealed: l.sealed, active: l.active, tail: l.tail,
		epochs: l.epochs.list, start: l.start, lastAppend: l.newest,
		bytes: l.sums.bytes + l.tail.size, maxTime: max(l.sums.maxTime, l.tail.maxTime),
	}
	l.view.Store(v)
}

// resum counts the sealed segments after they changed, and publishes.
func (l *Log) resum() {
	l.sums = sums{maxTime: math.MinInt64}
	for _, s := range l.sealed {
		l.sums.bytes += s.final.size
		l.sums.maxTime = max(l.sums.maxTime, s.final.maxTime)
	}
	l.publish()
}

// Append writes batches as leader of epoch e: in order, each stamped in place
// with its offset, e and one append time for all. Those for one segment go out
// in one write. It is all or nothing: an error that wraps ErrDiskFull,
// ErrNoFiles or ErrOffsetLimit means that nothing was appended and the log goes
// on; any other that the data directory must fail. The batches are verified, the producers'
// sequences staged, and bs is not empty. The bytes are not kept.
func (l *Log) Append(bs []wire.Batch, e wire.Epoch, now mem.Now) (Appended, error) {
	if last := l.epochs.last(); e < last {
		return Appended{}, wire.Errorf(wire.CodeFencedEpoch, "append under epoch %d after epoch %d", e, last)
	}
	at, stamp := l.tail.end, max(now.Wall, l.newest)
	if !fitOffsets(at, bs) {
		return Appended{}, ErrOffsetLimit
	}
	for _, b := range bs {
		b.Stamp(at, e, stamp, l.o.AppendTime)
		at = b.NextOffset()
	}
	return l.append(bs, stamp)
}

// AppendStamped writes batches that bear offsets, epochs and append times
// already: the first must be the log's end, the others must follow without a
// gap, and epochs must not fall. Otherwise it is as Append.
func (l *Log) AppendStamped(bs []wire.Batch) (Appended, error) {
	at, e := l.tail.end, l.epochs.last()
	if !fitOffsets(at, bs) {
		return Appended{}, ErrOffsetLimit
	}
	for _, b := range bs {
		if b.BaseOffset() != at || b.LeaderEpoch() < e {
			return Appended{}, fmt.Errorf("%s: batch at offset %d of epoch %d does not follow offset %d, epoch %d",
				l.home.path, b.BaseOffset(), b.LeaderEpoch(), at, e)
		}
		at, e = b.NextOffset(), b.LeaderEpoch()
	}
	return l.append(bs, bs[0].AppendTime())
}

// Reserve takes disk space for n more bytes at the log's end, as far as the file
// system can, so that a write of so many finds room if it needs no new segment.
// The error wraps ErrDiskFull.
func (l *Log) Reserve(n int64) error {
	err := l.file.Allocate(l.tail.size, n)
	if errors.Is(err, errors.ErrUnsupported) {
		return nil
	}
	return noRoom(err)
}

// fitOffsets reports whether the log's end would stay below 2^63-1.
func fitOffsets(at wire.Offset, bs []wire.Batch) bool {
	for _, b := range bs {
		n := wire.Offset(b.LastOffsetDelta()) + 1
		if at >= math.MaxInt64-n {
			return false
		}
		at += n
	}
	return true
}

// append writes stamped batches, segment by segment.
func (l *Log) append(bs []wire.Batch, stamp int64) (Appended, error) {
	if l.broken != nil {
		return Appended{}, l.broken
	}
	a := Appended{First: bs[0].BaseOffset(), Last: bs[len(bs)-1].LastOffset(), Time: stamp}
	for len(bs) > 0 {
		n, size := l.fit(bs)
		if n == 0 {
			if err := l.roll(); err != nil {
				return Appended{}, l.undo(a.First, err)
			}
			a.Rolled = true
			continue
		}
		if err := l.write(bs[:n], size); err != nil {
			return Appended{}, l.undo(a.First, err)
		}
		a.Bytes += size
		bs = bs[n:]
	}
	l.dirty = true
	l.unsnapped += a.Bytes
	l.producers.stamp(stamp)
	l.publish()
	return a, nil
}

// fit returns how many of bs go into the active segment by one write, and
// their bytes; 0 if it must be rolled first. An empty segment takes any batch.
func (l *Log) fit(bs []wire.Batch) (n int, size int64) {
	for _, b := range bs {
		grown := l.tail.size + size + int64(len(b))
		switch {
		case l.tail.size+size == 0:
		case grown > l.o.SegmentBytes,
			b.LastOffset()-l.active.base > maxRelative,
			n == 0 && tooOld(l.tail.first, b.AppendTime(), l.o.SegmentAge):
			return n, size
		}
		if n > 0 && size+int64(len(b)) > writeBytes {
			return n, size
		}
		n, size = n+1, size+int64(len(b))
	}
	return n, size
}

// write appends bs to the active file by one call, then notes them.
func (l *Log) write(bs []wire.Batch, size int64) error {
	l.reach(l.tail.size + size)
	if err := l.put(bs, size); err != nil {
		return l.unwrite(err)
	}
	for _, b := range bs {
		l.tail.add(l.active.base, b, l.home.every)
		l.epochs.note(b.LeaderEpoch(), b.BaseOffset())
		l.newest = max(l.newest, b.AppendTime())
	}
	l.active.fileEntries(&l.tail)
	return nil
}

// put writes bs behind the log's end. Small ones are joined first: the kernel
// takes longer over a part than it takes to copy that much.
func (l *Log) put(bs []wire.Batch, size int64) (err error) {
	switch {
	case len(bs) == 1:
		_, err = l.file.WriteAt(bs[0], l.tail.size)
	case size/int64(len(bs)) < gatherBytes:
		buf := buffers.Get(int(size))
		defer buf.Release()
		joined := buf.B[:0]
		for _, b := range bs {
			joined = append(joined, b...)
		}
		_, err = l.file.WriteAt(joined, l.tail.size)
	default:
		for _, b := range bs {
			l.parts = append(l.parts, b)
		}
		_, err = l.file.WriteParts(l.parts, l.tail.size)
		clear(l.parts)
		l.parts = l.parts[:0]
	}
	return err
}

// unwrite cuts off what a failed write may have left.
func (l *Log) unwrite(err error) error {
	l.ahead = 0
	if cut := l.file.Truncate(l.tail.size); cut != nil {
		l.broken = fmt.Errorf("%s: %w: a write failed (%w) and so did cutting it off: %w", l.active.name(logSuffix), ErrBroken, err, cut)
		return l.broken
	}
	return fmt.Errorf("append at offset %d: %w", l.tail.end, noRoom(err))
}

// undo takes back the segments and bytes that an append wrote before it failed.
func (l *Log) undo(to wire.Offset, err error) error {
	if l.broken == nil && l.tail.end > to {
		if cut := l.cut(to, true); cut != nil {
			l.broken = fmt.Errorf("%s: %w: an append failed (%w) and so did undoing it: %w", l.home.path, ErrBroken, err, cut)
		}
	}
	if l.broken != nil {
		return l.broken
	}
	return err
}

// roll seals the active segment and begins the next at the log's end.
func (l *Log) roll() error {
	old, t := l.active, l.tail
	if err := l.giveBack(); err != nil {
		return fmt.Errorf("roll at offset %d: %w", t.end, err)
	}
	if err := l.begin(t.end); err != nil {
		return fmt.Errorf("roll at offset %d: %w", t.end, noRoom(err))
	}
	old.seal(t)
	old.aged = l.newest
	if n := len(l.sealed); n > 0 {
		l.sealed[n-1].recent.Store(nil)
	}
	l.sealed = append(l.sealed[:len(l.sealed):len(l.sealed)], old)
	l.unsnapped = l.o.SnapshotBytes // each roll asks for a producer snapshot
	l.dirty = true
	l.resum()
	return nil
}

// tooOld reports whether a segment first written at first must not be written
// at now, both by the stamp clock in ms.
func tooOld(first, now int64, age time.Duration) bool {
	return first != math.MinInt64 && now > first && now-first >= age.Milliseconds()
}

// noRoom makes err wrap ErrDiskFull if the disk had no room, ErrNoFiles if the
// process had none for another descriptor.
func noRoom(err error) error {
	switch {
	case isDiskFull(err) && !errors.Is(err, ErrDiskFull):
		return fmt.Errorf("%w: %w", ErrDiskFull, err)
	case !errors.Is(err, ErrSync) && (errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE)):
		return fmt.Errorf("%w: %w", ErrNoFiles, err)
	}
	return err
}

// isDiskFull reports whether the disk had no room. One that only an fsync tells of
// is a failed fsync.
func isDiskFull(err error) bool {
	return !errors.Is(err, ErrSync) && (errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT))
}
