package repl

import (
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/teralog/teralog/storage"
	"github.com/teralog/teralog/wire"
)

// TestAdmitQueue fills a mailbox nobody works on: it refuses before it is full,
// stays closed for its time although it was emptied, and then opens bit by bit.
func TestAdmitQueue(t *testing.T) {
	r := newRig(t, Settings{}, SetConfig{QueueLimit: 10})
	r.play(`
		admit                                    | <nil>
		produce a; produce b; produce c; produce d; produce e; produce f; produce g; admit | <nil>
		produce h; admit                         | partition-queue,BUSY,50ms
		clock 10; admit                          | partition-queue,BUSY,40ms
		turn                                     | a=0 b=1 c=2 d=3 e=4 f=5 g=6 h=7 0≤8≤8,0
		admit                                    | partition-queue,BUSY,40ms
		clock 50; admit; admit                   | <nil> partition-queue,BUSY,1ms
		clock 51; admit                          | <nil>
		produce i; produce j; produce k; clock 60; admit | partition-queue,BUSY,1ms
		turn; clock 61; admit                    | i=8 j=9 k=10 <nil> 0≤11≤11,0
		clock 110; admit; admit                  | <nil> <nil>
	`)

	// Bytes count as well as tasks.
	r = newRig(t, Settings{}, SetConfig{QueueBytes: 10_000})
	r.play(`
		produce a bytes=7000; admit              | <nil>
		produce b bytes=900; admit               | partition-queue,BUSY,50ms
	`)
}

// TestAdmitSlow: a flush that takes longer than the bound has writes refused
// until it is back and nothing has been slow for as long.
func TestAdmitSlow(t *testing.T) {
	r := newRig(t, Settings{Flush: Sync}, SetConfig{RefuseAfter: 2 * time.Second})
	r.play(`
		produce a; turn; start                   | 0≤0≤1,0
		clock 1999; admit                        | slow <nil>
		clock 2000; admit                        | disk-slow,DISK_SLOW,2s
		clock 2500; done; turn                   | a=0 0≤1≤1,1
		clock 2600; admit                        | disk-slow,DISK_SLOW,1.4s
		clock 4000; admit; admit                 | <nil> disk-slow,DISK_SLOW,200ms
		produce b; turn; start; clock 4900; admit | disk-slow,DISK_SLOW,200ms 0≤1≤2,1
		done; turn; clock 5000; admit            | b=1 <nil> 0≤2≤2,2
		clock 6899; admit                        | <nil>
		clock 6900; admit; admit                 | <nil> <nil>
	`)
}

// TestAdmitStuckAppend: an append that does not come back has other partitions
// of the directory refused, and ends when it does. The other disk is let alone.
func TestAdmitStuckAppend(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := openShop(t, 2, 4, Settings{}, SetConfig{RefuseAfter: 2 * time.Second})
		defer s.stop()
		defer s.set.Close()
		admit := func(i int) wire.Code { return wire.CodeOf(s.leader(i).Admit(s.clock.Now())) }
		var stuck atomic.Bool
		release := make(chan struct{})
		s.disks[0].BeforeOp(func(op storage.Op) error {
			if op.Kind == storage.OpWrite && !stuck.Swap(true) {
				<-release
			}
			return nil
		})
		a := s.produce(0, false, wire.AcksLeader)
		time.Sleep(1900 * time.Millisecond)
		if c := admit(2); c != wire.CodeOK || !stuck.Load() {
			t.Fatal(c, stuck.Load())
		}
		time.Sleep(1100 * time.Millisecond)
		if c := admit(2); c != wire.CodeDiskSlow {
			t.Fatal(c)
		}
		if c := admit(1); c != wire.CodeOK {
			t.Fatalf("the other disk: %v", c)
		}
		close(release)
		synctest.Wait()
		a.want(t, wire.CodeOK, 0)
		time.Sleep(2 * time.Second)
		if c := admit(2); c != wire.CodeOK { // a probe
			t.Fatal(c)
		}
		time.Sleep(2 * time.Second)
		for range 3 {
			if c := admit(2); c != wire.CodeOK {
				t.Fatal(c)
			}
		}
	})
}
