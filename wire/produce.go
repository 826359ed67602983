package wire

import (
	"encoding/binary"
	"slices"

	"github.com/teralog/teralog/mem"
)

// The acknowledgements a producer may ask for.
const (
	AcksNone   int8 = 0  // none: there is no response either
	AcksLeader int8 = 1  // the leader has appended
	AcksAll    int8 = -1 // every in-sync replica has
)

// ProduceRequest carries batches, each of which names its own topic and
// partition. On the wire all lengths come first, then the batches back to
// back.
type ProduceRequest struct {
	Acks          int8
	TimeoutMillis uint32
	Batches       []Batch // each at least HeaderSize long; decoded ones alias the body

	// Held is empty or holds, for each batch, the buffer that it is all of. A
	// Conn then sends the batches where they lie, without copying them, and
	// keeps references until it has. Not on the wire, nor decoded.
	Held []*mem.Buf
}

// ProduceResponse has one result per batch, in the order of the request.
type ProduceResponse struct {
	Results []ProduceResult
}

// A ProduceResult is what became of one batch.
type ProduceResult struct {
	Code             Code
	Base             Offset // of the first record; -1 for a duplicate too old to know
	AppendTime       int64  // ms since the epoch
	LogStart         Offset
	Epoch            Epoch  // the leader's
	RetryAfterMillis uint32 // with BUSY and QUOTA; 0: none given
	Message          string // for people; empty with CodeOK
}

func (*ProduceRequest) API() API { return APIProduce }

func (m *ProduceRequest) AppendTo(dst []byte, _ Version) []byte {
	dst = m.appendHead(dst)
	for _, b := range m.Batches {
		dst = append(dst, b...)
	}
	return dst
}

// appendHead appends what comes before the batches.
func (m *ProduceRequest) appendHead(dst []byte) []byte {
	dst = Append8(dst, m.Acks)
	dst = Append32(dst, m.TimeoutMillis)
	dst = AppendCount(dst, len(m.Batches))
	for _, b := range m.Batches {
		dst = AppendUvarint(dst, uint64(len(b)))
	}
	return dst
}

// headLen bounds the length of what appendHead appends.
func (m *ProduceRequest) headLen() int { return 1 + 4 + binary.MaxVarintLen32*(1+len(m.Batches)) }

func (m *ProduceRequest) Decode(r *Reader, _ Version) {
	m.Acks = r.I8()
	if m.Acks < AcksAll || m.Acks > AcksLeader {
		r.Failf("acks %d", m.Acks)
	}
	m.TimeoutMillis = r.U32()
	m.Batches = m.Batches[:0]
	n := arrayLen(r, 1+HeaderSize)
	lengths := *r // stays at the lengths while r goes on to the batches
	for range n {
		r.Uvarint()
	}
	m.Batches = slices.Grow(m.Batches, n)
	for range n {
		size := lengths.Uvarint()
		if size < HeaderSize || size > uint64(r.Left()) {
			r.Failf("batch of %d bytes, %d bytes left", size, r.Left())
			m.Batches = m.Batches[:0]
			return
		}
		m.Batches = append(m.Batches, r.Raw(int(size)))
	}
}

func (*ProduceResponse) API() API { return APIProduce }

func (m *ProduceResponse) AppendTo(dst []byte, _ Version) []byte {
	return appendSlice(dst, m.Results)
}

func (m *ProduceResponse) Decode(r *Reader, _ Version) {
	m.Results = readSlice(r, m.Results)
}

func (*ProduceResult) least() int { return 35 }

func (p *ProduceResult) append(dst []byte) []byte {
	dst = Append16(dst, p.Code)
	dst = Append64(dst, p.Base)
	dst = Append64(dst, p.AppendTime)
	dst = Append64(dst, p.LogStart)
	dst = Append32(dst, p.Epoch)
	dst = Append32(dst, p.RetryAfterMillis)
	return AppendText(dst, p.Message)
}

func (p *ProduceResult) decode(r *Reader) {
	p.Code = Code(r.U16())
	p.Base = Offset(r.I64())
	p.AppendTime = r.I64()
	p.LogStart = Offset(r.I64())
	p.Epoch = Epoch(r.I32())
	p.RetryAfterMillis = r.U32()
	p.Message = r.String()
}
