package raft

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// Errors of decoding.
var (
	// ErrCodec says that bytes are not a message or membership.
	ErrCodec = errors.New("not of the raft protocol")
	// ErrVersion says that they are of a newer version.
	ErrVersion = errors.New("of a newer version of the raft protocol")
)

// version is the first byte of each message and membership.
const version = 1

const (
	flagReject = 1 << iota
	flagTransfer
	flagDamaged
	flagSnapshot
	flags // one more than all of them
)

const peerSize = 4 + 16

// AppendMessage appends
//
//	| version u8 | kind u8 | flags u8 | cluster UUID | from, to: i32, UUID | term u64 |
//	| index u64 | logTerm u64 | hint u64 | commit u64 | round u64 | offset u64 |
//	| entries: count u32, (index u64, term u64, kind u8, size u32, data) … |
//	| with flag 8: index u64 | term u64 | size u64 | members: size u32, bytes |
//	| data: size u32, bytes |
//
// with the least significant byte first.
func AppendMessage(dst []byte, m *Message) []byte {
	flag := func(yes bool, f byte) byte {
		if yes {
			return f
		}
		return 0
	}
	snap := m.Snapshot.Index > 0
	dst = append(dst, version, byte(m.Kind), flag(m.Reject, flagReject)|flag(m.Transfer, flagTransfer)|flag(m.Damaged, flagDamaged)|flag(snap, flagSnapshot))
	dst = append(dst, m.Cluster[:]...)
	dst = appendPeer(appendPeer(dst, m.From), m.To)
	for _, v := range [...]uint64{uint64(m.Term), uint64(m.Index), uint64(m.LogTerm), uint64(m.Hint), uint64(m.Commit), m.Round, m.Offset} {
		dst = binary.LittleEndian.AppendUint64(dst, v)
	}
	dst = binary.LittleEndian.AppendUint32(dst, uint32(len(m.Entries)))
	for i := range m.Entries {
		e := &m.Entries[i]
		dst = binary.LittleEndian.AppendUint64(dst, uint64(e.Index))
		dst = binary.LittleEndian.AppendUint64(dst, uint64(e.Term))
		dst = appendBytes(append(dst, byte(e.Kind)), e.Data)
	}
	if snap {
		dst = binary.LittleEndian.AppendUint64(dst, uint64(m.Snapshot.Index))
		dst = binary.LittleEndian.AppendUint64(dst, uint64(m.Snapshot.Term))
		dst = binary.LittleEndian.AppendUint64(dst, m.Snapshot.Size)
		dst = appendBytes(dst, AppendMembers(nil, m.Snapshot.Members))
	}
	return appendBytes(dst, m.Data)
}

// DecodeMessage reads what AppendMessage wrote, and nothing else. Entries and
// data alias b. The error wraps ErrCodec or ErrVersion; no more memory is taken
// than b has bytes, times a small constant.
func DecodeMessage(b []byte) (Message, error) {
	r := cursor{b: b}
	var m Message
	if v := r.u8(); v > version {
		return m, fmt.Errorf("%w: message of version %d", ErrVersion, v)
	} else if v < version {
		return m, fmt.Errorf("%w: message of version %d", ErrCodec, v)
	}
	m.Kind = Kind(r.u8())
	f := r.u8()
	m.Reject, m.Transfer, m.Damaged = f&flagReject != 0, f&flagTransfer != 0, f&flagDamaged != 0
	m.Cluster, m.From, m.To = r.uuid(), r.peer(), r.peer()
	m.Term, m.Index, m.LogTerm, m.Hint, m.Commit = Term(r.u64()), Index(r.u64()), Term(r.u64()), Index(r.u64()), Index(r.u64())
	m.Round, m.Offset = r.u64(), r.u64()
	if count := r.count(8 + 8 + 1 + 4); count > 0 {
		m.Entries = make([]Entry, count)
		for i := range m.Entries {
			m.Entries[i] = Entry{Index(r.u64()), Term(r.u64()), EntryKind(r.u8()), r.bytes()}
		}
	}
	if f&flagSnapshot != 0 {
		m.Snapshot = Snapshot{Index: Index(r.u64()), Term: Term(r.u64()), Size: r.u64()}
		members := r.bytes()
		if r.bad || m.Snapshot.Index == 0 {
			return Message{}, ErrCodec
		}
		var err error
		if m.Snapshot.Members, err = decodeMembers(members, m.Kind != SnapshotKind); err != nil {
			return Message{}, err
		}
	}
	m.Data = r.bytes()
	if r.bad || len(r.b) > 0 || f >= flags || m.Kind == 0 || m.Kind >= kinds {
		return Message{}, fmt.Errorf("%w: message of %d bytes", ErrCodec, len(b))
	}
	return m, nil
}

