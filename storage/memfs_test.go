package storage

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
)

func mustOpen(t *testing.T, d FS, name string) File {
	t.Helper()
	f, err := d.Open(name, Create)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func mustWrite(t *testing.T, f File, text string, off int64) {
	t.Helper()
	if n, err := f.WriteAt([]byte(text), off); n != len(text) || err != nil {
		t.Fatalf("write to %s: %d, %v", f.Name(), n, err)
	}
}

// durable makes a file whose content and name survive a power cut.
func durable(t *testing.T, d FS, name, text string) File {
	t.Helper()
	f := mustOpen(t, d, name)
	mustWrite(t, f, text, 0)
	if err := errors.Join(f.Sync(), d.SyncDir("/")); err != nil {
		t.Fatal(err)
	}
	return f
}

// content returns a file's bytes, "absent" without one.
func content(t *testing.T, d FS, name string) string {
	t.Helper()
	f, err := d.Open(name, Read)
	if errors.Is(err, fs.ErrNotExist) {
		return "absent"
	}
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	n, err := f.Size()
	if err != nil {
		t.Fatal(err)
	}
	b := make([]byte, n)
	if _, err := f.ReadAt(b, 0); err != nil && n > 0 {
		t.Fatal(err)
	}
	return string(b)
}

// outcomes returns what the power cuts of a disk leave, as told by look.
func outcomes(m *MemFS, look func(d *MemFS) string) map[string]int {
	all := map[string]int{}
	for _, d := range m.Crashes(1000) {
		all[look(d)]++
	}
	return all
}

func wantOutcomes(t *testing.T, got map[string]int, want ...string) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("outcomes %v, want %q", slices.Sorted(maps.Keys(got)), want)
	}
	for _, w := range want {
		if got[w] == 0 {
			t.Fatalf("outcomes %v, want %q", slices.Sorted(maps.Keys(got)), want)
		}
	}
}

