package broker

import (
	"cmp"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/teralog/teralog/mem"
	"github.com/teralog/teralog/repl"
	"github.com/teralog/teralog/storage"
	"github.com/teralog/teralog/wire"
)

// A produce is one request under way: some of its batches were refused here,
// the others went to their partitions, and the last of those to be answered
// answers the request.
type produce struct {
	b    *Broker
	call *wire.Call
	req  wire.ProduceRequest
	resp wire.ProduceResponse

	sent    []*entry      // the batches that passed, ordered by partition
	free    []*entry      // entries of earlier requests
	writes  []repl.Write  // of sent, in its order
	charged int64         // bytes of the batches in it, from the budget
	began   time.Duration // when the handler did; 0: it is not timed
	left    atomic.Int32  // writes not answered, plus one while they are handed out
}

// An entry is one batch of a request.
type entry struct {
	of        *produce
	index     int // of its batch and result
	partition *repl.Partition
	bytes     int64 // of the batch, whose memory may be gone when it is acknowledged
	records   int64
	done      func(storage.Appended, error) // finish, made once
}

var produces = sync.Pool{New: func() any { return new(produce) }}

// maxKept bounds the entries a finished produce keeps for the next request.
const maxKept = 256

func (b *Broker) produce(c *wire.Call) {
	p := produces.Get().(*produce)
	p.b, p.call = b, c
	now := b.time()
	if c.Timed() {
		p.began = now.Mono
	}
	if err := c.Decode(&p.req); err != nil {
		c.ReplyError(err)
		p.recycle()
		return
	}
	if n := len(p.req.Batches); n == 0 || n > maxBatches {
		c.ReplyError(wire.Errorf(wire.CodeInvalidRequest, "%d batches; a request holds 1 to %d", n, maxBatches))
		p.recycle()
		return
	}
	p.resp.Results = slices.Grow(p.resp.Results[:0], len(p.req.Batches))[:len(p.req.Batches)]
	image := b.coord.Image()
	for i, batch := range p.req.Batches {
		p.resp.Results[i] = wire.ProduceResult{Base: -1, AppendTime: -1, LogStart: -1, Epoch: wire.NoEpoch}
		partition, err := b.check(image, batch, now)
		if err != nil {
			p.refuse(i, err)
			continue
		}
		p.sent = append(p.sent, p.entry(i, batch, partition))
	}
	p.send(now)
}

// send hands the batches that passed to their partitions.
//
// A partition gives up the memory of a batch as soon as it is appended, long
// before the answer where that waits for the disk, but its bytes stay charged
// until the answer: behind a disk that hangs, the mailboxes of thousands of
// partitions must not fill without a bound.
func (p *produce) send(now mem.Now) {
	for _, e := range p.sent {
		p.charged += int64(len(p.req.Batches[e.index]))
	}
	if !p.b.server.Budget.TryTake(p.charged) {
		p.charged = 0
		p.b.refuse(p.call, errMemory)
		p.recycle()
		return
	}
	if len(p.sent) > 1 {
		slices.SortStableFunc(p.sent, func(a, b *entry) int {
			x, y := a.partition.ID(), b.partition.ID()
			return cmp.Or(cmp.Compare(x.Topic, y.Topic), cmp.Compare(x.Partition, y.Partition))
		})
	}
	within := time.Duration(0)
	if p.began > 0 {
		p.b.count.verify.Record(p.b.time().Mono - p.began)
	}
	if p.req.TimeoutMillis > 0 {
		within = now.Mono + time.Duration(p.req.TimeoutMillis)*time.Millisecond
	}
	for _, e := range p.sent {
		p.writes = append(p.writes, repl.Write{
			Batch: p.req.Batches[e.index], Acks: p.req.Acks, Deadline: within, Since: now.Mono,
			Body: p.call.Body().Retain(), Done: e.done,
		})
	}
	p.left.Store(int32(len(p.sent)) + 1)
	p.call.DropBody()

	for from := 0; from < len(p.sent); {
		to := from + 1
		for to < len(p.sent) && p.sent[to].partition == p.sent[from].partition {
			to++
		}
		if at := p.sent[from].partition; at.Produce(p.writes[from:to:to]) {
			p.call.Defer(at)
		}
		from = to
	}
	p.finish()
}

// finish notes that one write, or the handing out, is over.
func (p *produce) finish() {
	if p.left.Add(-1) > 0 {
		return
	}
	p.b.server.Budget.Give(p.charged)
	p.charged = 0
	if p.req.Acks == wire.AcksNone {
		p.call.NoReply()
	} else {
		p.call.Reply(&p.resp)
	}
	p.recycle()
}

func (p *produce) refuse(i int, err error) {
	r := &p.resp.Results[i]
	p.b.noteRefusal(p.call, err)
	r.Code, r.Message = wire.CodeOf(err), err.Error()
	var e *wire.Error
	if errors.As(err, &e) {
		r.Message = e.Message
		r.RetryAfterMillis = uint32((e.RetryAfter + time.Millisecond - 1).Milliseconds())
	}
}

// entry returns an entry for batch i, which goes to partition.
func (p *produce) entry(i int, batch wire.Batch, partition *repl.Partition) *entry {
	var e *entry
	if n := len(p.free); n > 0 {
		e, p.free = p.free[n-1], p.free[:n-1]
	} else {
		e = &entry{of: p}
		e.done = e.finish
	}
	e.index, e.partition, e.bytes, e.records = i, partition, int64(len(batch)), int64(batch.Count())
	return e
}

func (e *entry) finish(at storage.Appended, err error) {
	if err != nil {
		e.of.refuse(e.index, err)
	} else {
		v := e.partition.View()
		r := &e.of.resp.Results[e.index]
		r.Base, r.AppendTime, r.LogStart, r.Epoch = at.First, at.Time, v.Start, v.Epoch
		e.of.b.count.produced(e.bytes, e.records)
	}
	e.of.finish()
}

// recycle keeps p for another request, unless it has grown large.
func (p *produce) recycle() {
	if len(p.sent)+len(p.free) > maxKept || cap(p.req.Batches) > maxKept {
		return
	}
	for _, e := range p.sent {
		e.partition = nil
	}
	p.free = append(p.free, p.sent...)
	p.sent = p.sent[:0]
	clear(p.writes)
	p.writes = p.writes[:0]
	clear(p.req.Batches)
	clear(p.resp.Results)
	p.b, p.call, p.began = nil, nil, 0
	produces.Put(p)
}
