package coord

import (
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync/atomic"
	"time"

	"github.com/teralog/teralog/mem"
	"github.com/teralog/teralog/raft"
	"github.com/teralog/teralog/storage"
	"github.com/teralog/teralog/wire"
)

// ErrFailed says that the metadata log can no longer be made durable. It is
// final: the process must end, and should not be started again before someone
// has looked at the disk.
var ErrFailed = errors.New("the metadata log has failed")

// Options say how a Coord works. All but MaxHosted, Cluster, Queue, SnapshotEvery
// and Log must be given.
type Options struct {
	Node wire.NodeID
	// NewTopicID returns a random number; bits and values an id cannot have are
	// dealt with here.
	NewTopicID func() wire.TopicID
	// Dirs returns the data directories that take new partitions, healthy ones
	// only. It is called in turns that have commands.
	Dirs func() []DirSpace
	// MaxHosted is how many partitions those directories may hold in all before
	// topics are refused; 0: as many as there may be.
	MaxHosted int
	// Clock is read by Run only.
	Clock *mem.Clock

	// Cluster says how to reach the other nodes that keep the metadata; nil:
	// there are none.
	Cluster *Cluster

	Queue         int          // commands waiting at most; 0: 1024
	SnapshotEvery int          // entries after which a snapshot is taken; 0: by their size alone
	Log           *slog.Logger // nil: none
}

// A Coord owns the metadata: it decides commands one after the other and keeps
// the metadata log, whose entries Raft commits.
//
// Image, Submit and NextProducer may be called from anywhere. The fields in
// loop belong to the goroutine inside Run; a simulator takes its place by
// calling Turn.
type Coord struct {
	o     Options
	inbox *mem.Queue[task]
	image atomic.Pointer[Image] // committed; the loop stores, anyone loads
	stops atomic.Bool           // the inbox is closed
	found storage.RecoveryReport

	remote remote

	loop struct {
		log    journal
		driver *raft.Driver
		now    mem.Now
		tasks  []task    // taken from the inbox, not handled yet
		own    *ownEntry // proposed here, outcome not known; nil: none
		next   *draft    // applied, not published yet; nil: nothing is
		lost   []answer  // of an entry of which nobody knows what becomes of it

		awaited []answer      // decided by other nodes, not shown by the image yet
		leaves  bool          // leadership was offered to others
		block   producerBlock // ids to give out
		err     error         // final
	}
}

// An ownEntry is an entry that this node proposed. There is one at a time, so
// each is handled against the newest state; what comes meanwhile shares the
// next.
type ownEntry struct {
	value   []byte
	draft   *draft // the image with it
	answers []answer
	block   producerBlock
}

// A journal keeps the metadata log; see metalog.go.
type journal interface {
	raft.Store
	// turn tells the time of what is done next.
	turn(now mem.Now)
	// room returns DISK_FULL if there is no room for an entry of n bytes.
	room(n int) error
	// lastFull returns why there was no room the last time, nil if there was.
	lastFull() error
	close() (storage.CleanEnd, error)
}

// A task is a command with the one who waits for its answer.
type task struct {
	cmd  Command
	done func(Result, error)
	here bool // not to be handed on
}

// An answer is a task's outcome that is not told yet.
type answer struct {
	done   func(Result, error)
	result Result
	err    error
}

// Open opens the metadata log in the first data directory, or makes it if that
// is empty. A node alone replays it and begins a new term; when Open returns all
// that Image shows is durable. One of several shows what its newest snapshot
// says, until a leader has told it what is committed. The error wraps ErrDamaged
// if metadata was lost. A turn before Run is made by calling Turn until it has
// nothing to do.
func Open(dir *storage.Dir, o Options, now mem.Now) (*Coord, error) {
	o = o.filled()
	self := raft.Peer{ID: raft.NodeID(o.Node), Incarnation: raft.UUID(dir.ID())}
	m, err := openMetalog(dir, self, o.Cluster == nil, o.Log, now)
	if err != nil {
		return nil, err
	}
	c := newCoord(m, o)
	c.found = m.log.Recovery()
	for _, step := range []func() error{
		func() error { return c.bootstrap(m, self) },
		func() error { return c.drive(self, raft.UUID(dir.Cluster()), now) },
		func() error { return c.lead(self, now) },
		m.checkpoint,
	} {
		if err := step(); err != nil {
			return nil, m.giveUp(err)
		}
	}
	return c, nil
}

