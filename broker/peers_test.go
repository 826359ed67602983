package broker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/teralog/teralog/coord"
	"github.com/teralog/teralog/mem"
	"github.com/teralog/teralog/raft"
	"github.com/teralog/teralog/storage"
	"github.com/teralog/teralog/wire"
)

// A trio is three brokers that keep the metadata together, over a network and
// disks in memory, in a bubble.
type trio struct {
	t       *testing.T
	net     *wire.MemNet
	disks   [3]*storage.MemFS
	wiped   int
	adapt   func(i int, c *Config) // may be nil
	members [3]*member             // nil: down
}

type member struct {
	b    *Broker
	stop context.CancelFunc
	ran  chan error
}

func newTrio(t *testing.T) *trio {
	c := &trio{t: t, net: wire.NewMemNet()}
	for i := range c.disks {
		c.disks[i] = storage.NewMemFS(uint64(i))
	}
	return c
}

// open returns what becomes of a broker that starts; it may wait for others.
func (c *trio) open(i int) <-chan error {
	config := DefaultConfig()
	config.DataDirs, config.Node, config.Reserve = []string{"data"}, wire.NodeID(i+1), 1<<20
	config.Listen = fmt.Sprintf("node%d:7400", i+1)
	for n := range c.disks {
		config.Peers = append(config.Peers, PeerAddr{wire.NodeID(n + 1), fmt.Sprintf("node%d:7401", n+1)})
	}
	if c.adapt != nil {
		c.adapt(i, &config)
	}
	clock, ids, life := mem.NewClock(), byte(0), byte(c.wiped)
	ctx, stop := context.WithCancel(context.Background())
	e := Env{
		FS: c.disks[i], Boot: "boot", Now: clock.Now, Clock: clock, Log: slog.New(slog.DiscardHandler),
		NewID:  func() wire.UUID { ids++; return wire.UUID{byte(i + 1), life, ids} },
		Listen: c.net.Listen, Dial: c.net, Stop: ctx.Done(),
	}
	m := &member{stop: stop, ran: make(chan error, 1)}
	c.members[i] = m
	opened := make(chan error, 1)
	go func() {
		b, err := New(config, e)
		opened <- err
		if err != nil {
			m.ran <- err
			return
		}
		m.b = b
		ln, err := c.net.Listen(config.Listen)
		if err != nil {
			m.ran <- err
			return
		}
		m.ran <- b.Run(ctx, ln)
	}()
	return opened
}

func (c *trio) start(which ...int) {
	c.t.Helper()
	var opened []<-chan error
	for _, i := range which {
		opened = append(opened, c.open(i))
	}
	for i, o := range opened {
		if err := <-o; err != nil {
			c.t.Fatalf("node %d: %v", which[i]+1, err)
		}
	}
	synctest.Wait()
}

func (c *trio) stop(i int) {
	c.t.Helper()
	c.members[i].stop()
	if err := <-c.members[i].ran; err != nil {
		c.t.Fatalf("node %d: %v", i+1, err)
	}
	c.members[i] = nil
}

// do has a command decided through node i, again while nobody leads.
func (c *trio) do(i int, cmd coord.Command) coord.Result {
	c.t.Helper()
	for range 100 {
		type outcome struct {
			r   coord.Result
			err error
		}
		told := make(chan outcome, 1)
		c.members[i].b.decide(c.members[i].b.coord.Submit, cmd, func(r coord.Result, err error) { told <- outcome{r, err} })
		switch o := <-told; {
		case o.err == nil:
			return o.r
		case !wire.CodeOf(o.err).Retriable():
			c.t.Fatalf("node %d: %+v: %v", i+1, cmd, o.err)
		}
		time.Sleep(100 * time.Millisecond)
	}
	c.t.Fatalf("node %d: %+v: nobody leads", i+1, cmd)
	return coord.Result{}
}

// leader returns the number of the node that leads, as they all say.
func (c *trio) leader() int {
	c.t.Helper()
	for range 100 {
		var said []raft.NodeID
		for _, m := range c.members {
			if m != nil {
				said = append(said, m.b.coord.Status().Leader.ID)
			}
		}
		if at := int(said[0]) - 1; said[0] != 0 && len(slices.Compact(said)) == 1 && c.members[at] != nil {
			return at
		}
		time.Sleep(100 * time.Millisecond)
	}
	c.t.Fatal("they do not agree who leads")
	return 0
}

// agree expects all nodes to know the same topics, soon.
func (c *trio) agree(topics ...string) {
	c.t.Helper()
	time.Sleep(3 * time.Second)
	for i, m := range c.members {
		if m == nil {
			continue
		}
		var names []string
		for _, topic := range m.b.Image().Topics() {
			names = append(names, topic.Name)
		}
		if !slices.Equal(names, topics) {
			c.t.Fatalf("node %d knows the topics %q, want %q", i+1, names, topics)
		}
	}
}

func newTopic(name string) coord.CreateTopic {
	return coord.CreateTopic{Name: name, Partitions: 2, Replication: 1}
}

