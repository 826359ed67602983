package storage

import (
	"bytes"
	"fmt"
	"syscall"
	"testing"

	"github.com/teralog/teralog/wire"
)

// A dirLife is a data directory and what must be true of it whatever happens:
// every log is a prefix of what was appended to it, and holds what was flushed.
type dirLife struct {
	t       *testing.T
	r       *random
	fs      *MemFS
	boot    int
	history map[wire.PartitionID]*lifeLog
	deleted map[wire.PartitionID]bool
	did     string // so far, for the report of a failure

	halfDeleted bool // the last use ended in a Delete
	interrupted bool // starts since then were not done

	dir  *Dir
	logs map[wire.PartitionID]*Log
}

type lifeLog struct {
	appended []wire.Batch // as stamped
	floor    wire.Offset  // flushed
}

// Small segments and snapshots, so that rolls, seals and snapshots are common.
var lifeOptions = Options{SegmentBytes: 2 * pageSize, IndexInterval: 256, SnapshotBytes: pageSize}

func (l *dirLife) fatalf(format string, args ...any) {
	l.t.Helper()
	l.t.Fatalf("%s\nafter%s", fmt.Sprintf(format, args...), l.did)
}

func (l *dirLife) note(format string, args ...any) { l.did += " " + fmt.Sprintf(format, args...) }

func (l *dirLife) options() DirOptions { return testDir(fmt.Sprint("boot", l.boot)) }

// interrupt lets a start or two end before they are done, by the death of the
// process or a power cut, and returns how the use before them counts to have
// ended then.
func (l *dirLife) interrupt(how string) string {
	for l.r.below(3) == 0 {
		n := 1 + l.r.below(60)
		l.note("start(%d)", n)
		l.fs.StopAfter(n)
		if d, err := OpenDir(l.fs, "/data", l.options()); err == nil {
			for _, p := range d.Partitions() {
				if p.Err == nil && !l.deleted[p.ID] {
					d.Open(p.Topic, p.ID, lifeOptions, at(1))
				}
			}
		}
		l.interrupted = true
		if l.r.below(2) == 0 {
			l.note("death")
			l.fs = l.fs.Clone()
			continue
		}
		l.note("cut")
		l.boot++
		l.fs = l.fs.Crash(CrashAny)
		how = "cut"
	}
	return how
}

// start opens the directory and everything in it. how is what ended the last
// use: "clean", "death" or "cut".
func (l *dirLife) start(how string) {
	l.t.Helper()
	stop := how
	how = l.interrupt(how)
	d, err := OpenDir(l.fs, "/data", l.options())
	if err != nil {
		l.fatalf("open: %v", err)
	}
	l.dir, l.logs = d, map[wire.PartitionID]*Log{}
	s := d.Start()
	if !l.interrupted && (s.Clean != (how == "clean") || how != "clean" && s.SameBoot != (how == "death")) {
		l.fatalf("start after a %s: %+v", how, s)
	}
	// A power cut after a clean stop loses nothing, so nothing need be remembered.
	if l.interrupted && how == "cut" && s.SameBoot && stop != "clean" {
		l.fatalf("interrupted starts made a power cut forgotten: %+v", s)
	}
	l.interrupted = false
	for _, p := range d.Partitions() {
		if p.Err != nil {
			l.fatalf("found %+v", p)
		}
		if l.deleted[p.ID] {
			if !l.halfDeleted {
				l.fatalf("%v is back", p.ID)
			}
			if err := d.Delete(p.ID); err != nil { // as its committed delete asks
				l.fatalf("delete: %v", err)
			}
			continue
		}
		log, err := d.Open(p.Topic, p.ID, lifeOptions, at(1))
		if err != nil {
			l.fatalf("open %v: %v", p.ID, err)
		}
		l.logs[p.ID] = log
		l.check(p.ID, log, how)
	}
	for id := range l.history {
		if l.logs[id] == nil {
			l.fatalf("partition %v is gone", id)
		}
	}
	l.halfDeleted = false
	if err := d.Recovered(); err != nil {
		l.fatalf("recovered: %v", err)
	}
}

func (l *dirLife) check(id wire.PartitionID, log *Log, how string) {
	l.t.Helper()
	h := l.history[id]
	if h == nil { // its Create was under way
		h = &lifeLog{}
		l.history[id] = h
	}
	var want []byte
	kept := 0
	for _, b := range h.appended {
		if b.NextOffset() > log.View().End() {
			break
		}
		want = append(want, b...)
		kept++
	}
	if got := mustContents(l.t, log.View()); !bytes.Equal(got, want) {
		l.fatalf("%v after a %s: %d bytes, want the first %d batches in %d", id, how, len(got), kept, len(want))
	}
	if end := log.View().End(); end < h.floor || how != "cut" && kept != len(h.appended) {
		l.fatalf("%v after a %s: %d of %d batches, end %d, flushed to %d", id, how, kept, len(h.appended), end, h.floor)
	}
	h.appended = h.appended[:kept]
	h.floor = log.View().End() // recovery syncs what it serves
}

