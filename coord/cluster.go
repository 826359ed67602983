package coord

import (
	"sync"
	"sync/atomic"

	"github.com/teralog/teralog/raft"
	"github.com/teralog/teralog/wire"
)

// A Cluster says how a Coord reaches the other nodes with which it keeps the
// metadata. Its functions do not block, First aside.
type Cluster struct {
	// Transport sends what Raft says to others; what they say goes to Deliver.
	Transport raft.Transport
	// First is called in Open if this node holds nothing of any metadata. It
	// returns the first members of a new cluster, which the one node that
	// founds it is told; no voters: the node waits until a leader brings it
	// what it is to hold.
	First func() (raft.Members, error)
	// Forward hands a command on to the node that leads, which gives it to
	// SubmitHere. done is called once, by any goroutine.
	Forward func(to wire.NodeID, command []byte, done func(Result, error))
}

// remote is what a Coord knows of commands that other nodes decide.
type remote struct {
	under  atomic.Int64 // forwarded and not answered
	status atomic.Pointer[raft.Status]

	mu      sync.Mutex
	arrived []answer // whose results the loop has not seen yet
}

// Deliver hands in a message of another node; if too much waits it is lost.
func (c *Coord) Deliver(m raft.Message) { c.loop.driver.Deliver(m) }

// Status returns where this node of several stood after the last turn.
func (c *Coord) Status() raft.Status { return *c.remote.status.Load() }

// report makes Status the newest.
func (c *Coord) report() {
	if c.o.Cluster != nil {
		s := c.loop.driver.Status()
		c.remote.status.Store(&s)
	}
}

// Fresh reports whether the node holds nothing of any metadata.
func (c *Coord) Fresh() bool {
	s := c.Status()
	return s.Last == 0 && s.Snapshot == 0
}

// SubmitHere is Submit for a command that another node handed on: it is refused
// with NOT_LEADER if this node does not lead.
func (c *Coord) SubmitHere(cmd Command, done func(Result, error)) {
	c.push(task{cmd: cmd, done: done, here: true})
}

// handsOver reports whether another node is still to take over leadership from
// this one, which stops. It is not waited for longer than Raft tries.
func (c *Coord) handsOver() bool {
	s := c.loop.driver.Status()
	if c.o.Cluster == nil || !s.Leads {
		return false
	}
	if !c.loop.leaves {
		c.loop.leaves = true
		c.loop.driver.Transfer(raft.Peer{}, func(raft.Index, error) {})
		return true // the next turn begins it, or not
	}
	return s.Successor != raft.Peer{}
}

// forward hands a command on to the node that leads.
func (c *Coord) forward(s raft.Status, t task) {
	cmd := t.cmd
	if _, one := cmd.(nextProducer); one {
		cmd = AllocateProducers{Count: 1}
	}
	c.remote.under.Add(1)
	c.o.Cluster.Forward(wire.NodeID(s.Leader.ID), AppendCommand(nil, cmd), func(r Result, err error) {
		c.remote.under.Add(-1)
		c.remote.mu.Lock()
		c.remote.arrived = append(c.remote.arrived, answer{t.done, r, err})
		c.remote.mu.Unlock()
		c.loop.driver.Wake()
	})
}

// arrive answers what other nodes decided, once the image here shows it.
func (c *Coord) arrive() (worked bool) {
	if c.o.Cluster == nil {
		return false
	}
	c.remote.mu.Lock()
	c.loop.awaited = append(c.loop.awaited, c.remote.arrived...)
	c.remote.arrived = nil
	c.remote.mu.Unlock()
	waiting := c.loop.awaited[:0]
	for _, a := range c.loop.awaited {
		if a.err == nil && a.result.Offset > c.Image().version {
			waiting = append(waiting, a)
			continue
		}
		worked = true
		tell([]answer{a})
	}
	clear(c.loop.awaited[len(waiting):])
	c.loop.awaited = waiting
	return worked
}
