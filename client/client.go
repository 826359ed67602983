package client

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/teralog/teralog/mem"
	"github.com/teralog/teralog/wire"
)

// Options of a Client. Only Servers must be given.
type Options struct {
	// Servers are addresses, host:port, of brokers to begin with. The others
	// are learned from whichever answers first.
	Servers []string

	// Name tells this client apart in the brokers' logs.
	Name string

	// Dialer opens connections; nil is a net.Dialer.
	Dialer wire.Dialer

	// TLS encrypts all connections; nil does not. Its RootCAs say which
	// certificates of brokers are believed (nil: the system's), its Certificates
	// are shown to brokers that ask. Without a ServerName, that in a broker's
	// certificate must be the host dialled. It is not changed, and must not be
	// by others. See TLSFiles for one made of files.
	TLS *tls.Config

	// DialTimeout bounds one attempt to connect, Hello included. 0 is 10 s.
	DialTimeout time.Duration

	// RequestTimeout bounds each admin call as a whole, retries included,
	// but for one that makes a topic, which gets 10 ms a partition on top, and
	// the time a broker has to answer one produce request or, beyond the wait
	// it was granted, one fetch. 0 is 30 s.
	RequestTimeout time.Duration

	// BackoffMin and BackoffMax bound the wait between attempts, which
	// doubles from one failure to the next. 0 is 20 ms and 2 s.
	BackoffMin, BackoffMax time.Duration
}

func (o *Options) fill() error {
	if len(o.Servers) == 0 {
		return errors.New("client: no servers given")
	}
	for _, addr := range o.Servers {
		if _, _, err := net.SplitHostPort(addr); err != nil {
			return fmt.Errorf("client: server %q is not host:port: %w", addr, err)
		}
	}
	if o.DialTimeout < 0 || o.RequestTimeout < 0 || o.BackoffMin < 0 || o.BackoffMax < 0 {
		return errors.New("client: a negative time")
	}
	o.Servers = slices.Clone(o.Servers)
	if o.Dialer == nil {
		o.Dialer = &net.Dialer{}
	}
	orDefault(&o.Name, "teralog-go")
	orDefault(&o.DialTimeout, 10*time.Second)
	orDefault(&o.RequestTimeout, 30*time.Second)
	orDefault(&o.BackoffMin, 20*time.Millisecond)
	orDefault(&o.BackoffMax, max(2*time.Second, o.BackoffMin))
	return nil
}

// orDefault sets *v to d if it is the zero value.
func orDefault[T comparable](v *T, d T) {
	var zero T
	if *v == zero {
		*v = d
	}
}

// frames holds what connections read and producers send, for every client of
// the process: warm memory is worth more than the name of its last user.
var frames = mem.NewPool("client")

// A Client talks to one cluster: it makes producers and consumers and carries
// the admin calls. All its methods may be called from any goroutine.
type Client struct {
	o     Options
	start time.Time
	back  backoff
	conns *conns
	meta  *metadata

	ctx    context.Context // ends with Close
	cancel context.CancelFunc

	mu     sync.Mutex
	closed bool
	users  map[interface{ Close() error }]struct{} // open producers and consumers
}

// New returns a client. It connects to nothing yet, so a wrong address shows
// at the first call.
func New(o Options) (*Client, error) {
	if err := o.fill(); err != nil {
		return nil, err
	}
	c := &Client{o: o, start: time.Now(), back: backoff{o.BackoffMin, o.BackoffMax},
		users: map[interface{ Close() error }]struct{}{}}
	c.ctx, c.cancel = context.WithCancel(context.Background())
	c.conns = newConns(c)
	c.meta = newMetadata(c)
	return c, nil
}

// Close closes the producers and consumers made by the client and its
// connections, and leaves no goroutine behind. Records not yet acknowledged are
// dropped and reported to their callbacks; to have them sent, call the
// producer's Flush before. It always returns nil.
func (c *Client) Close() error {
	c.mu.Lock()
	c.closed = true
	users := c.users
	c.users = nil
	c.mu.Unlock()
	for u := range users {
		u.Close()
	}
	c.cancel()
	c.conns.close()
	return nil
}

// adopt ties the life of a producer or consumer to the client's.
func (c *Client) adopt(u interface{ Close() error }) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return ErrClosed
	}
	c.users[u] = struct{}{}
	return nil
}

func (c *Client) disown(u interface{ Close() error }) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.users, u)
}

// now is the time on the monotonic clock since the client was made; every
// deadline and back-off counts on it.
func (c *Client) now() time.Duration { return time.Since(c.start) }

// bounded returns ctx with the end of an admin call.
func (c *Client) bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	return c.boundedBy(ctx, c.o.RequestTimeout)
}

func (c *Client) boundedBy(ctx context.Context, most time.Duration) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithTimeout(ctx, most)
	stop := context.AfterFunc(c.ctx, cancel)
	return ctx, func() { stop(); cancel() }
}

// sleep waits for d or until ctx ends, and reports whether it slept d whole.
func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
