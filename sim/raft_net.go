package sim

import (
	"bytes"
	"hash/crc32"
	"slices"
	"time"

	"github.com/teralog/teralog/raft"
)

var crcTable = crc32.MakeTable(crc32.Castagnoli)

// foreignTerm is that of messages of another cluster.
const foreignTerm = 1 << 30

// maxBurst is more than what a member has reason to send within a tick.
const maxBurst = 60_000

// Send is a member's transport. Each message goes through its bytes, and may be
// lost, repeated, and late.
func (m *member) Send(messages []raft.Message) {
	q, s := m.q, m.q.scenario
	if q.now.Mono-m.burstFrom >= raftTick {
		m.burstFrom, m.burst = q.now.Mono, 0
	}
	if m.burst += len(messages); m.burst > maxBurst {
		q.violate("Storm: %v sends %d messages in %v", m.self, m.burst, q.now.Mono-m.burstFrom)
	}
	for i := range messages {
		msg := &messages[i]
		q.truth.sent(m, msg)
		to := int(msg.To.ID) - 1
		link := m.slot*maxMembers + to
		q.encoded = raft.AppendMessage(q.encoded[:0], msg)
		b := bytes.Clone(q.encoded)
		copies := 1
		if !q.healed {
			switch {
			case q.chance(streamLoss, link, uint64(s.loss)):
				copies = 0
				if msg.Kind == raft.SnapshotKind {
					q.count("lost chunk")
				}
			case q.chance(streamLoss, link, uint64(s.repeat)):
				copies = 2
			}
		}
		for range copies {
			q.post(m.slot, to, b, m.lag)
		}
		if !q.healed && q.chance(streamLoss, link, uint64(s.foreign)) {
			q.count("message of another cluster")
			q.post(m.slot, to, foreign(*msg), m.lag)
		}
	}
}

// foreign is a message as another cluster would send it to a node it takes for
// its own.
func foreign(m raft.Message) []byte {
	m.Cluster[0]++
	m.Term = foreignTerm
	return raft.AppendMessage(nil, &m)
}

// post lets a message arrive after some time, which begins in lag from now.
func (q *quorum) post(from, to int, b []byte, lag time.Duration) {
	link := from*maxMembers + to
	delay := lag + 300*time.Microsecond + q.upTo(streamDelay, link, 2*time.Millisecond)
	if !q.healed && q.chance(streamDelay, link, uint64(q.scenario.late)) {
		most := 600 * time.Millisecond
		if q.draw(streamDelay, link, 8) == 0 {
			most *= 3
		}
		delay = lag + q.upTo(streamDelay, link, most)
	}
	if q.scenario.ordered {
		last := &q.arrived[from][to]
		delay = max(delay, *last+time.Microsecond-q.now.Mono)
		*last = q.now.Mono + delay
	}
	q.after(delay, func() { q.deliver(from, q.members[to], b) })
}

func (q *quorum) deliver(from int, m *member, b []byte) {
	if q.cuts[from][m.slot] || !m.up {
		return
	}
	q.mix(uint64(from)<<56 | uint64(m.slot)<<48 | uint64(crc32.Checksum(b, crcTable)))
	msg, err := raft.DecodeMessage(b)
	if err != nil {
		q.violate("Codec: %v", err)
		return
	}
	if q.trace != nil {
		q.say("%v", msg)
	}
	if m.paused {
		if len(m.held) < 200 {
			m.held = append(m.held, msg)
		}
		return
	}
	if msg.Kind == raft.SnapshotKind && m.status.Committed < msg.Snapshot.Index && m.shadow.live.matches(msg.Snapshot.Index, msg.Snapshot.Term) {
		q.count("snapshot of what is held uncommitted")
	}
	m.driver.Deliver(msg)
	m.turn()
}

// cut breaks the network in one of the shapes.
func (q *quorum) cut(f *fault, at int) {
	n := len(q.members)
	first := func(i int) bool { return slices.Contains(f.half, i+1) }
	for i := range n {
		for j := range n {
			switch f.shape {
			case "alone":
				q.cuts[i][j] = q.cuts[i][j] || i == at || j == at
			case "deaf":
				q.cuts[i][j] = q.cuts[i][j] || j == at
			case "dumb":
				q.cuts[i][j] = q.cuts[i][j] || i == at
			case "halves":
				q.cuts[i][j] = q.cuts[i][j] || first(i) != first(j)
			case "bridge": // two halves, and one that hears both
				q.cuts[i][j] = q.cuts[i][j] || i != at && j != at && first(i) != first(j)
			case "ring": // everybody hears a majority, and everybody another one
				q.cuts[i][j] = q.cuts[i][j] || min((i-j+n)%n, (j-i+n)%n) > (n/2+1)/2
			case "link": // one way
				q.cuts[i][j] = q.cuts[i][j] || i == at && j == f.to-1
			}
		}
	}
}
