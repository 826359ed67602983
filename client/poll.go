package client

import (
	"context"
	"io"
	"slices"

	"github.com/teralog/teralog/wire"
)

// A reading is the batch whose records Poll returns at the moment. What it
// needs of the cursor was copied when it was opened, since the cursor may be
// moved meanwhile.
type reading struct {
	cursor *cursor // nil: none
	turn   uint64
	pos    wire.Offset
	bounds bounds

	batch   wire.Batch
	frame   *frame // holds the batch; a reference of its own
	begun   bool   // the decoder is in it
	decoder wire.Decoder
}

// pollBytes bounds the batches one Poll opens, in bytes uncompressed, if it
// has records to return already.
const pollBytes = 4 << 20

// pollHeaders bounds the headers of one Poll, give or take one record's.
const pollHeaders = 64 << 10

// Poll returns the next records, at least one, waiting for them until ctx
// ends. Between two Polls of a partition nothing is skipped and nothing
// repeated. The slice and all it points to are valid until the next Poll or
// Close: copy what you keep.
//
// An error that stops a partition, a *FetchError, is returned after all
// records before it, once, and again only while no other partition can return
// anything. Once every range was read to its end the error is ErrEnd.
func (x *Consumer) Poll(ctx context.Context) ([]Message, error) {
	x.polling.Lock()
	defer x.polling.Unlock()
	x.release()
	for {
		if err := x.ctx.Err(); err != nil {
			return nil, ErrClosed
		}
		x.fill()
		if len(x.out) > 0 {
			return x.out, nil
		}
		x.release() // else a wait for room could be for what is held here
		if err := x.trouble(); err != nil {
			return nil, err
		}
		select {
		case <-x.news:
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-x.ctx.Done():
		}
	}
}

// fill moves records of fetched batches to out.
func (x *Consumer) fill() {
	bytes := 0
	for x.room() && (bytes < pollBytes || len(x.out) == 0) {
		if x.open.cursor == nil && !x.openNext() {
			break
		}
		if len(x.out) == 0 || bytes > 0 {
			bytes += x.open.batch.RecordsLength()
		}
		x.read()
	}
}

// room reports whether this Poll takes another record.
func (x *Consumer) room() bool { return len(x.out) < x.o.MaxRecords && len(x.headers) < pollHeaders }

// openNext opens the next batch that was fetched, beginning with another
// partition each Poll.
func (x *Consumer) openNext() bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	n := len(x.cursors)
	if n > 0 && len(x.out) == 0 {
		x.first = (x.first + 1) % n
	}
	for i := range n {
		c := x.cursors[(x.first+i)%n]
		if c.paused {
			continue
		}
		b := c.readable(x.drop)
		if b == nil {
			x.aim(c)
			continue
		}
		r := &x.open
		r.cursor, r.turn, r.pos, r.bounds = c, c.turn, c.pos, c.bounds
		r.batch, r.frame, r.begun = b, c.chunks[0].frame, false
		r.frame.refs++
		return true
	}
	return false
}

// read moves records of the open batch to out until it or the room is at its
// end. The cursor advances only if it was not moved meanwhile.
func (x *Consumer) read() {
	r, from := &x.open, len(x.out)
	headers := len(x.headers)
	done, err := r.take(x)

	x.mu.Lock()
	defer x.mu.Unlock()
	c := r.cursor
	if c.turn != r.turn {
		clear(x.out[from:])
		x.out, x.headers = x.out[:from], x.headers[:headers]
		r.end(x)
		return
	}
	switch {
	case err != nil:
		c.fail(err, nil)
		c.err.Offset = c.pos
		x.moved(c.forget())
	case done:
		c.passed(r.batch)
		c.readable(x.drop) // so that the end of a range is seen now
	case len(x.out) > from:
		c.advance(r.batch, x.out[len(x.out)-1].Offset+1)
	}
	if done || err != nil {
		r.end(x)
	}
	x.aim(c)
}

// take decodes records to x.out as far as there is room. done says that the
// batch is at its end.
func (r *reading) take(x *Consumer) (done bool, err error) {
	if !r.begun {
		if err := r.batch.Verify(); err != nil {
			return false, err
		}
		if r.batch.Control() {
			return true, nil
		}
		if err := r.decoder.Open(r.batch); err != nil {
			return false, err
		}
		r.begun = true
	}
	appended, epoch := r.batch.AppendTime(), r.batch.LeaderEpoch()
	for x.room() {
		if len(x.out) == cap(x.out) {
			x.out = slices.Grow(x.out, 1)
		}
		m := &x.out[:len(x.out)+1][len(x.out)] // becomes part of out if it is wanted
		if err := r.decoder.Read(&m.Record); err != nil {
			m.Record = wire.Record{}
			if err == io.EOF {
				return true, nil
			}
			return false, err
		}
		if m.Offset < r.pos || !r.bounds.hold(&m.Record, appended) {
			continue
		}
		m.Topic, m.Partition, m.LeaderEpoch, m.AppendTime = r.cursor.topic, r.cursor.id.Partition, epoch, appended
		m.Headers = x.keepHeaders(m.Headers)
		x.out = x.out[:len(x.out)+1]
	}
	return false, nil
}

// end closes the batch; its memory lives on until the next Poll. x.mu is held.
func (r *reading) end(x *Consumer) {
	if r.cursor == nil {
		return
	}
	if b := r.decoder.Take(); b != nil {
		x.scratch = append(x.scratch, b)
	}
	x.held = append(x.held, r.frame)
	r.cursor, r.batch, r.frame = nil, nil, nil
}

// keepHeaders copies a record's headers, whose slice the decoder uses again.
func (x *Consumer) keepHeaders(hs []wire.Header) []wire.Header {
	if len(hs) == 0 {
		return nil
	}
	n := len(x.headers)
	x.headers = append(x.headers, hs...)
	return x.headers[n:len(x.headers):len(x.headers)]
}

// release gives up the memory of what the last Poll returned.
func (x *Consumer) release() {
	clear(x.out)
	clear(x.headers)
	x.out, x.headers = x.out[:0], x.headers[:0]
	for i, b := range x.scratch {
		b.Release()
		x.scratch[i] = nil
	}
	x.scratch = x.scratch[:0]
	if len(x.held) == 0 {
		return
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	for i, f := range x.held {
		x.unref(f)
		x.held[i] = nil
	}
	x.held = x.held[:0]
}

// trouble returns the error Poll has to report when it has no records. Only now
// that all before it were returned a position that is gone may be reset.
func (x *Consumer) trouble() error {
	x.mu.Lock()
	defer x.mu.Unlock()
	stopped, end := true, ErrEnd
	for _, c := range x.cursors {
		failed := c.err != nil && len(c.chunks) == 0 && !x.reset(c)
		if failed && !c.told {
			c.told = true
			return c.err
		}
		if failed {
			end = c.err
		}
		stopped = stopped && c.stopped()
	}
	if stopped && len(x.cursors) > 0 {
		return end
	}
	return nil
}
