package mem

import (
	"fmt"
	"math/bits"
	"sync"

	"github.com/valyala/bytebufferpool"
)

// MaxBuf is the largest buffer a Pool gives, in bytes.
const MaxBuf = minBuf << (classes - 1) // 64 MiB

const (
	minBuf    = 64
	classes   = 21
	keepBytes = 4 << 20  // a class keeps free buffers up to this many bytes,
	keepBufs  = 1024     // up to this many of them,
	keepOne   = 16 << 20 // and one at least, if it has up to this size
)

// A Pool gives out reference-counted buffers in size classes, powers of two
// from 64 B to MaxBuf. Once warm, Get and Release allocate nothing.
//
// Each class keeps a short list of free buffers for ever, so what a pool holds
// on to is bounded: 72 MiB if every class was once busy. What is released
// beyond that goes to a bytebufferpool, from where the next burst takes it
// again unless the garbage collector was first.
//
// All methods may be called from any goroutine.
type Pool struct {
	name    string
	classes [classes]class
}

// A class holds the free buffers of one size.
type class struct {
	mu     sync.Mutex
	free   []*Buf // the last one released is the first one given out
	live   int64
	gets   uint64
	misses uint64

	spill bytebufferpool.Pool
}

// NewPool returns an empty pool; name tells it from others in Stats.
func NewPool(name string) *Pool {
	return &Pool{name: name}
}

// Get returns a buffer with one reference and B of length n, 0 ≤ n ≤ MaxBuf.
// What B holds is undefined; its capacity is that of the size class.
func (p *Pool) Get(n int) *Buf {
	if n < 0 || n > MaxBuf {
		panic(fmt.Sprintf("BUG: buffer of %d bytes asked of pool %q, which has 0 to %d", n, p.name, MaxBuf))
	}
	i := classOf(n)
	b := p.classes[i].pop()
	switch {
	case b == nil:
		b = &Buf{pool: p, memory: p.classes[i].unspill(sizeOf(i))}
	case Checked:
		b.exhume()
	}
	b.refs.Store(1)
	b.B = b.memory.B[:n]
	return b
}

// put takes b back from its last holder.
func (p *Pool) put(b *Buf) {
	i := classOf(len(b.memory.B))
	if Checked {
		b = b.bury()
	}
	b.B = nil
	if !p.classes[i].push(b, keep(i)) {
		p.classes[i].spill.Put(b.memory)
	}
}

// pop counts a Get and returns the free buffer released last, nil if none.
func (c *class) pop() *Buf {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.gets++
	c.live++
	n := len(c.free)
	if n == 0 {
		c.misses++
		return nil
	}
	b := c.free[n-1]
	c.free[n-1] = nil
	c.free = c.free[:n-1]
	return b
}

// push counts a release and keeps b if there is room among keep free buffers.
func (c *class) push(b *Buf, keep int) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.live--
	if len(c.free) >= keep {
		return false
	}
	c.free = append(c.free, b)
	return true
}

// unspill returns memory of the given size from past bursts or, if the
// collector took it, from the heap.
func (c *class) unspill(size int) *bytebufferpool.ByteBuffer {
	m := c.spill.Get()
	if cap(m.B) < size {
		m.B = make([]byte, size)
	}
	m.B = m.B[:size:size]
	return m
}

// classOf returns the index of the smallest class that holds n bytes.
func classOf(n int) int {
	return bits.Len(uint(max(n, minBuf)-1)) - bits.Len(minBuf-1)
}

// sizeOf returns the bytes of a buffer in class i.
func sizeOf(i int) int { return minBuf << i }

// keep returns how many free buffers class i keeps for ever.
func keep(i int) int {
	n := min(keepBytes/sizeOf(i), keepBufs)
	if n == 0 && sizeOf(i) <= keepOne {
		return 1
	}
	return n
}

// PoolStats are a pool's counters at one moment.
type PoolStats struct {
	Name      string
	Live      int64  // buffers that are out
	LiveBytes int64  // their memory, in whole size classes
	KeptBytes int64  // memory of the free buffers kept for ever
	Gets      uint64 // since the pool was made
	Misses    uint64 // the Gets among them that found no free buffer kept
}

// Stats returns the pool's counters, each class at a moment of its own.
func (p *Pool) Stats() PoolStats {
	s := PoolStats{Name: p.name}
	for i := range p.classes {
		c := &p.classes[i]
		c.mu.Lock()
		s.Live += c.live
		s.LiveBytes += c.live * int64(sizeOf(i))
		s.KeptBytes += int64(len(c.free) * sizeOf(i))
		s.Gets += c.gets
		s.Misses += c.misses
		c.mu.Unlock()
	}
	return s
}
