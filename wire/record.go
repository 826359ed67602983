package wire

import (
	"encoding/binary"
	"fmt"
	"io"

	"github.com/teralog/teralog/mem"
)

// A Record is one record of a batch. Null is nil; empty is not nil.
type Record struct {
	Offset  Offset
	Time    int64 // ms since the epoch: its event time, or the append time if the topic says so
	Key     []byte
	Value   []byte
	Headers []Header // in the order given, repeats included
}

// A Header is one name and value of a record. Key is never nil, Value may be.
type Header struct {
	Key   []byte
	Value []byte
}

// Limits of the headers of one record, inclusive, for those who write records.
// Readers take what is there.
const (
	MaxHeaders     = 1024
	MaxHeaderBytes = 64 << 10 // keys and values together
)

// sections holds the buffers of decoders and builders that were given no pool
// of their own.
var sections = mem.NewPool("records")

// A Decoder iterates over the records of batches, one batch after another. It
// keeps its buffers from batch to batch; warm, it allocates nothing. The zero
// value is ready. It belongs to one goroutine; Release gives back what it
// holds.
type Decoder struct {
	MaxRecords int       // greatest records section it uncompresses, in bytes; 0: DefaultMaxRecords
	Pool       *mem.Pool // of the scratch buffer; nil: one shared by all

	scratch *mem.Buf // the uncompressed section, once there was one

	// the open batch
	r          Reader // over its section
	count      int
	read       int // records read
	base       Offset
	lastDelta  int32
	baseTime   int64
	appendTime int64
	stamped    bool  // appendTime is the records' time
	delta      int32 // of the record read last, -1 at the start
	record     Record
	headers    []Header // of the record read last
}

// Records calls f with each record of b, which must be verified. It stops at
// the first error of f and returns it. The record and its slices are valid
// until f returns, unless Take takes the scratch buffer over; the struct and
// Headers are used again in any case. Errors over the bytes wrap ErrCorrupt,
// a section above the limit is TOO_LARGE.
func (b Batch) Records(d *Decoder, f func(*Record) error) error {
	if err := d.Open(b); err != nil {
		return err
	}
	for {
		switch r, err := d.Next(); {
		case err == io.EOF:
			return nil
		case err != nil:
			return err
		default:
			if err := f(r); err != nil {
				return err
			}
		}
	}
}

// Open starts at the first record of b, which must be verified. Key and value
// of records alias b if it is not compressed, else the scratch buffer.
// After an error there is nothing to read.
func (d *Decoder) Open(b Batch) error {
	d.r.Reset(nil)
	d.count, d.read = 0, 0
	section, err := d.Section(b)
	if err != nil {
		return err
	}
	d.r.Reset(section)
	d.count = b.Count()
	d.base, d.lastDelta, d.delta = b.BaseOffset(), b.LastOffsetDelta(), -1
	d.baseTime, d.appendTime, d.stamped = b.BaseTime(), b.AppendTime(), b.AppendTimeType()
	return nil
}

// Next returns the next record, valid until the next call, or io.EOF once all
// were read and nothing is left over.
func (d *Decoder) Next() (*Record, error) {
	if err := d.Read(&d.record); err != nil {
		return nil, err
	}
	return &d.record, nil
}

// Read is Next but writes the record to r, where it may stay: Key and Value are
// valid as long as the section they alias, only Headers until the next call.
// After an error r holds nothing of use.
func (d *Decoder) Read(r *Record) error {
	if d.read == d.count {
		if err := d.r.Finish(); err != nil {
			return fmt.Errorf("behind the last record: %w", err)
		}
		return io.EOF
	}
	d.read++
	if d.quick(r) {
		return nil
	}
	d.careful(r)
	if d.r.err != nil {
		return fmt.Errorf("record %d of %d: %w", d.read, d.count, d.r.err)
	}
	return nil
}

// quick reads one record of the usual kind, in half the time: no number in it
// before its headers takes more than two bytes, the offset's delta three. Of any
// other, damaged ones included, it returns false and leaves it to careful.
func (d *Decoder) quick(r *Record) bool {
	p := d.r.b
	n, at := short(p, d.r.at)
	end := at + int(n>>1)
	if at == 0 || n&1 != 0 || end > len(p) || at+2 >= end || p[at] != 0 {
		return false
	}
	time, at := short(p, at+1)
	if at == 0 {
		return false
	}
	delta, next := short(p, at)
	if next == 0 && at+2 < end && p[at+2] < 0x80 {
		delta, next = uint32(p[at]&0x7f)|uint32(p[at+1]&0x7f)<<7|uint32(p[at+2])<<14, at+3
	}
	if next == 0 || delta&1 != 0 || int32(delta>>1) <= d.delta || int32(delta>>1) > d.lastDelta {
		return false
	}
	key, at, ok := blob(p, next)
	if !ok {
		return false
	}
	value, at, ok := blob(p, at)
	if !ok || at >= end {
		return false
	}
	d.delta = int32(delta >> 1)
	r.Offset = d.base + Offset(d.delta)
	if r.Time = d.appendTime; !d.stamped {
		r.Time = d.baseTime + (int64(time>>1) ^ -int64(time&1))
	}
	r.Key, r.Value, r.Headers = key, value, nil
	if at+1 == end && p[at] == 0 {
		d.r.at = end
		return true
	}
	d.r.b, d.r.at = p[:end], at
	d.headers = readHeaders(&d.r, d.headers)
	r.Headers = d.headers
	if d.r.Finish() != nil {
		return false // a fault stays in the reader
	}
	d.r.b = p
	return true
}

