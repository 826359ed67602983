package repl

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/teralog/teralog/mem"
	"github.com/teralog/teralog/storage"
	"github.com/teralog/teralog/wire"
)

// A SetConfig says where a set's partitions lie and how much each may hold.
// Zero fields stand for the defaults named.
type SetConfig struct {
	Dirs []*storage.Dir
	Self wire.NodeID
	// Clock is what the loops in run.go read. A manual set has none.
	Clock *mem.Clock
	// Manual says that no goroutine exists: a push frees the turn, and things
	// happen only in Turn and Step, which the simulator calls.
	Manual bool

	QueueLimit int           // tasks in a partition's mailbox; 1,024
	QueueBytes int64         // bytes of batches in it; 64 MiB
	MaxUnacked int           // appended writes of a partition that wait for their ack; 16,384
	MaxParked  int           // fetches parked on a partition; 16,384
	MaxHosted  int           // partitions, each of which takes a descriptor at least; 1,048,576, and no more
	Flushers   int           // fdatasyncs at once in a directory; 8
	SlowAfter  time.Duration // a flush that takes longer makes its directory slow; 1 s
	FailAfter  time.Duration // a flush that takes longer ends its directory; 30 s
	// RefuseAfter is how long a flush or an append may take before writes to the
	// directory are refused, DISK_SLOW; 5 s. See Partition.Admit.
	RefuseAfter time.Duration
	PointEvery  time.Duration // recovery points are written at most so often; 1 s
	TidyEvery   time.Duration // retention and idle rolls are looked at so often; 10 s
	DirtyLimit  int64         // bytes of a directory appended and not on the disk, above which writes are refused; none
	ScrubRate   int64         // bytes a second that each directory's scrub reads; none
	ScrubEvery  time.Duration // its passes begin at most so often; 24 h

	Log     *slog.Logger // none: discarded
	OnEvent func(Event)  // called from anywhere, turns included: it must only note the event

	slowRule mem.BreakerRule // of RefuseAfter
}

func (c SetConfig) filled() SetConfig {
	c.QueueLimit = cmp.Or(c.QueueLimit, 1024)
	c.QueueBytes = cmp.Or(c.QueueBytes, 64<<20)
	c.MaxUnacked = cmp.Or(c.MaxUnacked, 1<<14)
	c.MaxParked = cmp.Or(c.MaxParked, 1<<14)
	c.MaxHosted = min(cmp.Or(c.MaxHosted, maxHosted), maxHosted)
	c.Flushers = cmp.Or(c.Flushers, 8)
	c.SlowAfter = cmp.Or(c.SlowAfter, time.Second)
	c.FailAfter = cmp.Or(c.FailAfter, 30*time.Second)
	c.RefuseAfter = cmp.Or(c.RefuseAfter, 5*time.Second)
	c.slowRule = slowRule(c.RefuseAfter)
	c.PointEvery = cmp.Or(c.PointEvery, time.Second)
	c.TidyEvery = cmp.Or(c.TidyEvery, 10*time.Second)
	c.ScrubEvery = cmp.Or(c.ScrubEvery, 24*time.Hour)
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	return c
}

// An EventKind says what happened.
type EventKind uint8

// The events of a set.
const (
	DirectorySlow    EventKind = iota + 1 // a flush takes longer than SlowAfter
	DirectoryFailed                       // its partitions go offline; its failed note is written, unless the disk hangs
	PartitionOffline                      // for good, until the node starts again
	SegmentRolled                         // the active segment is sealed, another one has begun
	LogTrimmed                            // by a trim or by retention
	RetentionHeld                         // the clock jumped, and more than half of the partition seems old
	DamageFound                           // records that were in the log and cannot be read
)

// String returns the name used in logs.
func (k EventKind) String() string {
	return [...]string{"none", "slow", "failed", "offline", "rolled", "trimmed", "held", "damaged"}[k]
}

// An Event is something an operator or the broker acts on.
type Event struct {
	Kind EventKind
	Dir  *storage.Dir
	ID   wire.PartitionID // of what happens to a partition
	Err  error            // why, of DirectoryFailed and PartitionOffline
	Took time.Duration    // of DirectorySlow: how long the flush has taken so far

	Bytes int64 // of RetentionHeld: that are kept for now

	From, To wire.Offset // of LogTrimmed: what is gone, To exclusive; of DamageFound: what cannot be read; of SegmentRolled: From is the first of the new one
}

