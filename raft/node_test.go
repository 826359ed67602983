package raft

import (
	"errors"
	"slices"
	"testing"
)

var cluster = UUID{1, 2, 3}

// peer is the node id after its disk was wiped so often.
func peer(id, wiped int) Peer {
	return Peer{NodeID(id), UUID{byte(id), byte(wiped + 1)}}
}

func TestAgreed(t *testing.T) {
	f := func(matches []Index, want Index) {
		t.Helper()
		var voters []Peer
		for i := range matches {
			voters = append(voters, peer(i, 0))
		}
		if got := agreed(voters, func(p Peer) Index { return matches[p.ID] }); got != want {
			t.Fatalf("agreed(%v) = %d, want %d", matches, got, want)
		}
	}

	f(nil, ^Index(0)) // nobody restricts nothing
	f([]Index{7}, 7)
	f([]Index{7, 3}, 3) // both of two
	f([]Index{3, 9, 5}, 5)
	f([]Index{9, 0, 0, 9, 4}, 4)
}

func TestQuorum(t *testing.T) {
	f := func(voters, outgoing, yes []int, want bool) {
		t.Helper()
		m := Members{Voters: peersOf(voters), Outgoing: peersOf(outgoing)}
		if got := m.quorum(func(p Peer) bool { return slices.Contains(yes, int(p.ID)) }); got != want {
			t.Fatalf("%v of voters %v, outgoing %v: %v, want %v", yes, voters, outgoing, got, want)
		}
	}

	f([]int{1, 2, 3}, nil, []int{1, 3}, true)
	f([]int{1, 2, 3, 4}, nil, []int{1, 3}, false)            // half is no majority
	f([]int{3, 4, 5}, []int{1, 2, 3}, []int{3, 4, 5}, false) // the old ones count, too
	f([]int{3, 4, 5}, []int{1, 2, 3}, []int{1, 3, 4}, true)  // one may be in both
	f([]int{4}, []int{1, 2, 3}, []int{1, 2, 3}, false)       // and so do the new ones
}

func peersOf(ids []int) (peers []Peer) {
	for _, id := range ids {
		peers = append(peers, peer(id, 0))
	}
	return peers
}

func TestMembersChange(t *testing.T) {
	now := Members{Voters: peersOf([]int{1, 2, 3}), Learners: peersOf([]int{4})}
	f := func(voters, learners []Peer, joint bool, bad bool) {
		t.Helper()
		next, err := now.change(voters, learners)
		if bad != errors.Is(err, ErrMembers) || err == nil && next.joint() != joint {
			t.Fatalf("change to %v + %v: %+v, %v", voters, learners, next, err)
		}
	}

	f(peersOf([]int{3, 1, 2}), nil, false, false)                   // only a learner goes
	f(peersOf([]int{1, 2, 3, 4}), nil, true, false)                 // a learner becomes a voter
	f(peersOf([]int{1, 2}), peersOf([]int{3}), true, false)         // and the other way
	f([]Peer{peer(1, 0), peer(2, 1), peer(3, 0)}, nil, true, false) // a wiped node takes its own place
	f([]Peer{peer(2, 0), peer(2, 1)}, nil, false, true)             // but is not in it twice
	f(peersOf([]int{1, 2}), peersOf([]int{2}), false, true)         // nor in two parts
	f(nil, peersOf([]int{1}), false, true)                          // nobody would decide
	f([]Peer{{ID: 1}}, nil, false, true)                            // nobody is nobody's voter
	f(peersOf(slices.Collect(func(yield func(int) bool) {
		for i := range MaxMembers + 1 {
			if !yield(i) {
				return
			}
		}
	})), nil, false, true)
}

