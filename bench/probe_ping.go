package bench

import (
	"context"
	"io"
	"sync"
	"time"

	"github.com/teralog/teralog/mem"
)

// What is waited for: another process, another goroutine.

// probePing sends size bytes and waits for the same to come back, n times.
func probePing(ctx context.Context, size, n int) (Round, error) {
	t := task{Side: "ping server", Batch: size, Count: n}
	client := t
	client.Side = "ping client"
	s, c, err := pair(ctx, t, client)
	r := roundOf(s, c)
	r.MBPerSecond = 0
	return r, err
}

// pingWarmUp is how many round trips go before those that count.
const pingWarmUp = 1000

func pingServer(t task, ready func(string)) (measure, error) {
	socks, err := listen(1, ready)
	if err != nil {
		return measure{}, err
	}
	buf := make([]byte, t.Batch)
	g := &gauge{warm: int64(pingWarmUp * t.Batch)}
	err = each(socks, func(_ int, s *sock) error {
		for {
			if _, err := io.ReadFull(s.conn, buf); err != nil {
				if err == io.EOF {
					return nil
				}
				return err
			}
			g.add(len(buf))
			if _, err := s.conn.Write(buf); err != nil {
				return err
			}
		}
	})
	m := g.stop()
	m.Batches = g.moved / int64(t.Batch)
	return m, err
}

func pingClient(t task, _ func(string)) (measure, error) {
	socks, err := dial(1, t.Addr)
	if err != nil {
		return measure{}, err
	}
	buf := sampleValue(t.Batch)
	g := &gauge{warm: int64(pingWarmUp * t.Batch)}
	var h mem.Hist
	err = each(socks, func(_ int, s *sock) error {
		for i := range pingWarmUp + t.Count {
			from := time.Now()
			if _, err := s.conn.Write(buf); err != nil {
				return err
			}
			if _, err := io.ReadFull(s.conn, buf); err != nil {
				return err
			}
			g.add(len(buf))
			if i >= pingWarmUp {
				h.Record(time.Since(from).Nanoseconds())
			}
		}
		return nil
	})
	m := g.stop()
	m.Batches = g.moved / int64(t.Batch)
	m.P50, m.P99 = quantiles(&h)
	return m, err
}

// probeHandOff gives a task to another goroutine and waits for its answer, n
// times. P50 is the mean of one such round trip: it is shorter than reading a
// clock twice.
func probeHandOff(ctx context.Context, n int) (Round, error) {
	m, err := alone(ctx, task{Side: "hand-off", Count: n})
	return Round{P50: m.P50}, err
}

// handOff is a mailbox as an appender has one: a lock around a slice that the
// owner swaps for an empty one.
func handOff(t task, _ func(string)) (measure, error) {
	var mu sync.Mutex
	wake := sync.NewCond(&mu)
	var in, spare []chan<- int
	over := false
	go func() {
		for done := 0; ; {
			mu.Lock()
			for len(in) == 0 && !over {
				wake.Wait()
			}
			if over {
				mu.Unlock()
				return
			}
			in, spare = spare[:0], in
			mu.Unlock()
			for _, answer := range spare {
				done++
				answer <- done
			}
		}
	}()
	answer := make(chan int, 1)
	w := startWatch()
	last := 0
	for range t.Count {
		mu.Lock()
		in = append(in, answer)
		mu.Unlock()
		wake.Signal()
		last = <-answer
	}
	m := w.stop(0)
	mu.Lock()
	over = true
	mu.Unlock()
	wake.Signal()
	m.Batches = int64(last)
	m.P50 = m.Seconds * 1e6 / float64(t.Count)
	return m, nil
}
