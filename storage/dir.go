package storage

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"path"
	"sync"
	"sync/atomic"

	"github.com/teralog/teralog/wire"
)

// A Dir is one data directory: whose it is, how its last use ended, which
// partitions lie in it and from where their logs are to be recovered.
//
// Delete and Orphan take names away: nothing is created, deleted or orphaned
// beside them. Otherwise all methods may run at once.
//
// An fsync that fails is final: the method that meets it calls Fail, and every
// later change returns that error.
type Dir struct {
	who     identity
	fs      FS // watched
	waits   *waits
	path    string
	boot    string
	lock    io.Closer
	volume  Volume      // nil: its Sync cannot be believed
	doubted atomic.Bool // it said once that a file had failed, and not which
	reserve reserve
	files   *openFiles
	start   DirStart
	found   []FoundPartition
	alive   int64         // the newest append time that the last start left, ms; 0: not known
	saving  chan struct{} // holds a token while recovery-points is written
	making  sync.Mutex    // held while the folder of a topic is made

	mu      sync.Mutex // a leaf: never held during I/O
	report  []string
	failed  error
	closed  bool
	suspect bool // Recovered is owed
	paths   map[wire.PartitionID]string
	open    map[wire.PartitionID]bool     // opened or created by this start
	points  map[wire.PartitionID]Point    // as recovery-points has them, but for
	gone    int                           // those removed from the map since this start,
	saved   int                           // of which so many are removed from the file
	ends    map[wire.PartitionID]CleanEnd // of the last stop, until opened
}

// DirOptions say whose a data directory is to be.
type DirOptions struct {
	Node    wire.NodeID
	Cluster wire.UUID        // zero: whichever it has; a new one if it is formatted
	Boot    string           // the kernel's boot id; "": not known, hence never the same
	Format  bool             // make it a data directory if it is empty or absent
	NewID   func() wire.UUID // ids for what is formatted; random
	Reserve int64            // bytes of the reserve; 0: 64 MiB, below 0: none
	Files   int              // older segments kept open at most; 0: 512
}

// OpenDir takes a data directory into use: steps 1 and 2 of recovery. It fails
// with ErrLocked while another process has it, with ErrIdentity if it is
// another node's or cluster's, or nobody's and not to be formatted or not empty.
func OpenDir(fsys FS, name string, o DirOptions) (*Dir, error) {
	w := &waits{}
	fsys = watchedFS{fsys, w}
	d := &Dir{fs: fsys, waits: w, path: path.Clean(name), files: newOpenFiles(o.Files), saving: make(chan struct{}, 1),
		paths: map[wire.PartitionID]string{}, open: map[wire.PartitionID]bool{}}
	if o.Reserve == 0 {
		o.Reserve = reserveBytes
	}
	d.reserve = reserve{fsys, d.in(reserveName), o.Reserve}
	if err := d.prepare(o.Format); err != nil {
		return nil, err
	}
	lock, err := fsys.Lock(d.in(lockName))
	if err != nil {
		return nil, err
	}
	d.lock = lock
	if d.volume, err = fsys.Volume(d.path); err != nil && !errors.Is(err, errors.ErrUnsupported) {
		return nil, errors.Join(err, lock.Close())
	}
	if err := d.load(o); err != nil {
		return nil, errors.Join(fmt.Errorf("open data directory %s: %w", d.path, err), d.letGo())
	}
	return d, nil
}

// prepare makes the directory if it may. One that must not be formatted is not
// touched before it has shown an identity.
func (d *Dir) prepare(format bool) error {
	if _, err := d.fs.Stat(d.in(identityName)); !notExist(err) {
		return err
	}
	if err := d.refuseFormat(format); err != nil {
		return err
	}
	err := mkdirSynced(d.fs, d.path)
	if _, absent := d.fs.Stat(d.path); absent == nil && errors.Is(err, fs.ErrPermission) {
		return nil // it lies in a folder that others made and this user may not open
	}
	return err
}

func (d *Dir) load(o DirOptions) error {
	formatted, err := d.identify(o)
	if err != nil {
		return err
	}
	if err := d.begin(formatted, o.Boot); err != nil {
		return err
	}
	if err := d.loadPoints(); err != nil {
		return err
	}
	if err := d.tidy(); err != nil {
		return err
	}
	if err := d.scan(); err != nil {
		return err
	}
	d.start.Empty = len(d.found) == 0 && len(d.points) == 0
	err = d.refill()
	if isDiskFull(err) || errors.Is(err, errors.ErrUnsupported) {
		d.say("the reserve is not whole: %v", err)
		return nil
	}
	return err
}

