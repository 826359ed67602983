package broker

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"path"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/teralog/teralog/coord"
	"github.com/teralog/teralog/mem"
	"github.com/teralog/teralog/repl"
	"github.com/teralog/teralog/storage"
	"github.com/teralog/teralog/wire"
)

// hosts makes the metadata true on disk: it opens or creates the partitions of
// a topic, or takes them away. One goroutine does so, topic after topic, so
// that a create and a delete of one name never meet.
type hosts struct {
	queue  chan settle
	places *mem.Budget // of queue, taken before the metadata is changed

	found map[place]storage.FoundPartition // by the start

	mu    sync.Mutex
	down  map[wire.PartitionID]error // why a partition of the metadata is not hosted
	lines []string                   // of the start
	// quotas of the topics that have one, shared by their partitions; bounded
	// says that there ever was one.
	quotas  map[wire.TopicID]*quota
	bounded atomic.Bool
}

// A place is where a partition's files belong, whatever they say themselves.
type place struct {
	dir       *storage.Dir
	topic     string
	partition int
}

// placeOf returns the place that a folder lies in, by its path: its manifest
// may be damaged. ok is false if no partition belongs there.
func placeOf(d *storage.Dir, found storage.FoundPartition) (p place, ok bool) {
	folder := path.Base(found.Path)
	p = place{dir: d, topic: path.Base(path.Dir(found.Path))}
	n, err := fmt.Sscanf(folder, "partition-%d", &p.partition)
	return p, n == 1 && err == nil && folder == fmt.Sprintf("partition-%04d", p.partition)
}

// A settle asks that the files of one topic be made what the metadata says.
type settle struct {
	topic wire.TopicID
	done  func(error)
}

// maxSettles bounds the topics being created or deleted at once.
const maxSettles = 256

// sweepEvery is how often the leavings of deleted topics are looked for, and
// lookEvery whether another node changed the metadata.
const (
	sweepEvery = 10 * time.Second
	lookEvery  = time.Second
)

func (h *hosts) init() {
	h.queue = make(chan settle, maxSettles)
	h.places = mem.NewBudget(maxSettles)
	h.down = map[wire.PartitionID]error{}
	h.quotas = map[wire.TopicID]*quota{}
	h.found = map[place]storage.FoundPartition{}
}

// reserve takes a place in the queue; release gives up one that is not used.
func (h *hosts) reserve() bool { return h.places.TryTake(1) }
func (h *hosts) release()      { h.places.Give(1) }

// push uses a place taken before, so it never blocks.
func (h *hosts) push(s settle) { h.queue <- s }

// why says why a partition has no leader here.
func (h *hosts) why(id wire.PartitionID, otherwise error) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if err := h.down[id]; err != nil {
		return err
	}
	return otherwise
}

func (h *hosts) note(id wire.PartitionID, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if err == nil {
		delete(h.down, id)
		return
	}
	h.down[id] = wire.Errorf(wire.CodeOffline, "%v", err)
}

// forget drops what is kept for a topic that is gone.
func (h *hosts) forget(id wire.TopicID) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.quotas, id)
}

func (h *hosts) say(format string, args ...any) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.lines = append(h.lines, fmt.Sprintf(format, args...))
}

func (h *hosts) report() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.lines)
}

func (b *Broker) runHosts(ctx context.Context) {
	sweep := time.NewTicker(sweepEvery)
	defer sweep.Stop()
	var look <-chan time.Time
	if b.peers != nil {
		ticker := time.NewTicker(lookEvery)
		defer ticker.Stop()
		look = ticker.C
	}
	shown := wire.Offset(-1)
	for {
		select {
		case s := <-b.hosts.queue:
			b.settle(s)
		case <-sweep.C:
			b.guard("the sweep", b.sweep)
		case <-look:
			b.guard("what other nodes decided", func() { shown = b.followOthers(shown) })
		case <-ctx.Done():
			return
		}
	}
}

// followOthers makes true here what other nodes decided since version shown of
// the metadata, and returns the version that is true now.
func (b *Broker) followOthers(shown wire.Offset) wire.Offset {
	image := b.coord.Image()
	if image.Version() == shown {
		return shown
	}
	for _, p := range b.set.Partitions() {
		if image.Deleted(p.ID().Topic) {
			if err := b.removeTopic(p.ID().Topic); err != nil {
				b.log.Error("a deleted topic is still here", "topic", p.Topic(), "err", err)
			}
		}
	}
	for _, t := range image.Topics() {
		b.hostTopic(t) // it says why a partition is offline
	}
	return image.Version()
}

func (b *Broker) settle(s settle) {
	err := errInside
	b.guard("the hosting of a topic", func() { err = b.settleTopic(s.topic) })
	b.hosts.release()
	s.done(err)
}

