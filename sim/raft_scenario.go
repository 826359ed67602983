package sim

import (
	"cmp"
	"math/rand/v2"
	"slices"
	"time"
)

// A scenario is all that a seed decides beforehand: what the cluster is like
// and what befalls it. The rest, delays and losses and torn writes, is drawn
// from the seed on the way, for each link and disk by itself, so that a fault
// taken out of a scenario leaves the others what they were.
type scenario struct {
	seed                     uint64
	voters, learners, spares int  // nodes at first; a spare is no member yet
	wild                     bool // more may be wiped and damaged than the cluster survives

	loss, repeat, late, foreign int  // of 1000 messages: lost, sent twice, much too late, followed by one of another cluster
	ordered                     bool // links deliver in the order sent, as streams do

	skew  []int         // percent of a tick that a node's tick takes, by slot; empty: 100
	fsync time.Duration // of a disk, on average
	disks bool          // members have the store that servers use, on file systems in memory

	window, appendBytes, snapshotBytes int // snapshotBytes 0: no snapshots
	callers                            int
	propose                            time.Duration // what a caller waits between two requests, on average

	faults []fault
	until  time.Duration // faults end, and all but left are healed
	left   []int         // members that may stay away then, from 1
}

// A fault befalls the cluster at a time, or after an election.
type fault struct {
	election int           // 0: at is a time; else it counts from the nth election, whose winner is the leader meant
	at       time.Duration //
	kind     string        // one of those in befall
	who      int           // a node, from 1; 0: who leads then
	to       int           // another one
	shape    string        // of a cut
	half     []int         // of a cut: who is on one side, from 1
	power    bool          // the machine dies, too, and what was not synced may be gone
	done     bool          // of a disk that stops: its last write came through
	n        int           // how many
	every    time.Duration //
	lasts    time.Duration //
	voters   []int         // of a new membership, from 1; 0: the one that is asked for it
	learners []int
}

// faultKinds are what may befall a cluster; see befall.
var faultKinds = []string{"cut", "mend", "flap", "crash", "stop", "lie", "slow", "full", "rot", "pause", "wipe", "damage", "transfer", "change", "murmur", "whisper"}

// shapes are the ways in which networks break.
var shapes = []string{"alone", "deaf", "dumb", "halves", "bridge", "ring", "link"}

// A drawing makes a scenario.
type drawing struct {
	*rand.Rand
	s *scenario
}

func (d drawing) yes() bool { return d.IntN(2) == 0 }

// rate draws nothing in half of all cases, else 1 to most.
func (d drawing) rate(most int) int {
	if d.yes() {
		return 0
	}
	return 1 + d.IntN(most)
}

func (d drawing) upTo(t time.Duration) time.Duration {
	return time.Duration(d.Int64N(int64(t/time.Microsecond))) * time.Microsecond
}

func (d drawing) node() int { return 1 + d.IntN(d.s.nodes()) }

func (s *scenario) nodes() int { return s.voters + s.learners + s.spares }

func (d drawing) add(f fault) { d.s.faults = append(d.s.faults, f) }

// drawScenario draws what a seed is about. One in three does one thing only,
// and that often.
func drawScenario(seed uint64) *scenario {
	s := &scenario{seed: seed, until: 1500 * time.Millisecond, callers: 5}
	d := drawing{rand.New(rand.NewPCG(seed, 0)), s}
	s.voters = 3 + 2*d.IntN(2)
	s.snapshotBytes = 100 + d.IntN(600)
	s.propose = time.Millisecond + d.upTo(16*time.Millisecond)
	switch d.IntN(12) {
	case 0:
		d.stutters()
	case 1:
		d.silence()
	case 2:
		d.alone()
	case 3:
		d.haste()
	default:
		d.medley()
	}
	s.disks = d.IntN(4) == 0
	for i := range s.nodes() {
		if d.IntN(3) == 0 {
			s.left = append(s.left, i+1)
		}
	}
	slices.SortStableFunc(s.faults, func(a, b fault) int {
		return cmp.Or(cmp.Compare(a.election, b.election), cmp.Compare(a.at, b.at))
	})
	return s
}