func TestPowerCutOutcomes(t *testing.T) {
	f := func(prepare func(m *MemFS), look func(d *MemFS) string, want ...string) {
		t.Helper()
		m := NewMemFS(1)
		prepare(m)
		wantOutcomes(t, outcomes(m, look), want...)
	}
	file := func(name string) func(d *MemFS) string {
		return func(d *MemFS) string { return content(t, d, name) }
	}

	// A synced file whose name was not synced; a name whose file was not.
	f(func(m *MemFS) {
		a := mustOpen(t, m, "a")
		mustWrite(t, a, "one", 0)
		a.Sync()
	}, file("a"), "absent", "one")
	f(func(m *MemFS) {
		mustWrite(t, mustOpen(t, m, "a"), "one", 0)
		m.SyncDir("/")
	}, file("a"), "", "\x00\x00\x00", "one")

	// Nothing is left open after both.
	f(func(m *MemFS) { durable(t, m, "a", "one") }, file("a"), "one")

	// An append may grow the file without its bytes.
	f(func(m *MemFS) { mustWrite(t, durable(t, m, "a", "one"), "two", 3) },
		file("a"), "one", "one\x00\x00\x00", "onetwo")

	// A write of several pages is torn at any of them.
	f(func(m *MemFS) {
		mustWrite(t, durable(t, m, "a", strings.Repeat(".", pageSize)), strings.Repeat("x", 2*pageSize), pageSize)
	}, func(d *MemFS) string { return shape(content(t, d, "a")) }, ".", ".0", ".x", ".00", ".x0", ".0x", ".xx")

	// Of two writes to one page the second brings the first with it.
	f(func(m *MemFS) {
		a := durable(t, m, "a", "....")
		mustWrite(t, a, "x", 0)
		mustWrite(t, a, "y", 1)
	}, file("a"), "....", "x...", "xy..")

	// Pages go their own ways.
	pages := func(d *MemFS) string {
		s := content(t, d, "a")
		return fmt.Sprintf("%c%c", s[0], s[pageSize])
	}
	f(func(m *MemFS) {
		a := durable(t, m, "a", strings.Repeat(".", 2*pageSize))
		mustWrite(t, a, strings.Repeat("x", 2*pageSize), 0)
	}, pages, "..", "x.", ".x", "xx")

	// A truncation may come back, and growth after it shows no old bytes.
	f(func(m *MemFS) { durable(t, m, "a", "onetwo").Truncate(3) }, file("a"), "onetwo", "one")
	f(func(m *MemFS) {
		a := durable(t, m, "a", "onetwo")
		a.Truncate(3)
		a.Sync()
		a.Truncate(6)
		a.Sync()
	}, file("a"), "one\x00\x00\x00")

	// A rename in one folder is one step, whatever stood there; its source's
	// bytes are a matter of their own.
	both := func(d *MemFS) string { return content(t, d, "a") + " " + content(t, d, "b") }
	f(func(m *MemFS) {
		durable(t, m, "a", "old")
		durable(t, m, "b", "new")
		m.Rename("b", "a")
	}, both, "old new", "new absent")
	f(func(m *MemFS) {
		durable(t, m, "a", "old")
		mustWrite(t, mustOpen(t, m, "b"), "new", 0)
		m.Rename("b", "a")
		m.SyncDir("/")
	}, both, " absent", "\x00\x00\x00 absent", "new absent")

	// One between folders may leave both names, never none.
	moved := func(d *MemFS) string { return content(t, d, "x/a") + " " + content(t, d, "y/a") }
	move := func(m *MemFS) {
		m.Mkdir("x")
		m.Mkdir("y")
		durable(t, m, "x/a", "a")
		m.SyncDir("x")
		m.Rename("x/a", "y/a")
	}
	f(move, moved, "a absent", "a a", "absent a")
	f(func(m *MemFS) { move(m); m.SyncDir("y") }, moved, "a a", "absent a")
	f(func(m *MemFS) { move(m); m.SyncDir("x") }, moved, "absent a")

	// An unlinked file may come back whole; so may a folder's files.
	f(func(m *MemFS) { durable(t, m, "a", "a"); m.Remove("a") }, file("a"), "a", "absent")
	f(func(m *MemFS) {
		m.Mkdir("x")
		durable(t, m, "x/a", "a")
		durable(t, m, "x/b", "b")
		m.SyncDir("x")
		m.RemoveAll("x")
	}, func(d *MemFS) string { return content(t, d, "x/a") + content(t, d, "x/b") },
		"ab", "absentb", "aabsent", "absentabsent")
}

func TestCrashModels(t *testing.T) {
	const n = 16 // pages
	seen := map[CrashModel]map[string]bool{}
	for seed := range uint64(60) {
		m := NewMemFS(seed)
		durable(t, m, "other", strings.Repeat("s", 4*pageSize))
		a := durable(t, m, "a", strings.Repeat(".", n*pageSize))
		mustWrite(t, a, strings.Repeat("x", n*pageSize), 0)
		mustWrite(t, a, strings.Repeat("y", n*pageSize), n*pageSize)
		for model := CrashNone; model < crashModels; model++ {
			d := m.Crash(model)
			s := content(t, d, "a")
			for _, again := range []*MemFS{d, d.Clone(), d.Crash(CrashAny)} {
				if content(t, again, "a") != s {
					t.Fatalf("seed %d, %v: not durable after the power cut", seed, model)
				}
			}
			if seen[model] == nil {
				seen[model] = map[string]bool{}
			}
			seen[model][shape(s)] = true
		}
	}
	has := func(model CrashModel, part string) {
		t.Helper()
		for s := range seen[model] {
			if strings.Contains(s, part) {
				return
			}
		}
		t.Errorf("%v never left %q in %d outcomes", model, part, len(seen[model]))
	}
	hasNot := func(model CrashModel, part string) {
		t.Helper()
		for s := range seen[model] {
			if strings.Contains(s, part) {
				t.Errorf("%v left %q", model, s)
			}
		}
	}
	has(CrashPrefix, "x.")
	hasNot(CrashPrefix, ".x")
	has(CrashPages, ".x")
	has(CrashPages, "x.")
	has(CrashTorn, "~")
	hasNot(CrashPages, "~")
	has(CrashGrownZero, "0000000000000000")
	hasNot(CrashGrownZero, "y")
	has(CrashGrownStale, "s")
	if len(seen[CrashNone]) != 1 {
		t.Errorf("keeping nothing had %d outcomes", len(seen[CrashNone]))
	}
}

