package raft

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
)

// How a proposal that was accepted ends, if not committed.
var (
	// ErrIndefinite says that leadership or the store was lost before the
	// outcome was known: the proposal may still be committed, or never.
	ErrIndefinite = errors.New("it may or may not take effect")
	// ErrReplaced says that another leader's entry took the place: the
	// proposal will never be committed.
	ErrReplaced = errors.New("another leader's entry took its place")
	// ErrClosed says that the driver runs no more; nothing was proposed.
	ErrClosed = errors.New("this node takes no part any more")
)

// A Transport sends messages. It does not block and may lose any of them. The
// slice is not its own once Send has returned; entries and data it may keep, but
// not change: they are shared.
type Transport interface{ Send([]Message) }

// A Machine is what the log is for. Apply gets each committed entry once, in
// order, those that are no command included. What a machine shows follows from
// the entries alone, so that all nodes show the same.
//
// A client that proposes again after ErrIndefinite may commit its command
// twice. To apply it once the machine keeps the request ids it has applied: they
// have to be in its snapshots, so only it can.
type Machine interface {
	Apply(Entry)
	Snapshot() ([]byte, error)
	Restore([]byte) error
}

// Options bound a driver. Zero stands for the default.
type Options struct {
	MaxCalls        int // proposals, reads and other calls that wait for a turn; default 4096
	MaxCallBytes    int // of proposals that wait for a turn; default 32 MiB
	MaxMessages     int // that wait for a turn; more are lost; default 4096
	MaxMessageBytes int // default 64 MiB
	SnapshotBytes   int // log since the last snapshot after which one is taken, or a quarter of that one's size if that is more; default 1 MiB
	SnapshotEntries int // entries since then after which one is taken, whatever their size; default: no matter how many
}

func (o *Options) defaults() {
	o.MaxCalls = cmp.Or(o.MaxCalls, 4096)
	o.MaxCallBytes = cmp.Or(o.MaxCallBytes, 32<<20)
	o.MaxMessages = cmp.Or(o.MaxMessages, 4096)
	o.MaxMessageBytes = cmp.Or(o.MaxMessageBytes, 64<<20)
	o.SnapshotBytes = cmp.Or(o.SnapshotBytes, 1<<20)
}

// A Driver turns a node: it persists, sends and applies, in the order that
// makes the node's promises true.
//
// Propose, Read, Change, Transfer, Deliver and Tick may be called from
// anywhere; the rest belongs to who calls Turn. Callbacks run inside Turn, or at
// once if the call is refused, and must not block.
type Driver struct {
	inbox     inbox
	spare     work // what the inbox fills next
	node      *Node
	store     Store
	transport Transport
	machine   Machine
	o         Options

	held      heldReady // while holds
	holds     bool      // a Ready is out: the store had no room for it
	applied   Index
	unsaved   int        // bytes applied since the last snapshot was due
	passed    Index      // applied then
	proposals []proposal // accepted, ascending by index
	asked     map[uint64]func(Index, error)
	tickets   uint64
	reads     []waitingRead // confirmed, not yet applied that far
	err       error         // why it stopped

	unreadable bool // the newest snapshot could not be sent: another one is due
}

type proposal struct {
	index Index
	term  Term
	done  func(Index, error)
}

// A heldReady is a Ready that is being done: what is done is taken out of todo.
type heldReady struct {
	ready Ready
	todo  Ready
	sync  bool   // something was written that is to be durable
	gone  []Peer // whose snapshot the store has no more
}

type waitingRead struct {
	index Index
	done  func(Index, error)
}

// NewDriver starts a node from what its store holds, and restores the machine
// to the newest snapshot.
func NewDriver(c Config, s Store, t Transport, m Machine, o Options) (*Driver, error) {
	o.defaults()
	state, err := s.Load()
	if err != nil {
		return nil, err
	}
	n, err := New(c, state)
	if err != nil {
		return nil, err
	}
	d := &Driver{node: n, store: s, transport: t, machine: m, o: o, asked: map[uint64]func(Index, error){}}
	d.inbox.init(o)
	return d, d.restore(state.Snapshot.Index)
}

func (d *Driver) restore(i Index) error {
	if i == 0 {
		return nil
	}
	state, err := d.store.State()
	if err == nil {
		err = d.machine.Restore(state)
	}
	if err != nil {
		return fmt.Errorf("restore the snapshot at entry %d: %w", i, err)
	}
	d.applied, d.unsaved = i, 0
	return nil
}

// Status returns where the node stands.
func (d *Driver) Status() Status { return d.node.Status() }

