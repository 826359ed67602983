package storage

import (
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"math"
	"runtime"
	"runtime/debug"
	"sort"
	"sync/atomic"

	"github.com/teralog/teralog/wire"
)

const (
	logSuffix      = ".log"
	offsetSuffix   = ".index"
	timeSuffix     = ".timeindex"
	snapshotSuffix = ".producers"
)

// errGone says that a segment was deleted since the view that names it was made.
var errGone = errors.New("segment is deleted")

// A segment is one .log file and its two index files.
//
// What stands above the line is set before a view shows it and then never
// changes, except through atomics. The owner alone uses idx and short.
type segment struct {
	home  *home
	base  wire.Offset
	final tail  // all of a sealed segment, without its newest places
	aged  int64 // stamp clock when this node sealed or opened it, ms

	named   atomic.Bool                  // its name in the directory is durable
	synced  atomic.Bool                  // sealed, and every byte of .log is durable
	written atomic.Int64                 // up to where the last sync had the disk write .log
	recent  atomic.Pointer[[2][]place]   // newest places of the segment sealed last
	rebuilt atomic.Pointer[rebuiltIndex] // replaces index files that proved bad
	sound   sound                        // what of .log may be sent unread
	done    func()                       // gives back one take; made once, so that Find allocates nothing

	idx   [2]File     // the index files while they are written; nil before the first page, and between pages where many logs are open
	made  bool        // they are there, and the next recovery point syncs their names
	short bool        // sealed, but the disk had no room for all of its index
	loose atomic.Bool // sealed, and its index files await an fsync
	slot  slot        // guarded by home.files
}

func newSegment(h *home, base wire.Offset) *segment {
	s := &segment{home: h, base: base, aged: math.MinInt64, sound: sound{own: nothing}}
	s.done = func() { h.files.give(s) }
	return s
}

func (s *segment) name(suffix string) string { return segmentName(s.home.path, s.base, suffix) }

func segmentName(dir string, base wire.Offset, suffix string) string {
	return fmt.Sprintf("%s/%020d%s", dir, base, suffix)
}

// openIndexes opens or makes the two index files for writing.
func (s *segment) openIndexes() error {
	for i, x := range indexFiles {
		if s.idx[i] != nil {
			continue
		}
		f, err := s.home.fs.Open(s.name(x.suffix), Create)
		if err != nil {
			return err
		}
		s.idx[i] = f
	}
	if !s.made {
		s.made, s.home.newNames = true, true
	}
	return nil
}

// makeIndexes makes the index files if they are not there.
func (s *segment) makeIndexes() error {
	if s.made {
		return nil
	}
	defer s.spareIndexes()
	return s.openIndexes()
}

// fileEntries writes t's entries that fill whole pages and drops them from the
// heap. If the disk will not have them they stay there: an index can always be
// made again, so that is no error.
func (s *segment) fileEntries(t *tail) {
	n := len(t.heap) - len(t.heap)%pageEntries
	if n == 0 || s.openIndexes() != nil {
		return
	}
	defer s.spareIndexes()
	for i, x := range indexFiles {
		if x.writeEntries(s.idx[i], t.filed, t.heap[:n], nil) != nil {
			return
		}
	}
	t.filed += n
	rest := t.heap[n:]
	t.heap = append(make([]entry, 0, 2*pageEntries), rest...) // views hold the old array
}

// seal makes t the whole of s: the rest of the entries and the trailers go to
// the index files. Nothing is fsynced here; the next flush and recovery point do.
func (s *segment) seal(t tail) {
	places := [2][]place{t.old, t.new}
	s.recent.Store(&places)
	t.old, t.new = nil, nil
	s.short = s.finishIndexes(&t) != nil
	if !s.short {
		t.filed, t.heap = t.entries(), nil
	}
	s.final = t
}

