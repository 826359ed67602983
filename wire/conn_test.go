package wire

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"sort"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/teralog/teralog/mem"
)

// parking answers Trim calls when told to, by what they ask for.
type parking struct {
	mu    sync.Mutex
	calls map[Offset]*Call
}

func (p *parking) ServeCall(c *Call) {
	var q TrimRequest
	if err := c.Decode(&q); err != nil {
		c.ReplyError(err)
		return
	}
	c.DropBody()
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.calls == nil {
		p.calls = map[Offset]*Call{}
	}
	p.calls[q.Before] = c
}

func (p *parking) answer(before Offset) {
	p.mu.Lock()
	c := p.calls[before]
	delete(p.calls, before)
	p.mu.Unlock()
	c.Reply(&TrimResponse{Start: before})
}

// asking is a call made by Do or Go on a goroutine of its own.
type asking struct {
	resp TrimResponse
	err  error
	done chan struct{}
}

func ask(ctx context.Context, c *Conn, before Offset, async bool) *asking {
	a := &asking{done: make(chan struct{})}
	req := &TrimRequest{Topic: FirstUserTopic, Before: before}
	if async {
		c.Go(req, &a.resp, func(err error) { a.err = err; close(a.done) })
		return a
	}
	go func() {
		a.err = c.Do(ctx, req, &a.resp)
		close(a.done)
	}()
	return a
}

func (a *asking) wantOK(t *testing.T, before Offset) {
	t.Helper()
	<-a.done
	if a.err != nil || a.resp.Start != before {
		t.Errorf("call %d: %v, answer %d", before, a.err, a.resp.Start)
	}
}

// TestLoneDo expects a Do with nothing else in flight to start no goroutine on
// either side.
func TestLoneDo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var seen int
		b := newBed(t, handlerFunc(func(c *Call) {
			seen = bubbleGoroutines()
			echo(c)
		}), nil)
		c := b.dial()
		synctest.Wait() // the reader that served Hello has gone, another one rests in its place
		before := bubbleGoroutines()
		for i := range Offset(10) {
			var r TrimResponse
			if err := c.Do(context.Background(), &TrimRequest{Topic: FirstUserTopic, Before: i}, &r); err != nil || r.Start != i {
				t.Fatal(err, r)
			}
			if seen != before {
				t.Fatalf("%d goroutines during a lone Do, %d before", seen, before)
			}
		}
		if n := c.traffic.writers.Load() + b.server.Stats().Writers; n != 0 {
			t.Errorf("%d writer goroutines", n)
		}
	})
}

// TestHandOver has three calls in flight, each by Do or Go, and answers them
// in every order: whoever reads leaves the turn to those who still wait.
func TestHandOver(t *testing.T) {
	orders := [][3]Offset{{0, 1, 2}, {0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0}}
	for kinds := range 8 {
		for _, order := range orders {
			synctest.Test(t, func(t *testing.T) {
				var h parking
				b := newBed(t, &h, nil)
				c := b.dial()
				var calls [3]*asking
				for i := range calls {
					calls[i] = ask(context.Background(), c, Offset(i), kinds>>i&1 == 1)
					synctest.Wait()
				}
				for _, i := range order {
					h.answer(i)
					calls[i].wantOK(t, i)
				}
				synctest.Wait()
				b.wantNoBuffers()
				if c.reading {
					t.Errorf("kinds %03b, order %v: the reading turn is not free", kinds, order)
				}
			})
		}
	}
}

// TestCancelledReader ends the context of the Do that reads, at every byte of
// its response; another call and later ones must go on, and the response be
// thrown away.
func TestCancelledReader(t *testing.T) {
	response := func(id uint32) []byte {
		f := (&TrimResponse{Start: Offset(id)}).AppendTo(make([]byte, responseLen), 0)
		putResponseHeader(f, responseHeader{correlation: id}, 0)
		return f
	}
	for at := range len(response(0)) {
		synctest.Test(t, func(t *testing.T) {
			c, s := fakeServer(t)
			ctx, cancel := context.WithCancel(context.Background())
			first := ask(ctx, c, 0, false)
			synctest.Wait()
			id := c.last
			second := ask(context.Background(), c, 0, at%2 == 0)
			synctest.Wait()
			s.Write(response(id)[:at])
			synctest.Wait()
			cancel()
			<-first.done
			if !errors.Is(first.err, CodeTimeout) || !errors.Is(first.err, context.Canceled) {
				t.Errorf("cancelled at byte %d: %v", at, first.err)
			}
			s.Write(append(response(id)[at:], response(id+1)...))
			second.wantOK(t, Offset(id+1))
			third := ask(context.Background(), c, 0, false)
			synctest.Wait()
			s.Write(response(id + 2))
			third.wantOK(t, Offset(id+2))
			synctest.Wait()
			if n := len(c.slots); n != 0 {
				t.Errorf("%d slots taken", n)
			}
		})
	}
}

