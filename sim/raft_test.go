package sim

import (
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/teralog/teralog/raft"
)

// TestRaft runs a few seeds of the simulated cluster; .ci/run runs many.
func TestRaft(t *testing.T) {
	seeds := uint64(100)
	if testing.Short() {
		seeds = 20
	}
	viable := 0
	for seed := range seeds {
		r := Raft(seed, nil)
		if r.Violation != "" {
			t.Fatalf("%sseed %d: %s\nrun it again: teralog sim raft -seed %d -trace", r.Last, seed, r.Violation, seed)
		}
		viable += r.Seen["viable"]
	}
	if viable*5 < int(seeds)*2 {
		t.Errorf("only %d of %d seeds had to come to life again", viable, seeds)
	}
}

// TestRaftIsTheSameTwice holds the simulator to its word: a seed is a run, and
// so is what is written of it.
func TestRaftIsTheSameTwice(t *testing.T) {
	for seed := range uint64(12) {
		a, b := Raft(seed, nil), Raft(seed, nil)
		if a.Hash != b.Hash || a.Steps != b.Steps {
			t.Fatalf("seed %d: hash %x after %d events, then %x after %d", seed, a.Hash, a.Steps, b.Hash, b.Steps)
		}
		s, err := readScenario(strings.NewReader(drawScenario(seed).String()))
		if err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		if r := s.run(nil); r.Hash != a.Hash {
			t.Fatalf("seed %d: hash %x, by its written scenario %x", seed, a.Hash, r.Hash)
		}
	}
	if Raft(1, nil).Hash == Raft(2, nil).Hash {
		t.Fatal("two seeds are the same run")
	}
}

// TestRaftScenarios plays what was found once.
func TestRaftScenarios(t *testing.T) {
	files, err := filepath.Glob("testdata/raft/*.txt")
	if err != nil || len(files) < 9 {
		t.Fatalf("%d scenarios, %v", len(files), err)
	}
	for _, file := range files {
		if err := playScenario(file, nil); err != nil {
			t.Errorf("%s: %v", file, err)
		}
	}
}

func TestScenarioText(t *testing.T) {
	f := func(text string, ok bool) {
		t.Helper()
		if _, err := readScenario(strings.NewReader(text)); (err == nil) != ok {
			t.Errorf("%q: %v", text, err)
		}
	}

	cluster := "cluster voters=3 spares=1\n"
	f("", false)
	f(cluster, true)
	f("# words\n\n"+cluster, true)
	f("cluster voters=9\n", false)
	f("cluster voters=3 callers=6\n", false)
	f("cluster voters=3 callers=1\n", false) // who never waits
	f("cluster voters=3 skew=100\n", false)  // of three nodes
	f("cluster voters=3 colour=red\n", false)
	f(cluster+"network loss=3 ordered\n", true)
	f(cluster+"network loss=many\n", false)
	f(cluster+"at 3ms mend\n", true)
	f(cluster+"at 3 mend\n", false)
	f(cluster+"at -3ms mend\n", false)
	f(cluster+"at 3ms explode 1\n", false)
	f(cluster+"at 3ms crash 4 power lasts=2s\n", true)
	f(cluster+"at 3ms crash 5\n", false) // there are four
	f(cluster+"at 3ms crash leader 4\n", false)
	f(cluster+"election 2 + 3ms cut leader shape=ring\n", true)
	f(cluster+"election 2 3ms cut leader shape=ring\n", false)
	f(cluster+"at 3ms cut 1 shape=star\n", false)
	f(cluster+"at 3ms change leader voters=0,1 learners=4\n", true)
	f(cluster+"at 3ms change leader voters=1,5\n", false)
}

func FuzzScenario(f *testing.F) {
	f.Add("")
	f.Add("cluster seed=1 voters=3 skew=90,80,70 callers=1 propose=2ms\nnetwork loss=3 ordered\nat 3ms cut 1 shape=halves half=1,2\nelection 2 + 1ms crash leader power\n")
	f.Fuzz(func(t *testing.T, text string) {
		s, err := readScenario(strings.NewReader(text))
		if err != nil {
			return
		}
		again, err := readScenario(strings.NewReader(s.String()))
		if err != nil || again.String() != s.String() {
			t.Fatalf("%q becomes\n%vthen %v, %v", text, s, again, err)
		}
	})
}

