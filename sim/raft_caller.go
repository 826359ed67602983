package sim

import (
	"encoding/binary"
	"errors"
	"time"

	"github.com/teralog/teralog/raft"
)

// maxCallers is how many callers there may be.
const maxCallers = 5

// patience is how long a caller waits for an answer.
const patience = 250 * time.Millisecond

// A caller proposes requests one after the other, each again until it is known
// to be committed, and reads in between.
type caller struct {
	q         *quorum
	id        int
	next      uint64
	turn      uint64  // whose answer counts
	at        *member // whom it waits for
	request   uint64  // that it makes
	committed int     // requests, of which it was told, since healing
	shown     int     // reads, likewise
}

// A proposal is a request's number and that of the attempt, which every one of
// its proposals has another one of. A request begins with its caller, from 1.
const proposalBytes = 8 + 8

func requestOf(data []byte) uint64 { return binary.LittleEndian.Uint64(data) }
func attemptOf(data []byte) uint64 { return binary.LittleEndian.Uint64(data[8:]) }

func newCaller(q *quorum, id int) *caller {
	c := &caller{q: q, id: id}
	c.fresh()
	q.after(q.upTo(streamCaller, id, 50*time.Millisecond), c.act)
	return c
}

func (c *caller) fresh() {
	c.next++
	c.request = uint64(c.id+1)<<32 | c.next
}

// again acts anew after a while, if nothing has come in between.
func (c *caller) again(turn uint64) {
	if c.turn == turn {
		c.turn++
		c.at = nil
		c.q.after(c.q.upTo(streamCaller, c.id, 2*c.q.scenario.propose), c.act)
	}
}

// hungUp tells the caller that a member it may wait for has died.
func (c *caller) hungUp(m *member) {
	if c.at == m {
		c.again(c.turn)
	}
}

// act asks some node, mostly the right one, and goes on with its answer, or
// without one after a while.
func (c *caller) act() {
	q := c.q
	c.turn++
	turn := c.turn
	m := c.choose()
	if !m.up {
		c.again(turn)
		return
	}
	c.at = m
	q.after(patience, func() { c.again(turn) })
	if q.draw(streamCaller, c.id, 3) == 0 {
		c.read(m, turn)
	} else {
		c.propose(m, turn)
	}
	if c.at != nil {
		m.turn()
	}
}

func (c *caller) choose() *member {
	q := c.q
	l := q.leading()
	anybody := q.members[q.draw(streamCaller, c.id, uint64(len(q.members)))]
	switch q.draw(streamCaller, c.id, 4) {
	case 0:
		return anybody
	case 1: // somebody else who says that he leads
		for _, m := range q.members {
			if m.up && m != l && m.status.Leads {
				return m
			}
		}
	}
	if l != nil {
		return l
	}
	return anybody
}

func (c *caller) propose(m *member, turn uint64) {
	q := c.q
	request, attempt := c.request, uint64(c.id+1)<<32|turn
	data := binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint64(nil, request), attempt)
	m.driver.Propose(data, func(i raft.Index, err error) {
		switch {
		case err == nil:
			if q.trace != nil {
				q.say("request %x is committed as entry %d", request, i)
			}
			if i > q.truth.last() || string(q.truth.committed[i-1].Data) != string(data) {
				q.violate("Acknowledged: request %x as entry %d, which is not it", request, i)
			}
			q.truth.shown = max(q.truth.shown, i)
			if c.request == request {
				c.committed++
				c.fresh()
			}
		case errors.Is(err, raft.ErrIndefinite):
			q.count("indefinite")
		default: // it never takes effect
			q.truth.refused[attempt] = err
			if errors.Is(err, raft.ErrReplaced) {
				q.count("replaced")
			}
		}
		c.again(turn)
	})
}

// read asks for a read: it must show what anybody was shown before.
func (c *caller) read(m *member, turn uint64) {
	q := c.q
	floor := q.truth.shown
	m.driver.Read(func(i raft.Index, err error) {
		if err == nil {
			q.count("read")
			if i < floor || m.machine.last < floor {
				q.violate("StaleRead: %v shows entry %d, entry %d was shown before it was asked", m.self, i, floor)
			}
			q.truth.shown = max(q.truth.shown, i)
			if c.turn == turn {
				c.shown++
			}
		}
		c.again(turn)
	})
}
