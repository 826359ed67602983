package repl

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/teralog/teralog/mem"
	"github.com/teralog/teralog/storage"
	"github.com/teralog/teralog/wire"
)

// Settings are what a topic says about each of its partitions.
type Settings struct {
	Flush FlushMode
	// FlushBytes and FlushEvery are, in async mode, when the background flush
	// starts at the latest; in interval mode, how much may be acknowledged and
	// not yet flushed, in bytes and in age, both inclusive. 0 is the default:
	// 64 MiB and 1 s in async mode, 1 MiB and 100 ms in interval mode. Sync
	// mode has no use for them.
	FlushBytes int64
	FlushEvery time.Duration
	Log        storage.Options
	Owner      any // what Partition.Owner returns
}

// A Partition is this node's copy of one partition, which it leads.
//
// Produce, Await, Trim and View may be called from anywhere. Everything below
// the line belongs to the holder of the inbox's turn, who is inside turn.
type Partition struct {
	id    wire.PartitionID
	topic string
	owner any
	set   *Set
	dir   *directory
	log   *storage.Log // Flush: any goroutine, one at a time; the rest: the holder

	inbox    *mem.Queue[task]
	queued   *mem.Budget          // bytes of the batches in the inbox
	view     atomic.Pointer[View] // the holder stores, anyone loads
	landing  landing              // the directory's flusher leaves its result here
	timer    mem.Timer            // nudges the partition when a flush falls due
	closing  atomic.Pointer[wire.Error]
	broken   atomic.Pointer[error]              // what panicked outside of a turn
	captured atomic.Pointer[storage.Checkpoint] // the holder leaves it for the janitor
	doomed   atomic.Pointer[storage.Doomed]     // likewise
	changed  atomic.Bool                        // there is something a recovery point does not know
	writing  atomic.Int64                       // since when an append runs, on the monotonic clock; 0: none does
	pressure mem.Breaker                        // refuses while the inbox is nearly full
	dirt     dirt                               // what of the log is in memory only
	damage   told                               // what of it is damaged, and reported

	unheard bool // the janitor's: a proof that the holder has not heard of

	appender sync.Once     // starts the owner goroutine, with the first work left to it
	news     chan struct{} // tells it, once the inbox is closed, to look around
	stopped  chan struct{} // closed when it has ended

	// ----
	next        *View // to be published; its log is in place, or the newest one's
	leader      leader
	offsets     offsets
	waiters     waiters
	rest        leftover      // of them, still to be woken
	trims       []trim        // answered when durable
	uncut       int           // of trims, those that wait for a flush
	provedStart wire.Offset   // of the log, as the recovery points have it
	tasks       []task        // of the turn that runs, what is done zeroed
	spare       []task        // memory for the tasks of an inline turn
	armed       time.Duration // what timer is set to, 0: not set
	down        error         // why the partition is offline, for good
	reads       bool          // it is, and what is durable can be read all the same

	unproved *storage.Checkpoint // the janitor will not come for any more
	// What closing came to.
	cleanEnd storage.CleanEnd
	closeErr error
}

// A View is what is true of a partition at one moment. It never changes.
type View struct {
	Epoch     wire.Epoch    // of the leader, which this node is
	Start     wire.Offset   // the first offset kept
	Stable    wire.Offset   // the bound of consumers that read committed transactions only
	Committed wire.Offset   // the bound of consumers
	End       wire.Offset   // of the log, exclusive
	Flushed   wire.Offset   // below it everything is on this node's disk
	Oldest    time.Duration // when the first byte not on the disk was appended, on the monotonic clock; of no account if Flushed is End
	Log       *storage.View // of its own, or of an older View if the log is as it was
	// Err is not nil if the partition is offline or gone, and says why: OFFLINE,
	// SHUTTING_DOWN, NOT_LEADER. Nothing at or behind Bound may be read then.
	Err error
	// Reads says that the disk, which cannot be written any more, still answers.
	Reads bool

	log storage.View
}

// Bound returns the offset below which consumers may read: Committed, while the
// partition is in service. Of one that is offline for a disk that cannot be
// written any more it is what is known to be on that disk; the rest of what the
// cache shows may be gone tomorrow.
func (v *View) Bound() wire.Offset {
	switch {
	case v.Err == nil:
		return v.Committed
	case v.Reads:
		return min(v.Committed, v.Flushed)
	}
	return v.Start
}

