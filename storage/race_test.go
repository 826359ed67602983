package storage

import (
	"bytes"
	"encoding/binary"
	"io"
	"os"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/teralog/teralog/wire"
)

// TestReadersBesideTheOwner reads, looks up times, flushes and makes recovery
// points while the owner appends, rolls, trims and unlinks.
func TestReadersBesideTheOwner(t *testing.T) {
	for _, fs := range []FS{NewMemFS(1), OS()} {
		dir := "p"
		if fs == OS() {
			dir = t.TempDir()
		} else {
			fs.Mkdir(dir)
		}
		l, err := createLog(fs, dir, "orders", orders3, Options{SegmentBytes: 20_000, IndexInterval: 200, RetentionBytes: 100_000}, newOpenFiles(4), at(1))
		if err != nil {
			t.Fatal(err)
		}
		beside(t, l)
		if _, err := l.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

func beside(t *testing.T, l *Log) {
	var wait sync.WaitGroup
	var stop atomic.Bool
	points := make(chan *Checkpoint, 1)
	made := make(chan Point, 1)
	wait.Go(func() {
		for c := range points {
			p, err := c.Run()
			if err != nil {
				t.Error(err)
			}
			made <- p
		}
	})
	wait.Go(func() {
		for !stop.Load() {
			if end, err := l.Flush(); err != nil || end > l.View().End() {
				t.Errorf("flushed to %d: %v", end, err)
				return
			}
		}
	})
	for reader := range 2 {
		wait.Go(func() {
			for at := wire.Offset(0); !stop.Load(); {
				at = readOn(t, l.View(), at, reader)
			}
		})
	}
	pointed := false
	for i := range 3000 {
		mustAppend(t, l, int64(i), maker{mark: i, value: 60, times: []int64{int64(i)}}.batch(t))
		select {
		case p := <-made:
			l.Checkpointed(p)
			pointed = false
			if _, err := l.Reclaim(); err != nil {
				t.Error(err)
			}
		default:
		}
		if i%50 == 0 {
			l.Retain(at(int64(i)), l.Flushed())
		}
		if c := (*Checkpoint)(nil); !pointed && i%20 == 0 {
			if c = l.Checkpoint(at(1)); c != nil {
				points <- c
				pointed = true
			}
		}
	}
	stop.Store(true)
	close(points)
	wait.Wait()
}

// readOn reads a range from at and looks up the time of its first batch.
func readOn(t *testing.T, v *View, at wire.Offset, reader int) wire.Offset {
	if at < v.Start() || reader == 1 && at+20 < v.End() {
		at = v.Start()
	}
	r, err := v.Find(at, v.End(), 3000)
	if wire.CodeOf(err) == wire.CodeOutOfRange {
		return at // deleted since the view was made
	}
	if err != nil {
		t.Error(err)
		return at
	}
	if r.Len == 0 {
		return at
	}
	defer r.Done()
	p := make([]byte, r.Len)
	if _, err := r.R.ReadAt(p, r.Off); err != nil && err != io.EOF {
		t.Error(err)
	}
	for b, err := range wire.Batches(p) {
		if err == nil {
			err = b.Verify()
		}
		if err != nil {
			t.Error(err)
			return at
		}
	}
	if got, _, err := v.FindTime(EventTime, int64(r.First), v.End(), nil); err == nil && got != r.First {
		t.Errorf("time %d at offset %d", r.First, got)
	}
	return r.Next
}

// TestResident asks about a range whose pages were dropped.
func TestResident(t *testing.T) {
	l, err := createLog(OS(), t.TempDir(), "orders", orders3, Options{}, nil, at(1))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	mustAppend(t, l, 1, maker{value: 1 << 20, codec: wire.None}.batch(t))
	l.Flush()
	r, err := l.View().Find(0, 1, 1)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Done()
	if !r.Sound() {
		t.Fatal("just written, not in memory")
	}
	if err := l.file.DropCache(0, 0); err != nil {
		t.Fatal(err)
	}
	if r.Sound() {
		t.Skip("this file system keeps pages that it was told to drop")
	}
	if err := r.Check(); err != nil {
		t.Fatal(err)
	}
}

// TestMappedFileFaults cuts a mapped index file off behind the reader's back: the
// look-up meets a fault, the index is made anew from the log, the answer stands.
func TestMappedFileFaults(t *testing.T) {
	dir := t.TempDir()
	l, err := createLog(OS(), dir, "orders", orders3, Options{SegmentBytes: 1 << 20, IndexInterval: 16}, nil, at(1))
	if err != nil {
		t.Fatal(err)
	}
	for i := range 12_000 {
		mustAppend(t, l, int64(i), maker{mark: i}.batch(t))
	}
	defer l.Close()
	v := l.View()
	find := func(want wire.Offset) {
		t.Helper()
		r, err := v.Find(want, v.End(), 1)
		if err != nil || r.First != want {
			t.Fatalf("Find(%d) = %d, %v", want, r.First, err)
		}
		r.Done()
		if at, _, err := v.FindTime(AppendTime, int64(want), v.End(), nil); at != want || err != nil {
			t.Fatalf("FindTime(%d) = %d, %v", want, at, err)
		}
	}
	find(4000)
	for _, s := range append(v.sealed[:1:1], v.active) {
		for _, x := range indexFiles {
			if err := os.Truncate(s.name(x.suffix), 0); err != nil {
				t.Fatal(err)
			}
		}
	}
	find(2)
	find(4000)
	find(11_000)
	if v.sealed[0].rebuilt.Load() == nil {
		t.Fatal("no fault was met")
	}
}

// TestIndexLies: entries that point to the middle of a batch, or to another one,
// are found out by the header there.
func TestIndexLies(t *testing.T) {
	fs := NewMemFS(1)
	o := Options{SegmentBytes: 4000, IndexInterval: 200}
	l := newTestLog(t, fs, o)
	var bs []wire.Batch
	for i := range 40 {
		bs = append(bs, maker{mark: i, value: 50}.batch(t))
		mustAppend(t, l, 1, bs[i])
	}
	end := closeLog(t, l)
	f := func(how string, spoil func(entry []byte)) {
		t.Helper()
		disk := fs.Clone()
		name := segmentName(logDir, 0, offsetSuffix)
		b := fileBytes(t, disk, name)
		for i := 0; i+offsetEntry+trailerSize <= len(b); i += offsetEntry {
			spoil(b[i:])
		}
		n := len(b) - trailerSize // a trailer that vouches for the lie
		binary.LittleEndian.PutUint32(b[n+72:], crcOf(b[:n]))
		binary.LittleEndian.PutUint32(b[n+76:], crcOf(b[n:n+76]))
		putFile(t, disk, name, b)
		v := reopenClean(t, disk, o, end).View()
		got, err := contents(v, 0, v.End(), 1)
		if err != nil || !bytes.Equal(got, join(bs)) {
			t.Fatalf("%s: %d bytes, want %d: %v", how, len(got), len(join(bs)), err)
		}
	}
	f("as it is", func([]byte) {})
	f("positions shifted", func(e []byte) { e[4]++ })
	f("offsets shifted", func(e []byte) { e[0]++ })
	f("all the first", func(e []byte) { clear(e[:8]) })
	f("far behind", func(e []byte) { binary.LittleEndian.PutUint32(e[4:], 1<<30) })
}
