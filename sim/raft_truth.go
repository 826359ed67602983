package sim

import (
	"encoding/binary"
	"hash/crc32"

	"github.com/teralog/teralog/raft"
)

// truth is what an observer of everything knows, and what must hold of it after
// every event.
type truth struct {
	q         *quorum
	leaders   map[raft.Term]raft.Peer
	votes     map[ballot]raft.Peer
	entries   map[point]origin // every entry any store was ever told of
	committed []raft.Entry     // by index - 1
	since     []raft.Term      // in which each was first seen to be committed
	states    []uint64         // of the machine after each
	refused   map[uint64]error // attempts of which it was said that they take no effect
	config    raft.Members     // the newest committed one
	healed    raft.Index       // what was committed then
	shown     raft.Index       // the greatest index a caller was ever shown
}

type ballot struct {
	voter raft.Peer
	term  raft.Term
}

type origin struct {
	before raft.Term
	entry  raft.Entry
}

func (t *truth) init(q *quorum) {
	*t = truth{q: q, leaders: map[raft.Term]raft.Peer{}, votes: map[ballot]raft.Peer{},
		entries: map[point]origin{}, refused: map[uint64]error{}}
}

// bootstrap notes the entry that the first voters are given.
func (t *truth) bootstrap(first raft.Members) {
	e := raft.Entry{Index: 1, Term: 1, Kind: raft.Membership, Data: raft.AppendMembers(nil, first)}
	t.entries[point{1, 1}] = origin{0, e}
	t.commit(1, 1, 1)
}

func (t *truth) last() raft.Index { return raft.Index(len(t.committed)) }

// decides reports whether those who satisfy yes can decide by m. It does not
// ask the code that is on trial.
func decides(m *raft.Members, yes func(raft.Peer) bool) bool {
	for _, half := range [][]raft.Peer{m.Voters, m.Outgoing} {
		n := 0
		for _, p := range half {
			if yes(p) {
				n++
			}
		}
		if len(half) > 0 && 2*n <= len(half) {
			return false
		}
	}
	return true
}

func same(a, b *raft.Entry) bool {
	return a.Kind == b.Kind && string(a.Data) == string(b.Data)
}

// appended holds log matching: an entry is the same wherever it lies, and so is
// the one before it.
func (t *truth) appended(m *member, entries []raft.Entry) {
	before := m.shadow.live.term(entries[0].Index - 1)
	for _, e := range entries {
		at := point{e.Index, e.Term}
		have, ok := t.entries[at]
		if ok && (have.before != before || !same(&have.entry, &e)) {
			t.q.violate("LogMatching: entry %d of term %d is two things, or follows terms %d and %d", e.Index, e.Term, have.before, before)
		}
		if !ok {
			t.entries[at] = origin{before, e}
		}
		before = e.Term
	}
}

// sent holds one vote a term, over all restarts of a disk. It notes what is
// acknowledged.
func (t *truth) sent(m *member, msg *raft.Message) {
	vote := ballot{msg.From, msg.Term}
	var candidate raft.Peer
	switch {
	case msg.Kind == raft.AppendReply && !msg.Reject:
		if msg.Term > m.acked.term || msg.Term == m.acked.term && msg.Index > m.acked.index {
			m.acked = point{msg.Index, msg.Term}
		}
		return
	case msg.Kind == raft.VoteReply && !msg.Reject:
		candidate = msg.To
	case msg.Kind == raft.VoteKind:
		candidate = msg.From
	default:
		return
	}
	if have, ok := t.votes[vote]; ok && have != candidate {
		t.q.violate("OneVote: %v votes for %v and %v in term %d", msg.From, have, candidate, msg.Term)
	}
	t.votes[vote] = candidate
}

// look looks at a member that has just done something.
func (m *member) look() {
	q, t := m.q, &m.q.truth
	m.status = m.driver.Status()
	s := &m.status
	q.mix(uint64(q.now.Mono)<<8 | uint64(m.slot))
	q.mix(uint64(s.Term)<<48 ^ uint64(s.Last)<<24 ^ uint64(s.Committed))
	if s.Leads && m.led != s.Term {
		m.led = s.Term
		t.elected(m)
	}
	switch {
	case m.acked.term == s.Term && m.acked.index > s.Last:
		q.violate("AckForgotten: %v acknowledged entry %d in term %d, its log ends at %d", m.self, m.acked.index, m.acked.term, s.Last)
	case s.Committed < m.committed:
		q.violate("CommitFell: %d's from %d to %d", m.self.ID, m.committed, s.Committed)
	case s.Snapshot > s.Applied || s.Applied > s.Committed || s.Committed > s.Last:
		q.violate("LogOrder: %d has snapshot %d applied %d committed %d last %d", m.self.ID, s.Snapshot, s.Applied, s.Committed, s.Last)
	case s.Term >= foreignTerm:
		q.violate("Stranger: %v took the term %d of another cluster", m.self, s.Term)
	case s.Committed == m.committed || m.shadow.refused:
		return
	}
	log := &m.shadow.live
	for i := max(m.committed, log.base.index) + 1; i <= min(s.Committed, log.last()); i++ {
		t.commit(i, log.term(i), s.Term)
	}
	m.committed = s.Committed
	t.lookLost()
}

