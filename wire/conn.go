package wire

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/teralog/teralog/mem"
)

// ErrNotSent says that a request never left: no byte of it was given to the
// network, so what it asked for will not happen. ErrConnLost says that the
// connection ended after some of it may have left and before its response
// came, so nobody knows.
var (
	ErrNotSent  = errors.New("request not sent")
	ErrConnLost = errors.New("connection lost")
)

// A Caller sends requests. done is called exactly once, when resp is filled in
// or the request failed; it runs on a goroutine that other calls depend upon
// and must not block. Byte slices in resp that alias the response are valid
// until done returns.
type Caller interface {
	Go(req, resp Message, done func(error))
}

// A Dialer makes connections. *net.Dialer and *MemNet are Dialers.
type Dialer interface {
	DialContext(ctx context.Context, network, addr string) (net.Conn, error)
}

// DialOptions are the settings of a connection. The zero value of each field
// means the default named.
type DialOptions struct {
	Client   string // what we call ourselves
	Software string // our program and version

	// TLS encrypts the connection; nil does not. Without a ServerName that of the
	// certificate must be the host dialled.
	TLS *tls.Config

	Pool        *mem.Pool     // requests and responses; default a pool shared by all connections
	MaxResponse int           // greatest response frame taken, inclusive, 64 MiB less 4
	MaxInFlight int           // requests waiting for their response, 100, or less if the broker says so
	Silence     time.Duration // the connection fails if a call waits and nothing arrives for so long, 2 min
	SendTimeout time.Duration // for a request to make no progress, 30 s
}

// dialPool serves connections that name no pool.
var dialPool = mem.NewPool("connections")

// maxConnResponse is the default of DialOptions.MaxResponse: what fits the
// largest buffer a pool has.
const maxConnResponse = mem.MaxBuf - sizeLen

// A Conn is one connection to a broker. Requests are pipelined: many may be in
// flight, and responses come in any order. All methods may be called from any
// goroutine.
//
// # Who reads and who writes
//
// A Conn has no goroutine while nothing is in flight. Writing follows the
// outbox's turn: who finds it free sends, on his own goroutine, what the
// socket takes at once, and a goroutine that lives until all is sent does the
// rest. Reading follows a turn of its own:
//
//   - Do takes the reading turn if it is free and then reads on the caller's
//     goroutine until its own response has come, delivering others on the way.
//     So a lone Do writes and reads with no change of goroutine.
//   - Do that finds the turn taken waits to be woken by whoever reads.
//   - Go takes the turn if it is free and gives it to a goroutine.
//   - A Do that has what it wanted, or whose context ended, gives the turn to
//     a goroutine if other calls still wait, and otherwise frees it. The
//     goroutine reads until no call waits, then frees the turn and ends.
//   - Attend takes the turn for somebody who has calls of Go under way and waits for
//     what their answers bring; a goroutine that reads hands it over. When he leaves
//     it is kept for him to come back, with nobody reading. A Do takes it from
//     there as if it were free, and after keepTurn a goroutine.
//
// Freeing the turn and seeing that nobody waits are one step under the mutex,
// and so are registering a call and looking whether the turn is free; hence a
// call that waits always has somebody who reads, or will within keepTurn. What has been read of a frame
// stays with the Conn, so the turn can change hands in the middle of one. A
// call whose context ended stays registered, as an orphan, until its response
// has come and was thrown away.
type Conn struct {
	sock    *socket
	aside   func(cpu int) bool // mem.StepAside if the broker is on this machine and not reached by TLS, else nil
	pool    *mem.Pool
	limit   int // of a response frame's size
	silence time.Duration
	hello   HelloResponse
	slots   chan struct{} // one per request in flight
	traffic traffic
	out     outbox
	reader  func() // readAll, made once

	versions [len(apis)]int32 // the agreed one of each API

	// Guarded by out.mu.
	calls   map[uint32]*exchange // by correlation; nil: the connection has ended
	last    uint32               // correlation of the newest request
	silent  bool                 // requests that get no response have been sent
	free    []*exchange          // ended ones, for the next calls
	reading bool                 // somebody holds the reading turn
	turn    uint64               // changes whenever it changes hands
	stopped bool                 // its holder was told to look at its context
	used    time.Time            // when it was given up last
	att     attendance

	// The fields below belong to the holder of the reading turn.
	in       frameReader
	deadline time.Time
}

// oneWay is the bit of a correlation number that marks a request without a
// response, so that a refusal of one by the transport is known for what it is.
const oneWay = 1 << 31

// Dial connects to addr and says Hello; ctx bounds it all.
func Dial(ctx context.Context, d Dialer, addr string, o DialOptions) (*Conn, error) {
	if o.Pool == nil {
		o.Pool = dialPool
	}
	orDefault(&o.MaxResponse, maxConnResponse)
	orDefault(&o.MaxInFlight, 100)
	orDefault(&o.Silence, 2*time.Minute)
	orDefault(&o.SendTimeout, 30*time.Second)
	nc, err := d.DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNotSent, err)
	}
	if o.TLS != nil {
		if nc, err = dialTLS(ctx, nc, addr, o); err != nil {
			return nil, fmt.Errorf("%w: %w", ErrNotSent, err)
		}
	}
	c := newConn(nc, o)
	if err := c.Do(ctx, &HelloRequest{Client: o.Client, Software: o.Software}, &c.hello); err != nil {
		c.Close()
		return nil, fmt.Errorf("hello to %s: %w: %w", addr, ErrNotSent, err)
	}
	if n := int(c.hello.MaxInFlight); n > 0 && n < o.MaxInFlight {
		c.slots = make(chan struct{}, n)
	}
	c.agree()
	return c, nil
}

