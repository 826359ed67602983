package repl

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/teralog/teralog/storage"
	"github.com/teralog/teralog/wire"
)

func TestModes(t *testing.T) {
	f := func(st Settings, story string) {
		t.Helper()
		newRig(t, st, SetConfig{}).play(story)
	}

	// Async: the write is the ack; the flush follows after a second.
	f(Settings{}, `
		produce a b        |
		steps              | turn
		turn               | a=0 b=1 0≤2≤2,0
		produce c acks=1   |
		turn               | c=2 0≤3≤3,0
		steps              |
		clock 999; steps   |
		clock 1000; steps  | turn
		turn; steps        | start
		produce d; turn    | d=3 0≤4≤4,0
		start; steps       | done
		done; steps        | turn
		turn               | 0≤4≤4,4
		clock 9000; steps  |
	`)

	// Sync: the ack waits for a flush that covers it, and so do consumers.
	f(Settings{Flush: Sync}, `
		produce a; turn      | 0≤0≤1,0
		steps                | start
		start; steps         | done
		produce b acks=1     |
		produce c acks=0     |
		turn                 | c=2 0≤0≤3,0
		done; turn           | a=0 0≤1≤3,1
		steps                | start
		start; done; turn    | b=1 0≤3≤3,3
		steps                |
	`)

	// A flush that starts late covers what was appended until then.
	f(Settings{Flush: Sync}, `
		produce a; turn      | 0≤0≤1,0
		produce b; turn      | 0≤0≤2,0
		start; done; turn    | a=0 b=1 0≤2≤2,2
	`)

	// Interval: acks stop where more than the bound would be at stake, and a
	// disk that stalls does not move it.
	f(Settings{Flush: Interval, FlushBytes: 2500, FlushEvery: 100 * time.Millisecond}, `
		produce a bytes=1000; turn         | a=0 0≤1≤1,0
		steps                              |
		produce b bytes=1000; turn         | b=1 0≤2≤2,0
		steps                              | start
		start; produce c bytes=1000; turn  | 0≤3≤3,0
		clock 20000                        | slow
		produce d; turn; steps             | done 0≤4≤4,0
	`)
	f(Settings{Flush: Interval, FlushBytes: 2500, FlushEvery: 100 * time.Millisecond}, `
		produce a bytes=1000; turn         | a=0 0≤1≤1,0
		produce b bytes=1000; turn; start  | b=1 0≤2≤2,0
		produce c bytes=1000; turn         | 0≤3≤3,0
		done; turn                         | c=2 0≤3≤3,2
	`)
	f(Settings{Flush: Interval, FlushEvery: 100 * time.Millisecond}, `
		produce a; turn; steps             | a=0 0≤1≤1,0
		clock 50; steps                    | turn
		turn; start                        |
		clock 100; produce b; turn         | b=1 0≤2≤2,0
		clock 101; produce c; turn         | 0≤3≤3,0
		done; turn                         | c=2 0≤3≤3,1
		steps; clock 150; all              | 0≤3≤3,3
	`)
}

// TestFlushFails lets the disk fail.
func TestFlushFails(t *testing.T) {
	f := func(st Settings, story string) {
		t.Helper()
		newRig(t, st, SetConfig{FailAfter: 30 * time.Second}).play(story)
	}

	f(Settings{Flush: Sync}, `
		produce a; turn               | 0≤0≤1,0
		produce b; await w 0 1        |
		fail sync 1 EIO               |
		start; done                   |
		steps                         | failed turn
		turn                          | offline a=STORAGE_ERROR b=OFFLINE wake:w
		produce c; turn               | c=OFFLINE
		await v 0 1; turn             | wake:v
		trim 0; turn                  | trimmed=-1,OFFLINE
		steps; clock 99000; steps     |
		close                         | ends=0
	`)

	// In async mode what was acknowledged stays so; the next write is refused.
	f(Settings{}, `
		produce a; turn               | a=0 0≤1≤1,0
		fail sync 1 EIO               |
		clock 1000; turn; start; done |
		turn                          | offline
		produce b; turn               | b=OFFLINE
		steps                         | failed
	`)

	// A flush that never comes back.
	f(Settings{Flush: Sync}, `
		produce a; turn; start        | 0≤0≤1,0
		clock 1000; steps             | done
		clock 1001; steps             | slow done
		clock 16000; steps            | done
		clock 30000; steps            | done
		produce b; turn               | 0≤0≤2,0
		clock 30001; steps            | failed turn done
		turn                          | offline a=STORAGE_ERROR b=STORAGE_ERROR
		done; turn                    |
	`)

	// One who was stopped himself cannot tell how long it took: it is given its
	// time anew.
	f(Settings{Flush: Sync}, `
		produce a; turn; start        | 0≤0≤1,0
		clock 1001; steps             | slow done
		clock 600000; steps           | done
		clock 615000; steps           | done
		clock 630000; steps           | done
		clock 630001; steps           | failed turn done
	`)

	// A slow flush that comes back is forgiven.
	f(Settings{Flush: Sync}, `
		produce a; turn; start        | 0≤0≤1,0
		clock 2000; steps             | slow done
		done; turn                    | a=0 0≤1≤1,1
		clock 40000; steps            |
	`)
}

