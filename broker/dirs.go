package broker

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"path"
	"slices"
	"strings"
	"syscall"

	"github.com/teralog/teralog/coord"
	"github.com/teralog/teralog/storage"
	"github.com/teralog/teralog/wire"
)

// Dirs returns the paths of all data directories, that of the metadata first.
func (c *Config) Dirs() []string {
	var paths []string
	if c.MetadataDir != "" {
		paths = append(paths, path.Clean(c.MetadataDir))
	}
	for _, p := range c.DataDirs {
		paths = append(paths, path.Clean(p))
	}
	return paths
}

// A deadDir is a data directory that could not be opened at the start, for which
// the others need not stay away.
type deadDir struct {
	path string
	err  error
}

// openDirs opens every data directory, the first one before all others, and
// formats new ones last: until it is known that none is missing, an empty folder
// may be the place of a disk that is not mounted.
func (b *Broker) openDirs() error {
	paths := b.config.Dirs()
	defer func() { // in the order of the configuration, whatever they were opened in
		slices.SortFunc(b.dirs, func(x, y *storage.Dir) int {
			return cmp.Compare(slices.Index(paths, x.Path()), slices.Index(paths, y.Path()))
		})
	}()
	fresh, err := b.freshDirs(paths)
	if err != nil {
		return err
	}
	if err := b.openDir(paths[0]); err != nil {
		return err
	}
	for _, path := range paths[1:] {
		if slices.Contains(fresh, path) || b.isDead(path) {
			continue
		}
		if err := b.openOther(path); err != nil {
			return err
		}
	}
	fresh = slices.DeleteFunc(fresh, func(path string) bool { return path == paths[0] })
	known, err := b.refuseUnmounted(fresh)
	if err != nil {
		return err
	}
	for _, path := range fresh {
		if err := b.openOther(path); err != nil {
			return err
		}
	}
	if b.noneLeft() {
		return &exitError{exitIO, fmt.Errorf("no data directory can be used; the first: %w", b.dead[0].err)}
	}
	return b.noteDirs(known)
}

// freshDirs returns the paths without an identity. If the first one is, no other
// may have one: the metadata would be missing.
func (b *Broker) freshDirs(paths []string) (fresh []string, err error) {
	used := ""
	for i, path := range paths {
		formatted, err := storage.Formatted(b.env.FS, path)
		switch {
		case i > 0 && b.goOnWithout(path, err):
		case err != nil:
			return nil, err
		case formatted:
			used = cmp.Or(used, path)
		default:
			fresh = append(fresh, path)
		}
	}
	if used != "" && slices.Contains(fresh, paths[0]) {
		return nil, fmt.Errorf("%s: %w: it is to hold the metadata and is empty, but %s is in use; is its disk mounted? If not, name the directory with the metadata first, or put it back",
			paths[0], storage.ErrIdentity, used)
	}
	return fresh, nil
}

// openDir opens one data directory, or formats it.
func (b *Broker) openDir(path string) error {
	o := storage.DirOptions{Node: b.config.Node, Boot: b.env.Boot, Format: true, NewID: b.env.NewID, Reserve: cmp.Or(b.config.Reserve, -1), Files: b.segmentFiles()}
	if len(b.dirs) > 0 {
		o.Cluster = b.dirs[0].Cluster()
	} else if formatted, err := storage.Formatted(b.env.FS, path); err == nil && !formatted && len(b.config.Peers) > 0 {
		o.Cluster = newCluster(b.config.Peers)
	}
	d, err := storage.OpenDir(b.env.FS, path, o)
	if errors.Is(err, storage.ErrLocked) {
		return fmt.Errorf("another process uses the data directory %s: %w", path, err)
	}
	if err != nil {
		return err
	}
	b.dirs = append(b.dirs, d)
	return nil
}

// openOther is openDir, but for a disk that is ill: the others go on without it.
func (b *Broker) openOther(path string) error {
	err := b.openDir(path)
	if b.goOnWithout(path, err) {
		return nil
	}
	return err
}

// goOnWithout notes that the directory cannot be used if err is the disk's
// fault, and returns whether it is. Other errors are for a person to decide on.
func (b *Broker) goOnWithout(path string, err error) bool {
	if !diskTrouble(err) {
		return false
	}
	b.event(EventDirectoryOffline, slog.String("dir", path), slog.Any("err", err))
	b.dead = append(b.dead, deadDir{path, err})
	return true
}

func (b *Broker) isDead(path string) bool {
	return slices.ContainsFunc(b.dead, func(d deadDir) bool { return d.path == path })
}

