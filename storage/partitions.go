package storage

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"

	"github.com/teralog/teralog/mem"
	"github.com/teralog/teralog/wire"
)

// A FoundPartition is a folder that OpenDir met where partitions lie, the
// metadata log's included.
type FoundPartition struct {
	Topic string // as the manifest says; as the path says if Err is set
	ID    wire.PartitionID
	Path  string
	Err   error // why it cannot be opened: no manifest, a damaged one, one of another place
}

// Partitions returns what OpenDir found, sorted by path. Folders that a Create
// left behind before it was done are not among them.
func (d *Dir) Partitions() []FoundPartition { return d.found }

// place returns where a partition's folder belongs.
func (d *Dir) place(topic string, id wire.PartitionID) string {
	if id.Topic == wire.MetadataTopic {
		return d.in(metadataName)
	}
	return fmt.Sprintf("%s/%s/partition-%04d", d.in(topicsName), topic, id.Partition)
}

// scan finds the partitions. Folders of topics without any are removed.
func (d *Dir) scan() error {
	if err := d.examine("", d.in(metadataName)); err != nil && !notExist(err) {
		return err
	}
	topics, err := d.fs.ReadDir(d.in(topicsName))
	if err != nil {
		return err
	}
	for _, t := range topics {
		if !t.Dir {
			continue
		}
		dir := path.Join(d.in(topicsName), t.Name)
		es, err := d.fs.ReadDir(dir)
		if err != nil {
			return err
		}
		if len(es) == 0 {
			if err := d.fs.Remove(dir); err != nil {
				return err
			}
		}
		for _, e := range es {
			if !e.Dir {
				continue
			}
			if err := d.examine(t.Name, path.Join(dir, e.Name)); err != nil {
				return err
			}
		}
	}
	return nil
}

// examine looks at one folder that may be a partition.
func (d *Dir) examine(topic, dir string) error {
	es, err := d.fs.ReadDir(dir)
	if err != nil {
		return err
	}
	if err := removeTemps(d.fs, dir, es); err != nil {
		return err
	}
	m, err := readManifest(d.fs, dir)
	switch {
	case err == nil:
		topic = m.topic
		err = d.misplaced(m, dir)
	case notExist(err) && !holdsBytes(es):
		d.say("%s was not made to its end", dir)
		return nil
	}
	d.found = append(d.found, FoundPartition{Topic: topic, ID: m.id, Path: dir, Err: err})
	if err == nil {
		d.paths[m.id] = dir
	}
	return nil
}

func (d *Dir) misplaced(m manifest, dir string) error {
	if there, twice := d.paths[m.id]; twice {
		return fmt.Errorf("%s: partition %v also lies in %s", dir, m.id, there)
	}
	if want := d.place(m.topic, m.id); want != dir {
		return fmt.Errorf("%s: the manifest is that of topic %q, partition %v", dir, m.topic, m.id)
	}
	return nil
}

// holdsBytes says whether there are log bytes among the entries of a folder.
func holdsBytes(es []Entry) bool {
	for _, e := range es {
		if strings.HasSuffix(e.Name, logSuffix) && e.Size > 0 {
			return true
		}
	}
	return false
}

