package wire

import (
	"bytes"
	"encoding/hex"
	"errors"
	"testing"
)

// FuzzMessage gives any bytes to the decoder of every message. None panics,
// and what one accepts it encodes to the same bytes again.
func FuzzMessage(f *testing.F) {
	var all []Message
	for _, r := range APIs() {
		all = append(all, r.API.NewRequest(), r.API.NewResponse())
	}
	for i, m := range messages(f) {
		f.Add(uint8(i), m.AppendTo(nil, 0))
	}
	f.Fuzz(func(t *testing.T, which uint8, body []byte) {
		m := blank(all[int(which)%len(all)])
		var r Reader
		err := DecodeBody(&r, m, 0, body)
		if err != nil {
			if !errors.Is(err, ErrCorrupt) {
				t.Fatalf("%s: %v", nameOf(m), err)
			}
			return
		}
		again := m.AppendTo(nil, 0)
		if m.API() == APIHello { // may have skipped a tail
			body = body[:min(len(body), len(again))]
		}
		if !bytes.Equal(again, body) {
			t.Fatalf("%s: accepted %x, encoded again %x", nameOf(m), body, again)
		}
	})
}

// FuzzReader runs the reading methods in an order that the input itself
// chooses. The cursor never leaves the input, and after a fault stays at its
// end.
func FuzzReader(f *testing.F) {
	f.Add([]byte{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10}, []byte("\x01\x80\x00\xff\xff\xff\xff\x0f\x05hello\x0ahello"))
	f.Fuzz(func(t *testing.T, ops, b []byte) {
		r := NewReader(b)
		for _, op := range ops {
			before, failed := r.Left(), r.Err() != nil
			switch op % 12 {
			case 0:
				r.U8()
			case 1:
				r.U16()
			case 2:
				r.U64()
			case 3:
				r.Bool()
			case 4:
				r.Uvarint()
			case 5:
				if n := r.Count(int(op%7) + 1); n*(int(op%7)+1) > r.Left() {
					t.Fatalf("count %d, %d bytes left", n, r.Left())
				}
			case 6:
				if n := len(r.Bytes()); n > before {
					t.Fatalf("%d bytes of %d", n, before)
				}
			case 7:
				if n := len(r.String()); n > before || n > MaxString {
					t.Fatalf("%d bytes of %d", n, before)
				}
			case 8:
				r.Varint()
			case 9:
				r.Varint32()
			case 10:
				if n := len(r.NullBytes()); n > before {
					t.Fatalf("%d bytes of %d", n, before)
				}
			case 11:
				if n := r.VarCount(int(op%7) + 1); n < 0 || n*(int(op%7)+1) > r.Left() {
					t.Fatalf("count %d, %d bytes left", n, r.Left())
				}
			}
			if r.Left() < 0 || r.Left() > before || failed && (r.Err() == nil || r.Left() != 0) {
				t.Fatalf("op %d: %d bytes left after %d, %v", op%12, r.Left(), before, r.Err())
			}
		}
	})
}

func seedBatches(f *testing.F) {
	for _, v := range vectors(f) {
		f.Add(unhex(f, &v.Batch))
	}
	for _, c := range compressing {
		f.Add([]byte(sample(f, BuilderOptions{Codec: c})))
	}
}

// FuzzHeader gives any bytes to the header parser; with the CRC put right, so
// that the checks behind it are reached as well.
func FuzzHeader(f *testing.F) {
	seedBatches(f)
	f.Fuzz(func(t *testing.T, b []byte) {
		for range 2 {
			p, err := ParseHeader(b)
			if err == nil {
				checkHeader(t, p, len(b))
			} else if !errors.Is(err, ErrCorrupt) {
				t.Fatal(err)
			}
			if len(b) < HeaderSize {
				return
			}
			b = bytes.Clone(b)
			copy(b, Magic)
			Batch(b).sealHeader()
		}
	})
}

func checkHeader(t *testing.T, p Batch, given int) {
	if len(p) > given || len(p) > p.Len() || p.Len() > MaxBatchBytes || p.RecordsLength() > MaxRecordsBytes {
		t.Fatalf("%d bytes of %d, length %d, records %d", len(p), given, p.Len(), p.RecordsLength())
	}
	if p.BaseOffset() < 0 || p.NextOffset() <= p.BaseOffset() || p.Count() < 0 || p.Count() > int(p.NextOffset()-p.BaseOffset()) {
		t.Fatalf("offsets %d to %d, %d records", p.BaseOffset(), p.NextOffset(), p.Count())
	}
}

// FuzzBatch gives any bytes to Verify and reads what passes to the end: with
// the CRCs put right too. Batches that a leader takes are as storage wants
// them once stamped.
func FuzzBatch(f *testing.F) {
	seedBatches(f)
	var d Decoder
	d.MaxRecords = 1 << 20
	f.Fuzz(func(t *testing.T, b []byte) {
		p := Batch(bytes.Clone(b))
		for range 2 {
			if p.VerifyProduce(BatchLimits{}) == nil {
				p.Stamp(1000, 1, 1, false)
				if err := p.Verify(); err != nil {
					t.Fatalf("a leader takes it, storage does not: %v", err)
				}
			}
			if err := p.Verify(); err == nil {
				readAll(t, &d, p)
			} else if !errors.Is(err, ErrCorrupt) {
				t.Fatal(err)
			}
			if len(p) < HeaderSize {
				return
			}
			copy(p, Magic)
			put32(atBatchLength, uint32(len(p)))(p)
			put32(atRecordsCRC, crcOf(p[HeaderSize:]))(p)
			p.sealHeader()
		}
	})
}