// TestThreeNodes founds a cluster, changes metadata through each node, stops the
// leader, changes more, and brings it back.
func TestThreeNodes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newTrio(t)
		c.start(0, 1, 2)
		for i := range 3 {
			c.do(i, newTopic(fmt.Sprint("t", i)))
		}
		c.agree("t0", "t1", "t2")
		first := c.leader()
		hosted := 0
		for _, m := range c.members {
			hosted += len(m.b.Set().Partitions())
		}
		if hosted != 6 || len(c.members[first].b.Set().Partitions()) != 6 {
			t.Fatalf("%d partitions are hosted", hosted)
		}

		c.stop(first)
		other := (first + 1) % 3
		c.do(other, newTopic("u"))
		if c.leader() == first {
			t.Fatal("a node that is down leads")
		}
		made := c.members[other].b.Image().Topic("t1").ID
		c.do(other, coord.DeleteTopic{ID: made})
		c.agree("t0", "t2", "u")

		c.start(first) // it takes away the partitions of what was deleted meanwhile
		c.agree("t0", "t2", "u")
		if n := len(c.members[first].b.Set().Partitions()); n != 4 {
			t.Fatalf("%d partitions are hosted by the node that was away", n)
		}
		c.do(first, coord.Barrier{})
		seen := map[wire.ProducerID]bool{}
		for i := range 3 {
			told := make(chan wire.ProducerID, 1)
			c.members[i].b.coord.NextProducer(func(id wire.ProducerID, err error) {
				if err != nil {
					t.Error(err)
				}
				told <- id
			})
			seen[<-told] = true
		}
		if len(seen) != 3 {
			t.Fatalf("three nodes gave out the producers %v", seen)
		}
		for i := range 3 {
			c.stop(i)
		}
		c.start(0, 1, 2)
		c.agree("t0", "t2", "u")
		for i := range 3 {
			c.stop(i)
		}
	})
}

// TestHandOver stops the node that leads: before it has gone another one leads,
// though the shortest election timeout has not passed. If nobody is left to take
// over, it does not wait for ever.
func TestHandOver(t *testing.T) {
	const shortest = 500 * time.Millisecond
	synctest.Test(t, func(t *testing.T) {
		c := newTrio(t)
		c.start(0, 1, 2)
		c.do(0, newTopic("a"))
		for range 5 {
			first := c.leader()
			began := time.Now()
			c.stop(first)
			synctest.Wait()
			for i, m := range c.members {
				if m != nil && m.b.coord.Status().Leader.ID == 0 {
					t.Fatalf("node %d left, and node %d knows no leader", first+1, i+1)
				}
			}
			if next := c.leader(); next == first || time.Since(began) >= shortest {
				t.Fatalf("node %d leads %v after node %d was stopped", next+1, time.Since(began), first+1)
			}
			c.start(first)
			c.do(first, coord.Barrier{})
		}
		last := c.leader()
		for i := range c.members {
			if i != last {
				c.stop(i)
			}
		}
		if c.members[last].b.coord.Status().Leads {
			began := time.Now()
			c.stop(last)
			if took := time.Since(began); took > 2*shortest {
				t.Fatalf("a stop took %v, with nobody to take over", took)
			}
		} else {
			t.Fatal("the last node gave up at once")
		}
	})
}

// TestWiped loses the disk of the node that founded the cluster, then that of
// another one. Neither founds another cluster nor takes part as who it was: it
// waits, a stranger to the two that go on, and these two do not need it.
func TestWiped(t *testing.T) {
	f := func(lost int) {
		t.Helper()
		synctest.Test(t, func(t *testing.T) {
			c := newTrio(t)
			c.start(0, 1, 2)
			c.do(lost, newTopic("a"))
			c.stop(lost)
			c.disks[lost], c.wiped = storage.NewMemFS(9), 1
			opened := c.open(lost)
			waiting := c.members[lost]
			c.members[lost] = nil
			c.do(2, newTopic("b"))
			c.agree("a", "b")
			for i, m := range c.members {
				if m != nil && slices.ContainsFunc(m.b.coord.Status().Members.Voters, func(p raft.Peer) bool { return p.Incarnation[1] == 1 }) {
					t.Errorf("node %d counts the wiped node %d: %v", i+1, lost+1, m.b.coord.Status().Members)
				}
			}
			select {
			case err := <-opened:
				t.Fatalf("node %d came up without its disk: %v", lost+1, err)
			default:
			}
			waiting.stop()
			if err := <-waiting.ran; !errors.Is(err, errStopped) {
				t.Fatal(err)
			}
			for i, m := range c.members {
				if m != nil {
					c.stop(i)
				}
			}
		})
	}

	f(0)
	f(1)
}

// TestPeerListener asks a node for what only nodes may, where clients connect,
// and for what only clients may, where nodes do.
func TestPeerListener(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newTrio(t)
		c.start(0, 1, 2)
		f := func(addr string, req, resp wire.Message, want wire.Code) {
			t.Helper()
			conn, err := wire.Dial(t.Context(), c.net, addr, wire.DialOptions{})
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			if err := conn.Do(t.Context(), req, resp); wire.CodeOf(err) != want {
				t.Fatalf("%T at %s: %v, want %v", req, addr, err, want)
			}
		}

		f("node1:7400", &wire.RaftRequest{Answer: true}, &wire.RaftResponse{}, wire.CodeUnsupported)
		f("node1:7400", &wire.CommandRequest{}, &wire.CommandResponse{}, wire.CodeUnsupported)
		f("node1:7400", &wire.IntroduceRequest{}, &wire.IntroduceResponse{}, wire.CodeUnsupported)
		f("node1:7401", &wire.MetadataRequest{All: true}, &wire.MetadataResponse{}, wire.CodeUnsupported)
		f("node1:7401", &wire.RaftRequest{Answer: true, Messages: [][]byte{{1, 2, 3}}}, &wire.RaftResponse{}, wire.CodeInvalidRequest)
		f("node1:7401", &wire.CommandRequest{Command: []byte{1, 99}}, &wire.CommandResponse{}, wire.CodeInvalidRequest)
		var who wire.IntroduceResponse
		f("node1:7401", &wire.IntroduceRequest{}, &who, wire.CodeOK)
		if who.Fresh || who.Incarnation != c.members[0].b.dirs[0].ID() {
			t.Fatalf("%+v", who)
		}
		for i := range 3 {
			c.stop(i)
		}
	})
}
