package client

import (
	"context"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/teralog/teralog/wire"
)

// TestHostileBroker: no answer makes the client panic, hang past
// its time-outs or hold on to memory.
func TestHostileBroker(t *testing.T) {
	for seed := range uint64(60) {
		bubble(t, map[string]int{"t": 3}, func(t *testing.T, b *fake) {
			for p := range 3 {
				b.put("t", p, wire.Codec([]wire.Codec{wire.None, wire.Gzip, wire.Snappy}[p]), make([]int64, 50))
			}
			rnd := rand.New(rand.NewPCG(seed, 1))
			b.mu.Lock()
			b.onCall = func(c *wire.Call) bool { return mischief(b, c, rnd) }
			b.mu.Unlock()
			c := b.client(t, func(o *Options) { o.RequestTimeout = time.Second })
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			defer cancel()

			p := newProducer(t, c, ProducerOptions{DeliveryTimeout: 5 * time.Second, Acks: Acks(seed % 2)})
			for range 5 {
				p.Produce(ctx, Record{Topic: "t", Value: []byte("v")})
			}
			x := newConsumer(t, c, ConsumerOptions{Reset: Reset(seed % 3)})
			x.AssignTopic(ctx, "t", Range{To: End()})
			for range 20 {
				if _, err := x.Poll(ctx); errors.Is(err, ErrEnd) || ctx.Err() != nil {
					break
				}
			}
			c.ListTopics(ctx)
			c.DescribeTopics(ctx)
			c.Offsets(ctx, "t", Greatest())
			c.Trim(ctx, "t", 0, 1)
			c.Recovery(ctx)
			c.CreateTopic(ctx, TopicSpec{Name: "u"})
			c.DeleteTopic(ctx, 5)
		})
	}
}

// mischief answers some calls wrongly: with any code, with fields at their
// extremes and counts that do not fit, with bodies cut, stretched or flipped.
func mischief(b *fake, c *wire.Call, rnd *rand.Rand) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch rnd.IntN(5) {
	case 0, 1:
		return false
	case 2:
		c.ReplyError(&wire.Error{Code: wire.Code(rnd.IntN(40) + 1), Message: "so", RetryAfter: time.Duration(rnd.IntN(1e9))})
	case 3:
		c.Reply(&garbage{api: c.API, body: randomBody(c.API, rnd, 0.02)})
	case 4:
		c.Reply(&garbage{api: c.API, body: randomBody(c.API, rnd, 0.3)})
	}
	return true
}

// garbage is a response with any body.
type garbage struct {
	api  wire.API
	body []byte
}

func (g *garbage) API() wire.API                              { return g.api }
func (g *garbage) AppendTo(dst []byte, _ wire.Version) []byte { return append(dst, g.body...) }
func (g *garbage) Decode(*wire.Reader, wire.Version)          {}

// randomBody is a well-formed response of the API with extreme fields, of
// which some bytes are then changed.
func randomBody(a wire.API, rnd *rand.Rand, harm float64) []byte {
	o := func() wire.Offset {
		return wire.Offset([]int64{-1 << 63, -2, -1, 0, 1, 7, 50, 51, 1<<63 - 1}[rnd.IntN(9)])
	}
	n := func() int32 { return []int32{-1 << 31, -1, 0, 1, 2, 3, 1<<31 - 1}[rnd.IntN(7)] }
	code := func() wire.Code { return wire.Code(rnd.IntN(3) * rnd.IntN(40)) }
	var m wire.Message
	switch a {
	case wire.APIMetadata:
		r := &wire.MetadataResponse{Nodes: []wire.NodeAddr{{ID: 1, Addr: fakeAddr}, {ID: wire.NodeID(n()), Addr: "x"}}, Controller: wire.NodeID(n())}
		t := wire.TopicMeta{Name: "t", ID: wire.TopicID(rnd.IntN(3) * 1025), Code: code()}
		for p := range int32(rnd.IntN(5)) {
			if rnd.IntN(4) == 0 {
				p = n()
			}
			t.Partitions = append(t.Partitions, wire.PartitionMeta{Partition: p, Leader: wire.NodeID(n()), Epoch: wire.Epoch(n())})
		}
		r.Topics = append(r.Topics, t)
		m = r
	case wire.APIProduce:
		r := &wire.ProduceResponse{}
		for range rnd.IntN(3) {
			r.Results = append(r.Results, wire.ProduceResult{Code: code(), Base: o(), AppendTime: int64(o()), RetryAfterMillis: uint32(n())})
		}
		m = r
	case wire.APIInitProducer:
		m = &wire.InitProducerResponse{Producer: wire.ProducerID(o()), Epoch: int16(n())}
	case wire.APIListOffsets:
		r := &wire.ListOffsetsResponse{}
		for range rnd.IntN(3) {
			r.Results = append(r.Results, wire.OffsetResult{Code: code(), Offset: o(), Time: int64(o()), Epoch: wire.Epoch(n())})
		}
		m = r
	case wire.APIFetch:
		r := &wire.FetchResponse{}
		for range 1 + rnd.IntN(3) {
			res := wire.FetchResult{Topic: wire.FirstUserTopic + 1, Partition: rnd.Int32N(3), Code: code(), LogStart: o(), Committed: o(),
				End: o(), Next: o(), Diverge: wire.Epoch(n()), DivergeEnd: o(), CorruptFrom: o(), CorruptTo: o(), Data: randomBatch(rnd)}
			res.Bytes = uint32(len(res.Data))
			r.Partitions = append(r.Partitions, res)
		}
		m = r
	default:
		m = a.NewResponse()
	}
	body := m.AppendTo(nil, 0)
	for i := range body {
		if rnd.Float64() < harm/10 {
			body[i] = byte(rnd.Uint32())
		}
	}
	if rnd.Float64() < harm {
		body = body[:rnd.IntN(len(body)+1)]
	}
	if rnd.Float64() < harm {
		body = binary.AppendUvarint(body, rnd.Uint64())
	}
	return body
}

// randomBatch is a batch whose checks may pass while its records are not what
// the header says.
func randomBatch(rnd *rand.Rand) []byte {
	w := wire.NewBuilder(wire.BuilderOptions{Topic: wire.FirstUserTopic + 1, Partition: rnd.Int32N(3),
		Codec: []wire.Codec{wire.None, wire.Gzip, wire.Snappy}[rnd.IntN(3)]})
	for range 1 + rnd.IntN(5) {
		w.Add(rnd.Int64(), nil, make([]byte, rnd.IntN(200)), nil)
	}
	buf, _ := w.Build()
	b := wire.Batch(append([]byte(nil), buf.B...))
	buf.Release()
	b.Stamp(wire.Offset(rnd.IntN(60)), wire.Epoch(rnd.IntN(3)), 1, rnd.IntN(2) == 0)
	if rnd.IntN(3) == 0 {
		b[rnd.IntN(len(b))] ^= byte(1 + rnd.IntN(255))
	}
	return b
}
