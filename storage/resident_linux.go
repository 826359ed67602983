package storage

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// resident reports whether the first and the last page of the range are in
// memory. Where the kernel cannot tell it says true.
func (f osFile) resident(off, n int64) bool {
	fd := f.Fd() // good while the file is open
	return n <= 0 || cached(fd, off) && cached(fd, off+n-1)
}

// cached tries to read one byte without waiting for the disk.
func cached(fd uintptr, off int64) bool {
	var b [1]byte
	iov := unix.Iovec{Base: &b[0]}
	iov.SetLen(len(b))
	_, _, err := unix.Syscall6(unix.SYS_PREADV2, fd, uintptr(unsafe.Pointer(&iov)), 1, uintptr(off), 0, unix.RWF_NOWAIT)
	return err != unix.EAGAIN
}