// errInside is what a panic comes to.
var errInside = wire.Errorf(wire.CodeInternal, "it failed inside the broker; its log says how")

// settleTopic hosts the partitions of a topic that exists and takes away those
// of one that was deleted. Doing it again does nothing.
func (b *Broker) settleTopic(id wire.TopicID) error {
	image := b.coord.Image()
	t := image.TopicByID(id)
	if t == nil {
		return b.removeTopic(id)
	}
	errs := b.hostTopic(t)
	errs = slices.DeleteFunc(errs, func(err error) bool { return err == nil })
	if len(errs) < 2 {
		return errors.Join(errs...)
	}
	return wire.Errorf(wire.CodeOffline, "%d of %d partitions cannot be served; the first: %v", len(errs), len(t.Partitions), errs[0])
}

// hostTopic opens or creates those partitions of t that are not in service and
// belong here. It returns an error or nil for each partition of t.
func (b *Broker) hostTopic(t *coord.Topic) []error {
	before := b.served(t)
	errs := make([]error, len(t.Partitions))
	b.each(len(errs), func(n int) { errs[n] = b.host(t, n) })
	if b.served(t) > before {
		b.event(EventTopicCreated, slog.String("topic", t.Name), slog.String("id", fmt.Sprint(t.ID)), slog.Int("partitions", len(t.Partitions)))
	}
	return errs
}

// served returns how many partitions of t are hosted here.
func (b *Broker) served(t *coord.Topic) (n int) {
	for i := range t.Partitions {
		if _, err := b.set.Leader(wire.PartitionID{Topic: t.ID, Partition: int32(i)}); err == nil {
			n++
		}
	}
	return n
}

// each calls f for the numbers below n, several at once: most of the time it
// waits for the disk, where fsyncs that meet share their work.
func (b *Broker) each(n int, f func(i int)) {
	if b.env.Manual {
		for i := range n {
			f(i)
		}
		return
	}
	var next atomic.Int64
	var workers sync.WaitGroup
	for range min(n, atOnce) {
		workers.Go(func() {
			for i := next.Add(1) - 1; i < int64(n); i = next.Add(1) - 1 {
				f(int(i))
			}
		})
	}
	workers.Wait()
}

// atOnce is how many partitions are opened, made or closed at a time.
const atOnce = 16

// host opens or creates one partition. Its error is also noted as why the
// partition is down.
func (b *Broker) host(t *coord.Topic, n int) error {
	id := wire.PartitionID{Topic: t.ID, Partition: int32(n)}
	if _, err := b.set.Leader(id); err == nil || t.Partitions[n].Leader != b.config.Node {
		return nil
	}
	err := errInside
	b.guard("the opening of a partition", func() { err = b.openOne(t, id) })
	b.hosts.note(id, err)
	if err != nil {
		b.event(EventPartitionOffline, slog.String("topic", t.Name), slog.Int("part", n), slog.Any("err", err))
		return wire.Errorf(wire.CodeOffline, "%s/%d: %v", t.Name, n, err)
	}
	if p, err := b.set.Leader(id); err == nil {
		b.tellRecovery(p.Recovery())
	}
	return nil
}

// tellRecovery notes what a start cut off a log, and what was missing. Damage is
// told of by the partition, whoever found it.
func (b *Broker) tellRecovery(r storage.RecoveryReport) {
	topic, part := slog.String("topic", r.Topic), slog.Int("part", int(r.ID.Partition))
	if r.Cut > 0 {
		b.event(EventLogTruncated, topic, part, slog.Int64("offset", int64(r.CutAt)), slog.Int64("bytes", r.Cut), slog.String("err", r.Reason))
	}
	if r.Lost > 0 && len(r.Damaged) == 0 {
		b.event(EventDamageFound, topic, part, slog.Int64("from", int64(r.End)), slog.Int64("to", int64(r.Lost)), slog.String("err", "these offsets were durable and are not there"))
	}
}

func (b *Broker) openOne(t *coord.Topic, id wire.PartitionID) error {
	place := t.Partitions[id.Partition]
	d := b.directory(place.Dir)
	if d == nil {
		return fmt.Errorf("data directory %v of %s/%d is not here", place.Dir, t.Name, id.Partition)
	}
	create, err := b.isNew(d, t.Name, id)
	if err != nil {
		return err
	}
	if err := b.roomForLog(); err != nil {
		return err
	}
	return b.set.OrFailed(d, func() error {
		return b.set.Host(t.Name, id, d, b.partitionSettings(t), place.Epoch, create, b.time())
	})
}

