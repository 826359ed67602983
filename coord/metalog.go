package coord

import (
	"errors"
	"fmt"
	"log/slog"
	"slices"

	"github.com/teralog/teralog/mem"
	"github.com/teralog/teralog/storage"
	"github.com/teralog/teralog/wire"
)

// ErrDamaged says that the metadata that was durable once cannot be read back
// whole. The node does not start, since it would forget topics and take their
// records for orphans. Nothing is changed by finding that out.
var ErrDamaged = errors.New("the metadata is damaged")

// remedy is what an operator can do about ErrDamaged.
const remedy = "the data directories are untouched; put back metadata/ of the first data directory from a copy of this node, or a copy of all its data directories"

// An entryKey is the key of a record of the metadata log: what its value is.
type entryKey byte

const (
	keyNoOp       entryKey = 0 // no value: a term begins
	keyCommand    entryKey = 1 // an entry
	keyMembership entryKey = 2 // the nodes that keep the metadata log
)

// metadataID is the partition that the metadata log is.
var metadataID = wire.PartitionID{Topic: wire.MetadataTopic}

// metadataName is the name of the metadata log's topic and folder.
const metadataName = "metadata"

// segmentBytes is the size of a segment of the metadata log. Whole ones go once
// two snapshots stand for what is in them.
const segmentBytes = 16 << 20

// A metalog is the metadata log of a cluster of one node, with its vote and its
// snapshots. Each entry is one batch of one record, and each is durable before
// the next is appended.
type metalog struct {
	dir       *storage.Dir
	log       *storage.Log
	vote      *voteFile
	members   []wire.NodeID
	snapshots []wire.Offset // indexes of the whole ones, ascending
	builder   *wire.Builder
	say       *slog.Logger
}

// openMetalog opens the metadata log in a data directory, or makes it if the
// directory is empty, and begins a new term in it. It returns the state at its
// end.
func openMetalog(dir *storage.Dir, node wire.NodeID, say *slog.Logger, now mem.Now) (*metalog, *Image, error) {
	m := &metalog{dir: dir, say: say, builder: wire.NewBuilder(wire.BuilderOptions{Topic: wire.MetadataTopic})}
	i, err := m.open(node, now)
	if err == nil {
		return m, i, nil
	}
	if errors.Is(err, wire.ErrCorrupt) {
		err = fmt.Errorf("%w: %w; %s", ErrDamaged, err, remedy)
	}
	if errors.Is(err, storage.ErrSync) {
		dir.Fail(err)
	}
	m.abandon()
	return nil, nil, fmt.Errorf("open %s: %w", m.path(), err)
}

func (m *metalog) path() string { return m.dir.Path() + "/" + metadataName }

func (m *metalog) open(node wire.NodeID, now mem.Now) (*Image, error) {
	if err := m.openLog(now); err != nil {
		return nil, err
	}
	newest, err := m.loadSnapshots()
	if err != nil {
		return nil, err
	}
	m.members = newest.members
	d := newest.image.edit()
	if err := m.replay(d); err != nil {
		return nil, err
	}
	if err := m.begin(d, newest.term, node, now); err != nil {
		return nil, err
	}
	return &d.Image, m.trim(now)
}

// openLog opens the log, or makes it where there can have been none.
func (m *metalog) openLog(now mem.Now) (err error) {
	o := storage.Options{SegmentBytes: segmentBytes, Synced: true}
	at := slices.IndexFunc(m.dir.Partitions(), func(p storage.FoundPartition) bool { return p.Path == m.path() })
	switch {
	case at >= 0:
		if err := m.dir.Partitions()[at].Err; err != nil {
			return fmt.Errorf("%w: %w", wire.ErrCorrupt, err)
		}
		if m.log, err = m.dir.Open(metadataName, metadataID, o, now); err != nil {
			return err
		}
		if r := m.log.Recovery(); len(r.Damaged) > 0 || r.Lost > 0 {
			return fmt.Errorf("%w: %v", wire.ErrCorrupt, r)
		}
	case m.dir.Start().Empty:
		m.log, err = m.dir.Create(metadataName, metadataID, o, now)
	default:
		err = fmt.Errorf("%w: it is missing, though partitions lie in %s", wire.ErrCorrupt, m.dir.Path())
	}
	return err
}

// replay applies the entries after the draft's version. Each is verified again,
// since recovery looks only at what lies above the recovery point.
func (m *metalog) replay(d *draft) error {
	v := m.log.View()
	if first := d.version + 1; first < v.Start() || first > v.End() {
		return fmt.Errorf("%w: the log has offsets %d to %d, the newest whole snapshot ends at %d", wire.ErrCorrupt, v.Start(), v.End(), first)
	}
	for at := d.version + 1; at < v.End(); {
		r, err := v.Find(at, v.End(), 1<<20)
		if err != nil {
			return err
		}
		if r.Len == 0 {
			return fmt.Errorf("%w: no entry at offset %d, the log ends at %d", wire.ErrCorrupt, at, v.End())
		}
		if at, err = m.replayRange(d, at, r); err != nil {
			return err
		}
	}
	return nil
}

