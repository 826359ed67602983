//go:build !linux

package wire

import (
	"errors"
	"net"
	"syscall"
)

// errWouldBlock says that a system call has to wait.
var errWouldBlock = errors.New("would block")

// systemSocket returns nil: every connection goes through Read and Write.
func systemSocket(net.Conn) syscall.RawConn { return nil }

func (r *frameReader) tryRead(uintptr) bool { return true }

func (s *socket) tryWrite(uintptr) bool { return true }

func (s *socket) unpace() {}

func (s *socket) sentFrom() (int, bool) { return 0, false }

func (s *socket) ended() bool { return s.plainEnded() }

func (s *socket) readNow(p []byte) (int, error) { return s.plainReadNow(p) }
