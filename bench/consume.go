package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/teralog/teralog/client"
)

const consumeHelp = `Usage: teralog bench consume [flags]

Reads a topic from its beginning, over and over until the time has passed, with
consumers that check every batch's CRC and decode every record; each of them
reads all of it. Unless the topic holds records already, --backlog of them are
written first.

  teralog bench consume --size 100 --consumers 10
  teralog bench consume --server 127.0.0.1:7400 --topic orders --partitions 6
  teralog bench consume --server 127.0.0.1:7400 --topic orders --follow --consumers 1000

With --follow they begin at the end instead and read what others write.

The run is marked as bound by the generator if the client used nine tenths of
the cores it could have had, one a consumer and no more than the broker left
over, and at least twice what the broker did.
`

func benchConsume(ctx context.Context, args []string, start Start, _ io.Reader, out, notes io.Writer) error {
	l := newLoad("consume")
	f := newFlags(consumeHelp)
	l.backlog = 1 << 30
	l.brokerFlags(f)
	l.topicFlags(f)
	l.producerFlags(f)
	l.timeFlags(f)
	l.outputFlags(f)
	f.IntVar(&l.consumers, "consumers", l.consumers, "consumers, each with a connection of its own")
	f.Var(size(&l.backlog), "backlog", "bytes of records to write before, if the topic is empty")
	f.BoolVar(&l.follow, "follow", false, "read what others write meanwhile, from the end on")
	l.refine = l.someConsumers
	return l.execute(ctx, f, args, start, out, notes, measureConsume)
}

func (l *load) someConsumers() error {
	switch {
	case l.consumers == 0:
		return usage{errors.New("--consumers 0: nobody reads")}
	case l.follow && l.server == "":
		return usage{errors.New("--follow reads what others write: name their broker with --server")}
	}
	return nil
}

// measureConsume reads a backlog, writing it before if there is none.
func measureConsume(ctx context.Context, t *target, l *load, d *Display) (*Result, error) {
	if err := t.prepare(ctx, l); err != nil {
		return nil, err
	}
	if l.follow {
		return t.followed(ctx, l, d)
	}
	n, err := t.fill(ctx, l, d)
	if err != nil {
		return nil, err
	}
	if n == 0 {
		return nil, fmt.Errorf("topic %q holds no records to read", l.topic)
	}
	rs, err := openReaders(ctx, t, l, client.Range{To: client.End()})
	if err != nil {
		return nil, err
	}
	defer closeReaders(rs)
	if t.dir != "" { // nobody else writes
		for _, r := range rs {
			r.held = n
		}
	}
	r, err := t.measure(ctx, l, d, func(ctx context.Context, m *meter, s span) error { return readAll(ctx, rs, m, s) })
	if r != nil {
		r.bound(readersBusy(r, l.consumers))
	}
	return r, err
}

// followed reads what others write.
func (t *target) followed(ctx context.Context, l *load, d *Display) (*Result, error) {
	rs, err := openReaders(ctx, t, l, client.Range{From: client.End()})
	if err != nil {
		return nil, err
	}
	defer closeReaders(rs)
	return t.measure(ctx, l, d, func(ctx context.Context, m *meter, s span) error { return readAll(ctx, rs, m, s) })
}

// fill writes a topic's backlog if the topic is empty, and returns how many
// records it holds.
func (t *target) fill(ctx context.Context, l *load, d *Display) (int64, error) {
	n, err := t.held(ctx, l)
	if err != nil || n > 0 || l.backlog == 0 {
		return n, err
	}
	want := max(l.backlog/max(l.recordBytes(), 1), int64(l.producers))
	sure := *l
	if l.acks == "0" {
		sure.acks = "1" // else nobody would say when they are there
	}
	ps, err := openProducers(t, &sure)
	if err != nil {
		return 0, err
	}
	defer ps.close()
	m := newMeter()
	s := span{records: want}
	stop := t.watch(d, "filling ", m, s)
	err = ps.run(ctx, m, s)
	stop()
	if err == nil {
		err = ctx.Err()
	}
	if failure := m.failure(); failure != nil {
		err = errors.Join(err, fmt.Errorf("fill the topic: %d records failed, the first: %w", m.failed.Load(), failure))
	}
	if err != nil {
		return 0, err
	}
	if n, err = t.held(ctx, l); err == nil && n < want {
		err = fmt.Errorf("%d records were acknowledged and topic %q holds %d", want, l.topic, n)
	}
	return n, err
}

