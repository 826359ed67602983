package client

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/teralog/teralog/wire"
)

// Acks says what an acknowledgement must prove.
type Acks uint8

const (
	AcksAll    Acks = iota // every in-sync replica has the record, under the topic's flush mode
	AcksLeader             // the leader has it, under the topic's flush mode
	AcksNone               // nothing: there is no acknowledgement, and records may be lost unnoticed
)

func (a Acks) wire() int8 { return [...]int8{-1, 1, 0}[a] }

// ProducerOptions say how a Producer sends. The zero value is a safe choice:
// acks from all, idempotent, natural batching.
type ProducerOptions struct {
	Acks Acks

	// NotIdempotent does without sequence numbers. A retry may then put a
	// record into the log twice, and only one batch a partition is in flight,
	// since more could change places. With AcksNone it is always so.
	NotIdempotent bool

	Codec wire.Codec // of the batches

	// BatchBytes is the size at which a batch is complete, uncompressed.
	// A larger record travels in a batch of its own. The topic's limit, 1 MiB
	// by default, holds for batches as sent. One that passes it is sent again
	// as smaller ones, and later batches of the topic are made no larger; only
	// a record that is too large alone fails, with TOO_LARGE. 0 is 128 KiB.
	BatchBytes int

	// Linger is how long, in whole milliseconds, a batch waits for more
	// records. At 0 batching is natural: with nothing on its way to a broker,
	// what has come goes at once; behind a request without answer, what would
	// make a small one waits for that answer, 2 ms at most. So batches and
	// requests grow as load does, by themselves.
	Linger time.Duration

	// BufferBytes bounds the records not yet acknowledged. 0 is 64 MiB.
	BufferBytes int64

	// InFlight bounds the batches in flight of one partition, 1 to 5, and
	// the requests in flight to one broker. 0 is 5.
	InFlight int

	// DeliveryTimeout bounds the time from the call that gave the record to
	// its outcome. 0 is 2 minutes.
	DeliveryTimeout time.Duration
}

// maxInFlight batches of one producer and partition are all a broker
// remembers; a repetition older than that it could not answer with its offset.
const maxInFlight = 5

func (o *ProducerOptions) fill() error {
	orDefault(&o.BatchBytes, 128<<10)
	orDefault(&o.BufferBytes, 64<<20)
	orDefault(&o.InFlight, maxInFlight)
	orDefault(&o.DeliveryTimeout, 2*time.Minute)
	o.NotIdempotent = o.NotIdempotent || o.Acks == AcksNone
	switch {
	case o.Acks > AcksNone:
		return fmt.Errorf("client: acks %d", o.Acks)
	case !o.Codec.Known():
		return fmt.Errorf("client: %v is not known", o.Codec)
	case o.InFlight < 1 || o.InFlight > maxInFlight:
		return fmt.Errorf("client: %d batches in flight, want 1 to %d", o.InFlight, maxInFlight)
	case o.Linger < 0 || o.Linger%time.Millisecond != 0:
		return fmt.Errorf("client: linger %v is not a number of whole milliseconds", o.Linger)
	case o.BatchBytes < 1024 || o.BatchBytes > wire.MaxBatchBytes:
		return fmt.Errorf("client: batches of %d bytes, want 1024 to %d", o.BatchBytes, wire.MaxBatchBytes)
	case o.BufferBytes < 0 || o.DeliveryTimeout < 0:
		return errors.New("client: a negative bound")
	}
	return nil
}

// A Record is what a producer is given. Its bytes are copied before the call
// returns.
type Record struct {
	Topic string

	// Partition is where the record goes if Pinned. Otherwise the producer
	// chooses: by the hash of the key, as PartitionOf says, or, for a null
	// key, the partition whose batch is being filled, and none whose records
	// fail to be sent while there are others.
	Partition int32
	Pinned    bool

	Key, Value []byte // nil is null, which is not the same as empty
	Headers    []wire.Header
	Time       time.Time // event time, to the millisecond; zero is now
}

