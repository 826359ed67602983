package sim

import (
	"errors"
	"fmt"
	"time"

	"github.com/teralog/teralog/bench"
	"github.com/teralog/teralog/wire"
)

// A producer writes to every partition of every topic, each in a session of
// its own: a producer id and a row of sequence numbers. It does what the real
// client does: up to five batches in flight, sent again in order, and a new
// session where the broker has lost the old one.
type producer struct {
	w       *one
	n       uint32
	counter uint64
	link    *link
	lanes   []*lane
	quiet   bool // makes no new records
}

// A lane is one session.
type lane struct {
	p         *producer
	t         *topic
	partition int32
	acks      int8

	id      wire.ProducerID // 0: none yet
	asking  bool
	next    int32 // sequence of the next new batch
	batches []*outgoing
	held    time.Duration // nothing is sent before that
}

// An outgoing batch has no outcome yet.
type outgoing struct {
	ids      []bench.ID
	times    []int64
	encoded  []byte // with the sequence it has now
	flying   bool
	doubtful bool // some attempt may have been carried out
}

const maxFlying = 5

func (w *one) addProducer(n uint32) {
	p := &producer{w: w, n: n}
	w.clients = append(w.clients, p)
	for _, t := range w.topics {
		for i := range t.partitions {
			acks := wire.AcksAll
			if w.odds("acks", 2) {
				acks = wire.AcksLeader
			}
			p.lanes = append(p.lanes, &lane{p: p, t: t, partition: i, acks: acks})
		}
	}
	var live func()
	live = func() {
		if w.healed {
			p.quiet = true
		}
		l := p.lanes[w.stream("lane").IntN(len(p.lanes))]
		if !p.quiet && l.t.id != 0 && len(l.batches) < maxFlying+2 {
			l.make()
		}
		for _, l := range p.lanes {
			l.pump()
		}
		w.after(w.between("produce", time.Millisecond, 15*time.Millisecond), live)
	}
	w.after(w.between("produce", 0, 20*time.Millisecond), live)
}

// open returns how many batches have no outcome.
func (p *producer) open() (n int) {
	for _, l := range p.lanes {
		n += len(l.batches)
	}
	return n
}

func (l *lane) pid() wire.PartitionID {
	return wire.PartitionID{Topic: l.t.id, Partition: l.partition}
}

// make gives the lane a new batch.
func (l *lane) make() {
	w, b := l.p.w, &outgoing{}
	for range 1 + w.stream("records").IntN(4) {
		id := bench.ID{Run: uint32(w.seed), Producer: l.p.n, Counter: l.p.counter}
		l.p.counter++
		b.ids = append(b.ids, id)
		// Event times are in disorder and sometimes far off.
		at := w.now.Wall + w.stream("event time").Int64N(20_000) - 10_000
		if w.odds("far time", 50) {
			at = w.stream("event time").Int64N(4_000_000_000_000)
		}
		b.times = append(b.times, at)
		w.checker.Apply(&bench.Sent{ID: id, Partition: l.pid(), Idempotent: true})
	}
	l.batches = append(l.batches, b)
}

// encode builds the batch with the sequence it gets now.
func (l *lane) encode(b *outgoing) {
	builder := wire.NewBuilder(wire.BuilderOptions{Topic: l.t.id, Partition: l.partition, Codec: l.t.codec,
		Producer: l.id, BaseSequence: l.next})
	for i, id := range b.ids {
		size := 24 + int(id.Counter*7%90)
		if ok, err := builder.Add(b.times[i], fmt.Appendf(nil, "k%d", id.Counter%5), bench.AppendValue(nil, id, size), nil); !ok || err != nil {
			panic(fmt.Sprintf("BUG: record does not fit: %v, %v", ok, err))
		}
	}
	buf, err := builder.Build()
	if err != nil {
		panic(err)
	}
	b.encoded = append([]byte(nil), buf.B...)
	buf.Release()
	l.next = wire.NextSequence(l.next, int32(len(b.ids)))
}

// pump sends what may be sent: each batch once all before it are on their way.
func (l *lane) pump() {
	p, w := l.p, l.p.w
	if len(l.batches) == 0 || w.now.Mono < l.held {
		return
	}
	if !p.link.alive() {
		if p.link != nil && !p.link.cut {
			p.link.hangUp()
		}
		if p.link = w.connect(); p.link == nil {
			return
		}
	}
	if l.id == 0 {
		l.ask()
		return
	}
	for i, b := range l.batches {
		if i >= maxFlying {
			return
		}
		if b.flying {
			continue
		}
		if b.encoded == nil {
			l.encode(b)
		}
		l.send(b)
	}
}

