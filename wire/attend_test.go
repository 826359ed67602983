package wire

import (
	"context"
	"errors"
	"math/rand/v2"
	"net"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// An attending is a connection with calls of Go under way, and who may attend to it.
type attending struct {
	t *testing.T
	h parking
	b *bed
	*Conn
	calls map[Offset]*asking
}

func attend(t *testing.T, f func(*attending)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		a := &attending{t: t, calls: map[Offset]*asking{}}
		a.b = newBed(t, &a.h, nil)
		a.Conn = a.b.dial()
		f(a)
		a.Close()
		synctest.Wait()
		a.b.wantNoBuffers()
	})
}

func (a *attending) ask(calls ...Offset) {
	for _, i := range calls {
		a.calls[i] = ask(context.Background(), a.Conn, i, true)
	}
	synctest.Wait()
}

func (a *attending) answer(calls ...Offset) {
	for _, i := range calls {
		a.h.answer(i)
	}
	synctest.Wait()
}

// told reports whether a call has ended.
func (a *attending) told(i Offset) bool {
	if !a.calls[i].ended() {
		return false
	}
	a.calls[i].wantOK(a.t, i)
	return true
}

// take has the goroutine that reads hand over behind the answer to a call.
func (a *attending) take(i Offset) {
	a.t.Helper()
	if a.Attend() {
		a.t.Fatal("attends though a goroutine reads")
	}
	before := bubbleGoroutines()
	a.answer(i)
	select {
	case <-a.Offered():
	default:
		a.t.Fatal("nothing was offered")
	}
	if n := bubbleGoroutines(); n != before-1 || !a.told(i) {
		a.t.Fatalf("%d goroutines, %d before the turn was handed over", n, before)
	}
	if !a.Attend() {
		a.t.Fatal("does not attend to what was offered")
	}
}

// ended reports whether the call has.
func (a *asking) ended() bool {
	select {
	case <-a.done:
		return true
	default:
		return false
	}
}

func never() bool { return false }

// TestAttend: who attends reads on his own goroutine, and when he comes back again.
func TestAttend(t *testing.T) {
	attend(t, func(a *attending) {
		if a.Attend() {
			t.Fatal("attends to nothing")
		}
		a.ask(1, 2, 3, 4, 5)
		a.take(1)
		a.answer(2)
		if a.told(2) {
			t.Fatal("somebody reads beside who attends")
		}
		for i := Offset(2); i < 4; i++ {
			a.ReadUntil(a.t.Context(), func() bool { return a.told(i) })
			if !a.told(i) || a.told(i+1) {
				t.Fatalf("call %d: told %v, the next one %v", i, a.told(i), a.told(i+1))
			}
			time.AfterFunc(keepTurn/2, func() { a.h.answer(i + 1) })
			if !a.Attend() {
				t.Fatal("the turn was not kept")
			}
		}
		a.answer(5)
		a.ReadUntil(a.t.Context(), func() bool { return a.told(4) && a.told(5) })
	})
}

// TestAttendLast: with nothing to come the turn is free.
func TestAttendLast(t *testing.T) {
	attend(t, func(a *attending) {
		a.ask(1, 2)
		a.take(1)
		time.AfterFunc(time.Second, func() { a.h.answer(2) })
		a.ReadUntil(a.t.Context(), never)
		if !a.told(2) || a.reading {
			t.Errorf("told %v, the turn is taken: %v", a.told(2), a.reading)
		}
		a.ask(3)
		a.answer(3)
		if !a.told(3) {
			t.Error("nobody reads")
		}
	})
}

// TestAttendAway: what comes while he who attended is away is read after keepTurn, and
// then for a while nobody attends.
func TestAttendAway(t *testing.T) {
	attend(t, func(a *attending) {
		a.ask(1, 2, 3, 4)
		a.take(1)
		a.ReadUntil(a.t.Context(), func() bool { return true })
		time.Sleep(lateTurn)
		if !a.Attend() {
			a.t.Fatal("the turn was not kept for as long as it is to be")
		}
		a.ReadUntil(a.t.Context(), func() bool { return true })
		a.answer(2)
		time.Sleep(keepTurn - 1)
		synctest.Wait()
		if a.told(2) {
			a.t.Fatal("read before it was time")
		}
		time.Sleep(time.Nanosecond)
		synctest.Wait()
		if !a.told(2) {
			a.t.Fatal("not read in time")
		}
		time.Sleep(closeTurn - 1)
		if a.Attend() || a.att.wanted {
			a.t.Error("attends again at once, after not coming back")
		}
		time.Sleep(time.Nanosecond)
		a.take(3)
		a.answer(4)
		a.ReadUntil(a.t.Context(), never)
	})
}

