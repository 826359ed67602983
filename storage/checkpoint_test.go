package storage

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/teralog/teralog/wire"
)

var testFile = smallFile{magic: "TLxx", version: 1, max: 64 << 10}

// everyCrash runs a script on m and shows check each disk that may be left if
// everything stops after any one of its operations: by the death of the process
// (boot "same") or by a power cut, with every subset of what was not synced.
func everyCrash(t *testing.T, m *MemFS, script func() error, check func(what string, d *MemFS, boot string)) {
	t.Helper()
	n := 0
	m.AfterOp(func(op Op) {
		if !op.Changes() {
			return
		}
		n++
		at := fmt.Sprintf("operation %d, %s %s", n, op.Kind, op.Name)
		check(at+": the process died", m.Clone(), "same")
		for what, d := range m.Crashes(300) {
			check(at+": power cut: "+what, d, "other")
		}
	})
	err := script()
	m.AfterOp(nil)
	if err != nil {
		t.Fatal(err)
	}
	if n == 0 {
		t.Fatal("the script changed nothing")
	}
}

// everyFailure runs a script on copies of a disk, with every changing operation
// failing in turn, and shows check what it left and returned.
func everyFailure(t *testing.T, m *MemFS, err error, script func(m *MemFS) error, check func(what string, d *MemFS, got error)) {
	t.Helper()
	for nth := 1; ; nth++ {
		d := m.Clone()
		seen, what := 0, ""
		d.BeforeOp(func(op Op) error {
			if !op.Changes() {
				return nil
			}
			if seen++; seen != nth {
				return nil
			}
			what = fmt.Sprintf("operation %d, %s %s, fails", nth, op.Kind, op.Name)
			return err
		})
		got := script(d)
		d.BeforeOp(nil)
		if what == "" {
			if nth == 1 {
				t.Fatal("the script changed nothing")
			}
			return
		}
		check(what, d, got)
	}
}

func TestSmallFileIsReplacedWhole(t *testing.T) {
	long, short := []byte(strings.Repeat("old", 2000)), []byte("new")
	for _, to := range [][2][]byte{{nil, short}, {long, short}, {short, long}, {long, long[:len(long)-1]}} {
		m := NewMemFS(1)
		m.Mkdir("d")
		m.SyncDir("/")
		old := "absent"
		if to[0] != nil {
			old = string(to[0])
			if err := testFile.write(m, "d/f", to[0]); err != nil {
				t.Fatal(err)
			}
		}
		read := func(d *MemFS) string {
			b, err := testFile.read(d, "d/f")
			if notExist(err) {
				return "absent"
			}
			if err != nil {
				return err.Error()
			}
			return string(b)
		}
		either := func(what string, d *MemFS) {
			t.Helper()
			if got := read(d); got != old && got != string(to[1]) {
				t.Fatalf("%s: %.60q is neither old nor new", what, got)
			}
			if err := testFile.write(d, "d/f", []byte("next")); err != nil || read(d.Crash(CrashNone)) != "next" {
				t.Fatalf("%s: it cannot be written again: %v", what, err)
			}
		}
		everyFailure(t, m, syscall.EIO, func(d *MemFS) error { return testFile.write(d, "d/f", to[1]) },
			func(what string, d *MemFS, err error) {
				if err == nil {
					t.Fatalf("%s: no error", what)
				}
				if got := read(d); got != old && !errors.Is(err, ErrSync) {
					t.Fatalf("%s: %v, yet the file is %.60q", what, err, got)
				}
				either(what, d)
			})
		everyCrash(t, m, func() error { return testFile.write(m, "d/f", to[1]) },
			func(what string, d *MemFS, _ string) { either(what, d) })
		for what, d := range m.Crashes(100) {
			if got := read(d); got != string(to[1]) {
				t.Fatalf("after the write: %s: %.60q", what, got)
			}
		}
	}
}

