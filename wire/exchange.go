package wire

import (
	"fmt"

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
	err := DecodeBody(&x.decoder, x.resp, x.version, x.body)
	if f, ok := x.resp.(*FetchResponse); ok {
		f.RetryAfter = x.head.throttle
	}
	return err
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
	p, err := c.encode(x, req)
	if err != nil {
		return false, c.refuse(x, err)
	}
	c.out.mu.Lock()
	if err := c.out.err; err != nil {
		c.out.mu.Unlock()
		p.release()
		return false, c.refuse(x, err)
	}
	p.id = c.nextID(p.silent)
	x.id, x.left, x.waits, x.orphan, x.ended = p.id, false, false, false, false
	c.calls[x.id] = x
	putCorrelation(p.buf.B, x.id)
	silent := p.silent
	send := c.out.pushLocked(p)
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

// encode returns the request frame, its correlation not yet filled in.
func (c *Conn) encode(x *exchange, req Message) (parcel, error) {
	v := c.versions[req.API()]
	if v == noVersion {
		return parcel{}, Errorf(CodeUnsupportedVersion, "the broker speaks no version of %v that we do", req.API())
	}
	x.version = Version(v)
	p := parcel{request: x, silent: unanswered(req)}
	rest := 0
	if m, ok := req.(*ProduceRequest); ok && len(m.Held) > 0 {
		p.buf = c.pool.Get(requestLen + m.headLen())
		p.buf.B = m.appendHead(p.buf.B[:requestLen])
		p.tail = make([]*mem.Buf, 0, len(m.Held))
		for _, b := range m.Held {
			rest += len(b.B)
			p.tail = append(p.tail, b.Retain())
		}
	} else {
		p.buf = c.pool.Get(requestBuf(req))
		p.buf.B = req.AppendTo(p.buf.B[:requestLen], x.version)
	}
	n := len(p.buf.B) - sizeLen + rest
	if most := c.hello.MaxFrame; most > 0 && uint64(n) > uint64(most) {
		p.release()
		return parcel{}, Errorf(CodeTooLarge, "request of %d bytes, the broker takes %d", n, most)
	}
	putRequestHeader(p.buf.B, requestHeader{api: req.API(), version: x.version}, rest)
	return p, nil
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
	switch r := req.(type) {
	case *ProduceRequest:
		return r.Acks == 0
	case *RaftRequest:
		return !r.Answer
	}
	return false
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
