package wire

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"math"
	"math/bits"

	"github.com/teralog/teralog/mem"
)

// BuilderOptions say what every batch of a Builder has in common.
type BuilderOptions struct {
	Topic         TopicID
	Partition     int32
	Codec         Codec
	Producer      ProducerID // 0 or less: not idempotent, the next two are not used
	ProducerEpoch int16
	BaseSequence  int32
	Transactional bool
	MaxBytes      int       // of a batch before compression, header included; 0: DefaultMaxBatch
	Pool          *mem.Pool // of the batches built; nil: one shared by all
}

// A Builder encodes records into batches as a producer sends them. It belongs
// to one goroutine. Warm, it allocates nothing.
type Builder struct {
	o        BuilderOptions
	buf      *mem.Buf // header and records so far; nil while there are none
	count    int
	baseTime int64
	maxTime  int64
	usual    int    // bytes batches have taken lately
	summed   int    // bytes of buf, header included, that crc covers
	crc      uint32 // of the records, as far as summed, if they go out as they are
}

// sumEvery is how many bytes are summed at a time: while they are in the cache
// of the processor that wrote them, which at Build may be another one's.
const sumEvery = 8 << 10

// NewBuilder returns an empty Builder.
func NewBuilder(o BuilderOptions) *Builder {
	if o.MaxBytes == 0 {
		o.MaxBytes = DefaultMaxBatch
	}
	return &Builder{o: o}
}

// Len returns the length of the batch so far before compression, in bytes; 0
// without records.
func (b *Builder) Len() int {
	if b.buf == nil {
		return 0
	}
	return len(b.buf.B)
}

// Count returns the number of records so far.
func (b *Builder) Count() int { return b.count }

// Add appends a record and copies what it is given. Nil key and value are
// null. It returns false, nil if the batch would pass MaxBytes: build it and
// add the record to the next one. An error means that the record fits into no
// batch, TOO_LARGE, or that its headers pass MaxHeaders or MaxHeaderBytes,
// INVALID_REQUEST. In both cases the batch is as before.
func (b *Builder) Add(time int64, key, value []byte, hs []Header) (ok bool, err error) {
	n := len(key) + len(value)
	if b.buf == nil || len(hs) > 0 || n > maxPlain || cap(b.buf.B)-len(b.buf.B) < n+plainExtra {
		return b.addAny(time, key, value, hs)
	}
	// Nearly always: there is memory, though perhaps no room, so the record is
	// encoded first and measured then.
	used := len(b.buf.B)
	p := b.buf.B[:used+n+plainExtra]
	p[used+2] = 0
	at := putVarint(p, used+3, time-b.baseTime)
	at = putVarint(p, at, int64(b.count))
	at = putNullBytes(p, at, key)
	at = putNullBytes(p, at, value)
	p[at] = 0
	at++
	if body := at - used - 2; body >= 1<<6 {
		p[used], p[used+1] = byte(body<<1)|1<<7, byte(body>>6)
	} else { // its length takes one byte
		copy(p[used+1:], p[used+2:at])
		p[used] = byte(body << 1)
		at--
	}
	if at > b.o.MaxBytes {
		return false, nil
	}
	b.buf.B = p[:at]
	if at-b.summed >= sumEvery && b.o.Codec == None {
		b.sum()
	}
	b.count++
	b.maxTime = max(b.maxTime, time)
	return true, nil
}

const (
	// maxPlain is how long key and value may be together for the length of their
	// record to take two bytes at most.
	maxPlain = 1<<13 - 1 - plainExtra
	// plainExtra is what a record without headers takes beside them, at most:
	// two bytes of length, attributes, time, offset, two lengths, no headers.
	plainExtra = 2 + 1 + binary.MaxVarintLen64 + binary.MaxVarintLen32 + 2*2 + 1
)

