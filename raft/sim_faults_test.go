package raft

import "fmt"

// fault does one thing to the cluster and sets the time of the next.
func (w *world) fault() {
	if w.healed {
		return
	}
	w.after(5_000+int64(w.draw(faultStream, 0, w.plan.faultEvery)), w.fault)
	switch w.plan.story {
	case stutters:
		w.stutter()
		return
	case silence:
		return
	case alone:
		w.tear(w.nodes[0])
		return
	}
	m := w.nodes[w.draw(faultStream, 1, uint64(len(w.nodes)))]
	if w.draw(faultStream, 9, 2) == 0 { // leaders are where it hurts
		if l := w.leading(); l != nil {
			m = l
		}
	}
	p := &w.plan
	switch w.draw(faultStream, 2, 10) {
	case 0:
		switch {
		case p.cuts && w.draw(faultStream, 11, 2) == 0:
			w.stutter()
		case p.cuts:
			w.drawCut(m.slot)
		}
	case 1:
		w.cut = [8][8]bool{}
	case 2:
		if p.crashes {
			w.down(m, false)
		}
	case 3:
		if p.power {
			w.down(m, true)
		}
	case 4:
		if p.power { // all at once
			for _, m := range w.nodes {
				w.down(m, true)
			}
		}
	case 5:
		if p.tears {
			w.tear(m)
		}
	case 6:
		if p.pauses {
			w.pause(m)
		}
	case 7:
		if p.wipes {
			w.wipe(m)
		}
	case 8:
		if p.damage {
			w.hurt(m)
		}
	case 9:
		if p.transfers && w.draw(faultStream, 3, 2) == 0 {
			w.transfer()
		} else if p.changes {
			w.change()
		}
	}
}

// elected may strike a leader that hardly began.
func (w *world) elected(m *member) {
	life, term := m.life, m.driver.node.vote.Term
	switch {
	case w.healed:
		return
	case w.plan.story == silence && w.draw(faultStream, 14, 2) == 0:
		w.whisper(m, m.slot)
		w.after(0, func() { m.flood(3) })
		return
	case w.plan.story == silence:
		w.after(2_000+int64(w.draw(faultStream, 14, 15_000)), func() {
			if m.life == life {
				w.down(m, false)
			}
		})
		return
	case !w.chance(faultStream, 10, w.plan.churn):
		return
	}
	w.after(int64(w.draw(faultStream, 10, 1<<(8+w.draw(faultStream, 10, 7)))), func() {
		if !m.up || m.life != life || m.driver.node.vote.Term != term || w.healed {
			return
		}
		kind := w.draw(faultStream, 10, 6)
		if kind > 0 && w.plan.changes {
			w.change()
			w.change()
		}
		switch kind {
		case 0, 1:
			w.down(m, w.plan.power)
		case 2:
			w.pause(m)
		case 3:
			w.drawCut(m.slot)
		default:
			w.whisper(m, int(w.draw(faultStream, 12, uint64(len(w.nodes)))))
		}
	})
}

// leading returns the leader of the newest term, if there is one.
func (w *world) leading() *member {
	var l *member
	for _, m := range w.nodes {
		if m.up && m.driver.Status().Leads && (l == nil || m.driver.Status().Term > l.driver.Status().Term) {
			l = m
		}
	}
	return l
}

// down stops a node and starts it again later.
func (w *world) down(m *member, power bool) {
	if w.healed {
		return
	}
	if m.up {
		w.note("%d dies, power cut %v", m.self.ID, power)
		m.die(power)
	}
	w.after(int64(w.draw(faultStream, 4, 400_000)), func() {
		if !m.up && !m.left {
			m.start()
		}
	})
}

// tear lets a node's disk stop at one of its next writes, and the node with it.
func (w *world) tear(m *member) {
	if m.up {
		m.store.StopAt(1+int(w.draw(diskStream, m.slot, 6)), w.draw(diskStream, m.slot, 2) == 0)
	}
	w.after(5*int64(w.plan.faultEvery), func() { w.down(m, true) })
}

func (w *world) pause(m *member) {
	if !m.up || m.paused {
		return
	}
	w.note("%d is paused", m.self.ID)
	m.paused = true
	life := m.life
	w.after(int64(w.draw(faultStream, 5, 600_000)), func() {
		if m.up && m.life == life {
			m.resume()
		}
	})
}

