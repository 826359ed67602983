package storage

import (
	"bytes"
	"fmt"
	"hash/crc32"
	"io"

	"github.com/teralog/teralog/mem"
	"github.com/teralog/teralog/wire"
)

// scanBytes is how much a walk over a whole file reads at once.
const scanBytes = 256 << 10

// A walker reads the batch headers of a segment in order. It sees the file
// through a window and never holds more of it.
type walker struct {
	f    io.ReaderAt
	id   wire.PartitionID
	pos  int64       // of the header that is next
	next wire.Offset // its base offset
	size int64       // where the walk ends

	buf    *mem.Buf
	window []byte // the file's bytes from lo on
	lo     int64
}

// newWalker returns a walker that reads window bytes at once; close it.
func newWalker(f io.ReaderAt, id wire.PartitionID, pos int64, next wire.Offset, size int64, window int) walker {
	return walker{f: f, id: id, pos: pos, next: next, size: size, buf: buffers.Get(max(window, wire.HeaderSize))}
}

func (w *walker) close() { w.buf.Release() }

// peek returns the n bytes at pos, n at most the window; fewer at the end.
func (w *walker) peek(pos int64, n int) ([]byte, error) {
	n = int(min(int64(n), w.size-pos))
	if at := pos - w.lo; at >= 0 && at+int64(n) <= int64(len(w.window)) {
		return w.window[at : at+int64(n)], nil
	}
	w.window, w.lo = w.buf.B[:min(int64(len(w.buf.B)), w.size-pos)], pos
	got, err := w.f.ReadAt(w.window, pos)
	w.window = w.window[:got]
	switch {
	case got >= n:
		return w.window[:n], nil
	case err == nil || err == io.EOF:
		return nil, fmt.Errorf("%w: the file ends at byte %d, not %d", wire.ErrCorrupt, pos+int64(got), w.size)
	}
	return nil, err
}

// header returns the header at pos if it is whole, of this partition, at the
// offset due, and its batch ends within size. At size it is io.EOF. Damaged
// bytes are ErrCorrupt, what the disk says is returned as it is.
func (w *walker) header() (wire.Batch, error) {
	if w.pos >= w.size {
		return nil, io.EOF
	}
	p, err := w.peek(w.pos, wire.HeaderSize)
	if err != nil {
		return nil, err
	}
	b, err := wire.ParseHeader(p)
	if err != nil {
		return nil, err
	}
	switch {
	case b.Topic() != w.id.Topic || b.Partition() != w.id.Partition:
		return nil, fmt.Errorf("%w: batch of partition %d-%d", wire.ErrCorrupt, b.Topic(), b.Partition())
	case b.BaseOffset() != w.next:
		return nil, fmt.Errorf("%w: batch at offset %d where %d is due", wire.ErrCorrupt, b.BaseOffset(), w.next)
	case b.NextOffset() <= w.next:
		return nil, fmt.Errorf("%w: batch past offset 2^63-1", wire.ErrCorrupt)
	case w.pos+int64(b.Len()) > w.size:
		return nil, fmt.Errorf("%w: batch of %d bytes where %d are left", wire.ErrCorrupt, b.Len(), w.size-w.pos)
	}
	return b, nil
}

// batch is header, and the records CRC checked too. A batch that fits the window
// is returned whole.
func (w *walker) batch() (wire.Batch, error) {
	b, err := w.header()
	if err != nil {
		return nil, err
	}
	n := b.Len()
	if n > len(w.buf.B) {
		return b, checkRecords(w.f, w.pos, b)
	}
	p, err := w.peek(w.pos, n)
	if err != nil {
		return nil, err
	}
	b = wire.Batch(p)
	if crc32.Checksum(p[wire.HeaderSize:], castagnoli) != b.RecordsCRC() {
		return nil, errRecords
	}
	return b, nil
}

var errRecords = fmt.Errorf("%w: records CRC does not match", wire.ErrCorrupt)

// checkRecords checks the records CRC of the batch at pos, whose header b is, in
// bounded memory.
func checkRecords(f io.ReaderAt, pos int64, b wire.Batch) error {
	at, end := pos+wire.HeaderSize, pos+int64(b.Len())
	buf := buffers.Get(int(min(scanBytes, end-at)))
	defer buf.Release()
	var sum uint32
	for at < end {
		p := buf.B[:min(int64(len(buf.B)), end-at)]
		n, err := f.ReadAt(p, at)
		if n < len(p) {
			if err == nil || err == io.EOF {
				err = fmt.Errorf("%w: the file ends at byte %d, inside a batch", wire.ErrCorrupt, at+int64(n))
			}
			return err
		}
		sum = crc32.Update(sum, castagnoli, p)
		at += int64(n)
	}
	if sum != b.RecordsCRC() {
		return errRecords
	}
	return nil
}

// skip moves on behind b, the header at pos.
func (w *walker) skip(b wire.Batch) {
	w.pos += int64(b.Len())
	w.next = b.NextOffset()
}

// resync moves on to the next place behind pos where a header of this partition
// stands whose batch fits between the offset due and end. It reports whether
// there is one.
func (w *walker) resync(end wire.Offset) bool {
	due := w.next
	for pos := w.pos + 1; pos+wire.HeaderSize <= w.size; {
		p, err := w.peek(pos, len(w.buf.B))
		if err != nil {
			return false
		}
		i := bytes.Index(p, []byte(wire.Magic))
		switch {
		case i < 0:
			pos += int64(max(len(p)-len(wire.Magic)+1, 1))
			continue
		case i > 0:
			pos += int64(i)
			continue
		}
		if w.fits(pos, due, end) {
			return true
		}
		pos++
	}
	return false
}

// fits moves to pos if a header stands there that could follow offset due.
func (w *walker) fits(pos int64, due, end wire.Offset) bool {
	p, err := w.peek(pos, wire.HeaderSize)
	if err != nil {
		return false
	}
	b, err := wire.ParseHeader(p)
	if err != nil || b.BaseOffset() < due || b.NextOffset() > end {
		return false
	}
	was := *w
	w.pos, w.next = pos, b.BaseOffset()
	if _, err := w.header(); err != nil {
		w.pos, w.next = was.pos, was.next
		return false
	}
	return true
}