// TestWriteFails lets the write itself fail.
func TestWriteFails(t *testing.T) {
	f := func(st Settings, story string) {
		t.Helper()
		newRig(t, st, SetConfig{}).play(story)
	}

	// A full disk is definite and passes by itself; nothing of it stays.
	f(Settings{}, `
		produce a from=7; turn             | a=0 0≤1≤1,0
		fail write:.log 1 ENOSPC           |
		produce b from=7; produce c; turn  | b=DISK_FULL c=DISK_FULL
		produce b from=7 seq=1; turn       | b=1 0≤2≤2,0
	`)

	// So are too many open files, which a roll meets.
	f(Settings{Log: storage.Options{SegmentBytes: 300}}, `
		produce a b from=7 bytes=100; turn   | a=0 b=1 0≤2≤2,0
		fail open:.log 1 EMFILE              |
		produce c from=7 bytes=100; turn     | c=BUSY
		produce c from=7 seq=2 bytes=100; turn | c=2 0≤3≤3,0
		fail open:recovery-points 1 EMFILE   |
		clock 1000; tidy; turn; clock 2000; tidy; turn; start; done; turn | 0≤3≤3,3
		produce d from=7 seq=3 bytes=100; turn | d=3 0≤4≤4,3
	`)

	// What failed takes along its duplicates, not those of earlier turns.
	f(Settings{}, `
		produce a from=7; turn             | a=0 0≤1≤1,0
		fail write:.log 1 ENOSPC           |
		produce a from=7 seq=0             |
		produce b from=7 seq=1             |
		produce b from=7 seq=1             |
		turn                               | b=DISK_FULL b=DISK_FULL a=0
		produce b from=7 seq=1; turn       | b=1 0≤2≤2,0
	`)

	// Any other failure ends the directory, even if the disk recovers.
	f(Settings{Flush: Sync}, `
		produce a; turn                    | 0≤0≤1,0
		fail write:.log 1 EIO              |
		produce b; produce c acks=0; turn  | offline a=STORAGE_ERROR b=STORAGE_ERROR c=STORAGE_ERROR
		produce d; turn                    | d=OFFLINE
		steps                              | failed start
		start; done; turn; steps           |
	`)
}

