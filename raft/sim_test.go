package raft

import (
	"container/heap"
	"encoding/binary"
	"fmt"
	"hash/crc64"
	"slices"
	"strings"
)

// The simulator runs a cluster of drivers over memory stores from a seed, in
// one thread: network, clocks, disks and clients are events in one queue. All
// chance is drawn by purpose, so that one draw more in one place changes
// nothing elsewhere.

// times, in microseconds
const (
	tickEvery  = 10_000
	safetyTime = 1_500_000 // faults end here
	hopeless   = 1_700_000 // a cluster without a whole majority is left here
	healTime   = 7_000_000 // the cluster must have agreed by then
)

type stream uint8

const (
	planStream stream = iota
	netStream
	clockStream
	diskStream
	clientStream
	faultStream
	tieStream
)

// A plan is which faults and features a seed has, and how much of them.
type plan struct {
	size                   int // voters at first
	spare                  int // nodes that may join
	wild                   bool
	loss, repeat, late     uint64 // of 1000 messages
	cuts, crashes, power   bool
	tears, pauses, skew    bool
	wipes, damage, changes bool
	transfers, snapshots   bool
	churn                  uint64 // of 1000 leaders are struck when they hardly began
	story                  story
	ordered                bool   // links deliver in the order sent, as streams do
	proposeEvery           uint64 // microseconds, at most twice that
	faultEvery             uint64 // at most
	window, appendBytes    int
	snapshotBytes          int
}

type story uint8

const (
	medley   story = iota // whatever the plan says
	stutters              // followers stutter
	silence               // nobody hears a new leader, or it dies at once
	alone                 // one voter whose disk tears, and learners
)

type world struct {
	seed  uint64
	plan  plan
	draws [8][16]uint64
	now   int64
	queue events
	nodes []*member
	cut   [8][8]bool // from, to
	busy  [64]int64  // when the last message of a link arrives

	clients []*client
	truth   truth
	rare    map[string]int
	hash    uint64
	events  int
	healed  bool
	trace   func(string)
	failure string
}

// A member is one slot: a node with a disk that dies and comes back.
type member struct {
	w       *world
	slot    int
	self    Peer
	life    int // starts so far: what a dead process had under way is void
	wiped   int
	store   *MemStore
	driver  *Driver
	machine *ledger
	up      bool
	paused  bool
	left    bool      // down for good
	held    []Message // what came during a pause
	skew    int64     // percent
	lead    Term      // in which it was last seen to lead
	commit  Index
	acked   position // the greatest index it acknowledged in that term
}

type event struct {
	at, tie int64
	do      func()
}

type events []event

func (q events) Len() int { return len(q) }
func (q events) Less(i, j int) bool {
	return q[i].at < q[j].at || q[i].at == q[j].at && q[i].tie < q[j].tie
}
func (q events) Swap(i, j int) { q[i], q[j] = q[j], q[i] }
func (q *events) Push(v any)   { *q = append(*q, v.(event)) }
func (q *events) Pop() any {
	old := *q
	e := old[len(old)-1]
	*q = old[:len(old)-1]
	return e
}

func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// draw returns a number in [0, n).
func (w *world) draw(s stream, entity int, n uint64) uint64 {
	c := &w.draws[s][entity&15]
	*c++
	return mix(mix(w.seed^uint64(s)<<56)^uint64(entity)<<48^*c) % n
}

func (w *world) chance(s stream, entity int, of1000 uint64) bool {
	return w.draw(s, entity, 1000) < of1000
}

func (w *world) after(delay int64, do func()) {
	heap.Push(&w.queue, event{w.now + delay, int64(w.draw(tieStream, 0, 1<<62)), do})
}

func (w *world) fail(format string, args ...any) {
	if w.failure == "" {
		w.failure = fmt.Sprintf("at %d µs: ", w.now) + fmt.Sprintf(format, args...)
		w.note("FAILED: %s", w.failure)
	}
}

func (w *world) note(format string, args ...any) {
	if w.trace != nil {
		w.trace(fmt.Sprintf("%8d ", w.now) + fmt.Sprintf(format, args...))
	}
}

var table = crc64.MakeTable(crc64.ECMA)

func (w *world) mixIn(vs ...uint64) {
	var b [8]byte
	for _, v := range vs {
		binary.LittleEndian.PutUint64(b[:], v)
		w.hash = crc64.Update(w.hash, table, b[:])
	}
}

var cluster = UUID{1, 2, 3}

