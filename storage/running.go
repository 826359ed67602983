package storage

import (
	"errors"
	"fmt"

	"github.com/teralog/teralog/mem"
	"github.com/teralog/teralog/wire"
)

// DirStart says how the last use of a data directory ended.
type DirStart struct {
	Number uint64 // of this start, 1 for the first

	// Clean: the last process stopped in order, or there was none. Every log
	// it closed is exactly where it says.
	Clean bool

	// SameBoot: the machine has run on since, and no fsync had failed, so that
	// what the last process wrote is there even if it was not synced.
	// Neither Clean nor SameBoot: unsynced bytes may be lost.
	SameBoot bool

	Empty bool // no partition lies here, and none is missing

	warm bool // the machine has run on since, whatever failed: its cache may show what the disk has not
}

// A running file tells of a start whose end no clean file tells of.
type running struct {
	start uint64
	// suspect: when this start began, unsynced bytes might have been lost, and
	// nobody has called Recovered since. A death before that must not make it
	// look like the death of a process in good health.
	suspect bool
	boot    string
}

var runningFile = smallFile{magic: "TLru", version: 1, max: 4 << 10}

// encode lays it out: | start u64 | suspect u8 | boot length uvarint | boot id |.
func (r running) encode() []byte {
	b := wire.Append64(nil, r.start)
	b = wire.AppendBool(b, r.suspect)
	return wire.AppendString(b, r.boot)
}

func decodeRunning(b []byte) (running, error) {
	r := wire.NewReader(b)
	v := running{start: r.U64(), suspect: r.Bool(), boot: r.String()}
	return v, r.Finish()
}

// A failedNote says that an fsync failed in a start, so that the page cache may
// show what the disk does not hold.
type failedNote struct {
	start  uint64
	reason string
}

var failedFile = smallFile{magic: "TLfa", version: 1, max: 64 << 10}

// encode lays it out: | start u64 | reason length uvarint | reason |.
func (f failedNote) encode() []byte {
	return wire.AppendText(wire.Append64(nil, f.start), f.reason)
}

func decodeFailedNote(b []byte) (failedNote, error) {
	r := wire.NewReader(b)
	f := failedNote{start: r.U64(), reason: r.String()}
	return f, r.Finish()
}

// begin is step 2 of recovery: it reads how the last start ended and makes it
// durable that this one runs. A clean file counts only for the start that
// running names, so a power cut among these steps leaves either the old pair or
// an unclean stop.
func (d *Dir) begin(formatted bool, boot string) error {
	last, lastErr := readSmall(d, runningFile, runningName, decodeRunning)
	stop, stopErr := readSmall(d, cleanFile, cleanName, decodeCleanStop)
	fail, failErr := readSmall(d, failedFile, failedName, decodeFailedNote)
	for _, err := range []error{lastErr, stopErr, failErr} {
		if err == nil || notExist(err) {
			continue
		}
		if !errors.Is(err, wire.ErrCorrupt) {
			return err
		}
		d.say("%v; taken for an unclean stop", err)
	}
	failed := !notExist(failErr)
	d.start.Number = max(last.start, stop.start, fail.start) + 1
	d.start.Clean = formatted || lastErr == nil && stopErr == nil && stop.start == last.start && !failed
	d.start.warm = lastErr == nil && boot != "" && last.boot == boot
	d.start.SameBoot = d.start.warm && !last.suspect && !failed
	d.boot = boot
	if d.start.Clean {
		d.ends = stop.ends
	}
	if failed {
		d.say("start %d failed: %s", fail.start, fail.reason)
	}
	if !formatted {
		d.say("start %d follows %s of start %d", d.start.Number, d.start.lastStop(), last.start)
	}

	d.suspect = !d.start.Clean && !d.start.SameBoot
	if mem.Mutant("clean marker removed after load") && stopErr == nil {
		return nil // so late that records are served before
	}
	if err := d.writeRunning(d.suspect); err != nil {
		return err
	}
	return d.removeSynced(cleanName, failedName)
}

func (s DirStart) lastStop() string {
	switch {
	case s.Clean:
		return "the clean stop"
	case s.SameBoot:
		return "the death"
	}
	return "the unclean stop, with unsynced bytes possibly lost,"
}

