package raft

// A readQueue holds the reads of a leader. A read is linearizable if it sees
// all that was committed when it was asked for. For that the leader notes the
// commit index and then asks a majority whether it still leads: a node that
// answers has taken part in no newer election until then. There are no leases,
// so no clock and no pause can make a read stale.
type readQueue struct {
	round   uint64 // of the newest heartbeats
	waiting []uint64
	asked   []readRound // ascending
	count   int
}

// A readRound is the reads that one round of heartbeats answers.
type readRound struct {
	round   uint64
	index   Index
	tickets []uint64
}

func (l *leader) read(n *Node, ticket uint64) error {
	q := &l.reads
	if q.count >= n.c.MaxReads {
		return ErrBusy
	}
	if mutant("stale read after a pause") && l.ownCommitted(n) {
		n.reads = append(n.reads, Read{Ticket: ticket, Index: n.log.commit})
		return nil
	}
	q.waiting = append(q.waiting, ticket)
	q.count++
	return nil
}

// begin starts a round for the reads that wait. Before an entry of its own term
// is committed the leader does not know what is, so they wait for that.
func (q *readQueue) begin(n *Node, l *leader) bool {
	if len(q.waiting) == 0 || !l.ownCommitted(n) {
		return false
	}
	q.round++
	q.asked = append(q.asked, readRound{q.round, n.log.commit, q.waiting})
	q.waiting = nil
	q.confirm(n, l) // a lone voter needs nobody's word
	return true
}

// confirm answers the rounds that a majority has answered.
func (q *readQueue) confirm(n *Node, l *leader) {
	members := &n.log.config().members
	for len(q.asked) > 0 {
		r := &q.asked[0]
		if !members.quorum(func(p Peer) bool { return p == n.c.Self || l.followers[p].round >= r.round }) {
			return
		}
		for _, t := range r.tickets {
			n.reads = append(n.reads, Read{Ticket: t, Index: r.index})
		}
		q.count -= len(r.tickets)
		q.asked = q.asked[1:]
	}
}

// fail answers all that wait: the caller asks the next leader.
func (q *readQueue) fail(n *Node) {
	for _, r := range q.asked {
		q.waiting = append(q.waiting, r.tickets...)
	}
	for _, t := range q.waiting {
		n.reads = append(n.reads, Read{Ticket: t, Err: ErrNotLeader})
	}
	*q = readQueue{round: q.round}
}
