package storage

import (
	"errors"
	"hash/crc32"

	"github.com/teralog/teralog/mem"
	"github.com/teralog/teralog/wire"
)

// vouched makes the tail as the recovery point describes its segment.
func (r *recovery) vouched(size int64) error {
	p := r.point
	if size < p.Position {
		return r.lost(size)
	}
	t := &r.tail
	t.size, t.end, t.maxTime, t.maxAppend = p.Position, p.Offset, p.GreatestTime, p.AppendTime
	r.due = p.Offset
	if p.Position > 0 {
		if err := r.vouchedEntries(); err != nil {
			return err
		}
	}
	c := r.in.Clean
	if c != nil && size == p.Position && t.lastPos == c.Position && t.lastCRC == c.HeaderCRC {
		return nil
	}
	r.report.Clean = false
	if c != nil && t.lastPos >= 0 && t.lastPos == c.Position && t.lastCRC != c.HeaderCRC {
		return r.otherEnd()
	}
	return nil
}

// otherEnd marks the last batch below the recovery point: it is a good one, but
// not the one with which the log was closed. The disk lost a write, or took it
// for another one's.
func (r *recovery) otherEnd() error {
	var head [wire.HeaderSize]byte
	if _, err := r.file.ReadAt(head[:], r.tail.lastPos); err != nil {
		return err
	}
	r.home.damage.add(wire.Batch(head[:]).BaseOffset(), r.tail.end)
	return nil
}

// lost keeps of the recovery point's segment what there is. Offsets that were
// durable and are gone are damage: they are not given out again.
func (r *recovery) lost(size int64) error {
	r.report.Lost, r.report.Clean = r.point.Offset, false
	if err := r.readopt(r.active, size, r.point.Offset); err != nil {
		return err
	}
	r.keep(r.active)
	r.home.files.unpin(r.active)
	r.active, r.due = nil, r.point.Offset
	return nil
}

// vouchedEntries reads the segment's index below the point, or makes it again
// from the headers.
func (r *recovery) vouchedEntries() error {
	s, p := r.active, r.point
	if r.loadEntries(int(p.IndexCount)) {
		return r.readEnds()
	}
	r.report.Rebuilt = append(r.report.Rebuilt, s.name(offsetSuffix)[len(r.home.path)+1:])
	t := newTail(s.base)
	err := s.walk(r.file, 0, s.base, p.Position, p.Offset, func(b wire.Batch, pos int64) {
		t.size = pos
		t.add(s.base, b, r.home.every)
	})
	t.size, t.end = p.Position, p.Offset
	t.old, t.new = nil, nil // they may not reach the end
	r.tail = t
	return err
}

// loadEntries reads the n entries the recovery point vouches for.
func (r *recovery) loadEntries(n int) bool {
	p := r.point
	if n == 0 || p.TimeCount != p.IndexCount || int64(n) > p.Position/wire.HeaderSize {
		return false
	}
	var raw [2]*mem.Buf
	for i, x := range indexFiles {
		f, err := r.home.fs.Open(r.active.name(x.suffix), Read)
		if err != nil {
			return false
		}
		raw[i] = buffers.Get(n * x.width)
		defer raw[i].Release()
		got, _ := f.ReadAt(raw[i].B, 0)
		f.Close()
		if got < len(raw[i].B) || crc32.Checksum(raw[i].B, castagnoli) != [...]uint32{p.IndexCRC, p.TimeCRC}[i] {
			return false
		}
	}
	x := entries{filed: n, offs: raw[0].B, times: raw[1].B}
	r.tail.heap = make([]entry, n)
	for i := range r.tail.heap {
		r.tail.heap[i] = x.at(i)
	}
	r.tail.sumOff, r.tail.sumTime = p.IndexCRC, p.TimeCRC
	r.tail.last = int64(r.tail.heap[n-1].pos)
	return true
}

// readEnds reads the headers of the first and the last batch below the point.
func (r *recovery) readEnds() error {
	s, t := r.active, &r.tail
	w := newWalker(r.file, r.home.id, 0, s.base, t.size, wire.HeaderSize)
	defer w.close()
	switch b, err := w.header(); {
	case err == nil:
		t.first = b.AppendTime()
	case !errors.Is(err, wire.ErrCorrupt):
		return err
	}
	e := t.heap[len(t.heap)-1]
	return s.walk(r.file, int64(e.pos), s.base+wire.Offset(e.rel), t.size, t.end, func(b wire.Batch, pos int64) {
		t.lastPos, t.lastCRC = pos, b.HeaderCRC()
	})
}
