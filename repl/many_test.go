package repl

import (
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/teralog/teralog/storage"
	"github.com/teralog/teralog/wire"
)

// gather writes to n partitions, whose flushes then wait to be made together.
func (s *shop) gather(n int) {
	s.t.Helper()
	for i := range n {
		s.produce(i, true, wire.AcksAll)
	}
	time.Sleep(asyncEvery + manyEvery/2)
	synctest.Wait()
	if !s.set.dirs[0].many.running {
		s.t.Fatal("it does not run")
	}
}

// TestFlushMany writes to hundreds of async partitions: their background flush is
// one sync of the file system. Partitions whose acks wait are flushed one by one
// beside it, and few are as ever.
func TestFlushMany(t *testing.T) {
	const n = 400
	synctest.Test(t, func(t *testing.T) {
		s := openShop(t, 1, n, Settings{}, SetConfig{PointEvery: time.Hour})
		defer s.stop()
		defer s.set.Close()
		synced := wire.PartitionID{Topic: 77}
		if err := s.set.Host("u", synced, s.set.dirs[0].dir, Settings{Flush: Sync}, 0, true, s.clock.Now()); err != nil {
			t.Fatal(err)
		}
		// writes produces once to so many, and returns what their flushes took once
		// the last is due.
		writes := func(many int) (files, volume int) {
			t.Helper()
			synctest.Wait()
			s.disks[0].ResetCounts()
			var ends [n]wire.Offset
			for i := range many {
				ends[i] = s.leader(i).View().End + 1
				s.produce(i, true, wire.AcksAll).want(t, wire.CodeOK, ends[i]-1)
			}
			time.Sleep(asyncEvery + 2*manyEvery + time.Millisecond)
			synctest.Wait()
			for i := range many {
				if v := s.leader(i).View(); v.Flushed != ends[i] {
					t.Fatalf("of %d written to, partition %d is flushed to %d of %d", many, i, v.Flushed, ends[i])
				}
			}
			return s.disks[0].Count(storage.OpSync), s.disks[0].Count(storage.OpSyncVolume)
		}

		if files, volume := writes(manyFrom - 1); files != manyFrom-1 || volume != 0 {
			t.Fatalf("few: %d syncs of files, %d of the file system", files, volume)
		}
		time.Sleep(time.Second)
		if files, volume := writes(n); files != manyFrom-1 || volume != 1 {
			t.Fatalf("many: %d syncs of files, %d of the file system", files, volume)
		}
		time.Sleep(time.Second) // by now it has found too few
		if files, volume := writes(3); files != 3 || volume != 0 {
			t.Fatalf("few again: %d syncs of files, %d of the file system", files, volume)
		}

		// While it runs, an ack of a sync topic takes one sync of its own.
		time.Sleep(time.Second)
		s.gather(n)
		p, err := s.set.Leader(synced)
		if err != nil {
			t.Fatal(err)
		}
		s.disks[0].ResetCounts()
		answered := 0
		produce(p, []Write{{Batch: testBatch(t, 0, 0, 1, 0, "v"), Acks: wire.AcksAll, Done: func(_ storage.Appended, err error) {
			if answered++; err != nil {
				t.Error(err)
			}
		}}}, true)
		synctest.Wait()
		if files, volume := s.disks[0].Count(storage.OpSync), s.disks[0].Count(storage.OpSyncVolume); answered != 1 || files != 1 || volume != 0 {
			t.Fatalf("a sync topic beside it: %d answers, %d syncs of files, %d of the file system", answered, files, volume)
		}

		// After one that takes long, for others' sake, there is none for a while.
		time.Sleep(2 * time.Second)
		s.disks[0].BeforeOp(func(op storage.Op) error {
			if op.Kind == storage.OpSyncVolume {
				time.Sleep(manyLong + time.Millisecond)
			}
			return nil
		})
		for i := range n {
			s.produce(i, true, wire.AcksAll)
		}
		time.Sleep(10 * time.Second)
		synctest.Wait()
		s.disks[0].BeforeOp(nil)
		if files, volume := writes(n); files != n || volume != 0 {
			t.Fatalf("after a slow one: %d syncs of files, %d of the file system", files, volume)
		}
		time.Sleep(manyRest)
		if files, volume := writes(n); files != manyFrom-1 || volume != 1 {
			t.Fatalf("a while after it: %d syncs of files, %d of the file system", files, volume)
		}

		// A sync of the file system that fails says nothing, and is the last; those of
		// the files do.
		time.Sleep(2 * time.Second)
		s.disks[0].BeforeOp(func(op storage.Op) error {
			if op.Kind == storage.OpSyncVolume {
				return storage.ErrElsewhere
			}
			return nil
		})
		if files, volume := writes(n); files != n || volume != 1 {
			t.Fatalf("after a failure: %d syncs of files, %d of the file system", files, volume)
		}
		if files, volume := writes(n); files != n || volume != 0 {
			t.Fatalf("soon after it: %d syncs of files, %d of the file system", files, volume)
		}
		s.disks[0].BeforeOp(nil)
		time.Sleep(2 * manyRest)
		if files, volume := writes(n); files != n || volume != 0 {
			t.Fatalf("long after it: %d syncs of files, %d of the file system", files, volume)
		}
		if err := s.set.dirs[0].failure(); err != nil {
			t.Fatal(err)
		}
	})
}

// TestFlushManyOfAnIllDisk: what a failed write-back lost shows when each is
// flushed by itself, and ends the directory.
func TestFlushManyOfAnIllDisk(t *testing.T) {
	const n = 300
	synctest.Test(t, func(t *testing.T) {
		s := openShop(t, 1, n, Settings{}, SetConfig{PointEvery: time.Hour})
		defer s.stop()
		defer s.set.Close()
		s.disks[0].Fail(storage.OpSyncVolume, 1, syscall.EIO)
		for i := range n {
			s.produce(i, true, wire.AcksAll)
		}
		time.Sleep(asyncEvery + 2*manyEvery)
		synctest.Wait()
		if s.set.dirs[0].failure() == nil {
			t.Fatal("the directory serves on")
		}
	})
}

// TestCloseWhileMany closes a set, and a partition of one, whose logs wait to be
// flushed together.
func TestCloseWhileMany(t *testing.T) {
	const n = 300
	synctest.Test(t, func(t *testing.T) {
		s := openShop(t, 1, n, Settings{}, SetConfig{PointEvery: time.Hour})
		defer s.stop()
		s.gather(n)
		began := time.Now()
		for _, ends := range s.set.Close() {
			if len(ends) != n {
				t.Fatalf("%d logs closed", len(ends))
			}
		}
		if took := time.Since(began); took > manyEvery {
			t.Fatalf("it took %v", took)
		}
	})
}
