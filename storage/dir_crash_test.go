package storage

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/teralog/teralog/wire"
)

// state opens what a crash left and tells what it holds.
func state(t *testing.T, what string, m *MemFS, boot string) (string, *Dir) {
	t.Helper()
	d, err := OpenDir(m, "/data", testDir(boot))
	if err != nil {
		t.Fatalf("%s: reopen: %v", what, err)
	}
	var s []string
	if d.Start().Clean {
		s = append(s, "clean")
	}
	for _, p := range d.Partitions() {
		if p.Err != nil {
			t.Fatalf("%s: %v", what, p.Err)
		}
		s = append(s, p.ID.String())
		if d.Known(p.ID) {
			s = append(s, fmt.Sprintf("point %d", d.points[p.ID].Offset))
		}
	}
	s = append(s, names(t, m, "/data/deleted")...)
	s = append(s, names(t, m, "/data/orphans")...)
	for _, dir := range []string{"/data", "/data/topics"} {
		for _, name := range names(t, m, dir) {
			if strings.HasSuffix(name, tempSuffix) {
				t.Fatalf("%s: %s is left", what, name)
			}
		}
	}
	return strings.Join(s, ", "), d
}

// TestDirCrashes stops every method of a Dir after each of its disk operations
// and reopens what each way of stopping leaves: it must be as before or as after
// the call, and as after once the call has returned.
func TestDirCrashes(t *testing.T) {
	type step struct {
		name string
		do   func(d *Dir) error
		want []string // states allowed during it, the last one after it
	}
	point := func(offset wire.Offset) []Point {
		p := somePoint(5000, 3)
		p.Offset = offset
		return []Point{p}
	}
	other := wire.PartitionID{Topic: 6000}
	create := func(topic string, id wire.PartitionID) func(d *Dir) error {
		return func(d *Dir) error {
			l, err := d.Create(topic, id, Options{}, dirNow)
			if err == nil {
				_, err = l.Close()
			}
			return err
		}
	}
	steps := []step{
		{"create", create("orders", ordersID), []string{"", "5000-3"}},
		{"save points", func(d *Dir) error { return d.SavePoints(point(5003)) }, []string{"5000-3", "5000-3, point 5003"}},
		{"save them again", func(d *Dir) error { return d.SavePoints(point(5004)) }, []string{"5000-3, point 5003", "5000-3, point 5004"}},
		{"create another", create("audit", other), []string{"5000-3, point 5004", "6000-0, 5000-3, point 5004"}},
		{"delete", func(d *Dir) error { return d.Delete(ordersID) }, []string{
			"6000-0, 5000-3, point 5004", "6000-0, 5000-3, point 5004, 5000-3", "6000-0, 5000-3"}},
		{"purge", func(d *Dir) error { _, err := d.Purge(); return err }, []string{"6000-0, 5000-3", "6000-0"}},
		{"orphan", func(d *Dir) error { return d.Orphan("/data/topics/audit/partition-0000") }, []string{
			"6000-0", "6000-0, audit.6000-0", "audit.6000-0"}},
		{"close", func(d *Dir) error { return d.Close(nil) }, []string{"audit.6000-0", "clean, audit.6000-0"}},
	}

	m := NewMemFS(1)
	var d *Dir
	for what, left := range m.Crashes(1) {
		state(t, what, left, "same") // nothing at all
	}
	everyCrash(t, m, func() (err error) { d, err = OpenDir(m, "/data", testDir("same")); return err },
		func(what string, left *MemFS, boot string) {
			if got, _ := state(t, "open: "+what, left, boot); got != "" && got != "clean" {
				t.Fatalf("open: %s: %q", what, got)
			}
		})
	for _, s := range steps {
		everyCrash(t, m, func() error { return s.do(d) }, func(what string, left *MemFS, boot string) {
			what = s.name + ": " + what
			got, d := state(t, what, left, boot)
			if !slices.Contains(s.want, got) {
				t.Fatalf("%s: %q, want one of %q", what, got, s.want)
			}
			if same := boot == "same"; d.Start().SameBoot != same {
				t.Fatalf("%s: start %+v", what, d.Start())
			}
			if got == s.want[len(s.want)-1] || s.name == "close" {
				return
			}
			// The step can be done now, and then stands.
			if err := s.do(d); err != nil && !notExist(err) {
				t.Fatalf("%s: done again: %v", what, err)
			}
			got, _ = state(t, what, left.Crash(CrashNone), "third")
			if s.name == "orphan" {
				return // after half a move it lies there twice, now under two names
			}
			if s.name != "purge" && got != s.want[len(s.want)-1] {
				t.Fatalf("%s: done again: %q, want %q", what, got, s.want[len(s.want)-1])
			}
		})
		if s.name == "purge" {
			m.SyncDir("/data/deleted") // unlinking is not promised to last
		}
		for what, left := range m.Crashes(300) {
			if got, _ := state(t, what, left, "other"); got != s.want[len(s.want)-1] {
				t.Fatalf("after %s: %s: %q, want %q", s.name, what, got, s.want[len(s.want)-1])
			}
		}
	}
}

