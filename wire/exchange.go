package wire

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/teralog/teralog/mem"
)

// An exchange is one request of a Conn and what becomes of it.
type exchange struct {
	conn    *Conn
	resp    Message
	version Version
	done    func(error)           // of Go
	doneBuf func(*mem.Buf, error) // of GoBuf
	wake    chan struct{}         // of Do: signalled once if waits

	// Guarded by the Conn's out.mu until ended; then they stay as they are.
	id     uint32
	left   bool // some of its bytes may have left
	waits  bool // a Do waits for wake
	orphan bool // nobody wants the response any more
	ended  bool // the result is there:
	err    error
	head   responseHeader
	body   []byte // in buf
	buf    *mem.Buf

	decoder Reader
}

// newExchange returns an exchange for resp. A Conn keeps its own free ones: a
// channel may not leave the test bubble it was made in.
func (c *Conn) newExchange(resp Message) *exchange {
	c.out.mu.Lock()
	defer c.out.mu.Unlock()
	var x *exchange
	if n := len(c.free); n > 0 {
		x, c.free = c.free[n-1], c.free[:n-1]
	} else {
		x = &exchange{conn: c, wake: make(chan struct{}, 1)}
	}
	x.resp = resp
	return x
}

// release gives x to the next call, at most as many as may be in flight.
func (x *exchange) release() {
	x.resp, x.done, x.doneBuf = nil, nil, nil
	x.decoder.Reset(nil)
	c := x.conn
	c.out.mu.Lock()
	defer c.out.mu.Unlock()
	x.err, x.body, x.buf = nil, nil, nil
	if !mem.Checked && len(c.free) < cap(c.slots) {
		c.free = append(c.free, x)
	}
}

// result decodes the response on the goroutine that wants it.
func (x *exchange) result() (*mem.Buf, error) {
	if x.err != nil || x.buf == nil {
		return nil, x.err
	}
	err := x.decode()
	if err != nil {
		x.buf.Release()
		return nil, err
	}
	return x.buf, nil
}

func (x *exchange) decode() error {
	if x.head.code != CodeOK {
		x.decoder.Reset(x.body)
		e := &Error{Code: x.head.code, Message: x.decoder.String(), RetryAfter: x.head.throttle}
		if err := x.decoder.Finish(); err != nil {
			return fmt.Errorf("%w, with a message that cannot be read: %w", x.head.code, err)
		}
		return e
	}
	return DecodeBody(&x.decoder, x.resp, x.version, x.body)
}

// finish runs the callback of a call of Go.
func (x *exchange) finish() {
	b, err := x.result()
	done, doneBuf := x.done, x.doneBuf
	x.release()
	if doneBuf != nil {
		doneBuf(b, err)
		return
	}
	done(err)
	if b != nil {
		b.Release()
	}
}

// fail is finish for a call that never began.
func (x *exchange) fail(err error) {
	x.err = err
	x.finish()
}

// begin registers x, which holds a slot, and sends req as far as that is
// possible without waiting. read says that the caller, of Go, now holds the
// reading turn for a goroutine. With an error x was not registered and gave
// up its slot; a Do's x is freed.
func (c *Conn) begin(x *exchange, req Message) (read bool, err error) {
	b, err := c.encode(x, req)
	if err != nil {
		return false, c.refuse(x, err)
	}
	silent := unanswered(req)
	c.out.mu.Lock()
	if err := c.out.err; err != nil {
		c.out.mu.Unlock()
		b.Release()
		return false, c.refuse(x, err)
	}
	x.id, x.left, x.waits, x.orphan, x.ended = c.nextID(silent), false, false, false, false
	c.calls[x.id] = x
	putRequestHeader(b.B, requestHeader{api: req.API(), version: x.version, correlation: x.id})
	send := c.out.pushLocked(parcel{buf: b, request: x, id: x.id, silent: silent})
	if x.isGo() && !silent && !c.reading {
		c.takeReading()
		read = true
	}
	c.out.mu.Unlock()
	if send {
		c.out.flush()
	}
	return read, nil
}

func (x *exchange) isGo() bool { return x.done != nil || x.doneBuf != nil }

// refuse undoes what was done for a call that cannot begin.
func (c *Conn) refuse(x *exchange, err error) error {
	<-c.slots
	if !x.isGo() {
		x.release()
	}
	return fmt.Errorf("%w: %w", ErrNotSent, err)
}