// A Set is the partitions this node hosts. Its methods may be called from any
// goroutine, unless the set is manual.
type Set struct {
	config SetConfig
	dirs   []*directory
	wheel  *mem.Wheel

	hosted  [shards]atomic.Pointer[shard] // copied on write, so that a look-up takes no lock
	all     atomic.Pointer[[]*Partition]  // what Partitions returns; nil after a change
	mu      sync.Mutex                    // writers of hosted
	opening map[wire.PartitionID]bool
	hosts   int // partitions in hosted
	closed  bool
	times   Times
	quit    chan struct{} // closed then

	// Of a manual set: the time it was last told, and what would run on a
	// goroutine of its own.
	now   mem.Now
	later []func()
}

// shards is how many maps share the partitions: hosting one copies one map, and
// a hundred thousand at the start should not copy a map of a hundred thousand
// each.
const (
	shardBits = 11
	shards    = 1 << shardBits
)

type shard map[wire.PartitionID]*Partition

// NewSet returns a set over the directories of c that hosts nothing yet.
func NewSet(c SetConfig) *Set {
	s := &Set{config: c.filled(), wheel: mem.NewWheel(), opening: map[wire.PartitionID]bool{}, quit: make(chan struct{})}
	if !c.Manual && c.Clock == nil {
		panic("BUG: a set with loops needs a clock")
	}
	for _, d := range c.Dirs {
		s.dirs = append(s.dirs, newDirectory(s, d))
	}
	return s
}

// Host opens the log of a partition in dir, or creates it, and leads it with
// epoch, which is recorded durably if it is newer than the log's. The log is
// recovered and fsynced when Host returns. Several calls may run at once, for
// different partitions.
func (s *Set) Host(topic string, id wire.PartitionID, dir *storage.Dir, st Settings, epoch wire.Epoch, create bool, now mem.Now) error {
	d := s.directory(dir)
	if err := d.failure(); err != nil {
		return wire.Errorf(wire.CodeOffline, "host %s %d: %v", topic, id.Partition, err)
	}
	if err := s.reserve(id); err != nil {
		return err
	}
	defer s.unreserve(id)
	open := dir.Open
	if create {
		open = dir.Create
	}
	l, err := open(topic, id, st.Log, now)
	if err == nil {
		if err = setEpoch(l, dir, epoch); err != nil {
			l.Close()
		}
	}
	if err != nil {
		if errors.Is(err, storage.ErrSync) {
			dir.Fail(err)
			d.fail(err)
		}
		return fmt.Errorf("host %s %d: %w", topic, id.Partition, err)
	}
	p := newPartition(s, d, topic, id, l, st)
	if !s.put(p) {
		return errShutdown // too late; the directory may be another's by now, so its files are left alone
	}
	if d.failure() != nil {
		p.nudge() // it failed meanwhile, and told those it knew
	}
	return nil
}

// setEpoch records an epoch that is newer than the log's, from the reserve if
// the disk is full, or later if that is used up: else a crash on a full disk would
// leave the partition offline, and nothing could be read or deleted.
func setEpoch(l *storage.Log, dir *storage.Dir, epoch wire.Epoch) error {
	for epoch > l.View().Epoch() {
		err := l.SetEpoch(epoch)
		switch {
		case err == nil:
		case !full(err) || errors.Is(err, storage.ErrSync):
			return fmt.Errorf("epoch %d: %w", epoch, err)
		case !dir.Relieve():
			l.NoteEpoch(epoch)
		}
	}
	return nil
}

// Drop stops the partition and closes its log, whose files stay. Writes that
// wait are answered first: those in the log after a flush. It returns when
// nothing of the partition runs any more.
func (s *Set) Drop(id wire.PartitionID) error {
	p := s.get(id)
	if p == nil {
		return fmt.Errorf("drop %v: %w", id, errDropped)
	}
	s.remove(id)
	return p.close(errDropped)
}