// fakeServer returns a Conn, which has said Hello, and the other end of it.
func fakeServer(t *testing.T) (*Conn, net.Conn) {
	t.Helper()
	n := NewMemNet()
	ln, _ := n.Listen(testAddr)
	accepted := make(chan net.Conn, 1)
	go func() {
		s, err := ln.Accept()
		if err != nil {
			return
		}
		frame := make([]byte, 4)
		s.Read(frame)
		s.Read(make([]byte, binary.LittleEndian.Uint32(frame)))
		f := (&HelloResponse{APIs: supported()}).AppendTo(make([]byte, responseLen), 0)
		putResponseHeader(f, responseHeader{correlation: 1}, 0)
		s.Write(f)
		accepted <- s
	}()
	pool := mem.NewPool("client")
	c, err := Dial(context.Background(), n, testAddr, DialOptions{Pool: pool, MaxResponse: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	s := <-accepted
	ln.Close()
	t.Cleanup(func() {
		c.Close()
		s.Close()
		synctest.Wait()
		if s := pool.Stats(); s.Live != 0 {
			t.Errorf("%d buffers are out", s.Live)
		}
	})
	return c, s
}

// TestLateStop has a context end when its Do has just given up the reading
// turn: whoever reads now is not to be stopped.
func TestLateStop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var h parking
		c := newBed(t, &h, nil).dial()
		first := ask(context.Background(), c, 1, false)
		synctest.Wait()
		turn := c.turn
		h.answer(1)
		first.wantOK(t, 1)
		second := ask(context.Background(), c, 2, false)
		synctest.Wait()
		c.stopReading(turn)
		synctest.Wait()
		h.answer(2)
		second.wantOK(t, 2)
	})
}

// TestAnsweredTooEarly answers a request that is still in the client's queue.
func TestAnsweredTooEarly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, s := fakeServer(t)
		big := make(chan error, 1)
		c.Go(&ProduceRequest{Acks: 1, Batches: []Batch{make([]byte, 2*memWindow)}}, &ProduceResponse{}, func(err error) { big <- err })
		queued := ask(context.Background(), c, 1, true)
		synctest.Wait()
		b := (&TrimResponse{Start: 1}).AppendTo(make([]byte, responseLen), 0)
		putResponseHeader(b, responseHeader{correlation: c.last}, 0)
		s.Write(b)
		<-queued.done
		if err := <-big; !errors.Is(err, ErrConnLost) || !errors.Is(err, ErrCorrupt) {
			t.Error(err)
		}
		if !errors.Is(queued.err, ErrNotSent) || !errors.Is(queued.err, ErrCorrupt) {
			t.Error(queued.err)
		}
	})
}

// TestCancelledWaiter ends the context of a Do while another one reads.
func TestCancelledWaiter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var h parking
		b := newBed(t, &h, nil)
		c := b.dial()
		reader := ask(context.Background(), c, 1, false)
		synctest.Wait()
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		waiter := ask(ctx, c, 2, false)
		<-waiter.done
		if !errors.Is(waiter.err, CodeTimeout) || !errors.Is(waiter.err, context.DeadlineExceeded) {
			t.Error(waiter.err)
		}
		h.answer(2)
		h.answer(1)
		reader.wantOK(t, 1)
	})
}

