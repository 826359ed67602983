package bench

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"sync/atomic"
)

// What consume cannot do without. Client: ask, with two requests in flight,
// check every batch of the answers, take every record apart. Server: send what
// is asked for from a file that the page cache holds.

// probeConsume reads by sendfile, each of the readers over a connection of its
// own, answers of at most fetch bytes, moved bytes by all readers together.
func probeConsume(ctx context.Context, dir string, fetch, record, readers int, moved int64) (Round, error) {
	return consume(ctx, "consume server", task{Dir: dir, Batch: fetch, Record: record, Conns: readers, Bytes: moved})
}

func consume(ctx context.Context, server string, t task) (Round, error) {
	client := t
	t.Side, client.Side = server, "consume client"
	s, c, err := pair(ctx, t, client)
	return roundOf(s, c), err
}

// A backlog is a file of equal batches in the page cache, in portions of as
// many whole batches as fit an answer.
type backlog struct {
	f        *os.File
	batch    int // bytes of each
	portion  int // bytes
	portions int64
	crc      uint64 // of each batch
}

const (
	backlogBytes = 256 << 20 // at most; far more than a processor's caches hold
	backlogBatch = 64 << 10  // of a batch in it, at most
)

func newBacklog(t task) (*backlog, error) {
	f, err := tempFile(t.Dir)
	if err != nil {
		return nil, err
	}
	b := buildBatch(make([]byte, min(t.Batch, backlogBatch)), sampleValue(t.Record))
	p := bytes.Repeat(b, t.Batch/len(b))
	l := &backlog{f: f, batch: len(b), portion: len(p), portions: max(1, min(backlogBytes, t.Bytes)/int64(len(p)))}
	l.crc = uint64(binary.LittleEndian.Uint32(b[4:]))
	for i := range l.portions {
		if _, err := f.WriteAt(p, i*int64(len(p))); err != nil {
			return nil, err
		}
	}
	return l, nil
}

// A request is for a portion by its number; behind the last comes the first.
// The answer is a header of the same size and the portion.
//
//	| number u64 | 0 u64 |        | bytes u32 | 0 … |
const consumeHeader = 16

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
		send := sender(l, s)
		return readRequests(s, func(request []byte) error {
			number := int64(binary.LittleEndian.Uint64(request) >> 1)
			err := send(number%l.portions*int64(l.portion), l.portion)
			g.add(l.portion)
			return err
		})
	})
	m := g.stop()
	if t.Unchecked { // all that the client can tell is how much there was
		m.Batches = g.moved
	} else {
		m.Batches = g.moved / int64(l.batch)
		m.Sum = uint64(m.Batches) * l.crc
	}
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
	err = each(socks, func(_ int, s *sock) error {
		c := consuming{s: s, g: g, fetch: t.Batch, unchecked: t.Unchecked, buf: make([]byte, answerChunk)}
		err := c.run(t.perConn())
		batches.Add(c.check.batches)
		sum.Add(int64(c.check.sum))
		return err
	})
	m := g.stop()
	m.Batches, m.Sum = batches.Load(), uint64(sum.Load())
	if t.Unchecked {
		m.Batches = g.moved
	}
	return m, err
}

// A consuming is one reader.
type consuming struct {
	s     *sock
	g     *gauge
	fetch int
	buf   []byte
	end   int // of what is in buf
	check checker

	unchecked bool
}

const requestsInFlight = 2

// answerChunk is how much a reader takes at once. Smaller reads keep it at the
// socket while the server sends, and each is in the other's way.
const answerChunk = 512 << 10

// run reads at least so many bytes.
func (c *consuming) run(least int64) error {
	var head [consumeHeader]byte
	asked := int64(0)
	ask := func() error {
		binary.LittleEndian.PutUint64(head[:], uint64(asked))
		asked++
		return c.s.write(head[:], false)
	}
	for range requestsInFlight {
		if err := ask(); err != nil {
			return err
		}
	}
	moved := int64(0)
	for answered := int64(0); answered < asked; answered++ {
		n, err := c.readAnswer()
		if err != nil {
			return err
		}
		if moved += int64(n); moved < least {
			if err := ask(); err != nil {
				return err
			}
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
	if c.unchecked {
		c.g.add(len(p))
		return len(p), nil
	}
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
