package raft

import (
	"encoding/binary"
	"hash/crc64"
)

// truth is what an observer of everything knows, and what must hold of it after
// every event.
type truth struct {
	w         *world
	leaders   map[Term]Peer
	votes     map[ballot]Peer
	entries   map[position]origin // every entry any store was ever told of
	committed []Entry             // by index - 1
	states    []uint64            // of the machine after each
	replaced  []position          // proposals said never to take effect
	config    Members             // the newest committed one
	healedAt  Index
	seen      Index // the greatest index a client was ever shown
}

type ballot struct {
	voter Peer
	term  Term
}

type origin struct {
	before Term
	sum    uint64
}

func (t *truth) init(w *world) {
	*t = truth{w: w, leaders: map[Term]Peer{}, votes: map[ballot]Peer{}, entries: map[position]origin{}}
}

func (t *truth) last() Index { return Index(len(t.committed)) }

// appended holds log matching: an entry is the same wherever it lies, and so is
// the one before it.
func (t *truth) appended(m *member, entries []Entry) {
	log := &m.driver.node.log
	for _, e := range entries {
		before, _ := log.term(e.Index - 1)
		o := origin{before, crc64.Checksum(e.Data, table) ^ uint64(e.Kind)}
		at := position{e.Index, e.Term}
		if have, ok := t.entries[at]; ok && have != o {
			t.w.fail("LogMatching: entry %d of term %d is two things, or follows terms %d and %d", e.Index, e.Term, have.before, before)
		}
		t.entries[at] = o
	}
}

// sent holds one vote a term, over all restarts of a disk. It notes what is
// acknowledged.
func (t *truth) sent(m *member, msg *Message) {
	if msg.Kind == AppendReply && !msg.Reject && (msg.Term > m.acked.term || msg.Term == m.acked.term && msg.Index > m.acked.index) {
		m.acked = position{msg.Index, msg.Term}
	}
	vote := ballot{msg.From, msg.Term}
	var candidate Peer
	switch {
	case msg.Kind == VoteReply && !msg.Reject:
		candidate = msg.To
	case msg.Kind == VoteKind:
		candidate = msg.From
	default:
		return
	}
	if have, ok := t.votes[vote]; ok && have != candidate {
		t.w.fail("OneVote: %v votes for %v and %v in term %d", msg.From, have, candidate, msg.Term)
	}
	t.votes[vote] = candidate
}

// look looks at a node that has just done something.
func (w *world) look(m *member) {
	t, n := &w.truth, m.driver.node
	w.mixIn(uint64(w.now), uint64(m.slot), uint64(n.vote.Term), uint64(n.log.last()), uint64(n.log.commit))
	if _, leads := n.role.(*leader); leads && m.lead != n.vote.Term {
		m.lead = n.vote.Term
		t.elected(m)
	}
	log := &n.log
	if m.acked.term == n.vote.Term && m.acked.index > log.last() {
		w.fail("AckForgotten: %v acknowledged entry %d in term %d, its log ends at %d", m.self, m.acked.index, m.acked.term, log.last())
	}
	if log.commit < m.commit {
		w.fail("CommitFell: %d's from %d to %d", m.self.ID, m.commit, log.commit)
	}
	if log.base.index > log.applied || log.applied > log.commit || log.commit > log.last() || log.stable > log.last() {
		w.fail("LogOrder: %d has base %d applied %d commit %d stable %d last %d", m.self.ID, log.base.index, log.applied, log.commit, log.stable, log.last())
	}
	for i := max(m.commit, log.base.index) + 1; i <= log.commit; i++ {
		t.commit(log.entries[i-log.base.index-1])
	}
	if log.commit > m.commit {
		m.commit = log.commit
		t.lookLost()
	}
}