// shape draws a file as a letter a page, ~ for one of two kinds, 0 for zeros.
func shape(s string) string {
	var out []byte
	for ; len(s) > 0; s = s[min(len(s), pageSize):] {
		page := s[:min(len(s), pageSize)]
		c := page[0]
		if strings.Count(page, page[:1]) != len(page) {
			c = '~'
		}
		if c == 0 {
			c = '0'
		}
		out = append(out, c)
	}
	return string(out)
}

func TestCrashesRepeat(t *testing.T) {
	run := func() (all []string) {
		m := NewMemFS(7)
		a := durable(t, m, "a", strings.Repeat(".", 20*pageSize))
		for i := range 20 {
			mustWrite(t, a, "x", int64(i)*pageSize)
		}
		for range 20 {
			all = append(all, shape(content(t, m.Crash(CrashAny), "a")))
		}
		for _, d := range m.Crashes(100) { // 2^20 are too many: a sample
			all = append(all, shape(content(t, d, "a")))
		}
		return all
	}
	first, second := run(), run()
	if fmt.Sprint(first) != fmt.Sprint(second) {
		t.Fatal("equal seeds and calls gave different disks")
	}
	distinct := map[string]bool{}
	for _, s := range first[20:] {
		distinct[s] = true
	}
	if len(first) != 120 || len(distinct) < 60 {
		t.Fatalf("a sample of %d crashes with %d shapes", len(first)-20, len(distinct))
	}
}

func TestFailedSyncLies(t *testing.T) {
	m := NewMemFS(1)
	f := durable(t, m, "a", "old")
	lost := 0
	for range 40 {
		mustWrite(t, f, "new", 0)
		m.Fail(OpSync, 1, syscall.EIO)
		if err := f.Sync(); !errors.Is(err, syscall.EIO) {
			t.Fatalf("sync: %v", err)
		}
		if err := f.Sync(); err != nil {
			t.Fatalf("the next sync must succeed: %v", err)
		}
		if got := content(t, m.Clone(), "a"); got != "new" {
			t.Fatalf("reads show %q before the cache is dropped", got)
		}
		disk := content(t, m.Crash(CrashAny), "a")
		if disk == "old" {
			lost++
		}
		f.DropCache(0, 0)
		if got := content(t, m, "a"); got != disk {
			t.Fatalf("the cache was dropped: reads show %q, the disk holds %q", got, disk)
		}
		mustWrite(t, f, "old", 0)
		f.Sync()
	}
	if lost == 0 || lost == 40 {
		t.Fatalf("%d of 40 failed syncs lost the page", lost)
	}
}

func TestDirtyPagesStayCached(t *testing.T) {
	m := NewMemFS(1)
	f := durable(t, m, "a", "old")
	mustWrite(t, f, "new", 0)
	f.DropCache(0, 0)
	if got := content(t, m, "a"); got != "new" {
		t.Fatalf("dropping the cache lost a dirty page: %q", got)
	}
}

