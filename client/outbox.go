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

// begin takes what whoever gives records holds, and end gives it up.
func (p *Producer) begin() {
	p.giving.Lock()
	p.mu.Lock()
}

func (p *Producer) end() {
	p.mu.Unlock()
	p.giving.Unlock()
}

// accept puts a record into the batch of its partition. It may return a
// request that the caller is to carry: with acceptDirect, if alone says so, to
// its answer, else to the network.
func (p *Producer) accept(ctx context.Context, r *Record, done func(Ack, error), mode acceptMode) (f *flight, alone bool, err error) {
	n := cost(r)
	p.begin()
	defer p.end()
	t, err := p.admit(ctx, r, n, mode)
	if err != nil {
		return nil, false, err
	}
	l, err := p.laneFor(t, r, n)
	if err != nil {
		return nil, false, err
	}
	fresh := l.last() == nil
	b, err := p.place(l, r, n)
	if err != nil {
		return nil, false, err
	}
	b.done.add(done)
	if mode == acceptDirect {
		p.resume()
	}
	f, alone = p.arrived(l, fresh || b.count == 1, mode == acceptDirect)
	return f, alone, nil
}

// acceptAll is accept for many records, and returns how many it took.
func (p *Producer) acceptAll(ctx context.Context, rs []Record, done Outcome, mode acceptMode) (int, error) {
	for from := 0; from < len(rs); {
		n, f, err := p.acceptSome(ctx, rs, from, done, mode)
		f.carry()
		if from += n; err != nil {
			return from, err
		}
	}
	return len(rs), nil
}

// acceptSome takes records from rs[from] on until there is no room for one or a
// request to be carried.
func (p *Producer) acceptSome(ctx context.Context, rs []Record, from int, done Outcome, mode acceptMode) (taken int, f *flight, err error) {
	p.begin()
	defer p.end()
	t, err := p.admit(ctx, &rs[from], cost(&rs[from]), mode)
	if err != nil {
		return 0, nil, err
	}
	at := from
	for at < len(rs) && f == nil && err == nil && p.takes(t) {
		var n int
		n, f, err = p.placeRun(t, rs, at, done)
		if at += n; n == 0 {
			break
		}
	}
	return at - from, f, err
}

// takes reports whether t, which admit returned, takes records still: while some were
// encoded it may have been deleted, or the producer closed.
func (p *Producer) takes(t *outTopic) bool { return p.recent == t && !p.closed }

// goesTo reports whether r, which may not go anywhere, goes to l. It looks at nothing
// that p.mu guards.
func (t *outTopic) goesTo(l *lane, r *Record) bool {
	next, err := t.lane(r)
	return err == nil && next == l
}

// anywhere reports whether the producer may choose the record's partition.
func (r *Record) anywhere() bool { return r.Key == nil && !r.Pinned }

// millis returns the event time, in milliseconds since the epoch.
func (r *Record) millis() int64 {
	if r.Time.IsZero() {
		return time.Now().UnixMilli()
	}
	return r.Time.UnixMilli()
}

// placeRun takes those of the records of t from rs[from] on that go into one
// batch and for which there is room. p.mu is given up while they are encoded.
func (p *Producer) placeRun(t *outTopic, rs []Record, from int, done Outcome) (taken int, f *flight, err error) {
	w, err := p.beginRun(t, rs, from)
	if w.b == nil {
		return 0, nil, err
	}
	if w.b.written {
		p.mu.Unlock()
		err = w.write()
		p.mu.Lock()
	}
	return w.at - from, p.endRun(&w, from, done), err
}

// A writing is records on their way into one batch, which has the one before them.
type writing struct {
	b     *batch // nil: there is no room
	fresh bool   // nobody was told of it yet
	rs    []Record
	at    int   // the next of rs
	room  int64 // what they may cost
	most  int   // bytes of the batch
	count int32
	cost  int64
	full  bool // the batch has no room for rs[at]
}

// beginRun places rs[from]. If others may follow it into its batch, that is marked
// as written until endRun.
func (p *Producer) beginRun(t *outTopic, rs []Record, from int) (w writing, err error) {
	n := cost(&rs[from])
	if rs[from].Topic != t.name || p.used+n > p.o.BufferBytes {
		return writing{}, nil
	}
	l, err := p.laneFor(t, &rs[from], n)
	if err != nil {
		return writing{}, err
	}
	fresh := l.last() == nil
	b, err := p.place(l, &rs[from], n)
	if err != nil {
		return writing{}, err
	}
	b.written = b.state == filling && from+1 < len(rs)
	return writing{b: b, fresh: fresh || b.count == 1, rs: rs, at: from + 1, room: p.o.BufferBytes - p.used, most: t.batchBytes}, nil
}

// endRun has what was written sent, and returns a request if the caller is to
// carry it.
func (p *Producer) endRun(w *writing, from int, done Outcome) *flight {
	b := w.b
	b.written = false
	b.count += w.count
	b.cost += w.cost
	p.used += w.cost
	b.done.addRun(done, from, w.at-from)
	switch {
	case b.state == refused: // it was given up meanwhile
		p.reap(b.lane)
		p.deliverSoon()
	case w.full:
		p.complete(b, true)
	}
	f, _ := p.arrived(b.lane, w.fresh, false)
	return f
}

