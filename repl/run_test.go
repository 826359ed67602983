package repl

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/teralog/teralog/mem"
	"github.com/teralog/teralog/storage"
	"github.com/teralog/teralog/wire"
)

// A shop is a set with its loops running, on one or more disks in memory, each
// with some partitions. It lives in a synctest bubble or under the race detector.
type shop struct {
	t     testing.TB
	clock *mem.Clock
	disks []*storage.MemFS
	set   *Set
	stop  func()
}

func openShop(t testing.TB, disks, partitions int, st Settings, c SetConfig) *shop {
	t.Helper()
	s := &shop{t: t, clock: mem.NewClock()}
	c.Clock = s.clock
	for i := range disks {
		s.disks = append(s.disks, storage.NewMemFS(uint64(i)))
		c.Dirs = append(c.Dirs, testDir(t, s.disks[i], "data"))
	}
	s.set = NewSet(c)
	for i := range partitions {
		if err := s.set.Host("t", s.id(i), c.Dirs[i%disks], st, 0, true, s.clock.Now()); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	var loops sync.WaitGroup
	loops.Go(func() { s.set.Run(ctx) })
	s.stop = func() { cancel(); loops.Wait() }
	return s
}

func (s *shop) id(i int) wire.PartitionID {
	return wire.PartitionID{Topic: testID.Topic, Partition: int32(i)}
}

func (s *shop) leader(i int) *Partition {
	p, err := s.set.Leader(s.id(i))
	if err != nil {
		s.t.Fatal(err)
	}
	return p
}

// An answer is what became of one write.
type answer struct {
	times atomic.Int32
	at    storage.Appended
	err   error
}

func (s *shop) produce(i int, inline bool, acks int8) *answer {
	a := &answer{}
	b := testBatch(s.t, 0, 0, 1, 0, "v")
	produce(s.leader(i), []Write{{Batch: b, Acks: acks, Done: func(at storage.Appended, err error) {
		a.at, a.err = at, err
		a.times.Add(1)
	}}}, inline)
	return a
}

// settled produces and waits for what becomes of it: no reader does the work of
// a slow disk.
func (s *shop) settled(i int) *answer {
	a := s.produce(i, true, wire.AcksAll)
	synctest.Wait()
	return a
}

func (a *answer) want(t testing.TB, code wire.Code, base wire.Offset) {
	t.Helper()
	if n := a.times.Load(); n != 1 || wire.CodeOf(a.err) != code || a.at.First != base {
		t.Fatalf("answered %d times: offset %d, %v; want %v %d", n, a.at.First, a.err, code, base)
	}
}

func (a *answer) waits(t testing.TB) {
	t.Helper()
	if n := a.times.Load(); n != 0 {
		t.Fatalf("answered already: offset %d, %v", a.at.First, a.err)
	}
}

// TestCloseAtOnce: a set that is closed while its loops begin, as when a broker is
// told to stop right after its start. It is for the race detector.
func TestCloseAtOnce(t *testing.T) {
	for range 100 {
		s := openShop(t, 2, 1, Settings{}, SetConfig{})
		s.set.Close()
		s.stop()
	}
}

// TestInline does the work on the caller's goroutine where it may.
func TestInline(t *testing.T) {
	f := func(st Settings) {
		t.Helper()
		synctest.Test(t, func(t *testing.T) {
			s := openShop(t, 1, 1, st, SetConfig{})
			defer s.stop()
			defer s.set.Close()
			for i := range 5 {
				s.produce(0, true, wire.AcksAll).want(t, wire.CodeOK, wire.Offset(i)) // no hop
			}
			a := s.produce(0, false, wire.AcksAll)
			synctest.Wait()
			a.want(t, wire.CodeOK, 5) // by the appender
		})
	}

	f(Settings{})
	f(Settings{Flush: Interval})
	f(Settings{Flush: Sync})
}

// TestInlineLimits leaves to the appender what would hold up a connection.
func TestInlineLimits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := openShop(t, 1, 1, Settings{Log: storage.Options{SegmentBytes: 8500 << 10}}, SetConfig{})
		defer s.stop()
		defer s.set.Close()
		f := func(batches, bytes int, want bool) {
			t.Helper()
			var onTheSpot atomic.Bool
			var ws []Write
			for range batches {
				ws = append(ws, Write{Batch: testBatch(t, 0, 0, 1, bytes, "v"), Acks: wire.AcksAll, Done: func(storage.Appended, error) {
					onTheSpot.Store(strings.Contains(string(debug.Stack()), ".(*Partition).inline("))
				}})
			}
			produce(s.leader(0), ws, true)
			synctest.Wait()
			if onTheSpot.Load() != want {
				t.Fatalf("%d batches of %d bytes: on the spot %t", batches, bytes, !want)
			}
		}

		f(1, 100, true)
		f(2, 500<<10, true)
		f(2, 512<<10, false) // too much at once, with their headers
		f(1, 200<<10, true)
		f(2, 450<<10, false) // the file takes space ahead: 2125 KiB behind these
		f(2, 450<<10, true)
		f(2, 450<<10, true)
		f(2, 450<<10, false) // and again
		f(2, 450<<10, true)
		f(2, 450<<10, true)
		f(2, 450<<10, false) // the segment is full
		f(2, 450<<10, true)  // of the new one
	})
}

