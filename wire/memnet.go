package wire

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"time"
)

// memWindow is how many bytes one direction of an in-memory connection holds
// before its writer waits.
const memWindow = 256 << 10

// A MemNet is a network in memory, for tests: its connections behave like TCP
// ones, and can be delayed, stalled and cut. It uses no goroutine, so that in a
// synctest bubble time passes when everybody waits. All methods may be called
// from any goroutine.
type MemNet struct {
	mu        sync.Mutex
	listeners map[string]*memListener
	conns     map[*memConn]string // dialled ends, and where to
	cuts      map[string][2]int64 // of connections to come, see CutAfter
	stalls    map[string]bool
	refusals  map[string]bool
	delay     time.Duration
	port      int
}

// NewMemNet returns a network without listeners.
func NewMemNet() *MemNet {
	return &MemNet{
		listeners: map[string]*memListener{},
		conns:     map[*memConn]string{},
		cuts:      map[string][2]int64{},
		stalls:    map[string]bool{},
		refusals:  map[string]bool{},
	}
}

// Listen returns a listener on addr, "host:port"; port 0 picks one.
func (n *MemNet) Listen(addr string) (net.Listener, error) {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if port == "0" {
		n.port++
		addr = net.JoinHostPort(host, fmt.Sprint(40_000+n.port))
	}
	if n.listeners[addr] != nil {
		return nil, memError("listen", addr, syscall.EADDRINUSE)
	}
	l := &memListener{net: n, addr: memAddr(addr), backlog: make(chan net.Conn, 128), closed: make(chan struct{})}
	n.listeners[addr] = l
	return l, nil
}

// DialContext connects to the listener on addr. The network's name is ignored.
func (n *MemNet) DialContext(ctx context.Context, _, addr string) (net.Conn, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	n.mu.Lock()
	l := n.listeners[addr]
	if l == nil || n.refusals[addr] {
		n.mu.Unlock()
		return nil, memError("dial", addr, syscall.ECONNREFUSED)
	}
	n.port++
	near := memAddr(fmt.Sprintf("client:%d", n.port))
	up, down := newMemPipe(), newMemPipe()
	up.delay, down.delay = n.delay, n.delay
	up.stalled, down.stalled = n.stalls[addr], n.stalls[addr]
	if cut, ok := n.cuts[addr]; ok {
		up.cut, down.cut = cut[0], cut[1]
	}
	c := &memConn{net: n, in: down, out: up, local: near, remote: l.addr}
	n.conns[c] = addr
	n.mu.Unlock()
	select {
	case l.backlog <- &memConn{in: up, out: down, local: l.addr, remote: near}:
		return c, nil
	case <-l.closed:
		c.Close()
		return nil, memError("dial", addr, syscall.ECONNREFUSED)
	case <-ctx.Done():
		c.Close()
		return nil, ctx.Err()
	}
}

// SetDelay makes every byte written from now on arrive d later.
func (n *MemNet) SetDelay(d time.Duration) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.delay = d
	for c := range n.conns {
		c.each(func(p *memPipe) { p.delay = d })
	}
}

// Cut resets all connections to addr: what is under way is lost.
func (n *MemNet) Cut(addr string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for c, to := range n.conns {
		if to == addr {
			c.each(func(p *memPipe) { p.reset(false) })
		}
	}
}

// CutAfter makes each connection to addr that is dialled from now on end after
// up bytes to the listener or down bytes from it have passed, which still
// arrive. Negative: never.
func (n *MemNet) CutAfter(addr string, up, down int64) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.cuts[addr] = [2]int64{up, down}
}

// Stall holds back, or lets go again, all bytes of connections to addr.
func (n *MemNet) Stall(addr string, on bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.stalls[addr] = on
	for c, to := range n.conns {
		if to == addr {
			c.each(func(p *memPipe) { p.stalled = on })
		}
	}
}

// Refuse makes dialling addr fail, or not any more.
func (n *MemNet) Refuse(addr string, on bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.refusals[addr] = on
}

type memAddr string

func (memAddr) Network() string  { return "mem" }
func (a memAddr) String() string { return string(a) }