// diskTrouble reports whether an error says that a disk is ill, or full.
func diskTrouble(err error) bool {
	for _, e := range []error{storage.ErrSync, syscall.EIO, syscall.EROFS, syscall.ENOSPC, syscall.EDQUOT,
		syscall.ENXIO, syscall.ENODEV, syscall.ESTALE, syscall.EUCLEAN, syscall.EBADMSG, syscall.ENODATA} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// refuseUnmounted returns the ids of the directories that this node has used,
// but for those the operator has given up. It fails if one of them is missing
// and a directory is empty, in whose place it may belong.
func (b *Broker) refuseUnmounted(fresh []string) (known []wire.UUID, err error) {
	known, err = b.dirs[0].Siblings()
	if err != nil && (len(fresh) > 0 || !errors.Is(err, wire.ErrCorrupt)) {
		return nil, fmt.Errorf("which data directories this node has cannot be read: %w", err)
	}
	known = slices.DeleteFunc(known, func(id wire.UUID) bool { return slices.Contains(b.config.LostDirs, id) })
	var missing []string
	for _, id := range known {
		if b.directory(id) == nil {
			missing = append(missing, id.String())
		}
	}
	if len(fresh) == 0 || len(missing) <= len(b.dead) {
		return known, nil
	}
	names := strings.Join(missing, ",")
	return nil, fmt.Errorf("%s: %w: it is empty, and the data directory %s is missing. Is its disk mounted? Take an empty one out of data-dir to go on without it; if it is lost for good, say lost-dirs = %s",
		strings.Join(fresh, ", "), storage.ErrIdentity, names, names)
}

// noteDirs notes which directories the node has, before anything lies in a new
// one.
func (b *Broker) noteDirs(known []wire.UUID) error {
	for _, d := range b.dirs {
		if !slices.Contains(known, d.ID()) {
			known = append(known, d.ID())
		}
	}
	return b.dirs[0].SetSiblings(known)
}

// directory returns the data directory of an id, nil if it is not here.
func (b *Broker) directory(id wire.UUID) *storage.Dir {
	for _, d := range b.dirs {
		if d.ID() == id {
			return d
		}
	}
	return nil
}

// refuseLost returns an error if the first directory is empty and another one
// is not: then the metadata is missing, and a new beginning would take what
// lies there for orphans. A first directory that holds partitions without
// metadata coord itself refuses.
func (b *Broker) refuseLost() error {
	if !b.dirs[0].Start().Empty {
		return nil
	}
	for _, d := range b.dirs[1:] {
		if found := d.Partitions(); len(found) > 0 {
			return fmt.Errorf("data directory %s holds partitions (%s), but %s, the place of the metadata, is empty; name the directory with the metadata first, or put it back",
				d.Path(), found[0].Path, b.dirs[0].Path())
		}
	}
	return nil
}

// records returns the data directories for records: all, unless the metadata
// has one of its own.
func (b *Broker) records() []*storage.Dir {
	if b.config.MetadataDir != "" {
		return b.dirs[1:]
	}
	return b.dirs
}

// spaces lists the data directories that take new partitions.
func (b *Broker) spaces() []coord.DirSpace {
	var all []coord.DirSpace
	for _, d := range b.records() {
		if d.Failed() != nil {
			continue
		}
		if _, free, err := d.FS().Space(d.Path()); err == nil {
			all = append(all, coord.DirSpace{ID: d.ID(), Free: free})
		}
	}
	return all
}

// endDir ends a directory that err shows to be ill, so that the others go on. It
// returns false for the metadata's, and for an error that is not the disk's.
func (b *Broker) endDir(d *storage.Dir, err error) bool {
	if d == b.dirs[0] || !diskTrouble(err) {
		return false
	}
	d.Fail(err)
	b.event(EventDirectoryOffline, slog.String("dir", d.Path()), slog.Any("err", err))
	return true
}

// errNoneLeft says that the process has nothing left to serve.
var errNoneLeft = errors.New("no data directory is left in service")

// noneLeft reports whether no data directory for records is in service.
func (b *Broker) noneLeft() bool {
	return !slices.ContainsFunc(b.records(), func(d *storage.Dir) bool { return d.Failed() == nil })
}

// eachDir calls f for every data directory of the configuration; d is nil for
// one that could not be opened.
func (b *Broker) eachDir(f func(path string, d *storage.Dir)) {
	for _, path := range b.config.Dirs() {
		i := slices.IndexFunc(b.dirs, func(d *storage.Dir) bool { return d.Path() == path })
		if i < 0 {
			f(path, nil)
			continue
		}
		f(path, b.dirs[i])
	}
}
