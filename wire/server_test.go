package wire

import (
	"context"
	"net"
	"testing"
	"time"

	"github.com/teralog/teralog/mem"
)

// handlerFunc makes a Handler of a function.
type handlerFunc func(c *Call)

func (f handlerFunc) ServeCall(c *Call) { f(c) }

func helloForTest() HelloResponse {
	return HelloResponse{Node: 7, Software: "test"}
}

func TestSmoke(t *testing.T) {
	p := mem.NewPool("p")
	s := &Server{Hello: helloForTest, Requests: p, Replies: p, Handler: handlerFunc(func(c *Call) {
		var q TrimRequest
		if err := c.Decode(&q); err != nil {
			c.ReplyError(err)
			return
		}
		c.Reply(&TrimResponse{Start: q.Before})
	})}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go s.Serve(ln)
	cp := mem.NewPool("c")
	c, err := Dial(t.Context(), &net.Dialer{}, ln.Addr().String(), DialOptions{Client: "t", Pool: cp})
	if err != nil {
		t.Fatal(err)
	}
	for i := range 1000 {
		var r TrimResponse
		if err := c.Do(t.Context(), &TrimRequest{Topic: 1, Before: Offset(i)}, &r); err != nil || r.Start != Offset(i) {
			t.Fatal(err, r)
		}
	}
	c.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	if err := s.Shutdown(ctx); err != nil {
		t.Fatal(err)
	}
	t.Logf("%+v %+v %+v", s.Stats(), p.Stats(), cp.Stats())
}