// TestUnlinkHoldsUpNobody: while an old segment is being unlinked its partition
// takes writes, and does not close, since its folder may be another's then.
func TestUnlinkHoldsUpNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := openShop(t, 1, 1, Settings{Log: storage.Options{SegmentBytes: 500, RetentionBytes: 500}}, SetConfig{TidyEvery: time.Second})
		defer s.stop()
		defer s.set.Close()
		p := s.leader(0)
		begun, held := make(chan struct{}, 100), make(chan struct{})
		s.disks[0].BeforeOp(func(op storage.Op) error {
			if op.Kind == storage.OpRemove && strings.HasSuffix(op.Name, ".log") {
				begun <- struct{}{}
				<-held
			}
			return nil
		})
		for range 20 {
			s.settled(0).want(t, wire.CodeOK, p.View().End-1)
		}
		<-begun
		end := p.View().End
		s.settled(0).want(t, wire.CodeOK, end)

		var closed atomic.Bool
		var closing sync.WaitGroup
		closing.Go(func() {
			p.close(&wire.Error{Code: wire.CodeNotLeader})
			closed.Store(true)
		})
		synctest.Wait()
		if closed.Load() {
			t.Error("closed while its files were being unlinked")
		}
		close(held)
		closing.Wait()
	})
}

// TestBackgroundFlush flushes an async log a second after its first write.
func TestBackgroundFlush(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := openShop(t, 1, 2, Settings{}, SetConfig{PointEvery: time.Hour})
		defer s.stop()
		defer s.set.Close()
		a := s.produce(0, true, wire.AcksAll)
		a.want(t, wire.CodeOK, 0)
		time.Sleep(900 * time.Millisecond)
		s.produce(0, true, wire.AcksAll)
		synctest.Wait()
		if v := s.leader(0).View(); v.Flushed != 0 {
			t.Fatalf("flushed to %d after 0.9 s", v.Flushed)
		}
		time.Sleep(110 * time.Millisecond)
		synctest.Wait()
		if v := s.leader(0).View(); v.Flushed != 2 {
			t.Fatalf("flushed to %d after 1 s", v.Flushed)
		}
		if s.disks[0].ResetCounts(); s.leader(1).View().Flushed != 0 {
			t.Fatal("an empty log was flushed")
		}
		time.Sleep(30 * time.Second)
		synctest.Wait()
		if n := s.disks[0].Count(storage.OpSync); n != 0 {
			t.Fatalf("%d syncs while nothing was written", n)
		}
	})
}

// A gate holds the syncs of a disk back, and counts them.
type gate struct {
	mu              sync.Mutex
	now, most, seen int
	open            chan struct{}
}

// shut holds every further sync of a .log on d until lift.
func shut(d *storage.MemFS) *gate { return shutOn(d, ".log") }

