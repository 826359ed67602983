package wire

import (
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"time"
)

// Both say that a peer came to the wrong kind of address.
var (
	errSpokePlain = errors.New("it does not speak TLS")
	errSpokeTLS   = errors.New("it speaks TLS")
)

// mismatchTime is how long a peer that came to the wrong kind of address has to
// say what is to be answered, and then how long to read the answer.
const mismatchTime = 400 * time.Millisecond

// ServeTLS is Serve for encrypted connections. Each has the configuration that
// config returned when it was accepted, so what changes it lets those that are
// open live on. Session tickets are worth something only where the same
// configuration is given.
func (s *Server) ServeTLS(ln net.Listener, config func() *tls.Config) error {
	return s.ServeTLSFor(ln, nil, config)
}

// ServeTLSFor is ServeTLS for the clients of one owner, whom Session is told.
func (s *Server) ServeTLSFor(ln net.Listener, owner any, config func() *tls.Config) error {
	return s.serve(ln, owner, func(nc net.Conn) net.Conn {
		return newTLSConn(nc, tls.Server, config(), s.replies, s.SendTimeout, &handshake{left: maxHandshake, turns: s.handshakes})
	})
}

// shake does the handshake of an encrypted connection, within the time of Hello.
func (c *serverConn) shake() error {
	s, t := c.server, c.sock.tls
	if err := c.setDeadline(); err != nil {
		return net.ErrClosed
	}
	t.SetWriteDeadline(c.deadline)
	first, err := firstBytes(t.Conn)
	if err != nil {
		return err // it said nothing, like those who only look whether somebody listens
	}
	if err = t.accept(first); err == nil {
		s.count.handshakes.Add(1)
		return t.SetWriteDeadline(time.Time{})
	}
	s.count.badHandshakes.Add(1)
	if !c.isDraining() {
		s.unfit("tls", c.remote(), err)
	}
	return fmt.Errorf("TLS handshake: %w", err)
}

// unfit tells that a connection was ended for how it began.
func (s *Server) unfit(reason, remote string, err error) {
	if s.Unfit != nil {
		s.Unfit(reason, remote, err)
	}
}

// accept does the server's side of the handshake that begins with first. A peer
// that fails it gets time to read why.
func (t *tlsConn) accept(first []byte) error {
	if yes, _ := beginsTLS(first); !yes {
		t.refusePlain(first)
		return errSpokePlain
	}
	h := t.shake
	h.first, h.left = first, h.left-len(first)
	h.enter()
	err := t.tls.Handshake()
	h.leave()
	if err == nil {
		t.shaken()
	} else if !errors.Is(err, os.ErrDeadlineExceeded) {
		t.below.closeWrite()
		t.below.linger(mismatchTime)
	}
	return err
}

// firstBytes reads until it can be told what the peer speaks.
func firstBytes(from io.Reader) ([]byte, error) {
	first := make([]byte, 0, 3)
	for {
		if _, known := beginsTLS(first); known {
			return first, nil
		}
		n, err := plainRead(from, first[len(first):cap(first)])
		if n == 0 {
			return nil, err
		}
		first = first[:len(first)+n]
	}
}

// refusePlain answers a Hello that came unencrypted in the same manner, so that its
// sender learns what to do.
func (t *tlsConn) refusePlain(first []byte) {
	t.Conn.SetDeadline(time.Now().Add(mismatchTime))
	head := make([]byte, requestLen)
	_, err := io.ReadFull(t.Conn, head[copy(head, first):])
	if h := parseRequestHeader(head); err == nil && h.api == APIHello {
		t.Conn.Write(refusal(h.correlation, "this address speaks TLS only"))
	}
	t.below.closeWrite()
	t.below.linger(mismatchTime)
}

// refusal returns a whole response frame that says UNSUPPORTED.
func refusal(correlation uint32, message string) []byte {
	b := AppendText(make([]byte, responseLen), message)
	putResponseHeader(b, responseHeader{correlation: correlation, code: CodeUnsupported}, 0)
	return b
}