// TestCancelledInQueue ends the context of a call whose request waits behind
// one that the network does not take: it must say so and never arrive.
func TestCancelledInQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, s := fakeServer(t)
		big := ask(context.Background(), c, 0, true)
		c.Go(&ProduceRequest{Acks: 1, Batches: []Batch{make([]byte, 2*memWindow)}}, &ProduceResponse{}, func(error) {})
		synctest.Wait()
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		queued := ask(ctx, c, 1, false)
		<-queued.done
		if !errors.Is(queued.err, ErrNotSent) || !errors.Is(queued.err, context.DeadlineExceeded) {
			t.Error(queued.err)
		}
		c.out.mu.Lock()
		if n := len(c.out.queue); n != 0 {
			t.Errorf("%d requests still queued", n)
		}
		c.out.mu.Unlock()
		s.Close()
		<-big.done
	})
}

// TestCancelledWhileSending gives up a call whose request is half sent. Its
// buffer must not serve anybody else before the rest of it is sent too.
func TestCancelledWhileSending(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, s := fakeServer(t)
		batch := make([]byte, 3*memWindow)
		for i := range batch {
			batch[i] = byte(i>>8) ^ byte(i)
		}
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		req := &ProduceRequest{Acks: 1, Batches: []Batch{batch}}
		if err := c.Do(ctx, req, &ProduceResponse{}); !errors.Is(err, CodeTimeout) {
			t.Fatal(err)
		}
		b := c.pool.Get(requestBuf(req)) // would be the same memory
		clear(b.B)
		b.Release()
		want := requestFrame(APIProduce, 0, c.last, req)
		got := make([]byte, len(want))
		if _, err := io.ReadFull(s, got); err != nil || !bytes.Equal(got, want) {
			t.Errorf("%v; what arrived is right: %v", err, bytes.Equal(got, want))
		}
	})
}

// TestIdleConnectionClosed has the server close a connection that nobody
// reads: the next call must know that it never left, and the server is not
// kept from shutting down.
func TestIdleConnectionClosed(t *testing.T) { both(t, testIdleConnectionClosed) }

func testIdleConnectionClosed(t *testing.T, k kind) {
	synctest.Test(t, func(t *testing.T) {
		for _, async := range []bool{false, true} {
			b := newBedOf(t, k, echo, nil)
			c := b.dial()
			ask(context.Background(), c, 3, false).wantOK(t, 3)
			time.Sleep(time.Minute)
			ask(context.Background(), c, 4, false).wantOK(t, 4)
			synctest.Wait() // until its reader waits for more, which is what idle means
			start := time.Now()
			if err := b.server.Shutdown(context.Background()); err != nil || time.Since(start) > 0 {
				t.Errorf("Shutdown took %v: %v", time.Since(start), err)
			}
			time.Sleep(time.Minute)
			call := ask(context.Background(), c, 5, async)
			<-call.done
			if !errors.Is(call.err, ErrNotSent) || errors.Is(call.err, ErrConnLost) {
				t.Error(call.err)
			}
		}
	})
}

// TestOutcomes cuts the connection after each byte in each direction: a call
// that says it was not sent must not have been served, one that was served
// must not say so.
func TestOutcomes(t *testing.T) { both(t, testOutcomes) }

func testOutcomes(t *testing.T, k kind) {
	synctest.Test(t, func(t *testing.T) {
		var served atomic.Int32
		b := newBedOf(t, k, handlerFunc(func(c *Call) {
			served.Add(1)
			echo(c)
		}), nil)
		var notSent, lost int
		f := func(up, down int64) {
			t.Helper()
			b.net.CutAfter(testAddr, up, down)
			c, err := Dial(context.Background(), b.net, testAddr, DialOptions{Pool: b.client, TLS: b.tls})
			if err != nil {
				if !errors.Is(err, ErrNotSent) {
					t.Fatalf("cut after %d, %d: dial: %v", up, down, err)
				}
				return
			}
			before := served.Load()
			err = c.Do(context.Background(), &TrimRequest{Topic: FirstUserTopic}, &TrimResponse{})
			synctest.Wait()
			happened := served.Load() > before
			switch {
			case err == nil:
			case errors.Is(err, ErrNotSent) && !errors.Is(err, ErrConnLost):
				notSent++
				if happened {
					t.Errorf("cut after %d, %d: served, yet %v", up, down, err)
				}
			case errors.Is(err, ErrConnLost) && !errors.Is(err, ErrNotSent):
				lost++
			default:
				t.Errorf("cut after %d, %d: %v", up, down, err)
			}
			if err != nil && c.Err() == nil {
				t.Errorf("cut after %d, %d: %v, and the connection lives", up, down, err)
			}
			c.Close()
			if err := c.Do(context.Background(), &TrimRequest{}, &TrimResponse{}); !errors.Is(err, ErrNotSent) {
				t.Errorf("Do after Close: %v", err)
			}
			synctest.Wait()
			b.wantNoBuffers()
		}

		// Most of a handshake is passed over: nothing is sent before its end.
		dialled := func(up, down int64) bool {
			b.net.CutAfter(testAddr, up, down)
			c, err := Dial(context.Background(), b.net, testAddr, DialOptions{Pool: b.client, TLS: b.tls})
			if err == nil {
				c.Close()
			}
			return err == nil
		}
		up := int64(sort.Search(8<<10, func(n int) bool { return dialled(int64(n), -1) }))
		down := int64(sort.Search(8<<10, func(n int) bool { return dialled(-1, int64(n)) }))
		for n := range int64(130) {
			f(max(up-50, 0)+n, -1)
		}
		for n := range int64(200) {
			f(-1, max(down-100, 0)+n)
		}
		if notSent == 0 || lost == 0 {
			t.Errorf("%d calls not sent, %d lost", notSent, lost)
		}
	})
}