// finishIndexes writes what the index files of a sealed segment lack.
func (s *segment) finishIndexes(t *tail) error {
	defer s.closeIndexes()
	if err := s.openIndexes(); err != nil {
		return err
	}
	off, time := t.trailers(s.home.id, s.base)
	for i, r := range [...]trailer{off, time} {
		var b [trailerSize]byte
		if err := indexFiles[i].writeEntries(s.idx[i], t.filed, t.heap, r.append(b[:0])); err != nil {
			return err
		}
	}
	s.loose.Store(true)
	return nil
}

// spareIndexes closes the index files until the next page is full, if so many
// logs are open that descriptors are worth more than the calls: one in 2 MiB of
// log by default.
func (s *segment) spareIndexes() {
	if s.home.files.crowded() {
		s.closeIndexes()
	}
}

// replaceIndexes writes both index files anew beside the old ones, which
// readers may have mapped, and renames them into place. A sealed segment's end
// in trailers.
func (s *segment) replaceIndexes(t *tail, sealed bool) error {
	s.closeIndexes()
	off, time := t.trailers(s.home.id, s.base)
	for i, r := range [...]trailer{off, time} {
		var end []byte
		if sealed {
			end = r.append(nil)
		}
		name := s.name(indexFiles[i].suffix)
		if err := s.replaceIndex(indexFiles[i], name, t.heap, end); err != nil {
			s.home.fs.Remove(name + tempSuffix)
			return err
		}
	}
	return nil
}

func (s *segment) replaceIndex(x indexFile, name string, es []entry, end []byte) error {
	f, err := s.home.fs.Open(name+tempSuffix, Create)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := f.Truncate(0); err != nil {
		return err
	}
	if err := x.writeEntries(f, 0, es, end); err != nil {
		return err
	}
	if err := syncFile(f); err != nil {
		return err
	}
	return s.home.fs.Rename(name+tempSuffix, name)
}

func (s *segment) closeIndexes() {
	for i, f := range s.idx {
		if f != nil {
			f.Close()
			s.idx[i] = nil
		}
	}
}

