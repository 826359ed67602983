package storage

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"math"
	"sort"

	"github.com/teralog/teralog/wire"
)

// Sizes in bytes. 512 entries are one 4 KiB page of .index and three of
// .timeindex, so both files grow by whole pages together.
const (
	offsetEntry = 8
	timeEntry   = 24
	trailerSize = 80
	pageEntries = 512
)

// An entry names the start of a batch in its segment: one line in .index and
// the same line in .timeindex.
type entry struct {
	rel, pos uint32 // offset less the segment's base; position in the file
	// Greatest times among the segment's batches before the one named,
	// math.MinInt64 if there is none.
	maxTime, maxAppend int64
}

// .index: | rel u32 | pos u32 |
func (e entry) appendOffset(b []byte) []byte {
	b = binary.LittleEndian.AppendUint32(b, e.rel)
	return binary.LittleEndian.AppendUint32(b, e.pos)
}

// .timeindex: | maxTime i64 | maxAppend i64 | rel u32 | 0 u32 |
func (e entry) appendTime(b []byte) []byte {
	b = binary.LittleEndian.AppendUint64(b, uint64(e.maxTime))
	b = binary.LittleEndian.AppendUint64(b, uint64(e.maxAppend))
	b = binary.LittleEndian.AppendUint32(b, e.rel)
	return binary.LittleEndian.AppendUint32(b, 0)
}

func (e entry) max(c Clock) int64 {
	if c == AppendTime {
		return e.maxAppend
	}
	return e.maxTime
}

// A tail is the picture of one segment up to a batch boundary. It is a value:
// views hold copies, whose slices are prefixes that later batches do not touch.
type tail struct {
	size               int64
	end                wire.Offset
	maxTime, maxAppend int64 // greatest of all batches; math.MinInt64 if none
	first              int64 // append time of the first batch; math.MinInt64 if none

	filed           int     // entries standing in the files
	heap            []entry // those from filed on
	last            int64   // position the last entry names; -1 if there is none
	sumOff, sumTime uint32  // CRCs of all entries, as each file has them

	lastPos int64 // position of the last batch; -1 if none
	lastCRC uint32

	old, new []place // the newest batches, so that tailing readers need no disk
}

// A place is where a batch of the segment starts.
type place struct{ rel, pos uint32 }

// places bounds each of tail.old and tail.new.
const places = 256

func newTail(base wire.Offset) tail {
	return tail{end: base, maxTime: math.MinInt64, maxAppend: math.MinInt64, first: math.MinInt64, last: -1, lastPos: -1}
}

func (t *tail) entries() int { return t.filed + len(t.heap) }

// add takes in the batch that stands at t.size in the segment at base. An entry
// is made for the first batch and then for each that starts at least every
// bytes after the last one named.
func (t *tail) add(base wire.Offset, b wire.Batch, every int64) {
	p := place{uint32(b.BaseOffset() - base), uint32(t.size)}
	if t.last < 0 || t.size-t.last >= every {
		t.enter(entry{p.rel, p.pos, t.maxTime, t.maxAppend})
	}
	if len(t.new) == places { // a quiet partition never comes here, and keeps little
		t.old, t.new = t.new, make([]place, 0, places)
	}
	t.new = append(t.new, p)
	if t.first == math.MinInt64 {
		t.first = b.AppendTime()
	}
	t.maxTime, t.maxAppend = max(t.maxTime, eventTime(b)), max(t.maxAppend, b.AppendTime())
	t.lastPos, t.lastCRC = t.size, b.HeaderCRC()
	t.size += int64(b.Len())
	t.end = b.NextOffset()
}

// enter adds an index entry.
func (t *tail) enter(e entry) {
	var line [timeEntry]byte
	t.sumOff = crcOfLine(t.sumOff, e.appendOffset(line[:0]))
	t.sumTime = crcOfLine(t.sumTime, e.appendTime(line[:0]))
	t.heap = append(t.heap, e)
	t.last = int64(e.pos)
}

// crcOfLine is crc32.Update for a few bytes on the stack: Update lets its
// argument escape, which would cost every entry an allocation.
func crcOfLine(sum uint32, line []byte) uint32 {
	sum = ^sum
	for _, c := range line {
		sum = castagnoli[byte(sum)^c] ^ sum>>8
	}
	return ^sum
}

// eventTime returns the greatest event time in b as readers see it.
func eventTime(b wire.Batch) int64 {
	if b.AppendTimeType() {
		return b.AppendTime()
	}
	return b.MaxTime()
}

// entries are the index entries of one segment: those in the mapped files,
// then those in the heap.
type entries struct {
	filed       int
	offs, times []byte // nil if filed is 0
	heap        []entry
	probes      int64 // entries compared
}

func (x *entries) len() int { return x.filed + len(x.heap) }

func (x *entries) at(i int) entry {
	if i >= x.filed {
		return x.heap[i-x.filed]
	}
	o, t := x.offs[i*offsetEntry:], x.times[i*timeEntry:]
	return entry{
		rel:       binary.LittleEndian.Uint32(o),
		pos:       binary.LittleEndian.Uint32(o[4:]),
		maxTime:   int64(binary.LittleEndian.Uint64(t)),
		maxAppend: int64(binary.LittleEndian.Uint64(t[8:])),
	}
}

// place is at for those who need no times: it touches one file only.
func (x *entries) place(i int) place {
	if i >= x.filed {
		e := &x.heap[i-x.filed]
		return place{e.rel, e.pos}
	}
	o := x.offs[i*offsetEntry:]
	return place{binary.LittleEndian.Uint32(o), binary.LittleEndian.Uint32(o[4:])}
}

