package bench

import (
	"context"
	"errors"
	"math"
	"sync"
	"time"

	"github.com/teralog/teralog/client"
)

// producers are the senders of a load.
type producers []*producer

func openProducers(t *target, l *load) (ps producers, err error) {
	payload, keys := l.payload(), l.keyTable()
	rates := make([]pace, l.producers)
	if l.rate > 0 {
		rates = paces(l.rate, l.producers)
	}
	for i := range l.producers {
		out, err := t.c.NewProducer(l.producerOptions())
		if err != nil {
			ps.close()
			return nil, usage{err}
		}
		p := newProducer(out, l, rates[i], payload, keys)
		p.at, p.key = i*block/l.producers, i*len(keys)/l.producers
		ps = append(ps, p)
	}
	return ps, nil
}

func (ps producers) close() {
	for _, p := range ps {
		p.out.Close()
	}
}

// timedEvery says that one record in so many is timed: at full speed at least
// four in a batch, with a rate 100,000 a second of each producer.
func (l *load) timedEvery() int64 {
	n := int64(1)
	switch {
	case l.one:
	case l.rate > 0:
		n = l.rate / int64(l.producers) / 100_000
	default:
		n = min(l.batch/4, 16<<10) / (l.recordBytes() + 1)
	}
	return max(n, 1) | 1 // odd, since batches and bursts often hold an even number
}

// run gives records for a span and returns once all are acknowledged.
func (ps producers) run(ctx context.Context, m *meter, s span) error {
	errs := make([]error, len(ps))
	var running sync.WaitGroup
	for i, p := range ps {
		running.Go(func() {
			mine := s
			mine.records = part(s.records, i, len(ps))
			errs[i] = p.run(ctx, m, mine)
		})
	}
	running.Wait()
	return errors.Join(errs...)
}

// part returns what part i of n has of a whole: at least 1 if that is n or
// more.
func part(whole int64, i, n int) int64 {
	return whole*int64(i+1)/int64(n) - whole*int64(i)/int64(n)
}

// given returns how many records were acknowledged over all runs.
func (ps producers) given() (n int64) {
	for _, p := range ps {
		n += p.acked
	}
	return n
}

// An outlet takes records: a client.Producer, or what a test puts in its place.
type outlet interface {
	Produce(ctx context.Context, r client.Record) (client.Ack, error)
	ProduceAll(ctx context.Context, rs []client.Record, done client.Outcome) (int, error)
	TryProduceAll(ctx context.Context, rs []client.Record, done client.Outcome) (int, error)
	Flush(ctx context.Context) error
	Close() error
}

// A producer gives records to one outlet. Its fields belong to the goroutine
// in run, but for those of callbacks, which the outlet calls one after the
// other.
type producer struct {
	out   outlet
	now   func() time.Time
	pause func(context.Context, time.Duration)
	group []client.Record // given together, every of them at most
	pace  pace            // rate 0: none
	one   bool

	payload []byte
	at      int // where in payload the next value begins
	size    int
	keys    [][]byte
	key     int
	bytes   int64 // of a record
	every   int64 // one in so many is timed

	// For loads that look at the other end too.
	mark    func(value []byte, due time.Time) // writes into each value
	scratch []byte                            // such a value
	after   func(context.Context)             // of a record that was acknowledged, with one

	m      *meter
	due    time.Time     // of the record that is given
	stop   time.Time     // no more is given from here on
	gave   int64         // in the last run
	giving time.Duration // how long that took
	waited time.Duration // of it, for room
	late   time.Duration // the most that a record was given after it was due

	// Of the callbacks.
	plain     client.Outcome // p.outcome
	acked     int64
	published int64 // of acked, to the meter
	stamps    sync.Pool
}

func newProducer(out outlet, l *load, at pace, payload []byte, keys [][]byte) *producer {
	p := &producer{out: out, now: time.Now, pause: pause, pace: at, one: l.one,
		payload: payload, size: int(l.size), keys: keys, bytes: l.recordBytes(), every: l.timedEvery()}
	p.group = make([]client.Record, min(p.every, maxGroup))
	for i := range p.group {
		p.group[i].Topic = l.topic
	}
	p.plain = p.outcome
	p.stamps.New = p.newStamp
	return p
}

// A stamp follows records given together, of which the first is timed.
type stamp struct {
	p    *producer
	from time.Time
	done client.Outcome
}

func (p *producer) newStamp() any {
	s := &stamp{p: p}
	s.done = s.outcome
	return s
}

func (s *stamp) outcome(from, to int, a client.Ack, err error) {
	p := s.p
	p.outcome(from, to, a, err)
	if from > 0 {
		return
	}
	if err == nil {
		p.m.observe(p.now().Sub(s.from))
	}
	p.publish()
	p.stamps.Put(s) // that others of its records still come does not matter: they need s.p
}

func (p *producer) outcome(from, to int, _ client.Ack, err error) {
	if err != nil {
		p.m.fail(err)
		return
	}
	p.acked += int64(to - from)
}

// publish tells the meter of what was acknowledged since the last time. Doing
// so for each record would cost as much as the rest of the callback.
func (p *producer) publish() {
	n := p.acked - p.published
	p.published = p.acked
	p.m.add(n, n*p.bytes)
}

