package raft

// A snapshot goes to a follower in chunks, one under way at a time, so that it
// takes one chunk of memory on each side whatever its size. The node says only
// which chunk; whoever sends the message reads it from the store.

// ChunkBytes returns how long a chunk of a snapshot may be.
func (n *Node) ChunkBytes() int { return n.c.ChunkBytes }

// SnapshotGone says that the store cannot read the snapshot that is being sent
// to a member: the newest is sent instead. It reports whether that was it; then
// it is tried again when the member next answers a heartbeat, and a newer one
// should be taken.
func (n *Node) SnapshotGone(to Peer) (newest bool) {
	l, ok := n.role.(*leader)
	if !ok || l.followers[to] == nil || l.followers[to].mode != streaming {
		return false
	}
	f := l.followers[to]
	newest = f.snapshot.Index == n.log.snapshot.Index
	f.stream(n.log.snapshot)
	f.waiting = newest
	return newest
}

// Streaming reports whether the snapshot before the newest is on its way to a
// member that answers. A store keeps two, so another one would end that.
func (n *Node) Streaming() bool {
	if l, ok := n.role.(*leader); ok {
		for _, f := range l.followers {
			if f.mode == streaming && f.active && f.snapshot.Index < n.log.snapshot.Index {
				return true
			}
		}
	}
	return false
}
