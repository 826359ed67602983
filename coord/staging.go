package coord

import (
	"fmt"
	"hash/crc32"
	"path"

	"github.com/teralog/teralog/raft"
	"github.com/teralog/teralog/storage"
	"github.com/teralog/teralog/wire"
)

// A staging is a snapshot that is coming in.
type staging struct {
	s    raft.Snapshot
	file storage.File // nil: none
	at   int64        // position of the state
	next uint64       // bytes of it so far
	crc  uint32       // of what was written
}

// drop gives up what came in.
func (g *staging) drop(fs storage.FS) {
	if g.file != nil {
		g.file.Close()
		fs.Remove(g.file.Name())
	}
	*g = staging{}
}

// Stage is of raft.Store.
func (m *metalog) Stage(s raft.Snapshot, offset uint64, data []byte) error {
	if s.Size > maxSnapshot {
		return fmt.Errorf("%w: a leader sends a snapshot of %d bytes", wire.ErrCorrupt, s.Size)
	}
	g := &m.staging
	if offset == 0 {
		if err := m.noRoom(m.stage(s)); err != nil {
			return err
		}
	}
	if g.s.Index != s.Index || g.s.Term != s.Term || offset != g.next {
		panic(fmt.Sprintf("BUG: chunk at %d of snapshot %d; staged %d of snapshot %d", offset, s.Index, g.next, g.s.Index))
	}
	if _, err := g.file.WriteAt(data, g.at+int64(offset)); err != nil {
		return m.noRoom(fmt.Errorf("write %s: %w", g.file.Name(), err))
	}
	g.next += uint64(len(data))
	g.crc = crc32.Update(g.crc, castagnoli, data)
	return nil
}

// stage begins the file of a snapshot that comes in.
func (m *metalog) stage(s raft.Snapshot) error {
	m.staging.drop(m.dir.FS())
	f, err := m.dir.FS().Open(path.Join(m.path(), stagedName), storage.Create)
	if err != nil {
		return err
	}
	m.staging = staging{s: s, file: f}
	head := appendSnapshotHead(nil, s)
	if err := f.Truncate(0); err != nil {
		return err
	}
	if _, err := f.WriteAt(head, 0); err != nil {
		return err
	}
	m.staging.at, m.staging.crc = int64(len(head)), crc32.Checksum(head, castagnoli)
	return nil
}

// Install is of raft.Store. The rename decides: a start that finds the new
// snapshot finishes what is left to do.
func (m *metalog) Install(s raft.Snapshot) error {
	g := &m.staging
	if len(m.snapshots) == 0 || m.snapshots[len(m.snapshots)-1].Index < s.Index {
		if g.s.Index != s.Index || g.next != s.Size {
			panic(fmt.Sprintf("BUG: install snapshot %d of %d bytes; staged %d of snapshot %d", s.Index, s.Size, g.next, g.s.Index))
		}
		if err := m.noRoom(m.renewal.set(m.dir.FS(), s.Index)); err != nil {
			return err
		}
		if err := m.noRoom(m.finish()); err != nil {
			return err
		}
		m.addSnapshot(s)
	}
	if err := m.restart(s); err != nil {
		return err
	}
	if err := m.dropSnapshots(keptSnapshots); err != nil {
		return err
	}
	return m.checkpoint()
}

// finish makes the staged file the snapshot, durably.
func (m *metalog) finish() error {
	fs, g := m.dir.FS(), &m.staging
	if _, err := g.file.WriteAt(wire.Append32(nil, g.crc), g.at+int64(g.next)); err != nil {
		return fmt.Errorf("write %s: %w", g.file.Name(), err)
	}
	if err := g.file.Sync(); err != nil {
		return fmt.Errorf("%s: %w: %w", g.file.Name(), storage.ErrSync, err)
	}
	if err := fs.Rename(g.file.Name(), m.snapshotPath(g.s.Index)); err != nil {
		return err
	}
	err := g.file.Close()
	*g = staging{}
	if err != nil {
		return err
	}
	if err := fs.SyncDir(m.path()); err != nil {
		return fmt.Errorf("%s: %w: %w", m.path(), storage.ErrSync, err)
	}
	return nil
}
