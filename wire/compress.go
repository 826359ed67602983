package wire

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"sync"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/s2"
	"github.com/klauspost/compress/snappy"
	"github.com/klauspost/compress/zstd"
)

// A Codec names how the records section of a batch is compressed.
type Codec uint8

// The codecs. 3 (lz4) and 5 (snappy in xerial frames) are reserved and
// refused.
const (
	None   Codec = 0
	Gzip   Codec = 1 // one member
	Snappy Codec = 2 // one raw block without S2's extensions
	Zstd   Codec = 4 // one frame, no dictionary, window at most 8 MiB
)

var codecNames = [...]string{None: "none", Gzip: "gzip", Snappy: "snappy", Zstd: "zstd"}

// Known reports whether batches may carry the codec.
func (c Codec) Known() bool { return int(c) < len(codecNames) && codecNames[c] != "" }

// String returns the codec's name as settings and flags spell it.
func (c Codec) String() string {
	if c.Known() {
		return codecNames[c]
	}
	return fmt.Sprintf("codec %d", uint8(c))
}

// ParseCodec returns the codec called s: none, gzip, snappy or zstd.
func ParseCodec(s string) (Codec, error) {
	for c, name := range codecNames {
		if name == s && s != "" {
			return Codec(c), nil
		}
	}
	return None, fmt.Errorf("unknown codec %.40q: none, gzip, snappy and zstd are known", s)
}

// compressBound returns the room compress needs for a section of n bytes: the
// longest form of any codec, and what a zstd encoder writes before it finds
// that a block does not shrink and takes it back.
func compressBound(n int) int { return n + n/6 + 64 }

// compress writes the compressed form of src to dst, which has the room that
// compressBound asks for, and returns its length; 0 if it would not be shorter
// than src.
func (c Codec) compress(dst, src []byte) int {
	n := 0
	switch c {
	case Gzip:
		n = gzipEncode(dst, src)
	case Snappy:
		n = inPlace(dst, s2.EncodeSnappy(dst, src))
	case Zstd:
		e := zstdEncoders.Get().(*zstd.Encoder)
		n = inPlace(dst, e.EncodeAll(src, dst[:0]))
		zstdEncoders.Put(e)
	default:
		panic(fmt.Sprintf("BUG: compress with %s", c))
	}
	if n >= len(src) {
		return 0
	}
	return n
}

// inPlace returns the length of out, a codec's result that was to go to dst, and
// sees to it that it stands there. A codec that runs out of room on the way
// moves to a larger array, even if the result is short enough in the end; what
// stands in dst is then a fragment. The room given keeps that rare, but no
// codec promises that it is never.
func inPlace(dst, out []byte) int {
	if len(out) > 0 && &out[0] != &dst[0] {
		return copy(dst, out)
	}
	return len(out)
}

// decompress fills dst with the uncompressed form of src, which must have
// exactly that length. The memory it takes beyond dst does not depend on what
// src claims or holds, provided that dst has the capacity decompressRoom asks
// for; content beyond the length is lost.
func (c Codec) decompress(dst, src []byte) error {
	switch c {
	case Gzip:
		return gzipDecode(dst, src)
	case Snappy:
		return snappyDecode(dst, src)
	case Zstd:
		return zstdDecode(dst, src)
	}
	return fmt.Errorf("unknown %s", c)
}

// decompressRoom returns the capacity decompress needs for a section of n
// bytes. A zstd decoder notices a block too many when it has written it, and
// would move all to a larger buffer if there was no room.
func (c Codec) decompressRoom(n int) int {
	if c == Zstd {
		return n + min(n, maxZstdBlock)
	}
	return n
}

// errLength is any difference between recordsLength and what comes out.
var errLength = errors.New("uncompressed length differs from recordsLength")

// A gzipReader is a pooled decoder with the source it reads. A bytes.Reader is
// read byte by byte, never beyond the member, so that what is left shows
// whether more follows.
type gzipReader struct {
	src  bytes.Reader
	z    gzip.Reader
	more [1]byte
}

var gzipReaders = sync.Pool{New: func() any { return new(gzipReader) }}

func gzipDecode(dst, src []byte) error {
	r := gzipReaders.Get().(*gzipReader)
	err := r.decode(dst, src)
	r.src.Reset(nil)
	gzipReaders.Put(r)
	return err
}

func (r *gzipReader) decode(dst, src []byte) error {
	r.src.Reset(src)
	if err := r.z.Reset(&r.src); err != nil {
		return err
	}
	r.z.Multistream(false)
	if _, err := io.ReadFull(&r.z, dst); err == io.EOF || err == io.ErrUnexpectedEOF {
		return errLength
	} else if err != nil {
		return err
	}
	// The read that must find the end also checks the member's CRC.
	if n, err := r.z.Read(r.more[:]); n > 0 {
		return errLength
	} else if err != io.EOF {
		return err
	}
	if r.src.Len() > 0 {
		return fmt.Errorf("%d bytes behind the gzip member", r.src.Len())
	}
	return nil
}

// A gzipWriter is a pooled encoder with the room it writes to.
type gzipWriter struct {
	z   *gzip.Writer
	dst []byte
	n   int
}

var gzipWriters = sync.Pool{New: func() any { return &gzipWriter{z: gzip.NewWriter(nil)} }}