// ask gets a producer id for the session.
func (l *lane) ask() {
	if l.asking {
		return
	}
	l.asking = true
	var resp wire.InitProducerResponse
	l.p.link.call(&wire.InitProducerRequest{}, &resp, func(err error) {
		l.asking = false
		if err != nil {
			l.hold(20 * time.Millisecond)
			return
		}
		l.id = resp.Producer
		l.pump()
	})
}

func (l *lane) hold(d time.Duration) {
	l.held = l.p.w.now.Mono + d
}

func (l *lane) send(b *outgoing) {
	w := l.p.w
	b.flying = true
	w.note("produce", int64(l.p.n), int64(l.t.id), int64(l.partition), int64(b.ids[0].Counter))
	req := &wire.ProduceRequest{Acks: l.acks, TimeoutMillis: 10_000, Batches: []wire.Batch{append(wire.Batch(nil), b.encoded...)}}
	resp := &wire.ProduceResponse{}
	l.p.link.call(req, resp, func(err error) {
		b.flying = false
		if err == nil && len(resp.Results) != 1 {
			w.violate("%d results for one batch", len(resp.Results))
			return
		}
		if err == nil {
			r := &resp.Results[0]
			w.note("produced", int64(r.Code), int64(b.ids[0].Counter), int64(r.Base), int64(r.Epoch))
			if r.Code == wire.CodeOK {
				l.succeed(b, r)
				l.pump()
				return
			}
			err = &wire.Error{Code: r.Code, Message: r.Message, RetryAfter: time.Duration(r.RetryAfterMillis) * time.Millisecond}
		}
		l.fail(b, err)
	})
}

func (l *lane) remove(b *outgoing) {
	for i, x := range l.batches {
		if x == b {
			l.batches = append(l.batches[:i], l.batches[i+1:]...)
			return
		}
	}
	panic("BUG: a batch has two outcomes")
}

func (l *lane) succeed(b *outgoing, r *wire.ProduceResult) {
	l.remove(b)
	for i, id := range b.ids {
		at := wire.Offset(-1)
		if r.Base >= 0 {
			at = r.Base + wire.Offset(i)
		}
		l.p.w.checker.Apply(&bench.Decided{ID: id, Outcome: bench.OK, Offset: at, Epoch: r.Epoch})
	}
}

// decide ends a batch without success.
func (l *lane) decide(b *outgoing) {
	outcome := bench.Fail
	if b.doubtful {
		outcome = bench.Info
	}
	for _, id := range b.ids {
		l.p.w.checker.Apply(&bench.Decided{ID: id, Outcome: outcome, Offset: -1, Epoch: wire.NoEpoch})
	}
}

// fail deals with an attempt that did not succeed.
func (l *lane) fail(b *outgoing, err error) {
	w := l.p.w
	code := wire.CodeOf(err)
	var e *wire.Error
	coded := errors.As(err, &e)
	if err == errCut || coded && !code.Definite() {
		b.doubtful = true
	}
	wait := w.between("back-off", 2*time.Millisecond, 30*time.Millisecond)
	if coded {
		wait = max(wait, e.RetryAfter)
	}
	l.hold(wait)
	switch {
	case code == wire.CodeUnknownProducer || code == wire.CodeOutOfOrderSequence:
		if l.batches[0] == b { // else the ones before it are to be sent again first
			w.count("session lost")
			l.renew()
		}
	case coded && code.Definite() && !code.Retriable():
		w.violate("produce was refused: %v", err)
	case w.odds("give up", 20) && !b.doubtful && b == l.batches[len(l.batches)-1] && !w.healed:
		l.remove(b) // the newest, so its sequence is free again
		l.next = wire.Batch(b.encoded).LastSequence() + 1 - int32(len(b.ids))
		l.decide(b)
		w.count("gave a record up")
	}
}

// renew begins a new session. What may have been carried out cannot be sent
// again under it: nobody would know it for the same.
func (l *lane) renew() {
	for _, b := range l.batches {
		if b.flying {
			return // its answer brings us back here
		}
	}
	keep := l.batches[:0]
	for _, b := range l.batches {
		if b.doubtful {
			l.decide(b)
			continue
		}
		b.encoded = nil
		keep = append(keep, b)
	}
	l.batches, l.id, l.next = keep, 0, 0
}
