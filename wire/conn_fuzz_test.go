package wire

import (
	"context"
	"io"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/teralog/teralog/mem"
)

// A scriptConn is a connection whose peer sends the given bytes, a few at a
// time, and takes everything.
type scriptConn struct {
	script []byte
	step   int
}

func (c *scriptConn) Read(p []byte) (int, error) {
	if len(c.script) == 0 {
		return 0, io.EOF
	}
	n := copy(p, c.script[:min(c.step, len(c.script))])
	c.script = c.script[n:]
	return n, nil
}

func (c *scriptConn) Write(p []byte) (int, error)      { return len(p), nil }
func (c *scriptConn) Close() error                     { return nil }
func (c *scriptConn) LocalAddr() net.Addr              { return memAddr("here") }
func (c *scriptConn) RemoteAddr() net.Addr             { return memAddr("there") }
func (c *scriptConn) SetDeadline(time.Time) error      { return nil }
func (c *scriptConn) SetReadDeadline(time.Time) error  { return nil }
func (c *scriptConn) SetWriteDeadline(time.Time) error { return nil }

// FuzzServerConn sends any bytes to a server. It must neither panic nor hang,
// take no memory that the bytes do not warrant, and give everything back.
func FuzzServerConn(f *testing.F) {
	hello := requestFrame(APIHello, 0, 1, &HelloRequest{Client: "c"})
	add := func(parts ...[]byte) {
		var b []byte
		for _, p := range parts {
			b = append(b, p...)
		}
		f.Add(b, byte(7))
		f.Add(b, byte(255))
	}
	add()
	add(hello)
	add(hello, trimFrame(2, 3), trimFrame(3, 4))
	add(hello, trimFrame(2, 3)[:20])
	add(hello, claim(2000, APIProduce, 2), make([]byte, 100))
	add(hello, claim(3000, APIProduce, 2), make([]byte, 3000-12), trimFrame(9, 9)) // more than its budget
	add(trimFrame(1, 1))
	add([]byte{255, 255, 255, 255})

	requests, replies := mem.NewPool("requests"), mem.NewPool("replies")
	f.Fuzz(func(t *testing.T, script []byte, step byte) {
		synctest.Test(t, func(t *testing.T) { // where a hang is an error
			s := &Server{Hello: helloForTest, Requests: requests, Replies: replies, Budget: mem.NewBudget(3 << 10), ConnBudget: 2 << 10, Handler: echo}
			s.init()
			newServerConn(s, &scriptConn{script, max(int(step), 1)}).run()
			synctest.Wait()
			if n := s.Budget.Used(); n != 0 {
				t.Errorf("%d bytes of the budget still taken", n)
			}
			for _, p := range []*mem.Pool{requests, replies} {
				if s := p.Stats(); s.Live != 0 {
					t.Errorf("%d buffers of %s are out", s.Live, s.Name)
				}
			}
		})
	})
}

// FuzzConn answers a client with any bytes. Its calls must end, and everything
// be given back.
func FuzzConn(f *testing.F) {
	response := func(id uint32, code Code, m Message) []byte {
		b := m.AppendTo(make([]byte, responseLen), 0)
		putResponseHeader(b, responseHeader{correlation: id, code: code}, 0)
		return b
	}
	add := func(parts ...[]byte) {
		var b []byte
		for _, p := range parts {
			b = append(b, p...)
		}
		f.Add(b, byte(3))
		f.Add(b, byte(255))
	}
	trim := response(1, CodeOK, &TrimResponse{Start: 1})
	add()
	add(trim)
	add(trim, response(2, CodeOK, &FetchResponse{}), response(3, CodeOK, &TrimResponse{}))
	add(response(2, CodeOK, &FetchResponse{}), trim, trim)
	add(trim[:18])
	add(response(1, CodeNotLeader, &RecoveryResponse{}))
	add([]byte{255, 255, 255, 255})
	add([]byte{0, 0, 16, 0})

	pool := mem.NewPool("client")
	f.Fuzz(func(t *testing.T, script []byte, step byte) {
		synctest.Test(t, func(t *testing.T) {
			c := newConn(&scriptConn{script, max(int(step), 1)}, DialOptions{
				Pool: pool, MaxResponse: 1 << 20, MaxInFlight: 10, Silence: time.Minute, SendTimeout: time.Minute,
			})
			c.hello.APIs = supported()
			c.agree()
			ended := 0
			c.Go(&TrimRequest{}, &TrimResponse{}, func(error) { ended++ })
			c.GoBuf(&FetchRequest{}, &FetchResponse{}, func(b *mem.Buf, err error) {
				if b != nil {
					b.Release()
				}
				ended++
			})
			c.Do(context.Background(), &TrimRequest{}, &TrimResponse{})
			c.Close()
			synctest.Wait()
			if ended != 2 {
				t.Errorf("%d of 2 calls ended", ended)
			}
			if s := pool.Stats(); s.Live != 0 {
				t.Errorf("%d buffers are out", s.Live)
			}
		})
	})
}
