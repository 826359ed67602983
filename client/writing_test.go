package client

import (
	"errors"
	"runtime"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/teralog/teralog/wire"
)

// TestWhileWritten stands between the two ends of the writing of many records
// into one batch, where others have the mutex: the batch is neither sent nor told
// of before all are in it, whatever becomes of it meanwhile, and then at once.
func TestWhileWritten(t *testing.T) {
	const n = 5
	f := func(name string, meanwhile func(p *Producer), want error, sends bool) {
		t.Run(name, func(t *testing.T) {
			bubble(t, map[string]int{"t": 1}, func(t *testing.T, b *fake) {
				p := newProducer(t, b.client(t), ProducerOptions{DeliveryTimeout: time.Minute})
				if _, err := p.Produce(t.Context(), Record{Topic: "t"}); err != nil {
					t.Fatal(err)
				}
				var sizes []int // of the batches sent
				b.intercept(func(c *wire.Call) bool {
					if c.API == wire.APIProduce {
						var m wire.ProduceRequest
						if err := c.Decode(&m); err != nil {
							t.Error(err)
						}
						for _, batch := range m.Batches {
							sizes = append(sizes, batch.Count())
						}
					}
					return false
				})
				rs := slices.Repeat([]Record{{Topic: "t", Value: make([]byte, 100)}}, n)
				told, failure := 0, error(nil)
				done := func(from, to int, _ Ack, err error) {
					if from != told {
						t.Errorf("told of %d to %d after %d", from, to, told)
					}
					told, failure = to, err
				}

				p.begin()
				w, err := p.beginRun(p.topics["t"], rs, 0)
				if err != nil || !w.b.written {
					t.Fatalf("%+v, %v", w, err)
				}
				p.mu.Unlock()
				meanwhile(p)
				synctest.Wait()
				if err := w.write(); err != nil {
					t.Fatal(err)
				}
				synctest.Wait()
				if told > 0 || len(sizes) > 0 {
					t.Fatalf("told of %d, sent %v, while they were written", told, sizes)
				}
				began := time.Now()
				p.mu.Lock()
				req := p.endRun(&w, 0, done)
				p.end()
				if sends != (req != nil) {
					t.Fatalf("a request to carry: %t", req != nil)
				}
				if req != nil {
					req.carry()
				}
				synctest.Wait()
				if took := time.Since(began); told != n || !errors.Is(failure, want) || took > 0 || p.Buffered() > 0 {
					t.Fatalf("told of %d of %d after %v: %v, want %v; %d bytes are buffered", told, n, took, failure, want, p.Buffered())
				}
				if want == nil && !slices.Equal(sizes, []int{n}) {
					t.Fatalf("sent %v", sizes)
				}
			})
		})
	}

	f("nothing", func(*Producer) {}, nil, false)
	f("a look for work", func(p *Producer) {
		p.mu.Lock()
		for _, k := range p.links {
			k.nudge()
		}
		p.mu.Unlock()
	}, nil, true)
	f("the time runs out", func(*Producer) { time.Sleep(2 * time.Minute) }, ErrTimeout, false)
	f("the topic is deleted", func(p *Producer) {
		p.mu.Lock()
		p.redirect(p.topics["t"], nil)
		p.mu.Unlock()
	}, wire.CodeTopicRecreated, false)
	f("the producer is closed", func(p *Producer) { go p.Close() }, ErrClosed, false)
}

// TestGiveWhileEnding gives many records, to two partitions in turn, while the topic
// is deleted or the producer closed: whatever was accepted has its outcome.
func TestGiveWhileEnding(t *testing.T) {
	f := func(name string, end func(p *Producer)) {
		t.Run(name, func(t *testing.T) {
			for range 30 {
				bubble(t, map[string]int{"t": 2}, func(t *testing.T, b *fake) {
					p := newProducer(t, b.client(t), ProducerOptions{})
					if _, err := p.Produce(t.Context(), Record{Topic: "t"}); err != nil {
						t.Fatal(err)
					}
					rs := make([]Record, 30_000)
					for i := range rs {
						rs[i] = Record{Topic: "t", Pinned: true, Partition: int32(i / 30 % 2), Value: make([]byte, 10)}
					}
					var told atomic.Int64
					given := make(chan int, 1)
					go func() {
						n, _ := p.ProduceAll(t.Context(), rs, func(from, to int, _ Ack, _ error) { told.Add(int64(to - from)) })
						given <- n
					}()
					for p.Buffered() == 0 && len(given) == 0 {
						runtime.Gosched()
					}
					end(p)
					n := <-given
					if err := p.Flush(t.Context()); err != nil {
						t.Fatal(err)
					}
					synctest.Wait()
					if told.Load() != int64(n) {
						t.Fatalf("of %d that were accepted %d were told of", n, told.Load())
					}
				})
			}
		})
	}

	f("closed", func(p *Producer) { p.Close() })
	f("deleted", func(p *Producer) {
		p.mu.Lock()
		p.redirect(p.topics["t"], nil)
		p.mu.Unlock()
	})
}
