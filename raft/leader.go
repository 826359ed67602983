package raft

import "fmt"

// A leader appends what is proposed, sends it to everybody, and commits what a
// majority holds.
type leader struct {
	followers map[Peer]*progress
	elapsed   int  // ticks since it last looked whether it has a majority
	beat      int  // ticks since the last heartbeats
	beats     bool // heartbeats are due

	uncommitted int   // bytes of the entries behind the commit index
	noted       Index // the commit index at the last flush

	transfer Peer // to whom leadership is being handed; nobody
	told     bool // that one was told to campaign

	reads readQueue
}

func (n *Node) becomeLeader() {
	l := &leader{followers: map[Peer]*progress{}, beats: true}
	n.role = l
	for _, e := range n.log.between(n.log.commit+1, n.log.last(), 1<<62) {
		l.uncommitted += entryCost(&e)
	}
	l.follow(n)
	l.append(n, Entry{Kind: NoOp})
}

// follow gives every other member a progress, and forgets who is none.
func (l *leader) follow(n *Node) {
	now := n.log.config()
	for _, p := range now.all {
		if p != n.c.Self && l.followers[p] == nil {
			l.followers[p] = newProgress(n.log.last() + 1)
		}
	}
	for p := range l.followers {
		if !now.members.contains(p) {
			delete(l.followers, p)
		}
	}
}

func (l *leader) leader(n *Node) Peer { return n.c.Self }

// settled is true for a leader, since it steps down by itself when it has no
// majority any more.
func (l *leader) settled(*Node) bool { return true }

func (l *leader) tick(n *Node) {
	if l.beat++; l.beat >= n.c.HeartbeatTicks {
		l.beat, l.beats, l.told = 0, true, false
	}
	if l.elapsed++; l.elapsed < n.c.ElectionTicks {
		return
	}
	l.elapsed, l.transfer = 0, Peer{}
	members := &n.log.config().members
	alive := members.quorum(func(p Peer) bool { return p == n.c.Self || l.followers[p].active })
	for _, f := range l.followers {
		f.active = false
	}
	if !alive {
		n.becomeFollower(n.vote.Term, Peer{})
	}
}

func (l *leader) step(n *Node, m *Message) {
	if m.fromLeader() {
		panic(fmt.Sprintf("BUG: %v leads in term %d, and so does %v", m.From, m.Term, n.c.Self))
	}
	f := l.followers[m.From]
	if f == nil {
		return
	}
	f.active = true
	switch m.Kind {
	case AppendReply:
		l.appended(n, f, m)
	case HeartbeatReply:
		f.answered(m.Round)
		if m.Damaged && !f.damaged && m.Index < f.match {
			f.lost(m.Index) // from here on its answers to appends tell more
		}
		l.reads.confirm(n, l)
	case SnapshotReply:
		f.wants(m.Snapshot.Index, m.Offset)
	}
}

func (l *leader) appended(n *Node, f *progress, m *Message) {
	f.damaged = m.Damaged
	if !m.Reject {
		f.acked(m.Index)
		l.advance(n)
		return
	}
	hint, _ := n.log.mayMatch(m.Hint, m.LogTerm)
	f.rejected(m.Round, m.Index, hint)
}

// propose appends an entry of a client, if the leader takes any.
func (l *leader) propose(n *Node, e Entry) (Index, Term, error) {
	switch {
	case l.transfer != Peer{}:
		return 0, 0, ErrTransferring
	case l.uncommitted > 0 && l.uncommitted+entryCost(&e) > n.c.MaxUncommitted:
		return 0, 0, ErrBusy
	}
	return l.append(n, e), n.vote.Term, nil
}

func (l *leader) append(n *Node, e Entry) Index {
	e.Index, e.Term = n.log.last()+1, n.vote.Term
	n.log.mustPush(e)
	l.uncommitted += entryCost(&e)
	if e.Kind == Membership {
		l.follow(n)
	}
	if mutant("self counted before fsync") {
		l.advance(n)
	}
	return e.Index
}

// ownCommitted reports whether an entry of the leader's own term is committed,
// so that it knows all that was committed before.
func (l *leader) ownCommitted(n *Node) bool {
	t, _ := n.log.term(n.log.commit)
	return t == n.vote.Term
}

func (l *leader) change(n *Node, voters, learners []Peer) (Index, Term, error) {
	now := n.log.config()
	early := !l.ownCommitted(n) || now.members.joint() || now.index > n.log.commit
	if early && !mutant("configuration change before an own entry") {
		return 0, 0, ErrChanging
	}
	next, err := now.members.change(voters, learners)
	if err != nil {
		return 0, 0, err
	}
	return l.propose(n, Entry{Kind: Membership, Data: AppendMembers(nil, next)})
}