// AppendMembers appends
//
//	| version u8 | voters, outgoing, learners: each a count u32 and peers: i32, UUID … |
func AppendMembers(dst []byte, m Members) []byte {
	dst = append(dst, version)
	for _, list := range [...][]Peer{m.Voters, m.Outgoing, m.Learners} {
		dst = binary.LittleEndian.AppendUint32(dst, uint32(len(list)))
		for _, p := range list {
			dst = appendPeer(dst, p)
		}
	}
	return dst
}

// DecodeMembers reads what AppendMembers wrote of a possible membership.
func DecodeMembers(b []byte) (Members, error) { return decodeMembers(b, false) }

// decodeMembers also takes a membership of nobody if none says so.
func decodeMembers(b []byte, none bool) (Members, error) {
	r := cursor{b: b}
	var m Members
	if v := r.u8(); v > version {
		return m, fmt.Errorf("%w: membership of version %d", ErrVersion, v)
	} else if v < version {
		return m, fmt.Errorf("%w: membership of version %d", ErrCodec, v)
	}
	for _, list := range [...]*[]Peer{&m.Voters, &m.Outgoing, &m.Learners} {
		if count := r.count(peerSize); count > 0 {
			*list = make([]Peer, count)
			for i := range *list {
				(*list)[i] = r.peer()
			}
		}
		if !increasing(*list) {
			r.bad = true
		}
	}
	if r.bad || len(r.b) > 0 {
		return Members{}, fmt.Errorf("%w: membership of %d bytes", ErrCodec, len(b))
	}
	if none && len(m.all()) == 0 {
		return Members{}, nil
	}
	if err := m.check(); err != nil {
		return Members{}, fmt.Errorf("%w: %w", ErrCodec, err)
	}
	return m, nil
}

func increasing(peers []Peer) bool {
	for i := 1; i < len(peers); i++ {
		if peers[i-1].compare(peers[i]) >= 0 {
			return false
		}
	}
	return true
}

func appendPeer(dst []byte, p Peer) []byte {
	dst = binary.LittleEndian.AppendUint32(dst, uint32(p.ID))
	return append(dst, p.Incarnation[:]...)
}

func appendBytes(dst, b []byte) []byte {
	return append(binary.LittleEndian.AppendUint32(dst, uint32(len(b))), b...)
}

// A cursor reads from the front of b; once bad it stays so and reads zeros.
type cursor struct {
	b   []byte
	bad bool
}

func (r *cursor) take(n uint64) []byte {
	if r.bad || n > uint64(len(r.b)) {
		r.bad = true
		return nil
	}
	b := r.b[:n:n]
	r.b = r.b[n:]
	return b
}

func (r *cursor) u8() byte {
	if b := r.take(1); b != nil {
		return b[0]
	}
	return 0
}

func (r *cursor) u32() uint32 {
	if b := r.take(4); b != nil {
		return binary.LittleEndian.Uint32(b)
	}
	return 0
}

func (r *cursor) u64() uint64 {
	if b := r.take(8); b != nil {
		return binary.LittleEndian.Uint64(b)
	}
	return 0
}

// count reads the number of things of at least size bytes each; more than are
// left is bad, so that nobody makes room for them.
func (r *cursor) count(size uint64) int {
	n := uint64(r.u32())
	if n > uint64(len(r.b))/size {
		r.bad = true
		return 0
	}
	return int(n)
}

// bytes reads a size and as many bytes; none is nil.
func (r *cursor) bytes() []byte {
	if n := r.u32(); n > 0 {
		return r.take(uint64(n))
	}
	return nil
}

func (r *cursor) uuid() (u UUID) {
	copy(u[:], r.take(16))
	return u
}

func (r *cursor) peer() Peer { return Peer{NodeID(r.u32()), r.uuid()} }
