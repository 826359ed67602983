package client

import (
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/teralog/teralog/wire"
)

// TestLaneSplit: smaller batches take the place and the sequences of one that
// was too large, and those behind it, refused for its sake, follow as they are.
func TestLaneSplit(t *testing.T) {
	s := newLaneScript()
	s.addOf(6)
	s.add(2)
	s.want(t, s.send(), "0:1/0 1:1/6 2:1/7")
	s.answer(0, wire.CodeTooLarge) // becomes 3, 4 and 5, of two records each
	s.answer(1, wire.CodeOutOfOrderSequence)
	s.now += time.Minute
	s.want(t, s.send(), "") // 2 is out yet
	s.answer(2, wire.CodeOutOfOrderSequence)
	s.now += time.Minute
	s.want(t, s.send(), "3:1/0 4:1/2 5:1/4 1:1/6 2:1/7")
	for i := range 5 {
		s.answer(i+1, nil)
	}
	s.want(t, s.outcomes(), "3 4 5 1 2")
	s.add(1)
	s.want(t, s.send(), "6:1/8")
}

// TestLaneSplitAtOnce: with nothing else out, what was split goes on without a
// back-off, since the next attempt is another one.
func TestLaneSplitAtOnce(t *testing.T) {
	s := newLaneScript()
	s.addOf(8)
	s.want(t, s.send(), "0:1/0")
	s.answer(0, wire.CodeTooLarge)
	s.want(t, s.send(), "1:1/0 2:1/3 3:1/6")
	s.answer(1, wire.CodeTooLarge)
	s.answer(2, wire.CodeTooLarge)
	s.answer(3, wire.CodeTooLarge) // of two records: any lower limit is known by now
	s.want(t, s.send(), "4:1/0 5:1/1 6:1/2 7:1/3 8:1/4")
}

// TestLaneSplitInMidst: batches before the one that is split may have any
// outcome, and so may those behind it.
func TestLaneSplitInMidst(t *testing.T) {
	s := newLaneScript()
	s.add(1)
	s.addOf(2)
	s.add(1)
	s.want(t, s.send(), "0:1/0 1:1/1 2:1/3")
	s.answer(1, wire.CodeTooLarge) // becomes 3 and 4
	s.answer(2, errLost)           // may be taken yet, behind 3 and 4
	s.answer(0, wire.CodeBusy)
	s.now += time.Minute
	s.want(t, s.send(), "0:1/0 3:1/1 4:1/2 2:1/3")
	for _, i := range []int{2, 4, 3, 0} {
		s.answer(i, nil)
	}
	s.want(t, s.outcomes(), "0 3 4 2")
}

// TestLaneSplitToOne: a record that is too large alone fails alone. What was
// numbered behind it goes under a fresh producer id, in order.
func TestLaneSplitToOne(t *testing.T) {
	s := newLaneScript()
	s.addOf(2)
	s.add(1)
	s.want(t, s.send(), "0:1/0 1:1/2")
	s.answer(0, wire.CodeTooLarge) // becomes 2 and 3
	s.answer(1, wire.CodeOutOfOrderSequence)
	s.now += time.Minute
	s.want(t, s.send(), "2:1/0 3:1/1 1:1/2")
	s.answer(2, wire.CodeTooLarge)
	s.answer(3, wire.CodeUnknownProducer)
	s.answer(1, wire.CodeUnknownProducer)
	s.want(t, s.outcomes(), "2!")
	s.l.adopt(9, 0)
	s.now += time.Minute
	s.want(t, s.send(), "3:9/0 1:9/1")
	s.answer(3, nil)
	s.answer(1, nil)
	s.want(t, s.outcomes(), "3 1")
}

// TestLaneSplitNot: what may be in the log, or what nobody waits for any more,
// is not sent again in another form.
func TestLaneSplitNot(t *testing.T) {
	f := func(want string, before func(s *laneScript)) {
		t.Helper()
		s := newLaneScript()
		s.addOf(4)
		s.send()
		before(s)
		s.answer(0, wire.CodeTooLarge)
		s.want(t, s.outcomes(), want)
		if len(s.all) != 1 || !s.l.idle() {
			t.Fatalf("%d batches, %d in the lane", len(s.all), len(s.l.batches))
		}
	}

	f("0?", func(s *laneScript) { s.answer(0, errLost); s.now += time.Minute; s.send() })
	f("0?", func(s *laneScript) { s.l.expire(time.Hour, time.Second, func(b *batch) { b.told = true }) })
	f("0!", func(s *laneScript) { s.l.kill(wire.CodeTopicRecreated) })
}