// A Write is one batch on its way into the log.
type Write struct {
	// Batch was verified, is for this partition, and is stamped in place.
	Batch wire.Batch
	// Acks is 0, 1, or -1 for all.
	Acks int8
	// Since is when the write came, on the monotonic clock; 0: not known.
	Since time.Duration
	// Body holds the memory of Batch, with a reference for this write that the
	// partition gives up as soon as the batch is appended or refused. nil: none.
	Body *mem.Buf
	// Deadline is when a write that still waits is answered TIMEOUT, on the
	// monotonic clock; it stays in the log. 0: never.
	Deadline time.Duration
	// Done is called exactly once, on any goroutine, from within the
	// partition's turn: it must be quick and must not wait for the partition. It
	// may Produce, not inline.
	// On success at says where the batch lies, at.First = -1 for a duplicate so
	// old that this is not known any more. An error has a wire.Code that says
	// whether the write may still become visible.
	Done func(at storage.Appended, err error)
}

// A task is one message in a partition's mailbox: writes, or a fetch to park,
// or something rarer. The zero task only makes the holder look around: at a
// flush that landed, a directory that failed, a timer that came. Those news
// stand in a place of their own and cannot be lost to a full mailbox, since
// then a turn is due anyway.
type task struct {
	writes []Write
	bytes  int64 // of writes, taken from the budget
	fetch  parked
	rare   *chore
}

// A trim waits for its new start offset to be durable.
type trim struct {
	before wire.Offset
	done   func(start wire.Offset, err error)
	cut    bool // done in the log
}

func newPartition(s *Set, d *directory, topic string, id wire.PartitionID, l *storage.Log, st Settings) *Partition {
	v := l.View()
	p := &Partition{
		next: &View{Log: v},
		id:   id, topic: topic, owner: st.Owner, set: s, dir: d, log: l,
		inbox:   mem.NewQueue[task](s.config.QueueLimit),
		queued:  mem.NewBudget(s.config.QueueBytes),
		news:    make(chan struct{}, 1),
		stopped: make(chan struct{}),
		waiters: waiters{max: s.config.MaxParked},
	}
	p.timer.F = p.nudge
	l.PlaceViews(p.placeView)
	p.leader = leader{
		log:   l,
		epoch: v.Epoch(),
		flush: newFlushState(st, v.End()),
		acks:  acks{ring: mem.NewRing[ack](s.config.MaxUnacked), waits: &s.times.Flush},
		times: &s.times,
		turns: uint32(id.Partition), // else of partitions with few writes none would be timed
		clock: s.mono,
	}
	// Recovery has fsynced all there is, so a lone replica has committed it.
	p.offsets = p.offsets.after(v.Start(), v.End(), v.End(), v.End())
	p.provedStart = v.Start()
	p.publish()
	p.changed.Store(true)
	return p
}

// ID returns which partition it is.
func (p *Partition) ID() wire.PartitionID { return p.id }

// Topic returns the name of its topic.
func (p *Partition) Topic() string { return p.topic }

// Recovery returns what opening the log found and did; zero of one just created.
func (p *Partition) Recovery() storage.RecoveryReport { return p.log.Recovery() }

// Owner returns what its Settings were given for whoever hosts it.
func (p *Partition) Owner() any { return p.owner }

// Dir returns the data directory its log lies in.
func (p *Partition) Dir() *storage.Dir { return p.dir.dir }

// View returns the newest picture of the partition. Any goroutine.
func (p *Partition) View() *View { return p.view.Load() }

// Produce queues writes for the log, in this order; all of them get in or
// none. ws and what it points to belong to the partition until the last Done
// was called, which may be before Produce returns: with BUSY and a time to
// retry after if the mailbox or its byte budget is full, with the reason if
// the partition is gone.
//
// mine says that the partition was idle and its turn is now the caller's, who
// must call Enter soon, after it has brought what else is at hand, and must not
// wait for anything before that.
func (p *Partition) Produce(ws []Write) (mine bool) {
	if len(ws) == 0 {
		return false
	}
	t := task{writes: ws}
	for i := range ws {
		t.bytes += int64(len(ws[i].Batch))
	}
	if !p.queued.TryTake(t.bytes) {
		refuse(ws, errQueueFull)
		return false
	}
	ok, mine := p.inbox.Push(t)
	if !ok {
		p.queued.Give(t.bytes)
		refuse(ws, p.unable())
	}
	if mine && p.set.config.Manual {
		p.inbox.Free()
		return false
	}
	return mine
}

// Enter does the work of the turn that Produce gave the caller, or leaves it to
// the appender if it is long. alone says that the caller has no other partition
// to enter; in sync mode it may then be kept for the time of one flush. The caller
// sends what was answered, and calls Leave.
func (p *Partition) Enter(alone bool) {
	n := p.queued.Used()
	if n > maxInline || !p.log.Steady(n) || p.dir.slow.Load() {
		p.leave()
		return
	}
	now := p.set.config.Clock.Now()
	switch flush := p.inline(now); {
	case !flush:
	case !alone || n > maxFlushInline || p.leader.flush.mode != Sync:
		p.dir.flushAside(p) // what others wait for, or nobody
	case p.dir.begin(p, now.Mono) && p.dir.flush(p):
		p.dir.flushAside(p) // the next one is not the caller's
	}
}

