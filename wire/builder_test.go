package wire

import (
	"bytes"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/teralog/teralog/mem"
)

func TestBuilder(t *testing.T) {
	pool := mem.NewPool("test")
	for _, codec := range []Codec{None, Gzip, Snappy, Zstd} {
		b := NewBuilder(BuilderOptions{Topic: 4711, Partition: 3, Codec: codec, Pool: pool, Producer: 9, ProducerEpoch: 1, BaseSequence: 5})
		for round := range 3 {
			if b.Len() != 0 || b.Count() != 0 {
				t.Fatalf("not empty: %d bytes, %d records", b.Len(), b.Count())
			}
			for i := range 100 {
				if ok, err := b.Add(int64(1000-i), []byte("key"), bytes.Repeat([]byte("v"), i), nil); !ok || err != nil {
					t.Fatal(ok, err)
				}
			}
			length := b.Len()
			buf, err := b.Build()
			if err != nil {
				t.Fatal(err)
			}
			p := Batch(buf.B)
			if err := p.VerifyProduce(BatchLimits{}); err != nil {
				t.Fatal(err)
			}
			id, epoch, seq := p.Producer()
			if p.Topic() != 4711 || p.Partition() != 3 || p.Count() != 100 || p.LastOffsetDelta() != 99 ||
				p.BaseTime() != 1000 || p.MaxTime() != 1000 || id != 9 || epoch != 1 || seq != 5 ||
				p.BaseOffset() != 0 || p.AppendTime() != 0 || p.LeaderEpoch() != NoEpoch ||
				p.Codec() != codec || HeaderSize+p.RecordsLength() != length || len(p) > length {
				t.Errorf("round %d: %s, %d of %d bytes, header %x", round, p.Codec(), len(p), length, p[:HeaderSize])
			}
			rs, err := collect(new(Decoder), p)
			if err != nil || len(rs) != 100 || rs[99].Time != 901 || len(rs[99].Value) != 99 {
				t.Errorf("%d records, %v", len(rs), err)
			}
			buf.Release()
		}
	}
	if s := pool.Stats(); s.Live != 0 {
		t.Errorf("%d buffers are out", s.Live)
	}
}

// TestBuilderPlain has records without headers encoded by the short way and by the
// one for all: the same bytes, and the same end where there is no room.
func TestBuilderPlain(t *testing.T) {
	data := make([]byte, 1<<14)
	for i := range data {
		data[i] = byte(i)
	}
	f := func(most, keyLen, valueLen int, time int64) {
		t.Helper()
		short, long := NewBuilder(BuilderOptions{Topic: 1024, MaxBytes: most}), NewBuilder(BuilderOptions{Topic: 1024, MaxBytes: most})
		part := func(n int) []byte {
			if n < 0 {
				return nil
			}
			return data[:n]
		}
		for n := 0; ; n++ {
			at := time * int64(n%3)
			a, errA := short.Add(at, part(keyLen), part(valueLen), nil)
			b, errB := long.addAny(at, part(keyLen), part(valueLen), nil)
			if a != b || CodeOf(errA) != CodeOf(errB) || short.Len() != long.Len() {
				t.Fatalf("up to %d B, key %d, value %d, record %d: %t, %v, %d B; want %t, %v, %d B",
					most, keyLen, valueLen, n, a, errA, short.Len(), b, errB, long.Len())
			}
			if !a || n == 300 {
				break
			}
		}
		if short.Count() == 0 {
			return
		}
		a, _ := short.Build()
		b, _ := long.Build()
		if !bytes.Equal(a.B, b.B) {
			t.Fatalf("up to %d B, key %d, value %d: the bytes differ", most, keyLen, valueLen)
		}
		if err := Batch(a.B).Verify(); err != nil {
			t.Fatal(err)
		}
		a.Release()
		b.Release()
	}

	for n := -1; n < 140; n++ {
		f(1<<16, -1, n, 0)
		f(1<<16, n, 3, 1)
		f(HeaderSize+300+n, -1, 50, 0) // each end of the room
		f(HeaderSize+300+n, 0, n, math.MinInt64)
	}
	for n := maxPlain - 70; n < maxPlain+70; n++ {
		f(1<<16, -1, n, math.MaxInt64)
		f(1<<16, n-100, 100, -1)
		f(HeaderSize+2*n, -1, n, 1<<40)
	}
}

