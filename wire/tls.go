package wire

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/teralog/teralog/mem"
)

// sealPiece is how much is encrypted before it is sent, in bytes: with what TLS
// adds to its four records it fits a buffer of 64 KiB.
const sealPiece = 64<<10 - 256

// maxSealed bounds the ciphertext that waits to be sent. It is a piece, what was
// held back before it, and answers of TLS itself, which a peer can ask for
// without end.
const maxSealed = 128 << 10

// A tlsConn is an encrypted connection as the transport uses it. A *tls.Conn
// alone cannot write without waiting: a write cut short by a deadline leaves it
// unfit for more. So here it encrypts into memory, and the ciphertext is written
// like other bytes, by system calls that do not block.
//
// As a socket does, it takes bytes when they leave: it encrypts one piece, and
// counts its bytes once all of its ciphertext was taken from it. Until then
// the sender comes back with the same bytes; some of them may have left.
type tlsConn struct {
	net.Conn         // the connection below, for its addresses and deadlines
	below    *socket // the same, for reading and writing
	tls      *tls.Conn
	pool     *mem.Pool
	shake    *handshake  // nil once it has ended well; before that nobody else reads or writes
	ready    atomic.Bool // it has

	// The fields below belong to whoever reads.
	nowait   bool
	ahead    [1]byte // read by Ended
	lastWord error   // what the peer ended with, as Ended found it
	hasAhead bool

	// The fields below belong to whoever sends, with sending locked. Close tries
	// the lock: a sender that waits for the peer is woken by the end of the
	// connection below.
	sending sync.Mutex
	out     *mem.Buf // ciphertext, of which off bytes were sent
	off     int
	begun   int  // bytes in out and sealed that have not been counted,
	parted  bool // of which some may have left
	one     [1][]byte
	closed  bool

	mu     sync.Mutex
	sealed *mem.Buf // ciphertext that follows out; nil: none
	shut   bool     // no more is taken
}

// newTLSConn returns a connection over nc whose handshake h is still to be done;
// side is tls.Server or tls.Client.
func newTLSConn(nc net.Conn, side func(net.Conn, *tls.Config) *tls.Conn, config *tls.Config, pool *mem.Pool, patience time.Duration, h *handshake) *tlsConn {
	c := &tlsConn{Conn: nc, below: newSocket(nc, patience), pool: pool, shake: h}
	c.tls = side(records{nc, c}, config)
	return c
}

// errNotTLS says that the peer answers, but not by TLS.
var errNotTLS = errors.New("the server does not speak TLS at this address")

// dialTLS encrypts a connection that was dialled to addr; ctx bounds the handshake.
func dialTLS(ctx context.Context, nc net.Conn, addr string, o DialOptions) (*tlsConn, error) {
	config := o.TLS.Clone()
	config.DynamicRecordSizingDisabled = true // frames are of use only whole
	if config.ServerName == "" {
		if host, _, err := net.SplitHostPort(addr); err == nil {
			config.ServerName = host
		}
	}
	c := newTLSConn(nc, tls.Client, config, o.Pool, o.SendTimeout, &handshake{left: maxHandshake})
	err := c.tls.HandshakeContext(ctx)
	if err == nil {
		c.shaken()
		return c, nil
	}
	c.below.discard() // else the end would be a reset, and the server not read why
	nc.Close()
	if _, no := errors.AsType[tls.RecordHeaderError](err); no {
		return nil, Errorf(CodeUnsupported, "%v", errNotTLS)
	}
	return nil, fmt.Errorf("TLS handshake with %s: %w", addr, err)
}

// shaken ends the handshake.
func (c *tlsConn) shaken() {
	c.shake = nil
	c.ready.Store(true)
}

// records is what a *tls.Conn reads and writes: ciphertext, which comes from the
// connection below, and goes into memory once the handshake has ended.
type records struct {
	net.Conn
	c *tlsConn
}

func (r records) Read(p []byte) (int, error) {
	c := r.c
	switch {
	case c.shake != nil:
		return c.shake.read(r.Conn, p)
	case c.nowait:
		return c.below.readNow(p)
	}
	return r.Conn.Read(p)
}

