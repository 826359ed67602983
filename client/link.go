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
	busy      []*lane // lanes with something to send, and some that had
	complete  int     // bytes of batches that wait and take no more records, about
	flights   int     // requests on their way
	flying    []*flight
	launching bool        // somebody takes and sends requests: one at a time, or they would overtake each other
	watched   bool        // a timer will have the goroutine look for requests out of time
	guarded   bool        // guard runs
	guard     *time.Timer // has the goroutine look for what was held back
}

// holdBack is how long a request that carries little waits for the answer of one
// sent before it. Under load answers come much faster; the time bounds what
// one that is late can delay.
const holdBack = 2 * time.Millisecond

// enough is how many bytes of complete batches are a request worth sending
// while another one is on its way, or a quarter of the buffer if that is less:
// so several are on their way at once, and each one is worth its wake-ups.
const enough = 256 << 10

// link returns the link to a node, making it if need be; nil for none. p.mu
// is held.
func (p *Producer) link(n wire.NodeID) *link {
	if n == wire.NoNode || p.closed {
		return nil
	}
	k := p.links[n]
	if k == nil {
		k = &link{p: p, node: n, wake: make(chan struct{}, 1)}
		k.guard = time.AfterFunc(time.Hour, k.guardEnded)
		k.guard.Stop()
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

// look has the goroutine look for work: now if a request might go out, else
// when what is held back may wait no longer. p.mu is held.
func (k *link) look() {
	switch {
	case k.flights >= k.p.o.InFlight: // the next answer has somebody look
	case k.flights == 0 || k.p.o.Linger > 0 || k.complete >= k.p.enough:
		k.nudge()
	case !k.guarded:
		k.guarded = true
		k.guard.Reset(holdBack)
	}
}

func (k *link) guardEnded() {
	k.p.mu.Lock()
	k.guarded = false
	k.p.mu.Unlock()
	k.nudge()
}

// completed says that b, the last batch of l, takes no more records; p.mu is
// held. Half of what a lane by itself may have on its way is worth a request, too.
func (k *link) completed(l *lane, b *batch) {
	k.complete += b.bytes()
	if len(k.busy) == 1 && len(l.batches)-l.flying >= max(l.limit/2, 1) {
		k.complete = max(k.complete, k.p.enough)
	}
}

// heldBack returns how long the next request is held back yet, unless more
// comes to make it worth its while; p.mu is held.
func (k *link) heldBack(now time.Duration) time.Duration {
	if k.flights == 0 || k.p.flushing > 0 || k.complete >= k.p.enough {
		return 0
	}
	return max(k.flying[0].sent+holdBack-now, 0)
}

// claim takes the next request for the caller to carry, if it can be sent
// without waiting or much work; p.mu is held.
func (k *link) claim() *flight {
	if k.launching || k.p.closed || k.p.o.Codec != wire.None || k.p.o.Acks == AcksNone {
		return nil // without acknowledgements the outcome, too, would be told on the caller's stack
	}
	conn := k.ready()
	if conn == nil {
		return nil
	}
	f, _ := k.p.take(k)
	if f != nil {
		f.conn, k.launching = conn, true
	}
	return f
}

// carry sends a claimed request, and others that became due meanwhile: not for
// ever, since others may give records as fast as they are sent. f may be nil.
func (f *flight) carry() {
	for n := 1; f != nil; n++ {
		k := f.link
		f.launch()
		f = k.launched(n < maxInFlight)
	}
}

// launched ends a launch and returns the next request if the caller carries
// more. If he gets none the goroutine is told: it did not look while somebody
// launched.
func (k *link) launched(more bool) (f *flight) {
	k.p.mu.Lock()
	defer k.p.mu.Unlock()
	k.launching = false
	if more {
		f = k.claim()
	}
	if f == nil && k.waits() {
		k.look()
	}
	return f
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
	f.link, f.sent, f.expires = k, now, now+k.p.c.o.RequestTimeout
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
}

// waits reports whether a lane has something to send, sooner or later; p.mu is held.
func (k *link) waits() bool {
	return slices.ContainsFunc(k.busy, func(l *lane) bool { return len(l.batches) > l.flying })
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
	defer k.guard.Stop()
	for {
		f, wait, stuck := k.next()
		switch {
		case f != nil:
			f.launch()
			k.p.mu.Lock()
			k.launching = false
			k.p.mu.Unlock()
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
	if !k.launching { // else who does so looks again
		if f, wait = p.take(k); f != nil {
			k.launching = true
			return f, 0, nil
		}
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
