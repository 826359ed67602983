package broker

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/teralog/teralog/coord"
	"github.com/teralog/teralog/storage"
	"github.com/teralog/teralog/wire"
)

// overwrite changes the content of a file on the rig's disk, durably; nil
// removes the file.
func (r *rig) overwrite(name string, change func(old []byte) []byte) {
	r.t.Helper()
	f, err := r.fs.Open(name, storage.ReadWrite)
	if err != nil {
		r.t.Fatal(err)
	}
	defer f.Close()
	n, err := f.Size()
	old := make([]byte, n)
	if err == nil && n > 0 {
		_, err = f.ReadAt(old, 0)
	}
	if err != nil {
		r.t.Fatal(err)
	}
	now := change(old)
	if now == nil {
		err = r.fs.Remove(name)
	} else if err = f.Truncate(0); err == nil {
		_, err = f.WriteAt(now, 0)
	}
	if err = errors.Join(err, f.Sync()); err == nil {
		err = r.fs.SyncDir(name[:strings.LastIndex(name, "/")])
	}
	if err != nil {
		r.t.Fatal(err)
	}
}

// files returns the names in a folder of the rig's disk.
func (r *rig) files(dir string) (names []string) {
	r.t.Helper()
	es, err := r.fs.ReadDir(dir)
	if err != nil {
		r.t.Fatal(err)
	}
	for _, e := range es {
		names = append(names, e.Name)
	}
	return names
}

const (
	folder   = "data/topics/t/partition-0000"
	neighbor = "data/topics/t/partition-0001"
)

// filled returns a rig with a topic t of two partitions, each of a few
// segments, and what they hold.
func filled(t *testing.T) (r *rig, id wire.TopicID, want []string) {
	r = newRig(t)
	id = r.create("t", 2, wire.Setting{Key: "segment.bytes", Value: "8KiB"}, wire.Setting{Key: "max.batch.bytes", Value: "4KiB"},
		wire.Setting{Key: "index.interval", Value: "256B"})
	for i := range 60 {
		want = append(want, fmt.Sprint(i, strings.Repeat("-", i*7)))
		for p := range int32(2) {
			r.send(batchOf(t, wire.BuilderOptions{Topic: id, Partition: p, Producer: 7, BaseSequence: int32(i)}, want[i]))
		}
	}
	r.pass(12 * time.Second) // recovery points, retention
	return r, id, want
}

