package raft

import (
	"bytes"
	"errors"
	"reflect"
	"testing"
)

func sampleMessages() []Message {
	members := Members{Voters: peersOf([]int{1, 2, 3}), Outgoing: peersOf([]int{1}), Learners: peersOf([]int{4})}
	base := Message{Cluster: cluster, From: peer(1, 0), To: peer(2, 3), Term: 7}
	list := []Message{
		{Kind: VoteKind, Index: 4, LogTerm: 3, Transfer: true},
		{Kind: PreVoteReply, Reject: true},
		{Kind: AppendKind, Index: 9, LogTerm: 6, Commit: 8, Entries: []Entry{{10, 6, Command, []byte("x")}, {11, 7, NoOp, nil}, {12, 7, Membership, AppendMembers(nil, members)}}},
		{Kind: AppendReply, Reject: true, Index: 9, Hint: 5, LogTerm: 4, Damaged: true},
		{Kind: HeartbeatKind, Commit: 1 << 60, Round: 1<<64 - 1},
		{Kind: SnapshotKind, Snapshot: Snapshot{Index: 9, Term: 3, Size: 100, Members: members}, Offset: 60, Data: []byte("chunk")},
		{Kind: SnapshotReply, Snapshot: Snapshot{Index: 9}, Offset: 65},
		{Kind: TimeoutNow},
	}
	for i := range list {
		m := &list[i]
		m.Cluster, m.From, m.To, m.Term = base.Cluster, base.From, base.To, base.Term
	}
	return list
}

// TestCodec sends messages through their bytes, cuts them everywhere and adds
// to them.
func TestCodec(t *testing.T) {
	for _, m := range sampleMessages() {
		b := AppendMessage(nil, &m)
		got, err := DecodeMessage(b)
		if err != nil || !reflect.DeepEqual(got, m) {
			t.Fatalf("%v: %v, %v", m, got, err)
		}
		for n := range b {
			if _, err := DecodeMessage(b[:n]); !errors.Is(err, ErrCodec) {
				t.Fatalf("%v cut at %d: %v", m, n, err)
			}
		}
		if _, err := DecodeMessage(append(bytes.Clone(b), 0)); !errors.Is(err, ErrCodec) {
			t.Fatalf("%v with a byte more: %v", m, err)
		}
		b[0]++
		if _, err := DecodeMessage(b); !errors.Is(err, ErrVersion) {
			t.Fatalf("%v of a newer version: %v", m, err)
		}
	}
}

// TestCodecCount says that there are more entries, or peers, than could be.
func TestCodecCount(t *testing.T) {
	m := Message{Kind: AppendKind, Cluster: cluster, From: peer(1, 0), To: peer(2, 0), Term: 1}
	b := AppendMessage(nil, &m)
	for i := range 4 {
		b[3+16+2*peerSize+7*8+i] = 0xff
	}
	members := append([]byte{version}, 0xff, 0xff, 0xff, 0x0f, 0, 0, 0, 0, 0, 0, 0, 0)
	allocs := testing.AllocsPerRun(100, func() {
		if _, err := DecodeMessage(b); err == nil {
			t.Fatal("decoded")
		}
		if _, err := DecodeMembers(members); err == nil {
			t.Fatal("decoded")
		}
	})
	if allocs > 12 {
		t.Fatalf("%v allocations to find out", allocs)
	}
}

func FuzzMessage(f *testing.F) {
	f.Add([]byte(nil))
	for _, m := range sampleMessages() {
		f.Add(AppendMessage(nil, &m))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := DecodeMessage(b)
		if err != nil {
			return
		}
		if again := AppendMessage(nil, &m); !bytes.Equal(again, b) {
			t.Fatalf("%x becomes %x", b, again)
		}
		n, err := New(Config{Cluster: m.Cluster, Self: m.To}, State{})
		if err == nil {
			n.Step(&m) // whatever it says, an empty node survives it
		}
	})
}

func FuzzMembers(f *testing.F) {
	f.Add([]byte(nil))
	f.Add(AppendMembers(nil, Members{Voters: peersOf([]int{1, 2}), Outgoing: peersOf([]int{3}), Learners: peersOf([]int{4})}))
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := DecodeMembers(b)
		if err != nil {
			return
		}
		if again := AppendMembers(nil, m); !bytes.Equal(again, b) || m.check() != nil {
			t.Fatalf("%x becomes %x", b, again)
		}
	})
}
