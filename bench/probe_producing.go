package bench

import (
	"encoding/binary"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/teralog/teralog/mem"
)

func produceClient(t task, _ func(string)) (measure, error) {
	socks, err := dial(t.Conns, t.Addr)
	if err != nil {
		return measure{}, err
	}
	g := &gauge{warm: t.warmUp()}
	var acks mem.Hist
	var total atomic.Int64
	var sum atomic.Uint64
	err = each(socks, func(_ int, s *sock) error {
		c := newProducing(t, s, g, &acks)
		err := c.run(t.perConn())
		total.Add(c.acked)
		sum.Add(c.sum)
		return err
	})
	m := g.stop()
	m.Batches, m.Sum = total.Load(), sum.Load()
	m.P50, m.P99 = quantiles(&acks)
	return m, err
}

// sendChunk is how many bytes of small batches a client sends at once, if the
// window has room for them.
const sendChunk = 64 << 10

// A producing is one connection of a client.
type producing struct {
	s      *sock
	g      *gauge
	acks   *mem.Hist
	buf    []byte
	batch  int
	value  []byte      // nil: one batch is built, and sent again and again
	ready  []byte      // that batch
	sentAt []time.Time // of the batches in flight, by number modulo the window
	sent   int64
	acked  int64
	sum    uint64
}

func newProducing(t task, s *sock, g *gauge, acks *mem.Hist) *producing {
	p := &producing{s: s, g: g, acks: acks, batch: t.Batch, sentAt: make([]time.Time, t.Window)}
	p.buf = make([]byte, max(t.Batch, sendChunk))
	if t.Record > 0 {
		p.value = sampleValue(t.Record)
	} else {
		p.ready = buildBatch(make([]byte, t.Batch), sampleValue(100))
	}
	return p
}

// run sends batches of left bytes in all, as many at once as the window allows, and
// waits for the acknowledgements.
func (p *producing) run(left int64) error {
	for left > 0 || p.acked < p.sent {
		free := len(p.sentAt) - int(p.sent-p.acked)
		if left <= 0 || free == 0 {
			if err := p.await(); err != nil {
				return err
			}
			continue
		}
		n, err := p.send(free)
		if err != nil {
			return err
		}
		left -= int64(n)
	}
	return nil
}

// send builds up to free batches, as many as fit the buffer, and sends them.
func (p *producing) send(free int) (n int, err error) {
	out := p.buf[:0]
	for ; free > 0 && cap(out)-len(out) >= p.batch; free-- {
		b := p.ready
		if b == nil {
			b = buildBatch(out[len(out):len(out)+p.batch], p.value)
			out = out[:len(out)+len(b)]
		} else {
			out = append(out, b...)
		}
		p.sum += uint64(binary.LittleEndian.Uint32(b[4:]))
		p.sentAt[p.sent%int64(len(p.sentAt))] = time.Now()
		p.sent++
	}
	p.g.add(len(out))
	return len(out), p.s.write(out, false)
}

// await takes the acknowledgements that have arrived, at least one.
func (p *producing) await() error {
	var in [512]byte
	n, err := p.s.read(in[:], 0)
	for n%8 != 0 && err == nil {
		var more int
		more, err = p.s.read(in[n:(n+7)/8*8], 0)
		n += more
	}
	if err != nil {
		return fmt.Errorf("acknowledgement: %w", err)
	}
	upTo := int64(binary.LittleEndian.Uint64(in[n-8:]))
	if upTo < p.acked || upTo > p.sent {
		return fmt.Errorf("batch %d acknowledged, %d were sent and %d acknowledged before", upTo, p.sent, p.acked)
	}
	now := time.Now()
	for ; p.acked < upTo; p.acked++ {
		p.acks.Record(now.Sub(p.sentAt[p.acked%int64(len(p.sentAt))]).Nanoseconds())
	}
	return nil
}