func (m *metalog) replayRange(d *draft, at wire.Offset, r storage.Range) (wire.Offset, error) {
	defer r.Done()
	b := make([]byte, r.Len)
	if _, err := r.R.ReadAt(b, r.Off); err != nil {
		return at, fmt.Errorf("read entries from offset %d: %w", at, err)
	}
	var decoder wire.Decoder
	defer decoder.Release()
	for batch, err := range wire.Batches(b) {
		if err == nil {
			err = batch.Verify()
		}
		if err == nil && (batch.BaseOffset() != at || batch.Topic() != wire.MetadataTopic || batch.Partition() != 0 || batch.Count() != 1) {
			err = fmt.Errorf("%w: batch of %d records at offset %d of %d-%d", wire.ErrCorrupt, batch.Count(), batch.BaseOffset(), batch.Topic(), batch.Partition())
		}
		if err == nil {
			err = batch.Records(&decoder, func(r *wire.Record) error { return m.replayRecord(d, r) })
		}
		if err != nil {
			return at, fmt.Errorf("entry at offset %d: %w", at, err)
		}
		at++
	}
	return at, nil
}

func (m *metalog) replayRecord(d *draft, r *wire.Record) (err error) {
	if len(r.Key) != 1 {
		return fmt.Errorf("%w: key of %d bytes", wire.ErrCorrupt, len(r.Key))
	}
	switch entryKey(r.Key[0]) {
	case keyNoOp:
	case keyCommand:
		e, err := readEntry(r.Value)
		if err != nil {
			return err
		}
		return d.replay(r.Offset, e)
	case keyMembership:
		if m.members, err = readMembers(r.Value); err != nil {
			return err
		}
	default:
		return fmt.Errorf("key %d: %w", r.Key[0], storage.ErrNewer)
	}
	d.version = r.Offset
	return nil
}

// begin takes the next term and appends its first entries. The vote comes
// first: no entry may bear a term that a later start could take again.
func (m *metalog) begin(d *draft, snapshotted wire.Epoch, node wire.NodeID, now mem.Now) error {
	fresh := d.version < 0
	var err error
	if m.vote, err = openVote(m.dir.FS(), m.path(), m.dir.ID(), fresh); err != nil {
		return err
	}
	term, err := nextTerm(m.vote.vote.term, max(m.log.View().Epoch(), snapshotted))
	if err != nil {
		return err
	}
	if err := m.vote.take(term, node); err != nil {
		return err
	}
	if fresh {
		if err := m.dir.FS().SyncDir(m.path()); err != nil {
			return fmt.Errorf("%w: %w", storage.ErrSync, err)
		}
	}
	if m.members == nil && fresh {
		m.members = []wire.NodeID{node}
		if err := m.commit(d, keyMembership, appendMembers(nil, m.members), now); err != nil {
			return err
		}
	}
	if !slices.Equal(m.members, []wire.NodeID{node}) {
		return fmt.Errorf("the metadata log is kept by the nodes %v, this is node %d", m.members, node)
	}
	return m.commit(d, keyNoOp, nil, now)
}

// commit appends an entry that changes nothing in d but its version, durably.
func (m *metalog) commit(d *draft, key entryKey, value []byte, now mem.Now) error {
	if err := m.appendEntry(key, value, now); err != nil {
		return err
	}
	d.version++
	return m.flush()
}

func (m *metalog) append(value []byte, now mem.Now) error {
	return m.appendEntry(keyCommand, value, now)
}

func (m *metalog) appendEntry(key entryKey, value []byte, now mem.Now) error {
	if _, err := m.builder.Add(now.Wall, []byte{byte(key)}, value, nil); err != nil {
		panic(fmt.Sprintf("BUG: metadata entry of %d bytes: %v", len(value), err))
	}
	buf, err := m.builder.Build()
	if err != nil {
		return err
	}
	defer buf.Release()
	m.builder.Reset()
	v := m.log.View()
	batch := wire.Batch(buf.B)
	batch.Stamp(v.End(), m.vote.vote.term, max(now.Wall, v.LastAppendTime()), false)
	for {
		_, err := m.log.AppendStamped([]wire.Batch{batch})
		switch full := errors.Is(err, wire.CodeDiskFull); {
		case full && m.dir.Relieve():
		case full || err == nil:
			return err
		default:
			m.dir.Fail(err)
			return err
		}
	}
}

func (m *metalog) flush() error {
	switch durable, err := m.log.Flush(); {
	case err != nil:
		m.dir.Fail(err)
		return err
	case durable != m.log.View().End():
		panic(fmt.Sprintf("BUG: flushed to %d, the metadata log ends at %d", durable, m.log.View().End()))
	}
	return nil
}

func (m *metalog) close() (storage.CleanEnd, error) {
	end, err := m.log.Close()
	return end, errors.Join(err, m.vote.file.Close())
}

// abandon closes what open has opened.
func (m *metalog) abandon() {
	if m.log != nil {
		m.log.Close()
	}
	if m.vote != nil {
		m.vote.file.Close()
	}
}

// appendMembers appends
//
//	| version u8 | nodes: count, i32 … |
func appendMembers(dst []byte, nodes []wire.NodeID) []byte {
	dst = wire.AppendCount(append(dst, 1), len(nodes))
	for _, n := range nodes {
		dst = wire.Append32(dst, n)
	}
	return dst
}

func readMembers(b []byte) ([]wire.NodeID, error) {
	r := wire.NewReader(b)
	if v := r.U8(); r.Err() == nil && v != 1 {
		return nil, fmt.Errorf("membership of version %d: %w", v, storage.ErrNewer)
	}
	nodes := make([]wire.NodeID, r.Count(4))
	for i := range nodes {
		nodes[i] = wire.NodeID(r.I32())
	}
	return nodes, r.Finish()
}
