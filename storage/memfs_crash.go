package storage

import (
	"cmp"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"
)

// reachable returns, in order, the pending effects that could matter: those on
// anything that some outcome gives a name.
func (m *MemFS) reachable() []*effect {
	var es []*effect
	known := map[*memNode]bool{}
	var visit func(n *memNode)
	visit = func(n *memNode) {
		if n == nil || known[n] {
			return
		}
		known[n] = true
		es = append(es, n.pending...)
		for _, child := range n.diskNames {
			visit(child)
		}
		for _, e := range n.pending {
			visit(e.node)
		}
	}
	visit(m.root)
	slices.SortFunc(es, func(a, b *effect) int { return cmp.Compare(a.seq, b.seq) })
	return es
}

// A CrashModel says what of the unsynced effects a power cut leaves.
type CrashModel uint8

// The models of a power cut.
const (
	CrashAny        CrashModel = iota // one of those below, by seed
	CrashNone                         // nothing
	CrashPrefix                       // the first few, in order
	CrashPages                        // any of them
	CrashTorn                         // any of them, the last page torn between sectors
	CrashGrownZero                    // lengths grown, their bytes zero
	CrashGrownStale                   // lengths grown, their bytes from other files
	crashModels
)

// String returns the model's name.
func (c CrashModel) String() string {
	return [...]string{"any", "none", "prefix", "pages", "torn", "grown-zero", "grown-stale"}[c]
}

// Crash returns the disk after a power cut and leaves m as it is. Successive
// crashes of one disk choose anew.
func (m *MemFS) Crash(model CrashModel) *MemFS {
	m.mu.Lock()
	defer m.mu.Unlock()
	es := m.reachable()
	if model == CrashAny {
		model = CrashNone + CrashModel(m.draw()%uint64(crashModels-CrashNone))
	}
	lot := m.draw()
	share := 1 + lot%3 // quarters kept
	chosen := func(e *effect) bool { return mix(lot^e.seq)%4 < share }

	im := m.newImage()
	switch model {
	case CrashPrefix:
		for _, e := range es[:lot%uint64(len(es)+1)] {
			im.keep(e)
		}
	case CrashPages, CrashTorn:
		for _, e := range es {
			if chosen(e) {
				im.keep(e)
			}
		}
		if model == CrashTorn {
			im.tear(es, lot)
		}
	case CrashGrownZero, CrashGrownStale:
		for _, e := range es {
			fresh := e.kind == effectWrite && e.page*pageSize >= e.in.disk.size
			switch {
			case e.kind == effectGrow, !fresh && chosen(e):
				im.keep(e)
			case fresh && model == CrashGrownStale:
				im.keepAs(e, m.stale(lot^e.seq))
			}
		}
	}
	return m.successor(im.node(m.root))
}

// stale returns bytes that some block may have held before it came to the file
// that grew: a page of another file, or noise.
func (m *MemFS) stale(lot uint64) []byte {
	var pages [][]byte
	var visit func(n *memNode)
	visit = func(n *memNode) {
		for _, p := range n.disk.pages {
			if len(p) > 0 {
				pages = append(pages, p)
			}
		}
		for _, base := range slices.Sorted(maps.Keys(n.diskNames)) {
			visit(n.diskNames[base])
		}
	}
	visit(m.root)
	if len(pages) > 0 && lot%4 != 0 {
		return pages[mix(lot)%uint64(len(pages))]
	}
	noise := make([]byte, pageSize)
	for i := range noise {
		noise[i] = byte(mix(lot + uint64(i)))
	}
	return noise
}

// Pending returns how many effects a power cut could lose.
func (m *MemFS) Pending() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.reachable())
}

// Unsynced returns the paths, sorted, of the files whose name ends in suffix and
// whose bytes or length a power cut could change.
func (m *MemFS) Unsynced(suffix string) (paths []string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	var visit func(at string, n *memNode)
	visit = func(at string, n *memNode) {
		if !n.isDir && len(n.pending) > 0 && strings.HasSuffix(at, suffix) {
			paths = append(paths, at)
		}
		for base, child := range n.names {
			visit(at+"/"+base, child)
		}
	}
	visit("", m.root)
	slices.Sort(paths)
	return paths
}

// Crashes yields every distinct disk that a power cut may leave of m, with a
// name for each: every subset of the pending effects, without those that another
// kept one hides. Where these are more than limit it yields limit of them: all,
// none, every prefix, every one left out, every one alone, and seeded ones.
// m must not change meanwhile.
func (m *MemFS) Crashes(limit int) iter.Seq2[string, *MemFS] {
	m.mu.Lock()
	defer m.mu.Unlock()
	es := m.reachable()
	sets, all := crashSets(es, limit)
	if !all {
		sets = m.sample(es, limit)
	}
	return func(yield func(string, *MemFS) bool) {
		for _, keep := range sets {
			if !yield(m.crashKeeping(es, keep)) {
				return
			}
		}
	}
}

// crashKeeping is the power cut that keeps the effects of one set.
func (m *MemFS) crashKeeping(es []*effect, keep []bool) (string, *MemFS) {
	m.mu.Lock()
	defer m.mu.Unlock()
	im := m.newImage()
	var kept []string
	for i, e := range es {
		if keep[i] {
			im.keep(e)
			kept = append(kept, e.String())
		}
	}
	return fmt.Sprintf("kept %d of %d: %q", len(kept), len(es), kept), m.successor(im.node(m.root))
}

