package sim

import (
	"fmt"
	"slices"
	"strings"

	"github.com/teralog/teralog/raft"
)

// leading returns the leader of the newest term that lives, if there is one.
func (q *quorum) leading() *member {
	var l *member
	for _, m := range q.members {
		if m.up && m.status.Leads && (l == nil || m.status.Term > l.status.Term) {
			l = m
		}
	}
	return l
}

// lives reports whether p is what lives in its slot now.
func (q *quorum) lives(p raft.Peer) bool { return q.members[p.ID-1].self == p }

// whole reports whether a member lives on the disk it promised on, and can read
// all of it, now and after its next start.
func (q *quorum) whole(p raft.Peer) bool {
	m := q.members[p.ID-1]
	s := &m.shadow
	return m.self == p && !m.left && !s.hurt && !s.live.damaged() && !s.durable.damaged()
}

// viable reports whether every membership that anybody may go by has a majority
// of whole voters.
func (q *quorum) viable() bool { return decides(&q.truth.config, q.whole) && q.eachHas(q.whole) }

// viableWithout reports whether that would still be so without m.
func (q *quorum) viableWithout(m *member) bool {
	return q.eachHas(func(p raft.Peer) bool { return p != m.self && q.whole(p) })
}

func (q *quorum) eachHas(yes func(raft.Peer) bool) bool {
	for _, m := range q.members {
		if m.up && !decides(&m.status.Members, yes) { // its store may have had no room for that yet
			return false
		}
		for _, c := range m.shadow.live.configs {
			if !decides(&c.members, yes) {
				return false
			}
		}
	}
	return true
}

// heal ends all faults: everybody hears everybody, and is up but for some that
// are not needed.
func (q *quorum) heal() {
	q.say("healed")
	q.healed = true
	q.cuts = [maxMembers][maxMembers]bool{}
	for _, m := range q.members {
		m.disk.heal()
		m.left = slices.Contains(q.scenario.left, m.slot+1) && q.viableWithout(m)
		switch {
		case m.left:
			q.say("%d is left out", m.self.ID)
			m.die(false)
		case !m.up:
			m.start()
		case m.paused:
			m.resume()
		}
	}
	q.truth.healed = q.truth.last()
	for _, c := range q.callers {
		c.committed, c.shown = 0, 0
	}
}

// owed says what a healed cluster still has to do; "" if nothing.
func (q *quorum) owed() string {
	l := q.leading()
	if l == nil {
		return "nobody leads"
	}
	want := q.truth.healed + 10
	if q.truth.last() < want {
		return fmt.Sprintf("%d entries were committed since healing", q.truth.last()-q.truth.healed)
	}
	for _, p := range slices.Concat(l.status.Members.Voters, l.status.Members.Outgoing, l.status.Members.Learners) {
		if m := q.members[p.ID-1]; m.self == p && !m.left && m.status.Applied < want {
			return fmt.Sprintf("%v has applied %d of %d, %d were committed when it healed", p, m.status.Applied, l.status.Committed, q.truth.healed)
		}
	}
	for _, c := range q.callers {
		if c.committed == 0 || c.shown == 0 {
			return fmt.Sprintf("caller %d was told of %d proposals and %d reads since healing", c.id, c.committed, c.shown)
		}
	}
	return ""
}

func (q *quorum) finish() {
	q.truth.end()
	switch {
	case q.viable():
	case q.scenario.wild:
		q.count("not viable")
		return
	default:
		q.violate("NotViable: a cluster that can survive what befalls it\n%v", q)
	}
	q.count("viable")
	if owed := q.owed(); owed != "" {
		q.violate("Liveness: %s, %v after healing\n%v", owed, q.now.Mono-q.scenario.until, q)
	}
}

// String shows where each member stands.
func (q *quorum) String() string {
	var b strings.Builder
	for _, m := range q.members {
		s := &m.status
		fmt.Fprintf(&b, "%v up=%v term=%d leads=%v last=%d committed=%d applied=%d damaged=%v voters=%v outgoing=%v learners=%v\n",
			m.self, m.up, s.Term, s.Leads, s.Last, s.Committed, s.Applied, s.Damaged, s.Members.Voters, s.Members.Outgoing, s.Members.Learners)
	}
	return b.String()
}
