package sim

import (
	"encoding/binary"
	"errors"
	"testing"

	"github.com/teralog/teralog/raft"
)

// TestTruth breaks each invariant of the simulated cluster by itself, and does
// what is nearly that and allowed: an invariant that nothing breaks would say
// nothing about the seeds that are clean. StaleRead is left to the mutants.
func TestTruth(t *testing.T) {
	entry := func(i raft.Index, term raft.Term, data string) raft.Entry {
		return raft.Entry{Index: i, Term: term, Kind: raft.Command, Data: []byte(data)}
	}
	proposal := func(request, attempt uint64) string {
		return string(binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint64(nil, request), attempt))
	}
	// Two voters that hold the first entry and do nothing.
	f := func(want string, do func(q *quorum, a, b *member)) {
		t.Helper()
		q := &quorum{world: newWorld(1, nil), scenario: &scenario{voters: 2}, seen: map[string]int{}}
		q.truth.init(q)
		q.truth.bootstrap(q.first())
		q.truth.states = []uint64{0}
		for slot := range 2 {
			m := &member{q: q, slot: slot, self: peer(slot+1, 0), disk: q.newDisk(slot, 0)}
			m.shadow.m = m
			q.members = append(q.members, m)
			m.start()
			m.driver.Turn()
			m.machine.last = 1
		}
		if q.broken != "" {
			t.Fatal(q.broken)
		}
		do(q, q.members[0], q.members[1])
		if got := invariant(q.broken); got != want {
			t.Errorf("breaks %q, want %q: %s", got, want, q.broken)
		}
	}
	append1 := func(m *member, e raft.Entry) { m.q.truth.appended(m, []raft.Entry{e}) }
	commit := func(m *member, e raft.Entry) {
		append1(m, e)
		m.q.truth.commit(e.Index, e.Term, e.Term)
	}
	vote := func(m, to *member, term raft.Term) {
		m.q.truth.sent(m, &raft.Message{Kind: raft.VoteReply, From: m.self, To: to.self, Term: term})
	}
	elect := func(m *member, term raft.Term) {
		m.status.Term = term
		m.q.truth.elected(m)
	}

	f("", func(q *quorum, a, b *member) {
		append1(a, entry(2, 2, "x"))
		append1(b, entry(2, 2, "x"))
		append1(b, entry(2, 3, "y"))
	})
	f("LogMatching", func(q *quorum, a, b *member) { append1(a, entry(2, 2, "x")); append1(b, entry(2, 2, "y")) })
	f("LogMatching", func(q *quorum, a, b *member) {
		append1(a, entry(3, 3, "x"))
		b.shadow.live.terms = []raft.Term{1, 2} // behind another entry
		append1(b, entry(3, 3, "x"))
	})
	f("", func(q *quorum, a, b *member) { vote(a, a, 2); vote(a, a, 2); vote(a, b, 3) })
	f("OneVote", func(q *quorum, a, b *member) { vote(a, a, 2); vote(a, b, 2) })
	f("OneVote", func(q *quorum, a, b *member) {
		vote(a, b, 2)
		q.truth.sent(a, &raft.Message{Kind: raft.VoteKind, From: a.self, To: b.self, Term: 2})
	})
	f("", func(q *quorum, a, b *member) { elect(a, 2); elect(b, 3) })
	f("OneLeader", func(q *quorum, a, b *member) { elect(a, 2); elect(b, 2) })
	f("", func(q *quorum, a, b *member) { append1(a, entry(2, 2, "x")); q.truth.commit(2, 2, 3); elect(b, 3) }) // seen too late to count
	f("LeaderCompleteness", func(q *quorum, a, b *member) { commit(a, entry(2, 2, "x")); elect(b, 3) })
	f("", func(q *quorum, a, b *member) { commit(a, entry(2, 2, "x")); q.truth.commit(2, 2, 3) })
	f("StateMachineSafety", func(q *quorum, a, b *member) { commit(a, entry(2, 2, "x")); commit(b, entry(2, 3, "x")) })
	f("CommitGap", func(q *quorum, a, b *member) { q.truth.commit(3, 2, 2) })
	f("", func(q *quorum, a, b *member) {
		commit(a, entry(2, 2, "x"))
		a.shadow.durable.terms = []raft.Term{1, 2}
		q.truth.lookLost()
	})
	f("CommittedLost", func(q *quorum, a, b *member) { commit(a, entry(2, 2, "x")); q.truth.lookLost() })
	f("", func(q *quorum, a, b *member) {
		append1(a, entry(2, 2, "x"))
		q.truth.applied(a, entry(2, 2, "x"), 7)
		q.truth.applied(b, entry(2, 2, "x"), 7)
	})
	f("StateDiffers", func(q *quorum, a, b *member) {
		append1(a, entry(2, 2, "x"))
		q.truth.applied(a, entry(2, 2, "x"), 7)
		q.truth.applied(b, entry(2, 2, "x"), 8)
	})
	f("StateMachineSafety", func(q *quorum, a, b *member) { append1(a, entry(2, 2, "x")); q.truth.applied(a, entry(2, 2, "y"), 7) })
	f("ApplyGap", func(q *quorum, a, b *member) {
		q.truth.states = nil
		commit(a, entry(2, 2, "x"))
		q.truth.applied(a, entry(2, 2, "x"), 7)
	})
	f("ApplyOrder", func(q *quorum, a, b *member) { a.machine.Apply(raft.Entry{Index: 1, Term: 1, Kind: raft.Membership}) })
	f("Definite", func(q *quorum, a, b *member) {
		commit(a, entry(2, 2, proposal(5, 77)))
		q.truth.refused[77] = errors.New("never")
		q.truth.end()
	})
	restore := func(m *member, change func(b []byte)) {
		b, err := m.machine.Snapshot()
		if err != nil {
			t.Fatal(err)
		}
		change(b)
		if err := m.machine.Restore(b); err != nil {
			t.Fatal(err)
		}
	}
	f("", func(q *quorum, a, b *member) { restore(a, func([]byte) {}) })
	f("MixedSnapshot", func(q *quorum, a, b *member) { restore(a, func(b []byte) { b[20] ^= 1 }) })
	f("StateDiffers", func(q *quorum, a, b *member) { a.machine.state[0] = 5; restore(a, func([]byte) {}) })
	f("", func(q *quorum, a, b *member) { a.look() })
	f("AckForgotten", func(q *quorum, a, b *member) { a.acked = point{2, a.status.Term}; a.look() })
	f("CommitFell", func(q *quorum, a, b *member) { a.committed = 5; a.look() })
	f("Codec", func(q *quorum, a, b *member) { q.deliver(0, b, []byte("no message")) })
	f("Store", func(q *quorum, a, b *member) { a.stopped(raft.ErrStopped) }) // nobody stopped its disk
	f("Storm", func(q *quorum, a, b *member) {
		a.burst = maxBurst
		a.Send([]raft.Message{{Kind: raft.HeartbeatKind, From: a.self, To: b.self, Term: 1}})
	})
	f("Liveness", func(q *quorum, a, b *member) { q.finish() }) // nobody leads
	f("NotViable", func(q *quorum, a, b *member) { a.left = true; q.finish() })
	f("", func(q *quorum, a, b *member) { a.left, q.scenario.wild = true, true; q.finish() })
}
