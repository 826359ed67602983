package broker

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/teralog/teralog/raft"
	"github.com/teralog/teralog/wire"
)

// Bounds of a link, inclusive. Raft sends again what is lost beyond them.
const (
	maxLinkMessages = 4096
	maxLinkBytes    = 64 << 20
	maxLinkRequest  = 1 << 20 // bytes of one request, unless a single message has more
	maxLinkFlight   = 16      // requests not sent yet, or not answered
)

const (
	peerDial    = time.Second // for a connection and its Hello
	peerRedial  = 100 * time.Millisecond
	peerAsk     = 250 * time.Millisecond // between two requests that want an answer
	peerSilence = 2 * time.Second        // without an answer the connection is given up
	peerCommand = 10 * time.Second
)

// A PeerAddr is a node that keeps the metadata and where it hears the others.
type PeerAddr struct {
	Node wire.NodeID
	Addr string // host:port
}

func (p PeerAddr) String() string { return fmt.Sprintf("%d@%s", p.Node, p.Addr) }

// A mesh is this node's links to all others, one each, on which messages that
// are sent together go out as one request. It is a raft.Transport.
type mesh struct {
	node    wire.NodeID
	cluster wire.UUID
	dialer  wire.Dialer
	tls     func() *tls.Config // what to encrypt with; may be nil, and return nil: plaintext
	halt    <-chan struct{}    // ends waits, as the context of the loops does
	log     *slog.Logger
	links   map[raft.NodeID]*link
}

// openMesh makes a link to each node but this one; run them.
func openMesh(node wire.NodeID, cluster wire.UUID, nodes []PeerAddr, dialer wire.Dialer, halt <-chan struct{}, log *slog.Logger) *mesh {
	m := &mesh{node: node, cluster: cluster, dialer: dialer, halt: halt, log: log, links: map[raft.NodeID]*link{}}
	for _, n := range nodes {
		if n.Node != node {
			m.links[raft.NodeID(n.Node)] = &link{PeerAddr: n, m: m, flight: make(chan struct{}, maxLinkFlight), full: make(chan struct{}, 1)}
		}
	}
	return m
}

// Send is of raft.Transport. What the sockets take at once has left when it
// returns, without a change of goroutine: a leader's entries are on their way
// before it begins to make them durable itself.
func (m *mesh) Send(ms []raft.Message) {
	for i := range ms {
		if l := m.links[ms[i].To.ID]; l != nil {
			l.push(&ms[i])
		}
	}
	for _, l := range m.links {
		l.flush()
	}
}

var errStopped = errors.New("stopped before a majority of the nodes was there")

// wait lets time pass, or says that the node is being stopped.
func (m *mesh) wait(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
	case <-m.halt:
	}
	return errStopped
}

// dial connects to a node and sees that it is the one.
func (m *mesh) dial(ctx context.Context, n PeerAddr) (*wire.Conn, error) {
	o := wire.DialOptions{Client: fmt.Sprintf("node %d", m.node), Software: "teralog " + wire.Software, MaxInFlight: 2 * maxLinkFlight, Silence: peerSilence}
	if m.tls != nil {
		o.TLS = m.tls()
	}
	conn, err := wire.Dial(ctx, m.dialer, n.Addr, o)
	if err != nil {
		return nil, err
	}
	if h := conn.Hello(); h.Node != n.Node || h.Cluster != m.cluster {
		conn.Close()
		return nil, fmt.Errorf("at %s answers node %d of cluster %v, not node %d of %v", n.Addr, h.Node, h.Cluster, n.Node, m.cluster)
	}
	return conn, nil
}

// A link carries messages to one other node. Who queues them sends them; its
// goroutine connects, and goes on when too much was under way.
type link struct {
	PeerAddr
	m      *mesh
	flight chan struct{} // a token for each request not sent yet, or not answered
	full   chan struct{} // holds one token if messages wait for one of flight

	mu      sync.Mutex
	queue   []raft.Message
	bytes   int
	conn    *wire.Conn // nil: not connected
	failed  chan error // why it is of no use any more
	asked   time.Time  // when an answer was wanted last
	scratch []byte     // encoded messages
}

