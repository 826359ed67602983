package client

import (
	"context"
	"errors"
	"fmt"
	"math/bits"
	"slices"
	"sync"
	"time"

	"github.com/teralog/teralog/mem"
	"github.com/teralog/teralog/wire"
)

// ConsumerOptions say how a Consumer reads. The zero value is good.
type ConsumerOptions struct {
	// BufferBytes bounds the memory of what is fetched ahead, over all
	// partitions. Only a batch larger than PartitionBytes may pass the bound,
	// once per request in flight. 0 is 64 MiB.
	BufferBytes int64

	// PartitionBytes is how much to fetch of a partition at a time. A batch
	// larger than that comes whole nevertheless. 0 is 256 KiB, or more if so few
	// partitions are assigned that a request has room: up to RequestBytes, and a
	// quarter of BufferBytes, for one alone.
	PartitionBytes int

	// RequestBytes is how much one request asks for at most, of all partitions.
	// Two are on their way to a broker at once, so more is read at a time from
	// one that is far away: 8 MiB at most. From one that is near less is better:
	// what has come is still in the processor's cache when it is summed and
	// decoded. 0 is 1 MiB; one partition is always asked for.
	RequestBytes int

	// MaxWait is how long, in whole milliseconds, a broker may hold back its
	// answer while it has less than MinBytes. 0 is 500 ms and 1 B.
	MaxWait  time.Duration
	MinBytes int

	// MaxRecords bounds the records of one Poll. 0 is 2048.
	MaxRecords int

	// MaxUncompressed is the largest batch, in bytes of its records once
	// uncompressed, that is read; a larger one stops its partition with
	// TOO_LARGE before memory is taken for it. 0 is 16 MiB.
	MaxUncompressed int

	// Plain asks the broker to uncompress.
	Plain bool

	// Reset says what to do when the position is not in the log any more.
	Reset Reset

	roomy bool // PartitionBytes may be passed
}

// Reset says where a consumer goes on, unasked, when the broker no longer has
// its position.
type Reset uint8

const (
	// ResetNever stops the partition with a FetchError: OUT_OF_RANGE or
	// TRUNCATED, with the bounds.
	ResetNever Reset = iota
	// ResetStart goes on with the first offset retained after OUT_OF_RANGE,
	// with the last matching point after TRUNCATED.
	ResetStart
	// ResetEnd goes on with what comes next after OUT_OF_RANGE, with the last
	// matching point after TRUNCATED.
	ResetEnd
)

func (o *ConsumerOptions) fill() error {
	orDefault(&o.BufferBytes, 64<<20)
	if o.PartitionBytes == 0 {
		o.PartitionBytes, o.roomy = 256<<10, true
	}
	orDefault(&o.RequestBytes, 1<<20)
	orDefault(&o.MaxWait, 500*time.Millisecond)
	orDefault(&o.MinBytes, 1)
	orDefault(&o.MaxRecords, 2048)
	switch {
	case o.BufferBytes < 0 || o.PartitionBytes < 0 || o.RequestBytes < 0 || o.MinBytes < 0 || o.MaxRecords < 0 || o.MaxUncompressed < 0:
		return errors.New("client: a negative bound")
	case o.PartitionBytes > maxFetch || o.RequestBytes > maxFetch:
		return fmt.Errorf("client: %d bytes of a partition and %d of a request at a time, at most %d", o.PartitionBytes, o.RequestBytes, maxFetch)
	case o.MaxWait < time.Millisecond || o.MaxWait%time.Millisecond != 0:
		return fmt.Errorf("client: wait of %v is not a number of whole milliseconds", o.MaxWait)
	case o.Reset > ResetEnd:
		return fmt.Errorf("client: reset %d", o.Reset)
	}
	for int64(o.PartitionBytes) > 1 && answerMemory(1, o.PartitionBytes) > o.BufferBytes {
		o.PartitionBytes /= 2
	}
	o.RequestBytes = max(o.RequestBytes, int(answerMemory(1, o.PartitionBytes)))
	return nil
}

// share returns how much to ask for of each of n partitions, at least 1. The memory
// for an answer over one has room in a request.
func (o *ConsumerOptions) share(n int) int {
	room := min(int64(o.RequestBytes), o.BufferBytes/4)
	if !o.roomy || room == 0 {
		return o.PartitionBytes
	}
	return max(o.PartitionBytes, 1<<(bits.Len64(uint64(room))-1)/n)
}

// A Message is a record as it lies in the log.
type Message struct {
	Topic       string
	Partition   int32
	LeaderEpoch wire.Epoch // under which it was appended
	AppendTime  int64      // ms since the epoch
	wire.Record            // Offset, Time, Key, Value, Headers
}

// A Consumer reads partitions it is assigned. It fetches ahead, one answer per
// partition beyond what Poll has not returned yet, within BufferBytes.
//
// Poll may be called by one goroutine at a time, all else from any.
type Consumer struct {
	c     *Client
	o     ConsumerOptions
	conns *conns

	ctx    context.Context
	cancel context.CancelFunc
	loops  sync.WaitGroup
	news   chan struct{} // capacity 1: something changed that Poll may wait for

	mu         sync.Mutex
	closed     bool
	cursors    []*cursor
	fetchers   map[wire.NodeID]*fetcher
	flying     []*fetching // requests on their way
	used       int64       // bytes fetched or asked for
	first      int         // cursor to begin with, turning
	doubtful   bool        // the metadata is to be refreshed
	refreshing bool
	futile     int // refreshes in a row that helped nothing

	polling sync.Mutex // guards what follows
	open    reading
	out     []Message
	headers []wire.Header
	held    []*frame   // memory of what the last Poll returned
	scratch []*mem.Buf // likewise
}

