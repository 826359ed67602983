package wire

import (
	"io"
	"net"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// errWouldBlock says that a system call has to wait.
const errWouldBlock = unix.EAGAIN

// systemSocket returns the raw form of a TCP or local stream socket, nil of
// anything else.
func systemSocket(c net.Conn) syscall.RawConn {
	switch c := c.(type) {
	case *net.TCPConn:
		raw, _ := c.SyscallConn()
		return raw
	case *net.UnixConn:
		raw, _ := c.SyscallConn()
		return raw
	}
	return nil
}

// unpace has the kernel send at once what the peer has room for. Where its default
// is BBR, it sends by a clock, at the rate it believes the path to have: between two
// ends on one machine there is no path to share, and the timers and the waiting cost
// a fifth of the throughput of batches of 1 MiB. Reno sends as it may, and every kernel
// has it for everybody. One that refuses it is no slower than before.
func (s *socket) unpace() {
	s.raw.Control(func(fd uintptr) {
		unix.SetsockoptString(int(fd), unix.IPPROTO_TCP, unix.TCP_CONGESTION, "reno")
	})
}

// tryRead reads once without blocking. While there is nothing to read it holds
// no buffer that is empty.
func (r *frameReader) tryRead(fd uintptr) (done bool) {
	if r.wantLowat != r.lowat {
		// A socket that cannot be told is read in smaller pieces, no worse.
		unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVLOWAT, r.wantLowat)
		r.lowat = r.wantLowat
	}
	for {
		n, err := unix.Read(int(fd), r.space())
		switch {
		case err == unix.EINTR:
			continue
		case err == unix.EAGAIN:
			if r.have() == 0 {
				r.drop()
			}
			return false
		case err != nil:
			r.err = os.NewSyscallError("read", err)
		case n == 0:
			r.err = io.EOF
		default:
			r.n = n
			if r.yield != nil && n >= longRead {
				r.yield()
			}
		}
		return true
	}
}

// tryWrite writes or sends once, without blocking unless s.w.block.
func (s *socket) tryWrite(fd uintptr) (done bool) {
	w := &s.w
	for {
		switch {
		case len(w.bufs) == 0:
			w.n, w.err = s.sendOnce(int(fd))
		case len(w.bufs) == 1:
			flags := unix.MSG_NOSIGNAL
			if w.more {
				flags |= unix.MSG_MORE
			}
			w.n, w.err = unix.SendmsgN(int(fd), w.bufs[0], nil, nil, flags)
		case w.more:
			w.n, w.err = unix.SendmsgBuffers(int(fd), w.bufs, nil, nil, unix.MSG_NOSIGNAL|unix.MSG_MORE)
		default:
			w.n, w.err = unix.Writev(int(fd), w.bufs)
		}
		if w.err != unix.EINTR {
			break
		}
	}
	w.n = max(w.n, 0)
	return w.err != unix.EAGAIN || !w.block
}

// sendOnce sends from the file that s.w names. A large piece should have a place
// among those that are sent at once.
func (s *socket) sendOnce(fd int) (int, error) {
	if s.bulk != nil && s.w.len > maxInline && s.bulk.enter() {
		defer s.bulk.leave()
	}
	off := s.w.off
	return unix.Sendfile(fd, int(s.w.file), &off, s.w.len)
}

// sentFrom returns the processor on which the kernel took in what arrived last: on
// the loopback, the sender's.
func (s *socket) sentFrom() (cpu int, ok bool) {
	if s.raw == nil {
		return 0, false
	}
	err := s.raw.Control(func(fd uintptr) {
		var err error
		cpu, err = unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_INCOMING_CPU)
		ok = err == nil
	})
	return cpu, ok && err == nil
}

// ended reports whether the peer has ended the connection and nothing is left
// to read. It does not block.
func (s *socket) ended() bool {
	if s.raw == nil {
		return s.plainEnded()
	}
	var n int
	var err error
	var one [1]byte
	// Control, unlike Read, pays no heed to a deadline that is over.
	if s.raw.Control(func(fd uintptr) {
		n, _, err = unix.Recvfrom(int(fd), one[:], unix.MSG_PEEK|unix.MSG_DONTWAIT)
	}) != nil {
		return true
	}
	return n <= 0 && err != unix.EAGAIN && err != unix.EINTR
}

// readNow reads what is there and does not block: with nothing the error is
// os.ErrDeadlineExceeded, as of a read that has no time.
func (s *socket) readNow(p []byte) (n int, err error) {
	if s.raw == nil {
		return s.plainReadNow(p)
	}
	if closed := s.raw.Control(func(fd uintptr) {
		n, _, err = unix.Recvfrom(int(fd), p, unix.MSG_DONTWAIT)
	}); closed != nil {
		return 0, closed
	}
	switch {
	case err == unix.EAGAIN || err == unix.EINTR:
		return 0, os.ErrDeadlineExceeded
	case err != nil:
		return 0, os.NewSyscallError("recvfrom", err)
	case n == 0:
		return 0, io.EOF
	}
	return n, nil
}