// elected holds one leader a term, who has all that was committed before.
func (t *truth) elected(m *member) {
	n := m.driver.node
	term := n.vote.Term
	t.w.note("%d leads in term %d", m.self.ID, term)
	if have, ok := t.leaders[term]; ok && have != m.self {
		t.w.fail("OneLeader: %v and %v lead in term %d", have, m.self, term)
	}
	t.leaders[term] = m.self
	t.w.elected(m)
	if n.log.config().members.joint() {
		t.w.rare["leader change within a joint configuration"]++
	}
	for i := n.log.base.index + 1; i <= t.last(); i++ {
		if e := &t.committed[i-1]; e.Term <= term && !n.log.matches(i, e.Term) {
			have, _ := n.log.term(i)
			t.w.fail("LeaderCompleteness: %v leads in term %d; its entry %d has term %d, committed was one of term %d", m.self, term, i, have, e.Term)
			return
		}
	}
}

// commit holds that an index is committed once.
func (t *truth) commit(e Entry) {
	switch i := int(e.Index); {
	case i <= len(t.committed):
		if have := &t.committed[i-1]; have.Term != e.Term || have.Kind != e.Kind || string(have.Data) != string(e.Data) {
			t.w.fail("StateMachineSafety: entry %d is committed with terms %d and %d", i, have.Term, e.Term)
		}
	case i == len(t.committed)+1:
		t.committed = append(t.committed, e)
		if e.Kind == Membership {
			t.config, _ = DecodeMembers(e.Data)
		}
	default:
		t.w.fail("CommitGap: entry %d committed after %d", i, len(t.committed))
	}
}

// lookLost holds that no majority could ever decide without what is committed:
// those who may vote and do not have it durably are always too few.
func (t *truth) lookLost() {
	last := t.last()
	if last == 0 || t.w.failure != "" {
		return
	}
	lacks := func(p Peer) bool {
		m := t.w.nodes[p.ID-1]
		if !t.w.live(p) || m.store.durable.Damaged > m.store.durable.last() {
			return false // has no vote
		}
		d := &m.store.durable
		e := &t.committed[last-1]
		switch {
		case last <= d.BaseIndex:
			return false
		case last > d.last():
			return true
		}
		return d.Entries[last-d.BaseIndex-1].Term != e.Term
	}
	if t.config.quorum(lacks) {
		t.w.fail("CommittedLost: a majority has not entry %d of term %d", last, t.committed[last-1].Term)
	}
}

// applied holds that all machines go through the same states.
func (t *truth) applied(m *member, e Entry, state uint64) {
	i := int(e.Index)
	if i > len(t.committed) {
		t.commit(e)
	}
	if have := t.committed[i-1]; have.Term != e.Term {
		t.w.fail("StateMachineSafety: %v applies entry %d of term %d, committed was one of term %d", m.self, i, e.Term, have.Term)
	}
	switch {
	case i <= len(t.states):
		if t.states[i-1] != state {
			t.w.fail("StateDiffers: %v after entry %d", m.self, i)
		}
	case i == len(t.states)+1:
		t.states = append(t.states, state)
	default:
		t.w.fail("ApplyGap: %v applies entry %d after %d", m.self, i, len(t.states))
	}
}

// end holds that a proposal that was said to be replaced never came about.
func (t *truth) end() {
	for _, p := range t.replaced {
		if p.index <= t.last() && t.committed[p.index-1].Term == p.term {
			t.w.fail("Replaced: the proposal at entry %d of term %d is committed", p.index, p.term)
		}
	}
}

// A ledger is the machine: the newest request of each client, so that each
// counts once, and a sum that depends on their order.
type ledger struct {
	m     *member
	last  Index
	state [1 + clients]uint64 // the sum, then the newest request by client
}

func (l *ledger) Apply(e Entry) {
	if e.Index != l.last+1 {
		l.m.w.fail("ApplyOrder: %v applies entry %d after %d", l.m.self, e.Index, l.last)
	}
	l.last = e.Index
	if e.Kind == Command {
		id := binary.LittleEndian.Uint64(e.Data)
		newest := &l.state[id>>32]
		switch {
		case id == 0: // of a flood
		case id <= *newest:
			l.m.w.rare["request came twice"]++
		default:
			*newest = id
			l.state[0] = mix(l.state[0] ^ id)
		}
	}
	l.m.w.truth.applied(l.m, e, l.state[0])
}

