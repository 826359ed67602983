package sim

import (
	"time"

	"github.com/teralog/teralog/raft"
)

// befall lets a fault happen to the member meant: the winner of an election, if
// it is about that. A node that is down is spared.
func (q *quorum) befall(f *fault, winner *member) {
	m := winner
	switch {
	case q.healed:
		return
	case f.kind == "mend":
		q.say("%v", f)
		q.cuts = [maxMembers][maxMembers]bool{}
		return
	case f.who > 0:
		m = q.members[f.who-1]
	case m == nil:
		m = q.leading()
	}
	if m == nil || !m.up {
		return
	}
	q.say("%v (to %d)", f, m.self.ID)
	switch f.kind {
	case "cut":
		q.cut(f, m.slot)
	case "flap":
		q.flap(f, m.slot, q.now.Mono+f.lasts)
	case "crash":
		m.down(f.power, f.lasts)
	case "stop":
		m.disk.stopAt(f.n, f.done)
		m.stop = f
	case "lie":
		m.disk.lie()
		m.stop = f
	case "slow":
		m.slow = q.now.Mono + f.lasts
	case "full":
		m.full = q.now.Mono + f.lasts
	case "rot":
		m.shadow.rotten = m.shadow.live.snapshot
	case "pause":
		m.pause(f.lasts)
	case "wipe":
		m.wipe()
	case "damage":
		m.damage(f.n)
	case "transfer":
		m.transfer(f.to)
	case "change":
		m.change(f.voters, f.learners)
	case "murmur":
		q.murmur(m, f.to-1, f.n)
	case "whisper":
		q.whisper(f, m)
	default:
		panic("BUG: no such fault: " + f.kind)
	}
}

// elected lets happen what a scenario has for the winner of this election.
func (q *quorum) elected(m *member) {
	q.elections++
	life, term := m.life, m.status.Term
	for i := range q.scenario.faults {
		f := &q.scenario.faults[i]
		if f.election != q.elections {
			continue
		}
		q.after(f.at, func() {
			if m.life == life && m.up && m.status.Term == term {
				q.befall(f, m)
			}
		})
	}
}

// flap breaks a link both ways and mends it, by turns.
func (q *quorum) flap(f *fault, a int, until time.Duration) {
	if q.healed {
		return
	}
	b := f.to - 1
	broken := !q.cuts[a][b] && q.now.Mono < until
	q.cuts[a][b], q.cuts[b][a] = broken, broken
	if q.now.Mono < until {
		q.after(f.every, func() { q.flap(f, a, until) })
	}
}

// murmur lets a leader be heard by one node only, and hear nobody, while it
// appends.
func (q *quorum) murmur(m *member, one, n int) {
	q.cuts = [maxMembers][maxMembers]bool{}
	for i := range q.members {
		q.cuts[i][m.slot], q.cuts[m.slot][i] = true, i != one
	}
	m.flood(n)
}

// whisper lets a leader be heard by one node only, or by none, and die: what it
// appended lies on a minority, as in figure 8 of the Raft paper.
func (q *quorum) whisper(f *fault, m *member) {
	for i := range q.members {
		q.cuts[m.slot][i], q.cuts[i][m.slot] = i != f.to-1, i != f.to-1
	}
	life := m.life
	m.flood(f.n)
	q.after(f.every, func() {
		if q.healed {
			return
		}
		if m.life == life {
			m.down(false, f.lasts)
		}
		q.cuts = [maxMembers][maxMembers]bool{}
	})
}

// flood proposes commands without effect, whose outcome nobody waits for.
func (m *member) flood(n int) {
	for range n {
		if m.up && !m.paused {
			m.driver.Propose(make([]byte, proposalBytes), func(raft.Index, error) {})
			m.turn()
		}
	}
}

func (m *member) pause(lasts time.Duration) {
	if m.paused {
		return
	}
	m.paused = true
	life := m.life
	m.q.after(lasts, func() {
		if m.up && m.paused && m.life == life {
			m.resume()
		}
	})
}

// wipe gives a node an empty disk: it is somebody else from now on.
func (m *member) wipe() {
	if !m.q.scenario.wild && !m.q.viableWithout(m) {
		return
	}
	m.die(false)
	m.acked = point{}
	m.wiped++
	m.self = peer(m.slot+1, m.wiped)
	m.disk = m.q.newDisk(m.slot, m.wiped)
	m.shadow = shadow{m: m}
	m.start()
	m.q.count("wipe")
}

// damage makes a part of a node's log unreadable while it is down.
func (m *member) damage(n int) {
	if !m.q.scenario.wild && !m.q.viableWithout(m) {
		return
	}
	m.die(false)
	if m.disk.damage(n, &m.shadow) {
		m.shadow.hurt = true
		m.q.count("damaged entry")
	}
	m.start()
}

// transfer hands leadership over; to itself means to the fittest.
func (m *member) transfer(to int) {
	peer := m.q.members[to-1].self
	if peer == m.self {
		peer = raft.Peer{}
	}
	m.driver.Transfer(peer, func(_ raft.Index, err error) {
		if err == nil {
			m.q.count("transfer")
		}
	})
	m.turn()
}

// change asks for a new membership of those who live in these slots now, from
// 1; 0 is m itself. A cluster that has to survive is not asked if it would come
// to that only later, when they may live no more, nor for voters of whom a
// majority is damaged.
func (m *member) change(voters, learners []int) {
	peers := func(slots []int) (ps []raft.Peer) {
		for _, s := range slots {
			if s == 0 {
				s = m.slot + 1
			}
			ps = append(ps, m.q.members[s-1].self)
		}
		return ps
	}
	late := m.paused || m.shadow.refused || m.q.now.Mono < m.busy
	if !m.q.scenario.wild && (late || !decides(&raft.Members{Voters: peers(voters)}, m.q.whole)) {
		return
	}
	m.driver.Change(peers(voters), peers(learners), func(i raft.Index, err error) {
		m.q.say("change to %v + %v: entry %d, %v", voters, learners, i, err)
		if err == nil {
			m.q.count("membership change")
		}
	})
	m.turn()
}
