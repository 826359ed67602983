package sim

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/teralog/teralog/storage"
)

// A frailRig is a frail disk over a folder, again and again.
type frailRig struct {
	t      *testing.T
	folder string
	rnd    *rand.Rand
	d      *frailDisk
	fs     frailFS
}

func newFrailRig(t *testing.T, seed uint64) *frailRig {
	r := &frailRig{t: t, folder: t.TempDir(), rnd: rand.New(rand.NewPCG(seed, 0))}
	r.restart(false)
	return r
}

// restart does what the next process does; nothing is closed before.
func (r *frailRig) restart(power bool) {
	r.t.Helper()
	d, err := newFrailDisk(r.folder, r.folder+".journal", power, r.rnd)
	if err != nil {
		r.t.Fatal(err)
	}
	r.d, r.fs = d, frailFS{storage.OS(), d}
}

func (r *frailRig) name(n string) string { return filepath.Join(r.folder, n) }

func (r *frailRig) open(n string) storage.File {
	r.t.Helper()
	f, err := r.fs.Open(r.name(n), storage.Create)
	if err != nil {
		r.t.Fatal(err)
	}
	return f
}

func (r *frailRig) content(n string) []byte {
	r.t.Helper()
	b, err := os.ReadFile(r.name(n))
	if err != nil {
		r.t.Fatal(err)
	}
	return b
}

func must(t *testing.T, errs ...error) {
	t.Helper()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}

func put(f storage.File, text string, off int64) error {
	_, err := f.WriteAt([]byte(text), off)
	return err
}

// TestFrailPowerCut does random things to two files, kills the process and cuts the
// power, many times over, and wants all that was synced back, and of the rest
// nothing but what was written.
func TestFrailPowerCut(t *testing.T) {
	back := 0 // bytes that were overwritten
	for seed := range uint64(30) {
		r := newFrailRig(t, seed)
		var safe, last []byte // what is durable; what was written since, over and behind it
		lost := 0
		f := r.open("a")
		must(t, r.fs.SyncDir(r.folder))
		for range 200 {
			switch r.rnd.IntN(8) {
			default: // an append
				b := bytes.Repeat([]byte{byte('a' + r.rnd.IntN(26))}, 1+r.rnd.IntN(200))
				must(t, put(f, string(b), int64(len(last))))
				last = append(last, b...)
			case 0: // over what is there
				if len(last) > 0 {
					at := r.rnd.IntN(len(last))
					must(t, put(f, "X", int64(at)))
					last[at] = 'X'
				}
			case 1:
				must(t, f.Sync())
				safe = bytes.Clone(last)
			case 2: // cut, durable at once
				n := r.rnd.IntN(len(last) + 1)
				must(t, f.Truncate(int64(n)))
				last, safe = last[:n], safe[:min(n, len(safe))]
			case 3:
				power := r.rnd.IntN(2) == 0
				r.restart(power)
				got := r.content("a")
				if !power && !bytes.Equal(got, last) {
					t.Fatalf("seed %d: a kill changed %q to %q", seed, last, got)
				}
				if len(got) < len(safe) || len(got) > len(last) {
					t.Fatalf("seed %d: %d bytes are left, of %d durable and %d written", seed, len(got), len(safe), len(last))
				}
				for i, c := range got {
					if c != last[i] && !(i < len(safe) && c == safe[i]) && !(i >= len(safe) && c == 0) {
						t.Fatalf("seed %d: byte %d is %q after a power cut, was %q", seed, i, c, last[i])
					}
					if c != last[i] {
						lost++
						if i < len(safe) {
							back++
						}
					}
				}
				lost += len(last) - len(got)
				if power {
					safe, last = bytes.Clone(got), bytes.Clone(got)
				}
				f = r.open("a")
			}
		}
		if lost == 0 {
			t.Fatalf("seed %d: no power cut took anything", seed)
		}
	}
	if back == 0 {
		t.Fatal("no byte that was overwritten came back")
	}
}

// TestFrailNames loses a file whose name was never synced, or its bytes.
func TestFrailNames(t *testing.T) {
	gone := 0
	for seed := range uint64(20) {
		r := newFrailRig(t, seed)
		f := r.open("a")
		must(t, put(f, "text", 0), f.Sync())
		r.restart(false) // a kill keeps it, and is no excuse later
		if string(r.content("a")) != "text" {
			t.Fatal("a kill lost a file")
		}
		r.restart(true)
		if _, err := os.Stat(r.name("a")); err != nil {
			gone++
		}
	}
	if gone == 0 || gone == 20 {
		t.Fatalf("%d of 20 names without a synced directory are gone", gone)
	}

	r := newFrailRig(t, 1)
	for n := range 10 { // moved and synced: what is under the new name stays
		f := r.open("tmp")
		text := fmt.Sprint("generation ", n)
		must(t, f.Truncate(0), put(f, text, 0), f.Sync(), f.Close(), r.fs.Rename(r.name("tmp"), r.name("b")), r.fs.SyncDir(r.folder))
		r.restart(true)
		if got := string(r.content("b")); got != text {
			t.Fatalf("%q, want %q", got, text)
		}
	}
}

