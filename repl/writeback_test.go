package repl

import (
	"errors"
	"math"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/teralog/teralog/storage"
	"github.com/teralog/teralog/wire"
)

// produceBytes appends a batch of about n bytes and returns what became of it.
func (s *shop) produceBytes(i, n int) *answer {
	a := &answer{}
	b := testBatch(s.t, 0, 0, 1, n, "v")
	produce(s.leader(i), []Write{{Batch: b, Acks: wire.AcksLeader, Done: func(at storage.Appended, err error) {
		a.at, a.err = at, err
		a.times.Add(1)
	}}}, false)
	synctest.Wait()
	return a
}

// TestDirtyLimit has a disk that writes nothing. What its directory takes in
// stays within the limit and one batch, the other directory does not care, and
// when the disk writes again so does the log.
func TestDirtyLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const limit, batch = 16 << 20, 1000 << 10
		s := openShop(t, 2, 2, Settings{}, SetConfig{DirtyLimit: limit, FailAfter: time.Hour, SlowAfter: time.Hour})
		defer s.stop()
		defer s.set.Close()
		open := make(chan struct{})
		s.disks[0].BeforeOp(func(op storage.Op) error {
			if op.Kind == storage.OpSync || op.Kind == storage.OpWriteBack {
				<-open
			}
			return nil
		})
		took := 0
		for range 2 * limit / batch {
			switch a := s.produceBytes(0, batch); {
			case a.err == nil:
				took += batch
			case a.err != errDirty:
				t.Fatal(a.err)
			}
			if a := s.produceBytes(1, batch); a.err != nil {
				t.Fatalf("the other directory: %v", a.err)
			}
		}
		if took < limit-2*batch || took > limit+2*batch {
			t.Fatalf("%d bytes were taken, the limit is %d", took, limit)
		}
		if d := s.set.DirStats(); d[0].Dirty < int64(took) || d[1].Dirty > limit {
			t.Fatalf("dirty: %d and %d", d[0].Dirty, d[1].Dirty)
		}
		close(open)
		time.Sleep(2 * time.Second) // the flush that waits, and one for what came since
		if a := s.produceBytes(0, batch); a.err != nil {
			t.Fatal(a.err)
		}
		time.Sleep(2 * time.Second)
		if d := s.set.DirStats(); d[0].Dirty != 0 || d[1].Dirty != 0 {
			t.Fatalf("all is flushed, dirty are %d and %d", d[0].Dirty, d[1].Dirty)
		}
	})
}

// A slowDisk writes so many bytes a second, whatever file they are of.
type slowDisk struct {
	rate  int64
	busy  chan struct{} // holds a token while it writes; a mutex would stop the bubble's time
	mu    sync.Mutex
	dirty map[string]int64 // bytes of each file that it has not written
}

func slowDown(d *storage.MemFS, rate int64) *slowDisk {
	s := &slowDisk{rate: rate, busy: make(chan struct{}, 1), dirty: map[string]int64{}}
	d.BeforeOp(s.before)
	return s
}

func (s *slowDisk) before(op storage.Op) error {
	n := op.N
	switch {
	case op.Kind == storage.OpWrite:
		s.take(op.Name, -n)
		return nil
	case op.Kind == storage.OpSync:
		n = math.MaxInt64
	case op.Kind != storage.OpWriteBack || !op.Wait:
		return nil
	}
	n = s.take(op.Name, n) // what is written to after this is another call's
	s.busy <- struct{}{}
	defer func() { <-s.busy }()
	time.Sleep(time.Duration(n) * time.Second / time.Duration(s.rate))
	return nil
}

// take takes up to n of a file's dirty bytes away.
func (s *slowDisk) take(name string, n int64) int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	n = min(n, s.dirty[name])
	s.dirty[name] -= n
	return n
}

// TestSlowDisk produces a hundred times what a disk of 1 MB/s takes, for some
// minutes. A flush takes longer than a disk that hangs may, and ends nothing, since
// the disk moves; what is not on it stays within the limit, and what is taken is
// what it can write.
func TestSlowDisk(t *testing.T) {
	for _, mode := range []FlushMode{Async, Interval, Sync} {
		synctest.Test(t, func(t *testing.T) {
			const limit, batch, rate, lasts = 100 << 20, 1000 << 10, 1_000_000, 5 * time.Minute
			s := openShop(t, 1, 2, Settings{Flush: mode}, SetConfig{DirtyLimit: limit, PointEvery: time.Second})
			defer s.stop()
			defer s.set.Close()
			slowDown(s.disks[0], rate)
			took, refused := 0, 0
			for began, i := time.Now(), 0; time.Since(began) < lasts; i++ {
				if s.leader(i%2).Admit(s.clock.Now()) != nil {
					refused++
				} else if a := s.produceBytes(i%2, batch); a.err != nil {
					t.Fatalf("%v: %v", mode, a.err)
				} else {
					took += batch
				}
				if d := s.set.DirStats()[0].Dirty; d > limit+2*batch {
					t.Fatalf("%v: %d bytes are dirty", mode, d)
				}
				time.Sleep(10 * time.Millisecond)
			}
			if err := s.set.dirs[0].failure(); err != nil {
				t.Fatalf("%v: %v", mode, err)
			}
			if wrote := int(rate * lasts / time.Second); took < wrote/2 || took > wrote+limit+2*batch || refused == 0 {
				t.Errorf("%v: %d bytes were taken, %d requests refused", mode, took, refused)
			}
			time.Sleep(3 * time.Minute)
			if d := s.set.DirStats()[0].Dirty; d != 0 {
				t.Errorf("%v: %d bytes are dirty at the end", mode, d)
			}
			if a := s.produceBytes(0, batch); a.err != nil {
				t.Errorf("%v: and then: %v", mode, a.err)
			}
		})
	}
}

