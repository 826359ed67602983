package bench

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/teralog/teralog/mem"
)

// What produce cannot do without. Client: build each batch, send it. Server:
// receive in large reads, check every batch, one pwrite and one acknowledgement
// a read. In the synced form the acknowledgement waits for an fdatasync, and
// reads go on meanwhile.

// probeProduce moves bytes in batches of at most batch bytes over conns
// connections, window of them in flight on each. The client builds them of
// records of record bytes; if record is 0 it sends a ready one again and again.
// The server writes a new file for each connection. P50 and P99 are those of
// the acknowledgements.
func probeProduce(ctx context.Context, dir string, batch, record, window, conns int, bytes int64) (Round, error) {
	return produce(ctx, "produce server", task{Dir: dir, Batch: batch, Record: record, Window: window, Conns: conns, Bytes: bytes})
}

// probeSyncProduce is the same with one file for all connections, and
// acknowledgements only of what is on disk.
func probeSyncProduce(ctx context.Context, dir string, batch, record, window, conns int, bytes int64) (Round, error) {
	return produce(ctx, "produce server, synced", task{Dir: dir, Batch: batch, Record: record, Window: window, Conns: conns, Bytes: bytes})
}

func produce(ctx context.Context, server string, t task) (Round, error) {
	client := t
	t.Side, client.Side = server, "produce client"
	s, c, err := pair(ctx, t, client)
	return roundOf(s, c), err
}

// A gauge adds up what all connections of a side move and starts the clock when
// the warm-up is over.
type gauge struct {
	mu      sync.Mutex
	moved   int64
	warm    int64
	began   bool
	beganAt int64
	watch   stopwatch
}

func (g *gauge) add(n int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.moved += int64(n); !g.began && g.moved >= g.warm {
		g.began, g.beganAt, g.watch = true, g.moved, startWatch()
	}
}

// stop returns the measure of what was moved since the clock started; if it
// never did, nothing.
func (g *gauge) stop() measure {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.began {
		return measure{}
	}
	return g.watch.stop(g.moved - g.beganAt)
}

