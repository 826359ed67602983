package storage

import (
	"errors"
	"slices"
	"syscall"
	"testing"

	"github.com/teralog/teralog/wire"
)

// scrubAll goes through all that is sealed, about n bytes at a time.
func scrubAll(t *testing.T, v *View, n int64) (bytes int64, found []CorruptRange, failed int) {
	t.Helper()
	for at, steps := wire.Offset(0), 0; ; steps++ {
		did, err := v.Scrub(at, n)
		if err != nil {
			failed++
		}
		bytes += did.Bytes
		found = append(found, did.Found...)
		if did.Done {
			return bytes, found, failed
		}
		if did.Next <= at || steps > 100_000 {
			t.Fatalf("scrub from offset %d goes on at %d", at, did.Next)
		}
		at = did.Next
	}
}

// TestScrub goes through a log with a flipped bit, a page that cannot be read
// and a segment that is in memory.
func TestScrub(t *testing.T) {
	const size = 64 << 10 // of a batch
	m, l := coldLog(t)
	v := l.View()
	sealed := v.sealed[0].final.size + v.sealed[1].final.size + v.sealed[2].final.size
	hot, err := m.Open(v.sealed[0].name(logSuffix), Read)
	if err != nil {
		t.Fatal(err)
	}
	defer hot.Close()
	const warm = 100 << 10 // of the first segment is in memory
	if _, err := hot.ReadAt(make([]byte, warm), 1<<20); err != nil {
		t.Fatal(err)
	}
	was := cachedOf(t, m, v.sealed[0])
	for _, n := range []int64{1, 100_000, 1 << 20, 1 << 30} {
		if bytes, found, failed := scrubAll(t, v, n); bytes < sealed || bytes > 2*sealed || len(found)+failed > 0 {
			t.Fatalf("a sound log of %d bytes: %d read, %v damaged, %d errors", sealed, bytes, found, failed)
		}
		if n >= 100_000 {
			if bytes, _, _ := scrubAll(t, v, n); bytes != sealed {
				t.Errorf("%d bytes at a time: read %d of %d", n, bytes, sealed)
			}
		}
	}
	for i, want := range []int64{was, 0, 0} {
		if got := cachedOf(t, m, v.sealed[i]); got != want {
			t.Errorf("segment %d has %d bytes in memory afterwards, had %d", i, got, want)
		}
	}

	hit := v.sealed[1].base + 7
	if err := m.FlipBit(v.sealed[1].name(logSuffix), 7*size+1000, 3); err != nil {
		t.Fatal(err)
	}
	want := []CorruptRange{{hit, hit + 1}}
	if _, found, failed := scrubAll(t, v, 1<<20); !slices.Equal(found, want) || failed > 0 {
		t.Fatalf("found %v, %d errors, want %v", found, failed, want)
	}
	if !slices.Equal(v.Damage(), want) {
		t.Errorf("remembered %v", v.Damage())
	}
	if _, found, _ := scrubAll(t, v, 1<<20); len(found) > 0 {
		t.Errorf("found %v again", found)
	}
	// What lies around it is still served; it itself is not.
	for _, at := range []wire.Offset{hit - 1, hit, hit + 1} {
		r, err := v.Find(at, v.End(), 1)
		var bad *CorruptRange
		if errors.As(err, &bad) != (at == hit) {
			t.Errorf("offset %d: %v", at, err)
		}
		if err == nil {
			if err := r.Check(); err != nil || r.First != at {
				t.Errorf("offset %d: batch at %d, %v", at, r.First, err)
			}
			r.Done()
		}
	}

	if err := m.FailReads(v.sealed[2].name(logSuffix), 9*size, 1, syscall.EIO); err != nil {
		t.Fatal(err)
	}
	bytes, found, failed := scrubAll(t, v, 1<<20)
	if failed < 1 || failed > 4 || // a read is of several batches
		len(found) > 0 || bytes < sealed-12*size {
		t.Errorf("with a page that cannot be read: %d of %d bytes read, found %v, %d errors", bytes, sealed, found, failed)
	}
}

// TestScrubDeleted: segments that went meanwhile are no damage.
func TestScrubDeleted(t *testing.T) {
	_, l := coldLog(t)
	v := l.View()
	if err := l.Trim(v.sealed[2].base); err != nil {
		t.Fatal(err)
	}
	p, err := l.Checkpoint(at(2)).Run()
	if err != nil {
		t.Fatal(err)
	}
	l.Checkpointed(p)
	if _, err := l.Reclaim(); err != nil {
		t.Fatal(err)
	}
	if bytes, found, failed := scrubAll(t, v, 1<<20); bytes != v.sealed[2].final.size || len(found)+failed > 0 {
		t.Errorf("%d bytes, found %v, %d errors", bytes, found, failed)
	}
}
