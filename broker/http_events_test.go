package broker

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/teralog/teralog/mem"
)

// TestServeEvents asks for events in every way.
func TestServeEvents(t *testing.T) {
	b := &Broker{log: slog.New(slog.DiscardHandler)}
	for range maxEvents + 2 {
		b.events.add(EventTopicCreated, nil, mem.Now{})
	}
	f := func(query string, wantCode, wantLines int, wantFirst string) {
		t.Helper()
		w := httptest.NewRecorder()
		newView(b).Handler.ServeHTTP(w, httptest.NewRequest("GET", "/events"+query, nil))
		if first, _, _ := strings.Cut(w.Body.String(), "\n"); w.Code != wantCode || strings.Count(w.Body.String(), "\n") != wantLines || !strings.HasPrefix(first, wantFirst) {
			t.Fatalf("%s: %d, %d lines: %.100s", query, w.Code, strings.Count(w.Body.String(), "\n"), w.Body)
		}
	}

	f("", 200, maxEvents, `{"seq":3,"time":"1970-01-01T00:00:00.000Z","kind":"topic_created","fields":{}}`)
	f("?since=0", 200, maxEvents+1, `{"seq":2,"kind":"lost","fields":{"events":2}}`)
	f("?since=1", 200, maxEvents+1, `{"seq":2,"kind":"lost","fields":{"events":1}}`)
	f("?since=2", 200, maxEvents, `{"seq":3,`)
	f(fmt.Sprintf("?since=%d", maxEvents+1), 200, 1, fmt.Sprintf(`{"seq":%d,`, maxEvents+2))
	f(fmt.Sprintf("?since=%d", maxEvents+2), 200, 0, "")
	f("?since=2&follow=false", 200, maxEvents, `{"seq":3,`)
	f("?since=99999", 200, maxEvents+1, `{"seq":2,"kind":"lost"`) // of another data directory
	f("?since=-1", 400, 1, `since is "-1"`)
	f("?since=x", 400, 1, `since is "x"`)
	f("?follow=maybe", 400, 1, `follow is "maybe"`)
	f("?after=1", 400, 1, `"after" is not known`)
}

// A slowClient takes what is written to it when it is told to.
type slowClient struct {
	header http.Header
	taken  chan string
	code   int
}

func newSlowClient() *slowClient { return &slowClient{header: http.Header{}, taken: make(chan string)} }

func (c *slowClient) Header() http.Header  { return c.header }
func (c *slowClient) WriteHeader(code int) { c.code = code }
func (c *slowClient) FlushError() error    { return nil }
func (c *slowClient) Write(p []byte) (int, error) {
	c.taken <- string(p)
	return len(p), nil
}

// TestStalledFollower has a client take nothing while much happens: nobody
// waits for it, another one misses nothing, and it is told what it missed.
func TestStalledFollower(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &Broker{}
		ctx, leave := context.WithCancel(t.Context())
		follow := func(header, value string) *slowClient {
			c := newSlowClient()
			r := httptest.NewRequestWithContext(ctx, "GET", "/events?follow", nil)
			r.Header.Set(header, value)
			go b.serveEvents(c, r)
			synctest.Wait()
			return c
		}
		note := func() {
			b.events.add(EventTopicCreated, nil, mem.Now{})
			synctest.Wait()
		}
		stalled, quick := follow("X", ""), follow("Accept", "text/event-stream")
		for n := range maxEvents + 9 {
			note()
			want := fmt.Sprintf("id: %d\ndata: {\"seq\":%d,", n+1, n+1)
			if got := <-quick.taken; !strings.HasPrefix(got, want) || !strings.HasSuffix(got, "}\n\n") {
				t.Fatalf("%q, want %q", got, want)
			}
		}
		if got := <-stalled.taken; !strings.HasPrefix(got, `{"seq":1,`) {
			t.Fatalf("%q", got)
		}
		if got := <-stalled.taken; !strings.HasPrefix(got, "{\"seq\":9,\"kind\":\"lost\",\"fields\":{\"events\":8}}\n{\"seq\":10,") {
			t.Fatalf("%.200q", got)
		}
		for n := 64; n < maxEvents; n += 64 {
			<-stalled.taken
		}
		time.Sleep(followSilence)
		if one, two := <-stalled.taken, <-quick.taken; one != "\n" || two != ":\n\n" {
			t.Fatalf("%q and %q tell that there is nothing", one, two)
		}
		resumed := follow("Last-Event-ID", fmt.Sprint(maxEvents+8))
		if got := <-resumed.taken; !strings.HasPrefix(got, fmt.Sprintf(`{"seq":%d,`, maxEvents+9)) {
			t.Fatalf("%.200q", got)
		}
		leave()
	})
}

// TestFollowers bounds those who follow; who only asks is served still.
func TestFollowers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &Broker{}
		ctx, leave := context.WithCancel(t.Context())
		ask := func(query string) *slowClient {
			c := newSlowClient()
			go func() {
				for range c.taken {
				}
			}()
			go func() {
				defer close(c.taken)
				b.serveEvents(c, httptest.NewRequestWithContext(ctx, "GET", "/events"+query, nil))
			}()
			synctest.Wait()
			return c
		}
		for range maxFollowers {
			if c := ask("?follow"); c.code != 0 {
				t.Fatalf("%d", c.code)
			}
		}
		if c := ask("?follow"); c.code != http.StatusServiceUnavailable {
			t.Fatalf("%d", c.code)
		}
		if c := ask(""); c.code != 0 {
			t.Fatalf("%d", c.code)
		}
		leave()
		synctest.Wait()
		if n := b.followers.Load(); n != 0 {
			t.Fatalf("%d follow still", n)
		}
	})
}