// Write takes ciphertext from whoever sends, and from whoever reads: TLS answers
// some of what it reads by itself.
func (r records) Write(p []byte) (int, error) {
	c := r.c
	if c.shake != nil {
		return c.shake.write(r.Conn, p)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.shut:
		return 0, net.ErrClosed
	case c.sealed == nil:
		c.sealed = c.pool.Get(max(len(p), minBuf))
		c.sealed.B = c.sealed.B[:0]
	case len(c.sealed.B)+len(p) > maxSealed:
		return 0, fmt.Errorf("%d bytes of ciphertext wait to be sent", len(c.sealed.B))
	case len(c.sealed.B)+len(p) > cap(c.sealed.B):
		c.grow(len(c.sealed.B) + len(p))
	}
	c.sealed.B = append(c.sealed.B, p...)
	return len(p), nil
}

// minBuf is the least buffer for ciphertext.
const minBuf = 512

// grow moves the ciphertext to a buffer for n bytes; c.mu is held.
func (c *tlsConn) grow(n int) {
	b := c.pool.Get(n)
	b.B = append(b.B[:0], c.sealed.B...)
	c.sealed.Release()
	c.sealed = b
}

// A *tls.Conn sets deadlines only for its own last words, which go into memory.
func (records) SetDeadline(time.Time) error      { return nil }
func (records) SetWriteDeadline(time.Time) error { return nil }

// Read decrypts what has arrived.
func (c *tlsConn) Read(p []byte) (int, error) {
	if c.hasAhead && len(p) > 0 {
		c.hasAhead = false
		p[0] = c.ahead[0]
		return 1, nil
	}
	return c.tls.Read(p)
}

// Ended reports whether the peer has ended the connection and nothing is left
// to read. It does not block. Whoever reads may call it.
func (c *tlsConn) Ended() bool {
	if c.hasAhead {
		return false
	}
	c.nowait = true
	n, err := c.tls.Read(c.ahead[:])
	c.nowait = false
	c.hasAhead = n > 0
	if n > 0 || errors.Is(err, os.ErrDeadlineExceeded) {
		return false
	}
	c.lastWord = err
	return true
}

// Write sends all of p, waiting where it must.
func (c *tlsConn) Write(p []byte) (n int, err error) {
	for n < len(p) && err == nil {
		var m int
		m, err = c.write([][]byte{p[n:]}, false, true)
		n += m
	}
	return n, err
}

// write is socket.write. What more follows is held back, as far as it is short.
func (c *tlsConn) write(bufs [][]byte, more, block bool) (int, error) {
	c.sending.Lock()
	defer c.sending.Unlock()
	if c.begun == 0 {
		for _, b := range bufs {
			if err := c.seal(b[:min(len(b), sealPiece-c.begun)]); err != nil {
				return 0, err
			}
		}
	}
	if n := c.begun; more && n < sealPiece/4 {
		c.begun = 0
		return n, nil
	}
	return c.send(block)
}

// writeRange is write for the next of the left bytes of f at off. Once they are
// encrypted no other memory holds them, however long the peer takes.
func (c *tlsConn) writeRange(f *FileRange, off, left int64, block bool) (int, error) {
	c.sending.Lock()
	defer c.sending.Unlock()
	if c.begun == 0 {
		if err := c.sealRange(f, off, left); err != nil {
			return 0, err
		}
	}
	return c.send(block)
}

// sealRange encrypts one piece of f. With a large rest it should have a place among
// those that do so at once.
func (c *tlsConn) sealRange(f *FileRange, off, left int64) error {
	if p := c.below.bulk; p != nil && left > maxInline && p.enter() {
		defer p.leave()
	}
	b := c.pool.Get(int(min(left, sealPiece)))
	defer b.Release()
	if err := readRange(f, off, b.B); err != nil {
		return err
	}
	return c.seal(b.B)
}

// seal encrypts p, and notes it as begun.
func (c *tlsConn) seal(p []byte) error {
	if c.closed {
		return net.ErrClosed
	}
	c.begun += len(p)
	_, err := c.tls.Write(p)
	return err
}