// TestDuplicates sends batches again: I1, I2.
func TestDuplicates(t *testing.T) {
	f := func(st Settings, story string) {
		t.Helper()
		newRig(t, st, SetConfig{}).play(story)
	}

	// The retry waits until the original may be acknowledged.
	f(Settings{Flush: Sync}, `
		produce a from=7; turn              | 0≤0≤1,0
		produce a from=7 seq=0 acks=1; turn |
		start; done; turn                   | a=0 a=0 0≤1≤1,1
		produce a from=7 seq=0; turn        | a=0
	`)

	// Merged into one turn with the original, five in flight and their retries.
	f(Settings{Flush: Sync}, `
		produce from=7 a b c d e            |
		produce from=7 seq=0 a b c d e      |
		turn                                | 0≤0≤5,0
		start; done; turn                   | a=0 b=1 c=2 d=3 e=4 a=0 b=1 c=2 d=3 e=4 0≤5≤5,5
	`)

	// A retry stands behind what was appended before it came.
	f(Settings{Flush: Sync}, `
		produce from=7 a; turn; start       | 0≤0≤1,0
		produce b; turn                     | 0≤0≤2,0
		produce from=7 seq=0 a; turn        |
		done; turn                          | a=0 0≤1≤2,1
		start; done; turn                   | b=1 a=0 0≤2≤2,2
	`)

	// Older than the five: success without an offset, as durable as the rest.
	f(Settings{Flush: Sync}, `
		produce from=7 a b c d e f; turn    | 0≤0≤6,0
		produce from=7 seq=0 a; turn        |
		start; done; turn                   | a=0 b=1 c=2 d=3 e=4 f=5 a=-1 0≤6≤6,6
	`)

	// Also when nothing else waits.
	f(Settings{Flush: Sync}, `
		produce from=7 acks=0 a b c d e f; turn | a=0 b=1 c=2 d=3 e=4 f=5 0≤0≤6,0
		produce from=7 seq=0 a; turn            |
		produce from=7 seq=3 d; turn            |
		start; done; turn                       | a=-1 d=3 0≤6≤6,6
	`)

	// Gaps, strangers and wraps of the truth are refused, and harm no neighbour.
	f(Settings{}, `
		produce from=7 a; turn              | a=0 0≤1≤1,0
		produce b; produce from=7 seq=2 c; produce d; turn  | c=OUT_OF_ORDER_SEQUENCE b=1 d=2 0≤3≤3,0
		produce from=8 seq=5 e; turn        | e=UNKNOWN_PRODUCER
		produce from=7 seq=0 other; turn    | other=SEQUENCE_REUSED
		produce from=7 seq=1 f; turn        | f=3 0≤4≤4,0
	`)

	// A batch behind a gap of the same turn is as wrong as it would be later.
	f(Settings{}, `
		produce from=7 a                    |
		produce from=7 seq=5 b              |
		produce from=7 seq=6 c              |
		produce from=7 seq=1 d              |
		turn                                | b=OUT_OF_ORDER_SEQUENCE c=OUT_OF_ORDER_SEQUENCE a=0 d=1 0≤2≤2,0
	`)
}

// TestOneWrite counts what a turn with 64 batches costs the disk.
func TestOneWrite(t *testing.T) {
	r := newRig(t, Settings{}, SetConfig{})
	for range 64 {
		r.play(`produce of=3 acks=0 bytes=100 a |`)
	}
	r.play(`reset; turn; count write; count sync; count read | ` + sixtyFour() + ` write=1 sync=0 read=0 0≤192≤192,0`)
}

func sixtyFour() (s string) {
	r := rig{}
	for i := range 64 {
		r.note("a=%d", 3*i)
	}
	for _, one := range r.seen {
		s += one + " "
	}
	return s
}

// TestFull fills what is bounded.
func TestFull(t *testing.T) {
	f := func(st Settings, c SetConfig, story string) {
		t.Helper()
		newRig(t, st, c).play(story)
	}

	f(Settings{}, SetConfig{QueueLimit: 2}, `
		produce a; produce b; produce c     | c=BUSY
		await w 0 1; trim 0                 | w=BUSY trimmed=-1,BUSY
		turn                                | a=0 b=1 0≤2≤2,0
		produce d; turn                     | d=2 0≤3≤3,0
	`)
	f(Settings{}, SetConfig{QueueBytes: 2000}, `
		produce a bytes=1000                |
		produce b bytes=1000                | b=BUSY
		produce c bytes=100                 |
		turn                                | a=0 c=1 0≤2≤2,0
		produce d bytes=1000; turn          | d=2 0≤3≤3,0
	`)
	f(Settings{Flush: Sync}, SetConfig{MaxUnacked: 2}, `
		produce a b c; turn                 | c=BUSY 0≤0≤2,0
		produce d acks=0; turn              | d=BUSY
		clock 2000; start; clock 4000       | slow
		produce e; turn                     | e=DISK_SLOW
		done; turn                          | a=0 b=1 0≤2≤2,2
		produce f; turn                     | 0≤2≤3,2
	`)
}

