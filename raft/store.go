package raft

import (
	"errors"
	"fmt"
	"slices"
)

// Errors of a store.
var (
	// ErrState says that what a store holds does not fit together.
	ErrState = errors.New("the raft state is damaged")
	// ErrNoSnapshot says that the store does not have the snapshot any more.
	ErrNoSnapshot = errors.New("no such snapshot")
	// ErrStopped says that the store failed before and does nothing any more.
	ErrStopped = errors.New("the store has stopped")
	// ErrNoRoom says that the disk is full for now. The store has done nothing
	// of what was asked for, and goes on.
	ErrNoRoom = errors.New("no room left on the disk")
)

// A Vote is the newest term a node knows and whom it voted for in it.
type Vote struct {
	Term Term
	For  Peer // the zero Peer: nobody yet
}

// A State is what a store holds at the start.
type State struct {
	Vote      Vote
	Snapshot  Snapshot // Index 0: none
	BaseIndex Index    // of the entry before Entries, not above the snapshot's
	BaseTerm  Term
	Entries   []Entry
	// Damaged, if above the last of Entries, is the greatest index that was
	// durable once, though not all before it can be read: entries are lost
	// that this node may have acknowledged. That is not the same as having
	// none, so the node decides nothing until a leader has replaced them.
	Damaged Index
}

// A Store keeps what a node must not forget. It is used by one goroutine. After
// an error other than ErrNoRoom it is of no more use: an fsync that failed once
// proves nothing when it succeeds later. The node then stops, and starts from
// what Load finds.
type Store interface {
	// Load returns what is there, and makes that durable: a process that died
	// before its Sync may have left what only the cache has, and the node goes
	// by it without writing it again. An error that wraps ErrState says that
	// the vote cannot be read; such a node must not take part.
	Load() (State, error)
	// SetVote and Append write; nothing is promised before Sync returned.
	// Append first drops what is there from the first entry's index on.
	SetVote(Vote) error
	Append([]Entry) error
	Sync() error
	// SaveSnapshot keeps a snapshot of the node's own state, durable when it
	// returns, and may then drop entries up to keepAfter, inclusive. One at the
	// newest one's index takes its place: that one could not be read.
	SaveSnapshot(s Snapshot, state []byte, keepAfter Index) error
	// Stage keeps one chunk of a snapshot that is coming in; offset 0 begins
	// anew. Nothing of it need survive a restart.
	Stage(s Snapshot, offset uint64, data []byte) error
	// Install puts the staged snapshot in place of the snapshot and of all
	// entries: after a crash there is all of the old or all of the new.
	Install(s Snapshot) error
	// State returns the newest snapshot's bytes; Chunk at most max of them,
	// from offset on, of the snapshot at i, which may be gone: ErrNoSnapshot.
	State() ([]byte, error)
	Chunk(i Index, offset uint64, max int) ([]byte, error)
	// Repaired says that what Damaged spoke of is replaced.
	Repaired() error
}

// Bootstrap makes the empty store of one of a new cluster's first members: each
// of them gets the same first entry, in term 1, which nobody leads. It goes on
// where one was interrupted.
func Bootstrap(s Store, first Members) error {
	first = Members{Voters: ordered(first.Voters), Learners: ordered(first.Learners)}
	if err := first.check(); err != nil {
		return err
	}
	have, err := s.Load()
	if err != nil {
		return err
	}
	if have.Vote != (Vote{}) && have.Vote != (Vote{Term: 1}) || have.Snapshot.Index > 0 || len(have.Entries) > 0 || have.Damaged > 0 {
		return fmt.Errorf("%w: bootstrap: the store is not empty", ErrState)
	}
	if err := s.SetVote(Vote{Term: 1}); err != nil {
		return err
	}
	if err := s.Append([]Entry{{Index: 1, Term: 1, Kind: Membership, Data: AppendMembers(nil, first)}}); err != nil {
		return err
	}
	return s.Sync()
}

// A MemStore is a Store in memory, with a disk's faults: what was not synced
// may be gone after a power cut, and it can stop at any write.
type MemStore struct {
	live    disk // what reads see
	durable disk // what a power cut leaves for sure
	pending []func(*disk, int)
	sizes   []int // of pending: in how many steps each can tear

	staged  Snapshot
	stagedB []byte

	writes  int // so far
	stopAt  int // the write that fails, 0: none
	halfway bool
}

type disk struct {
	State
	state    []byte // of Snapshot
	previous Snapshot
	prevB    []byte
}

// NewMemStore returns an empty one.
func NewMemStore() *MemStore { return &MemStore{} }

// StopAt makes the nth write from now fail, and all after it: done says
// whether its bytes were written all the same.
func (m *MemStore) StopAt(n int, done bool) { m.stopAt, m.halfway = m.writes+n, done }

// Restart returns the store as a new process finds it. After a power cut keep
// is asked for a number in [0, n) for each thing that chance decides; nil says
// that only the process died, and all that was written is there.
func (m *MemStore) Restart(keep func(n int) int) *MemStore {
	if keep == nil {
		return &MemStore{live: m.live, durable: m.durable, pending: m.pending, sizes: m.sizes}
	}
	d := m.durable
	d.Entries = slices.Clip(d.Entries)
	kept := keep(len(m.pending) + 1)
	for i, op := range m.pending[:kept] {
		op(&d, m.sizes[i])
	}
	if kept < len(m.pending) { // the next one tears
		m.pending[kept](&d, keep(m.sizes[kept]))
	}
	return &MemStore{live: d, durable: d}
}

