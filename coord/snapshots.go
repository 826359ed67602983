package coord

import (
	"errors"
	"fmt"
	"path"
	"slices"
	"syscall"

	"github.com/teralog/teralog/mem"
	"github.com/teralog/teralog/storage"
	"github.com/teralog/teralog/wire"
)

// keptSnapshots is how many whole snapshots are kept. The log is kept from the
// oldest of them on, so the loss of the newest costs only time.
const keptSnapshots = 2

// loadSnapshots finds the snapshots and returns the newest whole one, or the
// empty state.
func (m *metalog) loadSnapshots() (snapshot, error) {
	newest := snapshot{image: emptyImage}
	files, err := m.snapshotFiles()
	if err != nil {
		return newest, err
	}
	for _, index := range slices.Backward(files) {
		s, err := m.readSnapshotFile(index)
		switch {
		case errors.Is(err, storage.ErrNewer):
			return newest, err
		case err != nil:
			m.say.Warn("a metadata snapshot is not whole; an older one and the log stand for it", "err", err)
			continue
		case len(m.snapshots) == 0:
			newest = s
		}
		m.snapshots = slices.Insert(m.snapshots, 0, index)
		if len(m.snapshots) == keptSnapshots {
			break
		}
	}
	return newest, nil
}

// snapshotFiles returns the indexes of all snapshots there are, ascending.
func (m *metalog) snapshotFiles() ([]wire.Offset, error) {
	entries, err := m.dir.FS().ReadDir(m.path())
	if err != nil {
		return nil, err
	}
	var found []wire.Offset
	for _, e := range entries {
		if index, ok := parseSnapshotName(e.Name); ok {
			found = append(found, index)
		}
	}
	return found, nil // names sort as their numbers
}

func (m *metalog) snapshotPath(index wire.Offset) string {
	return path.Join(m.path(), snapshotName(index))
}

func (m *metalog) readSnapshotFile(index wire.Offset) (s snapshot, err error) {
	name := m.snapshotPath(index)
	f, err := m.dir.FS().Open(name, storage.Read)
	if err != nil {
		return s, err
	}
	defer f.Close()
	n, err := f.Size()
	if err == nil && n > maxSnapshot {
		err = fmt.Errorf("%w: %d bytes", wire.ErrCorrupt, n)
	}
	if err != nil {
		return s, fmt.Errorf("%s: %w", name, err)
	}
	b := make([]byte, n)
	if _, err = f.ReadAt(b, 0); err == nil {
		s, err = readSnapshot(b)
	}
	if err == nil && s.index() != index {
		err = fmt.Errorf("%w: it is the snapshot at index %d", wire.ErrCorrupt, s.index())
	}
	if err != nil {
		return s, fmt.Errorf("%s: %w", name, err)
	}
	return s, nil
}

// snapshot writes the image, all of which is durable in the log, and removes
// snapshots older than the previous one.
func (m *metalog) snapshot(i *Image) error {
	b := appendSnapshot(nil, snapshot{m.vote.vote.term, m.members, i})
	if len(b) > maxSnapshot {
		panic(fmt.Sprintf("BUG: metadata snapshot of %d bytes, at most %d are read back", len(b), maxSnapshot))
	}
	index := i.version + 1
	switch err := replaceFile(m.dir.FS(), m.snapshotPath(index), b); {
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		return fmt.Errorf("%w: %w", storage.ErrDiskFull, err)
	case errors.Is(err, storage.ErrSync):
		m.dir.Fail(err)
		return err
	case err != nil:
		return err
	}
	m.snapshots = append(m.snapshots, index)
	if len(m.snapshots) > keptSnapshots {
		m.snapshots = slices.Delete(m.snapshots, 0, len(m.snapshots)-keptSnapshots)
	}
	return m.dropSnapshots()
}

// replaceFile makes b the content of a file, durably: until it returns, the
// file is as it was or not there. A temporary left by a crash is removed at the
// next start, with all of that suffix.
func replaceFile(fs storage.FS, name string, b []byte) error {
	temporary := name + ".tmp"
	err := writeSynced(fs, temporary, b)
	if err == nil {
		err = fs.Rename(temporary, name)
	}
	if err != nil {
		fs.Remove(temporary)
		return fmt.Errorf("write %s: %w", name, err)
	}
	if err := fs.SyncDir(path.Dir(name)); err != nil {
		return fmt.Errorf("write %s: %w: %w", name, storage.ErrSync, err)
	}
	return nil
}

func writeSynced(fs storage.FS, name string, b []byte) error {
	f, err := fs.Open(name, storage.Create)
	if err != nil {
		return err
	}
	if err = f.Truncate(0); err == nil {
		_, err = f.WriteAt(b, 0)
	}
	if err == nil {
		if err = f.Sync(); err != nil {
			err = fmt.Errorf("%w: %w", storage.ErrSync, err)
		}
	}
	return errors.Join(err, f.Close())
}

// dropSnapshots removes those before the oldest to be kept. It need not be
// durable: one that comes back is dropped the next time.
func (m *metalog) dropSnapshots() error {
	files, err := m.snapshotFiles()
	for _, index := range files {
		if index < m.snapshots[0] && err == nil {
			err = m.dir.FS().Remove(m.snapshotPath(index))
		}
	}
	return err
}

// unsnapshotted returns how many entries the newest snapshot does not stand for.
func (m *metalog) unsnapshotted() int {
	end := m.log.View().End()
	if len(m.snapshots) == 0 {
		return int(end)
	}
	return int(end - m.snapshots[len(m.snapshots)-1])
}

// trim lets go of the segments that all kept snapshots stand for, and makes the
// log known to the recovery points. It is done at each start, when nobody else
// writes them.
func (m *metalog) trim(now mem.Now) error {
	if len(m.snapshots) == keptSnapshots {
		if start := m.snapshots[0]; start > m.log.View().Start() {
			if err := m.log.Trim(start); err != nil {
				return err
			}
		}
	}
	point, err := m.log.Checkpoint(now).Run()
	for isFull(err) && !errors.Is(err, storage.ErrSync) && m.dir.Relieve() {
		point, err = m.log.Checkpoint(now).Run() // a start must do on a full disk
	}
	if err != nil {
		return err
	}
	if err := m.dir.SavePoints([]storage.Point{point}); err != nil {
		return err
	}
	m.log.Checkpointed(point)
	_, err = m.log.Reclaim()
	return err
}

func isFull(err error) bool {
	return errors.Is(err, wire.CodeDiskFull) || errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT)
}