// TestAttendLate: who comes back late is told to wait otherwise, each time for
// longer, until he has been in time for long enough.
func TestAttendLate(t *testing.T) {
	attend(t, func(a *attending) {
		next := Offset(1)
		attendTwice := func(away time.Duration) bool {
			a.ask(next, next+1, next+2)
			a.take(next)
			a.ReadUntil(a.t.Context(), func() bool { return true })
			time.Sleep(away)
			again := a.Attend()
			if again {
				a.ReadUntil(a.t.Context(), func() bool { return true })
				a.Resume()
			}
			a.answer(next+1, next+2)
			if !a.told(next+1) || !a.told(next+2) {
				a.t.Fatal("nobody reads")
			}
			next += 3
			return again
		}
		late := func(closed time.Duration) {
			a.t.Helper()
			if attendTwice(lateTurn + 1) {
				a.t.Fatal("attends though he was late")
			}
			a.ask(next)
			time.Sleep(closed - 1)
			if a.Attend() || a.att.wanted {
				a.t.Errorf("let in before %v have passed", closed)
			}
			time.Sleep(time.Nanosecond)
			if a.Attend(); !a.att.wanted {
				a.t.Errorf("not let in after %v", closed)
			}
			a.answer(next)
			next++
		}
		for i := range maxMissed + 1 {
			late(closeTurn << i)
		}
		late(closeTurn << maxMissed)
		for range goodTurns / 2 { // each is twice in time
			if !attendTwice(lateTurn) {
				a.t.Fatal("does not attend")
			}
		}
		late(closeTurn)
	})
}

// TestNobodyComes: what somebody wanted to attend to, and did not, is read all the same.
func TestNobodyComes(t *testing.T) {
	attend(t, func(a *attending) {
		a.ask(1, 2)
		a.Attend()
		a.answer(1)
		a.answer(2)
		time.Sleep(keepTurn)
		synctest.Wait()
		if !a.told(1) || !a.told(2) {
			a.t.Error("not read after the turn was handed over to nobody")
		}
		time.Sleep(closeTurn)
		a.ask(3)
		a.Attend()
		a.answer(3) // the last one: nothing is handed over
		a.ask(4, 5)
		a.answer(4, 5)
		if !a.told(4) || !a.told(5) {
			a.t.Error("handed over to who wanted it for calls that have ended")
		}
	})
}

// TestKeptHalf: a connection ends while the turn is kept in the middle of a response,
// whose buffer comes back.
func TestKeptHalf(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, s := fakeServer(t)
		var calls []*asking
		for range 3 {
			calls = append(calls, ask(context.Background(), c, 0, true))
		}
		c.Attend()
		response := func(id uint32) []byte {
			f := (&TrimResponse{}).AppendTo(make([]byte, responseLen), 0)
			putResponseHeader(f, responseHeader{correlation: id}, 0)
			return f
		}
		s.Write(response(c.last - 2))
		<-c.Offered()
		if !c.Attend() {
			t.Fatal("does not attend")
		}
		s.Write(append(response(c.last-1), response(c.last)[:responseLen]...))
		c.ReadUntil(t.Context(), calls[1].ended)
		if !c.att.kept || c.in.have() == 0 {
			t.Fatalf("kept %v, %d bytes read", c.att.kept, c.in.have())
		}
		c.Close()
		if <-calls[2].done; !errors.Is(calls[2].err, net.ErrClosed) {
			t.Error(calls[2].err)
		}
	})
}

// TestAttendEnds: everything that ends the reading of who attends, and what it does to
// the calls that wait.
func TestAttendEnds(t *testing.T) {
	f := func(what string, end func(a *attending, cancel func()), kept, failed bool) {
		t.Helper()
		attend(t, func(a *attending) {
			ctx, cancel := context.WithCancel(context.Background())
			defer cancel()
			a.ask(1, 2, 3, 4)
			a.take(1)
			time.AfterFunc(time.Second, func() { end(a, cancel) })
			from := time.Now()
			a.ReadUntil(ctx, never)
			if took := time.Since(from); took != time.Second {
				t.Errorf("%s: read for %v", what, took)
			}
			if a.att.kept != kept || a.att.turn != 0 {
				t.Errorf("%s: kept %v, turn %d", what, a.att.kept, a.att.turn)
			}
			synctest.Wait()
			if failed {
				for i := Offset(2); i <= 3; i++ {
					<-a.calls[i].done
					if !errors.Is(a.calls[i].err, ErrConnLost) {
						t.Errorf("%s: call %d: %v", what, i, a.calls[i].err)
					}
				}
				return
			}
			a.answer(2)
			if !a.told(2) { // a goroutine reads, with a deadline that lies ahead
				t.Errorf("%s: nobody reads", what)
			}
			a.take(3)
			a.answer(4)
			a.ReadUntil(a.t.Context(), never)
		})
	}

	f("interrupted", func(a *attending, _ func()) { a.Interrupt() }, false, false)
	f("context", func(_ *attending, cancel func()) { cancel() }, false, false)
	f("closed", func(a *attending, _ func()) { a.Close() }, false, true)
}

