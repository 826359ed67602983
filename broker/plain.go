package broker

import (
	"fmt"
	"io"

	"github.com/teralog/teralog/mem"
	"github.com/teralog/teralog/storage"
	"github.com/teralog/teralog/wire"
)

// maxPlainBytes bounds an answer's decoded batches, inclusive. The first one
// comes whole.
const maxPlainBytes = 16 << 20

var plainPool = mem.NewPool("plain")

// answerPlain decodes what the last look found and sends that instead. It may
// stop in the middle of a range, so that an answer stays within maxPlainBytes;
// Next says where. What is decoded is charged to the budget of requests until
// it is sent. Runs on a worker.
func (f *fetch) answerPlain() {
	decoder := wire.Decoder{MaxRecords: wire.DefaultMaxRecords}
	defer decoder.Release()
	room, n := int64(maxPlainBytes), 0
	for i := range f.resp.Partitions {
		r := &f.resp.Partitions[i]
		if r.Bytes == 0 {
			continue
		}
		stored := &f.ranges[n]
		n++
		r.Bytes, r.Next = 0, f.req.Partitions[i].Offset
		if room <= 0 {
			continue
		}
		plain, err := f.b.decode(stored, room, len(f.files) == 0, &decoder)
		switch {
		case err == errMemory && len(f.files) == 0:
			f.refuse(err)
			return
		case err == errMemory: // the next fetch takes it
		case err != nil:
			r.Code = wire.CodeOf(err)
			noteDamage(r, err)
		case plain.len > 0:
			r.Bytes, r.Next = uint32(plain.len), plain.next
			room -= plain.len
			f.files = append(f.files, wire.FileRange{R: plain, Len: plain.len, Done: plain.done})
		}
	}
	for i := range f.ranges {
		letGo(&f.ranges[i].FileRange)
	}
	f.send()
}

// A plainRange is batches without their codecs, in memory.
type plainRange struct {
	buf    *mem.Buf
	len    int64
	next   wire.Offset // the offset to ask for next
	budget *mem.Budget
	taken  int64 // from budget
}

func (p *plainRange) ReadAt(b []byte, off int64) (int, error) {
	n := copy(b, p.buf.B[min(off, p.len):])
	if n < len(b) {
		return n, io.EOF
	}
	return n, nil
}

func (p *plainRange) done() {
	p.buf.Release()
	p.budget.Give(p.taken)
}

// decode returns the batches of a range without their codecs, as many as are
// sound and fit room; the first of them also if it does not fit, if whole says
// so. The error is that of the first: CORRUPT, TOO_LARGE for a sound one that
// is too large without its codec, or errMemory.
func (b *Broker) decode(r *storage.Range, room int64, whole bool, d *wire.Decoder) (*plainRange, error) {
	budget := b.server.Budget
	if !budget.TryTake(r.Len) {
		return nil, errMemory
	}
	defer budget.Give(r.Len)
	stored := plainPool.Get(int(r.Len))
	defer stored.Release()
	if _, err := r.R.ReadAt(stored.B, r.Off); err != nil {
		return nil, fmt.Errorf("%w: read %d bytes at %d: %w", wire.CodeStorageError, r.Len, r.Off, err)
	}
	size, count := int64(0), 0
	for batch, err := range wire.Batches(stored.B) {
		if err == nil {
			err = batch.Verify()
		}
		if err != nil && count == 0 {
			if bad := r.Check(); bad != nil {
				err = bad // and the log remembers
			}
			return nil, err
		}
		if err != nil {
			break
		}
		n := int64(wire.HeaderSize + batch.RecordsLength())
		if n > wire.MaxBatchBytes && count == 0 {
			return nil, wire.Errorf(wire.CodeTooLarge, "batch of %d bytes without its codec; ask for the stored form", n)
		}
		if n > wire.MaxBatchBytes || size+n > room && (count > 0 || !whole) {
			break
		}
		size, count = size+n, count+1
	}
	p := &plainRange{budget: budget, taken: size}
	if count == 0 {
		return p, nil
	}
	if !budget.TryTake(size) {
		return nil, errMemory
	}
	p.buf = plainPool.Get(int(size))
	filled := false
	defer func() {
		if !filled { // also if that panicked
			p.done()
		}
	}()
	if err := p.fill(stored.B, count, d); err != nil {
		return nil, err
	}
	filled = true
	return p, nil
}

// fill decodes the first count batches of stored, up to one that cannot be.
// The error is that of the first.
func (p *plainRange) fill(stored []byte, count int, d *wire.Decoder) error {
	out := p.buf.B[:0]
	for batch := range wire.Batches(stored) {
		if count--; count < 0 {
			break
		}
		var err error
		if out, err = batch.AppendPlain(out, d); err != nil {
			if len(out) > 0 {
				break
			}
			if wire.CodeOf(err) != wire.CodeTooLarge {
				err = &storage.CorruptRange{From: batch.BaseOffset(), To: batch.NextOffset()}
			}
			return err
		}
		p.next = batch.NextOffset()
	}
	p.len = int64(len(out))
	p.buf.B = out
	return nil
}
