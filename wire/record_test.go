package wire

import (
	"errors"
	"io"
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/teralog/teralog/mem"
)

// raw builds a stored batch of count records over the given section, with
// right CRCs and times from base time 1000.
func raw(count, lastDelta int, section string) Batch {
	b := make(Batch, HeaderSize, HeaderSize+len(section))
	b = append(b, section...)
	builder := &Builder{o: BuilderOptions{Topic: 1024}, count: count, baseTime: 1000, maxTime: 1000}
	builder.crc = crcOf(b[HeaderSize:])
	builder.writeHeader(b, None, len(section))
	put32(atLastOffsetDelta, uint32(lastDelta))(b)
	b.Stamp(500, 1, 2000, false)
	return b
}

// varints joins zigzag varints and strings.
func varints(parts ...any) string {
	var b []byte
	for _, p := range parts {
		switch p := p.(type) {
		case int:
			b = AppendVarint(b, int64(p))
		case string:
			b = append(b, p...)
		}
	}
	return string(b)
}

// rec returns a record: the length, attributes 0, and what follows.
func rec(parts ...any) string {
	body := varints(append([]any{"\x00"}, parts...)...)
	return varints(len(body), body)
}

func TestRecords(t *testing.T) {
	f := func(b Batch, want ...Record) {
		t.Helper()
		got, err := collect(new(Decoder), b)
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%+v, %v; want %+v", got, err, want)
		}
	}
	nul := rec(0, 0, -1, -1, 0)

	f(raw(1, 0, nul), Record{Offset: 500, Time: 1000})
	f(raw(1, 0, rec(0, 0, 0, 0, 0)), Record{Offset: 500, Time: 1000, Key: []byte{}, Value: []byte{}})
	f(raw(1, 0, rec(-1000, 0, 1, "k", 2, "vv", 0)), Record{Offset: 500, Time: 0, Key: []byte("k"), Value: []byte("vv")})
	f(raw(1, 9, rec(0, 7, -1, -1, 0)), Record{Offset: 507, Time: 1000}) // compaction left one of ten
	f(raw(2, 1, nul+rec(3, 1, -1, -1, 0)), Record{Offset: 500, Time: 1000}, Record{Offset: 501, Time: 1003})
	f(raw(2, 5, rec(0, 2, -1, -1, 0)+rec(0, 4, -1, -1, 0)), Record{Offset: 502, Time: 1000}, Record{Offset: 504, Time: 1000})
	f(raw(1, 0, rec(math.MaxInt64, 0, -1, -1, 0)), Record{Offset: 500, Time: math.MinInt64 + 999}) // wraps as the sum does

	// header order, repeats, null and empty
	f(raw(1, 0, rec(0, 0, -1, -1, 3, 1, "a", -1, 1, "a", 0, 0, 1, "x")), Record{Offset: 500, Time: 1000, Headers: []Header{
		{[]byte("a"), nil}, {[]byte("a"), []byte{}}, {[]byte{}, []byte("x")},
	}})

	// non-minimal varints are allowed: here the length 7 and the null key in two bytes
	f(raw(1, 0, "\x8e\x00\x00\x00\x00\x81\x00\x01\x00"), Record{Offset: 500, Time: 1000})

	// append time
	b := raw(2, 1, nul+rec(3, 1, -1, -1, 0))
	b.Stamp(500, 1, 2000, true)
	f(b, Record{Offset: 500, Time: 2000}, Record{Offset: 501, Time: 2000})

	// an empty batch
	f(edit(raw(0, 3, ""), func(b Batch) { b.SetProducer(NoProducer, -1, -1) }))
}