// shutOn is shut for files whose name has one of the parts.
func shutOn(d *storage.MemFS, parts ...string) *gate {
	g := &gate{open: make(chan struct{})}
	d.BeforeOp(func(op storage.Op) error {
		if op.Kind != storage.OpSync || !slices.ContainsFunc(parts, func(part string) bool { return strings.Contains(op.Name, part) }) {
			return nil
		}
		g.mu.Lock()
		g.seen++
		g.now++
		g.most = max(g.most, g.now)
		g.mu.Unlock()
		<-g.open
		g.mu.Lock()
		defer g.mu.Unlock()
		g.now--
		return nil
	})
	return g
}

// lift lets every sync pass from now on, letOne the one that waits.
func (g *gate) lift()   { close(g.open) }
func (g *gate) letOne() { g.open <- struct{}{} }

// TestGroupCommit lets 64 writes come in while one flush runs.
func TestGroupCommit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := openShop(t, 1, 1, Settings{Flush: Sync}, SetConfig{})
		defer s.stop()
		defer s.set.Close()
		g := shut(s.disks[0])
		first := s.produce(0, false, wire.AcksAll)
		synctest.Wait()
		var rest []*answer
		for i := range 64 {
			rest = append(rest, s.produce(0, i%2 == 0, wire.AcksAll))
			synctest.Wait() // appended, each in a turn of its own
		}
		if v := s.leader(0).View(); v.End != 65 || v.Committed != 0 {
			t.Fatalf("end %d, committed %d", v.End, v.Committed)
		}
		first.waits(t)
		rest[0].waits(t)
		g.lift()
		synctest.Wait()
		first.want(t, wire.CodeOK, 0)
		for i, a := range rest {
			a.want(t, wire.CodeOK, wire.Offset(i+1))
		}
		if g.seen != 2 {
			t.Fatalf("%d flushes for 65 writes", g.seen)
		}
	})
}

// TestInlineFlushesOnce keeps a reader for the flush of its own write, not for
// the next one.
func TestInlineFlushesOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := openShop(t, 1, 1, Settings{Flush: Sync}, SetConfig{})
		defer s.stop()
		defer s.set.Close()
		g := shut(s.disks[0])
		returned := make(chan *answer, 1)
		go func() { returned <- s.produce(0, true, wire.AcksAll) }()
		synctest.Wait()
		second := s.produce(0, false, wire.AcksAll)
		synctest.Wait()
		g.letOne()
		synctest.Wait()
		select {
		case first := <-returned:
			first.want(t, wire.CodeOK, 0)
		default:
			t.Fatal("the reader flushes for others")
		}
		second.waits(t)
		g.lift()
		synctest.Wait()
		second.want(t, wire.CodeOK, 1)
	})
}

// TestFlushSlots has more logs to flush than slots.
func TestFlushSlots(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := openShop(t, 1, 10, Settings{Flush: Sync}, SetConfig{Flushers: 3})
		defer s.stop()
		defer s.set.Close()
		g := shut(s.disks[0])
		var all []*answer
		for i := range 10 {
			all = append(all, s.produce(i, false, wire.AcksAll))
		}
		synctest.Wait()
		if g.now != 3 {
			t.Fatalf("%d flushes at once", g.now)
		}
		g.lift()
		synctest.Wait()
		for _, a := range all {
			a.want(t, wire.CodeOK, 0)
		}
		if g.most != 3 || g.seen != 10 {
			t.Fatalf("%d flushes, up to %d at once", g.seen, g.most)
		}
	})
}