// isNew reports whether the partition has no files yet, because the process
// died between the commit of its topic and their making. Files that once were
// there and are not any more are never replaced by empty ones.
func (b *Broker) isNew(d *storage.Dir, topic string, id wire.PartitionID) (bool, error) {
	if found, ok := b.hosts.found[place{d, topic, int(id.Partition)}]; ok && (found.ID == id || found.Err != nil) {
		return false, found.Err
	}
	if d.Known(id) {
		return false, fmt.Errorf("the files of %s/%d are gone from %s, which its recovery points name", topic, id.Partition, d.Path())
	}
	return true, nil
}

// removeTopic takes the partitions of a deleted topic out of service and out
// of sight. Readers that hold a file keep it; the janitor unlinks the rest.
func (b *Broker) removeTopic(id wire.TopicID) error {
	of := slices.DeleteFunc(slices.Clone(b.set.Partitions()), func(p *repl.Partition) bool { return p.ID().Topic != id })
	b.each(len(of), func(i int) {
		if err := b.set.Drop(of[i].ID()); err != nil {
			b.log.Warn("dropped partition did not close well", "topic", of[i].Topic(), "part", of[i].ID().Partition, "err", err)
		}
	})
	b.handovers.drop(id)
	b.hosts.forget(id)
	if len(of) > 0 {
		b.event(EventTopicDeleted, slog.String("topic", of[0].Topic()), slog.String("id", fmt.Sprint(id)), slog.Int("partitions", len(of)))
	}
	var errs []error
	for _, t := range b.coord.Image().DeletedTopics() {
		if t.ID == id {
			errs = append(errs, b.removeFiles(t)...)
		}
	}
	if err := errors.Join(errs...); err != nil {
		return wire.Errorf(wire.CodeOffline, "the topic is deleted; its files are still there, to be removed at the next start: %v", err)
	}
	return nil
}

func (b *Broker) removeFiles(t *coord.Topic) (errs []error) {
	in := map[*storage.Dir][]wire.PartitionID{}
	for n, place := range t.Partitions {
		id := wire.PartitionID{Topic: t.ID, Partition: int32(n)}
		b.hosts.note(id, nil)
		if d := b.directory(place.Dir); d != nil {
			in[d] = append(in[d], id)
		}
	}
	for _, d := range b.dirs {
		if len(in[d]) == 0 {
			continue
		}
		err := b.set.OrFailed(d, func() error { return d.Delete(in[d]...) })
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
		for _, id := range in[d] {
			if err := b.setAside(place{d, t.Name, int(id.Partition)}); err != nil {
				errs = append(errs, err)
				break // for the same reason, most likely
			}
		}
	}
	return errs
}

// setAside takes a folder that could not be opened out of the way of a topic to
// come. Whose it is nobody can tell, so it is kept.
func (b *Broker) setAside(at place) error {
	found, ok := b.hosts.found[at]
	if !ok || found.Err == nil {
		return nil
	}
	delete(b.hosts.found, at)
	return at.dir.Orphan(found.Path)
}

// sweep lets the metadata forget deleted topics of which nothing is left
// anywhere; the janitors unlink their files.
func (b *Broker) sweep() {
	var gone []wire.TopicID
	for _, t := range b.coord.Image().DeletedTopics() {
		if len(gone) < coord.MaxTopicPartitions && b.isGone(t) {
			gone = append(gone, t.ID)
		}
	}
	if len(gone) > 0 {
		b.coord.Submit(coord.ForgetTopics{IDs: gone}, func(coord.Result, error) {}) // the next sweep tries again
	}
}

// isGone reports whether no data directory holds anything of t. One that is
// not here may, unless it is lost for good.
func (b *Broker) isGone(t *coord.Topic) bool {
	asked := map[wire.UUID]bool{}
	for _, place := range t.Partitions {
		if asked[place.Dir] {
			continue
		}
		asked[place.Dir] = true
		d := b.directory(place.Dir)
		if d == nil && slices.Contains(b.config.LostDirs, place.Dir) {
			continue
		}
		if d == nil {
			return false
		}
		if held, err := d.Holds(t.ID); held || err != nil {
			return false
		}
	}
	return true
}

func (b *Broker) partitionSettings(t *coord.Topic) repl.Settings {
	c := t.Config
	s := repl.Settings{Owner: b.topicQuota(t), FlushBytes: c.FlushBytes, FlushEvery: c.FlushInterval, Log: c.Storage()}
	switch c.Flush {
	case coord.FlushAsync:
		s.Flush = repl.Async
	case coord.FlushInterval:
		s.Flush = repl.Interval
	case coord.FlushSync:
		s.Flush = repl.Sync
	}
	return s
}