// medley draws which faults there are at all, then when they come.
func (d drawing) medley() {
	s := d.s
	s.spares, s.wild = d.IntN(3), d.IntN(4) > 0 // so that half of all seeds are
	s.loss, s.repeat, s.late, s.foreign = d.rate(150), d.rate(150), d.rate(150), d.rate(10)
	s.ordered = d.yes()
	s.window, s.appendBytes = 1<<d.IntN(9), 1<<d.IntN(9)
	if d.yes() {
		s.snapshotBytes = 0
	}
	if d.yes() {
		for range s.nodes() {
			s.skew = append(s.skew, 75+d.IntN(60))
		}
	}
	if d.yes() {
		s.fsync = d.upTo(4 * time.Millisecond)
	}
	var kinds []string
	for _, kind := range []string{"cut", "flap", "stutter", "crash", "power", "blackout", "stop", "lie", "slow", "full", "rot", "pause", "wipe", "damage", "transfer", "change"} {
		if d.yes() {
			kinds = append(kinds, kind)
		}
	}
	every := 20 * time.Millisecond << d.IntN(5)
	for at := 200 * time.Millisecond; at < s.until; at += 5*time.Millisecond + d.upTo(every) {
		if len(kinds) > 0 {
			d.draw(at, kinds[d.IntN(len(kinds))])
		}
		if d.IntN(4) == 0 {
			d.add(fault{at: at, kind: "mend"})
		}
	}
	if churn := d.rate(900); churn > 0 {
		for n := 1; n < 60; n++ {
			if d.IntN(1000) < churn {
				d.strike(n, slices.Contains(kinds, "change"), slices.Contains(kinds, "power"))
			}
		}
	}
}

func (d drawing) draw(at time.Duration, kind string) {
	f := fault{at: at, kind: kind, who: d.node(), lasts: d.upTo(400 * time.Millisecond)}
	if d.yes() {
		f.who = 0 // leaders are where it hurts
	}
	switch kind {
	case "cut":
		d.cut(&f)
	case "flap":
		f.to, f.every = d.node(), 5*time.Millisecond+d.upTo(100*time.Millisecond)
	case "stutter":
		d.stutter(at, d.node())
		return
	case "power":
		f.kind, f.power = "crash", true
	case "blackout": // all at once
		for who := range d.s.nodes() {
			d.add(fault{at: at, kind: "crash", who: who + 1, power: true, lasts: d.upTo(400 * time.Millisecond)})
		}
		return
	case "stop":
		f.n, f.done, f.power = 1+d.IntN(6), d.yes(), d.IntN(4) > 0
	case "lie":
		f.power = d.yes()
	case "pause":
		f.lasts = d.upTo(600 * time.Millisecond)
	case "wipe":
		f.lasts = 0
	case "damage":
		f.n, f.lasts = d.IntN(1000), 0
	case "transfer":
		f.who, f.to, f.lasts = 0, d.node(), 0
	case "change":
		d.change(fault{at: at})
		return
	}
	d.add(f)
}

func (d drawing) cut(f *fault) {
	f.shape, f.lasts = shapes[d.IntN(len(shapes))], 0
	switch f.shape {
	case "link":
		f.to = d.node()
	case "halves", "bridge":
		for who := range d.s.nodes() {
			if d.yes() {
				f.half = append(f.half, who+1)
			}
		}
	}
}

func (d drawing) change(f fault) {
	f.kind = "change"
	for len(f.voters) == 0 {
		f.voters, f.learners = nil, nil
		for who := range d.s.nodes() {
			switch d.IntN(4) {
			case 0, 1:
				f.voters = append(f.voters, who+1)
			case 2:
				f.learners = append(f.learners, who+1)
			}
		}
	}
	d.add(f)
}

