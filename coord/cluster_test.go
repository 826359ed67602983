package coord

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/teralog/teralog/mem"
	"github.com/teralog/teralog/raft"
	"github.com/teralog/teralog/storage"
	"github.com/teralog/teralog/wire"
)

// A cluster is three Raft nodes, each on a disk of its own, that one thread
// turns. Links lose messages, machines lose power.
type cluster struct {
	t         *testing.T
	rng       *rand.Rand
	wall      func(n *clusterNode) int64 // what its wall clock shows, ms
	nodes     [3]*clusterNode
	committed [][]byte // by index, of all nodes together
	asked     map[string]bool
	acked     map[string]bool
	seen      map[string]int
}

type clusterNode struct {
	c       *cluster
	id      wire.NodeID
	disk    *storage.MemFS
	starts  int
	k       *keeper
	driver  *raft.Driver // nil: down
	out     []raft.Message
	applied [][]byte // the machine's state: what was applied, by index
}

func (n *clusterNode) Send(ms []raft.Message) { n.out = append(n.out, ms...) }

// Apply holds each entry to what any node has applied at its index.
func (n *clusterNode) Apply(e raft.Entry) {
	c, at := n.c, int(e.Index)-1
	if len(n.applied) != at {
		c.t.Fatalf("node %d applies entry %d after %d", n.id, e.Index, len(n.applied))
	}
	n.applied = append(n.applied, e.Data)
	if at == len(c.committed) {
		c.committed = append(c.committed, e.Data)
	}
	if !bytes.Equal(c.committed[at], e.Data) {
		c.t.Fatalf("node %d applies %q as entry %d, another one applied %q", n.id, e.Data, e.Index, c.committed[at])
	}
}

func (n *clusterNode) Snapshot() ([]byte, error) {
	var b []byte
	for _, a := range n.applied {
		b = wire.AppendBytes(b, a)
	}
	return b, nil
}

func (n *clusterNode) Restore(b []byte) error {
	n.applied = nil
	for r := wire.NewReader(b); r.Left() > 0; {
		n.applied = append(n.applied, bytes.Clone(r.Bytes()))
		if r.Err() != nil {
			return r.Err()
		}
	}
	if len(n.applied) > len(n.c.committed) || !slices.EqualFunc(n.applied, n.c.committed[:len(n.applied)], bytes.Equal) {
		n.c.t.Fatalf("node %d restores %d entries that were not committed so", n.id, len(n.applied))
	}
	n.c.seen["restored"]++
	return nil
}

func (c *cluster) peers() (all []raft.Peer) {
	for _, n := range c.nodes {
		all = append(all, raft.Peer{ID: raft.NodeID(n.id), Incarnation: raft.UUID{byte(n.id), 1}})
	}
	return all
}

func (n *clusterNode) start() {
	n.starts++
	n.applied, n.out = nil, nil
	k, err := keepAs(n.disk, fmt.Sprint("boot", n.starts), n.id, 64<<10)
	if err != nil {
		n.c.t.Fatalf("start %d of node %d: %v", n.starts, n.id, err)
	}
	n.k = k
	if k.fresh {
		if err := raft.Bootstrap(k, raft.Members{Voters: n.c.peers()}); err != nil {
			n.c.t.Fatal(err)
		}
	}
	n.driver, err = raft.NewDriver(raft.Config{
		Cluster: raft.UUID{1}, Self: k.self, Seed: uint64(n.starts), MaxEntryBytes: 1 << 20, MaxAppendBytes: 4000, ChunkBytes: 500,
	}, k, n, n, raft.Options{SnapshotBytes: 2000})
	if err != nil {
		n.c.t.Fatalf("start %d of node %d: %v", n.starts, n.id, err)
	}
	if n.driver.Status().Damaged {
		n.c.seen["damaged"]++
	}
}

// turn turns a node and hands its messages on, some of them.
func (n *clusterNode) turn(healed bool) {
	n.k.turn(mem.Now{Wall: n.c.wall(n)})
	if _, err := n.driver.Turn(); err != nil {
		n.c.t.Fatalf("node %d: %v", n.id, err)
	}
	for _, m := range n.out {
		to := n.c.nodes[m.To.ID-1]
		if to.driver != nil && (healed || n.c.rng.IntN(10) > 0) {
			to.driver.Deliver(m)
		}
	}
	n.out = n.out[:0]
}

// cut ends a node: its process dies, or its machine loses power, perhaps inside
// an operation; sometimes a byte of its log is damaged meanwhile.
func (n *clusterNode) cut(damage bool) {
	if n.c.rng.IntN(2) == 0 {
		n.disk.StopAfter(n.c.rng.IntN(6))
		n.k.turn(mem.Now{})
		n.driver.Tick()
		_, _ = n.driver.Turn()
	}
	n.driver = nil
	n.disk = n.disk.Crash(storage.CrashAny)
	if !damage {
		return
	}
	r, err := n.k.log.View().Find(n.k.log.View().End()-1, n.k.log.View().End(), 1)
	if err != nil || r.Len == 0 {
		return
	}
	r.Done()
	name := r.R.(storage.File).Name()
	if e, err := n.disk.Stat(name); err == nil && e.Size > 0 {
		_ = n.disk.FlipBit(name, e.Size-1-n.c.rng.Int64N(min(e.Size, 4000)), 3)
	}
}

