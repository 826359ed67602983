package coord

import (
	"bytes"
	"hash/crc32"
	"syscall"
	"testing"

	"github.com/teralog/teralog/mem"
	"github.com/teralog/teralog/storage"
	"github.com/teralog/teralog/wire"
)

// putOld writes the metadata of a node as it was before there was Raft: a
// membership of version 1, a no-op a start, commands, votes for itself, and, if
// asked for, a snapshot of version 1.
func putOld(t *testing.T, disk storage.FS, snapshot bool) {
	t.Helper()
	ids := byte(0)
	dir, err := storage.OpenDir(disk, dataDir, storage.DirOptions{
		Node: 7, Boot: "old", Format: true, Reserve: 64 << 10, NewID: func() wire.UUID { ids++; return wire.UUID{0xd, ids} },
	})
	if err != nil {
		t.Fatal(err)
	}
	l, err := dir.Create(metadataName, metadataID, storage.Options{Synced: true}, mem.Now{Wall: 1})
	if err != nil {
		t.Fatal(err)
	}
	d := emptyImage.edit()
	command := func(name string) []byte {
		records, _, err := testEnv().handle(&d.Image, create(name, 2))
		if err != nil {
			t.Fatal(err)
		}
		c := change{records: records}
		if err := d.replayChange(c); err != nil {
			t.Fatal(err)
		}
		return joinEntry(1, appendChange(nil, c))
	}
	b := wire.NewBuilder(wire.BuilderOptions{Topic: wire.MetadataTopic})
	for at, e := range []struct {
		term  wire.Epoch
		key   byte
		value []byte
	}{{1, 2, []byte{1, 1, 7, 0, 0, 0}}, {1, 0, nil}, {1, 1, command("a")}, {2, 0, nil}, {2, 1, command("b")}} {
		if _, err := b.Add(1, []byte{e.key}, e.value, nil); err != nil {
			t.Fatal(err)
		}
		buf, err := b.Build()
		if err != nil {
			t.Fatal(err)
		}
		wire.Batch(buf.B).Stamp(wire.Offset(at), e.term, 1, false)
		if _, err := l.AppendStamped([]wire.Batch{buf.B}); err != nil {
			t.Fatal(err)
		}
		buf.Release()
		if _, err := l.Flush(); err != nil {
			t.Fatal(err)
		}
	}
	slots := append(appendVote(nil, vote{2, 2, 7, dir.ID()}), make([]byte, voteSlot-voteSize)...)
	files := map[string][]byte{"vote": append(slots, appendVote(nil, vote{1, 1, 7, dir.ID()})...)}
	if snapshot {
		d.version = 4
		state := appendState(nil, &d.Image)
		s := append([]byte("TLS\x01"), wire.Append32(wire.Append64(nil, int64(5)), int32(2))...)
		s = append(wire.Append32(append(s, 1, 7, 0, 0, 0), uint32(len(state))), state...)
		files["00000000000000000005.snapshot"] = wire.Append32(s, crc32.Checksum(s, castagnoli))
	}
	for name, b := range files {
		if err := storage.ReplaceFile(disk, dataDir+"/"+metadataName+"/"+name, b); err != nil {
			t.Fatal(err)
		}
	}
	if err := dir.Abandon(); err != nil {
		t.Fatal(err)
	}
}

// TestOldFormat starts on what a node left that knew no Raft, again and again.
func TestOldFormat(t *testing.T) {
	for _, snapshot := range []bool{false, true} {
		disk := storage.NewMemFS(1)
		putOld(t, disk, snapshot)
		disk = disk.Crash(storage.CrashNone)
		for n, names := range [][]string{{"a", "b"}, {"a", "b", "c0"}, {"a", "b", "c0", "c1"}} {
			node := mustStart(t, disk, "new", Options{SnapshotEvery: 4})
			if node.term() != wire.Epoch(3+n) {
				t.Fatalf("start %d is in term %d", n, node.term())
			}
			var got []string
			for _, topic := range node.coord.Image().Topics() {
				got = append(got, topic.Name)
			}
			if len(got) != len(names) || got[len(got)-1] != names[len(names)-1] {
				t.Fatalf("start %d: topics %q, want %q", n, got, names)
			}
			if _, err := node.do(create("c"+string(rune('0'+n)), 1)); err != nil {
				t.Fatal(err)
			}
			if err := node.stop(); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// TestOneSync expects a change of the metadata to cost one fsync.
func TestOneSync(t *testing.T) {
	disk := storage.NewMemFS(1)
	n := mustStart(t, disk, "one", Options{})
	disk.ResetCounts()
	for at := range 10 {
		if _, err := n.do(create("t"+string(rune('0'+at)), 100)); err != nil {
			t.Fatal(err)
		}
	}
	if syncs, dirs := disk.Count(storage.OpSync), disk.Count(storage.OpSyncDir); syncs != 10 || dirs != 0 {
		t.Fatalf("10 topics took %d fsyncs, and %d of folders", syncs, dirs)
	}
}

// TestHeld has the disk become full between the look for room and the append:
// the change waits, and is made once there is room again.
func TestHeld(t *testing.T) {
	disk := storage.NewMemFS(1)
	n := mustStart(t, disk, "one", Options{})
	disk.Fail(storage.OpWrite+":.log", 0, syscall.ENOSPC)
	var o outcome
	n.coord.Submit(create("a", 1), o.done)
	for range 3 {
		if _, err := n.coord.Turn(mem.Now{}); err != nil {
			t.Fatal(err)
		}
	}
	if o.told != 0 {
		t.Fatalf("answered on a full disk: %+v", o)
	}
	disk.Heal()
	turn(t, n.coord)
	if o.told != 1 || o.err != nil || n.coord.Image().Topic("a") == nil {
		t.Fatalf("with room again: %+v", o)
	}
	want := state(n.coord.Image())
	again, err := start(disk.Crash(storage.CrashNone), "two", Options{})
	if err != nil {
		t.Fatal(err)
	}
	i := *again.coord.Image()
	i.version--
	if !bytes.Equal(state(&i), want) {
		t.Fatal("it was not durable")
	}
}
