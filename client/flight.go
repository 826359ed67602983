package client

import (
	"context"
	"fmt"
	"time"

	"github.com/teralog/teralog/wire"
)

// A flight is one produce request on its way.
type flight struct {
	p       *Producer
	link    *link
	conn    *wire.Conn
	batches []*batch
	req     wire.ProduceRequest
	resp    wire.ProduceResponse
	size    int // bytes of batches, before compression
	sent    time.Duration
	expires time.Duration
	land    func(error) // f.landed, made once
}

// seal builds the batches that go out for the first time. It runs outside the
// producer's mutex, since it compresses; what is in flight nobody else touches.
func (f *flight) seal() error {
	f.req.Acks = f.p.o.Acks.wire()
	// The broker's time ends before ours, so that its word comes before we give
	// up the connection, which others share.
	f.req.TimeoutMillis = uint32(f.p.c.o.RequestTimeout * 3 / 4 / time.Millisecond)
	f.req.Batches, f.req.Held = f.req.Batches[:0], f.req.Held[:0]
	for _, b := range f.batches {
		if b.buf == nil {
			buf, err := b.builder.Build()
			if err != nil {
				return final{wire.Errorf(wire.CodeInvalidBatch, "build: %v", err)}
			}
			b.buf = buf
			if l := b.lane; l.idempotent {
				wire.Batch(buf.B).SetProducer(l.producer, l.epoch, b.seq)
			}
		}
		f.req.Batches = append(f.req.Batches, wire.Batch(b.buf.B))
		f.req.Held = append(f.req.Held, b.buf)
	}
	if small := 4 << 10; f.size < small*len(f.batches) {
		clear(f.req.Held)
		f.req.Held = f.req.Held[:0] // cheaper to copy than to gather
	}
	return nil
}

// launch sends the request, on a connection made for it if none was chosen; its
// answer comes to land on another goroutine.
func (f *flight) launch() {
	err := f.seal()
	if err == nil && f.conn == nil {
		f.conn, err = f.link.connect()
	}
	if err != nil {
		f.landed(err)
		return
	}
	f.conn.Go(&f.req, &f.resp, f.land)
}

// direct carries the request to its answer on the caller's goroutine.
func (f *flight) direct(ctx context.Context) {
	var sent wire.Pending
	err := f.seal()
	if err == nil {
		sent, err = f.conn.Begin(ctx, &f.req, &f.resp)
	}
	f.link.launched(false)
	if err == nil {
		err = sent.Wait(ctx)
	}
	f.settle(err, nil).carry()
}

// landed takes the answer, from the reader of the connection, or why there is none.
// What waited for it goes out.
func (f *flight) landed(err error) { f.settle(err, f.conn).carry() }

// settle takes the outcome of every batch, and returns the next request if the
// caller is to carry it; by is the connection whose reader calls it, nil if none
// does.
func (f *flight) settle(err error, by *wire.Conn) (next *flight) {
	p := f.p
	p.mu.Lock()
	defer p.mu.Unlock()
	if n := len(f.resp.Results); err == nil && n != len(f.batches) && p.o.Acks != AcksNone {
		err = fmt.Errorf("%d results for %d batches: %w", n, len(f.batches), wire.ErrCorrupt)
	}
	now := p.c.now()
	for i, b := range f.batches {
		e := err
		b.base = -1
		if e == nil && p.o.Acks != AcksNone {
			e = b.take(&f.resp.Results[i])
		}
		l := b.lane
		stale, split := l.settle(b, e, now, p.wait)
		if split {
			l.split(b, func() *batch { return p.fresh(l) })
			p.spare.putBatch(b)
		}
		p.doubtful = p.doubtful || stale
		p.reap(l)
		if l.needsID() {
			p.nudge()
		}
		if l.link != nil && l.link != f.link {
			l.link.look() // the lane moved, and what waits there waited for this
		}
	}
	k := f.link
	k.landed(f)
	p.spare.putFlight(f)
	if p.doubtful {
		p.nudge()
	}
	if err == nil {
		p.deliver(by)
	} else {
		p.deliverSoon()
	}
	if !k.waits() {
		return nil
	}
	if err == nil {
		next = k.claim()
	}
	if next == nil {
		k.look()
	}
	return next
}

// take reads a batch's result.
func (b *batch) take(r *wire.ProduceResult) error {
	if r.Code != wire.CodeOK {
		return &wire.Error{Code: r.Code, Message: r.Message, RetryAfter: time.Duration(r.RetryAfterMillis) * time.Millisecond}
	}
	if r.Base >= 0 {
		b.base, b.time, b.epoch = r.Base, r.AppendTime, r.Epoch
	}
	return nil
}