// crashSets lists the sets of effects that make different disks, or stops with
// false once they are more than limit.
func crashSets(es []*effect, limit int) (sets [][]bool, all bool) {
	type spot struct {
		in   *memNode
		kind effectKind
		page int64
		name string
	}
	hidden := map[spot]int{} // how many kept effects hide what is earlier there
	spots := func(e *effect) []spot {
		switch e.kind {
		case effectWrite:
			return []spot{{in: e.in, page: e.lands}}
		case effectRename:
			both := []spot{{in: e.in, kind: effectRename, name: e.name}, {in: e.in, kind: effectRename, name: e.unset}}
			return slices.DeleteFunc(both, func(s spot) bool { return s.name == "" })
		}
		return []spot{{in: e.in, kind: e.kind}}
	}
	covered := func(e *effect) bool {
		if e.kind == effectCut {
			return false // it also drops pages
		}
		for _, s := range spots(e) {
			if hidden[s] == 0 {
				return false
			}
		}
		return true
	}
	keep := make([]bool, len(es))
	needed := map[*effect]int{}
	var choose func(i int) bool
	choose = func(i int) bool {
		if i < 0 {
			sets = append(sets, slices.Clone(keep))
			return len(sets) <= limit
		}
		e := es[i]
		if needed[e] == 0 && !choose(i-1) {
			return false
		}
		if needed[e] == 0 && covered(e) {
			return true
		}
		keep[i] = true
		needed[e.after]++
		for _, s := range spots(e) {
			hidden[s]++
		}
		more := choose(i - 1)
		for _, s := range spots(e) {
			hidden[s]--
		}
		needed[e.after]--
		keep[i] = false
		return more
	}
	all = choose(len(es) - 1)
	return sets, all
}

// sample lists limit telling sets of effects.
func (m *MemFS) sample(es []*effect, limit int) [][]bool {
	n := len(es)
	set := func(in func(i int) bool) []bool {
		keep := make([]bool, n)
		for i := range keep {
			keep[i] = in(i)
		}
		return keep
	}
	var sets [][]bool
	for k := 0; k <= n; k++ {
		sets = append(sets, set(func(i int) bool { return i < k }))
	}
	for k := range n {
		sets = append(sets, set(func(i int) bool { return i != k }), set(func(i int) bool { return i == k }))
	}
	for len(sets) < limit {
		lot := m.draw()
		sets = append(sets, set(func(i int) bool { return mix(lot^uint64(i))%2 == 0 }))
	}
	return sets[:min(len(sets), limit)]
}

// A crashImage is the disk that a power cut leaves: what was durable, and the
// effects kept on top.
type crashImage struct {
	fs    *MemFS
	kept  map[*memNode][]*effect
	has   map[*effect]bool
	nodes map[*memNode]*memNode
}

func (m *MemFS) newImage() *crashImage {
	return &crashImage{fs: m, kept: map[*memNode][]*effect{}, has: map[*effect]bool{}, nodes: map[*memNode]*memNode{}}
}

// keep lets an effect reach the disk, unless what it stands on did not.
func (im *crashImage) keep(e *effect) {
	if e.after != nil && !e.after.durable && !im.has[e.after] {
		return
	}
	im.has[e] = true
	im.kept[e.in] = append(im.kept[e.in], e)
}

// keepAs keeps a page write with other bytes.
func (im *crashImage) keepAs(e *effect, bytes []byte) {
	other := *e
	other.bytes = bytes
	im.keep(&other)
}

// tear replaces the last page write kept by one of which only some sectors, from
// the front, are new.
func (im *crashImage) tear(es []*effect, lot uint64) {
	const sector = 512
	for _, e := range slices.Backward(es) {
		if e.kind != effectWrite || !im.has[e] {
			continue
		}
		kept := im.kept[e.in]
		i := slices.Index(kept, e)
		before := e.in.disk.clone()
		for _, earlier := range kept[:i] {
			earlier.applyBytes(&before)
		}
		page := make([]byte, pageSize)
		copy(page, before.page(e.lands))
		new := make([]byte, pageSize)
		copy(new, e.bytes)
		sectors := (len(e.bytes) + sector - 1) / sector
		copy(page, new[:int(lot%uint64(sectors+1))*sector])
		torn := *e
		torn.bytes = page
		kept[i] = &torn
		return
	}
}

func (im *crashImage) node(n *memNode) *memNode {
	if made := im.nodes[n]; made != nil {
		return made
	}
	to := &memNode{isDir: n.isDir, bad: slices.Clone(n.bad)}
	im.nodes[n] = to
	if n.isDir {
		im.dir(to, n)
		return to
	}
	to.disk = n.disk.clone()
	for _, e := range im.kept[n] {
		e.applyBytes(&to.disk)
	}
	to.disk.dropFrom(to.disk.size)
	to.seen = to.disk.clone()
	to.alloc, to.diskAlloc = n.diskAlloc, n.diskAlloc
	return to
}

func (im *crashImage) dir(to, n *memNode) {
	names := maps.Clone(n.diskNames)
	for _, e := range im.kept[n] {
		e.applyNames(names)
	}
	to.names = make(map[string]*memNode, len(names))
	for name, child := range names {
		to.names[name] = im.node(child)
	}
	to.diskNames = maps.Clone(to.names)
}
