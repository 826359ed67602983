package wire

import (
	"context"
	"net"
	"testing"
	"time"
)

// TestStepAside: who reads leaves the processor to a broker on this machine that has more
// to do for it, and only then.
func TestStepAside(t *testing.T) {
	held := make(chan *Call, 3)
	c := newLoop(t, handlerFunc(func(c *Call) { held <- c })).dial(t)
	if c.aside == nil {
		t.Fatal("the loopback is not taken for near")
	}
	looks := 0 // of the reading turn
	c.aside = func(cpu int) bool {
		if looks++; cpu < 0 || cpu >= 1<<16 {
			t.Errorf("processor %d", cpu)
		}
		return false
	}
	answer := func(calls ...Offset) int {
		var asked []*asking
		for _, i := range calls {
			asked = append(asked, ask(context.Background(), c, i, true))
		}
		before := looks
		for n, i := range calls {
			call := <-held
			asides.last.Store(-int64(time.Hour)) // one is due
			call.Reply(&TrimResponse{Start: i})
			asked[n].wantOK(t, i)
		}
		return looks - before
	}
	if n := answer(1); n != 0 {
		t.Errorf("%d looks for a lone call", n)
	}
	if n := answer(2, 3, 4); n != 2 {
		t.Errorf("%d looks for three calls, the last of which is alone", n)
	}
}

func TestAsideDue(t *testing.T) {
	var a aside
	f := func(now time.Duration, due bool) {
		t.Helper()
		if got := a.due(a.start.Add(now)); got != due {
			t.Errorf("after %v: %v", now, got)
		}
	}
	f(asideEvery-1, false)
	f(asideEvery, true)
	f(asideEvery, false)
	f(2*asideEvery-1, false)
	f(2*asideEvery, true)
}

// An addressed is a connection of which only the addresses are known.
type addressed struct {
	net.Conn
	local, remote net.Addr
}

func (a addressed) LocalAddr() net.Addr  { return a.local }
func (a addressed) RemoteAddr() net.Addr { return a.remote }

func TestIsNear(t *testing.T) {
	tcp := func(ip string) net.Addr { return &net.TCPAddr{IP: net.ParseIP(ip), Port: 1} }
	f := func(local, remote net.Addr, near bool) {
		t.Helper()
		if got := isNear(addressed{local: local, remote: remote}); got != near {
			t.Errorf("%v to %v: %v", local, remote, got)
		}
	}
	f(tcp("127.0.0.1"), tcp("127.0.0.1"), true)
	f(tcp("127.0.0.1"), tcp("127.0.0.2"), true)
	f(tcp("::1"), tcp("::1"), true)
	f(tcp("192.0.2.1"), tcp("192.0.2.1"), true)
	f(tcp("192.0.2.1"), tcp("::ffff:192.0.2.1"), true)
	f(tcp("192.0.2.1"), tcp("192.0.2.2"), false)
	f(tcp("2001:db8::1"), tcp("2001:db8::2"), false)
	f(&net.UnixAddr{Name: "a"}, &net.UnixAddr{Name: "b"}, false) // no processor is known of those
	f(nil, nil, false)
}

// TestAsideRead: who reads a backlog stays where he is.
func TestAsideRead(t *testing.T) {
	c := &Conn{sock: &socket{}, calls: map[uint32]*exchange{1: nil, 2: nil}, aside: func(int) bool { return false }}
	for n, looks := range map[int]bool{1: true, asideRead - 1: true, asideRead: false, asideRead + 1: false} {
		asides.last.Store(-int64(time.Hour))
		c.in.n = n
		c.stepAside()
		if looked := asides.last.Load() != -int64(time.Hour); looked != looks {
			t.Errorf("%d bytes: %v", n, looked)
		}
	}
}

// TestAsideTLS: of an encrypted connection it is not known where the broker runs, and no look is lost on it.
func TestAsideTLS(t *testing.T) {
	if c := newLoopOf(t, encrypted, echo).dial(t); c.aside != nil {
		t.Error("would step aside")
	}
}
