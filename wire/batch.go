package wire

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"iter"
	"math"

	"github.com/teralog/teralog/mem"
)

// HeaderSize is the length of a batch's header in bytes; the records follow.
const HeaderSize = 96

// Magic starts every batch; its last byte is the format version.
const Magic = "TLB\x01"

// MaxBatchBytes is the greatest length of a batch that any setting can allow:
// a frame less 64 KiB for what surrounds the batch in it.
const MaxBatchBytes = 16<<20 - 64<<10

// MaxRecordsBytes is the greatest length of a records section once
// uncompressed that any setting can allow: the largest buffer of a pool.
const MaxRecordsBytes = mem.MaxBuf

// Defaults of BatchLimits and Decoder.
const (
	DefaultMaxBatch   = 1 << 20  // bytes of a batch as stored
	DefaultMaxRecords = 16 << 20 // bytes of its records section once uncompressed
)

// minRecord is the length of the smallest record: seven varints of one byte.
const minRecord = 7

// Byte offsets of the header's fields; doc.go draws them.
const (
	atHeaderCRC       = 4
	atBatchLength     = 8
	atRecordsCRC      = 12
	atBaseOffset      = 16
	atAppendTime      = 24
	atBaseTime        = 32
	atMaxTime         = 40
	atProducerID      = 48
	atTopicID         = 56
	atLeaderEpoch     = 64
	atLastOffsetDelta = 68
	atRecordCount     = 72
	atBaseSequence    = 76
	atPartition       = 80
	atRecordsLength   = 84
	atAttributes      = 88
	atProducerEpoch   = 90
	atReserved        = 92
)

