package repl

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/teralog/teralog/mem"
	"github.com/teralog/teralog/storage"
	"github.com/teralog/teralog/wire"
)

// A directory is one data directory as the set sees it: its flush slots, and
// whether it still stands.
//
// At most Flushers fdatasyncs run at once, one a log, each covering all that
// was appended before it started. Logs that find no slot free wait in line.
// Those that nobody waits for wait for each other too: see lazySlots.
type directory struct {
	dir     *storage.Dir
	set     *Set
	janitor janitor
	back    writeBack
	scrub   scrubber

	slow          atomic.Bool           // a flush is late
	delay         atomic.Int64          // what the flush or append that runs longest has taken, when watch last looked
	looked        atomic.Int64          // when watch last looked, mono
	scanned       atomic.Int64          // when all partitions were looked at last, mono
	longestAppend atomic.Int64          // what it found
	resumed       atomic.Int64          // when it last found that nothing had run here for long, mono
	trouble       mem.Breaker           // refuses writes while delay is too long
	failed        atomic.Pointer[error] // once, for good
	dead          chan struct{}         // closed then
	loops         sync.WaitGroup        // the janitor's, the write-back's and the scrub's
	asked         chan struct{}         // taken by the janitor each time it comes round

	took mem.Latency // of the flushes that came back

	mu       sync.Mutex
	running  []flight
	many     many
	line     *mem.Ring[*Partition]
	lazyLine *mem.Ring[*Partition] // somebody always runs while it is not empty
	proving  flight                // of the janitor, which flushes what it proves
	sweeping *Partition            // whose old segments it unlinks
	closing  []flight              // logs being closed, as many as closers holds
	closers  chan struct{}
	longest  struct { // the call that waits for the disk longest, whoever's
		number uint64
		since  time.Duration // when it was seen first
		back   uint64        // how many have come back
		moved  time.Duration // when the last was seen to
	}
}

// A flight is a flush that runs.
type flight struct {
	p     *Partition
	since time.Duration
	lazy  bool // nobody waits for it

	// Of a simulated flush, which takes effect at once and is told later.
	to  wire.Offset
	err error
}

// A landing holds the result of a flush until a turn takes it. There is one
// flush of a log at a time, hence one result.
type landing struct {
	full atomic.Bool
	to   wire.Offset
	err  error
}

func (l *landing) put(to wire.Offset, err error) {
	if l.full.Load() {
		panic(fmt.Sprintf("BUG: flush to offset %d landed on the one to %d", to, l.to))
	}
	l.to, l.err = to, err
	l.full.Store(true)
}

func (l *landing) take() (to wire.Offset, err error, ok bool) {
	if !l.full.Load() {
		return 0, nil, false
	}
	to, err = l.to, l.err
	l.full.Store(false)
	return to, err, true
}

// maxHosted bounds the partitions of one set.
const maxHosted = 1 << 20

func newDirectory(s *Set, d *storage.Dir) *directory {
	dir := &directory{dir: d, set: s, dead: make(chan struct{}), asked: make(chan struct{}),
		closers: make(chan struct{}, s.config.Flushers), line: mem.NewRing[*Partition](maxHosted), lazyLine: mem.NewRing[*Partition](maxHosted)}
	dir.janitor.dir = dir
	dir.back.init(s.config.DirtyLimit)
	dir.scrub.init(dir)
	return dir
}

// begin asks for a slot for p's flush. Granted, the caller flushes; otherwise p
// stands in line, and whoever ends a flush gives it the slot.
func (d *directory) begin(p *Partition, mono time.Duration) (granted bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	lazy := p.leader.flush.lazy
	switch {
	case d.set.config.Manual:
		d.line.Push(p)
		return false
	case p.leader.flush.patient && d.many.take(p, mono):
		if !d.many.running {
			d.many.running = true
			d.startMany()
		}
		return false
	case lazy && d.lazies() >= lazySlots(d.lazyLine.Len()):
		d.lazyLine.Push(p)
		return false
	case len(d.running) >= d.set.config.Flushers:
		d.line.Push(p)
		return false
	}
	d.running = append(d.running, flight{p: p, since: mono, lazy: lazy})
	return true
}

// lazySlots returns how many flushes that nobody waits for may run while so many
// more of them wait. Partitions written to alike fall due together, and a flush
// of much keeps a processor for as long as the kernel looks for a place for each
// page: several at once, and nobody else is served meanwhile.
func lazySlots(wait int) int { return 1 + wait/16 }

// lazies returns how many flushes run that nobody waits for; d.mu is held.
func (d *directory) lazies() (n int) {
	for i := range d.running {
		if d.running[i].lazy {
			n++
		}
	}
	return n
}

