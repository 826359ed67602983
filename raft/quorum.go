package raft

import "slices"

// majority returns how many of n voters decide.
func majority(n int) int { return n/2 + 1 }

// agreed returns the greatest index that a majority of the voters hold, by
// what match says of each. No voters agree to anything: they do not restrict.
func agreed(voters []Peer, match func(Peer) Index) Index {
	if len(voters) == 0 {
		return ^Index(0)
	}
	held := make([]Index, 0, 8)
	for _, p := range voters {
		held = append(held, match(p))
	}
	slices.Sort(held)
	return held[len(held)-majority(len(held))]
}

// many reports whether a majority of the voters satisfy yes; of none, they do.
func many(voters []Peer, yes func(Peer) bool) bool {
	if len(voters) == 0 {
		return true
	}
	n := 0
	for _, p := range voters {
		if yes(p) {
			n++
		}
	}
	return n >= majority(len(voters))
}

// agreed returns the greatest index held by every majority that m asks for.
func (m *Members) agreed(match func(Peer) Index) Index {
	return min(agreed(m.Voters, match), agreed(m.Outgoing, match))
}

// quorum reports whether those who satisfy yes can decide.
func (m *Members) quorum(yes func(Peer) bool) bool {
	return many(m.Voters, yes) && many(m.Outgoing, yes)
}
