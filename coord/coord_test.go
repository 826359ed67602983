package coord

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/teralog/teralog/mem"
	"github.com/teralog/teralog/raft"
	"github.com/teralog/teralog/storage"
	"github.com/teralog/teralog/wire"
)

// A memJournal is a store in memory that fails as it is told, and shows which
// commands are in it.
type memJournal struct {
	*raft.MemStore
	entries   [][]byte // of commands
	durable   int      // of them
	snapshots []*Image

	roomErr, appendErr, flushErr, snapshotErr error // for the next call
}

func newJournal() *memJournal {
	j := &memJournal{MemStore: raft.NewMemStore()}
	if err := raft.Bootstrap(j, raft.Members{Voters: []raft.Peer{seven}}); err != nil {
		panic(err)
	}
	return j
}

func (j *memJournal) turn(mem.Now) {}

func (j *memJournal) room(int) error {
	err := j.roomErr
	j.roomErr = nil
	return err
}

func (j *memJournal) lastFull() error { return nil }

func (j *memJournal) Append(entries []raft.Entry) error {
	if err := j.appendErr; err != nil {
		j.appendErr = nil
		return err
	}
	if j.durable != len(j.entries) {
		panic("BUG: an entry is appended while another is being flushed")
	}
	for _, e := range entries {
		if e.Kind == raft.Command {
			j.entries = append(j.entries, e.Data)
		}
	}
	return j.MemStore.Append(entries)
}

func (j *memJournal) Sync() error {
	if j.flushErr != nil {
		return j.flushErr
	}
	j.durable = len(j.entries)
	return j.MemStore.Sync()
}

func (j *memJournal) SaveSnapshot(s raft.Snapshot, state []byte, keepAfter raft.Index) error {
	if j.snapshotErr != nil {
		return j.snapshotErr
	}
	i, err := readImage(state)
	if err != nil {
		return err
	}
	j.snapshots = append(j.snapshots, i)
	return j.MemStore.SaveSnapshot(s, state, keepAfter)
}

func (j *memJournal) close() (storage.CleanEnd, error) { return storage.CleanEnd{}, nil }

// testCoord returns a Coord over j that no goroutine turns.
func testCoord(j journal, o Options) *Coord {
	e := testEnv()
	o.Node, o.NewTopicID, o.Dirs = e.node, e.newTopicID, func() []DirSpace { return e.dirs }
	c := newCoord(j, o.filled())
	err := c.drive(seven, raft.UUID{1}, mem.Now{})
	if err == nil {
		err = c.lead(seven, mem.Now{})
	}
	if err != nil {
		panic(err)
	}
	return c
}

// An outcome is what became of a submitted command.
type outcome struct {
	told   int
	result Result
	err    error
}

func (o *outcome) done(r Result, err error) { *o = outcome{o.told + 1, r, err} }

func submit(c *Coord, cmds ...Command) []*outcome {
	os := make([]*outcome, len(cmds))
	for i, cmd := range cmds {
		os[i] = &outcome{}
		c.Submit(cmd, os[i].done)
	}
	return os
}

// turn takes steps until there are none.
func turn(t *testing.T, c *Coord) {
	t.Helper()
	for {
		worked, err := c.Turn(mem.Now{Wall: 5})
		if err != nil {
			t.Fatal(err)
		}
		if !worked {
			return
		}
	}
}

