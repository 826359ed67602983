package mem

import (
	"bytes"
	"fmt"
	"slices"
	"sync/atomic"

	"github.com/valyala/bytebufferpool"
)

// A Buf is a byte slice from a Pool, shared by counting references.
//
// Whoever holds a reference may read B; only a sole holder may write to it or
// reslice it. The memory goes back to the pool with the last Release, at its
// full size however B was resliced. An append to B that outgrows the capacity
// moves B to memory the pool does not own and will not keep.
type Buf struct {
	B []byte

	refs   atomic.Int32
	pool   *Pool
	memory *bytebufferpool.ByteBuffer // its B has the length of the size class
}

// Retain adds a reference, to be given up by a Release of its own. It returns
// b. The caller must hold a reference already.
func (b *Buf) Retain() *Buf {
	if n := b.refs.Add(1); n <= 1 {
		panic(fmt.Sprintf("BUG: buffer of pool %q retained after its last release (%d references)", b.pool.name, n-1))
	}
	return b
}

// Shared reports whether there are other references than the caller's.
func (b *Buf) Shared() bool { return b.refs.Load() > 1 }

// Release gives up one reference; with the last one the memory may be
// another's at once, so neither b nor a slice of b.B may be touched again.
func (b *Buf) Release() {
	switch n := b.refs.Add(-1); {
	case n == 0:
		b.pool.put(b)
	case n < 0:
		panic(fmt.Sprintf("BUG: buffer of pool %q released %d times too often", b.pool.name, -n))
	}
}

// poison is what released memory is filled with when Checked.
var poison = bytes.Repeat([]byte{0xDB}, 4<<10)

// bury poisons b's memory and returns a new Buf for it. The old one stays
// dead, so that a late Release is seen even after the memory was given out again.
func (b *Buf) bury() *Buf {
	for m := b.memory.B; len(m) > 0; {
		m = m[copy(m, poison):]
	}
	memory := b.memory
	b.B, b.memory = nil, nil
	return &Buf{pool: b.pool, memory: memory}
}

// exhume panics if somebody wrote to b's memory while it lay in the pool.
func (b *Buf) exhume() {
	if bytes.Count(b.memory.B, poison[:1]) == len(b.memory.B) {
		return
	}
	at := slices.IndexFunc(b.memory.B, func(c byte) bool { return c != poison[0] })
	panic(fmt.Sprintf("BUG: byte %d of a released buffer of pool %q was overwritten with %#02x", at, b.pool.name, b.memory.B[at]))
}
