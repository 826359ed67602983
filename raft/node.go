package raft

import (
	"cmp"
	"errors"
	"fmt"
	"math/rand/v2"
)

// Why a node refuses. All of these are definite: nothing was proposed.
var (
	ErrNotLeader    = errors.New("this node does not lead")
	ErrBusy         = errors.New("too much is waiting already")
	ErrTooLarge     = errors.New("larger than an entry may be")
	ErrTransferring = errors.New("leadership is being handed over")
	ErrChanging     = errors.New("another membership change is under way")
)

// A Config says who a node is. Zero numbers stand for what Defaults says.
type Config struct {
	Cluster UUID
	Self    Peer
	Seed    uint64 // of the election timeouts: another one on each node

	ElectionTicks  int // a follower that hears nothing campaigns after one to two times this; default 10
	HeartbeatTicks int // default 1

	MaxEntryBytes  int // data of one entry; default 8 MiB
	MaxAppendBytes int // entries of one append, unless a single one is larger; default 1 MiB
	MaxUncommitted int // bytes that a leader has proposed and not committed; default 32 MiB
	Window         int // appends under way to one follower; default 16
	MaxReads       int // reads that wait for a round of heartbeats; default 4096
	ChunkBytes     int // of a snapshot in one message; default 256 KiB
}

func (c *Config) defaults() {
	c.ElectionTicks = cmp.Or(c.ElectionTicks, 10)
	c.HeartbeatTicks = cmp.Or(c.HeartbeatTicks, 1)
	c.MaxEntryBytes = cmp.Or(c.MaxEntryBytes, 8<<20)
	c.MaxAppendBytes = cmp.Or(c.MaxAppendBytes, 1<<20)
	c.MaxUncommitted = cmp.Or(c.MaxUncommitted, 32<<20)
	c.Window = cmp.Or(c.Window, 16)
	c.MaxReads = cmp.Or(c.MaxReads, 4096)
	c.ChunkBytes = cmp.Or(c.ChunkBytes, 256<<10)
}

// A role is what a node is at the moment. A role changes its own fields, and
// hands over to the next one through the become methods of Node.
type role interface {
	tick(n *Node)
	step(n *Node, m *Message)
	// leader returns whom the node takes for the leader, or nobody.
	leader(n *Node) Peer
	// settled reports whether the node has or is a leader that it may not yet
	// give up, so that a candidate has to wait.
	settled(n *Node) bool
}

// A Node is the algorithm and nothing else: no clock, no disk, no network. It
// is turned by a Driver, whose duties are those of Ready. It is used by one
// goroutine.
type Node struct {
	c    Config
	rand *rand.Rand

	vote Vote
	log  raftLog
	role role

	damaged Index // above last: see State.Damaged
	loaded  Term  // at the start

	saved    Vote // what the store holds
	now      []Message
	after    []Message
	chunks   []Chunk
	install  *Snapshot
	reads    []Read
	repaired bool
	out      bool // a Ready is out

	dropped uint64
}

// A Chunk is a part of a snapshot that came in.
type Chunk struct {
	Snapshot Snapshot
	Offset   uint64
	Data     []byte
}

// A Read is a read that may go ahead: once all entries up to Index, inclusive,
// are applied, the machine shows all that was committed when it was asked for.
// Err is ErrNotLeader if leadership was lost before.
type Read struct {
	Ticket uint64
	Index  Index
	Err    error
}

// A Ready is what a node wants done, in the order of its fields. The entries
// replace what the store has from the first one's index on.
type Ready struct {
	Now       []Message // depend on nothing that is not durable: a leader's own
	Chunks    []Chunk   // to be staged
	Install   *Snapshot // the staged one replaces store and machine
	Vote      *Vote     // to be durable,
	Entries   []Entry   // with these,
	Repaired  bool      // and the mark of damage gone,
	After     []Message // before any of these leaves
	Committed []Entry   // to be applied
	Reads     []Read
}

func (r *Ready) empty() bool {
	return len(r.Now)+len(r.Chunks)+len(r.Entries)+len(r.After)+len(r.Committed)+len(r.Reads) == 0 &&
		r.Install == nil && r.Vote == nil && !r.Repaired
}