// TestKeptTurn: what others do while the turn is kept and nobody reads.
func TestKeptTurn(t *testing.T) {
	f := func(what string, do func(a *attending)) {
		t.Helper()
		attend(t, func(a *attending) {
			a.ask(1, 2, 3)
			a.take(1)
			a.ReadUntil(a.t.Context(), func() bool { return true })
			from := time.Now()
			do(a)
			if took := time.Since(from); took != 0 {
				t.Errorf("%s: took %v", what, took)
			}
		})
	}

	f("Resume", func(a *attending) {
		a.Resume()
		a.answer(2)
		if !a.told(2) {
			t.Error("nobody reads")
		}
		a.Resume() // somebody does
		a.ask(4)
		a.take(3)
		a.answer(4)
		a.ReadUntil(a.t.Context(), never)
	})
	f("Do", func(a *attending) {
		lone := ask(context.Background(), a.Conn, 9, false)
		synctest.Wait()
		a.answer(2, 9)
		lone.wantOK(t, 9)
		if !a.told(2) {
			t.Error("a call before it was not told of its answer")
		}
		a.answer(3)
		if !a.told(3) {
			t.Error("nobody reads")
		}
	})
	f("Do while somebody attends", func(a *attending) {
		if !a.Attend() {
			t.Fatal("does not attend")
		}
		lone := ask(context.Background(), a.Conn, 9, false)
		synctest.Wait()
		a.ReadUntil(a.t.Context(), func() bool { return true })
		a.answer(9)
		lone.wantOK(t, 9) // it must not wait for who attends to come back
	})
	f("Interrupt", func(a *attending) {
		a.Interrupt() // of nobody
		if !a.Attend() {
			t.Error("the turn is gone")
		}
		a.answer(2, 3)
		a.ReadUntil(a.t.Context(), never)
		if !a.told(2) || !a.told(3) {
			t.Error("an interruption came too late and still had an effect")
		}
	})
	f("Close", func(a *attending) {
		a.answer(2)
		a.Close()
		for i := Offset(2); i <= 3; i++ {
			if <-a.calls[i].done; !errors.Is(a.calls[i].err, net.ErrClosed) {
				t.Errorf("call %d: %v", i, a.calls[i].err)
			}
		}
		if a.Attend() {
			t.Error("attends to a connection that has ended")
		}
		a.Resume()
	})
}

// TestAttendStorm has several who attend, resume and interrupt while calls of all kinds
// are made.
func TestAttendStorm(t *testing.T) { both(t, testAttendStorm) }

func testAttendStorm(t *testing.T, k kind) {
	synctest.Test(t, func(t *testing.T) {
		b := newBedOf(t, k, handlerFunc(scatter), nil)
		b.net.SetDelay(300 * time.Microsecond)
		attended := 0
		var others sync.WaitGroup
		stop := make(chan struct{})
		storm(t, func() *Conn {
			c := b.dial()
			for g := range uint64(3) {
				rng := rand.New(rand.NewPCG(g, 2))
				others.Go(func() {
					for {
						select {
						case <-stop:
							return
						case <-c.Offered():
						case <-time.After(time.Duration(rng.IntN(3000)) * time.Microsecond):
						}
						switch rng.IntN(8) {
						case 0:
							c.Resume()
						case 1:
							c.Interrupt()
						default:
							if c.Attend() {
								attended++ // by one at a time
								ctx, cancel := context.WithTimeout(context.Background(), time.Duration(1+rng.IntN(3000))*time.Microsecond)
								n := rng.IntN(5)
								c.ReadUntil(ctx, func() bool { n--; return n < 0 })
								cancel()
							}
						}
					}
				})
			}
			return c
		}, 300)
		close(stop)
		others.Wait()
		if attended < 20 {
			t.Errorf("attended %d times", attended)
		}
	})
}
