package wire

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"
)

// This file is the reading side of a Conn: the turn, as Conn's comment
// describes it, and what becomes of calls when a response or a failure comes.

// takeReading takes the reading turn, which is free or kept; out.mu is held.
func (c *Conn) takeReading() {
	c.reading, c.att.kept = true, false
	c.turn++
}

// await waits until x has ended. If ctx is over first, ended is false, err says
// so, and x belongs to the Conn.
func (c *Conn) await(ctx context.Context, x *exchange) (ended bool, err error) {
	c.out.mu.Lock()
	if x.ended {
		c.out.mu.Unlock()
		return true, nil
	}
	if c.reading && !c.att.kept || x.id&oneWay != 0 {
		x.waits = true
		c.out.mu.Unlock()
		select {
		case <-x.wake:
			return true, nil
		case <-ctx.Done():
			return c.abandon(x, ctx.Err())
		}
	}
	c.takeReading()
	c.out.mu.Unlock()
	return c.readFor(ctx, x)
}

// abandon makes x an orphan, unless it has ended after all. A request still
// queued is taken back.
func (c *Conn) abandon(x *exchange, cause error) (ended bool, err error) {
	c.out.mu.Lock()
	if x.ended {
		waits := x.waits
		c.out.mu.Unlock()
		if waits {
			<-x.wake
		}
		return true, nil
	}
	if x.left {
		x.orphan = true
		c.out.mu.Unlock()
		return false, fmt.Errorf("%w: %w", CodeTimeout, cause)
	}
	p, ok := c.out.unqueue(x)
	if !ok { // the connection fails just now, and x with it
		x.orphan = true
		c.out.mu.Unlock()
		return false, fmt.Errorf("%w: %w", ErrNotSent, cause)
	}
	delete(c.calls, x.id)
	c.out.mu.Unlock()
	p.release()
	return false, c.refuse(x, cause)
}

// readFor reads on the goroutine of a Do until its call has ended or ctx is over.
func (c *Conn) readFor(ctx context.Context, x *exchange) (ended bool, err error) {
	stop := c.stopWith(ctx)
	for {
		c.out.mu.Lock()
		over := x.ended || c.stopped
		c.out.mu.Unlock()
		if over || !c.receive() {
			break
		}
	}
	stop()
	c.leaveReading(false)
	return c.abandon(x, ctx.Err())
}

// stopWith has the holder of the reading turn, who calls it, stopped when ctx ends,
// until the function it returns is called.
func (c *Conn) stopWith(ctx context.Context) func() bool {
	if ctx.Done() == nil {
		return func() bool { return true }
	}
	c.out.mu.Lock()
	turn := c.turn
	c.out.mu.Unlock()
	return context.AfterFunc(ctx, func() { c.stopReading(turn) })
}

// stopReading makes the reader of that turn look at its context.
func (c *Conn) stopReading(turn uint64) {
	c.out.mu.Lock()
	defer c.out.mu.Unlock()
	if c.turn == turn {
		c.stopLocked()
	}
}

// stopLocked is stopReading of the turn that there is; out.mu is held.
func (c *Conn) stopLocked() {
	c.stopped = true
	c.sock.SetReadDeadline(time.Unix(1, 0))
}

// probeAfter is how long a connection may be idle before it is looked at again.
const probeAfter = time.Second

// probe looks whether the broker has closed a connection that was idle, which
// nobody reads. A request sent there would be lost with an outcome that is not
// known; seen in time, it is known not to have left.
func (c *Conn) probe() {
	c.out.mu.Lock()
	if c.reading || c.calls == nil || time.Since(c.used) < probeAfter {
		c.out.mu.Unlock()
		return
	}
	c.takeReading()
	c.out.mu.Unlock()
	if c.sock.ended() {
		c.fail(c.sock.lastWord())
	}
	c.leaveReading(false)
}

// leaveReading gives the reading turn to a goroutine if calls wait, else frees it. With
// keep it is kept instead, unless its holder was stopped.
func (c *Conn) leaveReading(keep bool) {
	if c.in.have() == 0 {
		c.in.drop()
	}
	c.out.mu.Lock()
	c.turn++ // a stop that comes too late finds another turn
	c.att.turn = 0
	if c.stopped {
		keep, c.stopped, c.deadline = false, false, time.Time{}
	}
	waiting, failed := c.answersDue(), c.calls == nil
	c.reading = waiting || failed
	c.used = time.Now()
	if keep && waiting && !c.forsakes() {
		waiting = false
		c.keep()
	}
	c.out.mu.Unlock()
	switch {
	case failed:
		c.in.drop()
	case waiting:
		go c.reader()
	}
}

// answersDue reports whether a response is to come; out.mu is held.
func (c *Conn) answersDue() bool {
	if !c.silent {
		return len(c.calls) > 0
	}
	for id := range c.calls {
		if id&oneWay == 0 {
			return true
		}
	}
	return false
}

