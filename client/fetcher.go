package client

import (
	"context"
	"fmt"
	"math/bits"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/teralog/teralog/mem"
	"github.com/teralog/teralog/wire"
)

const (
	// maxFetch is the most that one request may be let ask for, in bytes.
	maxFetch = 8 << 20

	// fetchersPerNode requests may be with one broker at once. A partition is
	// in one of them at most, so with two a partition that has just been read
	// empty, sought or assigned need not wait behind the others' long poll.
	fetchersPerNode = 2
)

// A fetcher asks one broker for what the cursors led there want.
type fetcher struct {
	x    *Consumer
	node wire.NodeID
	wake chan struct{} // capacity fetchersPerNode
}

// nudge has the fetcher's goroutines look for work.
func (f *fetcher) nudge() {
	for range fetchersPerNode {
		select {
		case f.wake <- struct{}{}:
		default:
			return
		}
	}
}

// aim has a cursor fetched for if it wants that; x.mu is held.
func (x *Consumer) aim(c *cursor) {
	if ok, wait := c.wants(c.rest, x.share()); !ok && wait == 0 || x.closed {
		return
	}
	if c.leader == wire.NoNode {
		x.refresh()
		return
	}
	f := x.fetchers[c.leader]
	if f == nil {
		f = &fetcher{x: x, node: c.leader, wake: make(chan struct{}, fetchersPerNode)}
		x.fetchers[c.leader] = f
		for range fetchersPerNode {
			x.loops.Add(1)
			go f.run()
		}
	}
	f.nudge()
}

// share returns how much is asked for of each partition; x.mu is held.
func (x *Consumer) share() int { return x.o.share(max(len(x.cursors), 1)) }

// A fetching is one request and what a goroutine needs for it, used again and
// again.
type fetching struct {
	req      wire.FetchRequest
	resp     wire.FetchResponse
	asked    []asked
	reserved int64
	ctx      context.Context
	cancel   context.CancelFunc
}

// moot reports whether nobody wants the answer any more.
func (g *fetching) moot() bool {
	return !slices.ContainsFunc(g.asked, func(a asked) bool { return a.cursor.turn == a.turn })
}

// asked is a cursor in a request, as it was then.
type asked struct {
	cursor *cursor
	turn   uint64
}

func (f *fetcher) run() {
	defer f.x.loops.Done()
	timer := time.NewTimer(0)
	defer timer.Stop()
	var g fetching
	for {
		ok, wait := f.x.plan(f.node, &g)
		if ok {
			buf, err := f.fetch(&g)
			f.x.land(&g, buf, err)
			continue
		}
		var due <-chan time.Time
		if wait > 0 {
			timer.Reset(wait)
			due = timer.C
		}
		select {
		case <-f.wake:
		case <-due:
		case <-f.x.ctx.Done():
			return
		}
	}
}

// plan makes the next request to a node out of the cursors that want one, as
// far as the buffer has room. Without any, wait says when to look again, 0 if
// only an event can change that.
func (x *Consumer) plan(node wire.NodeID, g *fetching) (ok bool, wait time.Duration) {
	g.asked, g.req.Partitions, g.reserved = g.asked[:0], g.req.Partitions[:0], 0
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.closed {
		return false, 0
	}
	now, room := x.c.now(), min(x.o.BufferBytes-x.used, int64(x.o.RequestBytes))
	each := x.share()
	for i := range x.cursors {
		c := x.cursors[(x.first+i)%len(x.cursors)]
		if c.leader != node {
			continue
		}
		ok, w := c.wants(now, each)
		if w > 0 && (wait == 0 || w < wait) {
			wait = w
		}
		if !ok || answerMemory(len(g.asked)+1, each) > room {
			continue
		}
		g.req.Partitions = append(g.req.Partitions, c.request(each))
		g.asked = append(g.asked, asked{c, c.turn})
	}
	if len(g.asked) == 0 {
		return false, wait
	}
	n := len(g.asked)
	g.reserved = answerMemory(n, each)
	x.used += g.reserved
	g.req.Replica = wire.NoNode
	g.req.MaxWaitMillis = uint32(x.o.MaxWait / time.Millisecond)
	g.req.MinBytes, g.req.MaxBytes = uint32(x.o.MinBytes), uint32(max(n*each-overhead(n), each/2))
	g.req.Plain = x.o.Plain
	g.ctx, g.cancel = context.WithTimeout(x.ctx, x.o.MaxWait+x.c.o.RequestTimeout)
	x.flying = append(x.flying, g)
	return true, 0
}

