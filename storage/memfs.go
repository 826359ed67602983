package storage

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strings"
	"sync"
	"syscall"
)

// MemFS is a disk in memory that behaves as a machine's does at its worst.
//
// Each file is what lies on the platter, what the page cache shows, and the
// effects between the two: page writes of 4 KiB, growth and truncation, in
// order. Each directory is the same for names. Sync makes one file's effects
// durable, SyncDir one directory's. Clone is the disk as a dead process leaves
// it: everything is still there. Crash is the disk after a power cut: some
// effects are there and some are not.
//
// Equal seeds and equal calls give equal disks. It is safe for concurrent use.
type MemFS struct {
	mu       sync.Mutex
	seed     uint64
	draws    uint64 // choices made so far; each takes its own number
	effects  uint64 // effects made so far
	root     *memNode
	locks    map[string]bool
	used     int64 // blocks
	capacity int64 // blocks, 0: without end
	faults   faults
	cached   bool // files tell what of them is in memory
}

// NewMemFS returns an empty disk whose every choice follows from seed.
func NewMemFS(seed uint64) *MemFS {
	return &MemFS{seed: seed, root: newDir(), locks: map[string]bool{}}
}

// A memNode is a file or a directory, whatever names point to it.
type memNode struct {
	isDir   bool
	links   int // names that point here, as the cache shows them
	handles int
	pending []*effect // not yet durable, in order

	names, diskNames map[string]*memNode // of a directory

	seen, disk       memBytes // of a file
	alloc, diskAlloc int64    // blocks taken up front
	maps             []*memMapping
	bad              []badRange
	out              map[int64]bool // pages that have left the cache
	ill              error          // that writing them back met, for the next sync
}

func newDir() *memNode {
	return &memNode{isDir: true, names: map[string]*memNode{}, diskNames: map[string]*memNode{}}
}

func memPath(name string) string { return path.Clean("/" + name) }

// find walks to a node by its name.
func (m *MemFS) find(name string) (*memNode, error) {
	n := m.root
	for elem := range strings.SplitSeq(memPath(name), "/") {
		if elem == "" {
			continue
		}
		if !n.isDir {
			return nil, syscall.ENOTDIR
		}
		if n = n.names[elem]; n == nil {
			return nil, fs.ErrNotExist
		}
	}
	return n, nil
}

// parent finds the directory that holds a name, and the name's last element.
func (m *MemFS) parent(name string) (*memNode, string, error) {
	dir, base := path.Split(memPath(name))
	if base == "" {
		return nil, "", syscall.EINVAL
	}
	d, err := m.find(dir)
	if err == nil && !d.isDir {
		err = syscall.ENOTDIR
	}
	return d, base, err
}

// Open implements FS.
func (m *MemFS) Open(name string, mode Mode) (File, error) {
	var f *memFile
	err := m.call(Op{Kind: OpOpen, Name: name}, func(*Op) error {
		n, err := m.find(name)
		if err == fs.ErrNotExist && (mode == Create || mode == CreateNew) {
			n, err = m.create(name)
		} else if err == nil && mode == CreateNew {
			err = fs.ErrExist
		}
		if err != nil {
			return err
		}
		if n.isDir {
			return syscall.EISDIR
		}
		n.handles++
		f = &memFile{fs: m, node: n, name: name, readOnly: mode == Read}
		return nil
	})
	if err != nil {
		return nil, err
	}
	if m.cached {
		return memCacheFile{f}, nil
	}
	return f, nil
}

func (m *MemFS) create(name string) (*memNode, error) {
	d, base, err := m.parent(name)
	if err != nil {
		return nil, err
	}
	n := &memNode{}
	m.link(d, base, n)
	return n, nil
}

// link gives n a name, in the cache now and on disk some time.
func (m *MemFS) link(d *memNode, base string, n *memNode) *effect {
	n.links++
	return m.rename(d, base, n, "")
}

