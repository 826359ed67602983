package mem

import (
	"context"
	"math/bits"
	"sync"
	"time"
)

// The wheel counts time in ticks. A tick is a number of slotBits digits, one a
// level; levels of them hold every time.Duration, so nothing wraps around.
const (
	tick     = time.Millisecond
	maxTick  = uint64(1<<63-1) / uint64(tick)
	slotBits = 6
	slots    = 1 << slotBits
	levels   = 8
)

// A Wheel calls functions when their time has come, to the millisecond, as its
// caller advances it. Setting and stopping a timer take the same short time
// however many there are.
//
// A timer lies on the level of the highest digit in which its tick differs from
// the wheel's own, in the slot of that digit. All timers of a level are thus
// due before all of the next, and when the wheel comes to a slot it spreads
// its timers over the levels below.
//
// All methods may be called from any goroutine, callbacks included.
type Wheel struct {
	mu   sync.Mutex
	now  uint64 // tick up to which everything was called
	from uint64 // first tick a timer may be set to
	next uint64 // tick the caller of Advance was told, and will come back by
	wake chan struct{}

	busy  [levels]uint64 // bit s: slot s is not empty
	slots [levels][slots]*Timer
}

// A Timer is a call to come. Its zero value with F set is ready; it may be set
// again and again, and lie inside what it belongs to, so that setting it takes
// no memory. A timer belongs to one wheel. It must not be copied once set.
type Timer struct {
	// F is called without any lock held, on the goroutine inside Advance, which
	// it must not hold up: it posts to a mailbox and returns.
	F func()

	at         uint64 // tick
	prev, next *Timer // circle of the slot; nil: not set
	level      uint8
	slot       uint8
}

// NewWheel returns an empty wheel that stands at mono 0.
func NewWheel() *Wheel {
	return &Wheel{next: never, wake: make(chan struct{}, 1)}
}

// never stands for no tick at all.
const never = 1<<64 - 1

// At calls f once Advance reaches mono. cancel stops that, unless f was already
// called or just begins to be; it may be called more than once.
func (w *Wheel) At(mono time.Duration, f func()) (cancel func()) {
	t := &Timer{F: f}
	w.Set(t, mono)
	return func() { w.Stop(t) }
}

// Set has t.F called once Advance reaches mono: never before, and at the latest
// by an Advance a millisecond after it. A timer that is already set moves. One
// set from within a callback, for a time that has passed, waits for the next
// Advance: a callback that sets its own timer cannot keep the wheel for ever.
func (w *Wheel) Set(t *Timer, mono time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.unlink(t)
	t.at = max(dueTick(mono), w.from)
	w.link(t)
	if t.at < w.next {
		w.next = t.at
		select {
		case w.wake <- struct{}{}:
		default:
		}
	}
}

// Stop unsets t and returns whether it was set. If so, t.F will not be called;
// if not, it was called, or is just being.
func (w *Wheel) Stop(t *Timer) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.unlink(t)
}

// Advance calls what is due at mono, in the order of the deadlines, and returns
// the mono at which it wants to be called again: no later than the next
// deadline, maybe earlier; negative if no timer is set. Time that goes back is
// taken for standing still.
func (w *Wheel) Advance(mono time.Duration) (next time.Duration) {
	to := uint64(max(mono, 0) / tick)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.from, w.next = to+1, 0 // whoever sets a timer meanwhile need not wake the one who is here
	for t := w.pop(to); t != nil; t = w.pop(to) {
		w.call(t.F)
	}
	w.now = max(w.now, to)
	w.from = w.now
	if w.next = w.soonest(); w.next == never {
		return -1
	}
	return time.Duration(w.next) * tick
}

// call calls f outside the lock, which its caller holds before and after.
func (w *Wheel) call(f func()) {
	w.mu.Unlock()
	defer w.mu.Lock()
	f()
}

// Wake is signalled when a timer is set that is due before the time the last
// Advance returned. Who sleeps until then must wake up and call Advance.
func (w *Wheel) Wake() <-chan struct{} { return w.wake }

// Round returns once an Advance has begun after the call, so that somebody still
// turns the wheel; or with ctx's error.
func (w *Wheel) Round(ctx context.Context) error {
	came := make(chan struct{})
	cancel := w.At(0, func() { close(came) })
	defer cancel()
	select {
	case <-came:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// pop unsets the first timer that is due at tick to, nil if none is, and moves
// the wheel to its tick.
func (w *Wheel) pop(to uint64) *Timer {
	for {
		at := w.soonest()
		if at > to {
			return nil
		}
		w.now = at
		if w.busy[0] != 0 {
			t := w.slots[0][bits.TrailingZeros64(w.busy[0])]
			w.unlink(t)
			return t
		}
		w.spread()
	}
}

// soonest returns the tick at which the first slot in use begins.
func (w *Wheel) soonest() uint64 {
	for level, busy := range w.busy {
		if busy != 0 {
			shift := uint(level * slotBits)
			slot := uint64(bits.TrailingZeros64(busy))
			return w.now>>shift>>slotBits<<slotBits<<shift | slot<<shift
		}
	}
	return never
}

// spread puts the timers of the first slot in use, at whose begin the wheel
// stands, on the levels below.
func (w *Wheel) spread() {
	for level, busy := range w.busy {
		if busy == 0 {
			continue
		}
		head := &w.slots[level][bits.TrailingZeros64(busy)]
		for t := *head; t != nil; t = *head {
			w.unlink(t)
			w.link(t)
		}
		return
	}
}

// link puts t at the end of its slot's circle.
func (w *Wheel) link(t *Timer) {
	level := max(bits.Len64(t.at^w.now)-1, 0) / slotBits
	slot := t.at >> (level * slotBits) % slots
	t.level, t.slot = uint8(level), uint8(slot)
	w.busy[level] |= 1 << slot
	head := &w.slots[level][slot]
	if *head == nil {
		t.prev, t.next = t, t
		*head = t
		return
	}
	t.prev, t.next = (*head).prev, *head
	t.prev.next, t.next.prev = t, t
}

// unlink takes t out of its slot's circle, and returns whether it was in one.
func (w *Wheel) unlink(t *Timer) bool {
	if t.next == nil {
		return false
	}
	head := &w.slots[t.level][t.slot]
	switch {
	case t.next == t:
		*head = nil
		w.busy[t.level] &^= 1 << t.slot
	case *head == t:
		*head = t.next
	}
	t.prev.next, t.next.prev = t.next, t.prev
	t.prev, t.next = nil, nil
	return true
}

// dueTick returns the first tick that is not before mono. The last one of all
// stands for what lies beyond it, less than a tick, 292 years from the start.
func dueTick(mono time.Duration) uint64 {
	if mono <= 0 {
		return 0
	}
	return min(uint64(mono-1)/uint64(tick)+1, maxTick)
}