// stutter makes a follower take entries, the last of which are not committed,
// without its leader hearing that it has them; by the time they hear each other
// again the leader may have a snapshot among those, and no entries before it.
func (d drawing) stutter(at time.Duration, who int) {
	d.add(fault{at: at, kind: "cut", shape: "dumb", who: who})
	at += 50*time.Millisecond + d.upTo(150*time.Millisecond)
	d.add(fault{at: at, kind: "murmur", to: who, n: d.IntN(60)})
	at += 5*time.Millisecond + d.upTo(50*time.Millisecond)
	d.add(fault{at: at, kind: "cut", shape: "alone", who: who})
	at += 2*time.Millisecond + d.upTo(60*time.Millisecond)
	d.add(fault{at: at, kind: "mend"})
}

// strike hits a leader that hardly began.
func (d drawing) strike(election int, change, power bool) {
	f := fault{election: election, at: d.upTo(256 * time.Microsecond << d.IntN(7)), lasts: d.upTo(400 * time.Millisecond)}
	what := d.IntN(6)
	if what > 0 && change {
		d.change(fault{election: f.election, at: f.at})
		d.change(fault{election: f.election, at: f.at})
	}
	switch what {
	case 0, 1:
		f.kind, f.power = "crash", power
	case 2:
		f.kind = "pause"
	case 3:
		f.kind = "cut"
		d.cut(&f)
	default:
		f.kind, f.to, f.every = "whisper", d.node(), 10*time.Millisecond+d.upTo(60*time.Millisecond)
	}
	d.add(f)
}

// stutters lets followers stutter, and nothing else.
func (d drawing) stutters() {
	s := d.s
	s.ordered, s.window, s.appendBytes, s.propose = true, 256, 100, 2*time.Millisecond
	for at := 200 * time.Millisecond; at < s.until; at += 5*time.Millisecond + d.upTo(400*time.Millisecond) {
		d.stutter(at, d.node())
	}
}

// silence lets nobody hear a new leader, or it dies at once, as in figure 8 of
// the Raft paper.
func (d drawing) silence() {
	s := d.s
	s.ordered, s.voters, s.window, s.appendBytes, s.snapshotBytes = true, 3, 1, 1, 1
	for n := 1; n < 100; n++ {
		lasts := d.upTo(400 * time.Millisecond)
		if d.yes() {
			d.add(fault{election: n, kind: "whisper", n: 3, every: 10*time.Millisecond + d.upTo(60*time.Millisecond), lasts: lasts})
		} else {
			d.add(fault{election: n, at: 2*time.Millisecond + d.upTo(15*time.Millisecond), kind: "crash", lasts: lasts})
		}
	}
}

// alone is one voter whose disk tears, with learners.
func (d drawing) alone() {
	s := d.s
	s.voters, s.learners, s.window, s.appendBytes, s.snapshotBytes, s.propose = 1, 2, 4, 100, 1, 2*time.Millisecond
	for at := 200 * time.Millisecond; at < s.until; at += 5*time.Millisecond + d.upTo(60*time.Millisecond) {
		d.add(fault{at: at, kind: "stop", who: 1, n: 1 + d.IntN(6), done: d.yes(), power: d.IntN(4) > 0, lasts: d.upTo(400 * time.Millisecond)})
	}
}

// haste lets a new leader that few hear ask for memberships at once.
func (d drawing) haste() {
	s := d.s
	s.ordered, s.window, s.appendBytes = true, 4, 100
	for n := 1; n < 60; n++ {
		at := d.upTo(20 * time.Millisecond)
		lasts := 50*time.Millisecond + d.upTo(300*time.Millisecond)
		if n > 1 && d.IntN(3) == 0 {
			d.add(fault{election: n, at: at, kind: "crash", lasts: lasts})
			continue
		}
		d.add(fault{election: n, at: at, kind: "whisper", to: d.IntN(s.nodes() + 1), every: 20*time.Millisecond + d.upTo(400*time.Millisecond), lasts: lasts})
		for range 1 + d.IntN(2) {
			f := fault{election: n, at: at}
			d.change(f)
			if last := &s.faults[len(s.faults)-1]; d.yes() {
				last.voters, last.learners = []int{0}, nil
			}
		}
	}
}
