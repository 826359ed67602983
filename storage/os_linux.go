package storage

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"
)

// OS returns the machine's file system. From the first call on it holds a few
// descriptors back, for files and directories that are opened when the process
// has used up all others.
func OS() FS {
	keepSpares()
	return osFS{}
}

type osFS struct{}

func (osFS) Open(name string, mode Mode) (File, error) {
	flag := os.O_RDWR
	switch mode {
	case Read:
		flag = os.O_RDONLY
	case Create:
		flag |= os.O_CREATE
	case CreateNew:
		flag |= os.O_CREATE | os.O_EXCL
	}
	f, err := openFile(name, flag, 0o640)
	if err != nil {
		return nil, err
	}
	return osFile{f}, nil
}

func (osFS) Mkdir(name string) error      { return os.MkdirAll(name, 0o750) }
func (osFS) Rename(old, new string) error { return os.Rename(old, new) }
func (osFS) Remove(name string) error     { return os.Remove(name) }
func (osFS) RemoveAll(name string) error  { return os.RemoveAll(name) }

func (osFS) ReadDir(name string) ([]Entry, error) {
	des, err := os.ReadDir(name)
	if err != nil {
		return nil, err
	}
	es := make([]Entry, 0, len(des))
	for _, de := range des {
		fi, err := de.Info()
		if os.IsNotExist(err) {
			continue // unlinked since the directory was read
		}
		if err != nil {
			return nil, err
		}
		es = append(es, entryOf(fi))
	}
	return es, nil
}

func (osFS) Stat(name string) (Entry, error) {
	fi, err := os.Stat(name)
	if err != nil {
		return Entry{}, err
	}
	return entryOf(fi), nil
}

func entryOf(fi fs.FileInfo) Entry {
	e := Entry{Name: fi.Name(), Dir: fi.IsDir()}
	if !e.Dir {
		e.Size = fi.Size()
	}
	return e
}

func (osFS) SyncDir(name string) error {
	d, err := openFile(name, os.O_RDONLY, 0)
	if err != nil {
		return err
	}
	defer keepSpares()
	defer d.Close()
	return d.Sync()
}

// Volume implements FS. What a failed write-back left was not told by syncfs
// before Linux 5.8.
func (osFS) Volume(name string) (Volume, error) {
	if !kernelFrom(5, 8) {
		return nil, errors.ErrUnsupported
	}
	f, err := openFile(name, os.O_RDONLY, 0)
	if err != nil {
		return nil, err
	}
	return osVolume{f}, nil
}

// An osVolume is known by a directory on it. The kernel keeps with the descriptor
// which errors it has told, so it stays open.
type osVolume struct{ f *os.File }

func (v osVolume) Close() error { return v.f.Close() }

