package storage

import (
	"errors"
	"io"
	"math"
	"sort"
	"sync"
	"time"

	"github.com/teralog/teralog/mem"
	"github.com/teralog/teralog/wire"
)

// A Clock says which of a record's two times is meant.
type Clock uint8

const (
	EventTime  Clock = iota // the record's own time; append time where the topic's setting says so
	AppendTime              // the leader's stamp clock at the append
)

// before returns the number of the last entry before which no batch of the
// segment reaches t, 0 if there is none.
func (x *entries) before(c Clock, t int64) int {
	n := sort.Search(x.len(), func(i int) bool {
		x.probes++
		return x.time(i, c) >= t
	})
	if mem.Mutant("time index entry one batch late") {
		return min(n, x.len()-1)
	}
	return max(n-1, 0)
}

func (t *tail) max(c Clock) int64 {
	if c == AppendTime {
		return t.maxAppend
	}
	return t.maxTime
}

// batchTime returns the greatest time of b by c.
func batchTime(c Clock, b wire.Batch) int64 {
	if c == AppendTime {
		return b.AppendTime()
	}
	return eventTime(b)
}

// FindTime returns the first offset whose time by c is at or after t, and that
// time, under any disorder of times; -1 if there is none below bound yet.
//
// It reads a few index entries of the first segment that reaches t, the headers
// of one index interval, and, for event times, the records of one batch. Only
// where that batch's records do not hold what its header promises, as after a
// trim or a compaction, does it read on. A damaged batch in its way is a
// *CorruptRange. While it holds a batch it takes its length, stored and
// uncompressed, from memory (nil: there is no end of it), or fails with
// ErrMemory.
func (v *View) FindTime(c Clock, t int64, bound wire.Offset, memory *mem.Budget) (wire.Offset, int64, error) {
	bound = min(bound, v.End())
	for i := v.holds(v.start); i <= len(v.sealed); i++ {
		s, x := v.picture(i)
		if s.base >= bound {
			break
		}
		if x.size == 0 || x.max(c) < t {
			continue
		}
		at, time, err := v.findTimeIn(s, x, c, t, memory)
		if err == errGone {
			return -1, 0, wire.Errorf(wire.CodeOutOfRange, "log starts later than offset %d by now", v.start)
		}
		if err != nil {
			return -1, 0, err
		}
		if at >= 0 {
			if at >= bound {
				break
			}
			return at, time, nil
		}
	}
	return -1, 0, nil
}

// findTimeIn is FindTime within one segment.
func (v *View) findTimeIn(s *segment, x *tail, c Clock, t int64, memory *mem.Budget) (wire.Offset, int64, error) {
	f, err := v.home.files.take(s)
	if err != nil {
		return -1, 0, err
	}
	defer s.done()
	w, _, err := s.walkFrom(f, x, probe{byTime: true, clock: c, t: t})
	if err != nil {
		return -1, 0, err
	}
	defer w.close()
	from := w.next
	if s.rebuilt.Load() != nil {
		from = s.base // an index made anew knows nothing of what is damaged
	}
	for {
		if bad := v.home.damage.within(from, w.next); bad != nil {
			return -1, 0, bad
		}
		b, err := w.header()
		if err == io.EOF {
			return -1, 0, nil
		}
		if err != nil {
			return -1, 0, v.damaged(s, x, &w, err)
		}
		if batchTime(c, b) >= t && b.NextOffset() > v.start {
			at, time, err := v.findRecord(f, &w, b, c, t, memory)
			if err != nil || at >= 0 {
				return at, time, err
			}
		}
		w.skip(b)
	}
}

// findRecord looks into the batch b that stands at w: the first record at or
// after t, -1 if there is none.
func (v *View) findRecord(f File, w *walker, b wire.Batch, c Clock, t int64, memory *mem.Budget) (wire.Offset, int64, error) {
	if c == AppendTime || b.AppendTimeType() {
		if b.Count() == 0 {
			return -1, 0, nil // what compaction left of whole batches
		}
		return max(b.BaseOffset(), v.start), b.AppendTime(), nil
	}
	at, time := wire.Offset(-1), int64(0)
	err := v.records(f, w, b, memory, func(r *wire.Record) error {
		if r.Time < t || r.Offset < v.start {
			return nil
		}
		at, time = r.Offset, r.Time
		return errFound
	})
	return at, time, err
}

