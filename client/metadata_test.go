package client

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/teralog/teralog/wire"
)

// TestServers: of several addresses one refuses, one accepts and says nothing,
// one serves.
func TestServers(t *testing.T) {
	bubble(t, map[string]int{"t": 1}, func(t *testing.T, b *fake) {
		mute, err := b.net.Listen("mute:1")
		if err != nil {
			t.Fatal(err)
		}
		defer mute.Close()
		c := b.client(t, func(o *Options) { o.Servers = []string{"gone:1", "mute:1", fakeAddr}; o.DialTimeout = 3 * time.Second })
		start := time.Now()
		if _, err := c.Partitions(t.Context(), "t"); err != nil {
			t.Fatal(err)
		}
		if d := time.Since(start); d > 4*time.Second {
			t.Fatalf("found after %v", d)
		}
		start = time.Now()
		if _, err := c.ListTopics(t.Context()); err != nil || time.Since(start) > 0 {
			t.Fatalf("the one that answers is not asked first: %v, %v", err, time.Since(start))
		}
	})
}

// TestNoServer: a call ends with the time it was given, saying why.
func TestNoServer(t *testing.T) {
	bubble(t, nil, func(t *testing.T, b *fake) {
		c := b.client(t, func(o *Options) { o.Servers = []string{"gone:1"}; o.RequestTimeout = 5 * time.Second })
		start := time.Now()
		_, err := c.ListTopics(t.Context())
		if !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, wire.ErrNotSent) || time.Since(start) != 5*time.Second {
			t.Fatal(err, time.Since(start))
		}
		time.AfterFunc(time.Second, func() { c.Close() })
		if _, err := c.ListTopics(t.Context()); err == nil {
			t.Fatal("listed by a closed client")
		}
	})
}

// TestStalledBroker: a broker that stops answering loses its connection, and
// what was on it is done on another.
func TestStalledBroker(t *testing.T) {
	bubble(t, map[string]int{"t": 1}, func(t *testing.T, b *fake) {
		c := b.client(t, func(o *Options) { o.RequestTimeout = 4 * time.Second })
		p, x := newProducer(t, c, ProducerOptions{}), newConsumer(t, c, ConsumerOptions{})
		if err := x.Assign(t.Context(), "t", 0, Range{}); err != nil {
			t.Fatal(err)
		}
		if _, err := p.Produce(t.Context(), Record{Topic: "t", Value: counter(0)}); err != nil {
			t.Fatal(err)
		}
		if ms, err := x.Poll(t.Context()); err != nil || len(ms) != 1 {
			t.Fatal(len(ms), err)
		}
		synctest.Wait()
		b.net.Stall(fakeAddr, true) // connections made now are stalled for ever
		var all sync.WaitGroup
		for i := range 3 { // the first on its caller's goroutine, the others by the link
			all.Go(func() {
				time.Sleep(time.Duration(i) * time.Millisecond)
				if _, err := p.Produce(t.Context(), Record{Topic: "t", Value: counter(uint64(i + 1))}); err != nil {
					t.Error(err)
				}
			})
		}
		time.AfterFunc(20*time.Second, func() { b.net.Cut(fakeAddr); b.net.Stall(fakeAddr, false) })
		all.Wait()
		wantCounters(t, b.counters("t", 0), 4)
		for got := 0; got < 3; {
			ms, err := x.Poll(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			got += len(ms)
		}
	})
}

// TestMetadataShared: many who ask at once are served by few questions.
func TestMetadataShared(t *testing.T) {
	bubble(t, map[string]int{"t": 1}, func(t *testing.T, b *fake) {
		b.net.SetDelay(10 * time.Millisecond)
		c := b.client(t)
		var all sync.WaitGroup
		for range 100 {
			all.Go(func() {
				if _, err := c.meta.topic(t.Context(), "t", true); err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
		if n := b.count(wire.APIMetadata); n > 2 {
			t.Fatalf("%d questions", n)
		}
	})
}

func TestTopicOf(t *testing.T) {
	f := func(ok bool, id wire.TopicID, parts ...int32) {
		t.Helper()
		tm := wire.TopicMeta{Name: "t", ID: id}
		for _, p := range parts {
			tm.Partitions = append(tm.Partitions, wire.PartitionMeta{Partition: p})
		}
		if _, err := topicOf(&tm); (err == nil) != ok {
			t.Fatalf("id %d, partitions %v: %v", id, parts, err)
		}
	}

	f(true, 2000, 0, 1, 2)
	f(true, 2000, 2, 0, 1)
	f(false, 2000)
	f(false, 0, 0)
	f(false, 2000, 0, 2)
	f(false, 2000, 0, 0)
	f(false, 2000, -1, 0)
}