// TestNothingBeforeDurable looks at what is told between the steps of a turn.
func TestNothingBeforeDurable(t *testing.T) {
	j := newJournal()
	c := testCoord(j, Options{})
	before := c.Image()
	os := submit(c, create("a", 1), create("a", 1), create("b", 1), DeleteTopic{ID: 2000})
	var producer wire.ProducerID
	c.NextProducer(func(id wire.ProducerID, err error) { producer = id })

	if worked, err := c.Turn(mem.Now{}); !worked || err != nil || len(j.entries) != 1 || j.durable != 1 {
		t.Fatalf("first step: %v, %v, %d entries", worked, err, len(j.entries))
	}
	for i, o := range os {
		if o.told != 0 || producer != 0 || c.Image() != before {
			t.Fatalf("command %d was answered before it was committed: %+v, producer %d", i, o, producer)
		}
	}
	late := submit(c, create("c", 1))
	if worked, err := c.Turn(mem.Now{}); !worked || err != nil || j.durable != 1 {
		t.Fatalf("second step: %v, %v", worked, err)
	}
	f := func(o *outcome, topic wire.TopicID, want error) {
		t.Helper()
		if o.told != 1 || o.result.Topic != topic || !errors.Is(o.err, want) {
			t.Fatalf("answered %+v, want topic %d, %v", o, topic, want)
		}
	}

	f(os[0], 2000, nil)
	f(os[1], 0, wire.CodeTopicExists) // rests on an entry of its own turn
	f(os[2], 2001, nil)
	f(os[3], 2000, nil)
	if producer != 1 || c.Image().Topic("b") == nil || c.Image().Topic("a") != nil || !c.Image().Deleted(2000) {
		t.Fatalf("producer %d, topics %v", producer, c.Image().Topics())
	}
	if late[0].told != 0 {
		t.Fatal("a command that came while the entry was flushed is in it")
	}
	turn(t, c)
	f(late[0], 2002, nil)
	if len(j.entries) != 2 {
		t.Fatalf("%d entries", len(j.entries))
	}
}

// TestOneFlushForMany expects what waits to share entries, up to their size.
func TestOneFlushForMany(t *testing.T) {
	f := func(commands int, partitions int32, entries int) {
		t.Helper()
		j := newJournal()
		c := testCoord(j, Options{})
		var cmds []Command
		for n := range commands {
			cmds = append(cmds, create(fmt.Sprint("t", n), partitions))
		}
		os := submit(c, cmds...)
		turn(t, c)
		for n, o := range os {
			if o.told != 1 || o.err != nil {
				t.Fatalf("command %d: %+v", n, o)
			}
		}
		if len(j.entries) != entries {
			t.Fatalf("%d topics of %d partitions took %d entries, want %d", commands, partitions, len(j.entries), entries)
		}
		for _, e := range j.entries {
			if len(e) > wire.DefaultMaxBatch-wire.HeaderSize-64 {
				t.Fatalf("an entry has %d bytes", len(e))
			}
		}
	}

	f(1, 1, 1)
	f(1000, 1, 1)
	f(10, MaxTopicPartitions, 2)
}

func TestProducersOfOneBlock(t *testing.T) {
	j := newJournal()
	c := testCoord(j, Options{})
	seen := map[wire.ProducerID]bool{}
	for n := range 2*producerBlockSize + 1 {
		c.NextProducer(func(id wire.ProducerID, err error) {
			if err != nil || id < 1 || seen[id] {
				t.Fatalf("producer %d, %v", id, err)
			}
			seen[id] = true
		})
		if n%7 == 0 {
			turn(t, c)
		}
	}
	turn(t, c)
	if len(seen) != 2*producerBlockSize+1 || len(j.entries) != 3 {
		t.Fatalf("%d producers took %d entries", len(seen), len(j.entries))
	}
}

func TestDiskFull(t *testing.T) {
	j := newJournal()
	c := testCoord(j, Options{})
	f := func(full bool, want error) {
		t.Helper()
		if full {
			j.roomErr = storage.ErrDiskFull
		}
		before := c.Image()
		os := submit(c, create("a", 1))
		var producer wire.ProducerID
		var err error
		c.NextProducer(func(id wire.ProducerID, e error) { producer, err = id, e })
		turn(t, c)
		if !errors.Is(os[0].err, want) || !errors.Is(err, want) || full && (c.Image() != before || producer != 0) {
			t.Fatalf("%+v, producer %d, %v; want %v", os[0], producer, err, want)
		}
	}

	f(true, wire.CodeDiskFull)
	f(true, wire.CodeDiskFull)
	f(false, nil) // with room again, all that was refused can be done
	if len(j.entries) != 1 || c.Image().nextProducer != 1+producerBlockSize {
		t.Fatalf("%d entries, next block begins at %d", len(j.entries), c.Image().nextProducer)
	}
}