// New returns the node that a store's state describes, as a follower. The
// machine must show the state at the snapshot.
func New(c Config, s State) (*Node, error) {
	c.defaults()
	if c.Self.Incarnation == (UUID{}) {
		return nil, fmt.Errorf("node %d has no incarnation", c.Self.ID)
	}
	log, err := newLog(s)
	if err != nil {
		return nil, err
	}
	n := &Node{c: c, rand: rand.New(rand.NewPCG(c.Seed, uint64(c.Self.ID))), vote: s.Vote, saved: s.Vote, log: log, loaded: s.Vote.Term}
	if s.Vote.Term < log.lastTerm() {
		return nil, fmt.Errorf("%w: voted in term %d, the log ends in term %d", ErrState, s.Vote.Term, log.lastTerm())
	}
	if s.Damaged > log.last() && !mutant("damage treated as missing") {
		n.damaged = s.Damaged
	}
	n.role = newFollower(n, Peer{})
	return n, nil
}

// Tick says that one tick has passed.
func (n *Node) Tick() { n.role.tick(n) }

// Status is where a node stands.
type Status struct {
	Term      Term
	Leader    Peer // the zero Peer: nobody known
	Leads     bool
	Last      Index
	Committed Index
	Applied   Index
	Snapshot  Index
	Members   Members // the newest in the log, committed or not
	Successor Peer    // to whom leadership is being handed; the zero Peer: to nobody
	Damaged   bool    // it decides nothing until a leader has mended its log
	Dropped   uint64  // messages of strangers, since the start
}

// Status returns where the node stands.
func (n *Node) Status() Status {
	l, leads := n.role.(*leader)
	var successor Peer
	if leads {
		successor = l.transfer
	}
	return Status{
		Term: n.vote.Term, Leader: n.role.leader(n), Leads: leads, Successor: successor,
		Last: n.log.last(), Committed: n.log.commit, Applied: n.log.applied, Snapshot: n.log.snapshot.Index,
		Members: n.log.config().members, Damaged: n.damaged > 0, Dropped: n.dropped,
	}
}

// Propose appends a command to the log of a leader and returns its place. It is
// committed if the entry applied at that index has that term; if another is,
// it never will be. If leadership is lost, neither is known yet.
func (n *Node) Propose(data []byte) (Index, Term, error) {
	l, ok := n.role.(*leader)
	if !ok {
		return 0, 0, ErrNotLeader
	}
	if len(data) > n.c.MaxEntryBytes {
		return 0, 0, ErrTooLarge
	}
	return l.propose(n, Entry{Kind: Command, Data: data})
}

// Change begins to change the membership to the given voters and learners. It
// goes through a joint membership by itself if the voters differ. One change at
// a time, and none before an entry of the leader's own term is committed: two
// leaders could else count by majorities that know nothing of each other.
func (n *Node) Change(voters, learners []Peer) (Index, Term, error) {
	l, ok := n.role.(*leader)
	if !ok {
		return 0, 0, ErrNotLeader
	}
	return l.change(n, voters, learners)
}

// Read asks for a linearizable read, answered in some Ready's Reads.
func (n *Node) Read(ticket uint64) error {
	l, ok := n.role.(*leader)
	if !ok {
		return ErrNotLeader
	}
	return l.read(n, ticket)
}

// Transfer hands leadership to another voter, which campaigns as soon as it has
// the whole log; the zero Peer stands for the one who holds most of it, and is
// heard. It is given up after an election timeout.
func (n *Node) Transfer(to Peer) error {
	l, ok := n.role.(*leader)
	if !ok {
		return ErrNotLeader
	}
	return l.transferTo(n, to)
}

// Step takes a message and does not keep it, though it does its entries and
// data. One of a stranger changes nothing: of another cluster, or for another
// incarnation of this node.
func (n *Node) Step(m *Message) {
	stranger := m.To != n.c.Self && !(m.To.ID == n.c.Self.ID && mutant("wiped node votes"))
	if m.Cluster != n.c.Cluster || stranger || m.From == n.c.Self || m.From.Incarnation == (UUID{}) || !m.sound(&n.c) {
		n.dropped++
		return
	}
	switch {
	case m.Term < n.vote.Term:
		n.stepOld(m)
		return
	case m.Term > n.vote.Term && !n.stepNew(m):
		return
	}
	switch m.Kind {
	case VoteKind, PreVoteKind:
		n.stepVote(m)
	default:
		n.role.step(n, m)
	}
}

