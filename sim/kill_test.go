package sim

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/teralog/teralog/broker"
	"github.com/teralog/teralog/storage"
)

// TestMain lets the test binary be the broker that a test starts as a child.
func TestMain(m *testing.M) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	var err error
	switch {
	case len(os.Args) > 1 && os.Args[1] == "serve":
		err = broker.Serve(ctx, os.Args[2:], nil, os.Stdout, os.Stderr)
	case len(os.Args) > 2 && os.Args[1] == "sim":
		err = Run(ctx, os.Args[2:], os.Stdin, os.Stdout, os.Stderr)
	default:
		os.Exit(m.Run())
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		var coded interface{ ExitCode() int }
		if errors.As(err, &coded) {
			os.Exit(coded.ExitCode())
		}
		os.Exit(1)
	}
}

// TestKill is a short run of `teralog sim kill`; a long one is for the command.
func TestKill(t *testing.T) {
	if testing.Short() {
		t.Skip("kills real processes for some seconds")
	}
	var out strings.Builder
	err := Kill(t.Context(), []string{"-rounds", "4", "-dir", t.TempDir()}, nil, &out, os.Stderr)
	if err != nil {
		t.Fatalf("%v\n%s", err, &out)
	}
	if !strings.Contains(out.String(), " acknowledged") {
		t.Fatalf("no report:\n%s", &out)
	}
}

// TestDeath checks which operation of a process is its last.
func TestDeath(t *testing.T) {
	f := func(spec, op, path string, b string, want ...bool) {
		t.Helper()
		d, err := parseDeath(spec)
		if err != nil {
			t.Fatal(err)
		}
		for i, w := range want {
			if got := d.due(op, path, []byte(b)); got != w {
				t.Fatalf("%s: %s of %s number %d: due %v, want %v", spec, op, path, i+1, got, w)
			}
		}
	}

	const partition = "/d/topics/t/partition-0000/"
	f("append@2@amid", "write", partition+"00000000000000000000.log", "x", false, true, false) // only the one
	f("append@1@amid", "write", partition+"00000000000000000000.index", "x", false)
	f("append@1@amid", "write", "/d/metadata/00000000000000000000.log", "x", false)
	f("roll: new segment@1@after", "create", partition+"00000000000000000070.log", "", true)
	f("roll: new segment@1@after", "create", partition+"00000000000000000000.log", "", false) // a topic's first
	f("topic create: first segment@1@after", "create", partition+"00000000000000000000.log", "", true)
	f("topic create: first segment@1@after", "create", partition+"00000000000000000070.log", "", false)
	f("roll: index sealed@1@before", "write", partition+"00000000000000000000.index", "….TLOFFIDX", true)
	f("roll: index sealed@1@before", "write", partition+"00000000000000000000.index", "entries", false)
	f("recovery points renamed@1@before", "rename", "/d/recovery-points", "", true)
	f("topic delete: moved@1@before", "rename", "/d/deleted/1-0", "", true)
	f("metadata vote synced@1@before", "sync", "/d/metadata/vote", "", true)

	for _, bad := range []string{"", "append", "append@0@before", "append@1@then", "nowhere@1@before", "append@x@before"} {
		if _, err := parseDeath(bad); err == nil {
			t.Fatalf("%q was taken", bad)
		}
	}
}

// TestPlaces runs a broker's worth of file names past every place: a place
// whose pattern no file fits would never be met.
func TestPlaces(t *testing.T) {
	const p = "/d/topics/t/partition-0000/"
	names := []string{p + "00000000000000000000.log", p + "00000000000000000008.log", p + "00000000000000000008.index", p + "00000000000000000008.timeindex",
		p + "00000000000000000008.producers", p + "00000000000000000008.producers.tmp", p + "leader-epoch-checkpoint", p + "partition-manifest",
		"/d/recovery-points", "/d/recovery-points.tmp", "/d/running", "/d/clean", "/d/deleted/1-0", "/d/quarantine/t", "/d/metadata/vote", "/d/metadata/7.snapshot", "/d/metadata/7.snapshot.tmp", "/d/metadata/00000000000000000000.log"}
	for _, place := range places {
		fits := false
		for _, n := range names {
			fits = fits || place.path.MatchString(n)
		}
		if !fits {
			t.Errorf("%s: no file fits %v", place.name, place.path)
		}
	}
}

// TestDeadlyFS does all that a broker does, to find the disk unchanged by a
// death that is not due.
func TestDeadlyFS(t *testing.T) {
	d := &death{place: place{op: "none", path: regexp.MustCompile("")}}
	dir, fs := t.TempDir(), deadlyFS{storage.OS(), d}
	f, err := fs.Open(dir+"/a", storage.CreateNew)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteAt([]byte("abc"), 0); err != nil || f.Sync() != nil || f.Close() != nil {
		t.Fatal(err)
	}
	if _, ok := f.(interface{ SysFd() uintptr }); !ok {
		t.Fatal("no descriptor for sendfile")
	}
	if fs.Mkdir(dir+"/b") != nil || fs.Rename(dir+"/a", dir+"/b/c") != nil || fs.SyncDir(dir+"/b") != nil {
		t.Fatal("mkdir, rename, syncdir")
	}
	if e, err := fs.Stat(dir + "/b/c"); err != nil || e.Size != 3 {
		t.Fatalf("%+v, %v", e, err)
	}
	if fs.Remove(dir+"/b/c") != nil || fs.RemoveAll(dir+"/b") != nil {
		t.Fatal("remove")
	}
	if _, err := fs.Open(dir+"/a", storage.ReadWrite); err == nil {
		t.Fatal("a file that is gone was opened")
	}
}
