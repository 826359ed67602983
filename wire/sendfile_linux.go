package wire

import (
	"errors"
	"fmt"
	"runtime"

	"golang.org/x/sys/unix"
)

// A sysFile is a FileRange's reader that is a file of the system.
type sysFile interface{ SysFd() uintptr }

// sendFile sends at most n bytes of f, from the byte at done on, from the page
// cache to the socket. The offset is explicit: a descriptor is shared by many
// connections and its position is nobody's. ok is false if f or the socket
// cannot do that; then nothing was sent. wait says that nothing was since that
// would have had to wait for the peer, which it does only with block.
//
// The descriptor comes from an open file that f.R keeps open until f.Done;
// f.R must stay reachable meanwhile, else the collector may close the file
// while its number is in use.
func (s *socket) sendFile(f *FileRange, done int64, n int, block bool) (sent int, ok, wait bool, err error) {
	file, isFile := f.R.(sysFile)
	if s.raw == nil || !isFile {
		return 0, false, false, nil
	}
	s.w.bufs, s.w.file, s.w.off, s.w.len = nil, file.SysFd(), f.Off+done, n
	sent, wait, err = s.rawWrite(block)
	runtime.KeepAlive(f.R)
	if sent == 0 && (errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOSYS)) {
		return 0, false, false, nil // a file system without it
	}
	if err != nil {
		err = fmt.Errorf("sendfile: %w", err)
	}
	return sent, true, wait, err
}
