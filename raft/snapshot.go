package raft

// A snapshot goes to a follower in chunks, one under way at a time, so that it
// takes one chunk of memory on each side whatever its size. The node says only
// which chunk; whoever sends the message reads it from the store.

// ChunkBytes returns how long a chunk of a snapshot may be.
func (n *Node) ChunkBytes() int { return n.c.ChunkBytes }

// SnapshotGone says that the store no longer has the snapshot that is being
// sent to a member: the newest is sent instead.
func (n *Node) SnapshotGone(to Peer) {
	if l, ok := n.role.(*leader); ok && l.followers[to] != nil && l.followers[to].mode == streaming {
		l.followers[to].stream(n.log.snapshot)
	}
}

// Streaming reports whether a snapshot is on its way to a member that answers.
// A new one should wait: it would begin the transfer anew.
func (n *Node) Streaming() bool {
	if l, ok := n.role.(*leader); ok {
		for _, f := range l.followers {
			if f.mode == streaming && f.active {
				return true
			}
		}
	}
	return false
}
