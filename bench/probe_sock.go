package bench

import (
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"
)

// A sock is one end of a loopback connection. What it can do more than a
// net.Conn is tell the kernel when to wake it, and send from a file.
type sock struct {
	conn  *net.TCPConn
	raw   syscall.RawConn
	lowat int // what the kernel has been told

	// Of the read and the write under way, which may be at the same time. The
	// callbacks are made once, so that calls allocate nothing.
	in struct {
		p    []byte
		mark int
		n    int
		err  error
	}
	out struct {
		p    []byte
		more bool
		file *os.File
		off  int64
		left int
		err  error
	}
	onRead  func(fd uintptr) bool
	onWrite func(fd uintptr) bool
}

func newSock(c net.Conn) (*sock, error) {
	s := &sock{conn: c.(*net.TCPConn), lowat: 1}
	raw, err := s.conn.SyscallConn()
	if err != nil {
		return nil, err
	}
	s.raw = raw
	s.onRead, s.onWrite = s.tryRead, s.tryWrite
	// A limit has no use for a kernel that sends by a clock, as BBR does. One that
	// cannot be told sends as it likes.
	err = raw.Control(func(fd uintptr) {
		unix.SetsockoptString(int(fd), unix.IPPROTO_TCP, unix.TCP_CONGESTION, "reno")
	})
	return s, err
}

// listen tells ready where it listens, takes n connections and stops listening.
func listen(n int, ready func(addr string)) ([]*sock, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	defer l.Close()
	ready(l.Addr().String())
	socks := make([]*sock, n)
	for i := range socks {
		c, err := l.Accept()
		if err != nil {
			return nil, err
		}
		if socks[i], err = newSock(c); err != nil {
			return nil, err
		}
	}
	return socks, nil
}

// dial makes n connections to addr.
func dial(n int, addr string) ([]*sock, error) {
	socks := make([]*sock, n)
	for i := range socks {
		c, err := net.Dial("tcp", addr)
		if err != nil {
			return nil, err
		}
		if socks[i], err = newSock(c); err != nil {
			return nil, err
		}
	}
	return socks, nil
}

// read waits for want bytes, which must be certain to come, and takes those and
// what else has arrived, as far as p reaches. It may take fewer than want: the
// kernel wakes a reader early if it needs room. The end is io.EOF.
func (s *sock) read(p []byte, want int) (int, error) {
	s.in.p, s.in.mark = p, lowWater(s.lowat, want)
	if err := s.raw.Read(s.onRead); err != nil {
		return 0, err
	}
	return s.in.n, s.in.err
}

// lowWater returns the low-water mark for want bytes that are certain to come,
// now being the mark that is set. Setting it is a system call, so a mark that
// is not too high stays.
func lowWater(now, want int) int {
	switch {
	case want <= 64<<10:
		return 1
	case now == 1 || now > want:
		return min(want, 1<<20)
	}
	return now
}

func (s *sock) tryRead(fd uintptr) bool {
	if s.in.mark != s.lowat {
		s.lowat = s.in.mark
		if err := unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVLOWAT, s.in.mark); err != nil {
			s.in.n, s.in.err = 0, os.NewSyscallError("setsockopt", err)
			return true
		}
	}
	for {
		n, err := unix.Read(int(fd), s.in.p)
		switch {
		case err == unix.EINTR:
			continue
		case err == unix.EAGAIN:
			return false
		case err != nil:
			s.in.n, s.in.err = 0, os.NewSyscallError("read", err)
		case n == 0:
			s.in.n, s.in.err = 0, io.EOF
		default:
			s.in.n, s.in.err = n, nil
		}
		return true
	}
}

// write sends all of p. If more is set, the kernel may wait for what the next
// call sends.
func (s *sock) write(p []byte, more bool) error {
	s.out.p, s.out.more, s.out.file = p, more, nil
	return s.send()
}

// sendFile sends n bytes of f, which has them, from off on.
func (s *sock) sendFile(f *os.File, off int64, n int) error {
	s.out.file, s.out.off, s.out.left = f, off, n
	err := s.send()
	runtime.KeepAlive(f) // its number must not become another file's meanwhile
	return err
}

func (s *sock) send() error {
	if err := s.raw.Write(s.onWrite); err != nil {
		return err
	}
	return s.out.err
}

func (s *sock) tryWrite(fd uintptr) bool {
	w := &s.out
	w.err = nil
	for w.file == nil && len(w.p) > 0 || w.file != nil && w.left > 0 {
		var n int
		var err error
		switch {
		case w.file != nil:
			n, err = unix.Sendfile(int(fd), int(w.file.Fd()), &w.off, w.left)
			w.left -= max(n, 0)
			if n == 0 && err == nil {
				w.err = fmt.Errorf("sendfile: the file ended %d bytes early", w.left)
				return true
			}
		case w.more:
			n, err = unix.SendmsgN(int(fd), w.p, nil, nil, unix.MSG_MORE|unix.MSG_NOSIGNAL)
			w.p = w.p[max(n, 0):]
		default:
			n, err = unix.Write(int(fd), w.p)
			w.p = w.p[max(n, 0):]
		}
		switch err {
		case nil, unix.EINTR:
		case unix.EAGAIN:
			return false
		default:
			w.err = os.NewSyscallError("write", err)
			return true
		}
	}
	return true
}
