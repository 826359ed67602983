package storage

import (
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"sort"
	"sync"
	"sync/atomic"

	"github.com/teralog/teralog/wire"
)

// A View is an immutable picture of a log. Any goroutine may read through it
// for as long as it likes; a segment deleted since then answers OUT_OF_RANGE.
type View struct {
	home   *home
	sealed []*segment
	active *segment
	tail   tail // of active
	epochs []epochStart

	start      wire.Offset
	bytes      int64
	maxTime    int64
	lastAppend int64
}

// Start returns the first offset that may be read.
func (v *View) Start() wire.Offset { return v.start }

// End returns the offset the next record will get.
func (v *View) End() wire.Offset { return v.tail.end }

// ActiveBase returns the first offset of the segment that is written to.
func (v *View) ActiveBase() wire.Offset { return v.active.base }

// Epoch returns the newest leader epoch, wire.NoEpoch if there was none yet.
func (v *View) Epoch() wire.Epoch {
	if len(v.epochs) == 0 {
		return wire.NoEpoch
	}
	return v.epochs[len(v.epochs)-1].epoch
}

// Bytes returns the length of the log files that hold offsets from Start on.
func (v *View) Bytes() int64 { return v.bytes }

// GreatestTime returns the greatest event time in those files, in ms;
// math.MinInt64 if they hold no batch.
func (v *View) GreatestTime() int64 { return v.maxTime }

// LastAppendTime returns the greatest append time the log ever had, in ms;
// math.MinInt64 if nothing was appended.
func (v *View) LastAppendTime() int64 { return v.lastAppend }

// EpochEnd returns the greatest epoch ≤ e in the log and the offset where it
// ends. An e older than all known ended at the latest where the oldest known
// begins: wire.NoEpoch and that offset; the log's start if none is known.
func (v *View) EpochEnd(e wire.Epoch) (wire.Epoch, wire.Offset) {
	i := sort.Search(len(v.epochs), func(i int) bool { return v.epochs[i].epoch > e })
	switch {
	case len(v.epochs) == 0:
		return wire.NoEpoch, v.start
	case i == 0:
		return wire.NoEpoch, v.epochs[0].start
	case i == len(v.epochs):
		return v.epochs[i-1].epoch, v.End()
	}
	return v.epochs[i-1].epoch, v.epochs[i].start
}

// A Range is a run of whole batches in one file. FileRange.Done must be called
// once if Len is not 0; until then the file stays open, even if it is deleted.
type Range struct {
	wire.FileRange
	First wire.Offset // base offset of the first batch, at or before the one asked for
	Next  wire.Offset // the offset to ask for next

	// Appended is when one of the batches was appended, in ms: the first, or if
	// what is in memory says no more the last; 0 if that says nothing either.
	Appended int64

	v       *View
	s       *segment
	follows bool // its Done tells the wake it belongs to
}

// A CorruptRange says that the records from From to To, exclusive, are damaged
// on disk. It is both wire.CodeCorrupt and wire.ErrCorrupt.
type CorruptRange struct{ From, To wire.Offset }

func (c *CorruptRange) Error() string {
	return fmt.Sprintf("records from offset %d to %d are damaged on disk", c.From, c.To)
}

// Unwrap returns wire.CodeCorrupt and wire.ErrCorrupt.
func (c *CorruptRange) Unwrap() []error { return []error{wire.CodeCorrupt, wire.ErrCorrupt} }

// picture returns segment i, counted from the oldest, and its picture.
func (v *View) picture(i int) (*segment, *tail) {
	if i == len(v.sealed) {
		return v.active, &v.tail
	}
	return v.sealed[i], &v.sealed[i].final
}

// holds returns the number of the last segment whose base is at or before at.
func (v *View) holds(at wire.Offset) int {
	if at >= v.active.base {
		return len(v.sealed)
	}
	n := sort.Search(len(v.sealed), func(i int) bool { return v.sealed[i].base > at })
	return max(n-1, 0)
}

