package coord

import (
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync/atomic"
	"time"

	"github.com/teralog/teralog/mem"
	"github.com/teralog/teralog/storage"
	"github.com/teralog/teralog/wire"
)

// ErrFailed says that the metadata log can no longer be made durable. It is
// final: the process must end, and should not be started again before someone
// has looked at the disk.
var ErrFailed = errors.New("the metadata log has failed")

// Options say how a Coord works. All but Queue, SnapshotEvery and Log must be
// given.
type Options struct {
	Node wire.NodeID
	// NewTopicID returns a random number; bits and values an id cannot have are
	// dealt with here.
	NewTopicID func() wire.TopicID
	// Dirs returns the data directories that take new partitions, healthy ones
	// only. It is called in turns that have commands.
	Dirs func() []DirSpace
	// Clock is read by Run only.
	Clock *mem.Clock

	Queue         int          // commands waiting at most; 0: 1024
	SnapshotEvery int          // entries from one snapshot to the next; 0: 10,000
	Log           *slog.Logger // nil: none
}

// A Coord owns the metadata: it decides commands one after the other and keeps
// the metadata log.
//
// Image, Submit and NextProducer may be called from anywhere. The fields in
// loop belong to the goroutine inside Run; a simulator takes its place by
// calling Turn.
type Coord struct {
	o     Options
	inbox *mem.Queue[task]
	image atomic.Pointer[Image] // durable; the loop stores, anyone loads
	stops atomic.Bool           // the inbox is closed
	found storage.RecoveryReport

	loop struct {
		log     journal
		tasks   []task        // taken from the inbox, not handled yet
		draft   *draft        // appended, not durable yet; nil: nothing is
		answers []answer      // due once draft is durable
		block   producerBlock // ids to give out
		entries int           // since the last snapshot
		bytes   int           // in them
		err     error         // final
	}
}

// A journal keeps the metadata log; see metalog.go.
type journal interface {
	// append adds one entry at the end. If the disk is full nothing is
	// appended and the error wraps DISK_FULL; any other is final.
	append(value []byte, now mem.Now) error
	// flush makes all that is appended durable. An error is final.
	flush() error
	// snapshot keeps the image, so that what came before need not be replayed.
	snapshot(i *Image) error
	close() (storage.CleanEnd, error)
}

// A task is a command with the one who waits for its answer.
type task struct {
	cmd  Command
	done func(Result, error)
}

// An answer is a task's outcome that is not told yet.
type answer struct {
	done   func(Result, error)
	result Result
	err    error
}

// Open opens the metadata log in the first data directory, or makes it if that
// is empty, replays it and begins a new term. When it returns all that Image
// shows is durable. The error wraps ErrDamaged if metadata was lost. A turn
// before Run is made by calling Turn until it has nothing to do.
func Open(dir *storage.Dir, o Options, now mem.Now) (*Coord, error) {
	o = o.filled()
	m, i, err := openMetalog(dir, o.Node, o.Log, now)
	if err != nil {
		return nil, err
	}
	c := newCoord(m, i, o)
	c.found = m.log.Recovery()
	c.loop.entries = m.unsnapshotted()
	if err := c.maybeSnapshot(); err != nil {
		m.abandon()
		return nil, err
	}
	return c, nil
}

