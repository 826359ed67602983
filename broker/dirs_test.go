package broker

import (
	"errors"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/teralog/teralog/storage"
	"github.com/teralog/teralog/wire"
)

// newDisks returns a rig that has started on several data directories, with a
// topic of four partitions that hold a record each.
func newDisks(t *testing.T, dirs ...string) (*rig, wire.TopicID) {
	t.Helper()
	r := newRig(t)
	r.stop()
	r.fs = storage.NewMemFS(2)
	r.config.DataDirs = dirs
	r.start()
	id := r.create("t", 4)
	for p := range int32(4) {
		r.write(id, p, "v")
	}
	return r, id
}

func (r *rig) lose(dir string) {
	r.t.Helper()
	if err := r.fs.RemoveAll(dir); err != nil {
		r.t.Fatal(err)
	}
}

// served returns the partitions of a topic whose record can be read.
func (r *rig) served(id wire.TopicID) (parts []int32) {
	for p := range int32(4) {
		if res := r.read(fetchOf(id, p, 0))[0]; res.Code == wire.CodeOK && strings.HasPrefix(strings.Join(valuesOf(r.t, res.Data), ","), "v") {
			parts = append(parts, p)
		}
	}
	return parts
}

// TestUnmounted starts with an empty folder in the place of a data directory: it
// is refused, and stays empty, unless the operator says that what was there is
// lost; a folder that never was one is taken.
func TestUnmounted(t *testing.T) {
	r, id := newDisks(t, "a", "b")
	r.stop()
	whole := r.fs.Clone()
	f := func(change func(), want string) {
		t.Helper()
		r.fs, r.config.LostDirs, r.config.DataDirs = whole.Clone(), nil, []string{"a", "b"}
		change()
		err := r.tryStart()
		if want == "" {
			if err != nil {
				t.Fatal(err)
			}
			return
		}
		if err == nil || !strings.Contains(err.Error(), want) || exitCode(coded(err)) != exitConfig {
			t.Fatalf("started: %v, want %q", err, want)
		}
		for _, dir := range []string{"a", "b", "c"} {
			if ok, _ := storage.Formatted(r.fs, dir); !ok {
				if es, err := r.fs.ReadDir(dir); err == nil && len(es) > 0 && es[0].Name != "lost+found" {
					t.Fatalf("%s was empty and holds %v", dir, es)
				}
			}
		}
	}
	gone := r.b.dirs[1].ID()

	f(func() { r.lose("b") }, "b: not this node's data directory: it is empty, and the data directory "+gone.String()+" is missing")
	f(func() { r.lose("b"); r.fs.Mkdir("b/lost+found") }, "is missing")
	f(func() { r.config.DataDirs = []string{"a", "c"} }, "c: not this node's data directory: it is empty")
	f(func() { r.lose("a") }, "a: not this node's data directory: it is to hold the metadata and is empty, but b is in use")
	f(func() { r.lose("b"); r.config.LostDirs = []wire.UUID{{1}} }, "is missing")
	f(func() { r.config.DataDirs = []string{"a", "b", "c"} }, "")
	f(func() { r.config.DataDirs = []string{"a"} }, "") // taken out on purpose
	if got := r.served(id); len(got) != 2 {
		t.Fatalf("without b, %v are served", got)
	}
	r.stop()
	whole = r.fs // it is not forgotten for that
	f(func() { r.config.DataDirs = []string{"a", "c"} }, "c: not this node's data directory")

	f(func() { r.lose("b"); r.config.LostDirs = []wire.UUID{gone} }, "")
	if got := r.served(id); len(got) != 2 {
		t.Fatalf("with b lost, %v are served", got)
	}
	fresh := r.b.dirs[1].ID()
	r.delete(id)
	r.pass(60e9)
	r.stop()
	r.start()
	r.settle()
	if left := r.b.Image().DeletedTopics(); len(left) > 0 {
		t.Fatalf("a topic of which part is lost is never forgotten: %v", left)
	}
	r.stop()
	whole = r.fs
	f(func() { r.lose("b"); r.config.LostDirs = []wire.UUID{gone} }, "the data directory "+fresh.String()+" is missing")
}