func TestMediaFaults(t *testing.T) {
	m := NewMemFS(1)
	f := durable(t, m, "a", strings.Repeat(".", 3*pageSize))
	after := func(text string, off int64, fault error) string {
		t.Helper()
		m.Fail(OpWrite, 1, fault)
		mustWrite(t, f, text, off)
		if got := content(t, m, "a"); got[off:off+int64(len(text))] != text {
			t.Fatal("the cache does not show the write")
		}
		f.Sync()
		f.DropCache(0, 0)
		return shape(content(t, m, "a"))
	}
	if got := after(strings.Repeat("l", pageSize), 0, ErrLostWrite); got != "..." {
		t.Errorf("after a lost write %q", got)
	}
	if got := after(strings.Repeat("m", pageSize), 0, MisdirectedWrite{2}); got != "..m" {
		t.Errorf("after a misdirected write %q", got)
	}

	if err := m.FlipBit("a", 5, 0); err != nil {
		t.Fatal(err)
	}
	if got := content(t, m.Crash(CrashNone), "a"); got[5] != '.'^1 {
		t.Errorf("flipped bit: %q on the disk", got[5])
	}

	m.FailReads("a", 100, 10, syscall.EIO)
	for _, at := range []int64{95, 100, 109} {
		if n, err := f.ReadAt(make([]byte, 8), at); n != 0 || !errors.Is(err, syscall.EIO) {
			t.Errorf("read at %d: %d, %v", at, n, err)
		}
	}
	for _, at := range []int64{92, 110} {
		if _, err := f.ReadAt(make([]byte, 8), at); err != nil {
			t.Errorf("read at %d: %v", at, err)
		}
	}
}

func TestFail(t *testing.T) {
	m := NewMemFS(1)
	f := durable(t, m, "a.log", "old")
	write := func() error { _, err := f.WriteAt([]byte("x"), 0); return err }
	f2 := func(got error, want error) {
		t.Helper()
		if !errors.Is(got, want) {
			t.Fatalf("got %v, want %v", got, want)
		}
	}

	m.Fail(OpWrite, 2, syscall.EIO)
	f2(write(), nil)
	f2(write(), syscall.EIO)
	f2(write(), nil)

	m.Fail(OpWrite+":.index", 1, syscall.EIO)
	f2(write(), nil)
	m.Heal()

	m.Fail("", 0, syscall.EROFS)
	f2(write(), syscall.EROFS)
	f2(f.Truncate(0), syscall.EROFS)
	f2(m.Rename("a.log", "b"), syscall.EROFS)
	m.Heal()
	f2(write(), nil)

	m.Fail(OpWrite, 1, ShortWrite{2, syscall.ENOSPC})
	if n, err := f.WriteAt([]byte("abcd"), 3); n != 2 || !errors.Is(err, syscall.ENOSPC) {
		t.Fatalf("short write: %d, %v", n, err)
	}
	if got := content(t, m, "a.log"); got != "xldab" {
		t.Fatalf("after a short write %q", got)
	}

	m.StopAfter(1)
	f2(write(), nil)
	f2(write(), ErrStopped)
	f2(f.Sync(), ErrStopped)
	if _, err := f.ReadAt(make([]byte, 1), 0); !errors.Is(err, ErrStopped) {
		t.Fatalf("read from a stopped disk: %v", err)
	}
	if got := content(t, m.Clone(), "a.log"); got != "xldab" {
		t.Fatalf("the stopped disk holds %q", got)
	}
}