// TestFlushesThatMayWait has the background flushes of many partitions fall due at
// once: they run one after the other, a few at once if many wait, and never
// hold up one that acks wait for.
func TestFlushesThatMayWait(t *testing.T) {
	for _, tt := range []struct{ partitions, atOnce int }{{12, 1}, {40, 3}} {
		synctest.Test(t, func(t *testing.T) {
			s := openShop(t, 1, tt.partitions, Settings{}, SetConfig{Flushers: 4, PointEvery: time.Hour})
			defer s.stop()
			defer s.set.Close()
			synced := wire.PartitionID{Topic: 77}
			if err := s.set.Host("u", synced, s.set.dirs[0].dir, Settings{Flush: Sync}, 0, true, s.clock.Now()); err != nil {
				t.Fatal(err)
			}
			g := shut(s.disks[0])
			for i := range tt.partitions {
				s.produce(i, true, wire.AcksAll).want(t, wire.CodeOK, 0)
			}
			time.Sleep(asyncEvery + 10*time.Millisecond)
			synctest.Wait()
			if g.now != tt.atOnce {
				t.Fatalf("of %d background flushes %d run at once, want %d", tt.partitions, g.now, tt.atOnce)
			}
			p, err := s.set.Leader(synced)
			if err != nil {
				t.Fatal(err)
			}
			produce(p, []Write{{Batch: testBatch(t, 0, 0, 1, 0, "v"), Acks: wire.AcksAll, Done: func(storage.Appended, error) {}}}, false)
			synctest.Wait()
			if g.now != tt.atOnce+1 {
				t.Fatalf("beside %d background flushes that hang, one that an ack waits for does not begin", tt.atOnce)
			}
			g.lift()
			synctest.Wait()
			for i := range tt.partitions {
				if v := s.leader(i).View(); v.Flushed != 1 {
					t.Fatalf("partition %d of %d is flushed to %d", i, tt.partitions, v.Flushed)
				}
			}
			if g.seen != tt.partitions+1 {
				t.Fatalf("%d flushes of %d partitions", g.seen, tt.partitions+1)
			}
		})
	}
}

// TestFlushTurns has both kinds of flushes wait for the only slot: they get it by
// turns, so that neither waits for as long as there is one of the other kind.
func TestFlushTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n = 3
		s := openShop(t, 1, n, Settings{}, SetConfig{Flushers: 1, PointEvery: time.Hour})
		defer s.stop()
		defer s.set.Close()
		var order strings.Builder
		open := make(chan struct{})
		s.disks[0].BeforeOp(func(op storage.Op) error {
			if op.Kind == storage.OpSync && strings.Contains(op.Name, ".log") {
				order.WriteString(map[bool]string{true: "s", false: "a"}[strings.Contains(op.Name, "synced")])
				<-open
			}
			return nil
		})
		for i := range n {
			s.produce(i, true, wire.AcksAll).want(t, wire.CodeOK, 0)
		}
		time.Sleep(asyncEvery + 10*time.Millisecond)
		synctest.Wait()
		for i := range n {
			id := wire.PartitionID{Topic: 77, Partition: int32(i)}
			if err := s.set.Host("synced", id, s.set.dirs[0].dir, Settings{Flush: Sync}, 0, true, s.clock.Now()); err != nil {
				t.Fatal(err)
			}
			p, err := s.set.Leader(id)
			if err != nil {
				t.Fatal(err)
			}
			produce(p, []Write{{Batch: testBatch(t, 0, 0, 1, 0, "v"), Acks: wire.AcksAll, Done: func(storage.Appended, error) {}}}, false)
			synctest.Wait()
		}
		for range 2 * n {
			open <- struct{}{}
			synctest.Wait()
		}
		if got := order.String(); got != "asasas" {
			t.Fatalf("the slot went to %q", got)
		}
		close(open)
	})
}

// TestFlushNeverReturns has a disk hang. The other one goes on, and
// a stop does not wait for it.
func TestFlushNeverReturns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var events []EventKind
		var mu sync.Mutex
		s := openShop(t, 2, 4, Settings{Flush: Sync}, SetConfig{OnEvent: func(e Event) {
			mu.Lock()
			defer mu.Unlock()
			events = append(events, e.Kind)
		}})
		g := shut(s.disks[0])
		defer g.lift()
		stuck, waiting := s.produce(0, false, wire.AcksAll), s.produce(2, false, wire.AcksLeader)
		woken := make(chan bool, 1)
		if err := s.leader(2).Await(&Waiter{Wake: func() { woken <- true }}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		s.settled(1).want(t, wire.CodeOK, 0)
		time.Sleep(2 * time.Second)
		synctest.Wait()
		mu.Lock()
		if fmt.Sprint(events) != "[slow]" {
			t.Fatalf("events %v", events)
		}
		mu.Unlock()
		stuck.waits(t)

		time.Sleep(29 * time.Second)
		synctest.Wait()
		stuck.want(t, wire.CodeStorageError, -1)
		waiting.want(t, wire.CodeStorageError, -1)
		<-woken
		s.settled(2).want(t, wire.CodeOffline, -1)
		if v := s.leader(2).View(); v.Bound() != v.Start {
			t.Fatalf("reads below %d of a disk that hangs", v.Bound())
		}
		s.settled(3).want(t, wire.CodeOK, 0)

		s.stop()
		ends := s.set.Close()
		if len(ends) != 1 || len(ends[s.leader(1).dir.dir]) != 2 {
			t.Fatalf("clean ends %v", ends)
		}
	})
}