func TestSmallFileOnAFullDisk(t *testing.T) {
	m := NewMemFS(1)
	if err := testFile.write(m, "f", []byte("old")); err != nil {
		t.Fatal(err)
	}
	m.SetCapacity(2 * pageSize)
	if err := testFile.write(m, "f", make([]byte, 2*pageSize)); !isDiskFull(err) {
		t.Fatalf("write to a full disk: %v", err)
	}
	if b, err := testFile.read(m, "f"); string(b) != "old" {
		t.Fatalf("the old content: %q, %v", b, err)
	}
	if _, free, _ := m.Space("/"); free != pageSize {
		t.Fatalf("the temporary keeps blocks: %d bytes free", free)
	}
}

func TestSmallFileDecode(t *testing.T) {
	b := testFile.encode([]byte("body"))
	if got, err := testFile.decode(b); string(got) != "body" || err != nil {
		t.Fatalf("decode: %q, %v", got, err)
	}
	f := func(b []byte, want error) {
		t.Helper()
		if got, err := testFile.decode(b); !errors.Is(err, want) || got != nil {
			t.Fatalf("decode(%x) = %q, %v; want %v", b, got, err, want)
		}
	}
	for n := range b {
		f(b[:n], wire.ErrCorrupt) // cut at every byte
	}
	for i := range 8 * len(b) {
		flipped := slices.Clone(b)
		flipped[i/8] ^= 1 << (i % 8)
		f(flipped, wire.ErrCorrupt) // every bit
	}
	f(append(slices.Clone(b), 0), wire.ErrCorrupt)
	f(make([]byte, len(b)), wire.ErrCorrupt)
	f(smallFile{magic: "TLyy", version: 1}.encode([]byte("body")), wire.ErrCorrupt)
	f(smallFile{magic: "TLxx", version: 2}.encode([]byte("body")), ErrNewer)

	m := NewMemFS(1)
	small := smallFile{magic: "TLxx", version: 1, max: 100}
	if err := small.write(m, "f", make([]byte, 85)); err == nil {
		t.Fatal("a file above its limit was written")
	}
	durable(t, m, "f", string(testFile.encode(make([]byte, 85))))
	if _, err := small.read(m, "f"); !errors.Is(err, wire.ErrCorrupt) {
		t.Fatalf("a file above its limit: %v", err)
	}
	if _, err := small.read(m, "g"); !errors.Is(err, fs.ErrNotExist) {
		t.Fatalf("an absent file: %v", err)
	}
	m.FailReads("f", 0, 1, syscall.EIO)
	if _, err := testFile.read(m, "f"); !errors.Is(err, syscall.EIO) || errors.Is(err, wire.ErrCorrupt) {
		t.Fatalf("an unreadable file: %v", err)
	}
}

func TestRemoveTemps(t *testing.T) {
	m := NewMemFS(1)
	m.Mkdir("d/sub.tmp")
	for _, name := range []string{"d/f", "d/f.tmp", "d/g.1.tmp"} {
		mustOpen(t, m, name).Close()
	}
	es, _ := m.ReadDir("d")
	if err := removeTemps(m, "d", es); err != nil {
		t.Fatal(err)
	}
	es, _ = m.ReadDir("d")
	if len(es) != 2 || es[0].Name != "f" || es[1].Name != "sub.tmp" {
		t.Fatalf("left: %v", es)
	}
}

func TestManifest(t *testing.T) {
	f := func(m manifest, ok bool) {
		t.Helper()
		got, err := decodeManifest(m.encode())
		if ok != (err == nil) || ok && got != m {
			t.Fatalf("decode(encode(%+v)) = %+v, %v", m, got, err)
		}
	}
	id := wire.PartitionID{Topic: 5000, Partition: 3}
	f(manifest{"orders", id, 1_700_000_000_000}, true)
	f(manifest{"__metadata", wire.PartitionID{Topic: wire.MetadataTopic}, 0}, true)
	f(manifest{"", id, 0}, false)
	f(manifest{"../x", id, 0}, false)
	f(manifest{"orders", wire.PartitionID{Topic: 0}, 0}, false)
	f(manifest{"orders", wire.PartitionID{Topic: 5000, Partition: -1}, 0}, false)

	b := manifest{"orders", id, 1}.encode()
	for n := range b {
		if _, err := decodeManifest(b[:n]); !errors.Is(err, wire.ErrCorrupt) {
			t.Fatalf("manifest of %d bytes: %v", n, err)
		}
	}
	if _, err := decodeManifest(append(b, 0)); !errors.Is(err, wire.ErrCorrupt) {
		t.Fatalf("manifest with a byte too many: %v", err)
	}
}

