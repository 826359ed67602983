package raft

import "fmt"

// A progress is what a leader knows of one follower. It is in one of three
// modes and changes only through its methods:
//
//	probing      one append under way, until it is known where the logs meet
//	replicating  appends follow each other without waiting, within the window
//	streaming    the follower needs what the log has no more: a snapshot, one
//	             chunk under way
//
//	acked     any → replicating: the logs meet; while streaming, not before the
//	          snapshot is there
//	rejected  probing, replicating → probing, further back
//	lost      any → probing, the match forgotten
//	answered  replicating → probing, if nothing moved since the last time: what
//	          was sent is taken for lost; in the others it may be sent again
//	stream    any → streaming
//
// Each step back begins an era. Appends and their answers carry it, so a late
// rejection is not taken for another one: where appends overtake each other, it
// would send a window again for each of a window.
type progress struct {
	mode  mode
	match Index // held and durable there, inclusive
	next  Index // the next entry to send, above match
	era   uint64

	waiting  bool    // probing, streaming: one message is under way
	inflight []Index // replicating: the last entry of each append under way, ascending
	told     Index   // the commit index last sent
	seen     Index   // match at the last answered heartbeat

	damaged bool // it has lost a part of its log, so match does not count
	active  bool // something came from it since the last look

	snapshot Snapshot // streaming: what is sent
	offset   uint64   // streaming: how much of it is there
	round    uint64   // the newest heartbeat it answered
}

type mode uint8

const (
	probing mode = iota
	replicating
	streaming
)

func newProgress(next Index) *progress { return &progress{next: next} }

// ready reports whether another append may be sent now.
func (p *progress) ready(window int) bool {
	switch p.mode {
	case probing:
		return !p.waiting
	case replicating:
		return len(p.inflight) < window
	}
	return false
}

// sent notes an append that ends with entry last; of no entries, last is the one
// before next.
func (p *progress) sent(last, commit Index) {
	p.told = commit
	if p.mode == probing {
		p.waiting = true
		return
	}
	if last >= p.next {
		p.next = last + 1
		p.inflight = append(p.inflight, last)
	}
}

// acked notes that the follower holds all up to i. It reports whether that was
// news.
func (p *progress) acked(i Index) bool {
	news, old := i > p.match, i < p.match
	p.match = max(p.match, i)
	p.next = max(p.next, p.match+1)
	for len(p.inflight) > 0 && p.inflight[0] <= i {
		p.inflight = p.inflight[1:]
	}
	switch {
	case old || p.mode == replicating:
	case p.mode == streaming && p.match < p.snapshot.Index:
	default:
		p.become(replicating)
	}
	return news
}

// rejected notes that entry prev of an append of some era did not match, and
// that at most hint may. It reports whether that was news.
func (p *progress) rejected(era uint64, prev, hint Index) bool {
	switch {
	case era != p.era || p.mode == streaming:
		return false
	case p.damaged && hint < p.match:
		p.lost(hint)
		return true
	case prev <= p.match:
		return false
	}
	p.become(probing)
	p.next = max(min(prev, hint+1), p.match+1)
	return true
}

// lost forgets what the follower said it held: it cannot read it any more.
func (p *progress) lost(hint Index) {
	p.become(probing)
	p.match, p.damaged = min(p.match, hint), true
	p.next = p.match + 1
	p.told = 0
}

// answered notes that the follower lives, up to the given heartbeat.
func (p *progress) answered(round uint64) {
	p.round = max(p.round, round)
	if p.mode == replicating && len(p.inflight) > 0 && p.match == p.seen {
		p.become(probing)
	}
	p.seen, p.waiting = p.match, false
}

// stream begins to send a snapshot.
func (p *progress) stream(s Snapshot) {
	p.become(streaming)
	p.snapshot, p.offset = s, 0
}

// wants notes that the follower has the snapshot up to offset.
func (p *progress) wants(s Index, offset uint64) {
	if p.mode == streaming && p.snapshot.Index == s && offset <= p.snapshot.Size {
		p.offset, p.waiting = offset, false
	}
}

func (p *progress) become(m mode) {
	p.mode, p.waiting, p.inflight = m, false, nil
	p.snapshot, p.offset = Snapshot{}, 0
	if m == probing {
		p.era++
	}
	if m != streaming {
		p.next = p.match + 1
	}
	if p.next <= p.match {
		panic(fmt.Sprintf("BUG: next entry %d, matched up to %d", p.next, p.match))
	}
}
