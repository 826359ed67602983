package storage

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"syscall"
)

// The kinds of operation that a MemFS counts and fails.
const (
	OpOpen       = "open"
	OpMkdir      = "mkdir"
	OpRename     = "rename"
	OpRemove     = "remove"
	OpReadDir    = "readdir"
	OpStat       = "stat"
	OpSyncDir    = "syncdir"
	OpLock       = "lock"
	OpSpace      = "space"
	OpRead       = "read"
	OpWrite      = "write"
	OpSize       = "size"
	OpTruncate   = "truncate"
	OpSync       = "sync"
	OpSyncVolume = "syncvolume"
	OpAllocate   = "allocate"
	OpDropCache  = "dropcache"
	OpPrefetch   = "prefetch"
	OpWriteBack  = "writeback"
	OpMap        = "map"
	OpClose      = "close"
)

// An Op is one operation on a MemFS, as its hooks see it.
type Op struct {
	Kind   string // OpOpen …
	Name   string
	To     string // new name of a rename
	Off, N int64  // range; the new length of a truncate is Off
	Cold   bool   // of a read, with KeepCache: some of it is not in memory
	Wait   bool   // of a write-back
	Err    error  // how it ended

	injected error
}

// Changes says whether operations of this kind can change what a power cut
// leaves.
func (op Op) Changes() bool {
	switch op.Kind {
	case OpOpen, OpMkdir, OpRename, OpRemove, OpSyncDir, OpLock, OpWrite, OpTruncate, OpSync, OpSyncVolume, OpAllocate:
		return true
	}
	return false
}

// ErrStopped is what every operation returns once the disk was stopped.
var ErrStopped = errors.New("the disk was stopped")

// ErrLostWrite, given to Fail, lets a write succeed that the disk never does:
// the cache shows it, a sync swallows it.
var ErrLostWrite = errors.New("lost write")

// A MisdirectedWrite, given to Fail, lets a write succeed that the disk does in
// another place of the same file; the right place keeps its old bytes.
type MisdirectedWrite struct{ Pages int64 }

func (e MisdirectedWrite) Error() string {
	return fmt.Sprintf("write misdirected by %d pages", e.Pages)
}

// A ShortWrite, given to Fail, writes N bytes and then fails with Err.
type ShortWrite struct {
	N   int
	Err error
}

func (e ShortWrite) Error() string { return fmt.Sprintf("write cut to %d bytes: %v", e.N, e.Err) }

type faults struct {
	armed   []*fault
	stopped bool
	stopIn  int // changing operations left until the stop; 0 never
	before  func(Op) error
	after   func(Op)
	count   map[string]int
	bytes   map[string]int64
}

type fault struct {
	kind, name string
	nth        int // operations to go; 0 from the first on, for ever
	err        error
}

// Fail lets the nth operation of a kind from now on fail with err, without any
// effect; nth 1 is the next one, 0 every one until Heal. kind is an Op constant,
// "" for any, and may be followed by a colon and a part of the file's name:
// "write:.index". A sync that fails treats its file as ext4 does: the pages are
// clean afterwards, only some of them are on the disk, later syncs succeed.
func (m *MemFS) Fail(kind string, nth int, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	kind, name, _ := strings.Cut(kind, ":")
	m.faults.armed = append(m.faults.armed, &fault{kind, name, nth, err})
}

// Heal takes back every Fail and stop that is still to come or goes on.
// What was damaged stays damaged.
func (m *MemFS) Heal() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.faults.armed, m.faults.stopped, m.faults.stopIn = nil, false, 0
}

// StopAfter lets n more changing operations happen, then stops the disk: every
// operation returns ErrStopped and does nothing. Crash and Clone give what is
// left.
func (m *MemFS) StopAfter(n int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.faults.stopped, m.faults.stopIn = n == 0, n
}

// BeforeOp sets a function that is called before each operation, by the
// goroutine that asks for it. It may wait, which is a stall, or return an error,
// with which the operation then fails as with Fail. nil takes it away.
func (m *MemFS) BeforeOp(f func(Op) error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.faults.before = f
}

// AfterOp sets a function that is called after each operation. It may Clone and
// Crash the disk, not operate on it. nil takes it away.
func (m *MemFS) AfterOp(f func(Op)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.faults.after = f
}

// Count returns how many operations of a kind were asked for since ResetCounts.
func (m *MemFS) Count(kind string) int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.faults.count[kind]
}