// TestOwnFileHangs has a disk hang in the fsync of the recovery points, and then
// in that of the failed note: the directory ends, and says so, without either.
func TestOwnFileHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var events []string
		var mu sync.Mutex
		s := openShop(t, 1, 1, Settings{}, SetConfig{OnEvent: func(e Event) {
			mu.Lock()
			defer mu.Unlock()
			events = append(events, e.Kind.String())
			if e.Kind == DirectoryFailed && !errors.Is(e.Err, ErrHangs) {
				t.Errorf("failed: %v", e.Err)
			}
		}})
		g := shutOn(s.disks[0], "recovery-points", "failed")
		defer g.lift()
		s.settled(0).want(t, wire.CodeOK, 0)
		time.Sleep(29 * time.Second)
		s.settled(0).want(t, wire.CodeOK, 1)
		time.Sleep(5 * time.Second)
		synctest.Wait()
		s.settled(0).want(t, wire.CodeOffline, -1)
		if mu.Lock(); fmt.Sprint(events) != "[slow offline failed]" {
			t.Errorf("events %v", events)
		}
		mu.Unlock()
		if ends := s.set.Close(); len(ends) != 0 {
			t.Fatalf("clean ends %v", ends)
		}
		s.stop()
	})
}

// TestPanicAside has a flush panic on a goroutine of its own: only its partition
// ends, and the stop that follows is a clean one for nobody in its directory.
func TestPanicAside(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := openShop(t, 1, 3, Settings{Flush: Sync}, SetConfig{Flushers: 1})
		s.disks[0].BeforeOp(func(op storage.Op) error {
			if op.Kind == storage.OpSync && strings.Contains(op.Name, "partition-0001") {
				panic("in the disk")
			}
			return nil
		})
		var all []*answer
		for i := range 3 {
			all = append(all, s.produce(i, false, wire.AcksAll))
		}
		synctest.Wait()
		all[0].want(t, wire.CodeOK, 0)
		all[1].want(t, wire.CodeStorageError, -1)
		all[2].want(t, wire.CodeOK, 0)
		s.settled(1).want(t, wire.CodeOffline, -1)
		s.settled(2).want(t, wire.CodeOK, 1)

		s.stop()
		if ends := s.set.Close(); len(ends[s.leader(0).dir.dir]) != 2 {
			t.Fatalf("clean ends %v", ends)
		}
	})
}

// TestCloseHangs stops while a disk hangs in the flush that closing a log is.
func TestCloseHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := openShop(t, 2, 4, Settings{FlushEvery: time.Hour}, SetConfig{Flushers: 1})
		defer s.stop()
		for i := range 4 {
			s.produce(i, true, wire.AcksAll).want(t, wire.CodeOK, 0)
		}
		g := shut(s.disks[0])
		defer g.lift()
		start := time.Now()
		ends := s.set.Close()
		if took := time.Since(start); len(ends) != 1 || took < 30*time.Second || took > 32*time.Second {
			t.Fatalf("clean ends of %d directories after %v", len(ends), took)
		}
	})
}