// TestHostileServer answers with what no honest server sends. The call fails,
// the connection ends, and next to no memory is taken.
func TestHostileServer(t *testing.T) {
	header := func(size, id uint32) []byte {
		b := make([]byte, responseLen)
		putResponseHeader(b, responseHeader{correlation: id}, 0)
		binary.LittleEndian.PutUint32(b, size)
		return b
	}
	trim := func(id uint32, body ...byte) []byte {
		return append(header(uint32(responseLen-sizeLen+len(body)), id), body...)
	}
	f := func(corrupt bool, answer func(id uint32) []byte) {
		t.Helper()
		synctest.Test(t, func(t *testing.T) {
			c, s := fakeServer(t)
			call := ask(context.Background(), c, 1, false)
			synctest.Wait()
			s.Write(answer(c.last))
			synctest.Wait()
			s.Close()
			<-call.done
			if call.err == nil || corrupt != errors.Is(call.err, ErrCorrupt) {
				t.Errorf("%x: %v", answer(1), call.err)
			}
			if errors.Is(call.err, ErrNotSent) {
				t.Errorf("%x: a request that left is said not to: %v", answer(1), call.err)
			}
		})
	}

	for _, size := range []uint32{0, 3, 11, 1<<20 + 1, 1<<31 - 1, 1 << 31, 1<<32 - 1} {
		f(true, func(id uint32) []byte { return header(size, id) })
	}
	f(true, func(id uint32) []byte { return trim(id + 1) })                                    // not asked yet
	f(true, func(id uint32) []byte { return trim(id | oneWay) })                               // nothing one-way was sent
	f(true, func(id uint32) []byte { return trim(0) })                                         // never asked
	f(true, func(id uint32) []byte { return trim(id) })                                        // empty body
	f(true, func(id uint32) []byte { return trim(id, 1, 2, 3, 4, 5, 6, 7) })                   // short body
	f(true, func(id uint32) []byte { return trim(id, 1, 2, 3, 4, 5, 6, 7, 8, 9) })             // long body
	f(false, func(id uint32) []byte { return header(1<<20, id) })                              // truncated
	f(false, func(id uint32) []byte { return trim(id, 1, 2, 3, 4, 5, 6, 7, 8)[:20] })          // truncated
	f(false, func(id uint32) []byte { return nil })                                            // nothing
	f(true, func(id uint32) []byte { b := trim(id, 200, 200); b[8] = 14; return b })           // a message that lies
	f(false, func(id uint32) []byte { b := trim(id, 1, 'x'); b[8], b[9] = 0xff, 3; return b }) // a code nobody knows
}

// TestAnsweredTwiceByServer gets a second response to a request that was
// answered: the connection ends.
func TestAnsweredTwiceByServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, s := fakeServer(t)
		call := ask(context.Background(), c, 1, false)
		other := ask(context.Background(), c, 1, false)
		synctest.Wait()
		b := (&TrimResponse{Start: 1}).AppendTo(make([]byte, responseLen), 0)
		putResponseHeader(b, responseHeader{correlation: c.last}, 0)
		s.Write(append(b, b...))
		<-call.done
		<-other.done
		if (call.err == nil) == (other.err == nil) || c.Err() == nil || !errors.Is(c.Err(), ErrCorrupt) {
			t.Errorf("%v, %v; the connection: %v", call.err, other.err, c.Err())
		}
	})
}