// TestFailure expects the first failed write, flush or snapshot to be the end.
func TestFailure(t *testing.T) {
	eio := errors.New("I/O error")
	f := func(spoil func(*memJournal), every int, pending, queued, later wire.Code) {
		t.Helper()
		j := newJournal()
		c := testCoord(j, Options{SnapshotEvery: every})
		spoil(j)
		before := c.Image()
		os := submit(c, create("a", 1))
		_, err := c.Turn(mem.Now{})
		os = append(os, submit(c, create("b", 1))...)
		if err == nil {
			_, err = c.Turn(mem.Now{})
		}
		os = append(os, submit(c, create("c", 1))...)
		if !errors.Is(err, ErrFailed) || !errors.Is(err, eio) {
			t.Fatalf("%v, want ErrFailed", err)
		}
		for n, want := range []wire.Code{pending, queued, later} {
			if os[n].told != 1 || wire.CodeOf(os[n].err) != want {
				t.Fatalf("command %d: %+v, want %v", n, os[n], want)
			}
		}
		if worked, again := c.Turn(mem.Now{}); worked || again != err {
			t.Fatalf("a turn after the end: %v, %v", worked, again)
		}
		if (c.Image() == before) != (pending != wire.CodeOK) {
			t.Fatalf("image %d", c.Image().Version())
		}
		if _, err := c.Close(); !errors.Is(err, ErrFailed) {
			t.Fatalf("closed: %v; it must not be called clean", err)
		}
	}

	f(func(j *memJournal) { j.appendErr = eio }, 3, wire.CodeStorageError, wire.CodeShuttingDown, wire.CodeShuttingDown)
	f(func(j *memJournal) { j.flushErr = eio }, 3, wire.CodeStorageError, wire.CodeShuttingDown, wire.CodeShuttingDown)
	f(func(j *memJournal) { j.snapshotErr = eio }, 3, wire.CodeOK, wire.CodeOffline, wire.CodeShuttingDown)
}

func TestSnapshotsAreTaken(t *testing.T) {
	j := newJournal()
	c := testCoord(j, Options{SnapshotEvery: 3})
	for n := range 10 {
		j.snapshotErr = nil
		if n == 3 {
			j.snapshotErr = raft.ErrNoRoom
		}
		submit(c, create(fmt.Sprint("t", n), 1))
		turn(t, c)
	}
	var got []wire.Offset
	for _, i := range j.snapshots {
		got = append(got, i.Version())
	}
	if want := []wire.Offset{2, 8, 11}; !slices.Equal(got, want) { // that of 5 had no room
		t.Fatalf("snapshots of versions %d, want %d", got, want)
	}
}

// TestSnapshotsBySize takes few entries, but large ones.
func TestSnapshotsBySize(t *testing.T) {
	j := newJournal()
	c := testCoord(j, Options{})
	bytes := 0
	for len(j.snapshots) == 0 {
		made := submit(c, create("a", MaxTopicPartitions))
		turn(t, c)
		id := made[0].result.Topic
		submit(c, DeleteTopic{ID: id})
		turn(t, c)
		submit(c, ForgetTopics{[]wire.TopicID{id}})
		turn(t, c)
		for _, e := range j.entries {
			bytes += len(e)
		}
		if bytes > 2*snapshotBytes {
			t.Fatalf("no snapshot after %d bytes", bytes)
		}
		j.entries, j.durable = nil, 0
	}
	if bytes < snapshotBytes || bytes > snapshotBytes+2*maxEntry {
		t.Fatalf("the first snapshot came after %d bytes", bytes)
	}
}

func TestBusy(t *testing.T) {
	c := testCoord(newJournal(), Options{Queue: 2})
	os := submit(c, create("a", 1), create("b", 1), create("c", 1))
	var busy *wire.Error
	if os[1].told != 0 || !errors.As(os[2].err, &busy) || busy.Code != wire.CodeBusy || busy.RetryAfter <= 0 {
		t.Fatalf("the queue's bound is not held: %+v, %+v", os[1], os[2])
	}
	turn(t, c)
	if os[1].err != nil || os[1].told != 1 {
		t.Fatalf("%+v", os[1])
	}
}