func TestDamagedRecords(t *testing.T) {
	f := func(b Batch, reason string) {
		t.Helper()
		got, err := collect(new(Decoder), b)
		if !errors.Is(err, ErrCorrupt) || !strings.Contains(err.Error(), reason) {
			t.Errorf("%d records, %v; want %q", len(got), err, reason)
		}
	}
	nul := rec(0, 0, -1, -1, 0)

	f(raw(1, 0, ""), "record 1 of 1")
	f(raw(2, 1, nul), "record 2 of 2")                                                                   // one is missing
	f(raw(1, 0, nul+nul), "left over")                                                                   // one too many
	f(raw(1, 0, nul+"x"), "left over")                                                                   //
	f(raw(1, 0, "\x0e\x01\x00\x00\x01\x01\x00\x00"), "attributes 1")                                     //
	f(raw(1, 0, varints(8, "\x00", 0, 0, -1, -1, 0, 0, 0)), "record 1 of 1: corrupt: 2 bytes left over") // in the record
	f(raw(1, 0, varints(5, "\x00", 0, 0, -1, -1, 0)), "wanted")                                          // the length cuts the record
	f(raw(1, 0, varints(-1)), "length -1")                                                               // length below 0
	f(raw(1, 0, varints(-2)), "length -2")                                                               //
	f(raw(1, 0, varints(1<<30, "\x00")), "length 1073741824")                                            //
	f(raw(1, 0, varints(math.MaxInt32+1)), "32 bits")                                                    //
	f(raw(1, 0, rec(0, 1, -1, -1, 0)), "offset delta 1")                                                 // beyond the last
	f(raw(1, 9, rec(0, -1, -1, -1, 0)), "offset delta -1")                                               //
	f(raw(2, 9, nul+nul), "offset delta 0 after 0")                                                      // not ascending
	f(raw(2, 9, rec(0, 5, -1, -1, 0)+rec(0, 4, -1, -1, 0)), "offset delta 4 after 5")
	f(raw(1, 0, rec(0, 0, -2, -1, 0)), "length -2")
	f(raw(1, 0, rec(0, 0, 9, "k", -1, 0)), "length 9")
	f(raw(1, 0, rec(0, 0, -1, math.MaxInt32, 0)), "length 2147483647")
	f(raw(1, 0, rec(0, 0, -1, -1, -1)), "count -1")
	f(raw(1, 0, rec(0, 0, -1, -1, math.MaxInt32)), "count 2147483647")
	f(raw(1, 0, rec(0, 0, -1, -1, 2, 0, 0)), "count 2")    // two headers take four bytes
	f(raw(1, 0, rec(0, 0, -1, -1, 1, -1, 0)), "length -1") // a header without name
	f(raw(1, 0, rec(0, 0, -1, -1, 1, 3, "a", 0)), "length 3")
}

// TestManyHeaders: readers take what is there, in memory that follows it.
func TestManyHeaders(t *testing.T) {
	f := func(n int, name string) {
		t.Helper()
		var hs strings.Builder
		for range n {
			hs.WriteString(varints(len(name), name, -1))
		}
		b := raw(1, 0, rec(0, 0, -1, -1, n, hs.String()))
		var rs []Record
		err := b.Records(new(Decoder), func(r *Record) error { rs = append(rs, *r); return nil })
		if err != nil || len(rs[0].Headers) != n {
			t.Errorf("%d headers: %d, %v", n, len(rs[0].Headers), err)
		}
	}

	f(0, "")
	f(1, "")
	f(1, strings.Repeat("x", 1<<20))
	f(MaxHeaders, "name")
	f(100_000, "h")

	// a count that the bytes allow, of headers that do not come
	b := raw(1, 0, rec(0, 0, -1, -1, 400_000, strings.Repeat("\x07", 800_000)))
	if size := allocated(func() {
		if _, err := collect(new(Decoder), b); !errors.Is(err, ErrCorrupt) {
			t.Error(err)
		}
	}); size > 2*uint64(len(b))+64<<10 {
		t.Errorf("%d bytes took %d", len(b), size)
	}
}

func TestRecordsStopsAtTheCallersError(t *testing.T) {
	stop := errors.New("enough")
	n := 0
	err := sample(t, BuilderOptions{}).Records(new(Decoder), func(*Record) error { n++; return stop })
	if err != stop || n != 1 {
		t.Errorf("%v after %d records", err, n)
	}
}

