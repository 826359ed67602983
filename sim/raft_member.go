package sim

import (
	"time"

	"github.com/teralog/teralog/raft"
)

// A member is one node of the cluster: a disk, and the processes that live on
// it one after the other. A wiped node is another member in the same slot.
type member struct {
	q      *quorum
	slot   int
	self   raft.Peer
	life   int // processes so far: what a dead one had under way is void
	wiped  int
	disk   disk
	shadow shadow

	driver  *raft.Driver
	machine *ledger
	status  raft.Status // after its last turn
	up      bool
	paused  bool
	left    bool           // down for good
	held    []raft.Message // what came during a pause
	busy    time.Duration  // its loop waits for the disk until then
	lag     time.Duration  // how long the disk took in this turn
	slow    time.Duration  // until then each fsync takes long
	full    time.Duration  // until then there is no room on the disk
	stop    *fault         // what is to happen when the disk stops

	burst     int // messages sent since burstFrom
	burstFrom time.Duration

	led       raft.Term // the newest in which it was seen to lead
	committed raft.Index
	acked     point // the last entry it acknowledged, and in which term
}

// start begins a process on what the disk holds.
func (m *member) start() {
	s := m.q.scenario
	c := raft.Config{
		Cluster: raftCluster, Self: m.self, Seed: scramble(m.q.seed ^ uint64(m.slot)<<32 ^ uint64(m.life)),
		ElectionTicks: 10, HeartbeatTicks: 2, MaxAppendBytes: s.appendBytes, Window: s.window, ChunkBytes: 64,
		MaxUncommitted: 2000, MaxReads: 32,
	}
	o := raft.Options{SnapshotBytes: 1 << 30, MaxCalls: 32, MaxMessages: 256}
	if s.snapshotBytes > 0 {
		o.SnapshotBytes = s.snapshotBytes
	}
	m.life++
	m.machine = &ledger{m: m}
	var d *raft.Driver
	var err error
	if m.shadow.Store, err = m.disk.open(m.self); err == nil && m.life == 1 && m.slot < s.voters {
		err = raft.Bootstrap(&m.shadow, m.q.first())
	}
	if err == nil {
		d, err = raft.NewDriver(c, &m.shadow, m, m.machine, o)
	}
	if err != nil {
		m.q.violate("Start: node %d: %v", m.self.ID, err)
		return
	}
	m.driver, m.status = d, d.Status()
	m.up, m.paused, m.held, m.busy, m.stop = true, false, nil, 0, nil
	m.committed = 0
	if m.status.Damaged {
		m.q.count("damaged start")
		m.acked = point{} // it knows that it may have acknowledged more
	}
	if m.q.trace != nil {
		m.q.say("%d starts: term %d last %d snapshot %d damaged %v", m.self.ID, m.status.Term, m.status.Last, m.status.Snapshot, m.status.Damaged)
	}
}

// tick turns the node on its own clock for ever.
func (m *member) tick() {
	every := raftTick
	if skew := m.q.scenario.skew; len(skew) > 0 {
		every = every * time.Duration(skew[m.slot]) / 100
	}
	m.q.after(every, func() {
		m.tick()
		if m.up {
			m.driver.Tick()
			m.turn()
		}
	})
}

// turn turns the driver until nothing is left to do, as its loop would: while
// an fsync runs, what comes waits.
func (m *member) turn() {
	for range 100 {
		if !m.up || m.paused || m.q.now.Mono < m.busy {
			return
		}
		m.lag, m.shadow.refused = 0, false
		worked, err := m.driver.Turn()
		if err != nil {
			m.stopped(err)
			return
		}
		m.look()
		if m.lag > 0 {
			m.busy = m.q.now.Mono + m.lag
			life := m.life
			m.q.after(m.lag, func() {
				if m.life == life {
					m.turn()
				}
			})
		}
		if !worked || m.q.broken != "" {
			return
		}
	}
	m.q.violate("Busy: node %d always has something to do", m.self.ID)
}

// stopped ends a process whose store failed, which is what f was about.
func (m *member) stopped(err error) {
	m.q.say("%d stops: %v", m.self.ID, err)
	f := m.stop
	if f == nil || !stoppedOn(err) {
		m.q.violate("Store: node %d: %v", m.self.ID, err)
		return
	}
	m.q.count("disk stopped")
	m.down(f.power, f.lasts)
}

// die ends the process. With the power gone, what was not synced may be, too.
func (m *member) die(power bool) {
	if !m.up {
		return
	}
	m.up, m.driver, m.status.Leads = false, nil, false
	m.disk.die(power)
	for _, c := range m.q.callers {
		c.hungUp(m)
	}
	m.q.truth.lookLost()
}

// down lets the process die and start again after a time.
func (m *member) down(power bool, lasts time.Duration) {
	if m.q.healed || !m.up {
		return
	}
	m.q.say("%d dies, power cut %v", m.self.ID, power)
	m.die(power)
	life := m.life
	m.q.after(lasts, func() {
		if !m.up && m.life == life && !m.left {
			m.start()
		}
	})
}

func (m *member) resume() {
	m.q.say("%d goes on", m.self.ID)
	m.paused = false
	held := m.held
	m.held = nil
	m.turn() // calls and ticks were first in the queue
	for i, msg := range held {
		if !m.up {
			return
		}
		m.driver.Deliver(msg)
		if i%7 == 0 {
			m.turn()
		}
	}
	m.turn()
}

// synced is told by the shadow that the disk has done an fsync.
func (m *member) synced() {
	if m.q.healed {
		return
	}
	if m.q.now.Mono < m.slow {
		m.lag += 30 * time.Millisecond
	}
	if d := m.q.scenario.fsync; d > 0 {
		m.lag += m.q.upTo(streamDisk, m.slot, 2*d)
	}
}
