package coord

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"path"
	"strings"
	"testing"

	"github.com/teralog/teralog/mem"
	"github.com/teralog/teralog/storage"
	"github.com/teralog/teralog/wire"
)

// A node is a Coord over a disk, as a broker holds it.
type node struct {
	dir   *storage.Dir
	coord *Coord
}

const dataDir = "/data"

// start opens the data directory and the metadata in it. boot names the run of
// the machine.
func start(disk storage.FS, boot string, o Options) (*node, error) {
	return startIn(disk, dataDir, boot, o)
}

func startIn(disk storage.FS, dataDir, boot string, o Options) (*node, error) {
	ids := byte(0)
	dir, err := storage.OpenDir(disk, dataDir, storage.DirOptions{
		Node: 7, Boot: boot, Format: true, Reserve: 64 << 10,
		NewID: func() wire.UUID { ids++; return wire.UUID{0xd, ids} },
	})
	if err != nil {
		return nil, err
	}
	e := testEnv()
	rng := rand.New(rand.NewPCG(uint64(len(boot)), 2))
	o.Node, o.NewTopicID = e.node, func() wire.TopicID { return wire.TopicID(rng.Uint64()) }
	o.Dirs = func() []DirSpace { return []DirSpace{{dir.ID(), 1 << 40}} }
	c, err := Open(dir, o, mem.Now{Wall: 1000})
	if err == nil {
		err = dir.Recovered()
	}
	if err != nil {
		return nil, errors.Join(err, dir.Abandon())
	}
	return &node{dir, c}, nil
}