func TestDecides(t *testing.T) {
	peers := func(ids ...int) (ps []raft.Peer) {
		for _, id := range ids {
			ps = append(ps, peer(id, 0))
		}
		return ps
	}
	f := func(voters, outgoing, yes []raft.Peer, want bool) {
		t.Helper()
		m := raft.Members{Voters: voters, Outgoing: outgoing}
		in := map[raft.Peer]bool{}
		for _, p := range yes {
			in[p] = true
		}
		if got := decides(&m, func(p raft.Peer) bool { return in[p] }); got != want {
			t.Errorf("%v of voters %v, outgoing %v: %v", yes, voters, outgoing, got)
		}
	}

	f(peers(1, 2, 3), nil, peers(1, 2), true)
	f(peers(1, 2, 3), nil, peers(1, 4), false)
	f(peers(1, 2, 3, 4), nil, peers(1, 2), false) // half is not enough
	f(peers(1, 2), peers(3, 4, 5), peers(1, 2, 3), false)
	f(peers(1, 2), peers(3, 4, 5), peers(1, 2, 3, 4), true)
	f(peers(1, 2), nil, []raft.Peer{peer(1, 0), peer(2, 1)}, false) // another life
}

// TestSchedule takes events out in the order of their times, then ties.
func TestSchedule(t *testing.T) {
	var s schedule
	for i := range uint64(500) {
		s.push(event{at: time.Duration(scramble(i) % 50), tie: scramble(i) % 3, seq: i})
		if i%5 == 4 {
			s.pop()
		}
	}
	last := event{at: -1}
	for n := 400; n > 0; n-- {
		e := s.pop()
		if e.before(&last) {
			t.Fatalf("%v/%d/%d after %v/%d/%d", e.at, e.tie, e.seq, last.at, last.tie, last.seq)
		}
		last = e
	}
	if len(s) != 0 {
		t.Fatalf("%d are left", len(s))
	}
}

// TestShadow lets stores forget: what was synced, and nothing else, is missed.
func TestShadow(t *testing.T) {
	entries := func(first raft.Index, terms ...raft.Term) (es []raft.Entry) {
		for i, term := range terms {
			es = append(es, raft.Entry{Index: first + raft.Index(i), Term: term, Kind: raft.Command, Data: []byte{byte(i)}})
		}
		return es
	}
	f := func(after func(s *shadow), state raft.State, want string) {
		t.Helper()
		q := &quorum{world: newWorld(1, nil), scenario: &scenario{}, seen: map[string]int{}}
		q.truth.init(q)
		m := &member{q: q, self: peer(1, 0)}
		store := raft.NewMemStore()
		s := &shadow{Store: store, m: m}
		s.SetVote(raft.Vote{Term: 2, For: peer(2, 0)})
		s.Append(entries(1, 1, 2, 2))
		s.Sync()
		if after != nil {
			after(s)
		}
		s.Store = loads{store, state}
		if _, err := s.Load(); err != nil {
			t.Fatal(err)
		}
		if got := invariant(q.broken); got != want {
			t.Errorf("%+v: breaks %q, want %q: %s", state, got, want, q.broken)
		}
	}

	vote := raft.Vote{Term: 2, For: peer(2, 0)}
	f(nil, raft.State{Vote: vote, Entries: entries(1, 1, 2, 2)}, "")
	f(nil, raft.State{Vote: raft.Vote{Term: 3}, Entries: entries(1, 1, 2, 2, 3)}, "")
	f(nil, raft.State{Vote: raft.Vote{Term: 2, For: peer(3, 0)}, Entries: entries(1, 1, 2, 2)}, "StoreForgot")
	f(nil, raft.State{Vote: raft.Vote{Term: 1}, Entries: entries(1, 1, 2, 2)}, "StoreForgot")
	f(nil, raft.State{Vote: vote, Entries: entries(1, 1, 2)}, "StoreForgot")
	f(nil, raft.State{Vote: vote, Entries: entries(1, 1, 1, 2)}, "StoreForgot")
	f(nil, raft.State{Vote: vote, Entries: entries(1, 1), Damaged: 3}, "StoreForgot")                                          // nothing was
	f(func(s *shadow) { s.hurt = true }, raft.State{Vote: vote, Entries: entries(1, 1), Damaged: 3}, "")                       // something was
	f(func(s *shadow) { s.hurt = true }, raft.State{Vote: vote, Entries: entries(1, 1)}, "StoreForgot")                        // and it does not say so
	f(func(s *shadow) { s.Append(entries(3, 3)) }, raft.State{Vote: vote, Entries: entries(1, 1, 2)}, "")                      // torn
	f(func(s *shadow) { s.Append(entries(3, 3)) }, raft.State{Vote: vote, Entries: entries(1, 1)}, "StoreForgot")              // too far
	f(func(s *shadow) { s.Append(entries(3, 3)); s.Sync() }, raft.State{Vote: vote, Entries: entries(1, 1, 2)}, "StoreForgot") // it was synced
	f(nil, raft.State{Vote: vote, Snapshot: raft.Snapshot{Index: 9, Term: 2}, BaseIndex: 9, BaseTerm: 2}, "")
}

// loads is a store that holds a state.
type loads struct {
	raft.Store
	state raft.State
}

func (l loads) Load() (raft.State, error) { return l.state, nil }
