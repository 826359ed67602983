package repl

import (
	"context"
	"errors"
	"math"
	"runtime"
	"time"

	"github.com/teralog/teralog/mem"
	"github.com/teralog/teralog/storage"
	"github.com/teralog/teralog/wire"
)

// Run keeps the set's time and tidies up until ctx ends. Partitions work
// without it, but nothing that falls due by the clock happens then. It is called
// once. Close may come at any time, also before it.
func (s *Set) Run(ctx context.Context) error {
	s.beginLoops(ctx)
	s.runTimers(ctx)
	return nil
}

// beginLoops begins those of every directory, unless the set is closed: Close waits
// for all that there are, and none may begin while or after it does.
func (s *Set) beginLoops(ctx context.Context) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return
	}
	for _, d := range s.dirs {
		d.loops.Go(func() { d.runJanitor(ctx) })
		d.loops.Go(func() { d.runWriteBack(ctx) })
		d.loops.Go(func() { d.runScrub(ctx) })
	}
}

// runTimers advances the wheel, and looks at the flushes that run.
func (s *Set) runTimers(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		now := s.config.Clock.Now()
		next := s.wheel.Advance(now.Mono)
		s.watch(now)
		wait := min(s.config.SlowAfter, s.config.RefuseAfter) / 2
		if next >= 0 {
			wait = min(wait, next-now.Mono)
		}
		timer.Reset(wait)
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		case <-s.wheel.Wake():
		}
	}
}

// TimersTurn returns once the loop that keeps the set's time, and watches the
// flushes that run, has come round after the call; or with ctx's error.
func (s *Set) TimersTurn(ctx context.Context) error { return s.wheel.Round(ctx) }

// JanitorsTurn returns once the janitor of every directory has come round after
// the call; or with ctx's error. Nobody waits for one whose directory failed, or
// whose set is closed. A janitor may rightly be away for as long as the disk takes
// to flush, or to unlink what was deleted.
func (s *Set) JanitorsTurn(ctx context.Context) error {
	for _, d := range s.dirs {
		select {
		case d.asked <- struct{}{}:
		case <-d.dead:
		case <-s.quit:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// whileWatching calls f, which waits for flushes, and watches them: else it
// would wait for ever for a disk that hangs.
func (s *Set) whileWatching(f func()) {
	if s.config.Manual {
		f()
		return
	}
	ticker := time.NewTicker(s.config.SlowAfter / 2)
	defer ticker.Stop()
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	for {
		select {
		case <-done:
			return
		case <-ticker.C:
			s.watch(s.config.Clock.Now())
		}
	}
}

// join waits for the directory's janitor, unless the directory failed: its disk
// may hang.
func (d *directory) join() {
	ended := make(chan struct{})
	go func() {
		d.loops.Wait()
		close(ended)
	}()
	select {
	case <-ended:
	case <-d.dead:
	}
}

// OrFailed calls f, which works on the files of dir, and returns what it does. If
// the directory fails first it returns why: a disk that hangs keeps nobody but f.
func (s *Set) OrFailed(dir *storage.Dir, f func() error) error {
	d := s.directory(dir)
	if s.config.Manual {
		return f()
	}
	var err error
	var panicked any
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer func() { panicked = recover() }()
		err = f()
	}()
	select {
	case <-done:
	case <-d.dead:
		return d.failure()
	}
	if panicked != nil {
		panic(panicked)
	}
	return err
}

// leaveNote writes the note of a failure, and does not wait for it on a disk that
// hangs.
func (d *directory) leaveNote(note func()) {
	if d.set.config.Manual {
		note()
		return
	}
	left := make(chan struct{})
	go func() {
		defer close(left)
		note()
	}()
	timer := time.NewTimer(d.set.config.SlowAfter)
	defer timer.Stop()
	select {
	case <-left:
	case <-timer.C:
	}
}

// runJanitor tidies one directory. Each has a loop of its own, since one whose
// disk hangs must not keep the others from it.
func (d *directory) runJanitor(ctx context.Context) {
	timer := time.NewTimer(d.set.config.PointEvery / 8)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-d.set.quit:
			return
		case <-d.asked:
		case <-timer.C:
			now := d.set.config.Clock.Now()
			d.janitor.turn(now)
			timer.Reset(max(d.janitor.round-now.Mono, d.set.config.PointEvery/8))
		}
	}
}

// runWriteBack has the disk write what one directory's logs have in memory only.
func (d *directory) runWriteBack(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-d.set.quit:
			return
		case <-d.dead:
			return
		case <-d.back.wake:
			d.writeBackLine()
		}
	}
}

// runScrub verifies what one directory has sealed.
func (d *directory) runScrub(ctx context.Context) {
	if d.scrub.pace == nil {
		return
	}
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			d.scrub.save()
			return
		case <-d.set.quit:
			d.scrub.save()
			return
		case <-d.dead:
			return
		case <-timer.C:
			now := d.set.config.Clock.Now()
			timer.Reset(max(d.scrub.turn(now)-now.Mono, 0))
		}
	}
}

