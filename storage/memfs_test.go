package storage

import (
	"errors"
	"fmt"
	"io/fs"
	"syscall"
	"testing"
)

func mustWrite(t *testing.T, d FS, name, text string, off int64) File {
	t.Helper()
	f, err := d.Open(name, Create)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteAt([]byte(text), off); err != nil {
		t.Fatal(err)
	}
	return f
}

// content returns a file's bytes, "absent" without one.
func content(t *testing.T, d FS, name string) string {
	t.Helper()
	f, err := d.Open(name, Read)
	if errors.Is(err, fs.ErrNotExist) {
		return "absent"
	}
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	n, err := f.Size()
	if err != nil {
		t.Fatal(err)
	}
	b := make([]byte, n)
	if _, err := f.ReadAt(b, 0); err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func TestMemFSDurability(t *testing.T) {
	m := NewMemFS(1)
	f := mustWrite(t, m, "a", "one", 0)

	f.Sync()
	if got := content(t, m.Crash(CrashNone), "a"); got != "absent" {
		t.Fatalf("a synced file whose name was not: %q after a power cut", got)
	}
	m.SyncDir("/")
	f.WriteAt([]byte("two"), 3)
	if got := content(t, m.Crash(CrashNone), "a"); got != "one" {
		t.Fatalf("after a power cut %q, want the synced part", got)
	}
	if got := content(t, m.Clone(), "a"); got != "onetwo" {
		t.Fatalf("after the death of the process %q, want everything", got)
	}
	var all []string
	for _, d := range m.Crashes(100) {
		all = append(all, content(t, d, "a"))
	}
	if got := fmt.Sprintf("%q", all); got != `["one" "one\x00\x00\x00" "one" "onetwo"]` && got != `["one" "one" "one\x00\x00\x00" "onetwo"]` {
		t.Fatalf("outcomes %s", got)
	}
}

func TestMemFSFailedSyncLies(t *testing.T) {
	m := NewMemFS(1)
	f := mustWrite(t, m, "a", "old", 0)
	f.Sync()
	m.SyncDir("/")
	m.Fail(OpSync, 1, syscall.EIO)
	lost := 0
	for range 20 {
		f.WriteAt([]byte("new"), 0)
		m.Fail(OpSync, 1, syscall.EIO)
		if err := f.Sync(); !errors.Is(err, syscall.EIO) {
			t.Fatalf("sync: %v", err)
		}
		if err := f.Sync(); err != nil {
			t.Fatalf("second sync: %v", err)
		}
		if got := content(t, m, "a"); got != "new" {
			t.Fatalf("reads show %q", got)
		}
		if content(t, m.Crash(CrashPages), "a") == "old" {
			lost++
		}
		f.DropCache(0, 0)
		if content(t, m, "a") != content(t, m.Crash(CrashPages), "a") {
			t.Fatal("after the cache was dropped reads show what the disk does not hold")
		}
		f.WriteAt([]byte("old"), 0)
		m.Heal()
		f.Sync()
	}
	if lost == 0 || lost == 20 {
		t.Fatalf("%d of 20 failed syncs lost the page", lost)
	}
}