func somePoint(topic wire.TopicID, partition int32) Point {
	n := int64(topic) + int64(partition)
	return Point{ID: wire.PartitionID{Topic: topic, Partition: partition}, Start: 1, Offset: wire.Offset(n), SegmentBase: 2,
		Position: 3, Committed: 4, GreatestTime: -5, AppendTime: 6, IndexCount: 7, TimeCount: 8, IndexCRC: 9, TimeCRC: 10, Snapshot: -1}
}

func TestPoints(t *testing.T) {
	points := map[wire.PartitionID]Point{}
	for _, p := range []Point{somePoint(2000, 0), somePoint(1000, 7), somePoint(1000, 0), somePoint(1<<62, 0)} {
		points[p.ID] = p
	}
	b := encodePoints(points)
	if len(b) != len(points)*pointSize {
		t.Fatalf("%d points take %d bytes", len(points), len(b))
	}
	got, err := decodePoints(b)
	if err != nil || !maps.Equal(got, points) {
		t.Fatalf("decode: %v, %v", got, err)
	}
	if string(encodePoints(got)) != string(b) {
		t.Fatal("the same points gave other bytes")
	}
	f := func(what string, change func(p *Point)) {
		t.Helper()
		p := somePoint(1000, 0)
		change(&p)
		if _, err := decodePoints(p.append(nil)); !errors.Is(err, wire.ErrCorrupt) {
			t.Fatalf("%s: %v", what, err)
		}
	}
	f("start above the end", func(p *Point) { p.Start = p.Offset + 1 })
	f("start below 0", func(p *Point) { p.Start = -1 })
	f("segment above the end", func(p *Point) { p.SegmentBase = p.Offset + 1 })
	f("position below 0", func(p *Point) { p.Position = -1 })
	f("committed below 0", func(p *Point) { p.Committed = -1 })
	f("snapshot above the end", func(p *Point) { p.Snapshot = p.Offset + 1 })
	f("topic 0", func(p *Point) { p.ID.Topic = 0 })

	twice := somePoint(1000, 0).append(somePoint(1000, 0).append(nil))
	if _, err := decodePoints(twice); !errors.Is(err, wire.ErrCorrupt) {
		t.Fatalf("a partition twice: %v", err)
	}
	for n := range pointSize - 1 {
		if _, err := decodePoints(b[:n+1]); !errors.Is(err, wire.ErrCorrupt) {
			t.Fatalf("points of %d bytes: %v", n+1, err)
		}
	}
}

func TestCleanStop(t *testing.T) {
	c := cleanStop{start: 9, ends: map[wire.PartitionID]CleanEnd{}}
	for i := range int32(3) {
		p := somePoint(1000, i)
		c.ends[p.ID] = CleanEnd{Point: p, Position: int64(i) - 1, HeaderCRC: uint32(i)}
	}
	got, err := decodeCleanStop(c.encode())
	if err != nil || got.start != 9 || !maps.Equal(got.ends, c.ends) {
		t.Fatalf("decode: %+v, %v", got, err)
	}
	b := c.encode()
	for n := range b {
		if n < 8 || (n-8)%endSize != 0 {
			if _, err := decodeCleanStop(b[:n]); !errors.Is(err, wire.ErrCorrupt) {
				t.Fatalf("clean stop of %d bytes: %v", n, err)
			}
		}
	}
}
