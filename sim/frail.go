package sim

import (
	"bufio"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/teralog/teralog/storage"
)

// A frailDisk is the machine's disk, but it can be made to fail: full, slow to
// sync, with an fsync that fails, and, for the next process, without what was
// not synced. Its methods may be called from anywhere.
type frailDisk struct {
	mu      sync.Mutex // a leaf
	journal *journal

	stall  sync.RWMutex           // locked while the disk is slow: no fsync begins
	doomed atomic.Pointer[string] // the next fsync of a file whose name holds this fails; nil: none
	space  space
}

// newFrailDisk returns a disk for a folder, with its journal in a file beside, which may be there from
// the process before. What that left and a power cut, if there was one, took is
// gone when it returns.
func newFrailDisk(folder, name string, power bool, rnd *rand.Rand) (*frailDisk, error) {
	l, err := openJournal(name)
	if err != nil {
		return nil, err
	}
	if err := l.lose(power, rnd); err != nil {
		return nil, err
	}
	return &frailDisk{journal: l, space: space{folder: folder, mark: name + metSuffix}}, l.begin(name)
}

// obey does what the lines of in say:
//
//	full BYTES seen|hidden  the folder may hold so much; hidden: and the file system will not tell
//	room                    there is enough again
//	stall, go               no fsync begins in between
//	fail PART               the next fsync of a file fails whose name holds PART
func (d *frailDisk) obey(in io.Reader) error {
	lines := bufio.NewScanner(in)
	for lines.Scan() {
		word, rest, _ := strings.Cut(lines.Text(), " ")
		switch word {
		case "full":
			if err := d.space.parse(rest); err != nil {
				return err
			}
		case "room":
			d.space.free()
		case "stall":
			d.stall.Lock()
		case "go":
			d.stall.Unlock()
		case "fail":
			d.doomed.Store(&rest)
		default:
			return fmt.Errorf("the disk does not know %q", lines.Text())
		}
	}
	return lines.Err()
}

// note notes something about a file, unless the name belongs to another one by
// now.
func (d *frailDisk) note(f *frailFile, n line) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if n.Name = f.Name(); f.fate != nil && d.journal.fates[n.Name] == f.fate {
		d.journal.note(n)
	}
}

// noteName notes something about a name.
func (d *frailDisk) noteName(do step, name string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.journal.note(line{Do: do, Name: name})
}

// fails reports whether this fsync is to fail.
func (d *frailDisk) fails(name string) bool {
	part := d.doomed.Load()
	return part != nil && strings.Contains(name, *part) && d.doomed.CompareAndSwap(part, nil)
}

// overwrite notes what bytes to be overwritten are, if they are durable.
func (d *frailDisk) overwrite(f *frailFile, off int64, n int) error {
	d.mu.Lock()
	durable := f.fate != nil && off < f.fate.synced
	d.mu.Unlock()
	if !durable || n == 0 {
		return nil
	}
	old := make([]byte, n)
	n, err := f.File.ReadAt(old, off)
	if err != nil && err != io.EOF {
		return err
	}
	d.note(f, line{Do: covered, Was: []patch{{off, old[:n]}}})
	return nil
}

// A frailFS is the file system of a frail disk.
type frailFS struct {
	storage.FS
	d *frailDisk
}

func (v frailFS) Open(name string, mode storage.Mode) (storage.File, error) {
	fresh := mode == storage.CreateNew
	if mode == storage.Create {
		_, err := v.Stat(name)
		fresh = err != nil
	}
	if fresh {
		if err := v.d.space.inode(name); err != nil {
			return nil, err
		}
	}
	file, err := v.FS.Open(name, mode)
	if err != nil {
		return nil, err
	}
	size, err := file.Size()
	if err != nil {
		return nil, err
	}
	v.d.mu.Lock()
	defer v.d.mu.Unlock()
	l := v.d.journal
	switch {
	case fresh:
		delete(l.fates, name) // of one that was removed, and is open still
		l.note(line{Do: made, Name: name})
	case mode != storage.Read && l.fates[name] == nil:
		l.note(line{Do: synced, Name: name, N: size})
	}
	return &frailFile{file, v.d, l.fates[name]}, nil
}

func (v frailFS) Mkdir(name string) error {
	if err := v.d.space.inode(name); err != nil {
		return err
	}
	return v.FS.Mkdir(name)
}

// Rename forgets the fates of both names, but that of a file which is not
// durable yet.
func (v frailFS) Rename(old, new string) error {
	e, err := v.Stat(old)
	if err != nil {
		return err
	}
	v.d.mu.Lock()
	defer v.d.mu.Unlock()
	l := v.d.journal
	f := l.fates[old]
	l.note(line{Do: gone, Name: old})
	l.note(line{Do: gone, Name: new})
	if err := v.d.space.freeing(new, func() error { return v.FS.Rename(old, new) }); err != nil {
		return err
	}
	if f != nil && f.synced < e.Size {
		l.note(line{Do: synced, Name: new, N: f.synced})
	}
	return nil
}

func (v frailFS) Remove(name string) error {
	v.d.noteName(gone, name)
	return v.d.space.freeing(name, func() error { return v.FS.Remove(name) })
}

func (v frailFS) RemoveAll(name string) error {
	v.d.noteName(gone, name)
	return v.d.space.freeing(name, func() error { return v.FS.RemoveAll(name) })
}

// awaitDisk waits for as long as the disk stalls.
func (d *frailDisk) awaitDisk() {
	d.stall.RLock()
	defer d.stall.RUnlock()
}

func (v frailFS) SyncDir(name string) error {
	v.d.awaitDisk()
	if err := v.FS.SyncDir(name); err != nil {
		return err
	}
	v.d.noteName(named, name)
	return nil
}

func (v frailFS) Space(name string) (total, free int64, err error) {
	total, free, err = v.FS.Space(name)
	return total, v.d.space.told(free), err
}

// A frailFile is an open file of a frail disk.
type frailFile struct {
	storage.File
	d    *frailDisk
	fate *fate // as it was when the file was opened; nil: it was durable
}

// SysFd keeps sendfile at work.
func (f *frailFile) SysFd() uintptr { return sysFd(f.File) }

func sysFd(f storage.File) uintptr { return f.(interface{ SysFd() uintptr }).SysFd() }

func (f *frailFile) WriteAt(p []byte, off int64) (int, error) {
	return f.WriteParts([][]byte{p}, off)
}

func (f *frailFile) WriteParts(parts [][]byte, off int64) (int, error) {
	size := 0
	for _, p := range parts {
		size += len(p)
	}
	if err := f.d.overwrite(f, off, size); err != nil {
		return 0, err
	}
	return f.d.space.write(f.File, parts, size, off)
}

func (f *frailFile) Truncate(n int64) error {
	f.d.note(f, line{Do: cut, N: n})
	return f.d.space.shorten(f.File, n)
}

func (f *frailFile) Allocate(off, n int64) error { return f.d.space.allocate(f.File, off, n) }

// Sync makes durable what the file is at this moment. What is written meanwhile
// may be or not; the journal counts it as not.
func (f *frailFile) Sync() error {
	f.d.awaitDisk()
	size, err := f.Size()
	if err != nil {
		return err
	}
	if f.d.fails(f.Name()) {
		f.d.note(f, line{Do: failed})
		return &fs.PathError{Op: "fdatasync", Path: f.Name(), Err: syscall.EIO}
	}
	if err := f.File.Sync(); err != nil {
		return err
	}
	f.d.note(f, line{Do: synced, N: size})
	return nil
}
