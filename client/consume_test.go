package client

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/teralog/teralog/wire"
)

// put appends one batch of records with these event times, or values if there
// are none, straight to the fake's log.
func (f *fake) put(topic string, part int, codec wire.Codec, times []int64, values ...[]byte) {
	f.mu.Lock()
	defer f.mu.Unlock()
	tp := f.topics[topic]
	w := wire.NewBuilder(wire.BuilderOptions{Topic: tp.id, Partition: int32(part), Codec: codec, MaxBytes: wire.MaxBatchBytes})
	for i := range max(len(times), len(values)) {
		var at int64
		var v []byte
		if i < len(times) {
			at = times[i]
		}
		if i < len(values) {
			v = values[i]
		}
		if ok, err := w.Add(at, nil, v, []wire.Header{{Key: []byte("i"), Value: []byte{byte(i)}}}); !ok || err != nil {
			panic(fmt.Sprint(ok, err))
		}
	}
	b, err := w.Build()
	if err != nil {
		panic(err)
	}
	if _, code := tp.parts[part].append(wire.Batch(b.B)); code != wire.CodeOK {
		panic(code)
	}
	b.Release()
}

// offsetsOf polls until ErrEnd and returns the offsets, or the error met.
func offsetsOf(t *testing.T, x *Consumer) (got []wire.Offset, err error) {
	for {
		ms, err := x.Poll(t.Context())
		if err == ErrEnd {
			return got, nil
		}
		if err != nil {
			return got, err
		}
		for _, m := range ms {
			got = append(got, m.Offset)
		}
	}
}

func upTo(from, to wire.Offset) (all []wire.Offset) {
	for o := from; o < to; o++ {
		all = append(all, o)
	}
	return all
}

func TestRange(t *testing.T) {
	bubble(t, map[string]int{"t": 1, "none": 1}, func(t *testing.T, b *fake) {
		b.put("t", 0, wire.None, []int64{10, 50, 20})   // offsets 0 to 2, appended at 1000
		b.put("t", 0, wire.Snappy, []int64{30, 5, 40})  // 3 to 5, at 1003
		b.put("t", 0, wire.Gzip, []int64{60, 35, 7, 8}) // 6 to 9, at 1006
		c := b.client(t)
		x := newConsumer(t, c, ConsumerOptions{MaxRecords: 2})
		f := func(topic string, from, to Position, want ...wire.Offset) {
			t.Helper()
			if err := x.Assign(t.Context(), topic, 0, Range{from, to}); err != nil {
				t.Fatal(err)
			}
			got, err := offsetsOf(t, x)
			if err != nil || !slices.Equal(got, want) {
				t.Fatalf("%s from %s to %s: %v, %v; want %v", topic, from, to, got, err, want)
			}
			if err := x.Unassign(topic, 0); err != nil {
				t.Fatal(err)
			}
		}

		f("t", Start(), End(), upTo(0, 10)...)
		f("t", At(4), End(), upTo(4, 10)...) // in the middle of a batch
		f("t", At(4), At(7), 4, 5, 6)        // and to the middle of another
		f("t", At(7), At(7))
		f("t", At(8), At(3)) // backwards is empty
		f("t", End(), End())
		f("t", Greatest(), End(), 6, 7, 8, 9)
		f("t", Start(), Greatest(), 0, 1, 2, 3, 4, 5)
		f("t", AtTime(EventTime, 30), End(), upTo(1, 10)...)          // from the first at or after it
		f("t", AtTime(EventTime, 30), AtTime(EventTime, 50), 3, 5, 7) // a window, in any disorder
		f("t", AtTime(EventTime, 61), AtTime(EventTime, 99))
		f("t", Start(), AtTime(EventTime, 10), 4, 8, 9)
		f("t", AtTime(AppendTime, 1001), AtTime(AppendTime, 1006), 3, 4, 5)
		f("t", AtTime(AppendTime, 1001), AtTime(AppendTime, 9999), upTo(3, 10)...)
		f("t", AtTime(AppendTime, 2000), End())
		f("none", Start(), End())
		// Who goes on from where a range ended finds the rest of its last batch.
		if err := x.Assign(t.Context(), "t", 0, Range{At(4), At(7)}); err != nil {
			t.Fatal(err)
		}
		if got, err := offsetsOf(t, x); err != nil || len(got) != 3 {
			t.Fatal(got, err)
		}
		if next, _, err := x.Position("t", 0); err != nil || next != 7 {
			t.Fatalf("after a range up to offset 7 the position is %d, %v", next, err)
		}
		if err := x.Unassign("t", 0); err != nil {
			t.Fatal(err)
		}
		f("none", Greatest(), End())
		f("none", AtTime(EventTime, 0), AtTime(EventTime, 100))
	})
}