// held returns how many offsets of a topic consumers can see.
func (t *target) held(ctx context.Context, l *load) (n int64, err error) {
	for _, at := range []struct {
		client.Position
		sign int64
	}{{client.Start(), -1}, {client.End(), 1}} {
		found, err := t.c.Offsets(ctx, l.topic, at.Position)
		if err != nil {
			return 0, err
		}
		for _, f := range found {
			n += at.sign * int64(f.Offset)
		}
	}
	return n, nil
}

// A reader is one consumer of the whole topic.
type reader struct {
	x      *client.Consumer
	topic  string
	within client.Range

	held int64 // records from beginning to end; 0: that may change
	read int64 // of them
}

func openReaders(ctx context.Context, t *target, l *load, within client.Range) (rs []*reader, err error) {
	for range l.consumers {
		x, err := t.c.NewConsumer(client.ConsumerOptions{})
		if err == nil {
			rs = append(rs, &reader{x: x, topic: l.topic, within: within})
			err = x.AssignTopic(ctx, l.topic, within)
		}
		if err != nil {
			closeReaders(rs)
			return nil, err
		}
	}
	return rs, nil
}

func closeReaders(rs []*reader) {
	for _, r := range rs {
		r.x.Close()
	}
}

// each polls until f returns false or ctx ends, which is no error. Past the
// end of the range it begins again.
func (r *reader) each(ctx context.Context, f func(records, bytes int64) bool) error {
	for {
		messages, err := r.x.Poll(ctx)
		switch {
		case errors.Is(err, client.ErrEnd):
			if r.held > 0 && r.read != r.held {
				return fmt.Errorf("%d records were read to the end of topic %q, which holds %d", r.read, r.topic, r.held)
			}
			r.read = 0
			err = r.x.AssignTopic(context.WithoutCancel(ctx), r.topic, r.within) // all of it or nothing, or the next pass is short
		case err == nil:
			r.read += int64(len(messages))
			bytes := int64(0)
			for i := range messages {
				bytes += int64(len(messages[i].Key) + len(messages[i].Value))
			}
			if !f(int64(len(messages)), bytes) {
				return nil
			}
		}
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// readAll has every reader read for a span.
func readAll(ctx context.Context, rs []*reader, m *meter, s span) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if s.records == 0 {
		ctx, cancel = context.WithTimeout(ctx, s.duration)
		defer cancel()
	}
	errs := make([]error, len(rs))
	var running sync.WaitGroup
	for i, r := range rs {
		running.Go(func() {
			errs[i] = r.each(ctx, func(records, bytes int64) bool {
				m.add(records, bytes)
				return s.records == 0 || m.records.Load() < s.records
			})
			if errs[i] != nil {
				cancel()
			}
		})
	}
	running.Wait()
	return errors.Join(errs...)
}

// A following is readers that read what is written meanwhile.
type following struct {
	read   atomic.Int64
	cancel context.CancelFunc
	done   chan struct{}
	wake   chan struct{} // capacity 1: something was read
}

// follow lets readers read until stop.
func follow(ctx context.Context, rs []*reader) *following {
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	g := &following{cancel: cancel, done: make(chan struct{}), wake: make(chan struct{}, 1)}
	var running sync.WaitGroup
	for _, r := range rs {
		running.Go(func() {
			r.each(ctx, func(records, _ int64) bool { // an error shows as records that are missing
				g.read.Add(records)
				select {
				case g.wake <- struct{}{}:
				default:
				}
				return true
			})
		})
	}
	go func() {
		running.Wait()
		close(g.done)
	}()
	return g
}

// stop waits until want records were read, as long as more come, and returns
// how many were.
func (g *following) stop(ctx context.Context, want int64) int64 {
	const patience = 5 * time.Second
	timer := time.NewTimer(patience)
	defer timer.Stop()
	for waiting := g.read.Load() < want; waiting; waiting = waiting && g.read.Load() < want {
		select {
		case <-g.wake:
			timer.Reset(patience)
		case <-g.done:
			waiting = false
		case <-timer.C:
			waiting = false
		}
	}
	g.cancel()
	<-g.done
	return g.read.Load()
}
