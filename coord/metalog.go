package coord

import (
	"errors"
	"fmt"
	"log/slog"
	"slices"

	"github.com/teralog/teralog/mem"
	"github.com/teralog/teralog/raft"
	"github.com/teralog/teralog/storage"
	"github.com/teralog/teralog/wire"
)

// ErrDamaged says that the metadata that was durable once cannot be read back
// whole, and no other node can mend it. The node does not start, since it would
// forget topics and take their records for orphans. Nothing is changed by
// finding that out.
var ErrDamaged = errors.New("the metadata is damaged")

// remedy is what an operator can do about ErrDamaged.
const remedy = "the data directories are untouched; put back metadata/ of the first data directory from a copy of this node, or a copy of all its data directories"

// metadataID is the partition that the metadata log is.
var metadataID = wire.PartitionID{Topic: wire.MetadataTopic}

// metadataName is the name of the metadata log's topic and folder.
const metadataName = "metadata"

// segmentBytes is the size of a segment of the metadata log. Whole ones go once
// two snapshots stand for what is in them.
const segmentBytes = 4 << 20

// A metalog keeps what Raft must not forget in metadata/ of a data directory:
// the log, an entry a batch, the vote, snapshots, and marks. It is used by one
// goroutine; an fsync or a write that fails, fails the directory.
type metalog struct {
	dir   *storage.Dir
	self  raft.Peer
	alone bool // no other node can mend what is damaged here
	fresh bool // there was nothing when it was opened
	say   *slog.Logger

	log       *storage.Log
	vote      *voteFile
	snapshots []snapshotFile // ascending; the newest two at most
	loaded    []byte         // state of the newest one, until State asks for it
	damage    mark
	renewal   mark // of the log, behind a snapshot
	staging   staging

	builder *wire.Builder
	now     mem.Now // of the turn
	full    error   // why there was no room the last time
}

// openMetalog opens the metadata log in a data directory, or makes it if the
// directory is empty.
func openMetalog(dir *storage.Dir, self raft.Peer, alone bool, say *slog.Logger, now mem.Now) (*metalog, error) {
	m := &metalog{dir: dir, self: self, alone: alone, say: say, now: now,
		builder: wire.NewBuilder(wire.BuilderOptions{Topic: wire.MetadataTopic, MaxBytes: wire.MaxBatchBytes})}
	if err := m.open(); err != nil {
		return nil, m.giveUp(err)
	}
	return m, nil
}

// giveUp closes what is open, and says what err means for the node.
func (m *metalog) giveUp(err error) error {
	if errors.Is(err, wire.ErrCorrupt) || errors.Is(err, raft.ErrState) {
		err = fmt.Errorf("%w: %w; %s", ErrDamaged, err, remedy)
	}
	if errors.Is(err, storage.ErrSync) {
		m.dir.Fail(err)
	}
	m.abandon()
	return fmt.Errorf("open %s: %w", m.path(), err)
}

func (m *metalog) path() string { return m.dir.Path() + "/" + metadataName }

func (m *metalog) open() error {
	if err := m.openLog(); err != nil {
		return err
	}
	if err := m.findSnapshots(); err != nil {
		return err
	}
	if err := m.damage.open(m.dir.FS(), m.path(), damagedName); err != nil {
		return err
	}
	if err := m.renewal.open(m.dir.FS(), m.path(), restartName); err != nil {
		return err
	}
	m.fresh = m.log.View().End() == 0 && len(m.snapshots) == 0
	var err error
	m.vote, err = openVote(m.dir.FS(), m.path(), m.self, m.fresh)
	return err
}

// openLog opens the log, or makes it where there can have been none.
func (m *metalog) openLog() (err error) {
	o := storage.Options{SegmentBytes: segmentBytes, Synced: true}
	at := slices.IndexFunc(m.dir.Partitions(), func(p storage.FoundPartition) bool { return p.Path == m.path() })
	switch {
	case at >= 0:
		if err := m.dir.Partitions()[at].Err; err != nil {
			return fmt.Errorf("%w: %w", wire.ErrCorrupt, err)
		}
		if m.log, err = m.dir.Open(metadataName, metadataID, o, m.now); err != nil {
			return err
		}
		if r := m.log.Recovery(); m.alone && (len(r.Damaged) > 0 || r.Lost > 0) {
			return fmt.Errorf("%w: %v", wire.ErrCorrupt, r)
		}
	case m.dir.Start().Empty:
		m.log, err = m.dir.Create(metadataName, metadataID, o, m.now)
	default:
		err = fmt.Errorf("%w: it is missing, though partitions lie in %s", wire.ErrCorrupt, m.dir.Path())
	}
	return err
}

