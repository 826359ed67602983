package wire

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/teralog/teralog/mem"
)

const testAddr = "broker:9000"

// handlerFunc makes a Handler of a function.
type handlerFunc func(c *Call)

func (f handlerFunc) ServeCall(c *Call) { f(c) }

// echo answers a Trim with what it asks for.
var echo = handlerFunc(func(c *Call) {
	var q TrimRequest
	if err := c.Decode(&q); err != nil {
		c.ReplyError(err)
		return
	}
	c.Reply(&TrimResponse{Start: q.Before})
})

// A bed is a server on a MemNet, for one bubble.
type bed struct {
	t      *testing.T
	net    *MemNet
	server *Server
	pool   *mem.Pool // of the server
	client *mem.Pool
	tls    *tls.Config // of the clients
}

// newBed starts a server with the handler; set may change it before.
func newBed(t *testing.T, h Handler, set func(s *Server)) *bed {
	t.Helper()
	return newBedOf(t, plaintext, h, set)
}

// newBedOf is newBed for clients of one kind.
func newBedOf(t *testing.T, k kind, h Handler, set func(s *Server)) *bed {
	t.Helper()
	b := &bed{t: t, net: NewMemNet(), pool: mem.NewPool("server"), client: mem.NewPool("client")}
	b.server = &Server{Handler: h, Hello: helloForTest, Requests: b.pool, Replies: b.pool}
	if set != nil {
		set(b.server)
	}
	ln, err := b.net.Listen(testAddr)
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	serve := b.server.Serve
	if k == encrypted {
		serve, b.tls = serveTLSOn(t, b.server)
	}
	go func() { served <- serve(ln) }()
	t.Cleanup(func() {
		b.stop()
		if err := <-served; err != nil {
			t.Errorf("Serve returned %v", err)
		}
	})
	return b
}

// stop shuts the server down and expects every buffer back.
func (b *bed) stop() {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	b.server.Shutdown(ctx)
	synctest.Wait()
	b.wantNoBuffers()
	if n := b.server.Budget.Used(); n != 0 {
		b.t.Errorf("%d bytes of the budget still taken", n)
	}
}

func (b *bed) wantNoBuffers() {
	b.t.Helper()
	for _, p := range []*mem.Pool{b.pool, b.client} {
		if s := p.Stats(); s.Live != 0 {
			b.t.Errorf("%d buffers of pool %q are out", s.Live, s.Name)
		}
	}
}

func (b *bed) dial() *Conn {
	b.t.Helper()
	c, err := Dial(context.Background(), b.net, testAddr, DialOptions{Client: "test", Pool: b.client, TLS: b.tls})
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(c.Close)
	return c
}

func helloForTest() HelloResponse {
	return HelloResponse{Node: 7, Software: "test"}
}

// A peer speaks to a server byte by byte.
type peer struct {
	net.Conn
	t *testing.T
}

func (b *bed) peer() *peer {
	b.t.Helper()
	c, err := b.net.DialContext(context.Background(), "", testAddr)
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() { c.Close() })
	return &peer{c, b.t}
}

func (b *bed) helloPeer() *peer {
	b.t.Helper()
	p := b.peer()
	p.send(requestFrame(APIHello, 0, 1, &HelloRequest{Client: "peer"}))
	if h, _ := p.recv(); h.code != CodeOK || h.correlation != 1 {
		b.t.Fatalf("hello answered %v", h)
	}
	return p
}

func (p *peer) send(b []byte) {
	p.t.Helper()
	if _, err := p.Write(b); err != nil {
		p.t.Fatal(err)
	}
}

// recv returns the next response.
func (p *peer) recv() (responseHeader, []byte) {
	p.t.Helper()
	h, body, err := recvFrame(p)
	if err != nil {
		p.t.Fatal(err)
	}
	return h, body
}

func recvFrame(r io.Reader) (responseHeader, []byte, error) {
	frame := make([]byte, responseLen)
	if _, err := io.ReadFull(r, frame); err != nil {
		return responseHeader{}, nil, err
	}
	body := make([]byte, int(binary.LittleEndian.Uint32(frame))+sizeLen-responseLen)
	_, err := io.ReadFull(r, body)
	return parseResponseHeader(frame), body, err
}

// wantClosed expects that the server ends the connection without a word.
func (p *peer) wantClosed() {
	p.t.Helper()
	if n, err := p.Read(make([]byte, 1)); n != 0 || err == nil {
		p.t.Fatalf("read %d bytes, %v; want a closed connection", n, err)
	}
}