// addAny is Add for every record.
func (b *Builder) addAny(time int64, key, value []byte, hs []Header) (ok bool, err error) {
	if len(hs) > 0 {
		if err := checkHeaders(hs); err != nil {
			return false, err
		}
	}
	if b.count == 0 {
		b.baseTime, b.maxTime = time, time
	}
	delta := time - b.baseTime // may wrap around; the reader's sum wraps back
	body := 1 + varintLen(delta) + varintLen(int64(b.count)) + bytesLen(key) + bytesLen(value) + headersLen(hs)
	size := varintLen(int64(body)) + body
	used := HeaderSize
	if b.buf != nil {
		used = len(b.buf.B)
	}
	if size > b.o.MaxBytes-used || b.count == math.MaxInt32 {
		if b.count == 0 {
			return false, Errorf(CodeTooLarge, "record of %d bytes in a batch of at most %d", size, b.o.MaxBytes)
		}
		return false, nil
	}
	if b.buf == nil || cap(b.buf.B)-used < size {
		b.reserve(size)
	}
	p := b.buf.B[:used+size]
	at := putVarint(p, used, int64(body))
	p[at] = 0
	at = putVarint(p, at+1, delta)
	at = putVarint(p, at, int64(b.count))
	at = putNullBytes(p, at, key)
	at = putNullBytes(p, at, value)
	at = putHeaders(p, at, hs)
	if at != len(p) {
		panic(fmt.Sprintf("BUG: record of %d bytes took %d", size, at-used))
	}
	b.buf.B = p
	if len(p)-b.summed >= sumEvery && b.o.Codec == None {
		b.sum()
	}
	b.count++
	b.maxTime = max(b.maxTime, time)
	return true, nil
}

// sum brings crc up to the last record.
func (b *Builder) sum() {
	b.crc = crc32.Update(b.crc, castagnoli, b.buf.B[b.summed:])
	b.summed = len(b.buf.B)
}

// reserve makes room for n more bytes. A batch begins with what the ones before
// it took: growing there again by doubling would copy each byte once more.
func (b *Builder) reserve(n int) {
	const first = 1 << 10
	if b.buf == nil {
		b.buf = pool(b.o.Pool).Get(max(HeaderSize+n, first, b.usual))
		b.buf.B = b.buf.B[:HeaderSize]
		b.summed, b.crc = HeaderSize, 0
		return
	}
	old := b.buf
	b.buf = pool(b.o.Pool).Get(max(len(old.B)+n, 2*cap(old.B)))
	b.buf.B = b.buf.B[:copy(b.buf.B, old.B)]
	old.Release()
}

// Build returns the batch, which the caller releases, and empties the Builder.
// Records that no codec makes shorter are left uncompressed. It fails only if
// there are none.
func (b *Builder) Build() (*mem.Buf, error) {
	if b.count == 0 {
		return nil, errors.New("batch without records")
	}
	buf, codec := b.buf, None
	b.usual = max(len(buf.B), b.usual/2)
	length := len(buf.B) - HeaderSize
	if b.o.Codec != None {
		small := pool(b.o.Pool).Get(HeaderSize + compressBound(length))
		if n := b.o.Codec.compress(small.B[HeaderSize:], buf.B[HeaderSize:]); n > 0 {
			small.B = small.B[:HeaderSize+n]
			buf, small, codec = small, buf, b.o.Codec
		}
		small.Release()
	}
	if codec == None {
		b.sum()
	} else {
		b.crc = crcOf(buf.B[HeaderSize:])
	}
	b.writeHeader(Batch(buf.B), codec, length)
	b.buf, b.count = nil, 0
	return buf, nil
}

