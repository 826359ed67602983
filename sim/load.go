package sim

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/teralog/teralog/bench"
	"github.com/teralog/teralog/client"
	"github.com/teralog/teralog/wire"
)

// A topic is one the clients know by id.
type loadTopic struct {
	name       string
	id         wire.TopicID
	partitions int32
	flush      string
}

// A load is clients at work against a broker that may vanish and come back.
type load struct {
	h       *history
	seed    uint64
	c       *client.Client
	topics  []loadTopic
	rate    float64  // records a second of each producer, on average; 0: as the brokers of seconds like it
	most    int      // bytes of a value; 0: 1500, and now and then 40 KiB
	passing []string // flush modes of the topics that come and go; none: there are no such
	prefix  string   // of their names

	ctx       context.Context // ends when nothing new is to be begun
	cancel    context.CancelFunc
	clients   sync.WaitGroup
	producers []*client.Producer
	standing  *loadTopic // made, and not yet near its end; guarded by the history's lock

	excused func(topic wire.TopicID) bool                                // whether acknowledged records of the topic may be gone; nil: never
	acked   func(p wire.PartitionID, a client.Ack, size int)             // hears of every acknowledgement, under the lock of the history; may be nil
	stopped func(p wire.PartitionID, next wire.Offset, epoch wire.Epoch) // hears where the readers ended; may be nil
}

var torturedSettings = []wire.Setting{
	{Key: "segment.bytes", Value: "1MiB"}, {Key: "retention.bytes", Value: "4MiB"},
	{Key: "flush.interval", Value: "200ms"}, {Key: "flush.bytes", Value: "256KiB"},
}

// clientPatience is how long a client waits for anything: longer than any fault lasts,
// and than a machine that has other things to do.
const clientPatience = 5 * time.Minute

func dial(addr string) (*client.Client, error) {
	return client.New(client.Options{Servers: []string{addr}, Name: "torture", RequestTimeout: clientPatience,
		BackoffMin: 2 * time.Millisecond, BackoffMax: 50 * time.Millisecond})
}

// codecs is how the producers of a topic compress, in turn.
var codecs = []wire.Codec{wire.None, wire.Snappy, wire.Zstd, wire.Gzip}

const producersPerTopic = 2

// begin starts producers and a consumer on each topic, and topics coming and
// going.
func (l *load) begin() error {
	l.ctx, l.cancel = context.WithCancel(context.Background())
	for n, t := range l.topics {
		for k := range producersPerTopic {
			o := client.ProducerOptions{BatchBytes: 32 << 10, BufferBytes: 1 << 20, Codec: codecs[(n+2*k)%len(codecs)]}
			if err := l.produce(t, o); err != nil {
				return err
			}
		}
		if err := l.follow(t); err != nil {
			return err
		}
	}
	if len(l.passing) > 0 {
		l.run(l.churn)
	}
	return nil
}

func (l *load) run(f func()) {
	l.clients.Add(1)
	go func() {
		defer l.clients.Done()
		f()
	}()
}

// finish lets everything that was sent come to an outcome.
func (l *load) finish(ctx context.Context) error {
	l.cancel()
	l.clients.Wait()
	for _, p := range l.producers {
		if err := p.Flush(ctx); err != nil {
			return fmt.Errorf("%d bytes of records have no outcome: %w", p.Buffered(), err)
		}
		p.Close()
	}
	return nil
}

// abort ends the clients as they are.
func (l *load) abort() {
	l.cancel()
	for _, p := range l.producers {
		p.Close()
	}
	l.c.Close()
	l.clients.Wait()
}

// A writer is one producer and its numbering.
type writer struct {
	l     *load
	p     *client.Producer
	id    bench.ID
	rnd   *rand.Rand
	value []byte
}

func (l *load) writer(o client.ProducerOptions) (*writer, error) {
	o.DeliveryTimeout = clientPatience
	p, err := l.c.NewProducer(o)
	if err != nil {
		return nil, err
	}
	id := bench.ID{Run: l.h.run, Producer: l.h.number()}
	return &writer{l: l, p: p, id: id, rnd: rand.New(rand.NewPCG(l.seed, uint64(id.Producer)))}, nil
}