// Create makes an empty partition, durable when it returns. It wraps
// fs.ErrExist if there is one, or anything else of its name that holds bytes,
// and refuses an id that is Known: that partition is lost, not new. Several may
// be made at once.
func (d *Dir) Create(topic string, id wire.PartitionID, o Options, now mem.Now) (*Log, error) {
	if err := d.usable(); err != nil {
		return nil, err
	}
	if id.Topic != wire.MetadataTopic && !wire.ValidName(topic) {
		return nil, wire.Errorf(wire.CodeInvalidName, "topic name %q", topic)
	}
	if d.Known(id) {
		return nil, fmt.Errorf("create partition %v: it has been in %s before, and is missing", id, d.path)
	}
	dir := d.place(topic, id)
	if err := d.clearLeftover(dir); err != nil {
		return nil, fmt.Errorf("create partition %v: %w", id, err)
	}
	var l *Log
	err := d.withReserve(func() (err error) {
		l, err = d.make(dir, manifest{topic, id, now.Wall}, o, now)
		return err
	})
	if err != nil {
		return nil, d.settle(fmt.Errorf("create partition %v: %w", id, err))
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.paths[id], d.open[id] = dir, true
	return l, nil
}

// clearLeftover removes what a Create left that was not done. Only a manifest
// makes a partition, and without one there are no acknowledged bytes.
func (d *Dir) clearLeftover(dir string) error {
	es, err := d.fs.ReadDir(dir)
	if notExist(err) {
		return nil
	}
	if err != nil {
		return err
	}
	if _, err := d.fs.Stat(dir + "/" + manifestName); !notExist(err) || holdsBytes(es) {
		return fmt.Errorf("%s: %w", dir, fs.ErrExist)
	}
	return d.fs.RemoveAll(dir)
}

// make writes the manifest last: createLog has made the names durable that it
// vouches for.
func (d *Dir) make(dir string, m manifest, o Options, now mem.Now) (l *Log, err error) {
	defer func() {
		if err != nil {
			d.fs.RemoveAll(dir) // else the next Create does
		}
	}()
	if err := d.makeFolder(dir); err != nil {
		return nil, err
	}
	l, err = createLog(d.fs, dir, m.topic, m.id, o, d.files, now)
	if err != nil {
		return nil, err
	}
	if err := writeManifest(d.fs, dir, m); err != nil {
		l.Close()
		return nil, err
	}
	return l, nil
}

// makeFolder makes a partition's folder, durably. That of its topic, which several
// may need at once, is durable before any of them goes on.
func (d *Dir) makeFolder(dir string) error {
	topic := path.Dir(dir)
	d.making.Lock()
	_, err := d.fs.Stat(topic)
	if notExist(err) {
		err = mkdirSynced(d.fs, topic)
	}
	d.making.Unlock()
	if err != nil {
		return err
	}
	return mkdirSynced(d.fs, dir)
}

// Open recovers a partition: steps 3 to 7. What was found and done is in the
// log's Recovery.
func (d *Dir) Open(topic string, id wire.PartitionID, o Options, now mem.Now) (*Log, error) {
	if err := d.usable(); err != nil {
		return nil, err
	}
	dir := d.place(topic, id)
	m, err := readManifest(d.fs, dir)
	if err == nil && (m.id != id || m.topic != topic) {
		err = fmt.Errorf("%s: the manifest is that of topic %q, partition %v", dir, m.topic, m.id)
	}
	if err != nil {
		return nil, fmt.Errorf("open partition %v: %w", id, err)
	}
	l, err := openLog(d.fs, dir, topic, id, o, d.openState(id), now)
	if err != nil {
		return nil, d.settle(fmt.Errorf("open partition %v: %w", id, err))
	}
	if r := l.Recovery(); r.Touched() {
		d.say("%v", r)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.open[id] = true
	return l, nil
}

// openState hands out what is known about a log. The end of the last clean stop
// is given once: after that the log moves on.
func (d *Dir) openState(id wire.PartitionID) openState {
	d.mu.Lock()
	defer d.mu.Unlock()
	s := openState{Warm: d.start.warm, Alive: d.alive, Quarantine: d.in(quarantineName), Files: d.files}
	if p, ok := d.points[id]; ok {
		s.Point = &p
	}
	if e, ok := d.ends[id]; ok {
		s.Clean = &e
		delete(d.ends, id)
	}
	return s
}

// Delete takes partitions out of the directory, durably, into deleted/, where
// Purge unlinks them. It is to follow a committed delete of their ids. Their logs
// may still be open, for readers. Known names none of them any more. The error
// wraps fs.ErrNotExist if none of them is here; after another one some are gone.
func (d *Dir) Delete(ids ...wire.PartitionID) error {
	if err := d.usable(); err != nil {
		return err
	}
	var here []wire.PartitionID
	var moves []move
	for _, id := range ids {
		d.mu.Lock()
		dir, ok := d.paths[id]
		d.mu.Unlock()
		if !ok {
			d.forget(id)
			continue
		}
		here, moves = append(here, id), append(moves, move{dir, path.Join(d.in(deletedName), id.String())})
	}
	if len(here) == 0 {
		return fmt.Errorf("delete partitions %v: %w", ids, fs.ErrNotExist)
	}
	for _, m := range moves {
		// A power cut in the middle of a move may have left both names.
		if err := d.fs.RemoveAll(m.to); err != nil {
			return fmt.Errorf("delete partition: %w", err)
		}
	}
	n, err := d.move(moves...)
	for _, id := range here[:n] {
		d.forget(id)
	}
	if err != nil {
		return d.settle(fmt.Errorf("delete partition: %w", err))
	}
	return nil
}

// A move takes a folder elsewhere.
type move struct{ from, to string }

// move moves folders into another one, from the reserve if it must, and returns
// how many it moved. All new names are durable before an old one is gone, so that
// a power cut may leave both, never none.
func (d *Dir) move(moves ...move) (n int, err error) {
	var parents []string
	full := d.withReserve(func() error {
		for ; n < len(moves); n++ {
			if err := d.fs.Rename(moves[n].from, moves[n].to); err != nil {
				return err
			}
			if parent := path.Dir(moves[n].from); !slices.Contains(parents, parent) {
				parents = append(parents, parent)
			}
		}
		return nil
	})
	for _, dir := range append([]string{path.Dir(moves[0].to)}, parents...) {
		if err := syncDir(d.fs, dir); err != nil {
			return n, err
		}
	}
	if full != nil {
		return n, full
	}
	for _, parent := range parents {
		es, err := d.fs.ReadDir(parent)
		if err == nil && len(es) == 0 && path.Dir(parent) == d.in(topicsName) {
			err = d.fs.Remove(parent) // the topic's last; a start removes it else
		}
		if err != nil {
			return n, err
		}
	}
	return n, nil
}

func (d *Dir) forget(id wire.PartitionID) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.paths, id)
	delete(d.open, id)
	delete(d.ends, id)
	if _, known := d.points[id]; known {
		delete(d.points, id)
		d.gone++
	}
}

