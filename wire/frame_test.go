package wire

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"math/rand/v2"
	"testing"

	"github.com/teralog/teralog/mem"
)

// newTestReader returns a reader of script, which arrives step bytes at a time.
func newTestReader(script []byte, step int) *frameReader {
	r := &frameReader{}
	r.init(newSocket(&scriptConn{script, step}, 0), mem.NewPool("frames"))
	return r
}

// readFrames cuts everything into frames of at most most bytes, as a
// connection does.
func readFrames(r *frameReader, most int, f func(frame []byte)) error {
	for {
		n, known, err := r.frameLen(0, most)
		if err != nil {
			return err
		}
		if known && r.have() >= n {
			f(r.take(n))
			continue
		}
		r.reserve(max(n, sizeLen))
		if err := r.fill(n); err != nil {
			r.drop()
			return err
		}
	}
}

func frameOf(n int, fill byte) []byte {
	return append(binary.LittleEndian.AppendUint32(nil, uint32(n)), bytes.Repeat([]byte{fill}, n)...)
}

// TestFrames cuts frames of all sizes out of reads of all sizes.
func TestFrames(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	sizes := []int{0, 1, 12, 100, minChunk - sizeLen, minChunk, 20_000, midFrame, firstPiece + 1, 300_000, 1 << 20}
	for _, step := range []int{1, 7, 1000, minChunk, 100_000, 1 << 20} {
		var want [][]byte
		var script []byte
		for i := range 60 {
			n := sizes[rng.IntN(len(sizes))]
			if step == 1 {
				n %= 2000
			}
			want = append(want, frameOf(n, byte(i)))
			script = append(script, want[i]...)
		}
		r := newTestReader(script, step)
		i := 0
		err := readFrames(r, 1<<20, func(frame []byte) {
			if !bytes.Equal(frame, want[i]) {
				t.Fatalf("step %d: frame %d differs", step, i)
			}
			i++
		})
		if err != io.EOF || i != len(want) {
			t.Errorf("step %d: %d of %d frames, %v", step, i, len(want), err)
		}
		if s := r.pool.Stats(); s.Live != 0 {
			t.Errorf("step %d: %d buffers out", step, s.Live)
		}
	}
}

// TestFramesCut ends the stream after every byte: all frames before that come
// whole, and the end is unexpected unless it lies between two.
func TestFramesCut(t *testing.T) {
	script := append(append(frameOf(3, 1), frameOf(0, 2)...), frameOf(20, 3)...)
	ends := []int{7, 11, 35}
	for cut := range len(script) + 1 {
		r, n := newTestReader(script[:cut], 5), 0
		err := readFrames(r, 100, func([]byte) { n++ })
		want, whole := io.ErrUnexpectedEOF, 0
		if cut == 0 {
			want = io.EOF
		}
		for _, end := range ends {
			if cut == end {
				want = io.EOF
			}
			if cut >= end {
				whole++
			}
		}
		if err != want || n != whole {
			t.Errorf("cut at %d: %d frames, %v; want %d, %v", cut, n, err, whole, want)
		}
	}
}

// TestFrameLimit refuses a size as soon as its four bytes are there.
func TestFrameLimit(t *testing.T) {
	for _, size := range []uint32{101, 1 << 20, 1<<31 - 1, 1 << 31, 1<<32 - 1} {
		r := newTestReader(append(frameOf(100, 1), binary.LittleEndian.AppendUint32(nil, size)...), 1000)
		n := 0
		if err := readFrames(r, 100, func([]byte) { n++ }); !errors.Is(err, ErrCorrupt) || n != 1 {
			t.Errorf("size %d: %d frames, %v", size, n, err)
		}
		if gets := r.pool.Stats().Gets; gets != 1 {
			t.Errorf("size %d took %d buffers", size, gets)
		}
		r.drop()
	}
}

// TestFirstLargeFrame follows the memory a peer gets for a large frame: in
// doubling pieces the first time, in one piece after it has sent one.
func TestFirstLargeFrame(t *testing.T) {
	const n = 1 << 20
	r := newTestReader(append(frameOf(n, 1), frameOf(n, 2)...), 10_000)
	var got []int
	see := func() {
		if size := len(r.buf.B); len(got) == 0 || got[len(got)-1] != size {
			got = append(got, size)
		}
	}
	for frames := 0; frames < 2; {
		size, known, err := r.frameLen(0, n)
		if err != nil {
			t.Fatal(err)
		}
		if known && r.have() >= size {
			r.take(size)
			frames++
			continue
		}
		r.reserve(max(size, sizeLen))
		if r.buf != nil {
			see()
		}
		if err := r.fill(size); err != nil {
			t.Fatal(err)
		}
		if most := 2*r.have() + firstPiece; frames == 0 && len(r.buf.B) > most {
			t.Fatalf("%d bytes of memory for %d received", len(r.buf.B), r.have())
		}
	}
	want := []int{minChunk, 64 << 10, 128 << 10, 256 << 10, 512 << 10, n + sizeLen, n + sizeLen}
	if last := got[len(got)-1]; last != n+sizeLen {
		t.Errorf("pieces of %v, want %v", got, want)
	}
	for i, size := range want[1:5] {
		if got[i+1] != size && got[i] != size {
			t.Errorf("pieces of %v, want %v", got, want)
		}
	}
	r.drop()
}

// TestChunks expects read buffers to grow while small frames fill them and to
// shrink when little comes.
func TestChunks(t *testing.T) {
	var script []byte
	for range 20_000 {
		script = append(script, frameOf(60, 1)...)
	}
	r := newTestReader(script, 1<<20)
	readFrames(r, 100, func([]byte) {})
	if r.chunk != maxChunk {
		t.Errorf("buffers of %d bytes under load, want %d", r.chunk, maxChunk)
	}
	// In steps of 16 bytes every frame ends with a read, so each gets a buffer.
	r.sock.Conn = &scriptConn{script[:640], 16}
	readFrames(r, 100, func([]byte) {})
	if r.chunk != minChunk {
		t.Errorf("buffers of %d bytes for lone frames, want %d", r.chunk, minChunk)
	}
}
