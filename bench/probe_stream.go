package bench

import (
	"context"
	"io"
)

// The bare stream: one side writes, the other reads, nobody looks.

// probeStream moves bytes in writes of the given length, to a reader with that
// low-water mark; 0 is none.
func probeStream(ctx context.Context, write, lowat int, bytes int64) (Round, error) {
	t := task{Side: "stream server", Batch: write, Lowat: lowat, Conns: 1, Bytes: bytes}
	client := t
	client.Side = "stream client"
	s, c, err := pair(ctx, t, client)
	return roundOf(s, c), err
}

// streamServer reads as much at once as the client writes.
func streamServer(t task, ready func(string)) (measure, error) {
	socks, err := listen(t.Conns, ready)
	if err != nil {
		return measure{}, err
	}
	g := &gauge{warm: t.warmUp()}
	err = each(socks, func(_ int, s *sock) error {
		buf := make([]byte, max(t.Batch, 64<<10))
		left := t.perConn()
		for {
			n, err := s.read(buf, int(min(int64(t.Lowat), left)))
			if err == io.EOF {
				return nil
			}
			if err != nil {
				return err
			}
			left -= int64(n)
			g.add(n)
		}
	})
	m := g.stop()
	m.Batches = g.moved
	return m, err
}

func streamClient(t task, _ func(string)) (measure, error) {
	socks, err := dial(t.Conns, t.Addr)
	if err != nil {
		return measure{}, err
	}
	g := &gauge{warm: t.warmUp()}
	err = each(socks, func(_ int, s *sock) error {
		buf := make([]byte, t.Batch)
		for left := t.perConn(); left > 0; {
			p := buf[:min(int64(len(buf)), left)]
			if err := s.write(p, false); err != nil {
				return err
			}
			left -= int64(len(p))
			g.add(len(p))
		}
		return nil
	})
	m := g.stop()
	m.Batches = g.moved
	return m, err
}