func newWorld(seed uint64, trace func(string)) *world {
	w := &world{seed: seed, trace: trace, rare: map[string]int{}}
	w.truth.init(w)
	w.plan = w.drawPlan()
	w.note("plan %+v", w.plan)
	var first Members
	for slot := range w.plan.size + w.plan.spare {
		m := &member{w: w, slot: slot, self: peer(slot+1, 0), store: NewMemStore(), skew: 100}
		if w.plan.skew {
			m.skew = 75 + int64(w.draw(clockStream, slot, 60))
		}
		w.nodes = append(w.nodes, m)
		if slot < w.plan.size {
			first.Voters = append(first.Voters, m.self)
		} else if w.plan.story == alone {
			first.Learners = append(first.Learners, m.self)
		}
	}
	w.truth.commit(Entry{Index: 1, Term: 1, Kind: Membership, Data: AppendMembers(nil, first)})
	for _, m := range w.nodes {
		if m.slot < w.plan.size {
			if err := Bootstrap(m.store, first); err != nil {
				w.fail("bootstrap: %v", err)
			}
		}
		m.start()
		m.tick()
	}
	for i := range clients {
		w.clients = append(w.clients, newClient(w, i))
	}
	w.after(200_000, w.fault)
	return w
}

func peer(id, wiped int) Peer {
	return Peer{NodeID(id), UUID{byte(id), byte(wiped + 1)}}
}

func (w *world) drawPlan() plan {
	yes := func() bool { return w.draw(planStream, 0, 2) == 0 }
	rate := func(most uint64) uint64 {
		if yes() {
			return 0
		}
		return 1 + w.draw(planStream, 0, most)
	}
	p := plan{
		size: 3 + 2*int(w.draw(planStream, 0, 2)), spare: int(w.draw(planStream, 0, 3)), wild: yes(),
		loss: rate(150), repeat: rate(150), late: rate(150),
		cuts: yes(), crashes: yes(), power: yes(), tears: yes(), pauses: yes(), skew: yes(),
		wipes: yes(), damage: yes(), changes: yes(), transfers: yes(), snapshots: yes(),
		proposeEvery: 1_000 + w.draw(planStream, 0, 16_000), churn: rate(900), ordered: yes(),
		window: 1 << w.draw(planStream, 0, 9), faultEvery: 20_000 << w.draw(planStream, 0, 5), appendBytes: 1 << w.draw(planStream, 0, 9), snapshotBytes: 100 + int(w.draw(planStream, 0, 600)),
	}
	switch w.draw(planStream, 1, 8) { // some seeds do one thing, and that often
	case 0:
		p = plan{story: stutters, ordered: true, size: p.size, snapshots: true, window: 256, appendBytes: 100, snapshotBytes: p.snapshotBytes, proposeEvery: 2000, faultEvery: 400_000}
	case 1:
		p = plan{story: silence, ordered: true, size: 3, window: 1, appendBytes: 1, snapshotBytes: 1, proposeEvery: p.proposeEvery, faultEvery: 400_000}
	case 2:
		p = plan{story: alone, size: 1, spare: 2, tears: true, window: 4, appendBytes: 100, snapshotBytes: 1, proposeEvery: 2000, faultEvery: 60_000}
	}
	return p
}

// run turns the world until it is healed and has agreed, or something is wrong.
func (w *world) run() (failure string) {
	defer func() {
		if p := recover(); p != nil {
			w.fail("panic: %v", p)
		}
		failure = w.failure
	}()
	for w.failure == "" && len(w.queue) > 0 && w.now < healTime {
		e := heap.Pop(&w.queue).(event)
		w.now = e.at
		if w.now >= safetyTime && !w.healed {
			w.heal()
		}
		e.do()
		w.events++
		if w.healed && w.events%64 == 0 && (w.agreement() == "" || w.now > hopeless && !w.viable()) {
			break
		}
	}
	if w.failure == "" {
		w.finish()
	}
	return w.failure
}

func (m *member) start() {
	c := Config{
		Cluster: cluster, Self: m.self, Seed: mix(m.w.seed ^ uint64(m.slot)<<32 ^ uint64(m.life)),
		ElectionTicks: 10, HeartbeatTicks: 2, MaxAppendBytes: m.w.plan.appendBytes, Window: m.w.plan.window, ChunkBytes: 64,
		MaxUncommitted: 2000, MaxReads: 32,
	}
	o := Options{SnapshotBytes: 1 << 30, MaxCalls: 32, MaxMessages: 256}
	if m.w.plan.snapshots {
		o.SnapshotBytes = m.w.plan.snapshotBytes
	}
	m.life++
	m.machine = &ledger{m: m}
	d, err := NewDriver(c, watched{m.store, m}, m, m.machine, o)
	if err != nil {
		m.w.fail("node %d does not start: %v", m.self.ID, err)
		return
	}
	m.driver, m.up, m.paused, m.held, m.commit = d, true, false, nil, 0
	if d.node.damaged > 0 {
		m.w.rare["damaged start"]++
	}
	m.w.note("%d starts: term %d last %d snapshot %d damaged %d", m.self.ID, d.node.vote.Term, d.node.log.last(), d.node.log.snapshot.Index, d.node.damaged)
}