// TestLaneSplitEnds: a broker that takes nothing has each record fail, after
// few attempts.
func TestLaneSplitEnds(t *testing.T) {
	s := newLaneScript()
	s.addOf(100)
	var failed, id int
	for round := 0; !s.l.idle(); round++ {
		if round > 2*100 {
			t.Fatalf("%d records left", 100-failed)
		}
		s.send()
		for i, b := range s.all {
			if b.state == inFlight {
				s.answer(i, wire.CodeTooLarge)
			}
		}
		for b := s.l.pop(); b != nil; b = s.l.pop() {
			if failed += int(b.count); b.count != 1 || b.doubt || b.attempts > 8 { // 1 and log₂ 100
				t.Fatalf("%d records failed together after %d attempts, in doubt %v", b.count, b.attempts, b.doubt)
			}
		}
		if s.l.needsID() {
			id++
			s.l.adopt(wire.ProducerID(id), 0)
		}
	}
	if failed != 100 {
		t.Fatalf("%d records failed", failed)
	}
}

// TestLaneSplitPlain: without sequences one follows the other.
func TestLaneSplitPlain(t *testing.T) {
	s := newLaneScript()
	s.l.idempotent, s.l.limit = false, 1
	s.addOf(2)
	s.add(1)
	s.want(t, s.send(), "0:-1/-1")
	s.answer(0, wire.CodeTooLarge)
	s.want(t, s.send(), "2:-1/-1")
	s.answer(2, wire.CodeTooLarge)
	s.want(t, s.outcomes()+" "+s.send(), "2! 3:-1/-1")
	s.answer(3, nil)
	s.want(t, s.outcomes()+" "+s.send(), "3 1:-1/-1")
}

// TestSplitRecords: pieces hold the same records with their callbacks, costs
// and sequences, none larger than half unless it has one record.
func TestSplitRecords(t *testing.T) {
	f := func(codec wire.Codec, seq int32, sizes ...int) {
		t.Helper()
		l := &lane{topic: &outTopic{batchBytes: 1 << 20}, id: wire.PartitionID{Topic: 2000}, idempotent: true}
		o := ProducerOptions{Codec: codec, BatchBytes: 1 << 20}
		b := &batch{lane: l, state: waiting, builder: l.builder(o), seq: seq, numbered: true, attempts: 3, born: 7, err: wire.CodeTooLarge}
		var called []int
		var records []Record
		for i, n := range sizes {
			r := Record{Value: make([]byte, n), Time: time.UnixMilli(int64(1000 - i%3)), Headers: []wire.Header{{Key: []byte("h")}}}
			switch i % 3 {
			case 1:
				r.Key, r.Headers = []byte{}, nil
			case 2:
				r.Key, r.Value = []byte("k"), nil
			}
			records = append(records, r)
			if ok, err := b.builder.Add(r.Time.UnixMilli(), r.Key, r.Value, r.Headers); !ok {
				t.Fatal(err)
			}
			b.done.add(func(Ack, error) { called = append(called, i) })
			b.cost += cost(&r)
			b.count++
		}
		whole := b.builder.Len()
		b.buf, _ = b.builder.Build()
		l.batches = []*batch{{}, b, {}}
		l.split(b, func() *batch { return &batch{lane: l, builder: l.builder(o)} })

		pieces := l.batches[1 : len(l.batches)-1]
		if l.topic.batchBytes != whole/2 || len(pieces) < 2 {
			t.Fatalf("%d pieces, limit %d, whole %d", len(pieces), l.topic.batchBytes, whole)
		}
		var read int
		for _, p := range pieces {
			if n := p.builder.Len(); n > whole/2 && p.count > 1 {
				t.Fatalf("%d records in %d bytes, the whole was %d", p.count, n, whole)
			}
			if p.seq != wire.NextSequence(seq, int32(read)) || !p.numbered || p.state != waiting || p.born != 7 || p.attempts != 3 || p.err == nil {
				t.Fatalf("record %d: %+v", read, p)
			}
			if p.count != p.done.records || int(p.count) != p.builder.Count() {
				t.Fatalf("count %d, callbacks %d, records %d", p.count, p.done.records, p.builder.Count())
			}
			b.cost -= p.cost
			p.buf, _ = p.builder.Build()
			if err := wire.Batch(p.buf.B).Records(new(wire.Decoder), func(r *wire.Record) error {
				w := records[read]
				if r.Time != w.Time.UnixMilli() || !same(r.Key, w.Key) || !same(r.Value, w.Value) || len(r.Headers) != len(w.Headers) {
					t.Fatalf("record %d: %+v, want %+v", read, r, w)
				}
				read++
				return nil
			}); err != nil {
				t.Fatal(err)
			}
			p.report()
		}
		if b.cost != 0 || read != len(sizes) || !slices.IsSorted(called) || len(called) != len(sizes) {
			t.Fatalf("cost %d left, %d records, callbacks %v", b.cost, read, called)
		}
	}

	f(wire.None, 0, 0, 0)
	f(wire.None, 5, 100, 100, 100, 100, 100, 100, 100)
	f(wire.None, math.MaxInt32-1, 10, 10, 10, 10) // sequences begin again at 0
	f(wire.None, 0, 10_000, 0, 0, 0)
	f(wire.None, 0, 0, 0, 0, 10_000)
	f(wire.None, 0, 0, 10_000, 0, 10_000)
	f(wire.Gzip, 9, 1000, 1000, 1000, 1000, 1000)
	f(wire.Zstd, 9, slices.Repeat([]int{300}, 700)...)
}