// writeHeader writes the header as a producer sends it: what the leader sets
// is 0, its epoch NoEpoch.
func (b *Builder) writeHeader(p Batch, codec Codec, recordsLength int) {
	le := binary.LittleEndian
	clear(p[:HeaderSize])
	copy(p, Magic)
	le.PutUint32(p[atBatchLength:], uint32(len(p)))
	le.PutUint32(p[atRecordsCRC:], b.crc)
	le.PutUint64(p[atBaseTime:], uint64(b.baseTime))
	le.PutUint64(p[atMaxTime:], uint64(b.maxTime))
	le.PutUint64(p[atTopicID:], uint64(b.o.Topic))
	le.PutUint32(p[atLeaderEpoch:], math.MaxUint32)
	le.PutUint32(p[atLastOffsetDelta:], uint32(b.count-1))
	le.PutUint32(p[atRecordCount:], uint32(b.count))
	le.PutUint32(p[atPartition:], uint32(b.o.Partition))
	le.PutUint32(p[atRecordsLength:], uint32(recordsLength))
	attr := uint16(codec)
	if b.o.Transactional {
		attr |= attrTransaction
	}
	le.PutUint16(p[atAttributes:], attr)
	if b.o.Producer > 0 {
		p.SetProducer(b.o.Producer, b.o.ProducerEpoch, b.o.BaseSequence)
	} else {
		p.SetProducer(NoProducer, -1, -1)
	}
}

// Reset drops the records added so far.
func (b *Builder) Reset() {
	if b.buf != nil {
		b.buf.Release()
	}
	b.buf, b.count = nil, 0
}

// checkHeaders returns an error if hs pass the limits of one record.
func checkHeaders(hs []Header) error {
	if len(hs) > MaxHeaders {
		return Errorf(CodeInvalidRequest, "record with %d headers, the limit is %d", len(hs), MaxHeaders)
	}
	size := 0
	for _, h := range hs {
		size += len(h.Key) + len(h.Value)
	}
	if size > MaxHeaderBytes {
		return Errorf(CodeInvalidRequest, "record with %d bytes of headers, the limit is %d", size, MaxHeaderBytes)
	}
	return nil
}

// zigzag maps small numbers of either sign to small ones.
func zigzag(v int64) uint64 { return uint64(v)<<1 ^ uint64(v>>63) }

// varintLen returns the length of v as a zigzag varint.
func varintLen(v int64) int {
	u := zigzag(v)
	if u < 1<<7 {
		return 1
	}
	return (bits.Len64(u) + 6) / 7
}

// putVarint writes v as a zigzag varint to p[at:] and returns where it ends.
func putVarint(p []byte, at int, v int64) int {
	u := zigzag(v)
	for ; u >= 1<<7; at++ {
		p[at] = byte(u) | 1<<7
		u >>= 7
	}
	p[at] = byte(u)
	return at + 1
}

// bytesLen returns the length of a length and b itself.
func bytesLen(b []byte) int {
	if b == nil {
		return 1
	}
	return varintLen(int64(len(b))) + len(b)
}

// headersLen returns what putHeaders takes. Both are inlined for no headers.
func headersLen(hs []Header) int {
	if len(hs) == 0 {
		return 1
	}
	return someHeadersLen(hs)
}

func someHeadersLen(hs []Header) int {
	n := varintLen(int64(len(hs)))
	for _, h := range hs {
		n += varintLen(int64(len(h.Key))) + len(h.Key) + bytesLen(h.Value)
	}
	return n
}

func putNullBytes(p []byte, at int, b []byte) int {
	if b == nil {
		p[at] = 1 // zigzag of -1
		return at + 1
	}
	at = putVarint(p, at, int64(len(b)))
	return at + copy(p[at:], b)
}

func putHeaders(p []byte, at int, hs []Header) int {
	if len(hs) == 0 {
		p[at] = 0
		return at + 1
	}
	return putSomeHeaders(p, at, hs)
}

func putSomeHeaders(p []byte, at int, hs []Header) int {
	at = putVarint(p, at, int64(len(hs)))
	for _, h := range hs {
		at = putVarint(p, at, int64(len(h.Key)))
		at += copy(p[at:], h.Key)
		at = putNullBytes(p, at, h.Value)
	}
	return at
}
