package storage

import (
	"fmt"
	"math"
	"slices"

	"github.com/teralog/teralog/mem"
	"github.com/teralog/teralog/wire"
)

// keptBatches is how many batches a producer may have in flight: so many are
// remembered, so that any of them sent again is recognised.
const keptBatches = 5

// A sent is one batch that a producer got into the log.
type sent struct {
	seq, delta int32 // base sequence, lastOffsetDelta
	base       wire.Offset
	sum        uint32 // recordsCRC
}

// A producer is what the log knows of one idempotent producer.
type producer struct {
	id         wire.ProducerID
	epoch      int16
	kept       uint8 // batches remembered
	lastAppend int64 // ms by the stamp clock
	batches    [keptBatches]sent

	older, newer *producer // by last append
}

// Producers keeps each producer's sequence in order, whatever is sent twice,
// late or not at all. It belongs to the log's owner.
//
// A batch is staged before it is appended, against what the log holds and what
// this turn staged already; once the append succeeded the turn is committed,
// otherwise dropped.
//
// A producer is forgotten only when its last append is older than the
// retention. While MaxProducers are younger than that, a new one is refused:
// to make room for it would let an old batch in twice.
type Producers struct {
	retention int64 // ms
	max       int

	byID           map[wire.ProducerID]*producer
	oldest, newest *producer
	undo           []change
}

// A change is a producer as it was before a staged batch; kept is 0 for one
// that was not there.
type change struct {
	p   *producer
	was producer
	new bool
}

func newProducers(o Options) *Producers {
	return &Producers{retention: o.ProducerRetention.Milliseconds(), max: o.MaxProducers, byID: map[wire.ProducerID]*producer{}}
}

// Len returns how many producers are known.
func (p *Producers) Len() int { return len(p.byID) }

// Stage judges the batch b, which would get offset at. A batch without producer
// always passes.
//
// isDup: b is in the log already, at dup; First -1: it was, before the last five.
// An error is a wire.Code, definite: UNKNOWN_PRODUCER (its first sequence is not
// 0 and nothing is known of it), OUT_OF_ORDER_SEQUENCE (a gap, or a new epoch
// that does not begin at 0), SEQUENCE_REUSED (the sequences are taken by other
// records), FENCED_PRODUCER (a newer epoch is known), BUSY (too many producers).
func (p *Producers) Stage(b wire.Batch, at wire.Offset, now mem.Now) (dup Appended, isDup bool, err error) {
	id, epoch, seq := b.Producer()
	if id == wire.NoProducer {
		return Appended{}, false, nil
	}
	x := p.find(id, now.Wall)
	if x == nil {
		if seq != 0 && !mem.Mutant("unknown producer accepted") {
			return Appended{}, false, wire.CodeUnknownProducer
		}
		if !p.room(now.Wall) {
			return Appended{}, false, wire.CodeBusy
		}
		p.add(b, at, now.Wall)
		return Appended{}, false, nil
	}
	if s, dup := x.duplicate(epoch, seq, b.LastOffsetDelta(), b.RecordsCRC()); dup {
		return Appended{First: s.base, Last: s.last(), Time: -1}, true, nil
	}
	if code := x.judge(epoch, seq, b.LastOffsetDelta()); code != wire.CodeOK {
		return Appended{}, false, code
	}
	p.undo = append(p.undo, change{p: x, was: *x})
	x.take(b, at, now.Wall)
	return Appended{}, false, nil
}

// last returns the last offset of the batch, -1 if it is no longer known.
func (s sent) last() wire.Offset {
	if s.base < 0 {
		return -1
	}
	return s.base + wire.Offset(s.delta)
}

// duplicate reports whether the batch with these sequences is in the log, and
// where; base -1 if it is older than what is remembered.
func (x *producer) duplicate(epoch int16, seq, delta int32, sum uint32) (sent, bool) {
	if epoch != x.epoch || x.kept == 0 {
		return sent{}, false
	}
	for _, s := range x.batches[:x.kept] {
		if s.seq == seq && s.delta == delta {
			return s, s.sum == sum
		}
	}
	oldest := x.batches[0]
	if x.kept < keptBatches && oldest.seq == 0 {
		return sent{}, false // all there ever was is remembered
	}
	back := before(oldest.seq, seq)
	return sent{base: -1}, back > 0 && back <= math.MaxInt32/2 && int64(delta) < back
}