// An Ack says where a record lies.
type Ack struct {
	Topic     string
	Partition int32
	Epoch     wire.Epoch  // the leader's when it acknowledged; 0 with Offset -1
	Offset    wire.Offset // -1 with AcksNone, on failure, or if the broker no longer knows
	Time      int64       // append time, ms since the epoch; 0 with Offset -1
}

// A Producer sends records to any number of topics. Records of one partition
// are written in the order they were given, through all retries; a record
// whose outcome is not known may appear later than that. All methods may be
// called from any goroutine.
type Producer struct {
	c     *Client
	o     ProducerOptions
	conns *conns

	ctx    context.Context
	cancel context.CancelFunc
	loops  sync.WaitGroup
	wake   chan struct{} // for tend

	// giving is held by whoever gives records, and taken before mu. Who gives
	// many encodes them without mu, so that an answer need not wait for that: the
	// batch they go into is marked as written, and nobody else touches it.
	giving sync.Mutex

	mu      sync.Mutex
	closed  bool
	topics  map[string]*outTopic
	recent  *outTopic // of the last record
	links   map[wire.NodeID]*link
	lanes   []*lane       // with something buffered, for tend; others are dropped as it passes
	tendsAt time.Duration // when it does so next, 0 if that is not settled
	used    int64         // bytes of records without outcome
	freed   chan struct{} // not nil while somebody waits for room

	attended *wire.Conn // on which somebody waited for room last, reading

	flushing int           // calls of Flush that wait: nothing lingers meanwhile
	emptied  chan struct{} // not nil while somebody waits for used == 0, all callbacks called

	producer   wire.ProducerID // the id fetched last
	epoch      int16
	doubtful   bool // the metadata is to be refreshed
	refreshing bool
	futile     int  // refreshes in a row that helped nothing
	supplying  bool // a producer id is being fetched

	direct     bool // a lone Produce may carry its request to the answer, which comes within DeliveryTimeout or is given up
	enough     int  // bytes; see the constant
	waiters    sync.Pool
	finished   []*batch // with outcome, callbacks not yet called
	delivering bool     // somebody is calling them
	spare      spare
}

// An outTopic is a topic as this producer knows it.
type outTopic struct {
	name       string
	id         wire.TopicID
	batchBytes int     // bound of batches of more than one record; falls when one was too large
	lanes      []*lane // by partition
	sticky     sticky
}

// NewProducer returns a producer.
func (c *Client) NewProducer(o ProducerOptions) (*Producer, error) {
	if err := o.fill(); err != nil {
		return nil, err
	}
	p := &Producer{c: c, o: o, conns: newConns(c), wake: make(chan struct{}, 1), producer: wire.NoProducer,
		topics: map[string]*outTopic{}, links: map[wire.NodeID]*link{}}
	p.enough = int(min(enough, o.BufferBytes/4))
	p.direct = o.Linger == 0 && o.DeliveryTimeout >= c.o.RequestTimeout
	p.waiters.New = newWaiter
	p.ctx, p.cancel = context.WithCancel(c.ctx)
	if err := c.adopt(p); err != nil {
		return nil, err
	}
	p.loops.Add(1)
	go p.tend()
	return p, nil
}

// Produce sends one record and returns once its outcome is known. With
// nothing else on its way to that broker, it writes the request and reads the
// answer on the caller's goroutine.
//
// If ctx ends first the record may still be sent later, and the error wraps
// ErrIndefinite unless it was never accepted.
func (p *Producer) Produce(ctx context.Context, r Record) (Ack, error) {
	w := p.waiters.Get().(*waiter)
	f, alone, err := p.accept(ctx, &r, w.done, acceptDirect)
	if err != nil {
		p.waiters.Put(w)
		return Ack{Topic: r.Topic, Partition: r.Partition, Offset: -1}, err
	}
	if alone {
		f.direct(ctx)
	} else {
		f.carry()
	}
	select {
	case <-w.called:
	default:
		select {
		case <-w.called:
		case <-ctx.Done(): // w is left to its callback
			return Ack{Topic: r.Topic, Partition: r.Partition, Offset: -1}, fmt.Errorf("%w: %w", ErrIndefinite, ctx.Err())
		}
	}
	ack, err := w.ack, w.err
	p.waiters.Put(w)
	return ack, err
}

