package storage

import (
	"bytes"
	"io"
	"io/fs"
	"slices"
	"syscall"
)

const pageSize = 4096

// memBytes is the content of a file as pages. A page is never changed, only
// replaced; it may be shorter than pageSize, and zeros follow. Missing pages are
// holes. No page reaches beyond size.
type memBytes struct {
	pages [][]byte
	size  int64
}

func pagesOf(n int64) int64 { return (n + pageSize - 1) / pageSize }

func (b *memBytes) page(i int64) []byte {
	if i < int64(len(b.pages)) {
		return b.pages[i]
	}
	return nil
}

func (b *memBytes) setPage(i int64, p []byte) {
	for int64(len(b.pages)) <= i {
		b.pages = append(b.pages, nil)
	}
	b.pages[i] = p
}

func (b *memBytes) truncate(n int64) {
	b.size = min(b.size, n)
	b.dropFrom(n)
}

// dropFrom drops the bytes from n on, so that growth shows zeros.
func (b *memBytes) dropFrom(n int64) {
	if k := pagesOf(n); k < int64(len(b.pages)) {
		b.pages = b.pages[:k:k]
	}
	if rest := int(n % pageSize); rest != 0 && pagesOf(n) == int64(len(b.pages)) {
		last := &b.pages[len(b.pages)-1]
		*last = (*last)[:min(rest, len(*last)):min(rest, len(*last))]
	}
}

func (b *memBytes) clone() memBytes { return memBytes{slices.Clone(b.pages), b.size} }

// readAt fills p with what lies from off on, zeros beyond the end.
func (b *memBytes) readAt(p []byte, off int64) {
	for len(p) > 0 {
		part := p[:min(int64(len(p)), pageSize-off%pageSize)]
		clear(part)
		if page := b.page(off / pageSize); int64(len(page)) > off%pageSize {
			copy(part, page[off%pageSize:])
		}
		p, off = p[len(part):], off+int64(len(part))
	}
}

// blocks is the disk space that the file takes.
func (n *memNode) blocks() int64 {
	count := n.alloc
	for i, p := range n.seen.pages {
		if int64(i) >= n.alloc && p != nil {
			count++
		}
	}
	return count
}

// A memFile is an open file of a MemFS.
type memFile struct {
	fs       *MemFS
	node     *memNode
	name     string
	readOnly bool
	closed   bool
}

func (f *memFile) Name() string { return f.name }

// call runs one operation on an open file.
func (f *memFile) call(op Op, do func(op *Op) error) error {
	op.Name = f.name
	return f.fs.call(op, func(op *Op) error {
		if f.closed {
			return fs.ErrClosed
		}
		return do(op)
	})
}

func (f *memFile) change(op Op, do func(op *Op) error) error {
	return f.call(op, func(op *Op) error {
		if f.readOnly {
			return syscall.EBADF
		}
		return do(op)
	})
}

func (f *memFile) ReadAt(p []byte, off int64) (n int, err error) {
	err = f.call(Op{Kind: OpRead, Off: off, N: int64(len(p)), Cold: f.cold(off, int64(len(p)))}, func(*Op) error {
		if off < 0 {
			return syscall.EINVAL
		}
		f.node.bring(off, int64(len(p)))
		n = int(min(int64(len(p)), max(0, f.node.seen.size-off)))
		if err := f.node.unreadable(off, int64(n)); err != nil {
			n = 0
			return err
		}
		f.node.seen.readAt(p[:n], off)
		return nil
	})
	if err == nil && n < len(p) {
		err = io.EOF
	}
	return n, err
}

func (f *memFile) WriteAt(p []byte, off int64) (n int, err error) {
	err = f.change(Op{Kind: OpWrite, Off: off, N: int64(len(p))}, func(op *Op) error {
		if off < 0 {
			return syscall.EINVAL
		}
		f.node.bring(off, int64(len(p)))
		short, failed := op.shorten(len(p))
		fits := f.fs.fit(f.node, off, short)
		n = fits
		f.fs.write(f.node, p[:fits], off, op.astray())
		if fits < short {
			return syscall.ENOSPC
		}
		return failed
	})
	return n, err
}

func (f *memFile) WriteParts(parts [][]byte, off int64) (n int, err error) {
	return f.WriteAt(bytes.Join(parts, nil), off)
}

// fit returns how many of n bytes from off on find blocks, and takes those.
func (m *MemFS) fit(f *memNode, off int64, n int) int {
	end := off + int64(n)
	for i := off / pageSize; i*pageSize < end; i++ {
		if i < f.alloc || f.seen.page(i) != nil {
			continue
		}
		if m.room(1) == 0 {
			return int(max(0, i*pageSize-off))
		}
		m.used++
	}
	return n
}

// write puts p into the cache, page by page, and notes what the disk is to get.
func (m *MemFS) write(f *memNode, p []byte, off int64, a astray) {
	if len(p) == 0 {
		return
	}
	for rest, at := p, off; len(rest) > 0; {
		i, in := at/pageSize, at%pageSize
		part := rest[:min(int64(len(rest)), pageSize-in)]
		old := f.seen.page(i)
		page := make([]byte, max(int64(len(old)), in+int64(len(part))))
		copy(page, old)
		copy(page[in:], part)
		f.seen.setPage(i, page)
		m.add(f, &effect{kind: effectWrite, in: f, page: i, lands: i + a.pages, lost: a.lost, bytes: page})
		rest, at = rest[len(part):], at+int64(len(part))
		if at > f.seen.size { // page by page, so that a power cut may tear the write at any
			f.seen.size = at
			m.add(f, &effect{kind: effectGrow, in: f, size: at})
		}
	}
	for _, v := range f.maps {
		v.update(p, off)
	}
}

