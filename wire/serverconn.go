package wire

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/teralog/teralog/mem"
)

// errDraining ends a reader because the server shuts down, errNoHello because
// the peer did not begin with a Hello that we take. In both cases what has
// been answered still goes out.
var (
	errDraining = errors.New("server is shutting down")
	errNoHello  = errors.New("no valid hello")
)

// errResting ends a reader's goroutine but not its connection.
var errResting = errors.New("connection rests")

// restAfter is how long a connection must have been quiet for its reader to go
// on waiting as a new goroutine, on the small stack that one begins with.
const restAfter = time.Second

// lingerTime is how long a connection that we end waits for the peer to read
// our last answers and close.
const lingerTime = time.Second

// A serverConn is one accepted connection.
//
// Its reader runs the handler and, when it is about to wait for more requests,
// sends the answers that are ready. Answers given while it waits, and those
// the socket does not take at once, are sent by the outbox's goroutine.
type serverConn struct {
	server *Server
	sock   *socket
	out    outbox
	budget *mem.Budget   // of this connection
	gone   chan struct{} // closed when the connection has ended

	source  netip.Addr
	session any // the handler's, for all its calls

	inFlight atomic.Int32 // calls whose answer has not been sent
	waiting  atomic.Bool  // the reader waits for inFlight to fall
	fell     sync.Cond    // on out.mu
	draining bool         // guarded by out.mu
	closed   bool         // guarded by out.mu

	// The fields below belong to the reader.
	in       frameReader
	greeted  bool
	holding  bool // the outbox's turn
	resting  bool // the deadline is that of a long silence
	rested   bool // it has been so before
	later    []Later
	entered  int           // of later, those that Enter was called of
	laterOf  API           // whose requests put it off
	charged  int           // bytes from the budgets for the frame at the front
	pause    time.Duration // not read for that long
	deadline time.Time
	framed   int           // length of the frame the deadline was made for, 0: an idle one
	starved  bool          // it was waiting for the peer when the drain began
	untimed  int           // calls since one was timed
	arrived  time.Duration // when what the last read brought came; 0: its calls are not timed
}

func newServerConn(s *Server, nc net.Conn) *serverConn {
	c := &serverConn{server: s, budget: mem.NewBudget(s.ConnBudget), gone: make(chan struct{})}
	c.untimed = int(s.count.accepted.Load() % (timedAfter + 1)) // else of connections that ask little none would be timed
	c.sock = newSocket(nc, s.SendTimeout)
	c.sock.bulk = s.bulk
	if t := c.sock.tls; t != nil {
		t.below.bulk = s.bulk
	}
	c.deadline = time.Now().Add(s.HelloTimeout)
	c.fell.L = &c.out.mu
	c.out.init(c.sock, s.replies, c, &s.traffic)
	c.in.init(c.sock, s.requests)
	c.source = sourceOf(nc.RemoteAddr())
	return c
}

// remote returns the peer's address.
func (c *serverConn) remote() string {
	if a := c.sock.RemoteAddr(); a != nil {
		return a.String()
	}
	return ""
}

// run is the reader's goroutine. What waits for a quiet peer is kept shallow,
// so that it fits the smallest stack there is: one that once had served a
// request would be twice as large, for each of thousands of idle connections.
func (c *serverConn) run() {
	var err error
	switch {
	case c.resting:
		err = c.in.fill(0)
	case c.sock.tls != nil:
		err = c.shake()
	}
	c.serve(err)
}

// serve works off what the peer sends, after a first fill that returned err,
// and ends the connection.
func (c *serverConn) serve(err error) {
	if c.resting {
		c.resting = false
		err = c.waited(err)
	}
	if err == nil {
		err = c.read()
	}
	if err == errResting {
		go c.run()
		return
	}
	s := c.server
	switch {
	case errors.Is(err, errDraining) || errors.Is(err, errNoHello):
		c.finish(lingerTime)
	case errors.Is(err, errSpokeTLS):
		c.finish(mismatchTime)
	case errors.Is(err, ErrCorrupt):
		s.count.badFrames.Add(1)
	case errors.Is(err, os.ErrDeadlineExceeded):
		s.count.timeouts.Add(1)
	}
	s.Log.Debug("connection ended", "remote", c.remote(), "err", err)
	c.cut(err)
	c.in.drop()
	c.discharge(int64(c.charged))
	s.closed(c)
}

