package wire

import (
	"context"
	"net/netip"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/teralog/teralog/mem"
)

// A tally counts the refusals a server makes by itself.
type tally struct {
	mu sync.Mutex
	n  map[Limit]int
}

func (a *tally) note(l Limit, _ string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.n == nil {
		a.n = map[Limit]int{}
	}
	a.n[l]++
}

func (a *tally) of(l Limit) int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.n[l]
}

// TestHalfFrames: many peers claim the largest frame and send little of it. What
// they hold is what they sent, so others are served.
func TestHalfFrames(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const budget = 4 << 20
		b := newBed(t, echo, func(s *Server) { s.Budget = mem.NewBudget(budget) })
		var slow []*peer
		for range 40 {
			p := b.helloPeer()
			p.send(append(claim(MaxFrame, APIProduce, 2), make([]byte, 1000)...))
			slow = append(slow, p)
		}
		synctest.Wait()
		if n := b.server.Budget.Used(); n != 40*firstPiece {
			t.Fatalf("%d bytes of the budget taken by claims", n)
		}
		p := b.helloPeer()
		for id := range uint32(100) {
			p.send(trimFrame(id, 7))
			if h, _ := p.recv(); h.code != CodeOK {
				t.Fatalf("request %d beside half frames answered %v", id, h)
			}
		}
		for _, p := range slow {
			p.wantClosed()
		}
	})
}

// TestClaimGrows sends a frame piece by piece to a server that has memory for
// half of it: it is refused once there is no more, what it held comes back, and
// the connection serves the next request.
func TestClaimGrows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := func(budget, connBudget int64, want Limit) {
			t.Helper()
			var refused tally
			b := newBed(t, echo, func(s *Server) {
				s.Budget, s.ConnBudget, s.Refused = mem.NewBudget(budget), connBudget, refused.note
			})
			p := b.helloPeer()
			const size = 4 << 20
			big := append(claim(size, APIProduce, 2), make([]byte, size-(requestLen-sizeLen))...)
			most := int64(0)
			for len(big) > 0 {
				n := min(len(big), 50_000)
				p.send(big[:n])
				big = big[n:]
				synctest.Wait()
				most = max(most, b.server.Budget.Used())
			}
			if most < 1<<20 || b.server.Budget.Used() != 0 {
				t.Fatalf("at most %d bytes charged, %d still", most, b.server.Budget.Used())
			}
			if h, body := p.recv(); h.code != CodeBusy || h.throttle == 0 || NewReader(body).String() != noMemory[want] {
				t.Fatalf("%v: %q", h, body)
			}
			if refused.of(want) != 1 || len(refused.n) != 1 {
				t.Fatalf("counted %v, want one of %v", refused.n, want)
			}
			p.send(trimFrame(3, 0))
			if h, _ := p.recv(); h.code != CodeOK {
				t.Fatal(h)
			}
			p.Close()
			b.stop()
		}
		f(2<<20, 64<<20, LimitMemory)
		f(64<<20, 2<<20, LimitConnectionMemory)
	})
}

// TestUnidentified opens connections that never say Hello: further ones are
// closed at once, and there is room again when one has said it or has gone.
func TestUnidentified(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var refused tally
		b := newBed(t, echo, func(s *Server) { s.MaxUnidentified, s.Refused = 3, refused.note })
		silent := []*peer{b.peer(), b.peer(), b.peer()}
		synctest.Wait()
		for range 2 {
			b.peer().wantClosed()
		}
		if n := refused.of(LimitUnidentified); n != 2 || b.server.Stats().Refused != 2 {
			t.Fatalf("%d counted, %d closed", n, b.server.Stats().Refused)
		}
		silent[0].send(requestFrame(APIHello, 0, 1, &HelloRequest{Client: "late"}))
		silent[0].recv()
		silent[0].send(requestFrame(APIHello, 0, 2, &HelloRequest{Client: "twice"})) // must not count twice
		silent[0].recv()
		silent[1].Close()
		synctest.Wait()
		b.helloPeer()
		b.helloPeer()
		again := []*peer{b.peer(), b.peer()}
		synctest.Wait()
		b.peer().wantClosed()
		again[0].wantClosed() // their time for Hello is over
		for range 3 {
			b.helloPeer()
		}
	})
}

