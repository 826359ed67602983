package storage

import (
	"bytes"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/teralog/teralog/mem"
	"github.com/teralog/teralog/wire"
)

// A sender stages batches of one record by hand.
type sender struct {
	t    *testing.T
	p    *Producers
	next wire.Offset
	now  mem.Now
}

func newSender(t *testing.T, o Options) *sender {
	return &sender{t: t, p: newProducers(o.filled()), now: at(1000)}
}

// send stages a batch of n records and expects it at offset want with code; -1
// stands for a duplicate that is no longer known.
func (s *sender) send(id wire.ProducerID, epoch int16, seq int32, n int, mark int, code wire.Code, want wire.Offset) {
	s.t.Helper()
	b := maker{producer: id, epoch: epoch, seq: seq, mark: mark, times: make([]int64, n)}.batch(s.t)
	dup, isDup, err := s.p.Stage(b, s.next, s.now)
	if wire.CodeOf(err) != code {
		s.t.Fatalf("producer %d epoch %d sequence %d: %v, want %v", id, epoch, seq, err, code)
	}
	if err != nil {
		return
	}
	got := s.next
	if isDup {
		got = dup.First
	} else {
		s.next += wire.Offset(n)
	}
	if got != want {
		s.t.Fatalf("producer %d epoch %d sequence %d: offset %d, want %d", id, epoch, seq, got, want)
	}
}

func TestProducers(t *testing.T) {
	const ok = wire.CodeOK
	s := newSender(t, Options{})
	s.send(-1, -1, -1, 2, 0, ok, 0) // no producer: no order asked
	s.send(7, 0, 1, 1, 0, wire.CodeUnknownProducer, 0)
	s.send(7, 0, 0, 3, 0, ok, 2)
	s.send(7, 0, 3, 2, 1, ok, 5)                          // merged in the same turn
	s.send(7, 0, 0, 3, 0, ok, 2)                          // both again, before the commit
	s.send(7, 0, 3, 2, 1, ok, 5)                          //
	s.send(7, 0, 3, 2, 9, wire.CodeSequenceReused, 0)     // other records under the same sequences
	s.send(7, 0, 3, 1, 1, wire.CodeSequenceReused, 0)     // a part of them
	s.send(7, 0, 4, 5, 1, wire.CodeSequenceReused, 0)     // running into what is due
	s.send(7, 0, 6, 1, 1, wire.CodeOutOfOrderSequence, 0) // 5 is due
	s.p.Commit()
	for i := range int32(4) {
		s.send(7, 0, 5+i, 1, 2, ok, wire.Offset(7+i))
	}
	s.p.Commit()
	s.send(7, 0, 3, 2, 1, ok, 5)                          // the oldest of five
	s.send(7, 0, 0, 3, 0, ok, -1)                         // older: it was there, who knows where
	s.send(7, 1, 1, 1, 0, wire.CodeOutOfOrderSequence, 0) // a new epoch begins at 0
	s.send(7, 1, 0, 1, 0, ok, 11)
	s.send(7, 0, 9, 1, 0, wire.CodeFencedProducer, 0)
	s.send(7, 1, 0, 1, 0, ok, 11)

	// A dropped turn leaves no trace: neither of the old producer nor of the new.
	s.p.Commit()
	before := s.p.encode(orders3, 0)
	s.send(7, 1, 1, 1, 5, ok, 12)
	s.send(7, 2, 0, 1, 5, ok, 13)
	s.send(8, 0, 0, 1, 5, ok, 14)
	s.send(8, 0, 1, 1, 5, ok, 15)
	s.p.Drop()
	if !bytes.Equal(s.p.encode(orders3, 0), before) || s.p.Len() != 1 {
		t.Fatal("a dropped turn changed the state")
	}
}

// TestFirstProduceOutOfOrder: the batch that failed and is still to come must
// not be overtaken by the one sent after it.
func TestFirstProduceOutOfOrder(t *testing.T) {
	s := newSender(t, Options{})
	s.send(7, 0, 17, 5, 1, wire.CodeUnknownProducer, 0)
	s.send(7, 0, 0, 17, 0, wire.CodeOK, 0)
	s.send(7, 0, 17, 5, 1, wire.CodeOK, 17)
}

func TestSequenceWrap(t *testing.T) {
	s := newSender(t, Options{})
	s.send(7, 0, 0, 1, 0, wire.CodeOK, 0)
	s.p.Commit()
	x := s.p.byID[7]
	x.batches[0].seq = math.MaxInt32 - 2 // as if two thousand million records had gone
	s.send(7, 0, math.MaxInt32-1, 4, 1, wire.CodeOK, 1)
	s.send(7, 0, math.MaxInt32-1, 4, 1, wire.CodeOK, 1)
	s.send(7, 0, 3, 1, 2, wire.CodeOutOfOrderSequence, 0)
	s.send(7, 0, 2, 1, 2, wire.CodeOK, 5)
	s.send(7, 0, math.MaxInt32, 1, 3, wire.CodeSequenceReused, 0)
	s.send(7, 0, math.MaxInt32-10, 2, 3, wire.CodeOK, -1)
}

