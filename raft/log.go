package raft

import "fmt"

// A position is an index and the term of its entry.
type position struct {
	index Index
	term  Term
}

// A raftLog is the log of one node: in memory from base on, in the store up to
// stable. Where they move, base ≤ applied ≤ commit ≤ last and base ≤ stable ≤
// last. Applied and commit begin at the snapshot.
//
// Slices of entries are shared with messages that are under way, so what was
// appended is never overwritten in place.
type raftLog struct {
	base    position // of the entry before entries
	entries []Entry

	stable  Index // durable, inclusive
	commit  Index // inclusive
	applied Index // inclusive

	snapshot Snapshot     // the newest, Index 0: none
	configs  []membership // ascending; the first one is in force at the snapshot
}

// A membership is a Members and the index of the entry it came with.
type membership struct {
	index   Index
	members Members
	all     []Peer // of them, in order
}

func newMembership(i Index, m Members) membership { return membership{i, m, m.all()} }

func newLog(s State) (raftLog, error) {
	l := raftLog{
		base:     position{s.BaseIndex, s.BaseTerm},
		stable:   s.BaseIndex,
		commit:   s.Snapshot.Index,
		applied:  s.Snapshot.Index,
		snapshot: s.Snapshot,
		configs:  []membership{newMembership(s.Snapshot.Index, s.Snapshot.Members)},
	}
	if l.base.index > l.snapshot.Index {
		return l, fmt.Errorf("%w: the log begins after entry %d, the snapshot ends at %d", ErrState, l.base.index, l.snapshot.Index)
	}
	for i, e := range s.Entries {
		if e.Index != l.base.index+Index(i)+1 || e.Term < l.lastTerm() {
			return l, fmt.Errorf("%w: entry %d of term %d after entry %d of term %d", ErrState, e.Index, e.Term, l.last(), l.lastTerm())
		}
		if err := l.push(e); err != nil {
			return l, err
		}
	}
	if l.last() < l.snapshot.Index {
		return l, fmt.Errorf("%w: the log ends at entry %d, the snapshot at %d", ErrState, l.last(), l.snapshot.Index)
	}
	if t, _ := l.term(l.snapshot.Index); t != l.snapshot.Term {
		return l, fmt.Errorf("%w: entry %d has term %d, in the snapshot %d", ErrState, l.snapshot.Index, t, l.snapshot.Term)
	}
	l.stable = l.last()
	return l, nil
}

func (l *raftLog) last() Index { return l.base.index + Index(len(l.entries)) }

func (l *raftLog) lastTerm() Term {
	if len(l.entries) == 0 {
		return l.base.term
	}
	return l.entries[len(l.entries)-1].Term
}

// term returns the term of the entry at i, if the log has it: from base to
// last, both inclusive.
func (l *raftLog) term(i Index) (Term, bool) {
	switch {
	case i == l.base.index:
		return l.base.term, true
	case i < l.base.index || i > l.last():
		return 0, false
	}
	return l.entries[i-l.base.index-1].Term, true
}

func (l *raftLog) matches(i Index, t Term) bool {
	have, ok := l.term(i)
	return ok && have == t
}

// newer reports whether a log that ends at i, t has at least what this one has.
func (l *raftLog) newer(i Index, t Term) bool {
	return t > l.lastTerm() || t == l.lastTerm() && i >= l.last()
}

// mayMatch returns the greatest index up to i whose term is at most t, and that
// term: nothing between it and i can match a log whose entry at i is of term t.
// So one exchange leaps over all entries of a term.
func (l *raftLog) mayMatch(i Index, t Term) (Index, Term) {
	for i = min(i, l.last()); i > l.base.index; i-- {
		if have, _ := l.term(i); have <= t {
			return i, have
		}
	}
	if i == l.base.index {
		return i, l.base.term
	}
	return i, 0
}

// push appends one entry. A membership comes into force with it.
func (l *raftLog) push(e Entry) error {
	if e.Index != l.last()+1 {
		panic(fmt.Sprintf("BUG: entry %d after entry %d", e.Index, l.last()))
	}
	if e.Kind == Membership && e.Index > l.snapshot.Index {
		m, err := DecodeMembers(e.Data)
		if err != nil {
			return fmt.Errorf("entry %d: %w", e.Index, err)
		}
		l.configs = append(l.configs, newMembership(e.Index, m))
	}
	l.entries = append(l.entries, e)
	return nil
}

