package storage

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/teralog/teralog/wire"
)

var update = flag.Bool("update", false, "write testdata/log anew; only for a new format version")

const (
	frozenDir  = "../testdata/log/v1"
	frozenDump = "../testdata/log/v1.dump"
)

var frozenOptions = Options{SegmentBytes: 1500, IndexInterval: 300, SnapshotBytes: 1}

// TestFrozen opens a partition that format version 1 wrote: what it held is
// still read, not a byte of a batch changes, and the torn tail is cut.
func TestFrozen(t *testing.T) {
	if *update {
		writeFrozen(t)
	}
	disk := NewMemFS(1)
	es, err := os.ReadDir(frozenDir)
	if err != nil {
		t.Fatal(err)
	}
	disk.Mkdir(logDir)
	disk.SyncDir(".")
	for _, e := range es {
		b, err := os.ReadFile(filepath.Join(frozenDir, e.Name()))
		if err != nil {
			t.Fatal(err)
		}
		putFile(t, disk, logDir+"/"+e.Name(), b)
	}
	disk.SyncDir(logDir)

	var got bytes.Buffer
	if err := Dump(&got, disk, logDir, DumpOptions{Records: true}); err != nil {
		t.Fatal(err)
	}
	want, err := os.ReadFile(frozenDump)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got.Bytes(), want) {
		t.Fatalf("dump differs from %s:\n%s", frozenDump, got.Bytes())
	}

	before := fileBytes(t, disk, logName(0))
	l := reopen(t, disk, frozenOptions, nil)
	if rep := l.Recovery(); rep.Cut == 0 || len(rep.Damaged) > 0 {
		t.Fatalf("%v", rep)
	}
	mustContents(t, l.View())
	if v := l.View(); v.Epoch() != 4 || v.End() != 21 || l.producers.Len() != 1 {
		t.Fatalf("end %d, epoch %d, %d producers", v.End(), v.Epoch(), l.producers.Len())
	}
	if !bytes.Equal(before, fileBytes(t, disk, logName(0))) {
		t.Fatal("recovery changed a sealed segment")
	}
	m, err := readManifest(disk, logDir)
	if err != nil || m.id != orders3 || m.topic != "orders" {
		t.Fatalf("manifest %+v: %v", m, err)
	}
}

