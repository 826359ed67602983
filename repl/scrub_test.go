package repl

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/teralog/teralog/storage"
	"github.com/teralog/teralog/wire"
)

// A scrubRig is a manual set with three partitions, each of some sealed segments
// and an active one, and what was told of damage.
type scrubRig struct {
	*rig
	dir    *storage.Dir
	found  []string
	sealed int64 // bytes in all
}

func newScrubRig(t *testing.T, c SetConfig) *scrubRig {
	x := &scrubRig{rig: &rig{t: t, fs: storage.NewMemFS(1)}}
	x.dir = testDir(t, x.fs, "data")
	c.Manual, c.Dirs = true, []*storage.Dir{x.dir}
	c.OnEvent = func(e Event) {
		if e.Kind != SegmentRolled {
			x.found = append(x.found, fmt.Sprintf("%v %d %d-%d", e.Kind, e.ID.Partition, e.From, e.To))
		}
	}
	x.set = NewSet(c)
	for i := range int32(3) {
		id := wire.PartitionID{Topic: testID.Topic, Partition: i}
		if err := x.set.Host("t", id, x.dir, Settings{Log: storage.Options{SegmentBytes: 3 << 20}}, 0, true, x.now()); err != nil {
			t.Fatal(err)
		}
		p, _ := x.set.Leader(id)
		for range 8 { // two segments of three batches each, and two batches
			b := wire.NewBuilder(wire.BuilderOptions{Topic: id.Topic, Partition: id.Partition})
			if ok, err := b.Add(x.now().Wall, nil, make([]byte, 900<<10), nil); !ok || err != nil {
				t.Fatal(ok, err)
			}
			batch, err := b.Build()
			if err != nil {
				t.Fatal(err)
			}
			produce(p, []Write{{Batch: wire.Batch(batch.B), Done: func(at storage.Appended, err error) {
				if err != nil {
					t.Fatal(err)
				}
			}}}, false)
			p.Turn(x.now())
		}
		x.sealed += 6 * p.log.View().Bytes() / 8
	}
	return x
}

func (x *scrubRig) file(partition, base int) string {
	return fmt.Sprintf("data/topics/t/partition-%04d/%020d.log", partition, base)
}

// scrub turns s for so long and returns how many bytes it read meanwhile.
func (x *scrubRig) scrub(s *scrubber, took time.Duration) int64 {
	x.t.Helper()
	before := x.dir.CacheStats().Scrubbed
	end := x.ms + int(took/time.Millisecond)
	for x.ms < end {
		next := s.turn(x.now())
		if next <= x.now().Mono {
			x.ms++ // at most a piece a millisecond
			continue
		}
		x.ms = min(int((next+time.Millisecond-1)/time.Millisecond), end)
	}
	return x.dir.CacheStats().Scrubbed - before
}

// TestScrubPass: passes go at their rate and begin as often as they should; a
// start goes on where the last one was.
func TestScrubPass(t *testing.T) {
	const rate = 1 << 20
	c := SetConfig{ScrubRate: rate, ScrubEvery: time.Hour}
	x := newScrubRig(t, c)
	s := &x.set.dirs[0].scrub
	const some = 5 * time.Second
	if got, most := x.scrub(s, some), int64(some/time.Second)*rate+3*scrubBytes; got < int64(some/time.Second)*rate/2 || got > most {
		t.Errorf("read %d bytes in %v at %d a second", got, some, rate)
	}
	s.save()

	again := new(scrubber)
	again.init(x.set.dirs[0])
	if got := x.scrub(again, time.Minute); got >= x.sealed || got < x.sealed/2 {
		t.Errorf("after a start %d of %d bytes were read", got, x.sealed)
	}
	d := x.set.DirStats()[0]
	if all := d.Cache.Scrubbed; all != x.sealed || again.passes.Load() != 1 || again.mark.Bytes != all || again.mark.Ended == 0 {
		t.Errorf("a pass read %d of %d bytes, mark %+v", all, x.sealed, again.mark)
	}
	if got := x.scrub(again, 58*time.Minute); got != 0 {
		t.Errorf("the next pass began within the hour, %d bytes", got)
	}
	if got := x.scrub(again, 3*time.Minute); got != x.sealed {
		t.Errorf("the next pass read %d of %d bytes", got, x.sealed)
	}
	if len(x.found) > 0 {
		t.Errorf("found %q", x.found)
	}
}

