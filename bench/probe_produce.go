package bench

import (
	"context"
	"encoding/binary"
	"errors"
	"os"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// What produce cannot do without. Client: build each batch, send it. Server:
// receive in large reads, check every batch, one pwrite and one acknowledgement
// a read. In the synced form the acknowledgement waits for an fdatasync, and
// reads go on meanwhile.

// probeProduce moves so many bytes in batches of at most batch bytes over conns
// connections, window of them in flight on each. The client builds them of
// records of record bytes; if record is 0 it sends a ready one again and again.
// The server writes a new file for each connection. P50 and P99 are those of
// the acknowledgements.
func probeProduce(ctx context.Context, dir string, batch, record, window, conns int, moved int64) (Round, error) {
	return produce(ctx, "produce server", task{Dir: dir, Batch: batch, Record: record, Window: window, Conns: conns, Bytes: moved})
}

// probeSyncProduce is the same with one file for all connections, and
// acknowledgements only of what is on disk.
func probeSyncProduce(ctx context.Context, dir string, batch, record, window, conns int, moved int64) (Round, error) {
	return produce(ctx, "produce server, synced", task{Dir: dir, Batch: batch, Record: record, Window: window, Conns: conns, Bytes: moved})
}

func produce(ctx context.Context, server string, t task) (Round, error) {
	client := t
	t.Side, client.Side = server, "produce client"
	s, c, err := pair(ctx, t, client)
	return roundOf(s, c), err
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

// reserve gives f its blocks before the clock starts, if the file system can,
// which leaves an eighth less to do for each write.
func reserve(f *os.File, bytes int64) error {
	err := unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_KEEP_SIZE, 0, bytes)
	if err == unix.EOPNOTSUPP {
		return nil
	}
	return os.NewSyscallError("fallocate", err)
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
		if err := reserve(f, t.perConn()+sendChunk+int64(t.Batch)); err != nil {
			return measure{}, err
		}
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
