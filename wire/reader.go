package wire

import (
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"unsafe"
)

// MaxCount is the greatest number of elements of one array in a message,
// inclusive.
const MaxCount = 100_000

// A Reader decodes bytes that nobody vouches for. It is a cursor with a sticky
// error: after the first fault every method returns zero, so that a decoder
// reads all its fields and looks at Err, or Finish, once.
//
// The only ways to a count or a length are Count, String, Bytes and Raw, and
// the forms of records below them. Each checks the number against the bytes
// left before anything is made from it, so what a decoder allocates follows
// the bytes that are there and never a number that claims them.
//
// Errors wrap ErrCorrupt. A Reader does not own its bytes.
type Reader struct {
	b   []byte
	at  int // next byte; len(b) after a fault
	err error
}

// NewReader returns a Reader at the start of b.
func NewReader(b []byte) *Reader { return &Reader{b: b} }

// Reset makes r read b from its start and forgets an error.
func (r *Reader) Reset(b []byte) { *r = Reader{b: b} }

// Err returns the first fault met so far.
func (r *Reader) Err() error { return r.err }

// Left returns the number of bytes not read yet; 0 after a fault.
func (r *Reader) Left() int { return len(r.b) - r.at }

// Finish returns the first fault; bytes left over are one.
func (r *Reader) Finish() error {
	if r.Left() > 0 {
		r.Failf("%d bytes left over", r.Left())
	}
	return r.err
}

// Failf records a fault of the caller's own finding at the current position,
// unless one is recorded already.
func (r *Reader) Failf(format string, args ...any) {
	if r.err == nil {
		r.err = fmt.Errorf("%w: %s at byte %d of %d", ErrCorrupt, fmt.Sprintf(format, args...), r.at, len(r.b))
	}
	r.at = len(r.b)
}

// short records that n bytes were wanted and fewer are left.
func (r *Reader) short(n int) { r.Failf("%d bytes wanted, %d left", n, r.Left()) }

// Raw returns the next n bytes, which alias the input; nil if there are fewer.
func (r *Reader) Raw(n int) []byte {
	if n < 0 || n > r.Left() {
		r.short(n)
		return nil
	}
	p := r.b[r.at : r.at+n : r.at+n]
	r.at += n
	return p
}

// U8 reads one byte.
func (r *Reader) U8() uint8 {
	if r.at >= len(r.b) {
		r.short(1)
		return 0
	}
	v := r.b[r.at]
	r.at++
	return v
}

// U16 reads a fixed integer of two bytes.
func (r *Reader) U16() uint16 {
	p := r.Raw(2)
	if p == nil {
		return 0
	}
	return binary.LittleEndian.Uint16(p)
}

// U32 reads a fixed integer of four bytes.
func (r *Reader) U32() uint32 {
	p := r.Raw(4)
	if p == nil {
		return 0
	}
	return binary.LittleEndian.Uint32(p)
}

// U64 reads a fixed integer of eight bytes.
func (r *Reader) U64() uint64 {
	p := r.Raw(8)
	if p == nil {
		return 0
	}
	return binary.LittleEndian.Uint64(p)
}

// I8 reads a signed byte.
func (r *Reader) I8() int8 { return int8(r.U8()) }

// I16 reads a signed fixed integer of two bytes.
func (r *Reader) I16() int16 { return int16(r.U16()) }

// I32 reads a signed fixed integer of four bytes.
func (r *Reader) I32() int32 { return int32(r.U32()) }

// I64 reads a signed fixed integer of eight bytes.
func (r *Reader) I64() int64 { return int64(r.U64()) }

// Bool reads one byte, which must be 0 or 1.
func (r *Reader) Bool() bool {
	v := r.U8()
	if v > 1 {
		r.Failf("%d for a boolean", v)
	}
	return v == 1
}

// UUID reads 16 bytes.
func (r *Reader) UUID() (u UUID) {
	copy(u[:], r.Raw(len(u)))
	return u
}

// Uvarint reads an unsigned varint of at most 10 bytes. One that is longer
// than its value needs, or does not fit into 64 bits, is a fault: every value
// has one form.
func (r *Reader) Uvarint() uint64 {
	start := r.at
	v := r.varint(binary.MaxVarintLen64)
	if n := r.at - start; n > 1 && r.err == nil && r.b[r.at-1] == 0 {
		r.at = start
		r.Failf("varint of %d bytes is not minimal", n)
		return 0
	}
	return v
}

// varint reads groups of 7 bits, the lowest first, from at most maxLen bytes.
func (r *Reader) varint(maxLen int) uint64 {
	var v uint64
	for n := 0; ; n++ {
		if n == maxLen {
			r.Failf("varint longer than %d bytes", maxLen)
			return 0
		}
		if r.at >= len(r.b) {
			r.short(1)
			return 0
		}
		c := r.b[r.at]
		if n == binary.MaxVarintLen64-1 && c > 1 {
			r.Failf("varint overflows 64 bits")
			return 0
		}
		r.at++
		v |= uint64(c&0x7f) << (7 * n)
		if c < 0x80 {
			return v
		}
	}
}

