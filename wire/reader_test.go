package wire

import (
	"encoding/binary"
	"errors"
	"math"
	"strings"
	"testing"
)

func TestReaderFixed(t *testing.T) {
	var b []byte
	b = Append8(b, uint8(0xfe))
	b = Append8(b, int8(-2))
	b = Append16(b, uint16(0xfedc))
	b = Append16(b, int16(-2))
	b = Append32(b, uint32(0xfedcba98))
	b = Append32(b, NodeID(-2))
	b = Append64(b, TopicID(math.MaxUint64))
	b = Append64(b, Offset(-2))
	b = AppendBool(b, true)
	b = AppendBool(b, false)
	b = append(b, "0123456789abcdef"...)
	b = AppendString(b, "text")
	b = AppendBytes(b, nil)
	b = AppendUvarint(b, math.MaxUint64)
	b = AppendVarint(b, math.MinInt64)
	r := NewReader(b)
	if r.U8() != 0xfe || r.I8() != -2 || r.U16() != 0xfedc || r.I16() != -2 ||
		r.U32() != 0xfedcba98 || r.I32() != -2 || r.U64() != math.MaxUint64 || r.I64() != -2 ||
		!r.Bool() || r.Bool() || r.UUID().String() != "30313233-3435-3637-3839-616263646566" ||
		r.String() != "text" || len(r.Bytes()) != 0 || r.Uvarint() != math.MaxUint64 || r.Varint() != math.MinInt64 {
		t.Fatal("what was appended came back changed")
	}
	if err := r.Finish(); err != nil {
		t.Fatal(err)
	}
	if r.U8() != 0 || r.Err() == nil {
		t.Fatal("read past the end")
	}
}

// TestReaderFaults: each reading method on bytes it must refuse. It returns
// zero, and everything after it does too.
func TestReaderFaults(t *testing.T) {
	f := func(b string, read func(r *Reader) bool) {
		t.Helper()
		r := NewReader([]byte(b))
		if !read(r) {
			t.Errorf("%x: not zero", b)
		}
		first := r.Err()
		if !errors.Is(first, ErrCorrupt) {
			t.Fatalf("%x: error %v", b, first)
		}
		if r.Left() != 0 || r.U64() != 0 || r.Uvarint() != 0 || r.Count(1) != 0 || r.String() != "" || r.NullBytes() != nil {
			t.Errorf("%x: read on after a fault", b)
		}
		if r.Finish() != first {
			t.Errorf("%x: the first error was lost: %v", b, r.Err())
		}
	}
	uvarint := func(r *Reader) bool { return r.Uvarint() == 0 }
	varint := func(r *Reader) bool { return r.Varint() == 0 }
	varint32 := func(r *Reader) bool { return r.Varint32() == 0 }
	null := func(r *Reader) bool { return r.NullBytes() == nil }

	f("", func(r *Reader) bool { return r.U8() == 0 })
	f("1", func(r *Reader) bool { return r.U16() == 0 })
	f("123", func(r *Reader) bool { return r.U32() == 0 })
	f("1234567", func(r *Reader) bool { return r.U64() == 0 })
	f("123456789abcdef", func(r *Reader) bool { return r.UUID() == UUID{} })
	f("\x02", func(r *Reader) bool { return !r.Bool() })
	f("abc", func(r *Reader) bool { return r.Raw(4) == nil })
	f("abc", func(r *Reader) bool { return r.Raw(-1) == nil })
	f("abc", func(r *Reader) bool { return r.Raw(math.MinInt) == nil })

	// varints of messages have one form only
	f("", uvarint)
	f("\x80", uvarint)
	f("\x80\x00", uvarint)                                     // 0 in two bytes
	f("\xff\x80\x00", uvarint)                                 //
	f("\xff\xff\xff\xff\xff\xff\xff\xff\xff\x02", uvarint)     // 65 bits
	f("\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", uvarint) // 11 bytes
	f("\x80\x80\x80\x80\x80\x80\x80\x80\x80\x80\x00", varint)  // also in records
	f("\xff\xff\xff\xff\xff\xff\xff\xff\xff\x02", varint)      //
	f("\x80\x80\x80\x80\x80\x00", varint32)                    // 6 bytes
	f("\xff\xff\xff\xff\x1f", varint32)                        // 33 bits
	f("\x80", varint32)                                        //

	// counts and lengths beyond what is left
	f("\x04abc", func(r *Reader) bool { return r.Count(1) == 0 })
	f("\x02abc", func(r *Reader) bool { return r.Count(2) == 0 })
	f("\xa1\x8d\x06"+strings.Repeat("x", MaxCount+1), func(r *Reader) bool { return arrayLen(r, 1) == 0 })
	f("\x04abc", func(r *Reader) bool { return r.Bytes() == nil })
	f("\x04abc", func(r *Reader) bool { return r.String() == "" })
	f("\x81\x80\x02"+strings.Repeat("x", MaxString+1), func(r *Reader) bool { return r.String() == "" })
	f("\x08abc", func(r *Reader) bool { return r.VarCount(1) == 0 })
	f("\x01abc", func(r *Reader) bool { return r.VarCount(1) == 0 }) // -1
	f("\x04abc", func(r *Reader) bool { return r.VarCount(2) == 0 })
	f("\x08abc", null)
	f("\x03abc", null)                                             // -2
	f("\xff\xff\xff\xff\x0f", null)                                // -2^31
	f("\xfe\xff\xff\xff\x0f", null)                                // 2^31-1
	f("\x01", func(r *Reader) bool { return r.VarBytes() == nil }) // null where it may not stand
}

