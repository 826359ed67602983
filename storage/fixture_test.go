package storage

import (
	"bytes"
	"fmt"
	"hash/crc32"
	"io"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/teralog/teralog/mem"
	"github.com/teralog/teralog/wire"
)

var orders3 = wire.PartitionID{Topic: 4242, Partition: 3}

const (
	logDir         = "p"
	testQuarantine = "q"
)

// A maker makes batches for orders3. Zero fields mean: one record, no producer.
type maker struct {
	times    []int64
	value    int // bytes of each value
	codec    wire.Codec
	producer wire.ProducerID
	epoch    int16
	seq      int32
	mark     int // told apart by this
	id       wire.PartitionID
}

func (m maker) batch(t testing.TB) wire.Batch {
	t.Helper()
	if m.times == nil {
		m.times = []int64{1000}
	}
	id := m.id
	if id == (wire.PartitionID{}) {
		id = orders3
	}
	b := wire.NewBuilder(wire.BuilderOptions{
		Topic: id.Topic, Partition: id.Partition, Codec: m.codec,
		Producer: m.producer, ProducerEpoch: m.epoch, BaseSequence: m.seq, MaxBytes: wire.MaxBatchBytes,
	})
	for i, at := range m.times {
		value := append(fmt.Appendf(nil, "%d/%d ", m.mark, i), bytes.Repeat([]byte{'x'}, m.value)...)
		if ok, err := b.Add(at, []byte("k"), value, nil); !ok || err != nil {
			t.Fatalf("add record: %v, %v", ok, err)
		}
	}
	buf, err := b.Build()
	if err != nil {
		t.Fatal(err)
	}
	defer buf.Release()
	return wire.Batch(bytes.Clone(buf.B))
}

// sized makes a batch of n bytes, header included.
func (m maker) sized(t testing.TB, n int) wire.Batch {
	t.Helper()
	m.value = 0
	m.value = max(n-m.batch(t).Len()-8, 0)
	for {
		b := m.batch(t)
		switch {
		case b.Len() == n:
			return b
		case b.Len() > n:
			t.Fatalf("no batch of %d bytes", n)
		}
		m.value++
	}
}

func at(wall int64) mem.Now { return mem.Now{Wall: wall} }

func newTestLog(t testing.TB, fs FS, o Options) *Log {
	t.Helper()
	for _, d := range []string{logDir, testQuarantine} {
		if err := fs.Mkdir(d); err != nil {
			t.Fatal(err)
		}
		if err := fs.SyncDir("."); err != nil {
			t.Fatal(err)
		}
	}
	l, err := createLog(fs, logDir, "orders", orders3, o, nil, at(1))
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func reopen(t testing.TB, fs FS, o Options, p *Point) *Log {
	t.Helper()
	l, err := openLog(fs, logDir, "orders", orders3, o, openState{Point: p, Quarantine: testQuarantine}, at(1))
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func reopenClean(t testing.TB, fs FS, o Options, end CleanEnd) *Log {
	t.Helper()
	l, err := openLog(fs, logDir, "orders", orders3, o, openState{Point: &end.Point, Clean: &end, Quarantine: testQuarantine}, at(1))
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func mustAppend(t testing.TB, l *Log, now int64, bs ...wire.Batch) Appended {
	t.Helper()
	a, err := l.Append(bs, max(l.View().Epoch(), 0), at(now))
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// mustPoint makes a recovery point, as if recovery-points was written.
func mustPoint(t testing.TB, l *Log) Point {
	t.Helper()
	c := l.Checkpoint(at(1))
	if c == nil {
		return l.point
	}
	p, err := c.Run()
	if err != nil {
		t.Fatal(err)
	}
	l.Checkpointed(p)
	return p
}

func closeLog(t testing.TB, l *Log) CleanEnd {
	t.Helper()
	end, err := l.Close()
	if err != nil {
		t.Fatal(err)
	}
	return end
}

// contents reads the batches from offset from up to bound through Find.
func contents(v *View, from, bound wire.Offset, maxBytes int) ([]byte, error) {
	var all []byte
	for from < bound {
		r, err := v.Find(from, bound, maxBytes)
		if err != nil || r.Len == 0 {
			return all, err
		}
		n := len(all)
		all = slices.Grow(all, max(int(r.Len), int(v.Bytes())-n))[:n+int(r.Len)]
		_, err = r.R.ReadAt(all[n:], r.Off)
		r.Done()
		if err != nil && err != io.EOF {
			return all[:n], err
		}
		if r.Next <= from {
			return all, fmt.Errorf("Find(%d) goes on at %d", from, r.Next)
		}
		from = r.Next
	}
	return all, nil
}

// mustContents is contents of all there is, each batch verified and in order.
func mustContents(t testing.TB, v *View) []byte {
	t.Helper()
	all, err := contents(v, v.Start(), v.End(), 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	next := wire.Offset(-1)
	for b, err := range wire.Batches(all) {
		if err == nil {
			err = b.Verify()
		}
		if err != nil {
			t.Fatal(err)
		}
		if next >= 0 && b.BaseOffset() != next {
			t.Fatalf("batch at offset %d, want %d", b.BaseOffset(), next)
		}
		next = b.NextOffset()
	}
	if next >= 0 && next != v.End() {
		t.Fatalf("batches end at %d, the view at %d", next, v.End())
	}
	return all
}

func fileBytes(t testing.TB, fs FS, name string) []byte {
	t.Helper()
	f, err := fs.Open(name, Read)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	n, err := f.Size()
	if err != nil {
		t.Fatal(err)
	}
	b := make([]byte, n)
	if _, err := f.ReadAt(b, 0); err != nil && err != io.EOF {
		t.Fatal(err)
	}
	return b
}

func putFile(t testing.TB, fs FS, name string, b []byte) {
	t.Helper()
	if err := writeSynced(fs, name, Create, b); err != nil {
		t.Fatal(err)
	}
}

func logName(base wire.Offset) string { return segmentName(logDir, base, logSuffix) }

func crcOf(b []byte) uint32 { return crc32.Checksum(b, castagnoli) }

func below(rnd *rand.Rand, n wire.Offset) wire.Offset { return wire.Offset(rnd.Int64N(int64(n))) }
