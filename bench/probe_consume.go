package bench

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"sync/atomic"

	"github.com/teralog/teralog/mem"
)

// What consume cannot do without. Client: ask, with two requests in flight,
// check every batch of the answers, take every record apart. Server: send what
// is asked for from a file that the page cache holds.

// probeConsume reads by sendfile, each of the readers over a connection of its
// own, answers of at most fetch bytes, bytes by all readers together.
func probeConsume(ctx context.Context, dir string, fetch, record, readers int, bytes int64) (Round, error) {
	return consume(ctx, "consume server", dir, fetch, record, readers, bytes)
}

// consume lets server, a side, answer.
func consume(ctx context.Context, server, dir string, fetch, record, readers int, bytes int64) (Round, error) {
	t := task{Side: server, Dir: dir, Batch: fetch, Record: record, Conns: readers, Bytes: bytes}
	client := t
	client.Side = "consume client"
	s, c, err := pair(ctx, t, client)
	return roundOf(s, c), err
}

// A backlog is a file of equal batches in the page cache.
type backlog struct {
	f     *os.File
	batch int // bytes of each
	crc   uint64
	size  int64
}

const (
	backlogBytes = 256 << 20 // far more than a processor's caches hold
	backlogBatch = 64 << 10  // of a batch in it, at most
)

func newBacklog(t task) (backlog, error) {
	f, err := tempFile(t.Dir)
	if err != nil {
		return backlog{}, err
	}
	b := buildBatch(make([]byte, min(t.Batch, backlogBatch)), sampleValue(t.Record))
	many := make([]byte, 0, writeChunk)
	for len(many)+len(b) <= cap(many) {
		many = append(many, b...)
	}
	l := backlog{f: f, batch: len(b), crc: uint64(binary.LittleEndian.Uint32(b[4:]))}
	for l.size < backlogBytes {
		if _, err := f.WriteAt(many, l.size); err != nil {
			return l, err
		}
		l.size += int64(len(many))
	}
	return l, nil
}

// A request asks for whole batches from a number on; its answer is the header,
// of the same size, and the batches.
//
//	| first batch u64 | bytes at most u32 | 0 u32 |      | bytes u32 | 0 … |
const consumeHeader = 16

// answer returns where in the file the answer to a request lies and how long it is.
func (l *backlog) answer(request []byte) (at int64, n int) {
	first := int64(binary.LittleEndian.Uint64(request))
	most := int64(binary.LittleEndian.Uint32(request[8:]))
	at = first * int64(l.batch) % l.size
	return at, int(min(most/int64(l.batch)*int64(l.batch), l.size-at))
}

// consumeServer answers by sendfile.
func consumeServer(t task, ready func(string)) (measure, error) {
	return serveBacklog(t, ready, func(l *backlog, s *sock) func(at int64, n int) error {
		head := make([]byte, consumeHeader)
		return func(at int64, n int) error {
			binary.LittleEndian.PutUint32(head, uint32(n))
			if err := s.write(head, true); err != nil {
				return err
			}
			return s.sendFile(l.f, at, n)
		}
	})
}

// copyingConsumeServer answers by reading the file into memory and writing that
// to the socket.
func copyingConsumeServer(t task, ready func(string)) (measure, error) {
	return serveBacklog(t, ready, func(l *backlog, s *sock) func(at int64, n int) error {
		buf := make([]byte, consumeHeader+t.Batch)
		return func(at int64, n int) error {
			binary.LittleEndian.PutUint32(buf, uint32(n))
			if _, err := l.f.ReadAt(buf[consumeHeader:consumeHeader+n], at); err != nil {
				return err
			}
			return s.write(buf[:consumeHeader+n], false)
		}
	})
}

func serveBacklog(t task, ready func(string), sender func(*backlog, *sock) func(at int64, n int) error) (measure, error) {
	l, err := newBacklog(t)
	if err != nil {
		return measure{}, err
	}
	socks, err := listen(t.Conns, ready)
	if err != nil {
		return measure{}, err
	}
	g := &gauge{warm: t.warmUp()}
	err = each(socks, func(_ int, s *sock) error {
		send := sender(&l, s)
		return readRequests(s, func(request []byte) error {
			at, n := l.answer(request)
			if n == 0 {
				return fmt.Errorf("batches of %d bytes do not fit an answer of %d", l.batch, t.Batch)
			}
			err := send(at, n)
			g.add(n)
			return err
		})
	})
	m := g.stop()
	m.Batches = g.moved / int64(l.batch)
	m.Sum = uint64(m.Batches) * l.crc
	return m, err
}

