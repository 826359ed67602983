package repl

import (
	"slices"
	"sync"
	"sync/atomic"

	"github.com/teralog/teralog/wire"
)

// A Waiter is a fetch that found too little and is parked until there is more.
// It may be used for one Await after the other, not for two at a time.
type Waiter struct {
	// From is the bound the fetch saw: View.Committed.
	From wire.Offset
	// MinBytes is how many bytes beyond From the fetch is still short of;
	// less than 1 counts as 1.
	MinBytes int
	// Wake is called at most once per Await, on any goroutine, within the
	// partition's turn or behind it: it must only hand the fetch on. It means
	// look again, not that there is enough.
	Wake func()

	// state is the number of Awaits so far, times four, plus what has become of
	// the last one. The number tells an entry of the partition's list whether it
	// is the current one, so that cancelling needs no turn.
	state atomic.Uint64
}

// What has become of an Await.
const (
	over    uint64 = iota // woken, cancelled, or there never was one
	waiting               // parked, or on its way
	refused               // woken since no more can be parked
)

// Cancel takes w back: Wake is not called any more, unless a call has begun.
// It reports whether w was still parked.
func (w *Waiter) Cancel() bool {
	s := w.state.Load()
	return s&3 == waiting && w.claim(s, over)
}

// Err returns why the fetch was woken though there is no progress: BUSY if too
// many are parked on the partition, so that it should be answered and not park
// again; otherwise nil. To be called after Wake or Cancel.
func (w *Waiter) Err() error {
	if w.state.Load()&3 == refused {
		return errTooManyParked
	}
	return nil
}

// park begins an Await and returns its entry. That holds all that is asked: it
// may still lie in a mailbox when w was cancelled and asks for something else.
func (w *Waiter) park() parked {
	s := w.state.Load()
	ticket := s&^3 + 4 + waiting
	if s&3 == waiting || !w.state.CompareAndSwap(s, ticket) {
		panic("BUG: a waiter is parked twice")
	}
	return parked{w: w, ticket: ticket, from: w.From, bytes: int64(max(1, w.MinBytes))}
}

// claim ends the Await of that ticket and reports whether it was not over yet.
func (w *Waiter) claim(ticket, as uint64) bool {
	return w.state.CompareAndSwap(ticket, ticket&^3+as)
}

// parked is one entry of waiters.
type parked struct {
	w      *Waiter
	ticket uint64
	from   wire.Offset
	bytes  int64 // beyond from that make it enough
	volume int64 // flushState.volume that does; 0 until it is in the list
}

func (p parked) live() bool { return p.w.state.Load() == p.ticket }

// wake wakes the waiter if this is its current entry and it is still parked.
func (p parked) wake(as uint64) {
	if p.w.claim(p.ticket, as) {
		p.w.Wake()
	}
}

// waiters are the parked fetches of one partition.
type waiters struct {
	list  []parked
	swept int // how many were left by the last sweep
	max   int // how many may be parked

	// Where the log was when the list was looked through last: until it is
	// farther nobody in the list has enough.
	committed wire.Offset
	volume    int64
}

// add parks p unless there is progress already, in which case it is woken. The
// holder of the turn compares with the current offset, else:
//
//	fetch      reads View.Committed = 41, too short
//	partition  appends 41 and wakes the waiters: none yet
//	fetch      parks for 41 and sleeps until its deadline
//
// A fetch that raced like this is woken whatever MinBytes says, since nothing
// tells how many bytes it missed; it looks again and parks again.
func (q *waiters) add(p parked, committed wire.Offset, volume int64) {
	if p.from == committed {
		p.volume = volume + p.bytes
	}
	if committed > p.from {
		p.wake(over)
		return
	}
	if len(q.list) >= min(q.max, 2*q.swept+8) {
		q.sweep()
	}
	if len(q.list) >= q.max {
		p.wake(refused)
		return
	}
	q.list = append(q.list, p)
}

// sweep forgets those that were cancelled. It runs when the list has doubled
// since the last one, so that it costs each waiter a constant.
func (q *waiters) sweep() {
	q.list = slices.DeleteFunc(q.list, func(p parked) bool { return !p.live() })
	q.swept = len(q.list)
}

// wake takes out those for which there is enough now. A lone one it wakes. Several
// go to rest, to be woken once whoever appended has his answer: a thousand take far
// longer to wake than a record to append, and even the second woken takes a
// processor from who is to send that answer.
func (q *waiters) wake(committed wire.Offset, volume int64, rest *leftover) {
	if committed == q.committed && volume == q.volume {
		return
	}
	q.committed, q.volume = committed, volume
	var one parked // put aside until there is a second
	several := false
	q.list = slices.DeleteFunc(q.list, func(p parked) bool {
		enough := committed > p.from && volume >= p.volume
		switch {
		case !enough:
		case one.w == nil:
			one = p
		case !several:
			several = true
			rest.add(one)
			fallthrough
		default:
			rest.add(p)
		}
		return enough || !p.live()
	})
	q.swept = len(q.list)
	if one.w != nil && !several {
		one.wake(over)
	}
}

// A leftover is those that a turn has left to be woken by whoever turned.
type leftover struct {
	left atomic.Int32

	mu   sync.Mutex
	list []parked // the last left of them; the others were taken
}

// keptLeftover is for how many a partition keeps the memory.
const keptLeftover = 64

func (l *leftover) add(p parked) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.list = append(l.list, p)
	l.left.Add(1)
}

// wake wakes all. Each is taken out before, so that after a panic of one the next
// call wakes the others.
func (l *leftover) wake() {
	for l.left.Load() > 0 {
		if p, ok := l.take(); ok {
			p.wake(over)
		}
	}
}

func (l *leftover) take() (p parked, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := int(l.left.Load())
	if n == 0 {
		return p, false
	}
	p = l.list[len(l.list)-n]
	l.list[len(l.list)-n] = parked{}
	if l.left.Add(-1) == 0 {
		l.list = l.list[:0]
		if cap(l.list) > keptLeftover {
			l.list = nil
		}
	}
	return p, true
}

// wakeAll wakes everyone: the partition goes away or lost its beginning, as the
// View says.
func (q *waiters) wakeAll() {
	list := q.list
	q.list, q.swept = nil, 0
	for _, p := range list {
		p.wake(over)
	}
}
