package client

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/teralog/teralog/wire"
)

// TestThrottledFetch: a partition over its topic's quota is asked for again when
// the broker said, and no sooner, whether it was one of several in an answer or
// all that was asked for.
func TestThrottledFetch(t *testing.T) {
	f := func(refuse func(c *wire.Call, topic wire.TopicID)) {
		t.Helper()
		bubble(t, map[string]int{"t": 1}, func(t *testing.T, b *fake) {
			b.put("t", 0, wire.None, []int64{1, 2, 3})
			var asked atomic.Int64
			b.intercept(func(c *wire.Call) bool {
				var req wire.FetchRequest
				if c.API != wire.APIFetch || asked.Add(1) > 1 {
					return false
				}
				if err := c.Decode(&req); err != nil {
					t.Error(err)
				}
				refuse(c, req.Partitions[0].Topic)
				return true
			})
			x := newConsumer(t, b.client(t), ConsumerOptions{})
			if err := x.Assign(t.Context(), "t", 0, Range{}); err != nil {
				t.Fatal(err)
			}
			began := time.Now()
			if ms, err := x.Poll(t.Context()); err != nil || len(ms) != 3 {
				t.Fatal(len(ms), err)
			}
			if took := time.Since(began); took != 20*time.Second || asked.Load() < 2 {
				t.Fatalf("read after %v, by %d fetches", took, asked.Load())
			}
		})
	}
	f(func(c *wire.Call, topic wire.TopicID) {
		c.RetryAfter(20 * time.Second)
		c.Reply(&wire.FetchResponse{Partitions: []wire.FetchResult{{Topic: topic, Code: wire.CodeQuota, Data: []byte{}}}})
	})
	f(func(c *wire.Call, _ wire.TopicID) {
		c.ReplyError(&wire.Error{Code: wire.CodeQuota, Message: "slowly", RetryAfter: 20 * time.Second})
	})
}