// TestWriteBackPace has the disk told of what is appended, by the loop and long
// before a flush is due: nothing up to half of the limit, then all that there is,
// then piece by piece.
func TestWriteBackPace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const batch, limit = 1000 << 10, 64 << 20
		s := openShop(t, 1, 2, Settings{FlushBytes: 1 << 40, FlushEvery: time.Hour}, SetConfig{DirtyLimit: limit})
		defer s.stop()
		defer s.set.Close()
		var told, waited int64
		s.disks[0].BeforeOp(func(op storage.Op) error {
			switch {
			case op.Kind == storage.OpSync && strings.HasSuffix(op.Name, logSuffix):
				t.Errorf("a flush of %s", op.Name)
			case op.Kind != storage.OpWriteBack:
			case op.Wait:
				waited += op.N
			default:
				least, most := int64(pieceBytes), int64(pieceBytes+2*batch)
				if told == 0 {
					least, most = limit/2, limit/2+2*batch
				}
				if told += op.N; op.N < least || op.N > most {
					t.Errorf("the disk is told to write %d bytes at once", op.N)
				}
			}
			return nil
		})
		for range 60 {
			if a := s.produceBytes(0, batch); a.err != nil {
				t.Fatal(a.err)
			}
			if a := s.produceBytes(1, 1000); a.err != nil { // so little is a flush's
				t.Fatal(a.err)
			}
		}
		d := s.set.DirStats()[0]
		if told < 40<<20 || d.Told != told || waited < told-pieceBytes-2*batch {
			t.Errorf("the disk was told of %d bytes, %d counted, %d waited for", told, d.Told, waited)
		}
		if d.Dirty > limit/2+pieceBytes+2*batch {
			t.Errorf("%d bytes are dirty", d.Dirty)
		}
		s.disks[0].BeforeOp(nil)
	})
}

const logSuffix = ".log"

// TestWriteBackFails: what the disk will not write ends the directory, as a
// failed flush does; a file system without the call does not.
func TestWriteBackFails(t *testing.T) {
	f := func(err error, want wire.Code) {
		t.Helper()
		synctest.Test(t, func(t *testing.T) {
			s := openShop(t, 1, 1, Settings{FlushBytes: 1 << 40, FlushEvery: time.Hour}, SetConfig{DirtyLimit: 4 * pieceBytes})
			defer s.stop()
			defer s.set.Close()
			s.disks[0].Fail(storage.OpWriteBack, 0, err)
			for range 3 * pieceBytes >> 20 {
				s.produceBytes(0, 1000<<10)
			}
			if a := s.produceBytes(0, 10); wire.CodeOf(a.err) != want {
				t.Errorf("after %v: %v", err, a.err)
			}
		})
	}

	f(syscall.EIO, wire.CodeOffline)
	f(errors.ErrUnsupported, wire.CodeOK)
}

// TestRollsTogether has a thousand partitions roll at once on a disk that takes
// 50 ms for each fsync: none of their acknowledgements waits for it.
func TestRollsTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const partitions, batch = 1000, 1000
		s := openShop(t, 1, partitions, Settings{Log: storage.Options{SegmentBytes: 3 * batch}}, SetConfig{})
		defer s.stop()
		defer s.set.Close()
		time.Sleep(time.Minute) // whatever a start leaves to do is done
		var syncs atomic.Int32
		s.disks[0].BeforeOp(func(op storage.Op) error {
			if op.Kind == storage.OpSync || op.Kind == storage.OpSyncDir {
				time.Sleep(50 * time.Millisecond)
				syncs.Add(1)
			}
			return nil
		})
		rolled := 0
		for range 8 {
			began := time.Now()
			for i := range partitions {
				a := s.produceBytes(i, batch-200)
				a.want(t, wire.CodeOK, a.at.First)
				if a.at.First > 0 && s.leader(i).log.Stats().Segments > 1 {
					rolled++
				}
			}
			if took := time.Since(began); took > 0 {
				t.Fatalf("acknowledged after %v", took)
			}
			time.Sleep(30 * time.Millisecond) // in the midst of fsyncs
		}
		time.Sleep(time.Second)
		if rolled < 2*partitions || syncs.Load() == 0 {
			t.Fatalf("%d answers from behind a roll, %d fsyncs", rolled, syncs.Load())
		}
		s.disks[0].BeforeOp(nil)
	})
}
