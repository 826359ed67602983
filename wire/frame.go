package wire

import (
	"encoding/binary"
	"fmt"
	"io"
	"math/bits"
	"time"

	"github.com/teralog/teralog/mem"
)

// Frames, as doc.go draws them: a size that counts what follows it, a header,
// and a body.
const (
	sizeLen     = 4
	requestLen  = 16 // size and request header
	responseLen = 16 // size and response header
)

// MaxFrame is the greatest size a request frame may claim after Hello, in
// bytes, inclusive; before Hello it is maxHelloFrame.
const (
	MaxFrame      = 16 << 20
	maxHelloFrame = 8 << 10
)

// A requestHeader is what stands before a request's body.
type requestHeader struct {
	api         API
	version     Version
	correlation uint32
	flags       uint32
}

// putRequestHeader fills in the header of a request whose first part is frame
// and which rest bytes from elsewhere follow.
func putRequestHeader(frame []byte, h requestHeader, rest int) {
	le := binary.LittleEndian
	le.PutUint32(frame, uint32(len(frame)-sizeLen+rest))
	le.PutUint16(frame[4:], uint16(h.api))
	le.PutUint16(frame[6:], uint16(h.version))
	putCorrelation(frame, h.correlation)
	le.PutUint32(frame[12:], h.flags)
}

func putCorrelation(frame []byte, id uint32) { binary.LittleEndian.PutUint32(frame[8:], id) }

func parseRequestHeader(frame []byte) requestHeader {
	le := binary.LittleEndian
	return requestHeader{
		api:         API(le.Uint16(frame[4:])),
		version:     Version(le.Uint16(frame[6:])),
		correlation: le.Uint32(frame[8:]),
		flags:       le.Uint32(frame[12:]),
	}
}

// A responseHeader is what stands before a response's body.
type responseHeader struct {
	correlation uint32
	code        Code
	throttle    time.Duration // sent in whole milliseconds, rounded up
}

// putResponseHeader fills in the header of a response whose first part is
// frame and which files bytes from elsewhere follow.
func putResponseHeader(frame []byte, h responseHeader, files int64) {
	le := binary.LittleEndian
	size := int64(len(frame)-sizeLen) + files
	if size > maxResponse {
		panic(fmt.Sprintf("BUG: response of %d bytes, the format ends at %d", size, maxResponse))
	}
	millis := (h.throttle + time.Millisecond - 1) / time.Millisecond
	le.PutUint32(frame, uint32(size))
	le.PutUint32(frame[4:], h.correlation)
	le.PutUint16(frame[8:], uint16(h.code))
	le.PutUint16(frame[10:], 0)
	le.PutUint32(frame[12:], uint32(max(0, min(millis, 1<<31-1))))
}

// maxResponse is the greatest size of a response frame anybody may send. What
// a client takes is its own affair and usually less.
const maxResponse = 1<<31 - 1

func parseResponseHeader(frame []byte) responseHeader {
	le := binary.LittleEndian
	return responseHeader{
		correlation: le.Uint32(frame[4:]),
		code:        Code(le.Uint16(frame[8:])),
		throttle:    time.Duration(le.Uint32(frame[12:])) * time.Millisecond,
	}
}

// Sizes of read buffers, all powers of two. A connection starts with the
// least; many frames in one read make its next buffers larger, frames that do
// not fit get a buffer of their own anyway.
const (
	minChunk   = 4 << 10
	maxChunk   = 256 << 10
	skipChunk  = 64 << 10
	midFrame   = 128 << 10 // up to this size several frames share a read
	firstPiece = 64 << 10  // what an unproven peer's claim of a large frame gets at first
)

// Low-water mark of the socket inside a large frame: a reader that is woken
// once per 512 KiB instead of once per segment receives at half the cost.
const (
	minLowat = 64 << 10
	maxLowat = 512 << 10
)

// longRead is how many bytes read at once are a piece of a backlog. What arrives at the
// end of a log comes in shorter pieces, and whoever reads that is to stay close.
const longRead = 256 << 10

// A frameReader cuts what arrives on a socket into frames.
//
// Frames are handed out as slices of the buffer they were read into, so many
// small ones cost one read and no copy; whoever keeps one retains buf. While
// nothing is pending the reader holds no buffer: it takes one when bytes have
// arrived and gives up its reference when all of them were handed out.
//
// One goroutine at a time uses it.
type frameReader struct {
	sock *socket
	pool *mem.Pool

	buf        *mem.Buf
	start, end int // buf.B[start:end] has been read and not handed out
	frames     int // handed out of buf
	chunk      int // size of the next buffer
	skipping   int // bytes still to be thrown away
	proven     bool
	yield      func() // nil, or called after a long read, see mem.Yield

	first     [requestLen]byte // for sockets that can only be read into memory at hand
	lowat     int              // what the socket has been told
	wantLowat int
	n         int // result of the read callback
	err       error
	onRead    func(fd uintptr) bool
}

func (r *frameReader) init(s *socket, p *mem.Pool) {
	r.sock, r.pool = s, p
	r.chunk, r.lowat, r.wantLowat = minChunk, 1, 1
	r.onRead = r.tryRead
}

// have returns the number of bytes read and not handed out.
func (r *frameReader) have() int { return r.end - r.start }

// peek returns the first n unread bytes, which stay unread.
func (r *frameReader) peek(n int) []byte { return r.buf.B[r.start : r.start+n] }

