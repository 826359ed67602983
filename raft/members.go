package raft

import (
	"errors"
	"fmt"
	"slices"
)

// MaxMembers bounds the voters and learners of a cluster.
const MaxMembers = 64

// ErrMembers says that a membership is not a possible one.
var ErrMembers = errors.New("not a membership")

// Members are those who take part. While Outgoing is not empty the membership
// is joint: whatever is decided needs a majority of Voters and one of Outgoing.
// Learners get the log and decide nothing. Each list is ordered, without
// doubles. A Members value is never changed.
//
// A node goes by the newest membership in its log, committed or not, and falls
// back to the one before if that entry is cut off.
type Members struct {
	Voters   []Peer
	Outgoing []Peer
	Learners []Peer
}

func (m *Members) joint() bool { return len(m.Outgoing) > 0 }

func (m *Members) voter(p Peer) bool {
	return slices.Contains(m.Voters, p) || slices.Contains(m.Outgoing, p)
}

func (m *Members) contains(p Peer) bool { return m.voter(p) || slices.Contains(m.Learners, p) }

// all returns everybody in order.
func (m *Members) all() []Peer {
	all := slices.Concat(m.Voters, m.Outgoing, m.Learners)
	slices.SortFunc(all, Peer.compare)
	return slices.Compact(all)
}

// check returns an error that wraps ErrMembers if m cannot be: no voters, too
// many, somebody twice, or one node in two incarnations.
func (m *Members) check() error {
	switch {
	case len(m.Voters) == 0:
		return fmt.Errorf("%w: no voters", ErrMembers)
	case len(m.Voters)+len(m.Learners) > MaxMembers || len(m.Outgoing) > MaxMembers:
		return fmt.Errorf("%w: more than %d members", ErrMembers, MaxMembers)
	}
	if err := distinct(slices.Concat(m.Voters, m.Learners)); err != nil {
		return err
	}
	return distinct(m.Outgoing)
}

func distinct(peers []Peer) error {
	seen := make(map[NodeID]bool, len(peers))
	for _, p := range peers {
		if p.Incarnation == (UUID{}) {
			return fmt.Errorf("%w: node %d has no incarnation", ErrMembers, p.ID)
		}
		if seen[p.ID] {
			return fmt.Errorf("%w: node %d twice", ErrMembers, p.ID)
		}
		seen[p.ID] = true
	}
	return nil
}

// change returns the membership that leads from m to the given voters and
// learners: joint if the voters differ, since then two majorities that know
// nothing of each other could decide; at once if only learners do.
func (m *Members) change(voters, learners []Peer) (Members, error) {
	next := Members{Voters: ordered(voters), Learners: ordered(learners)}
	if !slices.Equal(next.Voters, m.Voters) {
		next.Outgoing = m.Voters
	}
	return next, next.check()
}

// settled returns the membership that a joint one leads to.
func (m *Members) settled() Members {
	return Members{Voters: m.Voters, Learners: m.Learners}
}

func ordered(peers []Peer) []Peer {
	peers = slices.Clone(peers)
	slices.SortFunc(peers, Peer.compare)
	return peers
}
