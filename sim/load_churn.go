package sim

import (
	"context"
	"fmt"
	"math/rand/v2"

	"github.com/teralog/teralog/bench"
	"github.com/teralog/teralog/client"
	"github.com/teralog/teralog/wire"
)

// churn makes a topic, writes to it, reads it back, deletes it, and begins
// again, under few names. What was acknowledged must hold: a topic made is
// there, one deleted is not, and all its records are read.
func (l *load) churn() {
	rnd := rand.New(rand.NewPCG(l.seed, 0xC4))
	for n := 0; l.ctx.Err() == nil; n++ {
		t := loadTopic{name: fmt.Sprintf("%spassing-%d", l.prefix, n%3), partitions: 1 + rnd.Int32N(3), flush: l.passing[rnd.IntN(len(l.passing))]}
		// A life that was begun ends, so that none is left half-way: the
		// context is not the load's.
		if err := l.life(context.Background(), &t, rnd.IntN(200)); err != nil {
			if l.ctx.Err() == nil {
				l.h.violate("topic %s: %v", t.name, err)
			}
			return
		}
	}
}

// life is that of one topic.
func (l *load) life(ctx context.Context, t *loadTopic, records int) error {
	settings := append([]wire.Setting{{Key: "flush", Value: t.flush}}, torturedSettings...)
	id, err := l.c.CreateTopic(ctx, client.TopicSpec{Name: t.name, Partitions: t.partitions, Settings: settings})
	if err != nil {
		return err
	}
	t.id = id
	l.h.count(func(c *loadCounts) { c.created++; l.standing = t })
	w, err := l.writer(client.ProducerOptions{Codec: codecs[id%4%wire.TopicID(len(codecs))]})
	if err != nil {
		return err
	}
	defer w.p.Close()
	for range records {
		if err := w.send(ctx, *t); err != nil {
			return err
		}
	}
	if err := w.p.Flush(ctx); err != nil {
		return err
	}
	if err := l.expect(ctx, *t, true); err != nil {
		return err
	}
	return l.end(ctx, t)
}

// end reads a topic back and deletes it.
func (l *load) end(ctx context.Context, t *loadTopic) error {
	l.h.count(func(*loadCounts) { l.standing = nil })
	for p := range t.partitions {
		if _, err := l.drain(ctx, *t, p); err != nil {
			return err
		}
	}
	if err := l.c.DeleteTopic(ctx, t.id); err != nil {
		return err
	}
	l.h.count(func(c *loadCounts) { c.deleted++ })
	return l.expect(ctx, *t, false)
}

// expect asks whether the broker knows the topic.
func (l *load) expect(ctx context.Context, t loadTopic, there bool) error {
	ds, err := l.c.DescribeTopics(ctx, t.name)
	if err != nil {
		return err
	}
	found := len(ds) == 1 && ds[0].Code == wire.CodeOK && ds[0].ID == t.id
	if found != there {
		return fmt.Errorf("acknowledged metadata is lost: topic with id %d there: %v, should be: %v", t.id, found, there)
	}
	return nil
}

// A drained record is what the look-ups by time are compared with.
type drained struct {
	offset       wire.Offset
	event, stamp int64 // ms
}

// drain reads everything a partition holds into the history. If retention is
// faster, it begins again.
func (l *load) drain(ctx context.Context, t loadTopic, p int32) ([]drained, error) {
	for {
		all, e, err := l.read(ctx, t, p)
		if wire.CodeOf(err) == wire.CodeOutOfRange {
			continue
		}
		if err != nil {
			return nil, err
		}
		l.h.ownAll(e.Partition, e.Reads)
		l.h.apply(e)
		return all, nil
	}
}

func (l *load) read(ctx context.Context, t loadTopic, p int32) ([]drained, *bench.Drained, error) {
	x, err := l.c.NewConsumer(client.ConsumerOptions{})
	if err != nil {
		return nil, nil, err
	}
	defer x.Close()
	if err := x.Assign(ctx, t.name, p, client.Range{From: client.Start(), To: client.End()}); err != nil {
		return nil, nil, err
	}
	e := &bench.Drained{Partition: wire.PartitionID{Topic: t.id, Partition: p}}
	e.Start, _, _ = x.Position(t.name, p)
	var all []drained
	for {
		ms, err := x.Poll(ctx)
		if err == client.ErrEnd {
			return all, e, nil
		}
		if err != nil {
			return nil, nil, err
		}
		for i := range ms {
			e.Reads = append(e.Reads, readOf(&ms[i]))
			all = append(all, drained{ms[i].Offset, ms[i].Time, ms[i].AppendTime})
		}
	}
}

// lookUps compares look-ups by time of one partition with what a walk over all
// its records finds, and returns how many there were.
func (l *load) lookUps(ctx context.Context, t loadTopic, p int32, all []drained, rnd *rand.Rand) (int, error) {
	ask := func(at client.Position) (wire.Offset, error) {
		f, err := l.c.Offset(ctx, t.name, p, at)
		return f.Offset, err
	}
	for n := 0; n < 100; {
		clock, of := client.EventTime, func(r drained) int64 { return r.event }
		at := eventBegin + rnd.Int64N(eventSpan)
		if n%2 == 1 && len(all) > 0 {
			clock, of = client.AppendTime, func(r drained) int64 { return r.stamp }
			at = all[rnd.IntN(len(all))].stamp + rnd.Int64N(3) - 1
		}
		before, err := ask(client.Start())
		if err != nil {
			return n, err
		}
		got, err := ask(client.AtTime(clock, at))
		if err != nil {
			return n, err
		}
		if after, err := ask(client.Start()); err != nil || after != before {
			if err != nil {
				return n, err
			}
			continue // retention came between
		}
		want := wire.Offset(-1)
		for _, r := range all {
			if r.offset >= before && of(r) >= at {
				want = r.offset
				break
			}
		}
		if got != want {
			l.h.violate("%s/%d: the first record at or after %d (clock %d) lies at offset %d, the broker says %d", t.name, p, at, clock, want, got)
		}
		n++
	}
	return 100, nil
}
