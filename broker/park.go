package broker

import (
	"context"
	"fmt"
	"runtime/debug"
	"sync"
	"time"

	"github.com/teralog/teralog/mem"
	"github.com/teralog/teralog/repl"
	"github.com/teralog/teralog/wire"
)

// A lot is where the parked fetches stand, so that a stop can wake them all.
type lot struct {
	max    int // at most maxParked
	mu     sync.Mutex
	parked map[*fetch]struct{}
	closed bool
	swept  time.Duration // when it was last searched for fetches of nobody
}

// sweepLotEvery is how often a full lot is searched.
const sweepLotEvery = time.Second

// enter reports whether there was a place for f. A full lot is searched for
// fetches whose connections are gone, whose places are soon free then: clients
// that come and go must not keep those who stay from waiting.
func (l *lot) enter(f *fetch, now time.Duration) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return false
	}
	if len(l.parked) >= l.max {
		if now >= l.swept {
			l.swept = now + sweepLotEvery
			l.wakeGone()
		}
		return false
	}
	if l.parked == nil {
		l.parked = map[*fetch]struct{}{}
	}
	l.parked[f] = struct{}{}
	return true
}

// wakeGone wakes the fetches nobody waits for. l.mu is held.
func (l *lot) wakeGone() {
	for f := range l.parked {
		if f.gone() {
			f.wake()
		}
	}
}

func (l *lot) leave(f *fetch) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.parked, f)
}

// close lets nobody in any more and returns who stands there.
func (l *lot) close() []*fetch {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	var all []*fetch
	for f := range l.parked {
		all = append(all, f)
	}
	return all
}

// count returns how many stand there.
func (l *lot) count() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.parked)
}

func (l *lot) isClosed() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.closed
}

// park leaves f at its partitions until one of them has enough or its time is
// up.
//
// The waiters are set before f counts as parked, so a wake may come while f is
// still being parked. Then nobody queues f twice:
//
//	fetch      sets its waiters
//	partition  has records, calls wake: not parked yet, so it only notes woken
//	fetch      finds the note instead of parking, and looks again
//
// A wake may also come late, to a fetch that was answered and now serves
// another request: then that one looks once more than it must.
func (f *fetch) park() {
	if !f.b.lot.enter(f, f.b.time().Mono) {
		if f.b.lot.isClosed() {
			f.answer()
			return
		}
		f.refuse(errParked)
		return
	}
	missing := (int64(f.req.MinBytes) - f.total) / int64(len(f.req.Partitions)) // some partition has to bring that much
	f.drop()
	for len(f.waiters) < len(f.req.Partitions) {
		f.waiters = append(f.waiters, &repl.Waiter{Wake: f.timer.F})
	}
	for i := range f.resp.Partitions {
		r, w := &f.resp.Partitions[i], f.waiters[i]
		w.From, w.MinBytes = r.Committed, int(missing)
		p, err := f.b.leader(wire.PartitionID{Topic: r.Topic, Partition: r.Partition})
		if err == nil {
			err = p.Await(w)
		}
		if err != nil { // it went away meanwhile, or takes no more: the next look tells
			f.refused = err
			f.wake()
		}
	}
	f.b.wheel.Set(&f.timer, f.within)
	if !f.state.CompareAndSwap(looking, parked) {
		f.b.ready <- f
	}
}

// wake has f looked at again. It is called by partitions and by the timer.
func (f *fetch) wake() {
	if f.state.CompareAndSwap(parked, looking) {
		f.b.ready <- f // never blocks: there is room for all that may be parked
		return
	}
	f.state.CompareAndSwap(looking, woken)
}

// resume takes f, which ready had, out of the lot and looks again.
func (f *fetch) resume() {
	f.call.Retime()
	f.b.lot.leave(f)
	f.b.wheel.Stop(&f.timer)
	for i := range f.req.Partitions {
		w := f.waiters[i]
		if !w.Cancel() && w.Err() != nil {
			f.refused = w.Err()
		}
	}
	f.state.Store(looking)
	if wire.CodeOf(f.refused) == wire.CodeBusy {
		f.refuse(f.refused)
		return
	}
	f.refused = nil
	f.serve()
}

// A job is a part of a request for the workers, since it reads the disk or
// decodes, and what to do if that panics.
type job struct{ do, fail func() }

// Jobs wait for the workers of one kind.
type jobs chan job

// submit adds a job; false if too many wait already.
func (q jobs) submit(do, fail func()) bool {
	select {
	case q <- job{do, fail}:
		return true
	default:
		return false
	}
}

// run does a job.
func (b *Broker) run(j job) {
	if !b.guard("a worker", j.do) {
		j.fail()
	}
}

// resume has a fetch that was woken look again.
func (b *Broker) resume(f *fetch) {
	if !b.guard("a fetch", f.resume) {
		f.fail()
	}
}

// guard calls f for one request or partition, and reports whether it came back.
// A panic in it is logged and goes no farther.
func (b *Broker) guard(where string, f func()) (ok bool) {
	defer func() {
		if v := recover(); v != nil {
			b.log.Error("panic in "+where, "err", fmt.Errorf("panic: %v", v), "stack", string(debug.Stack()))
		}
	}()
	f()
	return true
}

// unpark has every parked fetch answered with what there is.
func (b *Broker) unpark() {
	for _, f := range b.lot.close() {
		f.wake()
	}
}

func (b *Broker) runReady(ctx context.Context) {
	for {
		select {
		case f := <-b.ready:
			b.resume(f)
			if len(b.ready) > 0 {
				mem.Yield() // many are served in a row
			}
		case <-ctx.Done():
			return
		}
	}
}

// runJobs is one worker.
func (b *Broker) runJobs(ctx context.Context, q jobs) {
	for {
		select {
		case j := <-q:
			b.run(j)
		case <-ctx.Done():
			return
		}
	}
}

// runWheel advances the timers of parked fetches.
func (b *Broker) runWheel(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		next := b.wheel.Advance(b.time().Mono)
		if next >= 0 {
			timer.Reset(next - b.time().Mono)
		}
		select {
		case <-timer.C:
		case <-b.wheel.Wake():
		case <-ctx.Done():
			return
		}
	}
}