// write encodes records until one goes elsewhere or there is no room. It runs
// without p.mu, under p.giving.
func (w *writing) write() (err error) {
	l, to := w.b.lane, w.b.builder
	t := l.topic
	last := &w.rs[w.at-1]
	when, ms := last.Time, last.millis() // those given together were mostly stamped together
	at, spent := w.at, int64(0)
	for ; at < len(w.rs); at++ {
		r := &w.rs[at]
		n := cost(r)
		if spent+n > w.room || r.Topic != t.name {
			break
		}
		// Records that may go anywhere go on to another partition only when a batch
		// is complete.
		if r.anywhere() && !last.anywhere() || !r.anywhere() && !t.goesTo(l, r) {
			break
		}
		if w.full = int64(to.Len())+n > int64(w.most); w.full {
			break
		}
		if r.Time != when {
			when, ms = r.Time, r.millis()
		}
		if _, err = to.Add(ms, r.Key, r.Value, r.Headers); err != nil {
			break
		}
		spent += n
		last = r
	}
	w.count, w.cost, w.at = int32(at-w.at), spent, at
	return err
}

// admit returns the topic of a record of cost n once there is room for it; both
// mutexes may be given up meanwhile.
func (p *Producer) admit(ctx context.Context, r *Record, n int64, mode acceptMode) (*outTopic, error) {
	if n > p.o.BufferBytes {
		return nil, wire.Errorf(wire.CodeTooLarge, "a record of %d bytes and a buffer of %d", n, p.o.BufferBytes)
	}
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
			return t, nil
		case mode == acceptTry:
			return nil, ErrBufferFull
		}
		p.awaitRoom(ctx)
	}
}

// awaitRoom waits until bytes of the buffer came free; both mutexes are given up
// meanwhile. If only one connection can bring that it reads there itself.
func (p *Producer) awaitRoom(ctx context.Context) {
	if p.freed == nil {
		p.freed = make(chan struct{})
	}
	freed := p.freed
	conn := p.lone()
	attends := conn != nil && conn.Attend()
	if attends {
		p.attended = conn
	}
	p.end()
	defer p.begin()
	if attends {
		conn.ReadUntil(ctx, func() bool { return isClosed(freed) })
		return
	}
	var offered <-chan struct{}
	if conn != nil {
		offered = conn.Offered()
	}
	select {
	case <-freed:
	case <-offered:
	case <-ctx.Done():
	case <-p.ctx.Done():
	}
}