func (f *memFile) Size() (n int64, err error) {
	err = f.call(Op{Kind: OpSize}, func(*Op) error {
		n = f.node.seen.size
		return nil
	})
	return n, err
}

func (f *memFile) Truncate(n int64) error {
	return f.change(Op{Kind: OpTruncate, Off: n}, func(*Op) error {
		if n < 0 {
			return syscall.EINVAL
		}
		f.fs.truncate(f.node, n)
		return nil
	})
}

func (m *MemFS) truncate(f *memNode, n int64) {
	if n > f.seen.size {
		f.seen.size = n
		m.add(f, &effect{kind: effectGrow, in: f, size: n})
		return
	}
	had := f.blocks()
	f.seen.truncate(n)
	f.alloc = min(f.alloc, pagesOf(n))
	m.used -= had - f.blocks()
	m.add(f, &effect{kind: effectCut, in: f, size: n})
}

func (f *memFile) Sync() error {
	return f.call(Op{Kind: OpSync}, func(op *Op) error {
		if op.injected != nil {
			f.node.lie(f.fs)
			return op.injected
		}
		f.node.settle()
		err := f.node.ill
		f.node.ill = nil
		return err
	})
}

func (f *memFile) Allocate(off, n int64) error {
	return f.change(Op{Kind: OpAllocate, Off: off, N: n}, func(*Op) error {
		if off < 0 || n <= 0 {
			return syscall.EINVAL
		}
		had, before := f.node.blocks(), f.node.alloc
		f.node.alloc = max(before, pagesOf(off+n))
		more := f.node.blocks() - had
		if f.fs.room(more) < more {
			f.node.alloc = before
			return syscall.ENOSPC
		}
		f.fs.used += more
		return nil
	})
}

func (f *memFile) DropCache(off, n int64) error {
	return f.call(Op{Kind: OpDropCache, Off: off, N: n}, func(*Op) error {
		end := off + n
		if n == 0 {
			end = f.node.seen.size
		}
		f.node.dropCache(off/pageSize, pagesOf(end))
		if f.fs.cached {
			f.node.drop(off, end)
		}
		return nil
	})
}

// dropCache shows what the disk holds again, but for dirty pages.
func (n *memNode) dropCache(from, to int64) {
	dirty := map[int64]bool{}
	for _, e := range n.pending {
		if e.kind == effectWrite {
			dirty[e.page] = true
		}
	}
	for i := from; i < min(to, int64(len(n.seen.pages))); i++ {
		if !dirty[i] {
			n.seen.setPage(i, n.disk.page(i))
		}
	}
	n.seen.dropFrom(n.seen.size)
}

func (f *memFile) Prefetch(off, n int64) error {
	return f.call(Op{Kind: OpPrefetch, Off: off, N: n}, func(*Op) error { return nil })
}

func (f *memFile) Scattered() error { return nil }

// WriteBack does nothing: when a disk writes what nobody has synced is chance,
// and a crash draws it.
func (f *memFile) WriteBack(off, n int64, wait bool) error {
	return f.call(Op{Kind: OpWriteBack, Off: off, N: n, Wait: wait}, func(op *Op) error { return nil })
}

func (f *memFile) Map(n int64) (Mapping, error) {
	v := &memMapping{file: f}
	err := f.call(Op{Kind: OpMap, N: n}, func(*Op) error {
		if n < 0 {
			return syscall.EINVAL
		}
		if err := f.node.unreadable(0, n); err != nil {
			return err
		}
		v.bytes = make([]byte, n)
		f.node.seen.readAt(v.bytes, 0)
		f.node.maps = append(f.node.maps, v)
		return nil
	})
	if err != nil {
		return nil, err
	}
	return v, nil
}

func (f *memFile) Close() error {
	return f.call(Op{Kind: OpClose}, func(*Op) error {
		f.closed = true
		f.node.handles--
		f.fs.freeUnused(f.node)
		return nil
	})
}

// A memMapping is a copy that writes are repeated into. Bytes that stay the
// same are not stored again, so that a reader of those below some published
// count races with nobody, as with a shared mapping.
type memMapping struct {
	file  *memFile
	bytes []byte
}

func (v *memMapping) Bytes() []byte { return v.bytes }

func (v *memMapping) update(p []byte, off int64) {
	if off >= int64(len(v.bytes)) {
		return
	}
	to := v.bytes[off:]
	p = p[:min(len(p), len(to))]
	for len(p) > 0 {
		k := min(len(p), 64)
		if !bytes.Equal(to[:k], p[:k]) {
			updateChanged(to[:k], p[:k])
		}
		to, p = to[k:], p[k:]
	}
}

func updateChanged(to, p []byte) {
	for i, c := range p {
		if to[i] != c {
			to[i] = c
		}
	}
}

func (v *memMapping) Close() error {
	v.file.fs.mu.Lock()
	defer v.file.fs.mu.Unlock()
	i := slices.Index(v.file.node.maps, v)
	if i < 0 {
		return fs.ErrClosed
	}
	v.file.node.maps = slices.Delete(v.file.node.maps, i, i+1)
	return nil
}