// push queues a message, or drops it.
func (l *link) push(m *raft.Message) {
	size := messageSize(m)
	l.mu.Lock()
	defer l.mu.Unlock()
	full := len(l.queue) >= maxLinkMessages || len(l.queue) > 0 && l.bytes+size > maxLinkBytes
	if l.conn != nil && !full {
		l.queue = append(l.queue, *m)
		l.bytes += size
	}
}

// flush sends what is queued, as far as there may be more under way. It does not
// wait.
func (l *link) flush() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for len(l.queue) > 0 {
		select {
		case l.flight <- struct{}{}:
			l.send(l.take())
		default:
			notify(l.full)
			return
		}
	}
}

// send has these messages go out as one request, which holds a token of flight.
// Raft answers by itself, so most requests want no answer; those that do find out
// whether the connection still lives. l.mu is held.
func (l *link) send(ms []raft.Message) {
	req := &wire.RaftRequest{Answer: time.Since(l.asked) >= peerAsk}
	if req.Answer {
		l.asked = time.Now()
	}
	l.scratch = l.scratch[:0]
	for i := range ms {
		from := len(l.scratch)
		l.scratch = raft.AppendMessage(l.scratch, &ms[i])
		req.Messages = append(req.Messages, l.scratch[from:len(l.scratch):len(l.scratch)])
	}
	failed := l.failed
	l.conn.Go(req, &wire.RaftResponse{}, func(err error) {
		<-l.flight
		if err != nil {
			select {
			case failed <- err:
			default: // the first one is enough
			}
		}
	})
}

// notify puts a token into a channel that holds one.
func notify(c chan struct{}) {
	select {
	case c <- struct{}{}:
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

// take returns the messages that go into one request; l.mu is held.
func (l *link) take() []raft.Message {
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
	l.failed = make(chan error, 1)
}

// run keeps the link connected.
func (l *link) run(ctx context.Context) {
	down := false
	for ctx.Err() == nil {
		dialing, cancel := context.WithTimeout(ctx, peerDial)
		conn, err := l.m.dial(dialing, l.PeerAddr)
		cancel()
		if err != nil {
			if !down {
				l.log().Warn("a peer cannot be reached", "err", err)
			}
			down = true
			if l.m.wait(ctx, peerRedial) != nil {
				return
			}
			continue
		}
		l.log().Info("connected to a peer")
		down = false
		l.connect(conn)
		err = l.tend(ctx)
		l.connect(nil)
		conn.Close()
		if ctx.Err() == nil {
			l.log().Warn("a peer was lost", "err", err)
		}
	}
}

func (l *link) log() *slog.Logger { return l.m.log.With("peer", l.PeerAddr.String()) }

// tend goes on with what waits, until the connection ends.
func (l *link) tend(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case err := <-l.failed:
			return err
		case <-l.full:
		}
		select {
		case <-ctx.Done():
			return nil
		case err := <-l.failed:
			return err
		case l.flight <- struct{}{}: // now there is room
			<-l.flight
			l.flush()
		}
	}
}

// takeMessages answers a RaftRequest.
func takeMessages(c *wire.Call, deliver func(raft.Message)) {
	var req wire.RaftRequest
	err := c.Decode(&req)
	for _, b := range req.Messages {
		var m raft.Message
		if err == nil {
			m, err = raft.DecodeMessage(bytes.Clone(b)) // entries outlive the frame
		}
		if err == nil {
			deliver(m)
		}
	}
	switch {
	case err != nil:
		c.ReplyError(wire.Errorf(wire.CodeInvalidRequest, "%v", err))
	case req.Answer:
		c.Reply(&wire.RaftResponse{})
	default:
		c.NoReply()
	}
}
