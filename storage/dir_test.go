package storage

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/teralog/teralog/mem"
	"github.com/teralog/teralog/wire"
)

var (
	testCluster = wire.UUID{0xc1}
	ordersID    = wire.PartitionID{Topic: 5000, Partition: 3}
	dirNow      = mem.Now{Wall: 1_700_000_000_000}
)

// testDir are options for a directory that is opened under a kernel boot.
func testDir(boot string) DirOptions {
	n := byte(0)
	return DirOptions{Node: 1, Cluster: testCluster, Boot: boot, Format: true, Reserve: 16 * pageSize,
		NewID: func() wire.UUID { n++; return wire.UUID{0xd0, n} }}
}

func mustOpenDir(t *testing.T, m FS, boot string) *Dir {
	t.Helper()
	d, err := OpenDir(m, "/data", testDir(boot))
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func mustCreate(t *testing.T, d *Dir, id wire.PartitionID) *Log {
	t.Helper()
	l, err := d.Create("orders", id, Options{}, dirNow)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func closeDir(t *testing.T, d *Dir, ls ...*Log) {
	t.Helper()
	var ends []CleanEnd
	for _, l := range ls {
		e, err := l.Close()
		if err != nil {
			t.Fatal(err)
		}
		ends = append(ends, e)
	}
	if err := d.Close(ends); err != nil {
		t.Fatal(err)
	}
}

func names(t *testing.T, m FS, dir string) (names []string) {
	t.Helper()
	es, err := m.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range es {
		names = append(names, e.Name)
	}
	return names
}

func TestDirLife(t *testing.T) {
	m := NewMemFS(1)
	d := mustOpenDir(t, m, "boot")
	if s := d.Start(); s != (DirStart{Number: 1, Clean: true, Empty: true}) {
		t.Fatalf("first start: %+v", s)
	}
	if d.ID() != (wire.UUID{0xd0, 1}) || d.Cluster() != testCluster || d.Node() != 1 || d.Path() != "/data" {
		t.Fatalf("identity: %v %v %v %v", d.ID(), d.Cluster(), d.Node(), d.Path())
	}
	if _, err := OpenDir(m, "/data", testDir("boot")); !errors.Is(err, ErrLocked) {
		t.Fatalf("a second process: %v", err)
	}
	l := mustCreate(t, d, ordersID)
	if _, err := d.Create("orders", ordersID, Options{}, dirNow); !errors.Is(err, fs.ErrExist) {
		t.Fatalf("create again: %v", err)
	}
	if _, err := d.Create("../x", wire.PartitionID{Topic: 1, Partition: 0}, Options{}, dirNow); err != nil {
		t.Fatalf("the metadata log has a place of its own: %v", err)
	}
	if _, err := d.Create("../x", wire.PartitionID{Topic: 6000}, Options{}, dirNow); wire.CodeOf(err) != wire.CodeInvalidName {
		t.Fatalf("a bad name: %v", err)
	}
	p := somePoint(5000, 3)
	if err := d.SavePoints([]Point{p, somePoint(7000, 0)}); err != nil {
		t.Fatal(err)
	}
	if !d.Known(ordersID) || d.Known(wire.PartitionID{Topic: 7000}) {
		t.Fatal("points must name the partitions that are here")
	}
	l.Close()

	d = mustOpenDir(t, m.Clone(), "boot")
	if s := d.Start(); s != (DirStart{Number: 2, SameBoot: true, warm: true}) {
		t.Fatalf("after a death: %+v", s)
	}
	found := d.Partitions()
	if len(found) != 2 || found[0].ID.Topic != wire.MetadataTopic || found[0].Path != "/data/metadata" ||
		found[1] != (FoundPartition{"orders", ordersID, "/data/topics/orders/partition-0003", nil}) {
		t.Fatalf("found %+v", found)
	}
	if s := d.openState(ordersID); *s.Point != p || s.Clean != nil || !s.Warm || s.Quarantine != "/data/quarantine" {
		t.Fatalf("open state: %+v", s)
	}
}

func TestCleanStopIsBelievedOnce(t *testing.T) {
	m := NewMemFS(1)
	d := mustOpenDir(t, m, "boot")
	l := mustCreate(t, d, ordersID)
	if err := d.Close(nil); err == nil {
		t.Fatal("a clean stop without the end of an open partition")
	}
	l.Close()
	d = mustOpenDir(t, m, "boot")
	if d.Start().Clean {
		t.Fatal("that stop was not clean")
	}
	l, err := d.Open("orders", ordersID, Options{}, dirNow)
	if err != nil {
		t.Fatal(err)
	}
	end, err := l.Close()
	if err != nil {
		t.Fatal(err)
	}
	if err := d.Close([]CleanEnd{end}); err != nil {
		t.Fatal(err)
	}
	if err := d.SavePoints(nil); !errors.Is(err, fs.ErrClosed) {
		t.Fatalf("use after close: %v", err)
	}

	m = m.Crash(CrashNone) // a clean stop holds under any boot
	d = mustOpenDir(t, m, "other")
	if s := d.Start(); !s.Clean || s.SameBoot || s.Empty || s.Number != 3 {
		t.Fatalf("after a clean stop: %+v", s)
	}
	if s := d.openState(ordersID); s.Clean == nil || *s.Clean != end || *s.Point != end.Point {
		t.Fatalf("open state: %+v", s)
	}
	if s := d.openState(ordersID); s.Clean != nil {
		t.Fatal("the end of the clean stop was handed out twice")
	}
	for _, left := range []*MemFS{m.Clone(), m.Crash(CrashNone)} {
		if slices.Contains(names(t, left, "/data"), cleanName) {
			t.Fatal("the clean mark outlived the start after it")
		}
	}
}

func TestCleanMarkMustFit(t *testing.T) {
	m := NewMemFS(1)
	closeDir(t, mustOpenDir(t, m, "boot"))
	f := func(what string, change func(d *Dir) error, want bool) {
		t.Helper()
		m := m.Clone()
		d := &Dir{fs: m, path: "/data", start: DirStart{Number: 1}}
		if err := change(d); err != nil {
			t.Fatal(err)
		}
		if got := mustOpenDir(t, m, "boot").Start().Clean; got != want {
			t.Fatalf("%s: clean %v, want %v", what, got, want)
		}
	}
	f("as it was left", func(d *Dir) error { return nil }, true)
	f("of another start", func(d *Dir) error { return d.writeSmall(cleanFile, cleanName, cleanStop{start: 7}.encode()) }, false)
	f("beside a failed note", func(d *Dir) error { return d.writeSmall(failedFile, failedName, failedNote{1, "x"}.encode()) }, false)
	f("beside a damaged failed note", func(d *Dir) error { return writeSynced(d.fs, "/data/failed", Create, []byte("torn")) }, false)
	f("damaged", func(d *Dir) error { return d.fs.(*MemFS).FlipBit("/data/clean", 17, 0) }, false)
	f("of a newer start than running", func(d *Dir) error { return d.fs.Remove("/data/running") }, false)
	f("beside a damaged running", func(d *Dir) error { return d.fs.(*MemFS).FlipBit("/data/running", 17, 0) }, false)
}

func TestIdentityIsRefused(t *testing.T) {
	m := NewMemFS(1)
	closeDir(t, mustOpenDir(t, m, "boot"))
	f := func(what string, change func(o *DirOptions, m *MemFS)) {
		t.Helper()
		o, m := testDir("boot"), m.Clone()
		change(&o, m)
		m.SyncDir("/data")
		before := names(t, m, "/data")
		_, err := OpenDir(m, "/data", o)
		if !errors.Is(err, ErrIdentity) && !errors.Is(err, wire.ErrCorrupt) {
			t.Fatalf("%s: %v", what, err)
		}
		if after := names(t, m, "/data"); !slices.Equal(after, before) {
			t.Fatalf("%s: it was refused and changed from %v to %v", what, before, after)
		}
	}
	f("another node", func(o *DirOptions, _ *MemFS) { o.Node = 2 })
	f("another cluster", func(o *DirOptions, _ *MemFS) { o.Cluster = wire.UUID{0xc2} })
	f("identity lost", func(_ *DirOptions, m *MemFS) { m.Remove("/data/identity") })
	f("identity damaged", func(_ *DirOptions, m *MemFS) { m.FlipBit("/data/identity", 20, 3) })
	f("identity cut", func(_ *DirOptions, m *MemFS) {
		id, _ := m.Open("/data/identity", ReadWrite)
		id.Truncate(7)
	})
	f("empty where a disk should be mounted", func(o *DirOptions, m *MemFS) {
		m.RemoveAll("/data")
		m.Mkdir("/data/lost+found")
		o.Format = false
	})
	for _, left := range []string{"topics/orders/partition-0000", "metadata", "orphans", "recovery-points"} {
		f("only "+left, func(_ *DirOptions, m *MemFS) {
			m.RemoveAll("/data")
			m.Mkdir("/data/" + left)
		})
	}

	o := testDir("boot")
	o.Format = false
	if _, err := OpenDir(m, "/absent", o); !errors.Is(err, ErrIdentity) {
		t.Fatalf("an absent directory: %v", err)
	}
	if _, err := m.Stat("/absent"); !notExist(err) {
		t.Fatal("an absent directory was made")
	}
	o.Cluster = wire.UUID{}
	d, err := OpenDir(m, "/data", o)
	if err != nil || d.Cluster() != testCluster {
		t.Fatalf("any cluster: %v", err)
	}
}

func TestSuspicionOutlivesADeath(t *testing.T) {
	m := NewMemFS(1)
	mustOpenDir(t, m, "a")
	m = m.Crash(CrashNone)
	d := mustOpenDir(t, m, "b")
	if s := d.Start(); s.Clean || s.SameBoot {
		t.Fatalf("after a power cut: %+v", s)
	}
	if err := d.Close(nil); err == nil {
		t.Fatal("a clean stop before the recovery was ended")
	}
	m = m.Clone() // a death before Recovered
	d = mustOpenDir(t, m, "b")
	if d.Start().SameBoot {
		t.Fatal("a death during recovery made the power cut forgotten")
	}
	if err := d.Recovered(); err != nil {
		t.Fatal(err)
	}
	m = m.Clone()
	d = mustOpenDir(t, m, "b")
	if !d.Start().SameBoot {
		t.Fatal("a death after recovery is the death of a process")
	}
	if err := d.Abandon(); err != nil {
		t.Fatal(err)
	}
	d = mustOpenDir(t, m, "b") // the lock was free
	if s := d.Start(); s.Clean || !s.SameBoot {
		t.Fatalf("after it was abandoned: %+v", s)
	}

	// A directory whose boot is not known is never believed.
	if s := mustOpenDir(t, m.Clone(), "").Start(); s.SameBoot {
		t.Fatalf("without a boot id: %+v", s)
	}
}

func TestFailIsFinal(t *testing.T) {
	m := NewMemFS(1)
	d := mustOpenDir(t, m, "boot")
	l := mustCreate(t, d, ordersID)
	m.Fail(OpSync+":recovery-points", 1, syscall.EIO)
	if err := d.SavePoints([]Point{somePoint(5000, 3)}); !errors.Is(err, ErrSync) {
		t.Fatalf("points whose fsync fails: %v", err)
	}
	first := d.Failed()
	if !errors.Is(first, syscall.EIO) {
		t.Fatalf("failed: %v", first)
	}
	d.Fail(errors.New("later"))
	refused := func(what string, err error) {
		t.Helper()
		if !errors.Is(err, syscall.EIO) {
			t.Fatalf("%s in a failed directory: %v", what, err)
		}
	}
	refused("points", d.SavePoints([]Point{somePoint(5000, 3)}))
	_, err := d.Create("orders", wire.PartitionID{Topic: 5000, Partition: 4}, Options{}, dirNow)
	refused("create", err)
	_, err = d.Open("orders", ordersID, Options{}, dirNow)
	refused("open", err)
	refused("delete", d.Delete(ordersID))
	refused("orphan", d.Orphan("/data/topics/orders/partition-0003"))
	_, err = d.Purge()
	refused("purge", err)
	refused("recovered", d.Recovered())
	end, _ := l.Close()
	refused("close", d.Close([]CleanEnd{end}))

	d = mustOpenDir(t, m, "boot")
	if s := d.Start(); s.Clean || s.SameBoot {
		t.Fatalf("after a failed fsync the page cache was believed: %+v", s)
	}
	if r := strings.Join(d.Report(), "\n"); !strings.Contains(r, "start 1 failed: ") {
		t.Fatalf("report: %s", r)
	}
	if slices.Contains(names(t, m, "/data"), failedName) {
		t.Fatal("the note stays")
	}
}

func TestDeleteOrphanPurge(t *testing.T) {
	m := NewMemFS(1)
	d := mustOpenDir(t, m, "boot")
	a, b := ordersID, wire.PartitionID{Topic: 5000, Partition: 4}
	la, lb := mustCreate(t, d, a), mustCreate(t, d, b)
	if err := d.SavePoints([]Point{somePoint(5000, 3)}); err != nil {
		t.Fatal(err)
	}
	holds := func(want bool) {
		t.Helper()
		if got, err := d.Holds(5000); got != want || err != nil {
			t.Fatalf("holds: %v, %v", got, err)
		}
	}
	holds(true)
	var synced []string
	m.AfterOp(func(op Op) {
		if op.Kind == OpSyncDir {
			synced = append(synced, op.Name)
		}
	})
	if err := d.Delete(a); err != nil {
		t.Fatal(err)
	}
	m.AfterOp(nil)
	if !slices.Equal(synced, []string{"/data/deleted", "/data/topics/orders"}) {
		t.Fatalf("synced %v", synced)
	}
	if d.Known(a) {
		t.Fatal("a deleted partition is known")
	}
	if err := d.Delete(a); !errors.Is(err, fs.ErrNotExist) {
		t.Fatalf("delete again: %v", err)
	}
	if got := names(t, m, "/data/deleted"); !slices.Equal(got, []string{"5000-3"}) {
		t.Fatalf("set aside: %v", got)
	}
	la.Close()

	// The same path again, for another id, beside what was set aside.
	again := wire.PartitionID{Topic: 6000, Partition: 3}
	lc := mustCreate(t, d, again)
	if err := d.SavePoints(nil); err != nil { // takes the deleted one out of the file
		t.Fatal(err)
	}
	if points, err := readSmall(d, pointsFile, pointsName, decodePoints); err != nil || len(points) != 0 {
		t.Fatalf("recovery-points: %v, %v", points, err)
	}

	lb.Close()
	if err := d.Orphan("/data/topics/orders/partition-0004"); err != nil {
		t.Fatal(err)
	}
	if got := names(t, m, "/data/orphans"); !slices.Equal(got, []string{"orders.5000-4"}) {
		t.Fatalf("orphans: %v", got)
	}
	holds(true) // set aside, not purged
	if n, err := d.Purge(); n != 1 || err != nil {
		t.Fatalf("purge: %d, %v", n, err)
	}
	holds(false)
	lc.Close()
	if err := d.Delete(again); err != nil {
		t.Fatal(err)
	}
	if got := names(t, m, "/data/topics"); len(got) != 0 {
		t.Fatalf("the folder of a topic without partitions stays: %v", got)
	}
	if err := d.Close(nil); err != nil {
		t.Fatalf("deleted partitions need no end: %v", err)
	}
}

func TestScanFindsWhatCannotBeOpened(t *testing.T) {
	m := NewMemFS(1)
	d := mustOpenDir(t, m, "boot")
	for i := range int32(4) {
		l := mustCreate(t, d, wire.PartitionID{Topic: 5000, Partition: i})
		l.Close()
	}
	if err := d.SavePoints([]Point{somePoint(5000, 0), somePoint(5000, 1)}); err != nil {
		t.Fatal(err)
	}
	d.Abandon()
	in := "/data/topics/orders/partition-000"
	log, _ := m.Open(in+"0/00000000000000000000.log", ReadWrite)
	mustWrite(t, log, "records", 0)
	m.Remove(in + "0/" + manifestName)          // lost, with bytes there
	m.FlipBit(in+"1/"+manifestName, 30, 0)      // damaged
	m.Rename(in+"2", in+"7")                    // in another's place
	m.Remove(in + "3/" + manifestName)          // a Create that was not done
	m.Mkdir("/data/topics/empty")               // a topic without partitions
	mustOpen(t, m, "/data/topics/note").Close() // not ours

	d = mustOpenDir(t, m, "boot")
	var got []string
	for _, p := range d.Partitions() {
		kind := "ok"
		switch {
		case errors.Is(p.Err, wire.ErrCorrupt):
			kind = "damaged"
		case notExist(p.Err):
			kind = "no manifest"
		case p.Err != nil:
			kind = "misplaced"
		}
		got = append(got, fmt.Sprintf("%s %s %s", p.Topic, p.Path[len("/data/topics/"):], kind))
	}
	want := []string{
		"orders orders/partition-0000 no manifest",
		"orders orders/partition-0001 damaged",
		"orders orders/partition-0007 misplaced",
	}
	if !slices.Equal(got, want) {
		t.Fatalf("found %q, want %q", got, want)
	}
	if got := names(t, m, "/data/topics"); !slices.Equal(got, []string{"note", "orders"}) {
		t.Fatalf("topics: %v", got)
	}

	// What has been here is never made anew, nor is anything that holds bytes.
	f := func(p int32, ok bool) {
		t.Helper()
		l, err := d.Create("orders", wire.PartitionID{Topic: 5000, Partition: p}, Options{}, dirNow)
		if ok != (err == nil) {
			t.Fatalf("create partition %d: %v", p, err)
		}
		if l != nil {
			l.Close()
		}
	}
	f(0, false) // known, its manifest lost
	f(1, false) // known, its manifest damaged
	f(3, true)  // never was
	f(7, false) // another lies there
	m.RemoveAll(in + "1")
	f(1, false) // known, its folder lost
	if _, err := d.Create("orders", wire.PartitionID{Topic: 6000, Partition: 0}, Options{}, dirNow); !errors.Is(err, fs.ErrExist) {
		t.Fatalf("create over records without a manifest: %v", err)
	}
	if err := d.Orphan(in + "0"); err != nil {
		t.Fatal(err)
	}
	if err := d.Orphan(in + "7"); err != nil {
		t.Fatal(err)
	}
	if got := names(t, m, "/data/orphans"); !slices.Equal(got, []string{"orders.5000-2", "orders.partition-0000"}) {
		t.Fatalf("orphans: %v", got)
	}
}

func TestPointsLostOrDamaged(t *testing.T) {
	m := NewMemFS(1)
	d := mustOpenDir(t, m, "boot")
	mustCreate(t, d, ordersID).Close()
	if err := d.SavePoints([]Point{somePoint(5000, 3)}); err != nil {
		t.Fatal(err)
	}
	f := func(what string, damage func(m *MemFS), want bool) {
		t.Helper()
		m := m.Clone()
		damage(m)
		d := mustOpenDir(t, m, "boot")
		if got := d.openState(ordersID).Point != nil; got != want {
			t.Fatalf("%s: point there %v, want %v", what, got, want)
		}
	}
	f("nothing", func(m *MemFS) {}, true)
	f("removed", func(m *MemFS) { m.Remove("/data/recovery-points") }, false)
	f("a flipped bit", func(m *MemFS) { m.FlipBit("/data/recovery-points", 50, 1) }, false)
	if l, err := d.Open("orders", ordersID, Options{}, dirNow); err != nil {
		t.Fatal(err)
	} else {
		closeDir(t, d, l)
	}
	f("lost after a clean stop, whose ends say the same", func(m *MemFS) { m.Remove("/data/recovery-points") }, true)
	f("a temporary beside it", func(m *MemFS) {
		mustWrite(t, mustOpen(t, m, "/data/recovery-points.tmp"), strings.Repeat("torn", 100), 0)
	}, true)
}

func TestSavePointsWritesOnlyChanges(t *testing.T) {
	m := NewMemFS(1)
	d := mustOpenDir(t, m, "boot")
	mustCreate(t, d, ordersID)
	save := func(p Point, writes int) {
		t.Helper()
		m.ResetCounts()
		if err := d.SavePoints([]Point{p}); err != nil {
			t.Fatal(err)
		}
		if got := m.Count(OpWrite); got != writes {
			t.Fatalf("%d writes, want %d", got, writes)
		}
	}
	p := somePoint(5000, 3)
	save(p, 1)
	save(p, 0)
	p.Start++
	save(p, 1)
}

func TestReserve(t *testing.T) {
	m := NewMemFS(1)
	d := mustOpenDir(t, m, "boot")
	l := mustCreate(t, d, ordersID)
	defer l.Close()
	reserved := func() int64 {
		e, err := m.Stat("/data/reserve")
		if err != nil {
			t.Fatal(err)
		}
		return e.Size / pageSize
	}
	if got := reserved(); got != 16 {
		t.Fatalf("reserve of %d blocks", got)
	}

	// Records fill the disk and do not get the reserve.
	_, free, _ := m.Space("/")
	used := 1<<40 - free
	m.SetCapacity(used + 4*pageSize)
	f := mustOpen(t, m, "/records")
	if _, err := f.WriteAt(make([]byte, 8*pageSize), 0); !isDiskFull(err) || reserved() != 16 {
		t.Fatalf("records on a full disk: %v, reserve of %d blocks", err, reserved())
	}
	// Points and deletes get it, a part at a time.
	if err := d.SavePoints([]Point{somePoint(5000, 3)}); err != nil || reserved() != 15 {
		t.Fatalf("points on a full disk: %v, reserve of %d blocks", err, reserved())
	}
	// It stays small while nothing is free, and grows back when there is room.
	if _, err := d.Purge(); err != nil || reserved() != 15 {
		t.Fatalf("purge: %v, reserve of %d blocks", err, reserved())
	}
	for d.Relieve() {
	}
	if got := reserved(); got != 0 {
		t.Fatalf("relieved down to %d blocks", got)
	}
	m.SetCapacity(used + 9*pageSize) // room for it and little else
	if _, err := d.Purge(); err != nil || reserved() != 0 {
		t.Fatalf("purge with little room: %v, reserve of %d blocks", err, reserved())
	}
	m.SetCapacity(used + 64*pageSize)
	if _, err := d.Purge(); err != nil || reserved() != 16 {
		t.Fatalf("purge with room: %v, reserve of %d blocks", err, reserved())
	}

	// A start on a full disk uses it too.
	d.Abandon()
	_, free, _ = m.Space("/")
	if _, err := f.WriteAt(make([]byte, free+pageSize), 4*pageSize); !isDiskFull(err) {
		t.Fatalf("filling the rest: %v", err)
	}
	m.Remove("/data/clean")
	if d, err := OpenDir(m, "/data", testDir("boot")); err != nil || d.Start().Clean {
		t.Fatalf("start on a full disk: %v", err)
	}
}

func TestFullDiskAtFsyncIsFinal(t *testing.T) {
	f := func(kind string, do func(d *Dir) error) {
		t.Helper()
		m := NewMemFS(1)
		d := mustOpenDir(t, m, "boot")
		mustCreate(t, d, ordersID).Close()
		m.Fail(kind, 1, syscall.ENOSPC)
		if err := do(d); !errors.Is(err, ErrSync) || d.Failed() == nil {
			t.Fatalf("%s: %v, failed: %v", kind, err, d.Failed())
		}
		if e, err := m.Stat("/data/reserve"); err != nil || e.Size != 16*pageSize {
			t.Fatalf("%s: the reserve was given for it: %v, %v", kind, e, err)
		}
	}
	f(OpSync+":recovery-points", func(d *Dir) error { return d.SavePoints([]Point{somePoint(5000, 3)}) })
	f(OpSyncDir, func(d *Dir) error { return d.SavePoints([]Point{somePoint(5000, 3)}) })
	f(OpSyncDir+":deleted", func(d *Dir) error { return d.Delete(ordersID) })
	f(OpSyncDir+":orders", func(d *Dir) error { return d.Delete(ordersID) })
}

// TestDirConcurrent is for the race detector: names change, points are saved,
// logs are opened and questions asked at once.
func TestDirConcurrent(t *testing.T) {
	d := mustOpenDir(t, NewMemFS(1), "boot")
	const n = 20
	var points []Point
	for i := range int32(n) {
		mustCreate(t, d, wire.PartitionID{Topic: 5000, Partition: i}).Close()
		points = append(points, somePoint(5000, i))
	}
	var wg sync.WaitGroup
	each := func(do func(i int32) error) {
		wg.Go(func() {
			for i := range int32(n) {
				if err := do(i); err != nil {
					t.Error(err)
				}
			}
		})
	}
	each(func(i int32) error {
		id := wire.PartitionID{Topic: 6000, Partition: i}
		l, err := d.Create("audit", id, Options{}, dirNow)
		if err != nil {
			return err
		}
		l.Close()
		return d.Delete(id)
	})
	each(func(i int32) error { return d.SavePoints(points[:i+1]) })
	each(func(i int32) error {
		l, err := d.Open("orders", wire.PartitionID{Topic: 5000, Partition: i}, Options{}, dirNow)
		if err != nil {
			return err
		}
		_, err = l.Close()
		return err
	})
	each(func(i int32) error { _, err := d.Purge(); return err })
	each(func(i int32) error {
		d.Known(points[i].ID)
		d.Report()
		d.Failed()
		_, err := d.Holds(6000)
		return err
	})
	wg.Wait()
}

// TestOrphanOutlivesADeathAndACut lets the process die after each operation of a
// move to orphans/, starts again, and cuts the power: the folder is still there.
func TestOrphanOutlivesADeathAndACut(t *testing.T) {
	const stray, precious = "/data/topics/stray/partition-0000", "somebody's bytes"
	holds := func(m *MemFS) bool {
		for _, dir := range []string{stray, "/data/orphans/stray.partition-0000"} {
			f, err := m.Open(dir+"/00000000000000000000.log", Read)
			if err != nil {
				continue
			}
			b := make([]byte, len(precious))
			f.ReadAt(b, 0)
			f.Close()
			return string(b) == precious
		}
		return false
	}
	died := 0
	for stop := 1; ; stop++ {
		m := NewMemFS(1)
		if err := mustOpenDir(t, m, "boot").Abandon(); err != nil {
			t.Fatal(err)
		}
		if err := m.Mkdir(stray); err != nil {
			t.Fatal(err)
		}
		f, err := m.Open(stray+"/00000000000000000000.log", CreateNew)
		if err != nil {
			t.Fatal(err)
		}
		f.WriteAt([]byte(precious), 0)
		f.Sync()
		f.Close()
		for _, dir := range []string{stray, "/data/topics/stray", "/data/topics"} {
			if err := m.SyncDir(dir); err != nil {
				t.Fatal(err)
			}
		}
		d := mustOpenDir(t, m, "boot")
		m.StopAfter(stop)
		err = d.Orphan(stray)
		if err != nil {
			died++
		}
		m = m.Clone()
		if d, err := OpenDir(m, "/data", DirOptions{Node: 1, Boot: "boot"}); err != nil {
			t.Fatal(err)
		} else if err := d.Abandon(); err != nil {
			t.Fatal(err)
		}
		for name, disk := range m.Crashes(64) {
			if !holds(disk) {
				t.Fatalf("died after %d operations, then the power was cut (%s): the folder is gone", stop, name)
			}
		}
		if err == nil {
			break
		}
	}
	if died == 0 {
		t.Fatal("it never died")
	}
}
