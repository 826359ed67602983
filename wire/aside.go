package wire

import (
	"net"
	"sync/atomic"
	"time"
)

// asideEvery is the time between two looks of all connections together at where a
// broker runs: to go elsewhere costs 20 to 80 µs.
const asideEvery = 500 * time.Microsecond

// asides times the looks of the process.
var asides = aside{start: time.Now()}

type aside struct {
	start time.Time
	last  atomic.Int64 // look, since then
}

// due reports whether it is time for a look, which the caller then takes.
func (a *aside) due(now time.Time) bool {
	at, last := int64(now.Sub(a.start)), a.last.Load()
	return at-last >= int64(asideEvery) && a.last.CompareAndSwap(last, at)
}

// asideRead is how many bytes read at once are too many for a step aside: somebody
// reads a backlog, and gives up the processor behind each large piece in any case.
const asideRead = 64 << 10

// stepAside leaves the processor to the broker, if that is on this machine, sent
// what was just read from this processor and has more to do for us: its answer woke
// whoever reads it here, and the two would go on taking turns. See mem.StepAside.
func (c *Conn) stepAside() {
	if c.aside == nil || c.in.n >= asideRead || !c.pipelines() || !asides.due(time.Now()) {
		return
	}
	if cpu, ok := c.sock.sentFrom(); ok {
		c.aside(cpu)
	}
}

// pipelines reports whether several calls are under way.
func (c *Conn) pipelines() bool {
	c.out.mu.Lock()
	defer c.out.mu.Unlock()
	return len(c.calls) > 1
}

// isNear reports whether the peer of a TCP connection is on this machine.
func isNear(c net.Conn) bool {
	theirs, ok := c.RemoteAddr().(*net.TCPAddr)
	if !ok {
		return false
	}
	ours, ok := c.LocalAddr().(*net.TCPAddr)
	return ok && (theirs.IP.IsLoopback() || theirs.IP.Equal(ours.IP))
}