// readAll is the reading goroutine: it reads while responses are due.
func (c *Conn) readAll() {
	for {
		idle := c.in.have() == 0
		if idle {
			c.in.drop()
		}
		c.out.mu.Lock()
		if idle && !c.answersDue() && c.calls != nil {
			c.reading, c.att.wanted = false, false
			c.turn++
			c.used = time.Now()
			c.out.mu.Unlock()
			return
		}
		over := idle && c.calls != nil && c.handOver()
		c.out.mu.Unlock()
		if over {
			return
		}
		if !c.receive() {
			c.leaveReading(false)
			return
		}
	}
}

// receive delivers the responses that have arrived whole or, if there are
// none, reads once. It returns false when the connection has failed or the
// reader was told to stop.
func (c *Conn) receive() bool {
	need, n, err := c.deliverBuffered()
	if err == nil && n == 0 {
		if err = c.renewDeadline(); err == nil {
			err = c.in.fill(need)
		}
		if err == nil {
			c.stepAside()
		}
	}
	if err == nil {
		return true
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		if c.wasStopped() {
			return false
		}
		err = fmt.Errorf("nothing arrived for %v: %w", c.silence, err)
	}
	c.fail(err)
	return false
}

func (c *Conn) wasStopped() bool {
	c.out.mu.Lock()
	defer c.out.mu.Unlock()
	return c.stopped
}

// renewDeadline makes a read fail that gets nothing for too long. It sets the
// time an eighth too late and leaves it until it is nearer than it should be.
func (c *Conn) renewDeadline() error {
	now := time.Now()
	if c.deadline.Sub(now) >= c.silence {
		return nil
	}
	c.deadline = now.Add(c.silence + c.silence/8)
	c.out.mu.Lock()
	defer c.out.mu.Unlock()
	if c.stopped {
		return os.ErrDeadlineExceeded
	}
	return c.sock.SetReadDeadline(c.deadline)
}

// deliverBuffered delivers n responses; need is the length of the one that has
// not arrived whole, as far as it is known.
func (c *Conn) deliverBuffered() (need, n int, err error) {
	for ; ; n++ {
		need, known, err := c.in.frameLen(responseLen-sizeLen, c.limit)
		if err != nil {
			return 0, n, err
		}
		if !known || c.in.have() < need {
			c.in.reserve(max(need, responseLen))
			return need, n, nil
		}
		if err := c.deliver(c.in.take(need)); err != nil {
			return 0, n, err
		}
	}
}

// deliver ends the call that a response belongs to.
func (c *Conn) deliver(frame []byte) error {
	h := parseResponseHeader(frame)
	c.out.mu.Lock()
	if h.correlation&oneWay != 0 && c.silent {
		c.out.mu.Unlock()
		return nil // refused on the way, which its sender did not want to know
	}
	x := c.calls[h.correlation]
	if x == nil || !x.left || h.correlation&oneWay != 0 {
		c.out.mu.Unlock()
		return fmt.Errorf("%w: response to request %d, which was not sent", ErrCorrupt, h.correlation)
	}
	delete(c.calls, x.id)
	x.ended, x.head = true, h
	if !x.orphan {
		x.body, x.buf = frame[responseLen:], c.in.buf.Retain()
	}
	due := x.due()
	c.out.mu.Unlock()
	c.settle(due)
	return nil
}

// A notice is what is still to be done for an exchange that has ended.
type notice struct {
	x    *exchange // nil: nothing, a Do that reads will see for itself and use x again
	kind noticeKind
}

type noticeKind uint8

const (
	wakeDo noticeKind = iota
	runDone
	forget
)

// due returns the notice for x, which has just ended; out.mu is held.
func (x *exchange) due() notice {
	switch {
	case x.orphan:
		return notice{x, forget}
	case x.isGo():
		return notice{x, runDone}
	case x.waits:
		return notice{x, wakeDo}
	}
	return notice{}
}

// settle gives back the slot of a call that has ended and tells whoever is
// interested.
func (c *Conn) settle(n notice) {
	<-c.slots
	switch {
	case n.x == nil:
	case n.kind == forget:
		n.x.release()
	case n.kind == runDone:
		n.x.finish()
	default:
		n.x.wake <- struct{}{}
	}
}

// parcelSent ends a call that gets no response.
func (c *Conn) parcelSent(p *parcel) {
	if !p.silent {
		return
	}
	c.out.mu.Lock()
	x := c.calls[p.id]
	if x == nil {
		c.out.mu.Unlock()
		return
	}
	delete(c.calls, p.id)
	x.ended = true
	due := x.due()
	c.out.mu.Unlock()
	c.settle(due)
}

func (c *Conn) sendFailed(err error) { c.fail(err) }

// fail ends the connection and all its calls.
func (c *Conn) fail(err error) {
	c.out.close(err)
	c.out.mu.Lock()
	calls := c.calls
	c.calls = nil
	notices := make([]notice, 0, len(calls))
	for _, x := range calls {
		x.ended = true
		x.err = fmt.Errorf("%w: %w", ErrNotSent, err)
		if x.left {
			x.err = fmt.Errorf("%w: %w", ErrConnLost, err)
		}
		notices = append(notices, x.due())
	}
	drop := calls != nil && (!c.reading || c.att.kept)
	c.reading, c.att.kept = true, false
	c.out.mu.Unlock()
	c.sock.Close()
	if drop {
		c.in.drop()
	}
	for _, n := range notices {
		c.settle(n)
	}
}