// same tells null from empty.
func same(a, b []byte) bool { return string(a) == string(b) && (a == nil) == (b == nil) }

// uneven returns the value of record i: most are small, and some are too large
// for TestSplit's limit in any batch, by any codec.
func uneven(rnd *rand.Rand, i int) (value []byte, tooLarge bool) {
	value = append(counter(uint64(i)), make([]byte, i%60)...)
	if i%41 == 40 {
		value, tooLarge = append(value, make([]byte, 500)...), true
	}
	for at := 8; at < len(value); at++ {
		value[at] = byte(rnd.Uint32())
	}
	return value, tooLarge
}

// TestSplit: a topic takes less than the producer's batches hold. Every record
// that fits alone is written, once and in order, with its offset; each other
// one fails, surely. What was learned is remembered.
func TestSplit(t *testing.T) {
	const limit, total = 400, 3000
	f := func(o ProducerOptions, chance int) {
		t.Helper()
		live := frames.Stats().LiveBytes
		bubble(t, map[string]int{"t": 1}, func(t *testing.T, b *fake) {
			rnd, noise, refused := rand.New(rand.NewPCG(1, 2)), rand.New(rand.NewPCG(3, 4)), 0
			b.onProduce = func(p wire.Batch) (wire.Code, bool) {
				switch {
				case len(p) > limit:
					if p.Count() > 1 {
						refused++
					}
					return wire.CodeTooLarge, false
				case chance > 0 && rnd.IntN(chance) == 0:
					return []wire.Code{wire.CodeBusy, wire.CodeNotLeader, wire.CodeTimeout}[rnd.IntN(3)], false
				}
				return wire.CodeOK, true
			}
			b.net.SetDelay(time.Millisecond)
			o.DeliveryTimeout = time.Hour
			p := newProducer(t, b.client(t), o)
			var next int
			var log []uint64
			outcome := func(i int, tooLarge bool, a Ack, err error) {
				switch {
				case t.Failed(): // once is enough
				case next != i:
					t.Errorf("outcome of %d, expected that of %d", i, next)
				case tooLarge && (!errors.Is(err, wire.CodeTooLarge) || errors.Is(err, ErrIndefinite)):
					t.Errorf("%d, too large: %v, %v", i, a, err)
				case !tooLarge && (err != nil || a.Offset != wire.Offset(len(log))):
					t.Errorf("%d: %v, %v; want offset %d", i, a, err, len(log))
				case !tooLarge:
					log = append(log, uint64(i))
				}
				next++
			}
			for i := 0; i < total; { // some given alone, some together
				rs := make([]Record, min(1+noise.IntN(60), total-i))
				large := make([]bool, len(rs))
				first := i
				for k := range rs {
					rs[k].Topic = "t"
					rs[k].Value, large[k] = uneven(noise, i)
					i++
				}
				var err error
				if len(rs) < 20 {
					rs, i = rs[:1], first+1
					err = p.ProduceAsync(t.Context(), rs[0], func(a Ack, err error) { outcome(first, large[0], a, err) })
				} else {
					_, err = p.ProduceAll(t.Context(), rs, func(from, to int, a Ack, err error) {
						for k := from; k < to; k++ {
							outcome(first+k, large[k], a, err)
							a.Offset++
						}
					})
				}
				if err != nil {
					t.Fatal(err)
				}
				if noise.IntN(30) == 0 {
					time.Sleep(time.Duration(noise.IntN(3)) * time.Millisecond)
				}
			}
			if err := p.Flush(t.Context()); err != nil || p.Buffered() != 0 || next != total {
				t.Fatal(err, p.Buffered(), next)
			}
			if got := b.counters("t", 0); !slices.Equal(got, log) {
				t.Fatalf("the log holds %d records, want %d in order", len(got), len(log))
			}
			if refused == 0 {
				t.Fatal("no batch was too large")
			}
			refused = 0
			for i := range total {
				if err := p.ProduceAsync(t.Context(), Record{Topic: "t", Value: counter(uint64(i))}, nil); err != nil {
					t.Fatal(err)
				}
			}
			if err := p.Flush(t.Context()); err != nil || refused > 0 {
				t.Fatalf("%d more batches were too large, %v", refused, err)
			}
		})
		if now := frames.Stats().LiveBytes; now != live {
			t.Fatalf("%d bytes of buffers are held, %d before", now, live)
		}
	}

	f(ProducerOptions{}, 0)
	f(ProducerOptions{BatchBytes: 1024}, 0)
	f(ProducerOptions{BatchBytes: 1024, InFlight: 1}, 20)
	f(ProducerOptions{BatchBytes: 4096, NotIdempotent: true}, 0)
	f(ProducerOptions{Linger: 2 * time.Millisecond}, 0)
	f(ProducerOptions{Codec: wire.Snappy}, 0)
	f(ProducerOptions{BatchBytes: 2048, Codec: wire.Gzip}, 0)
}

