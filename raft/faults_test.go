package raft

import (
	"errors"
	"slices"
	"testing"

	"github.com/teralog/teralog/sim/script"
)

// electedNode returns a node of a cluster of these members that was elected by
// the rest and has committed its first entry with them.
func electedNode(t *testing.T, c Config, members Members) *Node {
	t.Helper()
	c.Cluster, c.Self = cluster, peer(1, 0)
	s := NewMemStore()
	if err := Bootstrap(s, members); err != nil {
		t.Fatal(err)
	}
	state, _ := s.Load()
	n, err := New(c, state)
	if err != nil {
		t.Fatal(err)
	}
	n.stand()
	for _, kind := range []Kind{PreVoteReply, VoteReply, AppendReply} {
		drain(n)
		for _, p := range members.Voters[1:] {
			m := Message{Kind: kind, Cluster: cluster, From: p, To: c.Self, Term: 2, Index: 2}
			n.Step(&m)
		}
	}
	if drain(n); !n.Status().Leads || n.Status().Committed != 2 {
		t.Fatalf("%+v", n.Status())
	}
	return n
}

// TestOldIncarnation has a node whose disk was wiped, and which was added again,
// speak as who it was: neither does a leader count what it says it holds, nor a
// candidate its vote.
func TestOldIncarnation(t *testing.T) {
	now, old := peer(2, 1), peer(2, 0)
	members := Members{Voters: []Peer{peer(1, 0), now, peer(3, 0)}}
	n := electedNode(t, Config{}, members)
	if _, _, err := n.Propose([]byte("x")); err != nil {
		t.Fatal(err)
	}
	drain(n)
	says := func(from Peer, m Message) {
		m.Cluster, m.From, m.To = cluster, from, peer(1, 0)
		m.Term = max(m.Term, n.Status().Term)
		n.Step(&m)
		drain(n)
	}
	says(old, Message{Kind: AppendReply, Index: 3})
	if n.Status().Committed != 2 {
		t.Fatal("what an old incarnation holds counts")
	}
	says(now, Message{Kind: AppendReply, Index: 3})
	if n.Status().Committed != 3 {
		t.Fatal("what a member holds does not count")
	}

	n.becomeFollower(3, Peer{})
	n.campaign(false, false)
	drain(n)
	says(old, Message{Kind: VoteReply})
	if n.Status().Leads {
		t.Fatal("an old incarnation's vote counts")
	}
	says(now, Message{Kind: VoteReply})
	if !n.Status().Leads {
		t.Fatal("a member's vote does not count")
	}
}

// TestReadAsksFirst answers rounds of heartbeats that began before a read was
// asked for: they say nothing about it.
func TestReadAsksFirst(t *testing.T) {
	n := electedNode(t, Config{}, Members{Voters: peersOf([]int{1, 2, 3})})
	answers := func(round uint64) (tickets []uint64) {
		m := Message{Kind: HeartbeatReply, Cluster: cluster, From: peer(2, 0), To: peer(1, 0), Term: 2, Round: round}
		n.Step(&m)
		for {
			r, any := n.Ready()
			if !any {
				return tickets
			}
			for _, read := range r.Reads {
				tickets = append(tickets, read.Ticket)
			}
			n.Advance(r)
		}
	}
	ask := func(ticket uint64) {
		if err := n.Read(ticket); err != nil {
			t.Fatal(err)
		}
		drain(n)
	}
	f := func(round uint64, want ...uint64) {
		t.Helper()
		if got := answers(round); !slices.Equal(got, want) {
			t.Fatalf("round %d answers the reads %v, want %v", round, got, want)
		}
	}

	ask(1)
	first := n.role.(*leader).reads.round
	f(first - 1)
	ask(2)
	f(first, 1)
	f(first) // again
	ask(3)
	f(first+2, 2, 3)
}