// TestAwait parks fetches.
func TestAwait(t *testing.T) {
	f := func(st Settings, story string) {
		t.Helper()
		newRig(t, st, SetConfig{}).play(story)
	}

	f(Settings{}, `
		await w 0 1; turn                   |
		produce a; turn                     | a=0 wake:w 0≤1≤1,0
		await w 0 1; turn                   | wake:w
		await w 1 5000; turn                |
		produce b bytes=1000; turn          | b=1 0≤2≤2,0
		produce c bytes=4000; turn          | c=2 wake:w 0≤3≤3,0
	`)

	// Consumers of a sync topic see what is flushed.
	f(Settings{Flush: Sync}, `
		await w 0 1; produce a; turn        | 0≤0≤1,0
		start; done; turn                   | a=0 wake:w 0≤1≤1,1
	`)

	// In one turn the append comes before the fetch looks again.
	f(Settings{}, `
		await w 0 1; produce a              |
		turn                                | a=0 wake:w 0≤1≤1,0
	`)

	f(Settings{}, `
		await w 0 1; turn                   |
		drop                                | wake:w
	`)
}

// TestPanic lets a turn go wrong: only its partition ends.
func TestPanic(t *testing.T) {
	f := func(st Settings, story string) {
		t.Helper()
		r := newRig(t, st, SetConfig{})
		other := testID
		other.Partition++
		if err := r.set.Host("t", other, r.p.dir.dir, st, 0, true, r.now()); err != nil {
			t.Fatal(err)
		}
		r.play(story)
		r.p, _ = r.set.Leader(other)
		r.last = offsets{}
		r.play(`
			produce z acks=0; turn; clock 2000; all   | z=0 0≤1≤1,1
		`)
	}

	f(Settings{Flush: Sync}, `
		await w 0 1; produce a acks=1; turn         | 0≤0≤1,0
		bug; produce b; await v 0 1; turn           | offline a=INTERNAL b=INTERNAL wake:w wake:v
		produce c; turn                             | c=OFFLINE
	`)
	f(Settings{}, `
		produce x; turn; trim 1; turn               | x=0 0≤1≤1,0
		start; done; turn                           | 1≤1≤1,1
		produce a boom b; await w 1 1               |
		turn                                        | a=1 boom offline b=INTERNAL trimmed=-1,INTERNAL wake:w 1≤4≤4,1
		produce c; turn                             | c=OFFLINE
		drop                                        | OFFLINE: the partition is offline: panic: in the answer
	`)
	f(Settings{Flush: Sync}, `
		explode sync; await w 0 1; produce a; turn  | 0≤0≤1,0
		start; produce b                            |
		done; turn                                  | offline a=STORAGE_ERROR wake:w b=OFFLINE
		produce c; turn                             | c=OFFLINE
	`)
	f(Settings{}, `
		produce a; turn; trim 1; turn               | a=0 0≤1≤1,0
		start; done; turn                           | 1≤1≤1,1
		tidy; turn; clock 200; explode sync:index   |
		tidy; turn                                  | offline trimmed=-1,STORAGE_ERROR
	`)
	newRig(t, Settings{}, SetConfig{}).play(`
		produce a; turn                             | a=0 0≤1≤1,0
		tidy; turn; clock 200                       |
		explode rename:recovery-points; tidy; steps | failed turn
		turn                                        | offline
		produce b; turn                             | b=OFFLINE
	`)
}

// TestClose stops a partition with work in every place.
func TestClose(t *testing.T) {
	f := func(st Settings, story string) {
		t.Helper()
		newRig(t, st, SetConfig{}).play(story)
	}

	f(Settings{Flush: Sync}, `
		produce a; turn; start; produce b; turn     | 0≤0≤2,0
		produce c; await w 0 1                      |
		close                                       | a=0 b=1 c=2 wake:w ends=1 0≤3≤3,3
		produce d                                   | d=SHUTTING_DOWN
	`)
	f(Settings{}, `
		produce a b; turn; trim 1; turn             | a=0 b=1 0≤2≤2,0
		start; done; turn                           | 1≤2≤2,2
		await w 2 1; turn; close                    | wake:w trimmed=-1,STORAGE_ERROR ends=1
		await v 2 1; trim 1                         | v=SHUTTING_DOWN trimmed=-1,SHUTTING_DOWN
	`)
	f(Settings{}, `
		produce a; drop                             | a=0 0≤1≤1,1
		produce b                                   | b=NOT_LEADER
	`)
	f(Settings{Flush: Sync}, `
		produce a; turn                             | 0≤0≤1,0
		fail sync 1 EIO; close                      | offline a=STORAGE_ERROR ends=0
		produce b                                   | b=OFFLINE
	`)
}

