package coord

import (
	"fmt"
	"hash/crc32"
	"slices"
	"strconv"
	"strings"

	"github.com/teralog/teralog/storage"
	"github.com/teralog/teralog/wire"
)

// A snapshot is the whole state before one index, the member list included.
//
//	| magic "TLS" 0x01 | index u64 | term i32 | members: count, node i32 … | state: length u32, bytes | CRC u32 of what precedes |
type snapshot struct {
	term    wire.Epoch // of the entry at image.version
	members []wire.NodeID
	image   *Image
}

const (
	snapshotMagic  = "TLS\x01"
	snapshotSuffix = ".snapshot"

	// maxSnapshot bounds the bytes of a snapshot: MaxPartitions topics with
	// long names and every setting take less.
	maxSnapshot = 256 << 20
)

// index returns how many entries the snapshot stands for: the offset of the
// first one after it.
func (s snapshot) index() wire.Offset { return s.image.version + 1 }

// snapshotName returns the file name of the snapshot at an index.
func snapshotName(index wire.Offset) string { return fmt.Sprintf("%020d%s", index, snapshotSuffix) }

func parseSnapshotName(name string) (index wire.Offset, ok bool) {
	digits, ok := strings.CutSuffix(name, snapshotSuffix)
	n, err := strconv.ParseUint(digits, 10, 63)
	return wire.Offset(n), ok && err == nil && snapshotName(wire.Offset(n)) == name
}

func appendSnapshot(dst []byte, s snapshot) []byte {
	start := len(dst)
	dst = append(dst, snapshotMagic...)
	dst = wire.Append32(wire.Append64(dst, s.index()), s.term)
	dst = wire.AppendCount(dst, len(s.members))
	for _, m := range s.members {
		dst = wire.Append32(dst, m)
	}
	state := appendState(nil, s.image)
	dst = append(wire.Append32(dst, uint32(len(state))), state...)
	return wire.Append32(dst, crc32.Checksum(dst[start:], castagnoli))
}

func readSnapshot(b []byte) (snapshot, error) {
	if len(b) < 4 || string(b[:min(len(b), 3)]) != snapshotMagic[:3] {
		return snapshot{}, fmt.Errorf("%w: not a metadata snapshot", wire.ErrCorrupt)
	}
	whole := wire.NewReader(b[len(b)-4:])
	if crc32.Checksum(b[:len(b)-4], castagnoli) != whole.U32() {
		return snapshot{}, fmt.Errorf("%w: metadata snapshot with a wrong CRC", wire.ErrCorrupt)
	}
	if b[3] != snapshotMagic[3] {
		return snapshot{}, fmt.Errorf("metadata snapshot of version %d: %w", b[3], storage.ErrNewer)
	}
	r := wire.NewReader(b[4 : len(b)-4])
	index := wire.Offset(r.I64())
	s := snapshot{term: wire.Epoch(r.I32())}
	s.members = make([]wire.NodeID, r.Count(4))
	for i := range s.members {
		s.members[i] = wire.NodeID(r.I32())
	}
	state := wire.NewReader(r.Raw(int(r.U32())))
	if err := r.Finish(); err != nil {
		return snapshot{}, err
	}
	var err error
	if s.image, err = readState(state, index-1); err == nil {
		err = state.Finish()
	}
	if err == nil && (index < 1 || s.term < 1) {
		err = fmt.Errorf("%w: metadata snapshot at index %d in term %d", wire.ErrCorrupt, index, s.term)
	}
	return s, err
}

// appendState appends
//
//	| next producer i64 | topics: count, topic … | deleted: count, topic … |
//	| requests: count, { id UUID | sum u32 | topic u64 | offset i64 } … |
//
// topics in ascending order of their ids, requests from the oldest to the
// newest. Equal images give equal bytes.
func appendState(dst []byte, i *Image) []byte {
	dst = wire.Append64(dst, i.nextProducer)
	for _, ts := range [][]*Topic{i.ids, i.deleted} {
		dst = wire.AppendCount(dst, len(ts))
		for _, t := range ts {
			dst = appendTopic(dst, t)
		}
	}
	dst = wire.AppendCount(dst, len(i.requests))
	for _, r := range i.requests {
		dst = wire.Append32(append(dst, r.id[:]...), r.sum)
		dst = wire.Append64(wire.Append64(dst, r.topic), r.offset)
	}
	return dst
}

// readState returns the image at a version. It takes nothing that a sequence
// of records could not have made.
func readState(r *wire.Reader, version wire.Offset) (*Image, error) {
	d := emptyImage.edit()
	d.version = version
	d.nextProducer = wire.ProducerID(r.I64())
	if d.nextProducer < 1 {
		r.Failf("next producer id %d", d.nextProducer)
	}
	var err error
	if d.ids, err = readTopics(r); err != nil {
		return nil, err
	}
	if d.deleted, err = readTopics(r); err != nil {
		return nil, err
	}
	d.names = slices.SortedFunc(slices.Values(d.ids), func(a, b *Topic) int { return strings.Compare(a.Name, b.Name) })
	for n, t := range d.names {
		if n > 0 && d.names[n-1].Name == t.Name || d.Deleted(t.ID) {
			r.Failf("topic %s with id %d, but the name or the id is taken", t.Name, t.ID)
		}
		for _, p := range t.Partitions {
			d.hosted[p.Dir]++
		}
	}
	for _, ts := range [][]*Topic{d.ids, d.deleted} {
		for _, t := range ts {
			d.partitions += len(t.Partitions)
		}
	}
	n := r.Count(36)
	if n > MaxRequests {
		r.Failf("%d requests, the limit is %d", n, MaxRequests)
	}
	for range n {
		d.requests = append(d.requests, request{r.UUID(), r.U32(), wire.TopicID(r.U64()), wire.Offset(r.I64())})
	}
	return &d.Image, r.Err()
}

// readTopics reads topics in ascending order of their ids.
func readTopics(r *wire.Reader) ([]*Topic, error) {
	var ts []*Topic
	for range r.Count(leastTopic) {
		t, err := readTopic(r)
		if err != nil {
			return nil, err
		}
		if len(ts) > 0 && ts[len(ts)-1].ID >= t.ID {
			r.Failf("topic id %d after %d", t.ID, ts[len(ts)-1].ID)
		}
		ts = append(ts, t)
	}
	return ts, r.Err()
}
