package raft

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/teralog/teralog/sim/script"
)

// TestScripts plays the stories in testdata. Their commands are the methods of
// stage; messages lie still until "settle" delivers all there are, or until a
// node has an entry.
func TestScripts(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) < 5 {
		t.Fatalf("%d scripts: %v", len(files), err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			s := &stage{t: t, nodes: map[NodeID]*actor{}, cut: map[[2]NodeID]bool{}}
			script.Run(t, file, s.exec)
		})
	}
}

// A stage is a cluster without time or chance.
type stage struct {
	t     *testing.T
	nodes map[NodeID]*actor
	order []NodeID
	queue []Message
	cut   map[[2]NodeID]bool
	lose  func(*Message) bool
	said  []string
}

// An actor is one node of a stage: it is the transport and the machine, too.
type actor struct {
	s       *stage
	self    Peer
	store   *MemStore
	full    bool    // its disk has no room
	driver  *Driver // nil: down
	applied []string
}

// A roomy store is that of an actor as its driver sees it: the disk may be full.
type roomy struct {
	*MemStore
	a *actor
}

func (s roomy) SetVote(v Vote) error {
	if s.a.full {
		return ErrNoRoom
	}
	return s.MemStore.SetVote(v)
}

func (s roomy) Append(entries []Entry) error {
	if s.a.full {
		return ErrNoRoom
	}
	return s.MemStore.Append(entries)
}

func (a *actor) Send(m []Message) { a.s.queue = append(a.s.queue, m...) }

func (a *actor) Apply(e Entry) {
	if e.Kind == Command {
		a.applied = append(a.applied, string(e.Data))
	}
}

func (a *actor) Snapshot() ([]byte, error) { return []byte(strings.Join(a.applied, " ")), nil }

func (a *actor) Restore(b []byte) error {
	a.applied = strings.Fields(string(b))
	return nil
}

func (s *stage) exec(c *script.Command) string {
	s.said = nil
	var ids []NodeID
	for _, arg := range c.Args {
		if id, err := strconv.Atoi(arg); err == nil {
			ids = append(ids, NodeID(id))
		}
	}
	switch c.Name {
	case "cluster":
		s.cluster(ids, c)
	case "log":
		s.log(ids)
	case "stand":
		s.nodes[ids[0]].driver.node.stand()
		s.turn(s.nodes[ids[0]])
	case "tick":
		for range ids[1] {
			s.nodes[ids[0]].driver.Tick()
			s.turn(s.nodes[ids[0]])
		}
	case "propose":
		s.nodes[ids[0]].driver.Propose([]byte(c.Args[1]), s.answer("propose "+c.Args[1]))
		s.turn(s.nodes[ids[0]])
	case "flood": // with proposals that nobody waits for
		for range ids[1] {
			s.nodes[ids[0]].driver.Propose([]byte("x"), func(Index, error) {})
			s.turn(s.nodes[ids[0]])
		}
	case "read":
		s.nodes[ids[0]].driver.Read(s.answer("read"))
		s.turn(s.nodes[ids[0]])
	case "change":
		s.nodes[ids[0]].driver.Change(s.peers(c.Key("voters", "")), s.peers(c.Key("learners", "")), s.answer("change"))
		s.turn(s.nodes[ids[0]])
	case "transfer":
		var to Peer
		if len(ids) > 1 {
			to = s.nodes[ids[1]].self
		}
		s.nodes[ids[0]].driver.Transfer(to, func(_ Index, err error) { s.say("transfer: %v", err) })
		s.turn(s.nodes[ids[0]])
	case "reach": // the first is heard by, and hears, the others only
		for _, other := range s.order {
			s.cut[[2]NodeID{ids[0], other}] = !slices.Contains(ids, other)
			s.cut[[2]NodeID{other, ids[0]}] = !slices.Contains(ids, other)
		}
	case "heal":
		s.cut, s.lose = map[[2]NodeID]bool{}, nil
	case "lose":
		s.losing(c)
	case "forget": // everybody has waited long enough to give a vote
		for _, a := range s.nodes {
			if a.driver != nil {
				if f, ok := a.driver.node.role.(*follower); ok {
					f.elapsed = a.driver.node.c.ElectionTicks
				}
			}
		}
	case "settle":
		until, _ := strconv.Atoi(c.Key("entry", "0"))
		s.settle(func() bool { return until > 0 && s.nodes[ids[0]].driver.node.log.last() >= Index(until) })
	case "crash":
		s.nodes[ids[0]].crash(c.Key("power", "on") == "off")
	case "wipe":
		a := s.nodes[ids[0]]
		a.crash(false)
		a.store, a.self.Incarnation[1] = NewMemStore(), a.self.Incarnation[1]+1
	case "damage":
		if !s.nodes[ids[0]].store.Damage(Index(ids[1])) {
			return "no such entry"
		}
	case "full", "room":
		a := s.nodes[ids[0]]
		a.full = c.Name == "full"
		s.turn(a)
	case "fail": // the next write
		s.nodes[ids[0]].store.StopAt(1, false)
	case "start":
		s.nodes[ids[0]].start()
	case "state":
		for _, id := range s.order {
			s.say("%s", s.nodes[id])
		}
	default:
		return "no such command: " + c.Name
	}
	return strings.Join(s.said, "\n")
}