func TestErrorResponse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var answer error
		c := newBed(t, handlerFunc(func(c *Call) { c.ReplyError(answer) }), nil).dial()
		f := func(err error, want Error) {
			t.Helper()
			answer = err
			var e *Error
			if err := c.Do(context.Background(), &TrimRequest{}, &TrimResponse{}); !errors.As(err, &e) || *e != want {
				t.Errorf("%v arrived as %v", answer, err)
			}
		}

		f(CodeNotLeader, Error{Code: CodeNotLeader})
		f(&Error{Code: CodeBusy, Message: "later", RetryAfter: 1500 * time.Microsecond}, Error{Code: CodeBusy, Message: "later", RetryAfter: 2 * time.Millisecond})
		f(errors.New("no code"), Error{Code: CodeInternal, Message: "no code"})
		f(Errorf(CodeCorrupt, "%s", strings.Repeat("ä", MaxString)), Error{Code: CodeCorrupt, Message: strings.Repeat("ä", MaxString/2)})
	})
}

func TestConnInFlightLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var h parking
		c := newBed(t, &h, func(s *Server) { s.MaxInFlight = 3 }).dial()
		var calls []*asking
		for i := range Offset(3) {
			calls = append(calls, ask(context.Background(), c, i, true))
		}
		over := ask(context.Background(), c, 9, true)
		<-over.done
		if !errors.Is(over.err, ErrNotSent) || !errors.Is(over.err, CodeBusy) {
			t.Error(over.err)
		}
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		waits, patient := ask(ctx, c, 8, false), ask(context.Background(), c, 7, false)
		<-waits.done
		if !errors.Is(waits.err, ErrNotSent) {
			t.Error(waits.err)
		}
		h.answer(1)
		synctest.Wait()
		h.answer(7)
		patient.wantOK(t, 7)
		h.answer(0)
		h.answer(2)
		for i, call := range calls {
			call.wantOK(t, Offset(i))
		}
	})
}

func TestOneWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var got, refused atomic.Int32
		b := newBed(t, handlerFunc(func(c *Call) {
			if c.API != APIProduce {
				echo(c)
				return
			}
			if got.Add(1); c.correlation%2 == 0 {
				refused.Add(1)
				c.ReplyError(CodeBusy) // as the transport does: it must not disturb
				return
			}
			c.NoReply()
		}), nil)
		c := b.dial()
		none := &ProduceRequest{Acks: 0}
		for range 150 { // more than may be in flight
			if err := c.Do(context.Background(), none, &ProduceResponse{}); err != nil {
				t.Fatal(err)
			}
			done := make(chan error, 1)
			c.Go(none, &ProduceResponse{}, func(err error) { done <- err })
			if err := <-done; err != nil {
				t.Fatal(err)
			}
		}
		ask(context.Background(), c, 5, false).wantOK(t, 5)
		if got.Load() != 300 || refused.Load() == 0 {
			t.Errorf("%d requests arrived", got.Load())
		}
		c.Close()
		if err := c.Do(context.Background(), none, &ProduceResponse{}); !errors.Is(err, ErrNotSent) {
			t.Error(err)
		}
	})
}

// TestSilence expects a server that says nothing to be given up.
func TestSilence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, async := range []bool{false, true} {
			c, _ := fakeServer(t)
			time.Sleep(time.Hour) // without a call it may be silent
			start := time.Now()
			call := ask(context.Background(), c, 1, async)
			<-call.done
			if !errors.Is(call.err, ErrConnLost) || time.Since(start) > 136*time.Second {
				t.Errorf("after %v: %v", time.Since(start), call.err)
			}
		}
	})
}

func TestStuckSend(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, _ := fakeServer(t)
		start := time.Now()
		big := &ProduceRequest{Acks: 1, Batches: []Batch{make([]byte, 2*memWindow)}}
		sent := make(chan error, 1)
		c.Go(big, &ProduceResponse{}, func(err error) { sent <- err })
		queued := ask(context.Background(), c, 1, true)
		if err := <-sent; !errors.Is(err, ErrConnLost) || time.Since(start) != 30*time.Second {
			t.Errorf("after %v: %v", time.Since(start), err)
		}
		<-queued.done
		if !errors.Is(queued.err, ErrNotSent) {
			t.Errorf("behind it: %v", queued.err)
		}
	})
}