// read serves requests until the connection ends and returns why.
func (c *serverConn) read() error {
	if !c.greeted {
		if err := c.setDeadline(); err != nil {
			return err
		}
	}
	for {
		c.holding = c.out.take()
		c.stamp()
		need, err := c.serveBuffered()
		c.catchUp()
		c.flush()
		if err == nil {
			err = c.fill(need)
		}
		if err != nil {
			return err
		}
	}
}

// flush sends what is ready and gives up the outbox's turn. What was put off has
// been caught up with.
func (c *serverConn) flush() {
	if c.holding {
		c.holding = false
		c.out.flush()
	}
	for _, w := range c.later {
		w.Leave()
	}
	clear(c.later)
	c.later, c.entered = c.later[:0], 0
}

// serveBuffered serves all requests that have arrived whole. need is the
// length of the one that has not, as far as it is known.
func (c *serverConn) serveBuffered() (need int, err error) {
	for {
		need, more, err := c.step()
		if err != nil || !more {
			return need, err
		}
		if c.pause > 0 {
			c.holdOff()
		}
	}
}

// step serves or refuses the frame at the front; more is false when it needs
// bytes that have not arrived.
func (c *serverConn) step() (need int, more bool, err error) {
	n, known, err := c.in.frameLen(requestLen-sizeLen, c.maxFrame())
	if err != nil {
		return 0, false, c.notFrame(err)
	}
	if !known || c.in.have() < requestLen {
		c.in.reserve(requestLen)
		return n, false, nil
	}
	if err := c.awaitRoom(); err != nil {
		return 0, false, err
	}
	h := parseRequestHeader(c.in.peek(requestLen))
	if hit := c.charge(c.in.claim(n)); hit != NoLimit {
		c.refuse(h, n, hit)
		return 0, true, nil
	}
	if c.in.have() < n {
		c.in.reserve(n)
		return n, false, nil
	}
	frame := c.in.take(n)
	c.charged, c.framed = 0, 0
	c.inFlight.Add(1)
	call := newCall(c, h, frame, c.in.buf, int64(n))
	c.time(call)
	return 0, true, c.answer(call)
}

func (c *serverConn) maxFrame() int {
	if !c.greeted {
		return maxHelloFrame
	}
	return c.server.MaxFrame
}

// notFrame says what to make of bytes that are no frame. Who begins with those of
// TLS gets an answer that no handshake begins with.
func (c *serverConn) notFrame(err error) error {
	if yes, _ := beginsTLS(c.in.peek(sizeLen)); c.greeted || !yes || c.sock.tls != nil {
		return err
	}
	c.server.count.spokeTLS.Add(1)
	c.server.unfit("plaintext", c.remote(), errSpokeTLS)
	c.refuseFrame(responseHeader{code: CodeUnsupported}, "this address does not speak TLS")
	return errSpokeTLS
}

// charge has the frame at the front charged for n bytes, from the connection's
// and the process's budgets, or says which of them has too few left.
func (c *serverConn) charge(n int) Limit {
	more := int64(n - c.charged)
	if more <= 0 {
		return NoLimit
	}
	if !c.budget.TryTake(more) {
		return LimitConnectionMemory
	}
	if !c.server.Budget.TryTake(more) {
		c.budget.Give(more)
		return LimitMemory
	}
	c.charged = n
	return NoLimit
}

func (c *serverConn) discharge(n int64) {
	c.budget.Give(n)
	c.server.Budget.Give(n)
}

// noMemory says which budget has too little left.
var noMemory = map[Limit]string{
	LimitMemory:           "no memory for the request: all connections together hold as many bytes of requests as they may",
	LimitConnectionMemory: "no memory for the request: the connection holds as many bytes of requests as it may",
}

// refuse answers BUSY to the frame at the front without taking more memory for
// it; what had arrived of it is given up.
func (c *serverConn) refuse(h requestHeader, n int, hit Limit) {
	c.server.count.busy.Add(1)
	c.server.refused(hit, c.remote())
	c.discharge(int64(c.charged))
	c.charged = 0
	c.in.skip(n)
	c.refuseFrame(responseHeader{correlation: h.correlation, code: CodeBusy, throttle: retryBusy}, noMemory[hit])
}

