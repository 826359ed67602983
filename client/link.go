package client

import (
	"fmt"
	"slices"
	"time"

	"github.com/teralog/teralog/wire"
)

// A link is the producer's way to one broker. Its goroutine sends, whenever a
// request may go out, what the lanes led there have accumulated.
type link struct {
	p    *Producer
	node wire.NodeID
	wake chan struct{} // capacity 1

	// Guarded by the producer's mutex.
	busy    []*lane // lanes with something to send, and some that had
	flights int     // requests on their way
	flying  []*flight
	watched bool // a timer will have the goroutine look for requests out of time
}

// link returns the link to a node, making it if need be; nil for none. p.mu
// is held.
func (p *Producer) link(n wire.NodeID) *link {
	if n == wire.NoNode || p.closed {
		return nil
	}
	k := p.links[n]
	if k == nil {
		k = &link{p: p, node: n, wake: make(chan struct{}, 1)}
		p.links[n] = k
		p.loops.Add(1)
		go k.run()
	}
	return k
}

// nudge has the link's goroutine look for work.
func (k *link) nudge() {
	select {
	case k.wake <- struct{}{}:
	default:
	}
}

// list puts a lane among those to be looked at; p.mu is held.
func (k *link) list(l *lane) {
	if !l.listed {
		l.listed = true
		k.busy = append(k.busy, l)
	}
}

// took notes a request that goes out. Its time is watched by one timer for
// many requests, since waking the goroutine for each would cost the caller of a
// lone Produce more than its request; p.mu is held.
func (k *link) took(f *flight, now time.Duration) {
	f.link, f.expires = k, now+k.p.c.o.RequestTimeout
	k.flights++
	k.flying = append(k.flying, f)
	if !k.watched {
		k.watched = true
		time.AfterFunc(k.p.c.o.RequestTimeout, func() {
			k.p.mu.Lock()
			k.watched = false
			k.p.mu.Unlock()
			k.nudge()
		})
	}
}

// landed says that a request was answered; p.mu is held.
func (k *link) landed(f *flight) {
	k.flights--
	if i := slices.Index(k.flying, f); i >= 0 {
		k.flying = slices.Delete(k.flying, i, i+1)
	}
	if slices.ContainsFunc(k.busy, func(l *lane) bool { return !l.idle() }) {
		k.nudge()
	}
}

// ready returns the living connection to the broker, or nil.
func (k *link) ready() *wire.Conn {
	addr, ok := k.p.c.meta.addr(k.node)
	if !ok {
		return nil
	}
	return k.p.conns.ready(addr)
}

// connect returns the connection to the broker, dialling if need be.
func (k *link) connect() (*wire.Conn, error) {
	addr, ok := k.p.c.meta.addr(k.node)
	if !ok {
		return nil, fmt.Errorf("%w: node %d has no known address", wire.ErrNotSent, k.node)
	}
	return k.p.conns.get(k.p.ctx, addr)
}

func (k *link) run() {
	defer k.p.loops.Done()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		f, wait, stuck := k.next()
		switch {
		case f != nil:
			f.launch()
			continue
		case stuck != nil:
			stuck.Close()
			continue
		}
		var due <-chan time.Time
		if wait > 0 {
			timer.Reset(wait)
			due = timer.C
		}
		select {
		case <-k.wake:
		case <-due:
		case <-k.p.ctx.Done():
			return
		}
	}
}

// next returns the next request, or how long to wait for one unless woken, or
// a connection that let a request run out of time. Closing it fails what is on
// it, in doubt, so that it is sent again on a new one.
func (k *link) next() (f *flight, wait time.Duration, stuck *wire.Conn) {
	p := k.p
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil, 0, nil
	}
	if f, wait = p.take(k); f != nil {
		return f, 0, nil
	}
	now := p.c.now()
	for _, f := range k.flying {
		left := f.expires - now
		switch {
		case left <= 0 && f.conn != nil && f.conn.Err() == nil:
			return nil, 0, f.conn
		case left > 0 && (wait == 0 || left < wait):
			wait = left
		}
	}
	return nil, wait, nil
}