// Propose hands in a command. done gets its index once it is committed and
// applied here, or why not: ErrIndefinite says that the outcome is not known,
// every other error that it has no effect and never will.
func (d *Driver) Propose(data []byte, done func(Index, error)) {
	d.call(len(data), done, func() { d.accept(done)(d.node.Propose(data)) })
}

// Change hands in a change of the membership; see Node.Change. done is called
// once the first step of it is committed.
func (d *Driver) Change(voters, learners []Peer, done func(Index, error)) {
	d.call(0, done, func() { d.accept(done)(d.node.Change(voters, learners)) })
}

// Read calls done once the machine shows all that was committed when Read was
// called, with the index it shows. An error says to ask the leader again.
func (d *Driver) Read(done func(Index, error)) {
	d.call(0, done, func() {
		d.tickets++
		if err := d.node.Read(d.tickets); err != nil {
			done(0, err)
			return
		}
		d.asked[d.tickets] = done
	})
}

// Transfer begins to hand leadership to another voter, the zero Peer: to the
// fittest. done says whether it has begun; Status shows for how long.
func (d *Driver) Transfer(to Peer, done func(Index, error)) {
	d.call(0, done, func() { done(0, d.node.Transfer(to)) })
}

func (d *Driver) call(bytes int, done func(Index, error), f func()) {
	if err := d.inbox.call(bytes, call{f, done}); err != nil {
		done(0, err)
	}
}

// accept notes a proposal that was appended, or answers one that was not.
func (d *Driver) accept(done func(Index, error)) func(Index, Term, error) {
	return func(i Index, t Term, err error) {
		if err != nil {
			done(0, err)
			return
		}
		d.proposals = append(d.proposals, proposal{i, t, done})
	}
}

// Deliver hands in a message; if too much waits it is lost.
func (d *Driver) Deliver(m Message) { d.inbox.deliver(m) }

// Tick says that a tick has passed. Ticks that come during one turn count as
// one: a node that was held up has not been without its leader for so long.
func (d *Driver) Tick() { d.inbox.tick() }

// Turn does all that waits, once. While the store has no room it tries what it
// could not do again, and nothing else: what comes waits, within its bounds. An
// error is final: the store failed, and only a restart shows what it holds.
func (d *Driver) Turn() (worked bool, err error) {
	if d.err != nil {
		return false, d.err
	}
	if !d.holds {
		worked = d.step()
	}
	if d.holds {
		switch err = d.do(&d.held); {
		case errors.Is(err, ErrNoRoom):
			return worked, nil
		case err == nil:
			d.held, d.holds, worked = heldReady{}, false, true
		}
	}
	if err == nil {
		d.answerReads()
		d.giveUp()
		err = d.maybeSnapshot()
	}
	if err != nil {
		d.stop(err)
	}
	return worked, err
}

// step gives the node what waits for it, and sends what need not be durable.
func (d *Driver) step() (worked bool) {
	in := d.inbox.take(d.spare)
	worked = in.any()
	for i := range in.messages {
		d.node.Step(&in.messages[i])
	}
	for _, c := range in.calls {
		c.do()
	}
	if in.ticked { // last, since what had arrived before may say that all is well
		d.node.Tick()
	}
	d.spare = in.emptied()
	if r, ready := d.node.Ready(); ready {
		d.held, d.holds = heldReady{ready: r, todo: r, gone: d.send(r.Now)}, true
	}
	return worked
}

func (d *Driver) do(h *heldReady) error {
	if err := d.persist(h); err != nil {
		return err
	}
	r := &h.ready
	d.send(r.After)
	for _, e := range r.Committed {
		d.machine.Apply(e)
		d.applied = e.Index
		d.unsaved += entryCost(&e)
		d.answer(e)
	}
	d.node.Advance(*r)
	for _, p := range h.gone {
		d.unreadable = d.node.SnapshotGone(p) || d.unreadable
	}
	for _, read := range r.Reads {
		done := d.asked[read.Ticket]
		delete(d.asked, read.Ticket)
		if read.Err != nil {
			done(0, read.Err)
			continue
		}
		d.reads = append(d.reads, waitingRead{read.Index, done})
	}
	return nil
}

// send hands messages to the transport, chunks of snapshots with what they are
// to carry. It returns those whose snapshot the store has no more.
func (d *Driver) send(messages []Message) (gone []Peer) {
	whole := messages[:0]
	for _, m := range messages {
		if m.Kind == SnapshotKind {
			data, err := d.store.Chunk(m.Snapshot.Index, m.Offset, d.node.ChunkBytes())
			if err != nil {
				gone = append(gone, m.To)
				continue
			}
			m.Data = data
		}
		whole = append(whole, m)
	}
	if len(whole) > 0 {
		d.transport.Send(whole)
	}
	return gone
}