// readRequests calls f with each request until the client has had enough.
func readRequests(s *sock, f func(request []byte) error) error {
	buf := make([]byte, 64*consumeHeader)
	end := 0
	for {
		n, err := s.read(buf[end:], 0)
		if err != nil {
			return endOfStream(err, end)
		}
		end += n
		at := 0
		for ; end-at >= consumeHeader; at += consumeHeader {
			if err := f(buf[at : at+consumeHeader]); err != nil {
				return err
			}
		}
		end = copy(buf, buf[at:end])
	}
}

func consumeClient(t task, _ func(string)) (measure, error) {
	socks, err := dial(t.Conns, t.Addr)
	if err != nil {
		return measure{}, err
	}
	g := &gauge{warm: t.warmUp()}
	var batches, sum atomic.Int64
	var latency mem.Hist
	err = each(socks, func(_ int, s *sock) error {
		c := consuming{s: s, g: g, fetch: t.Batch, buf: make([]byte, readChunk)}
		err := c.run((t.warmUp() + t.Bytes) / int64(t.Conns))
		batches.Add(c.check.batches)
		sum.Add(int64(c.check.sum))
		return err
	})
	m := g.stop()
	m.Batches, m.Sum = batches.Load(), uint64(sum.Load())
	m.P50, m.P99 = quantiles(&latency)
	return m, err
}

// A consuming is one reader.
type consuming struct {
	s     *sock
	g     *gauge
	fetch int
	buf   []byte
	end   int   // of what is in buf
	next  int64 // batch to be asked for
	check checker
}

const requestsInFlight = 2

// run reads at least bytes.
func (c *consuming) run(bytes int64) error {
	var head [consumeHeader]byte
	perAnswer := int64(1) // guessed until the first answer tells
	ask := func() error {
		binary.LittleEndian.PutUint64(head[:], uint64(c.next))
		binary.LittleEndian.PutUint32(head[8:], uint32(c.fetch))
		c.next += perAnswer
		return c.s.write(head[:], false)
	}
	for range requestsInFlight {
		if err := ask(); err != nil {
			return err
		}
	}
	asked, answered := int64(requestsInFlight), int64(0)
	for moved := int64(0); answered < asked; answered++ {
		n, err := c.readAnswer()
		if err != nil {
			return err
		}
		if moved += int64(n); moved < bytes {
			if err := ask(); err != nil {
				return err
			}
			asked++
		}
	}
	return nil
}

// readAnswer reads one answer, checks it and takes it apart as it arrives, and
// returns its length without the header.
func (c *consuming) readAnswer() (int, error) {
	for c.end < consumeHeader {
		if err := c.fill(c.buf[c.end:], consumeHeader-c.end); err != nil {
			return 0, err
		}
	}
	length := int(binary.LittleEndian.Uint32(c.buf))
	if length <= 0 || length > c.fetch {
		return 0, fmt.Errorf("answer of %d bytes, at most %d were asked for", length, c.fetch)
	}
	c.end = copy(c.buf, c.buf[consumeHeader:c.end])
	left := length // of the answer, what is in buf included
	for {
		have := min(c.end, left)
		whole, err := c.take(c.buf[:have])
		if err != nil {
			return 0, err
		}
		c.end = copy(c.buf, c.buf[whole:c.end])
		if left -= whole; left == 0 {
			return length, nil
		}
		if c.end >= left {
			return 0, errors.New("the answer ends inside a batch")
		}
		// to the end of the answer and the next one's header
		to := min(len(c.buf), left+consumeHeader)
		if err := c.fill(c.buf[c.end:to], left-c.end); err != nil {
			return 0, err
		}
	}
}

// take checks the whole batches at the front of p and takes their records apart.
func (c *consuming) take(p []byte) (int, error) {
	n, _, err := c.check.whole(p)
	if err != nil {
		return 0, err
	}
	for rest := p[:n]; len(rest) > 0; {
		length, err := batchLen(rest)
		if err != nil {
			return 0, err
		}
		if _, err := walk(rest[:length]); err != nil {
			return 0, err
		}
		rest = rest[length:]
	}
	c.g.add(n)
	return n, nil
}

func (c *consuming) fill(p []byte, want int) error {
	n, err := c.s.read(p, want)
	if err != nil {
		return fmt.Errorf("answer: %w", err)
	}
	c.end += n
	return nil
}

func init() {
	sides["consume server"] = consumeServer
	sides["consume server, copying"] = copyingConsumeServer
	sides["consume client"] = consumeClient
}