// unlink removes the segment's files. Readers that hold it keep what they have
// open; nobody can take it any more.
func (s *segment) unlink() error {
	s.closeIndexes()
	s.home.files.forget(s)
	for _, suffix := range [...]string{logSuffix, offsetSuffix, timeSuffix} {
		if err := s.home.fs.Remove(s.name(suffix)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// A rebuiltIndex has the entries of a segment's first size bytes. Ranges that
// proved damaged have none.
type rebuiltIndex struct {
	size int64
	heap []entry
}

// A probe names an index entry: the last one whose offset and position are at
// or before rel and pos, or, if time is asked, the last one before which no
// batch reaches t. Where there is none it is the first.
type probe struct {
	rel, pos uint32
	byTime   bool
	clock    Clock
	t        int64
	times    bool // the entry's times are wanted too
}

// find returns the start of the batch that p names in the picture t of s, which
// the caller has taken. Index files that cannot be read, or do not fit the
// segment, are replaced by a walk over the headers.
func (s *segment) find(t *tail, p probe) (entry, error) {
	x, err := s.entries(t)
	if err == nil {
		at, ok := x.guarded(p)
		s.home.probes.Add(x.probes)
		if ok {
			return at, nil
		}
	}
	if err := s.rebuild(t); err != nil {
		return entry{}, err
	}
	if x, err = s.entries(t); err != nil {
		return entry{}, err
	}
	at, _ := x.guarded(p)
	return at, nil
}

// entries returns the index of s as far as t goes.
func (s *segment) entries(t *tail) (entries, error) {
	if r := s.rebuilt.Load(); r != nil && r.size >= t.size {
		n := sort.Search(len(r.heap), func(i int) bool { return int64(r.heap[i].pos) >= t.size })
		return entries{heap: r.heap[:n]}, nil
	}
	if t.filed == 0 {
		return entries{heap: t.heap}, nil
	}
	m, err := s.maps(t)
	if err != nil {
		return entries{}, err
	}
	return entries{filed: t.filed, offs: m[0].Bytes(), times: m[1].Bytes(), heap: t.heap}, nil
}

// guarded searches; ok is false if the mapped file faults.
func (x *entries) guarded(p probe) (at entry, ok bool) {
	if x.len() == 0 {
		return entry{maxTime: math.MinInt64, maxAppend: math.MinInt64}, true
	}
	ok = guard(func() {
		var i int
		if p.byTime {
			i = x.before(p.clock, p.t)
		} else {
			i = x.reaching(p.rel, p.pos)
		}
		if p.times {
			at = x.at(i)
		} else {
			q := x.place(i)
			at = entry{rel: q.rel, pos: q.pos}
		}
	})
	return at, ok
}

// guard calls f, which reads mapped files, and reports whether it came through:
// a page that the disk cannot deliver, or that somebody cut off, must not end
// the process.
func guard(f func()) (ok bool) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if r := recover(); r != nil {
			if !isFault(r) {
				panic(r)
			}
			ok = false
		}
	}()
	f()
	return true
}

func isFault(r any) bool {
	_, runtimeError := r.(runtime.Error)
	_, addressed := r.(interface{ Addr() uintptr })
	return runtimeError && addressed
}

// rebuild makes the index of s in the heap by walking the headers t covers.
func (s *segment) rebuild(t *tail) error {
	f, err := s.home.files.take(s)
	if err != nil {
		return err
	}
	defer s.done()
	s.sound.left(0, t.size, t.size)
	again := newTail(s.base)
	err = s.walk(f, 0, s.base, t.size, t.end, func(b wire.Batch, pos int64) {
		again.size = pos
		again.add(s.base, b, s.home.every)
	})
	if err != nil {
		return err
	}
	s.rebuilt.Store(&rebuiltIndex{size: t.size, heap: again.heap})
	return nil
}

// maps returns the mapped index files of s, which the caller has taken.
func (s *segment) maps(t *tail) (*indexMaps, error) {
	if m := s.home.files.maps(s); m != nil {
		return m, nil
	}
	m := new(indexMaps)
	for i, x := range indexFiles {
		if err := s.mapIndex(m, i, x, t); err != nil {
			m.close()
			return nil, err
		}
	}
	return s.home.files.keepMaps(s, m), nil
}

func (s *segment) mapIndex(m *indexMaps, i int, x indexFile, t *tail) error {
	f, err := s.home.fs.Open(s.name(x.suffix), Read)
	if err != nil {
		return err
	}
	defer f.Close()
	sealed := t == &s.final // an older view shows s as it was while active
	n := s.home.mapped
	if sealed {
		n = t.filed
	}
	m[i], err = f.Map(int64(n * x.width))
	if err != nil {
		return err
	}
	if !sealed || len(t.heap) > 0 {
		return nil // this process wrote it
	}
	want := [...]uint32{t.sumOff, t.sumTime}[i]
	var got uint32
	if !guard(func() { got = crc32.Checksum(m[i].Bytes(), castagnoli) }) || got != want {
		return fmt.Errorf("%s: %w: the entries do not match their CRC", s.name(x.suffix), wire.ErrCorrupt)
	}
	return nil
}

// walk calls note with each batch header, and where it stands, from pos, where
// offset next is due, to size, where offset end is. Damage on the way is
// remembered and stepped over.
func (s *segment) walk(f io.ReaderAt, pos int64, next wire.Offset, size int64, end wire.Offset, note func(wire.Batch, int64)) error {
	w := newWalker(f, s.home.id, pos, next, size, scanBytes)
	defer w.close()
	for w.next < end {
		b, err := w.header()
		switch {
		case err == io.EOF, errors.Is(err, wire.ErrCorrupt):
			from := w.next
			found := err != io.EOF && w.resync(end)
			if !found {
				s.home.damage.add(from, end)
				return nil
			}
			s.home.damage.add(from, w.next)
		case err != nil:
			return err
		default:
			note(b, w.pos)
			w.skip(b)
		}
	}
	return nil
}
