package coord

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/teralog/teralog/raft"
	"github.com/teralog/teralog/wire"
)

// A sample is something the metadata keeps, and its bytes.
type sample struct {
	name  string
	bytes []byte
	read  func([]byte) ([]byte, error) // and write again
}

// frozenSamples has one of each kind of bytes in the metadata folder.
func frozenSamples(t *testing.T) []sample {
	i := someImage(t)
	records := []record{topicCreated{i.Topic("a")}, topicDeleted{2001}, topicsForgotten{[]wire.TopicID{2001, 2002}},
		epochsBumped{dirB}, producersAllocated{1001, 1000}}
	rewrite := func(b []byte) ([]byte, error) {
		e, err := readEntry(b)
		var changes []byte
		for _, c := range e {
			changes = appendChange(changes, c)
		}
		return joinEntry(len(e), changes), err
	}
	var all []sample
	for _, r := range records {
		b := joinEntry(1, appendChange(nil, change{wire.UUID{1, 2, 3}, 0x12345678, []record{r}}))
		all = append(all, sample{strings.TrimPrefix(fmt.Sprintf("%T", r), "coord."), b, rewrite})
	}
	for _, cmd := range someCommands() {
		all = append(all, sample{strings.TrimPrefix(fmt.Sprintf("%T", cmd), "coord."), AppendCommand(nil, cmd), func(b []byte) ([]byte, error) {
			cmd, err := ReadCommand(b)
			if err != nil {
				return nil, err
			}
			return AppendCommand(nil, cmd), nil
		}})
	}
	return append(all,
		sample{"members2", appendMembers(nil, someMembers()), func(b []byte) ([]byte, error) {
			members, err := readMembers(b, seven)
			return appendMembers(nil, members), err
		}},
		sample{"mark", appendMark(nil, 77), func(b []byte) ([]byte, error) {
			i, err := readMark(b)
			return appendMark(nil, i), err
		}},
		sample{"vote", appendVote(nil, vote{9, 5, 7, dirA}), func(b []byte) ([]byte, error) {
			v, err := readVote(b)
			return appendVote(nil, v), err
		}},
		sample{"snapshot2", snapshotOf(i, 5), func(b []byte) ([]byte, error) {
			s, state, err := readSnapshot(b, seven)
			return appendSnapshot(nil, s.Snapshot, state), err
		}})
}

// someMembers is a membership with one of each list.
func someMembers() []byte {
	eight := raft.Peer{ID: 8, Incarnation: raft.UUID(dirB)}
	return raft.AppendMembers(nil, raft.Members{Voters: []raft.Peer{seven, eight}, Outgoing: []raft.Peer{seven}, Learners: []raft.Peer{{ID: 9, Incarnation: raft.UUID{9}}}})
}

// TestFrozen holds every form to the bytes it had when it was first written. A
// form that must change gets a new number beside the old one.
func TestFrozen(t *testing.T) {
	text, err := os.ReadFile("testdata/frozen.txt")
	if err != nil {
		t.Fatal(err)
	}
	frozen := map[string][]byte{}
	for line := range strings.Lines(string(text)) {
		name, digits, _ := strings.Cut(strings.TrimSpace(line), " ")
		if frozen[name], err = hex.DecodeString(digits); err != nil {
			t.Fatal(err)
		}
	}
	readOld(t, frozen)
	samples := frozenSamples(t)
	if len(frozen) != len(samples) {
		t.Fatalf("%d samples are frozen, there are %d", len(frozen), len(samples))
	}
	for _, s := range samples {
		b := frozen[s.name]
		if !bytes.Equal(s.bytes, b) {
			t.Errorf("%s is written as\n%x, it was\n%x", s.name, s.bytes, b)
		}
		if again, err := s.read(b); err != nil || !bytes.Equal(again, b) {
			t.Errorf("%s is read back as\n%x, %v", s.name, again, err)
		}
	}
}

// readOld reads the forms that are not written any more, and takes them from
// what is frozen.
func readOld(t *testing.T, frozen map[string][]byte) {
	t.Helper()
	want := someImage(t)
	s, i, err := readSnapshotOf(frozen["snapshot"])
	if err != nil || s.version != 1 || s.Term != 5 || s.Index != indexOf(want.version) || !bytes.Equal(state(i), state(want)) ||
		len(s.Members.Voters) != 1 || s.Members.Voters[0] != seven {
		t.Errorf("snapshot is read back as %+v, %v", s, err)
	}
	if _, err := readMembers(frozen["members"], seven); err == nil || !strings.Contains(err.Error(), "kept by the nodes [7 8]") {
		t.Errorf("members of two nodes: %v", err)
	}
	members, err := readMembers([]byte{1, 1, 7, 0, 0, 0}, seven)
	if err != nil || !bytes.Equal(members, raft.AppendMembers(nil, s.Members)) {
		t.Errorf("members of one node are read back as %x, %v", members, err)
	}
	delete(frozen, "snapshot")
	delete(frozen, "members")
}
