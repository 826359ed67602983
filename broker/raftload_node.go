package broker

import (
	"bufio"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/teralog/teralog/coord"
	"github.com/teralog/teralog/mem"
	"github.com/teralog/teralog/raft"
	"github.com/teralog/teralog/storage"
	"github.com/teralog/teralog/wire"
)

// A loadNode is one of the processes of a load on Raft: what a broker's control
// plane is, without metadata. It does what lines on its input say and answers
// with lines.
//
//	leads TERM            from the node: an entry of its term is committed
//	follows               from it: it has what its leader has committed
//	load {"in_flight":…}  to it: propose in a closed loop
//	begins                from it: it is warm
//	loaded {…}            from it: what became of the load
type loadNode struct {
	driver *raft.Driver
	store  *syncCounter
	mesh   *mesh
	self   raft.Peer
	ended  chan struct{} // its input has
	led    raft.Term     // of which it was said
	told   bool          // that it follows

	mu  sync.Mutex
	out io.Writer
}

// loadTick is one tick of its clock, as coord's.
const loadTick = 50 * time.Millisecond

func loadPeer(n wire.NodeID) raft.Peer {
	return raft.Peer{ID: raft.NodeID(n), Incarnation: raft.UUID{1, byte(n)}}
}

func runLoadNode(ctx context.Context, args []string, in io.Reader, out, notes io.Writer) error {
	c := DefaultConfig()
	flags := flag.NewFlagSet("node", flag.ContinueOnError)
	flags.SetOutput(notes)
	dir := flags.String("dir", "", "")
	for _, name := range []string{"node", "peers"} {
		flags.Func(name, "", func(v string) error { return c.Set(name, v) })
	}
	if err := flags.Parse(args); err != nil {
		return err
	}
	n := &loadNode{self: loadPeer(c.Node), ended: make(chan struct{}), out: out}
	clock, ids := mem.NewClock(), byte(0)
	log := slog.New(slog.NewTextHandler(notes, &slog.HandlerOptions{Level: slog.LevelError}))
	d, err := storage.OpenDir(storage.OS(), *dir, storage.DirOptions{
		Node: c.Node, Cluster: newCluster(c.Peers), Boot: "load", Format: true, Reserve: -1,
		NewID: func() wire.UUID { ids++; return wire.UUID{ids, byte(c.Node)} },
	})
	if err != nil {
		return err
	}
	defer d.Abandon()
	if err := n.open(d, &c, log, clock.Now()); err != nil {
		return err
	}
	ln, err := net.Listen("tcp", c.peerListen())
	if err != nil {
		return err
	}
	server := &wire.Server{Handler: n, Log: log, Hello: func() wire.HelloResponse { return wire.HelloResponse{Cluster: d.Cluster(), Node: c.Node} }}
	go server.Serve(ln)
	n.mesh = openMesh(c.Node, d.Cluster(), c.Peers, &net.Dialer{}, ctx.Done(), log)
	for _, l := range n.mesh.links {
		go l.run(ctx)
	}
	go n.listen(in)
	return n.run(ctx)
}

func (n *loadNode) open(d *storage.Dir, c *Config, log *slog.Logger, now mem.Now) error {
	store, err := coord.OpenStore(d, n.self, log, now)
	if err == nil {
		err = d.Recovered()
	}
	if err != nil {
		return err
	}
	s, err := store.Load()
	if err == nil && len(s.Entries) == 0 && s.Snapshot.Index == 0 {
		var first raft.Members
		for _, p := range c.Peers {
			first.Voters = append(first.Voters, loadPeer(p.Node))
		}
		err = raft.Bootstrap(store, first)
	}
	if err != nil {
		return err
	}
	n.store = &syncCounter{Store: store}
	n.driver, err = raft.NewDriver(raft.Config{
		Cluster: raft.UUID(d.Cluster()), Self: n.self, Seed: uint64(time.Now().UnixNano()),
	}, n.store, n, nothing{}, raft.Options{MaxCalls: 1 << 16, SnapshotBytes: 1 << 30})
	return err
}

// Send is of raft.Transport.
func (n *loadNode) Send(ms []raft.Message) { n.mesh.Send(ms) }

// ServeCall takes what other nodes send.
func (n *loadNode) ServeCall(c *wire.Call) {
	if c.API != wire.APIRaft {
		c.ReplyError(wire.Errorf(wire.CodeUnsupported, "%v is not served here", c.API))
		return
	}
	takeMessages(c, n.driver.Deliver)
}

func (n *loadNode) say(format string, args ...any) {
	n.mu.Lock()
	defer n.mu.Unlock()
	fmt.Fprintf(n.out, format+"\n", args...)
}

