package client

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
	"time"

	"github.com/teralog/teralog/wire"
)

// lossy is a network that harms connections: each fails after a random number
// of bytes in one of several ways.
type lossy struct {
	wire.Dialer
	mu   sync.Mutex
	rand *rand.Rand
	mean int // bytes a connection lives in each direction, on average
	ends [4]int
}

func (l *lossy) DialContext(ctx context.Context, network, addr string) (net.Conn, error) {
	c, err := l.Dialer.DialContext(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return &lossyConn{Conn: c, l: l, up: l.rand.IntN(2 * l.mean), down: l.rand.IntN(2 * l.mean),
		mute: l.rand.IntN(3) == 0, slow: l.rand.IntN(4) == 0}, nil
}

func (l *lossy) ended(how int) { l.mu.Lock(); l.ends[how]++; l.mu.Unlock() }

type lossyConn struct {
	net.Conn
	l    *lossy
	mu   sync.Mutex
	up   int  // bytes to the broker until the end
	down int  // bytes from it
	mute bool // the end is that answers are no longer delivered for a while
	slow bool
}

func (c *lossyConn) budget(n *int, want int) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	got := min(*n, want)
	*n -= got
	return got
}

// Write delivers what the connection still carries and then resets it: a frame
// may arrive in part.
func (c *lossyConn) Write(p []byte) (int, error) {
	if c.slow {
		time.Sleep(time.Millisecond)
	}
	n := c.budget(&c.up, len(p))
	if n == len(p) {
		return c.Conn.Write(p)
	}
	c.Conn.Write(p[:n])
	c.l.ended(0)
	c.Conn.Close()
	return n, fmt.Errorf("reset by test: %w", net.ErrClosed)
}

// Read delivers what the connection still carries; then either it is reset or
// what the broker answers is swallowed until the broker has done all it was
// asked for.
func (c *lossyConn) Read(p []byte) (int, error) {
	n := c.budget(&c.down, len(p))
	if n > 0 {
		m, err := c.Conn.Read(p[:n])
		c.mu.Lock()
		c.down += n - m
		c.mu.Unlock()
		return m, err
	}
	if c.mute {
		c.Conn.SetReadDeadline(time.Now().Add(20 * time.Millisecond))
		var hole [4096]byte
		for {
			if _, err := c.Conn.Read(hole[:]); err != nil {
				break
			}
		}
		c.l.ended(1)
	} else {
		c.l.ended(2)
	}
	c.Conn.Close()
	return 0, fmt.Errorf("reset by test: %w", net.ErrClosed)
}