// Find returns whole batches from the one that holds from, as many as end at or
// before bound and fit maxBytes, all from one segment; the first one is whole
// whatever maxBytes says. Len 0 says that none ends below bound yet. An offset
// outside Start to End is OUT_OF_RANGE. A run stops before known damage, one
// that would start in it is a *CorruptRange.
func (v *View) Find(from, bound wire.Offset, maxBytes int) (Range, error) {
	return v.seek(from, bound, maxBytes, false)
}

// ErrNotCached says that the disk would have to be read first.
var ErrNotCached = errors.New("not in memory")

// FindCached is Find for who must not wait for the disk: where it would have to
// be read to find anything, the error is ErrNotCached. What is found may still
// have to be read.
func (v *View) FindCached(from, bound wire.Offset, maxBytes int) (Range, error) {
	return v.seek(from, bound, maxBytes, true)
}

func (v *View) seek(from, bound wire.Offset, maxBytes int, cached bool) (Range, error) {
	if from < v.start || from > v.End() {
		return Range{}, v.outside(from)
	}
	bound = min(bound, v.End())
	bad, bound := v.home.damage.ahead(from, bound)
	if bad != nil {
		return Range{}, bad
	}
	if from >= bound {
		return Range{First: from, Next: from}, nil
	}
	s, x := v.picture(v.holds(from))
	if from >= x.end { // segments that follow each other leave no gap but by damage
		return Range{}, v.home.damage.add(x.end, v.nextBase(s))
	}
	f, err := v.home.files.take(s)
	if err == errGone {
		return Range{}, v.outside(from)
	}
	if err != nil {
		return Range{}, storageError(err)
	}
	if cached && !s.findable(f, x, from) {
		s.done()
		return Range{}, ErrNotCached
	}
	r, err := v.findIn(f, s, x, from, bound, max(int64(maxBytes), 1))
	if err != nil || r.Len == 0 {
		s.done()
		return r, err
	}
	r.R, r.Done, r.v, r.s = f, s.done, v, s
	return r, nil
}

func (v *View) outside(at wire.Offset) error {
	return wire.Errorf(wire.CodeOutOfRange, "offset %d is outside %d to %d", at, v.start, v.End())
}

// nextBase returns the base of the segment after s, the end if s is the last.
func (v *View) nextBase(s *segment) wire.Offset {
	for _, n := range v.sealed {
		if n.base > s.base {
			return n.base
		}
	}
	if v.active.base > s.base {
		return v.active.base
	}
	return v.End()
}

// findable reports whether what findIn needs for from is in memory.
func (s *segment) findable(f File, x *tail, from wire.Offset) bool {
	c, ok := f.(cacheFile)
	if _, recent := s.findRecent(x, from, x.end, 1); recent || !ok {
		return true
	}
	if r := s.rebuilt.Load(); x.filed > 0 && (r == nil || r.size < x.size) && !s.home.files.maps(s).findable(x.filed) {
		return false
	}
	at, err := s.find(x, probe{rel: clamp(int64(from - s.base)), pos: math.MaxUint32})
	return err != nil || c.resident(int64(at.pos), min(s.home.every+wire.HeaderSize, x.size-int64(at.pos)))
}

// findIn is Find within the picture x of s, which is taken.
func (v *View) findIn(f File, s *segment, x *tail, from, bound wire.Offset, maxBytes int64) (Range, error) {
	if r, ok := s.findRecent(x, from, bound, maxBytes); ok {
		return r, nil
	}
	w, _, err := s.walkFrom(f, x, probe{rel: clamp(int64(from - s.base)), pos: math.MaxUint32})
	if err != nil {
		return Range{}, err
	}
	defer w.close()
	b, err := w.header()
	for {
		if at := w.next; err == nil && b.NextOffset() <= from {
			w.skip(b)
		} else if errors.Is(err, wire.ErrCorrupt) && w.resync(from+1) {
			v.home.damage.add(at, w.next) // before what is asked for
		} else {
			break
		}
		b, err = w.header()
	}
	if err != nil {
		return Range{}, v.damaged(s, x, &w, err)
	}
	r := Range{First: b.BaseOffset(), Next: from, Appended: b.AppendTime()}
	if r.First > from { // the index, made anew, knows nothing of what is damaged
		return Range{}, v.home.damage.add(from, r.First)
	}
	if b.NextOffset() > bound {
		return r, nil
	}
	r.Off = w.pos
	w.skip(b)
	return r, v.extend(&r, s, x, &w, bound, r.Off+maxBytes)
}

