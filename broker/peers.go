package broker

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"

	"github.com/teralog/teralog/coord"
	"github.com/teralog/teralog/raft"
	"github.com/teralog/teralog/wire"
)

// The nodes that keep the metadata together talk over listeners of their own, so
// that clients, however many, do not stand between them.

// newCluster returns the id of the cluster that these nodes found: the same on
// each of them.
func newCluster(nodes []PeerAddr) (id wire.UUID) {
	sum := sha256.Sum256(fmt.Append(nil, nodes))
	copy(id[:], sum[:])
	return id
}

// peers is this node's side of the talk: what it sends, and the handler of what
// others send.
type peers struct {
	*mesh
	b      *Broker
	self   raft.Peer
	server *wire.Server
	ctx    context.Context // of the loops
	stop   context.CancelFunc
	loops  sync.WaitGroup

	leave  context.CancelFunc // ends the turning of coord; nil: it has not begun
	turned chan struct{}      // closed when it has ended

	mu    sync.Mutex
	coord *coord.Coord // nil: not open yet
}

// openPeers begins to listen for the other nodes.
func openPeers(b *Broker) (*peers, error) {
	c := b.config
	ctx, stop := context.WithCancel(context.Background())
	p := &peers{
		b: b, self: raft.Peer{ID: raft.NodeID(c.Node), Incarnation: raft.UUID(b.dirs[0].ID())},
		mesh: openMesh(c.Node, b.Cluster(), c.Peers, b.env.Dial, b.env.Stop, b.log), ctx: ctx, stop: stop,
	}
	p.server = &wire.Server{Handler: p, Hello: b.hello, IdleTimeout: c.IdleTimeout, Unfit: b.unfit, Log: b.log}
	ln, err := b.env.Listen(c.peerListen())
	if err != nil {
		stop()
		return nil, fmt.Errorf("listen for peers: %w", err)
	}
	serve := p.server.Serve
	if b.secure.peer() != nil {
		p.mesh.tls = b.secure.peer
		serve = func(ln net.Listener) error { return p.server.ServeTLS(ln, b.secure.peer) }
	}
	p.loop(func() {
		if err := serve(ln); err != nil && ctx.Err() == nil {
			b.report(fmt.Errorf("peer listener: %w", err))
		}
	})
	for _, l := range p.links {
		p.loop(func() { l.run(ctx) })
	}
	return p, nil
}

func (p *peers) loop(f func()) {
	p.loops.Add(1)
	go func() {
		defer p.loops.Done()
		f()
	}()
}

// run turns the metadata until stop.
func (p *peers) run(c *coord.Coord) {
	p.mu.Lock()
	p.coord = c
	p.mu.Unlock()
	var ctx context.Context
	ctx, p.leave = context.WithCancel(p.ctx)
	p.turned = make(chan struct{})
	p.loop(func() {
		defer close(p.turned)
		p.b.report(c.Run(ctx))
	})
}

// close ends it all and waits for it: first the metadata, which may have to hand
// over leadership, then the links.
func (p *peers) close() {
	if p.leave != nil {
		p.leave()
		<-p.turned
	}
	p.stop()
	p.server.Shutdown(p.ctx) // nobody waits for answers any more
	p.loops.Wait()
}

func (p *peers) open() *coord.Coord {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.coord
}

// first returns the members of a new cluster, once all its nodes have said that
// they hold nothing yet. The node with the lowest number founds it; if another
// one holds something, this node has lost its disk, and nothing is founded.
func (p *peers) first() (raft.Members, error) {
	nodes := p.b.config.Peers
	lowest := slices.MinFunc(nodes, func(a, b PeerAddr) int { return cmp.Compare(a.Node, b.Node) })
	if lowest.Node != p.b.config.Node {
		return raft.Members{}, nil
	}
	members := raft.Members{Voters: []raft.Peer{p.self}}
	for _, n := range nodes {
		if n.Node == lowest.Node {
			continue
		}
		r, err := p.introduce(n)
		if err != nil {
			return raft.Members{}, err
		}
		if !r.Fresh {
			p.b.log.Warn("another node holds metadata already; this one waits to be added to its cluster", "node", n.Node)
			return raft.Members{}, nil
		}
		members.Voters = append(members.Voters, raft.Peer{ID: raft.NodeID(n.Node), Incarnation: raft.UUID(r.Incarnation)})
	}
	return members, nil
}