// TestCrashesDuringStart cuts the power during starts that follow a clean stop,
// a death and a power cut, twice in a row.
func TestCrashesDuringStart(t *testing.T) {
	m := NewMemFS(1)
	d := mustOpenDir(t, m, "same")
	closeDir(t, d, mustCreate(t, d, ordersID))
	clean := m.Clone()
	mustOpenDir(t, m, "same")
	for _, from := range []*MemFS{clean, m.Clone(), m.Crash(CrashPages)} {
		everyCrash(t, from, func() error { _, err := OpenDir(from, "/data", testDir("same")); return err },
			func(what string, left *MemFS, boot string) {
				once := left.Clone()
				if got, _ := state(t, what, once, boot); !strings.Contains(got, "5000-3") {
					t.Fatalf("%s: %q", what, got)
				}
				for range 4 {
					if got, d := state(t, what, once.Crash(CrashAny), "third"); !strings.Contains(got, "5000-3") || d.Start().Clean {
						t.Fatalf("%s: a second power cut: %q, %+v", what, got, d.Start())
					}
				}
			})
		for what, left := range from.Crashes(100) {
			if _, d := state(t, what, left, "other"); d.Start().Clean {
				t.Fatalf("%s: a clean mark outlived the start after it", what)
			}
		}
	}
}

// TestDirFailures lets every disk call of a start and of each method fail in turn:
// each says so, and what is left opens.
func TestDirFailures(t *testing.T) {
	m := NewMemFS(1)
	d := mustOpenDir(t, m, "same")
	closeDir(t, d, mustCreate(t, d, ordersID))
	other := wire.PartitionID{Topic: 6000}
	f := func(name string, do func(d *Dir) error) {
		t.Helper()
		for _, fault := range []error{syscall.EIO, syscall.EROFS} {
			everyFailure(t, m, fault, func(m *MemFS) error {
				d, err := OpenDir(m, "/data", testDir("same"))
				if err != nil {
					return err
				}
				err = do(d)
				if errors.Is(err, ErrSync) && d.Failed() == nil {
					t.Fatalf("%s: %v, and the directory goes on", name, err)
				}
				return err
			}, func(what string, left *MemFS, err error) {
				// What cannot be removed matters to nobody; a partition whose
				// manifest cannot be read is listed as such.
				if err == nil && !strings.Contains(what, OpRemove) && !strings.Contains(what, "open "+"/data/topics") {
					t.Fatalf("%s: %s: no error", name, what)
				}
				got, _ := state(t, what, left.Clone(), "same")
				if !strings.Contains(got, "5000-3") && !strings.Contains(got, "orders.partition-0003") {
					t.Fatalf("%s: %s: %v, then %q", name, what, err, got)
				}
			})
		}
	}
	f("create", func(d *Dir) error {
		l, err := d.Create("audit", other, Options{}, dirNow)
		if err == nil {
			l.Close()
		}
		return err
	})
	f("save points", func(d *Dir) error { return d.SavePoints([]Point{somePoint(5000, 3)}) })
	f("delete", func(d *Dir) error { return d.Delete(ordersID) })
	f("orphan", func(d *Dir) error { return d.Orphan("/data/topics/orders/partition-0003") })
	f("close", func(d *Dir) error { return d.Close(nil) })
}