// elected holds one leader a term, who has all that was committed in earlier
// terms. A late one of an earlier term may lack what was committed since.
func (t *truth) elected(m *member) {
	term := m.status.Term
	t.q.say("%d leads in term %d", m.self.ID, term)
	if have, ok := t.leaders[term]; ok && have != m.self {
		t.q.violate("OneLeader: %v and %v lead in term %d", have, m.self, term)
	}
	t.leaders[term] = m.self
	if len(m.status.Members.Outgoing) > 0 {
		t.q.count("leader change within a joint configuration")
	}
	t.q.elected(m)
	log := &m.shadow.live
	for i := log.base.index + 1; i <= t.last(); i++ {
		if e := &t.committed[i-1]; t.since[i-1] < term && log.term(i) != e.Term {
			t.q.violate("LeaderCompleteness: %v leads in term %d; its entry %d has term %d, committed was one of term %d", m.self, term, i, log.term(i), e.Term)
			return
		}
	}
}

// commit holds that an index is committed once; now is the term of whom it was
// seen at.
func (t *truth) commit(i raft.Index, term, now raft.Term) {
	switch {
	case i <= t.last():
		if have := &t.committed[i-1]; have.Term != term {
			t.q.violate("StateMachineSafety: entry %d is committed with terms %d and %d", i, have.Term, term)
		}
	case i == t.last()+1:
		e := t.entries[point{i, term}].entry
		t.committed, t.since = append(t.committed, e), append(t.since, now)
		if e.Kind == raft.Membership {
			t.config, _ = raft.DecodeMembers(e.Data)
		}
	default:
		t.q.violate("CommitGap: entry %d committed after %d", i, t.last())
	}
}

// lookLost holds that no majority could ever decide without what is committed:
// those who may vote and do not have it durably are always too few.
func (t *truth) lookLost() {
	last := t.last()
	if last == 0 || t.q.broken != "" {
		return
	}
	term := t.committed[last-1].Term
	lacks := func(p raft.Peer) bool {
		d := &t.q.members[p.ID-1].shadow.durable
		if !t.q.lives(p) || d.damaged() {
			return false // has no vote
		}
		return last > d.base.index && d.term(last) != term
	}
	if decides(&t.config, lacks) {
		t.q.violate("CommittedLost: a majority has not entry %d of term %d", last, term)
	}
}

// applied holds that all machines go through the same states.
func (t *truth) applied(m *member, e raft.Entry, state uint64) {
	t.commit(e.Index, e.Term, m.driver.Status().Term)
	if t.q.broken == "" && !same(&t.committed[e.Index-1], &e) {
		t.q.violate("StateMachineSafety: %v applies as entry %d what was not committed", m.self, e.Index)
	}
	i := int(e.Index)
	switch {
	case i <= len(t.states):
		if t.states[i-1] != state {
			t.q.violate("StateDiffers: %v after entry %d", m.self, i)
		}
	case i == len(t.states)+1:
		t.states = append(t.states, state)
	default:
		t.q.violate("ApplyGap: %v applies entry %d after %d", m.self, i, len(t.states))
	}
}

// end holds that what was said to take no effect never did.
func (t *truth) end() {
	for _, e := range t.committed {
		if e.Kind != raft.Command {
			continue
		}
		if err := t.refused[attemptOf(e.Data)]; err != nil {
			t.q.violate("Definite: entry %d is committed, its caller was told: %v", e.Index, err)
			return
		}
	}
}

// A ledger is the machine: the newest request of each caller, so that each
// counts once, and a sum that depends on their order.
type ledger struct {
	m     *member
	last  raft.Index
	state [1 + maxCallers]uint64 // the sum, then the newest request by caller
}

// Apply is of raft.Machine.
func (l *ledger) Apply(e raft.Entry) {
	if e.Index != l.last+1 {
		l.m.q.violate("ApplyOrder: %v applies entry %d after %d", l.m.self, e.Index, l.last)
	}
	l.last = e.Index
	if e.Kind == raft.Command {
		id := requestOf(e.Data)
		newest := &l.state[id>>32]
		switch {
		case id == 0: // of a flood
		case id <= *newest:
			l.m.q.count("request came twice")
		default:
			*newest = id
			l.state[0] = scramble(l.state[0] ^ id)
		}
	}
	l.m.q.truth.applied(l.m, e, l.state[0])
}

// Snapshot is of raft.Machine. It is longer than one chunk.
func (l *ledger) Snapshot() ([]byte, error) {
	b := binary.LittleEndian.AppendUint64(nil, uint64(l.last))
	for _, v := range l.state {
		b = binary.LittleEndian.AppendUint64(b, v)
	}
	b = append(b, make([]byte, 100)...)
	return binary.LittleEndian.AppendUint32(b, crc32.Checksum(b, crcTable)), nil
}

// Restore is of raft.Machine.
func (l *ledger) Restore(b []byte) error {
	body := b[:len(b)-4]
	if crc32.Checksum(body, crcTable) != binary.LittleEndian.Uint32(b[len(body):]) {
		l.m.q.violate("MixedSnapshot: %v restores a snapshot that nobody took", l.m.self)
		return nil
	}
	l.last = raft.Index(binary.LittleEndian.Uint64(b))
	for i := range l.state {
		l.state[i] = binary.LittleEndian.Uint64(b[8+8*i:])
	}
	if t := &l.m.q.truth; l.last > raft.Index(len(t.states)) || t.states[l.last-1] != l.state[0] {
		l.m.q.violate("StateDiffers: %v restores a snapshot at entry %d", l.m.self, l.last)
	}
	return nil
}