func TestDecoderNext(t *testing.T) {
	var d Decoder
	if err := d.Open(sample(t, BuilderOptions{Codec: Zstd})); err != nil {
		t.Fatal(err)
	}
	for i := range 3 {
		if r, err := d.Next(); err != nil || r.Offset != Offset(i) {
			t.Fatalf("record %d: %+v, %v", i, r, err)
		}
	}
	for range 2 {
		if r, err := d.Next(); err != io.EOF || r != nil {
			t.Fatalf("after the last: %+v, %v", r, err)
		}
	}

	// a batch that cannot be opened leaves nothing of the one before
	if err := d.Open(sample(t, BuilderOptions{Codec: Zstd})); err != nil {
		t.Fatal(err)
	}
	if err := d.Open(edit(sample(t, BuilderOptions{Codec: Zstd}), put32(atRecordsLength, 2000))); !errors.Is(err, ErrCorrupt) {
		t.Fatal(err)
	}
	if r, err := d.Next(); err != io.EOF {
		t.Fatalf("%+v, %v", r, err)
	}

	// a fault stays one
	if err := d.Open(raw(2, 1, "xxxxxxxxxxxxxxxx")); err != nil {
		t.Fatal(err)
	}
	for range 4 {
		if _, err := d.Next(); !errors.Is(err, ErrCorrupt) {
			t.Fatal(err)
		}
	}
}

// TestTake: records stay valid as long as the buffer taken is held, while the
// decoder goes on.
func TestTake(t *testing.T) {
	pool := mem.NewPool("test")
	d := Decoder{Pool: pool}
	var kept [][]byte
	keep := func(r *Record) error { kept = append(kept, r.Value); return nil }
	b := sample(t, BuilderOptions{Codec: Gzip})
	if err := b.Records(&d, keep); err != nil {
		t.Fatal(err)
	}
	buf := d.Take()
	for range 3 {
		if err := b.Records(&d, func(r *Record) error { clear(r.Value); return nil }); err != nil {
			t.Fatal(err)
		}
	}
	for _, v := range kept {
		if string(v) != strings.Repeat("value ", 20) {
			t.Fatalf("%q", v)
		}
	}
	buf.Release()
	d.Release()
	d.Release() // nothing held any more
	if s := pool.Stats(); s.Live != 0 {
		t.Errorf("%d buffers are out", s.Live)
	}
	if sample(t, BuilderOptions{}).Records(&d, keep) != nil || d.Take() != nil {
		t.Error("a scratch buffer for a batch without codec")
	}
}

func TestAppendPlain(t *testing.T) {
	for _, codec := range []Codec{None, Gzip, Snappy, Zstd} {
		b := sample(t, BuilderOptions{Codec: codec, Producer: 7, ProducerEpoch: 2, BaseSequence: 9})
		b.Stamp(500, 3, 1700000000009, true)
		var d Decoder
		out, err := b.AppendPlain([]byte("before"), &d)
		if err != nil {
			t.Fatal(err)
		}
		p := Batch(out[len("before"):])
		if err := p.Verify(); err != nil {
			t.Fatalf("%s: %v", codec, err)
		}
		want, _ := collect(&d, b)
		got, err := collect(&d, p)
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %+v, %v; want %+v", codec, got, err, want)
		}
		if p.Codec() != None || p.LeaderEpoch() != 3 || !p.AppendTimeType() || p.BaseOffset() != 500 || p.LastSequence() != 11 {
			t.Errorf("%s: header %x", codec, p[:HeaderSize])
		}
	}

	f := func(d *Decoder, b Batch, want Code) {
		t.Helper()
		if out, err := b.AppendPlain([]byte("before"), d); CodeOf(err) != want || string(out[:6]) != "before" || err != nil && len(out) > 6 {
			t.Errorf("%d bytes: %v, want %v", len(out), err, want)
		}
	}
	f(&Decoder{MaxRecords: 100}, sample(t, BuilderOptions{Codec: Gzip}), CodeTooLarge)
	zeros := func(n int) Batch { // a batch of n bytes once uncompressed
		w := NewBuilder(BuilderOptions{Topic: 1024, Codec: Gzip, MaxBytes: n})
		if ok, err := w.Add(0, nil, make([]byte, n-HeaderSize-13), nil); !ok || w.Len() != n {
			t.Fatal(ok, err, w.Len())
		}
		buf, err := w.Build()
		if err != nil {
			t.Fatal(err)
		}
		return buf.B
	}
	f(new(Decoder), zeros(MaxBatchBytes), CodeOK)
	f(new(Decoder), zeros(MaxBatchBytes+1), CodeTooLarge)
}