func newConn(nc net.Conn, o DialOptions) *Conn {
	c := &Conn{
		sock:    newSocket(nc, o.SendTimeout),
		pool:    o.Pool,
		limit:   min(o.MaxResponse, maxConnResponse),
		silence: o.Silence,
		slots:   make(chan struct{}, o.MaxInFlight),
		calls:   map[uint32]*exchange{},
	}
	c.reader = c.readAll
	c.att.offered = make(chan struct{}, 1)
	if c.sock.raw != nil && isNear(nc) {
		c.aside = mem.StepAside
	}
	for a := range c.versions {
		c.versions[a] = noVersion
	}
	c.versions[APIHello] = 0
	c.out.init(c.sock, c.pool, c, &c.traffic)
	c.in.init(c.sock, c.pool)
	c.in.yield = mem.Yield // a broker's reader does not: it is to answer first
	return c
}

// noVersion says that an API is not spoken on both sides.
const noVersion = -1

// agree chooses the version of each API: the greatest both sides speak.
func (c *Conn) agree() {
	for _, r := range c.hello.APIs {
		if r.API == 0 || int(r.API) >= len(apis) {
			continue
		}
		if ours := apis[r.API]; r.Min <= ours.max && r.Max >= ours.min {
			c.versions[r.API] = int32(min(ours.max, r.Max))
		}
	}
}

// Hello returns what the broker said of itself.
func (c *Conn) Hello() HelloResponse { return c.hello }

// Err returns why the connection ended, nil while it has not.
func (c *Conn) Err() error {
	c.out.mu.Lock()
	defer c.out.mu.Unlock()
	return c.out.err
}

// Close ends the connection. Calls in flight fail with net.ErrClosed, and with
// ErrConnLost or ErrNotSent.
func (c *Conn) Close() { c.fail(net.ErrClosed) }

// Do sends req and waits until resp is filled in. resp must not alias the
// response; use DoBuf for one that does. An error wraps
//
//   - ErrNotSent: no byte of the request left, so it had no effect;
//   - ErrConnLost, or CodeTimeout if ctx ended first: it may have had one;
//   - the Code the broker answered, in an *Error.
func (c *Conn) Do(ctx context.Context, req, resp Message) error {
	b, err := c.DoBuf(ctx, req, resp)
	if b != nil {
		b.Release()
	}
	return err
}

// DoBuf is Do for a response with byte slices that alias it, which are valid
// until the caller releases the buffer. It is nil with an error, and without
// one for requests that get no response.
func (c *Conn) DoBuf(ctx context.Context, req, resp Message) (*mem.Buf, error) {
	p, err := c.Begin(ctx, req, resp)
	if err != nil {
		return nil, err
	}
	return p.await(ctx)
}

// A Pending is a call that Begin began. Wait must be called, once.
type Pending struct{ x *exchange }

// Begin is the first half of Do: requests begun later are sent behind req. Its
// errors are those of Do.
func (c *Conn) Begin(ctx context.Context, req, resp Message) (Pending, error) {
	if err := c.awaitSlot(ctx); err != nil {
		return Pending{}, fmt.Errorf("%w: %w", ErrNotSent, err)
	}
	c.probe()
	x := c.newExchange(resp)
	if _, err := c.begin(x, req); err != nil {
		return Pending{}, err
	}
	return Pending{x}, nil
}

// Wait is the second half of Do.
func (p Pending) Wait(ctx context.Context) error {
	b, err := p.await(ctx)
	if b != nil {
		b.Release()
	}
	return err
}

func (p Pending) await(ctx context.Context) (*mem.Buf, error) {
	x := p.x
	if ended, err := x.conn.await(ctx, x); !ended {
		return nil, err // x belongs to the reader now
	}
	b, err := x.result()
	x.release()
	return b, err
}

// awaitSlot waits until fewer than the greatest number of calls are in flight.
func (c *Conn) awaitSlot(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	select {
	case c.slots <- struct{}{}:
		return nil
	default:
	}
	select {
	case c.slots <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Go sends req and returns; see Caller for done, which may run before Go has
// returned. If as many calls are in flight as may be, it fails at once with
// ErrNotSent and CodeBusy. Errors are those of Do.
func (c *Conn) Go(req, resp Message, done func(error)) {
	x := c.newExchange(resp)
	x.done = done
	c.start(x, req)
}

// GoBuf is Go for a response with byte slices that alias it: done gets the
// buffer they lie in and releases it, as with DoBuf.
func (c *Conn) GoBuf(req, resp Message, done func(*mem.Buf, error)) {
	x := c.newExchange(resp)
	x.doneBuf = done
	c.start(x, req)
}

// start begins a call of Go.
func (c *Conn) start(x *exchange, req Message) {
	select {
	case c.slots <- struct{}{}:
	default:
		x.fail(fmt.Errorf("%w: %w: %d calls in flight", ErrNotSent, CodeBusy, cap(c.slots)))
		return
	}
	c.probe()
	read, err := c.begin(x, req)
	if err != nil {
		x.fail(err)
		return
	}
	if read {
		go c.reader()
	}
}