// extend takes more batches into r, which ends where w stands, up to limit in
// the file. It goes by index entries where it can and then reads no header.
func (v *View) extend(r *Range, s *segment, x *tail, w *walker, bound wire.Offset, limit int64) error {
	var end int64
	var next wire.Offset
	if x.end <= bound && x.size <= limit {
		end, next = x.size, x.end
	} else {
		p, err := s.find(x, probe{rel: clamp(int64(bound - s.base)), pos: clamp(limit)})
		if err != nil {
			return storageError(err)
		}
		if int64(p.pos) > w.pos {
			end, next = int64(p.pos), s.base+wire.Offset(p.rel)
		} else {
			for w.pos+wire.HeaderSize <= limit && w.next < bound {
				b, err := w.header()
				if err != nil || b.NextOffset() > bound || w.pos+int64(b.Len()) > limit {
					break // what is wrong there, the next Find will say
				}
				w.skip(b)
			}
			end, next = w.pos, w.next
		}
	}
	r.Len, r.Next = end-r.Off, next
	return nil
}

// findRecent is findIn from what the picture holds in memory.
func (s *segment) findRecent(x *tail, from, bound wire.Offset, maxBytes int64) (Range, bool) {
	two := [2][]place{x.old, x.new}
	if r := s.recent.Load(); r != nil && len(x.new) == 0 {
		two = *r
	}
	at := func(i int) (int64, wire.Offset) {
		switch n := len(two[0]); {
		case i < n:
			return int64(two[0][i].pos), s.base + wire.Offset(two[0][i].rel)
		case i < n+len(two[1]):
			p := two[1][i-n]
			return int64(p.pos), s.base + wire.Offset(p.rel)
		}
		return x.size, x.end
	}
	n := len(two[0]) + len(two[1])
	if n == 0 {
		return Range{}, false
	}
	pos, first := at(0)
	if from < first {
		return Range{}, false
	}
	i := sort.Search(n, func(i int) bool { _, o := at(i); return o > from }) - 1
	pos, first = at(i)
	r := Range{First: first, Next: from}
	if _, next := at(i + 1); next > bound {
		return r, true
	}
	k := sort.Search(n-i-1, func(k int) bool { p, o := at(i + 2 + k); return o > bound || p-pos > maxBytes })
	end, next := at(i + 1 + k)
	r.Off, r.Len, r.Next = pos, end-pos, next
	if next == x.end {
		r.Appended = x.maxAppend
	}
	return r, true
}

// walkFrom returns a walker at the batch that p names in s, and the entry that
// says so. That a batch header stands there is proved, or the index is made
// anew first. The walker reads an index interval at once.
func (s *segment) walkFrom(f File, x *tail, p probe) (walker, entry, error) {
	for again := false; ; again = true {
		at, err := s.find(x, p)
		if err != nil {
			return walker{}, at, storageError(err)
		}
		window := int(s.home.every) + wire.HeaderSize
		s.touch(f, x, int64(at.pos), int64(window))
		w := newWalker(f, s.home.id, int64(at.pos), s.base+wire.Offset(at.rel), x.size, window)
		_, err = w.header()
		if err == nil || again || err != io.EOF && !errors.Is(err, wire.ErrCorrupt) {
			return w, at, nil
		}
		w.close()
		if err := s.rebuild(x); err != nil {
			return walker{}, at, storageError(err)
		}
	}
}

// damaged says what became of a walk through s that err ended. Bad bytes are
// remembered, up to the next batch the index knows.
func (v *View) damaged(s *segment, x *tail, w *walker, err error) error {
	if err != io.EOF && !errors.Is(err, wire.ErrCorrupt) {
		return storageError(err)
	}
	to := x.end
	if e, err := s.entries(x); err == nil {
		guard(func() { to = e.after(s.base, w.pos, x.end) })
	}
	return v.home.damage.add(w.next, to)
}