// testLog makes a log of entries of these terms, from index base+1 on.
func testLog(t *testing.T, base Index, baseTerm Term, terms ...Term) raftLog {
	t.Helper()
	s := State{BaseIndex: base, BaseTerm: baseTerm, Snapshot: Snapshot{Index: base, Term: baseTerm}}
	for i, term := range terms {
		s.Entries = append(s.Entries, Entry{Index: base + Index(i) + 1, Term: term})
	}
	l, err := newLog(s)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func entriesOf(first Index, terms ...Term) (entries []Entry) {
	for i, term := range terms {
		entries = append(entries, Entry{Index: first + Index(i), Term: term})
	}
	return entries
}

func TestLogAccept(t *testing.T) {
	f := func(entries []Entry, stable Index, want ...Term) {
		t.Helper()
		l := testLog(t, 10, 2, 2, 3, 3)
		shared := l.entries
		l.accept(entries)
		var got []Term
		for _, e := range l.entries {
			got = append(got, e.Term)
		}
		if !slices.Equal(got, want) || l.stable != stable {
			t.Fatalf("accept %v: terms %v stable %d, want %v and %d", entries, got, l.stable, want, stable)
		}
		if shared[2].Term != 3 {
			t.Fatalf("accept %v: a shared entry was overwritten", entries)
		}
	}

	f(nil, 13, 2, 3, 3)
	f(entriesOf(11, 2), 13, 2, 3, 3)          // late: what lies behind it stays
	f(entriesOf(14, 3, 3), 13, 2, 3, 3, 3, 3) // goes on
	f(entriesOf(12, 3, 3, 4), 13, 2, 3, 3, 4) // overlaps
	f(entriesOf(12, 4), 11, 2, 4)             // conflicts at 12
	f(entriesOf(13, 5, 5), 12, 2, 3, 5, 5)    // conflicts at the end
	f(entriesOf(11, 4), 10, 4)                // conflicts at once
}

func TestLogMayMatch(t *testing.T) {
	l := testLog(t, 10, 2, 2, 4, 4, 4, 7)
	f := func(i Index, term Term, want Index, wantTerm Term) {
		t.Helper()
		if got, gotTerm := l.mayMatch(i, term); got != want || gotTerm != wantTerm {
			t.Fatalf("mayMatch(%d, %d) = %d, %d, want %d, %d", i, term, got, gotTerm, want, wantTerm)
		}
	}

	f(15, 7, 15, 7)
	f(15, 6, 14, 4)
	f(15, 3, 11, 2) // a whole term is leapt over
	f(99, 7, 15, 7) // the log is shorter
	f(13, 1, 10, 2) // the base is committed: it matches whatever its term
	f(5, 9, 5, 0)   // below what is known
}

func TestLogBetween(t *testing.T) {
	l := testLog(t, 0, 0, 1, 1, 1, 1)
	cost := entryCost(&l.entries[0])
	f := func(first, to Index, bytes, want int) {
		t.Helper()
		if got := l.between(first, to, bytes); len(got) != want || cap(got) != want {
			t.Fatalf("between(%d, %d, %d): %d entries, room for %d; want %d", first, to, bytes, len(got), cap(got), want)
		}
	}

	f(1, 4, 1<<20, 4)
	f(1, 4, 2*cost, 2)
	f(1, 4, 1, 1) // one at least
	f(3, 4, 1<<20, 2)
	f(5, 4, 1<<20, 0)
}

func TestLogState(t *testing.T) {
	f := func(s State, ok bool) {
		t.Helper()
		if _, err := newLog(s); (err == nil) != ok || err != nil && !errors.Is(err, ErrState) && !errors.Is(err, ErrCodec) {
			t.Fatalf("%+v: %v", s, err)
		}
	}

	f(State{}, true)
	f(State{Entries: entriesOf(1, 1, 1, 2)}, true)
	f(State{Entries: entriesOf(2, 1)}, false)                                              // a gap
	f(State{Entries: entriesOf(1, 2, 1)}, false)                                           // terms fall
	f(State{Snapshot: Snapshot{Index: 2, Term: 1}, Entries: entriesOf(1, 1, 1, 1)}, true)  // entries before the snapshot
	f(State{Snapshot: Snapshot{Index: 2, Term: 2}, Entries: entriesOf(1, 1, 1, 1)}, false) // another history
	f(State{Snapshot: Snapshot{Index: 4, Term: 1}, Entries: entriesOf(1, 1, 1, 1)}, false) // none up to it
	f(State{Snapshot: Snapshot{Index: 4, Term: 1}, BaseIndex: 5, BaseTerm: 1}, false)      // a gap behind it
	f(State{Entries: []Entry{{Index: 1, Term: 1, Kind: Membership}}}, false)               // no membership
}

// TestProgress tells what a leader thinks of a follower, step by step.
func TestProgress(t *testing.T) {
	p := newProgress(11)
	f := func(what string, mode mode, match, next Index, ready bool) {
		t.Helper()
		if p.mode != mode || p.match != match || p.next != next || p.ready(2) != ready {
			t.Fatalf("%s: mode %d match %d next %d ready %v; want %d %d %d %v", what, p.mode, p.match, p.next, p.ready(2), mode, match, next, ready)
		}
	}

	f("new", probing, 0, 11, true)
	p.sent(15, 0)
	f("one under way", probing, 0, 11, false)
	p.rejected(p.era, 10, 6)
	f("rejected", probing, 0, 7, true)
	p.rejected(p.era-1, 10, 3)
	f("the answer comes twice", probing, 0, 7, true)
	p.sent(9, 0)
	p.answered(1)
	f("a heartbeat was answered: it may be lost", probing, 0, 7, true)
	p.acked(9)
	f("the logs meet", replicating, 9, 10, true)
	p.sent(10, 0)
	p.sent(12, 0)
	f("the window is full", replicating, 9, 13, false)
	p.acked(10)
	f("room again", replicating, 10, 13, true)
	p.answered(2)
	f("something moved since the last heartbeat", replicating, 10, 13, true)
	p.answered(3)
	f("nothing did", probing, 10, 11, true)
	p.rejected(p.era, 10, 5)
	f("it is known to match", probing, 10, 11, true)
	p.acked(12)
	f("the answer comes after all", replicating, 12, 13, true)
	p.sent(14, 0)
	p.sent(15, 0)
	before := p.era
	p.rejected(before, 14, 12)
	f("an append was lost", probing, 12, 13, true)
	p.sent(14, 0)
	p.acked(12)
	p.sent(14, 0)
	p.rejected(before, 13, 12)
	f("late: it was sent before the step back", replicating, 12, 15, true)
	p.rejected(p.era, 13, 12)
	f("another one was lost", probing, 12, 13, true)
	p.stream(Snapshot{Index: 20, Size: 100})
	f("needs a snapshot", streaming, 12, 13, false)
	p.wants(20, 60)
	p.wants(19, 99)
	p.wants(20, 101)
	if p.offset != 60 {
		t.Fatalf("offset %d, want 60", p.offset)
	}
	p.acked(13)
	f("not there yet", streaming, 13, 14, false)
	p.acked(20)
	f("it is there", replicating, 20, 21, true)
	p.lost(4)
	f("it cannot read what it had", probing, 4, 5, true)
	p.sent(9, 0)
	p.acked(9)
	p.rejected(before, 17, 4)
	f("late: it has it again", replicating, 9, 10, true)
	p.rejected(p.era, 9, 2)
	f("it has lost more", probing, 2, 3, true)
	p.damaged = false
	p.rejected(p.era, 2, 1)
	f("who is not damaged does not", probing, 2, 3, true)
}

// soloNode returns a lone voter that leads.
func soloNode(t *testing.T, c Config) *Node {
	t.Helper()
	c.Cluster, c.Self = cluster, peer(1, 0)
	s := NewMemStore()
	if err := Bootstrap(s, Members{Voters: []Peer{c.Self}}); err != nil {
		t.Fatal(err)
	}
	state, _ := s.Load()
	n, err := New(c, state)
	if err != nil {
		t.Fatal(err)
	}
	for !n.Status().Leads {
		n.Tick()
		drain(n)
	}
	drain(n)
	return n
}

func drain(n *Node) {
	for {
		r, any := n.Ready()
		if !any {
			return
		}
		n.Advance(r)
	}
}

// TestBounds fills each queue of a leader: a full one refuses, definitely, and
// takes again when there is room.
func TestBounds(t *testing.T) {
	n := soloNode(t, Config{MaxEntryBytes: 100, MaxUncommitted: 300, MaxReads: 2})
	if _, _, err := n.Propose(make([]byte, 101)); err != ErrTooLarge {
		t.Fatalf("101 bytes of 100: %v", err)
	}
	accepted := 0
	for range 10 {
		if _, _, err := n.Propose(make([]byte, 50)); err == nil {
			accepted++
		} else if err != ErrBusy {
			t.Fatal(err)
		}
	}
	if accepted != 4 {
		t.Fatalf("%d proposals of 74 bytes into 300", accepted)
	}
	for i, want := range []error{nil, nil, ErrBusy} {
		if err := n.Read(uint64(i)); err != want {
			t.Fatalf("read %d: %v, want %v", i, err, want)
		}
	}
	drain(n)
	if _, _, err := n.Propose(make([]byte, 50)); err != nil || n.Read(9) != nil {
		t.Fatalf("after they were committed: %v", err)
	}
}

// TestStrangers sends what no member would: nothing moves.
func TestStrangers(t *testing.T) {
	n := soloNode(t, Config{})
	good := Message{Kind: VoteKind, Cluster: cluster, From: peer(2, 0), To: peer(1, 0), Term: 9, Index: 99, LogTerm: 8, Transfer: true}
	term, dropped := n.Status().Term, uint64(0)
	f := func(change func(m *Message)) {
		t.Helper()
		m := good
		change(&m)
		n.Step(&m)
		dropped++
		if s := n.Status(); s.Term != term || s.Dropped != dropped {
			t.Fatalf("%v: term %d, %d dropped; want %d and %d", m, s.Term, s.Dropped, term, dropped)
		}
	}

	f(func(m *Message) { m.Cluster[0]++ })
	f(func(m *Message) { m.To = peer(1, 1) }) // another life of this node
	f(func(m *Message) { m.To = peer(2, 0) })
	f(func(m *Message) { m.From = peer(1, 0) })
	f(func(m *Message) { m.From = Peer{} })
	f(func(m *Message) { m.Term = 0 })
	f(func(m *Message) { m.Term = MaxTerm + 1 })
	f(func(m *Message) { m.Kind = 0 })
	f(func(m *Message) { m.Kind = kinds })
	f(func(m *Message) { m.Kind, m.Entries = AppendKind, entriesOf(101, 8) })                                // a gap
	f(func(m *Message) { m.Kind, m.Entries = AppendKind, entriesOf(100, 7) })                                // an older term after a newer one
	f(func(m *Message) { m.Kind, m.Entries = AppendKind, entriesOf(100, 10) })                               // a newer one than the leader's
	f(func(m *Message) { m.Kind, m.Entries = AppendKind, []Entry{{Index: 100, Term: 8, Kind: Membership}} }) // no membership
	f(func(m *Message) { m.Kind = SnapshotKind })
	n.Step(&good)
	if n.Status().Term != 9 {
		t.Fatal("the message they were made from does not count either")
	}
}

// TestRefusals asks a node that does not lead.
func TestRefusals(t *testing.T) {
	n, err := New(Config{Self: peer(1, 0)}, State{})
	if err != nil {
		t.Fatal(err)
	}
	_, _, err1 := n.Propose(nil)
	_, _, err2 := n.Change(nil, nil)
	for _, err := range []error{err1, err2, n.Read(1), n.Transfer(peer(2, 0))} {
		if err != ErrNotLeader {
			t.Fatalf("%v, want %v", err, ErrNotLeader)
		}
	}
	for range 100 { // who is no member never stands
		n.Tick()
	}
	if _, any := n.Ready(); any {
		t.Fatal("an empty node has something to do")
	}
	if _, err := New(Config{}, State{}); err == nil {
		t.Fatal("a node without an incarnation starts")
	}
	if _, err := New(Config{Self: peer(1, 0)}, State{Vote: Vote{Term: 1}, Entries: entriesOf(1, 2)}); !errors.Is(err, ErrState) {
		t.Fatalf("a log newer than the vote: %v", err)
	}
}

// TestLastTerm holds that the terms end, and the node does not begin anew.
func TestLastTerm(t *testing.T) {
	n, err := New(Config{Self: peer(1, 0)}, State{
		Vote:    Vote{Term: MaxTerm},
		Entries: []Entry{{Index: 1, Term: 1, Kind: Membership, Data: AppendMembers(nil, Members{Voters: []Peer{peer(1, 0)}})}},
	})
	if err != nil {
		t.Fatal(err)
	}
	for range 100 {
		n.Tick()
		drain(n)
	}
	if s := n.Status(); s.Term != MaxTerm || s.Leads {
		t.Fatalf("%+v", s)
	}
}