// before returns how many sequences b lies before a, 0 to 2^31-1.
func before(a, b int32) int64 { return (int64(a) - int64(b)) & math.MaxInt32 }

// judge returns whether a batch that is no duplicate may follow.
func (x *producer) judge(epoch int16, seq, delta int32) wire.Code {
	switch {
	case epoch < x.epoch:
		return wire.CodeFencedProducer
	case epoch > x.epoch && seq == 0, epoch == x.epoch && seq == x.next():
		return wire.CodeOK
	case epoch == x.epoch && x.overlaps(seq, delta):
		return wire.CodeSequenceReused
	}
	return wire.CodeOutOfOrderSequence
}

// next returns the sequence due.
func (x *producer) next() int32 {
	if x.kept == 0 {
		return 0
	}
	s := x.batches[x.kept-1]
	return wire.NextSequence(wire.NextSequence(s.seq, s.delta), 1)
}

// overlaps reports whether sequences seq to seq+delta meet a remembered batch.
func (x *producer) overlaps(seq, delta int32) bool {
	for _, s := range x.batches[:x.kept] {
		if before(seq, s.seq) <= int64(s.delta) || before(s.seq, seq) <= int64(delta) {
			return true
		}
	}
	return false
}

// take notes b as the newest batch.
func (x *producer) take(b wire.Batch, at wire.Offset, time int64) {
	_, epoch, seq := b.Producer()
	if epoch != x.epoch {
		x.epoch, x.kept = epoch, 0
	}
	if x.kept == keptBatches {
		copy(x.batches[:], x.batches[1:])
		x.kept--
	}
	x.batches[x.kept] = sent{seq, b.LastOffsetDelta(), at, b.RecordsCRC()}
	x.kept++
	x.lastAppend = max(x.lastAppend, time)
}

// find returns what is known of id; what is older than the retention is not.
func (p *Producers) find(id wire.ProducerID, wall int64) *producer {
	x := p.byID[id]
	if x != nil && p.expired(x, wall) && !p.staged(x) {
		p.remove(x)
		return nil
	}
	return x
}

func (p *Producers) expired(x *producer, wall int64) bool {
	return wall > x.lastAppend && wall-x.lastAppend > p.retention
}

// staged reports whether this turn changed x, so that Drop may need it.
func (p *Producers) staged(x *producer) bool {
	return slices.ContainsFunc(p.undo, func(c change) bool { return c.p == x })
}

// room forgets expired producers, oldest first, until there is room for one more.
func (p *Producers) room(wall int64) bool {
	for x := p.oldest; x != nil && p.expired(x, wall) && !p.staged(x); x = p.oldest {
		p.remove(x)
	}
	return len(p.byID) < p.max
}

func (p *Producers) add(b wire.Batch, at wire.Offset, wall int64) {
	id, epoch, _ := b.Producer()
	x := &producer{id: id, epoch: epoch, lastAppend: wall}
	x.take(b, at, wall)
	p.insert(x)
	p.undo = append(p.undo, change{p: x, new: true})
}

func (p *Producers) insert(x *producer) {
	p.byID[x.id] = x
	p.link(x)
}

func (p *Producers) remove(x *producer) {
	delete(p.byID, x.id)
	p.unlink(x)
}

// link makes x the newest.
func (p *Producers) link(x *producer) {
	x.older, x.newer = p.newest, nil
	if p.newest != nil {
		p.newest.newer = x
	} else {
		p.oldest = x
	}
	p.newest = x
}

func (p *Producers) unlink(x *producer) {
	if x.older != nil {
		x.older.newer = x.newer
	} else {
		p.oldest = x.newer
	}
	if x.newer != nil {
		x.newer.older = x.older
	} else {
		p.newest = x.older
	}
}

// stamp gives what was staged the append time that its batches got.
func (p *Producers) stamp(time int64) {
	for _, c := range p.undo {
		c.p.lastAppend = max(c.p.lastAppend, time)
	}
}

