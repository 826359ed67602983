package wire

import (
	"io"
	"net"
	"os"
	"sync/atomic"
	"syscall"
	"time"
)

// A socket is one connection as the transport uses it. A system socket is
// read, written and sent to from files by system calls that do not block,
// which is what lets a reader wait without a buffer and send without waiting;
// an encrypted connection is written to through what encrypts it, and any other,
// in memory, through Read and Write.
type socket struct {
	net.Conn
	raw      syscall.RawConn // nil: not a system socket
	tls      *tlsConn        // nil: not encrypted
	patience time.Duration   // how long a write may make no progress
	bulk     *places         // for large pieces of files being sent; nil: any number

	// Arguments and results of the write callback, which is made once so that
	// a write allocates nothing. They belong to whoever sends.
	onWrite func(fd uintptr) bool
	w       struct {
		bufs  [][]byte // to be written, or
		file  uintptr  // read from here if bufs is empty
		off   int64
		len   int
		more  bool // something follows at once
		block bool
		n     int
		err   error
	}
}

// places are how many may do something long at once.
type places struct {
	taken   chan struct{}
	wait    time.Duration // nobody waits longer
	waiting atomic.Int32  // how many do
	yield   func()        // mem.Yield
}

// enter waits for a place and reports whether it got one, which leave gives back.
// It does not wait for ever: who has one and reads from a disk that hangs must
// not hold up all others.
func (p *places) enter() bool {
	select {
	case p.taken <- struct{}{}:
		return true
	default:
	}
	p.waiting.Add(1)
	defer p.waiting.Add(-1)
	timer := time.NewTimer(p.wait)
	defer timer.Stop()
	select {
	case p.taken <- struct{}{}:
		return true
	case <-timer.C:
		return false
	}
}

// leave gives the place back, and if somebody waits for one the processor first:
// there is always a next one then, and threads with little to do would wait behind
// them all. A lone reader is better served at once, while the cache has his piece.
func (p *places) leave() {
	if p.waiting.Load() > 0 {
		p.yield()
	}
	<-p.taken
}

func newSocket(c net.Conn, patience time.Duration) *socket {
	s := &socket{Conn: c, patience: patience, raw: systemSocket(c)}
	s.tls, _ = c.(*tlsConn)
	s.onWrite = s.tryWrite
	if s.raw != nil && isNear(c) {
		s.unpace()
	}
	return s
}

// A tryWriter can write what fits at once, without blocking.
type tryWriter interface {
	TryWrite(p []byte) (n int, err error)
}

// A tryReader can read what is there, without blocking.
type tryReader interface {
	TryRead(p []byte) (n int, err error)
}

// write writes a part of bufs, which is not empty, and returns how many bytes
// it took. With block it waits, at most for the socket's patience, until that
// is at least one; without, 0 says that it would have had to wait. more says
// that further bytes follow at once.
func (s *socket) write(bufs [][]byte, more, block bool) (int, error) {
	if s.raw != nil {
		s.w.bufs, s.w.more = bufs, more
		n, _, err := s.rawWrite(block)
		s.w.bufs = nil
		return n, err
	}
	if s.tls != nil {
		return s.tls.write(bufs, more, block)
	}
	if t, ok := s.Conn.(tryWriter); ok {
		if n, err := t.TryWrite(bufs[0]); n > 0 || err != nil || !block {
			return n, err
		}
	} else if !block {
		return 0, nil
	}
	if err := s.SetWriteDeadline(time.Now().Add(s.patience)); err != nil {
		return 0, err
	}
	return s.Conn.Write(bufs[0][:min(len(bufs[0]), firstPiece)])
}

// rawWrite does what s.w asks; wait says that without block it did nothing,
// since it would have had to wait.
func (s *socket) rawWrite(block bool) (n int, wait bool, err error) {
	n, wait, err = s.rawWriteOnce(false)
	if !wait || !block {
		return n, wait, err
	}
	// The deadline is set only now: a write that need not wait, nearly all,
	// is spared two timer changes.
	if err := s.SetWriteDeadline(time.Now().Add(s.patience)); err != nil {
		return 0, false, err
	}
	n, _, err = s.rawWriteOnce(true)
	if err == nil {
		err = s.SetWriteDeadline(time.Time{})
	}
	return n, false, err
}

// rawWriteOnce runs the write callback.
func (s *socket) rawWriteOnce(block bool) (n int, wait bool, err error) {
	s.w.block, s.w.n, s.w.err = block, 0, nil
	if err := s.raw.Write(s.onWrite); err != nil {
		return 0, false, err
	}
	if s.w.err == errWouldBlock {
		return 0, true, nil
	}
	return s.w.n, false, s.w.err
}

// plainReadNow is readNow for connections that are no system sockets; of those that
// cannot tell nothing is read.
func (s *socket) plainReadNow(p []byte) (int, error) {
	if t, ok := s.Conn.(tryReader); ok {
		return t.TryRead(p)
	}
	return 0, os.ErrDeadlineExceeded
}

// discard throws away what has arrived, without blocking.
func (s *socket) discard() {
	var scratch [4 << 10]byte
	for range maxHandshake / len(scratch) {
		if n, _ := s.readNow(scratch[:]); n == 0 {
			return
		}
	}
}

// plainEnded is ended for connections that are no system sockets; only some
// can tell.
func (s *socket) plainEnded() bool {
	c, ok := s.Conn.(interface{ Ended() bool })
	return ok && c.Ended()
}

// lastWord returns why ended is true: what the peer's TLS had to say, or that it
// closed.
func (s *socket) lastWord() error {
	if s.tls != nil && s.tls.lastWord != nil {
		return s.tls.lastWord
	}
	return io.EOF
}

// closeWrite tells the peer that nothing more will come.
func (s *socket) closeWrite() {
	if c, ok := s.Conn.(interface{ CloseWrite() error }); ok {
		c.CloseWrite()
	}
}

// linger throws away what the peer still sends until it closes or the time is
// over. Closing a socket with unread bytes would reset it, and the peer could
// lose answers that it had not read yet.
func (s *socket) linger(d time.Duration) {
	s.SetReadDeadline(time.Now().Add(d))
	var scratch [512]byte
	for {
		if _, err := io.ReadFull(s.Conn, scratch[:]); err != nil {
			return
		}
	}
}
