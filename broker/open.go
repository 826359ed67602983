package broker

import (
	"fmt"
	"os"
	"strings"
	"sync"

	"github.com/teralog/teralog/coord"
	"github.com/teralog/teralog/mem"
	"github.com/teralog/teralog/repl"
	"github.com/teralog/teralog/storage"
	"github.com/teralog/teralog/wire"
)

// openers is how many logs are recovered at once at the start.
const openers = 8

// open is the start: data directories, metadata, then every partition.
func (b *Broker) open() error {
	b.hosts.init()
	now := b.time()
	if err := b.openDirs(); err != nil {
		return err
	}
	if err := b.openCoord(now); err != nil {
		return err
	}
	b.set = repl.NewSet(repl.SetConfig{
		Dirs: b.dirs, Self: b.config.Node, Clock: b.env.Clock, Manual: b.env.Manual,
		Flushers: b.config.Flushers, SlowAfter: b.config.FlushSlow, FailAfter: b.config.FlushLost,
		Log: b.log, OnEvent: b.event,
	})
	if err := b.bumpEpochs(now); err != nil {
		return err
	}
	if err := b.sortFound(); err != nil {
		return err
	}
	b.hostAll(now)
	for _, d := range b.dirs {
		if d.Failed() == nil {
			if err := d.Recovered(); err != nil {
				return err
			}
		}
	}
	b.sweep()
	return nil
}

func (b *Broker) openDirs() error {
	var cluster wire.UUID
	for _, path := range b.config.DataDirs {
		reserve := b.config.Reserve
		if reserve == 0 {
			reserve = -1
		}
		d, err := storage.OpenDir(b.env.FS, path, storage.DirOptions{
			Node: b.config.Node, Cluster: cluster, Boot: b.env.Boot, Format: true, NewID: b.env.NewID, Reserve: reserve,
		})
		if err != nil {
			return err
		}
		b.dirs = append(b.dirs, d)
		cluster = b.dirs[0].Cluster()
	}
	return nil
}

func (b *Broker) openCoord(now mem.Now) error {
	c, err := coord.Open(b.dirs[0], coord.Options{
		Node: b.config.Node, NewTopicID: b.newTopicID, Dirs: b.spaces, Clock: b.env.Clock, Log: b.log,
	}, now)
	if err != nil {
		return err
	}
	b.coord = c
	if c.Image().Version() >= 0 {
		return nil
	}
	for _, d := range b.dirs {
		for _, found := range d.Partitions() {
			if found.ID.Topic != wire.MetadataTopic {
				return fmt.Errorf("data directory %s holds partitions (%s), but the metadata log in %s is empty; put back %s/metadata, or start elsewhere: nothing here has been changed",
					d.Path(), found.Path, b.dirs[0].Path(), b.dirs[0].Path())
			}
		}
	}
	return nil
}

// spaces lists the data directories that take new partitions.
func (b *Broker) spaces() []coord.DirSpace {
	var all []coord.DirSpace
	for _, d := range b.dirs {
		if d.Failed() != nil {
			continue
		}
		if _, free, err := d.FS().Space(d.Path()); err == nil {
			all = append(all, coord.DirSpace{ID: d.ID(), Free: free})
		}
	}
	return all
}

// bumpEpochs gives the partitions of each directory whose last stop may have
// lost unsynced bytes a new leader epoch, before any of them is led: a reader
// that saw what is gone is then told so.
func (b *Broker) bumpEpochs(now mem.Now) error {
	for _, d := range b.dirs {
		if s := d.Start(); s.Clean || s.SameBoot || b.coord.Image().Hosted(d.ID()) == 0 {
			continue
		}
		if err := b.submitNow(coord.BumpEpochs{Dir: d.ID()}, now); err != nil {
			return fmt.Errorf("new leader epochs after a crash of the machine: %w", err)
		}
	}
	return nil
}

// submitNow has a command decided while nothing runs yet.
func (b *Broker) submitNow(cmd coord.Command, now mem.Now) error {
	var result error
	b.coord.Submit(cmd, func(_ coord.Result, err error) { result = err })
	for worked := true; worked; {
		var err error
		if worked, err = b.coord.Turn(now); err != nil {
			return err
		}
	}
	return result
}

// sortFound deals with folders that the metadata does not name: those of
// deleted topics are taken away, all others kept as orphans.
func (b *Broker) sortFound() error {
	image := b.coord.Image()
	for _, d := range b.dirs {
		for _, found := range d.Partitions() {
			if found.ID.Topic == wire.MetadataTopic {
				continue
			}
			t, err := image.Resolve(found.ID)
			switch {
			case found.Err == nil && err == nil && t.Name == found.Topic && t.Partitions[found.ID.Partition].Dir == d.ID():
			case found.Err == nil && image.Deleted(found.ID.Topic):
				if err := d.Delete(found.ID); err != nil {
					return err
				}
				b.hosts.say("%s belongs to a deleted topic: removed", found.Path)
			case found.Err != nil && b.placed(image, d, found):
				// What metadata places here cannot be opened: it stays where it
				// is, offline, for a person to look at.
				b.hosts.say("%s cannot be opened: %v", found.Path, found.Err)
			default:
				if err := d.Orphan(found.Path); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// placed reports whether a folder lies where the metadata puts a partition.
func (b *Broker) placed(image *coord.Image, d *storage.Dir, found storage.FoundPartition) bool {
	t := image.Topic(found.Topic)
	n := int(found.ID.Partition)
	return t != nil && n >= 0 && n < len(t.Partitions) && t.Partitions[n].Dir == d.ID()
}

// hostAll opens every partition. One that cannot be opened is offline and
// keeps no other from being served.
func (b *Broker) hostAll(now mem.Now) {
	type one struct {
		t *coord.Topic
		n int
	}
	var existing, missing []one
	for _, t := range b.coord.Image().Topics() {
		for n, place := range t.Partitions {
			d := b.directory(place.Dir)
			id := wire.PartitionID{Topic: t.ID, Partition: int32(n)}
			if fresh, err := false, error(nil); d != nil {
				if fresh, err = b.isNew(d, t.Name, id); fresh && err == nil {
					missing = append(missing, one{t, n})
					continue
				}
			}
			existing = append(existing, one{t, n})
		}
	}
	if b.env.Manual {
		for _, p := range existing {
			b.host(p.t, p.n, now)
		}
	} else {
		var openings sync.WaitGroup
		work := make(chan one)
		for range min(openers, len(existing)) {
			openings.Go(func() {
				for p := range work {
					b.host(p.t, p.n, b.time())
				}
			})
		}
		for _, p := range existing {
			work <- p
		}
		close(work)
		openings.Wait()
	}
	for _, p := range missing { // names are made by one goroutine at a time
		b.host(p.t, p.n, now)
	}
}

// event notes what happens in a data directory. With the metadata's own
// directory, or the last one, the process has to end.
func (b *Broker) event(e repl.Event) {
	if e.Kind != repl.DirectoryFailed {
		return
	}
	if e.Dir == b.dirs[0] {
		b.report(&exitError{exitIO, fmt.Errorf("the data directory with the metadata failed: %w", e.Err)})
		return
	}
	for _, d := range b.dirs {
		if d != e.Dir && d.Failed() == nil {
			return
		}
	}
	b.report(&exitError{exitIO, fmt.Errorf("no data directory is left: %w", e.Err)})
}

// bootID returns what the kernel calls this start of the machine.
func bootID() (string, error) {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", fmt.Errorf("boot id: %w", err)
	}
	return strings.TrimSpace(string(b)), nil
}