// Bits of the attributes.
const (
	codecMask       = 0x07
	attrAppendTime  = 1 << 3 // appendTime is the records' time
	attrTransaction = 1 << 4
	attrControl     = 1 << 5
	attrUnknown     = 0xffff &^ (codecMask | attrAppendTime | attrTransaction | attrControl)
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// crcOf returns the CRC-32C of b.
func crcOf(b []byte) uint32 { return crc32.Checksum(b, castagnoli) }

// A Batch is one encoded batch, header included. Its methods read fields of
// the header and need at least HeaderSize bytes; only Verify and VerifyProduce
// check anything. A Batch does not own its bytes.
type Batch []byte

// Len returns the field batchLength: the whole batch in bytes. It may
// differ from len(b) until b is verified.
func (b Batch) Len() int { return int(binary.LittleEndian.Uint32(b[atBatchLength:])) }

// HeaderCRC returns the stored CRC of the header's bytes 8 to 95.
func (b Batch) HeaderCRC() uint32 { return binary.LittleEndian.Uint32(b[atHeaderCRC:]) }

// RecordsCRC returns the stored CRC of everything behind the header.
func (b Batch) RecordsCRC() uint32 { return binary.LittleEndian.Uint32(b[atRecordsCRC:]) }

// BaseOffset returns the offset of the first record.
func (b Batch) BaseOffset() Offset { return Offset(binary.LittleEndian.Uint64(b[atBaseOffset:])) }

// LastOffset returns the last offset the batch covers, inclusive.
func (b Batch) LastOffset() Offset { return b.BaseOffset() + Offset(b.LastOffsetDelta()) }

// NextOffset returns the offset after the last one the batch covers.
func (b Batch) NextOffset() Offset { return b.LastOffset() + 1 }

// AppendTime returns the leader's stamp clock at the append, in ms since the
// epoch; 0 before it was appended.
func (b Batch) AppendTime() int64 { return int64(binary.LittleEndian.Uint64(b[atAppendTime:])) }

// BaseTime returns the event time of the first record, in ms since the epoch.
func (b Batch) BaseTime() int64 { return int64(binary.LittleEndian.Uint64(b[atBaseTime:])) }

// MaxTime returns the greatest event time in the batch, in ms since the epoch.
// After compaction it may exceed the times of the records left.
func (b Batch) MaxTime() int64 { return int64(binary.LittleEndian.Uint64(b[atMaxTime:])) }

// Producer returns the producer's id, epoch and the sequence of the first
// record; all -1 when the batch is not idempotent.
func (b Batch) Producer() (id ProducerID, epoch int16, baseSequence int32) {
	return ProducerID(binary.LittleEndian.Uint64(b[atProducerID:])),
		int16(binary.LittleEndian.Uint16(b[atProducerEpoch:])),
		int32(binary.LittleEndian.Uint32(b[atBaseSequence:]))
}

// Topic returns the id of the topic the batch was made for.
func (b Batch) Topic() TopicID { return TopicID(binary.LittleEndian.Uint64(b[atTopicID:])) }

// Partition returns the number of the partition the batch was made for.
func (b Batch) Partition() int32 { return int32(binary.LittleEndian.Uint32(b[atPartition:])) }

// LeaderEpoch returns the epoch under which the batch was appended, NoEpoch
// before that.
func (b Batch) LeaderEpoch() Epoch { return Epoch(binary.LittleEndian.Uint32(b[atLeaderEpoch:])) }

// LastOffsetDelta returns LastOffset less BaseOffset.
func (b Batch) LastOffsetDelta() int32 {
	return int32(binary.LittleEndian.Uint32(b[atLastOffsetDelta:]))
}

// Count returns the number of records.
func (b Batch) Count() int { return int(int32(binary.LittleEndian.Uint32(b[atRecordCount:]))) }

// RecordsLength returns the length of the records section once uncompressed,
// in bytes.
func (b Batch) RecordsLength() int { return int(binary.LittleEndian.Uint32(b[atRecordsLength:])) }

// Attributes returns the attribute bits: 0-2 codec, 3 time type, 4
// transactional, 5 control.
func (b Batch) Attributes() uint16 { return binary.LittleEndian.Uint16(b[atAttributes:]) }

// Codec returns the codec of the records section.
func (b Batch) Codec() Codec { return Codec(b.Attributes() & codecMask) }

// AppendTimeType reports whether the records' time is AppendTime instead of
// their own event times.
func (b Batch) AppendTimeType() bool { return b.Attributes()&attrAppendTime != 0 }

// Transactional reports whether the batch belongs to a transaction.
func (b Batch) Transactional() bool { return b.Attributes()&attrTransaction != 0 }

// Control reports whether the batch carries a marker instead of records.
func (b Batch) Control() bool { return b.Attributes()&attrControl != 0 }

// LastSequence returns the sequence of the last offset covered.
func (b Batch) LastSequence() int32 {
	_, _, base := b.Producer()
	return NextSequence(base, b.LastOffsetDelta())
}

// NextSequence returns seq advanced by n, 0 or more. After 2^31-1 comes 0.
func NextSequence(seq, n int32) int32 { return int32((int64(seq) + int64(n)) & math.MaxInt32) }

// ParseHeader checks magic, structure and header CRC of the first HeaderSize
// bytes of b. It returns b cut to the batch's length, or all of b if the batch
// ends beyond it: the records need not be there and are not looked at. Errors
// wrap ErrCorrupt.
func ParseHeader(b []byte) (Batch, error) {
	p := Batch(b)
	f := p.headerFault()
	if f.code == CodeOK {
		f = p.offsetFault()
	}
	if f.code != CodeOK {
		return nil, f.corrupt()
	}
	if n := p.Len(); n < len(p) {
		p = p[:n:n]
	}
	return p, nil
}

// Verify checks all that storage relies on: magic, structure, header CRC, that
// len(b) is the batch's length, and the records CRC. It does not look inside
// the records. It accepts what compaction leaves, an empty batch included.
// Errors wrap ErrCorrupt.
func (b Batch) Verify() error {
	f := b.headerFault()
	if f.code == CodeOK {
		f = b.offsetFault()
	}
	if f.code == CodeOK {
		f = b.recordsFault()
	}
	if f.code != CodeOK {
		return f.corrupt()
	}
	return nil
}

// BatchLimits bounds the batches a leader takes. Zero fields mean the
// defaults.
type BatchLimits struct {
	MaxBatch   int // bytes of the whole batch as sent, inclusive
	MaxRecords int // bytes of the records section once uncompressed, inclusive
}

// VerifyProduce checks everything for which a leader refuses a batch of a
// producer. The error is an *Error whose code is CORRUPT_BATCH, INVALID_BATCH,
// TOO_LARGE or UNSUPPORTED, all definite. Fields the leader sets are not
// looked at, since Stamp overwrites them. Whether the topic and the partition
// exist here is the caller's question.
func (b Batch) VerifyProduce(l BatchLimits) error {
	if l.MaxBatch == 0 {
		l.MaxBatch = DefaultMaxBatch
	}
	if l.MaxRecords == 0 {
		l.MaxRecords = DefaultMaxRecords
	}
	f := b.headerFault()
	if f.code == CodeOK {
		f = b.produceFault(l)
	}
	if f.code == CodeOK {
		f = b.recordsFault()
	}
	if f.code != CodeOK {
		return Errorf(f.code, "batch: %s", f.reason)
	}
	return nil
}

// A fault is why a batch is refused; its zero value is none. It is a value so
// that a good batch costs no allocation.
type fault struct {
	code   Code
	reason string
}

func (f fault) corrupt() error { return fmt.Errorf("%w batch: %s", ErrCorrupt, f.reason) }

// headerFault checks magic, header CRC and what holds in every batch, stored
// or produced. The CRC comes first: fields are judged only once they are known
// to be what the sender wrote.
func (b Batch) headerFault() fault {
	switch {
	case len(b) < HeaderSize:
		return fault{CodeInvalidBatch, "shorter than a header"}
	case string(b[:3]) != Magic[:3]:
		return fault{CodeInvalidBatch, "wrong magic"}
	case b[3] != Magic[3]:
		return fault{CodeUnsupported, "unknown format version"}
	case crcOf(b[atBatchLength:HeaderSize]) != b.HeaderCRC():
		return fault{CodeCorruptBatch, "header CRC does not match"}
	}
	if f := b.structureFault(); f.code != CodeOK {
		return f
	}
	return b.producerFault()
}

func (b Batch) structureFault() fault {
	attr, codec, n := b.Attributes(), b.Codec(), b.Len()
	count, delta, records := b.Count(), b.LastOffsetDelta(), b.RecordsLength()
	switch {
	case attr&attrUnknown != 0:
		return fault{CodeUnsupported, "unknown attribute bits"}
	case !codec.Known():
		return fault{CodeUnsupported, "unknown codec"}
	case n < HeaderSize:
		return fault{CodeInvalidBatch, "batchLength below the header's size"}
	case n > MaxBatchBytes:
		return fault{CodeTooLarge, "batchLength above the limit of every topic"}
	case records > MaxRecordsBytes:
		return fault{CodeTooLarge, "recordsLength above the limit of every setting"}
	case codec == None && records != n-HeaderSize:
		return fault{CodeInvalidBatch, "recordsLength other than batchLength-96 without a codec"}
	case delta < 0:
		return fault{CodeInvalidBatch, "lastOffsetDelta below 0"}
	case count < 0 || count > int(delta)+1:
		return fault{CodeInvalidBatch, "recordCount outside 0 to lastOffsetDelta+1"}
	case count*minRecord > records:
		return fault{CodeInvalidBatch, "recordCount too great for recordsLength"}
	case count == 0 && (n != HeaderSize || codec != None):
		return fault{CodeInvalidBatch, "bytes behind the header of an empty batch"}
	case b.Topic() == 0:
		return fault{CodeInvalidBatch, "topic id 0"}
	case b.Partition() < 0:
		return fault{CodeInvalidBatch, "partition below 0"}
	case binary.LittleEndian.Uint32(b[atReserved:]) != 0:
		return fault{CodeInvalidBatch, "reserved field not 0"}
	}
	return fault{}
}

// producerFault checks that the producer's three fields are all there or all
// -1; compaction's empty batch has none.
func (b Batch) producerFault() fault {
	id, epoch, seq := b.Producer()
	switch {
	case id == NoProducer && epoch == -1 && seq == -1:
		return fault{}
	case id > 0 && epoch >= 0 && seq >= 0 && b.Count() > 0:
		return fault{}
	}
	return fault{CodeInvalidBatch, "producer id, epoch and sequence do not fit together"}
}

// offsetFault checks what the leader has set; in a produced batch it is not
// looked at.
func (b Batch) offsetFault() fault {
	switch {
	case b.BaseOffset() < 0 || b.BaseOffset() > math.MaxInt64-Offset(b.LastOffsetDelta())-1:
		return fault{CodeInvalidBatch, "offsets outside 0 to 2^63-2"}
	case b.LeaderEpoch() < NoEpoch:
		return fault{CodeInvalidBatch, "leader epoch below -1"}
	}
	return fault{}
}

// produceFault checks what holds in batches of producers only.
func (b Batch) produceFault(l BatchLimits) fault {
	switch {
	case b.Control():
		return fault{CodeInvalidBatch, "control bit set"}
	case b.Transactional():
		return fault{CodeUnsupported, "transactions are not supported"}
	case b.Len() > l.MaxBatch:
		return fault{CodeTooLarge, "batchLength above the topic's limit"}
	case b.RecordsLength() > l.MaxRecords:
		return fault{CodeTooLarge, "recordsLength above the decompression limit"}
	case b.Count() < 1:
		return fault{CodeInvalidBatch, "no records"}
	case int(b.LastOffsetDelta()) != b.Count()-1:
		return fault{CodeInvalidBatch, "lastOffsetDelta other than recordCount-1"}
	case b.MaxTime() < b.BaseTime():
		return fault{CodeInvalidBatch, "maxTime below baseTime"}
	}
	return fault{}
}

// recordsFault checks length and CRC of what lies behind a good header.
func (b Batch) recordsFault() fault {
	switch {
	case b.Len() != len(b):
		return fault{CodeInvalidBatch, "batchLength other than the bytes given"}
	case crcOf(b[HeaderSize:]) != b.RecordsCRC():
		return fault{CodeCorruptBatch, "records CRC does not match"}
	}
	return fault{}
}

// Stamp writes what the leader sets, in place: offset, epoch, append time and
// whether append time is the records' time. It renews the header CRC and reads
// nothing behind the header. The caller guarantees that LastOffset stays below
// 2^63-1.
func (b Batch) Stamp(base Offset, epoch Epoch, appendTime int64, appendType bool) {
	if base < 0 || base > math.MaxInt64-Offset(b.LastOffsetDelta())-1 {
		panic(fmt.Sprintf("BUG: batch of %d offsets stamped with base offset %d", int64(b.LastOffsetDelta())+1, base))
	}
	attr := b.Attributes() &^ attrAppendTime
	if appendType {
		attr |= attrAppendTime
	}
	binary.LittleEndian.PutUint64(b[atBaseOffset:], uint64(base))
	binary.LittleEndian.PutUint64(b[atAppendTime:], uint64(appendTime))
	binary.LittleEndian.PutUint32(b[atLeaderEpoch:], uint32(epoch))
	binary.LittleEndian.PutUint16(b[atAttributes:], attr)
	b.sealHeader()
}

// SetProducer writes the producer fields and renews the header CRC: a client
// that got a new epoch or id sends the same records under it again. A batch
// without idempotence has NoProducer, -1, -1.
func (b Batch) SetProducer(id ProducerID, epoch int16, baseSequence int32) {
	binary.LittleEndian.PutUint64(b[atProducerID:], uint64(id))
	binary.LittleEndian.PutUint16(b[atProducerEpoch:], uint16(epoch))
	binary.LittleEndian.PutUint32(b[atBaseSequence:], uint32(baseSequence))
	b.sealHeader()
}

func (b Batch) sealHeader() {
	binary.LittleEndian.PutUint32(b[atHeaderCRC:], crcOf(b[atBatchLength:HeaderSize]))
}

// Batches cuts b into the batches that lie in it back to back. Only the
// lengths are looked at, so each batch must still be verified. The error, the
// last thing yielded, says that bytes were left which hold no whole batch; it
// wraps ErrCorrupt.
func Batches(b []byte) iter.Seq2[Batch, error] {
	return func(yield func(Batch, error) bool) {
		for at := 0; at < len(b); {
			rest := Batch(b[at:])
			if len(rest) < HeaderSize || rest.Len() < HeaderSize || rest.Len() > len(rest) {
				yield(nil, fmt.Errorf("%w batch at byte %d: longer than the %d bytes left", ErrCorrupt, at, len(rest)))
				return
			}
			n := rest.Len()
			if !yield(rest[:n:n], nil) {
				return
			}
			at += n
		}
	}
}