// TestBuilderLimits: a record is taken if the batch stays within MaxBytes, to
// the byte, and Add tells a full batch from a record that fits into none.
func TestBuilderLimits(t *testing.T) {
	f := func(maxBytes int, sizes ...int) (b *Builder, ok bool, err error) {
		t.Helper()
		b = NewBuilder(BuilderOptions{Topic: 1024, MaxBytes: maxBytes})
		for _, n := range sizes {
			before := b.Len()
			if ok, err = b.Add(0, nil, make([]byte, n), nil); !ok && b.Len() != before {
				t.Errorf("refused, but grew from %d to %d", before, b.Len())
			}
		}
		return b, ok, err
	}

	b, ok, err := f(HeaderSize+7, 0)
	if !ok || err != nil || b.Len() != HeaderSize+7 {
		t.Errorf("the smallest record: %v, %v, %d bytes", ok, err, b.Len())
	}
	if _, ok, err = f(HeaderSize+6, 0); ok || CodeOf(err) != CodeTooLarge {
		t.Errorf("no room for any record: %v, %v", ok, err)
	}
	if _, ok, err = f(HeaderSize+14, 0, 0); !ok || err != nil {
		t.Errorf("two that fill it: %v, %v", ok, err)
	}
	b, ok, err = f(HeaderSize+13, 0, 0)
	if ok || err != nil || b.Count() != 1 {
		t.Errorf("full: %v, %v, %d records", ok, err, b.Count())
	}
	if _, ok, err = f(1000, 1000); ok || CodeOf(err) != CodeTooLarge {
		t.Errorf("greater than a batch: %v, %v", ok, err)
	}
	b, _, _ = f(1000, 400, 400, 400)
	if b.Count() != 2 {
		t.Errorf("%d records", b.Count())
	}
	b.Reset()
	if b.Len() != 0 || b.Count() != 0 {
		t.Error("Reset kept records")
	}
	if buf, err := b.Build(); err == nil || buf != nil {
		t.Error("built a batch without records")
	}
}

func TestBuilderHeaderLimits(t *testing.T) {
	f := func(hs []Header, want Code) {
		t.Helper()
		b := NewBuilder(BuilderOptions{Topic: 1024})
		if ok, err := b.Add(0, nil, nil, hs); CodeOf(err) != want || ok != (want == CodeOK) || b.Count() != 0 != ok {
			t.Errorf("%d headers: %v, %v", len(hs), ok, err)
		}
	}
	one := Header{Key: []byte("h")}

	f(slices.Repeat([]Header{one}, MaxHeaders), CodeOK)
	f(slices.Repeat([]Header{one}, MaxHeaders+1), CodeInvalidRequest)
	f(slices.Repeat([]Header{one}, 100_000), CodeInvalidRequest)
	f([]Header{{Value: make([]byte, MaxHeaderBytes)}}, CodeOK)
	f([]Header{{[]byte("h"), make([]byte, MaxHeaderBytes)}}, CodeInvalidRequest)
	f([]Header{{}, {[]byte{}, []byte{}}, {}}, CodeOK)
}

// TestBuilderKeepsWhatCodecsCannotShorten: such a batch goes uncompressed, so
// no batch is ever longer than MaxBytes.
func TestBuilderKeepsWhatCodecsCannotShorten(t *testing.T) {
	for _, codec := range compressing {
		b := NewBuilder(BuilderOptions{Topic: 1024, Codec: codec})
		b.Add(0, nil, []byte("x"), nil)
		length := b.Len()
		buf, err := b.Build()
		if err != nil {
			t.Fatal(err)
		}
		if p := Batch(buf.B); p.Codec() != None || len(p) != length || p.VerifyProduce(BatchLimits{}) != nil {
			t.Errorf("%s: %s, %d bytes", codec, p.Codec(), len(p))
		}
		buf.Release()
	}
}

