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

// A history feeds the checker with what clients saw, in the order in which they
// saw it, and keeps what is wrong at once. It may be used from anywhere.
type history struct {
	run uint32

	mu      sync.Mutex
	checker *bench.Checker
	owners  map[wire.PartitionID][]bench.ID // by offset: whose it is, as acknowledged or read
	next    uint32                          // the next producer or consumer
	counts  loadCounts
	wrong   []string
}

// maxWrong is how many violations are kept: they tend to have one cause.
const maxWrong = 8

// loadCounts is what a load did.
type loadCounts struct {
	sent, acked, failed, doubtful, bytes, read int64
	created, deleted, outOfRange, truncated    int64
}

func newHistory(run uint32) *history {
	return &history{run: run, checker: bench.NewChecker(run), owners: map[wire.PartitionID][]bench.ID{}}
}

// own notes that a record was acknowledged or read at an offset. Two there is
// one too many, whether or not retention has deleted them by the end of the
// run, when the checker looks. h.mu is held.
func (h *history) own(p wire.PartitionID, at wire.Offset, id bench.ID) {
	if at < 0 || at >= 1<<31 {
		return
	}
	all := h.owners[p]
	if n := int(at) + 1 - len(all); n > 0 {
		all = append(all, make([]bench.ID, n)...)
		h.owners[p] = all
	}
	if none := (bench.ID{}); all[at] != none && all[at] != id && len(h.wrong) < maxWrong {
		h.wrong = append(h.wrong, fmt.Sprintf("offset %d of %v belongs to %+v and to %+v", at, p, all[at], id))
	}
	all[at] = id
}

// ownAll is own for what a reader got.
func (h *history) ownAll(p wire.PartitionID, reads []bench.Read) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, r := range reads {
		if r.Sound {
			h.own(p, r.Offset, r.ID)
		}
	}
}

func (h *history) apply(e bench.Event) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.checker.Apply(e)
}

// count changes the counters under the lock.
func (h *history) count(f func(*loadCounts)) {
	h.mu.Lock()
	defer h.mu.Unlock()
	f(&h.counts)
}

// violate notes something that must not happen. The first few are kept.
func (h *history) violate(format string, args ...any) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.wrong) < maxWrong {
		h.wrong = append(h.wrong, fmt.Sprintf(format, args...))
	}
}

// number returns a number for a producer or consumer, never given twice.
func (h *history) number() uint32 {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.next++
	return h.next
}

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
	passing []string // flush modes of the topics that come and go; none: there are no such
	prefix  string   // of their names

	ctx       context.Context // ends when nothing new is to be begun
	cancel    context.CancelFunc
	clients   sync.WaitGroup
	producers []*client.Producer
	standing  *loadTopic // made, and not yet near its end; guarded by the history's lock

	acked   func(p wire.PartitionID, a client.Ack, size int)             // hears of every acknowledgement, under the lock of the history; may be nil
	stopped func(p wire.PartitionID, next wire.Offset, epoch wire.Epoch) // hears where the readers ended; may be nil
}

var torturedSettings = []wire.Setting{
	{Key: "segment.bytes", Value: "1MiB"}, {Key: "retention.bytes", Value: "4MiB"},
	{Key: "flush.interval", Value: "200ms"}, {Key: "flush.bytes", Value: "256KiB"},
}

func dial(addr string) (*client.Client, error) {
	return client.New(client.Options{Servers: []string{addr}, Name: "torture",
		BackoffMin: 2 * time.Millisecond, BackoffMax: 50 * time.Millisecond})
}

// codecs is how the producers of a topic compress, in turn.
var codecs = []wire.Codec{wire.None, wire.Snappy, wire.Zstd, wire.Gzip}

