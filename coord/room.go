package coord

import (
	"errors"
	"fmt"
	"syscall"

	"github.com/teralog/teralog/raft"
	"github.com/teralog/teralog/storage"
	"github.com/teralog/teralog/wire"
)

// On a full disk the metadata lives on the reserve of its directory. Without
// any, Raft waits: it is told raft.ErrNoRoom, and tries again.

// withReserve runs a step that undoes itself on a full disk, again after each
// part of the reserve that it gets. Without any it is raft.ErrNoRoom, as without
// a descriptor; any other error fails the directory.
func (m *metalog) withReserve(step func() error) error {
	for {
		err := step()
		switch {
		case err == nil:
			return nil
		case isFull(err) && m.dir.Relieve():
		case isFull(err), noFiles(err):
			m.full = fmt.Errorf("%w: %w", raft.ErrNoRoom, err)
			return m.full
		default:
			m.dir.Fail(err)
			return err
		}
	}
}

// room returns DISK_FULL if an entry of n bytes would find no room, though the
// reserve is given for it. A new segment may still meet a full disk.
func (m *metalog) room(n int) error {
	const plenty = 1 << 20
	_, free, err := m.dir.FS().Space(m.path())
	if err == nil && free >= int64(n)+plenty {
		return nil // which is nearly always so, and costs less than to take it
	}
	for {
		err := m.log.Reserve(int64(n) + 2*wire.HeaderSize)
		if !isFull(err) || !m.dir.Relieve() {
			return err
		}
	}
}

// noRoom says raft.ErrNoRoom for a full disk, and for too many open files; a
// failed fsync fails the directory.
func (m *metalog) noRoom(err error) error {
	switch {
	case errors.Is(err, storage.ErrSync):
		m.dir.Fail(err)
	case isFull(err), noFiles(err):
		m.full = fmt.Errorf("%w: %w", raft.ErrNoRoom, err)
		return m.full
	}
	return err
}

func (m *metalog) lastFull() error { return m.full }

// isFull reports whether the disk had no room. One that only an fsync tells of is
// a failed fsync.
func isFull(err error) bool {
	return !errors.Is(err, storage.ErrSync) &&
		(errors.Is(err, wire.CodeDiskFull) || errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT))
}

// noFiles reports whether the process had too many files open.
func noFiles(err error) bool {
	return !errors.Is(err, storage.ErrSync) && (errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE))
}