// accept takes entries that follow one that matches. It cuts the log only where
// an entry differs: the same entries may come again, late, when there is
// already more behind them.
func (l *raftLog) accept(entries []Entry) {
	for len(entries) > 0 && l.matches(entries[0].Index, entries[0].Term) && !mutant("truncation on a matching prefix") {
		entries = entries[1:]
	}
	if len(entries) == 0 {
		return
	}
	if entries[0].Index <= l.last() {
		l.cut(entries[0].Index)
	}
	for _, e := range entries {
		l.mustPush(e)
	}
}

// mustPush appends an entry that was looked at or made here.
func (l *raftLog) mustPush(e Entry) {
	if err := l.push(e); err != nil {
		panic(fmt.Sprintf("BUG: %v", err))
	}
}

// cut drops the entries from i on.
func (l *raftLog) cut(i Index) {
	if i <= l.commit {
		panic(fmt.Sprintf("BUG: cut at entry %d, committed up to %d", i, l.commit))
	}
	n := int(i - l.base.index - 1)
	l.entries = l.entries[:n:n] // what is appended next goes elsewhere
	l.stable = min(l.stable, i-1)
	for len(l.configs) > 1 && l.configs[len(l.configs)-1].index >= i {
		l.configs = l.configs[:len(l.configs)-1]
	}
}

// commitTo moves the commit index forward; it never goes back.
func (l *raftLog) commitTo(i Index) bool {
	if i <= l.commit {
		return false
	}
	if i > l.last() {
		panic(fmt.Sprintf("BUG: committed up to %d, the log ends at %d", i, l.last()))
	}
	l.commit = i
	return true
}

// between returns the entries from first on, up to to, whose data is not longer
// than maxBytes, but at least one if there is one. The slice is shared.
func (l *raftLog) between(first, to Index, maxBytes int) []Entry {
	if first > to {
		return nil
	}
	if first <= l.base.index || to > l.last() {
		panic(fmt.Sprintf("BUG: entries %d to %d, the log has %d to %d", first, to, l.base.index+1, l.last()))
	}
	from := int(first - l.base.index - 1)
	entries := l.entries[from:int(to-l.base.index):int(to-l.base.index)]
	bytes := 0
	for i, e := range entries {
		if bytes += entryCost(&e); bytes > maxBytes && i > 0 {
			return entries[:i:i]
		}
	}
	return entries
}

// config returns the membership in force at the log's end.
func (l *raftLog) config() *membership { return &l.configs[len(l.configs)-1] }

// mayVote reports whether p votes in the membership in force at the commit index
// or in one behind it.
func (l *raftLog) mayVote(p Peer) bool {
	for k := len(l.configs) - 1; k >= 0; k-- {
		if l.configs[k].members.voter(p) {
			return true
		}
		if l.configs[k].index <= l.commit {
			return false
		}
	}
	return false
}

// configAt returns the membership in force at i, which is not below the snapshot.
func (l *raftLog) configAt(i Index) Members {
	k := len(l.configs) - 1
	for k > 0 && l.configs[k].index > i {
		k--
	}
	return l.configs[k].members
}

// compact notes a snapshot taken of this node's own applied state and drops the
// entries up to keepAfter, inclusive, which is not above it.
func (l *raftLog) compact(s Snapshot, keepAfter Index) {
	if s.Index > l.applied || s.Index < l.snapshot.Index || keepAfter > s.Index {
		panic(fmt.Sprintf("BUG: compact to %d with snapshot %d; applied %d, snapshot %d", keepAfter, s.Index, l.applied, l.snapshot.Index))
	}
	l.snapshot = s
	for len(l.configs) > 1 && l.configs[1].index <= s.Index {
		l.configs = l.configs[1:]
	}
	if keepAfter <= l.base.index {
		return
	}
	t, ok := l.term(keepAfter)
	if !ok {
		panic(fmt.Sprintf("BUG: compact to %d, the log ends at %d", keepAfter, l.last()))
	}
	l.entries = append([]Entry(nil), l.entries[keepAfter-l.base.index:]...)
	l.base = position{keepAfter, t}
	l.stable = max(l.stable, keepAfter)
}

// install puts a snapshot in place of the whole log.
func (l *raftLog) install(s Snapshot) {
	if s.Index <= l.commit {
		panic(fmt.Sprintf("BUG: install snapshot %d, committed up to %d", s.Index, l.commit))
	}
	*l = raftLog{
		base:     position{s.Index, s.Term},
		stable:   s.Index,
		commit:   s.Index,
		applied:  s.Index,
		snapshot: s,
		configs:  []membership{newMembership(s.Index, s.Members)},
	}
}

// entryCost is what an entry weighs against a bound in bytes.
func entryCost(e *Entry) int { return len(e.Data) + 24 }