// TestPollContents looks at every field of a message.
func TestPollContents(t *testing.T) {
	bubble(t, map[string]int{"t": 2}, func(t *testing.T, b *fake) {
		b.put("t", 1, wire.Snappy, []int64{7, 8}, []byte("a"), []byte{})
		x := newConsumer(t, b.client(t), ConsumerOptions{})
		if err := x.AssignTopic(t.Context(), "t", Range{}); err != nil {
			t.Fatal(err)
		}
		ms, err := x.Poll(t.Context())
		if err != nil || len(ms) != 2 {
			t.Fatal(len(ms), err)
		}
		m := ms[1]
		if m.Topic != "t" || m.Partition != 1 || m.Offset != 1 || m.Time != 8 || m.AppendTime != 1000 || m.LeaderEpoch != 1 ||
			m.Key != nil || m.Value == nil || len(m.Value) != 0 || len(m.Headers) != 1 || m.Headers[0].Value[0] != 1 || ms[0].Headers[0].Value[0] != 0 {
			t.Fatalf("%+v", m)
		}
		if next, end, err := x.Position("t", 1); next != 2 || end != 2 || err != nil {
			t.Fatal(next, end, err)
		}
	})
}

// TestGaps: compaction left batches with fewer records than
// offsets, an empty batch, and the broker skips a range; the consumer goes by
// what it is told.
func TestGaps(t *testing.T) {
	bubble(t, map[string]int{"t": 1}, func(t *testing.T, b *fake) {
		b.put("t", 0, wire.None, []int64{1, 2, 3})
		p := b.topics["t"].parts[0]
		hole := slices.Clone(p.batches[0]) // its header over offsets 3 to 991582 and no record
		hole.Stamp(3, 1, 0, false)
		hole = emptied(hole, 991_579)
		p.batches = append(p.batches, hole)
		p.end = hole.NextOffset()
		b.put("t", 0, wire.None, []int64{4})
		last := p.end - 1
		x := newConsumer(t, b.client(t), ConsumerOptions{PartitionBytes: 50})
		if err := x.Assign(t.Context(), "t", 0, Range{To: End()}); err != nil {
			t.Fatal(err)
		}
		if got, err := offsetsOf(t, x); err != nil || !slices.Equal(got, []wire.Offset{0, 1, 2, last}) {
			t.Fatal(got, err)
		}
		// The end itself may be a hole.
		if err := x.Assign(t.Context(), "t", 0, Range{From: At(3), To: At(last)}); err != nil {
			t.Fatal(err)
		}
		if got, err := offsetsOf(t, x); err != nil || len(got) != 0 {
			t.Fatal(got, err)
		}
		// A broker may move a reader on without any batch.
		b.intercept(func(c *wire.Call) bool {
			var req wire.FetchRequest
			if c.API != wire.APIFetch || c.Decode(&req) != nil || req.Partitions[0].Offset != 500 {
				return false
			}
			q := req.Partitions[0]
			c.Reply(&wire.FetchResponse{Partitions: []wire.FetchResult{{Topic: q.Topic, Next: last, Data: []byte{}}}})
			return true
		})
		if err := x.Assign(t.Context(), "t", 0, Range{From: At(500), To: End()}); err != nil {
			t.Fatal(err)
		}
		if got, err := offsetsOf(t, x); err != nil || !slices.Equal(got, []wire.Offset{last}) {
			t.Fatal(got, err)
		}
	})
}