// TestProducerEpochs: the greatest epoch leaves no higher one; a lower one is
// fenced for good, so a producer that used them all needs a new id.
func TestProducerEpochs(t *testing.T) {
	s := newSender(t, Options{})
	s.send(7, math.MaxInt16, 0, 1, 0, wire.CodeOK, 0)
	s.send(7, 0, 0, 1, 0, wire.CodeFencedProducer, 0)
	s.send(8, 0, 0, 1, 0, wire.CodeOK, 1)
}

func TestProducerRetention(t *testing.T) {
	s := newSender(t, Options{ProducerRetention: time.Second})
	s.send(7, 0, 0, 1, 0, wire.CodeOK, 0)
	s.send(7, 0, 1, 1, 1, wire.CodeOK, 1)
	s.p.Commit()
	s.now = at(2000) // exactly the retention: still known
	s.send(7, 0, 1, 1, 1, wire.CodeOK, 1)
	s.p.Commit()
	s.now = at(2001)
	s.send(7, 0, 1, 1, 1, wire.CodeUnknownProducer, 0) // no silent second copy
	s.send(7, 0, 2, 1, 2, wire.CodeUnknownProducer, 0)
	if s.p.Len() != 0 {
		t.Fatalf("%d producers known", s.p.Len())
	}
}

// TestProducerBound: a hundred thousand ids on one partition. Nobody is
// forgotten within the retention, those who come too late are told to wait.
func TestProducerBound(t *testing.T) {
	const most = 1000
	s := newSender(t, Options{MaxProducers: most, ProducerRetention: time.Second})
	b := maker{producer: 1}.batch(t)
	refused := 0
	for id := range wire.ProducerID(100_000) {
		b.SetProducer(id+1, 0, 0)
		s.now = at(1000 + int64(id)/100) // 100 new ones a ms, 1,000 kept for a second
		_, _, err := s.p.Stage(b, wire.Offset(id), s.now)
		switch {
		case err == wire.CodeBusy:
			refused++
		case err != nil:
			t.Fatal(err)
		}
		s.p.Commit()
		if s.p.Len() > most {
			t.Fatalf("%d producers known, at most %d may be", s.p.Len(), most)
		}
	}
	if refused != 100_000-most {
		t.Fatalf("%d refused, want all but %d", refused, most)
	}
	b.SetProducer(1, 0, 0)
	if dup, isDup, err := s.p.Stage(b, 5, s.now); !isDup || dup.First != 0 || err != nil {
		t.Fatalf("the first one is forgotten within its retention: %+v, %v, %v", dup, isDup, err)
	}
	s.now = at(10_000)
	s.send(500_000, 0, 0, 1, 0, wire.CodeOK, s.next)
}

// TestProducersAfterRetention: a producer's batches are deleted, its state is not.
func TestProducersAfterRetention(t *testing.T) {
	fs := NewMemFS(1)
	o := Options{SegmentBytes: 500, RetentionBytes: 600, SnapshotBytes: 100}
	l := newTestLog(t, fs, o)
	send := func(l *Log, seq int32, mark int) (Appended, bool, error) {
		b := maker{producer: 7, seq: seq, mark: mark}.batch(t)
		dup, isDup, err := l.producers.Stage(b, l.View().End(), at(1000))
		if err != nil || isDup {
			return dup, isDup, err
		}
		defer l.producers.Commit()
		return mustAppend(t, l, 1000, b), false, nil
	}
	for seq := range int32(10) {
		if _, _, err := send(l, seq, int(seq)); err != nil {
			t.Fatal(err)
		}
	}
	p := mustPoint(t, l)
	for i := range 40 {
		mustAppend(t, l, 2000, maker{value: 50, mark: i}.batch(t))
	}
	for l.Retain(at(3000), l.View().End()) {
		p = mustPoint(t, l)
		if _, err := l.Reclaim(); err != nil {
			t.Fatal(err)
		}
	}
	if l.View().Start() < 10 {
		t.Fatalf("the producer's batches are still there: start %d", l.View().Start())
	}
	check := func(how string, l *Log) {
		t.Helper()
		if dup, isDup, err := send(l, 9, 9); !isDup || dup.First != 9 || err != nil {
			t.Fatalf("%s: repeat of the last batch: %+v, %v, %v", how, dup, isDup, err)
		}
		if a, isDup, err := send(l, 10, 10); isDup || err != nil || a.First < 50 {
			t.Fatalf("%s: the next batch: %+v, %v, %v", how, a, isDup, err)
		}
	}
	check("crashed", reopen(t, fs.Crash(CrashNone), o, &p))
	check("restarted", reopenClean(t, fs, o, closeLog(t, l)))
}