// TestSplitLossy splits where connections are lost too. Some batches are in
// doubt when they turn out too large, and fail; no record is written twice, or
// before an earlier one, and none that failed surely is in the log.
func TestSplitLossy(t *testing.T) {
	var refused, doubt int
	for seed := range uint64(10) {
		bubble(t, map[string]int{"t": 1}, func(t *testing.T, b *fake) {
			const limit, total = 600, 4000
			b.onProduce = func(p wire.Batch) (wire.Code, bool) {
				if len(p) > limit {
					refused++
					return wire.CodeTooLarge, false
				}
				return wire.CodeOK, true
			}
			net := &lossy{Dialer: b.net, rand: rand.New(rand.NewPCG(seed, 3)), mean: 20 << 10}
			c := b.client(t, func(o *Options) { o.Dialer = net; o.RequestTimeout = 500 * time.Millisecond })
			p := newProducer(t, c, ProducerOptions{BatchBytes: 2048, DeliveryTimeout: time.Hour})
			outcome := make([]error, 0, total)
			for i := range total {
				if err := p.ProduceAsync(t.Context(), Record{Topic: "t", Value: counter(uint64(i))}, func(a Ack, err error) {
					outcome = append(outcome, err)
				}); err != nil {
					t.Fatal(err)
				}
			}
			if err := p.Flush(t.Context()); err != nil || len(outcome) != total {
				t.Fatal(err, len(outcome))
			}
			written := make([]int, total)
			got := b.counters("t", 0)
			for _, v := range got {
				written[v]++
			}
			if !slices.IsSorted(got) {
				t.Fatal("out of order")
			}
			for i, err := range outcome {
				if errors.Is(err, ErrIndefinite) {
					doubt++
				}
				switch n := written[i]; {
				case n > 1, err == nil && n != 1, err != nil && !errors.Is(err, ErrIndefinite) && n > 0:
					t.Fatalf("record %d is %d times in the log: %v", i, n, err)
				}
			}
		})
	}
	t.Logf("%d batches too large, %d records in doubt", refused, doubt)
	if refused == 0 || doubt == 0 {
		t.Fatal("not what this test is for")
	}
}