// Load is of raft.Store. What it returns is durable, since opening the log and
// the vote made it so. It reads the newest whole snapshot and what follows it.
func (m *metalog) Load() (raft.State, error) {
	s := raft.State{Vote: m.vote.vote()}
	newest, err := m.loadSnapshot()
	if err != nil {
		return s, err
	}
	if err := m.meet(newest); err != nil {
		return s, err
	}
	s.Snapshot, s.BaseIndex, s.BaseTerm = newest, newest.Index, newest.Term
	var bad error
	if s.Entries, bad, err = m.readEntries(newest.Index); err != nil {
		return s, err
	}
	if bad != nil {
		if m.alone {
			return s, bad
		}
		if err := m.damaged(bad); err != nil {
			return s, err
		}
	}
	s.Damaged = m.damage.index
	return s, m.checkVote(&s)
}

// damaged notes that what the log held cannot all be read. If files are shorter
// than they were, nobody knows how much they held.
func (m *metalog) damaged(bad error) error {
	m.say.Warn("metadata entries are damaged; a leader has to replace them", "err", bad)
	until := raft.Index(m.log.View().End())
	if m.log.Recovery().Lost > 0 {
		until = unknownIndex
	}
	return m.damage.set(m.dir.FS(), max(until, m.damage.index))
}

// checkVote holds the vote against the log, a second witness of terms. Alone, a
// node whose newest vote is lost has nobody to whom it could have given it.
func (m *metalog) checkVote(s *raft.State) error {
	last := s.BaseTerm
	if n := len(s.Entries); n > 0 {
		last = s.Entries[n-1].Term
	}
	switch {
	case s.Vote.Term >= last:
		return nil
	case m.alone:
		s.Vote = raft.Vote{Term: last}
		return nil
	}
	return fmt.Errorf("%w: the vote is of term %d, the log ends in term %d", raft.ErrState, s.Vote.Term, last)
}

// meet makes the log one that goes on where the newest snapshot ends. It does
// not yet if the process died while it installed that one. What the log holds
// before the snapshot's end is of no account, damaged or not.
func (m *metalog) meet(s raft.Snapshot) error {
	v := m.log.View()
	switch at := offsetOf(s.Index + 1); {
	case m.renewal.index == s.Index && s.Index > 0:
		return m.restart(s)
	case m.renewal.index == unknownIndex && s.Index > 0: // it may have been for this one
		if err := m.damaged(fmt.Errorf("%w: %s", wire.ErrCorrupt, m.renewal.name)); err != nil {
			return err
		}
		return m.restart(s)
	case at < v.Start() || m.alone && at > v.End():
		return fmt.Errorf("%w: the log has offsets %d to %d, the newest whole snapshot ends at %d", wire.ErrCorrupt, v.Start(), v.End(), at)
	case at > v.End():
		return m.restart(s)
	}
	return m.renewed()
}

// restart drops all entries and makes the log begin where the snapshot ends. A
// start finishes what is left of it.
func (m *metalog) restart(s raft.Snapshot) error {
	at := offsetOf(s.Index + 1)
	if err := m.noRoom(m.renewal.set(m.dir.FS(), s.Index)); err != nil {
		return err
	}
	if err := m.savePoint(m.log.ResetPoint(at)); err != nil {
		return err
	}
	if err := m.withReserve(func() error { return m.log.Reset(at) }); err != nil {
		return err
	}
	return m.renewed()
}

// renewed says that the log may be believed again.
func (m *metalog) renewed() error {
	if err := m.renewal.remove(m.dir.FS(), m.path()); err != nil {
		m.dir.Fail(err)
		return err
	}
	return nil
}

// truncate removes the entries from an offset on, durably.
func (m *metalog) truncate(to wire.Offset) error {
	point := m.log.PointBelow(to)
	if err := m.savePoint(point); err != nil {
		return err
	}
	return m.withReserve(func() error { return m.log.Truncate(to) })
}

// Sync is of raft.Store.
func (m *metalog) Sync() error {
	if err := m.syncVote(); err != nil {
		return err
	}
	return m.flush()
}

func (m *metalog) syncVote() error {
	if err := m.vote.sync(); err != nil {
		m.dir.Fail(err)
		return err
	}
	return nil
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

// SetVote is of raft.Store.
func (m *metalog) SetVote(v raft.Vote) error {
	return m.withReserve(func() error { return m.vote.set(v) })
}

// Repaired is of raft.Store.
func (m *metalog) Repaired() error {
	if err := m.damage.remove(m.dir.FS(), m.path()); err != nil {
		m.dir.Fail(err)
		return err
	}
	return nil
}

func (m *metalog) turn(now mem.Now) { m.now = now }

func (m *metalog) close() (storage.CleanEnd, error) {
	m.staging.drop(m.dir.FS())
	end, err := m.log.Close()
	return end, errors.Join(err, m.vote.file.Close())
}

// abandon closes what is open, without a clean end.
func (m *metalog) abandon() {
	if m.log != nil {
		m.log.Close()
	}
	if m.vote != nil {
		m.vote.file.Close()
	}
}

// offsetOf returns where the entry at an index stands in the log.
func offsetOf(i raft.Index) wire.Offset { return wire.Offset(i) - 1 }

// indexOf returns the index of the entry at an offset.
func indexOf(at wire.Offset) raft.Index { return raft.Index(at) + 1 }
