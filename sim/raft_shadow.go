package sim

import (
	"slices"

	"github.com/teralog/teralog/raft"
)

// A shadow stands before a member's store and remembers what it was told, and
// how much of that it promised to keep.
type shadow struct {
	raft.Store
	m       *member
	live    shape
	durable shape
	changed raft.Index // the lowest entry written since the last sync; 0: none
	proven  raft.Index // the last entry that was synced before a later one was written
	hurt    bool       // something was damaged on purpose
	refused bool       // a write of this turn found no room: the node is ahead of its store
	rotten  raft.Index // the snapshot that cannot be read any more
}

// A shape is a log without its data.
type shape struct {
	vote     raft.Vote
	snapshot raft.Index
	base     point       // of the entry before terms
	terms    []raft.Term // never overwritten in place
	configs  []config    // ascending; the first one is in force at the snapshot
	lost     raft.Index  // State.Damaged
}

// A point is a place of a log and the term of its entry.
type point struct {
	index raft.Index
	term  raft.Term
}

type config struct {
	index   raft.Index
	members raft.Members
}

func shapeOf(s raft.State) shape {
	d := shape{vote: s.Vote, base: point{s.BaseIndex, s.BaseTerm}, lost: s.Damaged}
	d.take(s.Snapshot)
	d.append(s.Entries)
	return d
}

func (d *shape) last() raft.Index { return d.base.index + raft.Index(len(d.terms)) }

// term returns the term of the entry at i, or 0 if it is not there.
func (d *shape) term(i raft.Index) raft.Term {
	switch {
	case i == d.base.index:
		return d.base.term
	case i < d.base.index || i > d.last():
		return 0
	}
	return d.terms[i-d.base.index-1]
}

func (d *shape) matches(i raft.Index, t raft.Term) bool { return i > 0 && d.term(i) == t }

func (d *shape) damaged() bool { return d.lost > d.last() }

// append puts entries in place of what there is from the first one on.
func (d *shape) append(entries []raft.Entry) {
	if len(entries) == 0 {
		return
	}
	first := entries[0].Index
	if n := int(first - d.base.index - 1); n < len(d.terms) {
		d.terms = d.terms[:n:n]
	}
	keep := len(d.configs)
	for keep > 1 && d.configs[keep-1].index >= first {
		keep--
	}
	d.configs = d.configs[:keep:keep]
	for _, e := range entries {
		d.terms = append(d.terms, e.Term)
		if e.Kind != raft.Membership || e.Index <= d.snapshot {
			continue
		}
		if m, err := raft.DecodeMembers(e.Data); err == nil {
			d.configs = append(d.configs, config{e.Index, m})
		}
	}
}

// take notes a snapshot.
func (d *shape) take(s raft.Snapshot) {
	d.snapshot = s.Index
	later := slices.IndexFunc(d.configs, func(c config) bool { return c.index > s.Index })
	if later < 0 {
		later = len(d.configs)
	}
	d.configs = append([]config{{s.Index, s.Members}}, d.configs[later:]...)
}

// Load holds the store to what it promised: what was synced is there, but for
// what was damaged on purpose.
func (s *shadow) Load() (raft.State, error) {
	state, err := s.Store.Load()
	if err != nil {
		return state, err
	}
	q, now, was := s.m.q, shapeOf(state), &s.durable
	if now.vote.Term < was.vote.Term || now.vote.Term == was.vote.Term && was.vote.For != (raft.Peer{}) && now.vote != was.vote {
		q.violate("StoreForgot: %v synced the vote %v, now it has %v", s.m.self, was.vote, now.vote)
	}
	if now.snapshot < was.snapshot {
		q.violate("StoreForgot: %v has a snapshot at entry %d, had one at %d", s.m.self, now.snapshot, was.snapshot)
	}
	for i := max(was.base.index, now.base.index) + 1; i <= was.last(); i++ {
		kept := now.term(i) == was.term(i) || s.changed > 0 && i >= s.changed
		if !kept && !(s.hurt && now.damaged() && i > now.last()) {
			q.violate("StoreForgot: %v synced entry %d of term %d, now it has one of term %d", s.m.self, i, was.term(i), now.term(i))
			break
		}
	}
	s.live, s.durable, s.changed = now, now, 0
	return state, nil
}

// room is what a write ends with at once while the disk is full.
func (s *shadow) room() error {
	if q := s.m.q; !q.healed && q.now.Mono < s.m.full {
		q.count("no room on a disk")
		s.refused = true
		return raft.ErrNoRoom
	}
	return nil
}

func (s *shadow) SetVote(v raft.Vote) error {
	if err := s.room(); err != nil {
		return err
	}
	s.live.vote = v
	return s.Store.SetVote(v)
}

func (s *shadow) Append(entries []raft.Entry) error {
	if err := s.room(); err != nil {
		return err
	}
	first := entries[0].Index
	s.m.q.truth.appended(s.m, entries)
	if first <= s.live.last() {
		s.m.q.count("conflict truncation")
	}
	if s.changed == 0 || first < s.changed {
		s.changed = first
	}
	s.live.append(entries)
	return s.Store.Append(entries)
}

func (s *shadow) Sync() error { return s.kept(s.Store.Sync()) }

// kept notes that all up to now is durable, if err is nil.
func (s *shadow) kept(err error) error {
	if err == nil {
		s.m.synced()
		if s.changed > 0 {
			s.proven = s.changed - 1
		}
		s.durable, s.changed = s.live, 0
	}
	return err
}

func (s *shadow) SaveSnapshot(snap raft.Snapshot, state []byte, keepAfter raft.Index) error {
	if err := s.room(); err != nil {
		return err
	}
	err := s.Store.SaveSnapshot(snap, state, keepAfter)
	if err == nil {
		s.live.take(snap)
		if snap.Index == s.rotten {
			s.rotten = 0
		}
	}
	return s.kept(err)
}

func (s *shadow) Stage(snap raft.Snapshot, offset uint64, data []byte) error {
	if err := s.room(); err != nil {
		return err
	}
	return s.Store.Stage(snap, offset, data)
}

func (s *shadow) Install(snap raft.Snapshot) error {
	if err := s.room(); err != nil {
		return err
	}
	q := s.m.q
	q.count("snapshot installed")
	for _, c := range s.live.configs {
		if c.index > s.m.committed && c.index > s.live.snapshot {
			q.count("snapshot over an uncommitted configuration")
		}
	}
	s.changed = 1 // whatever happens now, the old log may be gone
	err := s.Store.Install(snap)
	if err == nil {
		s.live = shape{vote: s.live.vote, base: point{snap.Index, snap.Term}, lost: s.live.lost}
		s.live.take(snap)
	}
	return s.kept(err)
}

func (s *shadow) Chunk(i raft.Index, offset uint64, max int) ([]byte, error) {
	if i <= s.rotten {
		s.m.q.count("snapshot unreadable")
		return nil, raft.ErrNoSnapshot
	}
	return s.Store.Chunk(i, offset, max)
}

func (s *shadow) Repaired() error {
	err := s.Store.Repaired()
	if err == nil {
		s.live.lost, s.hurt = 0, false
	}
	return s.kept(err)
}
