package bench

import (
	"context"
	"errors"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/teralog/teralog/client"
)

func TestPace(t *testing.T) {
	f := func(p pace, now time.Duration, due int64) {
		t.Helper()
		if got := p.due(now); got != due {
			t.Fatalf("%+v: %d are due after %v, want %d", p, got, now, due)
		}
	}
	f(pace{rate: 1}, 0, 0)
	f(pace{rate: 1}, time.Second-1, 0)
	f(pace{rate: 1}, time.Second, 1)
	f(pace{rate: 1000}, 1500*time.Microsecond, 1) // up to one a tick each has its own time
	f(pace{rate: 1000}, 1999*time.Microsecond, 1)
	f(pace{rate: 2000}, 999*time.Microsecond, 0) // above they come in bursts
	f(pace{rate: 2000}, time.Millisecond, 2)
	f(pace{rate: 1500}, time.Millisecond, 1) // and what is not whole is made up for
	f(pace{rate: 1500}, 2*time.Millisecond, 3)
	f(pace{rate: 1500, phase: time.Millisecond}, 2*time.Millisecond, 1)
	f(pace{rate: 1e6}, time.Hour, 3600e6)
	f(pace{rate: 700}, 1000*time.Hour, 700*3600*1000)
	f(pace{rate: maxCount}, time.Hour, maxCount*3600)
}

// TestPaceInverse says that record n is due at at(n) and not before.
func TestPaceInverse(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	for range 10_000 {
		p := pace{rate: 1 + r.Int64N(1<<r.IntN(24)), phase: time.Duration(r.Int64N(int64(tick)))}
		n := r.Int64N(1 << r.IntN(32))
		at := p.at(n)
		if p.due(at) <= n || p.due(at-1) > n {
			t.Fatalf("%+v: record %d is due at %v, when %d are due, and %d just before", p, n, at, p.due(at), p.due(at-1))
		}
	}
}

func TestPaces(t *testing.T) {
	f := func(rate int64, n int) {
		t.Helper()
		sum := int64(0)
		for _, p := range paces(rate, n) {
			if p.rate < 1 || p.rate > rate/int64(n)+1 || p.phase < 0 || p.phase >= max(tick, time.Second/time.Duration(p.rate)) {
				t.Fatalf("%d/s among %d: %+v", rate, n, p)
			}
			sum += p.rate
		}
		if sum != rate {
			t.Fatalf("%d/s among %d make %d", rate, n, sum)
		}
	}
	f(1, 1)
	f(3, 3)
	f(10, 3)
	f(250_000, 7)
}

// A script is an outlet and its time. It acknowledges at once, but for one
// stall.
type script struct {
	now     time.Time
	took    time.Duration // by each record
	stallAt time.Time
	stall   time.Duration
	given   int64
	failAt  int64 // this record fails
}

func (s *script) clock() time.Time                         { return s.now }
func (s *script) sleep(_ context.Context, d time.Duration) { s.now = s.now.Add(d) }
func (s *script) Flush(context.Context) error              { return nil }
func (s *script) Close() error                             { return nil }
func (s *script) accept(done func(client.Ack, error)) error {
	if s.now = s.now.Add(s.took); s.stall > 0 && !s.now.Before(s.stallAt) {
		s.now = s.now.Add(s.stall)
		s.stall = 0
	}
	if s.given++; s.given == s.failAt {
		done(client.Ack{}, errors.New("failed"))
		return nil
	}
	done(client.Ack{}, nil)
	return nil
}

func (s *script) Produce(_ context.Context, _ client.Record) (a client.Ack, err error) {
	return a, s.accept(func(client.Ack, error) {})
}

// TryProduceAll finds no room in the stall, so that waiting for it is noticed.
func (s *script) TryProduceAll(_ context.Context, rs []client.Record, done client.Outcome) (int, error) {
	for i := range rs {
		if s.stall > 0 && !s.now.Before(s.stallAt) {
			return i, client.ErrBufferFull
		}
		s.accept(func(a client.Ack, err error) { done(i, i+1, a, err) })
	}
	return len(rs), nil
}

func (s *script) ProduceAll(_ context.Context, rs []client.Record, done client.Outcome) (int, error) {
	for i := range rs {
		s.accept(func(a client.Ack, err error) { done(i, i+1, a, err) })
	}
	return len(rs), nil
}

// drive runs a producer for ten seconds, in which the broker stands still for
// one.
func drive(t *testing.T, l *load, took, stallAt time.Duration) (*Latency, *producer, *script) {
	t.Helper()
	begin := time.Unix(1_750_000_000, 0)
	s := &script{now: begin, took: took, stallAt: begin.Add(stallAt), stall: time.Second}
	at := pace{}
	if l.rate > 0 {
		at = paces(l.rate, 1)[0]
	}
	p := newProducer(s, l, at, l.payload(), nil)
	p.now, p.pause = s.clock, s.sleep
	m := newMeter()
	if err := p.run(t.Context(), m, span{duration: 10 * time.Second}); err != nil {
		t.Fatal(err)
	}
	if n := m.records.Load(); n != s.given || n != p.acked {
		t.Fatalf("%d records were given, %d acknowledged, %d counted", s.given, p.acked, n)
	}
	return latencyOf(m.end()), p, s
}