func (s *stage) say(format string, args ...any) {
	s.said = append(s.said, fmt.Sprintf(format, args...))
}

func (s *stage) answer(what string) func(Index, error) {
	return func(i Index, err error) {
		if err != nil {
			s.say("%s: %v", what, err)
			return
		}
		s.say("%s: entry %d", what, i)
	}
}

// cluster makes nodes; those up to voters= are the first members, or all.
func (s *stage) cluster(ids []NodeID, c *script.Command) {
	voters, err := strconv.Atoi(c.Key("voters", strconv.Itoa(len(ids))))
	if err != nil {
		s.t.Fatal(err)
	}
	var first Members
	for _, id := range ids {
		s.nodes[id] = &actor{s: s, self: peer(int(id), 0), store: NewMemStore()}
		s.order = append(s.order, id)
	}
	for _, id := range ids[:voters] {
		first.Voters = append(first.Voters, s.nodes[id].self)
	}
	for _, id := range ids {
		if slices.Contains(ids[:voters], id) {
			if err := Bootstrap(s.nodes[id].store, first); err != nil {
				s.t.Fatal(err)
			}
		}
		s.nodes[id].start()
	}
}

// log gives a node entries of these terms behind its first one.
func (s *stage) log(ids []NodeID) {
	a := s.nodes[ids[0]]
	a.crash(false)
	var entries []Entry
	for i, term := range ids[1:] {
		entries = append(entries, Entry{Index: Index(i + 2), Term: Term(term), Kind: Command, Data: []byte{'a' + byte(term)}})
	}
	a.store.SetVote(Vote{Term: entries[len(entries)-1].Term})
	a.store.Append(entries)
	a.store.Sync()
	a.start()
}

func (s *stage) peers(list string) []Peer {
	var peers []Peer
	for _, id := range strings.FieldsFunc(list, func(r rune) bool { return r == ',' }) {
		n, err := strconv.Atoi(id)
		if err != nil {
			s.t.Fatal(err)
		}
		peers = append(peers, s.nodes[NodeID(n)].self)
	}
	return peers
}

func (s *stage) losing(c *script.Command) {
	kind, term := c.Key("kind", ""), c.Key("term", "")
	s.lose = func(m *Message) bool {
		inTerm := slices.ContainsFunc(m.Entries, func(e Entry) bool { return strconv.Itoa(int(e.Term)) == term })
		return m.Kind.String() == strings.ReplaceAll(kind, "-", " ") || inTerm
	}
}

// settle delivers in order until nothing is under way, or enough.
func (s *stage) settle(enough func() bool) {
	for n := 0; len(s.queue) > 0 && !enough(); n++ {
		if n > 10_000 {
			s.t.Fatal("the stage does not settle")
		}
		m := s.queue[0]
		s.queue = s.queue[1:]
		to := s.nodes[m.To.ID]
		if to.driver == nil || s.cut[[2]NodeID{m.From.ID, m.To.ID}] || s.lose != nil && s.lose(&m) {
			continue
		}
		to.driver.Deliver(m)
		s.turn(to)
	}
}

func (s *stage) turn(a *actor) {
	for worked := true; worked; {
		var err error
		if worked, err = a.driver.Turn(); errors.Is(err, ErrStopped) {
			s.say("%d stops: %v", a.self.ID, err)
			a.driver = nil
			return
		} else if err != nil {
			s.t.Fatal(err)
		}
	}
}

func (a *actor) start() {
	c := Config{Cluster: cluster, Self: a.self, MaxAppendBytes: 1, Window: 1, ChunkBytes: 4}
	a.applied = nil
	d, err := NewDriver(c, roomy{a.store, a}, a, a, Options{SnapshotBytes: 250})
	if err != nil {
		a.s.t.Fatal(err)
	}
	a.driver = d
}

func (a *actor) crash(power bool) {
	if a.driver != nil {
		a.driver.stop(ErrClosed)
		a.driver = nil
	}
	var keep func(int) int
	if power {
		keep = func(int) int { return 0 }
	}
	a.store = a.store.Restart(keep)
}

// String shows the terms of the log's entries, from the first it has.
func (a *actor) String() string {
	if a.driver == nil {
		return fmt.Sprintf("%d: down", a.self.ID)
	}
	n, st := a.driver.node, a.driver.Status()
	role := strings.TrimPrefix(fmt.Sprintf("%T", n.role), "*raft.")
	if st.Damaged {
		role = "damaged " + role
	}
	var terms []string
	for _, e := range n.log.entries {
		terms = append(terms, strconv.Itoa(int(e.Term)))
	}
	s := fmt.Sprintf("%d: %s term=%d commit=%d log=%d:[%s] applied=[%s]", a.self.ID, role, st.Term, st.Committed, n.log.base.index, strings.Join(terms, " "), strings.Join(a.applied, " "))
	if m := st.Members; m.joint() {
		s += fmt.Sprintf(" voters=%v outgoing=%v", m.Voters, m.Outgoing)
	}
	return s
}
