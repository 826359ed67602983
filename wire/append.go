package wire

import (
	"encoding/binary"
	"unicode/utf8"
)

// MaxString is the greatest length of a string in a message, in bytes,
// inclusive.
const MaxString = 32 << 10

// Append8 appends a one-byte integer.
func Append8[T ~int8 | ~uint8](dst []byte, v T) []byte { return append(dst, uint8(v)) }

// Append16 appends a fixed integer of two bytes, little-endian.
func Append16[T ~int16 | ~uint16](dst []byte, v T) []byte {
	return binary.LittleEndian.AppendUint16(dst, uint16(v))
}

// Append32 appends a fixed integer of four bytes, little-endian.
func Append32[T ~int32 | ~uint32](dst []byte, v T) []byte {
	return binary.LittleEndian.AppendUint32(dst, uint32(v))
}

// Append64 appends a fixed integer of eight bytes, little-endian.
func Append64[T ~int64 | ~uint64](dst []byte, v T) []byte {
	return binary.LittleEndian.AppendUint64(dst, uint64(v))
}

// AppendBool appends one byte, 0 or 1.
func AppendBool(dst []byte, v bool) []byte {
	if v {
		return append(dst, 1)
	}
	return append(dst, 0)
}

// AppendUvarint appends v as a minimal uvarint.
func AppendUvarint(dst []byte, v uint64) []byte { return binary.AppendUvarint(dst, v) }

// AppendCount appends the number of elements of an array. In messages no reader
// takes more than MaxCount.
func AppendCount(dst []byte, n int) []byte { return binary.AppendUvarint(dst, uint64(n)) }

// AppendString appends the length of s and s. No reader takes a string longer
// than MaxString.
func AppendString(dst []byte, s string) []byte {
	return append(binary.AppendUvarint(dst, uint64(len(s))), s...)
}

// AppendText appends a string meant for people, cut to MaxString bytes at the
// end of a character.
func AppendText(dst []byte, s string) []byte {
	if len(s) > MaxString {
		n := MaxString
		for n > MaxString-utf8.UTFMax && !utf8.RuneStart(s[n]) {
			n--
		}
		s = s[:n]
	}
	return AppendString(dst, s)
}

// AppendBytes appends the length of b and b.
func AppendBytes(dst, b []byte) []byte {
	return append(binary.AppendUvarint(dst, uint64(len(b))), b...)
}

// AppendVarint appends v as a minimal zigzag varint, the integer of records.
func AppendVarint(dst []byte, v int64) []byte { return binary.AppendVarint(dst, v) }

// appendSlice appends a counted array.
func appendSlice[T any, P element[T]](dst []byte, s []T) []byte {
	dst = AppendCount(dst, len(s))
	for i := range s {
		dst = P(&s[i]).append(dst)
	}
	return dst
}

// appendStrings appends a counted array of strings.
func appendStrings(dst []byte, s []string) []byte {
	dst = AppendCount(dst, len(s))
	for _, v := range s {
		dst = AppendString(dst, v)
	}
	return dst
}
