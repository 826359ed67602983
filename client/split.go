package client

import (
	"fmt"
	"slices"

	"github.com/teralog/teralog/wire"
)

// tooLarge reports whether err refuses b for its size and smaller batches of
// the same records may go in its place: it has more than one, and surely none
// is in the log.
func (b *batch) tooLarge(err error) bool {
	return wire.CodeOf(err) == wire.CodeTooLarge && b.count > 1 && !b.doubt
}

// takes reports whether a record of cost n still goes into a batch that has
// some. A cost is never less than what the record takes once encoded.
func (b *batch) takes(n int64) bool {
	return int64(b.builder.Len())+n <= int64(b.lane.topic.batchBytes)
}

// split puts smaller batches of the same records in the place of b, which
// settle found too large, and has the topic's later ones be no larger. A
// record keeps its sequence, so what is numbered behind b stays as it is.
// fresh returns an empty batch of the lane. It is the caller who frees b.
//
// The broker does not say what its limit is, and with a codec it lies
// elsewhere for each batch, so half of what was refused is tried next. That
// ends, at the latest, with single records.
func (l *lane) split(b *batch, fresh func() *batch) {
	whole := wire.Batch(b.buf.B)
	l.topic.batchBytes = min(l.topic.batchBytes, (wire.HeaderSize+whole.RecordsLength())/2)

	var pieces []*batch
	var last *batch
	seq := b.seq
	d := wire.Decoder{Pool: frames}
	defer d.Release()
	err := whole.Records(&d, func(r *wire.Record) error {
		n := cost(&Record{Key: r.Key, Value: r.Value, Headers: r.Headers})
		if last == nil || !last.takes(n) {
			last = fresh()
			last.state, last.born, last.attempts, last.err = waiting, b.born, b.attempts, b.err
			last.seq, last.numbered = seq, b.numbered
			pieces = append(pieces, last)
		}
		if ok, err := last.builder.Add(r.Time, r.Key, r.Value, r.Headers); !ok {
			return fmt.Errorf("a record of cost %d does not fit: %v", n, err)
		}
		last.count++
		last.cost += n
		seq = wire.NextSequence(seq, 1)
		return nil
	})
	if err != nil {
		panic(fmt.Sprintf("BUG: %s: split a batch of %d records: %v", l.id, b.count, err))
	}
	from := int32(0)
	for _, p := range pieces {
		p.done = b.done.part(from, from+p.count)
		from += p.count
	}
	i := slices.Index(l.batches, b)
	l.batches = slices.Replace(l.batches, i, i+1, pieces...)
}