// Close stops every partition and closes the logs. What it returns, for each
// directory that still stands, is for Dir.Close. It is called once.
func (s *Set) Close() map[*storage.Dir][]storage.CleanEnd {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	close(s.quit)
	all := s.Partitions()
	for _, p := range all {
		p.beginClose(errShutdown)
	}
	ends := map[*storage.Dir][]storage.CleanEnd{}
	s.whileWatching(func() {
		for _, p := range all {
			if err := p.close(errShutdown); err != nil {
				s.config.Log.Error("partition did not close cleanly", "topic", p.topic, "part", p.id.Partition, "err", err)
				continue
			}
			ends[p.dir.dir] = append(ends[p.dir.dir], p.cleanEnd)
		}
		for _, d := range s.dirs {
			d.join()
		}
	})
	for _, d := range s.dirs {
		if d.failure() != nil {
			delete(ends, d.dir)
		} else if ends[d.dir] == nil {
			ends[d.dir] = []storage.CleanEnd{}
		}
	}
	return ends
}

// Leader returns the partition if this node leads it. The error is NOT_LEADER.
func (s *Set) Leader(id wire.PartitionID) (*Partition, error) {
	if p := s.get(id); p != nil {
		return p, nil
	}
	return nil, wire.CodeNotLeader
}

// Partitions returns those hosted, ordered by id. The slice is shared: it must
// not be changed.
func (s *Set) Partitions() []*Partition {
	if all := s.all.Load(); all != nil {
		return *all
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []*Partition
	for i := range s.hosted {
		if m := s.hosted[i].Load(); m != nil {
			for _, p := range *m {
				all = append(all, p)
			}
		}
	}
	slices.SortFunc(all, func(a, b *Partition) int {
		return cmp.Or(cmp.Compare(a.id.Topic, b.id.Topic), cmp.Compare(a.id.Partition, b.id.Partition))
	})
	s.all.Store(&all)
	return all
}

// watch looks after the flushes that run.
func (s *Set) watch(now mem.Now) {
	for _, d := range s.dirs {
		d.watch(now)
	}
}

// Slow reports whether a flush in dir takes longer than SlowAfter. Any goroutine.
func (s *Set) Slow(dir *storage.Dir) bool { return s.directory(dir).slow.Load() }

func (s *Set) event(e Event) {
	if s.config.OnEvent != nil {
		s.config.OnEvent(e)
	}
}

func (s *Set) directory(dir *storage.Dir) *directory {
	for _, d := range s.dirs {
		if d.dir == dir {
			return d
		}
	}
	panic("BUG: a data directory that is not the set's")
}

// reserve keeps two calls from opening one log.
func (s *Set) reserve(id wire.PartitionID) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return errShutdown
	}
	if s.opening[id] || s.get(id) != nil {
		panic(fmt.Sprintf("BUG: partition %v is hosted twice", id))
	}
	if limit := s.config.MaxHosted; s.hosts+len(s.opening) >= limit {
		return wire.Errorf(wire.CodeOffline, "%d partitions are hosted here, and there is room for no more", limit)
	}
	s.opening[id] = true
	return nil
}

func (s *Set) unreserve(id wire.PartitionID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.opening, id)
}

func (s *Set) shard(id wire.PartitionID) *atomic.Pointer[shard] {
	mixed := (uint64(id.Topic) + uint64(id.Partition)) * 0x9E3779B97F4A7C15
	return &s.hosted[mixed>>(64-shardBits)]
}

func (s *Set) get(id wire.PartitionID) *Partition {
	if m := s.shard(id).Load(); m != nil {
		return (*m)[id]
	}
	return nil
}

// put returns false if the set is closed.
func (s *Set) put(p *Partition) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.closed {
		s.change(p.id, func(m shard) { m[p.id] = p })
		s.hosts++
	}
	return !s.closed
}

func (s *Set) remove(id wire.PartitionID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.get(id) != nil {
		s.change(id, func(m shard) { delete(m, id) })
		s.hosts--
	}
}

// change replaces the shard of a partition. s.mu is held.
func (s *Set) change(id wire.PartitionID, f func(shard)) {
	next := shard{}
	if old := s.shard(id).Load(); old != nil {
		for k, v := range *old {
			next[k] = v
		}
	}
	f(next)
	s.shard(id).Store(&next)
	s.all.Store(nil)
}