func requestFrame(a API, v Version, id uint32, m Message) []byte {
	frame := m.AppendTo(make([]byte, requestLen), v)
	putRequestHeader(frame, requestHeader{api: a, version: v, correlation: id}, 0)
	return frame
}

func trimFrame(id uint32, before Offset) []byte {
	return requestFrame(APITrim, 0, id, &TrimRequest{Topic: FirstUserTopic, Before: before})
}

// claim returns a frame header that claims a size, without the bytes.
func claim(size uint32, a API, id uint32) []byte {
	frame := make([]byte, requestLen)
	putRequestHeader(frame, requestHeader{api: a, correlation: id}, 0)
	binary.LittleEndian.PutUint32(frame, size)
	return frame
}

func TestHelloComesFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBed(t, echo, nil)

		p := b.peer()
		p.send(trimFrame(5, 1))
		if h, _ := p.recv(); h.code != CodeHelloRequired || h.correlation != 5 {
			t.Fatalf("answered %v, want HELLO_REQUIRED", h)
		}
		p.wantClosed()

		p = b.peer()
		p.send(requestFrame(APIHello, 9, 6, &HelloRequest{}))
		if h, _ := p.recv(); h.code != CodeUnsupportedVersion {
			t.Fatalf("answered %v, want UNSUPPORTED_VERSION", h)
		}
		p.send(requestFrame(APIHello, 0, 7, &HelloRequest{Client: "second try"}))
		h, body := p.recv()
		var m HelloResponse
		if err := DecodeBody(new(Reader), &m, 0, body); err != nil || h.code != CodeOK {
			t.Fatal(h, err)
		}
		if m.Node != 7 || m.MaxFrame != MaxFrame || m.MaxInFlight != 100 || len(m.APIs) != len(apis)-1 {
			t.Fatalf("hello answered %+v", m)
		}

		// A tail is a later version's business in Hello, and nowhere else.
		f := append(requestFrame(APIHello, 0, 8, &HelloRequest{}), 1, 2, 3)
		binary.LittleEndian.PutUint32(f, uint32(len(f)-sizeLen))
		p.send(f)
		if h, _ := p.recv(); h.code != CodeOK {
			t.Fatalf("hello with a tail answered %v", h)
		}
		f = append(trimFrame(9, 1), 0)
		binary.LittleEndian.PutUint32(f, uint32(len(f)-sizeLen))
		p.send(f)
		if h, _ := p.recv(); h.code != CodeInvalidRequest {
			t.Fatalf("trim with a tail answered %v", h)
		}
	})
}

func TestVersions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newBed(t, echo, nil).helloPeer()
		f := func(a API, v Version, want Code) {
			t.Helper()
			p.send(requestFrame(a, v, 3, &TrimRequest{Topic: FirstUserTopic}))
			if h, _ := p.recv(); h.code != want || h.correlation != 3 {
				t.Fatalf("%v version %d answered %v, want %v", a, v, h, want)
			}
		}

		f(APITrim, 0, CodeOK)
		f(APITrim, 1, CodeUnsupportedVersion)
		f(APITrim, 0xffff, CodeUnsupportedVersion)
		f(0, 0, CodeUnsupported)
		f(API(len(apis)), 0, CodeUnsupported)
		f(0xffff, 0, CodeUnsupported)
		f(APITrim, 0, CodeOK) // the connection is none the worse
	})
}

// TestFrameSizes claims sizes that must end the connection at the fourth byte,
// before any memory is taken, both before and after Hello.
func TestFrameSizes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBed(t, echo, nil)
		bad := int64(0)
		f := func(p *peer, size uint32) {
			t.Helper()
			gets := b.pool.Stats().Gets
			bad++
			p.send(binary.LittleEndian.AppendUint32(nil, size))
			p.wantClosed()
			synctest.Wait()
			if n := b.server.Stats().BadFrames; n != bad {
				t.Fatalf("size %#x: %d bad frames counted, want %d", size, n, bad)
			}
			if n := b.pool.Stats().Gets - gets; n > 1 {
				t.Fatalf("size %#x took %d buffers", size, n)
			}
		}

		for _, size := range []uint32{0, 3, requestLen - sizeLen - 1, maxHelloFrame + 1, MaxFrame, 1<<31 - 1, 1 << 31, 1<<32 - 1} {
			f(b.peer(), size)
		}
		for _, size := range []uint32{0, 3, requestLen - sizeLen - 1, MaxFrame + 1, 1<<31 - 1, 1 << 31, 1<<32 - 1} {
			f(b.helloPeer(), size)
		}
	})
}