// send sends what was encrypted, and returns how many bytes that were not counted
// before have left. Without block 0 says that it would have had to wait.
func (c *tlsConn) send(block bool) (int, error) {
	if done, err := c.flush(block); !done {
		return 0, err
	}
	n := c.begun
	c.begun, c.parted = 0, false
	return n, nil
}

// flush sends what was encrypted; done says that all of it has left.
func (c *tlsConn) flush(block bool) (done bool, err error) {
	for c.next() {
		c.one[0] = c.out.B[c.off:]
		n, err := c.below.write(c.one[:], false, block)
		c.one[0] = nil
		if err != nil {
			c.drop()
			return false, err
		}
		if n == 0 {
			return false, nil
		}
		c.off += n
		c.parted = c.begun > 0
	}
	if c.closed {
		return false, net.ErrClosed
	}
	return true, nil
}

// next reports whether there is ciphertext to send.
func (c *tlsConn) next() bool {
	if c.out != nil && c.off == len(c.out.B) {
		c.out.Release()
		c.out = nil
	}
	if c.out == nil {
		c.mu.Lock()
		c.out, c.off, c.sealed = c.sealed, 0, nil
		c.mu.Unlock()
	}
	return c.out != nil
}

// drop gives up what was not sent, and all that would follow.
func (c *tlsConn) drop() {
	c.closed = true
	c.mu.Lock()
	defer c.mu.Unlock()
	c.shut = true
	for _, b := range []**mem.Buf{&c.out, &c.sealed} {
		if *b != nil {
			(*b).Release()
			*b = nil
		}
	}
}

// CloseWrite tells the peer that nothing more will come. All that was written has
// left by then.
func (c *tlsConn) CloseWrite() error {
	c.sending.Lock()
	defer c.sending.Unlock()
	if err := c.tls.CloseWrite(); err != nil {
		return err
	}
	_, err := c.flush(false)
	c.below.closeWrite()
	return err
}

// Close ends the connection, and tells the peer if that needs no waiting. It may
// be called from anywhere.
func (c *tlsConn) Close() error {
	if c.sending.TryLock() {
		if c.ready.Load() && !c.closed {
			c.tls.CloseWrite()
			c.flush(false)
			c.drop()
		}
		c.sending.Unlock()
	}
	return c.Conn.Close()
}

// maxHandshake is how many bytes a peer may send in a handshake, inclusive. A chain
// of certificates has a tenth of it.
const maxHandshake = 32 << 10

// A handshake is the way of a connection's bytes until it is over.
type handshake struct {
	first []byte        // read already
	left  int           // bytes that the peer may send
	turns chan struct{} // full of those who compute; nil: any number may
}

// read hands the peer's bytes to TLS.
func (h *handshake) read(from io.Reader, p []byte) (n int, err error) {
	if len(h.first) > 0 {
		n = copy(p, h.first)
		h.first = h.first[n:]
		return n, nil
	}
	if h.left <= 0 {
		return 0, fmt.Errorf("%w: a handshake of more than %d bytes", ErrCorrupt, maxHandshake)
	}
	h.leave()
	defer h.enter()
	n, err = from.Read(p[:min(len(p), h.left)])
	h.left -= n
	return n, err
}

// write hands bytes of TLS to the peer.
func (h *handshake) write(to io.Writer, p []byte) (n int, err error) {
	h.leave()
	defer h.enter()
	return to.Write(p)
}

// enter waits for a turn to compute, which is never long: who has one gives it
// up while it waits for its peer.
func (h *handshake) enter() {
	if h.turns != nil {
		h.turns <- struct{}{}
	}
}

func (h *handshake) leave() {
	if h.turns != nil {
		<-h.turns
	}
}

// beginsTLS reports whether bytes that begin with p are a handshake of TLS;
// known is false while that cannot be told. No frame that may come first begins
// like one: its length would be 64 KiB at least.
func beginsTLS(p []byte) (yes, known bool) {
	switch {
	case len(p) > 0 && p[0] != 22, len(p) > 1 && p[1] != 3, len(p) > 2 && p[2] == 0:
		return false, true
	}
	return len(p) > 2, len(p) > 2
}
