package mem

import (
	"cmp"
	"context"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

const ms = time.Millisecond

// TestWheel sets one timer and advances; an empty result means "not yet".
func TestWheel(t *testing.T) {
	f := func(deadline, advance time.Duration, want bool) {
		t.Helper()
		w := NewWheel()
		called := 0
		w.At(deadline, func() { called++ })
		next := w.Advance(advance)
		if called > 1 || (called == 1) != want {
			t.Fatalf("deadline %v: called %d times at %v", deadline, called, advance)
		}
		if want && next >= 0 || !want && (next <= advance || next-deadline >= ms) {
			t.Fatalf("deadline %v: at %v the wheel wants to be called at %v", deadline, advance, next)
		}
	}

	f(0, 0, true)
	f(-hour, 0, true)
	f(ms, 0, false)
	f(ms, ms-1, false)
	f(ms, ms, true)
	f(ms+1, ms, false)
	f(ms+1, 2*ms-1, false) // due, but the tick is not over: late, never early
	f(ms+1, 2*ms, true)
	f(ms, hour, true)
	for level := range levels - 1 { // on both sides of each level's range
		edge := ms << (slotBits * level)
		f(edge, edge-1, false)
		f(edge, edge, true)
		f(edge-ms, edge-ms, true)
		f(edge+ms, edge, false)
		f(edge+ms, edge+ms, true)
		f(63*edge, 63*edge-1, false)
		f(63*edge, 63*edge, true)
	}
	f(400*day, 400*day-1, false)
	f(400*day, 400*day, true)
	f(math.MaxInt64, math.MaxInt64-ms, false)
	f(math.MaxInt64, math.MaxInt64, true)
	f(math.MinInt64, math.MinInt64, true)
}

func TestWheelCancel(t *testing.T) {
	w := NewWheel()
	if next := w.Advance(0); next >= 0 {
		t.Fatalf("an empty wheel wants to be called at %v", next)
	}
	called := 0
	cancel := w.At(5*ms, func() { called++ })
	if next := w.Advance(0); next != 5*ms {
		t.Fatalf("next = %v", next)
	}
	cancel()
	cancel()
	if next := w.Advance(hour); next >= 0 || called != 0 {
		t.Fatalf("cancelled: next %v, called %d times", next, called)
	}
	cancel = w.At(0, func() { called++ }) // a time that has passed
	w.Advance(hour)
	cancel()
	w.Advance(2 * hour)
	if called != 1 {
		t.Fatalf("called %d times", called)
	}
}

func TestTimer(t *testing.T) {
	w := NewWheel()
	called := 0
	timer := Timer{F: func() { called++ }}
	if w.Stop(&timer) {
		t.Fatal("a timer never set was stopped")
	}
	w.Set(&timer, 10*ms)
	w.Set(&timer, 20*ms) // moves
	if next := w.Advance(15 * ms); called != 0 || next != 20*ms {
		t.Fatalf("called %d times, next %v", called, next)
	}
	if !w.Stop(&timer) || w.Stop(&timer) {
		t.Fatal("Stop must say whether the timer was set")
	}
	w.Set(&timer, 30*ms)
	w.Advance(30 * ms)
	if called != 1 || w.Stop(&timer) {
		t.Fatalf("called %d times", called)
	}
	w.Set(&timer, 40*ms) // and again
	w.Advance(40 * ms)
	if called != 2 {
		t.Fatalf("called %d times", called)
	}
	if a := testing.AllocsPerRun(100, func() { w.Set(&timer, hour); w.Stop(&timer) }); a != 0 {
		t.Fatalf("setting a timer allocates %v times", a)
	}
}

// TestWheelBack advances to the past, which must be taken for standing still.
func TestWheelBack(t *testing.T) {
	w := NewWheel()
	w.Advance(100 * ms)
	called := 0
	timer := Timer{F: func() { called++ }}
	w.Set(&timer, 110*ms)
	if timer.level != 0 {
		t.Fatalf("a timer 10 ms away lies on level %d", timer.level)
	}
	for _, mono := range []time.Duration{0, 50 * ms, -hour, 100 * ms, 110*ms - 1} {
		if next := w.Advance(mono); called != 0 || next != 110*ms {
			t.Fatalf("at %v: called %d times, next %v", mono, called, next)
		}
	}
	if w.Advance(110 * ms); called != 1 {
		t.Fatalf("called %d times", called)
	}
}

// TestWheelCallbacks sets, stops and advances from within callbacks.
func TestWheelCallbacks(t *testing.T) {
	w := NewWheel()
	var log []string
	cancelled := w.At(7*ms, func() { log = append(log, "cancelled") })
	again := Timer{}
	again.F = func() {
		log = append(log, "again")
		w.Set(&again, 0) // must not keep Advance for ever
	}
	w.Set(&again, 2*ms)
	w.At(5*ms, func() {
		log = append(log, "five")
		cancelled()
		w.At(8*ms, func() { log = append(log, "eight") })
		w.At(30*ms, func() { log = append(log, "thirty") })
	})

	if next := w.Advance(20 * ms); next != 21*ms || !slices.Equal(log, []string{"again", "five"}) {
		t.Fatalf("called %q, next %v", log, next)
	}
	w.Stop(&again)
	if next := w.Advance(21 * ms); next <= 21*ms || next > 30*ms || !slices.Equal(log[2:], []string{"eight"}) {
		t.Fatalf("called %q, next %v", log[2:], next)
	}
	w.Advance(30 * ms)
	if !slices.Equal(log[3:], []string{"thirty"}) {
		t.Fatalf("called %q", log[3:])
	}

	// A callback that panics leaves the wheel usable.
	w.At(0, func() { panic("BUG: of the callback") })
	mustPanic(t, "of the callback", func() { w.Advance(31 * ms) })
	w.At(0, func() { log = append(log, "after") })
	w.Advance(32 * ms)
	if log[len(log)-1] != "after" {
		t.Fatalf("called %q", log)
	}
}

// A listed timer is one of the sorted list the wheel is compared with.
type listed struct {
	Timer
	id       int
	deadline time.Duration
	tick     uint64 // by which the wheel counts it
	set      bool
}

// due unsets and returns what must be called at mono, sorted by tick and id.
func due(list []*listed, mono time.Duration) (due []*listed) {
	for _, l := range list {
		if l.set && l.tick <= uint64(mono/ms) {
			due = append(due, l)
			l.set = false
		}
	}
	slices.SortFunc(due, byTickAndID)
	return due
}

// soonest returns the earliest deadline, -1 if there is none.
func soonest(list []*listed) time.Duration {
	soonest := time.Duration(-1)
	for _, l := range list {
		if l.set && (soonest < 0 || l.deadline < soonest) {
			soonest = l.deadline
		}
	}
	return soonest
}

func byTick(a, b *listed) int { return cmp.Compare(a.tick, b.tick) }

func byTickAndID(a, b *listed) int { return cmp.Or(byTick(a, b), cmp.Compare(a.id, b.id)) }

// TestWheelList compares the wheel with a sorted list under random sets, stops
// and advances, from a nanosecond to years.
func TestWheelList(t *testing.T) {
	calls := 0
	for seed := range uint64(300) {
		r := rand.New(rand.NewPCG(seed, 0))
		some := func() time.Duration { return time.Duration(r.Int64N(1 << (1 + r.IntN(56)))) }
		w := NewWheel()
		var called, list []*listed
		for id := range 20 {
			l := &listed{id: id}
			l.F = func() { called = append(called, l) }
			list = append(list, l)
		}
		var now time.Duration
		next := w.Advance(0)
		for range 400 {
			l := list[r.IntN(len(list))]
			switch r.IntN(5) {
			case 0, 1:
				l.deadline, l.set = now+some()-some()/4, true
				l.tick = max(dueTick(l.deadline), uint64(now/ms)) // the past is over
				w.Set(&l.Timer, l.deadline)
				continue
			case 2:
				if stopped := w.Stop(&l.Timer); stopped != l.set {
					t.Fatalf("seed %d: Stop = %v, set: %v", seed, stopped, l.set)
				}
				l.set = false
				continue
			case 3:
				now = max(now, next) // as one who sleeps till then
			case 4:
				now += some()
			}
			called = nil
			next = w.Advance(now)
			calls += len(called)
			if !slices.IsSortedFunc(called, byTick) {
				t.Fatalf("seed %d: at %v timers were called out of order", seed, now)
			}
			slices.SortFunc(called, byTickAndID)
			if want := due(list, now); !slices.Equal(called, want) {
				t.Fatalf("seed %d: at %v %d timers were called, not the %d that are due", seed, now, len(called), len(want))
			}
			if s := soonest(list); s < 0 != (next < 0) || s >= 0 && (next <= now || next > s+ms-1) {
				t.Fatalf("seed %d: at %v, the soonest due at %v, the wheel wants to be called at %v", seed, now, s, next)
			}
		}
	}
	if calls < 10000 {
		t.Fatalf("%d calls compared: too few to prove anything", calls)
	}
}

// TestWheelWake looks at whom a new timer wakes.
func TestWheelWake(t *testing.T) {
	w := NewWheel()
	f := func(deadline time.Duration, want bool) {
		t.Helper()
		w.At(deadline, func() {})
		select {
		case <-w.Wake():
			if !want {
				t.Fatalf("a timer at %v woke the sleeper", deadline)
			}
		default:
			if want {
				t.Fatalf("a timer at %v did not wake the sleeper", deadline)
			}
		}
	}

	f(60*ms, true) // nobody said when to come back
	f(60*ms, false)
	f(50*ms, true)
	f(55*ms, false) // woken for 50 ms, the sleeper will see
	w.Advance(0)
	f(50*ms, false)
	f(45*ms, true)
	w.Advance(100 * ms)
	f(200*ms, true)
}

// TestWheelSleeper runs the loop a wheel is made for, in a bubble's time.
func TestWheelSleeper(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, c, stop := NewWheel(), NewClock(), make(chan struct{})
		go func() {
			for {
				next := w.Advance(c.Now().Mono)
				var alarm <-chan time.Time
				if next >= 0 {
					alarm = time.After(next - c.Now().Mono)
				}
				select {
				case <-alarm:
				case <-w.Wake():
				case <-stop:
					return
				}
			}
		}()
		r := rand.New(rand.NewPCG(1, 1))
		var wg sync.WaitGroup
		for range 500 {
			time.Sleep(time.Duration(r.Int64N(int64(3 * ms))))
			deadline := c.Now().Mono + time.Duration(r.Int64N(int64(ms)<<r.IntN(22)))
			wg.Add(1)
			w.At(deadline, func() {
				if late := c.Now().Mono - deadline; late < 0 || late >= ms {
					t.Errorf("deadline %v: called %v late", deadline, late)
				}
				wg.Done()
			})
		}
		wg.Wait()
		close(stop)
	})
}

