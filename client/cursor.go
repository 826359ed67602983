package client

import (
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/teralog/teralog/mem"
	"github.com/teralog/teralog/wire"
)

// noStop is the stop of a range without end.
const noStop wire.Offset = -1

// bounds are a Range turned into offsets and times.
type bounds struct {
	from, stop    wire.Offset // stop is exclusive, or noStop
	epoch         wire.Epoch  // of what lies before from, or wire.NoEpoch
	clock         Clock
	since, before int64 // ms; records outside are dropped. before is exclusive
}

func unbounded(from wire.Offset) bounds {
	return bounds{from: from, stop: noStop, epoch: wire.NoEpoch, since: math.MinInt64, before: math.MaxInt64}
}

// A cursor is the position of a consumer in one partition: what was fetched
// and not yet returned, and what to ask for next. It is a state machine without
// lock or clock; the consumer's mutex guards it.
//
// Offsets are never counted, only read: from batches and from the broker's
// word on what to ask for next. So ranges without records, which compaction
// leaves, are passed like any other.
type cursor struct {
	topic string
	id    wire.PartitionID
	bounds

	leader  wire.NodeID // wire.NoNode: not known
	current wire.Epoch  // the leader's

	pos    wire.Offset // everything below was returned or holds nothing to return
	ask    wire.Offset // everything below was fetched; pos or more
	last   wire.Epoch  // of what lies before ask, wire.NoEpoch if that is not known
	seen   wire.Epoch  // of what lies before pos, likewise
	chunks []chunk     // fetched, in order
	bytes  int         // in chunks
	end    wire.Offset // bound of what consumers see, as last heard; -1: not heard

	turn     uint64 // grows when fetched data and answers on their way lose their meaning
	asking   bool   // a request of this turn is on its way
	paused   bool
	err      *FetchError   // stops the cursor
	told     bool          // Poll has returned err
	failures int           // answers in a row that failed
	rest     time.Duration // nothing is asked before this
}

// A chunk is what one answer brought of one partition.
type chunk struct {
	data  []byte      // whole batches not yet returned to their end
	next  wire.Offset // the position behind them
	frame *frame
}

// A frame is the memory of one answer, shared by its chunks.
type frame struct {
	buf  *mem.Buf
	refs int
	cost int64
}

// seek moves the cursor and forgets what was fetched. It returns the chunks
// given up, whose memory is the caller's to release.
func (c *cursor) seek(b bounds) []chunk {
	c.bounds, c.err, c.told, c.failures, c.rest = b, nil, false, 0, 0
	return c.rewind(b.from, b.epoch)
}

// rewind drops what was fetched and goes on at offset o; e is the epoch of
// what lies before it, if that is known.
func (c *cursor) rewind(o wire.Offset, e wire.Epoch) []chunk {
	old := c.chunks
	c.chunks, c.bytes = nil, 0
	c.pos, c.seen, c.ask, c.last = o, e, o, e
	c.turn++
	c.asking = false
	return old
}

// forget drops what was fetched and not returned.
func (c *cursor) forget() []chunk { return c.rewind(c.pos, c.seen) }

// ended reports whether the range was returned to its end.
func (c *cursor) ended() bool { return c.stop != noStop && c.pos >= c.stop }

// fetched reports whether the range was fetched to its end.
func (c *cursor) fetched() bool { return c.stop != noStop && c.ask >= c.stop }

// stopped reports whether the cursor will return nothing more by itself.
func (c *cursor) stopped() bool { return c.err != nil && len(c.chunks) == 0 || c.ended() }

// wants reports whether the cursor should be fetched for now. If a back-off
// is all that is in the way, wait says how long it lasts.
func (c *cursor) wants(now time.Duration, most int) (ok bool, wait time.Duration) {
	if c.asking || c.paused || c.err != nil || c.fetched() || c.bytes >= most {
		return false, 0
	}
	if now < c.rest {
		return false, c.rest - now
	}
	return true, 0
}

func (c *cursor) request(most int) wire.FetchPartition {
	c.asking = true
	return wire.FetchPartition{Topic: c.id.Topic, Partition: c.id.Partition, Offset: c.ask,
		Epoch: c.current, LastEpoch: c.last, MaxBytes: uint32(most)}
}

