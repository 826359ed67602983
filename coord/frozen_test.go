package coord

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"os"
	"strings"
	"testing"

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
	return append(all,
		sample{"members", appendMembers(nil, []wire.NodeID{7, 8}), func(b []byte) ([]byte, error) {
			nodes, err := readMembers(b)
			return appendMembers(nil, nodes), err
		}},
		sample{"vote", appendVote(nil, vote{9, 5, 7, dirA}), func(b []byte) ([]byte, error) {
			v, err := readVote(b)
			return appendVote(nil, v), err
		}},
		sample{"snapshot", appendSnapshot(nil, snapshot{5, []wire.NodeID{7}, i}), func(b []byte) ([]byte, error) {
			s, err := readSnapshot(b)
			if err != nil {
				return nil, err
			}
			return appendSnapshot(nil, s), nil
		}})
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
