package coord

import (
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"math"

	"github.com/teralog/teralog/storage"
	"github.com/teralog/teralog/wire"
)

// A vote is what a node must never forget between two starts: the newest term
// it knows and whom it voted for in it. It is kept in two slots written in
// turn, each in a page of its own, so that a torn write leaves the other one.
//
//	0     | magic "TLV" 0x01 | sequence u64 | term i32 | vote i32 | incarnation UUID | CRC u32 of what precedes |
//	4096  the same
type vote struct {
	sequence    uint64      // of the write, from 1; the slot is sequence mod 2
	term        wire.Epoch  // 0: none yet
	vote        wire.NodeID // NoNode: none in this term
	incarnation wire.UUID   // the data directory: on a new disk the node is another voter
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
	file storage.File
	vote vote
}

// openVote opens or makes the vote file in a directory. fresh says that nothing
// depends on a vote yet, so that there need not be one.
func openVote(fs storage.FS, dir string, incarnation wire.UUID, fresh bool) (*voteFile, error) {
	name := dir + "/vote"
	mode := storage.ReadWrite
	if fresh {
		mode = storage.Create
	}
	f, err := fs.Open(name, mode)
	if err != nil {
		return nil, err
	}
	v := &voteFile{f, vote{vote: wire.NoNode, incarnation: incarnation}}
	b := make([]byte, voteSlot+voteSize)
	n, err := f.ReadAt(b, 0)
	if err == nil || errors.Is(err, io.EOF) {
		var kept vote
		if kept, err = readVotes(b[:n]); err == nil {
			v.vote = kept
		}
	}
	switch {
	case err != nil && !(fresh && errors.Is(err, wire.ErrCorrupt)):
		err = fmt.Errorf("%s: %w", name, err)
	case v.vote.incarnation != incarnation:
		err = fmt.Errorf("%s belongs to data directory %v, this is %v", name, v.vote.incarnation, incarnation)
	default:
		return v, nil
	}
	return nil, errors.Join(err, f.Close())
}

// take makes term the newest one, with a vote for node in it. It is durable
// when take returns; the name of a new file is not.
func (v *voteFile) take(term wire.Epoch, node wire.NodeID) error {
	if term <= v.vote.term {
		panic(fmt.Sprintf("BUG: term %d taken after term %d", term, v.vote.term))
	}
	next := v.vote
	next.sequence++
	next.term, next.vote = term, node
	at := int64(next.sequence%2) * voteSlot
	if _, err := v.file.WriteAt(appendVote(nil, next), at); err != nil {
		return fmt.Errorf("write %s: %w", v.file.Name(), err)
	}
	if err := v.file.Sync(); err != nil {
		return fmt.Errorf("%s: %w: %w", v.file.Name(), storage.ErrSync, err)
	}
	v.vote = next
	return nil
}

// nextTerm returns the term of a new start: above every one ever taken, of
// which the newest entry of the log is a second witness.
func nextTerm(voted, logged wire.Epoch) (wire.Epoch, error) {
	last := max(voted, logged, 0)
	if last == math.MaxInt32 {
		return 0, fmt.Errorf("terms are used up: the last was %d", last)
	}
	return last + 1, nil
}