// loadPoints reads the recovery points. After a clean stop the ends say them
// too. Without them every log is scanned from its start, which is slow and safe.
func (d *Dir) loadPoints() error {
	points, err := readSmall(d, pointsFile, pointsName, decodePoints)
	if err != nil && !notExist(err) {
		if !errors.Is(err, wire.ErrCorrupt) {
			return err
		}
		d.say("%v; without recovery points logs are scanned from their start", err)
	}
	if points == nil {
		points = map[wire.PartitionID]Point{}
	}
	for id, e := range d.ends {
		points[id] = e.Point
	}
	for _, p := range points {
		d.alive = max(d.alive, p.AppendTime)
	}
	d.points = points
	return nil
}

// tidy makes the folders that a data directory has and removes temporaries. The
// folders are fsynced: a process that died in a move may have left the new name
// in memory only, and the scan that follows removes what the old one stood in.
func (d *Dir) tidy() error {
	for _, name := range []string{topicsName, quarantineName, orphansName, deletedName} {
		if err := d.fs.Mkdir(d.in(name)); err != nil {
			return err
		}
	}
	for _, name := range []string{"", topicsName, quarantineName, orphansName, deletedName} {
		if err := syncDir(d.fs, path.Join(d.path, name)); err != nil {
			return err
		}
	}
	es, err := d.fs.ReadDir(d.path)
	if err != nil {
		return err
	}
	return removeTemps(d.fs, d.path, es)
}

func (d *Dir) in(name string) string { return d.path + "/" + name }

// ID returns the directory's own id.
func (d *Dir) ID() wire.UUID { return d.who.directory }

// Cluster returns the id of the cluster that the directory belongs to.
func (d *Dir) Cluster() wire.UUID { return d.who.cluster }

// Node returns the node that the directory belongs to.
func (d *Dir) Node() wire.NodeID { return d.who.node }

// Path returns the name that the directory was opened by.
func (d *Dir) Path() string { return d.path }

// FS returns the disk that it lies on, with Waiting looking on.
func (d *Dir) FS() FS { return d.fs }

// Start returns how the last use of the directory ended.
func (d *Dir) Start() DirStart { return d.start }

// Report returns what an operator should read about this start, a line each.
func (d *Dir) Report() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return append([]string(nil), d.report...)
}

func (d *Dir) say(format string, args ...any) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.report = append(d.report, d.path+": "+fmt.Sprintf(format, args...))
}

// usable returns why nothing may be changed in the directory.
func (d *Dir) usable() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return fmt.Errorf("data directory %s: %w", d.path, fs.ErrClosed)
	}
	return d.failed
}

// settle passes an error on, and ends the directory if it is a failed fsync.
func (d *Dir) settle(err error) error {
	if errors.Is(err, ErrSync) {
		d.Fail(err)
	}
	return err
}

// writeSmall replaces one of the directory's own files, from the reserve if it
// must.
func (d *Dir) writeSmall(kind smallFile, name string, body []byte) error {
	return d.withReserve(func() error { return kind.write(d.fs, d.in(name), body) })
}

// Known says whether recovery-points, or the last clean stop, names a partition:
// if so, it has been here, and a folder that is missing is a loss.
func (d *Dir) Known(id wire.PartitionID) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	_, ok := d.points[id]
	return ok
}

// SavePoints makes recovery points durable, those given in place of their old
// ones. It writes only if something differs. Points of partitions that were
// deleted meanwhile are left out. One save waits for another, else an older
// picture could be written over a newer one.
func (d *Dir) SavePoints(ps []Point) error {
	if err := d.usable(); err != nil {
		return err
	}
	d.saving <- struct{}{}
	defer func() { <-d.saving }()
	return d.settle(d.savePoints(ps))
}

func (d *Dir) savePoints(ps []Point) error {
	next, gone := d.changedPoints(ps)
	if next == nil {
		return nil
	}
	if err := d.writeSmall(pointsFile, pointsName, encodePoints(next)); err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, p := range ps {
		if _, here := d.paths[p.ID]; here {
			d.points[p.ID] = p
		}
	}
	d.saved = gone
	return nil
}

// changedPoints returns all points with ps among them, nil if the file says the
// same, and how many were removed until now.
func (d *Dir) changedPoints(ps []Point) (next map[wire.PartitionID]Point, gone int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	next = maps.Clone(d.points)
	changed := d.gone != d.saved
	for _, p := range ps {
		if !p.plausible() {
			panic(fmt.Sprintf("BUG: impossible recovery point %+v", p))
		}
		if _, here := d.paths[p.ID]; here && d.points[p.ID] != p {
			next[p.ID], changed = p, true
		}
	}
	if !changed {
		return nil, d.gone
	}
	return next, d.gone
}
