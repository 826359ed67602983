package client

import (
	"context"
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/teralog/teralog/wire"
)

// errDial is how an everyOther fails.
var errDial = errors.New("refused by test")

// An everyOther is a network in which every other dial fails.
type everyOther struct {
	wire.Dialer
	n atomic.Int64
}

func (d *everyOther) DialContext(ctx context.Context, network, addr string) (net.Conn, error) {
	if d.n.Add(1)%2 == 0 {
		return nil, errDial
	}
	return d.Dialer.DialContext(ctx, network, addr)
}

// TestConns has many callers ask for connections to one address while those
// they got are closed and dials fail: each gets a connection or the reason why
// there is none. Under -race it shows that a slot is read only under its mutex:
//
//	a  sees that the connection lives and gives up the mutex
//	b  finds it closed, dials and writes the slot anew
//	a  reads the slot
func TestConns(t *testing.T) {
	bubble(t, nil, func(t *testing.T, b *fake) {
		d := &everyOther{Dialer: b.net}
		c := b.client(t, func(o *Options) { o.Dialer, o.BackoffMin, o.BackoffMax = d, 1, 1 })
		s := newConns(c)
		defer s.close()
		var got, failed atomic.Int64
		var all sync.WaitGroup
		for range 16 {
			all.Go(func() {
				for i := range 200 {
					switch conn, err := s.get(t.Context(), fakeAddr); {
					case conn != nil && err == nil:
						got.Add(1)
						if i%3 == 0 {
							conn.Close()
						}
					case conn == nil && errors.Is(err, wire.ErrNotSent) && errors.Is(err, errDial):
						failed.Add(1)
						time.Sleep(time.Nanosecond) // the address is left alone so long
					default:
						t.Errorf("connection %p, error %v", conn, err)
					}
				}
			})
		}
		all.Wait()
		if got.Load() == 0 || failed.Load() == 0 {
			t.Fatalf("%d got a connection, %d failed", got.Load(), failed.Load())
		}
	})
}