// TestDeadDisk starts with a disk that gives errors: those of the other
// directories are served, new topics go there, and what lies on it is back once
// it is.
func TestDeadDisk(t *testing.T) {
	r, id := newDisks(t, "a", "b")
	r.stop()
	f := func(kind string, fault error, up float64) {
		t.Helper()
		r.fs.Fail(kind, 0, fault)
		if err := r.tryStart(); err != nil {
			t.Fatalf("%s: %v", kind, err)
		}
		want := 2
		if up == 1 {
			want = 4
		}
		if got := r.served(id); len(got) != want {
			t.Fatalf("%s: %v are served", kind, got)
		}
		samples := scraped(t, r.b)
		if got := valueOf(t, samples, "teralog_directory_up", `dir="b"`); got != up || valueOf(t, samples, "teralog_directory_up", `dir="a"`) != 1 {
			t.Fatalf("%s: b is up: %v", kind, got)
		}
		other := r.create("other", 4)
		for p := range int32(4) {
			r.write(other, p, "v")
		}
		r.delete(other)
		r.fs.Heal()
		r.kill(false)
		r.start()
		if got := r.served(id); len(got) != 4 {
			t.Fatalf("%s: %v are served with the disk back", kind, got)
		}
		r.kill(false)
	}

	f("stat:b/identity", syscall.EIO, 0)
	f("read:b/identity", syscall.EIO, 0)
	f("write:b/running", syscall.EROFS, 0)
	f("syncdir:b/", syscall.EIO, 0)
	f("readdir:b/topics", syscall.EIO, 0)
	f("none", nil, 1)

	// Not without the metadata, and not without any.
	r.fs.Fail("read:a/identity", 0, syscall.EIO)
	if err := r.tryStart(); err == nil {
		t.Fatal("started without the directory of the metadata")
	}
	r.fs.Heal()
	r.fs.Fail("open:b/lock", 0, syscall.EIO)
	r.fs.Fail("lock:b/lock", 0, storage.ErrLocked)
	if err := r.tryStart(); !errors.Is(err, storage.ErrLocked) || !strings.Contains(err.Error(), "another process uses the data directory b") {
		t.Fatalf("started beside another process: %v", err)
	}
}

// TestMetadataDir keeps the metadata on a disk of its own, which takes no
// records; with no other directory left the process has to end.
func TestMetadataDir(t *testing.T) {
	r := newRig(t)
	r.stop()
	r.fs = storage.NewMemFS(3)
	r.config.MetadataDir, r.config.DataDirs = "core", []string{"one", "two"}
	r.start()
	id := r.create("t", 4)
	for p := range int32(4) {
		r.write(id, p, "v")
	}
	if got := r.files("core/topics"); len(got) != 0 {
		t.Fatalf("records lie beside the metadata: %v", got)
	}
	if got := r.files("one"); slices.Contains(got, "metadata") {
		t.Fatalf("metadata lies beside records: %v", got)
	}
	r.stop()
	r.start()
	if got := r.served(id); len(got) != 4 {
		t.Fatalf("%v are served", got)
	}

	for i, dir := range []string{"one", "two"} {
		r.fs.Fail("sync:"+dir+"/", 1, syscall.EIO)
		for p := range int32(4) {
			r.send(batchOf(t, wire.BuilderOptions{Topic: id, Partition: p}, "w"))
		}
		r.pass(5e9)
		if err := r.b.Fatal(); (err != nil) != (i == 1) || err != nil && exitCode(err) != exitIO {
			t.Fatalf("%d directories failed: %v", i+1, err)
		}
		if got := r.served(id); len(got) == 0 {
			t.Fatalf("%d directories failed and nothing can be read: %+v", i+1, r.read(fetchOf(id, 0, 0))[0])
		}
	}

	start := func(kind string, nth int, want string) {
		t.Helper()
		r.kill(true)
		r.fs.Heal()
		for _, dir := range []string{"one", "two"} {
			r.fs.Fail(kind+":"+dir+"/", nth, syscall.EIO)
		}
		if err := r.tryStart(); exitCode(err) != exitIO || !strings.Contains(err.Error(), want) {
			t.Fatalf("a start in which %s number %d fails on both disks: %v", kind, nth, err)
		}
	}
	start("sync", 1, "can be used; the first: ") // before anything is known
	start("sync", 2, "left in service")          // when partitions are open

	c := DefaultConfig()
	c.MetadataDir = c.DataDirs[0]
	if c.Check() == nil {
		t.Fatal("one directory is named twice")
	}
}

