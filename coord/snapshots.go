package coord

import (
	"errors"
	"fmt"
	"path"
	"slices"

	"github.com/teralog/teralog/raft"
	"github.com/teralog/teralog/storage"
	"github.com/teralog/teralog/wire"
)

// keptSnapshots is how many snapshots are kept. The log is kept from the oldest
// of them on, so the loss of the newest costs only time.
const keptSnapshots = 2

// findSnapshots notes which snapshots there are. Whether one is whole is seen
// when it is read.
func (m *metalog) findSnapshots() error {
	entries, err := m.dir.FS().ReadDir(m.path())
	for _, e := range entries {
		if i, ok := parseSnapshotName(e.Name); ok {
			m.snapshots = append(m.snapshots, snapshotFile{Snapshot: raft.Snapshot{Index: i}})
		}
	}
	return err // names sort as their numbers
}

func (m *metalog) snapshotPath(i raft.Index) string {
	return path.Join(m.path(), snapshotName(i))
}

// loadSnapshot reads the newest whole snapshot and keeps its state for State.
func (m *metalog) loadSnapshot() (raft.Snapshot, error) {
	for n := len(m.snapshots); n > 0; n-- {
		s, state, err := m.readSnapshotFile(m.snapshots[n-1].Index)
		switch {
		case errors.Is(err, wire.ErrCorrupt):
			m.say.Warn("a metadata snapshot is not whole; an older one and the log stand for it", "err", err)
			m.snapshots = m.snapshots[:n-1]
			continue
		case err != nil:
			return raft.Snapshot{}, err
		}
		m.snapshots[n-1], m.loaded = s, state
		return s.Snapshot, nil
	}
	return raft.Snapshot{}, nil
}

// State is of raft.Store.
func (m *metalog) State() ([]byte, error) {
	if state := m.loaded; state != nil {
		m.loaded = nil
		return state, nil
	}
	n := len(m.snapshots)
	if n == 0 {
		return nil, raft.ErrNoSnapshot
	}
	_, state, err := m.readSnapshotFile(m.snapshots[n-1].Index)
	return state, err
}

// Chunk is of raft.Store. Before the first one the whole file is verified: a
// receiver takes what it gets for good.
func (m *metalog) Chunk(i raft.Index, offset uint64, max int) ([]byte, error) {
	at := slices.IndexFunc(m.snapshots, func(s snapshotFile) bool { return s.Index == i })
	if at < 0 {
		return nil, raft.ErrNoSnapshot
	}
	if offset == 0 || m.snapshots[at].at == 0 {
		s, _, err := m.readSnapshotFile(i)
		if err != nil {
			m.say.Warn("a metadata snapshot cannot be sent", "err", err)
			return nil, fmt.Errorf("%w: %w", raft.ErrNoSnapshot, err)
		}
		m.snapshots[at] = s
	}
	s := m.snapshots[at]
	if s.version != snapshotMagic[3] || offset > s.Size {
		return nil, raft.ErrNoSnapshot
	}
	f, err := m.dir.FS().Open(m.snapshotPath(i), storage.Read)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", raft.ErrNoSnapshot, err)
	}
	defer f.Close()
	b := make([]byte, min(s.Size-offset, uint64(max)))
	if _, err := f.ReadAt(b, s.at+int64(offset)); err != nil {
		return nil, fmt.Errorf("%w: %s: %w", raft.ErrNoSnapshot, f.Name(), err)
	}
	return b, nil
}

// SaveSnapshot is of raft.Store. The oldest one goes first, so that there are
// never more than two, unless the newest one is written again.
func (m *metalog) SaveSnapshot(s raft.Snapshot, state []byte, keepAfter raft.Index) error {
	b := appendSnapshot(nil, s, state)
	if len(b) > maxSnapshot {
		panic(fmt.Sprintf("BUG: metadata snapshot of %d bytes, at most %d are read back", len(b), maxSnapshot))
	}
	again := len(m.snapshots) > 0 && m.snapshots[len(m.snapshots)-1].Index == s.Index // that one cannot be read
	if !again {
		if err := m.dropSnapshots(keptSnapshots - 1); err != nil {
			return err
		}
	}
	if err := m.noRoom(storage.ReplaceFile(m.dir.FS(), m.snapshotPath(s.Index), b)); err != nil {
		return err
	}
	if again {
		m.snapshots = m.snapshots[:len(m.snapshots)-1]
	}
	m.addSnapshot(s)
	if err := m.log.Trim(offsetOf(keepAfter + 1)); err != nil {
		return err
	}
	return m.checkpoint()
}

func (m *metalog) addSnapshot(s raft.Snapshot) {
	m.snapshots = append(m.snapshots, snapshotFile{Snapshot: s, version: snapshotMagic[3], at: int64(len(appendSnapshotHead(nil, s)))})
	m.loaded = nil
}

// dropSnapshots removes all but the newest n. It need not be durable: one that
// comes back is dropped the next time.
func (m *metalog) dropSnapshots(n int) error {
	entries, err := m.dir.FS().ReadDir(m.path())
	if err != nil {
		return err
	}
	m.snapshots = slices.Clone(m.snapshots[max(0, len(m.snapshots)-n):])
	for _, e := range entries {
		i, ok := parseSnapshotName(e.Name)
		if ok && !slices.ContainsFunc(m.snapshots, func(s snapshotFile) bool { return s.Index == i }) {
			if err := m.dir.FS().Remove(m.snapshotPath(i)); err != nil {
				return err
			}
		}
	}
	return nil
}

// checkpoint makes the log known to the recovery points and unlinks what lies
// before its start. Where there is no room for that the next one does it: a start
// then reads more, but is possible.
func (m *metalog) checkpoint() error {
	if err := m.tryCheckpoint(); !errors.Is(err, raft.ErrNoRoom) {
		return err
	}
	return nil
}

func (m *metalog) tryCheckpoint() error {
	c := m.log.Checkpoint(m.now)
	if c == nil {
		return nil
	}
	point, err := c.Run()
	for isFull(err) && m.dir.Relieve() {
		if c = m.log.Checkpoint(m.now); c == nil {
			panic("BUG: a recovery point that came to nothing is not asked for again")
		}
		point, err = c.Run() // a start must do on a full disk
	}
	if err != nil {
		return m.noRoom(err)
	}
	if err := m.savePoint(point); err != nil {
		return err
	}
	if _, err := m.log.Reclaim(); err != nil {
		return err
	}
	return nil
}

// savePoint makes a recovery point of the log durable.
func (m *metalog) savePoint(p storage.Point) error {
	if err := m.dir.SavePoints([]storage.Point{p}); err != nil {
		return m.noRoom(err)
	}
	m.log.Checkpointed(p)
	return nil
}