// TestScrubFinds: the leader of a partition without a second copy finds damage.
// It is told once, the rest is served, and nothing of the log is given up.
func TestScrubFinds(t *testing.T) {
	x := newScrubRig(t, SetConfig{ScrubRate: 1 << 30, ScrubEvery: time.Hour, TidyEvery: time.Second})
	p, _ := x.set.Leader(wire.PartitionID{Topic: testID.Topic, Partition: 1})
	was := p.View()
	if err := x.fs.FlipBit(x.file(1, 3), 950<<10, 2); err != nil { // of the batch at offset 4
		t.Fatal(err)
	}
	x.scrub(&x.set.dirs[0].scrub, 2*time.Hour)
	if want := []string{"damaged 1 4-5"}; !slices.Equal(x.found, want) {
		t.Fatalf("told %q, want %q", x.found, want)
	}
	if n := x.set.dirs[0].scrub.passes.Load(); n < 2 {
		t.Fatalf("%d passes", n)
	}
	now := p.View()
	if now.Err != nil || now.Start != was.Start || now.End != was.End || now.Epoch != was.Epoch {
		t.Errorf("the partition went from %+v to %+v", was, now)
	}
	for at := now.Start; at < now.End; at++ {
		r, err := now.Log.Find(at, now.Committed, 1)
		if wire.CodeOf(err) == wire.CodeCorrupt != (at == 4) {
			t.Errorf("offset %d: %v", at, err)
		}
		if err == nil {
			if err := r.Check(); err != nil {
				t.Errorf("offset %d: %v", at, err)
			}
			r.Done()
		}
	}

	if err := x.fs.FlipBit(x.file(1, 0), 100, 2); err != nil {
		t.Fatal(err)
	}
	x.scrub(&x.set.dirs[0].scrub, 2*time.Hour)
	if want := []string{"damaged 1 4-5", "damaged 1 0-1"}; !slices.Equal(x.found, want) {
		t.Fatalf("told %q, want %q", x.found, want)
	}

	// A reader's find is told too, by the janitor.
	if err := x.fs.FlipBit(x.file(2, 0), 100, 2); err != nil {
		t.Fatal(err)
	}
	p, _ = x.set.Leader(wire.PartitionID{Topic: testID.Topic, Partition: 2})
	r, err := p.View().Log.Find(0, 3, 1)
	if err == nil {
		err = r.Check()
		r.Done()
	}
	if wire.CodeOf(err) != wire.CodeCorrupt {
		t.Fatal(err)
	}
	x.ms += 60_000
	x.set.Step(Step{Kind: StepTidy}, x.now())
	if want := []string{"damaged 1 4-5", "damaged 1 0-1", "damaged 2 0-1"}; !slices.Equal(x.found, want) {
		t.Fatalf("told %q, want %q", x.found, want)
	}
}

// TestScrubClosing has a partition closed while its bytes are read: its folder may
// be that of another topic of its name already, so nothing found there counts.
func TestScrubClosing(t *testing.T) {
	x := newScrubRig(t, SetConfig{ScrubRate: 1 << 30, ScrubEvery: time.Hour})
	p, _ := x.set.Leader(wire.PartitionID{Topic: testID.Topic, Partition: 1})
	if err := x.fs.FlipBit(x.file(1, 3), 950<<10, 2); err != nil {
		t.Fatal(err)
	}
	x.fs.BeforeOp(func(op storage.Op) error {
		if op.Kind == storage.OpRead && op.Name == x.file(1, 3) {
			p.closing.Store(&wire.Error{Code: wire.CodeNotLeader})
		}
		return nil
	})
	x.scrub(&x.set.dirs[0].scrub, 2*time.Hour)
	if p.closing.Load() == nil || len(x.found) > 0 {
		t.Fatalf("told %q", x.found)
	}
}