// run turns Raft until ctx is done or the input ends.
func (n *loadNode) run(ctx context.Context) error {
	ticker := time.NewTicker(loadTick)
	defer ticker.Stop()
	for {
		worked, err := n.driver.Turn()
		if err != nil {
			return err
		}
		if worked {
			n.driver.Wake()
		}
		n.tell(n.driver.Status())
		select {
		case <-ctx.Done():
			return nil
		case <-n.ended:
			return nil
		case <-ticker.C:
			n.driver.Tick()
		case <-n.driver.Woken():
		}
	}
}

// tell says when the node begins to lead, and once when it follows.
func (n *loadNode) tell(s raft.Status) {
	switch {
	case s.Applied < s.Last || s.Leader == raft.Peer{}:
	case s.Leads && s.Term > n.led:
		n.led = s.Term
		n.say("leads %d", s.Term)
	case !s.Leads && !n.told && s.Applied > 1:
		n.told = true
		n.say("follows")
	}
}

// listen does what the lines of in say; their end is the node's.
func (n *loadNode) listen(in io.Reader) {
	lines := bufio.NewScanner(in)
	for lines.Scan() {
		var o loadOrder
		if text, ok := strings.CutPrefix(lines.Text(), "load "); ok && json.Unmarshal([]byte(text), &o) == nil {
			n.load(o)
		}
	}
	close(n.ended)
}

// A loadOrder says how to propose.
type loadOrder struct {
	InFlight int     `json:"in_flight"`
	Seconds  float64 `json:"seconds"`
	Size     int     `json:"size"`
}

// A loadOutcome is what became of it.
type loadOutcome struct {
	Proposals int64            `json:"proposals"`
	Failed    int64            `json:"failed,omitempty"`
	Seconds   float64          `json:"seconds"`
	PerSecond float64          `json:"proposals_per_second"`
	Latency   map[string]int64 `json:"latency_us"`
	CPU       float64          `json:"cpu_seconds,omitempty"` // of all processes
	Syncs     int64            `json:"leader_syncs"`
	Sync      float64          `json:"fdatasync_us,omitempty"`
}

// load proposes in a closed loop: each proposal that ends makes the next one.
// The first half of the time again is to warm up.
func (n *loadNode) load(o loadOrder) {
	data := make([]byte, o.Size)
	length := time.Duration(o.Seconds * float64(time.Second))
	from := time.Now().Add(length / 2)
	to := from.Add(length)
	var hist mem.Hist
	var failed atomic.Int64
	var open sync.WaitGroup
	open.Add(o.InFlight)
	var propose func()
	propose = func() {
		began := time.Now()
		n.driver.Propose(data, func(_ raft.Index, err error) {
			now := time.Now()
			switch {
			case err != nil:
				failed.Add(1)
				open.Done() // it goes no further
				return
			case !now.Before(from) && now.Before(to):
				hist.Record(now.Sub(began).Nanoseconds())
			}
			if now.Before(to) {
				propose()
			} else {
				open.Done()
			}
		})
	}
	var synced atomic.Int64
	begins := time.AfterFunc(time.Until(from), func() {
		synced.Store(n.store.n.Load())
		n.say("begins")
	})
	defer begins.Stop()
	for range o.InFlight {
		propose()
	}
	open.Wait()
	us := func(ns int64) int64 { return ns / 1000 }
	r := loadOutcome{Proposals: int64(hist.Count()), Failed: failed.Load(), Seconds: length.Seconds(), Syncs: n.store.n.Load() - synced.Load()}
	r.PerSecond = float64(r.Proposals) / r.Seconds
	r.Latency = map[string]int64{"p50": us(hist.Quantile(0.5)), "p99": us(hist.Quantile(0.99)), "p999": us(hist.Quantile(0.999)), "max": us(hist.Max())}
	b, _ := json.Marshal(r)
	n.say("loaded %s", b)
}

// A syncCounter counts the fsyncs of a store's log and vote.
type syncCounter struct {
	raft.Store
	n atomic.Int64
}

// Sync is of raft.Store.
func (s *syncCounter) Sync() error {
	s.n.Add(1)
	return s.Store.Sync()
}

// nothing is a machine without a state.
type nothing struct{}

// Apply is of raft.Machine.
func (nothing) Apply(raft.Entry) {}

// Snapshot is of raft.Machine.
func (nothing) Snapshot() ([]byte, error) { return nil, nil }

// Restore is of raft.Machine.
func (nothing) Restore([]byte) error { return nil }