func TestBuilderTimes(t *testing.T) {
	f := func(times ...int64) {
		t.Helper()
		b := NewBuilder(BuilderOptions{Topic: 1024})
		for _, ms := range times {
			if ok, err := b.Add(ms, nil, nil, nil); !ok || err != nil {
				t.Fatal(ok, err)
			}
		}
		buf, _ := b.Build()
		defer buf.Release()
		p := Batch(buf.B)
		rs, err := collect(new(Decoder), p)
		if err != nil || p.BaseTime() != times[0] || p.MaxTime() != slices.Max(times) || p.VerifyProduce(BatchLimits{}) != nil {
			t.Errorf("%v: %v, base %d, max %d", times, err, p.BaseTime(), p.MaxTime())
		}
		for i, r := range rs {
			if r.Time != times[i] {
				t.Errorf("time %d came back as %d", times[i], r.Time)
			}
		}
	}

	f(5)
	f(-5, 5, 0)
	f(math.MinInt64, math.MaxInt64)
	f(math.MaxInt64, math.MinInt64, 0)
}

func TestSetProducer(t *testing.T) {
	b := sample(t, BuilderOptions{})
	b.SetProducer(9, 1, 77)
	if id, epoch, seq := b.Producer(); id != 9 || epoch != 1 || seq != 77 || b.VerifyProduce(BatchLimits{}) != nil {
		t.Errorf("%d, %d, %d: %v", id, epoch, seq, b.VerifyProduce(BatchLimits{}))
	}
	b.SetProducer(NoProducer, -1, -1)
	if !bytes.Equal(b, sample(t, BuilderOptions{})) {
		t.Error("taken back, but different")
	}
}

func TestVarintLen(t *testing.T) {
	for shift := range 64 {
		for _, v := range []int64{1 << shift, -1 << shift, 1<<shift - 1} {
			if got := len(AppendVarint(nil, v)); got != varintLen(v) {
				t.Errorf("varintLen(%d) = %d, want %d", v, varintLen(v), got)
			}
		}
	}
}

// TestWarmAllocs: once warm, building, verifying, stamping and reading batches
// takes nothing from the heap, whatever the codec.
func TestWarmAllocs(t *testing.T) {
	if mem.Checked || raceEnabled {
		t.Skip("watched buffers are made anew each time")
	}
	key, value, hs := []byte("order-17"), []byte(strings.Repeat("x", 100)), []Header{{[]byte("tenantId"), []byte("t1")}}
	for _, codec := range []Codec{None, Gzip, Snappy, Zstd} {
		b := NewBuilder(BuilderOptions{Topic: 1024, Codec: codec, Pool: mem.NewPool("test")})
		d := Decoder{Pool: mem.NewPool("test")}
		n := 0
		count := func(*Record) error { n++; return nil }
		round := func() {
			for i := range 100 {
				if ok, err := b.Add(int64(i), key, value, hs); !ok || err != nil {
					t.Fatal(ok, err)
				}
			}
			buf, err := b.Build()
			if err != nil {
				t.Fatal(err)
			}
			p := Batch(buf.B)
			if err := p.VerifyProduce(BatchLimits{}); err != nil {
				t.Fatal(err)
			}
			p.Stamp(7, 1, 9, false)
			for part, err := range Batches(p) {
				if err != nil || part.Verify() != nil || part.Records(&d, count) != nil {
					t.Fatal("the stamped batch does not read back")
				}
			}
			buf.Release()
		}
		if got := testing.AllocsPerRun(20, round); got > 0 {
			t.Errorf("%s: %v allocations a batch", codec, got)
		}
		if n == 0 {
			t.Error("no records")
		}
	}
}