// each runs f for each sock, all at once, and returns their errors joined.
func each(socks []*sock, f func(i int, s *sock) error) error {
	errs := make([]error, len(socks))
	var wg sync.WaitGroup
	for i, s := range socks {
		wg.Go(func() {
			errs[i] = f(i, s)
			s.conn.Close() // so that the peer learns of an error too
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// tempFile returns an open file in dir that has no name any more: whatever
// becomes of the process, nothing is left.
func tempFile(dir string) (*os.File, error) {
	f, err := os.CreateTemp(dir, "teralog-probe-")
	if err != nil {
		return nil, err
	}
	return f, os.Remove(f.Name())
}

// A sink is a file that several connections append to.
type sink struct {
	f    *os.File
	end  atomic.Int64
	ring int64 // > 0: it is overwritten from the front once it is so long
}

func (k *sink) append(p []byte) error {
	at := k.end.Add(int64(len(p))) - int64(len(p))
	if k.ring > 0 {
		at %= k.ring
	}
	_, err := k.f.WriteAt(p, at)
	return err
}

// recycledBytes is the length of a file that is written over and over, at
// most. Batches do not divide it, so the last may reach behind its end.
const recycledBytes = 128 << 20

const readChunk = 256 << 10 // of small batches: fits the second-level cache, and so does what is made of it

func produceServer(t task, ready func(string)) (measure, error) {
	sinks := make([]*sink, t.Conns)
	for i := range sinks {
		f, err := tempFile(t.Dir)
		if err != nil {
			return measure{}, err
		}
		sinks[i] = &sink{f: f}
		if t.Recycled {
			sinks[i].ring = min(recycledBytes, t.Bytes)
			if _, err := fillFile(f, sinks[i].ring); err != nil {
				return measure{}, err
			}
		}
	}
	socks, err := listen(t.Conns, ready)
	if err != nil {
		return measure{}, err
	}
	g := &gauge{warm: t.warmUp()}
	checkers := make([]checker, t.Conns)
	err = each(socks, func(i int, s *sock) error {
		var ack [8]byte
		return receiveBatches(s, &checkers[i], t.Batch, func(whole []byte) error {
			if err := sinks[i].append(whole); err != nil {
				return err
			}
			g.add(len(whole))
			binary.LittleEndian.PutUint64(ack[:], uint64(checkers[i].batches))
			return s.write(ack[:], false)
		})
	})
	m := g.stop()
	for _, c := range checkers {
		m.Batches += c.batches
		m.Sum += c.sum
	}
	return m, err
}

// receiveBatches reads batches of about the given length to the end of the
// stream and gives keep the whole and checked ones of each read.
func receiveBatches(s *sock, c *checker, batch int, keep func(whole []byte) error) error {
	buf := make([]byte, max(readChunk, batch+4<<10))
	end, need := 0, 0
	for {
		p := buf[end:]
		if need > readChunk/2 {
			// A large batch is read to its end, and the next one's header: then
			// only that has to be moved to the front.
			p = buf[end:min(len(buf), need+batchHeader)]
		}
		n, err := s.read(p, need-end)
		if err != nil {
			return endOfStream(err, end)
		}
		end += n
		whole, next, err := c.whole(buf[:end])
		if err != nil {
			return err
		}
		if need = next; need > len(buf) {
			buf = append(buf, make([]byte, need+batchHeader-len(buf))...)
		}
		if whole == 0 {
			continue
		}
		if err := keep(buf[:whole]); err != nil {
			return err
		}
		end = copy(buf, buf[whole:end])
	}
}

// endOfStream returns nil if a stream has ended where it may, with no bytes
// left over.
func endOfStream(err error, left int) error {
	switch {
	case err != io.EOF:
		return err
	case left > 0:
		return fmt.Errorf("%d bytes are left over: %w", left, io.ErrUnexpectedEOF)
	}
	return nil
}

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
		err := c.run((t.warmUp() + t.Bytes) / int64(t.Conns))
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

// sampleValue returns a value of n bytes that are not all the same.
func sampleValue(n int) []byte {
	v := make([]byte, n)
	for i := range v {
		v[i] = byte(i)*37 + 11
	}
	return v
}

// run sends batches of bytes in all, as many at once as the window allows, and
// waits for the acknowledgements.
func (p *producing) run(bytes int64) error {
	for bytes > 0 || p.acked < p.sent {
		free := len(p.sentAt) - int(p.sent-p.acked)
		if bytes <= 0 || free == 0 {
			if err := p.await(); err != nil {
				return err
			}
			continue
		}
		n, err := p.send(free)
		if err != nil {
			return err
		}
		bytes -= int64(n)
	}
	return nil
}

// send builds up to free batches, as many as fit the buffer, and sends them.
func (p *producing) send(free int) (bytes int, err error) {
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

// A synced produce server appends all connections to one file, and one
// goroutine syncs it again and again: each sync covers what was written before
// it began, and is followed by the acknowledgements.
func syncProduceServer(t task, ready func(string)) (measure, error) {
	f, err := tempFile(t.Dir)
	if err != nil {
		return measure{}, err
	}
	k := &sink{f: f}
	socks, err := listen(t.Conns, ready)
	if err != nil {
		return measure{}, err
	}
	g := &gauge{warm: t.warmUp()}
	checkers := make([]checker, t.Conns)
	written := make([]atomic.Int64, t.Conns)
	dirty := make(chan struct{}, 1)
	synced := make(chan error, 1)
	go func() { synced <- syncAll(f, socks, written, dirty) }()
	err = each(socks, func(i int, s *sock) error {
		return receiveBatches(s, &checkers[i], t.Batch, func(whole []byte) error {
			if err := k.append(whole); err != nil {
				return err
			}
			g.add(len(whole))
			written[i].Store(checkers[i].batches)
			select {
			case dirty <- struct{}{}:
			default:
			}
			return nil
		})
	})
	m := g.stop()
	close(dirty)
	err = errors.Join(err, <-synced)
	for _, c := range checkers {
		m.Batches += c.batches
		m.Sum += c.sum
	}
	return m, err
}

func syncAll(f *os.File, socks []*sock, written []atomic.Int64, dirty <-chan struct{}) error {
	acked := make([]int64, len(socks))
	upTo := make([]int64, len(socks))
	var ack [8]byte
	for range dirty {
		for i := range socks {
			upTo[i] = written[i].Load()
		}
		if err := unix.Fdatasync(int(f.Fd())); err != nil {
			return os.NewSyscallError("fdatasync", err)
		}
		for i, s := range socks {
			if upTo[i] == acked[i] {
				continue
			}
			binary.LittleEndian.PutUint64(ack[:], uint64(upTo[i]))
			if err := s.write(ack[:], false); err != nil {
				s.conn.Close()
				return err
			}
			acked[i] = upTo[i]
		}
	}
	return nil
}

func init() {
	sides["produce server"] = produceServer
	sides["produce server, synced"] = syncProduceServer
	sides["produce client"] = produceClient
}