// Write takes what fits and fails on the rest: a form that long is not wanted.
func (w *gzipWriter) Write(p []byte) (int, error) {
	n := copy(w.dst[w.n:], p)
	w.n += n
	if n < len(p) {
		return n, io.ErrShortWrite
	}
	return n, nil
}

func gzipEncode(dst, src []byte) int {
	w := gzipWriters.Get().(*gzipWriter)
	w.dst, w.n = dst, 0
	w.z.Reset(w)
	_, err := w.z.Write(src)
	if err == nil {
		err = w.z.Close()
	}
	n := w.n
	w.dst = nil
	gzipWriters.Put(w)
	if err != nil {
		return len(dst)
	}
	return n
}

// snappyDecode asks for the length first: the decoder would make room for
// whatever seven bytes claim. The strict decoder refuses S2's extensions,
// which other snappy decoders do not know.
func snappyDecode(dst, src []byte) error {
	n, err := snappy.DecodedLen(src)
	if err != nil {
		return err
	}
	if n != len(dst) {
		return errLength
	}
	out, err := snappy.DecodeStrict(dst, src)
	if err != nil {
		return err
	}
	inPlace(dst, out)
	return nil
}

const (
	maxZstdWindow = 8 << 20   // greatest window of a frame, in bytes, inclusive
	maxZstdBlock  = 128 << 10 // greatest content of a block, by the format
)

var zstdEncoders = sync.Pool{New: func() any {
	e, err := zstd.NewWriter(nil,
		zstd.WithEncoderConcurrency(1),
		zstd.WithEncoderLevel(zstd.SpeedFastest),
		zstd.WithWindowSize(1<<20), // a default batch; a larger one costs each encoder its memory
		zstd.WithEncoderCRC(false)) // recordsCRC covers the frame
	if err != nil {
		panic("BUG: zstd encoder options: " + err.Error())
	}
	return e
}}

var zstdDecoders = sync.Pool{New: func() any {
	d, err := zstd.NewReader(nil,
		zstd.WithDecoderConcurrency(1),
		zstd.WithDecoderLowmem(true),
		zstd.WithDecoderMaxMemory(MaxRecordsBytes),
		zstd.WithDecoderMaxWindow(maxZstdWindow),
		zstd.WithDecodeAllCapLimit(true))
	if err != nil {
		panic("BUG: zstd decoder options: " + err.Error())
	}
	return d
}}

// zstdDecode trusts neither the header nor the decoder to stop in time: the
// frame is looked at first, and tells the decoder how much content it has.
func zstdDecode(dst, src []byte) error {
	var h zstd.Header
	if err := h.Decode(src); err != nil {
		return err
	}
	if err := checkZstdFrame(&h, src, len(dst)); err != nil {
		return err
	}
	if !h.HasFCS {
		sized := sections.Get(len(src) + 8)
		defer sized.Release()
		src = withContentSize(sized.B[:0], &h, src, len(dst))
	}
	d := zstdDecoders.Get().(*zstd.Decoder)
	out, err := d.DecodeAll(src, dst[:0])
	zstdDecoders.Put(d)
	if err != nil {
		return err
	}
	if len(out) != len(dst) {
		return errLength
	}
	inPlace(dst, out)
	return nil
}

// checkZstdFrame checks that src is one frame of the permitted kind for n
// bytes of content, from its start to its end. The decoder itself would go on
// through any number of frames.
func checkZstdFrame(h *zstd.Header, src []byte, n int) error {
	window := h.WindowSize
	if h.SingleSegment {
		window = h.FrameContentSize
	}
	switch {
	case h.Skippable:
		return errors.New("zstd frame is skippable")
	case h.DictionaryID != 0:
		return errors.New("zstd frame needs a dictionary")
	case window > maxZstdWindow:
		return fmt.Errorf("zstd window of %d bytes, the limit is %d", window, maxZstdWindow)
	case h.HasFCS && h.FrameContentSize != uint64(n):
		return errLength
	}
	end := zstdBlocksEnd(src, h.HeaderSize)
	if h.HasCheckSum && end >= 0 {
		end += 4
	}
	if end != len(src) {
		return errors.New("not one whole zstd frame")
	}
	return nil
}

// withContentSize appends the frame src, which does not tell its content size,
// with n as that size. Without one the decoder would go on as far as the
// capacity of its output and then grow it. The field ends the header:
//
//	| magic 4 | descriptor 1: size of the content size in bits 6-7 | window 1 | dictionary 0-4 | content size 0-8 |
func withContentSize(dst []byte, h *zstd.Header, src []byte, n int) []byte {
	const descriptor, eightBytes = 4, 3 << 6
	dst = append(dst, src[:h.HeaderSize]...)
	dst[descriptor] |= eightBytes
	dst = binary.LittleEndian.AppendUint64(dst, uint64(n))
	return append(dst, src[h.HeaderSize:]...)
}

// zstdBlocksEnd walks the block headers from byte at and returns where the
// last block ends; -1 if src ends before.
//
//	| last 1 bit | type 2 bits | size 21 bits | content: size bytes, 1 byte if type is RLE |
func zstdBlocksEnd(src []byte, at int) int {
	const rle = 1
	for {
		if len(src)-at < 3 {
			return -1
		}
		h := int(binary.LittleEndian.Uint16(src[at:])) | int(src[at+2])<<16
		size := h >> 3
		if h>>1&3 == rle {
			size = 1
		}
		at += 3 + size
		if at > len(src) {
			return -1
		}
		if h&1 != 0 {
			return at
		}
	}
}