// TestProducerSnapshots damages snapshots in every way: recovery comes to the
// same state from an older one, or from the log alone.
func TestProducerSnapshots(t *testing.T) {
	fs := NewMemFS(1)
	o := Options{SegmentBytes: 2000, SnapshotBytes: 500}
	l := newTestLog(t, fs, o)
	rnd := rand.New(rand.NewPCG(1, 1))
	seqs := map[wire.ProducerID]int32{}
	var p Point
	for i := range 60 {
		id := wire.ProducerID(1 + rnd.IntN(4))
		b := maker{producer: id, seq: seqs[id], mark: i}.batch(t)
		seqs[id]++
		if _, dup, err := l.producers.Stage(b, l.View().End(), at(int64(i))); dup || err != nil {
			t.Fatal(dup, err)
		}
		mustAppend(t, l, int64(i), b)
		l.producers.Commit()
		if i%7 == 0 {
			p = mustPoint(t, l)
		}
	}
	l.Flush()
	want := l.producers.encode(orders3, 0)
	if len(l.snapshots) != 2 {
		t.Fatalf("snapshots %v are kept, want two", l.snapshots)
	}
	f := func(how string, spoil func(disk *MemFS, name string)) {
		t.Helper()
		for _, both := range []bool{false, true} {
			disk := fs.Clone()
			spoil(disk, segmentName(logDir, l.snapshots[1], snapshotSuffix))
			if both {
				spoil(disk, segmentName(logDir, l.snapshots[0], snapshotSuffix))
			}
			again := reopen(t, disk, o, &p)
			if got := again.producers.encode(orders3, 0); !bytes.Equal(got, want) {
				t.Fatalf("%s: state\n%x, want\n%x", how, got, want)
			}
		}
	}
	put := func(b []byte) func(*MemFS, string) {
		return func(disk *MemFS, name string) { putFile(t, disk, name, b) }
	}
	good := fileBytes(t, fs, segmentName(logDir, l.snapshots[1], snapshotSuffix))
	f("as they are", func(*MemFS, string) {})
	f("missing", func(disk *MemFS, name string) { disk.Remove(name) })
	f("empty", put(nil))
	f("torn", put(good[:len(good)/2]))
	f("ones", put(bytes.Repeat([]byte{0xff}, 100)))
	f("of another offset", put(fileBytes(t, fs, segmentName(logDir, l.snapshots[0], snapshotSuffix))))
	f("of another partition", func(disk *MemFS, name string) {
		for _, at := range l.snapshots {
			if name == segmentName(logDir, at, snapshotSuffix) {
				putFile(t, disk, name, snapshotFile.encode(newProducers(o).encode(wire.PartitionID{Topic: 4243}, at)))
			}
		}
	})
	f("newer than the end", func(disk *MemFS, _ string) {
		putFile(t, disk, segmentName(logDir, 1000, snapshotSuffix), snapshotFile.encode(newProducers(o).encode(orders3, 1000)))
	})
}

func FuzzProducers(f *testing.F) {
	p := newProducers(Options{}.filled())
	f.Add([]byte(nil))
	f.Add(p.encode(orders3, 5))
	f.Fuzz(func(t *testing.T, b []byte) {
		p, _, at, err := decodeProducers(b, Options{}.filled())
		if err != nil {
			return
		}
		again, _, of, err := decodeProducers(p.encode(orders3, at), Options{}.filled())
		if err != nil || of != at || again.Len() != p.Len() {
			t.Fatalf("encoded again: %v", err)
		}
	})
}

// TestSnapshotBeforeDeletion: a restart forgets that a roll asked for a snapshot.
// One is taken all the same before the batches that it replaces may go.
func TestSnapshotBeforeDeletion(t *testing.T) {
	fs := NewMemFS(1)
	l := newTestLog(t, fs, Options{})
	b := maker{producer: 7, mark: 1}.batch(t)
	if _, _, err := l.producers.Stage(b, 0, at(1)); err != nil {
		t.Fatal(err)
	}
	mustAppend(t, l, 1, b)
	l.producers.Commit()
	if rolled, err := l.RollIdle(at(1 << 50)); !rolled || err != nil {
		t.Fatal(rolled, err)
	}
	l = reopen(t, fs.Clone(), Options{}, nil)
	fs = l.home.fs.(*MemFS)
	mustAppend(t, l, 2, maker{}.batch(t))
	l.Flush()
	if err := l.Trim(1); err != nil {
		t.Fatal(err)
	}
	p := mustPoint(t, l)
	if n, err := l.Reclaim(); n != 1 || err != nil {
		t.Fatalf("reclaimed %d: %v", n, err)
	}
	l = reopen(t, fs.Crash(CrashNone), Options{}, &p)
	again := maker{producer: 7, mark: 1}.batch(t)
	if dup, isDup, err := l.producers.Stage(again, 2, at(3)); !isDup || dup.First != 0 || err != nil {
		t.Fatalf("the batch was let in twice: %+v, %v, %v", dup, isDup, err)
	}
}