// frameLen returns the length of the frame at the front, its size field
// included; ok is false while that field is incomplete. A size below least or
// above most is an error: such a frame must not get any memory.
func (r *frameReader) frameLen(least, most int) (n int, ok bool, err error) {
	if r.skipping > 0 || r.have() < sizeLen {
		return 0, false, nil
	}
	size := binary.LittleEndian.Uint32(r.peek(sizeLen))
	if uint64(size) < uint64(least) || uint64(size) > uint64(most) {
		return 0, false, fmt.Errorf("%w: frame of %d bytes, allowed are %d to %d", ErrCorrupt, size, least, most)
	}
	return sizeLen + int(size), true, nil
}

// take hands out the frame at the front, n bytes that have all been read. It
// is a slice of r.buf, of which the caller retains a reference to keep it.
func (r *frameReader) take(n int) []byte {
	frame := r.buf.B[r.start : r.start+n : r.start+n]
	r.start += n
	r.frames++
	if n > firstPiece {
		r.proven = true
	}
	return frame
}

// skip throws away n bytes from the front, as far as they are not read yet
// when they arrive.
func (r *frameReader) skip(n int) {
	now := min(n, r.have())
	r.start += now
	r.skipping += n - now
}

// drop gives up the reference to the buffer and whatever is unread in it.
func (r *frameReader) drop() {
	if r.buf == nil {
		return
	}
	r.adapt()
	r.buf.Release()
	r.buf, r.start, r.end, r.frames = nil, 0, 0, 0
}

// reserve makes room so that the frame at the front, of which need bytes are
// certain, can be read to its end. A peer that has not sent a large frame yet
// gets room in doubling pieces: a claim alone is not worth 16 MiB.
func (r *frameReader) reserve(need int) {
	if r.have() == 0 {
		return // fill takes a fresh buffer
	}
	r.fit(need)
	room := len(r.buf.B) - r.start
	if need <= room {
		return
	}
	size := max(need, r.chunk)
	if need > firstPiece && !r.proven {
		switch full := r.have() == room; {
		case full:
			size = min(need, max(firstPiece, 2*room))
		case room >= firstPiece:
			return
		default:
			size = firstPiece
		}
	}
	r.adapt()
	b := r.pool.Get(size)
	n := copy(b.B, r.buf.B[r.start:r.end])
	r.buf.Release()
	r.buf, r.start, r.end, r.frames = b, 0, n, 0
}

// claim returns how many bytes the frame at the front, n bytes long, has to be
// charged for by now: all of them, or as many as reserve makes room for.
func (r *frameReader) claim(n int) int {
	if n <= firstPiece || r.proven || r.have() >= n {
		return n
	}
	return min(n, max(firstPiece, 2*r.have()))
}

// adapt chooses the size of later buffers by how well this one was used.
func (r *frameReader) adapt() {
	switch size := len(r.buf.B); {
	case size != r.chunk || r.end == 0:
	case r.end == size && r.frames > 1:
		r.chunk = min(maxChunk, 4*r.chunk)
	case r.end < size/8:
		r.chunk = max(minChunk, r.chunk/2)
	}
}

// fit chooses the size of later buffers by a frame that did not arrive whole:
// several of middle size into one, but only the beginning of a large one,
// since that beginning is copied.
func (r *frameReader) fit(need int) {
	switch {
	case need <= r.chunk:
	case need <= midFrame:
		r.chunk = min(maxChunk, 1<<bits.Len(uint(4*need-1)))
	default:
		r.chunk = 4 * minChunk
	}
}

// fill reads once and blocks until there is something. need is the length of
// the frame at the front or, if unknown, 0; reserve has been called with it.
func (r *frameReader) fill(need int) error {
	if r.have() == 0 {
		r.drop()
	}
	r.aim(need - r.have())
	n, err := r.read()
	if n == 0 {
		if err == io.EOF && r.have() > 0 {
			return io.ErrUnexpectedEOF
		}
		return err
	}
	r.end += n
	if r.skipping > 0 {
		gone := min(r.skipping, r.have())
		r.skipping -= gone
		r.start += gone
	}
	return nil
}

// read returns how many bytes arrived behind end; an error comes with none.
func (r *frameReader) read() (int, error) {
	if r.sock.raw != nil {
		r.n, r.err = 0, nil
		if err := r.sock.raw.Read(r.onRead); err != nil {
			return 0, err
		}
		return r.n, r.err
	}
	if r.buf != nil || r.skipping > 0 {
		return plainRead(r.sock.Conn, r.space())
	}
	n, err := plainRead(r.sock.Conn, r.first[:])
	if n > 0 {
		copy(r.space(), r.first[:n])
	}
	return n, err
}

// plainRead reads at least one byte or returns an error.
func plainRead(c io.Reader, p []byte) (int, error) {
	for range 100 {
		if n, err := c.Read(p); n > 0 {
			return n, nil // the error comes again with the next read
		} else if err != nil {
			return 0, err
		}
	}
	return 0, io.ErrNoProgress
}

// space returns where to read to, taking a buffer if there is none.
func (r *frameReader) space() []byte {
	if r.buf == nil {
		size := r.chunk
		if r.skipping > size {
			size = skipChunk
		}
		r.buf = r.pool.Get(size)
	}
	return r.buf.B[r.end:]
}

// aim decides the low-water mark for a read of a frame of which missing bytes
// have not arrived. It never lies above what is certain to come, and is left
// alone as long as that holds, since telling the socket is a system call.
func (r *frameReader) aim(missing int) {
	switch {
	case missing <= minLowat:
		r.wantLowat = 1
	case r.lowat == 1 || r.lowat > missing:
		r.wantLowat = min(missing, maxLowat)
	default:
		r.wantLowat = r.lowat
	}
}
