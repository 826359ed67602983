package repl

import (
	"sync"
	"sync/atomic"
	"testing"

	"github.com/teralog/teralog/wire"
)

// a log for waiters: what is committed, in offsets and bytes.
type progress struct {
	committed wire.Offset
	volume    int64
}

func TestWaiters(t *testing.T) {
	f := func(from wire.Offset, minBytes int, when progress, then ...progress) (woken int) {
		t.Helper()
		q := waiters{max: 8}
		w := &Waiter{From: from, MinBytes: minBytes, Wake: func() { woken++ }}
		q.add(w.park(), when.committed, when.volume)
		for _, p := range then {
			q.wake(p.committed, p.volume, nil)
		}
		if woken > 1 || w.Err() != nil || woken == 1 == w.Cancel() {
			t.Fatalf("woken %d times with %v", woken, w.Err())
		}
		return woken
	}
	woken := func(n int) {
		t.Helper()
		if n != 1 {
			t.Fatal("not woken")
		}
	}
	asleep := func(n int) {
		t.Helper()
		if n != 0 {
			t.Fatal("woken too early")
		}
	}

	asleep(f(5, 0, progress{5, 500}))
	asleep(f(5, 0, progress{5, 500}, progress{5, 500}))
	woken(f(5, 0, progress{5, 500}, progress{6, 501}))
	asleep(f(5, 100, progress{5, 500}, progress{6, 599}))
	woken(f(5, 100, progress{5, 500}, progress{6, 599}, progress{7, 600}, progress{8, 700}))
	woken(f(4, 100, progress{5, 500}))                     // something came between look and park
	asleep(f(9, 1, progress{5, 500}, progress{9, 900}))    // a fetch ahead of the log
	woken(f(9, 1000, progress{5, 500}, progress{10, 901})) // is woken once the log passes it
}

func TestWaitersAll(t *testing.T) {
	q := waiters{max: 8}
	woken := 0
	w := &Waiter{Wake: func() { woken++ }}
	cancelled := &Waiter{Wake: func() { t.Error("a cancelled waiter was woken") }}
	q.add(w.park(), 0, 0)
	q.add(cancelled.park(), 0, 0)
	if !cancelled.Cancel() || cancelled.Cancel() {
		t.Fatal("a waiter can be cancelled once")
	}
	q.wakeAll()
	if woken != 1 || len(q.list) != 0 {
		t.Fatalf("woken %d times, %d left", woken, len(q.list))
	}
	q.add(w.park(), 0, 0)
	if q.wake(1, 1, nil); woken != 2 {
		t.Fatalf("woken %d times", woken)
	}
}

// TestWaitersReuse parks one waiter again after it was cancelled: the entry of
// the first time must not wake the second.
func TestWaitersReuse(t *testing.T) {
	q := waiters{max: 8}
	woken := 0
	w := &Waiter{From: 0, Wake: func() { woken++ }}
	q.add(w.park(), 0, 0)
	w.Cancel()
	w.From = 10
	q.add(w.park(), 10, 100)
	if q.wake(10, 100, nil); woken != 0 {
		t.Fatal("the cancelled entry woke the new one")
	}
	if q.wake(11, 101, nil); woken != 1 {
		t.Fatal("the new entry was lost")
	}
}

// TestWaitersMany: of many who have enough none is woken at once, each is once in
// the end, and one that is cancelled in between is not.
func TestWaitersMany(t *testing.T) {
	const n = 80
	q := waiters{max: n}
	woken := 0
	all := make([]*Waiter, n)
	for i := range all {
		all[i] = &Waiter{Wake: func() { woken++ }}
		q.add(all[i].park(), 0, 0)
	}
	var rest leftover
	q.wake(1, 1, &rest)
	if left := rest.left.Load(); woken != 0 || left != n || len(q.list) != 0 {
		t.Fatalf("%d woken, %d to be woken, %d parked", woken, left, len(q.list))
	}
	if !all[n-1].Cancel() {
		t.Fatal("one who is still to be woken cannot be cancelled")
	}
	if rest.wake(); woken != n-1 {
		t.Fatalf("%d of %d woken", woken, n-1)
	}
}

// TestWaitersPanic: of several to be woken one panics, and the next call wakes
// those behind it.
func TestWaitersPanic(t *testing.T) {
	var rest leftover
	q := waiters{max: 3}
	woken := 0
	for _, wake := range []func(){func() { woken++ }, func() { panic("one") }, func() { woken++ }} {
		q.add((&Waiter{Wake: wake}).park(), 0, 0)
	}
	q.wake(1, 1, &rest)
	func() {
		defer func() { recover() }()
		rest.wake()
	}()
	if rest.wake(); woken != 2 {
		t.Fatalf("%d of 2 woken", woken)
	}
}

// TestWaitersBounded parks far more than fit, most of them cancelled.
func TestWaitersBounded(t *testing.T) {
	q := waiters{max: 100}
	for range 10_000 {
		w := &Waiter{Wake: func() { t.Error("woken") }}
		q.add(w.park(), 0, 0)
		w.Cancel()
		if len(q.list) > 100 {
			t.Fatalf("%d entries", len(q.list))
		}
	}
	refused := 0
	for range 110 {
		w := &Waiter{}
		w.Wake = func() {
			if refused++; w.Err() != errTooManyParked {
				t.Errorf("woken with %v", w.Err())
			}
		}
		q.add(w.park(), 0, 0)
	}
	if refused != 10 || len(q.list) != 100 {
		t.Fatalf("%d refused, %d parked", refused, len(q.list))
	}
}

func TestWaiterParkedTwice(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Fatal("parked twice at once")
		}
	}()
	w := &Waiter{}
	w.park()
	w.park()
}

// TestWaiterOneClaim lets a wake and a cancel race: one of them wins.
func TestWaiterOneClaim(t *testing.T) {
	for range 2000 {
		var wins atomic.Int32
		w := &Waiter{Wake: func() { wins.Add(1) }}
		q := waiters{max: 8}
		q.add(w.park(), 0, 0)
		var both sync.WaitGroup
		both.Go(func() { q.wake(1, 1, nil) })
		both.Go(func() {
			if w.Cancel() {
				wins.Add(1)
			}
		})
		both.Wait()
		if wins.Load() != 1 {
			t.Fatalf("%d winners", wins.Load())
		}
	}
}

// TestWaiterAgain checks that a waiter which is used again while its last entry
// still lies in a mailbox leaves that entry as it was.
func TestWaiterAgain(t *testing.T) {
	q := waiters{max: 10}
	wakes := 0
	w := &Waiter{From: 1, MinBytes: 10, Wake: func() { wakes++ }}
	late := w.park()
	if !w.Cancel() {
		t.Fatal("not parked")
	}
	w.From, w.MinBytes = 5, 20
	now := w.park()
	if late.from != 1 || late.bytes != 10 || now.from != 5 || now.bytes != 20 {
		t.Fatalf("entries %+v and %+v", late, now)
	}
	q.add(late, 5, 100) // past what it waited for
	q.add(now, 5, 100)
	q.wake(6, 119, nil)
	if wakes != 0 {
		t.Fatalf("woken %d times, with less than was asked for", wakes)
	}
	q.wake(6, 120, nil)
	if wakes != 1 || len(q.list) != 0 {
		t.Fatalf("woken %d times, %d entries left", wakes, len(q.list))
	}
}
