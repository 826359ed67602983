package coord

import (
	"bytes"
	"errors"
	"fmt"

	"github.com/teralog/teralog/raft"
	"github.com/teralog/teralog/storage"
	"github.com/teralog/teralog/wire"
)

// Each entry of the metadata log is a batch of one record. Its key is one byte,
// the entry's kind; a command's value is an entry (entry.go), a membership's
// appendMembers, a no-op has none.

// readEntries returns the entries behind index after, up to the log's end, or
// to the first one that is damaged, which bad says then. Each is verified again,
// since recovery looks only at what lies above the recovery point.
func (m *metalog) readEntries(after raft.Index) (entries []raft.Entry, bad, err error) {
	v := m.log.View()
	for at := offsetOf(after + 1); at < v.End(); at = offsetOf(after) + 1 + wire.Offset(len(entries)) {
		r, err := v.Find(at, v.End(), 1<<20)
		if err == nil && r.Len == 0 {
			err = fmt.Errorf("%w: no entry at offset %d, the log ends at %d", wire.ErrCorrupt, at, v.End())
		}
		if err == nil {
			entries, err = m.readRange(entries, at, r)
		}
		switch {
		case errors.Is(err, storage.ErrNewer):
			return entries, nil, err
		case errors.Is(err, wire.ErrCorrupt):
			return entries, err, nil
		case err != nil:
			return entries, nil, err
		}
	}
	return entries, nil, nil
}

// readRange appends the entries in r, which begins at offset at.
func (m *metalog) readRange(entries []raft.Entry, at wire.Offset, r storage.Range) ([]raft.Entry, error) {
	defer r.Done()
	b := make([]byte, r.Len)
	if _, err := r.R.ReadAt(b, r.Off); err != nil {
		return entries, fmt.Errorf("read entries from offset %d: %w", at, err)
	}
	var d wire.Decoder
	defer d.Release()
	for batch, err := range wire.Batches(b) {
		if err == nil {
			err = batch.Verify()
		}
		if err == nil && (batch.BaseOffset() != at || batch.Topic() != wire.MetadataTopic || batch.Partition() != 0 || batch.Count() != 1) {
			err = fmt.Errorf("%w: batch of %d records at offset %d of %d-%d", wire.ErrCorrupt, batch.Count(), batch.BaseOffset(), batch.Topic(), batch.Partition())
		}
		e := raft.Entry{Index: indexOf(at), Term: raft.Term(batch.LeaderEpoch())}
		if err == nil {
			err = batch.Records(&d, func(r *wire.Record) error { return m.readRecord(&e, r) })
		}
		if err != nil {
			return entries, fmt.Errorf("entry at offset %d: %w", at, err)
		}
		entries = append(entries, e)
		at++
	}
	return entries, nil
}

func (m *metalog) readRecord(e *raft.Entry, r *wire.Record) (err error) {
	if len(r.Key) != 1 {
		return fmt.Errorf("%w: key of %d bytes", wire.ErrCorrupt, len(r.Key))
	}
	switch e.Kind = raft.EntryKind(r.Key[0]); e.Kind {
	case raft.NoOp:
	case raft.Command:
		e.Data = bytes.Clone(r.Value)
	case raft.Membership:
		e.Data, err = readMembers(r.Value, m.self)
	default:
		err = fmt.Errorf("key %d: %w", r.Key[0], storage.ErrNewer)
	}
	return err
}

// membersVersion is that of the membership entries written now.
const membersVersion = 2

// appendMembers appends what a membership entry holds on disk, of what Raft
// wrote:
//
//	| version u8 = 2 | members as raft.AppendMembers lays them out |
func appendMembers(dst, members []byte) []byte {
	return append(append(dst, membersVersion), members...)
}

// readMembers returns what raft.AppendMembers wrote. Version 1 named the one
// node that there was:
//
//	| version u8 = 1 | nodes: count, i32 … |
func readMembers(b []byte, self raft.Peer) ([]byte, error) {
	r := wire.NewReader(b)
	switch v := r.U8(); {
	case r.Err() != nil:
		return nil, r.Err()
	case v == 1:
		nodes := make([]wire.NodeID, r.Count(4))
		for i := range nodes {
			nodes[i] = wire.NodeID(r.I32())
		}
		if err := r.Finish(); err != nil {
			return nil, err
		}
		members, err := onlyMember(nodes, self)
		return raft.AppendMembers(nil, members), err
	case v != membersVersion:
		return nil, fmt.Errorf("membership of version %d: %w", v, storage.ErrNewer)
	}
	b = bytes.Clone(b[1:])
	if _, err := raft.DecodeMembers(b); err != nil {
		return nil, membersError(err)
	}
	return b, nil
}

// membersError says of an error of raft's decoding what it means here.
func membersError(err error) error {
	if errors.Is(err, raft.ErrVersion) {
		return fmt.Errorf("%w: %w", storage.ErrNewer, err)
	}
	return fmt.Errorf("%w: %w", wire.ErrCorrupt, err)
}

// onlyMember returns the membership of one node, which has to be self.
func onlyMember(nodes []wire.NodeID, self raft.Peer) (raft.Members, error) {
	if len(nodes) != 1 || nodes[0] != wire.NodeID(self.ID) {
		return raft.Members{}, fmt.Errorf("the metadata log is kept by the nodes %v, this is node %d", nodes, self.ID)
	}
	return raft.Members{Voters: []raft.Peer{self}}, nil
}
