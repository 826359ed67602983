package client

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/teralog/teralog/wire"
)

// A topic is what the cluster said about one topic: immutable once cached.
type topic struct {
	name  string
	id    wire.TopicID
	parts []part // by partition number
	round uint64 // of the question it answers
}

type part struct {
	leader wire.NodeID // wire.NoNode: none at the moment
	epoch  wire.Epoch
}

// metadata caches the addresses of brokers and the leaders of partitions.
type metadata struct {
	c    *Client
	turn chan struct{} // holds a token while nobody asks

	mu         sync.Mutex
	round      uint64 // questions begun so far
	nodes      map[wire.NodeID]string
	controller wire.NodeID
	topics     map[string]*topic
	good       int // index of the bootstrap server that answered last
}

func newMetadata(c *Client) *metadata {
	m := &metadata{c: c, turn: make(chan struct{}, 1), controller: wire.NoNode,
		nodes: map[wire.NodeID]string{}, topics: map[string]*topic{}}
	m.turn <- struct{}{}
	return m
}

// cached returns the topic if it is known, without asking.
func (m *metadata) cached(name string) *topic {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.topics[name]
}

// addr returns the address of a node.
func (m *metadata) addr(n wire.NodeID) (string, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	a, ok := m.nodes[n]
	return a, ok
}

// topic returns the topic, asking if it is not cached or fresh is set.
func (m *metadata) topic(ctx context.Context, name string, fresh bool) (*topic, error) {
	if !wire.ValidName(name) {
		return nil, wire.Errorf(wire.CodeInvalidName, "%.*q is not a topic name", wire.MaxName, name)
	}
	if t := m.cached(name); t != nil && !fresh {
		return t, nil
	}
	if err := m.refresh(ctx, name); err != nil {
		return nil, err
	}
	if t := m.cached(name); t != nil {
		return t, nil
	}
	return nil, wire.Errorf(wire.CodeUnknownTopic, "there is no topic %q", name)
}

// refresh asks the cluster about the named topics and what brokers it has. One
// caller asks at a time; who had to wait is content with an answer about the
// same topics to a question that began after its call. Topics the cluster does
// not know leave the cache; an error leaves what it concerns as it was.
func (m *metadata) refresh(ctx context.Context, names ...string) error {
	since := m.rounds(0)
	select {
	case <-m.turn:
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { m.turn <- struct{}{} }()
	if m.answeredSince(since, names) {
		return nil
	}
	round := m.rounds(1)
	req := wire.MetadataRequest{Topics: names}
	var resp wire.MetadataResponse
	if err := m.ask(ctx, &req, &resp); err != nil {
		return fmt.Errorf("metadata: %w", err)
	}
	return m.take(&resp, names, round)
}

func (m *metadata) rounds(more uint64) uint64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.round += more
	return m.round
}

// answeredSince reports whether each topic is known from a question that began
// after the given round.
func (m *metadata) answeredSince(round uint64, names []string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return !slices.ContainsFunc(names, func(name string) bool {
		t := m.topics[name]
		return t == nil || t.round <= round
	})
}

// take puts an answer into the cache.
func (m *metadata) take(resp *wire.MetadataResponse, names []string, round uint64) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.controller = resp.Controller
	clear(m.nodes)
	for _, n := range resp.Nodes {
		m.nodes[n.ID] = n.Addr
	}
	var first error
	for _, name := range names {
		i := slices.IndexFunc(resp.Topics, func(t wire.TopicMeta) bool { return t.Name == name })
		if i < 0 || resp.Topics[i].Code == wire.CodeUnknownTopic {
			delete(m.topics, name)
			continue
		}
		t, err := topicOf(&resp.Topics[i])
		if err != nil {
			first = cmp.Or(first, err)
			continue
		}
		t.round = round
		m.topics[name] = t
	}
	return first
}

// topicOf checks what was said about a topic: partitions are numbered from 0
// without a gap, and each is named once.
func topicOf(tm *wire.TopicMeta) (*topic, error) {
	if tm.Code != wire.CodeOK {
		return nil, wire.Errorf(tm.Code, "topic %q", tm.Name)
	}
	if tm.ID == 0 || len(tm.Partitions) == 0 {
		return nil, fmt.Errorf("metadata of topic %q: id %d with %d partitions: %w", tm.Name, tm.ID, len(tm.Partitions), wire.ErrCorrupt)
	}
	t := &topic{name: tm.Name, id: tm.ID, parts: make([]part, len(tm.Partitions))}
	seen := make([]bool, len(tm.Partitions))
	for _, p := range tm.Partitions {
		if p.Partition < 0 || int(p.Partition) >= len(seen) || seen[p.Partition] {
			return nil, fmt.Errorf("metadata of topic %q: partition %d of %d: %w", tm.Name, p.Partition, len(seen), wire.ErrCorrupt)
		}
		seen[p.Partition] = true
		t.parts[p.Partition] = part{leader: p.Leader, epoch: p.Epoch}
		if p.Code != wire.CodeOK {
			t.parts[p.Partition].leader = wire.NoNode
		}
	}
	return t, nil
}