// emptied makes of b what compaction leaves of a range without records.
func emptied(b wire.Batch, offsets int32) wire.Batch {
	b = b[:wire.HeaderSize]
	put := func(at int, v uint32) { copy(b[at:], []byte{byte(v), byte(v >> 8), byte(v >> 16), byte(v >> 24)}) }
	put(8, wire.HeaderSize)
	put(12, 0) // the CRC of nothing
	put(68, uint32(offsets-1))
	put(72, 0)
	put(84, 0)
	b.SetProducer(wire.NoProducer, -1, -1)
	return b
}

// TestFetchErrors: what stops a partition, with its bounds, told once and
// after what lies before it.
func TestFetchErrors(t *testing.T) {
	f := func(res wire.FetchResult, o ConsumerOptions, check func(t *testing.T, e *FetchError), goesOnAt wire.Offset) {
		t.Helper()
		bubble(t, map[string]int{"t": 1, "u": 1}, func(t *testing.T, b *fake) {
			b.put("t", 0, wire.None, []int64{1, 2, 3})
			b.intercept(func(c *wire.Call) bool {
				var req wire.FetchRequest
				if c.API != wire.APIFetch || c.Decode(&req) != nil || len(req.Partitions) != 1 || req.Partitions[0].Offset != 3 {
					return false
				}
				r := res
				r.Topic, r.Data = req.Partitions[0].Topic, []byte{}
				c.Reply(&wire.FetchResponse{Partitions: []wire.FetchResult{r}})
				return true
			})
			x := newConsumer(t, b.client(t), o)
			if err := x.Assign(t.Context(), "t", 0, Range{}); err != nil {
				t.Fatal(err)
			}
			if ms, err := x.Poll(t.Context()); err != nil || len(ms) != 3 {
				t.Fatal(len(ms), err)
			}
			if goesOnAt >= 0 {
				if ms, err := x.Poll(t.Context()); err != nil || ms[0].Offset != goesOnAt {
					t.Fatal(ms, err)
				}
				return
			}
			for range 2 { // again, since nothing else can be returned
				_, err := x.Poll(t.Context())
				var e *FetchError
				if !errors.As(err, &e) || e.Offset != 3 || e.Topic != "t" || e.Partition != 0 {
					t.Fatalf("got %v", err)
				}
				check(t, e)
			}
			if err := x.Assign(t.Context(), "u", 0, Range{}); err != nil {
				t.Fatal(err)
			}
			b.put("u", 0, wire.None, []int64{1})
			if ms, err := x.Poll(t.Context()); err != nil || ms[0].Topic != "u" {
				t.Fatal("a stopped partition stops another", err)
			}
			if err := x.Seek(t.Context(), "t", 0, At(1)); err != nil {
				t.Fatal(err)
			}
			if ms, err := x.Poll(t.Context()); err != nil || ms[0].Topic != "t" || ms[0].Offset != 1 {
				t.Fatal(err)
			}
		})
	}
	ok := func(cond func(e *FetchError) bool) func(*testing.T, *FetchError) {
		return func(t *testing.T, e *FetchError) {
			if !cond(e) {
				t.Fatalf("got %+v", *e)
			}
		}
	}

	outOfRange := wire.FetchResult{Code: wire.CodeOutOfRange, LogStart: 1, Committed: 2, Next: 3}
	truncated := wire.FetchResult{Code: wire.CodeTruncated, Diverge: 1, DivergeEnd: 2, Next: 3}
	f(outOfRange, ConsumerOptions{}, ok(func(e *FetchError) bool {
		return errors.Is(e, wire.CodeOutOfRange) && e.Start == 1 && e.End == 2
	}), -1)
	f(truncated, ConsumerOptions{}, ok(func(e *FetchError) bool {
		return errors.Is(e, wire.CodeTruncated) && e.MatchEpoch == 1 && e.MatchEnd == 2
	}), -1)
	f(wire.FetchResult{Code: wire.CodeCorrupt, CorruptFrom: 3, CorruptTo: 9, Next: 3}, ConsumerOptions{}, ok(func(e *FetchError) bool {
		return errors.Is(e, wire.CodeCorrupt) && e.From == 3 && e.To == 9
	}), -1)
	f(wire.FetchResult{Next: 2}, ConsumerOptions{}, ok(func(e *FetchError) bool { return errors.Is(e, wire.ErrCorrupt) }), -1) // backwards
	f(wire.FetchResult{Code: 999, Next: 3}, ConsumerOptions{}, ok(func(e *FetchError) bool { return errors.Is(e, wire.Code(999)) }), -1)
	f(outOfRange, ConsumerOptions{Reset: ResetStart}, nil, 1)
	f(outOfRange, ConsumerOptions{Reset: ResetEnd}, nil, 2)
	f(truncated, ConsumerOptions{Reset: ResetStart}, nil, 2)
}