func (m *member) resume() {
	if !m.paused {
		return
	}
	m.w.note("%d goes on", m.self.ID)
	m.paused = false
	held := m.held
	m.held = nil
	m.turn() // clients were first in the queue
	for i, msg := range held {
		if !m.up {
			return
		}
		m.driver.Deliver(msg)
		if i%7 == 0 {
			m.turn()
		}
	}
	if m.up {
		m.turn()
	}
}

// drawCut draws one of the shapes in which networks break.
func (w *world) drawCut(a int) {
	n := len(w.nodes)
	set := func(from, to int) { w.cut[from][to] = true }
	shape := w.draw(faultStream, 6, 6)
	w.note("cut of shape %d at %d", shape, a+1)
	half := int(w.draw(faultStream, 6, 1<<uint(n)))
	for i := range n {
		for j := range n {
			switch {
			case i == j:
			case shape == 0 && (i == a || j == a), // one alone
				shape == 1 && j == a,                                     // one is deaf
				shape == 2 && i == a,                                     // one is dumb
				shape == 3 && half>>i&1 != half>>j&1,                     // two halves
				shape == 4 && i != a && j != a && half>>i&1 != half>>j&1: // two halves and a bridge
				set(i, j)
			}
		}
	}
}

// whisper lets a leader be heard by one node only, or by none if that is
// itself, and die: what it appended lies on a minority, as in the paper's
// figure 8.
func (w *world) whisper(m *member, one int) {
	w.note("%d is heard by %d only", m.self.ID, one+1)
	for i := range w.nodes {
		w.cut[m.slot][i], w.cut[i][m.slot] = i != one, i != one
	}
	life := m.life
	w.after(10_000+int64(w.draw(faultStream, 12, 60_000)), func() {
		if m.life == life && !w.healed {
			w.down(m, false)
		}
		w.cut = [8][8]bool{}
	})
}

// stutter makes a follower take entries, the last of which are not committed,
// without its leader hearing that it has them; by the time they hear each other
// again the leader may have a snapshot among those, and no entries before it.
func (w *world) stutter() {
	l := w.leading()
	f := int(w.draw(faultStream, 13, uint64(len(w.nodes))))
	if l == nil || l.slot == f {
		return
	}
	w.note("%d stutters", f+1)
	shape := func(cut func(from, to int) bool) func() {
		return func() {
			for i := range w.nodes {
				for j := range w.nodes {
					w.cut[i][j] = cut(i, j)
				}
			}
		}
	}
	shape(func(from, _ int) bool { return from == f })()
	at := 50_000 + int64(w.draw(faultStream, 13, 150_000))
	w.after(at, func() {
		shape(func(from, to int) bool { return to == l.slot || from == l.slot && to != f })()
		l.flood(int(w.draw(faultStream, 13, 60)))
	})
	at += 5_000 + int64(w.draw(faultStream, 13, 50_000))
	w.after(at, shape(func(from, to int) bool { return from == f || to == f }))
	at += 2_000 + int64(w.draw(faultStream, 13, 60_000))
	w.after(at, shape(func(int, int) bool { return false }))
}

// flood proposes commands without effect, whose outcome nobody waits for.
func (m *member) flood(n int) {
	if !m.up || m.paused {
		return
	}
	for range n {
		m.driver.Propose(make([]byte, 8), func(Index, error) {})
		m.turn()
	}
}

// wipe gives a node an empty disk: it is somebody else from now on.
func (w *world) wipe(m *member) {
	if !w.plan.wild && !w.viableWithout(m) {
		return
	}
	w.note("%d is wiped", m.self.ID)
	m.die(false)
	m.acked = position{}
	m.wiped++
	m.self = peer(m.slot+1, m.wiped)
	m.store = NewMemStore()
	m.start()
	w.rare["wipe"]++
}

