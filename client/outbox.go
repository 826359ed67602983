package client

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/teralog/teralog/wire"
)

// How accept behaves when a record cannot go ahead at once.
type acceptMode uint8

const (
	acceptWait   acceptMode = iota // wait for room
	acceptTry                      // fail if there is no room
	acceptDirect                   // wait for room; the caller may carry the request itself
)

// recordCost is what a record takes in the buffer beside its bytes: its
// place, its callback and the coding of its fields.
const recordCost = 32

func cost(r *Record) int64 {
	n := int64(recordCost + len(r.Key) + len(r.Value))
	for i := range r.Headers {
		n += int64(len(r.Headers[i].Key)+len(r.Headers[i].Value)) + 8
	}
	return n
}

// accept puts a record into the batch of its partition. With acceptDirect and
// nothing else on its way to the same broker it returns the request for the
// caller to carry.
func (p *Producer) accept(ctx context.Context, r *Record, done func(Ack, error), mode acceptMode) (*flight, error) {
	n := cost(r)
	if n > p.o.BufferBytes {
		return nil, wire.Errorf(wire.CodeTooLarge, "a record of %d bytes and a buffer of %d", n, p.o.BufferBytes)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for {
		if p.closed {
			return nil, ErrClosed
		}
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		t := p.recent
		if t == nil || t.name != r.Topic {
			t = p.topics[r.Topic]
			p.recent = t
		}
		switch {
		case t == nil:
			if err := p.resolve(ctx, r.Topic); err != nil {
				return nil, err
			}
			continue
		case p.used+n <= p.o.BufferBytes:
			return p.enter(t, r, n, done, mode == acceptDirect)
		case mode == acceptTry:
			return nil, ErrBufferFull
		}
		p.awaitRoom(ctx)
	}
}

// awaitRoom waits until bytes of the buffer came free; p.mu is given up
// meanwhile.
func (p *Producer) awaitRoom(ctx context.Context) {
	if p.freed == nil {
		p.freed = make(chan struct{})
	}
	freed := p.freed
	p.mu.Unlock()
	defer p.mu.Lock()
	select {
	case <-freed:
	case <-ctx.Done():
	case <-p.ctx.Done():
	}
}

// resolve asks for a topic's metadata; p.mu is given up meanwhile. It asks
// even if the client has an older answer: a producer binds to a topic by id.
func (p *Producer) resolve(ctx context.Context, name string) error {
	p.mu.Unlock()
	ctx, cancel := p.c.bounded(ctx)
	t, err := p.c.meta.topic(ctx, name, true)
	cancel()
	p.mu.Lock()
	if err != nil || p.topics[name] != nil {
		return err
	}
	out := &outTopic{name: name, id: t.id, batchBytes: p.o.BatchBytes, lanes: make([]*lane, len(t.parts))}
	limit := p.o.InFlight
	if p.o.NotIdempotent {
		limit = 1
	}
	for i, part := range t.parts {
		out.lanes[i] = &lane{topic: out, id: wire.PartitionID{Topic: t.id, Partition: int32(i)}, limit: limit,
			idempotent: !p.o.NotIdempotent, producer: wire.NoProducer, link: p.link(part.leader)}
	}
	p.topics[name] = out
	return nil
}

// enter adds a record for which there is room.
func (p *Producer) enter(t *outTopic, r *Record, n int64, done func(Ack, error), direct bool) (*flight, error) {
	l, err := t.lane(r)
	if err != nil {
		return nil, err
	}
	fresh := l.last() == nil
	b, err := p.place(l, r, n)
	if err != nil {
		return nil, err
	}
	fresh = fresh || b.count == 0
	b.done = append(b.done, done)
	b.count++
	b.cost += n
	p.used += n
	if !l.tended {
		l.tended = true
		p.lanes = append(p.lanes, l)
		p.nudge()
	}
	if l.idempotent && l.producer == wire.NoProducer && p.producer != wire.NoProducer {
		l.adopt(p.producer, p.epoch)
		fresh = true // what came before may go out now, and nobody has been told
	}
	if l.link == nil || l.needsID() {
		if fresh {
			p.nudge()
		}
		return nil, nil
	}
	l.link.list(l)
	if direct && p.o.Linger == 0 && l.link.flights == 0 && len(l.batches) == 1 {
		if conn := l.link.ready(); conn != nil {
			if f, _ := p.take(l.link); f != nil {
				f.conn = conn
				return f, nil
			}
		}
	}
	if fresh || b.state != filling {
		l.link.nudge()
	}
	return nil, nil
}

// lane chooses the partition of a record.
func (t *outTopic) lane(r *Record) (*lane, error) {
	n := int32(len(t.lanes))
	switch {
	case !r.Pinned && r.Key != nil:
		return t.lanes[PartitionOf(r.Key, n)], nil
	case !r.Pinned:
		return t.lanes[t.sticky.partition(n)], nil
	case r.Partition < 0 || r.Partition >= n:
		return nil, wire.Errorf(wire.CodeUnknownPartition, "topic %q has partitions 0 to %d, not %d", t.name, n-1, r.Partition)
	}
	return t.lanes[r.Partition], nil
}

// place encodes a record of cost n into the last batch of a lane, or a new one.
func (p *Producer) place(l *lane, r *Record, n int64) (*batch, error) {
	at := r.Time.UnixMilli()
	if r.Time.IsZero() {
		at = time.Now().UnixMilli()
	}
	if b := l.last(); b != nil {
		if b.takes(n) {
			if ok, err := b.builder.Add(at, r.Key, r.Value, r.Headers); ok || err != nil {
				return b, err
			}
		}
		p.complete(b)
	}
	b := p.fresh(l)
	b.born = p.c.now()
	_, err := b.builder.Add(at, r.Key, r.Value, r.Headers)
	if wire.CodeOf(err) == wire.CodeTooLarge {
		l.keep(b.builder)
		b.alone, b.builder = true, newBuilder(l.id, p.o, wire.MaxBatchBytes)
		_, err = b.builder.Add(at, r.Key, r.Value, r.Headers)
	}
	if err != nil {
		p.spare.putBatch(b)
		return nil, err
	}
	l.batches = append(l.batches, b)
	if b.alone {
		p.complete(b)
	}
	return b, nil
}

// fresh returns an empty batch of a lane.
func (p *Producer) fresh(l *lane) *batch {
	b := p.spare.batch(l)
	b.builder = l.builder(p.o)
	return b
}

// complete lets no more records into a batch.
func (p *Producer) complete(b *batch) {
	if b.state == filling {
		b.full()
		t := b.lane.topic
		t.sticky.moved(b.lane.id.Partition, int32(len(t.lanes)))
	}
}

// maxRequest bounds a produce request in bytes, unless its only batch is
// larger.
const maxRequest = 4 << 20

// take gathers the next request for a broker from the batches that are due,
// one a lane. Without any, wait says when to look again, 0 if only an event
// can change that.
func (p *Producer) take(k *link) (f *flight, wait time.Duration) {
	if k.flights >= p.o.InFlight {
		return nil, 0
	}
	linger := p.o.Linger
	if p.flushing > 0 {
		linger = 0
	}
	now, size := p.c.now(), 0
	for i := 0; i < len(k.busy); i++ {
		l := k.busy[i]
		if l.link != k || l.idle() {
			l.listed = l.listed && l.link != k
			k.busy[i] = k.busy[len(k.busy)-1]
			k.busy = k.busy[:len(k.busy)-1]
			i--
			continue
		}
		b, w := l.due(now, linger)
		if w > 0 && (wait == 0 || w < wait) {
			wait = w
		}
		if b == nil {
			continue
		}
		if f != nil && size+b.bytes() > maxRequest {
			break
		}
		if f == nil {
			f = p.spare.flight(p)
		}
		size += b.bytes()
		p.complete(b)
		l.sent(b)
		f.batches = append(f.batches, b)
	}
	if f == nil {
		return nil, wait
	}
	// Who came last goes first next time, so a full request starves nobody.
	if n := len(k.busy); n > 1 {
		k.busy[0], k.busy[n-1] = k.busy[n-1], k.busy[0]
	}
	k.took(f, now)
	return f, 0
}

func (p *Producer) wait(n int, hint time.Duration) time.Duration {
	return p.c.back.after(n, hint, rand.Float64())
}