// Commit keeps what was staged since the last Commit or Drop: it is in the log.
func (p *Producers) Commit() {
	for _, c := range p.undo {
		if p.newest != c.p {
			p.unlink(c.p)
			p.link(c.p)
		}
	}
	p.clear()
}

// Drop takes back what was staged since the last Commit or Drop.
func (p *Producers) Drop() {
	for _, c := range slices.Backward(p.undo) {
		if c.new {
			p.remove(c.p)
			continue
		}
		c.was.older, c.was.newer = c.p.older, c.p.newer
		*c.p = c.was
	}
	p.clear()
}

func (p *Producers) clear() {
	clear(p.undo)
	p.undo = p.undo[:0]
}

// replay notes a batch that stands in the log. What a leader let in is not
// judged again; the bound holds all the same.
func (p *Producers) replay(b wire.Batch) {
	id, epoch, _ := b.Producer()
	if id == wire.NoProducer {
		return
	}
	x := p.find(id, b.AppendTime())
	if x == nil {
		if !p.room(b.AppendTime()) {
			p.remove(p.oldest)
		}
		x = &producer{id: id, epoch: epoch, lastAppend: b.AppendTime()}
		p.insert(x)
	}
	x.take(b, b.BaseOffset(), b.AppendTime())
	p.unlink(x)
	p.link(x)
}

// A snapshot holds all producers at one offset:
//
//	| topicID u64 | partition u32 | offset i64 | count u32 | for each, the longest idle first:
//	| id i64 | epoch i16 | kept u8 | lastAppend i64 | first offset of an open transaction i64 |
//	| kept times: baseSequence i32 | lastOffsetDelta i32 | baseOffset i64 | recordsCRC u32 |
const (
	producerSize = 8 + 2 + 1 + 8 + 8
	sentSize     = 4 + 4 + 8 + 4
	noOffset     = -1
)

// 256 MiB is room for two million producers.
var snapshotFile = smallFile{magic: "TLps", version: 1, max: 256 << 20}

func (p *Producers) encode(id wire.PartitionID, at wire.Offset) []byte {
	if len(p.undo) > 0 {
		panic(fmt.Sprintf("BUG: snapshot at offset %d with %d staged batches", at, len(p.undo)))
	}
	b := make([]byte, 0, 24+len(p.byID)*(producerSize+keptBatches*sentSize))
	b = wire.Append64(b, id.Topic)
	b = wire.Append32(b, id.Partition)
	b = wire.Append64(b, at)
	b = wire.Append32(b, uint32(len(p.byID)))
	for x := p.oldest; x != nil; x = x.newer {
		b = wire.Append64(b, x.id)
		b = wire.Append16(b, x.epoch)
		b = wire.Append8(b, x.kept)
		b = wire.Append64(b, x.lastAppend)
		b = wire.Append64(b, int64(noOffset))
		for _, s := range x.batches[:x.kept] {
			b = wire.Append32(b, s.seq)
			b = wire.Append32(b, s.delta)
			b = wire.Append64(b, s.base)
			b = wire.Append32(b, s.sum)
		}
	}
	return b
}

// decodeProducers returns the state in a snapshot, and of what and where it is.
func decodeProducers(b []byte, o Options) (*Producers, wire.PartitionID, wire.Offset, error) {
	r := wire.NewReader(b)
	p := newProducers(o)
	id := readPartition(r)
	at := wire.Offset(r.I64())
	n := r.U32()
	if int64(n)*producerSize > int64(r.Left()) {
		r.Failf("%d producers in %d bytes", n, r.Left())
	}
	for i := uint32(0); i < n && r.Err() == nil; i++ {
		x := &producer{id: wire.ProducerID(r.I64()), epoch: r.I16(), kept: r.U8(), lastAppend: r.I64()}
		r.I64()
		if r.Err() == nil && (x.kept > keptBatches || p.byID[x.id] != nil) {
			r.Failf("producer %d: %d batches, or twice", x.id, x.kept)
		}
		for j := 0; j < int(x.kept) && r.Err() == nil; j++ {
			x.batches[j] = sent{r.I32(), r.I32(), wire.Offset(r.I64()), r.U32()}
		}
		if r.Err() == nil {
			p.insert(x)
		}
	}
	return p, id, at, r.Finish()
}