// step does one thing that a broker does. An error ends this use of the
// directory.
func (l *dirLife) step() error {
	ids := sortedPartitions(l.logs)
	if len(ids) == 0 || l.r.below(12) == 0 {
		id := wire.PartitionID{Topic: wire.TopicID(5000 + l.r.below(1000)), Partition: int32(l.r.below(3))}
		if l.history[id] != nil || l.deleted[id] {
			return nil
		}
		l.note("create(%v)", id)
		log, err := l.dir.Create(fmt.Sprintf("t%d", id.Topic), id, lifeOptions, at(1))
		if err == nil {
			l.logs[id], l.history[id] = log, &lifeLog{}
		}
		return err
	}
	id := ids[l.r.below(len(ids))]
	log, h := l.logs[id], l.history[id]
	switch l.r.below(10) {
	default:
		b := maker{id: id, mark: l.r.below(1 << 20), value: l.r.below(1500)}.batch(l.t)
		l.note("append(%v)", id)
		_, err := log.Append([]wire.Batch{b}, max(log.View().Epoch(), 0), at(1))
		if err == nil {
			h.appended = append(h.appended, b)
		}
		return err
	case 0, 1:
		l.note("flush(%v)", id)
		end, err := log.Flush()
		if err == nil {
			h.floor = end
		}
		return err
	case 2, 3:
		l.note("point(%v)", id)
		c := log.Checkpoint(at(1))
		if c == nil {
			return nil
		}
		p, err := c.Run()
		if err != nil {
			return err
		}
		h.floor = p.Offset
		if err := l.dir.SavePoints([]Point{p}); err != nil {
			return err
		}
		log.Checkpointed(p)
		return nil
	case 4:
		if l.r.below(4) > 0 {
			return nil
		}
		l.note("delete(%v)", id)
		l.deleted[id] = true // committed before it is done
		delete(l.history, id)
		delete(l.logs, id)
		err := l.dir.Delete(id)
		l.halfDeleted = err != nil
		log.Close()
		return err
	case 5:
		l.note("purge")
		_, err := l.dir.Purge()
		return err
	}
}

// end stops the use of the directory in one of the ways that there are: "clean",
// "death" or "cut". A death after err, which failed the directory, is no better
// than a power cut: the page cache may lie.
func (l *dirLife) end(err error) (how string) {
	l.t.Helper()
	switch choice := l.r.below(4); {
	case err != nil:
		l.note("fail")
		l.dir.Fail(err)
		how = "cut"
		l.fs = []*MemFS{l.fs.Clone(), l.fs.Crash(CrashAny)}[choice%2]
	case choice == 0:
		l.note("close")
		how = "clean"
		l.close()
		l.fs = []*MemFS{l.fs.Clone(), l.fs.Crash(CrashAny)}[l.r.below(2)]
	case choice == 1:
		l.note("death")
		how = "death"
		l.fs = l.fs.Clone()
	default:
		l.note("cut")
		how = "cut"
		l.boot++
		l.fs = l.fs.Crash(CrashAny)
	}
	return how
}

func (l *dirLife) close() {
	l.t.Helper()
	var ends []CleanEnd
	for _, id := range sortedPartitions(l.logs) {
		e, err := l.logs[id].Close()
		if err != nil {
			l.fatalf("close %v: %v", id, err)
		}
		ends = append(ends, e)
	}
	if err := l.dir.Close(ends); err != nil {
		l.fatalf("close: %v", err)
	}
}

// TestDirLives runs directories through deaths, power cuts, failed fsyncs, clean
// stops and interrupted starts, by seed.
func TestDirLives(t *testing.T) {
	ends := map[string]int{}
	for seed := range uint64(200) {
		l := &dirLife{t: t, r: &random{seed: seed}, fs: NewMemFS(seed),
			history: map[wire.PartitionID]*lifeLog{}, deleted: map[wire.PartitionID]bool{}}
		l.note("seed %d:", seed)
		how := "clean"
		for range 8 {
			l.start(how)
			if l.r.below(3) == 0 {
				l.fs.Fail(OpSync, 5+l.r.below(20), syscall.EIO)
			}
			var err error
			for steps := l.r.below(40); steps > 0 && err == nil; steps-- {
				err = l.step()
			}
			l.fs.Heal()
			how = l.end(err)
			ends[how]++
			if err != nil {
				ends["failed"]++
			}
		}
	}
	if ends["clean"] < 20 || ends["death"] < 20 || ends["cut"] < 20 || ends["failed"] < 20 {
		t.Fatalf("ends of %v", ends)
	}
}
