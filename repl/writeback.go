package repl

import (
	"errors"
	"math"
	"sync"
	"sync/atomic"

	"github.com/teralog/teralog/mem"
	"github.com/teralog/teralog/storage"
)

// A writeBack holds the dirty bytes of one directory, which are those appended
// and not known to be on the disk, under its limit. While flushes keep them below
// half of it, that is all: to have the disk write before it must costs a quarter
// more of a broker's processor time, in calls and in what they make the file
// system do twice. From there on logs that have many dirty bytes stand in line,
// and a loop has the disk write them, one piece after the other. So neither the
// kernel nor a flush finds a mountain to write at once, during which nobody else
// gets at the disk. Above the limit produce is refused.
type writeBack struct {
	limit int64 // 0: none
	dirty atomic.Int64
	told  atomic.Int64 // bytes the disk was told to write

	mu   sync.Mutex
	line *mem.Ring[*Partition]
	wake chan struct{} // there is somebody in line
}

const (
	// pieceBytes is how many dirty bytes of a log bring it into line: less makes
	// the disk seek, and the call is dear.
	pieceBytes = 8 << 20
	// smallPiece is the same while three quarters of the limit are used.
	smallPiece = 256 << 10
)

// piece returns how many dirty bytes bring a log into line while the directory
// has dirty ones in all.
func (b *writeBack) piece(dirty int64) int64 {
	switch {
	case dirty <= b.limit/2 || b.limit == 0:
		return math.MaxInt64
	case dirty <= b.limit/4*3:
		return pieceBytes
	}
	return smallPiece
}

// A dirt is what one log has dirty, in bytes appended since it was opened.
type dirt struct {
	written atomic.Int64 // in all
	clean   atomic.Int64 // of them, flushed, or written by the disk
	told    atomic.Int64 // of them, the disk has been told of
	lined   atomic.Bool  // it stands in line
	before  int64        // the loop's: what told was before
}

func (b *writeBack) init(limit int64) {
	b.limit, b.line, b.wake = limit, mem.NewRing[*Partition](maxHosted), make(chan struct{}, 1)
}

// full reports whether the limit is passed.
func (b *writeBack) full() bool { return b.limit > 0 && b.dirty.Load() > b.limit }

// dirtied notes n bytes appended to p's log. In p's turn.
func (b *writeBack) dirtied(p *Partition, n int64) {
	piece, x := b.piece(b.dirty.Add(n)), &p.dirt
	if x.written.Add(n)-max(x.clean.Load(), x.told.Load()) >= piece && !p.set.config.Manual && x.lined.CompareAndSwap(false, true) {
		b.push(p)
	}
}

func (b *writeBack) push(p *Partition) {
	b.mu.Lock()
	b.line.Push(p)
	b.mu.Unlock()
	select {
	case b.wake <- struct{}{}:
	default:
	}
}

func (b *writeBack) pop() *Partition {
	b.mu.Lock()
	defer b.mu.Unlock()
	p, _ := b.line.Pop()
	return p
}

// cleaned notes that the first n bytes appended to p's log are on the disk.
func (b *writeBack) cleaned(p *Partition, n int64) {
	for {
		was := p.dirt.clean.Load()
		if n <= was {
			return
		}
		if p.dirt.clean.CompareAndSwap(was, n) {
			b.dirty.Add(was - n)
			return
		}
	}
}

// writeBackLine does what is in line. It waits for the disk.
func (d *directory) writeBackLine() {
	for p := d.back.pop(); p != nil && d.failure() == nil; p = d.back.pop() {
		d.writeBack(p)
	}
}

func (d *directory) writeBack(p *Partition) {
	x := &p.dirt
	x.lined.Store(false)
	written := x.written.Load()
	var n int64
	err := p.aside("write-back", func() (err error) {
		n, err = p.log.WriteBack()
		return err
	})
	x.told.Store(written)
	d.back.told.Add(n)
	switch {
	case errors.Is(err, storage.ErrSync):
		d.fail(err)
	case err == nil:
		d.back.cleaned(p, x.before)
		x.before = written
	}
}
