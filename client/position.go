package client

import (
	"context"
	"fmt"

	"github.com/teralog/teralog/wire"
)

// A Clock says which of a record's two times is meant.
type Clock uint8

const (
	EventTime  Clock = iota // when it happened, as the producer said
	AppendTime              // when the leader appended it
)

// A Position is a place in a partition: an offset, or a description that the
// broker turns into one. The zero value is Start.
type Position struct {
	kind  posKind
	n     int64      // offset or time
	epoch wire.Epoch // of an exact position: see AtEpoch
}

type posKind uint8

const (
	earliest posKind = iota
	latest
	greatest
	byEventTime
	byAppendTime
	exactly
)

// Start is the first offset retained.
func Start() Position { return Position{kind: earliest} }

// End is the offset after the last one consumers can see.
func End() Position { return Position{kind: latest} }

// Greatest is the offset of the first record with the greatest event time.
func Greatest() Position { return Position{kind: greatest} }

// At is the offset o, whether a record is there or not.
func At(o wire.Offset) Position { return AtEpoch(o, wire.NoEpoch) }

// AtEpoch is the offset o for one who read up to there before: the record
// before it was appended under leader epoch e, as its Message said. If the log
// has lost that record since, and with it perhaps holds others at its offsets,
// reading stops with TRUNCATED instead of going on in another history.
func AtEpoch(o wire.Offset, e wire.Epoch) Position {
	return Position{kind: exactly, n: int64(o), epoch: e}
}

// AtTime is the first offset whose time by the clock is millis (milliseconds
// since the epoch) or later.
func AtTime(c Clock, millis int64) Position {
	if c == AppendTime {
		return Position{kind: byAppendTime, n: millis}
	}
	return Position{kind: byEventTime, n: millis}
}

func (p Position) String() string {
	switch p.kind {
	case latest:
		return "end"
	case greatest:
		return "greatest time"
	case byEventTime:
		return fmt.Sprintf("event time %d ms", p.n)
	case byAppendTime:
		return fmt.Sprintf("append time %d ms", p.n)
	case exactly:
		return fmt.Sprintf("offset %d", p.n)
	}
	return "start"
}

// timed reports whether the position is a time.
func (p Position) timed() bool { return p.kind == byEventTime || p.kind == byAppendTime }

// before returns the epoch of what lies before the position, if that is known.
func (p Position) before() wire.Epoch {
	if p.kind == exactly {
		return p.epoch
	}
	return wire.NoEpoch
}

// query is the question to put to the leader.
func (p Position) query(id wire.TopicID, partition int32, epoch wire.Epoch) wire.OffsetQuery {
	q := wire.OffsetQuery{Topic: id, Partition: partition, Epoch: epoch}
	switch p.kind {
	case earliest:
		q.Kind = wire.Earliest
	case latest:
		q.Kind = wire.Latest
	case greatest:
		q.Kind = wire.Greatest
	case byEventTime:
		q.Kind, q.Time = wire.AtEventTime, p.n
	case byAppendTime:
		q.Kind, q.Time = wire.AtAppendTime, p.n
	}
	return q
}

// A Range is what to read of a partition. From is where to begin. To, unless
// it is the zero value, is where to end:
//
//   - End: what consumers can see at the time of the call is read, no more.
//   - At: records below that offset.
//   - AtTime: records whose time lies before it, as far as they are visible
//     at the time of the call. If From is a time by the same clock, records
//     before that are left out too, so the two are a window: event times need
//     not ascend, hence all up to the end is read and what lies outside is
//     dropped; append times do, and reading stops with the window.
//
// Without To the range has no end and Poll waits for what is yet to come.
type Range struct {
	From, To Position
}

// endless reports whether the range has no end.
func (r Range) endless() bool { return r.To == Position{} }

// from looks up where to begin; with want not 0 the topic must have that id.
// A time that nothing visible has reached is reached by what comes next, if at
// all, hence the end; it is looked up first, so that nothing appended between
// the two look-ups is missed.
func (c *Client) from(ctx context.Context, name string, partition int32, at Position, want wire.TopicID) (wire.Offset, wire.TopicID, error) {
	var end Found
	var err error
	if at.timed() || at.kind == greatest {
		if end, want, err = c.lookup(ctx, name, partition, End(), want); err != nil {
			return 0, 0, err
		}
	}
	f, id, err := c.lookup(ctx, name, partition, at, want)
	if f.Offset < 0 {
		f.Offset = max(end.Offset, 0)
	}
	return f.Offset, id, err
}

// bounds turns a range into offsets, its end first for the same reason.
func (c *Client) bounds(ctx context.Context, name string, partition int32, r Range) (b bounds, id wire.TopicID, err error) {
	b = unbounded(0)
	var end, to Found
	if !r.endless() && r.To.kind != exactly {
		if end, id, err = c.lookup(ctx, name, partition, End(), 0); err != nil {
			return b, 0, err
		}
		b.stop = max(end.Offset, 0)
	}
	if b.from, id, err = c.from(ctx, name, partition, r.From, id); err != nil {
		return b, 0, err
	}
	b.epoch = r.From.before()
	switch r.To.kind {
	case exactly:
		b.stop = max(wire.Offset(r.To.n), 0)
	case byAppendTime, greatest:
		if to, _, err = c.lookup(ctx, name, partition, r.To, id); err == nil && to.Offset >= 0 {
			b.stop = min(to.Offset, b.stop)
		}
	}
	if r.To.timed() {
		b.before = r.To.n
		if r.To.kind == byAppendTime {
			b.clock = AppendTime
		}
		if r.From.kind == r.To.kind {
			b.since = r.From.n
		}
	}
	return b, id, err
}