// readSmall reads one of the directory's own files; zero with any error.
func readSmall[T any](d *Dir, kind smallFile, name string, decode func([]byte) (T, error)) (v T, err error) {
	b, err := kind.read(d.fs, d.in(name))
	if err != nil {
		return v, err
	}
	read, err := decode(b)
	if err != nil {
		return v, fmt.Errorf("%s: %w", d.in(name), err)
	}
	return read, nil
}

// writeRunning says that this start runs. On a disk with nothing left, the reserve
// used up, it overwrites the old file: a start must be possible there. Should a
// crash tear that, the next start takes it for an unclean stop.
func (d *Dir) writeRunning(suspect bool) error {
	body := running{start: d.start.Number, suspect: suspect, boot: d.boot}.encode()
	err := d.writeSmall(runningFile, runningName, body)
	if isDiskFull(err) {
		if e := runningFile.overwrite(d.fs, d.in(runningName), body); !notExist(e) {
			return e
		}
	}
	return err
}

func (d *Dir) removeSynced(names ...string) error {
	for _, name := range names {
		if err := d.fs.Remove(d.in(name)); err != nil && !notExist(err) {
			return err
		}
	}
	return syncDir(d.fs, d.path)
}

// Recovered says that every partition has been recovered and synced, and, after
// a start that was neither Clean nor SameBoot, has got a new leader epoch. If
// the process dies from here on, it is the death of a process only; before,
// there is no clean stop.
func (d *Dir) Recovered() error {
	if err := d.usable(); err != nil {
		return err
	}
	if !d.isSuspect() {
		return nil
	}
	if err := d.writeRunning(false); err != nil {
		return d.settle(err)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.suspect = false
	return nil
}

func (d *Dir) isSuspect() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.suspect
}

// Fail ends the directory: nothing is written to it from here on, but for the
// note that says so, where it can be. The first error counts.
func (d *Dir) Fail(err error) { d.Condemn(err)() }

// Condemn is Fail but for the note, which is written by what it returns: on a disk
// that hangs that may not come back.
func (d *Dir) Condemn(err error) (note func()) {
	if err == nil {
		panic("BUG: directory failed without an error")
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.failed != nil || d.closed {
		return func() {}
	}
	d.failed = err
	return func() {
		note := failedNote{start: d.start.Number, reason: err.Error()}
		d.writeSmall(failedFile, failedName, note.encode()) // a disk this ill may refuse
	}
}

// Failed returns the error that ended the directory, nil while it is well.
func (d *Dir) Failed() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.failed
}

// Close ends the use of the directory with a clean stop. ends are the results of
// all logs' own Close. It fails, and the stop is not clean, without one of them,
// after Fail, and while Recovered is owed. The lock is free afterwards anyway.
func (d *Dir) Close(ends []CleanEnd) error {
	err := d.usable()
	if err == nil {
		err = d.settle(d.writeStop(ends))
	}
	return errors.Join(err, d.Abandon())
}

// Abandon ends the use of the directory as the death of the process would:
// nothing is written and the lock is free.
func (d *Dir) Abandon() error {
	d.mu.Lock()
	again := d.closed
	d.closed = true
	d.mu.Unlock()
	if again {
		return nil
	}
	return d.letGo()
}

func (d *Dir) letGo() error {
	if d.volume == nil {
		return d.lock.Close()
	}
	return errors.Join(d.volume.Close(), d.lock.Close())
}

// writeStop writes the clean file last, since it vouches for all that came
// before.
func (d *Dir) writeStop(ends []CleanEnd) error {
	stop := cleanStop{start: d.start.Number, ends: map[wire.PartitionID]CleanEnd{}}
	points := make([]Point, 0, len(ends))
	for _, e := range ends {
		stop.ends[e.Point.ID] = e
		points = append(points, e.Point)
	}
	if id, missing := d.stillOpen(stop.ends); missing {
		return fmt.Errorf("%s: no clean stop: partition %v was not closed", d.path, id)
	}
	if d.isSuspect() {
		return fmt.Errorf("%s: no clean stop: the recovery of start %d was not ended", d.path, d.start.Number)
	}
	if err := d.savePoints(points); err != nil {
		return err
	}
	return d.writeSmall(cleanFile, cleanName, stop.encode())
}

func (d *Dir) stillOpen(ends map[wire.PartitionID]CleanEnd) (id wire.PartitionID, missing bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, id := range sortedPartitions(d.open) {
		if _, ok := ends[id]; !ok {
			return id, true
		}
	}
	return id, false
}
