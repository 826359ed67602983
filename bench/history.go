package bench

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"

	"github.com/teralog/teralog/wire"
)

// An ID tells one record of one run from all others. It travels in the record's
// value, so the checker never has to believe a broker which record it returns.
type ID struct {
	Run      uint32
	Producer uint32
	Counter  uint64 // from 0 without a gap, one a record of the producer
}

// valueSize is the least size of a value that holds an ID.
const valueSize = 24

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// AppendValue appends a record value of size bytes, at least 24, that carries
// id. All of it is covered by a CRC, and its padding differs from record to
// record, so that bytes of one cannot pass for those of another.
func AppendValue(dst []byte, id ID, size int) []byte {
	at := len(dst)
	le := binary.LittleEndian
	dst = le.AppendUint32(dst, 0)
	dst = le.AppendUint32(dst, id.Run)
	dst = le.AppendUint32(dst, id.Producer)
	dst = le.AppendUint32(dst, uint32(size))
	dst = le.AppendUint64(dst, id.Counter)
	x := id.Counter*0x9E3779B97F4A7C15 + uint64(id.Producer) + 1
	for len(dst)-at+8 <= size {
		x ^= x << 13
		x ^= x >> 7
		x ^= x << 17
		dst = le.AppendUint64(dst, x)
	}
	for len(dst)-at < size {
		dst = append(dst, byte(x))
	}
	le.PutUint32(dst[at:], crc32.Checksum(dst[at+4:], castagnoli))
	return dst
}

// ParseValue reads the ID that AppendValue wrote.
func ParseValue(b []byte) (ID, error) {
	le := binary.LittleEndian
	switch {
	case len(b) < valueSize:
		return ID{}, fmt.Errorf("value of %d bytes, the least is %d", len(b), valueSize)
	case crc32.Checksum(b[4:], castagnoli) != le.Uint32(b):
		return ID{}, errors.New("value with a wrong checksum")
	case int(le.Uint32(b[12:])) != len(b):
		return ID{}, fmt.Errorf("value of %d bytes says it has %d", len(b), le.Uint32(b[12:]))
	}
	return ID{le.Uint32(b[4:]), le.Uint32(b[8:]), le.Uint64(b[16:])}, nil
}

// An Outcome is what a client knows of a record it sent.
type Outcome uint8

// The outcomes.
const (
	OK   Outcome = iota // acknowledged
	Fail                // every attempt ended in a definite error: never in the log
	Info                // anything else: in the log, or not, or later
)

// An Event is one thing a client, or the test itself, saw. Events of a run are
// in the order in which they happened.
type Event interface {
	kind() uint8
	append(dst []byte) []byte
	read(r *eventReader)
}

// Sent says that a producer gave a record to its client.
type Sent struct {
	ID         ID
	Partition  wire.PartitionID
	Idempotent bool
}

// Decided says what became of it.
type Decided struct {
	ID      ID
	Outcome Outcome
	Offset  wire.Offset // with OK; -1: the broker no longer knew
	Epoch   wire.Epoch  // with OK, if known; else wire.NoEpoch
}

// Polled says what one poll of one consumer returned of one partition.
type Polled struct {
	Consumer  uint32
	Partition wire.PartitionID
	Position  wire.Offset // before the poll
	Next      wire.Offset // the position after it
	Reads     []Read
}

// A Read is a record as a consumer got it.
type Read struct {
	Offset wire.Offset
	Epoch  wire.Epoch
	ID     ID   // if Sound
	Sound  bool // the value's checksum and length are right
}

// Sought says that a consumer moved its position by itself, so that its next
// poll need not follow the last one.
type Sought struct {
	Consumer  uint32
	Partition wire.PartitionID
}

// Lossy says that a machine crashed in a mode that may lose records: those at
// Keep and beyond, which were appended under an epoch below Epoch. Anything
// below Keep, and anything in modes that lose nothing, must survive; then there
// is no such event.
type Lossy struct {
	Partition wire.PartitionID
	Keep      wire.Offset
	Epoch     wire.Epoch // of the leader after the crash
}

// Drained is everything a partition held at the end of the run.
type Drained struct {
	Partition wire.PartitionID
	Start     wire.Offset // what lay below it was deleted by retention or trim
	Reads     []Read
}

var eventKinds = [...]func() Event{
	func() Event { return new(Sent) }, func() Event { return new(Decided) }, func() Event { return new(Polled) },
	func() Event { return new(Sought) }, func() Event { return new(Lossy) }, func() Event { return new(Drained) },
}

func (*Sent) kind() uint8    { return 0 }
func (*Decided) kind() uint8 { return 1 }
func (*Polled) kind() uint8  { return 2 }
func (*Sought) kind() uint8  { return 3 }
func (*Lossy) kind() uint8   { return 4 }
func (*Drained) kind() uint8 { return 5 }

// A Recorder writes events to a file, for a checker that runs later or
// elsewhere. One goroutine uses it.
type Recorder struct {
	w   *bufio.Writer
	buf []byte
}

// NewRecorder returns a recorder on w. Flush it at the end.
func NewRecorder(w io.Writer) *Recorder { return &Recorder{w: bufio.NewWriterSize(w, 256<<10)} }