// tick turns the node on its own clock for ever.
func (m *member) tick() {
	m.w.after(tickEvery*m.skew/100, func() {
		m.tick()
		if m.up && !m.paused {
			m.driver.Tick()
			m.turn()
		}
	})
}

// turn turns the driver until nothing is left to do, as its loop would.
func (m *member) turn() {
	for range 100 {
		worked, err := m.driver.Turn()
		if err != nil {
			m.w.note("%d stops: %v", m.self.ID, err)
			m.die(true)
			return
		}
		m.w.look(m)
		if !worked || m.w.failure != "" {
			return
		}
	}
	m.w.fail("node %d always has something to do", m.self.ID)
}

// die ends the process; with the power gone, what was not synced may be, too.
func (m *member) die(power bool) {
	if !m.up {
		return
	}
	m.up = false
	m.driver.stop(ErrClosed)
	var keep func(int) int
	if power {
		keep = func(n int) int { return int(m.w.draw(diskStream, m.slot, uint64(n))) }
	}
	m.store = m.store.Restart(keep)
	m.w.truth.lookLost()
}

// Send is the node's transport: each message may be lost, repeated, late.
func (m *member) Send(messages []Message) {
	w := m.w
	for _, msg := range messages {
		w.truth.sent(m, &msg)
		link := m.slot<<3 | int(msg.To.ID-1)
		msg = w.reencode(msg)
		copies := 1
		if !w.healed {
			if w.chance(netStream, link, w.plan.loss) {
				if msg.Kind == SnapshotKind {
					w.rare["lost chunk"]++
				}
				copies = 0
			} else if w.chance(netStream, link, w.plan.repeat) {
				copies = 2
			}
		}
		for range copies {
			delay := 300 + int64(w.draw(netStream, link, 2000))
			if !w.healed && w.chance(netStream, link, w.plan.late) {
				delay = int64(w.draw(netStream, link, 600_000))
			}
			if w.plan.ordered {
				delay = max(delay, w.busy[link]+1-w.now)
				w.busy[link] = w.now + delay
			}
			w.after(delay, func() { w.deliver(m.slot, msg) })
		}
	}
}

// reencode sends every message through its bytes.
func (w *world) reencode(m Message) Message {
	b := AppendMessage(nil, &m)
	got, err := DecodeMessage(b)
	if err != nil {
		w.fail("%v does not survive its bytes: %v", m, err)
	}
	w.hash = crc64.Update(w.hash, table, b)
	return got
}

func (w *world) deliver(from int, msg Message) {
	to := w.nodes[msg.To.ID-1]
	switch {
	case w.cut[from][to.slot] && !w.healed, !to.up:
		return
	case to.paused:
		if len(to.held) < 200 {
			to.held = append(to.held, msg)
		}
		return
	}
	w.note("%v", msg)
	if log := &to.driver.node.log; msg.Kind == SnapshotKind && log.commit < msg.Snapshot.Index && log.matches(msg.Snapshot.Index, msg.Snapshot.Term) {
		w.rare["snapshot of what is held uncommitted"]++
	}
	to.driver.Deliver(msg)
	to.turn()
}

// watched shows the truth what a store is told.
type watched struct {
	*MemStore
	m *member
}

func (s watched) Append(entries []Entry) error {
	s.m.w.truth.appended(s.m, entries)
	if entries[0].Index <= s.live.last() {
		s.m.w.rare["conflict truncation"]++
	}
	return s.MemStore.Append(entries)
}

func (s watched) Install(snap Snapshot) error {
	d := s.m.driver
	s.m.w.rare["snapshot installed"]++
	if live := &s.MemStore.live; live.last() > live.Snapshot.Index {
		for _, e := range live.Entries {
			if e.Kind == Membership && d != nil && e.Index > s.m.commit {
				s.m.w.rare["snapshot over an uncommitted configuration"]++
			}
		}
	}
	return s.MemStore.Install(snap)
}

func (w *world) String() string {
	var b strings.Builder
	for _, m := range w.nodes {
		if m.driver != nil {
			s := m.driver.Status()
			fmt.Fprintf(&b, "%v up=%v term=%d leads=%v last=%d commit=%d applied=%d damaged=%v voters=%v outgoing=%v\n", m.self, m.up, s.Term, s.Leads, s.Last, s.Committed, s.Applied, s.Damaged, s.Members.Voters, s.Members.Outgoing)
		}
	}
	return b.String()
}

// live reports whether p is what lives in its slot now.
func (w *world) live(p Peer) bool {
	return slices.ContainsFunc(w.nodes, func(m *member) bool { return m.self == p })
}