// short returns the varint at p[at:], still zigzag, and where it ends; 0 if it
// takes more than two bytes or might.
func short(p []byte, at int) (v uint32, next int) {
	if at+1 >= len(p) {
		return 0, 0
	}
	v = uint32(p[at])
	if v < 0x80 {
		return v, at + 1
	}
	if p[at+1] < 0x80 {
		return v&0x7f | uint32(p[at+1])<<7, at + 2
	}
	return 0, 0
}

// blob returns the key or value at p[at:] and where it ends, if short can read
// its length and it does not reach the end of p.
func blob(p []byte, at int) (b []byte, next int, ok bool) {
	n, at := short(p, at)
	if n == 1 && at != 0 {
		return nil, at, true
	}
	next = at + int(n>>1)
	if at == 0 || n&1 != 0 || next >= len(p) {
		return nil, 0, false
	}
	return p[at:next:next], next, true
}

// careful reads one record; a fault stays in the reader. For that time the
// reader ends where the record says it does.
func (d *Decoder) careful(rec *Record) {
	r := &d.r
	n := r.length()
	section := r.b
	r.b = section[:r.at+n]
	if attr := r.U8(); attr != 0 {
		r.Failf("record attributes %d", attr)
	}
	rec.Time = d.baseTime + r.Varint()
	if d.stamped {
		rec.Time = d.appendTime
	}
	delta := r.Varint32()
	if delta <= d.delta || delta > d.lastDelta {
		r.Failf("offset delta %d after %d, the last is %d", delta, d.delta, d.lastDelta)
	}
	d.delta = delta
	rec.Offset = d.base + Offset(delta)
	rec.Key = r.NullBytes()
	rec.Value = r.NullBytes()
	d.headers = readHeaders(r, d.headers)
	rec.Headers = d.headers
	if r.Finish() == nil {
		r.b = section
	}
}

// readHeaders reads a record's headers into the memory of hs.
func readHeaders(r *Reader, hs []Header) []Header {
	n := r.VarCount(2)
	hs = hs[:0]
	for range n {
		hs = extend(hs, n, r.Left())
		hs[len(hs)-1] = Header{r.VarBytes(), r.NullBytes()}
		if r.err != nil {
			return hs[:0]
		}
	}
	return hs
}

// Section returns the uncompressed records section of b, which must be
// verified: b's own bytes without a codec, else the scratch buffer, valid
// until the next batch. A section longer than MaxRecords is refused before
// memory is taken for it.
func (d *Decoder) Section(b Batch) ([]byte, error) {
	codec, n := b.Codec(), b.RecordsLength()
	if codec == None {
		return b[HeaderSize:], nil
	}
	limit := min(d.MaxRecords, MaxRecordsBytes)
	if limit == 0 {
		limit = DefaultMaxRecords
	}
	if n > limit {
		return nil, Errorf(CodeTooLarge, "records section of %d bytes, the limit is %d", n, limit)
	}
	dst := d.room(codec.decompressRoom(n))[:n]
	if err := codec.decompress(dst, b[HeaderSize:]); err != nil {
		return nil, fmt.Errorf("%w %s records: %w", ErrCorrupt, codec, err)
	}
	return dst, nil
}

// room returns n bytes of scratch.
func (d *Decoder) room(n int) []byte {
	if d.scratch != nil && cap(d.scratch.B) < n {
		d.Release()
	}
	if d.scratch == nil {
		d.scratch = pool(d.Pool).Get(n)
	}
	d.scratch.B = d.scratch.B[:n]
	return d.scratch.B
}

func pool(p *mem.Pool) *mem.Pool {
	if p == nil {
		return sections
	}
	return p
}

// Take gives the scratch buffer to the caller, who releases it: records of the
// open batch stay valid until then. It is nil if nothing was uncompressed.
func (d *Decoder) Take() *mem.Buf {
	b := d.scratch
	d.scratch = nil
	return b
}

// Release gives the scratch buffer back to its pool. Records read from it are
// no longer valid. The decoder may be used on.
func (d *Decoder) Release() {
	if b := d.Take(); b != nil {
		b.Release()
	}
}

// AppendPlain appends b, which must be verified, as a batch without codec:
// what a reader without decompressors is sent. All else, the leader's stamp
// included, stays the same. A section above the decoder's limit, or one that
// makes a batch longer than MaxBatchBytes, is TOO_LARGE; dst is then as before.
func (b Batch) AppendPlain(dst []byte, d *Decoder) ([]byte, error) {
	if n := HeaderSize + b.RecordsLength(); n > MaxBatchBytes {
		return dst, Errorf(CodeTooLarge, "batch of %d bytes once uncompressed, the limit is %d", n, MaxBatchBytes)
	}
	section, err := d.Section(b)
	if err != nil {
		return dst, err
	}
	at := len(dst)
	dst = append(append(dst, b[:HeaderSize]...), section...)
	p := Batch(dst[at:])
	binary.LittleEndian.PutUint32(p[atBatchLength:], uint32(len(p)))
	binary.LittleEndian.PutUint32(p[atRecordsCRC:], crcOf(section))
	binary.LittleEndian.PutUint16(p[atAttributes:], b.Attributes()&^codecMask)
	p.sealHeader()
	return dst, nil
}