func TestClose(t *testing.T) {
	j := newJournal()
	c := testCoord(j, Options{})
	os := submit(c, create("a", 1))
	if _, err := c.Turn(mem.Now{}); err != nil {
		t.Fatal(err)
	}
	os = append(os, submit(c, create("b", 1))...)
	if _, err := c.Close(); err != nil || j.durable != 1 {
		t.Fatalf("closed: %v", err)
	}
	os = append(os, submit(c, create("c", 1))...)
	for n, want := range []wire.Code{wire.CodeOK, wire.CodeShuttingDown, wire.CodeShuttingDown} {
		if os[n].told != 1 || wire.CodeOf(os[n].err) != want {
			t.Fatalf("command %d: %+v, want %v", n, os[n], want)
		}
	}
}

func TestRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j := newJournal()
		c := testCoord(j, Options{Clock: mem.NewClock()})
		ctx, cancel := context.WithCancel(t.Context())
		ran := make(chan error)
		go func() { ran <- c.Run(ctx) }()

		var wg sync.WaitGroup
		for g := range 4 {
			wg.Go(func() {
				for n := range 50 {
					told := make(chan error, 1)
					c.Submit(create(fmt.Sprintf("t%d.%d", g, n), 1), func(_ Result, err error) { told <- err })
					if err := <-told; err != nil {
						t.Error(err)
					}
					if c.Image().Topic(fmt.Sprintf("t%d.%d", g, n)) == nil {
						t.Error("the image lags behind an answer")
					}
				}
			})
		}
		wg.Wait()
		last := submit(c, create("last", 1))
		cancel()
		if err := <-ran; err != nil {
			t.Fatal(err)
		}
		after := submit(c, create("after", 1))
		if last[0].told != 1 || last[0].err != nil || !errors.Is(after[0].err, wire.CodeShuttingDown) {
			t.Fatalf("around the stop: %+v, %+v", last[0], after[0])
		}
		if len(c.Image().Topics()) != 201 || j.durable != len(j.entries) {
			t.Fatalf("%d topics", len(c.Image().Topics()))
		}
	})
}

func TestRunEndsWithTheLog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j := newJournal()
		c := testCoord(j, Options{Clock: mem.NewClock()})
		j.flushErr = storage.ErrSync
		ran := make(chan error)
		go func() { ran <- c.Run(t.Context()) }()
		o := submit(c, create("a", 1))
		if err := <-ran; !errors.Is(err, ErrFailed) || !errors.Is(err, storage.ErrSync) {
			t.Fatal(err)
		}
		if o[0].told != 1 || !errors.Is(o[0].err, wire.CodeStorageError) {
			t.Fatalf("%+v", o[0])
		}
	})
}