// encode returns the request frame, its header not yet filled in.
func (c *Conn) encode(x *exchange, req Message) (*mem.Buf, error) {
	v := c.versions[req.API()]
	if v == noVersion {
		return nil, Errorf(CodeUnsupportedVersion, "the broker speaks no version of %v that we do", req.API())
	}
	x.version = Version(v)
	b := c.pool.Get(requestBuf(req))
	b.B = req.AppendTo(b.B[:requestLen], x.version)
	if most := c.hello.MaxFrame; most > 0 && uint64(len(b.B)-sizeLen) > uint64(most) {
		n := len(b.B) - sizeLen
		b.Release()
		return nil, Errorf(CodeTooLarge, "request of %d bytes, the broker takes %d", n, most)
	}
	return b, nil
}

// requestBuf returns the size of the buffer to encode req into; a request that
// outgrows it moves to the heap, so the large ones are measured.
func requestBuf(req Message) int {
	n := replyBuf
	if p, ok := req.(*ProduceRequest); ok {
		for _, b := range p.Batches {
			n += len(b)
		}
	}
	return min(n, mem.MaxBuf)
}

// unanswered reports whether req is one the broker does not respond to.
func unanswered(req Message) bool {
	p, ok := req.(*ProduceRequest)
	return ok && p.Acks == 0
}

// nextID returns a correlation number not in use; out.mu is held.
func (c *Conn) nextID(silent bool) uint32 {
	for {
		c.last = (c.last + 1) &^ oneWay
		id := c.last
		if silent {
			id |= oneWay
			c.silent = true
		}
		if c.calls[id] == nil {
			return id
		}
	}
}

// takeReading takes the reading turn, which is free; out.mu is held.
func (c *Conn) takeReading() {
	c.reading = true
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
	if c.reading || x.id&oneWay != 0 {
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
	turn := c.turn
	c.out.mu.Unlock()
	return c.readFor(ctx, x, turn)
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
	b := c.out.unqueue(x)
	if b == nil { // the connection fails just now, and x with it
		x.orphan = true
		c.out.mu.Unlock()
		return false, fmt.Errorf("%w: %w", ErrNotSent, cause)
	}
	delete(c.calls, x.id)
	c.out.mu.Unlock()
	b.Release()
	return false, c.refuse(x, cause)
}

// readFor reads on the goroutine of a Do until its call has ended or ctx is over.
func (c *Conn) readFor(ctx context.Context, x *exchange, turn uint64) (ended bool, err error) {
	stop := func() bool { return true }
	if ctx.Done() != nil {
		stop = context.AfterFunc(ctx, func() { c.stopReading(turn) })
	}
	for {
		c.out.mu.Lock()
		over := x.ended || c.stopped
		c.out.mu.Unlock()
		if over || !c.receive() {
			break
		}
	}
	stop()
	c.leaveReading()
	return c.abandon(x, ctx.Err())
}

// stopReading makes the reader of that turn look at its context.
func (c *Conn) stopReading(turn uint64) {
	c.out.mu.Lock()
	defer c.out.mu.Unlock()
	if c.turn == turn {
		c.stopped = true
		c.sock.SetReadDeadline(time.Unix(1, 0))
	}
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
		c.fail(io.EOF)
	}
	c.leaveReading()
}

// leaveReading gives the reading turn to a goroutine if calls wait, else frees it.
func (c *Conn) leaveReading() {
	if c.in.have() == 0 {
		c.in.drop()
	}
	c.out.mu.Lock()
	c.turn++ // a stop that comes too late finds another turn
	if c.stopped {
		c.stopped, c.deadline = false, time.Time{}
	}
	waiting, failed := c.answersDue(), c.calls == nil
	c.reading = waiting || failed
	c.used = time.Now()
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
			c.reading = false
			c.turn++
			c.used = time.Now()
			c.out.mu.Unlock()
			return
		}
		c.out.mu.Unlock()
		if !c.receive() {
			c.leaveReading()
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
	drop := calls != nil && !c.reading
	c.reading = true
	c.out.mu.Unlock()
	c.sock.Close()
	if drop {
		c.in.drop()
	}
	for _, n := range notices {
		c.settle(n)
	}
}