// spawn runs f beside everything else. Nobody waits for it.
func (s *Set) spawn(f func()) {
	if s.config.Manual {
		s.later = append(s.later, f)
		return
	}
	go f()
}

// run is the appender, the usual holder of the turn. It is started with the
// first work left to it, since most partitions of a large node are idle, and
// ends with the turn kept, after the last write is answered.
func (p *Partition) run() {
	defer close(p.stopped)
	var tasks []task
	for open := true; open || p.busy(); {
		if !open {
			<-p.news // of the flush that runs, the janitor, or the end of the directory
		}
		tasks, open = p.inbox.PopAll(emptied(tasks))
		if p.turn(tasks, p.set.config.Clock.Now()) {
			p.dir.flushAside(p)
		}
		p.wakeRest()
	}
	entered := p.dir.enterClose(p)
	p.turn(nil, p.set.config.Clock.Now()) // hears of a failure that came while it waited
	p.finish(p.set.config.Clock.Now())
	if entered {
		p.dir.leaveClose(p)
	}
	p.wakeRest()
}

// enterNow does the work of the turn just taken, but waits for no flush.
func (p *Partition) enterNow() {
	if p.set.config.Manual {
		p.inbox.Free()
		return
	}
	if p.inline(p.set.config.Clock.Now()) {
		p.dir.flushAside(p)
	}
	p.wakeRest()
}

// inline turns once on the goroutine that took the turn. What came in meanwhile
// goes to the appender with one wake.
func (p *Partition) inline(now mem.Now) (flush bool) {
	p.spare = p.inbox.PopOrFree(p.spare)
	if len(p.spare) == 0 {
		return false
	}
	flush = p.turn(p.spare, now)
	p.spare = emptied(p.spare)
	if p.inbox.HandOrFree() {
		p.startAppender()
	}
	return flush
}

// leave gives the turn to the appender.
func (p *Partition) leave() {
	if p.set.config.Manual {
		p.inbox.Free()
		return
	}
	p.inbox.Hand()
	p.startAppender()
}

func (p *Partition) startAppender() {
	p.appender.Do(func() { go p.run() })
}

// flushAside flushes p's log on another goroutine, or puts it in line.
func (d *directory) flushAside(p *Partition) {
	if d.begin(p, d.set.mono()) {
		go d.flushOn(p)
	}
}

// flushOn flushes p's log in the slot it was given, and goes on while there is
// more to flush at once and a slot for it: under load one goroutine commits
// group after group.
func (d *directory) flushOn(p *Partition) {
	for more := true; more; {
		more = d.flush(p) && d.begin(p, d.set.mono())
		p.wakeRest()
	}
}

// flush flushes p's log once, gives the slot on, and tells p. It returns whether
// the next flush is due.
func (d *directory) flush(p *Partition) (again bool) {
	// Producers that the last flush has answered are about to append again. Let
	// them run first, else the first of them has a flush to itself while all
	// others wait for the next. With nobody about it costs 100 ns.
	runtime.Gosched()
	to, err := p.flushLog()
	if next := d.end(p, d.set.mono()); next != nil {
		go d.flushOn(next)
	}
	return p.land(to, err)
}

func (d *directory) startMany() { go d.flushMany() }

// flushMany flushes those that have come together, again and again until they are
// few. It is not among the flushes that are watched: how long it takes says
// nothing about the directory's disk, and whoever flushes one file beside it does.
func (d *directory) flushMany() {
	defer d.endOnPanic("flush of many logs")
	pause := time.NewTimer(manyEvery)
	defer pause.Stop()
	for goesOn := true; goesOn; {
		select {
		case <-pause.C:
		case <-d.set.quit:
		case <-d.dead:
		}
		began := d.set.mono()
		ps, few := d.takeMany()
		if few {
			d.flushEach(ps)
			return
		}
		logs := make([]*storage.Log, len(ps))
		for i, p := range ps {
			logs[i] = p.log
		}
		ends, ok := d.dir.FlushLogs(logs)
		took := d.set.mono() - began
		switch goesOn = ok && took <= manyLong; {
		case !ok:
			d.restMany(math.MaxInt64)
		case !goesOn:
			d.restMany(began + took + manyRest)
		}
		for i, p := range ps {
			if !ok || ends[i] < 0 || p.land(ends[i], nil) {
				d.flushAside(p)
			}
			p.wakeRest()
		}
		pause.Reset(manyEvery - took)
	}
}

// land reports the end of a flush, and turns the partition if it is idle.
func (p *Partition) land(to wire.Offset, err error) (flush bool) {
	if err != nil && !errors.Is(err, errPanic) {
		p.dir.fail(err)
	}
	p.landing.put(to, err)
	ok, mine := p.inbox.Push(task{})
	switch {
	case !ok:
		p.tell()
	case mine && p.set.config.Manual:
		p.inbox.Free()
	case mine:
		return p.inline(p.set.config.Clock.Now())
	}
	return false
}

func (s *Set) mono() time.Duration {
	if s.config.Manual {
		return s.now.Mono
	}
	return s.config.Clock.Now().Mono
}
