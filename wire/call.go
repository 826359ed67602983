package wire

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/teralog/teralog/mem"
)

// A Handler answers requests. ServeCall runs on the connection's reader, so it
// must not block: what cannot be answered at once is handed on, and the call
// answered later from any goroutine. A panic in it answers that call INTERNAL
// and harms no other.
type Handler interface {
	ServeCall(c *Call)
}

// A FileRange is Len bytes at Off of R, sent as they are.
//
// If R also has a method SysFd() uintptr naming an open file of the system,
// the bytes go from the page cache to the socket by sendfile; otherwise they
// are copied through a pooled buffer. R must stay open, and its bytes in the
// range unchanged, until Done.
type FileRange struct {
	R        io.ReaderAt
	Off, Len int64
	Done     func() // called exactly once, on any goroutine, when R is no longer needed; may be nil
}

// done runs Done the first time it is called.
func (f *FileRange) done() {
	if f.Done != nil {
		f.Done()
		f.Done = nil
	}
}

// A Call is one request, and the only way to its answer: exactly one of Reply,
// ReplyError, ReplyFiles, ReplyFilled and NoReply must be called, once, on any goroutine.
//
// A Call may be used until both ServeCall has returned and it was answered;
// then it serves another request. Its body is valid until DropBody or the
// answer, whichever is first, or longer for who holds a reference to Body.
type Call struct {
	API     API
	Version Version

	correlation uint32
	body        []byte
	buf         *mem.Buf
	charged     int64 // bytes taken from the budgets for the body
	hint        time.Duration
	arrived     time.Duration // see Times; 0: not timed

	conn  *serverConn               // nil: socketless
	reply func([]byte, []FileRange) // of a socketless call
	files []FileRange               // of the answer, kept here while they are sent

	reader   Reader
	dropped  atomic.Bool // the body
	answered atomic.Bool
	failed   atomic.Bool  // the handler panicked: an answer may come twice
	refs     atomic.Int32 // the reader's, the answer's, and the one of ranges being sent
}

var calls = sync.Pool{New: func() any { return new(Call) }}

// socketless holds the bodies of calls made by NewCall.
var socketless = mem.NewPool("calls")

// NewCall returns a call without a connection: reply is called once with the
// whole response frame, file ranges following it, each of whose Done the
// receiver runs; after NoReply it is called with nil. body is copied.
func NewCall(a API, v Version, body []byte, reply func([]byte, []FileRange)) *Call {
	b := socketless.Get(len(body))
	copy(b.B, body)
	c := &Call{API: a, Version: v, body: b.B, buf: b, reply: reply}
	c.refs.Store(2)
	return c
}

// newCall returns the call of a frame, of which it keeps buf.
func newCall(conn *serverConn, h requestHeader, frame []byte, buf *mem.Buf, charged int64) *Call {
	c := calls.Get().(*Call)
	c.API, c.Version, c.correlation = h.api, h.version, h.correlation
	c.body, c.buf, c.charged, c.conn = frame[requestLen:], buf.Retain(), charged, conn
	c.refs.Store(2)
	return c
}

// unref gives up one of the call's references. A checked build does not use
// calls again, so that an answer given twice is always found.
func (c *Call) unref() {
	if c.refs.Add(-1) > 0 || c.conn == nil || mem.Checked {
		return
	}
	clear(c.files)
	files := c.files[:0]
	*c = Call{files: files}
	calls.Put(c)
}

// Decode decodes the request's body into m. Batches and byte slices in m alias
// the body. An error is the answer to give: INVALID_REQUEST.
func (c *Call) Decode(m Message) error {
	if m.API() != c.API {
		panic(fmt.Sprintf("BUG: %v decoded as %v", c.API, m.API()))
	}
	if err := DecodeBody(&c.reader, m, c.Version, c.body); err != nil {
		return &Error{Code: CodeInvalidRequest, Message: err.Error()}
	}
	return nil
}

// Body returns the buffer the request's body lies in, in which other requests
// may lie too. Retain it if batches that alias the body must outlive the call.
func (c *Call) Body() *mem.Buf { return c.buf }