func (o Options) filled() Options {
	if o.Queue == 0 {
		o.Queue = 1024
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return o
}

func newCoord(log journal, o Options) *Coord {
	c := &Coord{o: o, inbox: mem.NewQueue[task](o.Queue)}
	c.image.Store(emptyImage)
	c.loop.log = log
	return c
}

// Image returns the newest durable metadata.
func (c *Coord) Image() *Image { return c.image.Load() }

// Recovery returns what opening the metadata log found.
func (c *Coord) Recovery() storage.RecoveryReport { return c.found }

// Submit asks for a command. done is called exactly once, when the outcome is
// durable and Image shows it: by the goroutine inside Run or Turn, or before
// Submit returns if the command is refused. It must not block. Beside the
// command's own errors there are
//
//	BUSY           too many commands wait
//	DISK_FULL      the metadata log has no room
//	SHUTTING_DOWN  the Coord stops
//	OFFLINE        the metadata log failed before the command was appended
//	STORAGE_ERROR  it failed after that: the command may yet have taken effect
//	NOT_LEADER     no node leads the metadata at the moment
//	TIMEOUT        leadership was lost, or a node does not answer: it may yet
//	               take effect
func (c *Coord) Submit(cmd Command, done func(Result, error)) {
	c.push(task{cmd: cmd, done: done})
}

// NextProducer gives out a producer id that nobody was or will be given. done
// is called as by Submit.
func (c *Coord) NextProducer(done func(wire.ProducerID, error)) {
	c.push(task{cmd: nextProducer{}, done: func(r Result, err error) { done(r.First, err) }})
}

func (c *Coord) push(t task) {
	ok, mine := c.inbox.Push(t)
	if mine {
		c.inbox.Hand()
	}
	if ok {
		c.loop.driver.Wake()
		return
	}
	if c.stops.Load() {
		t.done(Result{}, wire.Errorf(wire.CodeShuttingDown, "the node takes no more metadata changes"))
		return
	}
	t.done(Result{}, &wire.Error{Code: wire.CodeBusy, Message: "too many metadata changes wait", RetryAfter: 100 * time.Millisecond, Limit: wire.LimitMetadata})
}

// stop makes every later Submit fail.
func (c *Coord) stop() {
	c.stops.Store(true)
	c.inbox.Close()
	c.loop.driver.Wake()
}

// Turn takes one step: it handles the commands that wait and proposes what they
// change as one entry, if no other one is under way, and turns Raft once, which
// makes entries durable, commits and applies them. It returns whether there was
// anything to do. The error wraps ErrFailed.
func (c *Coord) Turn(now mem.Now) (worked bool, err error) {
	if c.loop.err != nil {
		return false, c.loop.err
	}
	c.loop.now = now
	c.loop.log.turn(now)
	handled := c.handle(now)
	worked, err = c.loop.driver.Turn()
	if err == nil {
		err = c.loop.err
	}
	if err != nil {
		return true, c.fail(err)
	}
	c.publish()
	c.tellLost(wire.CodeTimeout, "another node leads the metadata now; the change may yet take effect")
	arrived := c.arrive()
	c.report()
	return worked || handled || arrived, nil
}

// maxEntry is the size in bytes at which an entry takes no further change. The
// largest change, a topic of MaxTopicPartitions, comes on top of it.
const maxEntry = 512 << 10

// handle decides the commands that wait, as many as one entry holds. They wait
// for the entries before: until those are applied the newest state is not known.
func (c *Coord) handle(now mem.Now) (worked bool) {
	if c.loop.own != nil {
		return false
	}
	if c.remote.under.Load() >= int64(c.o.Queue) {
		return false // other nodes have enough to do
	}
	if len(c.loop.tasks) == 0 && c.inbox.Len() > 0 {
		c.loop.tasks, _ = c.inbox.PopAll(c.loop.tasks)
		c.inbox.Free() // another goroutine may be the next to turn
	}
	if len(c.loop.tasks) == 0 {
		return false
	}
	if s := c.loop.driver.Status(); !s.Leads || s.Applied < s.Last {
		return c.handOn(s)
	}
	p := proposal{image: c.Image(), block: c.loop.block}
	e := env{now: now, node: c.o.Node, dirs: c.o.Dirs(), maxHosted: c.o.MaxHosted, newTopicID: c.o.NewTopicID}
	done := 0
	for _, t := range c.loop.tasks {
		if len(p.changes) >= maxEntry {
			break
		}
		p.add(e, t)
		done++
	}
	c.loop.tasks = slices.Delete(c.loop.tasks, 0, done)
	if p.draft == nil {
		c.loop.block = p.block
		tell(p.answers)
		return true
	}
	value := joinEntry(p.count, p.changes)
	if err := c.loop.log.room(len(value)); err != nil {
		refuse(p.answers, wire.CodeDiskFull, fmt.Sprintf("the metadata log has no room left: %v", err))
		return true
	}
	c.loop.own = &ownEntry{value, p.draft, p.answers, p.block}
	c.loop.driver.Propose(value, c.settled)
	return true
}

// handOn gives the commands that wait to the node that leads, if there is one;
// if it is this one, it will soon handle them.
func (c *Coord) handOn(s raft.Status) (worked bool) {
	if s.Leads {
		return false
	}
	tasks := c.loop.tasks
	c.loop.tasks = nil
	for _, t := range tasks {
		if t.here || s.Leader == (raft.Peer{}) {
			t.done(Result{}, notLeading(s))
		} else {
			c.forward(s, t)
		}
	}
	return true
}

func notLeading(s raft.Status) error {
	if s.Leader == (raft.Peer{}) {
		return wire.Errorf(wire.CodeNotLeader, "no node leads the metadata at the moment")
	}
	return wire.Errorf(wire.CodeNotLeader, "node %d leads the metadata", s.Leader.ID)
}

// settled is told what became of the entry proposed here.
func (c *Coord) settled(_ raft.Index, err error) {
	own := c.loop.own
	c.loop.own = nil
	if err == nil {
		c.publish()
		c.loop.block = own.block
		tell(own.answers)
		return
	}
	c.loop.block = producerBlock{}
	if errors.Is(err, raft.ErrIndefinite) {
		c.loop.lost = own.answers
		return
	}
	refuse(own.answers, wire.CodeNotLeader, fmt.Sprintf("the change was not made: %v", err))
}

// tellLost answers those of whose entry nobody knows.
func (c *Coord) tellLost(code wire.Code, why string) {
	answers := c.loop.lost
	c.loop.lost = nil
	refuse(answers, code, why)
}

// fail ends the Coord: after a failed write or fsync nothing may be believed
// that was not durable before.
func (c *Coord) fail(err error) error {
	c.loop.err = fmt.Errorf("%w: %w", ErrFailed, err)
	c.loop.driver.Close()
	c.tellLost(wire.CodeStorageError, "the metadata log failed while the change was written")
	c.stop()
	c.refuseTasks(wire.CodeOffline, "the metadata log has failed")
	return c.loop.err
}

// refuseTasks answers all that still waits. The inbox is closed.
func (c *Coord) refuseTasks(code wire.Code, why string) {
	if c.inbox.Len() > 0 {
		c.loop.tasks, _ = c.inbox.PopAll(c.loop.tasks)
	}
	for _, t := range c.loop.tasks {
		t.done(Result{}, wire.Errorf(code, "%s", why))
	}
	c.loop.tasks = nil
}

// Close closes the metadata log and returns its end for the clean mark of its
// data directory. Run has returned, or never ran, and no Turn follows. What was
// proposed is committed and answered, if it can be; what only waits is refused.
func (c *Coord) Close() (storage.CleanEnd, error) {
	c.stop()
	c.refuseTasks(wire.CodeShuttingDown, "the node stops")
	for worked := true; worked && c.loop.own != nil; {
		worked, _ = c.Turn(c.loop.now) // an error stays in loop.err
	}
	c.loop.driver.Close()
	c.tellLost(wire.CodeTimeout, "the node stopped; the change may yet take effect")
	end, err := c.loop.log.close()
	if c.loop.err != nil {
		return storage.CleanEnd{}, errors.Join(c.loop.err, err)
	}
	return end, err
}

func tell(as []answer) {
	for _, a := range as {
		a.done(a.result, a.err)
	}
}

func refuse(as []answer, code wire.Code, why string) {
	for _, a := range as {
		a.done(Result{}, wire.Errorf(code, "%s", why))
	}
}
