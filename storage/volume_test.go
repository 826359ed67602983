package storage

import (
	"errors"
	"slices"
	"syscall"
	"testing"

	"github.com/teralog/teralog/wire"
)

// manyLogs makes a directory with three logs, each of more than one segment,
// nothing of which is durable yet but the names of the folders.
func manyLogs(t *testing.T, m *MemFS) (*Dir, []*Log) {
	t.Helper()
	d := mustOpenDir(t, m, "boot")
	var logs []*Log
	for i := range 3 {
		id := wire.PartitionID{Topic: 5000, Partition: int32(i)}
		l, err := d.Create("orders", id, Options{SegmentBytes: 8000}, dirNow)
		if err != nil {
			t.Fatal(err)
		}
		for n := range 5 + i {
			mustAppend(t, l, int64(n), maker{id: id, mark: n}.sized(t, 3000))
		}
		logs = append(logs, l)
	}
	return d, logs
}

// wantDurable expects the ends of the logs to be what a power cut leaves.
func wantDurable(t *testing.T, m *MemFS, logs []*Log, ends []wire.Offset) {
	t.Helper()
	left := m.Crash(CrashNone)
	d, err := OpenDir(left, "/data", testDir("next"))
	if err != nil {
		t.Fatal(err)
	}
	defer d.Abandon()
	for i, l := range logs {
		if l.Flushed() != ends[i] {
			t.Errorf("log %d: flushed to %d, want %d", i, l.Flushed(), ends[i])
		}
		again, err := d.Open("orders", l.home.id, Options{SegmentBytes: 8000}, dirNow)
		if err != nil {
			t.Fatal(err)
		}
		if got := again.View().End(); got != ends[i] {
			t.Errorf("log %d: a power cut leaves %d records, want %d", i, got, ends[i])
		}
	}
}

// TestFlushLogs makes many logs durable by one sync, that of the file system.
func TestFlushLogs(t *testing.T) {
	m := NewMemFS(1)
	d, logs := manyLogs(t, m)
	m.ResetCounts()
	ends, ok := d.FlushLogs(logs)
	if want := []wire.Offset{5, 6, 7}; !ok || !slices.Equal(ends, want) {
		t.Fatalf("%v, %v; want %v", ends, ok, want)
	}
	if n, files, names := m.Count(OpSyncVolume), m.Count(OpSync), m.Count(OpSyncDir); n != 1 || files+names != 0 {
		t.Fatalf("%d syncs of the file system, %d of files, %d of directories", n, files, names)
	}
	wantDurable(t, m, logs, ends)

	// A flush of one log has nothing left to do; what comes after is not durable.
	if to, err := logs[2].Flush(); to != 7 || err != nil || m.Count(OpSync)+m.Count(OpSyncDir) != 0 {
		t.Fatalf("flushed again to %d, %v, with %d syncs", to, err, m.Count(OpSync)+m.Count(OpSyncDir))
	}
	mustAppend(t, logs[0], 9, maker{id: logs[0].home.id, mark: 9}.sized(t, 3000))
	wantDurable(t, m, logs, ends)
}

// TestFlushLogsFails: an error of the file system is no log's, and proves nothing,
// not later either, and not for logs that were not asked about: which log it hit
// only its own flush says.
func TestFlushLogsFails(t *testing.T) {
	m := NewMemFS(1)
	d, logs := manyLogs(t, m)
	if _, err := logs[1].Flush(); err != nil {
		t.Fatal(err)
	}
	m.Fail(OpSyncVolume, 1, syscall.EIO)
	for i, some := range [][]*Log{logs[:2], logs, logs[2:]} {
		if ends, ok := d.FlushLogs(some); ok {
			t.Fatalf("call %d: flushed to %v", i, ends)
		}
	}
	if logs[0].Flushed() != 0 || logs[1].Flushed() != 6 || logs[2].Flushed() != 0 {
		t.Fatalf("flushed to %d, %d, %d", logs[0].Flushed(), logs[1].Flushed(), logs[2].Flushed())
	}
	if to, err := logs[1].Flush(); to != 6 || err != nil {
		t.Fatalf("the log that was durable before: %d, %v", to, err)
	}
	for _, l := range []*Log{logs[0], logs[2]} {
		if to, err := l.Flush(); !errors.Is(err, ErrSync) || to != 0 {
			t.Fatalf("a log that lost pages: %d, %v", to, err)
		}
	}
}

// TestFlushLogsAfterAFailure: a log whose flush failed stays where it was, and a
// directory that failed is flushed no more.
func TestFlushLogsAfterAFailure(t *testing.T) {
	m := NewMemFS(1)
	d, logs := manyLogs(t, m)
	m.Fail(OpSync, 1, syscall.EIO)
	if _, err := logs[0].Flush(); !errors.Is(err, ErrSync) {
		t.Fatal(err)
	}
	ends, ok := d.FlushLogs(logs)
	if want := []wire.Offset{-1, 6, 7}; !ok || !slices.Equal(ends, want) || logs[0].Flushed() != 0 {
		t.Fatalf("%v, %v; want %v; flushed to %d", ends, ok, want, logs[0].Flushed())
	}
	d.Fail(syscall.EIO)
	if ends, ok := d.FlushLogs(logs); ok {
		t.Fatalf("a directory that failed: %v", ends)
	}
}

// TestVolume has the machine's disk make a directory durable, as far as a process
// can tell.
func TestVolume(t *testing.T) {
	v, err := OS().Volume(t.TempDir())
	if errors.Is(err, errors.ErrUnsupported) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(v.Sync(), v.Close()); err != nil {
		t.Fatal(err)
	}
	if v.Sync() == nil {
		t.Fatal("synced by a descriptor that is closed")
	}
	if _, err := OS().Volume(t.TempDir() + "/none"); !notExist(err) {
		t.Fatal(err)
	}
	if kernelFrom(1000, 0) || !kernelFrom(2, 6) {
		t.Fatal("the kernel's version")
	}
}