// rename takes away one name of a directory and gives another, in one step.
func (m *MemFS) rename(d *memNode, set string, n *memNode, unset string) *effect {
	e := &effect{kind: effectRename, in: d, name: set, node: n, unset: unset}
	e.applyNames(d.names)
	m.add(d, e)
	return e
}

func (m *MemFS) unlink(d *memNode, base string) *effect {
	n := d.names[base]
	e := m.rename(d, "", nil, base)
	n.links--
	m.freeUnused(n)
	return e
}

// freeUnused gives back the blocks of a file that nothing points to any more.
func (m *MemFS) freeUnused(n *memNode) {
	if n.links == 0 && n.handles == 0 {
		m.used -= n.blocks()
	}
}

// Mkdir implements FS.
func (m *MemFS) Mkdir(name string) error {
	name = memPath(name)
	for i := 1; i <= len(name); i++ {
		if i < len(name) && name[i] != '/' {
			continue
		}
		if e, err := m.Stat(name[:i]); err == nil && e.Dir {
			continue
		}
		err := m.call(Op{Kind: OpMkdir, Name: name[:i]}, func(*Op) error {
			d, base, err := m.parent(name[:i])
			if err != nil {
				return err
			}
			if n := d.names[base]; n == nil {
				m.link(d, base, newDir())
			} else if !n.isDir {
				return syscall.ENOTDIR
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// Rename implements FS. A move between directories shows in the new one first:
// a power cut may leave both names, never none.
func (m *MemFS) Rename(old, new string) error {
	return m.call(Op{Kind: OpRename, Name: old, To: new}, func(*Op) error {
		from, oldBase, err := m.parent(old)
		if err != nil {
			return err
		}
		to, newBase, err := m.parent(new)
		if err != nil {
			return err
		}
		n, over := from.names[oldBase], to.names[newBase]
		switch {
		case n == nil:
			return fs.ErrNotExist
		case n == over && !(n.isDir && memPath(old) == memPath(new)):
			return nil
		case over != nil && over.isDir:
			return fs.ErrExist
		case over != nil && n.isDir:
			return syscall.ENOTDIR
		}
		if from == to {
			m.rename(to, newBase, n, oldBase)
		} else {
			set := m.rename(to, newBase, n, "")
			m.rename(from, "", nil, oldBase).after = set
		}
		if over != nil {
			over.links--
			m.freeUnused(over)
		}
		return nil
	})
}

// Remove implements FS.
func (m *MemFS) Remove(name string) error {
	return m.call(Op{Kind: OpRemove, Name: name}, func(*Op) error {
		d, base, err := m.parent(name)
		if err != nil {
			return err
		}
		n := d.names[base]
		if n == nil {
			return fs.ErrNotExist
		}
		if len(n.names) > 0 {
			return syscall.ENOTEMPTY
		}
		m.unlink(d, base)
		return nil
	})
}

// RemoveAll implements FS. Each name is an operation of its own, as on a disk.
func (m *MemFS) RemoveAll(name string) error {
	e, err := m.Stat(name)
	if err == nil && e.Dir {
		var es []Entry
		es, err = m.ReadDir(name)
		for _, e := range es {
			if err := m.RemoveAll(path.Join(name, e.Name)); err != nil {
				return err
			}
		}
	}
	if err == nil {
		err = m.Remove(name)
	}
	if notExist(err) {
		return nil
	}
	return err
}

// ReadDir implements FS.
func (m *MemFS) ReadDir(name string) ([]Entry, error) {
	var es []Entry
	err := m.call(Op{Kind: OpReadDir, Name: name}, func(*Op) error {
		d, err := m.find(name)
		if err != nil {
			return err
		}
		if !d.isDir {
			return syscall.ENOTDIR
		}
		for _, base := range slices.Sorted(maps.Keys(d.names)) {
			es = append(es, d.names[base].entry(base))
		}
		return nil
	})
	return es, err
}

// Stat implements FS.
func (m *MemFS) Stat(name string) (Entry, error) {
	var e Entry
	err := m.call(Op{Kind: OpStat, Name: name}, func(*Op) error {
		n, err := m.find(name)
		if err != nil {
			return err
		}
		e = n.entry(path.Base(memPath(name)))
		return nil
	})
	return e, err
}

func (n *memNode) entry(base string) Entry {
	return Entry{Name: base, Dir: n.isDir, Size: n.seen.size}
}

// SyncDir implements FS.
func (m *MemFS) SyncDir(name string) error {
	return m.call(Op{Kind: OpSyncDir, Name: name}, func(op *Op) error {
		d, err := m.find(name)
		if err != nil {
			return err
		}
		if !d.isDir {
			return syscall.ENOTDIR
		}
		d.settle()
		return nil
	})
}

// Volume implements FS.
func (m *MemFS) Volume(string) (Volume, error) { return memVolume{m}, nil }

type memVolume struct{ m *MemFS }

func (memVolume) Close() error { return nil }

// ErrElsewhere as the fault of a volume's sync is that of files nobody here knows.
var ErrElsewhere = errors.New("a file of somebody else's")

// Sync makes everything durable that has a name. If it fails it is the files
// that do, whose own next Sync says so as well, but for ErrElsewhere.
func (v memVolume) Sync() error {
	return v.m.call(Op{Kind: OpSyncVolume}, func(op *Op) error {
		known := map[*memNode]bool{}
		var visit func(n *memNode)
		visit = func(n *memNode) {
			if known[n] {
				return
			}
			known[n] = true
			switch {
			case op.injected == nil:
				n.settle()
			case op.injected == ErrElsewhere:
			case !n.isDir && len(n.pending) > 0:
				n.lie(v.m)
				n.ill = op.injected
			}
			for _, name := range slices.Sorted(maps.Keys(n.names)) {
				visit(n.names[name])
			}
		}
		visit(v.m.root)
		return op.injected
	})
}

// Lock implements FS. A Clone or a Crash holds no locks: their holder is dead.
func (m *MemFS) Lock(name string) (io.Closer, error) {
	err := m.call(Op{Kind: OpLock, Name: name}, func(*Op) error {
		if m.locks[memPath(name)] {
			return ErrLocked
		}
		if _, err := m.find(name); err == fs.ErrNotExist {
			if _, err := m.create(name); err != nil {
				return err
			}
		} else if err != nil {
			return err
		}
		m.locks[memPath(name)] = true
		return nil
	})
	if err != nil {
		return nil, err
	}
	return memLock{m, memPath(name)}, nil
}

type memLock struct {
	fs   *MemFS
	name string
}

func (l memLock) Close() error {
	l.fs.mu.Lock()
	defer l.fs.mu.Unlock()
	if !l.fs.locks[l.name] {
		return fs.ErrClosed
	}
	delete(l.fs.locks, l.name)
	return nil
}

// SetCapacity bounds the disk to n bytes, in whole blocks; 0 takes the bound
// away. A write that does not fit writes the blocks that do and fails with
// ENOSPC.
func (m *MemFS) SetCapacity(n int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.capacity = n / pageSize
}

// Space implements FS. A disk without a capacity says it has 1 TiB.
func (m *MemFS) Space(name string) (total, free int64, err error) {
	err = m.call(Op{Kind: OpSpace, Name: name}, func(*Op) error {
		if _, err := m.find(name); err != nil {
			return err
		}
		blocks := m.capacity
		if blocks == 0 {
			blocks = 1 << 40 / pageSize
		}
		total, free = blocks*pageSize, max(0, blocks-m.used)*pageSize
		return nil
	})
	return total, free, err
}

// room returns how many of n more blocks fit.
func (m *MemFS) room(n int64) int64 {
	if m.capacity == 0 {
		return n
	}
	return min(n, max(0, m.capacity-m.used))
}

// draw returns the next seeded number.
func (m *MemFS) draw() uint64 {
	m.draws++
	return mix(m.seed ^ mix(m.draws))
}

// mix is the finalizer of splitmix64: every bit of x reaches every bit of the
// result.
func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// String names the disk by its seed.
func (m *MemFS) String() string { return fmt.Sprintf("memfs(seed %d)", m.seed) }
