package raft

// A follower takes what the leader of its term sends, and campaigns if it
// hears of none for a while.
type follower struct {
	lead    Peer // nobody: none known in this term
	elapsed int  // ticks since it was heard of, or since a vote was given
	timeout int
	staging staging
}

// staging is how far a snapshot has come in. It belongs to one leader's term,
// so chunks of two snapshots never mix, even if they are of the same index.
type staging struct {
	snapshot Index // 0: none
	next     uint64
}

func newFollower(n *Node, lead Peer) *follower {
	return &follower{lead: lead, timeout: n.timeout()}
}

func (f *follower) leader(*Node) Peer { return f.lead }

func (f *follower) settled(n *Node) bool { return f.lead != Peer{} && f.elapsed < n.c.ElectionTicks }

func (f *follower) tick(n *Node) {
	f.elapsed++
	if f.elapsed < f.timeout {
		return
	}
	f.elapsed, f.timeout = 0, n.timeout()
	f.lead = Peer{}
	n.stand()
}

func (f *follower) step(n *Node, m *Message) {
	if !m.fromLeader() {
		return // an answer to what this node was before
	}
	f.lead, f.elapsed = m.From, 0
	if n.install != nil {
		return // the store is about to be replaced; the leader sends again
	}
	switch m.Kind {
	case AppendKind:
		f.append(n, m)
	case HeartbeatKind:
		n.log.commitTo(min(m.Commit, n.log.last()))
		n.reply(m, Message{Kind: HeartbeatReply, Round: m.Round, Index: n.log.last(), Damaged: n.damaged > 0})
	case SnapshotKind:
		f.chunk(n, m)
	case TimeoutNow:
		n.campaign(false, true)
	}
}

func (f *follower) append(n *Node, m *Message) {
	r := Message{Kind: AppendReply, Index: m.Index, Round: m.Round}
	switch {
	case m.Index < n.log.commit:
		r.Index = n.log.commit // what is committed here is the leader's too
	case !n.log.matches(m.Index, m.LogTerm):
		r.Reject = true
		r.Hint, r.LogTerm = n.log.mayMatch(m.Index, m.LogTerm)
	default:
		n.log.accept(m.Entries)
		r.Index = m.Index + Index(len(m.Entries))
		n.log.commitTo(min(m.Commit, r.Index))
		n.mend()
	}
	r.Damaged = n.damaged > 0
	n.reply(m, r)
}

// chunk takes the next part of a snapshot.
func (f *follower) chunk(n *Node, m *Message) {
	s := &m.Snapshot
	if s.Index <= n.log.commit {
		n.reply(m, Message{Kind: AppendReply, Index: n.log.commit, Damaged: n.damaged > 0})
		return
	}
	// What the log holds behind the snapshot may be acknowledged; installing
	// would drop it.
	if n.log.matches(s.Index, s.Term) && !mutant("snapshot drops a matching suffix") {
		n.log.commitTo(s.Index)
		n.reply(m, Message{Kind: AppendReply, Index: s.Index, Damaged: n.damaged > 0})
		return
	}
	if f.staging.snapshot != s.Index {
		f.staging = staging{snapshot: s.Index}
	}
	if m.Offset == f.staging.next && (len(m.Data) > 0 || s.Size == 0) {
		n.chunks = append(n.chunks, Chunk{*s, m.Offset, m.Data})
		f.staging.next += uint64(len(m.Data))
		if f.staging.next == s.Size {
			f.staging = staging{}
			f.install(n, m)
			return
		}
	}
	n.reply(m, Message{Kind: SnapshotReply, Snapshot: Snapshot{Index: s.Index}, Offset: f.staging.next})
}

func (f *follower) install(n *Node, m *Message) {
	s := m.Snapshot
	n.install = &s
	n.log.install(s)
	n.mend()
	n.reply(m, Message{Kind: AppendReply, Index: s.Index, Damaged: n.damaged > 0})
}