// TestFetchRetries: refusals that pass are waited out.
func TestFetchRetries(t *testing.T) {
	bubble(t, map[string]int{"t": 1}, func(t *testing.T, b *fake) {
		b.put("t", 0, wire.None, []int64{1, 2, 3})
		codes := []wire.Code{wire.CodeOffsetNotAvailable, wire.CodeNotLeader, wire.CodeBusy, wire.CodeOffline, wire.CodeShuttingDown, wire.CodeUnknownEpoch}
		b.intercept(func(c *wire.Call) bool {
			if c.API != wire.APIFetch || len(codes) == 0 {
				return false
			}
			c.ReplyError(codes[0])
			codes = codes[1:]
			return true
		})
		x := newConsumer(t, b.client(t), ConsumerOptions{})
		if err := x.Assign(t.Context(), "t", 0, Range{To: End()}); err != nil {
			t.Fatal(err)
		}
		if got, err := offsetsOf(t, x); err != nil || len(got) != 3 || len(codes) > 0 {
			t.Fatal(got, err, codes)
		}
	})
}

// TestDamaged: a batch that does not pass its CRC, or claims too much, stops
// the partition; what lies before it is returned.
func TestDamaged(t *testing.T) {
	f := func(harm func(b wire.Batch), o ConsumerOptions, want error) {
		t.Helper()
		bubble(t, map[string]int{"t": 1}, func(t *testing.T, b *fake) {
			b.put("t", 0, wire.Snappy, []int64{1, 2, 3})
			b.put("t", 0, wire.Snappy, nil, make([]byte, 100_000))
			harm(b.topics["t"].parts[0].batches[1])
			x := newConsumer(t, b.client(t), o)
			if err := x.Assign(t.Context(), "t", 0, Range{To: End()}); err != nil {
				t.Fatal(err)
			}
			got, err := offsetsOf(t, x)
			var e *FetchError
			if len(got) != 3 || !errors.Is(err, want) || !errors.As(err, &e) || e.Offset != 3 {
				t.Fatalf("%v, %v; want the first three and %v", got, err, want)
			}
			synctest.Wait()
			if x.Buffered() > 2<<20 {
				t.Fatalf("%d bytes kept for a stopped partition", x.Buffered())
			}
		})
	}

	f(func(b wire.Batch) { b[len(b)-1] ^= 1 }, ConsumerOptions{}, wire.ErrCorrupt)
	f(func(b wire.Batch) {}, ConsumerOptions{MaxUncompressed: 99_999}, wire.CodeTooLarge)
}

// TestNoSkipNoRepeat (R4) polls in small bites while records are appended, and
// pauses, seeks back and reassigns at random.
func TestNoSkipNoRepeat(t *testing.T) {
	for seed := range uint64(20) {
		bubble(t, map[string]int{"t": 3}, func(t *testing.T, b *fake) {
			rnd := rand.New(rand.NewPCG(seed, 0))
			x := newConsumer(t, b.client(t), ConsumerOptions{MaxRecords: 1 + rnd.IntN(7), PartitionBytes: 300, MaxWait: 50 * time.Millisecond})
			if err := x.AssignTopic(t.Context(), "t", Range{}); err != nil {
				t.Fatal(err)
			}
			var put, next [3]int
			codecs := []wire.Codec{wire.None, wire.Gzip, wire.Snappy}
			for range 300 {
				p := rnd.IntN(3)
				switch rnd.IntN(12) {
				case 0, 1, 2, 3:
					n := 1 + rnd.IntN(9)
					b.put("t", p, codecs[rnd.IntN(3)], make([]int64, n))
					put[p] += n
				case 4:
					x.Pause("t", int32(p))
				case 5:
					x.Resume("t", int32(p))
				case 6:
					next[p] = rnd.IntN(next[p] + 1)
					if err := x.Seek(t.Context(), "t", int32(p), At(wire.Offset(next[p]))); err != nil {
						t.Fatal(err)
					}
				default:
					poll(t, x, &next)
				}
			}
			for p := range int32(3) {
				x.Resume("t", p)
			}
			for next != put {
				if !poll(t, x, &next) {
					t.Fatalf("seed %d: nothing comes any more at %v of %v", seed, next, put)
				}
			}
		})
	}
}