func (c *cluster) step(healed bool, number int, damage bool) {
	n := c.nodes[c.rng.IntN(3)]
	if n.driver == nil {
		if healed || c.rng.IntN(20) == 0 {
			n.start()
		}
		return
	}
	switch x := c.rng.IntN(300); {
	case x == 0 && !healed:
		n.cut(damage && n.id == 1) // one copy at most is damaged
		return
	case x < 60:
		n.driver.Tick()
	case x < 120 && !healed:
		for range 1 + c.rng.IntN(4) {
			data := fmt.Appendf(nil, "%d.%d %0*d", number, c.rng.IntN(1000), 1+c.rng.IntN(400), 0)
			c.asked[string(data)] = true
			n.driver.Propose(data, func(_ raft.Index, err error) {
				if err == nil {
					c.acked[string(data)] = true
				}
			})
		}
	}
	n.turn(healed)
}

func newCluster(t *testing.T, seed uint64, seen map[string]int) *cluster {
	c := &cluster{t: t, rng: rand.New(rand.NewPCG(seed, 5)), asked: map[string]bool{}, acked: map[string]bool{}, seen: seen}
	c.wall = func(n *clusterNode) int64 { return int64(n.starts) }
	for i := range c.nodes {
		c.nodes[i] = &clusterNode{c: c, id: wire.NodeID(i + 1), disk: storage.NewMemFS(seed*3 + uint64(i))}
	}
	for _, n := range c.nodes {
		n.start()
	}
	return c
}

// TestClusterOnDisk runs clusters of three over power cuts inside operations,
// lost messages and a damaged log, from seeds: all nodes apply the same, nothing
// that was acknowledged is lost, and once all is well they agree.
func TestClusterOnDisk(t *testing.T) {
	seen := map[string]int{}
	for seed := range uint64(30) {
		c := newCluster(t, seed, seen)
		for number := range 3000 {
			c.step(false, number, seed%2 == 0)
		}
		settled := func() bool {
			for _, n := range c.nodes {
				if n.driver == nil || len(n.applied) != len(c.committed) || n.driver.Status().Last != c.nodes[0].driver.Status().Last || n.driver.Status().Damaged {
					return false
				}
			}
			return c.nodes[0].driver.Status().Leader != (raft.Peer{})
		}
		steps := 0
		for ; !settled() && steps < 100_000; steps++ {
			c.step(true, 0, false)
			if steps == 50_000 { // an entry of a newer term ends damage of unknown length
				for _, n := range c.nodes {
					n.driver.Propose([]byte("last"), func(raft.Index, error) {})
				}
			}
		}
		if !settled() {
			for _, n := range c.nodes {
				t.Logf("node %d: %+v", n.id, n.driver.Status())
			}
			t.Fatalf("seed %d: the nodes do not agree", seed)
		}
		left := map[string]bool{}
		for _, b := range c.committed {
			left[string(b)] = true
		}
		for data := range c.acked {
			if !left[data] {
				t.Fatalf("seed %d: %q was acknowledged and is lost", seed, data)
			}
		}
		seen["acknowledged"] += len(c.acked)
	}
	t.Logf("%v", seen)
	if seen["damaged"] == 0 || seen["restored"] == 0 || seen["acknowledged"] < 1000 {
		t.Fatalf("too little happened: %v", seen)
	}
}

// TestWallClocks lets each node's wall clock stand an hour off another one's, and
// jump by up to an hour either way. All goes as it does with clocks that stand
// still, event for event: they are for stamps only.
func TestWallClocks(t *testing.T) {
	const hour = 3_600_000
	f := func(seed uint64, wall func(n *clusterNode) int64) (trail []string) {
		t.Helper()
		c := newCluster(t, seed, map[string]int{})
		c.wall = wall
		for number := range 1500 {
			c.step(false, number, false)
			var now []byte
			for _, n := range c.nodes {
				if n.driver != nil {
					now = fmt.Appendf(now, "%d: %+v ", n.id, n.driver.Status())
				}
			}
			trail = append(trail, string(now))
		}
		if len(c.acked) < 10 {
			t.Fatalf("seed %d: %d proposals were acknowledged", seed, len(c.acked))
		}
		return trail
	}

	for seed := range uint64(4) {
		jumps := rand.New(rand.NewPCG(seed, 6))
		still := f(seed, func(*clusterNode) int64 { return 1_750_000_000_000 })
		jumping := f(seed, func(n *clusterNode) int64 {
			return 1_750_000_000_000 + hour*int64(n.id-2) + jumps.Int64N(2*hour+1) - hour
		})
		for at := range still {
			if still[at] != jumping[at] {
				t.Fatalf("seed %d: after %d events\n%s\nwith clocks that jump\n%s", seed, at+1, still[at], jumping[at])
			}
		}
	}
}
