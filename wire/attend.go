package wire

import (
	"context"
	"time"
)

// Who gives many records waits for what answers bring, room, and not for an answer of
// his own. If he reads meanwhile, no goroutine has to be woken by each answer to wake
// him. He comes back soon, so when he leaves the turn stays his, with nobody
// reading, for keepTurn at most.

// keepTurn is how long responses may lie unread while whoever attends to them is
// away. Then a goroutine reads again. Who gives as much as is taken comes back in
// 0.2 ms, seldom in more than lateTurn; who was away for longer has other things to do,
// and what came meanwhile was late for it: nobody attends for a while then, longest
// where that happens again and again.
const (
	keepTurn  = 2 * time.Millisecond
	lateTurn  = 800 * time.Microsecond
	closeTurn = 20 * time.Millisecond
	maxMissed = 6  // closeTurn is doubled so often at most
	goodTurns = 16 // in a row, and all is forgotten
)

// An attendance is the part of the reading turn's state that callers of Attend
// have; out.mu guards it.
type attendance struct {
	offered chan struct{} // capacity 1: signalled when the turn is kept for who wanted it
	wanted  bool          // the goroutine that reads is to hand over
	kept    bool          // the turn is kept for whoever comes: nobody reads
	turn    uint64        // the turn of whoever attends; 0: nobody
	left    time.Time     // when the last one went
	closed  time.Time     // nobody attends before
	missed  int           // how often somebody was late
	good    int           // times in a row that nobody was
	timer   *time.Timer   // runs keptLong
	timed   bool          // it will
}

// Attend takes the reading turn for a caller who waits for what responses bring
// and reports whether it did; he calls ReadUntil then. If a goroutine reads it will
// hand over behind the next response, and Offered tells.
func (c *Conn) Attend() bool {
	c.out.mu.Lock()
	defer c.out.mu.Unlock()
	now := time.Now()
	if !c.reading || c.calls == nil || now.Before(c.att.closed) {
		return false // nothing is to come, or nobody may
	}
	if !c.att.kept {
		c.att.wanted = c.att.turn == 0
		return false
	}
	c.takeReading()
	if now.Sub(c.att.left) > lateTurn {
		c.att.miss(now)
		go c.reader()
		return false
	}
	if c.att.good++; c.att.good >= goodTurns {
		c.att.missed = 0
	}
	c.att.turn = c.turn
	return true
}

// miss notes that somebody did not come back in time.
func (a *attendance) miss(now time.Time) {
	a.closed = now.Add(closeTurn << a.missed)
	a.missed, a.good = min(a.missed+1, maxMissed), 0
}

// Offered is signalled when Attend may succeed that did not before.
func (c *Conn) Offered() <-chan struct{} { return c.att.offered }

// ReadUntil delivers responses on the caller's goroutine, who had true from
// Attend, until over reports true, ctx ends, somebody interrupts, none is to come or
// the connection fails. Callbacks of Go run there. What comes later is read once he
// or another one attends again, and by a goroutine after keepTurn.
func (c *Conn) ReadUntil(ctx context.Context, over func() bool) {
	stop := c.stopWith(ctx)
	for !over() && c.attends() && c.receive() {
	}
	stop()
	c.leaveReading(true)
}

// attends reports whether who attends has more to read.
func (c *Conn) attends() bool {
	c.out.mu.Lock()
	defer c.out.mu.Unlock()
	return !c.stopped && c.answersDue()
}

// forsakes reports whether somebody would wait for nothing if nobody read for a
// while; out.mu is held.
func (c *Conn) forsakes() bool {
	for _, x := range c.calls {
		if x.waits {
			return true
		}
	}
	return false
}

// Interrupt has whoever attends look at what he waits for, if anybody does.
func (c *Conn) Interrupt() {
	c.out.mu.Lock()
	defer c.out.mu.Unlock()
	if c.att.turn != 0 {
		c.stopLocked()
	}
}

// Resume has a goroutine read what is to come if nobody does: whoever attended has
// something else to wait for.
func (c *Conn) Resume() {
	c.out.mu.Lock()
	read := c.att.kept
	if read {
		c.takeReading()
	}
	c.out.mu.Unlock()
	if read {
		go c.reader()
	}
}

// keep keeps the reading turn for who attends next; out.mu is held.
func (c *Conn) keep() {
	a := &c.att
	a.kept, a.left = true, time.Now()
	switch {
	case a.timed:
	case a.timer == nil:
		a.timed, a.timer = true, time.AfterFunc(keepTurn, c.keptLong)
	default:
		a.timed = true
		a.timer.Reset(keepTurn)
	}
}

// keptLong ends it if nobody came back in time.
func (c *Conn) keptLong() {
	c.out.mu.Lock()
	a := &c.att
	a.timed = false
	if !a.kept {
		c.out.mu.Unlock()
		return
	}
	now := time.Now()
	if left := keepTurn - now.Sub(a.left); left > 0 {
		a.timed = true
		a.timer.Reset(left)
		c.out.mu.Unlock()
		return
	}
	c.takeReading()
	a.miss(now)
	c.out.mu.Unlock()
	go c.reader()
}

// handOver keeps the reading goroutine's turn for who wants to attend, and reports
// whether it did; out.mu is held.
func (c *Conn) handOver() bool {
	if !c.att.wanted {
		return false
	}
	c.att.wanted = false
	c.turn++
	c.keep()
	select {
	case c.att.offered <- struct{}{}:
	default:
	}
	return true
}
