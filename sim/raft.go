package sim

import (
	"fmt"
	"io"
	"os"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/teralog/teralog/raft"
)

const (
	raftTick = 10 * time.Millisecond
	hopeless = 200 * time.Millisecond  // after healing, a cluster without a whole majority is left
	recovery = 5500 * time.Millisecond // after healing, all has to be well
)

var raftCluster = raft.UUID{1, 2, 3}

// A quorum is a Raft cluster: drivers on faulty disks, joined by a faulty
// network, with callers that propose and read. It sees of them what anybody can
// see: messages, what their stores are told, what their machines apply.
//
// A seed draws a scenario, which says beforehand what befalls the cluster and
// when. At its end all is healed but for some members that are not needed, and
// what a majority can do has to be done.
type quorum struct {
	*world
	scenario  *scenario
	draws     [streams][64]uint64
	members   []*member
	cuts      [maxMembers][maxMembers]bool // from, to
	arrived   [maxMembers][maxMembers]time.Duration
	callers   []*caller
	truth     truth
	elections int
	healed    bool
	seen      map[string]int
	encoded   []byte // the message last sent
}

// maxMembers is how many nodes a cluster may have.
const maxMembers = 8

// raftRare is what must happen in many seeds, else they are not about what they
// should be.
var raftRare = []string{
	"conflict truncation",
	"damaged entry",
	"damaged start",
	"data directory",
	"disk stopped",
	"indefinite",
	"leader change within a joint configuration",
	"lost chunk",
	"membership change",
	"message of another cluster",
	"no room on a disk",
	"read",
	"request came twice",
	"snapshot installed",
	"snapshot of what is held uncommitted",
	"snapshot over an uncommitted configuration",
	"snapshot unreadable",
	"transfer",
	"viable",
	"wipe",
}

// Raft runs seed. The trace, if not nil, gets every event.
func Raft(seed uint64, trace io.Writer) Report {
	s := drawScenario(seed)
	r := s.run(trace)
	if r.Violation != "" && trace == nil {
		var last tail200
		s.run(&last)
		r.Last = last.String()
	}
	return r
}

// run plays a scenario.
func (s *scenario) run(trace io.Writer) (r Report) {
	q := &quorum{world: newWorld(s.seed, trace), scenario: s, seen: map[string]int{}}
	defer func() {
		if p := recover(); p != nil {
			q.violate("Panic: %v\n%s", p, debug.Stack())
		}
		r = Report{Seed: s.seed, Hash: q.hash, Steps: q.steps, Violation: q.broken, End: q.now.Mono, Seen: q.seen}
	}()
	if trace != nil {
		fmt.Fprint(trace, s)
	}
	if s.disks {
		q.count("data directory")
	}
	q.begin()
	q.run(s.until)
	if q.broken != "" {
		return
	}
	q.heal()
	for q.broken == "" && q.now.Mono < s.until+recovery {
		q.run(q.now.Mono + raftTick)
		if q.owed() == "" || q.now.Mono > s.until+hopeless && !q.viable() {
			break
		}
	}
	if q.broken == "" {
		q.finish()
	}
	return
}

// smaller returns a short scenario that fails as a seed does.
func smaller(seed uint64) fmt.Stringer { return drawScenario(seed).shrink() }

// playScenario plays a scenario from a file. The trace, if not nil, gets every
// event and how it ends.
func playScenario(file string, trace io.Writer) error {
	s, err := openScenario(file)
	if err != nil {
		return err
	}
	r := s.run(trace)
	if trace != nil && r.Violation == "" {
		fmt.Fprintln(trace, "no violation")
	}
	return r.err()
}

func openScenario(file string) (*scenario, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	s, err := readScenario(f)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return s, nil
}

func (q *quorum) begin() {
	q.truth.init(q)
	s := q.scenario
	q.truth.bootstrap(q.first())
	for slot := range s.nodes() {
		m := &member{q: q, slot: slot, self: peer(slot+1, 0), disk: q.newDisk(slot, 0)}
		m.shadow.m = m
		q.members = append(q.members, m)
	}
	for _, m := range q.members {
		m.start()
		m.tick()
	}
	for i := range s.callers {
		q.callers = append(q.callers, newCaller(q, i))
	}
	for i := range s.faults {
		if f := &s.faults[i]; f.election == 0 {
			q.after(f.at, func() { q.befall(f, nil) })
		}
	}
}

// first returns the first members.
func (q *quorum) first() (first raft.Members) {
	s := q.scenario
	for slot := range s.voters {
		first.Voters = append(first.Voters, peer(slot+1, 0))
	}
	for slot := range s.learners {
		first.Learners = append(first.Learners, peer(s.voters+slot+1, 0))
	}
	return first
}

func peer(id, wiped int) raft.Peer {
	return raft.Peer{ID: raft.NodeID(id), Incarnation: raft.UUID{byte(id), byte(wiped + 1)}}
}

// say puts a line into the trace.
func (q *quorum) say(format string, args ...any) {
	if q.trace != nil {
		fmt.Fprintf(q.trace, "%12v  %s\n", q.now.Mono, fmt.Sprintf(format, args...))
	}
}

func (q *quorum) count(what string) { q.seen[what]++ }

// A stream is what something is drawn for. Draws of one stream and entity
// change nothing for the others.
type stream int

const (
	streamDelay stream = iota
	streamLoss
	streamDisk
	streamCaller
	streams
)

// draw returns a number in [0, n).
func (q *quorum) draw(s stream, entity int, n uint64) uint64 {
	c := &q.draws[s][entity]
	*c++
	return scramble(scramble(q.seed^uint64(s)<<56^uint64(entity)<<48)^*c) % n
}

// upTo draws a duration below d.
func (q *quorum) upTo(s stream, entity int, d time.Duration) time.Duration {
	return time.Duration(q.draw(s, entity, uint64(d/time.Microsecond)+1)) * time.Microsecond
}

func (q *quorum) chance(s stream, entity int, of1000 uint64) bool {
	return of1000 > 0 && q.draw(s, entity, 1000) < of1000
}

func scramble(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// A tail200 keeps the newest 200 lines written to it.
type tail200 struct{ lines []string }

func (t *tail200) Write(b []byte) (int, error) {
	t.lines = append(t.lines, string(b))
	if len(t.lines) >= 400 {
		t.lines = slices.Delete(t.lines, 0, len(t.lines)-200)
	}
	return len(b), nil
}

func (t *tail200) String() string { return strings.Join(t.lines[max(0, len(t.lines)-200):], "") }

// invariant returns which one a violation is of.
func invariant(violation string) string {
	name, _, _ := strings.Cut(violation, ":")
	return name
}