// TestTrim answers a trim once no crash can undo it.
func TestTrim(t *testing.T) {
	f := func(st Settings, story string) {
		t.Helper()
		newRig(t, st, SetConfig{}).play(story)
	}

	f(Settings{}, `
		produce a b c; turn                         | a=0 b=1 c=2 0≤3≤3,0
		trim 4; turn                                | trimmed=-1,OUT_OF_RANGE
		trim 2; turn; start; produce d; turn        | d=3 0≤4≤4,0
		done; turn                                  | 2≤4≤4,3
		clock 1000; tidy; turn; clock 2000; tidy    |
		turn                                        | trimmed=2,OK
		trim 1; turn                                | trimmed=2,OK
		clock 4000; tidy; turn; clock 5000; tidy    |
		turn                                        |
	`)
	f(Settings{}, `
		produce a b c; turn; trim 2; all            | a=0 b=1 c=2 2≤3≤3,3
		fail write:recovery-points 0 ENOSPC         |
		clock 1000; tidy; turn; clock 2000; tidy    |
		turn; clock 4000; tidy; turn                |
		heal; clock 5000; tidy; turn                |
		clock 6000; tidy; turn                      | trimmed=2,OK
	`)
	f(Settings{}, `
		produce a b c; turn; trim 2; all            | a=0 b=1 c=2 2≤3≤3,3
		fail write:recovery-points 1 EIO            |
		clock 1000; tidy; turn; clock 2000; tidy    | offline trimmed=-1,STORAGE_ERROR failed
	`)
	f(Settings{Flush: Sync}, `
		produce a; turn; trim 1; turn               | trimmed=-1,OUT_OF_RANGE 0≤0≤1,0
	`)
	// A full disk that only the fsync of a recovery point tells of is a failed fsync.
	f(Settings{Log: storage.Options{SnapshotBytes: 1}}, `
		produce a from=7; turn                      | a=0 0≤1≤1,0
		clock 1000; turn; start; done; turn         | 0≤1≤1,1
		fail sync:.producers 1 ENOSPC               |
		clock 2000; tidy; turn; clock 3000; tidy    |
		turn; steps                                 | offline failed
	`)
}

// TestDeadline answers writes whose time is up; they stay in the log.
func TestDeadline(t *testing.T) {
	f := func(st Settings, story string) {
		t.Helper()
		newRig(t, st, SetConfig{}).play(story)
	}

	f(Settings{Flush: Sync}, `
		produce a within=500; turn; start      | 0≤0≤1,0
		produce b within=200; produce c; turn  | 0≤0≤3,0
		clock 199; steps                       | done
		clock 200; turn                        | b=TIMEOUT
		clock 499; steps                       | done
		clock 500; turn                        | a=TIMEOUT
		clock 900; steps                       | done
		done; turn; start; done; turn          | c=2 0≤3≤3,3
		produce d within=1000; turn; start     | 0≤3≤4,3
		done; turn                             | d=3 0≤4≤4,4
		clock 1000; steps                      | turn
		turn; steps                            |
	`)
	f(Settings{}, `
		produce a within=10; turn              | a=0 0≤1≤1,0
	`)
}

// TestRetention never gives up what consumers could not see yet.
func TestRetention(t *testing.T) {
	st := Settings{Flush: Sync, Log: storage.Options{SegmentBytes: 500, RetentionBytes: 500}}
	newRig(t, st, SetConfig{TidyEvery: time.Second}).play(`
		produce a b c d bytes=200; turn         | 0≤0≤4,0
		clock 10; tidy; turn                    |
		start; done; turn                       | a=0 b=1 c=2 d=3 0≤4≤4,4
		clock 11000; tidy; turn                 | 2≤4≤4,4
	`)
}