func TestNoCommonVersion(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBed(t, echo, func(s *Server) {
			s.Hello = func() HelloResponse {
				return HelloResponse{MaxFrame: 1000, APIs: []APIRange{{APITrim, 1, 9}, {APIProduce, 0, 3}, {API(500), 0, 0}}}
			}
		})
		c := b.dial()
		f := func(req Message, want Code) {
			t.Helper()
			if err := c.Do(context.Background(), req, &TrimResponse{}); !errors.Is(err, ErrNotSent) || !errors.Is(err, want) {
				t.Errorf("%v: %v", req.API(), err)
			}
		}

		f(&TrimRequest{}, CodeUnsupportedVersion)     // theirs are too new
		f(&RecoveryRequest{}, CodeUnsupportedVersion) // not named
		f(&ProduceRequest{Batches: []Batch{make([]byte, 1000)}}, CodeTooLarge)
	})
}

func TestDialFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBed(t, echo, nil)
		f := func() {
			t.Helper()
			ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
			defer cancel()
			c, err := Dial(ctx, b.net, testAddr, DialOptions{Pool: b.client})
			if c != nil || !errors.Is(err, ErrNotSent) {
				t.Errorf("Dial returned %v", err)
			}
			synctest.Wait()
			if n := b.client.Stats().Live; n != 0 {
				t.Errorf("%d buffers out", n)
			}
		}

		b.net.Refuse(testAddr, true)
		f()
		b.net.Refuse(testAddr, false)
		b.net.Stall(testAddr, true)
		f()
		b.net.Stall(testAddr, false)
		b.net.CutAfter(testAddr, 0, -1)
		f()
	})
}

// storm makes calls of all kinds from many goroutines, some of them given up
// half-way, against a server that answers in any order and from anywhere.
func storm(t *testing.T, dial func() *Conn, calls int) {
	c := dial()
	defer c.Close()
	var wg sync.WaitGroup
	for g := range uint64(8) {
		rng := rand.New(rand.NewPCG(g, 1))
		wg.Go(func() {
			var pending sync.WaitGroup
			for i := range calls {
				want := Offset(g)<<32 | Offset(i)
				req, r := &TrimRequest{Topic: FirstUserTopic, Before: want}, &TrimResponse{}
				check := func(err error) {
					switch {
					case err == nil && r.Start != want:
						t.Errorf("asked for %d, answered %d", want, r.Start)
					case err != nil && !errors.Is(err, CodeTimeout) && !errors.Is(err, ErrNotSent):
						t.Error(err)
					}
				}
				switch rng.IntN(4) {
				case 0:
					pending.Add(1)
					c.Go(req, r, func(err error) { check(err); pending.Done() })
				case 1:
					ctx, cancel := context.WithTimeout(context.Background(), time.Duration(rng.IntN(2000))*time.Microsecond)
					check(c.Do(ctx, req, r))
					cancel()
				case 2:
					b, err := c.DoBuf(context.Background(), req, r)
					check(err)
					if b != nil {
						b.Release()
					}
				default:
					check(c.Do(context.Background(), req, r))
				}
			}
			pending.Wait()
		})
	}
	wg.Wait()
	if err := c.Err(); err != nil {
		t.Errorf("the connection failed: %v", err)
	}
}

// scatter answers some calls at once and some later, from elsewhere.
func scatter(c *Call) {
	var q TrimRequest
	if err := c.Decode(&q); err != nil {
		c.ReplyError(err)
		return
	}
	reply := func() { c.Reply(&TrimResponse{Start: q.Before}) }
	switch q.Before % 3 {
	case 0:
		reply()
	case 1:
		go reply()
	default:
		time.AfterFunc(time.Duration(q.Before%7)*100*time.Microsecond, reply)
	}
}

func TestStorm(t *testing.T) { both(t, testStorm) }

func testStorm(t *testing.T, k kind) {
	synctest.Test(t, func(t *testing.T) {
		b := newBedOf(t, k, handlerFunc(scatter), nil)
		b.net.SetDelay(300 * time.Microsecond)
		storm(t, b.dial, 300)
	})
}

