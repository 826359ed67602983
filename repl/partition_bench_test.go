package repl

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/teralog/teralog/mem"
	"github.com/teralog/teralog/storage"
	"github.com/teralog/teralog/wire"
)

// realSet hosts one partition on the machine's own disk.
func realSet(t testing.TB, st Settings) (*Set, *Partition, *mem.Clock) {
	t.Helper()
	clock := mem.NewClock()
	d := testDir(t, storage.OS(), t.TempDir()+"/data")
	s := NewSet(SetConfig{Dirs: []*storage.Dir{d}, Clock: clock})
	if err := s.Host("t", testID, d, st, 0, true, clock.Now()); err != nil {
		t.Fatal(err)
	}
	p, err := s.Leader(testID)
	if err != nil {
		t.Fatal(err)
	}
	return s, p, clock
}

// A sender produces one batch at a time and allocates nothing for it.
type sender struct {
	p     *Partition
	clock *mem.Clock
	sent  wire.Batch
	ws    []Write
	done  chan error
}

func newSender(t testing.TB, p *Partition, clock *mem.Clock, bytes, batches int) *sender {
	s := &sender{p: p, clock: clock, sent: testBatch(t, 0, 0, 1, bytes, ""), done: make(chan error, batches)}
	for range batches {
		b := append(wire.Batch(nil), s.sent...)
		s.ws = append(s.ws, Write{Batch: b, Acks: wire.AcksAll, Done: func(_ storage.Appended, err error) { s.done <- err }})
	}
	return s
}

// send produces the batches and waits for all answers.
func (s *sender) send(t testing.TB, inline bool) {
	produce(s.p, s.ws, inline)
	for range s.ws {
		if err := <-s.done; err != nil {
			t.Fatal(err)
		}
	}
}

// TestProduceAllocations allows one View a turn, in which the storage's lies, and
// nothing for a batch.
func TestProduceAllocations(t *testing.T) {
	if mem.Checked {
		t.Skip("watching buffers allocates")
	}
	s, p, clock := realSet(t, Settings{})
	defer s.Close()
	f := func(batches int) float64 {
		one := newSender(t, p, clock, 100, batches)
		for range 100 {
			one.send(t, true)
		}
		return testing.AllocsPerRun(300, func() { one.send(t, true) })
	}

	single, many := f(1), f(32)
	t.Logf("%.1f allocations for a turn with one batch, %.1f with 32", single, many)
	if single > 1 {
		t.Errorf("%.1f allocations for a turn with one batch", single)
	}
	if many > single+3 { // the index takes memory now and then: one allocation in a dozen batches
		t.Errorf("%.1f allocations for a turn with 32 batches, %.1f with one", many, single)
	}
}

// TestAwaitAllocations parks and cancels, as a long poll that times out does.
func TestAwaitAllocations(t *testing.T) {
	if mem.Checked {
		t.Skip("watching buffers allocates")
	}
	s, p, _ := realSet(t, Settings{})
	defer s.Close()
	w := &Waiter{Wake: func() {}}
	if n := testing.AllocsPerRun(1000, func() {
		if p.Await(w) != nil || !w.Cancel() {
			t.Fatal("not parked")
		}
	}); n > 0 {
		t.Errorf("%.1f allocations for a parked fetch", n)
	}
}

// BenchmarkAwait is a fetch that parks and is woken by a write.
func BenchmarkAwait(b *testing.B) {
	s, p, clock := realSet(b, Settings{})
	defer s.Close()
	one := newSender(b, p, clock, 100, 1)
	woken := 0
	w := &Waiter{Wake: func() { woken++ }}
	b.ReportAllocs()
	for b.Loop() {
		w.From = p.View().Committed
		if p.Await(w) != nil {
			b.Fatal("not parked")
		}
		one.send(b, true)
	}
	if woken == 0 {
		b.Fatal("never woken")
	}
}

// BenchmarkProduceInline is one batch of 100 B after the other into an idle
// partition, by a connection's reader.
func BenchmarkProduceInline(b *testing.B) {
	for _, mode := range []FlushMode{Async, Interval, Sync} {
		b.Run(mode.String(), func(b *testing.B) {
			s, p, clock := realSet(b, Settings{Flush: mode})
			defer s.Close()
			one := newSender(b, p, clock, 100, 1)
			b.SetBytes(int64(len(one.sent)))
			b.ReportAllocs()
			for b.Loop() {
				one.send(b, true)
			}
		})
	}
}

// BenchmarkProduce64 is 64 producers of batches of 100 B, each with one in
// flight.
func BenchmarkProduce64(b *testing.B) {
	for _, mode := range []FlushMode{Async, Interval, Sync} {
		b.Run(mode.String(), func(b *testing.B) {
			s, p, clock := realSet(b, Settings{Flush: mode})
			defer s.Close()
			var left atomic.Int64
			left.Store(int64(b.N))
			var producers sync.WaitGroup
			b.ReportAllocs()
			b.ResetTimer()
			for range 64 {
				one := newSender(b, p, clock, 100, 1)
				producers.Go(func() {
					for left.Add(-1) >= 0 {
						one.send(b, false)
					}
				})
			}
			producers.Wait()
			n := p.Stats()
			b.ReportMetric(float64(n.Batches)/float64(n.Writes), "batches/write")
			if n.Flushes > 0 {
				b.ReportMetric(float64(n.Batches)/float64(n.Flushes), "batches/flush")
			}
		})
	}
}

// BenchmarkTurn is one turn with many batches that wait.
func BenchmarkTurn(b *testing.B) {
	for _, n := range []int{1, 8, 64, 512} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			s, p, clock := realSet(b, Settings{})
			defer s.Close()
			one := newSender(b, p, clock, 100, n)
			b.SetBytes(int64(n * len(one.sent)))
			b.ReportAllocs()
			for b.Loop() {
				one.send(b, true)
			}
		})
	}
}

// BenchmarkAdmit is what it costs to ask a partition where all is well.
func BenchmarkAdmit(b *testing.B) {
	_, p, clock := realSet(b, Settings{})
	now := clock.Now()
	for b.Loop() {
		if err := p.Admit(now); err != nil {
			b.Fatal(err)
		}
	}
}