func TestCapacity(t *testing.T) {
	m := NewMemFS(1)
	m.SetCapacity(3 * pageSize)
	f := mustOpen(t, m, "a")
	big := bytes.Repeat([]byte("x"), 4*pageSize)
	if n, err := f.WriteAt(big, 100); n != 3*pageSize-100 || !errors.Is(err, syscall.ENOSPC) {
		t.Fatalf("write past the end of the disk: %d, %v", n, err)
	}
	mustWrite(t, f, "over", 0) // takes no new block
	free := func(want int64) {
		t.Helper()
		if _, got, _ := m.Space("/"); got != want*pageSize {
			t.Fatalf("%d bytes free, want %d blocks", got, want)
		}
	}
	free(0)
	f.Truncate(pageSize + 1)
	free(1)
	g := mustOpen(t, m, "b")
	if err := g.Allocate(0, 2*pageSize); !errors.Is(err, syscall.ENOSPC) {
		t.Fatalf("allocate: %v", err)
	}
	free(1)
	if err := g.Allocate(0, pageSize); err != nil {
		t.Fatal(err)
	}
	if n, _ := g.Size(); n != 0 {
		t.Fatalf("allocation changed the length to %d", n)
	}
	free(0)
	mustWrite(t, g, "taken up front", 0)
	m.Remove("b")
	free(0) // still open
	g.Close()
	free(1)
	f.Sync()
	m.SyncDir("/")
	if _, got, _ := m.Crash(CrashNone).Space("/"); got != pageSize {
		t.Fatalf("%d bytes free after a power cut", got)
	}
}

func TestStallAndHooks(t *testing.T) {
	m := NewMemFS(1)
	f := durable(t, m, "a", "x")
	stalled, release := make(chan bool), make(chan bool)
	m.BeforeOp(func(op Op) error {
		if op.Kind == OpSync {
			stalled <- true
			<-release
		}
		return nil
	})
	var ops []string
	m.AfterOp(func(op Op) {
		ops = append(ops, op.Kind)
		m.Clone() // the disk is free to be copied here
	})
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := f.Sync(); err != nil {
			t.Error(err)
		}
	})
	<-stalled
	mustWrite(t, f, "y", 0) // others go on meanwhile
	release <- true
	wg.Wait()
	if fmt.Sprint(ops) != "[write sync]" {
		t.Fatalf("hook saw %v", ops)
	}
	m.BeforeOp(func(op Op) error { return syscall.EIO })
	if err := m.SyncDir("/"); !errors.Is(err, syscall.EIO) {
		t.Fatalf("hook's error: %v", err)
	}
	m.BeforeOp(nil)
	m.AfterOp(nil)

	m.ResetCounts()
	f.ReadAt(make([]byte, 5), 0)
	f.ReadAt(make([]byte, 6), 0)
	if m.Count(OpRead) != 2 || m.CountBytes(OpRead) != 11 || m.Count(OpWrite) != 0 {
		t.Fatalf("counted %d reads of %d bytes", m.Count(OpRead), m.CountBytes(OpRead))
	}
}

func TestMappingShowsWrites(t *testing.T) {
	for _, d := range bothDisks(t) {
		f := mustOpen(t, d.fs, d.in("a"))
		mustWrite(t, f, "one", 0)
		v, err := f.Map(pageSize)
		if err != nil {
			t.Fatal(err)
		}
		mustWrite(t, f, "two", 3)
		if got := string(v.Bytes()[:6]); got != "onetwo" || len(v.Bytes()) != pageSize {
			t.Fatalf("%s: mapping of %d bytes shows %q", d.name, len(v.Bytes()), got)
		}
		if err := errors.Join(v.Close(), f.Close()); err != nil {
			t.Fatal(err)
		}
	}
}

type disk struct {
	name, root string
	fs         FS
}

func (d disk) in(name string) string { return d.root + "/" + name }

func bothDisks(t *testing.T) []disk {
	return []disk{{"memfs", "", NewMemFS(1)}, {"os", t.TempDir(), OS()}}
}

func TestLocks(t *testing.T) {
	for _, d := range bothDisks(t) {
		l, err := d.fs.Lock(d.in("lock"))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := d.fs.Lock(d.in("lock")); !errors.Is(err, ErrLocked) {
			t.Fatalf("%s: second lock: %v", d.name, err)
		}
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
		l, err = d.fs.Lock(d.in("lock"))
		if err != nil {
			t.Fatalf("%s: lock after it was released: %v", d.name, err)
		}
		l.Close()
	}
}

