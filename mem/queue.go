package mem

import (
	"fmt"
	"sync"
	"sync/atomic"
)

// A Queue is the bounded mailbox of something that one goroutine at a time may
// work on: whoever holds its turn.
//
// The turn is free or held by exactly one. Nobody waits for it but the owner
// goroutine, the one that loops over PopAll. A pusher that finds the turn free
// gets it with its push, and may do the work itself:
//
//	ok, mine := q.Push(v)
//	if mine {
//		work(q.PopOrFree(nil)) // v and nothing else, or more
//		q.HandOrFree()         // what came in meanwhile is the owner's
//	}
//
// No item is ever forgotten: a push that does not give the turn means that it
// is held, and the turn is freed only in the critical section that saw the
// queue empty (Free is the exception, see there).
//
// All methods may be called from any goroutine, those said to be the holder's
// by the holder only. Using a turn that nobody holds panics; when Checked, so
// does using a turn that another goroutine holds.
type Queue[T any] struct {
	mu       sync.Mutex
	items    []T
	capacity int
	depth    atomic.Int32 // len(items), for who only looks
	turn     turn
	holder   uint64     // goroutine that holds the turn, when Checked
	given    *sync.Cond // the turn was handed to the owner, or the queue closed
	waiting  bool       // the owner is inside PopAll
	closed   bool
}

// A turn says who holds a queue's turn.
type turn uint8

const (
	free   turn = iota
	held        // by a pusher, or whoever took it
	handed      // to the owner, which has not seen it yet
	owned       // by the owner
)

func (t turn) String() string {
	return [...]string{"free", "held", "handed to the owner", "held by the owner"}[t]
}

// keepItems is the number of slots a queue keeps for ever once it grew them.
// Larger ones go when a small pop shows that the burst is over, since a node
// has a queue for each of its partitions.
const keepItems = 64

// NewQueue returns an empty open queue of at most capacity items, its turn
// free. Memory is taken as items come.
func NewQueue[T any](capacity int) *Queue[T] {
	if capacity < 1 {
		panic(fmt.Sprintf("BUG: queue of capacity %d", capacity))
	}
	q := &Queue[T]{capacity: capacity}
	q.given = sync.NewCond(&q.mu)
	return q
}

// Push appends v. It never blocks; !ok says that the queue is full or closed
// and v not in it. mine says that the turn was free and is now the caller's,
// who ends it by PopOrFree coming back empty, Hand, HandOrFree or Free.
func (q *Queue[T]) Push(v T) (ok, mine bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed || len(q.items) >= q.capacity {
		return false, false
	}
	q.items = append(q.items, v)
	q.depth.Store(int32(len(q.items)))
	return true, q.take()
}

// Take takes the turn if it is free.
func (q *Queue[T]) Take() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.take()
}

func (q *Queue[T]) take() bool {
	if q.turn != free {
		return false
	}
	q.turn, q.holder = held, caller()
	return true
}

// PopAll appends everything queued to dst. Only the owner goroutine calls it,
// in a loop, and holds the turn when it returns. If the owner comes with the
// turn and nothing is queued, it frees the turn and sleeps until Hand,
// HandOrFree or Close gives it back; handed over with nothing queued, PopAll
// returns dst as it was. !open says that the queue is closed and drained: dst
// is as it was and the turn stays with the owner for ever.
func (q *Queue[T]) PopAll(dst []T) (out []T, open bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.waiting {
		panic("BUG: two goroutines call PopAll of one queue")
	}
	if q.turn == owned {
		q.mine("PopAll")
		q.turn = free // to be taken again at once if there is something to do
	}
	q.waiting = true
	for !q.arrive() {
		q.given.Wait()
	}
	q.waiting = false
	if len(q.items) == 0 && q.closed {
		return dst, false
	}
	return q.pop(dst), true
}

// arrive makes the turn the owner's if it was handed over, or if it is free
// and there is something to do.
func (q *Queue[T]) arrive() bool {
	if q.turn == handed || q.turn == free && (q.closed || len(q.items) > 0) {
		q.turn, q.holder = owned, caller()
		return true
	}
	return false
}

// PopOrFree appends everything queued to dst and leaves the turn where it is.
// If nothing is queued it frees the turn and returns dst as it was. Holder
// only; it never blocks.
func (q *Queue[T]) PopOrFree(dst []T) []T {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.mine("PopOrFree")
	if len(q.items) == 0 {
		q.free()
		return dst
	}
	return q.pop(dst)
}

// pop moves all items to dst.
func (q *Queue[T]) pop(dst []T) []T {
	n := len(q.items)
	dst = append(dst, q.items...)
	clear(q.items) // what they point to is the popper's alone
	q.items = q.items[:0]
	q.depth.Store(0)
	if cap(q.items) > keepItems && n < cap(q.items)/4 {
		q.items = nil
	}
	return dst
}

// Hand gives the turn to the owner goroutine and wakes it, whatever is queued.
// Holder only; the owner itself may call it to be turned once more.
func (q *Queue[T]) Hand() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.mine("Hand")
	q.hand()
}

// HandOrFree ends a turn: it hands it to the owner goroutine if something is
// queued, else it frees it. It returns whether it handed. Holder only.
func (q *Queue[T]) HandOrFree() (handed bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.mine("HandOrFree")
	if len(q.items) == 0 {
		q.free()
		return false
	}
	q.hand()
	return true
}

// Free frees the turn whatever is queued, and wakes nobody for it: the items
// wait for the next Push or Take. It is for drivers that decide themselves who
// turns next, and have no owner goroutine. Holder only.
func (q *Queue[T]) Free() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.mine("Free")
	q.free()
}

func (q *Queue[T]) hand() {
	q.turn = handed
	q.given.Signal()
}

func (q *Queue[T]) free() {
	q.turn = free
	if q.closed {
		q.given.Signal() // the owner waits for it to drain and keep it
	}
}

// mine panics if op is not the holder's to call.
func (q *Queue[T]) mine(op string) {
	if q.turn == free || q.turn == handed {
		panic(fmt.Sprintf("BUG: %s by a goroutine without the turn, which is %v", op, q.turn))
	}
	if me := caller(); me != q.holder {
		panic(fmt.Sprintf("BUG: two holders of one turn: %s by goroutine %d, while it is %v, goroutine %d", op, me, q.turn, q.holder))
	}
}

// Close makes every later Push fail. The owner goroutine gets the turn, as
// soon as it is free, to drain what is queued, and keeps it then. Closing a
// closed queue does nothing.
func (q *Queue[T]) Close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.closed = true
	q.given.Signal()
}

// Len returns the number of items queued. It waits for nobody.
func (q *Queue[T]) Len() int { return int(q.depth.Load()) }