// TestStartDamagedFiles damages each file beside the log of one partition in
// each way and starts again, after a clean stop and after a death: same
// records, same look-ups, same duplicates; and the other partition never
// notices.
func TestStartDamagedFiles(t *testing.T) {
	r, id, want := filled(t)
	image := r.fs
	r.stop()
	clean := r.fs.Clone()
	killed := image.Clone()
	// The killed image is that of a process that died: no clean mark.
	r.fs = killed
	if err := r.fs.Remove("data/clean"); err != nil {
		t.Fatal(err)
	}
	if err := r.fs.SyncDir("data"); err != nil {
		t.Fatal(err)
	}
	killed = r.fs.Clone()

	r.fs = clean.Clone()
	names := r.files(folder)
	other := map[string][]byte{}
	for _, name := range r.files(neighbor) {
		f, err := r.fs.Open(neighbor+"/"+name, storage.Read)
		if err != nil {
			t.Fatal(err)
		}
		n, _ := f.Size()
		b := make([]byte, n)
		f.ReadAt(b, 0)
		f.Close()
		other[name] = b
	}
	ways := map[string]func(name string, old []byte) []byte{
		"deleted": func(string, []byte) []byte { return nil },
		"empty":   func(string, []byte) []byte { return []byte{} },
		"7 bytes": func(_ string, old []byte) []byte { return old[:min(7, len(old))] },
		"0xFF":    func(_ string, old []byte) []byte { return slices.Repeat([]byte{0xFF}, len(old)) },
		"another partition's": func(name string, old []byte) []byte {
			if b, ok := other[name]; ok {
				return b
			}
			return []byte{1}
		},
	}
	damaged := 0
	for _, base := range []*storage.MemFS{clean, killed} {
		for _, name := range names {
			if strings.HasSuffix(name, ".log") || name == "partition-manifest" {
				continue
			}
			for way, change := range ways {
				r.fs = base.Clone()
				r.overwrite(folder+"/"+name, func(old []byte) []byte { return change(name, old) })
				damaged++
				r.start()
				for p := range int32(2) {
					if got := r.readAll(id, p); !slices.Equal(got, want) {
						t.Fatalf("%s %s: partition %d reads %d records of %d", name, way, p, len(got), len(want))
					}
				}
				var found wire.ListOffsetsResponse
				if err := r.ask(&wire.ListOffsetsRequest{Queries: []wire.OffsetQuery{
					{Topic: id, Epoch: wire.NoEpoch, Kind: wire.AtEventTime, Time: 1000}, {Topic: id, Epoch: wire.NoEpoch, Kind: wire.AtEventTime, Time: 1001},
					{Topic: id, Epoch: wire.NoEpoch, Kind: wire.AtAppendTime, Time: r.now.Wall}, {Topic: id, Epoch: wire.NoEpoch, Kind: wire.Greatest},
				}}, &found); err != nil {
					t.Fatal(err)
				}
				for i, want := range []wire.Offset{0, -1, -1, 0} {
					if found.Results[i].Code != wire.CodeOK || found.Results[i].Offset != want {
						t.Fatalf("%s %s: query %d gives %+v", name, way, i, found.Results[i])
					}
				}
				if res := r.send(batchOf(t, wire.BuilderOptions{Topic: id, Producer: 7, BaseSequence: 59}, want[59]))[0]; res.Code != wire.CodeOK || res.Base != 59 {
					t.Fatalf("%s %s: the last batch again: %+v", name, way, res)
				}
				r.send(batchOf(t, wire.BuilderOptions{Topic: id, Producer: 7, BaseSequence: 60}, "more"))
				if got := r.readAll(id, 0); len(got) != 61 {
					t.Fatalf("%s %s: %d records after one more", name, way, len(got))
				}
			}
		}
	}
	if damaged < 50 {
		t.Fatalf("only %d damages: %v", damaged, names)
	}
}