// sound reports whether a message is one that a node of this kind sends.
func (m *Message) sound(c *Config) bool {
	if m.Term == 0 || m.Term > MaxTerm || m.Kind == 0 || m.Kind >= kinds {
		return false
	}
	prev := position{m.Index, m.LogTerm}
	for i := range m.Entries {
		e := &m.Entries[i]
		if e.Index != prev.index+1 || e.Term < prev.term || e.Term > m.Term || e.Kind > Membership {
			return false
		}
		if e.Kind == Membership {
			if _, err := DecodeMembers(e.Data); err != nil {
				return false
			}
		}
		prev = position{e.Index, e.Term}
	}
	if m.Kind == SnapshotKind {
		s := &m.Snapshot
		return s.Index > 0 && s.Term <= m.Term && s.Members.check() == nil && m.Offset <= s.Size && uint64(len(m.Data)) <= s.Size-m.Offset
	}
	return true
}

// stepOld answers a message of an older term, so that its sender learns of the
// newer one. A leader that is cut off one way would else never know.
func (n *Node) stepOld(m *Message) {
	switch m.Kind {
	case AppendKind, HeartbeatKind, SnapshotKind:
		n.reply(m, Message{Kind: HeartbeatReply, Reject: true})
	case VoteKind:
		n.reply(m, Message{Kind: VoteReply, Reject: true})
	case PreVoteKind:
		n.reply(m, Message{Kind: PreVoteReply, Reject: true})
	}
}

// stepNew brings the node into a newer term, or reports that the message does
// not count: a candidate has to wait while there is a leader, since a node that
// was cut off, or was removed, would else depose it.
func (n *Node) stepNew(m *Message) bool {
	switch m.Kind {
	case PreVoteKind:
		return true
	case PreVoteReply:
		if !m.Reject {
			return true
		}
	case VoteKind:
		if n.role.settled(n) && !m.Transfer {
			return false
		}
	}
	if m.fromLeader() && m.Kind != TimeoutNow {
		n.becomeFollower(m.Term, m.From)
	} else {
		n.becomeFollower(m.Term, Peer{})
	}
	return true
}

func (n *Node) stepVote(m *Message) {
	newer := n.log.newer(m.Index, m.LogTerm)
	grant := n.damaged == 0 && newer
	if m.Kind == PreVoteKind {
		grant = grant && m.Term > n.vote.Term && !n.role.settled(n)
		r := Message{Kind: PreVoteReply, Reject: !grant}
		if grant {
			r.Term = m.Term
		}
		n.reply(m, r)
		if !newer {
			n.standIn()
		}
		return
	}
	f, follows := n.role.(*follower)
	free := n.vote.For == Peer{} && follows && f.lead == Peer{}
	grant = grant && (n.vote.For == m.From || free)
	if grant {
		n.vote.For = m.From
		if follows {
			f.elapsed = 0
		}
	}
	n.reply(m, Message{Kind: VoteReply, Reject: !grant})
}

// standIn lets a learner stand that has just refused a candidate because its own
// log is newer. The candidate goes by a membership in which this node votes, and
// may not get a majority without it, nor may anybody else without the candidate:
//
//	1, 2, 3 vote, 4 learns
//	3 leads, appends the membership 3, 4, which nobody gets, and dies
//	1 leads, appends an entry, which only 4 gets, and dies for good
//	2 needs the vote of 3, whose log is newer; 3 needs that of 4, likewise
//
// Those who would vote for it go by its own membership; see leader.removed.
func (n *Node) standIn() {
	if _, follows := n.role.(*follower); follows && !n.role.settled(n) && !n.log.mayVote(n.c.Self) {
		n.campaign(true, false)
	}
}

// reply answers m, after what it depends on is durable.
func (n *Node) reply(m *Message, r Message) {
	r.Cluster, r.From, r.To = n.c.Cluster, m.To, m.From
	r.Term = cmp.Or(r.Term, n.vote.Term)
	n.after = append(n.after, r)
}