// TestHeld sends requests whose batches lie in buffers of their own among such
// as are copied, over a network that takes a little at a time, and expects
// the same bytes either way; and all buffers back in the end.
func TestHeld(t *testing.T) { both(t, testHeld) }

func testHeld(t *testing.T, k kind) {
	synctest.Test(t, func(t *testing.T) {
		c, s := fakeServer(t)
		pool := mem.NewPool("held")
		wantArrives(t, s, sendHeld(c, pool, 60))
		synctest.Wait()
		if n := pool.Stats().Live; n != 0 {
			t.Errorf("%d buffers are held after all was sent", n)
		}

		// One that fails midway and one that never leaves give theirs back too.
		for range 2 {
			b := pool.Get(3 * memWindow)
			c.Go(&ProduceRequest{Acks: 1, Batches: []Batch{b.B}, Held: []*mem.Buf{b}}, &ProduceResponse{}, func(error) {})
			b.Release()
		}
		synctest.Wait()
		if n := pool.Stats().Live; n != 2 {
			t.Errorf("%d buffers are held by two requests", n)
		}
		s.Close()
		synctest.Wait()
		if n := pool.Stats().Live; n != 0 {
			t.Errorf("%d buffers are held by a connection that has failed", n)
		}
	})
}

// wantArrives reads as many bytes as are wanted and compares them.
func wantArrives(t *testing.T, r io.Reader, want []byte) {
	t.Helper()
	got := make([]byte, len(want))
	if _, err := io.ReadFull(r, got); err != nil || !bytes.Equal(got, want) {
		t.Fatalf("%v; what arrived is right: %v", err, bytes.Equal(got, want))
	}
}

// sendHeld sends requests of both kinds and returns what should arrive.
func sendHeld(c *Conn, pool *mem.Pool, requests int) (want []byte) {
	rnd := rand.New(rand.NewPCG(1, 2))
	send := func(req *ProduceRequest) {
		want = append(want, requestFrame(APIProduce, 0, c.last+1, req)...)
		c.Go(req, &ProduceResponse{}, func(error) {})
	}
	for n := range requests {
		req := &ProduceRequest{Acks: 1, TimeoutMillis: uint32(n)}
		for range 1 + rnd.IntN(2*maxParts) {
			b := pool.Get(HeaderSize + rnd.IntN(memWindow/4))
			for i := range b.B {
				b.B[i] = byte(rnd.Uint32())
			}
			req.Batches, req.Held = append(req.Batches, b.B), append(req.Held, b)
		}
		held := req.Held
		if n%3 == 0 {
			req.Held = nil
		}
		send(req)
		if n%7 == 0 {
			send(&ProduceRequest{Acks: 1})
		}
		for _, b := range held {
			b.Release()
		}
	}
	return want
}

// TestHeldSocket is TestHeld over sockets of the system that hold little, so
// that writes of several buffers end anywhere in them.
func TestHeldSocket(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	d := net.Dialer{Control: func(_, _ string, c syscall.RawConn) error {
		return c.Control(func(fd uintptr) { syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_SNDBUF, 64<<10) })
	}}
	nc, err := d.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	s, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	c := newConn(nc, DialOptions{Pool: dialPool, MaxInFlight: 100, SendTimeout: time.Minute, Silence: time.Minute, MaxResponse: 1 << 20})
	c.versions[APIProduce] = 0
	pool := mem.NewPool("held")
	wantArrives(t, s, sendHeld(c, pool, 10))
	c.Close()
	s.Close()
}

// A breakingConn takes so many writes, each whole, and fails the next.
type breakingConn struct {
	net.Conn
	takes int
}

func (c *breakingConn) TryWrite(p []byte) (int, error) {
	if c.takes == 0 {
		return 0, net.ErrClosed
	}
	c.takes--
	return len(p), nil
}