// begin starts producers and a consumer on each topic, and topics coming and
// going.
func (l *load) begin() error {
	l.ctx, l.cancel = context.WithCancel(context.Background())
	for n, t := range l.topics {
		for k := range 2 {
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
	if w.rnd.IntN(200) == 0 {
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
	e := bench.Decided{ID: id, Offset: a.Offset, Epoch: wire.NoEpoch}
	if err != nil {
		e.Outcome, e.Offset = bench.Fail, -1
		if errors.Is(err, client.ErrIndefinite) {
			e.Outcome = bench.Info
		}
		if !errors.Is(err, client.ErrClosed) {
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

// burst and pause keep a producer at some thousand records a second, so that
// segments roll all the time and the disk is not all that is tested.
const (
	burst = 12
	pause = 8 * time.Millisecond
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
		for {
			for range burst {
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

// follow reads a topic from its start on, for as long as the load lasts.
func (l *load) follow(t loadTopic) error {
	x, err := l.c.NewConsumer(client.ConsumerOptions{MaxWait: 100 * time.Millisecond, BufferBytes: 4 << 20})
	if err != nil {
		return err
	}
	f := &tail{l: l, x: x, topic: t, id: l.h.number(), next: make([]wire.Offset, t.partitions), epochs: make([]wire.Epoch, t.partitions)}
	l.run(func() {
		defer x.Close()
		f.run()
	})
	return nil
}

// A tail is a consumer at the end of a topic.
type tail struct {
	l      *load
	x      *client.Consumer
	topic  loadTopic
	id     uint32
	next   []wire.Offset // by partition: where the next poll begins
	epochs []wire.Epoch  // of the last record read
}

func (f *tail) run() {
	ctx := f.l.ctx
	for p := range f.next {
		for {
			err := f.x.Assign(ctx, f.topic.name, int32(p), client.Range{From: client.Start()})
			if ctx.Err() != nil {
				return
			}
			if err == nil {
				break
			}
		}
		f.epochs[p] = wire.NoEpoch
		f.sought(int32(p))
	}
	for {
		ms, err := f.x.Poll(ctx)
		var fe *client.FetchError
		switch {
		case ctx.Err() != nil:
			f.report()
			return
		case errors.As(err, &fe):
			if !f.recover(ctx, fe) {
				return
			}
		case err != nil:
			f.l.h.violate("consumer of %s: %v", f.topic.name, err)
			return
		default:
			f.got(ms)
		}
	}
}

// report tells where the reading ended.
func (f *tail) report() {
	if f.l.stopped == nil {
		return
	}
	for p, next := range f.next {
		f.l.stopped(wire.PartitionID{Topic: f.topic.id, Partition: int32(p)}, next, f.epochs[p])
	}
}

// recover moves a position that the log does not hold any more, and says so.
func (f *tail) recover(ctx context.Context, fe *client.FetchError) bool {
	var to client.Position
	switch wire.CodeOf(fe) {
	case wire.CodeOutOfRange:
		if fe.Offset >= fe.Start {
			f.l.h.violate("consumer of %s: %v", f.topic.name, fe)
			return false
		}
		f.l.h.count(func(c *loadCounts) { c.outOfRange++ })
		to = client.Start()
	default:
		f.l.h.violate("consumer of %s: %v", f.topic.name, fe)
		return false
	}
	for f.x.Seek(ctx, f.topic.name, fe.Partition, to) != nil {
		if ctx.Err() != nil {
			return false
		}
	}
	f.sought(fe.Partition)
	return true
}

func (f *tail) sought(p int32) {
	f.next[p], _, _ = f.x.Position(f.topic.name, p)
	f.l.h.apply(&bench.Sought{Consumer: f.id, Partition: wire.PartitionID{Topic: f.topic.id, Partition: p}})
}

// got takes one poll into the history, a partition at a time.
func (f *tail) got(ms []client.Message) {
	for p := range f.next {
		e := bench.Polled{Consumer: f.id, Partition: wire.PartitionID{Topic: f.topic.id, Partition: int32(p)}, Position: f.next[p]}
		for i := range ms {
			if m := &ms[i]; m.Partition == int32(p) {
				e.Reads = append(e.Reads, readOf(m))
				f.epochs[p] = m.LeaderEpoch
			}
		}
		if len(e.Reads) == 0 {
			continue
		}
		e.Next, _, _ = f.x.Position(f.topic.name, int32(p))
		f.next[p] = e.Next
		f.l.h.ownAll(e.Partition, e.Reads)
		f.l.h.apply(&e)
		f.l.h.count(func(c *loadCounts) { c.read += int64(len(e.Reads)) })
	}
}

func readOf(m *client.Message) bench.Read {
	id, err := bench.ParseValue(m.Value)
	return bench.Read{Offset: m.Offset, Epoch: m.LeaderEpoch, ID: id, Sound: err == nil}
}
