package mem

import (
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// push pushes v and expects the answer.
func push(t *testing.T, q *Queue[int], v int, wantOK, wantMine bool) {
	t.Helper()
	if ok, mine := q.Push(v); ok != wantOK || mine != wantMine {
		t.Fatalf("Push(%d) = %v, %v; want %v, %v", v, ok, mine, wantOK, wantMine)
	}
}

// pop pops or frees, and expects what comes.
func pop(t *testing.T, q *Queue[int], want ...int) {
	t.Helper()
	if got := q.PopOrFree(nil); !slices.Equal(got, want) {
		t.Fatalf("PopOrFree = %v, want %v", got, want)
	}
}

func take(t *testing.T, q *Queue[int], want bool) {
	t.Helper()
	if got := q.Take(); got != want {
		t.Fatalf("Take = %v, want %v", got, want)
	}
}

func TestQueueTurn(t *testing.T) {
	q := NewQueue[int](3)
	push(t, q, 1, true, true)  // the first pusher gets the turn
	push(t, q, 2, true, false) // and the next only adds to its work
	take(t, q, false)
	pop(t, q, 1, 2) // and keeps it
	take(t, q, false)
	push(t, q, 3, true, false)
	pop(t, q, 3)
	pop(t, q) // until it finds nothing
	take(t, q, true)
	take(t, q, false)
	pop(t, q)

	push(t, q, 4, true, true)
	q.Free() // whatever is queued
	take(t, q, true)
	q.Free()
	push(t, q, 5, true, true)
	push(t, q, 6, true, false)
	push(t, q, 7, false, false) // full
	if q.Len() != 3 {
		t.Fatalf("%d items; want 3", q.Len())
	}
	q.Free()
	push(t, q, 7, false, false) // a refused push gives no turn
	take(t, q, true)
	pop(t, q, 4, 5, 6)
	if q.HandOrFree() {
		t.Fatal("handed over with nothing queued")
	}
	take(t, q, true)
}

func TestQueuePopAppends(t *testing.T) {
	q := NewQueue[int](3)
	push(t, q, 1, true, true)
	if got := q.PopOrFree([]int{0}); !slices.Equal(got, []int{0, 1}) {
		t.Fatalf("popped %v", got)
	}
	if got := q.PopOrFree([]int{0}); !slices.Equal(got, []int{0}) {
		t.Fatalf("popped %v of nothing", got)
	}
}

func TestQueueMisuse(t *testing.T) {
	q := NewQueue[int](3)
	f := func(op string, use func()) {
		t.Helper()
		mustPanic(t, op+" by a goroutine without the turn, which is free", use)
	}

	f("PopOrFree", func() { q.PopOrFree(nil) })
	f("Hand", q.Hand)
	f("HandOrFree", func() { q.HandOrFree() })
	f("Free", q.Free)

	q.Take()
	q.Hand()
	mustPanic(t, "which is handed to the owner", func() { q.PopOrFree(nil) })
	mustPanic(t, "capacity 0", func() { NewQueue[int](0) })
}

// TestQueueLetsGo looks at what a queue holds on to after a pop.
func TestQueueLetsGo(t *testing.T) {
	q := NewQueue[*int](1000)
	fill := func(n int) {
		for range n {
			q.Push(new(int))
		}
		q.PopOrFree(nil)
		for _, p := range q.items[:cap(q.items)] {
			if p != nil {
				t.Fatal("the queue still points to what was popped")
			}
		}
	}

	fill(1000)
	if cap(q.items) < 1000 {
		t.Fatal("slots dropped that the next burst needs")
	}
	fill(10)
	if cap(q.items) != 0 {
		t.Fatalf("%d slots kept after the burst", cap(q.items))
	}
	fill(keepItems)
	fill(1)
	if cap(q.items) == 0 {
		t.Fatal("a few slots are not worth dropping")
	}
}

// TestQueueOwner follows an owner goroutine step by step.
func TestQueueOwner(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := NewQueue[int](8)
		turns := make(chan []int)
		end := make(chan struct{}) // lets the owner end its turn
		go func() {
			defer close(turns)
			for {
				got, open := q.PopAll(nil)
				if !open {
					return
				}
				turns <- got
				<-end
			}
		}()
		turn := func(want ...int) {
			t.Helper()
			if got := <-turns; !slices.Equal(got, want) {
				t.Fatalf("the owner got %v, want %v", got, want)
			}
		}
		asleep := func() {
			t.Helper()
			synctest.Wait()
			select {
			case got := <-turns:
				t.Fatalf("the owner turns with %v; want it asleep", got)
			default:
			}
		}

		asleep()
		push(t, q, 1, true, true)
		asleep() // a push wakes nobody
		q.Hand()
		turn(1)
		push(t, q, 2, true, false) // the owner holds the turn
		take(t, q, false)
		end <- struct{}{}
		turn(2) // and comes back for what it finds
		end <- struct{}{}
		asleep()

		take(t, q, true) // its turn is free while it sleeps
		q.Hand()
		turn() // handed over with nothing queued, it turns all the same
		end <- struct{}{}
		asleep()

		push(t, q, 3, true, true)
		pop(t, q, 3)
		push(t, q, 4, true, false)
		if !q.HandOrFree() { // what came in meanwhile is the owner's
			t.Fatal("not handed over")
		}
		turn(4)
		end <- struct{}{}
		asleep()

		push(t, q, 5, true, true)
		q.Close()
		q.Close()
		asleep() // the holder is not disturbed
		push(t, q, 6, false, false)
		q.HandOrFree()
		turn(5)
		end <- struct{}{}
		if _, open := <-turns; open {
			t.Fatal("the owner turns again after the last item")
		}
		take(t, q, false) // it kept the turn
		push(t, q, 6, false, false)
	})
}