// TestHeldFailsBetween: a connection may fail just between two buffers of a
// request. Then some of it has left, however little is missing from the next.
func TestHeldFailsBetween(t *testing.T) {
	f := func(takes int, want error) {
		t.Helper()
		nc, peer := net.Pipe()
		defer peer.Close()
		c := newConn(&breakingConn{nc, takes}, DialOptions{Pool: dialPool, MaxInFlight: 9, SendTimeout: time.Minute, Silence: time.Minute, MaxResponse: 1 << 20})
		defer c.Close()
		c.versions[APIProduce] = 0
		pool := mem.NewPool("held")
		b := pool.Get(HeaderSize)
		var got error
		c.Go(&ProduceRequest{Acks: 1, Batches: []Batch{b.B, b.B}, Held: []*mem.Buf{b, b}}, &ProduceResponse{}, func(err error) { got = err })
		b.Release()
		if !errors.Is(got, want) || errors.Is(got, ErrNotSent) == errors.Is(got, ErrConnLost) {
			t.Errorf("after %d buffers: %v, want %v", takes, got, want)
		}
		if n := pool.Stats().Live; n != 0 {
			t.Errorf("after %d buffers: %d are held", takes, n)
		}
	}

	f(0, ErrNotSent)
	f(1, ErrConnLost)
	f(2, ErrConnLost)
}

// TestHeldTooLarge: what is held counts as what is copied does.
func TestHeldTooLarge(t *testing.T) {
	nc, peer := net.Pipe()
	defer peer.Close()
	c := newConn(nc, DialOptions{Pool: dialPool, MaxInFlight: 9, SendTimeout: time.Minute, Silence: time.Minute, MaxResponse: 1 << 20})
	defer c.Close()
	c.versions[APIProduce] = 0
	c.hello.MaxFrame = 10 << 10
	pool := mem.NewPool("held")
	b := pool.Get(10 << 10)
	for _, held := range [][]*mem.Buf{nil, {b}} {
		var got error
		c.Go(&ProduceRequest{Acks: 1, Batches: []Batch{b.B}, Held: held}, &ProduceResponse{}, func(err error) { got = err })
		if !errors.Is(got, CodeTooLarge) || !errors.Is(got, ErrNotSent) {
			t.Errorf("%d held: %v", len(held), got)
		}
	}
	if b.Shared() {
		t.Error("a request that was refused holds its buffer")
	}
	b.Release()
}

// TestHeldAnsweredEarly: a request may be refused, or given up, while most of it
// is still to be sent. It is sent to its end, from the buffer it holds.
func TestHeldAnsweredEarly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, s := fakeServer(t)
		pool := mem.NewPool("held")
		ctx, cancel := context.WithCancel(t.Context())
		var ended []error
		outcome := func(err error) { ended = append(ended, err) }
		request := func() *ProduceRequest {
			b := pool.Get(3 * memWindow)
			defer synctest.Wait() // it has begun
			req := &ProduceRequest{Acks: 1, Batches: []Batch{b.B}, Held: []*mem.Buf{b}}
			go func() {
				defer b.Release()
				if len(ended) > 0 { // the later ones are given up
					outcome(c.Do(ctx, req, &ProduceResponse{}))
					return
				}
				c.Go(req, &ProduceResponse{}, outcome)
			}()
			return req
		}
		first := request()
		want := requestFrame(APIProduce, 0, c.last, first)
		refusal := make([]byte, responseLen, responseLen+9)
		refusal = AppendText(refusal, "no room")
		putResponseHeader(refusal, responseHeader{correlation: c.last, code: CodeBusy}, 0)
		if _, err := s.Write(refusal); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if n := pool.Stats().Live; len(ended) != 1 || !errors.Is(ended[0], CodeBusy) || n != 1 {
			t.Fatalf("%v; %d buffers are held while a request is being sent", ended, n)
		}

		request() // behind it, and never sent
		if n := pool.Stats().Live; n != 2 {
			t.Errorf("%d buffers are held by two requests", n)
		}
		cancel()
		synctest.Wait()
		if n := pool.Stats().Live; len(ended) != 2 || !errors.Is(ended[1], ErrNotSent) || n != 1 {
			t.Errorf("%v; %d buffers are held after one was given up", ended, n)
		}

		got := make([]byte, len(want))
		if _, err := io.ReadFull(s, got); err != nil || !bytes.Equal(got, want) {
			t.Fatalf("%v; what arrived is right: %v", err, bytes.Equal(got, want))
		}
		synctest.Wait()
		if n := pool.Stats().Live; n != 0 {
			t.Errorf("%d buffers are held after all was sent", n)
		}
	})
}