// TestStartDamagedPartition damages one partition beyond repair, in each way:
// it is offline, its bytes stay, and everything else is served.
func TestStartDamagedPartition(t *testing.T) {
	first, id, want := filled(t)
	first.stop()
	base := first.fs
	logs := slices.DeleteFunc(first.files(folder), func(s string) bool { return !strings.HasSuffix(s, ".log") })
	if len(logs) < 3 {
		t.Fatalf("segments: %v", logs)
	}
	f := func(name string, damage func(r *rig), check func(r *rig)) {
		t.Helper()
		for _, restarts := range []int{1, 2} { // what the first start makes of it, the second finds
			r := &rig{t: t, fs: base.Clone(), now: first.now, ids: 1000, config: first.config}
			damage(r)
			for range restarts - 1 {
				r.start()
				r.stop2()
			}
			r.start()
			if got := r.readAll(id, 1); !slices.Equal(got, want) {
				t.Fatalf("%s: the sound partition holds %d records", name, len(got))
			}
			r.write(id, 1, "goes on")
			check(r)
			other := r.create("u", 1)
			r.write(other, 0, "new")

			// The topic can be deleted, and its name used again.
			r.delete(id)
			again := r.create("t", 2)
			for p := range int32(2) {
				r.write(again, p, "again")
				if got := r.readAll(again, p); !slices.Equal(got, []string{"again"}) {
					t.Fatalf("%s: partition %d of the new topic: %q", name, p, got)
				}
			}
			r.stop()
			r.start()
			if got := r.readAll(again, 0); !slices.Equal(got, []string{"again"}) {
				t.Fatalf("%s: the new topic after a restart: %q", name, got)
			}
		}
	}
	offline := func(r *rig) {
		t.Helper()
		if res := r.read(fetchOf(id, 0, 0))[0]; res.Code != wire.CodeOffline {
			t.Fatalf("fetch: %v", res.Code)
		}
		if res := r.send(batchOf(t, wire.BuilderOptions{Topic: id}, "v"))[0]; res.Code != wire.CodeOffline || res.Message == "" {
			t.Fatalf("produce: %+v", res)
		}
		var d wire.DescribeTopicsResponse
		if err := r.ask(&wire.DescribeTopicsRequest{}, &d); err != nil || d.Topics[0].Partitions[0].Code != wire.CodeOffline || d.Topics[0].Partitions[1].Code != wire.CodeOK {
			t.Fatalf("describe: %v, %+v", err, d)
		}
	}
	files := func(where string, n int) func(r *rig) {
		return func(r *rig) {
			t.Helper()
			offline(r)
			if got := len(r.files(where)); got != n {
				t.Fatalf("%d entries in %s, want %d", got, where, n)
			}
		}
	}
	manifest := folder + "/partition-manifest"
	n := len(first.files(folder))

	f("manifest damaged", func(r *rig) {
		r.overwrite(manifest, func(b []byte) []byte { b[len(b)/2] ^= 1; return b })
	}, files(folder, n))
	f("manifest gone", func(r *rig) { r.overwrite(manifest, func([]byte) []byte { return nil }) }, files(folder, n-1))
	f("folder gone", func(r *rig) {
		if err := errors.Join(r.fs.RemoveAll(folder), r.fs.SyncDir("data/topics/t")); err != nil {
			t.Fatal(err)
		}
	}, offline)

	// Damage inside a segment below the recovery point: the rest is served.
	f("header of zeros", func(r *rig) {
		r.overwrite(folder+"/"+logs[1], func(b []byte) []byte { clear(b[:61]); return b })
		if err := errors.Join(r.fs.Remove("data/clean"), r.fs.SyncDir("data")); err != nil {
			t.Log(err) // the second start finds none
		}
	}, func(r *rig) {
		t.Helper()
		at, corrupt, values := wire.Offset(0), 0, []string{}
		for steps := 0; at < 60; steps++ {
			res := r.read(fetchOf(id, 0, at))[0]
			switch {
			case res.Code == wire.CodeCorrupt:
				if res.CorruptFrom > at || res.CorruptTo <= at {
					t.Fatalf("at %d the damage goes from %d to %d", at, res.CorruptFrom, res.CorruptTo)
				}
				at = res.CorruptTo
				corrupt++
			case res.Code != wire.CodeOK || res.Bytes == 0 || steps > 100:
				t.Fatalf("at %d: %+v", at, res)
			default:
				values = append(values, valuesOf(t, res.Data)...)
				at = res.Next
			}
		}
		if corrupt != 1 || len(values) < 50 || !slices.Equal(values[len(values)-20:], want[40:]) {
			t.Fatalf("%d damaged places, %d of 60 records", corrupt, len(values))
		}
	})
}

// stop2 stops a broker some of whose partitions are offline: not cleanly, which
// is an error, but with everything in its place.
func (r *rig) stop2() {
	r.b.Close()
	r.fs = r.fs.Clone()
}

// TestStartTornTail changes the length field of the last batch after a death:
// the batch is cut, its offset given again, and the rest is served.
func TestStartTornTail(t *testing.T) {
	f := func(length func(size int) uint32) {
		t.Helper()
		r := newRig(t)
		id := r.create("t", 2)
		for _, v := range []string{"a", "b", "torn"} {
			r.write(id, 0, v)
			r.write(id, 1, v)
		}
		r.kill(false)
		last := len(batchOf(t, wire.BuilderOptions{Topic: id}, "torn"))
		r.overwrite(folder+"/00000000000000000000.log", func(b []byte) []byte {
			at := len(b) - last
			n := length(len(b))
			b[at+8], b[at+9], b[at+10], b[at+11] = byte(n), byte(n>>8), byte(n>>16), byte(n>>24)
			return b
		})
		r.start()
		if got := r.readAll(id, 0); !slices.Equal(got, []string{"a", "b"}) {
			t.Fatalf("%q", got)
		}
		if got := r.readAll(id, 1); !slices.Equal(got, []string{"a", "b", "torn"}) {
			t.Fatalf("the other partition: %q", got)
		}
		if at := r.write(id, 0, "c"); at != 2 {
			t.Fatalf("the next record is at %d", at)
		}
		var rec wire.RecoveryResponse
		if err := r.ask(&wire.RecoveryRequest{}, &rec); err != nil || !strings.Contains(strings.Join(rec.Lines, "\n"), "quarantine") {
			t.Fatalf("the report says nothing of the cut: %v %q", err, rec.Lines)
		}
		r.wantEvent(`"kind":"log_truncated","fields":{"topic":"t","part":0,"offset":2,"bytes":`)
	}

	f(func(int) uint32 { return 0xFFFF_FFFF })
	f(func(int) uint32 { return 0 })
	f(func(int) uint32 { return 7 })
	f(func(int) uint32 { return 0x7FFF_FFFF })
	f(func(size int) uint32 { return uint32(size) + 1 })
}

