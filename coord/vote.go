package coord

import (
	"errors"
	"fmt"
	"hash/crc32"
	"io"

	"github.com/teralog/teralog/raft"
	"github.com/teralog/teralog/storage"
	"github.com/teralog/teralog/wire"
)

// A vote is what a node must never forget between two starts: the newest term
// it knows and whom it voted for in it. It is kept in two slots written in
// turn, each in a page of its own, so that a torn write leaves the other one.
// Once a vote is durable it is written to the other slot as well, so that no
// later damage to one of them takes it back.
//
//	0     | magic "TLV" 0x01 | sequence u64 | term i32 | vote i32 | incarnation UUID | CRC u32 of what precedes |
//	4096  the same
type vote struct {
	sequence    uint64      // of the write, from 1; the slot is sequence mod 2
	term        wire.Epoch  // 0: none yet
	vote        wire.NodeID // NoNode: none in this term
	incarnation wire.UUID   // the data directory of the node voted for: on a new disk it is another one
}

const (
	voteMagic = "TLV\x01"
	voteSize  = 4 + 8 + 4 + 4 + 16 + 4
	voteSlot  = 4096 // bytes from one slot to the other
)

func appendVote(dst []byte, v vote) []byte {
	start := len(dst)
	dst = append(dst, voteMagic...)
	dst = wire.Append64(dst, v.sequence)
	dst = wire.Append32(wire.Append32(dst, v.term), v.vote)
	dst = append(dst, v.incarnation[:]...)
	return wire.Append32(dst, crc32.Checksum(dst[start:], castagnoli))
}

func readVote(b []byte) (vote, error) {
	r := wire.NewReader(b)
	magic := r.Raw(4)
	v := vote{r.U64(), wire.Epoch(r.I32()), wire.NodeID(r.I32()), r.UUID()}
	crc := r.U32()
	switch err := r.Finish(); {
	case err != nil:
		return vote{}, err
	case string(magic) != voteMagic || crc != crc32.Checksum(b[:voteSize-4], castagnoli) || v.sequence < 1 || v.term < 1 || v.vote < wire.NoNode:
		return vote{}, fmt.Errorf("%w: not a vote", wire.ErrCorrupt)
	}
	return v, nil
}

// readVotes returns the newest of the two slots. The error wraps ErrCorrupt if
// neither is whole.
func readVotes(b []byte) (vote, error) {
	first, err1 := readVote(b[:min(len(b), voteSize)])
	second, err2 := readVote(b[min(len(b), voteSlot):min(len(b), voteSlot+voteSize)])
	if err1 != nil && err2 != nil {
		return vote{}, err1
	}
	if first.sequence > second.sequence {
		return first, nil
	}
	return second, nil
}

// A voteFile keeps the vote of one node.
type voteFile struct {
	file  storage.File
	kept  vote
	dirty bool // kept is not durable
}

// openVote opens or makes the vote file in a directory and makes durable what it
// returns. fresh says that nothing depends on a vote yet, so that there need not
// be one.
func openVote(fs storage.FS, dir string, self raft.Peer, fresh bool) (*voteFile, error) {
	name := dir + "/vote"
	mode := storage.ReadWrite
	if fresh {
		mode = storage.Create
	}
	f, err := fs.Open(name, mode)
	if err != nil {
		return nil, err
	}
	v := &voteFile{file: f, kept: vote{vote: wire.NoNode}}
	if err := v.load(fs, dir, self, fresh); err != nil {
		return nil, errors.Join(fmt.Errorf("%s: %w", name, err), f.Close())
	}
	return v, nil
}

func (v *voteFile) load(fs storage.FS, dir string, self raft.Peer, fresh bool) error {
	b := make([]byte, voteSlot+voteSize)
	n, err := v.file.ReadAt(b, 0)
	if err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	kept, err := readVotes(b[:n])
	switch {
	case err == nil:
		v.kept = kept
	case !fresh:
		return err
	}
	if v.kept.vote == wire.NodeID(self.ID) && v.kept.incarnation != wire.UUID(self.Incarnation) {
		return fmt.Errorf("it belongs to data directory %v, this is %x", v.kept.incarnation, self.Incarnation)
	}
	// A process that died may have left it in memory only, with pages that an
	// fsync that failed made clean: written again, they are not.
	if v.kept.sequence > 0 {
		if err := v.write(v.kept, v.kept.sequence%2); err != nil {
			return err
		}
	}
	if err := v.file.Sync(); err != nil {
		return fmt.Errorf("%w: %w", storage.ErrSync, err)
	}
	if fresh {
		if err := fs.SyncDir(dir); err != nil {
			return fmt.Errorf("%w: %w", storage.ErrSync, err)
		}
	}
	return nil
}

// vote returns the vote.
func (v *voteFile) vote() raft.Vote {
	r := raft.Vote{Term: raft.Term(v.kept.term)}
	if v.kept.vote != wire.NoNode {
		r.For = raft.Peer{ID: raft.NodeID(v.kept.vote), Incarnation: raft.UUID(v.kept.incarnation)}
	}
	return r
}

// set writes a vote, which sync makes durable.
func (v *voteFile) set(r raft.Vote) error {
	next := vote{sequence: v.kept.sequence + 1, term: wire.Epoch(r.Term), vote: wire.NoNode}
	if r.For != (raft.Peer{}) {
		next.vote, next.incarnation = wire.NodeID(r.For.ID), wire.UUID(r.For.Incarnation)
	}
	if v.dirty {
		next.sequence = v.kept.sequence // the other slot has the vote that is durable
	}
	if err := v.write(next, next.sequence%2); err != nil {
		return err
	}
	v.kept, v.dirty = next, true
	return nil
}

// sync makes the vote durable. Then its copy replaces the one before, which is
// of no use any more.
func (v *voteFile) sync() error {
	if !v.dirty {
		return nil
	}
	if err := v.file.Sync(); err != nil {
		return fmt.Errorf("%s: %w: %w", v.file.Name(), storage.ErrSync, err)
	}
	v.dirty = false
	if err := v.write(v.kept, (v.kept.sequence+1)%2); !isFull(err) {
		return err
	}
	return nil
}

func (v *voteFile) write(x vote, slot uint64) error {
	if _, err := v.file.WriteAt(appendVote(nil, x), int64(slot)*voteSlot); err != nil {
		return fmt.Errorf("write %s: %w", v.file.Name(), err)
	}
	return nil
}