// request sends after what it depends on is durable.
func (n *Node) request(to Peer, m Message) {
	m.Cluster, m.From, m.To = n.c.Cluster, n.c.Self, to
	m.Term = cmp.Or(m.Term, n.vote.Term)
	n.after = append(n.after, m)
}

// lead sends what a leader may send before its own log is durable: its vote
// is, and it does not count itself among those who hold an entry before then.
func (n *Node) lead(to Peer, m Message) {
	m.Cluster, m.From, m.To, m.Term = n.c.Cluster, n.c.Self, to, n.vote.Term
	n.now = append(n.now, m)
}

func (n *Node) becomeFollower(t Term, lead Peer) {
	if t < n.vote.Term {
		panic(fmt.Sprintf("BUG: follower in term %d after term %d", t, n.vote.Term))
	}
	if l, ok := n.role.(*leader); ok {
		l.abandon(n)
	}
	if t > n.vote.Term {
		n.vote = Vote{Term: t}
	}
	n.role = newFollower(n, lead)
}

// timeout draws how long to wait before an election, so that not all nodes
// stand at once.
func (n *Node) timeout() int { return n.c.ElectionTicks + n.rand.IntN(n.c.ElectionTicks) }

// electable reports whether the node may campaign: whoever wins has all that was
// committed, member or not. Who stands by himself is another matter: see stand.
func (n *Node) electable() bool {
	return n.damaged == 0 && n.install == nil && n.vote.Term < MaxTerm
}

// stand asks for pre-votes, since no leader is heard of. A voter does, also if
// only a membership that is not known to be committed leaves it out: it may be
// the one without whose longer log those who stay cannot get a majority.
func (n *Node) stand() {
	if n.log.mayVote(n.c.Self) {
		n.campaign(true, false)
	}
}

// mend ends the state of damage once the log again has all that this node can
// ever have acknowledged: it is as long as the lost one was, or it ends in a
// newer term than the node had known then, whose leader has all that was
// committed before.
func (n *Node) mend() {
	if n.damaged > 0 && (n.log.last() >= n.damaged || n.log.lastTerm() > n.loaded) {
		n.damaged, n.repaired = 0, true
	}
}

// Ready returns what there is to do, and whether there is anything. Until it is
// handed back to Advance, nothing else of the node may be called.
func (n *Node) Ready() (Ready, bool) {
	if n.out {
		panic("BUG: Ready before Advance")
	}
	if l, ok := n.role.(*leader); ok {
		l.flush(n)
	}
	r := Ready{
		Now: n.now, Chunks: n.chunks, Install: n.install, Repaired: n.repaired, After: n.after, Reads: n.reads,
		Entries:   n.log.between(n.log.stable+1, n.log.last(), 1<<62),
		Committed: n.log.between(n.log.applied+1, n.log.commit, 1<<62),
	}
	if n.vote != n.saved {
		v := n.vote
		r.Vote = &v
	}
	n.out = !r.empty()
	return r, n.out
}

// Advance says that all of r is done.
func (n *Node) Advance(r Ready) {
	if !n.out {
		panic("BUG: Advance without Ready")
	}
	n.out = false
	clear(n.now)
	clear(n.after)
	n.now, n.after = n.now[:0], n.after[:0]
	n.chunks, n.reads, n.install, n.repaired = nil, nil, nil, false
	n.saved = n.vote
	n.log.stable = n.log.last()
	if k := len(r.Committed); k > 0 {
		n.log.applied = r.Committed[k-1].Index
	}
	switch role := n.role.(type) {
	case *candidate:
		role.count(n, n.c.Self, true)
	case *leader:
		role.advance(n)
	}
}

// Compact says that the store has a snapshot of the machine at s.Index, which
// is applied, and no more entries up to keepAfter.
func (n *Node) Compact(s Snapshot, keepAfter Index) { n.log.compact(s, keepAfter) }

// SnapshotAt describes a snapshot of size bytes at an applied index that is not
// below the last one.
func (n *Node) SnapshotAt(i Index, size uint64) Snapshot {
	t, ok := n.log.term(i)
	if !ok || i > n.log.applied {
		panic(fmt.Sprintf("BUG: snapshot at %d, applied %d", i, n.log.applied))
	}
	return Snapshot{Index: i, Term: t, Members: n.log.configAt(i), Size: size}
}