// A waiter carries an outcome to a Produce that waits.
type waiter struct {
	called chan struct{} // capacity 1
	done   func(Ack, error)
	ack    Ack
	err    error
}

func newWaiter() any {
	w := &waiter{called: make(chan struct{}, 1)}
	w.done = func(a Ack, err error) {
		w.ack, w.err = a, err
		w.called <- struct{}{}
	}
	return w
}

// ProduceAsync gives a record to be sent and returns once it is buffered,
// waiting while the buffer is full. An error means that it was not accepted;
// otherwise done, if not nil, is called exactly once with its outcome, for the
// records of one partition in order.
//
// Callbacks run one after the other on a goroutine that has more to do than
// they: they must not wait, not for Produce, Flush or Close of the same
// producer either. TryProduce is safe there. None runs within a call that gives
// records without waiting for their outcome, unless that waits for room: then they
// may, and room is what they make.
func (p *Producer) ProduceAsync(ctx context.Context, r Record, done func(Ack, error)) error {
	return p.give(ctx, &r, done, acceptWait)
}

// TryProduce is ProduceAsync but for a full buffer, which it reports as
// ErrBufferFull at once. The first record of a topic still waits, until ctx
// ends, for its metadata.
func (p *Producer) TryProduce(ctx context.Context, r Record, done func(Ack, error)) error {
	return p.give(ctx, &r, done, acceptTry)
}

// give gives one record and carries what it is told to.
func (p *Producer) give(ctx context.Context, r *Record, done func(Ack, error), mode acceptMode) error {
	f, _, err := p.accept(ctx, r, done, mode)
	f.carry()
	return err
}

// An Outcome is told what became of records from to to-1 of a call of
// ProduceAll, which lie in one batch: ack is the first one's, and the offsets
// of the others follow it one by one unless it is -1.
type Outcome func(from, to int, ack Ack, err error)

// ProduceAll gives records as so many calls of ProduceAsync would, in their
// order, for less: done, if not nil, is called once for neighbours that went
// into the same batch. It returns how many were accepted, all without an error;
// the others were not.
func (p *Producer) ProduceAll(ctx context.Context, rs []Record, done Outcome) (accepted int, err error) {
	return p.acceptAll(ctx, rs, done, acceptWait)
}

// TryProduceAll is ProduceAll but for a full buffer, which it reports as
// ErrBufferFull at once.
func (p *Producer) TryProduceAll(ctx context.Context, rs []Record, done Outcome) (accepted int, err error) {
	return p.acceptAll(ctx, rs, done, acceptTry)
}

// Flush returns once no record is without outcome, or when ctx ends. Linger
// is suspended meanwhile.
func (p *Producer) Flush(ctx context.Context) error {
	p.mu.Lock()
	if p.used == 0 {
		p.mu.Unlock()
		return nil
	}
	if p.emptied == nil {
		p.emptied = make(chan struct{})
	}
	emptied := p.emptied
	p.flushing++
	p.resume()
	for _, k := range p.links {
		k.nudge()
	}
	p.mu.Unlock()

	defer func() {
		p.mu.Lock()
		p.flushing--
		p.mu.Unlock()
	}()
	select {
	case <-emptied:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Buffered returns the bytes of records without outcome.
func (p *Producer) Buffered() int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.used
}

// Close ends the producer. Records without outcome fail with ErrClosed, with
// ErrIndefinite too if a request may have carried them; call Flush before to
// have them sent. When Close returns, all callbacks were called; it leaves no
// goroutine behind and always returns nil.
func (p *Producer) Close() error {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	p.cancel()
	p.conns.close() // what is in flight is answered now
	p.loops.Wait()
	p.bury()
	p.c.disown(p)
	return nil
}