// TestStartShortLog takes the end of a log away while the broker is down. What
// had not been proved durable is gone, and a reader past the end is told so at
// once, with the bounds. What had been is damage: its offsets are never given
// to other records. Nobody waits for what will not come.
func TestStartShortLog(t *testing.T) {
	f := func(proved bool, check func(r *rig, id wire.TopicID, at10 *wire.FetchRequest)) {
		t.Helper()
		r := newRig(t)
		id := r.create("t", 1)
		for i := range 10 {
			r.write(id, 0, fmt.Sprint(i))
		}
		if proved {
			r.pass(2 * time.Second)
		}
		r.kill(false)
		one := len(batchOf(t, wire.BuilderOptions{Topic: id}, "9"))
		r.overwrite(folder+"/00000000000000000000.log", func(b []byte) []byte { return b[:len(b)-3*one] })
		r.start()
		req := fetchOf(id, 0, 10)
		req.MaxWaitMillis = 60_000
		check(r, id, req)
	}

	f(false, func(r *rig, id wire.TopicID, at10 *wire.FetchRequest) {
		if res := r.read(at10)[0]; res.Code != wire.CodeOutOfRange || res.LogStart != 0 || res.End != 7 {
			t.Fatalf("a reader at 10 hears %+v", res)
		}
		if got := r.readAll(id, 0); len(got) != 7 {
			t.Fatalf("%q", got)
		}
	})
	f(true, func(r *rig, id wire.TopicID, at10 *wire.FetchRequest) {
		if res := r.read(fetchOf(id, 0, 7))[0]; res.Code != wire.CodeCorrupt || res.CorruptFrom != 7 || res.CorruptTo != 10 {
			t.Fatalf("a reader at 7 hears %+v", res)
		}
		if at := r.write(id, 0, "new"); at != 10 {
			t.Fatalf("the next record is at %d", at)
		}
		if res := r.read(at10)[0]; res.Code != wire.CodeOK || !slices.Equal(valuesOf(t, res.Data), []string{"new"}) {
			t.Fatalf("a reader at 10 hears %+v", res)
		}
		r.pass(20 * time.Second)
		r.wantEvent(`"kind":"damage_found","fields":{"topic":"t","part":0,"from":7,"to":10}`)
	})
}