// readAll reads p's records: either all of them or an error, never more, and
// what comes out is built into the same records again.
func readAll(t *testing.T, d *Decoder, p Batch) {
	sameBothWays(t, p)
	n := 0
	last := p.BaseOffset() - 1
	err := p.Records(d, func(r *Record) error {
		if n++; r.Offset <= last || r.Offset > p.LastOffset() {
			t.Fatalf("offset %d after %d, the last is %d", r.Offset, last, p.LastOffset())
		}
		last = r.Offset
		return nil
	})
	switch {
	case err == nil && n == p.Count():
	case errors.Is(err, ErrCorrupt), errors.Is(err, CodeTooLarge):
		return
	default:
		t.Fatalf("%d records of %d: %v", n, p.Count(), err)
	}
	out, err := p.AppendPlain(nil, d)
	if err != nil || Batch(out).Verify() != nil {
		t.Fatalf("read, but not as a plain batch: %v", err)
	}
}

func fuzzCodec(f *testing.F, c Codec) {
	f.Add(uint32(len(frozenRecords(f, None))), frozenRecords(f, c))
	for _, s := range []string{"", "28b52ffd0000190000616263", "1f8b08000000000000ff"} {
		b, err := hex.DecodeString(s)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(uint32(3), b)
	}
	f.Fuzz(func(t *testing.T, n uint32, src []byte) {
		n %= 1 << 20
		dst := make([]byte, n, c.decompressRoom(int(n)))
		if c.decompress(dst, src) != nil {
			return
		}
		back := make([]byte, compressBound(len(dst))) // no byte more: an encoder must not need it
		m := c.compress(back, dst)
		if m == 0 {
			return
		}
		again := make([]byte, n, c.decompressRoom(int(n)))
		if err := c.decompress(again, back[:m]); err != nil || !bytes.Equal(again, dst) {
			t.Fatalf("%s: %d bytes came back different: %v", c, n, err)
		}
	})
}

func FuzzGzip(f *testing.F)   { fuzzCodec(f, Gzip) }
func FuzzSnappy(f *testing.F) { fuzzCodec(f, Snappy) }
func FuzzZstd(f *testing.F)   { fuzzCodec(f, Zstd) }

// FuzzBuilder builds whatever records the input describes, as many as the
// batch takes; they come back as they were.
func FuzzBuilder(f *testing.F) {
	f.Add(uint8(0), []byte("\x00\x00\x00"))
	f.Add(uint8(4), []byte("\x05key\x06value\x02h\x00\xff\xff\x80\x01"))
	var d Decoder
	f.Fuzz(func(t *testing.T, size uint8, script []byte) {
		o := BuilderOptions{Topic: 1024, MaxBytes: 128 << (size % 10)}
		b := NewBuilder(o)
		var want []Record
		r := NewReader(script)
		for r.Left() > 0 {
			rec := Record{Offset: Offset(len(want)), Time: r.Varint(), Key: r.NullBytes(), Value: r.NullBytes()}
			rec.Headers = readHeaders(r, nil)
			if r.Err() != nil {
				break
			}
			ok, err := b.Add(rec.Time, rec.Key, rec.Value, rec.Headers)
			if err != nil && CodeOf(err) != CodeTooLarge && CodeOf(err) != CodeInvalidRequest {
				t.Fatal(err)
			}
			if ok {
				want = append(want, rec)
			}
		}
		if len(want) == 0 {
			return
		}
		buf, err := b.Build()
		if err != nil {
			t.Fatal(err)
		}
		defer buf.Release()
		p := Batch(buf.B)
		if err := p.VerifyProduce(BatchLimits{MaxBatch: o.MaxBytes}); err != nil {
			t.Fatal(err)
		}
		got, err := collect(&d, p)
		if err != nil || !sameRecords(got, want) {
			t.Fatalf("got %+v (%v), want %+v", got, err, want)
		}
	})
}

// sameRecords compares records; null and empty differ, no headers and an empty
// list of them do not.
func sameRecords(a, b []Record) bool {
	same := func(x, y []byte) bool { return (x == nil) == (y == nil) && bytes.Equal(x, y) }
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if a[i].Offset != b[i].Offset || a[i].Time != b[i].Time || !same(a[i].Key, b[i].Key) ||
			!same(a[i].Value, b[i].Value) || len(a[i].Headers) != len(b[i].Headers) {
			return false
		}
		for j, h := range a[i].Headers {
			if !same(h.Key, b[i].Headers[j].Key) || !same(h.Value, b[i].Headers[j].Value) {
				return false
			}
		}
	}
	return true
}