func (v osVolume) Sync() (err error) {
	for {
		err = osFile{v.f}.control("syncfs", unix.Syncfs)
		if !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// kernelFrom reports whether the kernel is of this version or a later one.
func kernelFrom(major, minor int) bool {
	var u unix.Utsname
	var has, sub int
	if err := unix.Uname(&u); err != nil {
		return false
	}
	if n, _ := fmt.Sscanf(unix.ByteSliceToString(u.Release[:]), "%d.%d", &has, &sub); n != 2 {
		return false
	}
	return has > major || has == major && sub >= minor
}

func (osFS) Lock(name string) (io.Closer, error) {
	f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o640)
	if err != nil {
		return nil, err
	}
	err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if err == nil {
		return f, nil
	}
	f.Close()
	if err == unix.EWOULDBLOCK {
		err = ErrLocked
	}
	return nil, fmt.Errorf("lock %s: %w", name, err)
}

func (osFS) Space(name string) (total, free int64, err error) {
	var st unix.Statfs_t
	if err := retry(func() error { return unix.Statfs(filepath.Clean(name), &st) }); err != nil {
		return 0, 0, fmt.Errorf("statfs %s: %w", name, err)
	}
	used, free := int64(st.Blocks-st.Bfree), int64(st.Bavail)
	return (used + free) * int64(st.Bsize), free * int64(st.Bsize), nil
}

// An osFile is a file of the real disk. Its raw system calls go through control,
// so that a Close at the same time waits for them and no call can meet a
// descriptor that has been given to another file.
type osFile struct{ *os.File }

// SysFd returns the descriptor for sendfile. It is good until Close.
func (f osFile) SysFd() uintptr { return f.Fd() }

func (f osFile) Size() (int64, error) {
	fi, err := f.Stat()
	if err != nil {
		return 0, err
	}
	return fi.Size(), nil
}

// iovecs lends the lists that WriteParts gives to the kernel.
var iovecs = sync.Pool{New: func() any { return new([]unix.Iovec) }}

// maxIovecs is the kernel's bound, and its number of bytes is a signed 32 bits'.
const maxIovecs = 1024

func (f osFile) WriteParts(parts [][]byte, off int64) (n int, err error) {
	list := iovecs.Get().(*[]unix.Iovec)
	defer iovecs.Put(list)
	size, v := 0, (*list)[:0]
	for _, p := range parts {
		if len(p) > 0 {
			v = append(v, unix.Iovec{Base: &p[0]})
			v[len(v)-1].SetLen(len(p))
			size += len(p)
		}
	}
	*list = v
	defer clear(v)
	fd := f.SysFd()
	for rest := v; n < size; {
		at := off + int64(n)
		k, _, errno := unix.Syscall6(unix.SYS_PWRITEV, fd, uintptr(unsafe.Pointer(&rest[0])), uintptr(min(len(rest), maxIovecs)), uintptr(at), 0, 0)
		if errno == unix.EINTR {
			continue
		}
		switch {
		case errno != 0:
			return n, &fs.PathError{Op: "pwritev", Path: f.Name(), Err: errno}
		case k == 0:
			return n, &fs.PathError{Op: "pwritev", Path: f.Name(), Err: io.ErrShortWrite}
		}
		n += int(k)
		rest = pass(rest, uint64(k))
	}
	runtime.KeepAlive(f.File)
	return n, nil
}

// pass returns v without its first n bytes.
func pass(v []unix.Iovec, n uint64) []unix.Iovec {
	for len(v) > 0 && n >= v[0].Len {
		n -= v[0].Len
		v = v[1:]
	}
	if n > 0 {
		v[0].Base = (*byte)(unsafe.Add(unsafe.Pointer(v[0].Base), n))
		v[0].Len -= n
	}
	return v
}

func (f osFile) Sync() error {
	return f.control("fdatasync", func(fd int) error { return unix.Fdatasync(fd) })
}

func (f osFile) Allocate(off, n int64) error {
	return f.control("fallocate", func(fd int) error {
		return unix.Fallocate(fd, unix.FALLOC_FL_KEEP_SIZE, off, n)
	})
}

func (f osFile) DropCache(off, n int64) error { return f.advise(off, n, unix.FADV_DONTNEED) }
func (f osFile) Prefetch(off, n int64) error  { return f.advise(off, n, unix.FADV_WILLNEED) }

func (f osFile) Scattered() error { return f.advise(0, 0, unix.FADV_RANDOM) }

func (f osFile) WriteBack(off, n int64, wait bool) error {
	flags := unix.SYNC_FILE_RANGE_WRITE
	if wait {
		flags |= unix.SYNC_FILE_RANGE_WAIT_BEFORE | unix.SYNC_FILE_RANGE_WAIT_AFTER
	}
	return f.control("sync_file_range", func(fd int) error { return unix.SyncFileRange(fd, off, n, flags) })
}

func (f osFile) advise(off, n int64, advice int) error {
	return f.control("fadvise", func(fd int) error { return unix.Fadvise(fd, off, n, advice) })
}

func (f osFile) Map(n int64) (Mapping, error) {
	if n == 0 {
		return osMapping(nil), nil // the kernel refuses empty mappings
	}
	var b []byte
	err := f.control("mmap", func(fd int) (err error) {
		b, err = unix.Mmap(fd, 0, int(n), unix.PROT_READ, unix.MAP_SHARED)
		return err
	})
	return osMapping(b), err
}

func (f osFile) control(op string, call func(fd int) error) error {
	conn, err := f.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	err = conn.Control(func(fd uintptr) {
		failed = retry(func() error { return call(int(fd)) })
	})
	if err != nil {
		failed = fs.ErrClosed // Control has no other error
	}
	if failed != nil {
		return &fs.PathError{Op: op, Path: f.Name(), Err: failed}
	}
	return nil
}

// retry repeats a call that a signal interrupted before it did anything.
func retry(call func() error) error {
	for {
		if err := call(); err != unix.EINTR {
			return err
		}
	}
}

type osMapping []byte

func (m osMapping) Bytes() []byte { return m }

func (m osMapping) Close() error {
	if len(m) == 0 {
		return nil
	}
	return unix.Munmap(m)
}