func TestReaderAccepts(t *testing.T) {
	f := func(b string, read func(r *Reader) bool) {
		t.Helper()
		r := NewReader([]byte(b))
		if !read(r) || r.Finish() != nil {
			t.Errorf("%x: refused or misread: %v", b, r.Err())
		}
	}

	f("\x00", func(r *Reader) bool { return r.Uvarint() == 0 })
	f("\x80\x01", func(r *Reader) bool { return r.Uvarint() == 128 })
	f("\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", func(r *Reader) bool { return r.Uvarint() == math.MaxUint64 })
	f("\x80\x00", func(r *Reader) bool { return r.Varint() == 0 }) // records may be wasteful
	f("\x82\x80\x80\x80\x00", func(r *Reader) bool { return r.Varint32() == 1 })
	f("\xff\xff\xff\xff\x0f", func(r *Reader) bool { return r.Varint32() == math.MinInt32 })
	f("\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", func(r *Reader) bool { return r.Varint() == math.MinInt64 })
	f("\x01", func(r *Reader) bool { return r.NullBytes() == nil })
	f("\x81\x00", func(r *Reader) bool { return r.NullBytes() == nil })
	f("\x00", func(r *Reader) bool { b := r.NullBytes(); return b != nil && len(b) == 0 })
	f("\x06abc", func(r *Reader) bool { return string(r.NullBytes()) == "abc" })
	f("\x02abcd", func(r *Reader) bool { return r.Count(2) == 2 && len(r.Raw(4)) == 4 })
	f("\xa0\x8d\x06"+strings.Repeat("x", MaxCount), func(r *Reader) bool { return arrayLen(r, 1) == MaxCount && len(r.Raw(MaxCount)) > 0 })
}

func TestFinishLeftOver(t *testing.T) {
	r := NewReader([]byte{1, 2})
	r.U8()
	if err := r.Finish(); !errors.Is(err, ErrCorrupt) || !strings.Contains(err.Error(), "1 bytes left over at byte 1 of 2") {
		t.Fatal(err)
	}
	r.Reset([]byte{1})
	if r.Err() != nil || r.U8() != 1 || r.Finish() != nil {
		t.Fatal("Reset did not forget")
	}
}

func TestAppendText(t *testing.T) {
	f := func(s string, want int) {
		t.Helper()
		r := NewReader(AppendText(nil, s))
		if got := r.String(); r.Finish() != nil || len(got) != want || !strings.HasPrefix(s, got) {
			t.Errorf("%d bytes came back as %d, want %d (%v)", len(s), len(got), want, r.Err())
		}
	}

	f("", 0)
	f(strings.Repeat("x", MaxString), MaxString)
	f(strings.Repeat("x", MaxString+1), MaxString)
	f("x"+strings.Repeat("ä", MaxString/2), MaxString-1) // not in the middle of a character
	f(strings.Repeat("\x80", MaxString+9), MaxString-4)  // no character at all: still cut
}

// TestUvarintForms: the reader takes exactly the forms that the standard
// library writes.
func TestUvarintForms(t *testing.T) {
	for shift := range 64 {
		for _, v := range []uint64{1 << shift, 1<<shift - 1} {
			b := binary.AppendUvarint(nil, v)
			r := NewReader(b)
			if got := r.Uvarint(); got != v || r.Finish() != nil {
				t.Fatalf("%d came back as %d (%v)", v, got, r.Err())
			}
			if len(b) == binary.MaxVarintLen64 {
				continue
			}
			long := append(b[:len(b):len(b)], 0)
			long[len(b)-1] |= 0x80
			if r.Reset(long); r.Uvarint() != 0 || r.Err() == nil {
				t.Fatalf("%x taken for %d", long, v)
			}
		}
	}
}
