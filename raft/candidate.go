package raft

// A candidate asks for votes; before that, without beginning a term, whether
// it would get them.
type candidate struct {
	pre     bool
	elapsed int
	timeout int
	votes   map[Peer]bool // by whom it was answered, and whether with yes
}

// campaign begins an election, if the node may stand in one.
func (n *Node) campaign(pre, transfer bool) {
	if !n.electable() {
		return
	}
	c := &candidate{pre: pre, timeout: n.timeout(), votes: map[Peer]bool{}}
	ask := Message{Kind: PreVoteKind, Term: n.vote.Term + 1, Index: n.log.last(), LogTerm: n.log.lastTerm(), Transfer: transfer}
	if !pre {
		n.vote = Vote{Term: n.vote.Term + 1, For: n.c.Self}
		ask.Kind = VoteKind
	}
	n.role = c
	for _, p := range n.log.config().all {
		if p != n.c.Self && n.log.config().members.voter(p) {
			n.request(p, ask)
		}
	}
	if pre || mutant("self counted before fsync") {
		c.count(n, n.c.Self, true) // it promises nothing, so nothing has to be durable
	}
}

func (c *candidate) leader(*Node) Peer { return Peer{} }

func (c *candidate) settled(*Node) bool { return false }

func (c *candidate) tick(n *Node) {
	if c.elapsed++; c.elapsed >= c.timeout {
		n.becomeFollower(n.vote.Term, Peer{})
		n.stand()
	}
}

func (c *candidate) step(n *Node, m *Message) {
	switch {
	case m.fromLeader() && m.Kind != TimeoutNow:
		n.becomeFollower(m.Term, m.From)
		n.role.step(n, m)
	case m.Kind == PreVoteReply && c.pre && (m.Reject || m.Term == n.vote.Term+1):
		c.count(n, m.From, !m.Reject)
	case m.Kind == VoteReply && !c.pre:
		c.count(n, m.From, !m.Reject)
	}
}

// count notes one answer. The node's own vote counts once it is durable.
func (c *candidate) count(n *Node, p Peer, granted bool) {
	if _, again := c.votes[p]; again {
		return
	}
	c.votes[p] = granted
	members := &n.log.config().members
	switch {
	case members.quorum(func(p Peer) bool { return c.votes[p] }):
		if c.pre {
			n.campaign(false, false)
		} else {
			n.becomeLeader()
		}
	case !members.quorum(func(p Peer) bool { yes, answered := c.votes[p]; return yes || !answered }):
		n.becomeFollower(n.vote.Term, Peer{})
	}
}