// Leave wakes those for whom there is more since Enter, if they are several.
func (p *Partition) Leave() { p.wakeRest() }

// maxInline is how many bytes a reader may append itself: more would hold up
// its connection for long. maxFlushInline is up to how many it may flush too: a
// lone small write has nobody behind it, with more there may be others to
// receive meanwhile.
const (
	maxInline      = 1 << 20
	maxFlushInline = 16 << 10
)

// Await parks w until the log is past w.From by w.MinBytes. The error is BUSY
// if the mailbox is full or says that the partition is gone; then w is not
// parked. Wake may be called before Await returns.
func (p *Partition) Await(w *Waiter) error {
	f := w.park()
	ok, mine := p.inbox.Push(task{fetch: f})
	if !ok {
		w.claim(f.ticket, over)
		return p.unable()
	}
	if mine {
		p.enterNow()
	}
	return nil
}

// Trim drops the records below before, at most View.Committed. done is called
// once, when the new start offset is durable and no crash brings them back,
// with that start; or with an error.
func (p *Partition) Trim(before wire.Offset, done func(start wire.Offset, err error)) {
	if !p.ask(&chore{kind: choreTrim, trim: trim{before: before, done: done}}) {
		done(-1, p.unable())
	}
}

// ask queues a chore. It returns false if that did not get in.
func (p *Partition) ask(c *chore) bool {
	ok, mine := p.inbox.Push(task{rare: c})
	if mine {
		p.enterNow()
	}
	return ok
}

// nudge makes somebody turn the partition. Any goroutine; it does not block.
func (p *Partition) nudge() {
	ok, mine := p.inbox.Push(task{})
	if !ok {
		p.tell()
	}
	if mine {
		p.leave()
	}
}

// tell wakes an appender that drains a closed inbox.
func (p *Partition) tell() {
	select {
	case p.news <- struct{}{}:
	default:
	}
}

// unable says why the inbox did not take a task.
func (p *Partition) unable() error {
	if v := p.view.Load(); v.Err != nil {
		return v.Err
	}
	if err := p.closing.Load(); err != nil {
		return err
	}
	return errQueueFull
}

var (
	errQueueFull        = &wire.Error{Code: wire.CodeBusy, Message: "the partition's queue is full", RetryAfter: 50 * time.Millisecond, Limit: wire.LimitPartitionQueue}
	errTooManyAcks      = &wire.Error{Code: wire.CodeBusy, Message: "too many writes of the partition wait for their acknowledgement", RetryAfter: 200 * time.Millisecond, Limit: wire.LimitPartitionAcks}
	errDirty            = &wire.Error{Code: wire.CodeDiskSlow, Message: "as many bytes wait for the disk as may", RetryAfter: 50 * time.Millisecond, Limit: wire.LimitDirty}
	errDiskSlow         = &wire.Error{Code: wire.CodeDiskSlow, Message: "the disk does not keep up", RetryAfter: time.Second, Limit: wire.LimitDiskSlow}
	errTooManyParked    = &wire.Error{Code: wire.CodeBusy, Message: "too many fetches wait on the partition", RetryAfter: 200 * time.Millisecond, Limit: wire.LimitPartitionParked}
	errTooManyProducers = &wire.Error{Code: wire.CodeBusy, Message: "the partition knows as many producers as it may", RetryAfter: time.Second, Limit: wire.LimitPartitionProducers}
	errTooManyTrims     = &wire.Error{Code: wire.CodeBusy, Message: "too many trims of the partition wait", RetryAfter: time.Second, Limit: wire.LimitPartitionTrims}
	errAckTimeout       = &wire.Error{Code: wire.CodeTimeout, Message: "the write is in the log, its acknowledgement did not come in time"}
	errShutdown         = &wire.Error{Code: wire.CodeShuttingDown, Message: "the broker stops", RetryAfter: 200 * time.Millisecond}
	errDropped          = &wire.Error{Code: wire.CodeNotLeader, Message: "the partition is not on this node any more"}
)

// refuse answers writes that nobody has touched.
func refuse(ws []Write, err error) {
	for len(ws) > 0 {
		w := ws[0]
		ws = ws[1:]
		w.answer(storage.Appended{First: -1, Last: -1}, err)
	}
}

// answer gives up the write's memory and calls its Done.
func (w *Write) answer(at storage.Appended, err error) {
	w.release()
	w.Done(at, err)
}

func (w *Write) release() {
	if w.Body != nil {
		w.Body.Release()
		w.Body = nil
	}
}
