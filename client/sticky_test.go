package client

import (
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/teralog/teralog/wire"
)

// TestStuckPartition: records that may go anywhere do not gather where none can
// be sent, and come back to it later.
func TestStuckPartition(t *testing.T) {
	bubble(t, map[string]int{"t": 3}, func(t *testing.T, b *fake) {
		var well atomic.Bool
		b.onProduce = func(m wire.Batch) (wire.Code, bool) {
			if m.Partition() == 1 && !well.Load() {
				return wire.CodeNotLeader, false
			}
			return wire.CodeOK, true
		}
		p := newProducer(t, b.client(t), ProducerOptions{})
		var acked [3]int
		give := func(n int) {
			t.Helper()
			for range n {
				if err := p.ProduceAsync(t.Context(), Record{Topic: "t"}, func(a Ack, err error) {
					if err != nil {
						t.Error(err)
					}
					acked[a.Partition]++
				}); err != nil {
					t.Fatal(err)
				}
				time.Sleep(10 * time.Millisecond)
				synctest.Wait()
			}
		}
		give(100)
		if n := acked[0] + acked[2]; n != 99 {
			t.Fatalf("%d of 100 records were sent; one may wait for the partition that is stuck", n)
		}
		well.Store(true)
		time.Sleep(time.Second)
		give(99)
		if acked[1] < 30 {
			t.Fatalf("partition 1 got %d records after it was well again", acked[1])
		}
	})
}

// TestStickyShare: what other records fill does not count as the share of the
// partition that is being filled.
func TestStickyShare(t *testing.T) {
	s := sticky{at: 1, begun: true}
	s.took(0, 3, 500)
	s.took(1, 3, 70)
	if s.filled != 70 {
		t.Fatalf("filled %d", s.filled)
	}
	if s.moved(0, 3); s.at != 1 {
		t.Fatal("moved by another partition")
	}
	if s.moved(1, 3); s.at != 2 || s.filled != 0 {
		t.Fatalf("%+v", s)
	}
	fresh := sticky{}
	if fresh.took(0, 3, 500); fresh.filled != 0 {
		t.Fatal("filled before it began")
	}
}

// TestCompleteElsewhere: a batch that is complete goes at once even if the record
// that found it full joins the open batch of another partition.
func TestCompleteElsewhere(t *testing.T) {
	bubble(t, map[string]int{"t": 2}, func(t *testing.T, b *fake) {
		p := newProducer(t, b.client(t), ProducerOptions{BatchBytes: 1 << 10, BufferBytes: 2400, Linger: time.Hour})
		warm(t, p)
		p.mu.Lock()
		p.topics["t"].sticky = sticky{begun: true}
		p.mu.Unlock()
		var acked atomic.Int32
		for _, r := range []Record{*pinned(1, 10), {Topic: "t", Value: make([]byte, 600)}, {Topic: "t", Value: make([]byte, 600)}} {
			if err := p.ProduceAsync(t.Context(), r, func(a Ack, _ error) {
				if a.Partition == 0 {
					acked.Add(1)
				}
			}); err != nil {
				t.Fatal(err)
			}
			synctest.Wait() // else one look might see it all
		}
		if n := acked.Load(); n != 1 {
			t.Errorf("%d records of the complete batch were sent, want 1", n)
		}
	})
}

// TestStickyRun: records that may go anywhere fill several batches of a partition
// before the next one's turn, but not more than may be on their way, and never
// begin a batch that nobody goes on to fill.
func TestStickyRun(t *testing.T) {
	f := func(o ProducerOptions, records int, want ...int) {
		t.Helper()
		bubble(t, map[string]int{"t": 4}, func(t *testing.T, b *fake) {
			o.BatchBytes, o.Linger = 1<<10, time.Hour
			p := newProducer(t, b.client(t), o)
			warm(t, p)
			b.net.Stall(fakeAddr, true)
			p.mu.Lock()
			p.topics["t"].sticky = sticky{begun: true}
			p.mu.Unlock()
			for range records {
				if err := p.ProduceAsync(t.Context(), Record{Topic: "t", Value: make([]byte, 400)}, nil); err != nil {
					t.Fatal(err)
				}
			}
			synctest.Wait()
			p.mu.Lock()
			var got []int
			for _, l := range p.topics["t"].lanes {
				got = append(got, len(l.batches))
			}
			p.mu.Unlock()
			if !slices.Equal(got, want) {
				t.Errorf("batches in the partitions: %v, want %v", got, want)
			}
			b.net.Stall(fakeAddr, false)
			if err := p.Flush(t.Context()); err != nil {
				t.Fatal(err)
			}
		})
	}

	f(ProducerOptions{}, 2, 1, 0, 0, 0)
	f(ProducerOptions{}, 4, 2, 0, 0, 0)
	f(ProducerOptions{}, 8, 4, 0, 0, 0)
	f(ProducerOptions{}, 9, 4, 1, 0, 0)
	f(ProducerOptions{}, 17, 4, 4, 1, 0)
	f(ProducerOptions{BufferBytes: 6 << 10}, 5, 2, 1, 0, 0) // 1.5 KiB are the share of each
	f(ProducerOptions{NotIdempotent: true}, 5, 1, 1, 1, 0)
}
