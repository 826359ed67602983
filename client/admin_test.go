package client

import (
	"errors"
	"testing"
	"time"

	"github.com/teralog/teralog/wire"
)

// TestUnanswered makes a topic of 1,000 partitions, which gets 40 s, with a broker
// that takes its time: an error says whether the topic may be there.
func TestUnanswered(t *testing.T) {
	// serve answers a call that came after so long, at once or later.
	f := func(what string, serve func(c *wire.Call, after time.Duration), want wire.Code, unanswered bool) {
		t.Helper()
		bubble(t, nil, func(t *testing.T, b *fake) {
			began := time.Now()
			b.mu.Lock()
			b.onCall = func(c *wire.Call) bool {
				if c.API != wire.APICreateTopic {
					return false
				}
				serve(c, time.Since(began))
				return true
			}
			b.mu.Unlock()
			_, err := b.client(t).CreateTopic(t.Context(), TopicSpec{Name: "u", Partitions: 1000})
			if wire.CodeOf(err) != want || errors.Is(err, ErrUnanswered) != unanswered {
				t.Errorf("%s: %v", what, err)
			}
			if took := time.Since(began); took > 41*time.Second {
				t.Errorf("%s: it took %v", what, took)
			}
		})
	}
	busy := &wire.Error{Code: wire.CodeBusy, RetryAfter: time.Second}

	f("answered late", func(c *wire.Call, after time.Duration) {
		time.AfterFunc(35*time.Second-after, func() { c.Reply(&wire.CreateTopicResponse{ID: 5000}) })
	}, wire.CodeOK, false)
	f("answered too late", func(c *wire.Call, after time.Duration) {
		time.AfterFunc(50*time.Second-after, func() { c.Reply(&wire.CreateTopicResponse{ID: 5000}) })
	}, wire.CodeTimeout, true)
	f("refused", func(c *wire.Call, _ time.Duration) { c.ReplyError(wire.CodeInvalidSetting) }, wire.CodeInvalidSetting, false)
	asked := 0
	f("refused by a limit", func(c *wire.Call, _ time.Duration) {
		asked++
		c.ReplyError(wire.CodeQuota)
	}, wire.CodeQuota, false)
	if asked != 1 {
		t.Errorf("a limit was asked about %d times", asked)
	}
	f("refused by a rate", func(c *wire.Call, after time.Duration) {
		if after > 20*time.Second {
			c.Reply(&wire.CreateTopicResponse{ID: 5000})
			return
		}
		c.ReplyError(&wire.Error{Code: wire.CodeQuota, RetryAfter: 9 * time.Second})
	}, wire.CodeOK, false)
	f("refused after an attempt that was lost", func(c *wire.Call, after time.Duration) {
		if after > time.Second {
			c.ReplyError(wire.CodeTopicExists)
			return
		}
		time.AfterFunc(time.Minute, c.NoReply)
	}, wire.CodeTopicExists, false)
	f("busy all the time", func(c *wire.Call, _ time.Duration) { c.ReplyError(busy) }, wire.CodeBusy, false)
	f("busy after an attempt that was lost", func(c *wire.Call, after time.Duration) {
		if after > time.Second {
			c.ReplyError(busy)
			return
		}
		time.AfterFunc(time.Minute, c.NoReply)
	}, wire.CodeBusy, true)
}
