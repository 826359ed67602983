package storage

import (
	"errors"
	"fmt"
	"slices"
	"syscall"

	"github.com/teralog/teralog/wire"
)

// A writeBack is how far the disk was told to write a log, beside flushes.
type writeBack struct {
	base  wire.Offset // segment and
	pos   int64       // place in its file up to which it was
	asked []stretch   // by the last call
}

// WriteBack tells the disk to write what was appended since the last call, then
// waits until it has written what it was told to by that one. So a flush that
// comes later has little left to wait for, and dirty bytes do not pile up. It
// makes nothing durable. It returns how many bytes it told the disk of.
//
// One goroutine at a time calls it, beside Flush and appends. An error that wraps
// ErrSync is final: what the disk would not write, no later fsync can vouch for.
// errors.ErrUnsupported says that the file system has no such call.
func (l *Log) WriteBack() (int64, error) {
	b := &l.back
	fresh := b.since(l.View())
	n := int64(0)
	for _, x := range fresh {
		if err := l.writeBack(x, false); err != nil {
			return n, err
		}
		n += x.to - x.from
	}
	before := b.asked
	b.asked = fresh
	for _, x := range before {
		if err := l.writeBack(x, true); err != nil {
			return n, err
		}
	}
	return n, nil
}

// since returns what v has behind the last call, oldest first, and moves on.
func (b *writeBack) since(v *View) []stretch {
	var fresh []stretch
	take := func(s *segment, size int64) {
		from := int64(0)
		if s.base == b.base {
			from = b.pos
		}
		if s.base >= b.base && size > from {
			fresh = append(fresh, stretch{s, span{from, size}})
		}
	}
	for _, s := range slices.Backward(v.sealed) {
		if s.base < b.base || s.synced.Load() {
			break
		}
		take(s, s.final.size)
	}
	slices.Reverse(fresh)
	take(v.active, v.tail.size)
	b.base, b.pos = v.active.base, v.tail.size
	return fresh
}

func (l *Log) writeBack(x stretch, wait bool) error {
	f, err := l.home.files.take(x.s)
	if err == errGone {
		return nil
	}
	if err == nil {
		defer x.s.done()
		err = haveWritten(f, x.span, wait)
	}
	if err != nil {
		return fmt.Errorf("write back %s: %w", l.home.path, err)
	}
	return nil
}

// pieceBytes is how much of what the disk was told to write is waited for by one
// call, and aheadFrom from how much on a sync has that done before it. Who watches
// sees a disk that is slow go from one call to the next, and one that hangs not.
const (
	pieceBytes = 4 << 20
	aheadFrom  = 4 * pieceBytes
)

// haveWritten tells the disk to write a range of f, or waits until it has. The
// error is errors.ErrUnsupported if there is no such call, else it wraps ErrSync.
func haveWritten(f File, x span, wait bool) error {
	piece := x.to - x.from
	if wait {
		piece = pieceBytes
	}
	for ; x.from < x.to; x.from += piece {
		switch err := f.WriteBack(x.from, min(piece, x.to-x.from), wait); {
		case errors.Is(err, errors.ErrUnsupported) || errors.Is(err, syscall.EINVAL) || errors.Is(err, syscall.ESPIPE):
			return errors.ErrUnsupported
		case err != nil:
			return fmt.Errorf("%w: %w", ErrSync, err)
		}
	}
	return nil
}