// TestFailedDirectory has one of two disks fail while both work, in each way: no
// write there is acknowledged any more, nor is it later, what was durable before
// can be read, and the other directory serves on.
func TestFailedDirectory(t *testing.T) {
	f := func(how string, fail func(fs *storage.MemFS)) {
		t.Helper()
		r, id := newDisks(t, "a", "b")
		sync := r.create("sync", 4, wire.Setting{Key: "flush", Value: "sync"})
		for p := range int32(4) {
			r.write(sync, p, "v")
		}
		r.pass(5e9) // the async one is flushed, too
		bad := r.b.dirs[1]
		in := func(id wire.TopicID, p int32) bool {
			return r.b.Image().TopicByID(id).Partitions[p].Dir == bad.ID()
		}
		fail(r.fs)
		acked := 0
		for range 3 {
			for _, id := range []wire.TopicID{id, sync} {
				for p := range int32(4) {
					res := r.send(batchOf(t, wire.BuilderOptions{Topic: id, Partition: p}, "w"))[0]
					if !in(id, p) && res.Code != wire.CodeOK || in(id, p) && id == sync && res.Code == wire.CodeOK {
						t.Fatalf("%s: produce to %d of %d is answered %+v", how, p, id, res)
					}
					if in(id, p) && res.Code == wire.CodeOK {
						acked++ // async: by the write alone, before the flush fails
					}
				}
			}
			r.pass(5e9)
			r.fs.Heal() // what fails once is final
		}
		if bad.Failed() == nil || acked > 4 || r.b.Fatal() != nil {
			t.Fatalf("%s: failed: %v, %d acknowledged there", how, bad.Failed(), acked)
		}
		for _, id := range []wire.TopicID{id, sync} {
			for p := range int32(4) {
				res := r.read(fetchOf(id, p, 0))[0]
				switch {
				case !in(id, p):
					if got := r.readAll(id, p); len(got) != 4 {
						t.Fatalf("%s: %d of %d: %q", how, p, id, got)
					}
					continue
				case res.Code != wire.CodeOK || !slices.Equal(valuesOf(t, res.Data), []string{"v"}):
					t.Fatalf("%s: read %d of %d: %v %q", how, p, id, res.Code, valuesOf(t, res.Data))
				}
				if next := r.read(fetchOf(id, p, res.Next))[0]; next.Code != wire.CodeOffline {
					t.Fatalf("%s: behind what is durable: %+v", how, next)
				}
				if at := r.b.offset(wire.OffsetQuery{Topic: id, Partition: p, Kind: wire.Latest, Epoch: wire.NoEpoch}); at.Offset != res.Next {
					t.Fatalf("%s: the latest offset that can be read is %+v", how, at)
				}
			}
		}
		made := r.create("new", 4)
		for p := range int32(4) {
			r.write(made, p, "v")
			if in(made, p) {
				t.Fatalf("%s: a new partition lies in the failed directory", how)
			}
		}
		r.kill(true)
		r.start()
		if got := r.served(id); len(got) != 4 {
			t.Fatalf("%s: after a restart %v are served", how, got)
		}
	}

	f("an fsync fails", func(fs *storage.MemFS) { fs.Fail("sync:b/topics", 1, syscall.EIO) })
	f("the disk was full after all", func(fs *storage.MemFS) { fs.Fail("sync:b/topics", 1, syscall.ENOSPC) })
	f("a write fails", func(fs *storage.MemFS) { fs.Fail("write:b/topics", 1, syscall.EIO) })
	f("remounted read-only", func(fs *storage.MemFS) {
		for _, kind := range []string{"write", "truncate", "allocate", "mkdir", "rename", "remove", "sync", "syncdir"} {
			fs.Fail(kind+":b/", 0, syscall.EROFS)
		}
	})
}