// resume has the answers read that whoever waited for room left for the next time:
// somebody waits for them. p.mu is held.
func (p *Producer) resume() {
	if p.attended != nil {
		p.attended.Resume()
	}
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// lone returns the connection on which all requests are that are on their way, nil if
// there are several or none.
func (p *Producer) lone() *wire.Conn {
	var lone *link
	for _, k := range p.links {
		switch {
		case k.flights == 0:
		case lone != nil:
			return nil
		default:
			lone = k
		}
	}
	if lone == nil {
		return nil
	}
	return lone.ready()
}

// resolve asks for a topic's metadata; both mutexes are given up meanwhile. It asks
// even if the client has an older answer: a producer binds to a topic by id.
func (p *Producer) resolve(ctx context.Context, name string) error {
	p.end()
	ctx, cancel := p.c.bounded(ctx)
	t, err := p.c.meta.topic(ctx, name, true)
	cancel()
	p.begin()
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

// arrived has the records sent that were put into the last batch of a lane, and
// returns a request if the caller is to carry it. fresh says that nobody was
// told of that batch yet.
func (p *Producer) arrived(l *lane, fresh, direct bool) (f *flight, alone bool) {
	if l.idempotent && l.producer == wire.NoProducer && p.producer != wire.NoProducer {
		l.adopt(p.producer, p.epoch)
		fresh = true // what came before may go out now
	}
	k := l.link
	if k == nil || l.needsID() {
		if fresh {
			p.nudge()
		}
		return nil, false
	}
	k.list(l)
	if direct && p.direct && k.flights == 0 && !k.launching && len(l.batches) == 1 {
		if conn := k.ready(); conn != nil {
			if f, _ := p.take(k); f != nil {
				f.conn, k.launching = conn, true
				return f, true
			}
		}
	}
	passed := false
	if b := l.last(); b != nil {
		passed, b.passed = b.passed, false
		if !fresh && !passed {
			return nil, false
		}
	}
	if passed || k.complete > 0 {
		if f := k.claim(); f != nil {
			return f, false
		}
	}
	k.look()
	return nil, false
}

// laneFor chooses the partition of a record of cost n. One that may go anywhere
// goes on to the next partition if the batch of this one has no room for it:
// it would begin another one there that nobody goes on to fill.
func (p *Producer) laneFor(t *outTopic, r *Record, n int64) (*lane, error) {
	l, err := t.lane(r)
	if err != nil || !r.anywhere() {
		return l, err
	}
	if b := l.last(); b != nil && !b.takes(n) {
		p.complete(b, true)
		next, err := t.lane(r)
		if l.link != nil && next != l && next.last() != nil {
			l.link.look() // the record joins others of whom somebody was told
		}
		return next, err
	}
	return l, nil
}

// lane chooses the partition of a record.
func (t *outTopic) lane(r *Record) (*lane, error) {
	n := int32(len(t.lanes))
	switch {
	case !r.Pinned && r.Key != nil:
		return t.lanes[PartitionOf(r.Key, n)], nil
	case !r.Pinned:
		return t.anyLane(), nil
	case r.Partition < 0 || r.Partition >= n:
		return nil, wire.Errorf(wire.CodeUnknownPartition, "topic %q has partitions 0 to %d, not %d", t.name, n-1, r.Partition)
	}
	return t.lanes[r.Partition], nil
}

// anyLane chooses the partition of a record that may go anywhere. Those whose
// records go nowhere are passed over, unless all are such: a batch there stays
// open, and would gather what others could take.
func (t *outTopic) anyLane() *lane {
	n := int32(len(t.lanes))
	for range t.lanes {
		l := t.lanes[t.sticky.partition(n)]
		if !l.stuck() {
			return l
		}
		t.sticky.moved(l.id.Partition, n)
	}
	return t.lanes[t.sticky.partition(n)]
}

// place encodes a record of cost n into the last batch of a lane, or a new one.
func (p *Producer) place(l *lane, r *Record, n int64) (*batch, error) {
	at := r.millis()
	if b := l.last(); b != nil {
		if b.takes(n) {
			ok, err := b.builder.Add(at, r.Key, r.Value, r.Headers)
			if err != nil {
				return nil, err
			}
			if ok {
				p.count(b, n)
				return b, nil
			}
		}
		p.complete(b, true)
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
	if !l.tended {
		l.tended = true
		p.lanes = append(p.lanes, l)
	}
	p.tendBy(b.born + p.o.DeliveryTimeout)
	p.count(b, n)
	if b.alone {
		p.complete(b, true)
	}
	return b, nil
}

// count counts a record of cost n into a batch.
func (p *Producer) count(b *batch, n int64) {
	b.count++
	b.cost += n
	p.used += n
}

// fresh returns an empty batch of a lane.
func (p *Producer) fresh(l *lane) *batch {
	b := p.spare.batch(l)
	b.builder = l.builder(p.o)
	return b
}

// complete lets no more records into a batch: it is full, or goes out as it is.
func (p *Producer) complete(b *batch, full bool) {
	if b.state != filling {
		return
	}
	b.full()
	l := b.lane
	s, n := &l.topic.sticky, int32(len(l.topic.lanes))
	s.took(l.id.Partition, n, b.bytes())
	// Batches of one partition behind one another are written as one. Too many
	// may not be on their way at once.
	if !full || s.filled >= p.enough || len(l.batches) >= l.limit-1 {
		s.moved(l.id.Partition, n)
	}
	if l.link != nil {
		l.link.completed(l, b)
	}
}

// maxRequest bounds a produce request in bytes, unless its only batch is
// larger.
const maxRequest = 4 << 20

// take gathers the next request for a broker from the batches that are due, if
// it is worth one. Without any, wait says when to look again, 0 if only an event
// can change that.
func (p *Producer) take(k *link) (f *flight, wait time.Duration) {
	now := p.c.now()
	if k.flights >= p.o.InFlight || !k.waits() {
		return nil, 0
	}
	if wait := k.heldBack(now); wait > 0 {
		return nil, wait
	}
	linger := p.o.Linger
	switch {
	case p.flushing > 0:
		linger = 0
	case k.flights > 0 || k.complete > 0:
		linger = max(linger, holdBack)
	}
	size, more := 0, 0
lanes:
	for i := 0; i < len(k.busy); i++ {
		l := k.busy[i]
		if l.link != k || l.idle() {
			l.listed = l.listed && l.link != k
			k.busy[i] = k.busy[len(k.busy)-1]
			k.busy = k.busy[:len(k.busy)-1]
			i--
			continue
		}
		for {
			b, w := l.due(now, linger)
			if w > 0 && (wait == 0 || w < wait) {
				wait = w
			}
			if b == nil {
				break
			}
			if f != nil && size+b.bytes() > maxRequest {
				more = p.enough // about: all that did not fit is not looked at
				break lanes
			}
			if f == nil {
				f = p.spare.flight(p)
			}
			size += b.bytes()
			p.complete(b, false)
			l.sent(b)
			f.batches = append(f.batches, b)
		}
	}
	k.complete = more
	if f == nil {
		return nil, wait
	}
	// Who came last goes first next time, so a full request starves nobody.
	if n := len(k.busy); n > 1 {
		k.busy[0], k.busy[n-1] = k.busy[n-1], k.busy[0]
	}
	f.size = size
	k.took(f, now)
	return f, 0
}

func (p *Producer) wait(n int, hint time.Duration) time.Duration {
	return p.c.back.after(n, hint, rand.Float64())
}