func (l *ledger) Snapshot() ([]byte, error) {
	b := binary.LittleEndian.AppendUint64(nil, uint64(l.last))
	for _, v := range l.state {
		b = binary.LittleEndian.AppendUint64(b, v)
	}
	return append(b, make([]byte, 100)...), nil // more than one chunk
}

func (l *ledger) Restore(b []byte) error {
	l.last = Index(binary.LittleEndian.Uint64(b))
	for i := range l.state {
		l.state[i] = binary.LittleEndian.Uint64(b[8+8*i:])
	}
	if t := &l.m.w.truth; l.last > Index(len(t.states)) || t.states[l.last-1] != l.state[0] {
		l.m.w.fail("StateDiffers: %v restores a snapshot at entry %d", l.m.self, l.last)
	}
	return nil
}

// clients is how many there are.
const clients = 5

// A client proposes requests one after the other, each again until it is known
// to be committed, and reads in between.
type client struct {
	w     *world
	id    int
	next  uint64
	acked int
	turn  uint64 // whose answer counts
}

func newClient(w *world, id int) *client {
	c := &client{w: w, id: id}
	w.after(int64(w.draw(clientStream, id, 50_000)), func() { c.act(c.fresh()) })
	return c
}

func (c *client) fresh() uint64 {
	c.next++
	return uint64(c.id+1)<<32 | c.next
}

// act asks some node, mostly the right one, and goes on with its answer, or
// without one after a while.
func (c *client) act(id uint64) {
	w := c.w
	c.turn++
	turn := c.turn
	again := func(id uint64) {
		if c.turn == turn {
			c.turn++
			w.after(int64(w.draw(clientStream, c.id, 2*w.plan.proposeEvery)), func() { c.act(id) })
		}
	}
	w.after(250_000, func() { again(id) })
	m := w.nodes[w.draw(clientStream, c.id, uint64(len(w.nodes)))]
	switch l := w.leading(); w.draw(clientStream, c.id, 4) {
	case 0: // anybody
	case 1: // whoever says that he leads
		for _, other := range w.nodes {
			if other.up && other != l && other.driver.Status().Leads {
				m = other
			}
		}
	default:
		if l != nil {
			m = l
		}
	}
	if !m.up {
		again(id)
		return
	}
	if w.draw(clientStream, c.id, 3) == 0 {
		c.read(m, func() { again(id) })
		return
	}
	data := binary.LittleEndian.AppendUint64(nil, id)
	term := m.driver.Status().Term
	place := m.driver.node.log.last() + 1
	m.driver.Propose(data, func(i Index, err error) {
		switch err {
		case nil:
			w.note("request %x is committed as entry %d", id, i)
			if i > w.truth.last() || string(w.truth.committed[i-1].Data) != string(data) {
				w.fail("Acknowledged: request %x as entry %d, which is not it", id, i)
			}
			w.truth.seen = max(w.truth.seen, i)
			c.acked++
			again(c.fresh())
			return
		case ErrReplaced:
			w.rare["replaced"]++
			w.truth.replaced = append(w.truth.replaced, position{place, term})
		case ErrIndefinite:
			w.rare["indefinite"]++
		}
		again(id)
	})
	m.wake()
}

// read asks for a read: it must show what anybody was shown before.
func (c *client) read(m *member, again func()) {
	w := c.w
	floor := w.truth.seen
	m.driver.Read(func(i Index, err error) {
		if err == nil {
			w.rare["read"]++
			if i < floor || m.machine.last < floor {
				w.fail("StaleRead: %v shows entry %d, entry %d was shown before it was asked", m.self, i, floor)
			}
			w.truth.seen = max(w.truth.seen, i)
		}
		again()
	})
	m.wake()
}

// wake turns a node that is not paused; one that is has it waiting.
func (m *member) wake() {
	if !m.paused {
		m.turn()
	}
}