// TestQueueClose closes in each state the turn can be in; the owner must end,
// after it got what was queued.
func TestQueueClose(t *testing.T) {
	f := func(name string, want []int, use func(q *Queue[int])) {
		t.Helper()
		synctest.Test(t, func(t *testing.T) {
			q := NewQueue[int](8)
			var got []int
			ended := false
			go func() {
				for open := true; open; {
					got, open = q.PopAll(got)
				}
				ended = true
			}()
			synctest.Wait()
			use(q)
			synctest.Wait()
			if !ended || !slices.Equal(got, want) {
				t.Fatalf("%s: the owner got %v, ended: %v; want %v", name, got, ended, want)
			}
			take(t, q, false)
		})
	}

	f("free", nil, func(q *Queue[int]) { q.Close() })
	f("free with something queued", []int{1}, func(q *Queue[int]) { q.Push(1); q.Free(); q.Close() })
	closed := func(q *Queue[int]) *Queue[int] {
		q.Close()
		synctest.Wait() // the owner has seen it, and that the turn is held
		return q
	}
	f("held, popped, freed", nil, func(q *Queue[int]) { q.Push(1); q.PopOrFree(nil); closed(q).PopOrFree(nil) })
	f("held, freed", []int{1}, func(q *Queue[int]) { q.Push(1); closed(q).Free() })
	f("held, handed", []int{1}, func(q *Queue[int]) { q.Push(1); closed(q).Hand() })
	f("held, handed or freed", nil, func(q *Queue[int]) { q.Take(); closed(q).HandOrFree() })
	f("handed", []int{1}, func(q *Queue[int]) { q.Push(1); q.Hand(); q.Close() })
}

// TestQueueCloseBefore closes, and hands over, before the owner first comes.
func TestQueueCloseBefore(t *testing.T) {
	q := NewQueue[int](8)
	q.Push(1)
	q.Hand()
	q.Close()
	if got, open := q.PopAll(nil); !open || !slices.Equal(got, []int{1}) {
		t.Fatalf("PopAll = %v, %v", got, open)
	}
	for range 2 {
		if got, open := q.PopAll([]int{9}); open || !slices.Equal(got, []int{9}) {
			t.Fatalf("PopAll of a closed, drained queue = %v, %v", got, open)
		}
	}
}

// TestQueueOwnTurn has the owner end its turn by other means than PopAll.
func TestQueueOwnTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := NewQueue[int](8)
		log := make(chan []int, 8)
		go func() {
			defer close(log)
			for i := 0; ; i++ {
				got, open := q.PopAll(nil)
				if !open {
					return
				}
				log <- got
				switch i {
				case 0:
					q.Hand() // turn me once more
				case 1:
					q.PopOrFree(nil) // frees it: others may turn before PopAll
				}
			}
		}()
		q.Push(1)
		q.Hand()
		synctest.Wait()
		if a, b := <-log, <-log; !slices.Equal(a, []int{1}) || len(b) != 0 || len(log) != 0 {
			t.Fatalf("turns with %v, %v and %d more", a, b, len(log))
		}
		push(t, q, 2, true, true)
		q.Close()
		pop(t, q, 2)
		pop(t, q)
		if got, more := <-log; more {
			t.Fatalf("a turn with %v after Close", got)
		}
	})
}

func TestQueueTwoOwners(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := NewQueue[int](1)
		go q.PopAll(nil)
		synctest.Wait()
		mustPanic(t, "two goroutines call PopAll", func() { q.PopAll(nil) })
		q.Close()
	})
}

// stress is a queue whose items are checked by whoever holds the turn.
type stress struct {
	t       *testing.T
	q       *Queue[[2]int] // pusher, number
	holders atomic.Int32
	next    []int // by pusher: the number to come. Plain: the turn guards it.
	turns   map[string]int
}