// introduce asks a node who it is until it answers.
func (p *peers) introduce(n PeerAddr) (r wire.IntroduceResponse, err error) {
	for tries := 0; ; tries++ {
		if r, err = p.introduceOnce(n); err == nil {
			return r, nil
		}
		if tries%50 == 0 {
			p.b.log.Info("waiting for a node of the new cluster", "node", n.Node, "addr", n.Addr, "err", err)
		}
		if err := p.wait(p.ctx, peerRedial); err != nil {
			return r, err
		}
	}
}

func (p *peers) introduceOnce(n PeerAddr) (r wire.IntroduceResponse, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), peerDial)
	defer cancel()
	conn, err := p.dial(ctx, n)
	if err != nil {
		return r, err
	}
	defer conn.Close()
	err = conn.Do(ctx, &wire.IntroduceRequest{Node: p.b.config.Node, Incarnation: wire.UUID(p.self.Incarnation)}, &r)
	return r, err
}

// forward hands a command on to the node that leads.
func (p *peers) forward(to wire.NodeID, command []byte, done func(coord.Result, error)) {
	var conn *wire.Conn
	if l := p.links[raft.NodeID(to)]; l != nil {
		conn = l.connected()
	}
	if conn == nil {
		done(coord.Result{}, wire.Errorf(wire.CodeNotLeader, "node %d leads the metadata and cannot be reached", to))
		return
	}
	r := new(wire.CommandResponse)
	conn.Go(&wire.CommandRequest{Command: command}, r, func(err error) {
		done(coord.Result{Offset: r.Offset, Topic: r.Topic, First: r.First, Count: r.Count}, forwarded(err))
	})
}

// forwarded says what an error of the way to another node means for the command.
func forwarded(err error) error {
	var known *wire.Error
	switch {
	case err == nil, errors.As(err, &known):
		return err
	case errors.Is(err, wire.ErrNotSent):
		return wire.Errorf(wire.CodeNotLeader, "the node that leads the metadata was not reached: %v", err)
	}
	return wire.Errorf(wire.CodeTimeout, "the node that leads the metadata did not answer; the change may yet take effect: %v", err)
}

// ServeCall answers what other nodes ask.
func (p *peers) ServeCall(c *wire.Call) {
	metadata := p.open()
	switch {
	case metadata == nil:
		c.ReplyError(&wire.Error{Code: wire.CodeBusy, Message: "the node is starting", RetryAfter: peerRedial})
	case c.API == wire.APIIntroduce:
		c.Reply(&wire.IntroduceResponse{Incarnation: wire.UUID(p.self.Incarnation), Fresh: metadata.Fresh()})
	case c.API == wire.APIRaft:
		takeMessages(c, metadata.Deliver)
	case c.API == wire.APICommand:
		p.takeCommand(c, metadata)
	default:
		c.ReplyError(wire.Errorf(wire.CodeUnsupported, "%v is not served to peers", c.API))
	}
}

func (p *peers) takeCommand(c *wire.Call, metadata *coord.Coord) {
	var req wire.CommandRequest
	err := c.Decode(&req)
	var cmd coord.Command
	if err == nil {
		cmd, err = coord.ReadCommand(req.Command)
	}
	if err != nil {
		c.ReplyError(wire.Errorf(wire.CodeInvalidRequest, "%v", err))
		return
	}
	c.DropBody()
	p.b.decide(metadata.SubmitHere, cmd, func(r coord.Result, err error) {
		if err != nil {
			c.ReplyError(err)
			return
		}
		c.Reply(&wire.CommandResponse{Offset: r.Offset, Topic: r.Topic, First: r.First, Count: r.Count})
	})
}

// peerListen returns where to hear other nodes.
func (c *Config) peerListen() string {
	if c.PeerListen != "" {
		return c.PeerListen
	}
	at := slices.IndexFunc(c.Peers, func(p PeerAddr) bool { return p.Node == c.Node })
	return c.Peers[at].Addr
}

// listenTCP is the listener of the real world.
func listenTCP(addr string) (net.Listener, error) { return net.Listen("tcp", addr) }