// TestUnidentifiedSource bounds them by source: a crowd that comes at once is let
// in as far as it leaves room for others, one that stays silent is not.
func TestUnidentifiedSource(t *testing.T) {
	one, two := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2")
	s := strangers{from: map[netip.Addr]source{}}
	const most, mostOfSource = 40, 3
	f := func(from netip.Addr, now time.Duration, want Limit) {
		t.Helper()
		if got := s.enter(from, now, most, mostOfSource); got != want {
			t.Fatalf("%v at %v: %v, want %v; %+v", from, now, got, want, s)
		}
	}
	leave := func(from netip.Addr, n int) {
		for range n {
			s.leave(from, mostOfSource)
		}
	}
	for range 10 {
		f(one, 1, NoLimit)
	}
	f(one, 1, LimitUnidentifiedSource) // a quarter of all
	f(two, 1, NoLimit)
	leave(one, 5)
	f(one, time.Second, NoLimit)
	f(one, time.Second+1, LimitUnidentifiedSource) // it has had three or more for a second
	f(two, time.Second+1, NoLimit)
	leave(one, 4)
	f(one, time.Second+2, NoLimit) // it had fewer, and has time again
	f(one, 2*time.Second+1, NoLimit)
	f(one, 2*time.Second+2, LimitUnidentifiedSource)
	for range 40 {
		s.enter(netip.Addr{}, 1, most, mostOfSource) // of no source, only all of them count
	}
	f(netip.MustParseAddr("10.0.0.3"), 1, LimitUnidentified)
	leave(one, 4)
	leave(two, 2)
	leave(netip.Addr{}, 34)
	if s.all != 0 || len(s.from) != 0 {
		t.Fatalf("%+v", s)
	}
}

func TestSourceOf(t *testing.T) {
	f := func(addr, want string) {
		t.Helper()
		if got := sourceOf(memAddr(addr)); got.String() != want {
			t.Fatalf("%s is of %v, want %s", addr, got, want)
		}
	}
	f("10.0.0.1:77", "10.0.0.1")
	f("[::ffff:10.0.0.1]:77", "10.0.0.1")
	f("[2001:db8:1:2:3:4:5:6]:77", "2001:db8:1:2::")
	f("[2001:db8:1:2::9%eth0]:77", "2001:db8:1:2::")
	f("@", "invalid IP")
	if sourceOf(nil).IsValid() {
		t.Fatal("no address is somebody's")
	}
}

// TestAcceptRate connects many at once: they are accepted at the rate, none is
// refused.
func TestAcceptRate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBed(t, echo, func(s *Server) { s.AcceptRate = 20 })
		start := time.Now()
		for range 42 {
			b.dial()
		}
		// Two at once and one into debt, then one every 50 ms; the last need not wait.
		if d := time.Since(start); d != 39*50*time.Millisecond {
			t.Fatalf("42 connections in %v", d)
		}
		if s := b.server.Stats(); s.Refused != 0 || s.Conns != 42 {
			t.Fatalf("%+v", s)
		}
	})
}

// TestHoldOff: a connection whose handler wants it to hold off is answered at
// once and read later; others are not delayed.
func TestHoldOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBed(t, handlerFunc(func(c *Call) {
			if c.Session() == "greedy" {
				c.HoldOff(time.Second)
			}
			echo(c)
		}), func(s *Server) {
			n := 0
			s.Session = func(owner any) any {
				if n++; n == 1 && owner == nil {
					return "greedy"
				}
				return nil
			}
		})
		greedy, other := b.helloPeer(), b.helloPeer()
		start := time.Now()
		for id := range uint32(5) {
			greedy.send(trimFrame(id, 0))
		}
		for id := range uint32(5) {
			greedy.recv()
			if d := time.Since(start); d != time.Duration(id)*time.Second {
				t.Fatalf("answer %d after %v", id, d)
			}
			now := time.Now()
			other.send(trimFrame(id, 0))
			if other.recv(); time.Since(now) != 0 {
				t.Fatalf("the other one waited %v", time.Since(now))
			}
		}
		greedy.send(trimFrame(9, 0))
		synctest.Wait()
		b.stop() // does not wait for it
		if d := time.Since(start); d > 6*time.Second {
			t.Fatalf("stopped after %v", d)
		}
	})
}

// TestRetryAfter: a fetch that is answered with refusals in it tells when to ask
// again.
func TestRetryAfter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBed(t, handlerFunc(func(c *Call) {
			c.RetryAfter(3 * time.Second)
			c.RetryAfter(time.Second)
			c.Reply(&FetchResponse{Partitions: []FetchResult{{Code: CodeQuota}}})
		}), nil)
		var resp FetchResponse
		if err := b.dial().Do(context.Background(), &FetchRequest{}, &resp); err != nil || resp.RetryAfter != 3*time.Second {
			t.Fatalf("%+v, %v", resp, err)
		}
	})
}

// TestLimitNames: every limit has a name of its own.
func TestLimitNames(t *testing.T) {
	seen := map[string]bool{}
	for l := range NumLimits {
		if name := l.String(); (name == "") != (l == NoLimit) || seen[name] {
			t.Errorf("limit %d is called %q", l, name)
		}
		seen[l.String()] = true
	}
}
