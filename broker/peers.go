package broker

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/teralog/teralog/coord"
	"github.com/teralog/teralog/raft"
	"github.com/teralog/teralog/wire"
)

// The nodes that keep the metadata together talk over listeners of their own, so
// that clients, however many, do not stand between them. Each node has one link
// to each other one, on which the messages that wait go out as one request.

// Bounds of a link, inclusive. Raft sends again what is lost beyond them.
const (
	maxLinkMessages = 4096
	maxLinkBytes    = 64 << 20
	maxLinkRequest  = 1 << 20 // bytes of one request, unless a single message has more
	maxLinkFlight   = 16      // requests without an answer
)

const (
	peerDial    = time.Second // for a connection and its Hello
	peerRedial  = 100 * time.Millisecond
	peerSilence = 2 * time.Second // without an answer the connection is given up
	peerCommand = 10 * time.Second
)

// A PeerAddr is a node that keeps the metadata and where it hears the others.
type PeerAddr struct {
	Node wire.NodeID
	Addr string // host:port
}

func (p PeerAddr) String() string { return fmt.Sprintf("%d@%s", p.Node, p.Addr) }

// newCluster returns the id of the cluster that these nodes found: the same on
// each of them.
func newCluster(nodes []PeerAddr) (id wire.UUID) {
	sum := sha256.Sum256(fmt.Append(nil, nodes))
	copy(id[:], sum[:])
	return id
}

// peers is this node's side of the talk. It is raft.Transport, and the handler
// of what others send.
type peers struct {
	b      *Broker
	self   raft.Peer
	links  map[raft.NodeID]*link
	server *wire.Server
	ctx    context.Context // of the loops
	stop   context.CancelFunc
	loops  sync.WaitGroup

	mu    sync.Mutex
	coord *coord.Coord // nil: not open yet
}

