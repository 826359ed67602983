package client

import (
	"math"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/teralog/teralog/wire"
)

func TestOptions(t *testing.T) {
	client := func(ok bool, o Options) {
		t.Helper()
		if c, err := New(o); (err == nil) != ok {
			t.Fatalf("%+v: %v", o, err)
		} else if ok {
			c.Close()
		}
	}
	producer := func(ok bool, o ProducerOptions) {
		t.Helper()
		if err := o.fill(); (err == nil) != ok {
			t.Fatalf("%+v: %v", o, err)
		}
	}
	consumer := func(ok bool, o ConsumerOptions) {
		t.Helper()
		if err := o.fill(); (err == nil) != ok {
			t.Fatalf("%+v: %v", o, err)
		}
	}

	client(true, Options{Servers: []string{"h:1", "[::1]:7400"}})
	client(false, Options{})
	client(false, Options{Servers: []string{"h"}})
	client(false, Options{Servers: []string{"h:1"}, RequestTimeout: -1})
	producer(true, ProducerOptions{})
	producer(true, ProducerOptions{InFlight: 1, Linger: 3 * time.Millisecond, BatchBytes: wire.MaxBatchBytes})
	producer(false, ProducerOptions{InFlight: 6})
	producer(false, ProducerOptions{InFlight: -1})
	producer(false, ProducerOptions{Linger: 1500 * time.Microsecond})
	producer(false, ProducerOptions{BatchBytes: 100})
	producer(false, ProducerOptions{BatchBytes: wire.MaxBatchBytes + 1})
	producer(false, ProducerOptions{BufferBytes: -1})
	producer(false, ProducerOptions{Codec: 3})
	producer(false, ProducerOptions{Acks: 3})
	consumer(true, ConsumerOptions{})
	consumer(true, ConsumerOptions{BufferBytes: 1000})
	consumer(false, ConsumerOptions{BufferBytes: -1})
	consumer(false, ConsumerOptions{MaxWait: time.Microsecond})
	consumer(false, ConsumerOptions{PartitionBytes: maxFetch + 1})
	consumer(false, ConsumerOptions{RequestBytes: maxFetch + 1})
	consumer(false, ConsumerOptions{RequestBytes: -1})
	consumer(false, ConsumerOptions{Reset: 3})
}

// TestShare: how much a consumer asks for of each of its partitions, and that what
// it asks for fits its buffer.
func TestShare(t *testing.T) {
	f := func(o ConsumerOptions, partitions, want int) {
		t.Helper()
		if err := o.fill(); err != nil {
			t.Fatal(err)
		}
		if got := o.share(partitions); got != want {
			t.Fatalf("%+v: %d of each of %d partitions, want %d", o, got, partitions, want)
		}
	}

	f(ConsumerOptions{}, 1, 1<<20)
	f(ConsumerOptions{}, 2, 512<<10)
	f(ConsumerOptions{}, 4, 256<<10)
	f(ConsumerOptions{}, 1000, 256<<10)
	f(ConsumerOptions{RequestBytes: 8 << 20}, 2, 4<<20)
	f(ConsumerOptions{RequestBytes: 64 << 10}, 1, 256<<10)
	f(ConsumerOptions{BufferBytes: 2 << 20}, 1, 512<<10)
	f(ConsumerOptions{BufferBytes: 64 << 10}, 1, 64<<10)
	f(ConsumerOptions{PartitionBytes: 100 << 10}, 1, 100<<10)
	f(ConsumerOptions{PartitionBytes: 2 << 20}, 1, 2<<20)
	f(ConsumerOptions{RequestBytes: 1_500_000}, 1, 1<<20)
	for buffer := int64(1); buffer < 1<<27; buffer *= 3 {
		for request := 0; request < maxFetch; request = request*2 + 77 {
			for n := 1; n < 10; n++ {
				o := ConsumerOptions{BufferBytes: buffer, RequestBytes: request}
				o.fill()
				if need := answerMemory(1, o.share(n)); need > max(buffer, 1) || need > int64(o.RequestBytes) || o.share(n) < 1 {
					t.Fatalf("a buffer of %d bytes, requests of %d, %d partitions: %d for an answer", buffer, request, n, need)
				}
			}
		}
	}
}

// TestLonePartition: the request for one partition asks for as much as a request may.
func TestLonePartition(t *testing.T) {
	for n, want := range map[int]uint32{1: 1 << 20, 3: 1 << 20 / 3, 8: 256 << 10} {
		bubble(t, map[string]int{"t": n}, func(t *testing.T, b *fake) {
			var mu sync.Mutex
			least, most := uint32(math.MaxUint32), uint32(0)
			b.intercept(func(c *wire.Call) bool {
				var m wire.FetchRequest
				if c.API == wire.APIFetch && c.Decode(&m) == nil {
					mu.Lock()
					defer mu.Unlock()
					for _, p := range m.Partitions {
						least, most = min(least, p.MaxBytes), max(most, p.MaxBytes)
					}
				}
				return false
			})
			x := newConsumer(t, b.client(t), ConsumerOptions{})
			for p := range n {
				if err := x.Assign(t.Context(), "t", int32(p), Range{}); err != nil {
					t.Fatal(err)
				}
			}
			synctest.Wait()
			mu.Lock()
			least, most = math.MaxUint32, 0
			mu.Unlock()
			time.Sleep(time.Second) // all are asked for again
			mu.Lock()
			defer mu.Unlock()
			if least != want || most != want {
				t.Fatalf("of each of %d partitions %d to %d B are asked for, want %d", n, least, most, want)
			}
		})
	}
}
