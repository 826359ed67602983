package wire

import (
	"bytes"
	stdgzip "compress/gzip"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/klauspost/compress/s2"
	"github.com/klauspost/compress/zstd"
)

var compressing = []Codec{Gzip, Snappy, Zstd}

// frozenRecords returns a records section in the form of codec c as another
// implementation made it: gzip and zstd by the programs of these names, snappy
// by a few lines after the format's description.
func frozenRecords(t testing.TB, c Codec) []byte {
	t.Helper()
	file, err := os.ReadFile("../testdata/wire/v0/records." + c.String() + ".hex")
	if err != nil {
		t.Fatal(err)
	}
	b, err := hex.DecodeString(strings.ReplaceAll(string(file), "\n", ""))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestCodecNames(t *testing.T) {
	f := func(s string, want Codec) {
		t.Helper()
		if got, err := ParseCodec(s); got != want || err != nil || got.String() != s || !got.Known() {
			t.Errorf("ParseCodec(%q) = %v, %v", s, got, err)
		}
	}
	f("none", None)
	f("gzip", Gzip)
	f("snappy", Snappy)
	f("zstd", Zstd)

	for _, s := range []string{"", "lz4", "ZSTD", "none "} {
		if _, err := ParseCodec(s); err == nil {
			t.Errorf("ParseCodec(%q) succeeded", s)
		}
	}
	for _, c := range []Codec{3, 5, 6, 7, 255} {
		if c.Known() || !strings.HasPrefix(c.String(), "codec ") {
			t.Errorf("%d is known as %s", c, c)
		}
	}
}

func TestDecompressOthers(t *testing.T) {
	want := frozenRecords(t, None)
	for _, c := range compressing {
		dst := make([]byte, len(want))
		if err := c.decompress(dst, frozenRecords(t, c)); err != nil || !bytes.Equal(dst, want) {
			t.Errorf("%s: %v\n got %x\nwant %x", c, err, dst, want)
		}
	}
}

// TestCompress: what compress writes, decompress reads, and so does the
// standard library where it can.
func TestCompress(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	noise := make([]byte, 300_000)
	for i := range noise {
		noise[i] = byte(rnd.Uint32())
	}
	f := func(src []byte, shorter bool) {
		t.Helper()
		for _, c := range compressing {
			dst := make([]byte, compressBound(len(src)))
			n := c.compress(dst, src)
			if shorter != (n > 0) || n >= len(src) && n > 0 {
				t.Errorf("%s: %d bytes became %d", c, len(src), n)
			}
			if n == 0 {
				continue
			}
			back := make([]byte, len(src))
			if err := c.decompress(back, dst[:n]); err != nil || !bytes.Equal(back, src) {
				t.Errorf("%s: %d bytes: came back different: %v", c, len(src), err)
			}
			if c == Gzip {
				z, err := stdgzip.NewReader(bytes.NewReader(dst[:n]))
				if err != nil {
					t.Fatal(err)
				}
				if got, err := io.ReadAll(z); err != nil || !bytes.Equal(got, src) {
					t.Errorf("the standard library reads it differently: %v", err)
				}
			}
		}
	}

	f(bytes.Repeat([]byte("order "), 20), true)
	f(bytes.Repeat([]byte("order "), 20_000), true)
	f(make([]byte, 5<<20), true) // longer than the zstd encoder's window
	f(noise[:100], false)
	f(noise, false)
}

// refused decompresses src as a section of n bytes and expects an error that
// took no more heap than a decoder does.
func refused(t *testing.T, c Codec, n int, src []byte) {
	t.Helper()
	dst := make([]byte, n, c.decompressRoom(n))
	_ = c.decompress(make([]byte, 1), frozenRecords(t, c)) // a decoder in the pool
	var err error
	size := allocated(func() { err = c.decompress(dst, src) })
	if err == nil {
		t.Errorf("%s: %d bytes taken for %d", c, len(src), n)
	}
	if size > 1<<20 {
		t.Errorf("%s: %d bytes refused as %d, but %d were allocated (%v)", c, len(src), n, size, err)
	}
}

func TestEveryCutOfCompressed(t *testing.T) {
	n := len(frozenRecords(t, None))
	for _, c := range compressing {
		src := frozenRecords(t, c)
		for at := range src {
			if err := c.decompress(make([]byte, n), src[:at]); err == nil {
				t.Errorf("%s: taken though cut at byte %d of %d", c, at, len(src))
			}
		}
		refused(t, c, n, append(slices.Clone(src), 0))
		refused(t, c, n, slices.Concat(src, src)) // two members, blocks, frames
		refused(t, c, n-1, src)                   // longer than recordsLength
		refused(t, c, n+1, src)                   // shorter
		refused(t, c, 2*n, slices.Concat(src, src))
		refused(t, c, 0, src)
		refused(t, c, n, nil)
	}
}

const huge = 32 << 20

// TestBombs: what grows a thousandfold and more costs no memory beyond the
// room for recordsLength, whatever it claims.
func TestBombs(t *testing.T) {
	zeros := make([]byte, huge)
	var gzipped, streamed bytes.Buffer
	w, err := stdgzip.NewWriterLevel(&gzipped, stdgzip.BestSpeed)
	if err != nil {
		t.Fatal(err)
	}
	e, err := zstd.NewWriter(&streamed, zstd.WithEncoderConcurrency(1))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write(zeros); err != nil || w.Close() != nil {
		t.Fatal(err)
	}
	if _, err := e.Write(zeros); err != nil || e.Close() != nil { // a frame that does not tell its size
		t.Fatal(err)
	}
	sized := e.EncodeAll(zeros, nil)
	snappy, s2only := s2.EncodeSnappy(nil, zeros), s2.Encode(nil, zeros) // the latter is a few bytes

	for _, claim := range []int{0, 7, 1000, 1 << 20, DefaultMaxRecords} {
		refused(t, Gzip, claim, gzipped.Bytes())
		refused(t, Snappy, claim, snappy)
		refused(t, Snappy, claim, s2only)
		refused(t, Snappy, claim, []byte{0x80, 0x80, 0x80, 0x80, 0x04, 0, 0}) // claims 1 GiB
		refused(t, Snappy, claim, []byte{0xff, 0xff, 0xff, 0xff, 0x0f, 0, 0}) // and 4 GiB
		refused(t, Zstd, claim, sized)
		refused(t, Zstd, claim, streamed.Bytes())
		refused(t, Zstd, claim, frame(0, 13<<3, nil, rleBlocks(512)...)) // 2 KiB of 64 MiB
	}
}

// frame builds a zstd frame by hand: descriptor, window byte (-1: none), the
// content size field, and blocks.
func frame(descriptor byte, window int, size []byte, blocks ...[]byte) []byte {
	b := []byte{0x28, 0xb5, 0x2f, 0xfd, descriptor}
	if window >= 0 {
		b = append(b, byte(window))
	}
	return slices.Concat(append(b, size...), slices.Concat(blocks...))
}

// block builds a block of a type, 0 raw or 1 RLE, with its size field.
func block(last bool, kind, size int, content string) []byte {
	h := size<<3 | kind<<1
	if last {
		h |= 1
	}
	return append([]byte{byte(h), byte(h >> 8), byte(h >> 16)}, content...)
}

// rleBlocks returns n blocks of 128 KiB of zeros, 4 bytes each.
func rleBlocks(n int) [][]byte {
	bs := slices.Repeat([][]byte{block(false, 1, 128<<10, "\x00")}, n)
	bs[n-1] = block(true, 1, 128<<10, "\x00")
	return bs
}

func TestZstdFrames(t *testing.T) {
	const single = 1 << 5
	abc := block(true, 0, 3, "abc")
	f := func(src []byte) {
		t.Helper()
		dst := make([]byte, 3)
		if err := Zstd.decompress(dst, src); err != nil || string(dst) != "abc" {
			t.Errorf("%x: %q, %v", src, dst, err)
		}
	}
	no := func(src []byte) {
		t.Helper()
		refused(t, Zstd, 3, src)
	}
	le := func(n uint64) []byte { return binary.LittleEndian.AppendUint64(nil, n) }

	f(frame(0, 0, nil, abc))             // the smallest window, no content size
	f(frame(0, 13<<3, nil, abc))         // 8 MiB, the greatest
	f(frame(single, -1, []byte{3}, abc)) // content size instead of a window
	f(frame(3<<6, 0, le(3), abc))        // both
	f(frame(0, 0, nil, block(false, 0, 1, "a"), block(false, 1, 1, "b"), block(true, 0, 1, "c")))

	no(frame(0, 13<<3|1, nil, abc)) // 9 MiB
	no(frame(0, 31<<3|7, nil, abc)) // nearly 4 TiB
	no(frame(3<<6|single, -1, le(8<<20+1), abc))
	eight := slices.Repeat([][]byte{block(false, 1, 128<<10, "x")}, 64)
	one := block(true, 0, 1, "x")
	refused(t, Zstd, 8<<20+1, frame(3<<6|single, -1, le(8<<20+1), append(eight, one)...)) // all in one segment: a window of that size
	eight[63] = block(true, 1, 128<<10, "x")
	if err := Zstd.decompress(make([]byte, 8<<20), frame(3<<6|single, -1, le(8<<20), eight...)); err != nil {
		t.Errorf("8 MiB in one segment: %v", err)
	}
	no(frame(single, -1, []byte{2}, abc)) // the content size lies
	no(frame(single, -1, []byte{4}, abc))
	no(frame(3<<6, 0, le(1<<63), abc))
	no(frame(3<<6, 0, le(1<<30), rleBlocks(20)...))
	no(frame(1, 0, []byte{7}, abc))                                          // dictionary 7
	no(frame(1<<3, 0, nil, abc))                                             // reserved bit
	no(frame(0, 0, nil, block(true, 3, 3, "abc")))                           // reserved block type
	no(frame(0, 0, nil, block(false, 0, 3, "abc")))                          // no last block
	no(frame(0, 0, nil, abc, abc))                                           // bytes after the last block
	no(append(frame(0, 0, nil, abc), "\x50\x2a\x4d\x18\x00\x00\x00\x00"...)) // a skippable frame behind
	no(append([]byte("\x50\x2a\x4d\x18\x00\x00\x00\x00"), frame(0, 0, nil, abc)...))
	no([]byte("\x50\x2a\x4d\x18\x03\x00\x00\x00abc"))
	no(frame(1<<2, 0, nil, abc, []byte("0000"))) // a checksum that does not match
	no(frame(1<<2, 0, nil, abc))                 // and one that is missing
}

// TestSnappyWithoutS2: an S2 block is refused, since other decoders cannot
// read it.
func TestSnappyWithoutS2(t *testing.T) {
	src := bytes.Repeat([]byte("0123456789abcdefghij"), 5000)
	s2only := s2.EncodeBest(nil, src)
	if got, err := s2.Decode(nil, s2only); err != nil || !bytes.Equal(got, src) {
		t.Fatal(err)
	}
	refused(t, Snappy, len(src), s2only)
}

// TestDecoderLimit: a section above the limit is refused before its memory is
// taken, one below it that lies costs the section only.
func TestDecoderLimit(t *testing.T) {
	for _, c := range compressing {
		b := sample(t, BuilderOptions{Codec: c})
		f := func(recordsLength uint32, limit int, want error, most uint64) {
			t.Helper()
			lie := edit(b, put32(atRecordsLength, recordsLength))
			if err := lie.Verify(); err != nil {
				t.Fatal(err)
			}
			d := Decoder{MaxRecords: limit}
			defer d.Release()
			var err error
			if size := allocated(func() { _, err = d.Section(lie) }); size > most {
				t.Errorf("%s, %d bytes claimed: took %d", c, recordsLength, size)
			}
			if !errors.Is(err, want) {
				t.Errorf("%s, %d bytes claimed: %v, want %v", c, recordsLength, err, want)
			}
		}

		f(1001, 1000, CodeTooLarge, 4<<10)
		f(DefaultMaxRecords+1, 0, CodeTooLarge, 4<<10)
		f(MaxRecordsBytes, 0, CodeTooLarge, 4<<10)
		f(1000, 1000, ErrCorrupt, 1<<20)
		f(1<<20, 0, ErrCorrupt, 3<<20)
	}
}

func TestCodecAllocs(t *testing.T) {
	if raceEnabled {
		t.Skip("not measured under the race detector")
	}
	src := bytes.Repeat([]byte(`{"order":1,"stage":"payment"}`), 2000)
	for _, c := range compressing {
		dst := make([]byte, compressBound(len(src)))
		back := make([]byte, len(src))
		n := 0
		if got := testing.AllocsPerRun(50, func() { n = c.compress(dst, src) }); got > 0 {
			t.Errorf("%s: %v allocations to compress", c, got)
		}
		if got := testing.AllocsPerRun(50, func() {
			if err := c.decompress(back, dst[:n]); err != nil {
				t.Fatal(err)
			}
		}); got > 0 {
			t.Errorf("%s: %v allocations to uncompress", c, got)
		}
	}
}

// TestCompressBound: small sections that hardly shrink, where encoders try
// most before they give up, stay within the room.
func TestCompressBound(t *testing.T) {
	for n := range 5000 {
		if got, least := compressBound(n), s2.MaxEncodedLen(n); got < least {
			t.Fatalf("compressBound(%d) = %d, snappy needs %d", n, got, least)
		}
	}
	if raceEnabled {
		t.Skip("not measured under the race detector")
	}
	rnd := rand.New(rand.NewPCG(3, 4))
	for range 2000 {
		src := make([]byte, 20+rnd.IntN(300))
		run := rnd.IntN(len(src))
		for i := range run {
			src[i] = byte(rnd.Uint32())
		}
		dst := make([]byte, compressBound(len(src)))
		for _, c := range compressing {
			got := 1.0
			for try := 0; got > 0 && try < 3; try++ { // a collection may have emptied the pools
				got = testing.AllocsPerRun(4, func() { c.compress(dst, src) })
			}
			if got > 0 {
				t.Fatalf("%s: %v allocations to compress %d bytes, %d of them noise", c, got, len(src), run)
			}
		}
	}
}