// TestClaimGetsLittle sends the header of the largest frame allowed and no
// more: an unproven peer gets a first piece for it, not the whole, and the
// connection ends when its time is over.
func TestClaimGetsLittle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBed(t, echo, nil)
		p := b.helloPeer()
		p.send(claim(MaxFrame, APIProduce, 2))
		synctest.Wait()
		if s := b.pool.Stats(); s.LiveBytes > firstPiece {
			t.Fatalf("a bare claim got %d bytes", s.LiveBytes)
		}
		if n := b.server.Budget.Used(); n != firstPiece {
			t.Fatalf("%d bytes of the budget taken for it", n)
		}

		start := time.Now()
		p.wantClosed()
		if d := time.Since(start); d != 30*time.Second+MaxFrame>>16*time.Second {
			t.Fatalf("closed after %v", d)
		}
		synctest.Wait()
		b.wantNoBuffers()
	})
}

// TestSlowPeers sends too slowly, before Hello and in the middle of a frame.
func TestSlowPeers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBed(t, echo, nil)
		f := func(p *peer, frame []byte, want time.Duration) {
			t.Helper()
			start := time.Now()
			go func() { // one byte a second
				for _, c := range frame {
					if _, err := p.Write([]byte{c}); err != nil {
						return
					}
					time.Sleep(time.Second)
				}
			}()
			p.wantClosed()
			if d := time.Since(start); d != want {
				t.Errorf("closed after %v, want %v", d, want)
			}
		}

		f(b.peer(), nil, 10*time.Second)
		f(b.peer(), requestFrame(APIHello, 0, 1, &HelloRequest{Client: "a client with some name"}), 10*time.Second)
		// The clock of a frame starts with its first byte, and again when its length is known.
		f(b.helloPeer(), claim(1000, APITrim, 2), 3*time.Second+30*time.Second)
		f(b.helloPeer(), nil, 10*time.Minute)
	})
}

// TestSteadyStream sends for long in such a way that a frame is always half
// there: each has a time of its own.
func TestSteadyStream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newBed(t, echo, nil).helloPeer()
		var frames []byte
		for id := range uint32(100) {
			frames = append(frames, trimFrame(id, 0)...)
		}
		n := len(frames) / 100
		p.send(frames[:n/2])
		for id := range 99 {
			time.Sleep(2 * time.Second)
			p.send(frames[id*n+n/2:][:n])
			if h, _ := p.recv(); h.correlation != uint32(id) {
				t.Fatalf("%v answered, want %d", h, id)
			}
		}
	})
}

// TestParkedCallDelaysNothing answers in the opposite order of asking.
func TestParkedCallDelaysNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var parked []*Call
		b := newBed(t, handlerFunc(func(c *Call) {
			parked = append(parked, c)
			c.DropBody()
		}), nil)
		p := b.helloPeer()
		for id := range uint32(5) {
			p.send(trimFrame(10+id, 0))
		}
		synctest.Wait()
		if len(parked) != 5 {
			t.Fatalf("%d calls served while none was answered", len(parked))
		}
		if s := b.pool.Stats(); s.Live != 0 {
			t.Fatalf("parked calls without bodies hold %d buffers", s.Live)
		}
		for i := 4; i >= 0; i-- {
			parked[i].Reply(&TrimResponse{Start: Offset(i)})
			if h, _ := p.recv(); h.correlation != uint32(10+i) {
				t.Fatalf("answer %d arrived, want %d", h.correlation, 10+i)
			}
		}
	})
}

// TestInFlightLimit expects the reader to stop at 100 calls and go on as they
// are answered.
func TestInFlightLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		var parked []*Call
		b := newBed(t, handlerFunc(func(c *Call) {
			mu.Lock()
			defer mu.Unlock()
			parked = append(parked, c)
		}), nil)
		p := b.helloPeer()
		var frames []byte
		for id := range uint32(250) {
			frames = append(frames, trimFrame(id, 0)...)
		}
		p.send(frames)
		answered := 0
		for _, want := range []int{100, 101, 150, 250} {
			synctest.Wait()
			mu.Lock()
			for ; len(parked) < want || answered < len(parked)-100; answered++ {
				if answered == len(parked) {
					t.Fatalf("%d calls served with %d answered", len(parked), answered)
				}
				c := parked[answered]
				mu.Unlock()
				c.Reply(&TrimResponse{})
				synctest.Wait()
				mu.Lock()
			}
			if len(parked) > answered+100 {
				t.Fatalf("%d calls served with %d answered", len(parked), answered)
			}
			mu.Unlock()
		}
		for _, c := range parked[answered:] {
			c.Reply(&TrimResponse{})
		}
		for range 250 {
			p.recv()
		}
	})
}

