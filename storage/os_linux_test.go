package storage

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// evict has the first n bytes of f written and leave memory; a file system that
// keeps them all the same skips the test.
func evict(t *testing.T, f osFile, n int64) {
	t.Helper()
	for range 1000 { // a page that another thread holds just now stays
		if err := errors.Join(f.Sync(), f.DropCache(0, 0)); err != nil {
			t.Fatal(err)
		}
		if out := f.absent(0, n); len(out) == 1 && out[0] == (span{0, pagesOf(n) * pageSize}) {
			return
		}
	}
	t.Skip("this file system keeps pages that it was told to drop")
}

// TestCountFallsShort has the kernel count fewer pages than there are, as it does
// when it gives up its processor on the way: what one count reaches is there, and
// what none does is not.
func TestCountFallsShort(t *testing.T) {
	broken := errors.New("no count")
	for _, tt := range []struct {
		counts []int64 // -1: fails
		want   bool
		asked  int
	}{
		{[]int64{8}, true, 1},
		{[]int64{9}, true, 1},
		{[]int64{7, 8}, true, 2},
		{[]int64{0, 7, 8}, true, 3},
		{[]int64{7, 7, 7, 8}, false, 3},
		{[]int64{0, -1, 8}, false, 2},
	} {
		asked := 0
		got, err := reached(8, func() (int64, error) {
			n := tt.counts[asked]
			asked++
			if n < 0 {
				return 8, broken
			}
			return n, nil
		})
		if failed := tt.counts[asked-1] < 0; got != tt.want || asked != tt.asked || failed != (err == broken) {
			t.Errorf("counts %v of 8: %v, %v after %d, want %v after %d", tt.counts, got, err, asked, tt.want, tt.asked)
		}
	}
}

// TestResidentPages brings some pages of a file into memory and looks at ranges:
// those whose pages are all there are resident, no others, and a look brings
// none in.
func TestResidentPages(t *testing.T) {
	const pages = 512
	f := mustOpen(t, OS(), t.TempDir()+"/f").(osFile)
	defer f.Close()
	mustWrite(t, f, strings.Repeat("x", pages*pageSize), 0)
	evict(t, f, pages*pageSize)
	if _, err := counted(f.Fd(), 0, 1); err != nil {
		t.Skip("this kernel does not count pages: ", err)
	}
	if err := f.Scattered(); err != nil { // nothing but what is asked for
		t.Fatal(err)
	}
	r := rand.New(rand.NewPCG(1, 2))
	for range 100 {
		if _, err := f.ReadAt(make([]byte, 1+r.Int64N(8*pageSize)), r.Int64N((pages-8)*pageSize)); err != nil {
			t.Fatal(err)
		}
	}
	out := f.absent(0, pages*pageSize)
	if len(out) < 2 {
		t.Fatalf("not in memory: %v; the test needs holes", out)
	}
	for range 5000 {
		off := r.Int64N(pages * pageSize)
		n := 1 + r.Int64N(min(6*pageSize, pages*pageSize-off))
		want := !slices.ContainsFunc(out, func(s span) bool { return s.from < off+n && off < s.to })
		if got := f.resident(off, n); got != want {
			t.Fatalf("%d bytes at %d: resident %v; not in memory %v", n, off, got, out)
		}
		if got := f.readNow(make([]byte, n), off); got != want {
			t.Fatalf("%d bytes at %d: read %v; not in memory %v", n, off, got, out)
		}
	}
	if after := f.absent(0, pages*pageSize); !slices.Equal(after, out) {
		t.Fatalf("not in memory: %v, before the looks %v", after, out)
	}
}