// DropBody says that the body is no longer needed, so that a call that waits
// long holds no memory; the bytes it took from the budgets are given back. No
// Decode after it. A second DropBody does nothing.
func (c *Call) DropBody() {
	if c.dropped.Swap(true) {
		return
	}
	c.buf.Release()
	if c.conn != nil {
		c.conn.discharge(c.charged)
	}
}

// Len returns the length of the body in bytes. Not after the answer.
func (c *Call) Len() int { return len(c.body) }

// Session returns what the server's Session made for the connection; nil for a
// call without one.
func (c *Call) Session() any {
	if c.conn == nil {
		return nil
	}
	return c.conn.session
}

// HoldOff has the connection not read for d, once what ServeCall puts off is
// done: for a peer that is refused whatever it asks and asks all the same. Only
// within ServeCall.
func (c *Call) HoldOff(d time.Duration) {
	if c.conn != nil {
		c.conn.pause = max(c.conn.pause, d)
	}
}

// RetryAfter is told with an answer whose parts were refused and have no place
// to say when to ask again. Before the answer.
func (c *Call) RetryAfter(d time.Duration) { c.hint = max(c.hint, d) }

// Remote returns the peer's address, "" of a socketless call.
func (c *Call) Remote() string {
	if c.conn == nil {
		return ""
	}
	return c.conn.remote()
}

// Encrypted reports whether the request came by TLS.
func (c *Call) Encrypted() bool { return c.conn != nil && c.conn.sock.tls != nil }

// Cancelled is closed when the connection has ended, so that nobody waits for
// the answer. It must be given nevertheless.
func (c *Call) Cancelled() <-chan struct{} {
	if c.conn == nil {
		return nil
	}
	return c.conn.gone
}

// Later is work that a Handler puts off, in two parts, on the reader: Enter, once,
// and Leave when what was answered in Enter has been sent, as far as the peer takes
// it. alone says that there was no other.
type Later interface {
	Enter(alone bool)
	Leave()
}

// Defer puts work off until the connection's reader has handed over all the
// requests of this call's API that have arrived, so that what they have in
// common is done once. It is done before anything that waits: before the reader
// reads again, and before a request of another API is served. Only within
// ServeCall; a call without a connection has it done at once.
func (c *Call) Defer(w Later) {
	if c.conn == nil {
		w.Enter(true)
		w.Leave()
		return
	}
	c.conn.later = append(c.conn.later, w)
}

// Reply answers with m, which is encoded before Reply returns.
func (c *Call) Reply(m Message) { c.ReplyFiles(m, nil) }

// ReplyFiles answers with m followed by the bytes of fs, in order. fs is
// copied; each Done is called exactly once, also when the connection is gone.
func (c *Call) ReplyFiles(m Message, fs []FileRange) {
	c.send(c.encode(m, 0), responseHeader{correlation: c.correlation, throttle: c.hint}, fs, len(fs) > 0)
}

// A Filler writes bytes that follow a message.
type Filler interface {
	// Fill writes all of p, or reports that it cannot.
	Fill(p []byte) bool
}

// ReplyFilled answers with m followed by n bytes that f writes into the answer
// itself. It returns false if f cannot; then the call is not answered. Like
// ReplyFiles it may send the answer at once: not for within a partition's turn.
func (c *Call) ReplyFilled(m Message, n int, f Filler) bool {
	b := c.encode(m, n)
	at := len(b.B)
	b.B = slices.Grow(b.B, n)[:at+n]
	if !f.Fill(b.B[at:]) {
		b.Release()
		return false
	}
	c.send(b, responseHeader{correlation: c.correlation, throttle: c.hint}, nil, true)
	return true
}