// TestStall stops the broker for a second. A thousand records a second were to
// be sent, so a tenth of all fell due in the stall and its catching up: their
// wait must show, though only one call took long.
func TestStall(t *testing.T) {
	f := func(l *load, took time.Duration, p50, p99, most time.Duration) *producer {
		t.Helper()
		got, p, s := drive(t, l, took, 3*time.Second)
		if l.rate > 0 && s.given != 10*l.rate {
			t.Fatalf("%d records were given in 10 s at %d/s", s.given, l.rate)
		}
		near := func(name string, us float64, want time.Duration) {
			t.Helper()
			if d := time.Duration(us * 1e3); d < want*98/100 || d > want*102/100 {
				t.Fatalf("%s is %v, want %v, with %d records given", name, d, want, s.given)
			}
		}
		near("P50", got.P50, p50)
		near("P99", got.P99, p99)
		near("the maximum", got.Max, most)
		return p
	}
	const took = 100 * time.Microsecond
	paced := newLoad("produce")
	paced.rate = 1000
	p := f(paced, took, took, 910*time.Millisecond, time.Second+took)
	if p.waited < time.Second || p.late < time.Second-2*time.Millisecond || lateVerdict(p.late-p.waited) != "" {
		t.Fatalf("given %v late, having waited for room for %v", p.late, p.waited)
	}

	one := *paced
	one.one = true
	f(&one, took, took, 910*time.Millisecond, time.Second+took)

	// What fell due during a stall in the end is given after it.
	for _, l := range []*load{paced, &one} {
		got, _, s := drive(t, l, took, 9500*time.Millisecond)
		if s.given != 10_000 || got.Max < 1e6 || got.P99 < 750e3 {
			t.Fatalf("with a stall in the end, %d records were given, %+v", s.given, got)
		}
	}

	// At full speed nothing is due: the stall is one slow record of many.
	flat := newLoad("produce")
	flat.size = 16 << 10 // each is timed
	p = f(flat, took, took, took, time.Second+took)
	if p.late != 0 {
		t.Fatalf("late by %v without a rate", p.late)
	}
}

// TestLimit ends after so many records, and with a failure.
func TestLimit(t *testing.T) {
	f := func(rate, limit int64, one bool) {
		t.Helper()
		l := newLoad("produce")
		l.rate, l.one, l.size = rate, one, 100
		s := &script{now: time.Unix(1_750_000_000, 0), took: time.Microsecond}
		at := pace{}
		if rate > 0 {
			at = paces(rate, 1)[0]
		}
		p := newProducer(s, l, at, l.payload(), nil)
		p.now, p.pause = s.clock, s.sleep
		if err := p.run(t.Context(), newMeter(), span{records: limit}); err != nil || s.given != limit {
			t.Fatalf("%d of %d records given: %v", s.given, limit, err)
		}
	}
	f(0, 1, false)
	f(0, 1000, false)
	f(250_000, 1000, false)
	f(250_000, 1000, true)
	f(0, 7, true)

	// Once a record has failed no more are given.
	s := &script{now: time.Unix(1_750_000_000, 0), took: time.Microsecond, failAt: 10}
	l := newLoad("produce")
	l.size = 16 << 10
	p := newProducer(s, l, pace{}, l.payload(), nil)
	p.now, p.pause = s.clock, s.sleep
	if err := p.run(t.Context(), newMeter(), span{duration: time.Hour}); err != nil || s.given != 10 || p.acked != 9 {
		t.Fatalf("%d records given, %d acknowledged: %v", s.given, p.acked, err)
	}

	failing := errors.New("down")
	m := newMeter()
	p = newProducer(&script{}, newLoad("produce"), pace{}, nil, nil)
	p.m = m
	p.timed(time.Time{})(0, 1, client.Ack{}, failing)
	p.plain(0, 1, client.Ack{}, errors.New("later"))
	if n := m.failed.Load(); n != 2 || m.failure() != failing || m.records.Load() != 0 || m.end().Count() != 0 {
		t.Fatalf("%d failures, the first %v, %d records", n, m.failure(), m.records.Load())
	}
}

// TestCancel ends a load that would never end.
func TestCancel(t *testing.T) {
	f := func(l *load) {
		t.Helper()
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		s := &script{now: time.Unix(1_750_000_000, 0), took: time.Microsecond}
		at := pace{}
		if l.rate > 0 {
			at = paces(l.rate, 1)[0]
		}
		p := newProducer(s, l, at, l.payload(), nil)
		p.now, p.pause = s.clock, s.sleep
		if err := p.run(ctx, newMeter(), span{duration: 1 << 60}); err != nil || s.given != 0 {
			t.Fatalf("%d records given: %v", s.given, err)
		}
	}
	f(&load{size: 100, batch: 1024})
	f(&load{size: 100, batch: 1024, rate: 10, producers: 1})
	f(&load{size: 100, batch: 1024, one: true})
	f(&load{size: 100, batch: 1024, one: true, rate: 10, producers: 1})
}
