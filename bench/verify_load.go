package bench

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/teralog/teralog/client"
	"github.com/teralog/teralog/wire"
)

// produce sends n records as the producer with this number, each partition for
// a short while, and returns when all have an outcome.
func (v *verification) produce(ctx context.Context, number uint32, n int64) error {
	p, err := v.c.NewProducer(client.ProducerOptions{Codec: v.codec, BufferBytes: 8 << 20})
	if err != nil {
		return err
	}
	defer p.Close()
	rnd := rand.New(rand.NewPCG(v.seed, uint64(number)))
	id := ID{Run: v.ledger.run, Producer: number}
	part := wire.PartitionID{Topic: v.topic}
	var value []byte
	for stay := 0; int64(id.Counter) < n; id.Counter++ {
		if stay--; stay < 0 {
			stay, part.Partition = rnd.IntN(256), rnd.Int32N(int32(v.partitions))
		}
		value = AppendValue(value[:0], id, int(v.size))
		v.ledger.sent(id, part)
		sent := id
		r := client.Record{Topic: v.name, Partition: part.Partition, Pinned: true, Value: value}
		if err := p.ProduceAsync(ctx, r, func(a client.Ack, err error) { v.ledger.decided(sent, a, err) }); err != nil {
			v.ledger.decided(sent, client.Ack{}, err)
			return fmt.Errorf("producer %d: %w", id.Producer, err)
		}
	}
	return p.Flush(ctx)
}

// A tail is a consumer that reads all partitions from their start, to the ends
// that it is told of once all is sent.
type tail struct {
	v    *verification
	id   uint32
	x    *client.Consumer
	part []Polled // of each partition: its position, and the poll at hand
	ends atomic.Pointer[[]client.Found]
}

const (
	lookEvery  = 200 * time.Millisecond // a tail without records looks whether it has all
	stuckAfter = time.Minute            // without a record, though there are more
)

func (t *tail) run(ctx context.Context) (err error) {
	if t.x, err = t.v.c.NewConsumer(client.ConsumerOptions{BufferBytes: 16 << 20}); err != nil {
		return err
	}
	defer t.x.Close()
	for p := range int32(t.v.partitions) {
		if err := t.x.Assign(ctx, t.v.name, p, client.Range{From: client.Start()}); err != nil {
			return err
		}
		next, _, err := t.x.Position(t.v.name, p)
		if err != nil {
			return err
		}
		t.part = append(t.part, Polled{Consumer: t.id, Partition: wire.PartitionID{Topic: t.v.topic, Partition: p}, Next: next})
	}
	last := time.Now()
	for !t.done() {
		soon, cancel := context.WithTimeout(ctx, lookEvery)
		ms, err := t.x.Poll(soon)
		cancel()
		fault := new(client.FetchError)
		switch {
		case err == nil:
			last = time.Now()
			t.got(ms)
		case ctx.Err() != nil:
			return nil // whoever ended it says why
		case errors.As(err, &fault):
			t.v.ledger.violate("consumer %d: %v", t.id, fault)
			return nil
		case !errors.Is(err, context.DeadlineExceeded):
			return fmt.Errorf("consumer %d: %w", t.id, err)
		case t.ends.Load() != nil && time.Since(last) > stuckAfter:
			t.v.ledger.violate("consumer %d waits for records that are there: %s", t.id, t.missing())
			return nil
		}
	}
	return nil
}

// done reports whether all was read.
func (t *tail) done() bool { return t.ends.Load() != nil && t.missing() == "" }

// missing returns what of the first partition that is not read is missing.
func (t *tail) missing() string {
	for p, end := range *t.ends.Load() {
		if next := t.part[p].Next; next < end.Offset {
			return fmt.Sprintf("partition %d ends at %d, and it is at %d", p, end.Offset, next)
		}
	}
	return ""
}

// got takes one poll into the history, a partition at a time.
func (t *tail) got(ms []client.Message) {
	for i := range ms {
		e := &t.part[ms[i].Partition]
		e.Reads = append(e.Reads, readOf(&ms[i]))
	}
	for p := range t.part {
		e := &t.part[p]
		if len(e.Reads) == 0 {
			continue
		}
		e.Position = e.Next
		e.Next, _, _ = t.x.Position(t.v.name, int32(p))
		t.v.ledger.polled(e)
		e.Reads = e.Reads[:0]
	}
}

func readOf(m *client.Message) Read {
	id, err := ParseValue(m.Value)
	return Read{Offset: m.Offset, Epoch: m.LeaderEpoch, ID: id, Sound: err == nil}
}

// A node is the broker of a run, which may die and come back at its address.
type node struct {
	start Start
	dir   string

	mu     sync.Mutex
	broker *Broker
	kills  int
	down   time.Duration // the longest time from a kill until it was ready again
}

// begin starts the broker.
func (n *node) begin(listen string) error {
	b, err := n.start(n.dir, listen)
	if err != nil {
		return fmt.Errorf("start a broker: %w", err)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.broker = b
	return nil
}

// killAtRandom kills the broker and starts it again until quit is closed. It
// lives for twice every at most, any time up to there alike.
func (n *node) killAtRandom(ctx context.Context, quit <-chan struct{}, every time.Duration, seed uint64) error {
	rnd := rand.New(rand.NewPCG(seed, 0))
	for {
		select {
		case <-quit:
			return nil
		case <-ctx.Done():
			return nil
		case <-time.After(time.Duration(rnd.Int64N(2 * int64(every)))):
		}
		began := time.Now()
		if err := n.broker.Kill(); err != nil {
			return fmt.Errorf("kill the broker: %w", err)
		}
		if err := n.begin(n.broker.Addr); err != nil {
			return err
		}
		n.mu.Lock()
		n.kills++
		n.down = max(n.down, time.Since(began))
		n.mu.Unlock()
	}
}

// deaths returns how often it was killed, and how long it was away at most.
func (n *node) deaths() (kills int, down time.Duration) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.kills, n.down
}
