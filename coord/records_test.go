package coord

import (
	"bytes"
	"errors"
	"math"
	"testing"

	"github.com/teralog/teralog/raft"
	"github.com/teralog/teralog/storage"
	"github.com/teralog/teralog/wire"
)

// someImage returns an image in which nothing is empty.
func someImage(t *testing.T) *Image {
	t.Helper()
	named := create("a", 3, "flush=sync", "retention.age=none")
	named.Request = wire.UUID{1, 2, 3}
	i, _, err := apply(t, emptyImage, testEnv(), named, create("b", 1), create("c", 2), DeleteTopic{wire.UUID{4}, 2002},
		BumpEpochs{dirA}, AllocateProducers{1000})
	if err != nil {
		t.Fatal(err)
	}
	return i
}

// state returns the bytes that equal images have in common.
func state(i *Image) []byte { return appendState(wire.Append64(nil, i.version), i) }

// seven is the node that tests run.
var seven = raft.Peer{ID: 7, Incarnation: raft.UUID(dirA)}

// snapshotOf returns the file of a snapshot of i.
func snapshotOf(i *Image, term raft.Term) []byte {
	b := state(i)
	return appendSnapshot(nil, raft.Snapshot{Index: indexOf(i.version), Term: term, Members: raft.Members{Voters: []raft.Peer{seven}}, Size: uint64(len(b))}, b)
}

func readSnapshotOf(b []byte) (snapshotFile, *Image, error) {
	s, state, err := readSnapshot(b, seven)
	if err != nil {
		return s, nil, err
	}
	i, err := readImage(state)
	return s, i, err
}

func TestRecords(t *testing.T) {
	topic := someImage(t).Topic("a")
	f := func(r record) {
		t.Helper()
		b := joinEntry(1, appendChange(nil, change{wire.UUID{5}, 6, []record{r}}))
		e, err := readEntry(b)
		if err != nil || len(e) != 1 || e[0].request != (wire.UUID{5}) || e[0].sum != 6 {
			t.Fatalf("%T: read back %+v, %v", r, e, err)
		}
		if again := joinEntry(1, appendChange(nil, e[0])); !bytes.Equal(again, b) {
			t.Fatalf("%T: %x was read, %x is written", r, b, again)
		}
		for n := range b {
			if _, err := readEntry(b[:n]); !errors.Is(err, wire.ErrCorrupt) {
				t.Fatalf("%T cut to %d of %d bytes: %v", r, n, len(b), err)
			}
		}
		if _, err := readEntry(append(b[:len(b):len(b)], 0)); !errors.Is(err, wire.ErrCorrupt) {
			t.Fatalf("%T with a byte too much: %v", r, err)
		}
	}

	f(topicCreated{topic})
	f(topicDeleted{2001})
	f(topicsForgotten{[]wire.TopicID{2001, math.MaxInt64}})
	f(epochsBumped{dirA})
	f(producersAllocated{1 << 40, 1000})
}

// TestNewer expects intact bytes of a later version to be called that, since
// the remedy is another than for damage.
func TestNewer(t *testing.T) {
	f := func(b []byte) {
		t.Helper()
		if _, err := readEntry(b); !errors.Is(err, storage.ErrNewer) || errors.Is(err, wire.ErrCorrupt) {
			t.Fatalf("%x: %v", b, err)
		}
	}

	f([]byte{entryVersion + 1, 0})
	f(joinEntry(1, append(make([]byte, 20), 1, 99, 2, 'h', 'i')))
	topic := *someImage(t).Topic("b")
	topic.Settings = set("compaction=on")
	f(joinEntry(1, appendChange(nil, change{records: []record{topicCreated{&topic}}})))
}

// TestBoundsMoveLater reads settings that were accepted once under wider bounds.
func TestBoundsMoveLater(t *testing.T) {
	topic := *someImage(t).Topic("b")
	topic.Settings = set("flush.interval=20h")
	e, err := readEntry(joinEntry(1, appendChange(nil, change{records: []record{topicCreated{&topic}}})))
	if err != nil || e[0].records[0].(topicCreated).topic.Config.FlushInterval.Hours() != 20 {
		t.Fatalf("%+v, %v", e, err)
	}
}

// TestReplayRefuses replays records that follow from no state.
func TestReplayRefuses(t *testing.T) {
	i := someImage(t)
	rename := func(of string, name string, id wire.TopicID) record {
		topic := *i.Topic(of)
		topic.Name, topic.ID = name, id
		return topicCreated{&topic}
	}
	f := func(r record) {
		t.Helper()
		if err := i.edit().replay(9, entry{{records: []record{r}}}); !errors.Is(err, wire.ErrCorrupt) {
			t.Fatalf("%+v: %v", r, err)
		}
	}

	f(rename("a", "a", 3000))
	f(rename("a", "z", 2000))
	f(rename("a", "z", 2002)) // deleted
	f(topicDeleted{2002})
	f(topicDeleted{7})
	f(topicsForgotten{[]wire.TopicID{2000}})
	f(topicsForgotten{[]wire.TopicID{2002, 2002}})
	f(producersAllocated{1000, 10})
	f(producersAllocated{1001, 0})
	f(producersAllocated{1001, -1})
	f(producersAllocated{1001, math.MaxInt64 - 1000})
	i.Topic("b").Partitions[0].Epoch = math.MaxInt32
	f(epochsBumped{i.Topic("b").Partitions[0].Dir})
}