func poll(t *testing.T, x *Consumer, next *[3]int) bool {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	ms, err := x.Poll(ctx)
	if err != nil && !errors.Is(err, context.DeadlineExceeded) {
		t.Fatal(err)
	}
	for _, m := range ms {
		if int(m.Offset) != next[m.Partition] {
			t.Fatalf("partition %d: offset %d, want %d", m.Partition, m.Offset, next[m.Partition])
		}
		next[m.Partition]++
	}
	return len(ms) > 0
}

// TestSlowConsumer: a consumer that takes a second a record holds
// no more than its buffer, and paused partitions take no room from others.
func TestSlowConsumer(t *testing.T) {
	bubble(t, map[string]int{"t": 8}, func(t *testing.T, b *fake) {
		for i := range 400 { // 400 × 5 × 20 KB = 40 MB
			b.put("t", i%8, wire.None, nil, make([]byte, 20_000), make([]byte, 20_000), make([]byte, 20_000), make([]byte, 20_000), make([]byte, 20_000))
		}
		const bound = 4 << 20
		before := frames.Stats().LiveBytes
		x := newConsumer(t, b.client(t), ConsumerOptions{BufferBytes: bound, PartitionBytes: 500_000, MaxRecords: 1})
		if err := x.AssignTopic(t.Context(), "t", Range{To: End()}); err != nil {
			t.Fatal(err)
		}
		seen := 0
		for {
			_, err := x.Poll(t.Context())
			if err == ErrEnd {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			seen++
			if seen < 300 {
				time.Sleep(time.Second)
				synctest.Wait()
			}
			if live := frames.Stats().LiveBytes - before; x.Buffered() > bound || live > bound+1<<20 {
				t.Fatalf("%d bytes buffered, %d in buffers, bound %d", x.Buffered(), live, bound)
			}
			if seen == 200 {
				for p := range int32(7) {
					x.Pause("t", p)
				}
				for range 100 { // more than was fetched of the one that runs
					ms, err := x.Poll(t.Context())
					if err != nil || ms[0].Partition != 7 {
						t.Fatal(ms, err)
					}
					seen++
				}
				for p := range int32(7) {
					x.Resume("t", p)
				}
			}
		}
		if seen != 2000 {
			t.Fatalf("%d records of 2000", seen)
		}
		x.Close()
		synctest.Wait() // the connection's reader gives up its buffer as it ends
		if live := frames.Stats().LiveBytes - before; live > 256<<10 {
			t.Fatalf("%d bytes left in buffers after Close", live)
		}
	})
}

// TestPollWaits: a record that comes while Poll waits ends the wait at once,
// and so does the end of ctx.
func TestPollWaits(t *testing.T) {
	bubble(t, map[string]int{"t": 2}, func(t *testing.T, b *fake) {
		x := newConsumer(t, b.client(t), ConsumerOptions{})
		if err := x.AssignTopic(t.Context(), "t", Range{}); err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		time.AfterFunc(1700*time.Millisecond, func() { b.put("t", 1, wire.None, []int64{1}) })
		if ms, err := x.Poll(t.Context()); err != nil || len(ms) != 1 || time.Since(start) != 1700*time.Millisecond {
			t.Fatal(len(ms), err, time.Since(start))
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if _, err := x.Poll(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatal(err)
		}
		if n := b.count(wire.APIFetch); n > 300 {
			t.Fatalf("%d fetches in a quiet minute", n)
		}
	})
}

// TestCodecs sends and reads through each codec. It stands outside a bubble,
// since zstd's pooled encoders may not pass from one to another.
func TestCodecs(t *testing.T) {
	b := newFake(t, map[string]int{"t": 1})
	c := b.client(t)
	const each = 1000
	for i, codec := range []wire.Codec{wire.None, wire.Gzip, wire.Snappy, wire.Zstd} {
		p := newProducer(t, c, ProducerOptions{Codec: codec})
		for n := range each {
			// Each alone can be made shorter, since nobody knows how many share a batch.
			r := Record{Topic: "t", Key: make([]byte, 200), Value: counter(uint64(i*each + n))}
			if err := p.ProduceAsync(t.Context(), r, nil); err != nil {
				t.Fatal(err)
			}
		}
		if err := p.Flush(t.Context()); err != nil {
			t.Fatal(err)
		}
		last := b.topics["t"].parts[0].batches
		if got := last[len(last)-1].Codec(); got != codec {
			t.Fatalf("sent with %s, want %s", got, codec)
		}
	}
	x := newConsumer(t, c, ConsumerOptions{})
	if err := x.Assign(t.Context(), "t", 0, Range{To: End()}); err != nil {
		t.Fatal(err)
	}
	readBack(t, x, []int{4 * each})
}

// TestEpochOfPosition: with every fetch goes the epoch of what was read before
// it, as far as it is known, so that another history is noticed.
func TestEpochOfPosition(t *testing.T) {
	bubble(t, map[string]int{"t": 1}, func(t *testing.T, b *fake) {
		b.put("t", 0, wire.None, []int64{1, 2, 3})
		b.topics["t"].parts[0].epoch = 4
		b.put("t", 0, wire.None, []int64{4, 5, 6})
		var asked []wire.FetchPartition
		b.intercept(func(c *wire.Call) bool {
			var req wire.FetchRequest
			if c.API == wire.APIFetch && c.Decode(&req) == nil {
				asked = append(asked, req.Partitions[0])
			}
			return false
		})
		x := newConsumer(t, b.client(t), ConsumerOptions{MaxRecords: 2, PartitionBytes: 200})
		f := func(offset wire.Offset, before wire.Epoch, do func() error) {
			t.Helper()
			synctest.Wait()
			asked = nil
			if err := do(); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			if !slices.ContainsFunc(asked, func(q wire.FetchPartition) bool { return q.Offset == offset && q.LastEpoch == before }) {
				t.Fatalf("asked %+v, want offset %d after epoch %d", asked, offset, before)
			}
		}
		poll := func() error { _, err := x.Poll(t.Context()); return err }
		again := func() error { return errors.Join(x.Pause("t", 0), x.Resume("t", 0)) }

		f(0, wire.NoEpoch, func() error { return x.Assign(t.Context(), "t", 0, Range{}) })
		f(6, 4, func() error { return errors.Join(poll(), poll()) }) // the second batch is there already
		f(4, 4, again)                                               // four records were returned
		f(2, wire.NoEpoch, func() error { return x.Seek(t.Context(), "t", 0, At(2)) })
		f(2, 1, func() error { return x.Seek(t.Context(), "t", 0, AtEpoch(2, 1)) })
	})
}

// TestManyHeaders: a Poll ends early when its records have very many headers.
func TestManyHeaders(t *testing.T) {
	bubble(t, map[string]int{"t": 1}, func(t *testing.T, b *fake) {
		hs := slices.Repeat([]wire.Header{{Key: []byte{}}}, wire.MaxHeaders)
		w := wire.NewBuilder(wire.BuilderOptions{Topic: b.topics["t"].id})
		for range 200 {
			if ok, err := w.Add(0, nil, nil, hs); !ok || err != nil {
				t.Fatal(ok, err)
			}
		}
		buf, err := w.Build()
		if err != nil {
			t.Fatal(err)
		}
		b.mu.Lock()
		b.topics["t"].parts[0].append(wire.Batch(buf.B))
		b.mu.Unlock()
		x := newConsumer(t, b.client(t), ConsumerOptions{})
		if err := x.Assign(t.Context(), "t", 0, Range{To: End()}); err != nil {
			t.Fatal(err)
		}
		for next := wire.Offset(0); next < 200; {
			ms, err := x.Poll(t.Context())
			if err != nil || len(ms) > 64 {
				t.Fatal(len(ms), err)
			}
			for _, m := range ms {
				if m.Offset != next || len(m.Headers) != wire.MaxHeaders {
					t.Fatal(m.Offset, len(m.Headers))
				}
				next++
			}
		}
	})
}