// send gives one record to the producer.
func (w *writer) send(ctx context.Context, t loadTopic) error {
	id, h := w.id, w.l.h
	w.id.Counter++
	size := 24 + w.rnd.IntN(1500)
	switch {
	case w.l.most > 0:
		size = 24 + w.rnd.IntN(w.l.most-23)
	case w.rnd.IntN(200) == 0:
		size = 40 << 10
	}
	w.value = bench.AppendValue(w.value[:0], id, size)
	part := wire.PartitionID{Topic: t.id, Partition: w.rnd.Int32N(t.partitions)}
	h.mu.Lock()
	h.checker.Apply(&bench.Sent{ID: id, Partition: part, Idempotent: true})
	h.counts.sent++
	h.counts.bytes += int64(size)
	h.mu.Unlock()
	r := client.Record{Topic: t.name, Partition: part.Partition, Pinned: true, Value: w.value, Time: time.UnixMilli(eventBegin + w.rnd.Int64N(eventSpan))}
	err := w.p.ProduceAsync(ctx, r, func(a client.Ack, err error) { w.decided(id, part, size, a, err) })
	if err != nil { // it was not accepted
		h.apply(&bench.Decided{ID: id, Outcome: bench.Fail, Offset: -1, Epoch: wire.NoEpoch})
		h.count(func(c *loadCounts) { c.failed++ })
	}
	return err
}

// Event times are drawn from here, ms, in no order.
const (
	eventBegin = 1_600_000_000_000
	eventSpan  = 1_000_000
)

func (w *writer) decided(id bench.ID, part wire.PartitionID, size int, a client.Ack, err error) {
	h := w.l.h
	e := bench.Decided{ID: id, Offset: a.Offset, Epoch: a.Epoch}
	if a.Offset < 0 {
		e.Epoch = wire.NoEpoch
	}
	if err != nil {
		e.Outcome, e.Offset = bench.Fail, -1
		if errors.Is(err, client.ErrIndefinite) {
			e.Outcome = bench.Info
		}
		if !errors.Is(err, client.ErrClosed) && !(forgotten(err) && w.l.mayLose(part.Topic)) {
			h.violate("producer %d: record %d was not acknowledged: %v", id.Producer, id.Counter, err)
		}
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.checker.Apply(&e)
	switch e.Outcome {
	case bench.OK:
		h.counts.acked++
		h.own(part, e.Offset, id)
		if w.l.acked != nil {
			w.l.acked(part, a, size)
		}
	case bench.Fail:
		h.counts.failed++
	case bench.Info:
		h.counts.doubtful++
	}
}

// forgotten reports whether a record may have failed since the broker has lost
// its count of the producer's: it says so, or the record was on its way then, and
// to send it again under a new id might write it twice.
func forgotten(err error) bool {
	code := wire.CodeOf(err)
	return code == wire.CodeUnknownProducer || code == wire.CodeOutOfOrderSequence || errors.Is(err, wire.ErrConnLost)
}

func (l *load) mayLose(topic wire.TopicID) bool { return l.excused != nil && l.excused(topic) }

// burst and pause keep a producer at some thousand records a second, so that
// segments roll all the time and the disk is not all that is tested.
const (
	burst = 12
	pause = 8 * time.Millisecond

	longBurst = 4096 // of a producer with a rate
)

// produce sends to a topic until the load ends.
func (l *load) produce(t loadTopic, o client.ProducerOptions) error {
	w, err := l.writer(o)
	if err != nil {
		return err
	}
	l.producers = append(l.producers, w.p)
	l.run(func() {
		tick := time.NewTicker(pause)
		defer tick.Stop()
		for begun := time.Now(); ; {
			n := burst
			if l.rate > 0 { // what a fault held up is made up for
				n = int(min(l.rate*time.Since(begun).Seconds()-float64(w.id.Counter), longBurst))
			}
			for range n {
				if w.send(l.ctx, t) != nil {
					return
				}
			}
			select {
			case <-tick.C:
			case <-l.ctx.Done():
				return
			}
		}
	})
	return nil
}