// TestNoBudget expects a request that finds no memory to be skipped and
// answered BUSY, and the ones around it to be served.
func TestNoBudget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := func(set func(s *Server)) {
			b := newBed(t, handlerFunc(func(c *Call) { c.Reply(&TrimResponse{}) }), set)
			p := b.helloPeer()
			big := append(claim(300_000, APIProduce, 2), make([]byte, 300_000-(requestLen-sizeLen))...)
			p.send(trimFrame(1, 0))
			p.send(big[:200_000])
			synctest.Wait() // it waits for the rest, with what it skips into at hand
			if s := b.pool.Stats(); s.Live != 1 || s.LiveBytes > skipChunk {
				t.Errorf("skipping holds %d buffers of %d bytes", s.Live, s.LiveBytes)
			}
			p.send(big[200_000:])
			p.send(trimFrame(3, 0))
			for range 3 {
				h, _ := p.recv()
				want := map[uint32]Code{1: CodeOK, 2: CodeBusy, 3: CodeOK}[h.correlation]
				if h.code != want || (want == CodeBusy) != (h.throttle > 0) {
					t.Errorf("request %d answered %v, want %v", h.correlation, h, want)
				}
			}
			if n := b.server.Stats().Busy; n != 1 {
				t.Errorf("%d requests counted as busy", n)
			}
			p.Close()
			b.stop()
		}

		f(func(s *Server) { s.Budget = mem.NewBudget(200_000) })
		f(func(s *Server) { s.ConnBudget = 200_000 })
	})
}

// bubbleGoroutines counts the goroutines of the test's bubble, which a stack
// trace names as such; others come and go.
func bubbleGoroutines() int {
	stacks := make([]byte, 1<<20)
	return bytes.Count(stacks[:runtime.Stack(stacks, true)], []byte(", synctest bubble "))
}

// TestIdleHoldsNothing counts what 50 connections cost that have been used and
// are idle: one goroutine each on the server, none on the client, no buffer.
func TestIdleHoldsNothing(t *testing.T) { both(t, testIdleHoldsNothing) }

func testIdleHoldsNothing(t *testing.T, k kind) {
	synctest.Test(t, func(t *testing.T) {
		b := newBedOf(t, k, echo, nil)
		before := bubbleGoroutines()
		const conns = 50
		for range conns {
			c := b.dial()
			for range 3 {
				if err := c.Do(context.Background(), &TrimRequest{Topic: FirstUserTopic}, &TrimResponse{}); err != nil {
					t.Fatal(err)
				}
			}
			done := make(chan error, 1)
			c.Go(&TrimRequest{Topic: FirstUserTopic}, &TrimResponse{}, func(err error) { done <- err })
			if err := <-done; err != nil {
				t.Fatal(err)
			}
		}
		synctest.Wait()
		b.wantNoBuffers()
		if n := bubbleGoroutines() - before; n != conns {
			t.Errorf("%d goroutines for %d idle connections", n, conns)
		}
	})
}

func TestIdleTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var parked *Call
		b := newBed(t, handlerFunc(func(c *Call) { parked = c }), func(s *Server) { s.IdleTimeout = 8 * time.Minute })
		p := b.helloPeer()
		p.send(trimFrame(2, 0))
		time.Sleep(time.Hour) // a call in flight keeps the connection
		synctest.Wait()
		parked.Reply(&TrimResponse{})
		p.recv()
		start := time.Now()
		p.wantClosed()
		if d := time.Since(start); d > 9*time.Minute {
			t.Errorf("an idle connection was closed after %v", d)
		}
		synctest.Wait()
		if s := b.server.Stats(); s.Timeouts != 1 || s.Conns != 0 {
			t.Errorf("%+v", s)
		}
	})
}

