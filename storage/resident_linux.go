package storage

import (
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// probeEvery is how far apart the bytes are that resident looks at if the kernel
// does not count: what was read in order leaves memory in order, so a hole is
// seldom shorter.
const probeEvery = 1 << 20

// resident reports whether the range is in memory. A kernel before 6.5 is asked
// about its first and last page and some in between; where it cannot tell that
// either the answer is true.
func (f osFile) resident(off, n int64) bool {
	if n <= 0 {
		return true
	}
	fd, last := f.Fd(), off+n-1 // fd is good while the file is open
	all, err := counted(fd, off, n)
	if err == nil {
		return all && cached(fd, last) // a page on its way from the disk was counted
	}
	for at := off; at < last; at += probeEvery {
		if !cached(fd, at) {
			return false
		}
	}
	return cached(fd, last)
}

// counted reports whether all pages of the range, which is not empty, are in
// memory or on their way there, and has none brought in. A read does: one that
// is not to wait has the kernel begin to fetch what is missing, and if the disk is
// quick, or this thread is held up, it finds there what was not.
func counted(fd uintptr, off, n int64) (bool, error) {
	page := int64(os.Getpagesize())
	return reached((off+n-1)/page-off/page+1, func() (int64, error) {
		var in unix.Cachestat_t
		err := unix.Cachestat(uint(fd), &unix.CachestatRange{Off: uint64(off), Len: uint64(n)}, &in, 0)
		return int64(in.Cache), err
	})
}

// counts is how often pages are counted before some are taken for missing. The
// kernel never says too many, but too few if it gives up its processor on the
// way: it then passes over pages of a large folio (Linux 6.18; one count in a
// thousand here, while mincore called every page present).
const counts = 3

// reached reports whether one of the counts comes to want.
func reached(want int64, count func() (int64, error)) (bool, error) {
	for range counts {
		if n, err := count(); err != nil || n >= want {
			return err == nil, err
		}
	}
	return false, nil
}

// cached tries to read one byte without waiting for the disk.
func cached(fd uintptr, off int64) bool {
	var b [1]byte
	_, err := readNoWait(fd, b[:], off)
	return err != unix.EAGAIN
}

func (f osFile) readNow(p []byte, off int64) bool {
	fd := f.Fd() // good while the file is open
	if all, err := counted(fd, off, int64(len(p))); err == nil && !all {
		return false
	}
	n, err := readNoWait(fd, p, off)
	return err == 0 && n == len(p)
}

// readNoWait reads what of p is in memory; EAGAIN if not even the first byte is.
func readNoWait(fd uintptr, p []byte, off int64) (int, unix.Errno) {
	iov := unix.Iovec{Base: &p[0]}
	iov.SetLen(len(p))
	n, _, err := unix.Syscall6(unix.SYS_PREADV2, fd, uintptr(unsafe.Pointer(&iov)), 1, uintptr(off), 0, unix.RWF_NOWAIT)
	return int(n), err
}

// absent returns the pages of the range that are not in memory, as spans of
// bytes. It brings none in. Where the kernel cannot tell there are none.
func (f osFile) absent(off, n int64) (spans []span) {
	page := int64(os.Getpagesize())
	from := off / page * page
	f.control("mincore", func(fd int) error {
		b, err := unix.Mmap(fd, from, int(off+n-from), unix.PROT_READ, unix.MAP_SHARED)
		if err != nil {
			return err
		}
		defer unix.Munmap(b)
		mincore(b, int(page), func(at int) bool {
			spans = addSpan(spans, span{from + int64(at), from + int64(at) + page})
			return true
		})
		return nil
	})
	return spans
}

// resident reports whether the first n bytes of the mapping are in memory.
func (m osMapping) resident(n int) bool {
	in := true
	mincore(m[:min(n, len(m))], os.Getpagesize(), func(int) bool {
		in = false
		return false
	})
	return in
}

// mincore calls out with where each page of b begins that is not in memory, until
// it returns false. Where the kernel cannot tell it is not called.
func mincore(b []byte, page int, out func(at int) bool) {
	var vec [1024]byte
	for at := 0; at < len(b); at += len(vec) * page {
		part := b[at:min(at+len(vec)*page, len(b))]
		_, _, err := unix.Syscall(unix.SYS_MINCORE, uintptr(unsafe.Pointer(&part[0])), uintptr(len(part)), uintptr(unsafe.Pointer(&vec[0])))
		if err != 0 {
			return
		}
		for i := range (len(part) + page - 1) / page {
			if vec[i]&1 == 0 && !out(at+i*page) {
				return
			}
		}
	}
}