func (l *leader) transferTo(n *Node, to Peer) error {
	if to == (Peer{}) {
		to = l.fittest(n)
	}
	if l.followers[to] == nil || !n.log.config().members.voter(to) {
		return fmt.Errorf("%w: %v is no other voter", ErrMembers, to)
	}
	if l.transfer != (Peer{}) {
		return ErrTransferring
	}
	l.transfer, l.told, l.elapsed = to, false, 0
	return nil
}

// fittest returns the other voter that can lead soonest, nobody if there is none.
func (l *leader) fittest(n *Node) (best Peer) {
	for _, p := range n.log.config().all {
		f := l.followers[p]
		if f == nil || !n.log.config().members.voter(p) {
			continue
		}
		b := l.followers[best]
		if b == nil || f.active && !b.active || f.active == b.active && l.held(n, p) > l.held(n, best) {
			best = p
		}
	}
	return best
}

// held returns up to where a member holds the leader's log durably.
func (l *leader) held(n *Node, p Peer) Index {
	if p == n.c.Self {
		if mutant("self counted before fsync") {
			return n.log.last()
		}
		return n.log.stable
	}
	if f := l.followers[p]; !f.damaged {
		return f.match
	}
	return 0
}

// advance commits what a majority holds. Of entries of older terms that says
// nothing: a later leader may still replace them. They are committed with the
// first entry of the leader's own term that is.
func (l *leader) advance(n *Node) {
	i := n.log.config().members.agreed(func(p Peer) Index { return l.held(n, p) })
	if t, _ := n.log.term(i); t != n.vote.Term && !mutant("old-term commit") {
		return
	}
	old := n.log.commit
	if !n.log.commitTo(i) {
		return
	}
	for _, e := range n.log.between(old+1, i, 1<<62) {
		l.uncommitted -= entryCost(&e)
	}
	if now := n.log.config(); now.members.joint() && now.index <= i {
		l.append(n, Entry{Kind: Membership, Data: AppendMembers(nil, now.members.settled())})
	}
}

// removed reports whether a membership without this node's vote is committed,
// and an entry of its own: until then those who stay may need it.
func (l *leader) removed(n *Node) bool {
	now := n.log.config()
	return now.index <= n.log.commit && !now.members.voter(n.c.Self) && l.ownCommitted(n)
}

// flush writes what there is to send: many proposals become one append. What was
// committed since the last flush the followers learn with the next entries, or by
// the next flush if there are none: the answer to a proposal often brings another
// one, and they need not be told twice.
func (l *leader) flush(n *Node) {
	if l.reads.begin(n, l) {
		l.beats = true
	}
	leaves := l.removed(n)
	if leaves {
		l.noted = n.log.commit // there is no next time
	}
	for _, p := range n.log.config().all {
		if f := l.followers[p]; f != nil {
			if l.beats {
				n.lead(p, Message{Kind: HeartbeatKind, Commit: min(f.match, n.log.commit), Round: l.reads.round})
			}
			l.send(n, p, f)
		}
	}
	l.beats, l.noted = false, n.log.commit
	if leaves {
		n.becomeFollower(n.vote.Term, Peer{})
	}
}

func (l *leader) send(n *Node, p Peer, f *progress) {
	for f.ready(n.c.Window) {
		prev, known := n.log.term(f.next - 1)
		if !known {
			f.stream(n.log.snapshot)
			break
		}
		entries := n.log.between(f.next, n.log.last(), n.c.MaxAppendBytes)
		if len(entries) == 0 && f.mode == replicating && (f.told >= n.log.commit || l.noted < n.log.commit) {
			break
		}
		n.lead(p, Message{Kind: AppendKind, Index: f.next - 1, LogTerm: prev, Entries: entries, Commit: n.log.commit, Round: f.era})
		f.sent(f.next-1+Index(len(entries)), n.log.commit)
	}
	if f.mode == streaming && !f.waiting {
		f.waiting = true
		n.lead(p, Message{Kind: SnapshotKind, Snapshot: f.snapshot, Offset: f.offset})
	}
	if p == l.transfer && f.match == n.log.last() && !l.told {
		l.told = true
		n.lead(p, Message{Kind: TimeoutNow})
	}
}

// abandon ends leadership: what waits for it is answered.
func (l *leader) abandon(n *Node) { l.reads.fail(n) }