// work is one turn.
func (s *stress) work(who string, items [][2]int) {
	s.turns[who]++
	for _, v := range items {
		if v[1] != s.next[v[0]] {
			s.t.Errorf("pusher %d: item %d came when %d was to come", v[0], v[1], s.next[v[0]])
		}
		s.next[v[0]] = v[1] + 1
	}
}

// enter and leave stand inside the time in which the turn is held.
func (s *stress) enter() {
	if n := s.holders.Add(1); n != 1 {
		s.t.Errorf("%d hold the turn", n)
	}
}

func (s *stress) leave() { s.holders.Add(-1) }

// pop takes what is queued; if that is nothing, the turn is over.
func (s *stress) pop(who string) bool {
	s.leave()
	items := s.q.PopOrFree(nil)
	if len(items) == 0 {
		return false
	}
	s.enter()
	s.work(who, items)
	return true
}

// inline is what a holder that is not the owner does with the turn.
func (s *stress) inline(r *rand.Rand) {
	s.enter()
	switch r.IntN(4) {
	case 0: // one turn, the rest is the owner's
		if s.pop("one") {
			s.leave()
			s.q.HandOrFree()
		}
	case 1: // until nothing is left
		for s.pop("all") {
		}
	case 2: // nothing
		s.leave()
		s.q.Hand()
	case 3: // nothing, and nothing of the owner's if it can be helped
		s.leave()
		s.q.HandOrFree()
	}
}

// TestQueueStress has pushers, inline holders, takers and the owner at one
// queue. No item may be lost, doubled or out of its pusher's order, no two may
// hold the turn, and no item may be left with everybody asleep.
func TestQueueStress(t *testing.T) {
	const pushers, items = 8, 1000
	for capacity := range 3 {
		synctest.Test(t, func(t *testing.T) {
			s := &stress{t: t, q: NewQueue[[2]int](1 << (4 * capacity)), next: make([]int, pushers), turns: map[string]int{}}
			owner := make(chan struct{})
			go func() {
				defer close(owner)
				var got [][2]int
				for open := true; ; {
					if got, open = s.q.PopAll(got[:0]); !open {
						return
					}
					s.enter()
					s.work("owner", got)
					s.leave()
				}
			}()

			var wg sync.WaitGroup
			for p := range pushers {
				wg.Go(func() {
					r := rand.New(rand.NewPCG(uint64(capacity), uint64(p)))
					for i := 0; i < items; {
						ok, mine := s.q.Push([2]int{p, i})
						if ok {
							i++
						} else {
							time.Sleep(time.Nanosecond) // the bubble's time: until all others sleep, the owner too
						}
						if mine || r.IntN(8) == 0 && s.q.Take() {
							s.inline(r)
						}
					}
				})
			}
			wg.Wait()
			synctest.Wait() // the owner has done what was handed to it, and sleeps
			for p, n := range s.next {
				if n != items {
					t.Errorf("pusher %d: %d of %d items were seen with the queue open", p, n, items)
				}
			}
			for _, who := range []string{"one", "all", "owner"} {
				if s.turns[who] == 0 {
					t.Errorf("no turn of %q among %v: this run proves nothing", who, s.turns)
				}
			}
			s.q.Close()
			<-owner
		})
	}
}

// TestQueueStressClose closes in the middle of it all: what was accepted is
// seen, and the owner has the last turn.
func TestQueueStressClose(t *testing.T) {
	const pushers = 8
	for round := range 40 {
		synctest.Test(t, func(t *testing.T) {
			s := &stress{t: t, q: NewQueue[[2]int](64), next: make([]int, pushers), turns: map[string]int{}}
			accepted := make([]int, pushers)
			var closed atomic.Bool
			var wg sync.WaitGroup
			for p := range pushers {
				wg.Go(func() {
					r := rand.New(rand.NewPCG(uint64(round), uint64(p)))
					for i := 0; i < 200; {
						ok, mine := s.q.Push([2]int{p, i})
						if ok {
							i++
							accepted[p] = i
						}
						if mine {
							s.inline(r)
						}
						if p == 0 && i == 100 {
							s.q.Close()
							closed.Store(true)
						}
						switch {
						case ok:
						case closed.Load():
							return
						default:
							time.Sleep(time.Nanosecond)
						}
					}
				})
			}
			var got [][2]int
			for open := true; ; {
				if got, open = s.q.PopAll(got[:0]); !open {
					break
				}
				s.enter()
				s.work("owner", got)
				s.leave()
			}
			s.enter() // for ever
			wg.Wait()
			if !slices.Equal(s.next, accepted) {
				t.Errorf("round %d: accepted %v, seen %v", round, accepted, s.next)
			}
		})
	}
}