// encode returns a response that holds m, and has room for n bytes more if a
// response like those of late has.
func (c *Call) encode(m Message, n int) *mem.Buf {
	if c.conn == nil {
		b := socketless.Get(replyBuf)
		b.B = m.AppendTo(b.B[:responseLen], c.Version)
		return b
	}
	size := &c.conn.server.replySizes[c.API]
	b := c.conn.server.replies.Get(size.next() + n)
	b.B = m.AppendTo(b.B[:responseLen], c.Version)
	size.saw(len(b.B))
	return b
}

// replyBuf is the least buffer a response is encoded into.
const replyBuf = 4 << 10

// A replySize remembers how large responses of one API have been of late, so
// that the next one gets a buffer it does not outgrow; one that does moves to
// the heap.
type replySize struct{ atomic.Int32 }

func (s *replySize) next() int { return int(max(replyBuf, s.Load())) }

// saw notes the length of a response. What was seen before fades.
func (s *replySize) saw(n int) {
	old := s.Load()
	if v := int32(min(max(n, int(old-old/8)), maxReplyBuf)); v != old {
		s.Store(v)
	}
}

// maxReplyBuf is the greatest buffer taken for a response before it is encoded.
const maxReplyBuf = 1 << 20

// ReplyError answers with the code that err wraps, with its message, and with
// the time after which to ask again. An error without a code is INTERNAL.
func (c *Call) ReplyError(err error) {
	h := responseHeader{correlation: c.correlation, code: CodeOf(err)}
	message := ""
	var e *Error
	switch {
	case h.code == CodeOK:
		panic("BUG: ReplyError without an error")
	case errors.As(err, &e):
		message, h.throttle = e.Message, e.RetryAfter
	case err != error(h.code):
		message = err.Error()
	}
	b := c.replyPool().Get(replyBuf)
	b.B = AppendText(b.B[:responseLen], message)
	c.send(b, h, nil, false)
}

// NoReply ends a call that gets no response, such as a produce with acks=0.
func (c *Call) NoReply() {
	if !c.claim() {
		return
	}
	c.DropBody()
	c.ended()
	if c.conn != nil {
		c.conn.ended(1)
	} else {
		c.reply(nil, nil)
	}
	c.unref()
}

// Fail ends a call whose handler panicked: it is answered INTERNAL if it was not
// answered, and an answer that comes later is dropped. The caller may use the
// call still, as to Reply, and logs the panic.
func (c *Call) Fail() {
	c.refs.Add(1) // never given up: who answers late must not meet another request
	if c.conn != nil {
		c.conn.server.count.panics.Add(1)
	}
	c.failed.Store(true)
	if !c.answered.Load() {
		c.ReplyError(Errorf(CodeInternal, "the request failed inside the broker; its log says how"))
	}
}

// claim takes the right to answer. It is refused only if the handler panicked
// and was answered for.
func (c *Call) claim() bool {
	if !c.answered.Swap(true) {
		return true
	}
	if !c.failed.Load() {
		panic(fmt.Sprintf("BUG: call %d of %v answered twice", c.correlation, c.API))
	}
	return false
}

func (c *Call) replyPool() *mem.Pool {
	if c.conn == nil {
		return socketless
	}
	return c.conn.server.replies
}

// send hands the response over to the connection. now says that the caller has the
// time for a system call.
func (c *Call) send(b *mem.Buf, h responseHeader, fs []FileRange, now bool) {
	var bytes int64
	for i := range fs {
		bytes += fs[i].Len
	}
	putResponseHeader(b.B, h, bytes)
	// Only now is the right to answer taken: if encoding panicked, the call
	// still gets its answer, INTERNAL.
	if !c.claim() {
		b.Release()
		for i := range fs {
			fs[i].done()
		}
		return
	}
	c.DropBody()
	if c.conn == nil {
		c.reply(b.B, fs)
		b.Release()
		return
	}
	p := parcel{buf: b, calls: 1, given: c.ended()}
	if len(fs) > 0 {
		c.files = append(c.files[:0], fs...)
		p.files, p.answer = c.files, c
		c.refs.Add(1)
	}
	c.conn.send(p, now)
	c.unref()
}

// retryBusy is when to ask again after a refusal for want of memory.
const retryBusy = 100 * time.Millisecond