func (o Options) filled() Options {
	if o.Queue == 0 {
		o.Queue = 1024
	}
	if o.SnapshotEvery == 0 {
		o.SnapshotEvery = 10_000
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return o
}

func newCoord(log journal, i *Image, o Options) *Coord {
	c := &Coord{o: o, inbox: mem.NewQueue[task](o.Queue)}
	c.image.Store(i)
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
func (c *Coord) Submit(cmd Command, done func(Result, error)) {
	c.push(task{cmd, done})
}

// NextProducer gives out a producer id that nobody was or will be given. done
// is called as by Submit.
func (c *Coord) NextProducer(done func(wire.ProducerID, error)) {
	c.push(task{nextProducer{}, func(r Result, err error) { done(r.First, err) }})
}

func (c *Coord) push(t task) {
	ok, mine := c.inbox.Push(t)
	if mine {
		c.inbox.Hand()
	}
	if ok {
		return
	}
	if c.stops.Load() {
		t.done(Result{}, wire.Errorf(wire.CodeShuttingDown, "the node takes no more metadata changes"))
		return
	}
	t.done(Result{}, &wire.Error{Code: wire.CodeBusy, Message: "too many metadata changes wait", RetryAfter: 100 * time.Millisecond})
}

// stop makes every later Submit fail.
func (c *Coord) stop() {
	c.stops.Store(true)
	c.inbox.Close()
}

// Turn takes one step: it makes durable what the last step appended, publishes
// the image and answers, or it handles the commands that wait and appends what
// they change as one entry. It returns whether there was anything to do. The
// error wraps ErrFailed.
func (c *Coord) Turn(now mem.Now) (worked bool, err error) {
	if c.loop.err != nil {
		return false, c.loop.err
	}
	if c.loop.draft != nil {
		return true, c.flush()
	}
	if len(c.loop.tasks) == 0 && c.inbox.Len() > 0 {
		c.loop.tasks, _ = c.inbox.PopAll(c.loop.tasks)
		c.inbox.Free() // another goroutine may be the next to turn
	}
	if len(c.loop.tasks) == 0 {
		return false, nil
	}
	return true, c.handle(now)
}

// maxEntry is the size in bytes at which an entry takes no further change. The
// largest change, a topic of MaxTopicPartitions, comes on top of it.
const maxEntry = 512 << 10

// handle decides the commands at hand, as many as one entry holds.
func (c *Coord) handle(now mem.Now) error {
	p := proposal{image: c.Image(), block: c.loop.block}
	e := env{now: now, node: c.o.Node, dirs: c.o.Dirs(), newTopicID: c.o.NewTopicID}
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
		return nil
	}
	value := joinEntry(p.count, p.changes)
	switch err := c.loop.log.append(value, now); {
	case errors.Is(err, wire.CodeDiskFull):
		for _, a := range p.answers {
			a.done(Result{}, wire.Errorf(wire.CodeDiskFull, "the metadata log has no room left"))
		}
		return nil
	case err != nil:
		c.loop.answers = p.answers
		return c.fail(err)
	}
	c.loop.block, c.loop.draft, c.loop.answers = p.block, p.draft, p.answers
	c.loop.entries++
	c.loop.bytes += len(value)
	return nil
}

// flush completes what handle appended.
func (c *Coord) flush() error {
	if err := c.loop.log.flush(); err != nil {
		return c.fail(err)
	}
	c.image.Store(&c.loop.draft.Image)
	answers := c.loop.answers
	c.loop.draft, c.loop.answers = nil, nil
	tell(answers)
	return c.maybeSnapshot()
}

// snapshotBytes is the size of the entries after which a snapshot is taken even
// if they are few.
const snapshotBytes = 32 << 20

// maybeSnapshot takes a snapshot if enough came since the last one. A full disk
// is no fault: the log still has everything.
func (c *Coord) maybeSnapshot() error {
	if c.loop.entries < c.o.SnapshotEvery && c.loop.bytes < snapshotBytes {
		return nil
	}
	c.loop.entries, c.loop.bytes = 0, 0
	err := c.loop.log.snapshot(c.Image())
	if errors.Is(err, wire.CodeDiskFull) {
		c.o.Log.Warn("no room for a metadata snapshot", "err", err)
		return nil
	}
	if err != nil {
		return c.fail(err)
	}
	return nil
}

// fail ends the Coord: after a failed write or fsync nothing may be believed
// that was not durable before.
func (c *Coord) fail(err error) error {
	c.loop.err = fmt.Errorf("%w: %w", ErrFailed, err)
	for _, a := range c.loop.answers {
		a.done(Result{}, wire.Errorf(wire.CodeStorageError, "the metadata log failed while the change was written"))
	}
	c.loop.draft, c.loop.answers = nil, nil
	c.stop()
	c.refuse(wire.CodeOffline, "the metadata log has failed")
	return c.loop.err
}

// refuse answers all that still waits. The inbox is closed.
func (c *Coord) refuse(code wire.Code, why string) {
	if c.inbox.Len() > 0 {
		c.loop.tasks, _ = c.inbox.PopAll(c.loop.tasks)
	}
	for _, t := range c.loop.tasks {
		t.done(Result{}, wire.Errorf(code, "%s", why))
	}
	c.loop.tasks = nil
}

// Close closes the metadata log and returns its end for the clean mark of its
// data directory. Run has returned, or never ran, and no Turn follows. What is
// appended is made durable and answered; what only waits is refused.
func (c *Coord) Close() (storage.CleanEnd, error) {
	c.stop()
	if c.loop.draft != nil {
		_ = c.flush() // an error stays in loop.err
	}
	c.refuse(wire.CodeShuttingDown, "the node stops")
	if c.loop.err != nil {
		_, err := c.loop.log.close()
		return storage.CleanEnd{}, errors.Join(c.loop.err, err)
	}
	return c.loop.log.close()
}

func tell(as []answer) {
	for _, a := range as {
		a.done(a.result, a.err)
	}
}