// TestFullMailboxDelaysProof keeps what a partition has to hear of its recovery
// point until there is room in its mailbox.
func TestFullMailboxDelaysProof(t *testing.T) {
	newRig(t, Settings{FlushEvery: time.Hour}, SetConfig{QueueLimit: 1, TidyEvery: 5003 * time.Second}).play(`
		tidy; turn                              |
		produce a b c; turn; trim 1; turn       | a=0 b=1 c=2 0≤3≤3,0
		start; done; turn                       | 1≤3≤3,3
		clock 1000; tidy; turn                  |
		produce x; clock 2000; tidy; turn       | x=3 1≤4≤4,3
		trim 2; turn                            | 2≤4≤4,3
		clock 3000; tidy; turn                  |
		clock 4000; tidy; turn                  | trimmed=1,OK
		clock 5000; tidy; turn                  | trimmed=2,OK
	`)
}

// TestReplay runs one history twice: a manual set depends on nothing else.
func TestReplay(t *testing.T) {
	f := func(st Settings, seed uint64) (trace []Step) {
		h := newHistory(t, seed, st)
		for range 3 {
			h.live()
			h.crash()
		}
		return h.trace
	}

	for seed := range uint64(5) {
		st := Settings{Flush: Sync}
		if a, b := f(st, seed), f(st, seed); len(a) < 50 || !slices.Equal(a, b) {
			t.Fatalf("seed %d: two runs of %d and %d steps differ", seed, len(a), len(b))
		}
	}
}

// TestHost opens what it may open.
func TestHost(t *testing.T) {
	r := newRig(t, Settings{}, SetConfig{MaxHosted: 2})
	d, other := r.p.dir.dir, wire.PartitionID{Topic: testID.Topic, Partition: 9}
	f := func(id wire.PartitionID, epoch wire.Epoch, create bool, want wire.Code) {
		t.Helper()
		err := r.set.Host("t", id, d, Settings{}, epoch, create, r.now())
		if wire.CodeOf(err) != want {
			t.Fatalf("%v", err)
		}
		if p, lost := r.set.Leader(id); lost == nil && p.View().Epoch != epoch {
			t.Fatalf("epoch %d, want %d", p.View().Epoch, epoch)
		}
	}

	f(other, 0, false, wire.CodeInternal) // there is none
	f(other, 4, true, wire.CodeOK)
	if err := r.set.Drop(other); err != nil {
		t.Fatal(err)
	}
	f(other, 6, false, wire.CodeOK) // it is led by a newer leader
	third := wire.PartitionID{Topic: testID.Topic, Partition: 11}
	f(third, 0, true, wire.CodeOffline) // one too many
	if err := r.set.Drop(other); err != nil {
		t.Fatal(err)
	}
	f(third, 0, true, wire.CodeOK)
	if err := r.set.Drop(third); err != nil {
		t.Fatal(err)
	}
	if err := r.set.Drop(wire.PartitionID{Topic: 1}); !errors.Is(err, wire.CodeNotLeader) {
		t.Fatal(err)
	}
	r.p.dir.fail(errors.New("ill"))
	f(wire.PartitionID{Topic: testID.Topic, Partition: 10}, 0, true, wire.CodeOffline)
}

func TestHostTwice(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Fatal("one log was opened twice")
		}
	}()
	r := newRig(t, Settings{}, SetConfig{})
	r.set.Host("t", testID, r.p.dir.dir, Settings{}, 0, false, r.now())
}

// TestEpochOnAFullDisk: a disk without a byte and without a reserve does not keep
// a partition from being led, and read.
func TestEpochOnAFullDisk(t *testing.T) {
	r := newRig(t, Settings{}, SetConfig{})
	dir, log := r.set.dirs[0].dir, r.p.log
	for dir.Relieve() {
	}
	r.fs.SetCapacity(4096) // less than is taken
	if err := setEpoch(log, dir, 9); err != nil || log.View().Epoch() != 9 {
		t.Fatalf("epoch %d, %v", log.View().Epoch(), err)
	}
}