// CountBytes returns how many bytes reads or writes asked for since ResetCounts.
func (m *MemFS) CountBytes(kind string) int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.faults.bytes[kind]
}

// ResetCounts sets all counts to 0.
func (m *MemFS) ResetCounts() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.faults.count, m.faults.bytes = nil, nil
}

// call runs one operation: hooks around it, faults instead of it.
func (m *MemFS) call(op Op, do func(op *Op) error) error {
	m.mu.Lock()
	before := m.faults.before
	m.mu.Unlock()
	if before != nil {
		op.injected = before(op)
	}

	m.mu.Lock()
	op.Err = m.run(&op, do)
	after := m.faults.after
	m.mu.Unlock()
	if after != nil {
		after(op)
	}
	return op.Err
}

func (m *MemFS) run(op *Op, do func(op *Op) error) error {
	f := &m.faults
	if f.count == nil {
		f.count, f.bytes = map[string]int{}, map[string]int64{}
	}
	f.count[op.Kind]++
	f.bytes[op.Kind] += op.N
	if f.stopped {
		return pathError(*op, ErrStopped)
	}
	if err := f.strike(op); err != nil && op.injected == nil {
		op.injected = err
	}
	var err error
	if op.injected != nil && op.Kind != OpSync && op.Kind != OpWrite && op.Kind != OpSyncVolume {
		err = op.injected
	} else {
		err = do(op)
	}
	if f.stopIn > 0 && op.Changes() {
		f.stopIn--
		f.stopped = f.stopIn == 0
	}
	return pathError(*op, err)
}

// strike counts op against every armed fault and returns what the first one due
// brings.
func (f *faults) strike(op *Op) (err error) {
	left := f.armed[:0]
	for _, a := range f.armed {
		hit := (a.kind == "" || a.kind == op.Kind) && (strings.Contains(op.Name, a.name) || strings.Contains(op.To, a.name))
		if hit && a.nth <= 1 && err == nil {
			err = a.err
		}
		if hit && a.nth == 1 {
			continue
		}
		if hit && a.nth > 1 {
			a.nth--
		}
		left = append(left, a)
	}
	f.armed = left
	return err
}

func pathError(op Op, err error) error {
	if err == nil {
		return nil
	}
	return &fs.PathError{Op: op.Kind, Path: op.Name, Err: err}
}

func notExist(err error) bool { return errors.Is(err, fs.ErrNotExist) }

// astray says where a write goes wrong under the cache.
type astray struct {
	lost  bool
	pages int64
}

func (op *Op) astray() astray {
	var mis MisdirectedWrite
	if errors.As(op.injected, &mis) {
		return astray{pages: mis.Pages}
	}
	return astray{lost: errors.Is(op.injected, ErrLostWrite)}
}

// shorten returns how many of n bytes a write may write, and how it then fails.
func (op *Op) shorten(n int) (int, error) {
	var short ShortWrite
	switch {
	case op.injected == nil || op.astray() != astray{}:
		return n, nil
	case errors.As(op.injected, &short):
		return min(short.N, n), short.Err
	}
	return 0, op.injected
}

// A badRange is a part of a file that the disk cannot read.
type badRange struct {
	off, n int64
	err    error
}

// FailReads lets every read fail that touches n bytes of a file from off on.
func (m *MemFS) FailReads(name string, off, n int64, err error) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	f, err2 := m.find(name)
	if err2 != nil {
		return err2
	}
	f.bad = append(f.bad, badRange{off, n, err})
	return nil
}

func (n *memNode) unreadable(off, count int64) error {
	for _, b := range n.bad {
		if off < b.off+b.n && b.off < off+count {
			return b.err
		}
	}
	return nil
}

// FlipBit damages one bit of a file, on the disk and in the cache.
func (m *MemFS) FlipBit(name string, off int64, bit uint) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	n, err := m.find(name)
	if err != nil {
		return err
	}
	if off < 0 || off >= n.seen.size {
		return syscall.EINVAL
	}
	n.seen.flip(off, bit)
	n.disk.flip(off, bit)
	return nil
}

func (b *memBytes) flip(off int64, bit uint) {
	if off >= b.size {
		return
	}
	old := b.page(off / pageSize)
	page := make([]byte, max(int64(len(old)), off%pageSize+1))
	copy(page, old)
	page[off%pageSize] ^= 1 << (bit % 8)
	b.setPage(off/pageSize, page)
}
