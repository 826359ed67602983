package repl

import (
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/teralog/teralog/storage"
	"github.com/teralog/teralog/wire"
)

// stalling makes the fsyncs of a disk take 1 ms, one in fifty of them 50 ms, and
// once a minute nothing comes back for 2 s.
func stalling(d *storage.MemFS) {
	var mu sync.Mutex
	rnd := rand.New(rand.NewPCG(1, 2))
	begun := time.Now()
	d.BeforeOp(func(op storage.Op) error {
		if op.Kind != storage.OpSync && op.Kind != storage.OpSyncDir {
			return nil
		}
		mu.Lock()
		took := time.Millisecond
		if rnd.IntN(50) == 0 {
			took = 50 * time.Millisecond
		}
		mu.Unlock()
		if in := time.Since(begun) % time.Minute; in >= 30*time.Second && in < 32*time.Second {
			took += 32*time.Second - in
		}
		time.Sleep(took)
		return nil
	})
}

// A sent is one write of TestStallingDisk.
type sent struct {
	a  *answer
	at time.Time
}

// TestStallingDisk produces for three minutes to a disk that stalls now and then,
// by two producers at once. An async write is answered while nothing waits for
// the disk; nothing waits beyond its bound; interval flushes lose no more than
// they may if the power went, at any moment; and no offset is given twice.
func TestStallingDisk(t *testing.T) {
	const async, interval, syncs = 0, 1, 2
	const flushBytes, flushEvery, unacked = 16 << 10, 100 * time.Millisecond, 150
	synctest.Test(t, func(t *testing.T) {
		s := openShop(t, 1, 0, Settings{}, SetConfig{MaxUnacked: unacked})
		dir := s.set.dirs[0].dir
		for i, st := range []Settings{{Flush: Async}, {Flush: Interval, FlushBytes: flushBytes, FlushEvery: flushEvery}, {Flush: Sync}} {
			if err := s.set.Host("t", s.id(i), dir, st, 0, true, s.clock.Now()); err != nil {
				t.Fatal(err)
			}
		}
		stalling(s.disks[0])
		var all [3][]sent
		size := int64(len(testBatch(t, 0, 0, 1, 0, "v")))
		refused, waited := 0, 0
		for n := range 3 * 60 * 50 { // every 20 ms
			var two sync.WaitGroup
			var now [2][3]sent
			for i := range now {
				two.Go(func() {
					for p := range 3 {
						// The caller of a sync write may do its flush: then nobody produces meanwhile.
						now[i][p] = sent{s.produce(p, n%2 == 0 && p != syncs, wire.AcksAll), time.Now()}
					}
				})
			}
			two.Wait()
			synctest.Wait() // no time passes
			for i := range now {
				if a := now[i][async].a; a.times.Load() != 1 || a.err != nil {
					t.Fatalf("at %v an async write was answered %d times: %v", s.clock.Now().Mono, a.times.Load(), a.err)
				}
				for p := range 3 {
					all[p] = append(all[p], now[i][p])
				}
			}
			for p := range 3 {
				open := 0
				for _, w := range all[p][max(0, len(all[p])-400):] {
					if w.a.times.Load() == 0 {
						open++
					}
				}
				waited = max(waited, open)
				if q := s.leader(p).Stats(); open > unacked || q.QueuedBytes > 1<<20 {
					t.Fatalf("at %v %d writes wait, %d bytes in the mailbox", s.clock.Now().Mono, open, q.QueuedBytes)
				}
			}
			// What would be lost of the interval one.
			flushed, lost := s.leader(interval).View().Flushed, []sent{}
			for _, w := range slices.Backward(all[interval]) {
				if w.a.times.Load() == 1 && w.a.err == nil {
					if w.a.at.First < flushed {
						break
					}
					lost = append(lost, w)
				}
			}
			if n := len(lost); n > 0 && (int64(n)*size > flushBytes || lost[0].at.Sub(lost[n-1].at) > flushEvery) {
				t.Fatalf("at %v %d acknowledged records of %v are not durable", s.clock.Now().Mono, n, lost[0].at.Sub(lost[n-1].at))
			}
			time.Sleep(20 * time.Millisecond)
		}
		time.Sleep(5 * time.Second)
		synctest.Wait()
		for p := range all {
			seen := map[wire.Offset]bool{}
			for _, w := range all[p] {
				switch {
				case w.a.times.Load() != 1:
					t.Fatalf("partition %d: a write was answered %d times", p, w.a.times.Load())
				case w.a.err != nil && wire.CodeOf(w.a.err).Definite():
					refused++
				case w.a.err != nil:
					t.Fatalf("partition %d: %v", p, w.a.err)
				case seen[w.a.at.First]:
					t.Fatalf("partition %d: offset %d was given twice", p, w.a.at.First)
				default:
					seen[w.a.at.First] = true
				}
			}
			if v := s.leader(p).View(); int(v.End) != len(seen) {
				t.Fatalf("partition %d: %d acknowledged, the log ends at %d", p, len(seen), v.End)
			}
		}
		if refused == 0 || waited < unacked/2 {
			t.Fatalf("the disk never stalled: %d refused, up to %d waited", refused, waited)
		}
		s.disks[0].BeforeOp(nil)
		s.set.Close()
		s.stop()
	})
}
