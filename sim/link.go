package sim

import (
	"errors"
	"io"
	"time"

	"github.com/teralog/teralog/wire"
)

// What may come of a call besides an answer.
var (
	errNotSent = errors.New("not connected: nothing was sent") // definite
	errCut     = errors.New("the connection was cut")          // nobody knows what became of the request
)

// A link is one connection of a client to the node: requests arrive in the
// order they were sent, answers in the order they were given. A cut, or the
// node's death, ends everything on it that has no answer.
type link struct {
	w       *one
	life    *node
	arrives time.Duration // of the newest request
	returns time.Duration // of the newest answer
	cut     bool
	calls   []*exchange
}

// An exchange is one request on a link.
type exchange struct {
	done   func(error)
	closed bool
}

func (x *exchange) end(err error) {
	if !x.closed {
		x.closed = true
		x.done(err)
	}
}

// connect returns a link to the node as it is now; nil while it is down.
func (w *one) connect() *link {
	if w.node == nil {
		return nil
	}
	return &link{w: w, life: w.node}
}

// alive reports whether a call may be made.
func (l *link) alive() bool { return l != nil && !l.cut && l.life == l.w.node }

// hangUp cuts the link: every call on it ends without an answer.
func (l *link) hangUp() {
	l.cut = true
	calls := l.calls
	l.calls = nil
	for _, x := range calls {
		x.end(errCut)
	}
}

// call sends a request. done is called once, later.
func (l *link) call(req, resp wire.Message, done func(error)) {
	w := l.w
	if !l.alive() {
		w.after(100*time.Microsecond, func() { done(errNotSent) })
		return
	}
	x := &exchange{done: done}
	l.calls = append(l.calls, x)
	body := req.AppendTo(nil, 0)
	l.arrives = max(l.arrives, w.now.Mono+w.delay())
	lostThere, lostBack := w.lossy(), w.lossy()
	w.after(l.arrives-w.now.Mono, func() {
		switch {
		case l.cut:
		case lostThere || l.life != w.node:
			l.hangUp()
		default:
			l.deliver(x, req, body, resp, lostBack)
			w.afterWork(l.life)
		}
	})
	w.after(30*time.Second, func() { // no client waits for ever
		if !x.closed {
			w.note("call timed out")
			l.hangUp()
		}
	})
}

// deliver hands the request to the broker, which answers when it likes, if it
// lives so long.
func (l *link) deliver(x *exchange, req wire.Message, body []byte, resp wire.Message, lostBack bool) {
	w := l.w
	if _, ok := req.(*wire.ProduceRequest); ok && w.lossy() {
		busy := wire.ProduceResponse{Results: []wire.ProduceResult{{Code: wire.CodeBusy, Base: -1, RetryAfterMillis: 5}}}
		w.count("refused as by a full queue")
		l.send(x, busy.AppendTo(make([]byte, responseHeader), 0), resp, lostBack)
		return
	}
	l.life.b.ServeCall(wire.NewCall(req.API(), 0, body, func(frame []byte, files []wire.FileRange) {
		whole := append([]byte(nil), frame...)
		for i := range files {
			part := make([]byte, files[i].Len)
			if _, err := files[i].R.ReadAt(part, files[i].Off); err != nil && err != io.EOF {
				lostBack = true // as the server does: a range that comes up short ends the connection
			}
			whole = append(whole, part...)
			files[i].Done()
		}
		if l.cut || l.life != w.node || w.stoppedDisk() {
			return // it died before it could say so
		}
		if p, ok := req.(*wire.ProduceRequest); ok {
			var told wire.ProduceResponse
			if wire.DecodeBody(wire.NewReader(nil), &told, 0, frame[responseHeader:]) == nil && len(told.Results) == 1 {
				w.told(p.Batches[0], &told.Results[0])
			}
		}
		l.send(x, whole, resp, lostBack)
	}))
}

// send brings an answer back to the client, behind those given before it.
func (l *link) send(x *exchange, frame []byte, resp wire.Message, lost bool) {
	w := l.w
	l.returns = max(l.returns, w.now.Mono+w.delay())
	w.after(l.returns-w.now.Mono, func() {
		switch {
		case x.closed:
		case lost || l.cut:
			l.hangUp()
		default:
			l.take(x, frame, resp)
		}
	})
}

// responseHeader is the length of what stands before a response's body:
// size u32 | correlation u32 | code u16 | flags u16 | throttleMillis u32.
const responseHeader = 16

// take reads an answer. It may have been on its way when the node died.
func (l *link) take(x *exchange, frame []byte, resp wire.Message) {
	for i, y := range l.calls {
		if x == y {
			l.calls = append(l.calls[:i], l.calls[i+1:]...)
			break
		}
	}
	r := wire.NewReader(frame[8:responseHeader])
	code := wire.Code(r.U16())
	r.U16()
	throttle := time.Duration(r.U32()) * time.Millisecond
	if code != wire.CodeOK {
		message := wire.NewReader(frame[responseHeader:]).String()
		x.end(&wire.Error{Code: code, Message: message, RetryAfter: throttle})
		return
	}
	if err := wire.DecodeBody(wire.NewReader(nil), resp, 0, frame[responseHeader:]); err != nil {
		l.w.violate("an answer that is none: %v", err)
		return
	}
	x.end(nil)
}

// delay draws how long a message takes: mostly little, now and then much.
func (w *one) delay() time.Duration {
	if w.odds("slow", 30) && !w.healed {
		return w.between("delay", time.Millisecond, 60*time.Millisecond)
	}
	return w.between("delay", 30*time.Microsecond, time.Millisecond)
}

// lossy draws whether a message is lost and the connection with it.
func (w *one) lossy() bool {
	return w.plan.netFaults && !w.healed && w.odds("loss", 60)
}