// TestBackOff has a leader meet a follower whose log differs over hundreds of
// entries: they find where the logs meet in one exchange for each term in which
// they differ, not for each entry.
func TestBackOff(t *testing.T) {
	const each = 200
	f := func(leads, follows []Term, most int) {
		t.Helper()
		s := &stage{t: t, nodes: map[NodeID]*actor{}, cut: map[[2]NodeID]bool{}}
		s.cluster([]NodeID{1, 2, 3}, &script.Command{})
		fill := func(id NodeID, terms []Term) {
			ids := []NodeID{id}
			for _, term := range terms {
				ids = append(ids, slices.Repeat([]NodeID{NodeID(term)}, each)...)
			}
			s.log(ids)
		}
		fill(1, leads)
		fill(2, follows)
		s.nodes[3].crash(true)
		probes := map[Index]bool{} // some go out twice
		s.lose = func(m *Message) bool {
			if m.Kind == AppendReply && m.Reject {
				probes[m.Index] = true
			}
			return false
		}
		never := func() bool { return false }
		for !s.nodes[1].driver.Status().Leads {
			s.nodes[1].driver.node.stand()
			s.turn(s.nodes[1])
			s.settle(never)
		}
		for range 2 {
			s.nodes[1].driver.Tick()
			s.turn(s.nodes[1])
			s.settle(never)
		}
		one, two := s.nodes[1].driver.Status(), s.nodes[2].driver.Status()
		if !one.Leads || two.Last != one.Last || two.Committed != one.Last || len(probes) > most || len(probes) == 0 {
			t.Fatalf("%v over %v: %d exchanges, at most %d; %+v follows %+v", leads, follows, len(probes), most, two, one)
		}
	}

	f([]Term{9, 9, 9}, []Term{2}, 1)                      // the follower's entries are of an old term
	f([]Term{2, 9}, []Term{2, 2, 2, 2, 2}, 2)             // it has too many of them
	f([]Term{3, 5, 7, 9, 9}, []Term{2, 4, 6, 8}, 8)       // they differ in each term
	f([]Term{2, 3, 3, 3, 9}, []Term{2, 2}, 2)             //
	f([]Term{2, 9, 9, 9, 9, 9, 9, 9, 9, 9}, []Term{2}, 1) // it only lacks them
}

// A heldStore has no room while full. It is the transport, too, and holds every
// acknowledgement to what is durable.
type heldStore struct {
	*MemStore
	t    *testing.T
	full bool
	sent []Message
}

func (s *heldStore) Append(entries []Entry) error {
	if s.full {
		return ErrNoRoom
	}
	return s.MemStore.Append(entries)
}

func (s *heldStore) Send(ms []Message) {
	for _, m := range ms {
		if m.Kind == AppendReply && !m.Reject && m.Index > s.durable.last() {
			s.t.Fatalf("%v: entry %d is not durable", m, m.Index)
		}
	}
	s.sent = append(s.sent, ms...)
}

// TestLateWrite has the write of an entry held up while a newer leader replaces
// that entry. When the write is done at last it stands for what was written, and
// not for what came into its place.
func TestLateWrite(t *testing.T) {
	s := &heldStore{MemStore: NewMemStore(), t: t}
	if err := Bootstrap(s, Members{Voters: peersOf([]int{1, 2, 3})}); err != nil {
		t.Fatal(err)
	}
	d, err := NewDriver(Config{Cluster: cluster, Self: peer(1, 0)}, s, s, &sumMachine{}, Options{})
	if err != nil {
		t.Fatal(err)
	}
	appends := func(from int, term Term, entries ...Entry) {
		t.Helper()
		d.Deliver(Message{Kind: AppendKind, Cluster: cluster, From: peer(from, 0), To: peer(1, 0), Term: term, Index: 1, LogTerm: 1, Entries: entries})
		turnAll(t, d)
	}
	s.full = true
	appends(2, 2, Entry{Index: 2, Term: 2, Kind: Command, Data: []byte("old")}, Entry{Index: 3, Term: 2, Kind: Command})
	appends(3, 3, Entry{Index: 2, Term: 3, Kind: Command, Data: []byte("new")})
	if len(s.sent) != 0 {
		t.Fatalf("%v leaves while the write is held up", s.sent)
	}
	s.full = false
	turnAll(t, d)
	type ack struct {
		to    NodeID
		term  Term
		index Index
	}
	var acks []ack
	for _, m := range s.sent {
		acks = append(acks, ack{m.To.ID, m.Term, m.Index})
	}
	if want := []ack{{2, 2, 3}, {3, 3, 2}}; !slices.Equal(acks, want) {
		t.Fatalf("acknowledged are %v, want %v", acks, want)
	}
	if e := s.durable.Entries; len(e) != 2 || string(e[1].Data) != "new" {
		t.Fatalf("durable are %v", e)
	}
}