// end gives p's slot to the next in line, which the caller has to flush; nil if
// there is none.
func (d *directory) end(p *Partition, mono time.Duration) (next *Partition) {
	d.mu.Lock()
	defer d.mu.Unlock()
	i := slices.IndexFunc(d.running, func(f flight) bool { return f.p == p })
	if i < 0 {
		panic(fmt.Sprintf("BUG: a flush of %v ended that had not begun", p.id))
	}
	d.took.Record(mono - d.running[i].since)
	was := d.running[i].lazy
	d.running = slices.Delete(d.running, i, i+1)
	waits := d.line.Len() > 0
	lazy := d.lazyLine.Len() > 0 && d.lazies() < lazySlots(d.lazyLine.Len())
	switch {
	case d.set.config.Manual:
		return nil
	case waits && (was || !lazy): // by turns, so that neither kind waits for ever
		next, _ = d.line.Pop()
		lazy = false
	case lazy:
		next, _ = d.lazyLine.Pop()
	default:
		return nil
	}
	d.running = append(d.running, flight{p: next, since: mono, lazy: lazy})
	return next
}

// beginProof takes the checkpoint that p has left for the janitor, nil if there
// is none. Until endProof p does not close its log.
func (d *directory) beginProof(p *Partition, mono time.Duration) *storage.Checkpoint {
	d.mu.Lock()
	defer d.mu.Unlock()
	c := p.captured.Swap(nil)
	if c != nil {
		d.proving = flight{p: p, since: mono}
	}
	return c
}

func (d *directory) endProof() {
	d.mu.Lock()
	p := d.proving.p
	d.proving = flight{}
	d.mu.Unlock()
	p.tell()
}

// beginSweep and endSweep are the same for the segments that p has left. Nobody
// waits for their removal, so it may take its time.
func (d *directory) beginSweep(p *Partition) *storage.Doomed {
	d.mu.Lock()
	defer d.mu.Unlock()
	left := p.doomed.Swap(nil)
	if left != nil {
		d.sweeping = p
	}
	return left
}

func (d *directory) endSweep() {
	d.mu.Lock()
	p := d.sweeping
	d.sweeping = nil
	d.mu.Unlock()
	p.tell()
}

// proves reports whether the janitor works on p's log.
func (d *directory) proves(p *Partition) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.proving.p == p || d.sweeping == p
}

// ErrHangs says that the disk of a data directory does not answer.
var ErrHangs = errors.New("the disk hangs")

// watch looks for flushes that take too long, and for any other fsync in the
// directory. One past SlowAfter makes the directory slow until it is back; one
// past FailAfter ends the directory, since nobody can wait for it any longer. Who
// was stopped for half of that, by a signal or with its whole machine, did not
// wait and cannot tell: the flush gets its time anew.
//
// It also hears of an fsync of the directory's own files that failed where
// nobody of this room was about, such as at a delete.
func (d *directory) watch(now mem.Now) {
	c := &d.set.config
	if err := d.dir.Failed(); err != nil {
		d.fail(err)
	}
	oldest, moved := d.oldest(now)
	d.delay.Store(max(int64(now.Mono-oldest), d.appended(now)))
	took := now.Mono - oldest
	late := took > c.SlowAfter
	if was := d.slow.Swap(late); late && !was {
		d.set.event(Event{Kind: DirectorySlow, Dir: d.dir, Took: took})
	}
	if was := d.looked.Swap(int64(now.Mono)); now.Mono-time.Duration(was) > c.FailAfter/2 {
		d.resumed.Store(int64(now.Mono))
	}
	if now.Mono-max(moved, time.Duration(d.resumed.Load())) > c.FailAfter {
		d.fail(fmt.Errorf("%w: a flush has not come back for %v", ErrHangs, took))
	}
}

// oldest returns when the flush that runs longest began, now if none runs; and
// since when the disk has not moved while one ran: a flush of much, to a disk
// that is slow, is many calls, each of which comes back.
func (d *directory) oldest(now mem.Now) (since, moved time.Duration) {
	waiting, back := d.dir.Waiting()
	d.mu.Lock()
	defer d.mu.Unlock()
	since = now.Mono
	look := func(f *flight) {
		if f.p != nil {
			since = min(since, f.since)
		}
	}
	look(&d.proving)
	for i := range d.running {
		look(&d.running[i])
	}
	for i := range d.closing {
		look(&d.closing[i])
	}
	if l := &d.longest; waiting != l.number {
		l.number, l.since = waiting, now.Mono
	}
	if l := &d.longest; back != l.back && !d.set.config.Manual { // a simulated flush takes effect at once
		l.back, l.moved = back, now.Mono
	}
	moved = max(since, d.longest.moved)
	if waiting != 0 {
		since, moved = min(since, d.longest.since), min(moved, d.longest.since)
	}
	return since, moved
}

// failure returns why the directory failed, nil while it stands.
func (d *directory) failure() error {
	if err := d.failed.Load(); err != nil {
		return *err
	}
	return nil
}

// fail ends the directory: its partitions go offline, each in its own turn. The
// first reason stays. Any goroutine, in a turn or not.
func (d *directory) fail(err error) {
	if !d.failed.CompareAndSwap(nil, &err) {
		return
	}
	note := d.dir.Condemn(err)
	close(d.dead)
	for _, p := range d.set.Partitions() {
		if p.dir == d {
			p.nudge()
		}
	}
	d.set.spawn(func() {
		d.leaveNote(note)
		d.set.event(Event{Kind: DirectoryFailed, Dir: d.dir, Err: err})
	})
}