// persist makes durable what is left to do of h. After ErrNoRoom it goes on
// where it stopped.
func (d *Driver) persist(h *heldReady) error {
	r := &h.todo
	for len(r.Chunks) > 0 {
		c := r.Chunks[0]
		if err := d.store.Stage(c.Snapshot, c.Offset, c.Data); err != nil {
			return err
		}
		r.Chunks = r.Chunks[1:]
	}
	if r.Vote != nil {
		if err := d.store.SetVote(*r.Vote); err != nil {
			return err
		}
		r.Vote, h.sync = nil, h.sync || !mutant("vote not fsynced")
	}
	if r.Install != nil {
		if err := d.store.Install(*r.Install); err != nil {
			return err
		}
		if err := d.restore(r.Install.Index); err != nil {
			return err
		}
		r.Install = nil
	}
	if len(r.Entries) > 0 {
		if err := d.store.Append(r.Entries); err != nil {
			return err
		}
		r.Entries, h.sync = nil, true
	}
	if h.sync {
		if err := d.store.Sync(); err != nil {
			return err
		}
		h.sync = false
	}
	if r.Repaired {
		return d.store.Repaired()
	}
	return nil
}

// answer ends the proposal whose place the entry has.
func (d *Driver) answer(e Entry) {
	for len(d.proposals) > 0 && d.proposals[0].index <= e.Index {
		p := d.proposals[0]
		d.proposals = d.proposals[1:]
		switch {
		case p.index < e.Index:
			p.done(0, ErrIndefinite)
		case p.term != e.Term:
			p.done(0, ErrReplaced)
		default:
			p.done(e.Index, nil)
		}
	}
}

func (d *Driver) answerReads() {
	kept := d.reads[:0]
	for _, r := range d.reads {
		if r.index <= d.applied {
			r.done(d.applied, nil)
		} else {
			kept = append(kept, r)
		}
	}
	d.reads = kept
}

// giveUp answers the proposals of a leadership that is over: whoever leads next
// decides about them.
func (d *Driver) giveUp() {
	if len(d.proposals) == 0 {
		return
	}
	s := d.node.Status()
	if s.Leads && s.Term == d.proposals[0].term {
		return
	}
	kept := d.proposals[:0]
	for _, p := range d.proposals {
		if s.Leads && p.term == s.Term {
			kept = append(kept, p)
		} else {
			p.done(0, ErrIndefinite)
		}
	}
	d.proposals = kept
}

// maybeSnapshot keeps the machine's state when the log has grown enough, and
// drops the entries that the snapshot before stood for: those since then help
// a follower that is a little behind.
func (d *Driver) maybeSnapshot() error {
	last := d.node.log.snapshot
	bytes := max(d.o.SnapshotBytes, int(last.Size/4))
	due := d.unsaved >= bytes || d.unreadable ||
		d.o.SnapshotEntries > 0 && d.applied-max(last.Index, d.passed) >= Index(d.o.SnapshotEntries)
	// A member that takes for ever must not let the log grow for ever.
	if !due || d.node.Streaming() && d.unsaved < 4*bytes {
		return nil
	}
	state, err := d.machine.Snapshot()
	if err != nil {
		return fmt.Errorf("snapshot at entry %d: %w", d.applied, err)
	}
	s, keepAfter := d.node.SnapshotAt(d.applied, uint64(len(state))), last.Index
	if s.Index == last.Index { // in place of one that cannot be read
		keepAfter = d.node.log.base.index
	}
	d.unsaved, d.passed, d.unreadable = 0, d.applied, false
	switch err := d.store.SaveSnapshot(s, state, keepAfter); {
	case errors.Is(err, ErrNoRoom):
		return nil // the log still has everything; the next one may do
	case err != nil:
		return err
	}
	d.node.Compact(s, keepAfter)
	return nil
}

// Close answers everybody and takes part no more. Nothing follows it.
func (d *Driver) Close() {
	if d.err == nil {
		d.stop(ErrClosed)
	}
}

// stop answers everybody and takes part no more.
func (d *Driver) stop(err error) {
	d.err = err
	for _, c := range d.inbox.close() {
		c.done(0, ErrClosed)
	}
	for _, p := range d.proposals {
		p.done(0, ErrIndefinite)
	}
	for _, t := range slices.Sorted(maps.Keys(d.asked)) {
		d.asked[t](0, ErrClosed)
	}
	for _, r := range d.reads {
		r.done(0, ErrClosed)
	}
	d.proposals, d.asked, d.reads = nil, nil, nil
}