// refuseFrame answers what never becomes a call.
func (c *serverConn) refuseFrame(h responseHeader, message string) {
	c.inFlight.Add(1)
	b := c.server.replies.Get(replyBuf)
	b.B = AppendText(b.B[:responseLen], message)
	putResponseHeader(b.B, h, 0)
	c.send(parcel{buf: b, calls: 1}, false)
}

// answer has one call answered.
func (c *serverConn) answer(call *Call) (err error) {
	defer func() {
		if p := recover(); p != nil {
			c.panicked(call, p)
			return
		}
		call.unref()
	}()
	switch err := checkVersion(call.API, call.Version); {
	case !c.greeted && call.API != APIHello:
		call.ReplyError(Errorf(CodeHelloRequired, "the first request must be Hello, not %v", call.API))
		return errNoHello
	case err != nil:
		call.ReplyError(err)
	case call.API == APIHello:
		return c.hello(call)
	case c.isDraining():
		call.ReplyError(CodeShuttingDown)
	default:
		if call.API != c.laterOf {
			c.catchUp()
			c.laterOf = call.API
		}
		c.server.count.requests.Add(1)
		call.began()
		c.server.Handler.ServeCall(call)
	}
	return nil
}

// catchUp does what handlers have put off.
func (c *serverConn) catchUp() {
	for _, w := range c.later[c.entered:] {
		w.Enter(len(c.later) == c.entered+1)
	}
	c.entered = len(c.later)
}

// panicked answers for a handler that could not.
func (c *serverConn) panicked(call *Call, p any) {
	c.server.Log.Error("panic in a handler", "api", call.API.String(), "remote", c.remote(), "err", fmt.Sprint(p), "stack", string(debug.Stack()))
	call.Fail()
}

func (c *serverConn) hello(call *Call) error {
	var m HelloRequest
	if err := call.Decode(&m); err != nil {
		call.ReplyError(err)
		return errNoHello
	}
	r := c.server.helloResponse()
	call.Reply(&r)
	if !c.greeted {
		c.server.identified(c)
	}
	c.greeted, c.deadline = true, time.Time{}
	return nil
}

// holdOff sends what is ready and reads nothing for as long as a call asked for.
func (c *serverConn) holdOff() {
	c.catchUp()
	c.flush()
	timer := time.NewTimer(c.pause)
	defer timer.Stop()
	c.pause = 0
	select {
	case <-timer.C:
	case <-c.gone:
	}
	c.holding = c.out.take()
}

// awaitRoom waits while too many calls are in flight.
func (c *serverConn) awaitRoom() error {
	if int(c.inFlight.Load()) < c.server.MaxInFlight {
		return nil
	}
	c.catchUp()
	c.flush()
	ok := c.awaitInFlight(c.server.MaxInFlight - 1)
	c.holding = c.out.take()
	if !ok {
		return net.ErrClosed
	}
	return nil
}

// awaitInFlight waits until at most n calls are in flight; false: the
// connection was cut first.
func (c *serverConn) awaitInFlight(n int) bool {
	c.out.mu.Lock()
	defer c.out.mu.Unlock()
	c.waiting.Store(true)
	defer c.waiting.Store(false)
	for int(c.inFlight.Load()) > n && !c.closed {
		c.fell.Wait()
	}
	return !c.closed
}

// ended counts n calls out.
//
// The counter is read by a waiting reader after it has set waiting, and waiting
// is read here after the counter fell: one of the two sees the other.
func (c *serverConn) ended(n int) {
	c.inFlight.Add(-int32(n))
	if c.waiting.Load() {
		c.out.mu.Lock()
		c.fell.Broadcast()
		c.out.mu.Unlock()
	}
}

// send queues an answer. Unless somebody sends already, or the reader will, it is
// sent: by the caller as far as that needs no waiting, if now says that he has the
// time, else by a goroutine. He may be within a partition's turn, with many behind it.
func (c *serverConn) send(p parcel, now bool) {
	switch mine, _ := c.out.push(p); {
	case mine && now:
		c.out.flush()
	case mine:
		c.out.start()
	}
}

func (c *serverConn) parcelSent(p *parcel) {
	c.server.times.sent(p.given)
	c.ended(p.calls)
}

func (c *serverConn) sendFailed(err error) {
	if errors.Is(err, os.ErrDeadlineExceeded) {
		c.server.count.timeouts.Add(1)
	}
	c.cut(err)
}

