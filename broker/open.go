package broker

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"syscall"

	"github.com/teralog/teralog/coord"
	"github.com/teralog/teralog/mem"
	"github.com/teralog/teralog/repl"
	"github.com/teralog/teralog/storage"
	"github.com/teralog/teralog/wire"
)

// open is the start: data directories, metadata, then every partition.
func (b *Broker) open() error {
	b.hosts.init()
	now := b.time()
	if err := b.openDirs(); err != nil {
		return err
	}
	if !b.env.Manual {
		b.endEvents = b.keepEvents()
	}
	b.openLanes()
	if err := b.openCoord(now); err != nil {
		return err
	}
	b.set = repl.NewSet(repl.SetConfig{
		Dirs: b.dirs, Self: b.config.Node, Clock: b.env.Clock, Manual: b.env.Manual,
		Flushers: b.config.Flushers, SlowAfter: b.config.FlushSlow, FailAfter: b.config.FlushLost, RefuseAfter: b.config.DiskSlow,
		TidyEvery: b.env.TidyEvery, MaxHosted: b.maxHosted(), Log: b.log, OnEvent: b.hear,
		DirtyLimit: b.config.DirtyLimit, ScrubRate: b.config.ScrubRate, ScrubEvery: b.config.ScrubEvery,
	})
	if err := b.catchUp(); err != nil {
		return err
	}
	if err := b.bumpEpochs(now); err != nil {
		return err
	}
	if err := b.sortFound(); err != nil {
		return err
	}
	b.hostAll()
	for _, d := range b.dirs {
		if d.Failed() == nil {
			if err := d.Recovered(); err != nil && !b.endDir(d, err) {
				return err
			}
		}
	}
	if err := b.dirs[0].Failed(); err != nil {
		return lost(err)
	}
	if b.noneLeft() {
		return &exitError{exitIO, errNoneLeft}
	}
	b.sweep()
	return nil
}

func (b *Broker) openCoord(now mem.Now) error {
	if err := b.refuseLost(); err != nil {
		return err
	}
	o := coord.Options{
		Node: b.config.Node, NewTopicID: b.newTopicID, Dirs: b.spaces, MaxHosted: b.maxHosted(), Clock: b.env.Clock, Log: b.log,
		SnapshotEvery: b.env.SnapshotEvery,
	}
	var err error
	if len(b.config.Peers) > 0 {
		if b.peers, err = openPeers(b); err != nil {
			return err
		}
		o.Cluster = &coord.Cluster{Transport: b.peers, First: b.peers.first, Forward: b.peers.forward}
	}
	if b.coord, err = coord.Open(b.dirs[0], o, now); err != nil {
		return err
	}
	if b.peers != nil {
		b.peers.run(b.coord)
	}
	return nil
}

// catchUp waits until the image shows all that the cluster had committed: what
// is done next takes folders that it does not name for orphans.
func (b *Broker) catchUp() error {
	if b.peers == nil {
		return nil
	}
	return b.insist(coord.Barrier{})
}

// insist submits a command until the cluster has decided it.
func (b *Broker) insist(cmd coord.Command) error {
	for tries := 0; ; tries++ {
		decided := make(chan error, 1)
		b.coord.Submit(cmd, func(_ coord.Result, err error) { decided <- err })
		var err error
		select {
		case err = <-decided:
		case err = <-b.fatal:
			return err
		case <-b.env.Stop:
			return errStopped
		}
		code := wire.CodeOf(err)
		if err == nil || !code.Retriable() || code == wire.CodeStorageError || code == wire.CodeOffline {
			return err
		}
		if tries%50 == 0 {
			b.log.Info("waiting for a majority of the nodes that keep the metadata", "err", err)
		}
		if err := b.peers.wait(b.peers.ctx, peerRedial); err != nil {
			return err
		}
	}
}

// bumpEpochs gives the partitions of each directory whose last stop was not a
// clean one a new leader epoch, before any of them is led: a reader that saw
// what is gone is then told so. After the mere death of the process nothing
// should be gone; but one that died between a failed fsync and the note of it
// left pages that the cache shows and the disk has not, and nobody can tell
// that death from others.
func (b *Broker) bumpEpochs(now mem.Now) error {
	for _, d := range b.dirs {
		if d.Start().Clean || b.coord.Image().Hosted(d.ID()) == 0 {
			continue
		}
		if err := b.submitNow(coord.BumpEpochs{Dir: d.ID()}, now); err != nil {
			return fmt.Errorf("new leader epochs after an unclean stop: %w", err)
		}
	}
	return nil
}

// submitNow has a command decided while nothing runs yet but, in a cluster, the
// metadata.
func (b *Broker) submitNow(cmd coord.Command, now mem.Now) error {
	if b.peers != nil {
		return b.insist(cmd)
	}
	result := fmt.Errorf("it waits for room on the disk: %w", syscall.ENOSPC)
	b.coord.Submit(cmd, func(_ coord.Result, err error) { result = err })
	for worked := true; worked; {
		var err error
		if worked, err = b.coord.Turn(now); err != nil {
			return err
		}
	}
	if errors.Is(result, wire.CodeDiskFull) {
		return fmt.Errorf("%w: %w", result, syscall.ENOSPC)
	}
	return result
}