// TestFrailSync has an fsync fail: later ones succeed and make nothing durable,
// and the next process finds what the disk had.
func TestFrailSync(t *testing.T) {
	r := newFrailRig(t, 3)
	f, other := r.open("topics-a"), r.open("b")
	must(t, put(f, "durable", 0), f.Sync(), r.fs.SyncDir(r.folder))
	must(t, r.d.obey(strings.NewReader("fail topics\n")))
	must(t, put(f, " and not", 7), put(other, "cached", 0), other.Sync())
	if err := f.Sync(); !errors.Is(err, syscall.EIO) {
		t.Fatalf("the fsync: %v", err)
	}
	must(t, f.Sync(), put(f, ", nor this", 15), f.Sync())
	if got := string(r.content("topics-a")); got != "durable and not, nor this" {
		t.Fatalf("before the process ends the page cache shows %q", got)
	}
	r.restart(false)
	if got := string(r.content("topics-a")); !strings.HasPrefix(got, "durable") || got == "durable and not, nor this" {
		t.Fatalf("the disk has %q", got)
	}
	if got := string(r.content("b")); got != "cached" {
		t.Fatalf("another file has %q", got)
	}
}

// TestFrailSpace fills the folder: a write stops where the space does, in place
// all goes on, and what is freed can be taken again.
func TestFrailSpace(t *testing.T) {
	r := newFrailRig(t, 1)
	full := func(err error) {
		t.Helper()
		if !errors.Is(err, syscall.ENOSPC) {
			t.Fatalf("%v, want no space", err)
		}
	}
	f := r.open("a")
	big := strings.Repeat("x", 256<<10)
	must(t, put(f, big, 0), put(r.open("ballast"), big, 0))
	bound := fmt.Sprintf("full %d hidden\n", heldBelow(r.folder)+64<<10)
	_, before, err := r.fs.Space(r.folder)
	must(t, err, r.d.obey(strings.NewReader(bound)))
	n, err := f.WriteAt([]byte(big), int64(len(big)))
	if full(err); n == 0 || n > 64<<10 {
		t.Fatalf("%d bytes were written, there was room for %d", n, 64<<10)
	}
	if _, err := os.Stat(r.folder + ".journal" + metSuffix); err != nil {
		t.Fatal("nobody is told that the disk was full")
	}
	must(t, put(f, "in place", 0))
	_, err = r.fs.Open(r.name("new"), storage.CreateNew)
	full(err)
	full(r.fs.Mkdir(r.name("folder")))
	full(f.Allocate(0, 1<<20))
	if _, free, err := r.fs.Space(r.folder); err != nil || free < before-1<<20 {
		t.Fatalf("a hidden bound shows: %d free of %d, %v", free, before, err)
	}
	must(t, r.d.obey(strings.NewReader(strings.Replace(bound, "hidden", "seen", 1))))
	if _, free, err := r.fs.Space(r.folder); err != nil || free > 4096 {
		t.Fatalf("%d free, %v", free, err)
	}
	must(t, r.fs.Remove(r.name("ballast")), put(f, big[:128<<10], int64(len(big)+n)))
	must(t, r.d.obey(strings.NewReader("room\n")), f.Allocate(0, 1<<20), put(f, big, 1<<20))
}

// TestFrailObey refuses what the disk does not know.
func TestFrailObey(t *testing.T) {
	r := newFrailRig(t, 1)
	must(t, r.d.obey(strings.NewReader("stall\ngo\nfail x\nfull 1 seen\nroom\n")))
	for _, bad := range []string{"burn", "full", "full 1", "full x seen", "full 1 maybe"} {
		if r.d.obey(strings.NewReader(bad+"\n")) == nil {
			t.Fatalf("%q was obeyed", bad)
		}
	}
}

// TestFrailSyncOrder has two fsyncs of a file run at once, and the one that covers
// less end last.
func TestFrailSyncOrder(t *testing.T) {
	j := &journal{fates: map[string]*fate{}}
	for _, n := range []line{{Do: made, Name: "a"}, {Do: synced, Name: "a", N: 10}, {Do: synced, Name: "a", N: 5}} {
		j.apply(n)
	}
	if got := j.fates["a"].synced; got != 10 {
		t.Fatalf("%d bytes are durable, want 10", got)
	}
	if j.apply(line{Do: cut, Name: "a", N: 7}); j.fates["a"].synced != 7 {
		t.Fatalf("%d bytes of 7 are durable", j.fates["a"].synced)
	}
}