func memError(op, addr string, err error) error {
	return &net.OpError{Op: op, Net: "mem", Addr: memAddr(addr), Err: err}
}

type memListener struct {
	net     *MemNet
	addr    memAddr
	backlog chan net.Conn
	once    sync.Once
	closed  chan struct{}
}

func (l *memListener) Addr() net.Addr { return l.addr }

func (l *memListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.backlog:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *memListener) Close() error {
	l.once.Do(func() {
		close(l.closed)
		l.net.mu.Lock()
		delete(l.net.listeners, string(l.addr))
		l.net.mu.Unlock()
		for {
			select {
			case c := <-l.backlog:
				c.Close()
			default:
				return
			}
		}
	})
	return nil
}

// A memConn is one end of a connection.
type memConn struct {
	net           *MemNet // of the dialled end
	in, out       *memPipe
	local, remote memAddr
}

// each runs f on both directions and wakes who waits for them.
func (c *memConn) each(f func(p *memPipe)) {
	for _, p := range []*memPipe{c.in, c.out} {
		p.mu.Lock()
		f(p)
		p.moved.Broadcast()
		p.mu.Unlock()
	}
}

func (c *memConn) Read(b []byte) (int, error)  { return c.in.read(b) }
func (c *memConn) Write(b []byte) (int, error) { return c.out.write(b) }

// TryWrite writes what fits without waiting.
func (c *memConn) TryWrite(b []byte) (int, error) {
	c.out.mu.Lock()
	defer c.out.mu.Unlock()
	return c.out.put(b)
}

// TryRead reads what has arrived without waiting; with nothing the error is
// os.ErrDeadlineExceeded.
func (c *memConn) TryRead(b []byte) (int, error) {
	p := c.in
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.noReader:
		return 0, net.ErrClosed
	case !p.stalled && len(p.parts) > 0 && time.Until(p.parts[0].at) <= 0:
		return p.get(b), nil
	case p.stalled || len(p.parts) > 0:
	case p.err != nil:
		return 0, p.err
	case p.ended:
		return 0, io.EOF
	}
	return 0, os.ErrDeadlineExceeded
}

// Ended reports whether the peer has ended the connection and nothing is left
// to read.
func (c *memConn) Ended() bool {
	c.in.mu.Lock()
	defer c.in.mu.Unlock()
	return len(c.in.parts) == 0 && !c.in.stalled && (c.in.ended || c.in.err != nil)
}

func (c *memConn) LocalAddr() net.Addr  { return c.local }
func (c *memConn) RemoteAddr() net.Addr { return c.remote }

func (c *memConn) SetDeadline(t time.Time) error {
	c.SetReadDeadline(t)
	return c.SetWriteDeadline(t)
}
func (c *memConn) SetReadDeadline(t time.Time) error  { return c.in.setDeadline(&c.in.readBy, t) }
func (c *memConn) SetWriteDeadline(t time.Time) error { return c.out.setDeadline(&c.out.writeBy, t) }

// CloseWrite tells the peer that nothing more will come.
func (c *memConn) CloseWrite() error {
	c.out.mu.Lock()
	defer c.out.mu.Unlock()
	c.out.ended = true
	c.out.moved.Broadcast()
	return nil
}

// Close closes both directions. As with TCP, bytes that arrived and were not
// read make it a reset, by which the peer loses what it has not read.
func (c *memConn) Close() error {
	c.in.mu.Lock()
	unread := c.in.size > 0
	c.in.noReader = true
	c.in.drop()
	c.in.moved.Broadcast()
	c.in.mu.Unlock()

	c.out.mu.Lock()
	c.out.ended, c.out.noWriter = true, true
	if unread {
		c.out.reset(false)
	}
	c.out.moved.Broadcast()
	c.out.mu.Unlock()
	if c.net != nil {
		c.net.mu.Lock()
		delete(c.net.conns, c)
		c.net.mu.Unlock()
	}
	return nil
}

