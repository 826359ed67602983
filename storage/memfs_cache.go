package storage

// KeepCache has the files that are opened from now on tell what of them is in
// memory, as those of a real disk do: all that was read or written and not
// dropped since. It is called before anybody uses the disk.
func (m *MemFS) KeepCache() { m.cached = true }

// A memCacheFile is a file of a MemFS that keeps its cache.
type memCacheFile struct{ *memFile }

func (f memCacheFile) resident(off, n int64) bool { return !f.cold(off, n) }

func (f memCacheFile) absent(off, n int64) []span {
	f.fs.mu.Lock()
	defer f.fs.mu.Unlock()
	var spans []span
	for i := off / pageSize; i < pagesOf(off+n); i++ {
		if f.node.out[i] {
			spans = addSpan(spans, span{i * pageSize, (i + 1) * pageSize})
		}
	}
	return spans
}

// cold reports whether some of the range has left the cache.
func (f *memFile) cold(off, n int64) bool {
	f.fs.mu.Lock()
	defer f.fs.mu.Unlock()
	for i := off / pageSize; len(f.node.out) > 0 && i < pagesOf(off+n); i++ {
		if f.node.out[i] {
			return true
		}
	}
	return false
}

// bring notes that the range is in memory.
func (n *memNode) bring(off, count int64) {
	for i := off / pageSize; len(n.out) > 0 && i < pagesOf(off+count); i++ {
		delete(n.out, i)
	}
}

// drop notes that the whole pages from off to end have left the cache, but for
// dirty ones.
func (n *memNode) drop(off, end int64) {
	dirty := map[int64]bool{}
	for _, e := range n.pending {
		if e.kind == effectWrite {
			dirty[e.page] = true
		}
	}
	if end >= n.seen.size {
		end = pagesOf(n.seen.size) * pageSize
	}
	for i := pagesOf(off); i < end/pageSize; i++ {
		if dirty[i] {
			continue
		}
		if n.out == nil {
			n.out = map[int64]bool{}
		}
		n.out[i] = true
	}
}

func (f memCacheFile) readNow(p []byte, off int64) bool {
	if f.cold(off, int64(len(p))) {
		return false
	}
	n, _ := f.ReadAt(p, off)
	return n == len(p)
}