// replayAll replays entries from bytes, from offset first on.
func replayAll(t *testing.T, i *Image, entries [][]byte) *Image {
	t.Helper()
	d := i.edit()
	for _, b := range entries[i.version-1:] { // a membership and a no-op stand before the first
		e, err := readEntry(b)
		if err == nil {
			err = d.replay(d.version+1, e)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return &d.Image
}

// TestReplay is handle-then-replay as a property: after any commands in any
// turns the image that served them, the replay of the log and the replay of its
// tail over a snapshot are equal to the byte, and as a plain model says.
func TestReplay(t *testing.T) {
	for seed := range uint64(60) {
		rng := rand.New(rand.NewPCG(seed, 1))
		j := newJournal()
		c := testCoord(j, Options{SnapshotEvery: 1 + rng.IntN(20)})
		m := model{topics: map[string]wire.TopicID{}, deleted: map[wire.TopicID]bool{}, requests: map[wire.UUID]wire.TopicID{}}
		for range 150 {
			for range 1 + rng.IntN(4) {
				m.submit(t, c, rng)
			}
			if rng.IntN(10) == 0 {
				j.roomErr = storage.ErrDiskFull
			}
			turn(t, c)
			j.roomErr = nil
		}
		m.compare(t, c.Image())
		want := state(c.Image())
		blank := &emptyImage.edit().Image
		blank.version = 1
		if got := replayAll(t, blank, j.entries); !bytes.Equal(state(got), want) || got.partitions != c.Image().partitions {
			t.Fatalf("seed %d: the replay differs", seed)
		}
		for n, i := range j.snapshots {
			_, again, err := readSnapshotOf(snapshotOf(i, 1))
			if err != nil {
				t.Fatal(err)
			}
			if got := replayAll(t, again, j.entries); !bytes.Equal(state(got), want) || got.Hosted(dirA) != c.Image().Hosted(dirA) {
				t.Fatalf("seed %d: the replay from snapshot %d differs", seed, n)
			}
		}
	}
}

// A model is what a test expects of the metadata, from the answers alone.
type model struct {
	topics   map[string]wire.TopicID
	deleted  map[wire.TopicID]bool
	requests map[wire.UUID]wire.TopicID
	last     wire.ProducerID
}

// submit submits one random command and takes its answer into the model.
func (m *model) submit(t *testing.T, c *Coord, rng *rand.Rand) {
	name := fmt.Sprint("t", rng.IntN(12))
	request := wire.UUID{byte(rng.IntN(40))} // 0: none
	switch rng.IntN(8) {
	default:
		cmd := create(name, int32(1+rng.IntN(5)), "flush.interval="+[]string{"1s", "2s"}[rng.IntN(2)])
		cmd.Request = request
		c.Submit(cmd, func(r Result, err error) { m.created(t, name, request, r, err) })
	case 0, 1:
		id := m.topics[name]
		c.Submit(DeleteTopic{request, id}, func(r Result, err error) {
			if err == nil && m.requests[request] == 0 {
				delete(m.topics, name)
				m.deleted[id] = true
				m.remember(request, id)
			}
		})
	case 2:
		var ids []wire.TopicID
		for id := range m.deleted {
			ids = append(ids, id)
		}
		c.Submit(ForgetTopics{ids}, func(_ Result, err error) {
			for _, id := range ids {
				if err == nil {
					delete(m.deleted, id)
				}
			}
		})
	case 3:
		c.NextProducer(func(id wire.ProducerID, err error) {
			if err == nil && id <= m.last {
				t.Errorf("producer %d after %d", id, m.last)
			}
			m.last = max(m.last, id)
		})
	case 4:
		c.Submit(BumpEpochs{[]wire.UUID{dirA, dirB}[rng.IntN(2)]}, func(Result, error) {})
	}
}

func (m *model) created(t *testing.T, name string, request wire.UUID, r Result, err error) {
	first, repeated := m.requests[request]
	switch id, exists := m.topics[name]; {
	case errors.Is(err, wire.CodeDiskFull), repeated && errors.Is(err, wire.CodeConflict):
	case repeated:
		if err != nil || r.Topic != first {
			t.Errorf("request %v again: %+v, %v; the first made topic %d", request, r, err, first)
		}
	case exists:
		if !errors.Is(err, wire.CodeTopicExists) {
			t.Errorf("%s exists with id %d: %+v, %v", name, id, r, err)
		}
	case err != nil || m.deleted[r.Topic]:
		t.Errorf("create %s: %+v, %v", name, r, err)
	default:
		m.topics[name] = r.Topic
		m.remember(request, r.Topic)
	}
}

func (m *model) remember(request wire.UUID, id wire.TopicID) {
	if request != (wire.UUID{}) {
		m.requests[request] = id
	}
}

func (m *model) compare(t *testing.T, i *Image) {
	t.Helper()
	if len(i.Topics()) != len(m.topics) || len(i.DeletedTopics()) != len(m.deleted) || i.nextProducer <= m.last {
		t.Fatalf("%d topics, %d deleted, next producer %d; want %d, %d, above %d",
			len(i.Topics()), len(i.DeletedTopics()), i.nextProducer, len(m.topics), len(m.deleted), m.last)
	}
	for name, id := range m.topics {
		if topic := i.Topic(name); topic == nil || topic.ID != id || i.TopicByID(id) != topic {
			t.Fatalf("topic %s is %+v, want id %d", name, topic, id)
		}
	}
	for id := range m.deleted {
		if !i.Deleted(id) {
			t.Fatalf("topic %d is not known as deleted", id)
		}
	}
}
