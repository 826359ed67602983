package bench

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/teralog/teralog/client"
)

const e2eHelp = `Usage: teralog bench e2e [flags]

Says how long records take from the producer to a consumer that waits for them:
from the call that gives a record, with --rate from the moment it was due, to
the return of the call that reads it. Without --rate one record is on its way at
a time. The acknowledgement's latency is reported beside.

  teralog bench e2e --size 100
  teralog bench e2e --size 100 --rate 2k/s

With --rate the run is marked as bound by the generator if records were given
more than 10 ms late for another reason than a full window.
`

func benchE2E(ctx context.Context, args []string, start Start, _ io.Reader, out, notes io.Writer) error {
	l := newLoad("e2e")
	f := newFlags(e2eHelp)
	l.size = 100
	l.brokerFlags(f)
	l.topicFlags(f)
	l.producerFlags(f)
	l.rateFlag(f)
	l.timeFlags(f)
	l.outputFlags(f)
	f.IntVar(&l.consumers, "consumers", l.consumers, "consumers that wait, each on a connection of its own; every one gets every record")
	l.refine = func() (err error) {
		l.one = l.rate == 0
		switch {
		case l.consumers == 0:
			err = errors.New("--consumers 0: nobody waits for a record")
		case l.size < markLen:
			err = fmt.Errorf("--size %d: a record says when it was sent in %d bytes", l.size, markLen)
		case l.acks == "0":
			err = errors.New("--acks 0: the latency of the acknowledgement could not be told")
		case l.one && l.producers > 1:
			err = errors.New("without --rate one record is on its way at a time: --producers is 1")
		}
		if err != nil {
			return usage{err}
		}
		return nil
	}
	return l.execute(ctx, f, args, start, out, notes, measureE2E)
}

// markLen is what a value begins with: whose run it is of, and when the record
// was due.
const markLen = 16

// An arrival tells the records of this run when they are read.
type arrival struct {
	run    uint64
	epoch  time.Time // marks count from it
	m      atomic.Pointer[meter]
	size   int64         // bytes of a record
	read   atomic.Int64  // by all consumers
	landed chan struct{} // a record was read; nobody need listen
}

func (a *arrival) stamp(b []byte, due time.Time) {
	binary.LittleEndian.PutUint64(b, a.run)
	binary.LittleEndian.PutUint64(b[8:], uint64(due.Sub(a.epoch)))
}

// take looks at the messages of one Poll.
func (a *arrival) take(messages []client.Message) {
	now, n := time.Since(a.epoch), int64(0)
	m := a.m.Load()
	for i := range messages {
		v := messages[i].Value
		if len(v) < markLen || binary.LittleEndian.Uint64(v) != a.run {
			continue // somebody else's
		}
		m.observe(now - time.Duration(binary.LittleEndian.Uint64(v[8:])))
		n++
	}
	m.add(n, n*a.size)
	a.read.Add(n)
	select {
	case a.landed <- struct{}{}:
	default:
	}
}

// measureE2E sends records to consumers that wait for them.
func measureE2E(ctx context.Context, t *target, l *load, d *Display) (*Result, error) {
	if err := t.prepare(ctx, l); err != nil {
		return nil, err
	}
	rs, err := openReaders(ctx, t, l, client.Range{From: client.End()})
	if err != nil {
		return nil, err
	}
	defer closeReaders(rs)
	ps, err := openProducers(t, l)
	if err != nil {
		return nil, err
	}
	defer ps.close()

	a := &arrival{run: rand.Uint64(), epoch: time.Now(), size: l.recordBytes(), landed: make(chan struct{}, 1)}
	a.m.Store(newMeter())
	for _, p := range ps {
		p.mark, p.scratch = a.stamp, make([]byte, l.size)
	}
	stop := hear(ctx, rs, a)
	defer stop()

	var acks *meter
	r, err := t.measure(ctx, l, d, func(ctx context.Context, m *meter, s span) error {
		a.m.Store(m)
		acks = newMeter()
		if s.records == 0 {
			var cancel context.CancelFunc
			ctx, cancel = context.WithTimeout(ctx, s.duration+drainTime) // a record that never comes must not hold us
			defer cancel()
		}
		before, given := a.read.Load(), ps.given()
		for _, p := range ps {
			p.after = nil
			if l.one {
				p.after = func(ctx context.Context) { a.await(ctx, before+(ps.given()-given)*int64(len(rs))) }
			}
		}
		err := ps.run(ctx, acks, s)
		want := before + (ps.given()-given)*int64(len(rs))
		patient, cancel := context.WithTimeout(context.WithoutCancel(ctx), drainTime)
		defer cancel()
		a.await(patient, want)
		if missing := want - a.read.Load(); missing > 0 {
			err = errors.Join(err, fmt.Errorf("%d of %d records did not come", missing, want-before))
		}
		if failure := acks.failure(); failure != nil {
			m.fail(failure)
		}
		return err
	})
	if r != nil {
		r.AckLatency = latencyOf(acks.end())
		r.bound(ps.verdict(l, r))
	}
	return r, err
}

// await returns once n records were read in all, or ctx ends.
func (a *arrival) await(ctx context.Context, n int64) {
	for a.read.Load() < n {
		select {
		case <-a.landed:
		case <-ctx.Done():
			return
		}
	}
}

// hear has the readers wait for records until the function it returns is
// called.
func hear(ctx context.Context, rs []*reader, a *arrival) (stop func()) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	done := make(chan struct{})
	for _, r := range rs {
		go func() {
			defer func() { done <- struct{}{} }()
			for {
				messages, err := r.x.Poll(ctx)
				if err != nil {
					return // what is missing in the end says enough
				}
				a.take(messages)
			}
		}()
	}
	return func() {
		cancel()
		for range rs {
			<-done
		}
	}
}