// answer takes what the broker said to request. An error is for the caller to
// judge: to ask again later, or to stop the cursor with. f is the memory of
// the data, which the cursor keeps a share of if it keeps data.
func (c *cursor) answer(r *wire.FetchResult, f *frame) error {
	c.current = max(c.current, r.Epoch)
	if r.Code != wire.CodeOK {
		return r.Code
	}
	if r.Topic != c.id.Topic || r.Partition != c.id.Partition || r.Next < c.ask || len(r.Data) > 0 && r.Next == c.ask {
		return fmt.Errorf("%w answer: asked %s for offset %d, got %d bytes of %d-%d and %d to ask for next",
			wire.ErrCorrupt, c.id, c.ask, len(r.Data), r.Topic, r.Partition, r.Next)
	}
	last, err := c.check(r)
	if err != nil {
		return err
	}
	c.end = max(c.end, r.Committed)
	c.failures, c.rest = 0, 0
	if len(r.Data) > 0 {
		c.last = last
		f.refs++
		c.chunks = append(c.chunks, chunk{r.Data, r.Next, f})
		c.bytes += len(r.Data)
	}
	c.ask = r.Next
	if len(c.chunks) == 0 {
		c.reach(c.ask)
	}
	return nil
}

// reach moves the position up to o, but not beyond the range: who goes on from
// its end must find there what the range left out of the last batch.
func (c *cursor) reach(o wire.Offset) {
	if c.stop != noStop {
		o = min(o, c.stop)
	}
	c.pos = max(c.pos, o)
}

// check walks the batches of an answer: they must be of this partition, follow
// each other, and lie between what was asked for and what is to be asked for
// next. Their records are checked when they are read.
func (c *cursor) check(r *wire.FetchResult) (last wire.Epoch, err error) {
	at := c.ask
	for b, err := range wire.Batches(r.Data) {
		if err != nil {
			return 0, err
		}
		if _, err := wire.ParseHeader(b); err != nil {
			return 0, fmt.Errorf("batch at or after offset %d: %w", at, err)
		}
		first := at == c.ask
		if b.Topic() != c.id.Topic || b.Partition() != c.id.Partition ||
			b.BaseOffset() < at && !first || b.NextOffset() <= at || b.NextOffset() > r.Next {
			return 0, fmt.Errorf("%w answer: batch of %d-%d with offsets %d to %d, wanted %s from %d to %d", wire.ErrCorrupt,
				b.Topic(), b.Partition(), b.BaseOffset(), b.LastOffset(), c.id, at, r.Next-1)
		}
		at, last = b.NextOffset(), b.LeaderEpoch()
	}
	return last, nil
}

// fail stops the cursor.
func (c *cursor) fail(err error, r *wire.FetchResult) {
	c.err = &FetchError{Topic: c.topic, Partition: c.id.Partition, Offset: c.ask, Err: err}
	c.told = false
	if r == nil {
		return
	}
	switch r.Code {
	case wire.CodeOutOfRange:
		c.err.Start, c.err.End = r.LogStart, r.Committed
	case wire.CodeTruncated:
		c.err.MatchEpoch, c.err.MatchEnd = r.Diverge, r.DivergeEnd
	case wire.CodeCorrupt:
		c.err.From, c.err.To = r.CorruptFrom, r.CorruptTo
	}
}

// retry puts the next request off after a failure that may pass.
func (c *cursor) retry(now time.Duration, wait func(n int, hint time.Duration) time.Duration, hint time.Duration) {
	c.failures++
	c.rest = now + wait(c.failures, hint)
}

// readable returns the batch the next records are in, nil if there is none.
// Chunks that hold nothing more are taken off and given to drop.
func (c *cursor) readable(drop func(chunk)) wire.Batch {
	for len(c.chunks) > 0 {
		k := &c.chunks[0]
		if c.ended() || len(k.data) == 0 {
			c.reach(k.next)
			c.shift(drop)
			continue
		}
		return wire.Batch(k.data[:wire.Batch(k.data).Len()])
	}
	return nil
}

func (c *cursor) shift(drop func(chunk)) {
	k := c.chunks[0]
	c.chunks[0] = chunk{}
	c.chunks = c.chunks[1:]
	c.bytes -= len(k.data)
	drop(k)
}

// advance says that records of b, the readable batch, were returned up to
// offset o (exclusive).
func (c *cursor) advance(b wire.Batch, o wire.Offset) {
	c.reach(o)
	c.seen = b.LeaderEpoch()
}

// passed says that b was returned to its end.
func (c *cursor) passed(b wire.Batch) {
	c.advance(b, b.NextOffset())
	k := &c.chunks[0]
	k.data = k.data[len(b):]
	c.bytes -= len(b)
}

// hold reports whether a record that was appended at that time lies within b.
func (b *bounds) hold(r *wire.Record, appended int64) bool {
	at := r.Time
	if b.clock == AppendTime {
		at = appended
	}
	return b.since <= at && at < b.before && (b.stop == noStop || r.Offset < b.stop)
}

// stops reports whether an answer's error ends the reading of a partition
// instead of delaying it.
func stops(err error) bool {
	if errors.Is(err, wire.ErrConnLost) || errors.Is(err, wire.ErrNotSent) {
		return false
	}
	return errors.Is(err, wire.ErrCorrupt) || !judge(err).again
}