// TestRest: a quiet connection waits as another goroutine, and nobody can tell:
// whole requests and halves of them come through, calls in flight are answered,
// a drain ends it at once.
func TestRest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var parked *Call
		b := newBed(t, handlerFunc(func(c *Call) {
			if c.API == APITrim && parked == nil {
				parked = c
				return
			}
			c.Reply(&TrimResponse{})
		}), nil)
		p := b.helloPeer()
		rested := func() {
			t.Helper()
			time.Sleep(3 * restAfter)
			synctest.Wait()
			b.server.mu.Lock()
			defer b.server.mu.Unlock()
			for c := range b.server.conns {
				if !c.resting {
					t.Error("it does not rest")
				}
			}
			b.wantNoBuffers()
		}
		f := func(correlation uint32) {
			t.Helper()
			if h, _ := p.recv(); h.correlation != correlation || h.code != CodeOK {
				t.Errorf("answer %v, want one to %d", h, correlation)
			}
		}

		rested()
		before := bubbleGoroutines()
		p.send(trimFrame(2, 0))
		synctest.Wait()
		time.Sleep(3 * restAfter) // with a call in flight
		p.send(trimFrame(3, 0))
		f(3)
		parked.Reply(&TrimResponse{})
		f(2)
		rested()
		half := trimFrame(4, 0)
		p.send(half[:9])
		time.Sleep(3 * restAfter)
		p.send(half[9:])
		f(4)
		p.send(append(trimFrame(5, 0), half[:9]...))
		f(5)
		p.send(half[9:])
		f(4)
		rested()
		if n := bubbleGoroutines(); n != before {
			t.Errorf("%d goroutines, %d before", n, before)
		}
		start := time.Now()
		if err := b.server.Shutdown(context.Background()); err != nil || time.Since(start) > 0 {
			t.Errorf("drained after %v: %v", time.Since(start), err)
		}
		p.wantClosed()
	})
}

// TestShutdownDrains expects the call in flight answered, buffered requests
// refused, new connections refused, and the end only after that.
func TestShutdownDrains(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var parked *Call
		b := newBed(t, handlerFunc(func(c *Call) { parked = c }), func(s *Server) { s.MaxInFlight = 1 })
		p, idle := b.helloPeer(), b.helloPeer()
		p.send(append(trimFrame(2, 0), trimFrame(3, 0)...))
		synctest.Wait()
		done := make(chan error, 1)
		go func() { done <- b.server.Shutdown(context.Background()) }()
		synctest.Wait()
		idle.wantClosed()
		if _, err := b.net.DialContext(context.Background(), "", testAddr); err == nil {
			t.Error("connected to a server that shuts down")
		}
		select {
		case err := <-done:
			t.Fatalf("shut down with a call in flight: %v", err)
		default:
		}
		parked.Reply(&TrimResponse{})
		if h, _ := p.recv(); h.correlation != 2 || h.code != CodeOK {
			t.Errorf("call in flight answered %v", h)
		}
		if h, _ := p.recv(); h.correlation != 3 || h.code != CodeShuttingDown {
			t.Errorf("buffered call answered %v", h)
		}
		p.wantClosed()
		p.Close()
		idle.Close()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// TestShutdownCuts gives up waiting for a call that is never answered in time.
func TestShutdownCuts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var parked *Call
		b := newBed(t, handlerFunc(func(c *Call) { parked = c }), nil)
		p := b.helloPeer()
		p.send(trimFrame(2, 0))
		synctest.Wait()
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		if err := b.server.Shutdown(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Shutdown returned %v", err)
		}
		p.wantClosed()
		<-parked.Cancelled()
		parked.Reply(&TrimResponse{}) // too late, and harmless
	})
}

// TestLastAnswerSurvives lets the server end a connection on which requests
// still lie unread: the answer sent before must arrive all the same.
func TestLastAnswerSurvives(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newBed(t, echo, nil).peer()
		frames := trimFrame(1, 0) // not a hello
		for len(frames) < memWindow/2 {
			frames = append(frames, frames...)
		}
		p.send(frames)
		time.Sleep(time.Millisecond)
		if h, _ := p.recv(); h.code != CodeHelloRequired {
			t.Errorf("answered %v", h)
		}
	})
}

func TestPanicHarmsOneCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		var kept *Call
		b := newBed(t, handlerFunc(func(c *Call) {
			var q TrimRequest
			if err := c.Decode(&q); err != nil {
				c.ReplyError(err)
				return
			}
			switch q.Before {
			case 1:
				panic("first")
			case 2:
				kept = c
				panic("after somebody else got the call")
			case 3:
				c.Reply(&TrimResponse{Start: 3})
				panic("after the answer")
			}
			c.Reply(&TrimResponse{Start: q.Before})
		}), func(s *Server) { s.Log = slog.New(slog.NewTextHandler(&log, nil)) })
		p := b.helloPeer()
		f := func(before Offset, want Code) {
			t.Helper()
			p.send(trimFrame(uint32(before), before))
			if h, _ := p.recv(); h.code != want || h.correlation != uint32(before) {
				t.Fatalf("call %d answered %v, want %v", before, h, want)
			}
		}

		f(0, CodeOK)
		f(1, CodeInternal)
		f(2, CodeInternal)
		kept.Reply(&TrimResponse{}) // not a second answer
		f(3, CodeOK)
		f(4, CodeOK)
		if n := bytes.Count(log.Bytes(), []byte("panic in a handler")); n != 3 || b.server.Stats().Panics != 3 {
			t.Errorf("%d panics logged", n)
		}
	})
}

func TestAnsweredTwice(t *testing.T) {
	c := NewCall(APITrim, 0, nil, func([]byte, []FileRange) {})
	c.Reply(&TrimResponse{})
	defer func() {
		if recover() == nil {
			t.Error("a second answer went unnoticed")
		}
	}()
	c.Reply(&TrimResponse{})
}

// TestStuckReader does not read its answers: the connection ends after 30 s
// without progress, and not before while it makes some.
func TestStuckReader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		big := &RecoveryResponse{Lines: []string{string(make([]byte, MaxString))}}
		b := newBed(t, handlerFunc(func(c *Call) { c.Reply(big) }), nil)
		p := b.helloPeer()
		go func() {
			for id := range uint32(100) {
				if _, err := p.Write(requestFrame(APIRecovery, 0, id, &RecoveryRequest{})); err != nil {
					return
				}
			}
		}()
		for range 20 { // slowly, for much longer than 30 s
			time.Sleep(20 * time.Second)
			io.ReadFull(p, make([]byte, 70_000))
		}
		if s := b.server.Stats(); s.Timeouts != 0 || s.Conns != 1 {
			t.Fatalf("a slow reader was cut: %+v", s)
		}
		start := time.Now()
		for b.server.Stats().Conns > 0 {
			time.Sleep(time.Second)
		}
		if d := time.Since(start); d < 29*time.Second || d > 31*time.Second {
			t.Errorf("cut after %v without progress", d)
		}
	})
}

func TestNoReply(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBed(t, handlerFunc(func(c *Call) {
			if c.API == APIProduce {
				c.NoReply()
				return
			}
			echo(c)
		}), func(s *Server) { s.MaxInFlight = 2 })
		p := b.helloPeer()
		for id := range uint32(10) {
			p.send(requestFrame(APIProduce, 0, id, &ProduceRequest{}))
		}
		p.send(trimFrame(77, 0))
		if h, _ := p.recv(); h.correlation != 77 {
			t.Errorf("%v answered", h)
		}
	})
}

// errListener fails a number of times before it works.
type errListener struct {
	net.Listener
	errs []error
}

func (l *errListener) Accept() (net.Conn, error) {
	if len(l.errs) > 0 {
		err := l.errs[0]
		l.errs = l.errs[1:]
		return nil, err
	}
	return l.Listener.Accept()
}

func TestAcceptBacksOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := NewMemNet()
		inner, _ := n.Listen(testAddr)
		ln := &errListener{Listener: inner}
		for range 12 {
			ln.errs = append(ln.errs, &net.OpError{Op: "accept", Err: syscall.EMFILE})
		}
		var told []error
		s := &Server{Handler: echo, Hello: helloForTest, Paused: func(err error) { told = append(told, err) }}
		done := make(chan error, 1)
		go func() { done <- s.Serve(ln) }()
		start := time.Now()
		c, err := Dial(context.Background(), n, testAddr, DialOptions{})
		if err != nil {
			t.Fatal(err)
		}
		// 5, 10, … 640 ms, then 1 s each
		if d := time.Since(start); d != (5<<8-5)*time.Millisecond+4*time.Second {
			t.Errorf("accepted after %v", d)
		}
		synctest.Wait()
		if n := s.Stats().Failed; n != 12 || len(told) != 2 || !errors.Is(told[0], syscall.EMFILE) || told[1] != nil {
			t.Errorf("%d attempts failed, told were %v", n, told)
		}
		c.Close()
		s.Shutdown(context.Background())
		if err := <-done; err != nil {
			t.Error(err)
		}

		broken := errors.New("broken")
		s = &Server{Handler: echo, Hello: helloForTest}
		inner, _ = n.Listen(testAddr)
		if err := s.Serve(&errListener{Listener: inner, errs: []error{broken}}); err != broken {
			t.Errorf("Serve on a broken listener returned %v", err)
		}
	})
}

