package coord

import (
	"bytes"
	"hash/crc32"
	"testing"

	"github.com/teralog/teralog/raft"
	"github.com/teralog/teralog/wire"
)

// seedEntry is an entry with each kind of record.
func seedEntry() []byte {
	topic := &Topic{Name: "a", ID: 2000, Created: 1, Settings: set("flush=sync"), Partitions: []PartitionPlace{{7, 0, dirA}, {7, 3, dirB}}}
	c := change{wire.UUID{1}, 2, []record{topicCreated{topic}, topicDeleted{2000}, topicsForgotten{[]wire.TopicID{2000}}, epochsBumped{dirA}, producersAllocated{1, 9}}}
	return joinEntry(1, appendChange(nil, c))
}

// FuzzEntry expects an entry that is read to be written as something that
// means the same, and replay to refuse or apply it without a panic.
func FuzzEntry(f *testing.F) {
	f.Add(seedEntry())
	f.Add(joinEntry(0, nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		e, err := readEntry(b)
		if err != nil {
			return
		}
		var changes []byte
		for _, c := range e {
			changes = appendChange(changes, c)
		}
		again, err := readEntry(joinEntry(len(e), changes))
		if err != nil {
			t.Fatalf("written again: %v", err)
		}
		one, two := emptyImage.edit(), emptyImage.edit()
		err1, err2 := one.replay(0, e), two.replay(0, again)
		if (err1 == nil) != (err2 == nil) || err1 == nil && !bytes.Equal(state(&one.Image), state(&two.Image)) {
			t.Fatalf("replayed: %v and %v", err1, err2)
		}
	})
}

// FuzzSnapshot gives the state a right CRC and expects what is read to be a
// state that is written and read again as it was.
func FuzzSnapshot(f *testing.F) {
	d := emptyImage.edit()
	e, _ := readEntry(seedEntry())
	e[0].records = e[0].records[:2]
	_ = d.replay(3, e)
	whole := snapshotOf(&d.Image, 1)
	f.Add(whole[:len(whole)-4])
	f.Fuzz(func(t *testing.T, b []byte) {
		_, _, _ = readSnapshot(b, seven) // as it came: damaged
		sealed := wire.Append32(bytes.Clone(b), crc32.Checksum(b, castagnoli))
		s, i, err := readSnapshotOf(sealed)
		if err != nil {
			return
		}
		// What says a thing twice, or in an order of its own, is taken and from then
		// on written as we write it.
		written := func(s snapshotFile, i *Image) []byte {
			s.Size = uint64(len(state(i)))
			return appendSnapshot(nil, s.Snapshot, state(i))
		}
		file := written(s, i)
		again, j, err := readSnapshotOf(file)
		if err != nil || again.Term != s.Term || again.Index != s.Index || !bytes.Equal(written(again, j), file) {
			t.Fatalf("written again: %+v, %v", again, err)
		}
	})
}

// FuzzVote gives each slot a right CRC as well and expects what is read to be
// written as it was.
func FuzzVote(f *testing.F) {
	b := appendVote(nil, vote{2, 1, 7, dirA})
	f.Add(b[:voteSize-4], []byte(nil))
	f.Add(b[:voteSize-4], appendVote(nil, vote{3, 2, -1, dirA})[:voteSize-4])
	f.Fuzz(func(t *testing.T, first, second []byte) {
		file := make([]byte, voteSlot+voteSize)
		for at, slot := range [][]byte{first, second} {
			copy(file[at*voteSlot:], wire.Append32(bytes.Clone(slot), crc32.Checksum(slot, castagnoli)))
		}
		_, _ = readVotes(first)
		v, err := readVotes(file)
		if err != nil {
			return
		}
		if b := appendVote(nil, v); !bytes.HasPrefix(file, b) && !bytes.HasPrefix(file[voteSlot:], b) {
			t.Fatalf("%+v is written as %x, which is in neither slot", v, b)
		}
	})
}

func FuzzMembers(f *testing.F) {
	f.Add([]byte{1, 1, 7, 0, 0, 0})
	f.Add(appendMembers(nil, raft.AppendMembers(nil, raft.Members{Voters: []raft.Peer{seven}})))
	f.Fuzz(func(t *testing.T, b []byte) {
		members, err := readMembers(b, seven)
		if err != nil {
			return
		}
		if _, err := raft.DecodeMembers(members); err != nil {
			t.Fatalf("read %x: %v", members, err)
		}
		if b[0] == membersVersion && !bytes.Equal(appendMembers(nil, members), b) {
			t.Fatalf("%x is written otherwise", members)
		}
	})
}

func FuzzMark(f *testing.F) {
	f.Add(appendMark(nil, 5))
	f.Fuzz(func(t *testing.T, b []byte) {
		_, _ = readMark(b)
		sealed := wire.Append32(bytes.Clone(b), crc32.Checksum(b, castagnoli))
		if i, err := readMark(sealed); err == nil && !bytes.Equal(appendMark(nil, i), sealed) {
			t.Fatalf("%d is written otherwise", i)
		}
	})
}

// someCommands has one of each command.
func someCommands() []Command {
	full := create("a", 3, "flush=sync", "retention=1d")
	full.Request, full.ValidateOnly = wire.UUID{5}, true
	return []Command{full, DeleteTopic{wire.UUID{6}, 2000}, ForgetTopics{[]wire.TopicID{1, 2}}, BumpEpochs{dirA}, AllocateProducers{7}, Barrier{}}
}

// FuzzCommand expects what is read of a command to be written as it was.
func FuzzCommand(f *testing.F) {
	for _, cmd := range someCommands() {
		f.Add(AppendCommand(nil, cmd))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if cmd, err := ReadCommand(b); err == nil && !bytes.Equal(AppendCommand(nil, cmd), b) {
			t.Fatalf("%+v is written otherwise", cmd)
		}
	})
}