// after returns the offset of the first entry behind pos, end if there is none.
func (x *entries) after(base wire.Offset, pos int64, end wire.Offset) wire.Offset {
	n := sort.Search(x.len(), func(i int) bool { return int64(x.place(i).pos) > pos })
	if n == x.len() {
		return end
	}
	return base + wire.Offset(x.place(n).rel)
}

// Check reads and verifies every batch of r before its Done. A bad one is
// remembered and returned as a *CorruptRange. It may read from the disk, so it
// belongs on a worker.
//
// Who is to read from the disk here is likely to go on behind the range, so the
// disk is asked for more than is needed now: else a reader of a cold backlog
// waits for it a whole round trip at a time.
func (r *Range) Check() error {
	if f, ok := r.R.(File); ok {
		f.Prefetch(r.Off, r.Len+prefetchBytes) // a disk that will not is just slower
	}
	w := newWalker(r.R, r.v.home.id, r.Off, r.First, r.Off+r.Len, scanBytes)
	defer w.close()
	for {
		b, err := w.batch()
		switch {
		case err == io.EOF:
			r.s.sound.verified(r.Off, r.Off+r.Len)
			r.v.home.dropBehind()
			return nil
		case errors.Is(err, wire.ErrCorrupt):
			_, x := r.v.picture(r.v.holds(r.s.base))
			return r.v.damaged(r.s, x, &w, err)
		case err != nil:
			return storageError(err)
		}
		w.skip(b)
	}
}

// prefetchBytes is how far behind a cold range the disk is asked to read ahead.
const prefetchBytes = 4 << 20

func storageError(err error) error {
	if wire.CodeOf(err) != wire.CodeInternal {
		return err
	}
	return fmt.Errorf("%w: %w", wire.CodeStorageError, err)
}

func clamp(n int64) uint32 { return uint32(min(max(n, 0), math.MaxUint32)) }

// damages are the ranges of a log known to be bad, ascending and apart. Anybody
// may add one; none is ever taken back.
type damages struct {
	mu   sync.Mutex
	list atomic.Pointer[[]CorruptRange]
}

func (d *damages) all() []CorruptRange {
	if l := d.list.Load(); l != nil {
		return *l
	}
	return nil
}

// add remembers from to to and returns it.
func (d *damages) add(from, to wire.Offset) *CorruptRange {
	bad := &CorruptRange{from, to}
	if from >= to {
		return bad
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	list := append(slices.Clone(d.all()), *bad)
	slices.SortFunc(list, func(a, b CorruptRange) int { return int(max(min(a.From-b.From, 1), -1)) })
	n := 0
	for _, r := range list[1:] {
		if r.From <= list[n].To {
			list[n].To = max(list[n].To, r.To)
			continue
		}
		n++
		list[n] = r
	}
	list = list[:n+1]
	d.list.Store(&list)
	return bad
}

// drop forgets what lies at or behind end, after a truncation.
func (d *damages) drop(end wire.Offset) {
	d.mu.Lock()
	defer d.mu.Unlock()
	var list []CorruptRange
	for _, r := range d.all() {
		if r.To = min(r.To, end); r.From < r.To {
			list = append(list, r)
		}
	}
	d.list.Store(&list)
}

// ahead returns the damage that holds at, or bound lowered to the next damage
// behind at.
func (d *damages) ahead(at, bound wire.Offset) (*CorruptRange, wire.Offset) {
	for _, r := range d.all() {
		if at < r.From {
			return nil, min(bound, r.From)
		}
		if at < r.To {
			return &CorruptRange{r.From, r.To}, bound
		}
	}
	return nil, bound
}

// within returns the first damage that meets from to to, nil if none does.
func (d *damages) within(from, to wire.Offset) error {
	for _, r := range d.all() {
		if r.From < to && from < r.To {
			return &CorruptRange{r.From, r.To}
		}
	}
	return nil
}