func TestMaxConns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBed(t, echo, func(s *Server) { s.MaxConns = 2 })
		first := b.helloPeer()
		b.helloPeer()
		b.peer().wantClosed()
		first.Close()
		synctest.Wait()
		b.helloPeer()
		if s := b.server.Stats(); s.Refused != 1 || s.Conns != 2 {
			t.Errorf("%+v", s)
		}
	})
}

// TestCoalescing counts the writes that carry the answers to what came in one
// read.
func TestCoalescing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBed(t, echo, nil)
		p := b.helloPeer()
		var frames []byte
		for id := range uint32(20) {
			frames = append(frames, trimFrame(id, 0)...)
		}
		p.send(frames)
		synctest.Wait()
		in := p.Conn.(*memConn).in
		in.mu.Lock()
		writes := len(in.parts)
		in.mu.Unlock()
		if writes != 1 {
			t.Errorf("20 answers took %d writes", writes)
		}
		if n := b.server.Stats().Writers; n != 0 {
			t.Errorf("%d writer goroutines for answers the reader could send", n)
		}
	})
}

// TestCutEverywhere ends the connection after each byte of a conversation and
// expects all buffers and budgets back.
func TestCutEverywhere(t *testing.T) {
	script := requestFrame(APIHello, 0, 1, &HelloRequest{Client: "x"})
	for id := range uint32(3) {
		script = append(script, trimFrame(id, 0)...)
	}
	synctest.Test(t, func(t *testing.T) {
		var later atomic.Pointer[Call]
		b := newBed(t, handlerFunc(func(c *Call) {
			if old := later.Swap(c); old != nil {
				old.Reply(&TrimResponse{})
			}
		}), nil)
		f := func(up, down int64) {
			b.net.CutAfter(testAddr, up, down)
			c, err := b.net.DialContext(context.Background(), "", testAddr)
			if err != nil {
				t.Fatal(err)
			}
			c.Write(script)
			for err == nil {
				c.SetReadDeadline(time.Now().Add(time.Second))
				_, _, err = recvFrame(c)
			}
			c.Close()
			synctest.Wait()
			if old := later.Swap(nil); old != nil {
				old.Reply(&TrimResponse{})
			}
			synctest.Wait()
			if s := b.pool.Stats(); s.Live != 0 || b.server.Budget.Used() != 0 {
				t.Fatalf("cut after %d, %d bytes: %d buffers out, %d bytes charged", up, down, s.Live, b.server.Budget.Used())
			}
		}

		for n := range int64(len(script)) {
			f(n, -1)
		}
		for n := range int64(300) {
			f(-1, n)
		}
	})
}

// TestBodiesShareABuffer expects requests that arrive together to lie in one
// buffer, uncopied, and to stay whole there while later ones arrive.
func TestBodiesShareABuffer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		type held struct {
			buf  *mem.Buf
			body []byte
			want []byte
		}
		var all []held
		b := newBed(t, handlerFunc(func(c *Call) {
			all = append(all, held{c.Body().Retain(), c.body, bytes.Clone(c.body)})
			c.Reply(&TrimResponse{})
		}), nil)
		p := b.helloPeer()
		for round := range 3 {
			var frames []byte
			for id := range uint32(40) {
				frames = append(frames, trimFrame(id, Offset(round)<<32|Offset(id))...)
			}
			p.send(frames)
			for range 40 {
				p.recv()
			}
		}
		bufs := map[*mem.Buf]bool{}
		for _, h := range all {
			bufs[h.buf] = true
			if !bytes.Equal(h.body, h.want) {
				t.Fatal("a retained body has changed")
			}
			h.buf.Release()
		}
		if len(bufs) > 6 {
			t.Errorf("%d bodies lie in %d buffers", len(all), len(bufs))
		}
	})
}

func ExampleServer() {
	n := NewMemNet()
	ln, _ := n.Listen("broker:1")
	s := &Server{Handler: echo, Hello: helloForTest}
	go s.Serve(ln)

	ctx := context.Background()
	c, _ := Dial(ctx, n, "broker:1", DialOptions{Client: "example"})
	var r TrimResponse
	err := c.Do(ctx, &TrimRequest{Topic: FirstUserTopic, Before: 41}, &r)
	fmt.Println(r.Start, err)
	c.Close()
	s.Shutdown(ctx)
	// Output: 41 <nil>
}