// Record appends one event.
func (r *Recorder) Record(e Event) error {
	r.buf = append(r.buf[:0], e.kind())
	r.buf = e.append(r.buf)
	_, err := r.w.Write(r.buf)
	return err
}

// Flush writes out what is buffered.
func (r *Recorder) Flush() error { return r.w.Flush() }

// maxReads bounds the records of one event.
const maxReads = 1 << 26

// ReadHistory calls each with every event of a file that a Recorder wrote. The
// event is valid during the call.
func ReadHistory(file io.Reader, each func(Event) error) error {
	r := &eventReader{r: bufio.NewReaderSize(file, 256<<10)}
	kinds := [len(eventKinds)]Event{}
	for n := 0; ; n++ {
		kind, err := r.r.ReadByte()
		if err == io.EOF {
			return nil
		}
		if err == nil && int(kind) >= len(kinds) {
			err = fmt.Errorf("kind %d", kind)
		}
		if err != nil {
			return fmt.Errorf("history: event %d: %w", n, err)
		}
		if kinds[kind] == nil {
			kinds[kind] = eventKinds[kind]()
		}
		kinds[kind].read(r)
		if r.err != nil {
			return fmt.Errorf("history: event %d: %w", n, r.err)
		}
		if err := each(kinds[kind]); err != nil {
			return err
		}
	}
}

// An eventReader reads the fields of events; its first error stays.
type eventReader struct {
	r   *bufio.Reader
	err error
}

func (r *eventReader) int() int64 {
	if r.err != nil {
		return 0
	}
	var v int64
	if v, r.err = binary.ReadVarint(r.r); r.err == io.EOF {
		r.err = io.ErrUnexpectedEOF
	}
	return v
}

func (r *eventReader) id() ID {
	return ID{uint32(r.int()), uint32(r.int()), uint64(r.int())}
}

func (r *eventReader) partition() wire.PartitionID {
	return wire.PartitionID{Topic: wire.TopicID(r.int()), Partition: int32(r.int())}
}

func (r *eventReader) reads(dst []Read) []Read {
	n := r.int()
	if n < 0 || n > maxReads {
		r.err = fmt.Errorf("%d reads", n)
	}
	dst = dst[:0]
	for ; n > 0 && r.err == nil; n-- {
		dst = append(dst, Read{wire.Offset(r.int()), wire.Epoch(r.int()), r.id(), r.int() != 0})
	}
	return dst
}

func appendInts(dst []byte, vs ...int64) []byte {
	for _, v := range vs {
		dst = binary.AppendVarint(dst, v)
	}
	return dst
}

func (id ID) append(dst []byte) []byte {
	return appendInts(dst, int64(id.Run), int64(id.Producer), int64(id.Counter))
}

func appendPartition(dst []byte, p wire.PartitionID) []byte {
	return appendInts(dst, int64(p.Topic), int64(p.Partition))
}

func appendReads(dst []byte, rs []Read) []byte {
	dst = appendInts(dst, int64(len(rs)))
	for _, r := range rs {
		dst = appendInts(dst, int64(r.Offset), int64(r.Epoch))
		dst = appendInts(r.ID.append(dst), flag01(r.Sound))
	}
	return dst
}

func flag01(b bool) int64 {
	if b {
		return 1
	}
	return 0
}

func (e *Sent) append(dst []byte) []byte {
	return appendInts(appendPartition(e.ID.append(dst), e.Partition), flag01(e.Idempotent))
}

func (e *Sent) read(r *eventReader) { *e = Sent{r.id(), r.partition(), r.int() != 0} }

func (e *Decided) append(dst []byte) []byte {
	return appendInts(e.ID.append(dst), int64(e.Outcome), int64(e.Offset), int64(e.Epoch))
}

func (e *Decided) read(r *eventReader) {
	*e = Decided{r.id(), Outcome(r.int()), wire.Offset(r.int()), wire.Epoch(r.int())}
	if e.Outcome > Info && r.err == nil {
		r.err = fmt.Errorf("outcome %d", e.Outcome)
	}
}

func (e *Polled) append(dst []byte) []byte {
	dst = appendPartition(appendInts(dst, int64(e.Consumer)), e.Partition)
	return appendReads(appendInts(dst, int64(e.Position), int64(e.Next)), e.Reads)
}

func (e *Polled) read(r *eventReader) {
	*e = Polled{uint32(r.int()), r.partition(), wire.Offset(r.int()), wire.Offset(r.int()), r.reads(e.Reads)}
}

func (e *Sought) append(dst []byte) []byte {
	return appendPartition(appendInts(dst, int64(e.Consumer)), e.Partition)
}

func (e *Sought) read(r *eventReader) { *e = Sought{uint32(r.int()), r.partition()} }

func (e *Lossy) append(dst []byte) []byte {
	return appendInts(appendPartition(dst, e.Partition), int64(e.Keep), int64(e.Epoch))
}

func (e *Lossy) read(r *eventReader) {
	*e = Lossy{r.partition(), wire.Offset(r.int()), wire.Epoch(r.int())}
}

func (e *Drained) append(dst []byte) []byte {
	return appendReads(appendInts(appendPartition(dst, e.Partition), int64(e.Start)), e.Reads)
}

func (e *Drained) read(r *eventReader) {
	*e = Drained{r.partition(), wire.Offset(r.int()), r.reads(e.Reads)}
}
