package storage

import (
	"testing"

	"github.com/teralog/teralog/wire"
)

func benchLog(b *testing.B, o Options) *Log {
	b.Helper()
	l, err := createLog(OS(), b.TempDir(), "orders", orders3, o, nil, at(1))
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { l.Close() })
	return l
}

func benchAppend(b *testing.B, size, batches int) {
	l := benchLog(b, Options{SegmentBytes: 256 << 20, RetentionBytes: 512 << 20})
	bs := make([]wire.Batch, batches)
	for i := range bs {
		bs[i] = maker{mark: i}.sized(b, size)
	}
	b.SetBytes(int64(size * batches))
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		if a, err := l.Append(bs, 0, at(int64(i))); err != nil {
			b.Fatal(err)
		} else if a.Rolled { // keep the disk small
			b.StopTimer()
			l.Retain(at(1), a.First)
			p, err := l.Checkpoint(at(1)).Run()
			if err != nil {
				b.Fatal(err)
			}
			l.Checkpointed(p)
			l.Reclaim()
			b.StartTimer()
		}
	}
}

func BenchmarkAppend200B(b *testing.B)     { benchAppend(b, 200, 1) }
func BenchmarkAppend64of200B(b *testing.B) { benchAppend(b, 200, 64) }
func BenchmarkAppend64KiB(b *testing.B)    { benchAppend(b, 64<<10, 1) }
func BenchmarkAppend8of64KiB(b *testing.B) { benchAppend(b, 64<<10, 8) }

// filled is a log of 200,000 batches in segments of 8 MiB.
func filled(b *testing.B) *View {
	l := benchLog(b, Options{SegmentBytes: 8 << 20})
	bs := make([]wire.Batch, 64)
	for i := range bs {
		bs[i] = maker{mark: i}.sized(b, 200)
	}
	for i := range 3200 {
		mustAppend(b, l, int64(i), bs...)
	}
	return l.View()
}

func BenchmarkFindNewest(b *testing.B) {
	v := filled(b)
	b.ReportAllocs()
	for b.Loop() {
		r, err := v.Find(v.End()-10, v.End(), 1<<20)
		if err != nil {
			b.Fatal(err)
		}
		r.Done()
	}
}

func BenchmarkFindOld(b *testing.B) {
	v := filled(b)
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		r, err := v.Find(wire.Offset(i*7919)%(v.End()-1000), v.End(), 1<<20)
		if err != nil {
			b.Fatal(err)
		}
		r.Done()
	}
}

func BenchmarkFindTime(b *testing.B) {
	v := filled(b)
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		if at, _, err := v.FindTime(AppendTime, int64(i*7919)%3200, v.End(), nil); at < 0 || err != nil {
			b.Fatal(at, err)
		}
	}
}