// TestDeleteSeveral stops a delete of three partitions after each of its disk
// operations: each of them is where it was or in deleted/, or both, and a fourth
// stays. Done again, it stands.
func TestDeleteSeveral(t *testing.T) {
	id := func(n int32) wire.PartitionID { return wire.PartitionID{Topic: 5000, Partition: n} }
	doomed := []wire.PartitionID{id(0), id(2), id(1)}
	m := NewMemFS(1)
	d := mustOpenDir(t, m, "same")
	for n := range int32(4) {
		mustCreate(t, d, id(n)).Close()
	}
	everyCrash(t, m, func() error { return d.Delete(append(doomed, id(77))...) }, func(what string, left *MemFS, boot string) {
		got, d := state(t, what, left, boot)
		for n := range int32(3) {
			if !strings.Contains(got, id(n).String()) {
				t.Fatalf("%s: %q: partition %d is lost", what, got, n)
			}
		}
		if !strings.Contains(got, "5000-3") {
			t.Fatalf("%s: %q: another partition is lost", what, got)
		}
		err := d.Delete(doomed...)
		if notExist(err) {
			return // they are all gone, for whoever does not cut the power
		}
		if err != nil {
			t.Fatalf("%s: done again: %v", what, err)
		}
		if got, _ := state(t, what, left.Crash(CrashNone), "third"); got != "5000-3, 5000-0, 5000-1, 5000-2" {
			t.Fatalf("%s: done again: %q", what, got)
		}
	})
	if err := d.Delete(doomed...); !notExist(err) {
		t.Fatalf("deleted twice: %v", err)
	}
	m.Fail(OpRename, 1, syscall.ENOSPC) // which the reserve helps
	if err := d.Delete(id(3)); err != nil || d.uses(5000) {
		t.Fatalf("on a full disk: %v", err)
	}
}

// TestCreateAtOnce makes partitions on several goroutines and cuts the power after
// each disk operation of any: what was made is there and opens, and what was
// not can be made.
func TestCreateAtOnce(t *testing.T) {
	m := NewMemFS(1)
	d := mustOpenDir(t, m, "same")
	var mu sync.Mutex
	made := map[wire.PartitionID]bool{}
	all := make([]wire.PartitionID, 24)
	for i := range all {
		all[i] = wire.PartitionID{Topic: wire.TopicID(5000 + i%3), Partition: int32(i)}
	}
	name := func(id wire.PartitionID) string { return fmt.Sprintf("t%d", id.Topic) }
	judge := func(left *MemFS) error {
		d, err := OpenDir(left, "/data", testDir("other"))
		if err != nil {
			return err
		}
		there := map[wire.PartitionID]bool{}
		for _, p := range d.Partitions() {
			if p.Err != nil {
				return p.Err
			}
			there[p.ID] = true
		}
		for _, id := range all {
			do := d.Create
			if there[id] {
				do = d.Open
			} else if made[id] {
				return fmt.Errorf("%v was made and is gone", id)
			}
			if _, err := do(name(id), id, Options{}, dirNow); err != nil {
				return err
			}
		}
		return nil
	}
	m.AfterOp(func(op Op) {
		if !op.Changes() {
			return
		}
		mu.Lock()
		defer mu.Unlock()
		if err := judge(m.Crash(CrashAny)); err != nil {
			t.Errorf("after %s %s: %v", op.Kind, op.Name, err)
		}
	})
	next := make(chan wire.PartitionID)
	var makers sync.WaitGroup
	for range 4 {
		makers.Go(func() {
			for id := range next {
				if _, err := d.Create(name(id), id, Options{}, dirNow); err != nil {
					t.Error(err)
				}
				mu.Lock()
				made[id] = true
				mu.Unlock()
			}
		})
	}
	for _, id := range all {
		next <- id
	}
	close(next)
	makers.Wait()
	m.AfterOp(nil)
	if err := judge(m.Crash(CrashNone)); err != nil {
		t.Fatal(err)
	}
}

// TestRunningOverwritten cuts the power at every operation of a start on a disk
// with nothing left, which writes over the file that says it runs: whatever the cut
// leaves of that, the next start works and takes the stop for an unclean one.
func TestRunningOverwritten(t *testing.T) {
	m := NewMemFS(7)
	mustOpenDir(t, m, "boot-1")
	if err := writeSynced(m, "/data/reserve", ReadWrite, nil); err != nil {
		t.Fatal(err)
	}
	total, free, _ := m.Space("/data")
	m = m.Crash(CrashNone)
	m.SetCapacity(total - free)
	over := 0
	for n := 1; ; n++ {
		c, seen := m.Clone(), 0
		c.BeforeOp(func(op Op) error {
			if seen++; seen >= n {
				return errors.New("no power")
			}
			if op.Kind == OpWrite && op.Name == "/data/running" {
				over++
			}
			return nil
		})
		_, err := OpenDir(c, "/data", testDir("boot-2"))
		c.BeforeOp(nil)
		if err == nil {
			break
		}
		for how, after := range c.Crashes(20) {
			after.SetCapacity(0)
			d, err := OpenDir(after, "/data", testDir("boot-3"))
			if err != nil {
				t.Fatalf("operation %d, %s: %v", n, how, err)
			}
			if s := d.Start(); s.Clean || s.SameBoot {
				t.Fatalf("operation %d, %s: %+v", n, how, s)
			}
		}
	}
	if over == 0 {
		t.Fatal("nothing was written over")
	}
}
