package raft

import (
	"cmp"
	"fmt"
)

// A Term numbers the periods between elections, from 1; 0 is before the first.
type Term uint64

// MaxTerm is the greatest term: the log on disk has 31 bits for it.
const MaxTerm Term = 1<<31 - 1

// An Index is the place of an entry in the log, from 1; 0 is before the first.
type Index uint64

// A NodeID is the number an operator gives to a node.
type NodeID int32

// A UUID names a cluster, or one life of a node's disk.
type UUID [16]byte

// A Peer is one member: a node and the incarnation of its disk. A node whose
// disk was wiped has another incarnation, so it is a stranger who has promised
// nothing, though the number is the same. The zero Peer is nobody.
type Peer struct {
	ID          NodeID
	Incarnation UUID
}

func (p Peer) String() string { return fmt.Sprintf("%d/%x", p.ID, p.Incarnation[:2]) }

func (p Peer) compare(q Peer) int {
	return cmp.Or(cmp.Compare(p.ID, q.ID), cmp.Compare(string(p.Incarnation[:]), string(q.Incarnation[:])))
}

// An EntryKind says what an entry's data is. The numbers stand on disk.
type EntryKind uint8

const (
	NoOp       EntryKind = 0 // none: a leader's first entry
	Command    EntryKind = 1 // whatever the machine understands
	Membership EntryKind = 2 // a Members
)

// An Entry is one place of the log. Its data is not changed by anybody.
type Entry struct {
	Index Index
	Term  Term
	Kind  EntryKind
	Data  []byte
}

// A Snapshot describes a state of the machine that stands for all entries up
// to Index, inclusive. Its bytes lie in the store.
type Snapshot struct {
	Index   Index
	Term    Term // of the entry at Index
	Members Members
	Size    uint64 // bytes of the state
}

// A Kind is a kind of message. The numbers stand on the wire.
type Kind uint8

const (
	PreVoteKind    Kind = 1 + iota // would you vote for me in Term? It begins no term.
	PreVoteReply                   //
	VoteKind                       // vote for me
	VoteReply                      //
	AppendKind                     // entries that follow Index, LogTerm
	AppendReply                    // Index is held and durable; or Reject
	HeartbeatKind                  // I lead; Round comes back
	HeartbeatReply                 //
	SnapshotKind                   // one chunk of a snapshot
	SnapshotReply                  // Offset is the next one wanted
	TimeoutNow                     // campaign at once: leadership is handed to you
	kinds                          // one more than the greatest
)

var kindNames = [kinds]string{"?", "pre-vote", "pre-vote reply", "vote", "vote reply", "append", "append reply", "heartbeat", "heartbeat reply", "snapshot", "snapshot reply", "timeout now"}

func (k Kind) String() string {
	if k >= kinds {
		return fmt.Sprintf("kind %d", uint8(k))
	}
	return kindNames[k]
}

// A Message goes from one member to another. It may be lost, delayed, repeated
// and overtaken. Who gets one owns it, but its entries and data are shared and
// never changed.
type Message struct {
	Kind     Kind
	Cluster  UUID
	From, To Peer
	Term     Term // the sender's; of a pre-vote and its grant, the one that would begin

	// Vote, PreVote: the end of the candidate's log. Append: the entry before
	// Entries. AppendReply: the last entry held as the leader has it; if Reject,
	// Index is the one that did not match, and Hint with LogTerm the greatest
	// below it that may.
	Index   Index
	LogTerm Term
	Hint    Index
	Commit  Index // Append, Heartbeat: the receiver may count as committed what it holds up to here
	Entries []Entry

	Reject   bool
	Transfer bool // Vote: the old leader asked for it, so stickiness does not apply
	Damaged  bool // replies: the sender once held more than it can read; of a heartbeat, Index is its last entry

	Round    uint64   // Heartbeat, Append and their replies: which one is answered, of appends which era
	Snapshot Snapshot // Snapshot chunk; its reply carries Index only
	Offset   uint64   // of Data in the snapshot
	Data     []byte
}

// fromLeader reports whether only a leader of m.Term sends such a message.
func (m *Message) fromLeader() bool {
	switch m.Kind {
	case AppendKind, HeartbeatKind, SnapshotKind, TimeoutNow:
		return true
	}
	return false
}

func (m Message) String() string {
	s := fmt.Sprintf("%v %d→%d term=%d", m.Kind, m.From.ID, m.To.ID, m.Term)
	switch m.Kind {
	case VoteKind, PreVoteKind:
		s += fmt.Sprintf(" last=%d/%d", m.Index, m.LogTerm)
		if m.Transfer {
			s += " transfer"
		}
	case AppendKind:
		s += fmt.Sprintf(" prev=%d/%d entries=%d commit=%d", m.Index, m.LogTerm, len(m.Entries), m.Commit)
	case AppendReply:
		s += fmt.Sprintf(" index=%d", m.Index)
		if m.Reject {
			s += fmt.Sprintf(" hint=%d/%d", m.Hint, m.LogTerm)
		}
		if m.Damaged {
			s += " damaged"
		}
	case HeartbeatKind:
		s += fmt.Sprintf(" commit=%d round=%d", m.Commit, m.Round)
	case HeartbeatReply:
		s += fmt.Sprintf(" round=%d", m.Round)
	case SnapshotKind:
		s += fmt.Sprintf(" index=%d offset=%d of %d", m.Snapshot.Index, m.Offset, m.Snapshot.Size)
	case SnapshotReply:
		s += fmt.Sprintf(" index=%d offset=%d", m.Snapshot.Index, m.Offset)
	}
	if m.Reject {
		s += " reject"
	}
	return s
}