// sortFound deals with folders that the metadata does not name: those of
// deleted topics are taken away, all others kept as orphans.
func (b *Broker) sortFound() error {
	for _, d := range b.dirs {
		if err := b.sortFoundIn(d); err != nil && !b.endDir(d, err) {
			return err
		}
	}
	return nil
}

func (b *Broker) sortFoundIn(d *storage.Dir) error {
	image := b.coord.Image()
	for _, found := range d.Partitions() {
		if found.ID.Topic == wire.MetadataTopic {
			continue
		}
		at, ok := placeOf(d, found)
		here := ok && b.placed(image, at)
		switch {
		case here && found.Err != nil:
			// What metadata places here cannot be opened: it stays where it
			// is, offline, for a person to look at.
			b.hosts.say("%s cannot be opened: %v", found.Path, found.Err)
			b.hosts.found[at] = found
		case here && found.ID.Topic == image.Topic(at.topic).ID:
			b.hosts.found[at] = found
		case found.Err == nil && image.Deleted(found.ID.Topic):
			if err := d.Delete(found.ID); err != nil {
				return err
			}
			b.hosts.say("%s belongs to a deleted topic: removed", found.Path)
		case mem.Mutant("stray directory deleted"):
			if err := b.env.FS.RemoveAll(found.Path); err != nil {
				return err
			}
		default:
			if err := d.Orphan(found.Path); err != nil {
				return err
			}
		}
	}
	return nil
}

// placed reports whether the metadata puts a partition there.
func (b *Broker) placed(image *coord.Image, at place) bool {
	t := image.Topic(at.topic)
	return t != nil && at.partition < len(t.Partitions) && t.Partitions[at.partition].Dir == at.dir.ID()
}

// hostAll opens every partition. One that cannot be opened is offline and
// keeps no other from being served.
func (b *Broker) hostAll() {
	type one struct {
		t *coord.Topic
		n int
	}
	var all []one
	for _, t := range b.coord.Image().Topics() {
		for n := range t.Partitions {
			all = append(all, one{t, n})
		}
	}
	b.each(len(all), func(i int) { b.host(all[i].t, all[i].n) })
}

// hear takes note of what happens in a data directory. Each fails once.
func (b *Broker) hear(e repl.Event) {
	switch e.Kind {
	case repl.DirectorySlow:
		b.event(EventFlushLate, slog.String("dir", e.Dir.Path()), slog.Duration("took", e.Took))
	case repl.PartitionOffline:
		if e.Dir.Failed() == nil { // else thousands share the reason, which is told once
			b.event(EventPartitionOffline, slog.String("topic", b.topicName(e.ID.Topic)), slog.Int("part", int(e.ID.Partition)), slog.Any("err", e.Err))
		}
	case repl.DamageFound:
		b.event(EventDamageFound, slog.String("topic", b.topicName(e.ID.Topic)), slog.Int("part", int(e.ID.Partition)),
			slog.Int64("from", int64(e.From)), slog.Int64("to", int64(e.To)))
	case repl.RetentionHeld:
		b.event(EventRetentionHeld, slog.String("topic", b.topicName(e.ID.Topic)), slog.Int("part", int(e.ID.Partition)), slog.Int64("bytes", e.Bytes))
	case repl.SegmentRolled:
		b.event(EventSegmentRolled, slog.String("topic", b.topicName(e.ID.Topic)), slog.Int("part", int(e.ID.Partition)), slog.Int64("offset", int64(e.From)))
	case repl.LogTrimmed:
		b.event(EventLogTrimmed, slog.String("topic", b.topicName(e.ID.Topic)), slog.Int("part", int(e.ID.Partition)), slog.Int64("from", int64(e.From)), slog.Int64("to", int64(e.To)))
	case repl.DirectoryFailed:
		b.event(EventDirectoryOffline, slog.String("dir", e.Dir.Path()), slog.Any("err", e.Err))
		b.lose(e)
	}
}

// topicName returns the name of a topic, its id if there is no such topic.
func (b *Broker) topicName(id wire.TopicID) string {
	if t := b.coord.Image().TopicByID(id); t != nil {
		return t.Name
	}
	return fmt.Sprint(id)
}

// lose ends what cannot go on without a data directory.
func (b *Broker) lose(e repl.Event) {
	if errors.Is(e.Err, repl.ErrHangs) {
		b.hung.Do(func() { close(b.hangs) })
	}
	switch {
	case e.Dir == b.dirs[0]:
		b.report(lost(e.Err))
	case b.noneLeft():
		b.report(&exitError{exitIO, errNoneLeft})
	}
}

// lost is why the process has to end: the metadata's own directory failed.
func lost(err error) error {
	return &exitError{exitIO, fmt.Errorf("the data directory with the metadata failed: %w", err)}
}

// bootID returns what the kernel calls this start of the machine.
func bootID() (string, error) {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", fmt.Errorf("boot id: %w", err)
	}
	return strings.TrimSpace(string(b)), nil
}