// NewConsumer returns a consumer without assignment.
func (c *Client) NewConsumer(o ConsumerOptions) (*Consumer, error) {
	if err := o.fill(); err != nil {
		return nil, err
	}
	x := &Consumer{c: c, o: o, conns: newConns(c), news: make(chan struct{}, 1), fetchers: map[wire.NodeID]*fetcher{}}
	x.open.decoder = wire.Decoder{MaxRecords: o.MaxUncompressed, Pool: frames}
	x.ctx, x.cancel = context.WithCancel(c.ctx)
	if err := c.adopt(x); err != nil {
		return nil, err
	}
	return x, nil
}

// Assign adds a partition to those read, or gives it another range. Positions
// are looked up before it returns, so "end" and "now" mean the time of the
// call. The partition is bound to the topic by id: if it is deleted and its
// name used again, reading stops with TOPIC_RECREATED.
func (x *Consumer) Assign(ctx context.Context, topic string, partition int32, r Range) error {
	ctx, cancel := x.c.bounded(ctx)
	defer cancel()
	b, id, err := x.c.bounds(ctx, topic, partition, r)
	if err != nil {
		return err
	}
	t, err := x.c.meta.topic(ctx, topic, false)
	if err != nil {
		return err
	}
	c := &cursor{topic: topic, id: wire.PartitionID{Topic: id, Partition: partition}, leader: wire.NoNode, current: wire.NoEpoch, end: -1}
	if t.id == id && int(partition) < len(t.parts) {
		c.leader, c.current = t.parts[partition].leader, t.parts[partition].epoch
	}
	c.seek(b)

	x.mu.Lock()
	defer x.mu.Unlock()
	if x.closed {
		return ErrClosed
	}
	x.remove(topic, partition)
	x.cursors = append(x.cursors, c)
	x.aim(c)
	x.notify()
	return nil
}

// AssignTopic assigns all partitions of a topic the same range.
func (x *Consumer) AssignTopic(ctx context.Context, topic string, r Range) error {
	n, err := x.c.Partitions(ctx, topic)
	for p := int32(0); p < n && err == nil; p++ {
		err = x.Assign(ctx, topic, p, r)
	}
	return err
}

// Unassign ends the reading of a partition; what was fetched of it and not
// returned is dropped.
func (x *Consumer) Unassign(topic string, partition int32) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	if !x.remove(topic, partition) {
		return ErrNotAssigned
	}
	x.notify()
	return nil
}

// Seek moves the position of an assigned partition, within the end its range
// has, and lets it read again if an error had stopped it.
func (x *Consumer) Seek(ctx context.Context, topic string, partition int32, at Position) error {
	x.mu.Lock()
	c := x.find(topic, partition)
	x.mu.Unlock()
	if c == nil {
		return ErrNotAssigned
	}
	ctx, cancel := x.c.bounded(ctx)
	defer cancel()
	from, _, err := x.c.from(ctx, topic, partition, at, c.id.Topic)
	if err != nil {
		return err
	}

	x.mu.Lock()
	defer x.mu.Unlock()
	if !slices.Contains(x.cursors, c) {
		return ErrNotAssigned
	}
	b := c.bounds
	b.from, b.epoch = from, at.before()
	x.moved(c.seek(b))
	x.aim(c)
	x.notify()
	return nil
}

// Pause stops returning and fetching records of a partition. What was fetched
// and not returned is dropped, so that it takes no room, and fetched again
// after Resume; the position stays.
func (x *Consumer) Pause(topic string, partition int32) error {
	return x.change(topic, partition, func(c *cursor) {
		c.paused = true
		x.moved(c.forget())
	})
}

// Resume ends a Pause.
func (x *Consumer) Resume(topic string, partition int32) error {
	return x.change(topic, partition, func(c *cursor) { c.paused = false })
}

// Position returns the offset of the next record that Poll may return of a
// partition, and the end of what consumers can see of it as last heard from
// the broker, -1 before that.
func (x *Consumer) Position(topic string, partition int32) (next, end wire.Offset, err error) {
	err = x.change(topic, partition, func(c *cursor) { next, end = c.pos, c.end })
	return next, end, err
}

func (x *Consumer) change(topic string, partition int32, f func(*cursor)) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	c := x.find(topic, partition)
	if c == nil {
		return ErrNotAssigned
	}
	f(c)
	x.aim(c)
	return nil
}

// Buffered returns the bytes fetched ahead or asked for.
func (x *Consumer) Buffered() int64 {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.used
}

// Close ends the consumer. What Poll returned is no longer valid. It leaves no
// goroutine behind and always returns nil.
func (x *Consumer) Close() error {
	x.mu.Lock()
	x.closed = true
	x.mu.Unlock()
	x.cancel()
	x.conns.close()
	x.loops.Wait()

	x.polling.Lock()
	x.release()
	x.open.end(x)
	x.release()
	x.out = nil
	x.polling.Unlock()
	x.mu.Lock()
	for len(x.cursors) > 0 {
		x.remove(x.cursors[0].topic, x.cursors[0].id.Partition)
	}
	x.mu.Unlock()
	x.c.disown(x)
	return nil
}

func (x *Consumer) find(topic string, partition int32) *cursor {
	for _, c := range x.cursors {
		if c.topic == topic && c.id.Partition == partition {
			return c
		}
	}
	return nil
}

func (x *Consumer) remove(topic string, partition int32) bool {
	c := x.find(topic, partition)
	if c == nil {
		return false
	}
	x.moved(c.forget())
	i := slices.Index(x.cursors, c)
	x.cursors = slices.Delete(x.cursors, i, i+1)
	return true
}

// notify wakes a Poll that waits.
func (x *Consumer) notify() {
	select {
	case x.news <- struct{}{}:
	default:
	}
}
