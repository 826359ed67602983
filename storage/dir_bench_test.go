package storage

import (
	"testing"

	"github.com/teralog/teralog/wire"
)

// filledDir is a directory of n empty partitions that was stopped in order.
func filledDir(b *testing.B, fs FS, path string, n int) {
	b.Helper()
	d, err := OpenDir(fs, path, testDir("boot"))
	if err != nil {
		b.Fatal(err)
	}
	var ends []CleanEnd
	for i := range n {
		l, err := d.Create("orders", wire.PartitionID{Topic: 5000, Partition: int32(i)}, Options{}, dirNow)
		if err != nil {
			b.Fatal(err)
		}
		end, err := l.Close()
		if err != nil {
			b.Fatal(err)
		}
		ends = append(ends, end)
	}
	if err := d.Close(ends); err != nil {
		b.Fatal(err)
	}
}

// BenchmarkStart opens a directory of 1,000 empty partitions and all their logs
// after a clean stop.
func BenchmarkStart(b *testing.B) {
	fs, path := OS(), b.TempDir()+"/data"
	const n = 1000
	filledDir(b, fs, path, n)
	for b.Loop() {
		d, err := OpenDir(fs, path, testDir("boot"))
		if err != nil {
			b.Fatal(err)
		}
		var ends []CleanEnd
		for _, p := range d.Partitions() {
			l, err := d.Open(p.Topic, p.ID, Options{}, dirNow)
			if err != nil {
				b.Fatal(err)
			}
			end, err := l.Close()
			if err != nil {
				b.Fatal(err)
			}
			ends = append(ends, end)
		}
		if err := d.Close(ends); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Microseconds())/float64(b.N)/n, "µs/partition")
}

// BenchmarkSavePoints changes one recovery point of 10,000.
func BenchmarkSavePoints(b *testing.B) {
	d, err := OpenDir(OS(), b.TempDir()+"/data", testDir("boot"))
	if err != nil {
		b.Fatal(err)
	}
	defer d.Abandon()
	const n = 10_000
	for i := range int32(n) {
		p := somePoint(5000, i)
		d.paths[p.ID], d.points[p.ID] = "", p
	}
	p := somePoint(5000, 7)
	for b.Loop() {
		p.Offset++
		if err := d.SavePoints([]Point{p}); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(n*pointSize, "B/file")
}

// BenchmarkMemFS appends, syncs and reads back small records on a MemFS, as a
// simulation does.
func BenchmarkMemFS(b *testing.B) {
	m := NewMemFS(1)
	f, err := m.Open("f", Create)
	if err != nil {
		b.Fatal(err)
	}
	record := make([]byte, 200)
	at := int64(0)
	for b.Loop() {
		if at > 1<<20 {
			at = 0
		}
		f.WriteAt(record, at)
		f.Sync()
		f.ReadAt(record, at)
		at += int64(len(record))
	}
}
