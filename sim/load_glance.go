package sim

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/teralog/teralog/bench"
	"github.com/teralog/teralog/client"
	"github.com/teralog/teralog/wire"
)

// catchUp reads stretches of a topic from anywhere, as one who was away does,
// for as long as the load lasts.
func (l *load) catchUp(t loadTopic, seed uint64) {
	rnd := rand.New(rand.NewPCG(seed, 0xCA7))
	for l.ctx.Err() == nil {
		err := l.glance(l.ctx, t, rnd.Int32N(t.partitions), rnd.Float64(), 20_000)
		if err != nil && l.ctx.Err() == nil {
			l.h.violate("reading %s: %v", t.name, err)
			return
		}
		select {
		case <-l.ctx.Done():
		case <-time.After(time.Duration(rnd.Int64N(int64(time.Second)))):
		}
	}
}

// glance reads some records of a partition, as many as there are but at most
// most, from a place between its start, 0, and short of its end, 1.
func (l *load) glance(ctx context.Context, t loadTopic, p int32, from float64, most int) error {
	start, err := l.c.Offset(ctx, t.name, p, client.Start())
	if err != nil {
		return err
	}
	end, err := l.c.Offset(ctx, t.name, p, client.End())
	if err != nil {
		return err
	}
	span := max(0, end.Offset-start.Offset-wire.Offset(min(most, 100)))
	at := start.Offset + wire.Offset(from*float64(span))
	x, err := l.c.NewConsumer(client.ConsumerOptions{BufferBytes: 1 << 20})
	if err != nil {
		return err
	}
	defer x.Close()
	if err := x.Assign(ctx, t.name, p, client.Range{From: client.At(at), To: client.At(end.Offset)}); err != nil {
		return err
	}
	id := l.h.number()
	for read := 0; read < most; {
		e := bench.Polled{Consumer: id, Partition: wire.PartitionID{Topic: t.id, Partition: p}}
		e.Position, _, _ = x.Position(t.name, p)
		ms, err := x.Poll(ctx)
		switch code := wire.CodeOf(err); {
		case err == client.ErrEnd:
			return nil
		case code == wire.CodeOutOfRange, code == wire.CodeTruncated && l.mayLose(t.id):
			return nil // retention or a power cut was there
		case err != nil:
			return err
		}
		for i := range ms {
			e.Reads = append(e.Reads, readOf(&ms[i]))
		}
		e.Next, _, _ = x.Position(t.name, p)
		l.h.ownAll(e.Partition, e.Reads)
		l.h.apply(&e)
		l.h.count(func(c *loadCounts) { c.read += int64(len(ms)); c.behind += int64(len(ms)) })
		read += len(ms)
	}
	return nil
}