// TestEveryByteOfRecords sets each byte of a section to each value, with right
// CRCs: no panic, and what is read stays within the batch.
func TestEveryByteOfRecords(t *testing.T) {
	good := raw(2, 3, rec(1, 0, 1, "k", -1, 2, 1, "a", -1, 0, 0)+rec(-1, 2, -1, 3, "abc", 0))
	if _, err := collect(new(Decoder), good); err != nil {
		t.Fatal(err)
	}
	var d Decoder
	for at := HeaderSize; at < len(good); at++ {
		was := good[at]
		for c := range 256 {
			good[at] = byte(c)
			n := 0
			err := good.Records(&d, func(r *Record) error {
				n++
				if r.Offset < 500 || r.Offset > 503 {
					t.Errorf("byte %d set to %d: offset %d", at, c, r.Offset)
				}
				return nil
			})
			if err != nil && !errors.Is(err, ErrCorrupt) || err == nil && n != 2 {
				t.Errorf("byte %d set to %d: %d records, %v", at, c, n, err)
			}
		}
		good[at] = was
	}
}

// carefully reads b's records as Records does, but each the slow way.
func carefully(d *Decoder, b Batch) (rs []Record, err error) {
	if err := d.Open(b); err != nil {
		return nil, err
	}
	for range d.count {
		var r Record
		if d.careful(&r); d.r.err != nil {
			return rs, d.r.err
		}
		r.Headers = slices.Clone(r.Headers)
		rs = append(rs, r)
	}
	return rs, d.r.Finish()
}

// sameBothWays fails unless the quick way and the careful one find the same
// records in b, and faults in the same places.
func sameBothWays(t *testing.T, b Batch) {
	t.Helper()
	if b.Codec() != None {
		// What a codec says of damage is its own and may differ from call to call.
		// What it makes of the rest is read both ways.
		plain, err := b.AppendPlain(nil, new(Decoder))
		if err != nil {
			return
		}
		b = plain
	}
	quick, qerr := collect(new(Decoder), b)
	careful, cerr := carefully(new(Decoder), b)
	if !sameRecords(quick, careful) {
		t.Fatalf("%x: quickly %+v, carefully %+v", []byte(b), quick, careful)
	}
	if (qerr == nil) != (cerr == nil) || cerr != nil && !strings.HasSuffix(qerr.Error(), cerr.Error()) {
		t.Fatalf("%x: quickly %v, carefully %v", []byte(b), qerr, cerr)
	}
}

// TestQuickReadsAsCareful compares the two ways to read a record over numbers
// around each length a varint has, and over damage of every byte.
func TestQuickReadsAsCareful(t *testing.T) {
	sizes := []int{-1, 0, 1, 62, 63, 64, 65, 8190, 8191, 8192, 8193}
	for _, k := range sizes {
		for _, v := range sizes {
			for _, n := range []int{0, 1, 63, 64, 8191, 8192, 1 << 20, 1<<20 + 1} {
				blob := func(n int) string { return strings.Repeat("x", max(n, 0)) }
				first := rec(-n, n, k, blob(k), v, blob(v), 0)
				b := raw(2, n+1, first+rec(n, n+1, v, blob(v), k, blob(k), 2, 1, "h", -1, 0, k, blob(k)))
				sameBothWays(t, b)
				if rs, err := collect(new(Decoder), b); err != nil || len(rs) != 2 || len(rs[0].Value) != max(v, 0) {
					t.Fatalf("key of %d, value of %d, delta %d: %d records, %v", k, v, n, len(rs), err)
				}
			}
		}
	}

	for at, good := HeaderSize, raw(3, 70, rec(0, 0, 1, "k", 3, "abc", 0)+rec(70, 65, -1, 0, 1, 1, "h", 0)+rec(-1, 70, -1, -1, 0)); at < len(good); at++ {
		was := good[at]
		for c := range 256 {
			good[at] = byte(c)
			sameBothWays(t, good)
		}
		good[at] = was
	}
}
