package storage

import (
	"fmt"
	"slices"
)

// An effect is one thing that the cache shows and the disk may not have yet.
// It is never changed once made, but for durable.
type effect struct {
	seq  uint64
	kind effectKind
	in   *memNode

	page, lands int64 // effectWrite: where it shows, where the disk puts it
	lost        bool  // effectWrite: the disk never does it
	bytes       []byte
	size        int64 // effectGrow, effectCut

	name, unset string   // effectRename: the name given and the name taken, "" none
	node        *memNode // effectRename: what name points to
	after       *effect  // effectRename: cannot reach the disk without this one

	durable bool
}

type effectKind uint8

const (
	effectWrite effectKind = iota
	effectGrow
	effectCut
	effectRename
)

func (e *effect) String() string {
	switch e.kind {
	case effectWrite:
		return fmt.Sprintf("%d: page %d of %d bytes", e.seq, e.page, len(e.bytes))
	case effectGrow:
		return fmt.Sprintf("%d: grow to %d", e.seq, e.size)
	case effectCut:
		return fmt.Sprintf("%d: cut to %d", e.seq, e.size)
	}
	return fmt.Sprintf("%d: name %q, unname %q", e.seq, e.name, e.unset)
}

// add queues an effect for the disk.
func (m *MemFS) add(n *memNode, e *effect) {
	m.effects++
	e.seq = m.effects
	n.pending = append(n.pending, e)
}

func (e *effect) applyBytes(b *memBytes) {
	switch e.kind {
	case effectWrite:
		if !e.lost {
			b.setPage(max(0, e.lands), e.bytes)
		}
	case effectGrow:
		b.size = max(b.size, e.size)
	case effectCut:
		b.truncate(e.size)
	}
}

func (e *effect) applyNames(names map[string]*memNode) {
	if e.unset != "" {
		delete(names, e.unset)
	}
	if e.name != "" {
		names[e.name] = e.node
	}
}

// settle makes everything pending durable, as a sync that succeeds.
func (n *memNode) settle() {
	for _, e := range n.pending {
		n.land(e)
	}
	n.pending, n.diskAlloc = nil, n.alloc
}

// land brings one effect to the disk, and before it the one it stands on.
func (n *memNode) land(e *effect) {
	if a := e.after; a != nil && !a.durable {
		a.in.land(a)
		i := slices.Index(a.in.pending, a)
		a.in.pending = slices.Delete(slices.Clone(a.in.pending), i, i+1)
	}
	e.durable = true
	if n.isDir {
		e.applyNames(n.diskNames)
	} else {
		e.applyBytes(&n.disk)
	}
}

// lie is a sync that fails: of the page writes a seeded part reaches the disk,
// and all of them count as clean from here on. Growth and cuts stay pending.
func (n *memNode) lie(m *MemFS) {
	var left []*effect
	for _, e := range n.pending {
		switch {
		case e.kind != effectWrite:
			left = append(left, e)
		case m.draw()%2 == 0:
			n.land(e)
		}
	}
	n.pending = left
}

// Clone returns the disk as it is after the death of every process: nothing is
// lost, no lock is held, no fault is armed, no file is open.
func (m *MemFS) Clone() *MemFS {
	m.mu.Lock()
	defer m.mu.Unlock()
	c := &cloner{nodes: map[*memNode]*memNode{}, effects: map[*effect]*effect{}}
	return m.successor(c.node(m.root))
}

// successor is a fresh MemFS around another tree.
func (m *MemFS) successor(root *memNode) *MemFS {
	s := &MemFS{seed: m.seed, draws: m.draws, effects: m.effects, capacity: m.capacity, root: root, locks: map[string]bool{}}
	s.adopt(root, map[*memNode]bool{})
	return s
}

// adopt counts the links and blocks of a tree.
func (m *MemFS) adopt(n *memNode, known map[*memNode]bool) {
	n.links++
	if known[n] {
		return
	}
	known[n] = true
	m.used += n.blocks()
	for _, child := range n.names {
		m.adopt(child, known)
	}
}

type cloner struct {
	nodes   map[*memNode]*memNode
	effects map[*effect]*effect
}

func (c *cloner) node(n *memNode) *memNode {
	if n == nil {
		return nil
	}
	if made := c.nodes[n]; made != nil {
		return made
	}
	to := &memNode{isDir: n.isDir, seen: n.seen.clone(), disk: n.disk.clone(),
		alloc: n.alloc, diskAlloc: n.diskAlloc, bad: slices.Clone(n.bad)}
	c.nodes[n] = to
	if n.isDir {
		to.names, to.diskNames = c.names(n.names), c.names(n.diskNames)
	}
	for _, e := range n.pending {
		to.pending = append(to.pending, c.effect(e))
	}
	return to
}

func (c *cloner) names(from map[string]*memNode) map[string]*memNode {
	to := make(map[string]*memNode, len(from))
	for name, n := range from {
		to[name] = c.node(n)
	}
	return to
}

func (c *cloner) effect(e *effect) *effect {
	if e == nil {
		return nil
	}
	if made := c.effects[e]; made != nil {
		return made
	}
	to := new(effect)
	c.effects[e] = to
	*to = *e
	to.in, to.node, to.after = c.node(e.in), c.node(e.node), c.effect(e.after)
	return to
}