// hurt damages an entry of a node's log while it is down.
func (w *world) hurt(m *member) {
	if !w.plan.wild && !w.viableWithout(m) {
		return
	}
	m.die(false)
	live := &m.store.live
	if n := uint64(live.last() - live.Snapshot.Index); n > 0 {
		i := live.Snapshot.Index + 1 + Index(w.draw(diskStream, m.slot, n))
		w.note("entry %d of %d is damaged", i, m.self.ID)
		m.store.Damage(i)
		m.acked = position{}
		w.rare["damaged entry"]++
	}
	m.start()
}

// viableWithout reports whether all memberships that any node goes by have a
// majority of whole voters without m.
func (w *world) viableWithout(m *member) bool {
	for _, n := range w.nodes {
		for _, c := range n.driver.node.log.configs {
			if !c.members.quorum(func(p Peer) bool { return p != m.self && w.whole(p) }) && len(c.members.Voters) > 0 {
				return false
			}
		}
	}
	return true
}

// whole reports whether a member lives on the disk it promised on, and can read
// all of it.
func (w *world) whole(p Peer) bool {
	m := w.nodes[p.ID-1]
	return m.self == p && !m.left && m.store.live.Damaged <= m.store.live.last()
}

func (w *world) transfer() {
	l := w.leading()
	to := w.nodes[w.draw(faultStream, 7, uint64(len(w.nodes)))]
	if l == nil || l.paused {
		return
	}
	l.driver.Transfer(to.self, func(_ Index, err error) {
		w.note("%d hands over to %d: %v", l.self.ID, to.self.ID, err)
		if err == nil {
			w.rare["transfer"]++
		}
	})
	l.turn()
}

// change asks a leader, or one who thinks so, for a new membership.
func (w *world) change() {
	l := w.leading()
	if l == nil || l.paused {
		return
	}
	var voters, learners []Peer
	for len(voters) == 0 {
		for _, m := range w.nodes {
			switch w.draw(faultStream, 8, 4) {
			case 0, 1:
				voters = append(voters, m.self)
			case 2:
				learners = append(learners, m.self)
			}
		}
	}
	l.driver.Change(voters, learners, func(_ Index, err error) {
		w.note("change to %v + %v: %v", voters, learners, err)
		if err == nil {
			w.rare["membership change"]++
		}
	})
	l.turn()
}

// heal ends all faults: everybody hears everybody, and is up but for some that
// are not needed.
func (w *world) heal() {
	w.note("healed")
	w.healed = true
	w.cut = [8][8]bool{}
	for _, m := range w.nodes {
		m.store.StopAt(1<<40, false)
		m.left = w.draw(faultStream, 15, 3) == 0 && w.viableWithout(m)
		switch {
		case m.left:
			w.note("%d is left out", m.self.ID)
			m.die(false)
		case !m.up:
			m.start()
		case m.paused:
			m.resume()
		}
	}
	w.truth.healedAt = w.truth.last()
}

// viable reports whether every membership that anybody may go by has a majority
// of whole voters.
func (w *world) viable() bool {
	viable := w.truth.config.quorum(w.whole)
	for _, n := range w.nodes {
		for _, c := range n.driver.node.log.configs {
			viable = viable && (len(c.members.Voters) == 0 || c.members.quorum(w.whole))
		}
	}
	return viable
}

// agreement says what a healed cluster still owes: a leader, new entries
// committed, and all members with them; "" if nothing.
func (w *world) agreement() string {
	l := w.leading()
	if l == nil {
		return "nobody leads"
	}
	s := l.driver.Status()
	if w.truth.last() < w.truth.healedAt+10 {
		return fmt.Sprintf("%d entries were committed since healing", w.truth.last()-w.truth.healedAt)
	}
	for _, p := range s.Members.all() {
		if m := w.nodes[p.ID-1]; m.self == p && !m.left && m.driver.Status().Applied < w.truth.healedAt+10 {
			return fmt.Sprintf("%v has applied %d of %d, %d when it healed", p, m.driver.Status().Applied, s.Committed, w.truth.healedAt)
		}
	}
	return ""
}

func (w *world) finish() {
	w.truth.end()
	if !w.viable() {
		w.rare["not viable"]++
		return
	}
	w.rare["viable"]++
	if owed := w.agreement(); owed != "" {
		w.fail("Liveness: %s, %d s after healing\n%v", owed, (w.now-safetyTime)/1_000_000, w)
	}
}