func TestOSFile(t *testing.T) {
	dir := t.TempDir()
	d := OS()
	f := mustOpen(t, d, dir+"/f")
	defer f.Close()
	mustWrite(t, f, "record", 0)
	if err := errors.Join(f.Sync(), d.SyncDir(dir), f.DropCache(0, 0), f.Prefetch(0, 6)); err != nil {
		t.Fatal(err)
	}
	if err := f.Allocate(0, 1<<20); err != nil && !errors.Is(err, errors.ErrUnsupported) {
		t.Fatal(err)
	} else if err == nil {
		var st unix.Stat_t
		if err := unix.Stat(dir+"/f", &st); err != nil || st.Size != 6 || st.Blocks*512 < 1<<20 {
			t.Fatalf("allocated: size %d, %d bytes of blocks, %v", st.Size, st.Blocks*512, err)
		}
	}
	b := make([]byte, 6)
	fd := f.(interface{ SysFd() uintptr }).SysFd()
	if n, err := unix.Pread(int(fd), b, 0); n != 6 || string(b) != "record" {
		t.Fatalf("read by descriptor: %q, %v", b[:n], err)
	}
	empty, err := f.Map(0)
	if err != nil || len(empty.Bytes()) != 0 || empty.Close() != nil {
		t.Fatalf("an empty mapping: %v", err)
	}
	total, free, err := d.Space(dir)
	if err != nil || free <= 0 || total < free {
		t.Fatalf("space: %d of %d, %v", free, total, err)
	}
	// A second look, at a disk that others may use meanwhile.
	df, err := exec.Command("df", "-Pk", dir).Output()
	if err != nil {
		t.Fatal(err)
	}
	_, df, _ = bytes.Cut(df, []byte("\n"))
	var name string
	var all, used, left int64
	if _, err := fmt.Sscan(string(df), &name, &all, &used, &left); err != nil {
		t.Fatalf("df says %q: %v", df, err)
	}
	if want := (used + left) << 10; max(want, total)-min(want, total) > want/100 {
		t.Errorf("space: %d of %d, df says %s", free, total, df)
	}
	if err := f.Truncate(3); err != nil || content(t, d, dir+"/f") != "rec" {
		t.Fatalf("truncate: %v", err)
	}
}

// TestNoDescriptors: with all descriptors of the process taken, a directory can
// still be synced any number of times, and a few more files opened.
func TestNoDescriptors(t *testing.T) {
	dir := t.TempDir()
	d := OS()
	var was unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &was); err != nil {
		t.Fatal(err)
	}
	var taken []*os.File
	defer func() {
		for _, f := range taken {
			f.Close()
		}
		unix.Setrlimit(unix.RLIMIT_NOFILE, &was)
		keepSpares()
	}()
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 256, Max: was.Max}); err != nil {
		t.Fatal(err)
	}
	exhaust := func() error {
		for {
			f, err := os.Open(os.DevNull)
			if err != nil {
				return err
			}
			taken = append(taken, f)
		}
	}
	if err := exhaust(); !errors.Is(err, unix.EMFILE) {
		t.Fatalf("taking all descriptors: %v", err)
	}
	for i := range 3 * spareFiles {
		if err := d.SyncDir(dir); err != nil {
			t.Fatalf("SyncDir %d: %v", i, err)
		}
	}
	for i := range spareFiles {
		f, err := d.Open(fmt.Sprintf("%s/%d", dir, i), CreateNew)
		if err != nil {
			t.Fatalf("file %d: %v", i, err)
		}
		taken = append(taken, f.(osFile).File)
	}
	if _, err := d.Open(dir+"/more", CreateNew); !errors.Is(err, unix.EMFILE) {
		t.Fatalf("one file more than there are descriptors: %v", err)
	}
	taken[0].Close()
	taken = taken[1:]
	if err := d.SyncDir(dir); err != nil {
		t.Fatalf("SyncDir by the descriptor that came free: %v", err)
	}
}

func TestOSErrors(t *testing.T) {
	dir := t.TempDir()
	d := OS()
	f := func(what string, err, want error) {
		t.Helper()
		if !errors.Is(err, want) {
			t.Fatalf("%s: %v, want %v", what, err, want)
		}
	}
	_, err := d.Open(dir+"/absent", ReadWrite)
	f("open", err, fs.ErrNotExist)
	_, err = d.Stat(dir + "/absent")
	f("stat", err, fs.ErrNotExist)
	_, err = d.ReadDir(dir + "/absent")
	f("readdir", err, fs.ErrNotExist)
	f("remove", d.Remove(dir+"/absent"), fs.ErrNotExist)
	f("remove all", d.RemoveAll(dir+"/absent"), nil)
	f("syncdir", d.SyncDir(dir+"/absent"), fs.ErrNotExist)
	_, _, err = d.Space(dir + "/absent")
	f("space", err, fs.ErrNotExist)

	file := durableOS(t, dir+"/f")
	_, err = d.Open(dir+"/f", CreateNew)
	f("create new", err, fs.ErrExist)
	reader, err := d.Open(dir+"/f", Read)
	f("open for reading", err, nil)
	_, err = reader.WriteAt([]byte("x"), 0)
	f("write to what is open for reading", err, unix.EBADF)
	f("close", reader.Close(), nil)
	f("sync after close", reader.Sync(), fs.ErrClosed)
	f("close again", reader.Close(), fs.ErrClosed)
	f("close", file.Close(), nil)
}

func durableOS(t *testing.T, name string) File {
	t.Helper()
	f := mustOpen(t, OS(), name)
	mustWrite(t, f, "record", 0)
	if err := f.Sync(); err != nil {
		t.Fatal(err)
	}
	return f
}