// fill reads once, within the time the peer has. It does not when the
// connection is to rest: after a silence, and at once behind Hello, so that the
// stacks of many that come together are not all grown at the same time.
func (c *serverConn) fill(need int) error {
	if c.greeted && !c.rested && c.in.have() == 0 && c.in.skipping == 0 {
		return c.rest(0)
	}
	if err := c.renewDeadline(need); err != nil {
		return err
	}
	err := c.in.fill(need)
	if c.greeted && c.framed == 0 && errors.Is(err, os.ErrDeadlineExceeded) && !c.isDraining() {
		return c.rest(c.server.restAfter())
	}
	return c.waited(err)
}

// rest makes everything ready for a long wait of a peer that has been quiet for
// a while already.
func (c *serverConn) rest(quiet time.Duration) error {
	c.in.drop()
	c.later = nil
	c.framed, c.resting, c.rested = 0, true, true
	c.deadline = time.Now().Add(c.server.IdleTimeout - quiet)
	if err := c.setDeadline(); err != nil {
		return err
	}
	return errResting
}

// waited says what to make of the end of a wait for the peer.
func (c *serverConn) waited(err error) error {
	if !errors.Is(err, os.ErrDeadlineExceeded) {
		return err
	}
	switch {
	case c.isDraining():
		c.starved = true
		return errDraining
	case c.greeted && c.framed == 0 && c.inFlight.Load() > 0:
		return nil // not idle: its calls take long
	}
	return err
}

// restAfter is how long a connection is quiet before it rests.
func (s *Server) restAfter() time.Duration { return min(restAfter, s.IdleTimeout/4) }

// renewDeadline sets the time by which the peer must send something: a frame
// that has begun must come to its end, a connection without any rests after a
// while and must not do so for ever. The deadline of rest lies an eighth too
// late and is left alone until it comes closer than it should, so that most
// reads change no timer.
func (c *serverConn) renewDeadline(need int) error {
	if !c.greeted {
		return c.setDeadline() // that of Hello
	}
	s, now := c.server, time.Now()
	switch began := c.in.have() > 0 || c.in.skipping > 0; {
	case began && c.framed >= max(need, 1) && !c.deadline.IsZero():
		return nil
	case began:
		c.framed = max(need, 1)
		c.deadline = now.Add(s.FrameTimeout + time.Duration(max(need, c.in.skipping)>>16)*time.Second)
	default:
		rest, left := s.restAfter(), c.deadline.Sub(now)
		if c.framed == 0 && left >= rest && left <= rest+rest/8 {
			return nil
		}
		c.framed = 0
		c.deadline = now.Add(rest + rest/8)
	}
	return c.setDeadline()
}

// setDeadline tells the socket the reader's deadline, unless a drain has set
// one that is over.
func (c *serverConn) setDeadline() error {
	c.out.mu.Lock()
	defer c.out.mu.Unlock()
	if c.draining {
		return errDraining
	}
	return c.sock.SetReadDeadline(c.deadline)
}

// drain makes the reader stop reading.
func (c *serverConn) drain() {
	c.out.mu.Lock()
	defer c.out.mu.Unlock()
	c.draining = true
	c.sock.SetReadDeadline(time.Unix(1, 0))
}

func (c *serverConn) isDraining() bool {
	c.out.mu.Lock()
	defer c.out.mu.Unlock()
	return c.draining
}

// finish waits until everything is answered and sent. A peer that was idle
// gets no time to read, since it waits for nothing. One whose requests were
// just worked on may have sent more, and to close on those would be a reset.
func (c *serverConn) finish(patience time.Duration) {
	idle := c.greeted && c.starved && c.inFlight.Load() == 0 && c.in.have() == 0
	c.in.drop()
	if c.awaitInFlight(0) && !idle {
		c.sock.closeWrite()
		c.sock.linger(patience)
	}
}

// cut ends the connection at once. It may be called from anywhere.
func (c *serverConn) cut(err error) {
	if err == nil {
		err = net.ErrClosed
	}
	c.out.close(err)
	c.out.mu.Lock()
	first := !c.closed
	c.closed = true
	c.fell.Broadcast()
	c.out.mu.Unlock()
	if first {
		close(c.gone)
		c.sock.Close()
	}
}