// time returns the greatest time before entry i.
func (x *entries) time(i int, c Clock) int64 {
	if i >= x.filed {
		return x.heap[i-x.filed].max(c)
	}
	t := x.times[i*timeEntry:]
	if c == AppendTime {
		t = t[8:]
	}
	return int64(binary.LittleEndian.Uint64(t))
}

// reaching returns the number of the last entry whose batch starts at or before
// both rel and pos, 0 if there is none.
func (x *entries) reaching(rel, pos uint32) int {
	n := sort.Search(x.len(), func(i int) bool {
		x.probes++
		p := x.place(i)
		return p.rel > rel || p.pos > pos
	})
	return max(n-1, 0)
}

// A trailer ends the index files of a sealed segment. It ties them to the log
// file beside them:
//
//	| magic 8 | version u32 | topicID u64 | partition i32 | base i64 | length i64 | end i64 |
//	| maxTime i64 | maxAppend i64 | count u64 | CRC of the entries u32 | CRC of bytes 0 to 75 u32 |
type trailer struct {
	magic              string
	id                 wire.PartitionID
	base               wire.Offset
	length             int64
	end                wire.Offset
	maxTime, maxAppend int64
	count              int
	sum                uint32
}

const (
	offsetMagic = "TLOFFIDX"
	timeMagic   = "TLTIMIDX"
	indexFormat = 1
)

func (r trailer) append(b []byte) []byte {
	from := len(b)
	b = append(b, r.magic...)
	b = binary.LittleEndian.AppendUint32(b, indexFormat)
	b = binary.LittleEndian.AppendUint64(b, uint64(r.id.Topic))
	b = binary.LittleEndian.AppendUint32(b, uint32(r.id.Partition))
	for _, v := range [...]int64{int64(r.base), r.length, int64(r.end), r.maxTime, r.maxAppend, int64(r.count)} {
		b = binary.LittleEndian.AppendUint64(b, uint64(v))
	}
	b = binary.LittleEndian.AppendUint32(b, r.sum)
	return binary.LittleEndian.AppendUint32(b, crc32.Checksum(b[from:], castagnoli))
}

// parseTrailer reads a trailer; ok is false for anything append does not make.
func parseTrailer(b []byte) (r trailer, ok bool) {
	if len(b) != trailerSize || crc32.Checksum(b[:76], castagnoli) != binary.LittleEndian.Uint32(b[76:]) ||
		binary.LittleEndian.Uint32(b[8:]) != indexFormat {
		return r, false
	}
	i64 := func(at int) int64 { return int64(binary.LittleEndian.Uint64(b[at:])) }
	r = trailer{
		magic: string(b[:8]),
		id:    wire.PartitionID{Topic: wire.TopicID(i64(12)), Partition: int32(binary.LittleEndian.Uint32(b[20:]))},
		base:  wire.Offset(i64(24)), length: i64(32), end: wire.Offset(i64(40)),
		maxTime: i64(48), maxAppend: i64(56), count: int(i64(64)),
		sum: binary.LittleEndian.Uint32(b[72:]),
	}
	return r, r.count >= 0 && r.count <= maxRelative && r.length >= 0 && r.end >= r.base
}

// trailers returns what ends the two index files of the segment at base once t
// is all of it.
func (t *tail) trailers(id wire.PartitionID, base wire.Offset) (off, time trailer) {
	off = trailer{offsetMagic, id, base, t.size, t.end, t.maxTime, t.maxAppend, t.entries(), t.sumOff}
	time = off
	time.magic, time.sum = timeMagic, t.sumTime
	return off, time
}

// An indexFile is one of the two index files of a segment.
type indexFile struct {
	suffix, magic string
	width         int // bytes of an entry
	line          func(entry, []byte) []byte
}

var indexFiles = [2]indexFile{
	{offsetSuffix, offsetMagic, offsetEntry, entry.appendOffset},
	{timeSuffix, timeMagic, timeEntry, entry.appendTime},
}

// writeEntries writes es as entries number at and following, and after them
// what ends the file, if anything does.
func (x indexFile) writeEntries(f File, at int, es []entry, end []byte) error {
	buf := buffers.Get(len(es)*x.width + len(end))
	defer buf.Release()
	b := buf.B[:0]
	for _, e := range es {
		b = x.line(e, b)
	}
	b = append(b, end...)
	if len(b) == 0 {
		return nil
	}
	_, err := f.WriteAt(b, int64(at*x.width))
	return err
}

// readTrailer reads and checks the trailer of the file of a sealed segment.
func (x indexFile) readTrailer(f File, id wire.PartitionID, base wire.Offset) (trailer, error) {
	size, err := f.Size()
	if err != nil {
		return trailer{}, err
	}
	if size < trailerSize || (size-trailerSize)%int64(x.width) != 0 {
		return trailer{}, fmt.Errorf("%s: %w: %d bytes", f.Name(), wire.ErrCorrupt, size)
	}
	var b [trailerSize]byte
	if _, err := f.ReadAt(b[:], size-trailerSize); err != nil {
		return trailer{}, err
	}
	r, ok := parseTrailer(b[:])
	if !ok || r.magic != x.magic || r.id != id || r.base != base || int64(r.count*x.width)+trailerSize != size {
		return trailer{}, fmt.Errorf("%s: %w: its trailer is not one for this segment", f.Name(), wire.ErrCorrupt)
	}
	return r, nil
}
