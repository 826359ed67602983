package broker

import (
	"context"
	"log/slog"
	"testing"
	"testing/synctest"

	"github.com/teralog/teralog/raft"
	"github.com/teralog/teralog/wire"
)

// A hearer is the node at the other end of a link. It takes nothing while gate
// is locked.
type hearer struct {
	gate  chan struct{} // one token: who holds it takes a request
	heard []uint64      // rounds of the messages that came
}

func (h *hearer) ServeCall(c *wire.Call) {
	<-h.gate
	takeMessages(c, func(m raft.Message) { h.heard = append(h.heard, m.Round) })
	h.gate <- struct{}{}
}

// TestLink sends to a node that takes what comes, then to one that does not: what
// is under way and what waits are bounded, nobody who sends is held up, and all
// that was not dropped arrives in order once the node goes on. What is sent while
// there is no connection is lost.
func TestLink(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net, log := wire.NewMemNet(), slog.New(slog.DiscardHandler)
		h := &hearer{gate: make(chan struct{}, 1)}
		h.gate <- struct{}{}
		server := &wire.Server{Handler: h, Log: log, Hello: func() wire.HelloResponse { return wire.HelloResponse{Node: 2} }}
		ln, err := net.Listen("b:1")
		if err != nil {
			t.Fatal(err)
		}
		go server.Serve(ln)
		ctx, stop := context.WithCancel(t.Context())
		m := openMesh(1, wire.UUID{}, []PeerAddr{{1, "a:1"}, {2, "b:1"}}, net, ctx.Done(), log)
		l := m.links[2]
		sent := uint64(0)
		send := func(n, size int) {
			for range n {
				m.Send([]raft.Message{{Kind: raft.HeartbeatKind, From: loadPeer(1), To: loadPeer(2), Term: 1, Round: sent, Data: make([]byte, size)}})
				sent++
			}
		}
		waits := func() int { l.mu.Lock(); defer l.mu.Unlock(); return len(l.queue) }

		send(1, 10)
		if waits() != 0 {
			t.Fatal("a message waits for a connection")
		}
		go l.run(ctx)
		synctest.Wait()
		send(100, 10)
		if n := waits(); n != 0 {
			t.Fatalf("%d messages wait, though the node takes all", n)
		}
		synctest.Wait()
		if len(h.heard) != 100 || h.heard[0] != 1 {
			t.Fatalf("%d messages arrived: %v", len(h.heard), h.heard)
		}

		<-h.gate
		send(maxLinkMessages+100, 12<<10) // far more than the network holds
		synctest.Wait()
		if n := waits(); n > maxLinkMessages || n < maxLinkMessages/2 {
			t.Fatalf("%d messages wait", n)
		}
		if n := len(l.flight); n != maxLinkFlight {
			t.Fatalf("%d requests are under way", n)
		}
		h.heard = nil
		h.gate <- struct{}{}
		synctest.Wait()
		if n := waits(); n != 0 || len(h.heard) < maxLinkMessages {
			t.Fatalf("%d messages wait still, %d arrived", n, len(h.heard))
		}
		for i, round := range h.heard {
			if round != uint64(101+i) {
				t.Fatalf("message %d arrives as the %dth", round, 101+i)
			}
		}

		<-h.gate
		h.heard = nil
		chunk := make([]byte, 1<<20)
		for range maxLinkFlight + 100 { // by bytes, too
			m.Send([]raft.Message{{Kind: raft.SnapshotKind, From: loadPeer(1), To: loadPeer(2), Term: 1, Data: chunk}})
		}
		synctest.Wait()
		if n := waits(); n > maxLinkBytes>>20 || n < maxLinkBytes>>21 {
			t.Fatalf("%d messages of 1 MiB wait", n)
		}
		h.gate <- struct{}{}
		synctest.Wait()
		if waits() != 0 || len(h.heard) < maxLinkFlight {
			t.Fatalf("%d messages wait still, %d arrived", waits(), len(h.heard))
		}
		stop()
		server.Shutdown(ctx)
		synctest.Wait()
	})
}

// TestLinkToStrangers dials where a node of another cluster answers, or another
// node of this one: nothing is sent to it.
func TestLinkToStrangers(t *testing.T) {
	f := func(hello wire.HelloResponse, want bool) {
		t.Helper()
		synctest.Test(t, func(t *testing.T) {
			net, log := wire.NewMemNet(), slog.New(slog.DiscardHandler)
			h := &hearer{gate: make(chan struct{}, 1)}
			h.gate <- struct{}{}
			server := &wire.Server{Handler: h, Log: log, Hello: func() wire.HelloResponse { return hello }}
			ln, err := net.Listen("b:1")
			if err != nil {
				t.Fatal(err)
			}
			go server.Serve(ln)
			ctx, stop := context.WithCancel(t.Context())
			m := openMesh(1, wire.UUID{7}, []PeerAddr{{1, "a:1"}, {2, "b:1"}}, net, ctx.Done(), log)
			go m.links[2].run(ctx)
			synctest.Wait()
			m.Send([]raft.Message{{Kind: raft.HeartbeatKind, From: loadPeer(1), To: loadPeer(2), Term: 1}})
			synctest.Wait()
			if got := len(h.heard) == 1; got != want {
				t.Errorf("%+v heard %d messages", hello, len(h.heard))
			}
			stop()
			server.Shutdown(ctx)
			synctest.Wait()
		})
	}

	f(wire.HelloResponse{Node: 2, Cluster: wire.UUID{7}}, true)
	f(wire.HelloResponse{Node: 2, Cluster: wire.UUID{8}}, false)
	f(wire.HelloResponse{Node: 3, Cluster: wire.UUID{7}}, false)
}