// records calls use with the records of the batch b that stands at w, until it
// returns errFound. A damaged batch is remembered and a *CorruptRange.
func (v *View) records(f File, w *walker, b wire.Batch, memory *mem.Budget, use func(*wire.Record) error) error {
	base, next := b.BaseOffset(), b.NextOffset()
	if n := heldBytes(b); memory != nil {
		if !memory.TryTake(n) {
			return ErrMemory
		}
		defer memory.Give(n)
	}
	buf, err := readBatch(f, w.pos, b.Len())
	if buf != nil {
		defer buf.Release()
	}
	if err == nil {
		d := decoders.Get().(*wire.Decoder)
		defer decoders.Put(d)
		defer d.Release()
		err = wire.Batch(buf.B).Records(d, use)
	}
	switch {
	case err == nil || err == errFound:
		return nil
	case errors.Is(err, wire.ErrCorrupt):
		return v.home.damage.add(base, next)
	}
	return storageError(err)
}

// heldBytes is what a look into b holds: the batch and its records.
func heldBytes(b wire.Batch) int64 {
	if b.Codec() == wire.None {
		return int64(b.Len()) // which are read where they are
	}
	return int64(b.Len()) + int64(b.RecordsLength())
}

// readBatch reads the whole batch at pos and verifies it. The buffer is the
// caller's if it is not nil.
func readBatch(f io.ReaderAt, pos int64, n int) (*mem.Buf, error) {
	buf := buffers.Get(n)
	if got, err := f.ReadAt(buf.B, pos); got < n {
		if err == nil || err == io.EOF {
			err = wire.ErrCorrupt
		}
		return buf, err
	}
	return buf, wire.Batch(buf.B).Verify()
}

// decoders are lent to time look-ups.
var decoders = sync.Pool{New: func() any { return &wire.Decoder{MaxRecords: maxRelative} }}

var errFound = errors.New("found")

// ErrMemory says that there was no memory for the batch that a look-up by time
// has to look into.
var ErrMemory error = &wire.Error{Code: wire.CodeBusy, Message: "no memory to look into a batch", RetryAfter: 100 * time.Millisecond, Limit: wire.LimitMemory}

// FindGreatest returns the first offset below bound that has the greatest event
// time of all from Start to bound, and that time; -1 if there is no record.
// Where only a part of a segment counts it reads that part's headers, and the
// records of a batch of which only a part counts. memory is as for FindTime.
func (v *View) FindGreatest(bound wire.Offset, memory *mem.Budget) (wire.Offset, int64, error) {
	bound = min(bound, v.End())
	best := int64(math.MinInt64)
	for i := v.holds(v.start); i <= len(v.sealed); i++ {
		s, x := v.picture(i)
		if s.base >= bound {
			break
		}
		greatest := x.maxTime
		if s.base < v.start || x.end > bound {
			var err error
			if greatest, err = v.greatestIn(s, x, bound, memory); err != nil {
				return -1, 0, err
			}
		}
		best = max(best, greatest)
	}
	if best == math.MinInt64 {
		return -1, 0, nil
	}
	return v.FindTime(EventTime, best, bound, memory)
}

// greatestIn returns the greatest event time in s from the view's start to
// bound. What lies before an index entry is known from it, if all that counts.
func (v *View) greatestIn(s *segment, x *tail, bound wire.Offset, memory *mem.Budget) (int64, error) {
	f, err := v.home.files.take(s)
	if err == errGone {
		return math.MinInt64, nil
	}
	if err != nil {
		return 0, storageError(err)
	}
	defer s.done()
	p := probe{rel: clamp(int64(bound - s.base)), pos: math.MaxUint32, times: true}
	if s.base < v.start {
		p.rel = clamp(int64(v.start - s.base))
	}
	w, e, err := s.walkFrom(f, x, p)
	if err != nil {
		return 0, err
	}
	defer w.close()
	greatest := e.maxTime
	if s.base < v.start {
		greatest = math.MinInt64
	}
	for w.next < bound {
		b, err := w.header()
		if err == io.EOF {
			break
		}
		if err != nil {
			return 0, v.damaged(s, x, &w, err)
		}
		t := eventTime(b)
		if b.BaseOffset() < v.start || b.NextOffset() > bound {
			if t, err = v.greatestOf(f, &w, b, bound, memory); err != nil {
				return 0, err
			}
		}
		greatest = max(greatest, t)
		w.skip(b)
	}
	return greatest, nil
}

// greatestOf looks into the batch b that stands at w.
func (v *View) greatestOf(f File, w *walker, b wire.Batch, bound wire.Offset, memory *mem.Budget) (int64, error) {
	greatest := int64(math.MinInt64)
	err := v.records(f, w, b, memory, func(r *wire.Record) error {
		if r.Offset >= v.start && r.Offset < bound {
			greatest = max(greatest, r.Time)
		}
		return nil
	})
	return greatest, err
}
