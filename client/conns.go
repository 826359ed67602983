package client

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/teralog/teralog/wire"
)

// conns keeps one connection per address. Admin calls, each producer and each
// consumer have a set of their own, so that an acknowledgement never waits
// behind a megabyte of records fetched by somebody else.
type conns struct {
	c  *Client
	mu sync.Mutex

	closed bool
	slots  map[string]*slot
}

// A slot is the connection to one address, or the reason why there is none.
type slot struct {
	conn     *wire.Conn
	dialing  chan struct{} // not nil while somebody dials; closed at the end of it
	err      error         // why the last dial failed
	failures int           // dials that failed in a row
	until    time.Duration // no further dial before this
}

func newConns(c *Client) *conns {
	return &conns{c: c, slots: map[string]*slot{}}
}

// ready returns the living connection to addr, or nil. It never waits.
func (s *conns) ready(addr string) *wire.Conn {
	s.mu.Lock()
	defer s.mu.Unlock()
	if k := s.slots[addr]; k != nil && k.conn != nil && k.conn.Err() == nil {
		return k.conn
	}
	return nil
}

// get returns the living connection to addr, dialling if need be; of several
// callers one dials and the others wait for it. While an address that failed
// is being left alone, get fails at once with what it failed with. An error
// means that nothing was sent.
func (s *conns) get(ctx context.Context, addr string) (*wire.Conn, error) {
	for {
		k, dialing, conn, err := s.look(addr)
		switch {
		case conn != nil || err != nil:
			return conn, err
		case dialing == nil:
			return s.dial(ctx, addr, k)
		}
		select {
		case <-dialing:
		case <-ctx.Done():
			return nil, fmt.Errorf("%w: waiting for a connection to %s: %w", wire.ErrNotSent, addr, ctx.Err())
		}
	}
}

// look returns the living connection to addr, or why there is none, or what
// to wait for; if none of them, the caller is to dial on behalf of the slot.
func (s *conns) look(addr string) (k *slot, dialing <-chan struct{}, conn *wire.Conn, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, nil, nil, fmt.Errorf("%w: %w", wire.ErrNotSent, ErrClosed)
	}
	if k = s.slots[addr]; k == nil {
		k = &slot{}
		s.slots[addr] = k
	}
	switch {
	case k.conn != nil && k.conn.Err() == nil:
		return k, nil, k.conn, nil
	case k.dialing != nil:
		return k, k.dialing, nil, nil
	case k.err != nil && s.c.now() < k.until:
		return k, nil, nil, k.err
	}
	k.dialing = make(chan struct{})
	return k, nil, nil, nil
}

// dial connects to addr on behalf of all who wait for the slot.
func (s *conns) dial(ctx context.Context, addr string, k *slot) (*wire.Conn, error) {
	bounded, cancel := context.WithTimeout(ctx, s.c.o.DialTimeout)
	defer cancel()
	conn, err := wire.Dial(bounded, s.c.o.Dialer, addr, wire.DialOptions{Client: s.c.o.Name, Software: wire.Software, Pool: frames, TLS: s.c.o.TLS})

	s.mu.Lock()
	defer s.mu.Unlock()
	close(k.dialing)
	k.dialing = nil
	switch {
	case err == nil && s.closed:
		conn.Close() // nothing is in flight on it yet
		return nil, fmt.Errorf("%w: %w", wire.ErrNotSent, ErrClosed)
	case err == nil:
		*k = slot{conn: conn} // one that was here before has ended by itself
		return conn, nil
	case ctx.Err() != nil: // the caller gave up; that says nothing about the address
		return nil, fmt.Errorf("%w: connect to %s: %w", wire.ErrNotSent, addr, ctx.Err())
	}
	k.failures++
	k.until = s.c.now() + s.c.back.after(k.failures, 0, rand.Float64())
	k.err = fmt.Errorf("%w: connect to %s: %w", wire.ErrNotSent, addr, err)
	return nil, k.err
}

// close closes all connections; what is in flight on them fails.
func (s *conns) close() {
	s.mu.Lock()
	s.closed = true
	slots := s.slots
	s.slots = nil
	s.mu.Unlock()
	for _, k := range slots {
		if k.conn != nil {
			k.conn.Close()
		}
	}
}