// A memPipe is one direction of a connection.
type memPipe struct {
	mu    sync.Mutex
	moved sync.Cond // something below has changed

	parts    []memPart
	size     int   // bytes in parts
	cut      int64 // bytes until the reset, negative: none
	delay    time.Duration
	stalled  bool
	ended    bool  // nothing more will be written
	noWriter bool  // the writing end is closed
	noReader bool  // the reading end is closed
	err      error // after a reset
	readBy   memDeadline
	writeBy  memDeadline
}

// A memPart is some bytes and when they arrive.
type memPart struct {
	b  []byte
	at time.Time
}

type memDeadline struct {
	at    time.Time
	timer *time.Timer
}

func (d *memDeadline) over() bool { return !d.at.IsZero() && !time.Now().Before(d.at) }

func newMemPipe() *memPipe {
	p := &memPipe{cut: -1}
	p.moved.L = &p.mu
	return p
}

func (p *memPipe) wake() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.moved.Broadcast()
}

func (p *memPipe) setDeadline(d *memDeadline, t time.Time) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if d.timer != nil {
		d.timer.Stop()
	}
	*d = memDeadline{at: t}
	if !t.IsZero() {
		d.timer = time.AfterFunc(time.Until(t), p.wake)
	}
	p.moved.Broadcast()
	return nil
}

func (p *memPipe) drop() { p.parts, p.size = nil, 0 }

// reset ends the pipe with an error, at once or after what it holds was read.
// p.mu is held.
func (p *memPipe) reset(drain bool) {
	if p.err == nil {
		p.err = &net.OpError{Op: "read", Net: "mem", Err: syscall.ECONNRESET}
	}
	if !drain {
		p.drop()
	}
}

func (p *memPipe) read(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for {
		wait := time.Duration(-1)
		switch {
		case p.noReader:
			return 0, net.ErrClosed
		case p.readBy.over():
			return 0, os.ErrDeadlineExceeded
		case len(b) == 0:
			return 0, nil
		case p.stalled:
		case len(p.parts) > 0:
			if wait = time.Until(p.parts[0].at); wait <= 0 {
				return p.get(b), nil
			}
		case p.err != nil:
			return 0, p.err
		case p.ended:
			return 0, io.EOF
		}
		p.sleep(wait)
	}
}

// sleep waits until the pipe has changed, at most for d unless negative.
func (p *memPipe) sleep(d time.Duration) {
	if d >= 0 {
		defer time.AfterFunc(d, p.wake).Stop()
	}
	p.moved.Wait()
}

// get takes bytes that have arrived.
func (p *memPipe) get(b []byte) (n int) {
	for len(p.parts) > 0 && n < len(b) && time.Until(p.parts[0].at) <= 0 {
		part := &p.parts[0]
		m := copy(b[n:], part.b)
		n += m
		part.b = part.b[m:]
		if len(part.b) == 0 {
			p.parts = p.parts[1:]
		}
	}
	p.size -= n
	p.moved.Broadcast()
	return n
}

func (p *memPipe) write(b []byte) (n int, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for n < len(b) {
		if p.writeBy.over() {
			return n, os.ErrDeadlineExceeded
		}
		m, err := p.put(b[n:])
		n += m
		if err != nil {
			return n, err
		}
		if m == 0 {
			p.sleep(-1)
		}
	}
	return n, nil
}

// put adds what fits of b.
func (p *memPipe) put(b []byte) (int, error) {
	switch {
	case p.noWriter:
		return 0, net.ErrClosed
	case p.err != nil:
		return 0, &net.OpError{Op: "write", Net: "mem", Err: syscall.ECONNRESET}
	case p.noReader || p.ended:
		return 0, &net.OpError{Op: "write", Net: "mem", Err: syscall.EPIPE}
	}
	n := min(len(b), memWindow-p.size)
	if p.cut >= 0 {
		n = int(min(int64(n), p.cut))
		p.cut -= int64(n)
	}
	if n > 0 {
		p.parts = append(p.parts, memPart{append([]byte(nil), b[:n]...), time.Now().Add(p.delay)})
		p.size += n
		p.moved.Broadcast()
	}
	if p.cut == 0 {
		p.reset(true)
		p.moved.Broadcast()
	}
	return n, nil
}
