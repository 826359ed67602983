package raft

import (
	"errors"
	"math/rand/v2"
	"slices"
	"testing"
)

// TestMemStorePower writes at random, cuts the power and looks: what Sync had
// promised is there, and nothing is that was never written.
func TestMemStorePower(t *testing.T) {
	for seed := range uint64(300) {
		r := rand.New(rand.NewPCG(seed, 1))
		s := NewMemStore()
		var all, synced []Entry
		var vote Vote
		for range 40 {
			switch r.IntN(4) {
			case 0:
				if err := s.Sync(); err != nil {
					t.Fatal(err)
				}
				synced, vote = slices.Clone(all), s.live.Vote
			case 1:
				if err := s.SetVote(Vote{Term: s.live.Vote.Term + 1}); err != nil {
					t.Fatal(err)
				}
			default:
				from := len(synced) + r.IntN(len(all)-len(synced)+1) // never below what is synced
				entries := entriesOf(Index(from+1), slices.Repeat([]Term{s.live.Vote.Term}, 1+r.IntN(3))...)
				all = append(all[:from:from], entries...)
				if err := s.Append(entries); err != nil {
					t.Fatal(err)
				}
			}
		}
		got, err := s.Restart(r.IntN).Load()
		if err != nil || len(got.Entries) < len(synced) || got.Vote.Term < vote.Term || got.Vote.Term > s.live.Vote.Term {
			t.Fatalf("seed %d: %d entries, vote %d, %v; synced were %d and %d", seed, len(got.Entries), got.Vote.Term, err, len(synced), vote.Term)
		}
		for i, e := range synced {
			if got.Entries[i].Term != e.Term {
				t.Fatalf("seed %d: entry %d changed", seed, i+1)
			}
		}
		if live, _ := s.Restart(nil).Load(); len(live.Entries) != len(all) {
			t.Fatalf("seed %d: a dead process lost %d of %d entries", seed, len(all)-len(live.Entries), len(all))
		}
	}
}

// TestMemStoreLoad holds that what a new process sees of a dead one's unsynced
// writes is durable from then on.
func TestMemStoreLoad(t *testing.T) {
	s := NewMemStore()
	if err := errors.Join(s.SetVote(Vote{Term: 1}), s.Append(entriesOf(1, 1, 1))); err != nil {
		t.Fatal(err)
	}
	next := s.Restart(nil)
	seen, err := next.Load()
	if err != nil || len(seen.Entries) != 2 {
		t.Fatalf("a dead process left %d entries of 2, %v", len(seen.Entries), err)
	}
	if kept, _ := next.Restart(func(int) int { return 0 }).Load(); len(kept.Entries) != 2 || kept.Vote != seen.Vote {
		t.Fatalf("a power cut after the start took %d entries of 2; vote %v, was %v", 2-len(kept.Entries), kept.Vote, seen.Vote)
	}
}

// TestMemStoreStops lets each write of a sequence be the last one.
func TestMemStoreStops(t *testing.T) {
	snap := Snapshot{Index: 2, Term: 1, Size: 3, Members: Members{Voters: peersOf([]int{1})}}
	run := func(s *MemStore) error {
		return errors.Join(
			s.SetVote(Vote{Term: 1}),
			s.Append(entriesOf(1, 1, 1, 1)),
			s.Sync(),
			s.SaveSnapshot(snap, []byte("abc"), 1),
			s.SetVote(Vote{Term: 2}),
			s.Sync(),
		)
	}
	whole := NewMemStore()
	if err := run(whole); err != nil {
		t.Fatal(err)
	}
	for n := 1; n <= whole.writes; n++ {
		for _, done := range []bool{false, true} {
			s := NewMemStore()
			s.StopAt(n, done)
			if err := run(s); !errors.Is(err, ErrStopped) {
				t.Fatalf("write %d of %d does not fail: %v", n, whole.writes, err)
			}
			for _, keep := range []func(int) int{nil, func(int) int { return 0 }, func(n int) int { return n - 1 }} {
				got, err := s.Restart(keep).Load()
				if _, bad := newLog(got); err != nil || bad != nil {
					t.Fatalf("stopped at write %d: %v, %v", n, err, bad)
				}
			}
		}
	}
}

func TestBootstrap(t *testing.T) {
	s := NewMemStore()
	if err := Bootstrap(s, Members{}); !errors.Is(err, ErrMembers) {
		t.Fatalf("without voters: %v", err)
	}
	if err := Bootstrap(s, Members{Voters: peersOf([]int{1})}); err != nil {
		t.Fatal(err)
	}
	if err := Bootstrap(s, Members{Voters: peersOf([]int{1})}); !errors.Is(err, ErrState) {
		t.Fatalf("a second time: %v", err)
	}
}
