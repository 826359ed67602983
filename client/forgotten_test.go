package client

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/teralog/teralog/wire"
)

// TestNothingForgotten gives records in all ways at once while connections end,
// leaders move and answers are late. Once that is over every record has its
// outcome soon, though nobody calls Flush, gives another one or runs out of time:
// those would have somebody look.
func TestNothingForgotten(t *testing.T) {
	f := func(seed uint64) {
		t.Helper()
		rnd := rand.New(rand.NewPCG(seed, 1))
		bubble(t, map[string]int{"t": 3}, func(t *testing.T, b *fake) {
			b.nodes = append(b.nodes, wire.NodeAddr{ID: 2, Addr: fakeAddr})
			o := ProducerOptions{
				Acks:            Acks(rnd.IntN(3)),
				NotIdempotent:   rnd.IntN(4) == 0,
				Codec:           []wire.Codec{wire.None, wire.None, wire.Snappy}[rnd.IntN(3)],
				BatchBytes:      1 << 10,
				Linger:          []time.Duration{0, 0, 7 * time.Millisecond}[rnd.IntN(3)],
				BufferBytes:     []int64{1500, 8 << 10, 1 << 20}[rnd.IntN(3)],
				InFlight:        []int{1, 5}[rnd.IntN(2)],
				DeliveryTimeout: 1000 * time.Hour,
			}
			c := b.client(t, func(o *Options) { o.RequestTimeout = time.Hour })
			p := newProducer(t, c, o)
			began := time.Now()
			over := make(chan struct{})
			var givers, world sync.WaitGroup
			for g := range uint64(3) {
				givers.Go(func() { giveAll(t, p, rand.New(rand.NewPCG(seed, 2+g)), 60) })
			}
			world.Go(func() { disturb(b, rand.New(rand.NewPCG(seed, 9)), over) })
			givers.Wait()
			close(over)
			world.Wait()
			time.Sleep(5 * time.Second)
			synctest.Wait()
			if n := p.Buffered(); n != 0 || time.Since(began) > time.Minute {
				t.Fatalf("seed %d, %+v: %d bytes wait for nobody after %v", seed, o, n, time.Since(began))
			}
		})
	}
	for seed := range uint64(30) {
		f(seed)
	}
}

// giveAll gives records of all kinds in all ways.
func giveAll(t *testing.T, p *Producer, rnd *rand.Rand, calls int) {
	record := func() Record {
		r := Record{Topic: "t", Value: make([]byte, rnd.IntN(600))}
		switch rnd.IntN(3) {
		case 0:
			r.Pinned, r.Partition = true, rnd.Int32N(3)
		case 1:
			r.Key = fmt.Append(nil, rnd.IntN(50))
		}
		return r
	}
	for range calls {
		var err error
		switch rnd.IntN(5) {
		case 0:
			_, err = p.Produce(context.Background(), record())
		case 1:
			rs := make([]Record, rnd.IntN(9))
			for i := range rs {
				rs[i] = record()
			}
			_, err = p.ProduceAll(context.Background(), rs, nil)
		case 2:
			err = p.TryProduce(context.Background(), record(), func(Ack, error) {
				p.TryProduce(context.Background(), Record{Topic: "t"}, nil) // it may find the buffer full
			})
		default:
			err = p.ProduceAsync(context.Background(), record(), nil)
		}
		if err != nil && err != ErrBufferFull && wire.CodeOf(err) == wire.CodeOK {
			t.Error(err)
		}
		if rnd.IntN(3) == 0 {
			time.Sleep(time.Duration(rnd.IntN(4000)) * time.Microsecond)
		}
	}
}

// disturb makes life hard for a while, until over, and then as it was.
func disturb(b *fake, rnd *rand.Rand, over <-chan struct{}) {
	defer func() {
		b.net.Refuse(fakeAddr, false)
		b.net.SetDelay(0)
	}()
	for range 300 {
		switch rnd.IntN(5) {
		case 0:
			b.net.Cut(fakeAddr)
		case 1:
			b.mu.Lock()
			b.leader = 3 - b.leader
			b.mu.Unlock()
			code := []wire.Code{wire.CodeNotLeader, wire.CodeBusy}[rnd.IntN(2)]
			left := 1 + rnd.IntN(3)
			b.mu.Lock()
			b.onProduce = func(wire.Batch) (wire.Code, bool) {
				if left--; left >= 0 {
					return code, false
				}
				return wire.CodeOK, true
			}
			b.mu.Unlock()
		case 2:
			b.net.Refuse(fakeAddr, rnd.IntN(2) == 0)
		default:
			b.net.SetDelay(time.Duration(rnd.IntN(3000)) * time.Microsecond)
		}
		select {
		case <-over:
			return
		case <-time.After(time.Duration(rnd.IntN(5000)) * time.Microsecond):
		}
	}
}