// Damage loses the entry at i, if there is one, so that it and those behind it
// cannot be read; it reports whether that was so.
func (m *MemStore) Damage(i Index) bool {
	d := &m.live
	if i <= d.Snapshot.Index || i > d.last() {
		return false
	}
	d.Damaged = max(d.Damaged, d.last())
	d.cut(i)
	m.durable, m.pending, m.sizes = m.live, nil, nil
	return true
}

// write does one thing in steps of which a power cut may keep some.
func (m *MemStore) write(steps int, op func(d *disk, steps int)) error {
	m.writes++
	if m.stopAt > 0 && m.writes >= m.stopAt {
		if m.halfway && m.writes == m.stopAt {
			m.note(steps, op)
		}
		return ErrStopped
	}
	m.note(steps, op)
	return nil
}

func (m *MemStore) note(steps int, op func(d *disk, steps int)) {
	op(&m.live, steps)
	m.pending, m.sizes = append(m.pending, op), append(m.sizes, steps)
}

// Load is of Store.
func (m *MemStore) Load() (State, error) {
	if !mutant("what a start finds is not fsynced") {
		m.settle()
	}
	return m.live.State, nil
}

// SetVote is of Store.
func (m *MemStore) SetVote(v Vote) error {
	return m.write(1, func(d *disk, steps int) {
		if steps == 1 {
			d.Vote = v
		}
	})
}

// Append is of Store.
func (m *MemStore) Append(entries []Entry) error {
	entries = slices.Clip(entries)
	return m.write(1+len(entries), func(d *disk, steps int) {
		if steps > 0 {
			d.cut(entries[0].Index)
			d.Entries = append(d.Entries, entries[:steps-1]...)
		}
	})
}

// Sync is of Store.
func (m *MemStore) Sync() error {
	m.writes++
	if m.stopAt > 0 && m.writes >= m.stopAt {
		if m.halfway && m.writes == m.stopAt {
			m.settle()
		}
		return ErrStopped
	}
	m.settle()
	return nil
}

func (m *MemStore) settle() { m.durable, m.pending, m.sizes = m.live, nil, nil }

// SaveSnapshot is of Store.
func (m *MemStore) SaveSnapshot(s Snapshot, state []byte, keepAfter Index) error {
	return m.atOnce(func(d *disk) {
		if keepAfter > d.BaseIndex {
			n := int(keepAfter - d.BaseIndex)
			d.BaseIndex, d.BaseTerm = keepAfter, d.Entries[n-1].Term
			d.Entries = slices.Clone(d.Entries[n:])
		}
		d.replace(s, state)
	})
}

// Stage is of Store.
func (m *MemStore) Stage(s Snapshot, offset uint64, data []byte) error {
	if offset == 0 {
		m.staged, m.stagedB = s, nil
	}
	if m.staged.Index != s.Index || m.staged.Term != s.Term || offset != uint64(len(m.stagedB)) {
		panic(fmt.Sprintf("BUG: chunk at %d of snapshot %d; staged %d of snapshot %d", offset, s.Index, len(m.stagedB), m.staged.Index))
	}
	m.stagedB = append(m.stagedB, data...)
	return nil
}

// Install is of Store.
func (m *MemStore) Install(s Snapshot) error {
	if m.staged.Index != s.Index || uint64(len(m.stagedB)) != s.Size {
		panic(fmt.Sprintf("BUG: install snapshot %d of %d bytes; staged %d of snapshot %d", s.Index, s.Size, len(m.stagedB), m.staged.Index))
	}
	state := m.stagedB
	m.staged, m.stagedB = Snapshot{}, nil
	return m.atOnce(func(d *disk) {
		d.BaseIndex, d.BaseTerm, d.Entries = s.Index, s.Term, nil
		d.replace(s, state)
	})
}

// State is of Store.
func (m *MemStore) State() ([]byte, error) {
	if m.live.Snapshot.Index == 0 {
		return nil, ErrNoSnapshot
	}
	return m.live.state, nil
}

// Chunk is of Store.
func (m *MemStore) Chunk(i Index, offset uint64, max int) ([]byte, error) {
	for _, have := range []struct {
		s Snapshot
		b []byte
	}{{m.live.Snapshot, m.live.state}, {m.live.previous, m.live.prevB}} {
		if have.s.Index == i && i > 0 && offset <= uint64(len(have.b)) {
			return have.b[offset:min(uint64(len(have.b)), offset+uint64(max))], nil
		}
	}
	return nil, ErrNoSnapshot
}

// Repaired is of Store.
func (m *MemStore) Repaired() error { return m.atOnce(func(d *disk) { d.Damaged = 0 }) }

// atOnce does what is durable when it returns, with all that was written
// before, and happens whole or not at all.
func (m *MemStore) atOnce(op func(*disk)) error {
	if err := m.Sync(); err != nil {
		return err
	}
	err := m.write(1, func(d *disk, steps int) {
		if steps == 1 {
			op(d)
		}
	})
	if err == nil {
		m.settle()
	}
	return err
}

func (d *disk) last() Index { return d.BaseIndex + Index(len(d.Entries)) }

func (d *disk) cut(i Index) {
	if i > d.last()+1 || i <= d.BaseIndex {
		panic(fmt.Sprintf("BUG: append at entry %d, the store has %d to %d", i, d.BaseIndex+1, d.last()))
	}
	if n := int(i - d.BaseIndex - 1); n < len(d.Entries) {
		d.Entries = d.Entries[:n:n] // what was there may still be shared
	}
}

func (d *disk) replace(s Snapshot, state []byte) {
	d.previous, d.prevB = d.Snapshot, d.state
	d.Snapshot, d.state = s, state
}
