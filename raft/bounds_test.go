package raft

import (
	"testing"

	"github.com/teralog/teralog/sim/script"
)

// TestQuorumLostForAnHour lets nobody hear anybody for an hour of ticks, while
// clients go on proposing to everybody. What the leader takes is bounded, then
// everything is refused, definitely, and nothing piles up. All goes on without a
// restart when they hear each other again.
func TestQuorumLostForAnHour(t *testing.T) {
	const tick, hour = 50, 3_600_000 // ms
	s := &stage{t: t, nodes: map[NodeID]*actor{}, cut: map[[2]NodeID]bool{}}
	s.cluster([]NodeID{1, 2, 3}, &script.Command{})
	never := func() bool { return false }
	s.nodes[1].driver.node.stand()
	s.turn(s.nodes[1])
	s.settle(never)
	before := s.nodes[1].driver.Status().Last
	for _, from := range s.order {
		for _, to := range s.order {
			s.cut[[2]NodeID{from, to}] = true
		}
	}
	asked, outcomes, term := 0, map[error]int{}, Term(0)
	for at := 0; at < hour; at += tick {
		for _, id := range s.order {
			a := s.nodes[id]
			for range 2 {
				asked++
				a.driver.Propose([]byte("x"), func(_ Index, err error) { outcomes[err]++ })
			}
			a.driver.Read(func(_ Index, err error) {
				if err == nil {
					t.Fatal("a read is answered")
				}
			})
			a.driver.Tick()
			s.turn(a)
		}
		s.settle(never)
	}
	grown := 0
	for _, id := range s.order {
		d := s.nodes[id].driver
		if st := d.Status(); st.Leads || len(d.proposals)+len(d.asked)+len(d.reads)+len(d.inbox.in.calls)+len(d.inbox.in.messages) > 0 {
			t.Fatalf("%d: %+v; %d proposals and %d reads wait", id, st, len(d.proposals), len(d.asked)+len(d.reads))
		}
		grown += int(d.Status().Last - before)
		term = max(term, d.Status().Term)
	}
	if taken := outcomes[ErrIndefinite]; taken != grown || taken > 2*2*10 || outcomes[ErrNotLeader] != asked-taken {
		t.Fatalf("of %d proposals %d were taken; they end with %v", asked, grown, outcomes)
	}
	if term != 2 {
		t.Fatalf("term %d: somebody stood, though nobody could win", term)
	}

	s.cut = map[[2]NodeID]bool{}
	done := ErrBusy
	for range 100 {
		for _, id := range s.order {
			a := s.nodes[id]
			if done != nil {
				a.driver.Propose([]byte("y"), func(_ Index, err error) {
					if done != nil {
						done = err
					}
				})
			}
			a.driver.Tick()
			s.turn(a)
			s.settle(never)
		}
	}
	if done != nil {
		t.Fatalf("after an hour nothing is committed: %v", done)
	}
}

// TestJoinsUnderLoad adds an empty node as a learner while the leader goes on
// committing. It gets the snapshot chunk by chunk and what came after: at no time
// is there more under way to it than a window of appends or one chunk, whatever
// the size of the state. A leader whose learner never gets on does not keep its
// log for ever.
func TestJoinsUnderLoad(t *testing.T) {
	const chunk, appendBytes, window, stateBytes, snapshotBytes = 2000, 500, 4, 100_000, 10_000
	f := func(stuck bool) {
		t.Helper()
		s := &stage{t: t, nodes: map[NodeID]*actor{}, cut: map[[2]NodeID]bool{}}
		var drivers []*Driver
		machines := map[NodeID]*sumMachine{}
		members := Members{Voters: peersOf([]int{1, 2, 3})}
		for _, p := range peersOf([]int{1, 2, 3, 4}) {
			store := NewMemStore()
			if p.ID < 4 {
				if err := Bootstrap(store, members); err != nil {
					t.Fatal(err)
				}
			}
			a := &actor{s: s, self: p, store: store}
			machines[p.ID] = &sumMachine{state: make([]byte, stateBytes)}
			c := Config{Cluster: cluster, Self: p, MaxAppendBytes: appendBytes, Window: window, ChunkBytes: chunk}
			d, err := NewDriver(c, store, a, machines[p.ID], Options{SnapshotBytes: snapshotBytes})
			if err != nil {
				t.Fatal(err)
			}
			a.driver, s.nodes[p.ID] = d, a
			drivers = append(drivers, d)
		}
		// One message to each node a round, so that what is under way shows.
		most, longest, proposed := 0, 0, 0
		deliver := func() {
			held, under := s.queue, 0
			s.queue = nil
			for _, m := range held {
				if m.To.ID == 4 {
					under += len(m.Data)
					for i := range m.Entries {
						under += entryCost(&m.Entries[i])
					}
				}
				if stuck && m.Kind == SnapshotReply {
					continue
				}
				s.nodes[m.To.ID].driver.Deliver(m)
			}
			most = max(most, under)
			for _, d := range drivers {
				turnAll(t, d)
			}
			longest = max(longest, len(drivers[0].node.log.entries))
		}
		propose := func(n int) {
			for range n {
				proposed++
				drivers[0].Propose(make([]byte, 76), func(_ Index, err error) {
					if err != nil {
						t.Fatal(err)
					}
				})
			}
		}
		drivers[0].node.stand()
		for range 10 {
			turnAll(t, drivers[0])
			deliver()
		}
		for range 200 {
			propose(10)
			deliver()
		}
		if drivers[0].node.log.base.index == 0 {
			t.Fatal("the leader still has its whole log")
		}
		drivers[0].Change(members.Voters, []Peer{peer(4, 0)}, func(_ Index, err error) {
			if err != nil {
				t.Fatal(err)
			}
		})
		rounds := 0
		there := func() bool { return drivers[3].Status().Applied+100 > drivers[0].Status().Applied }
		for ; rounds < 3000 && !there(); rounds++ {
			propose(1)
			if rounds%5 == 0 {
				drivers[0].Tick()
			}
			deliver()
		}
		if stuck == there() {
			t.Fatalf("stuck %v: after %d rounds the new member has applied %d of %d", stuck, rounds, drivers[3].Status().Applied, drivers[0].Status().Applied)
		}
		if bound := max(2*chunk, window*(appendBytes+100)); most > bound {
			t.Fatalf("%d bytes were under way to the new member, at most %d", most, bound)
		}
		// A snapshot is due each quarter of the state; entries stay for two, or four while one is on its way.
		if bound := 2*4*stateBytes/4/100 + 100; longest > bound {
			t.Fatalf("stuck %v: the leader had %d entries in memory, at most %d", stuck, longest, bound)
		}
	}

	f(false)
	f(true)
}