// Holds says whether a folder of a topic lies here, in use, found unfit for it,
// or set aside by Delete and not purged yet.
func (d *Dir) Holds(topic wire.TopicID) (bool, error) {
	if d.uses(topic) {
		return true, nil
	}
	for _, p := range d.found {
		if p.Err == nil || p.ID.Topic != topic {
			continue
		}
		if _, err := d.fs.Stat(p.Path); !notExist(err) {
			return true, err
		}
	}
	es, err := d.fs.ReadDir(d.in(deletedName))
	for _, e := range es {
		if strings.HasPrefix(e.Name, fmt.Sprintf("%d-", topic)) {
			return true, nil
		}
	}
	return false, err
}

func (d *Dir) uses(topic wire.TopicID) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	for id := range d.paths {
		if id.Topic == topic {
			return true
		}
	}
	return false
}

// Orphan moves a folder found by OpenDir into orphans/, durably: one that no
// metadata names, or whose manifest names another id than metadata does.
// Nothing is ever deleted there.
func (d *Dir) Orphan(dir string) error {
	if err := d.usable(); err != nil {
		return err
	}
	name := strings.ReplaceAll(strings.TrimPrefix(dir, d.in(topicsName)+"/"), "/", ".")
	m, err := readManifest(d.fs, dir)
	if err == nil {
		name = fmt.Sprintf("%s.%v", m.topic, m.id)
	}
	to, err := d.unused(path.Join(d.in(orphansName), name))
	if err == nil {
		_, err = d.move(move{dir, to})
	}
	if err != nil {
		return d.settle(fmt.Errorf("move %s to orphans: %w", dir, err))
	}
	d.say("%s is an orphan: moved to %s", dir, to)
	d.mu.Lock()
	here := d.paths[m.id] == dir
	d.mu.Unlock()
	if here {
		d.forget(m.id)
	}
	return nil
}

// unused returns name, or name with the first number that makes it new.
func (d *Dir) unused(name string) (string, error) {
	for n := 0; ; n++ {
		try := name
		if n > 0 {
			try = fmt.Sprintf("%s.%d", name, n)
		}
		if _, err := d.fs.Stat(try); err != nil {
			if notExist(err) {
				return try, nil
			}
			return "", err
		}
	}
}

// Purge unlinks what Delete set aside and lets the reserve grow back. It returns
// how many partitions it unlinked. Files that readers have open live on until
// they are closed.
func (d *Dir) Purge() (n int, err error) {
	if err := d.usable(); err != nil {
		return 0, err
	}
	es, err := d.fs.ReadDir(d.in(deletedName))
	if err != nil {
		return 0, err
	}
	for _, e := range es {
		if err := d.fs.RemoveAll(path.Join(d.in(deletedName), e.Name)); err != nil {
			return n, err
		}
		n++
	}
	if err := d.refill(); errors.Is(err, ErrSync) {
		return n, d.settle(err)
	}
	return n, nil // any other way the reserve grows back later
}