// candidates lists addresses to ask: first the bootstrap server that answered
// last, then the others, then brokers learned of.
func (m *metadata) candidates() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	servers := m.c.o.Servers
	list := slices.Concat(servers[m.good:], servers[:m.good])
	for _, a := range m.nodes {
		if !slices.Contains(list, a) {
			list = append(list, a)
		}
	}
	return list
}

// answered remembers which server is alive.
func (m *metadata) answered(addr string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if i := slices.Index(m.c.o.Servers, addr); i >= 0 {
		m.good = i
	}
}

// ask puts a request that may safely be repeated to whichever broker answers,
// with back-off, until ctx ends.
func (m *metadata) ask(ctx context.Context, req, resp wire.Message) error {
	return m.try(ctx, func(ctx context.Context, addr string) error { return m.askAt(ctx, addr, req, resp) })
}

// try calls f with the address of one broker after the other, as ask does.
func (m *metadata) try(ctx context.Context, f func(ctx context.Context, addr string) error) error {
	return m.c.retry(ctx, func(ctx context.Context) (err error) {
		for _, addr := range m.candidates() {
			if err = f(ctx, addr); err == nil {
				m.answered(addr)
				return nil
			}
			if !judge(err).again || ctx.Err() != nil {
				return err
			}
		}
		return err
	})
}

// askAt puts a request to the broker at addr. One that does not answer in half
// the time of a call loses its connection, so that another can be asked.
func (m *metadata) askAt(ctx context.Context, addr string, req, resp wire.Message) error {
	conn, err := m.c.conns.get(ctx, addr)
	if err != nil {
		return err
	}
	patience := m.c.o.RequestTimeout
	if end, ok := ctx.Deadline(); ok {
		patience = max(patience, time.Until(end))
	}
	half, cancel := context.WithTimeout(ctx, patience/2)
	defer cancel()
	err = conn.Do(half, req, resp)
	if half.Err() != nil && ctx.Err() == nil {
		conn.Close()
	}
	return err
}

// askController puts a request that carries its own identity, so that it may
// be repeated, to the controller, or to whoever answers while none is known.
// The error wraps ErrUnanswered if one of the attempts may have been carried out.
func (m *metadata) askController(ctx context.Context, req, resp wire.Message) error {
	unsure := false
	attempt := func(ctx context.Context, addr string) error {
		err := m.askAt(ctx, addr, req, resp)
		var e *wire.Error
		if errors.As(err, &e) && e.Code == wire.CodeQuota && e.RetryAfter == 0 {
			err = final{err} // no rate but a limit: time does not lift it
		}
		unsure = unsure || err != nil && !judge(err).definite
		return err
	}
	m.mu.Lock()
	addr, known := m.nodes[m.controller]
	m.mu.Unlock()
	err := error(nil)
	if known {
		err = attempt(ctx, addr)
	}
	if !known || err != nil && judge(err).again && ctx.Err() == nil {
		err = m.try(ctx, attempt)
	}
	// Whoever refuses a request for good has seen its identity, and would have
	// repeated the answer of an attempt that was carried out.
	if v := judge(err); err != nil && unsure && (v.again || !v.definite) {
		return fmt.Errorf("%w; %w", ErrUnanswered, err)
	}
	return err
}

// retry runs f until it succeeds, fails for good or ctx ends. The error is
// f's last one: it says more than that time ran out.
func (c *Client) retry(ctx context.Context, f func(ctx context.Context) error) error {
	for n := 1; ; n++ {
		err := f(ctx)
		if err == nil {
			return nil
		}
		v := judge(err)
		wait := c.back.after(n, v.wait, rand.Float64())
		if deadline, ok := ctx.Deadline(); ok && time.Until(deadline) <= wait {
			wait += time.Second // an attempt at the very end could come to nothing but doubt
		}
		if !v.again || !sleep(ctx, wait) {
			if ctx.Err() != nil {
				return fmt.Errorf("%w (last: %w)", context.Cause(ctx), err)
			}
			return err
		}
	}
}
