package mem

import (
	"strings"
	"sync"
	"testing"
)

// mustPanic calls f and expects a BUG panic whose text contains want.
func mustPanic(t *testing.T, want string, f func()) {
	t.Helper()
	defer func() {
		t.Helper()
		s, _ := recover().(string)
		if !strings.HasPrefix(s, "BUG: ") || !strings.Contains(s, want) {
			t.Fatalf("panic %q; want a BUG with %q", s, want)
		}
	}()
	f()
}

func TestPoolSizes(t *testing.T) {
	p := NewPool("sizes")
	f := func(n, wantCap int) {
		t.Helper()
		b := p.Get(n)
		defer b.Release()
		if len(b.B) != n || cap(b.B) != wantCap {
			t.Fatalf("Get(%d): length %d, capacity %d; want capacity %d", n, len(b.B), cap(b.B), wantCap)
		}
		if s := p.Stats(); s.Live != 1 || s.LiveBytes != int64(wantCap) {
			t.Fatalf("Get(%d): %+v", n, s)
		}
	}

	f(0, 64)
	f(1, 64)
	f(64, 64)
	f(65, 128)
	f(128, 128)
	f(129, 256)
	f(96, 128)
	f(4096, 4096)
	f(4097, 8192)
	f(1<<20, 1<<20)
	f(1<<20+96, 2<<20)
	f(16<<20, 16<<20)
	f(MaxBuf, 64<<20)

	mustPanic(t, "has 0 to 67108864", func() { p.Get(MaxBuf + 1) })
	mustPanic(t, "-1 bytes", func() { p.Get(-1) })
}

// TestPoolReuse follows one piece of memory through its references.
func TestPoolReuse(t *testing.T) {
	p := NewPool("reuse")
	a := p.Get(100)
	at := &a.B[0]
	if a.Retain() != a {
		t.Fatal("Retain returned another buffer")
	}
	a.Release()
	if s := p.Stats(); s.Live != 1 || s.KeptBytes != 0 {
		t.Fatalf("a reference is left, yet %+v", s)
	}
	a.B = append(a.B[40:], make([]byte, 1000)...) // resliced and moved
	a.Release()
	if s := p.Stats(); s.Live != 0 || s.LiveBytes != 0 || s.KeptBytes != 128 {
		t.Fatalf("all released, yet %+v", s)
	}

	b := p.Get(128)
	if &b.B[0] != at || len(b.B) != 128 || cap(b.B) != 128 {
		t.Fatal("the memory released last was not given out whole")
	}
	c := p.Get(128)
	if &c.B[0] == at {
		t.Fatal("memory given out twice")
	}
	b.Release()
	c.Release()
	if s := p.Stats(); s != (PoolStats{Name: "reuse", KeptBytes: 256, Gets: 3, Misses: 2}) {
		t.Fatalf("%+v", s)
	}
}

func TestBufMisuse(t *testing.T) {
	p := NewPool("misuse")
	b := p.Get(10)
	b.Release()
	mustPanic(t, "after its last release", func() { b.Retain() })
	b = p.Get(10)
	b.Release()
	mustPanic(t, "too often", func() { b.Release() })
}

// TestPoolKeeps releases far more than a class keeps: the rest must not stay,
// but is used again by a burst that follows at once.
func TestPoolKeeps(t *testing.T) {
	p := NewPool("keeps")
	const n, size = 100, 256 << 10 // keeps 16
	burst := func() {
		var bs []*Buf
		for range n {
			bs = append(bs, p.Get(size))
		}
		for _, b := range bs {
			b.Release()
		}
	}

	burst()
	burst()
	if s := p.Stats(); s.KeptBytes != keepBytes || s.Live != 0 || s.Misses != n+n-keepBytes/size {
		t.Fatalf("%+v", s)
	}
}

func TestKeep(t *testing.T) {
	f := func(size, want int) {
		t.Helper()
		if got := keep(classOf(size)); got != want {
			t.Fatalf("keep of %d bytes = %d, want %d", size, got, want)
		}
	}

	f(64, 1024)
	f(4<<10, 1024)
	f(64<<10, 64)
	f(1<<20, 4)
	f(4<<20, 1)
	f(16<<20, 1)
	f(32<<20, 0)
	f(64<<20, 0)

	var all int
	for i := range classes {
		all += keep(i) * sizeOf(i)
	}
	if all > 72<<20 {
		t.Fatalf("a pool keeps up to %d bytes; its comment says 72 MiB", all)
	}
}

func TestPoolAllocations(t *testing.T) {
	if Checked {
		t.Skip("checked builds never use a Buf again")
	}
	p := NewPool("allocations")
	f := func(n int) {
		t.Helper()
		p.Get(n).Release() // warm
		if a := testing.AllocsPerRun(100, func() {
			b := p.Get(n)
			b.Retain().Release()
			b.Release()
		}); a != 0 {
			t.Fatalf("Get(%d) and Release allocate %v times", n, a)
		}
	}

	f(0)
	f(100)
	f(64 << 10)
	f(1 << 20)
	f(16 << 20)
}

// TestPoolShared passes buffers between goroutines: whoever holds a reference
// must find what was written, whatever others get and release meanwhile.
func TestPoolShared(t *testing.T) {
	p := NewPool("shared")
	const rounds = 2000
	ch := make(chan *Buf, 16)
	read := func(b *Buf) {
		for _, c := range b.B {
			if c != b.B[0] {
				t.Errorf("a buffer holds %d and %d", b.B[0], c)
				break
			}
		}
		b.Release()
	}

	var wg, readers sync.WaitGroup
	for g := range 4 {
		wg.Go(func() {
			for i := range rounds {
				b := p.Get(1 + (i*37+g)%500)
				for j := range b.B {
					b.B[j] = byte(i*4 + g)
				}
				ch <- b.Retain()
				read(b)
			}
		})
		readers.Go(func() {
			for b := range ch {
				read(b)
			}
		})
	}
	wg.Wait()
	close(ch)
	readers.Wait()
	if s := p.Stats(); s.Live != 0 || s.Gets != 4*rounds {
		t.Fatalf("%+v", s)
	}
}
