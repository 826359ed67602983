package wire

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

// memPair returns both ends of a connection.
func memPair(t *testing.T, n *MemNet) (near, far net.Conn) {
	t.Helper()
	ln, err := n.Listen("far:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	near, err = n.DialContext(context.Background(), "tcp", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	far, err = ln.Accept()
	if err != nil {
		t.Fatal(err)
	}
	return near, far
}

func TestMemNetDelay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := NewMemNet()
		n.SetDelay(3 * time.Second)
		near, far := memPair(t, n)
		start := time.Now()
		near.Write([]byte("a"))
		time.Sleep(time.Second)
		near.Write([]byte("b"))
		b := make([]byte, 2)
		if m, err := far.Read(b); m != 1 || err != nil || time.Since(start) != 3*time.Second {
			t.Errorf("%d bytes, %v after %v", m, err, time.Since(start))
		}
		if m, err := far.Read(b); m != 1 || err != nil || time.Since(start) != 4*time.Second {
			t.Errorf("%d bytes, %v after %v", m, err, time.Since(start))
		}
	})
}

func TestMemNetDeadlines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		near, _ := memPair(t, NewMemNet())
		start := time.Now()
		near.SetDeadline(start.Add(time.Second))
		if _, err := near.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Error(err)
		}
		near.SetWriteDeadline(start.Add(5 * time.Second))
		if m, err := near.Write(make([]byte, 2*memWindow)); m != memWindow || !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("%d bytes, %v", m, err)
		}
		if d := time.Since(start); d != 5*time.Second {
			t.Error(d)
		}
		go func() { // moving a deadline wakes who waits
			time.Sleep(time.Second)
			near.SetReadDeadline(time.Unix(1, 0))
		}()
		near.SetReadDeadline(time.Time{})
		if _, err := near.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Error(err)
		}
	})
}

func TestMemNetClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := make([]byte, 10)

		near, far := memPair(t, NewMemNet())
		near.Write([]byte("end"))
		near.(*memConn).CloseWrite()
		if m, err := io.ReadFull(far, b); m != 3 || err != io.ErrUnexpectedEOF {
			t.Errorf("half closed: %d bytes, %v", m, err)
		}
		far.Write([]byte("answer"))
		if m, err := near.Read(b); m != 6 || err != nil {
			t.Errorf("other half: %d bytes, %v", m, err)
		}

		near, far = memPair(t, NewMemNet())
		near.Write([]byte("last"))
		near.Close()
		if m, err := far.Read(b); m != 4 || err != nil {
			t.Errorf("closed: %d bytes, %v", m, err)
		}
		if _, err := far.Read(b); err != io.EOF {
			t.Error(err)
		}
		if _, err := far.Write(b); !errors.Is(err, syscall.EPIPE) {
			t.Error(err)
		}
		if _, err := near.Read(b); !errors.Is(err, net.ErrClosed) {
			t.Error(err)
		}

		// Closing over unread bytes is a reset, by which bytes are lost.
		near, far = memPair(t, NewMemNet())
		far.Write([]byte("unread"))
		near.Write([]byte("lost"))
		near.Close()
		if m, err := far.Read(b); m != 0 || !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("reset: %d bytes, %v", m, err)
		}
	})
}

func TestMemNetCuts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := NewMemNet()
		ln, _ := n.Listen("far:1")
		dial := func() (net.Conn, net.Conn) {
			near, err := n.DialContext(context.Background(), "tcp", "far:1")
			if err != nil {
				t.Fatal(err)
			}
			far, _ := ln.Accept()
			return near, far
		}
		b := make([]byte, 10)

		near, far := dial()
		near.Write(b)
		n.Cut("far:1")
		if m, err := far.Read(b); m != 0 || !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("cut: %d bytes, %v", m, err)
		}
		if _, err := near.Read(b); !errors.Is(err, syscall.ECONNRESET) {
			t.Error(err)
		}

		n.CutAfter("far:1", 4, -1)
		near, far = dial()
		if m, err := near.Write(b); m != 4 || err == nil {
			t.Errorf("%d bytes written, %v", m, err)
		}
		if m, err := io.ReadFull(far, b); m != 4 || err == nil {
			t.Errorf("%d bytes read, %v", m, err)
		}

		n.CutAfter("far:1", -1, -1)
		near, far = dial()
		n.Stall("far:1", true)
		near.Write(b)
		far.SetReadDeadline(time.Now().Add(time.Hour))
		if _, err := far.Read(b); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Error(err)
		}
		far.SetReadDeadline(time.Time{})
		go func() {
			time.Sleep(time.Second)
			n.Stall("far:1", false)
		}()
		if m, err := far.Read(b); m != 10 || err != nil {
			t.Errorf("%d bytes, %v", m, err)
		}

		n.Refuse("far:1", true)
		if _, err := n.DialContext(context.Background(), "tcp", "far:1"); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Error(err)
		}
		if _, err := n.Listen("far:1"); !errors.Is(err, syscall.EADDRINUSE) {
			t.Error(err)
		}
		ln.Close()
		if _, err := ln.Accept(); !errors.Is(err, net.ErrClosed) {
			t.Error(err)
		}
	})
}