// A note is work put off that says when its parts were done.
type note struct {
	enter func(alone bool)
	leave func()
}

func (n note) Enter(alone bool) { n.enter(alone) }
func (n note) Leave()           { n.leave() }

// TestDefer: work put off by requests of one kind is done once all of them that
// have arrived were handed over, and before anything waits.
func TestDefer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		var log string
		say := func(format string, args ...any) {
			mu.Lock()
			defer mu.Unlock()
			log += fmt.Sprintf(format, args...)
		}
		var parked []*Call
		b := newBed(t, handlerFunc(func(c *Call) {
			say("%d", c.correlation)
			switch c.API {
			case APITrim:
				enter := func(alone bool) {
					say("%c", map[bool]rune{true: 'A', false: 'a'}[alone])
					c.Reply(&TrimResponse{})
				}
				c.Defer(note{enter, func() { say(".") }})
			case APIMetadata:
				parked = append(parked, c)
			}
		}), func(s *Server) { s.MaxInFlight = 3 })
		list := func(correlation uint32) []byte {
			return requestFrame(APIMetadata, 0, correlation, &MetadataRequest{})
		}
		f := func(want string, frames ...[]byte) {
			t.Helper()
			mu.Lock()
			log = ""
			mu.Unlock()
			p := b.helloPeer()
			p.send(slices.Concat(frames...))
			synctest.Wait()
			for _, c := range parked {
				c.Reply(&MetadataResponse{})
			}
			parked = nil
			synctest.Wait()
			if log != want {
				t.Errorf("%s, want %s", log, want)
			}
			p.Close()
			synctest.Wait()
		}

		f("2A.", trimFrame(2, 0))
		f("23aa..", trimFrame(2, 0), trimFrame(3, 0))
		f("234aaa...5A.", trimFrame(2, 0), trimFrame(3, 0), trimFrame(4, 0), trimFrame(5, 0)) // no more in flight
		f("2A34A..", trimFrame(2, 0), list(3), trimFrame(4, 0))
		f("2A.", trimFrame(2, 0), trimFrame(3, 0)[:9])
		f("2A.", trimFrame(2, 0), claim(MaxFrame+1, APITrim, 3)) // the connection ends there
	})
	done := ""
	c := NewCall(APITrim, 0, nil, func([]byte, []FileRange) {})
	if c.Defer(note{func(alone bool) { done = fmt.Sprint(alone) }, func() { done += " left" }}); done != "true left" {
		t.Errorf("a call without connection: %q", done)
	}
	c.NoReply()
}

// TestLeaveAfterAnswers: what comes last of work put off, which may take long, is
// begun when the peer has its answer.
func TestLeaveAfterAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		left := make(chan struct{})
		b := newBed(t, handlerFunc(func(c *Call) {
			c.Defer(note{func(bool) { c.Reply(&TrimResponse{}) }, func() { <-left }})
		}), nil)
		p := b.helloPeer()
		p.send(trimFrame(2, 0))
		p.recv()
		close(left)
		p.Close()
		synctest.Wait()
	})
}

// TestRangesNoWait: who answers with ranges of what must be copied never waits for
// a peer that does not read.
func TestRangesNoWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const many, size = 10, 60_000 // more than the network holds
		parked := make(chan *Call, many)
		b := newBed(t, handlerFunc(func(c *Call) { parked <- c }), nil)
		p := b.helloPeer()
		for i := range uint32(many) {
			p.send(requestFrame(APIFetch, 0, 2+i, &FetchRequest{}))
		}
		synctest.Wait()
		var answered, done atomic.Int32
		go func() {
			for range many {
				(<-parked).ReplyFiles(&FetchResponse{Partitions: []FetchResult{{Bytes: size}}},
					[]FileRange{{R: bytes.NewReader(make([]byte, size)), Len: size, Done: func() { done.Add(1) }}})
				answered.Add(1)
			}
		}()
		synctest.Wait()
		if n := answered.Load(); n != many {
			t.Errorf("%d of %d answers were given", n, many)
		}
		if n := done.Load(); n == many {
			t.Error("all was sent though nobody reads")
		}
		p.Close()
		synctest.Wait()
		if n := done.Load(); n != many {
			t.Errorf("%d of %d ranges were let go of", n, many)
		}
	})
}