// answerMemory is the size of the buffer that an answer over n partitions will
// be read into: pools have powers of two. What the answer needs beside records
// is not asked for, else a request for a full buffer would take the next one.
func answerMemory(n, partitionBytes int) int64 {
	return 1 << bits.Len(uint(n*partitionBytes-1))
}

// overhead is more than what an answer over n partitions takes beside records.
func overhead(n int) int { return 256 + 128*n }

// fetch sends the request and waits for the answer. A broker that does not
// answer in time loses the connection.
func (f *fetcher) fetch(g *fetching) (*mem.Buf, error) {
	x := f.x
	addr, ok := x.c.meta.addr(f.node)
	if !ok {
		return nil, wire.ErrNotSent
	}
	conn, err := x.conns.get(g.ctx, addr)
	if err != nil {
		return nil, err
	}
	buf, err := conn.DoBuf(g.ctx, &g.req, &g.resp)
	if err != nil && g.ctx.Err() == context.DeadlineExceeded {
		conn.Close()
	}
	return buf, err
}

// land gives the answer to the cursors.
func (x *Consumer) land(g *fetching, buf *mem.Buf, err error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if n := len(g.resp.Partitions); err == nil && n != len(g.asked) {
		err = fmt.Errorf("%w answer: %d results for %d partitions", wire.ErrCorrupt, n, len(g.asked))
	}
	g.cancel()
	x.flying = slices.DeleteFunc(x.flying, func(other *fetching) bool { return other == g })
	x.used -= g.reserved
	f := &frame{buf: buf, refs: 1}
	if buf != nil {
		f.cost = int64(cap(buf.B))
		x.used += f.cost
	}
	for i, a := range g.asked {
		c := a.cursor
		if c.turn != a.turn {
			continue // sought or paused since
		}
		c.asking = false
		if err != nil {
			x.failed(c, err, nil)
			continue
		}
		r := &g.resp.Partitions[i]
		if e := c.answer(r, f); e != nil {
			if code := r.Code; code.Retriable() && g.resp.RetryAfter > 0 {
				e = &wire.Error{Code: code, RetryAfter: g.resp.RetryAfter}
			}
			x.failed(c, e, r)
		}
	}
	for i := range g.resp.Partitions {
		g.resp.Partitions[i].Data = nil
	}
	x.unref(f)
	x.nudgeAll()
	x.notify()
}

// failed deals with a cursor whose request failed or was refused.
func (x *Consumer) failed(c *cursor, err error, r *wire.FetchResult) {
	if stops(err) {
		c.fail(err, r)
		return
	}
	v := judge(err)
	c.retry(x.c.now(), x.wait, v.wait)
	if v.stale {
		x.refresh()
	}
}

// reset moves a cursor that stopped because its position is gone, if the
// options say so.
func (x *Consumer) reset(c *cursor) bool {
	to, before := wire.Offset(0), wire.NoEpoch
	switch code := wire.CodeOf(c.err.Err); {
	case x.o.Reset == ResetNever:
		return false
	case code == wire.CodeOutOfRange && x.o.Reset == ResetStart:
		to = c.err.Start
	case code == wire.CodeOutOfRange:
		to = c.err.End
	case code == wire.CodeTruncated:
		to, before = c.err.MatchEnd, c.err.MatchEpoch
	default:
		return false
	}
	x.moved(c.rewind(max(to, 0), before))
	c.err = nil
	c.retry(x.c.now(), x.wait, 0) // a broker that moves us on and on must not keep us busy
	x.aim(c)
	return true
}

func (x *Consumer) wait(n int, hint time.Duration) time.Duration {
	return x.c.back.after(n, hint, rand.Float64())
}

// drop gives up a chunk's share of its memory.
func (x *Consumer) drop(k chunk) { x.unref(k.frame) }

// moved gives up the chunks of a cursor that was moved, and long polls that
// only it was waiting for, so that the next request need not wait for them.
func (x *Consumer) moved(ks []chunk) {
	for _, k := range ks {
		x.unref(k.frame)
	}
	for _, g := range x.flying {
		if g.moot() {
			g.cancel()
		}
	}
}

// unref gives up one reference to a frame; the last one makes room for more.
func (x *Consumer) unref(f *frame) {
	f.refs--
	if f.refs > 0 || f.buf == nil {
		return
	}
	f.buf.Release()
	x.used -= f.cost
	x.nudgeAll()
}

// nudgeAll has all fetchers look whether there is room for them now.
func (x *Consumer) nudgeAll() {
	for _, f := range x.fetchers {
		f.nudge()
	}
}
