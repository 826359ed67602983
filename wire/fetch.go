package wire

import (
	"fmt"
	"time"
)

// FetchRequest asks for batches. It is answered once MinBytes are there over
// all its partitions, MaxWaitMillis have passed, or a partition has news other
// than records.
type FetchRequest struct {
	Replica       NodeID // the follower that asks; NoNode: a consumer
	MaxWaitMillis uint32
	MinBytes      uint32
	MaxBytes      uint32 // over all partitions; the first batch comes whole whatever it says
	Plain         bool   // send uncompressed batches instead of the stored form
	Partitions    []FetchPartition
}

// A FetchPartition is the position of the reader in one partition.
type FetchPartition struct {
	Topic     TopicID
	Partition int32
	Offset    Offset // the first one wanted
	Epoch     Epoch  // current leader epoch as the reader knows it; NoEpoch: do not check
	LastEpoch Epoch  // epoch of the last batch read; NoEpoch: do not check
	MaxBytes  uint32
}

// FetchResponse has one result per partition, in the order of the request. On
// the wire the small fields of all of them come first, then the ranges.
type FetchResponse struct {
	Partitions []FetchResult

	RetryAfter time.Duration // of results that are refusals; from the frame's header
}

// A FetchResult is what one partition answers.
type FetchResult struct {
	Topic       TopicID
	Partition   int32
	Code        Code
	Epoch       Epoch  // the leader's
	LogStart    Offset // the first offset retained
	Committed   Offset // bound of what consumers see
	End         Offset // of the leader's log
	Next        Offset // the offset to ask for next
	Diverge     Epoch  // with TRUNCATED: the last epoch both logs share
	DivergeEnd  Offset // with TRUNCATED: where it ends
	CorruptFrom Offset // with CORRUPT: the damaged range, CorruptTo exclusive
	CorruptTo   Offset
	Bytes       uint32 // length of the range: whole batches back to back

	// Data is the range. A decoded one aliases the body. For encoding, either
	// every result carries its range here, or none does and the ranges follow
	// the message as files.
	Data []byte
}

func (*FetchRequest) API() API { return APIFetch }

func (m *FetchRequest) AppendTo(dst []byte, _ Version) []byte {
	dst = Append32(dst, m.Replica)
	dst = Append32(dst, m.MaxWaitMillis)
	dst = Append32(dst, m.MinBytes)
	dst = Append32(dst, m.MaxBytes)
	dst = AppendBool(dst, m.Plain)
	return appendSlice(dst, m.Partitions)
}

func (m *FetchRequest) Decode(r *Reader, _ Version) {
	m.Replica = NodeID(r.I32())
	m.MaxWaitMillis = r.U32()
	m.MinBytes = r.U32()
	m.MaxBytes = r.U32()
	m.Plain = r.Bool()
	m.Partitions = readSlice(r, m.Partitions)
}

func (*FetchPartition) least() int { return 32 }

func (p *FetchPartition) append(dst []byte) []byte {
	dst = Append64(dst, p.Topic)
	dst = Append32(dst, p.Partition)
	dst = Append64(dst, p.Offset)
	dst = Append32(dst, p.Epoch)
	dst = Append32(dst, p.LastEpoch)
	return Append32(dst, p.MaxBytes)
}

func (p *FetchPartition) decode(r *Reader) {
	p.Topic = TopicID(r.U64())
	p.Partition = r.I32()
	p.Offset = Offset(r.I64())
	p.Epoch = Epoch(r.I32())
	p.LastEpoch = Epoch(r.I32())
	p.MaxBytes = r.U32()
}

func (*FetchResponse) API() API { return APIFetch }

func (m *FetchResponse) AppendTo(dst []byte, _ Version) []byte {
	dst = appendSlice(dst, m.Partitions)
	announced, carried := 0, 0
	for i := range m.Partitions {
		p := &m.Partitions[i]
		dst = append(dst, p.Data...)
		announced, carried = announced+int(p.Bytes), carried+len(p.Data)
		if carried > 0 && carried != announced {
			panic(fmt.Sprintf("BUG: fetch results up to %d announce %d bytes and carry %d", i, announced, carried))
		}
	}
	return dst
}

func (m *FetchResponse) Decode(r *Reader, _ Version) {
	m.Partitions = readSlice(r, m.Partitions)
	for i := range m.Partitions {
		if p := &m.Partitions[i]; p.Bytes > 0 {
			p.Data = r.Raw(int(p.Bytes))
		}
	}
}

func (*FetchResult) least() int { return 82 }

func (p *FetchResult) append(dst []byte) []byte {
	dst = Append64(dst, p.Topic)
	dst = Append32(dst, p.Partition)
	dst = Append16(dst, p.Code)
	dst = Append32(dst, p.Epoch)
	dst = Append64(dst, p.LogStart)
	dst = Append64(dst, p.Committed)
	dst = Append64(dst, p.End)
	dst = Append64(dst, p.Next)
	dst = Append32(dst, p.Diverge)
	dst = Append64(dst, p.DivergeEnd)
	dst = Append64(dst, p.CorruptFrom)
	dst = Append64(dst, p.CorruptTo)
	return Append32(dst, p.Bytes)
}

func (p *FetchResult) decode(r *Reader) {
	p.Topic = TopicID(r.U64())
	p.Partition = r.I32()
	p.Code = Code(r.U16())
	p.Epoch = Epoch(r.I32())
	p.LogStart = Offset(r.I64())
	p.Committed = Offset(r.I64())
	p.End = Offset(r.I64())
	p.Next = Offset(r.I64())
	p.Diverge = Epoch(r.I32())
	p.DivergeEnd = Offset(r.I64())
	p.CorruptFrom = Offset(r.I64())
	p.CorruptTo = Offset(r.I64())
	p.Bytes = r.U32()
}