// TestDropWaitsForJanitor does not close a log whose checkpoint the janitor
// makes durable.
func TestDropWaitsForJanitor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := openShop(t, 1, 1, Settings{FlushEvery: time.Hour}, SetConfig{})
		defer s.stop()
		defer s.set.Close()
		s.settled(0).want(t, wire.CodeOK, 0)
		s.leader(0).Trim(1, func(wire.Offset, error) {}) // asks for a recovery point
		synctest.Wait()
		s.settled(0).want(t, wire.CodeOK, 1)
		g := shut(s.disks[0])
		time.Sleep(3 * time.Second)
		dropped := make(chan error, 1)
		go func() { dropped <- s.set.Drop(s.id(0)) }()
		synctest.Wait()
		if g.now != 1 || len(dropped) != 0 {
			t.Fatalf("%d syncs while the janitor has the log, dropped %d", g.now, len(dropped))
		}
		g.lift()
		if err := <-dropped; err != nil {
			t.Fatal(err)
		}
	})
}

// TestJanitorHangs has a disk hang while nobody but the janitor uses it.
func TestJanitorHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := openShop(t, 2, 2, Settings{FlushEvery: time.Hour}, SetConfig{})
		defer s.stop()
		for i := range 2 {
			s.produce(i, true, wire.AcksAll).want(t, wire.CodeOK, 0)
		}
		var codes [2]wire.Code
		for i := range 2 {
			s.leader(i).Trim(1, func(_ wire.Offset, err error) { codes[i] = wire.CodeOf(err) })
		}
		synctest.Wait()
		s.settled(0).want(t, wire.CodeOK, 1)
		g := shut(s.disks[0])
		defer g.lift()
		time.Sleep(time.Minute)
		synctest.Wait()
		if codes != [2]wire.Code{wire.CodeStorageError, wire.CodeOK} {
			t.Fatalf("trims: %v", codes)
		}
		if ends := s.set.Close(); len(ends) != 1 {
			t.Fatalf("clean ends of %d directories", len(ends))
		}
	})
}

// TestWriteFailsOffline loses one of two disks while both work.
func TestWriteFailsOffline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := openShop(t, 2, 8, Settings{Flush: Sync}, SetConfig{})
		defer s.stop()
		s.disks[0].Fail("write:partition-0004", 1, syscall.EIO)
		var all []*answer
		for i := range 8 {
			all = append(all, s.produce(i, false, wire.AcksAll))
		}
		synctest.Wait()
		all[4].want(t, wire.CodeStorageError, -1)
		for i := range 8 {
			p := s.leader(i)
			if offline := p.View().Err != nil; offline != (i%2 == 0) {
				t.Fatalf("partition %d: %v", i, p.View().Err)
			}
			if all[i].times.Load() != 1 {
				t.Fatalf("partition %d answered %d times", i, all[i].times.Load())
			}
			if i%2 == 1 {
				all[i].want(t, wire.CodeOK, 0)
			}
		}
		if p := s.leader(0); !errors.Is(p.View().Err, wire.CodeOffline) || p.dir.dir.Failed() == nil {
			t.Fatalf("%v, %v", p.View().Err, p.dir.dir.Failed())
		}
		if ends := s.set.Close(); len(ends) != 1 {
			t.Fatalf("clean ends of %d directories", len(ends))
		}
	})
}

