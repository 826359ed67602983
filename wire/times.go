package wire

import (
	"time"

	"github.com/teralog/teralog/mem"
)

// Times are how long a server's requests take: of each connection, those that one
// read brings after timedAfter others were not timed, since a look at the clock
// costs as much as many other things. They may be read at any time.
type Times struct {
	// Admission is from the read that completed a request to its handler: room
	// for it, and the requests before it on its connection.
	Admission mem.Latency
	// Reply is from an answer, or the first of several small ones, until the
	// socket has taken all of it.
	Reply mem.Latency
	// Calls are from the read that completed a request to its answer.
	Calls [len(apis)]mem.Latency

	since time.Time
}

// timedAfter is how many requests of a connection are not timed between some
// that are. One in seven is: requests that come by turns must all have theirs.
const timedAfter = 6

// Times returns how long the server's requests take.
func (s *Server) Times() *Times { return &s.times }

// now returns a time for since; never 0.
func (t *Times) now() time.Duration { return max(time.Since(t.since), 1) }

// stamp notes when what was just read came, if its calls are to be timed.
func (c *serverConn) stamp() {
	if c.arrived = 0; c.untimed >= timedAfter {
		c.arrived = c.server.times.now()
	}
}

// time says of a new call whether it is timed.
func (c *serverConn) time(call *Call) {
	if call.arrived = c.arrived; c.arrived > 0 {
		c.untimed = 0
	} else {
		c.untimed++
	}
}

// Timed reports whether the call is one of those whose parts are timed.
func (c *Call) Timed() bool { return c.arrived > 0 }

// Retime says that a call has waited for something to happen and now goes on:
// what it takes is counted from here.
func (c *Call) Retime() {
	if c.arrived > 0 {
		c.arrived = c.conn.server.times.now()
	}
}

// began notes that the handler begins.
func (c *Call) began() {
	if c.arrived > 0 {
		t := &c.conn.server.times
		t.Admission.Record(t.now() - c.arrived)
	}
}

// ended notes that the call is answered, and returns when; 0 if it is not timed.
func (c *Call) ended() time.Duration {
	if c.arrived == 0 {
		return 0
	}
	t := &c.conn.server.times
	now := t.now()
	if int(c.API) < len(t.Calls) { // what the peer says
		t.Calls[c.API].Record(now - c.arrived)
	}
	return now
}

// sent notes that an answer given at then is with the socket.
func (t *Times) sent(then time.Duration) {
	if then > 0 {
		t.Reply.Record(t.now() - then)
	}
}