// run gives records for a span and returns once all have their outcome.
func (p *producer) run(ctx context.Context, m *meter, s span) (err error) {
	p.m, p.gave, p.waited, p.late = m, 0, 0, 0
	begin := p.now()
	p.stop = begin.Add(s.duration)
	limit := int64(math.MaxInt64)
	switch {
	case s.records > 0:
		p.stop, limit = begin.Add(math.MaxInt64), s.records
	case p.pace.rate > 0:
		// All that falls due is given, late or not: to leave out what was held
		// up by a stall in the end would hide the stall.
		p.stop, limit = p.stop.Add(drainTime), p.pace.due(s.duration)
	}
	switch {
	case p.one:
		err = p.singly(ctx, begin, limit)
	case p.pace.rate > 0:
		err = p.paced(ctx, begin, limit)
	default:
		err = p.flatOut(ctx, limit)
	}
	p.giving = p.now().Sub(begin)
	if ctx.Err() != nil {
		err = nil // whoever ended it wants to see what there is
	}
	// What is on its way counts, also once ctx has ended, but not for ever.
	patient, cancel := context.WithTimeout(context.WithoutCancel(ctx), drainTime)
	defer cancel()
	if e := p.out.Flush(patient); e != nil {
		err = errors.Join(err, errors.New("records were without outcome for "+drainTime.String()))
	} else {
		p.publish() // after Flush all callbacks were called
	}
	return err
}

// drainTime is how long outcomes are waited for at the end.
const drainTime = 30 * time.Second

// over reports whether no more records are to be given: the time has passed,
// somebody ended it, or one has failed.
func (p *producer) over(ctx context.Context, now time.Time) bool {
	return !now.Before(p.stop) || ctx.Err() != nil || p.m.failed.Load() > 0
}

// flatOut gives records as fast as they are taken.
func (p *producer) flatOut(ctx context.Context, limit int64) error {
	for p.gave < limit {
		now := p.now()
		if p.over(ctx, now) {
			return nil
		}
		if err := p.give(ctx, min(p.every, limit-p.gave), now, p.timed(now)); err != nil {
			return err
		}
	}
	return nil
}

// paced gives records when they are due, and those that are late at once.
func (p *producer) paced(ctx context.Context, begin time.Time, limit int64) error {
	for p.gave < limit {
		now := p.now()
		if p.over(ctx, now) {
			return nil
		}
		due := min(p.pace.due(now.Sub(begin)), limit)
		if due == p.gave {
			p.pause(ctx, begin.Add(p.pace.at(p.gave)).Sub(now))
			continue
		}
		p.late = max(p.late, now.Sub(begin)-p.pace.at(p.gave))
		for p.gave < due {
			done, n := p.plain, p.every-p.gave%p.every
			p.due = begin.Add(p.pace.at(p.gave))
			if n == p.every {
				done = p.timed(p.due)
			}
			if err := p.give(ctx, min(n, due-p.gave), now, done); err != nil {
				return err
			}
		}
	}
	return nil
}

// singly gives a record once the one before is acknowledged, and no earlier
// than it is due.
func (p *producer) singly(ctx context.Context, begin time.Time, limit int64) error {
	for p.gave < limit {
		now := p.now()
		if p.over(ctx, now) {
			return nil
		}
		r := &p.group[0]
		r.Time, p.due = now, now
		if p.pace.rate > 0 {
			p.due = begin.Add(p.pace.at(p.gave))
			if now.Before(p.due) {
				p.pause(ctx, p.due.Sub(now))
				continue
			}
			p.late = max(p.late, now.Sub(p.due))
		}
		p.next(r)
		a, err := p.out.Produce(ctx, *r)
		if err != nil && ctx.Err() != nil {
			return nil // its outcome is nobody's fault
		}
		p.outcome(0, 1, a, err)
		if err == nil {
			p.m.observe(p.now().Sub(p.due))
		}
		p.publish()
		if p.after != nil && err == nil {
			p.after(ctx)
		}
	}
	return nil
}

// timed returns what is told of records of which the first is timed from then on.
func (p *producer) timed(from time.Time) client.Outcome {
	s := p.stamps.Get().(*stamp)
	s.from = from
	return s.done
}

// next puts the next value and key into a record that is about to be given.
func (p *producer) next(r *client.Record) {
	p.gave++
	r.Value = p.payload[p.at : p.at+p.size : p.at+p.size]
	if p.at += p.size | 1; p.at >= block {
		p.at %= block
	}
	if p.mark != nil {
		copy(p.scratch, r.Value)
		p.mark(p.scratch, p.due)
		r.Value = p.scratch
	}
	if p.keys != nil {
		r.Key = p.keys[p.key]
		if p.key++; p.key == len(p.keys) {
			p.key = 0
		}
	}
}

// maxGroup bounds the records given together: their descriptions fit the
// first-level cache.
const maxGroup = 256

// give gives the next n records, event time now, waiting for room if there is none.
func (p *producer) give(ctx context.Context, n int64, now time.Time, done client.Outcome) error {
	most := len(p.group)
	if p.mark != nil {
		most = 1 // there is one scratch
	}
	for n > 0 {
		rs := p.group[:min(int(n), most)]
		n -= int64(len(rs))
		for i := range rs {
			rs[i].Time = now
			p.next(&rs[i])
		}
		if err := p.giveGroup(ctx, rs, done); err != nil {
			return err
		}
		done = p.plain
	}
	return nil
}

func (p *producer) giveGroup(ctx context.Context, rs []client.Record, done client.Outcome) error {
	given, err := p.out.TryProduceAll(context.Background(), rs, done) // a context that never ends costs nothing to look at
	if err != client.ErrBufferFull {
		return err
	}
	if given > 0 {
		rs, done = rs[given:], p.plain
	}
	before := p.now()
	_, err = p.out.ProduceAll(ctx, rs, done)
	p.waited += p.now().Sub(before)
	return err
}
