package coord

import (
	"fmt"

	"github.com/teralog/teralog/mem"
	"github.com/teralog/teralog/raft"
	"github.com/teralog/teralog/storage"
	"github.com/teralog/teralog/wire"
)

const (
	// togetherBytes bounds a batch that may share a flush with those before it,
	// inclusive: recovery looks into those (storage.Unsynced).
	togetherBytes = 128 << 10
	// writeBatches and writeBytes bound what is encoded for one write.
	writeBatches = 1024
	writeBytes   = 4 << 20
)

// Append is of raft.Store.
func (m *metalog) Append(entries []raft.Entry) error {
	switch first, end := entries[0].Index, m.log.View().End(); {
	case offsetOf(first) > end:
		panic(fmt.Sprintf("BUG: entry %d after offset %d", first, end))
	case offsetOf(first) == end:
	case len(m.snapshots) > 0 && first == m.snapshots[len(m.snapshots)-1].Index+1: // damage may stand before it
		if err := m.restart(m.snapshots[len(m.snapshots)-1].Snapshot); err != nil {
			return err
		}
	default:
		if err := m.truncate(offsetOf(first)); err != nil {
			return err
		}
	}
	// No entry may be durable under a term that is not: it could be given a
	// second time.
	if err := m.syncVote(); err != nil {
		return err
	}
	for len(entries) > 0 {
		n, err := m.appendSome(entries)
		if err != nil {
			return err
		}
		entries = entries[n:]
	}
	return nil
}

// appendSome writes as many entries as go into one write and returns how many.
// A large one is the first of its flush.
func (m *metalog) appendSome(entries []raft.Entry) (n int, err error) {
	v := m.log.View()
	unsynced := int64(v.End() - m.log.Flushed())
	stamp := max(m.now.Wall, v.LastAppendTime())
	var batches []wire.Batch
	bytes := 0
	for n < len(entries) && n < writeBatches && (n == 0 || bytes+len(entries[n].Data) <= writeBytes) {
		e := &entries[n]
		if len(e.Data) > togetherBytes-wire.HeaderSize-64 && unsynced > 0 {
			if n > 0 {
				break
			}
			if err := m.flush(); err != nil {
				return 0, err
			}
			unsynced = 0
		}
		buf, err := m.encode(e, unsynced)
		if err != nil {
			return 0, err
		}
		defer buf.Release()
		b := wire.Batch(buf.B)
		b.Stamp(offsetOf(e.Index), wire.Epoch(e.Term), stamp, false)
		batches = append(batches, b)
		n, bytes, unsynced = n+1, bytes+len(b), unsynced+1
	}
	return n, m.write(batches)
}

// encode returns the batch that an entry is.
func (m *metalog) encode(e *raft.Entry, unsynced int64) (*mem.Buf, error) {
	value := e.Data
	if e.Kind == raft.Membership {
		value = appendMembers(nil, e.Data)
	}
	var hs []wire.Header
	if unsynced > 0 {
		hs = append(hs, storage.Unsynced(unsynced))
	}
	if _, err := m.builder.Add(m.now.Wall, []byte{byte(e.Kind)}, value, hs); err != nil {
		panic(fmt.Sprintf("BUG: metadata entry of %d bytes: %v", len(value), err))
	}
	return m.builder.Build()
}

// write appends batches, from the reserve if it must.
func (m *metalog) write(bs []wire.Batch) error {
	return m.withReserve(func() error {
		_, err := m.log.AppendStamped(bs)
		return err
	})
}