// openPeers begins to listen for the other nodes.
func openPeers(b *Broker) (*peers, error) {
	c := b.config
	ctx, stop := context.WithCancel(context.Background())
	p := &peers{
		b: b, self: raft.Peer{ID: raft.NodeID(c.Node), Incarnation: raft.UUID(b.dirs[0].ID())},
		links: map[raft.NodeID]*link{}, ctx: ctx, stop: stop,
	}
	p.server = &wire.Server{Handler: p, Hello: b.hello, IdleTimeout: c.IdleTimeout, Log: b.log}
	ln, err := b.env.Listen(c.peerListen())
	if err != nil {
		stop()
		return nil, fmt.Errorf("listen for peers: %w", err)
	}
	p.loop(func() {
		if err := p.server.Serve(ln); err != nil && ctx.Err() == nil {
			b.report(fmt.Errorf("peer listener: %w", err))
		}
	})
	for _, n := range c.Peers {
		if n.Node == c.Node {
			continue
		}
		l := &link{PeerAddr: n, p: p, wake: make(chan struct{}, 1), flight: make(chan struct{}, maxLinkFlight)}
		p.links[raft.NodeID(n.Node)] = l
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
	p.loop(func() { p.b.report(c.Run(p.ctx)) })
}

// close ends it all and waits for it.
func (p *peers) close() {
	p.stop()
	p.server.Shutdown(p.ctx) // nobody waits for answers any more
	p.loops.Wait()
}

func (p *peers) open() *coord.Coord {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.coord
}

// Send is of raft.Transport.
func (p *peers) Send(ms []raft.Message) {
	for _, m := range ms {
		if l := p.links[m.To.ID]; l != nil {
			l.push(m)
		}
	}
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
		if err := p.wait(peerRedial); err != nil {
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

var errStopped = errors.New("stopped before a majority of the nodes was there")

// wait lets time pass, or says that the broker is being stopped.
func (p *peers) wait(d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-p.ctx.Done():
	case <-p.b.env.Stop:
	}
	return errStopped
}

// dial connects to a node and sees that it is the one.
func (p *peers) dial(ctx context.Context, n PeerAddr) (*wire.Conn, error) {
	conn, err := wire.Dial(ctx, p.b.env.Dial, n.Addr, wire.DialOptions{
		Client: fmt.Sprintf("node %d", p.b.config.Node), Software: "teralog " + wire.Software, MaxInFlight: 2 * maxLinkFlight, Silence: peerSilence,
	})
	if err != nil {
		return nil, err
	}
	if h := conn.Hello(); h.Node != n.Node || h.Cluster != p.b.Cluster() {
		conn.Close()
		return nil, fmt.Errorf("at %s answers node %d of cluster %v, not node %d of %v", n.Addr, h.Node, h.Cluster, n.Node, p.b.Cluster())
	}
	return conn, nil
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
		p.takeMessages(c, metadata)
	case c.API == wire.APICommand:
		p.takeCommand(c, metadata)
	default:
		c.ReplyError(wire.Errorf(wire.CodeUnsupported, "%v is not served to peers", c.API))
	}
}

func (p *peers) takeMessages(c *wire.Call, metadata *coord.Coord) {
	var req wire.RaftRequest
	err := c.Decode(&req)
	for _, b := range req.Messages {
		var m raft.Message
		if err == nil {
			m, err = raft.DecodeMessage(bytes.Clone(b)) // entries outlive the frame
		}
		if err == nil {
			metadata.Deliver(m)
		}
	}
	if err != nil {
		c.ReplyError(wire.Errorf(wire.CodeInvalidRequest, "%v", err))
		return
	}
	c.Reply(&wire.RaftResponse{})
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

// A link carries messages to one other node.
type link struct {
	PeerAddr
	p      *peers
	wake   chan struct{}
	flight chan struct{} // a token for each request without an answer

	mu    sync.Mutex
	queue []raft.Message
	bytes int
	conn  *wire.Conn // nil: not connected
}

// push queues a message, or drops it.
func (l *link) push(m raft.Message) {
	size := messageSize(&m)
	l.mu.Lock()
	full := len(l.queue) >= maxLinkMessages || len(l.queue) > 0 && l.bytes+size > maxLinkBytes
	if l.conn != nil && !full {
		l.queue = append(l.queue, m)
		l.bytes += size
	}
	l.mu.Unlock()
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

func messageSize(m *raft.Message) int {
	n := 256 + len(m.Data)
	for i := range m.Entries {
		n += 32 + len(m.Entries[i].Data)
	}
	return n
}

// take returns the messages that go into one request.
func (l *link) take() []raft.Message {
	l.mu.Lock()
	defer l.mu.Unlock()
	n, size := 0, 0
	for n < len(l.queue) {
		one := messageSize(&l.queue[n])
		if n > 0 && size+one > maxLinkRequest {
			break
		}
		n, size = n+1, size+one
	}
	out := slices.Clone(l.queue[:n])
	l.queue = slices.Delete(l.queue, 0, n)
	l.bytes -= size
	return out
}

func (l *link) connected() *wire.Conn {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.conn
}

// connect notes a new connection, or none. What waited for the old one is lost.
func (l *link) connect(c *wire.Conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	clear(l.queue)
	l.conn, l.queue, l.bytes = c, l.queue[:0], 0
}

// run keeps the link connected, and sends.
func (l *link) run(ctx context.Context) {
	down := false
	for ctx.Err() == nil {
		dialing, cancel := context.WithTimeout(ctx, peerDial)
		conn, err := l.p.dial(dialing, l.PeerAddr)
		cancel()
		if err != nil {
			if !down {
				l.log().Warn("a peer cannot be reached", "err", err)
			}
			down = true
			if l.p.wait(peerRedial) != nil {
				return
			}
			continue
		}
		l.log().Info("connected to a peer")
		down = false
		l.connect(conn)
		err = l.send(ctx, conn)
		l.connect(nil)
		conn.Close()
		if ctx.Err() == nil {
			l.log().Warn("a peer was lost", "err", err)
		}
	}
}

func (l *link) log() *slog.Logger { return l.p.b.log.With("peer", l.PeerAddr.String()) }

// send sends until the connection ends, which it finds out by its next request:
// there is one with every heartbeat.
func (l *link) send(ctx context.Context, conn *wire.Conn) error {
	failed := make(chan error, 1)
	var scratch []byte
	for {
		select {
		case <-ctx.Done():
			return nil
		case err := <-failed:
			return err
		case <-l.wake:
		}
		for ms := l.take(); len(ms) > 0; ms = l.take() {
			select {
			case l.flight <- struct{}{}:
			case err := <-failed:
				return err
			case <-ctx.Done():
				return nil
			}
			req := &wire.RaftRequest{}
			scratch = scratch[:0]
			for i := range ms {
				from := len(scratch)
				scratch = raft.AppendMessage(scratch, &ms[i])
				req.Messages = append(req.Messages, scratch[from:len(scratch):len(scratch)])
			}
			conn.Go(req, &wire.RaftResponse{}, func(err error) {
				<-l.flight
				if err != nil {
					select {
					case failed <- err:
					default:
					}
				}
			})
		}
	}
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