// Count reads the number of elements of an array whose elements take at least
// least bytes each, 1 or more. The result times least is at most Left.
func (r *Reader) Count(least int) int {
	n := r.Uvarint()
	if n > uint64(r.Left()/least) {
		r.Failf("count %d of elements of at least %d bytes, %d bytes left", n, least, r.Left())
		return 0
	}
	return int(n)
}

// Bytes reads a length and that many bytes, which alias the input.
func (r *Reader) Bytes() []byte {
	n := r.Uvarint()
	if n > uint64(r.Left()) {
		r.Failf("length %d, %d bytes left", n, r.Left())
		return nil
	}
	return r.Raw(int(n))
}

// String reads a length of at most MaxString and that many bytes, and copies
// them.
func (r *Reader) String() string {
	b := r.Bytes()
	if len(b) > MaxString {
		r.Failf("string of %d bytes, the limit is %d", len(b), MaxString)
		return ""
	}
	return string(b)
}

// Varint reads a signed zigzag varint of at most 10 bytes, the 64-bit integer
// of records. It may be longer than its value needs.
func (r *Reader) Varint() int64 {
	if r.at < len(r.b) && r.b[r.at] < 0x80 { // one byte, nearly always
		c := r.b[r.at]
		r.at++
		return int64(c>>1) ^ -int64(c&1)
	}
	u := r.varint(binary.MaxVarintLen64)
	return int64(u>>1) ^ -int64(u&1)
}

// Varint32 reads a signed zigzag varint of at most 5 bytes that fits into 32
// bits, as Varint does.
func (r *Reader) Varint32() int32 {
	var u uint64
	switch b := r.b[r.at:]; {
	case len(b) > 0 && b[0] < 0x80: // one byte or two, nearly always
		u = uint64(b[0])
		r.at++
	case len(b) > 1 && b[1] < 0x80:
		u = uint64(b[0]&0x7f) | uint64(b[1])<<7
		r.at += 2
	default:
		if u = r.varint(binary.MaxVarintLen32); u > math.MaxUint32 {
			r.Failf("varint overflows 32 bits")
			return 0
		}
	}
	return int32(u>>1) ^ -int32(u&1)
}

// VarCount reads a zigzag count of elements of at least least bytes each; the
// result times least is at most Left.
func (r *Reader) VarCount(least int) int {
	n := r.Varint32()
	if n < 0 || int(n) > r.Left()/least {
		r.Failf("count %d of elements of at least %d bytes, %d bytes left", n, least, r.Left())
		return 0
	}
	return int(n)
}

// length reads a zigzag length, 0 or more and at most Left.
func (r *Reader) length() int {
	n := int(r.Varint32())
	if n < 0 || n > r.Left() {
		r.Failf("length %d, %d bytes left", n, r.Left())
		return 0
	}
	return n
}

// VarBytes reads a zigzag length, 0 or more, and that many bytes, which alias
// the input.
func (r *Reader) VarBytes() []byte {
	n := r.length()
	if r.err != nil {
		return nil
	}
	return r.Raw(n)
}

// NullBytes reads a zigzag length and that many bytes, which alias the input.
// Length -1 is null, returned as nil; the empty value is not nil.
func (r *Reader) NullBytes() []byte {
	if r.at < len(r.b) && r.b[r.at] == 1 { // -1 in its usual form
		r.at++
		return nil
	}
	n := int(r.Varint32())
	if n == -1 {
		return nil
	}
	if n > r.Left() || n < 0 {
		r.Failf("length %d, %d bytes left", n, r.Left())
	}
	if r.err != nil {
		return nil
	}
	return r.Raw(n)
}

// An element of an array in a message encodes and decodes itself.
type element[T any] interface {
	*T
	append(dst []byte) []byte
	decode(r *Reader)
	least() int // bytes the smallest element takes, 1 or more; called on nil
}

// arrayLen reads the number of elements of an array in a message, as Count does
// and at most MaxCount.
func arrayLen(r *Reader, least int) int {
	n := r.Count(least)
	if n > MaxCount {
		r.Failf("array of %d elements, the limit is %d", n, MaxCount)
		return 0
	}
	return n
}

// readSlice reads a counted array into the memory of s, whose content is lost.
func readSlice[T any, P element[T]](r *Reader, s []T) []T {
	n := arrayLen(r, P(nil).least())
	s = s[:0]
	for range n {
		s = extend(s, n, r.Left())
		P(&s[len(s)-1]).decode(r)
		if r.err != nil {
			return s[:0]
		}
	}
	return s
}

// readStrings reads a counted array of strings, as readSlice does.
func readStrings(r *Reader, s []string) []string {
	n := arrayLen(r, 1)
	s = s[:0]
	for range n {
		s = extend(s, n, r.Left())
		s[len(s)-1] = r.String()
		if r.err != nil {
			return s[:0]
		}
	}
	return s
}

// extend appends a zero element to s, which is to hold n in the end. At first
// it makes room for no more than the bytes left would take as memory, and
// doubles that as elements come: a count whose elements then fail to come has
// cost no more than the input itself, and one that holds at most twice what
// the elements take.
func extend[T any](s []T, n, left int) []T {
	var zero T
	if len(s) == cap(s) {
		room := max(len(s), left/int(unsafe.Sizeof(zero)), 1)
		s = slices.Grow(s, min(room, n-len(s)))
	}
	return append(s, zero)
}