// TestDirOnTheRealDisk opens a directory as two processes would: the second one
// is refused while the first lives, and finds an unclean stop once it is dead.
func TestDirOnTheRealDisk(t *testing.T) {
	if dir := os.Getenv("STORAGE_TEST_HOLD"); dir != "" {
		o := testDir("boot")
		d, err := OpenDir(OS(), dir, o)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := d.Create("orders", ordersID, Options{}, dirNow); err != nil {
			t.Fatal(err)
		}
		os.Stdout.WriteString("held\n")
		os.Stdin.Read(make([]byte, 1)) // until it is killed, or its parent is
		return
	}

	dir := t.TempDir() + "/data"
	child := exec.Command(os.Args[0], "-test.run=^TestDirOnTheRealDisk$")
	child.Env = append(os.Environ(), "STORAGE_TEST_HOLD="+dir)
	out, err := child.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := child.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	line := make([]byte, 5)
	if _, err := out.Read(line); err != nil || string(line) != "held\n" {
		t.Fatalf("the child said %q, %v", line, err)
	}
	if _, err := OpenDir(OS(), dir, testDir("boot")); !errors.Is(err, ErrLocked) {
		t.Fatalf("while another process has it: %v", err)
	}
	child.Process.Kill()
	child.Wait()

	d, err := OpenDir(OS(), dir, testDir("boot"))
	if err != nil {
		t.Fatal(err)
	}
	if s := d.Start(); s.Clean || !s.SameBoot || len(d.Partitions()) != 1 {
		t.Fatalf("after the death of the other: %+v, %v", s, d.Partitions())
	}
	l, err := d.Open("orders", ordersID, Options{}, dirNow)
	if err != nil {
		t.Fatal(err)
	}
	if e, err := OS().Stat(dir + "/reserve"); err == nil && e.Size != 16*pageSize {
		t.Fatalf("reserve of %d bytes", e.Size)
	}
	if !d.Relieve() {
		t.Fatal("nothing to relieve")
	}
	closeDir(t, d, l)
	d = mustReopenOS(t, dir)
	if !d.Start().Clean {
		t.Fatal("after a clean stop")
	}
	if err := errors.Join(d.Delete(ordersID), d.Close(nil)); err != nil {
		t.Fatal(err)
	}
}

func mustReopenOS(t *testing.T, dir string) *Dir {
	t.Helper()
	d, err := OpenDir(OS(), dir, testDir("boot"))
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// TestWriteParts: any number of parts of any size lie behind each other, on the
// real disk and on the other; an error comes with how much was written.
func TestWriteParts(t *testing.T) {
	dir := t.TempDir()
	f := func(parts ...[]byte) {
		t.Helper()
		for _, d := range []FS{OS(), NewMemFS(1)} {
			name := dir + "/f"
			if _, mem := d.(*MemFS); mem {
				name = "f"
			}
			file, err := d.Open(name, Create)
			if err != nil {
				t.Fatal(err)
			}
			mustWrite(t, file, "head", 0)
			want := "head" + string(bytes.Join(parts, nil))
			n, err := file.WriteParts(parts, 4)
			if got := content(t, d, name); err != nil || n != len(want)-4 || got != want {
				t.Fatalf("%d parts: wrote %d of %d bytes, %v", len(parts), n, len(want)-4, err)
			}
			if err := errors.Join(file.Close(), d.Remove(name)); err != nil {
				t.Fatal(err)
			}
		}
	}
	f()
	f([]byte("one"))
	f([]byte("one"), nil, []byte{}, []byte("two"))
	var many [][]byte
	for i := range 3*maxIovecs + 1 {
		many = append(many, bytes.Repeat([]byte{byte(i)}, i%7))
	}
	f(many...)

	file := mustOpen(t, OS(), dir+"/g")
	file.Close()
	file, err := OS().Open(dir+"/g", Read)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if n, err := file.WriteParts([][]byte{[]byte("x")}, 0); n != 0 || !errors.Is(err, unix.EBADF) {
		t.Fatalf("to a file open for reading: %d, %v", n, err)
	}
}

func TestPass(t *testing.T) {
	text := []byte("abcdefghij")
	f := func(n uint64, want ...string) {
		t.Helper()
		var v []unix.Iovec
		for _, p := range [][]byte{text[:3], text[3:4], text[4:]} {
			v = append(v, unix.Iovec{Base: &p[0], Len: uint64(len(p))})
		}
		var got []string
		for _, x := range pass(v, n) {
			got = append(got, string(unsafe.Slice(x.Base, x.Len)))
		}
		if !slices.Equal(got, want) {
			t.Errorf("without %d bytes: %q, want %q", n, got, want)
		}
	}
	f(0, "abc", "d", "efghij")
	f(2, "c", "d", "efghij")
	f(3, "d", "efghij")
	f(5, "fghij")
	f(10)
}