// TestLeast holds the counts that are checked before memory is taken to the
// smallest elements there are.
func TestLeast(t *testing.T) {
	topic := func(name string) CreateTopic { return create(name, 1) }
	i, _, err := apply(t, emptyImage, testEnv(), topic("a"), topic("b"), topic("c"), DeleteTopic{ID: 2001})
	if err != nil {
		t.Fatal(err)
	}
	if n := len(appendTopic(nil, i.Topic("a"))); n != leastTopic {
		t.Fatalf("the smallest topic has %d bytes, not %d", n, leastTopic)
	}
	_, again, err := readSnapshotOf(snapshotOf(i, 1))
	if err != nil || !bytes.Equal(state(again), state(i)) {
		t.Fatal(err)
	}
}

func TestSnapshot(t *testing.T) {
	i := someImage(t)
	b := snapshotOf(i, 5)
	s, again, err := readSnapshotOf(b)
	if err != nil || s.Term != 5 || len(s.Members.Voters) != 1 || s.Members.Voters[0] != seven || s.Index != indexOf(i.version) {
		t.Fatalf("read back %+v, %v", s, err)
	}
	if !bytes.Equal(state(again), state(i)) || again.partitions != i.partitions || again.Hosted(dirA) != i.Hosted(dirA) ||
		again.Topic("a").ID != 2000 || !again.Deleted(2002) {
		t.Fatalf("state read back differs: %+v, was %+v", again, i)
	}
	for n := range b {
		if _, _, err := readSnapshot(b[:n], seven); !errors.Is(err, wire.ErrCorrupt) {
			t.Fatalf("cut to %d of %d bytes: %v", n, len(b), err)
		}
		for bit := range 8 {
			b[n] ^= 1 << bit
			if _, _, err := readSnapshot(b, seven); err == nil {
				t.Fatalf("bit %d of byte %d flipped unseen", bit, n)
			}
			b[n] ^= 1 << bit
		}
	}
}

func TestSnapshotName(t *testing.T) {
	f := func(name string, index raft.Index, want bool) {
		t.Helper()
		if got, ok := parseSnapshotName(name); ok != want || ok && got != index {
			t.Fatalf("%s: %d, %v", name, got, ok)
		}
	}

	f(snapshotName(0), 0, true)
	f("00000000000000000042.snapshot", 42, true)
	f(snapshotName(math.MaxInt64), math.MaxInt64, true)
	f("42.snapshot", 0, false)
	f("00000000000000000042.snapshot.tmp", 0, false)
	f("-0000000000000000042.snapshot", 0, false)
	f("00000000000000000042.log", 0, false)
	f("99999999999999999999.snapshot", 0, false)
}

func TestVotes(t *testing.T) {
	v := vote{3, 9, 7, dirA}
	b := appendVote(nil, v)
	if got, err := readVote(b); err != nil || got != v {
		t.Fatalf("read back %+v, %v", got, err)
	}
	for n := range b {
		if _, err := readVote(b[:n]); !errors.Is(err, wire.ErrCorrupt) {
			t.Fatalf("cut to %d of %d bytes: %v", n, len(b), err)
		}
		b[n] ^= 0x10
		if _, err := readVote(b); !errors.Is(err, wire.ErrCorrupt) {
			t.Fatalf("byte %d damaged: %v", n, err)
		}
		b[n] ^= 0x10
	}

	f := func(first, second uint64, want uint64) {
		t.Helper()
		b := make([]byte, voteSlot+voteSize)
		for at, sequence := range []uint64{first, second} {
			if sequence > 0 {
				copy(b[at*voteSlot:], appendVote(nil, vote{sequence, wire.Epoch(sequence), 7, dirA}))
			}
		}
		got, err := readVotes(b)
		if got.sequence != want || (err == nil) != (want > 0) {
			t.Fatalf("slots of %d and %d: %+v, %v", first, second, got, err)
		}
	}

	f(2, 1, 2)
	f(2, 3, 3)
	f(0, 3, 3) // the other slot was torn
	f(4, 0, 4)
	f(0, 0, 0)
	if _, err := readVotes(nil); !errors.Is(err, wire.ErrCorrupt) {
		t.Fatal("an empty file is a vote")
	}
	if v, err := readVotes(appendVote(nil, vote{2, 1, 7, dirA})); err != nil || v.term != 1 {
		t.Fatalf("a file of one slot: %+v, %v", v, err)
	}
}