// TestRecoveryPoints lets the janitor work, and the next start believe it.
func TestRecoveryPoints(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := openShop(t, 1, 3, Settings{Log: storage.Options{SegmentBytes: 2000, RetentionBytes: 4000}}, SetConfig{})
		for range 100 {
			s.produce(0, true, wire.AcksAll)
		}
		trimmed := make(chan wire.Offset, 1)
		s.produce(1, true, wire.AcksAll)
		s.leader(1).Trim(1, func(start wire.Offset, err error) {
			if err != nil {
				t.Error(err)
			}
			trimmed <- start
		})
		start := time.Now()
		if got := <-trimmed; got != 1 || time.Since(start) > 3*time.Second {
			t.Fatalf("trimmed to %d after %v", got, time.Since(start))
		}
		time.Sleep(20 * time.Second) // retention, then the points, then the unlinks
		synctest.Wait()
		v := s.leader(0).View()
		if v.Start == 0 || v.Log.Bytes() > 8000 || v.Err != nil {
			t.Fatalf("retention left %d bytes from offset %d: %v", v.Log.Bytes(), v.Start, v.Err)
		}
		logs := 0
		es, err := s.disks[0].ReadDir("data/topics/t/partition-0000")
		for _, e := range es {
			if strings.HasSuffix(e.Name, ".log") {
				logs++
			}
		}
		if err != nil || logs > 4 {
			t.Fatalf("%d segments on disk, %v", logs, err)
		}

		// The process dies. The next start scans nothing, since all was flushed
		// and proved.
		s.stop()
		after := s.disks[0].Clone()
		d, err := storage.OpenDir(after, "data", storage.DirOptions{Node: 1, Boot: "boot"})
		if err != nil {
			t.Fatal(err)
		}
		next := NewSet(SetConfig{Dirs: []*storage.Dir{d}, Clock: s.clock})
		if err := next.Host("t", s.id(0), d, Settings{}, 0, false, s.clock.Now()); err != nil {
			t.Fatal(err)
		}
		p, _ := next.Leader(s.id(0))
		if n := p.View(); n.Start != v.Start || n.End != v.End || n.Committed != v.End || n.Flushed != v.End {
			t.Fatalf("before %+v, after %+v", v, n)
		}
		next.Close()
		s.set.Close()
	})
}

// TestJanitorIsBounded has more to prove than the disk does in a second: each
// partition gets its turn, and producers keep most of the disk.
func TestJanitorIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := openShop(t, 1, 20, Settings{FlushEvery: time.Hour}, SetConfig{})
		defer s.stop()
		defer s.set.Close()
		var trimmed, busy atomic.Int64 // trims; ms
		for i := range 20 {
			s.produce(i, true, wire.AcksAll)
			s.leader(i).Trim(1, func(_ wire.Offset, err error) {
				if trimmed.Add(1); err != nil {
					t.Error(err)
				}
			})
		}
		synctest.Wait()
		s.disks[0].BeforeOp(func(op storage.Op) error {
			if op.Kind == storage.OpSync && strings.HasSuffix(op.Name, ".index") {
				time.Sleep(100 * time.Millisecond)
				busy.Add(100)
			}
			return nil
		})
		time.Sleep(5 * time.Second)
		synctest.Wait()
		if trimmed.Load() == 20 || busy.Load() > 2000 {
			t.Fatalf("%d trims, the disk was busy for %d ms of 5 s", trimmed.Load(), busy.Load())
		}
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if trimmed.Load() != 20 {
			t.Fatalf("%d trims", trimmed.Load())
		}
	})
}

// TestDropUnderLoad takes a partition away while writes and fetches come in.
func TestDropUnderLoad(t *testing.T) {
	f := func(st Settings, panics bool) {
		s := openShop(t, 1, 2, st, SetConfig{})
		defer s.stop()
		var work sync.WaitGroup
		var asked, answered, woken, parked atomic.Int64
		stop := make(chan struct{})
		p := s.leader(0)
		for g := range 4 {
			b := testBatch(t, 0, 0, 1, 0, "v")
			work.Go(func() {
				for n := 0; ; n++ {
					select {
					case <-stop:
						return
					default:
					}
					asked.Add(1)
					produce(p, []Write{{Batch: append(wire.Batch(nil), b...), Acks: wire.AcksAll, Done: func(_ storage.Appended, err error) {
						if answered.Add(1) > 1000 && panics && err == nil {
							panic("in an answer")
						}
					}}}, g%2 == 0)
					w := &Waiter{From: p.View().Committed, Wake: func() { woken.Add(1) }}
					if p.Await(w) == nil {
						parked.Add(1)
						if n%3 == 0 && w.Cancel() {
							parked.Add(-1)
						}
					}
				}
			})
		}
		for answered.Load() < 2000 {
			runtime.Gosched()
		}
		if err := s.set.Drop(s.id(0)); err != nil != panics {
			t.Fatal(err)
		}
		close(stop)
		work.Wait()
		if asked.Load() != answered.Load() || parked.Load() != woken.Load() {
			t.Fatalf("%d writes, %d answers; %d parked, %d woken", asked.Load(), answered.Load(), parked.Load(), woken.Load())
		}
		if _, err := s.set.Leader(s.id(0)); !errors.Is(err, wire.CodeNotLeader) {
			t.Fatal(err)
		}
		s.set.Close()
	}

	f(Settings{}, false)
	f(Settings{Flush: Interval, FlushBytes: 1 << 10}, false)
	f(Settings{Flush: Sync}, false)
	f(Settings{Flush: Sync}, true)
}

