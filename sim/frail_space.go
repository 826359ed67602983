package sim

import (
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/teralog/teralog/storage"
)

// A space bounds what a folder of a disk may hold. What it holds is counted by
// the blocks that the real file system says its files have. Its zero value has
// no bound.
type space struct {
	folder string
	mark   string // a file that is made when somebody finds the disk full, or is told that it nearly is

	bounded atomic.Bool
	mu      sync.Mutex // held over a whole operation while there is a bound
	left    int64      // bytes
	hidden  bool       // statfs does not tell, as with a quota
}

const (
	metSuffix  = ".met"
	inodeBytes = 4096      // what a new name takes
	hardlyAny  = 256 << 10 // bytes that a broker takes for none
)

// parse sets the bound: "BYTES seen" or "BYTES hidden".
func (s *space) parse(text string) error {
	bytes, how, _ := strings.Cut(text, " ")
	n, err := strconv.ParseInt(bytes, 10, 64)
	if err != nil || how != "seen" && how != "hidden" {
		return fmt.Errorf("space %q is not of the form BYTES seen|hidden", text)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.left, s.hidden = n-heldBelow(s.folder), how == "hidden"
	s.bounded.Store(true)
	return nil
}

// heldBelow returns the bytes of the disk that a file or a folder with all in it
// has; 0 if it is not there.
func heldBelow(name string) (all int64) {
	filepath.WalkDir(name, func(_ string, e fs.DirEntry, err error) error {
		if err != nil {
			return nil // unlinked meanwhile
		}
		if st, err := e.Info(); err == nil {
			all += st.Sys().(*syscall.Stat_t).Blocks * 512
		}
		return nil
	})
	return all
}

// free takes the bound away.
func (s *space) free() { s.bounded.Store(false) }

// told is what statfs says of so many free bytes.
func (s *space) told(free int64) int64 {
	if !s.bounded.Load() {
		return free
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.hidden {
		return free
	}
	if s.left < hardlyAny {
		s.meet()
	}
	return min(free, max(s.left, 0))
}

// meet notes that somebody found the disk full.
func (s *space) meet() {
	if err := os.WriteFile(s.mark, nil, 0o644); err != nil {
		panic(fmt.Sprintf("cannot note that the disk is full: %v", err))
	}
}

// full is what one is told then.
func (s *space) full(op, name string) error {
	s.meet()
	return &fs.PathError{Op: op, Path: name, Err: syscall.ENOSPC}
}

// held returns the bytes of the disk that an open file has.
func held(f storage.File) int64 {
	var st syscall.Stat_t
	if err := syscall.Fstat(int(sysFd(f)), &st); err != nil {
		return 0 // it is being closed
	}
	return st.Blocks * 512
}

// within does something that may change how much a file holds. It is told how
// far the file may reach.
func (s *space) within(f storage.File, do func(end int64) error) error {
	if !s.bounded.Load() {
		return do(math.MaxInt64)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	has := held(f)
	err := do(has + max(s.left, 0))
	s.left -= held(f) - has
	return err
}

// write writes as much of parts, which are size bytes, as there is room for.
func (s *space) write(f storage.File, parts [][]byte, size int, off int64) (n int, err error) {
	err = s.within(f, func(end int64) error {
		fits := int(max(0, min(int64(size), end-off)))
		if n, err = f.WriteParts(first(parts, fits), off); err == nil && fits < size {
			err = s.full("pwrite", f.Name())
		}
		return err
	})
	return n, err
}

// first returns the first n bytes of parts.
func first(parts [][]byte, n int) [][]byte {
	for i, p := range parts {
		if len(p) >= n {
			return append(parts[:i:i], p[:n])
		}
		n -= len(p)
	}
	return parts
}

func (s *space) allocate(f storage.File, off, n int64) error {
	return s.within(f, func(end int64) error {
		if off+n > end {
			return s.full("fallocate", f.Name())
		}
		return f.Allocate(off, n)
	})
}

func (s *space) shorten(f storage.File, n int64) error {
	return s.within(f, func(int64) error { return f.Truncate(n) })
}

// inode takes what a new name needs.
func (s *space) inode(name string) error {
	if !s.bounded.Load() {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, err := os.Lstat(name); err == nil {
		return nil
	}
	if s.left < inodeBytes {
		return s.full("create", name)
	}
	s.left -= inodeBytes
	return nil
}

// freeing does something by which a name, or all below it, goes.
func (s *space) freeing(name string, do func() error) error {
	if !s.bounded.Load() {
		return do()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	all := heldBelow(name)
	if err := do(); err != nil {
		return err
	}
	s.left += all
	return nil
}