// TestStartOrphans checks that what no metadata names is set aside, never
// deleted, and that what a delete names goes.
func TestStartOrphans(t *testing.T) {
	r := newRig(t)
	id := r.create("t", 1)
	r.write(id, 0, "kept")
	r.stop()
	copyDir := func(from, to string) {
		t.Helper()
		if err := r.fs.Mkdir(to); err != nil {
			t.Fatal(err)
		}
		for _, name := range r.files(from) {
			f, err := r.fs.Open(from+"/"+name, storage.Read)
			if err != nil {
				t.Fatal(err)
			}
			n, _ := f.Size()
			b := make([]byte, n)
			f.ReadAt(b, 0)
			f.Close()
			g, err := r.fs.Open(to+"/"+name, storage.CreateNew)
			if err != nil {
				t.Fatal(err)
			}
			g.WriteAt(b, 0)
			g.Close()
		}
	}
	copyDir(folder, "data/topics/stranger/partition-0000") // its manifest names another place
	copyDir(folder, "data/topics/t/partition-0005")        // likewise, and no such partition exists
	r.start()
	if got := r.readAll(id, 0); !slices.Equal(got, []string{"kept"}) {
		t.Fatalf("%q", got)
	}
	orphans := r.files("data/orphans")
	if len(orphans) != 2 {
		t.Fatalf("orphans: %v", orphans)
	}
	for _, o := range orphans {
		if !slices.Contains(r.files("data/orphans/"+o), "00000000000000000000.log") {
			t.Fatalf("%s holds %v", o, r.files("data/orphans/"+o))
		}
	}
	r.pass(time.Minute)
	if got := r.files("data/orphans"); !slices.Equal(got, orphans) {
		t.Fatalf("orphans after a while: %v", got)
	}

	// The process dies between the commit of a delete and the move of its files.
	r.begin(&wire.DeleteTopicRequest{ID: id}, new(wire.DeleteTopicResponse))
	for r.b.Image().Topic("t") != nil {
		r.b.Step(Step{Kind: StepCoord})
	}
	r.kill(true)
	r.start()
	if got := r.files("data/topics"); len(got) != 0 {
		t.Fatalf("topics left: %v", got)
	}
	if got := r.files("data/orphans"); !slices.Equal(got, orphans) {
		t.Fatalf("orphans: %v", got)
	}
	r.pass(time.Minute)
	if got := r.files("data/deleted"); len(got) != 0 {
		t.Fatalf("deleted is left: %v", got)
	}
}

// TestStartWithoutMetadata checks that a directory of partitions whose metadata
// is gone is refused, and stays as it is.
func TestStartWithoutMetadata(t *testing.T) {
	f := func(dirs []string, lose func(r *rig), want string) {
		t.Helper()
		r, id := newDisks(t, dirs...)
		r.stop()
		whole := r.fs.Clone()
		lose(r)
		err := r.tryStart()
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Fatalf("started: %v, want %q", err, want)
		}
		if err := r.tryStart(); err == nil {
			t.Fatal("the second try started")
		}
		found := 0
		for _, d := range dirs {
			if es, err := r.fs.ReadDir(d + "/topics/t"); err == nil {
				found += len(es)
			}
			if es, err := r.fs.ReadDir(d + "/orphans"); err == nil && len(es) > 0 {
				t.Fatalf("%s/orphans holds %v", d, es)
			}
		}
		if found == 0 {
			t.Fatal("no partition is left")
		}
		r.fs = whole // put back
		r.start()
		for p := range int32(4) {
			if got := r.readAll(id, p); !slices.Equal(got, []string{"v"}) {
				t.Fatalf("partition %d: %q", p, got)
			}
		}
	}
	remove := func(name string) func(*rig) {
		return func(r *rig) {
			if err := errors.Join(r.fs.RemoveAll(name), r.fs.SyncDir("a")); err != nil && name != "a" {
				t.Fatal(err)
			}
		}
	}

	f([]string{"a"}, remove("a/metadata"), "metadata")
	f([]string{"a", "b"}, remove("a/metadata"), "metadata")
	f([]string{"a", "b"}, remove("a"), "b")
	f([]string{"a"}, func(r *rig) {
		r.overwrite("a/metadata/00000000000000000000.log", func(b []byte) []byte { clear(b[10:200]); return b })
	}, "metadata")
}

// TestStartTwice checks that one directory serves one process, one node and
// one cluster.
func TestStartTwice(t *testing.T) {
	r := newRig(t)
	mine := r.b
	if err := r.tryStart(); !errors.Is(err, storage.ErrLocked) {
		t.Fatalf("a second process: %v", err)
	}
	r.b = mine
	r.stop()
	r.config.Node = 2
	if err := r.tryStart(); !errors.Is(err, storage.ErrIdentity) {
		t.Fatalf("another node: %v", err)
	}
	r.config.Node = 1
	r.start()
	r.stop()
}