func mustStart(t *testing.T, disk *storage.MemFS, boot string, o Options) *node {
	t.Helper()
	n, err := start(disk, boot, o)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// stop is a clean stop.
func (n *node) stop() error {
	end, err := n.coord.Close()
	if err != nil {
		return errors.Join(err, n.dir.Abandon())
	}
	return n.dir.Close([]storage.CleanEnd{end})
}

// do takes one command to its answer. A node that fails answers as well.
func (n *node) do(cmd Command) (Result, error) {
	var o outcome
	n.coord.Submit(cmd, o.done)
	for range 3 {
		n.coord.Turn(mem.Now{Wall: 2000})
	}
	if o.told != 1 {
		panic(fmt.Sprintf("BUG: %T was answered %d times", cmd, o.told))
	}
	return o.result, o.err
}

func (n *node) term() wire.Epoch { return n.coord.loop.log.(*metalog).vote.kept.term }

// A world is what clients were told, and what they asked without an answer.
type world struct {
	told      map[wire.UUID]Result // by request
	asked     map[wire.UUID]Command
	producers wire.ProducerID // the greatest one given
	term      wire.Epoch      // the newest one a start ended in
}

func newWorld() *world {
	return &world{told: map[wire.UUID]Result{}, asked: map[wire.UUID]Command{}}
}

func (w *world) ask(n *node, request byte, cmd Command) error {
	id := wire.UUID{request}
	switch c := cmd.(type) {
	case CreateTopic:
		c.Request = id
		cmd = c
	case DeleteTopic:
		c.Request = id
		cmd = c
	}
	w.asked[id] = cmd
	r, err := n.do(cmd)
	if err == nil {
		w.told[id] = r
	}
	return err
}

func (w *world) producer(n *node) error {
	r, err := n.do(nextProducer{})
	if err == nil && r.First <= w.producers {
		return fmt.Errorf("producer %d was given after %d", r.First, w.producers)
	}
	w.producers = max(w.producers, r.First)
	return err
}

// script is what a node does in two starts, with a snapshot every few entries.
// Some entries span pages of the disk, others share one. It ends at the first
// error.
func script(disk *storage.MemFS, w *world) error {
	o := Options{SnapshotEvery: 3}
	n, err := start(disk, "one", o)
	if err != nil {
		return err
	}
	w.term = n.term()
	steps := []func() error{
		func() error { return w.ask(n, 1, create("a", 2, "flush=sync")) },
		func() error { return w.producer(n) },
		func() error { return w.ask(n, 2, create("b", 1200)) },
		func() error { return w.ask(n, 3, DeleteTopic{ID: w.told[wire.UUID{1}].Topic}) },
		func() error { return w.ask(n, 4, create("a", 1)) },
		func() error { return n.stop() },
		func() error {
			if n, err = start(disk, "two", o); err == nil {
				w.term = n.term()
			}
			return err
		},
		func() error { return w.producer(n) },
		func() error { _, err := n.do(BumpEpochs{n.dir.ID()}); return err },
		func() error { return w.ask(n, 5, create("c", 500)) },
		func() error { _, err := n.do(ForgetTopics{[]wire.TopicID{w.told[wire.UUID{1}].Topic}}); return err },
		func() error { return w.ask(n, 6, create("d", 1)) },
		func() error { return n.stop() },
	}
	for _, step := range steps {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

// check starts a node on what a crash left and holds it to what w was told.
func (w *world) check(disk *storage.MemFS) error {
	n, err := start(disk, "three", Options{SnapshotEvery: 3})
	if err != nil {
		return err
	}
	if n.term() <= w.term {
		return fmt.Errorf("term %d after term %d", n.term(), w.term)
	}
	for id, cmd := range w.asked {
		first, answered := w.told[id]
		if answered {
			if err := holds(n.coord.Image(), cmd, first.Topic); err != nil {
				return err
			}
		}
		// Asked again, it is answered as the first time, and done once.
		r, err := n.do(cmd)
		if answered && (err != nil || r != first) {
			return fmt.Errorf("%+v again: %+v, %w; it was answered %+v", cmd, r, err, first)
		}
	}
	names := map[string]bool{}
	for _, t := range n.coord.Image().Topics() {
		if names[t.Name] {
			return fmt.Errorf("two topics are named %s", t.Name)
		}
		names[t.Name] = true
	}
	if err := w.producer(n); err != nil {
		return err
	}
	return n.stop()
}

// holds reports whether an answered command is still true; a create may have
// been undone by a later delete.
func holds(i *Image, cmd Command, id wire.TopicID) error {
	exists, deleted := i.TopicByID(id) != nil, i.Deleted(id)
	switch c := cmd.(type) {
	case CreateTopic:
		if !exists && !deleted && c.Request != (wire.UUID{1}) { // the script has the first one forgotten
			return fmt.Errorf("topic %s with id %d was created and is lost", c.Name, id)
		}
	case DeleteTopic:
		if exists {
			return fmt.Errorf("topic id %d was deleted and is back", id)
		}
	}
	return nil
}

// TestCrash stops the script after every disk operation, leaves every kind of
// disk that a power cut may, and expects all that was answered to hold.
func TestCrash(t *testing.T) {
	stops, crashes := 0, 0
	for finished := false; !finished; stops++ {
		disk, w := storage.NewMemFS(uint64(stops)), newWorld()
		disk.StopAfter(stops)
		finished = script(disk, w) == nil
		for name, crashed := range disk.Crashes(24) {
			after := *w
			if err := after.check(crashed); err != nil {
				t.Fatalf("stopped after %d operations, %s: %v", stops, name, err)
			}
			crashes++
		}
	}
	if stops < 100 {
		t.Fatalf("the script has %d operations", stops)
	}
	t.Logf("%d crashes at %d operations", crashes, stops)
}

// TestCrashTwice cuts the power again while the node recovers from a power cut.
func TestCrashTwice(t *testing.T) {
	for seed := range uint64(150) {
		rng := rand.New(rand.NewPCG(seed, 3))
		disk, w := storage.NewMemFS(seed), newWorld()
		disk.StopAfter(20 + rng.IntN(250))
		_ = script(disk, w) // ends at the stop, or before it
		for range 3 {
			disk = disk.Crash(storage.CrashAny)
			disk.StopAfter(rng.IntN(60))
			if n, err := start(disk, "again", Options{SnapshotEvery: 1}); err == nil {
				w.term = n.term()
			}
		}
		if err := w.check(disk.Crash(storage.CrashAny)); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
	}
}

// metadataFiles returns the names in metadata/ that end in suffix.
func metadataFiles(t *testing.T, disk *storage.MemFS, suffix string) []string {
	t.Helper()
	es, err := disk.ReadDir(path.Join(dataDir, metadataName))
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range es {
		if strings.HasSuffix(e.Name, suffix) {
			names = append(names, path.Join(dataDir, metadataName, e.Name))
		}
	}
	return names
}

func content(t *testing.T, disk *storage.MemFS, name string) []byte {
	t.Helper()
	f, err := disk.Open(name, storage.Read)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	n, _ := f.Size()
	b := make([]byte, n)
	if _, err := f.ReadAt(b, 0); err != nil && err != io.EOF {
		t.Fatal(err)
	}
	return b
}

// TestDamage flips a bit of each byte of the metadata log. Whatever an
// acknowledged entry after it proves to be damage, not a torn write, keeps the
// node from starting and leaves the log as it was.
func TestDamage(t *testing.T) {
	disk := storage.NewMemFS(1)
	n := mustStart(t, disk, "one", Options{})
	for _, name := range []string{"a", "b", "c"} {
		if _, err := n.do(create(name, 1)); err != nil {
			t.Fatal(err)
		}
	}
	lost := disk.Crash(storage.CrashNone)
	if err := n.stop(); err != nil {
		t.Fatal(err)
	}
	log := metadataFiles(t, disk, ".log")[0]
	whole := content(t, disk, log)
	last := 0 // position of the last batch
	for b, err := range wire.Batches(whole) {
		if err != nil {
			t.Fatal(err)
		}
		last = len(whole) - len(b)
	}

	f := func(disk *storage.MemFS, from, to int, boot string, refused bool) {
		t.Helper()
		for at := from; at < to; at++ {
			damaged := disk.Clone()
			if err := damaged.FlipBit(log, int64(at), uint(at%8)); err != nil {
				t.Fatal(err)
			}
			before := content(t, damaged, log)
			n, err := start(damaged, boot, Options{})
			if (err != nil) != refused || refused && !(errors.Is(err, ErrDamaged) && strings.Contains(err.Error(), "put back metadata/")) {
				t.Fatalf("byte %d of %d flipped: %v", at, len(whole), err)
			}
			if refused && !bytes.Equal(content(t, damaged, log), before) {
				t.Fatalf("byte %d flipped: the log was changed", at)
			}
			if !refused && (n.coord.Image().Topic("b") == nil || n.coord.Image().Topic("c") != nil) {
				t.Fatalf("byte %d flipped: topics are %v", at, n.coord.Image().Topics())
			}
		}
	}

	f(lost, 0, last, "two", true)
	f(lost, last, len(whole), "two", false) // what the manual says: not to be told from a torn write
	f(disk, 0, len(whole), "two", true)     // the clean mark vouches for the last one too

	for size := range len(whole) {
		cut := disk.Clone()
		file, err := cut.Open(log, storage.ReadWrite)
		if err == nil {
			err = file.Truncate(int64(size))
		}
		if err != nil {
			t.Fatal(err)
		}
		if _, err := start(cut, "two", Options{}); !errors.Is(err, ErrDamaged) {
			t.Fatalf("cut to %d of %d bytes after a clean stop: %v", size, len(whole), err)
		}
	}
}

// TestDamageBelowSnapshot damages an entry that a snapshot stands for. The state
// is whole without it, so the node starts; without the snapshot it does not.
func TestDamageBelowSnapshot(t *testing.T) {
	disk := storage.NewMemFS(1)
	n := mustStart(t, disk, "one", Options{SnapshotEvery: 4})
	for at := range 8 {
		if _, err := n.do(create(fmt.Sprint("t", at), 1)); err != nil {
			t.Fatal(err)
		}
	}
	m := n.coord.loop.log.(*metalog)
	spoilt, err := m.log.View().Find(5, 6, 1)
	if err != nil || len(m.snapshots) != 2 || m.snapshots[0].Index > 5 || m.snapshots[1].Index < 7 {
		t.Fatalf("snapshots %v: %v", m.snapshots, err)
	}
	spoilt.Done()
	damaged := disk.Crash(storage.CrashNone)
	if err := damaged.FlipBit(metadataFiles(t, disk, ".log")[0], spoilt.Off+100, 0); err != nil {
		t.Fatal(err)
	}
	again, err := start(damaged.Clone(), "two", Options{})
	if err != nil || len(again.coord.Image().Topics()) != 8 {
		t.Fatalf("%v", err)
	}
	if err := damaged.FlipBit(m.snapshotPath(m.snapshots[1].Index), 40, 0); err != nil {
		t.Fatal(err)
	}
	if _, err := start(damaged, "two", Options{}); !errors.Is(err, ErrDamaged) {
		t.Fatalf("started without an entry: %v", err)
	}
}

func TestSnapshotDamage(t *testing.T) {
	whole := storage.NewMemFS(1)
	n := mustStart(t, whole, "one", Options{SnapshotEvery: 4})
	for at := range 12 {
		if _, err := n.do(create(fmt.Sprint("t", at), 1)); err != nil {
			t.Fatal(err)
		}
	}
	want := state(n.coord.Image())
	if err := n.stop(); err != nil {
		t.Fatal(err)
	}
	kept := metadataFiles(t, whole, snapshotSuffix)
	if len(kept) != keptSnapshots {
		t.Fatalf("kept %q", kept)
	}
	f := func(refused bool, flipped ...string) {
		t.Helper()
		disk := whole.Clone()
		for _, name := range flipped {
			if err := disk.FlipBit(name, 40, 3); err != nil {
				t.Fatal(err)
			}
		}
		n, err := start(disk, "one", Options{})
		if (err != nil) != refused || refused && !errors.Is(err, ErrDamaged) {
			t.Fatalf("%q flipped: %v", flipped, err)
		}
		if !refused {
			i := *n.coord.Image()
			i.version = wire.Offset(1 + 12) // starts add entries that change nothing
			if !bytes.Equal(state(&i), want) {
				t.Fatalf("%q flipped: another state", flipped)
			}
		}
	}

	f(false)
	f(false, kept[1])
	f(false, kept[0])
	f(true, kept...) // the log begins with the older one
}

func TestVoteFile(t *testing.T) {
	disk := storage.NewMemFS(1)
	n := mustStart(t, disk, "one", Options{})
	if _, err := n.do(create("a", 1)); err != nil {
		t.Fatal(err)
	}
	first := n.term()
	if err := n.stop(); err != nil {
		t.Fatal(err)
	}
	n = mustStart(t, disk, "one", Options{})
	if n.term() != first+1 {
		t.Fatalf("term %d after %d", n.term(), first)
	}
	if err := n.stop(); err != nil {
		t.Fatal(err)
	}
	name := metadataFiles(t, disk, "vote")[0]
	newest := int64(n.coord.loop.log.(*metalog).vote.kept.sequence%2) * voteSlot

	f := func(change func(*storage.MemFS) error, refused bool) {
		t.Helper()
		disk := disk.Clone()
		if err := change(disk); err != nil {
			t.Fatal(err)
		}
		switch n, err := start(disk, "one", Options{}); {
		case refused != (err != nil):
			t.Fatalf("%v", err)
		case !refused && n.term() != first+2:
			t.Fatalf("term %d, it was %d", n.term(), first+1)
		}
	}
	flip := func(at int64) func(*storage.MemFS) error {
		return func(disk *storage.MemFS) error { return disk.FlipBit(name, at, 0) }
	}

	f(func(*storage.MemFS) error { return nil }, false)
	f(flip(newest+10), false)          // the log knows the term as well
	f(flip(voteSlot-newest+10), false) // the older slot
	f(func(disk *storage.MemFS) error { return errors.Join(flip(10)(disk), flip(voteSlot+10)(disk)) }, true)
	f(func(disk *storage.MemFS) error { return disk.Remove(name) }, true)
	f(func(disk *storage.MemFS) error { // one of another disk
		f, err := disk.Open(name, storage.ReadWrite)
		if err == nil {
			_, err = f.WriteAt(appendVote(nil, vote{99, 50, 7, wire.UUID{0xff}}), voteSlot)
		}
		return err
	}, true)
}

// TestMissing takes the metadata away under partitions: the node must not start
// as an empty one.
func TestMissing(t *testing.T) {
	disk := storage.NewMemFS(1)
	n := mustStart(t, disk, "one", Options{})
	r, err := n.do(create("a", 1))
	if err != nil {
		t.Fatal(err)
	}
	l, err := n.dir.Create("a", wire.PartitionID{Topic: r.Topic}, storage.Options{}, mem.Now{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := l.Close(); err != nil {
		t.Fatal(err)
	}
	n.dir.Abandon()

	f := func(names ...string) {
		t.Helper()
		disk := disk.Clone()
		for _, name := range names {
			if err := disk.RemoveAll(dataDir + "/" + name); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := start(disk, "one", Options{}); !errors.Is(err, ErrDamaged) {
			t.Fatalf("without %q: %v", names, err)
		}
	}

	f("metadata")
	f("metadata", "recovery-points")
	f("metadata", "topics") // recovery-points remembers
	f("metadata/partition-manifest")
	f("metadata/" + path.Base(metadataFiles(t, disk, ".log")[0]))
}

// TestFailures lets each disk operation of a running node fail. Whatever was
// answered holds at the next start.
func TestFailures(t *testing.T) {
	eio := errors.New("I/O error")
	for _, kind := range []string{storage.OpWrite, storage.OpSync, storage.OpSyncDir, storage.OpRename, storage.OpRead} {
		for nth := 1; ; nth++ {
			disk, w := storage.NewMemFS(uint64(nth)), newWorld()
			disk.Fail(kind, nth, eio)
			if err := script(disk, w); err == nil {
				break
			}
			disk.Heal()
			if err := w.check(disk.Crash(storage.CrashAny)); err != nil {
				t.Fatalf("%s %d failed: %v", kind, nth, err)
			}
		}
	}
}

// TestFullDisk fills the disk: the reserve keeps metadata writable for a while,
// then changes are refused definitely, and all goes on with new room.
func TestFullDisk(t *testing.T) {
	disk := storage.NewMemFS(1)
	n := mustStart(t, disk, "one", Options{})
	if _, err := n.do(create("first", 1)); err != nil {
		t.Fatal(err)
	}
	total, free, err := disk.Space(dataDir)
	if err != nil {
		t.Fatal(err)
	}
	disk.SetCapacity(total - free)
	created := 0
	for ; created < 1000; created++ {
		if _, err = n.do(create(fmt.Sprint("t", created), 100)); err != nil {
			break
		}
	}
	if !errors.Is(err, wire.CodeDiskFull) || created < 10 {
		t.Fatalf("%d topics with the reserve, then %v", created, err)
	}
	if len(n.coord.Image().Topics()) != 1+created {
		t.Fatalf("%d topics are there, %d were created", len(n.coord.Image().Topics()), 1+created)
	}
	disk.SetCapacity(0)
	if _, err := n.do(create("room", 1)); err != nil {
		t.Fatal(err)
	}
	if err := n.stop(); err != nil {
		t.Fatal(err)
	}
	n = mustStart(t, disk, "one", Options{})
	if len(n.coord.Image().Topics()) != 2+created {
		t.Fatalf("%d topics after a restart", len(n.coord.Image().Topics()))
	}
}

// TestOnDisk runs over the machine's disk what the other tests run in memory.
func TestOnDisk(t *testing.T) {
	name := t.TempDir() + "/data"
	var last wire.Epoch
	for at := range 3 {
		n, err := startIn(storage.OS(), name, "one", Options{SnapshotEvery: 2})
		if err != nil {
			t.Fatal(err)
		}
		if n.term() <= last || len(n.coord.Image().Topics()) != at {
			t.Fatalf("start %d: term %d, %d topics", at, n.term(), len(n.coord.Image().Topics()))
		}
		last = n.term()
		if _, err := n.do(create(fmt.Sprint("t", at), 3)); err != nil {
			t.Fatal(err)
		}
		if at == 1 { // a kill: the files stay as they are, the lock goes
			n.coord.loop.log.(*metalog).abandon()
			err = n.dir.Abandon()
		} else {
			err = n.stop()
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// TestScale creates as many partitions as one topic may have, and many topics,
// and reads them back from the log and from a snapshot.
func TestScale(t *testing.T) {
	disk := storage.NewMemFS(1)
	n := mustStart(t, disk, "one", Options{Queue: 6000})
	if _, err := n.do(create("wide", MaxTopicPartitions)); err != nil {
		t.Fatal(err)
	}
	var cmds []Command
	for at := range 5000 {
		cmds = append(cmds, create(fmt.Sprint("t", at), 1))
	}
	os := submit(n.coord, cmds...)
	turn(t, n.coord)
	for _, o := range os {
		if o.err != nil || o.told != 1 {
			t.Fatalf("%+v", o)
		}
	}
	want := n.coord.Image()
	for _, every := range []int{0, 1, 0} { // 1 takes a snapshot at the start
		if err := n.stop(); err != nil {
			t.Fatal(err)
		}
		n = mustStart(t, disk, "one", Options{SnapshotEvery: every})
		got := *n.coord.Image()
		got.version = want.version
		if !bytes.Equal(state(&got), state(want)) || got.partitions != MaxTopicPartitions+5000 {
			t.Fatalf("%d topics, %d partitions after a restart", len(got.Topics()), got.partitions)
		}
	}
}

// TestLogIsBounded expects a start to unlink the segments that two snapshots
// stand for.
func TestLogIsBounded(t *testing.T) {
	disk := storage.NewMemFS(1)
	most := 0
	for range 4 {
		n := mustStart(t, disk, "one", Options{SnapshotEvery: 30})
		for range 100 {
			r, err := n.do(create("a", MaxTopicPartitions))
			if err == nil {
				_, err = n.do(DeleteTopic{ID: r.Topic})
			}
			if err == nil {
				_, err = n.do(ForgetTopics{[]wire.TopicID{r.Topic}})
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		if err := n.stop(); err != nil {
			t.Fatal(err)
		}
		most = max(most, len(metadataFiles(t, disk, ".log")))
	}
	logs := metadataFiles(t, disk, ".log")
	if path.Base(logs[0]) == "00000000000000000000.log" || most > 3 || len(metadataFiles(t, disk, snapshotSuffix)) != keptSnapshots {
		t.Fatalf("%q are left, %d at most", logs, most)
	}
}
