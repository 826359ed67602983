package sim

import (
	"context"
	"errors"
	"time"

	"github.com/teralog/teralog/bench"
	"github.com/teralog/teralog/client"
	"github.com/teralog/teralog/wire"
)

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
	case wire.CodeTruncated:
		if !f.l.mayLose(f.topic.id) {
			f.l.h.violate("consumer of %s: %v", f.topic.name, fe)
			return false
		}
		f.l.h.count(func(c *loadCounts) { c.truncated++ })
		to = client.AtEpoch(fe.MatchEnd, fe.MatchEpoch)
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
