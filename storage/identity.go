package storage

import (
	"errors"
	"fmt"
	"path"
	"slices"

	"github.com/teralog/teralog/wire"
)

// ErrIdentity says that a path is not the data directory it is taken for:
// another node's, another cluster's, or none at all. Nothing in it was changed.
var ErrIdentity = errors.New("not this node's data directory")

// The names in a data directory.
const (
	lockName       = "lock"
	identityName   = "identity"
	runningName    = "running"
	cleanName      = "clean"
	failedName     = "failed"
	reserveName    = "reserve"
	pointsName     = "recovery-points"
	topicsName     = "topics"
	metadataName   = "metadata"
	quarantineName = "quarantine"
	orphansName    = "orphans"
	deletedName    = "deleted"
	siblingsName   = "siblings"
	scrubName      = "scrub"
)

// An identity says whose a data directory is. It is written once, before
// anything else in there but the lock.
type identity struct {
	node      wire.NodeID
	cluster   wire.UUID
	directory wire.UUID
}

var identityFile = smallFile{magic: "TLid", version: 1, max: 4 << 10}

// encode lays an identity out: | node i32 | cluster 16 | directory 16 |.
func (i identity) encode() []byte {
	b := wire.Append32(nil, i.node)
	b = append(b, i.cluster[:]...)
	return append(b, i.directory[:]...)
}

func decodeIdentity(b []byte) (identity, error) {
	r := wire.NewReader(b)
	i := identity{node: wire.NodeID(r.I32()), cluster: r.UUID(), directory: r.UUID()}
	return i, r.Finish()
}

// Formatted reports whether the directory name has an identity. The error says
// that nobody can tell.
func Formatted(fs FS, name string) (bool, error) {
	_, err := fs.Stat(path.Join(name, identityName))
	if notExist(err) {
		return false, nil
	}
	return err == nil, err
}

// identify reads whose the directory is, or makes it this node's where it is
// empty and o.Format allows that. It returns whether it did.
func (d *Dir) identify(o DirOptions) (formatted bool, err error) {
	b, err := identityFile.read(d.fs, d.in(identityName))
	if notExist(err) {
		return true, d.format(o)
	}
	if err == nil {
		d.who, err = decodeIdentity(b)
	}
	if err != nil {
		return false, fmt.Errorf("whose data directory %s is cannot be read: %w", d.path, err)
	}
	switch i := d.who; {
	case i.node != o.Node:
		return false, fmt.Errorf("%s: %w: it belongs to node %d, this is node %d", d.path, ErrIdentity, i.node, o.Node)
	case o.Cluster != wire.UUID{} && i.cluster != o.Cluster:
		return false, fmt.Errorf("%s: %w: it belongs to cluster %v, this node to %v", d.path, ErrIdentity, i.cluster, o.Cluster)
	}
	return false, nil
}

func (d *Dir) format(o DirOptions) error {
	if err := d.refuseFormat(o.Format); err != nil {
		return err
	}
	d.who = identity{node: o.Node, cluster: o.Cluster, directory: o.NewID()}
	if d.who.cluster == (wire.UUID{}) {
		d.who.cluster = o.NewID()
	}
	return identityFile.write(d.fs, d.in(identityName), d.who.encode())
}

// refuseFormat says why the directory, which has no identity, must not be
// given one: it may be the place where a disk is not mounted, or a data
// directory that lost its identity.
func (d *Dir) refuseFormat(format bool) error {
	es, err := d.fs.ReadDir(d.path)
	if err != nil && !notExist(err) {
		return err
	}
	ours := []string{topicsName, metadataName, runningName, cleanName, failedName, pointsName, quarantineName, orphansName, deletedName, siblingsName, scrubName}
	for _, e := range es {
		if slices.Contains(ours, e.Name) {
			return fmt.Errorf("%s: %w: it has no identity, yet %q lies in it", d.path, ErrIdentity, e.Name)
		}
	}
	if !format {
		return fmt.Errorf("%s: %w: it is empty; is its disk mounted?", d.path, ErrIdentity)
	}
	return nil
}

// mkdirSynced makes a directory whose name, and those of the parents it had to
// make, are durable when it returns.
func mkdirSynced(fs FS, name string) error {
	parent := path.Dir(name)
	if _, err := fs.Stat(parent); notExist(err) {
		if err := mkdirSynced(fs, parent); err != nil {
			return err
		}
	}
	if err := fs.Mkdir(name); err != nil {
		return err
	}
	return syncDir(fs, parent) // also if it was there: its maker may have died before this
}
