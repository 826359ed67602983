package storage

import (
	"slices"
	"sync"
)

// A watchedFS is a disk of which somebody can see who waits for it: else nobody
// would notice one that never answers.
type watchedFS struct {
	FS
	waits *waits
}

// waits are the calls that wait for a disk: fsyncs, pieces of write-back, and
// renames, which may wait for the same journal.
type waits struct {
	mu      sync.Mutex
	begun   uint64
	ended   uint64
	running []uint64 // numbers of those not back, ascending
}

func (w *waits) begin() uint64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.begun++
	w.running = append(w.running, w.begun)
	return w.begun
}

func (w *waits) end(n uint64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.ended++
	i, _ := slices.BinarySearch(w.running, n)
	w.running = slices.Delete(w.running, i, i+1)
}

// Waiting returns the number of the call in the directory that has waited longest
// for the disk, an fsync or a piece of write-back, in the order they were begun,
// from 1; 0 if none waits; and how many have come back. Who reads the same number
// for long sees a disk that hangs. Any goroutine.
func (d *Dir) Waiting() (longest, back uint64) {
	w := d.waits
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.running) > 0 {
		longest = w.running[0]
	}
	return longest, w.ended
}

func (w watchedFS) SyncDir(name string) error {
	defer w.waits.end(w.waits.begin())
	return w.FS.SyncDir(name)
}

func (w watchedFS) Rename(old, new string) error {
	defer w.waits.end(w.waits.begin())
	return w.FS.Rename(old, new)
}

func (w watchedFS) Open(name string, mode Mode) (File, error) {
	f, err := w.FS.Open(name, mode)
	if err != nil || mode == Read {
		return f, err
	}
	switch f := f.(type) {
	case sysFile:
		return watchedSysFile{f, w.waits}, nil
	case memCacheFile:
		return watchedMemFile{f, w.waits}, nil
	}
	return watchedFile{f, w.waits}, nil
}

// A watchedFile is a file that may be synced.
type watchedFile struct {
	File
	waits *waits
}

func (f watchedFile) Sync() error {
	defer f.waits.end(f.waits.begin())
	return f.File.Sync()
}

func (f watchedFile) WriteBack(off, n int64, wait bool) error {
	if wait {
		defer f.waits.end(f.waits.begin())
	}
	return f.File.WriteBack(off, n, wait)
}

// A sysFile is a file of the real disk, and more than a File: readers send its
// bytes by sendfile, and ask what of it is in memory.
type sysFile interface {
	File
	SysFd() uintptr
	cacheFile
}

type watchedSysFile struct {
	sysFile
	waits *waits
}

func (f watchedSysFile) Sync() error {
	defer f.waits.end(f.waits.begin())
	return f.sysFile.Sync()
}

func (f watchedSysFile) WriteBack(off, n int64, wait bool) error {
	if wait {
		defer f.waits.end(f.waits.begin())
	}
	return f.sysFile.WriteBack(off, n, wait)
}

// A watchedMemFile is the same over a MemFS that keeps its cache.
type watchedMemFile struct {
	memCacheFile
	waits *waits
}

func (f watchedMemFile) Sync() error {
	defer f.waits.end(f.waits.begin())
	return f.memCacheFile.Sync()
}

func (f watchedMemFile) WriteBack(off, n int64, wait bool) error {
	if wait {
		defer f.waits.end(f.waits.begin())
	}
	return f.memCacheFile.WriteBack(off, n, wait)
}