// TestMemFSLikeOS does the same random things to both disks and expects the
// same answers.
func TestMemFSLikeOS(t *testing.T) {
	for seed := range uint64(12) {
		disks := bothDisks(t)
		r := &random{seed: seed}
		for step := range 150 {
			op := randomOp(r)
			mem, os := op(disks[0]), op(disks[1])
			if mem != os {
				t.Fatalf("seed %d, step %d: memfs says %s, the machine %s", seed, step, mem, os)
			}
		}
	}
}

type random struct{ seed, n uint64 }

func (r *random) below(n int) int {
	r.n++
	return int(mix(r.seed^mix(r.n)) % uint64(n))
}

// randomOp chooses one operation and returns how to do it and tell what came
// of it.
func randomOp(r *random) func(d disk) string {
	names := []string{"a", "b", "x", "x/a", "x/b", "x/y", "x/y/a", "b/z"}
	name, other := names[r.below(len(names))], names[r.below(len(names))]
	mode := []Mode{Read, ReadWrite, Create, CreateNew}[r.below(4)]
	off, n := int64(r.below(3*pageSize)), r.below(2*pageSize)
	fill := byte('a' + r.below(26))
	switch r.below(8) {
	case 0:
		return func(d disk) string { return told("mkdir "+name, d.fs.Mkdir(d.in(name))) }
	case 1:
		if strings.HasPrefix(other, name+"/") || strings.HasPrefix(name, other+"/") {
			return func(disk) string { return "" } // into itself: the model does not care
		}
		return func(d disk) string {
			return told("rename "+name+" "+other, d.fs.Rename(d.in(name), d.in(other)))
		}
	case 2:
		return func(d disk) string { return told("remove "+name, d.fs.Remove(d.in(name))) }
	case 3:
		return func(d disk) string {
			es, err := d.fs.ReadDir(d.in(name))
			return told(fmt.Sprintf("readdir %s %v", name, es), err)
		}
	case 4:
		return func(d disk) string {
			e, err := d.fs.Stat(d.in(name))
			return told(fmt.Sprintf("stat %s %v", name, e), err)
		}
	}
	cut := r.below(4) == 0
	return func(d disk) string {
		if e, err := d.fs.Stat(d.in(name)); err == nil && e.Dir {
			return "" // the machine opens folders too
		}
		f, err := d.fs.Open(d.in(name), mode)
		if err != nil {
			return told("open "+name, err)
		}
		defer f.Close()
		if cut {
			err = f.Truncate(off)
		} else {
			_, err = f.WriteAt(bytes.Repeat([]byte{fill}, n), off)
		}
		size, _ := f.Size()
		b := make([]byte, size+10)
		got, readErr := f.ReadAt(b, 0)
		if readErr != io.EOF || int64(got) != size {
			return fmt.Sprintf("read %d of %d: %v", got, size, readErr)
		}
		return told(fmt.Sprintf("%s: %q", name, shape(string(b[:got]))), err)
	}
}

// told tells an error by its kind: which number the system gives to a refusal
// is not part of the contract.
func told(what string, err error) string {
	switch {
	case err == nil:
		return what + ": ok"
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ENOTDIR):
		return what + ": not there"
	}
	return what + ": refused"
}

// TestMemFSConcurrent is for the race detector: files are written, read, synced,
// mapped and the disk cloned at once.
func TestMemFSConcurrent(t *testing.T) {
	m := NewMemFS(1)
	var wg sync.WaitGroup
	for i := range 4 {
		wg.Go(func() {
			f := mustOpen(t, m, fmt.Sprint(i))
			v, err := f.Map(1 << 20)
			if err != nil {
				t.Error(err)
				return
			}
			for j := range 50 {
				mustWrite(t, f, "x", int64(j))
				f.Sync()
				m.SyncDir("/")
				m.Crash(CrashAny)
				if v.Bytes()[j] != 'x' {
					t.Errorf("mapping lacks byte %d", j)
				}
			}
			v.Close()
			f.Close()
		})
	}
	wg.Wait()
}
