package coord

import (
	"fmt"
	"hash/crc32"
	"io"
	"strconv"
	"strings"

	"github.com/teralog/teralog/raft"
	"github.com/teralog/teralog/storage"
	"github.com/teralog/teralog/wire"
)

// A snapshot file stands for all entries up to the index that names it.
//
//	| magic "TLS" 0x02 | index u64 | term i32 | members: length u32, as raft.AppendMembers lays them out |
//	| state: length u32, bytes | CRC u32 of what precedes |
//
// In version 1, of one node, members were a count and as many i32, and the state
// had no version before it.
type snapshotFile struct {
	raft.Snapshot
	version byte
	at      int64 // position of the state in the file
}

const (
	snapshotMagic  = "TLS\x02"
	snapshotSuffix = ".snapshot"
	stagedName     = "incoming.tmp" // a start removes what ends like that

	// maxSnapshot bounds the bytes of a snapshot: MaxPartitions topics with
	// long names and every setting take less.
	maxSnapshot = 256 << 20
	snapshotMin = 4 + 8 + 4 + 4 + 4 + 4
)

// snapshotName returns the file name of the snapshot at an index.
func snapshotName(i raft.Index) string { return fmt.Sprintf("%020d%s", i, snapshotSuffix) }

func parseSnapshotName(name string) (i raft.Index, ok bool) {
	digits, ok := strings.CutSuffix(name, snapshotSuffix)
	n, err := strconv.ParseUint(digits, 10, 63)
	return raft.Index(n), ok && err == nil && snapshotName(raft.Index(n)) == name
}

// appendSnapshotHead appends what stands before the state.
func appendSnapshotHead(dst []byte, s raft.Snapshot) []byte {
	dst = append(dst, snapshotMagic...)
	dst = wire.Append32(wire.Append64(dst, uint64(s.Index)), int32(s.Term))
	members := raft.AppendMembers(nil, s.Members)
	dst = append(wire.Append32(dst, uint32(len(members))), members...)
	return wire.Append32(dst, uint32(s.Size))
}

func appendSnapshot(dst []byte, s raft.Snapshot, state []byte) []byte {
	start := len(dst)
	dst = append(appendSnapshotHead(dst, s), state...)
	return wire.Append32(dst, crc32.Checksum(dst[start:], castagnoli))
}

// readSnapshot returns what a snapshot file holds. The state aliases b, unless
// it is of version 1: its state is laid out as today's.
func readSnapshot(b []byte, self raft.Peer) (s snapshotFile, state []byte, err error) {
	if len(b) < snapshotMin || string(b[:3]) != snapshotMagic[:3] {
		return s, nil, fmt.Errorf("%w: not a metadata snapshot", wire.ErrCorrupt)
	}
	whole := wire.NewReader(b[len(b)-4:])
	if crc32.Checksum(b[:len(b)-4], castagnoli) != whole.U32() {
		return s, nil, fmt.Errorf("%w: metadata snapshot with a wrong CRC", wire.ErrCorrupt)
	}
	s.version = b[3]
	r := wire.NewReader(b[4 : len(b)-4])
	s.Index, s.Term = raft.Index(r.U64()), raft.Term(r.I32())
	switch s.version {
	case 1:
		nodes := make([]wire.NodeID, r.Count(4))
		for i := range nodes {
			nodes[i] = wire.NodeID(r.I32())
		}
		if r.Err() == nil {
			s.Members, err = onlyMember(nodes, self)
		}
	case snapshotMagic[3]:
		members := r.Raw(int(r.U32()))
		if r.Err() != nil {
			break
		}
		if s.Members, err = raft.DecodeMembers(members); err != nil {
			err = membersError(err)
		}
	default:
		return s, nil, fmt.Errorf("metadata snapshot of version %d: %w", s.version, storage.ErrNewer)
	}
	if err != nil {
		return s, nil, err
	}
	state = r.Raw(int(r.U32()))
	if err := r.Finish(); err != nil {
		return s, nil, err
	}
	if s.Index < 1 || int64(s.Index) < 0 || s.Term < 1 || s.Term > raft.MaxTerm {
		return s, nil, fmt.Errorf("%w: metadata snapshot at index %d in term %d", wire.ErrCorrupt, s.Index, s.Term)
	}
	s.at = int64(len(b) - 4 - len(state))
	if s.version == 1 {
		state = append(wire.Append64(nil, offsetOf(s.Index)), state...)
	}
	s.Size = uint64(len(state))
	return s, state, nil
}

// readSnapshotFile reads the snapshot at an index, whole.
func (m *metalog) readSnapshotFile(i raft.Index) (s snapshotFile, state []byte, err error) {
	name := m.snapshotPath(i)
	f, err := m.dir.FS().Open(name, storage.Read)
	if err != nil {
		return s, nil, err
	}
	defer f.Close()
	n, err := f.Size()
	if err == nil && n > maxSnapshot {
		err = fmt.Errorf("%w: %d bytes", wire.ErrCorrupt, n)
	}
	if err != nil {
		return s, nil, fmt.Errorf("%s: %w", name, err)
	}
	b := make([]byte, n)
	if _, err = f.ReadAt(b, 0); err == nil || err == io.EOF && n == 0 {
		s, state, err = readSnapshot(b, m.self)
	}
	if err == nil && s.Index != i {
		err = fmt.Errorf("%w: it is the snapshot at index %d", wire.ErrCorrupt, s.Index)
	}
	if err != nil {
		return s, nil, fmt.Errorf("%s: %w", name, err)
	}
	return s, state, nil
}