// TestWheelShared sets and stops timers from many goroutines while others
// advance: each timer is called or stopped, never both, never neither.
func TestWheelShared(t *testing.T) {
	const timers = 2000
	w := NewWheel()
	var mono, called, stopped atomic.Int64
	var wg, advancers sync.WaitGroup
	end := make(chan struct{})
	for range 2 {
		advancers.Go(func() {
			for {
				select {
				case <-end:
					return
				default:
					w.Advance(time.Duration(mono.Add(int64(ms))))
				}
			}
		})
	}
	for g := range 4 {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(7, uint64(g)))
			for range timers {
				timer := &Timer{F: func() { called.Add(1) }}
				w.Set(timer, time.Duration(mono.Load())+time.Duration(r.Int64N(int64(100*ms))))
				if r.IntN(2) == 0 && w.Stop(timer) {
					stopped.Add(1)
				}
			}
		})
	}
	wg.Wait()
	close(end)
	advancers.Wait()
	if next := w.Advance(time.Duration(mono.Load()) + hour); next >= 0 {
		t.Fatalf("a timer is left at %v", next)
	}
	if called.Load()+stopped.Load() != 4*timers || called.Load() == 0 || stopped.Load() == 0 {
		t.Fatalf("%d called and %d stopped of %d", called.Load(), stopped.Load(), 4*timers)
	}
}

// TestWheelRound asks whether somebody turns the wheel.
func TestWheelRound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := NewWheel()
		ended := make(chan error)
		ctx, cancel := context.WithCancel(t.Context())
		ask := func() { ended <- w.Round(ctx) }

		go ask()
		synctest.Wait()
		select {
		case err := <-ended:
			t.Fatalf("nobody turns it: %v", err)
		case <-w.Wake():
		}
		w.Advance(0)
		if err := <-ended; err != nil {
			t.Fatal(err)
		}

		go ask()
		synctest.Wait()
		cancel()
		if err := <-ended; err != context.Canceled {
			t.Fatal(err)
		}
		if next := w.Advance(time.Hour); next >= 0 {
			t.Fatalf("a timer is left behind, due at %v", next)
		}
	})
}