// writeFrozen makes a partition with every kind of batch.
func writeFrozen(t *testing.T) {
	disk := NewMemFS(1)
	l := newTestLog(t, disk, frozenOptions)
	if err := writeManifest(disk, logDir, manifest{topic: "orders", id: orders3, created: 1_000_000_000_000}); err != nil {
		t.Fatal(err)
	}
	l.SetEpoch(0)
	now := int64(1_000_000_000_000)
	add := func(b wire.Batch) {
		now += 1000
		if _, _, err := l.producers.Stage(b, l.View().End(), at(now)); err != nil {
			t.Fatal(err)
		}
		mustAppend(t, l, now, b)
		l.producers.Commit()
	}
	kinds := wire.NewBuilder(wire.BuilderOptions{Topic: orders3.Topic, Partition: orders3.Partition})
	kinds.Add(now-5000, nil, nil, nil)
	kinds.Add(now-9000, []byte{}, []byte{}, []wire.Header{{Key: []byte("h"), Value: nil}, {Key: []byte("h"), Value: []byte{}}})
	kinds.Add(now-7000, []byte("k\xff"), []byte("v"), nil)
	buf, err := kinds.Build()
	if err != nil {
		t.Fatal(err)
	}
	add(wire.Batch(buf.B))
	for i, codec := range []wire.Codec{wire.None, wire.Gzip, wire.Snappy, wire.Zstd} {
		add(maker{mark: i, codec: codec, value: 300, times: []int64{now - int64(i)*100_000, now}}.batch(t))
	}
	l.SetEpoch(3)
	for seq := range int32(6) {
		add(maker{mark: 50 + int(seq), producer: 77, epoch: 1, seq: seq, value: 40, times: []int64{now + 500}}.batch(t))
	}
	mustPoint(t, l)
	for _, b := range []wire.Batch{wideBatch(t, 1), emptied(t, 0)} {
		b.Stamp(l.View().End(), 3, now, true)
		if _, err := l.AppendStamped([]wire.Batch{b}); err != nil {
			t.Fatal(err)
		}
	}
	l.SetEpoch(4)
	add(maker{mark: 99, value: 100}.batch(t))
	if end := closeLog(t, l); end.Point.Offset != 21 {
		t.Fatalf("end %d", end.Point.Offset)
	}
	torn := logName(l.active.base)
	putFile(t, disk, torn, append(fileBytes(t, disk, torn), maker{mark: 100, value: 50}.batch(t)[:120]...))
	if err := os.RemoveAll(frozenDir); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(frozenDir, 0o755); err != nil {
		t.Fatal(err)
	}
	es, _ := disk.ReadDir(logDir)
	for _, e := range es {
		if err := os.WriteFile(filepath.Join(frozenDir, e.Name), fileBytes(t, disk, logDir+"/"+e.Name), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	var dump bytes.Buffer
	if err := Dump(&dump, disk, logDir, DumpOptions{Records: true}); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(frozenDump, dump.Bytes(), 0o644); err != nil {
		t.Fatal(err)
	}
}

// TestVerifyPath: a good log has no problem, and each flipped bit is one.
func TestVerifyPath(t *testing.T) {
	fs, l, _ := golden(t, Options{SegmentBytes: 1000, IndexInterval: 200, SnapshotBytes: 1}, 20)
	if err := writeManifest(fs, logDir, manifest{topic: "orders", id: orders3}); err != nil {
		t.Fatal(err)
	}
	b := maker{producer: 4}.batch(t)
	l.producers.Stage(b, l.View().End(), at(100))
	mustAppend(t, l, 100, b)
	l.producers.Commit()
	mustPoint(t, l)
	closeLog(t, l)
	verify := func(disk FS) (int, string) {
		t.Helper()
		var out bytes.Buffer
		n, err := VerifyPath(&out, disk, ".")
		if err != nil {
			t.Fatal(err)
		}
		return n, out.String()
	}
	if n, out := verify(fs); n != 0 || !strings.Contains(out, "end offset 41") {
		t.Fatalf("a good log has %d problems:\n%s", n, out)
	}
	es, _ := fs.ReadDir(logDir)
	for _, e := range es {
		for at := int64(0); at < e.Size; at += 1 + e.Size/40 {
			disk := fs.Clone()
			disk.FlipBit(logDir+"/"+e.Name, at, uint(at))
			if n, out := verify(disk); n == 0 || !strings.Contains(out, "DAMAGED") {
				t.Fatalf("bit flipped at byte %d of %s: %d problems\n%s", at, e.Name, n, out)
			}
		}
	}
}

// TestVerifyAhead: what the metadata log has allocated ahead is no damage, whatever
// follows it is, and of another log zeros are.
func TestVerifyAhead(t *testing.T) {
	f := func(topic wire.TopicID, behind string, want int) {
		t.Helper()
		fs, id := NewMemFS(1), wire.PartitionID{Topic: topic}
		if err := fs.Mkdir(logDir); err != nil {
			t.Fatal(err)
		}
		l, err := createLog(fs, logDir, "log", id, Options{Synced: true, SegmentBytes: aheadParts * 100}, nil, at(1))
		if err != nil {
			t.Fatal(err)
		}
		b := wire.NewBuilder(wire.BuilderOptions{Topic: topic})
		for range 2 {
			b.Add(1, nil, make([]byte, 100), nil)
			buf, err := b.Build()
			if err != nil {
				t.Fatal(err)
			}
			mustAppend(t, l, 1, wire.Batch(buf.B))
		}
		if err := writeManifest(fs, logDir, manifest{topic: "__metadata", id: id}); err != nil {
			t.Fatal(err)
		}
		file, err := fs.Open(logName(0), ReadWrite)
		if err != nil {
			t.Fatal(err)
		}
		if size, _ := file.Size(); size <= l.tail.size {
			t.Fatal("nothing lies ahead")
		}
		if _, err := file.WriteAt([]byte(behind), l.tail.size+50); err != nil {
			t.Fatal(err)
		}
		var said bytes.Buffer
		if n, err := VerifyPath(&said, fs, logDir); n != want || err != nil {
			t.Fatalf("%d problems, %v\n%s", n, err, &said)
		}
	}

	f(wire.MetadataTopic, "", 0)
	f(wire.MetadataTopic, "x", 1)
	f(wire.MetadataTopic+1, "", 1)
}

// TestDumpJSON: one object a line, bytes that are no text in base64.
func TestDumpJSON(t *testing.T) {
	fs, _, _ := golden(t, Options{}, 2)
	var out bytes.Buffer
	if err := Dump(&out, fs, logName(0), DumpOptions{Records: true, JSON: true}); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	if len(lines) != 7 || !strings.Contains(lines[2], `"kind":"record","partition":3,"offset":0,"time":0,"appendTime":1,"leaderEpoch":0,"key":"k","value":"0/0 xxx`) {
		t.Fatalf("%d lines:\n%s", len(lines), out.String())
	}
	if b, err := text("\xff").MarshalJSON(); err != nil || string(b) != `{"base64":"/w=="}` {
		t.Fatalf("%s, %v", b, err)
	}
}

func FuzzDump(f *testing.F) {
	fs, l, bs := golden(f, Options{IndexInterval: 100}, 3)
	closeLog(f, l)
	f.Add([]byte(nil), []byte(nil))
	f.Add(join(bs), fileBytes(f, fs, segmentName(logDir, 0, offsetSuffix)))
	f.Fuzz(func(t *testing.T, file, index []byte) {
		disk := NewMemFS(1)
		disk.Mkdir(logDir)
		putFile(t, disk, logName(0), file)
		putFile(t, disk, segmentName(logDir, 0, offsetSuffix), index)
		var out bytes.Buffer
		if err := Dump(&out, disk, logDir, DumpOptions{Records: true}); err != nil {
			t.Fatal(err)
		}
	})
}