// TestNoLostWakeUp has readers follow writers by parking only.
func TestNoLostWakeUp(t *testing.T) {
	f := func(st Settings) {
		s := openShop(t, 1, 1, st, SetConfig{})
		defer s.stop()
		defer s.set.Close()
		const writers, each = 4, 500
		p := s.leader(0)
		var work sync.WaitGroup
		for range 4 {
			work.Go(func() {
				woken := make(chan struct{}, 1)
				w := &Waiter{Wake: func() { woken <- struct{}{} }}
				for at := wire.Offset(0); at < writers*each; {
					if w.From = at; p.Await(w) != nil {
						runtime.Gosched() // the mailbox is full: a fetch would be answered
						continue
					}
					<-woken
					seen := p.View().Committed
					if seen <= at {
						t.Errorf("woken at %d for %d", at, seen)
						return
					}
					at = seen
				}
			})
		}
		for g := range writers {
			b := testBatch(t, 0, 0, 1, 0, "v")
			work.Go(func() {
				for range each {
					done := make(chan struct{})
					for again := true; again; {
						produce(p, []Write{{Batch: append(wire.Batch(nil), b...), Acks: wire.AcksAll, Done: func(_ storage.Appended, err error) {
							again = err != nil
							done <- struct{}{}
						}}}, false)
						<-done
					}
					_ = g
				}
			})
		}
		work.Wait()
	}

	f(Settings{})
	f(Settings{Flush: Sync})
}

// TestIdlePartitionsCostNothing hosts many and starts no goroutine for them.
func TestIdlePartitionsCostNothing(t *testing.T) {
	before := runtime.NumGoroutine()
	s := openShop(t, 1, 300, Settings{}, SetConfig{})
	for i := range 300 {
		s.produce(i, true, wire.AcksAll).want(t, wire.CodeOK, 0)
	}
	if n := runtime.NumGoroutine() - before; n > 10 {
		t.Fatalf("%d goroutines for 300 partitions", n)
	}
	s.stop()
	s.set.Close()
	for i := range 300 {
		s.produce(i, true, wire.AcksAll).want(t, wire.CodeShuttingDown, -1)
	}
}

// TestLoopsTurn asks the loops to come round: those that do, one that is kept by
// its disk, and those of a failed directory and a closed set, which nobody waits
// for.
func TestLoopsTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := openShop(t, 2, 2, Settings{}, SetConfig{})
		within := func(ask func(context.Context) error) error {
			ctx, cancel := context.WithTimeout(t.Context(), s.set.config.SlowAfter)
			defer cancel()
			return ask(ctx)
		}
		f := func(want error) {
			t.Helper()
			if err := within(s.set.TimersTurn); err != nil {
				t.Fatalf("timers: %v", err)
			}
			if err := within(s.set.JanitorsTurn); !errors.Is(err, want) {
				t.Fatalf("janitors: %v, want %v", err, want)
			}
		}

		f(nil)
		hang := make(chan struct{})
		s.disks[1].BeforeOp(func(op storage.Op) error {
			if op.Kind == storage.OpSync {
				<-hang
			}
			return nil
		})
		s.produce(1, false, 1)
		time.Sleep(2 * s.set.config.PointEvery)
		f(context.DeadlineExceeded)
		time.Sleep(s.set.config.FailAfter)
		f(nil) // the directory is given up
		close(hang)
		s.set.Close()
		f(nil)
		s.stop()
		if err := within(s.set.TimersTurn); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("timers of a set that does not run: %v", err)
		}
	})
}