// TestStartDiskFull starts on a disk with nothing free, after each way to end.
func TestStartDiskFull(t *testing.T) {
	for _, end := range []string{"stop", "kill", "power"} {
		r := newRig(t)
		id := r.create("t", 3, wire.Setting{Key: "flush", Value: "sync"})
		for p := range int32(3) {
			r.write(id, p, "v")
		}
		r.pass(3 * time.Second)
		if end == "stop" {
			r.stop()
		} else {
			r.kill(end == "power")
		}
		total, free, err := r.fs.Space("data")
		if err != nil {
			t.Fatal(err)
		}
		r.fs.SetCapacity(total - free)
		r.fs.Fail(storage.OpWrite+":partition-0000/leader-epoch-checkpoint", 1, syscall.ENOSPC) // where the rest has left room
		r.start()
		for p := range int32(3) {
			if got := r.readAll(id, p); !slices.Equal(got, []string{"v"}) {
				t.Fatalf("%s: partition %d: %q", end, p, got)
			}
		}
		if end == "power" {
			if res := r.read(fetchOf(id, 0, 0))[0]; res.Epoch != 1 {
				t.Fatalf("the epoch is %d after a power cut", res.Epoch)
			}
		}
		r.delete(id)
		r.pass(time.Minute)
		r.stop()
		r.fs.SetCapacity(0)
		r.start()
		r.create("t", 1)
	}
}

// TestStartSyncFails fails each fsync of a start in turn: either the start ends
// with an error, for the metadata's directory, or what cannot be trusted is
// offline; never is there an answer that forgets the failure.
func TestStartSyncFails(t *testing.T) {
	first, id, want := filled(t)
	first.kill(true)
	failures := 0
	for nth := 1; ; nth++ {
		r := &rig{t: t, fs: first.fs.Clone(), now: first.now, boot: 1, ids: 1000, config: first.config}
		r.fs.ResetCounts()
		r.fs.Fail(storage.OpSync, nth, syscall.EIO)
		err := r.tryStart()
		if err == nil && r.fs.Count(storage.OpSync) < nth {
			break // the start needs no more of them
		}
		var exit interface{ ExitCode() int }
		if err == nil || !errors.As(coded(err), &exit) || exit.ExitCode() != exitIO {
			t.Fatalf("fsync %d failed: %v", nth, err)
		}
		failures++
		r.kill(true)
		r.start()
		if got := r.readAll(id, 0); len(got) > len(want) || !slices.Equal(got, want[:len(got)]) {
			t.Fatalf("fsync %d failed: %d records later", nth, len(got))
		}
	}
	if failures < 5 {
		t.Fatalf("%d fsyncs in a start", failures)
	}
}

// TestMetadataFails checks that a broker whose metadata can no longer be made
// durable says that it must end, and answers what waits.
func TestMetadataFails(t *testing.T) {
	r := newRig(t)
	r.create("t", 1)
	r.fs.Fail(storage.OpSync, 1, syscall.EIO)
	p := r.begin(&wire.CreateTopicRequest{Name: "u", Partitions: 1}, new(wire.CreateTopicResponse))
	r.settle()
	if p.answers != 1 || p.err == nil {
		t.Fatalf("%d answers, %v", p.answers, p.err)
	}
	err := r.b.Fatal()
	var exit interface{ ExitCode() int }
	if !errors.Is(err, coord.ErrFailed) || !errors.As(coded(err), &exit) || exit.ExitCode() != exitIO {
		t.Fatalf("the broker goes on: %v", err)
	}
}

// TestStartEpochs expects a new leader epoch after every end but a clean stop:
// a process that dies between a failed fsync and the note of it leaves pages
// that the cache shows and the disk has not, and looks like any other.
func TestStartEpochs(t *testing.T) {
	f := func(end func(r *rig), more wire.Epoch) {
		t.Helper()
		r := newRig(t)
		id := r.create("t", 1)
		r.write(id, 0, "a")
		r.settle()
		before := r.read(fetchOf(id, 0, 0))[0].Epoch
		end(r)
		r.start()
		if got := r.read(fetchOf(id, 0, 0))[0].Epoch; got != before+more {
			t.Fatalf("epoch %d, %d before", got, before)
		}
	}

	f(func(r *rig) { r.stop() }, 0)
	f(func(r *rig) { r.kill(false) }, 1)
	f(func(r *rig) { r.kill(true) }, 1)
	f(func(r *rig) { r.kill(false); r.start(); r.kill(false) }, 2)
}