// TestTransferIsGivenUp hands leadership to a node that does not answer. The
// leader takes no proposals meanwhile, but not for ever.
func TestTransferIsGivenUp(t *testing.T) {
	n := electedNode(t, Config{}, Members{Voters: peersOf([]int{1, 2, 3})})
	if err := n.Transfer(peer(3, 0)); err != nil {
		t.Fatal(err)
	}
	if _, _, err := n.Propose(nil); !errors.Is(err, ErrTransferring) {
		t.Fatalf("a proposal meanwhile: %v", err)
	}
	for range n.c.ElectionTicks {
		n.Tick()
		m := Message{Kind: HeartbeatReply, Cluster: cluster, From: peer(2, 0), To: peer(1, 0), Term: 2}
		n.Step(&m)
		drain(n)
	}
	if _, _, err := n.Propose(nil); err != nil || n.Status().Successor != (Peer{}) {
		t.Fatalf("an election timeout later: %v, to %v", err, n.Status().Successor)
	}
}

// TestReplaced has a leader learn in one turn that it was deposed and that
// another entry was committed in the place of one that was proposed to it.
func TestReplaced(t *testing.T) {
	s := &stage{t: t, nodes: map[NodeID]*actor{}, cut: map[[2]NodeID]bool{}}
	s.cluster([]NodeID{1, 2, 3}, &script.Command{})
	one := s.nodes[1]
	one.driver.node.stand()
	s.turn(one)
	s.settle(func() bool { return false })
	var outcome error
	one.driver.Propose([]byte("x"), func(_ Index, err error) { outcome = err })
	s.turn(one)
	one.driver.Deliver(Message{Kind: AppendKind, Cluster: cluster, From: peer(2, 0), To: peer(1, 0), Term: 3,
		Index: 2, LogTerm: 2, Commit: 3, Entries: []Entry{{Index: 3, Term: 3, Kind: Command, Data: []byte("y")}}})
	s.turn(one)
	if !slices.Equal(one.applied, []string{"y"}) || outcome != ErrReplaced {
		t.Fatalf("applied is %q; the proposal ends with %v", one.applied, outcome)
	}
}

// TestTicksTogether lets a node be held up for a hundred ticks. It has not been
// without its leader for so long: what the leader sent meanwhile waits as well.
func TestTicksTogether(t *testing.T) {
	s := &stage{t: t, nodes: map[NodeID]*actor{}, cut: map[[2]NodeID]bool{}}
	s.cluster([]NodeID{1, 2, 3}, &script.Command{})
	two := s.nodes[2]
	for range 100 {
		two.driver.Tick()
	}
	s.turn(two)
	if len(s.queue) != 0 {
		t.Fatalf("it sends %v", s.queue)
	}
	for range 20 {
		two.driver.Tick()
		s.turn(two)
	}
	if len(s.queue) == 0 {
		t.Fatal("without a leader for twenty ticks it asks for no vote")
	}
}

// TestSnapshotAtMembers takes a snapshot while the log behind it holds another
// membership: the snapshot is of the one in force there.
func TestSnapshotAtMembers(t *testing.T) {
	membership := func(i Index, ids ...int) Entry {
		return Entry{Index: i, Term: 1, Kind: Membership, Data: AppendMembers(nil, Members{Voters: peersOf(ids)})}
	}
	n, err := New(Config{Self: peer(1, 0)}, State{Vote: Vote{Term: 1},
		Entries: []Entry{membership(1, 1, 2, 3), {Index: 2, Term: 1}, membership(3, 1, 2)}})
	if err != nil {
		t.Fatal(err)
	}
	n.log.commit, n.log.applied = 3, 3
	for i, want := range map[Index]int{1: 3, 2: 3, 3: 2} {
		if got := n.SnapshotAt(i, 0).Members.Voters; len(got) != want {
			t.Errorf("a snapshot at entry %d has the voters %v", i, got)
		}
	}
}
