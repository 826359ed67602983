package bench

import (
	"context"
	"io"
)

// The bare stream: one side writes, the other reads, nobody looks.

// probeStream moves bytes in writes of the given length, to a reader with that
// low-water mark; 0 is none.
func probeStream(ctx context.Context, write, lowat int, bytes int64) (Round, error) {
	t := task{Side: "stream server", Batch: write, Window: lowat, Bytes: bytes}
	client := t
	client.Side = "stream client"
	s, c, err := pair(ctx, t, client)
	return roundOf(s, c), err
}

// warmUp returns how many bytes all connections of a task together move before
// the clock starts: buffers have their pages by then, the kernel has found its
// window.
func (t task) warmUp() int64 { return min(32<<20, t.Bytes/8) }

// streamServer receives t.Bytes after the warm-up on one connection, reading as
// much at once as the client writes. With t.Window > 0 that is its low-water mark.
func streamServer(t task, ready func(string)) (measure, error) {
	socks, err := listen(1, ready)
	if err != nil {
		return measure{}, err
	}
	return receive(socks[0], t)
}

func receive(s *sock, t task) (measure, error) {
	buf := make([]byte, max(t.Batch, 64<<10))
	var w stopwatch
	var got int64
	all := t.warmUp() + t.Bytes
	started := int64(-1)
	for got < all {
		want := 0
		if t.Window > 0 {
			want = int(min(int64(t.Window), all-got))
		}
		n, err := s.read(buf, want)
		if err != nil {
			return measure{}, err
		}
		if got += int64(n); started < 0 && got >= t.warmUp() {
			w, started = startWatch(), got
		}
	}
	m := w.stop(got - started)
	m.Batches = got
	if _, err := s.read(buf, 0); err != io.EOF {
		return m, err
	}
	return m, nil
}

func streamClient(t task, _ func(string)) (measure, error) {
	socks, err := dial(1, t.Addr)
	if err != nil {
		return measure{}, err
	}
	s := socks[0]
	buf := make([]byte, t.Batch)
	var w stopwatch
	started := int64(-1)
	all := t.warmUp() + t.Bytes
	var sent int64
	for sent < all {
		p := buf[:min(int64(len(buf)), all-sent)]
		if err := s.write(p, false); err != nil {
			return measure{}, err
		}
		if sent += int64(len(p)); started < 0 && sent >= t.warmUp() {
			w, started = startWatch(), sent
		}
	}
	m := w.stop(sent - started)
	m.Batches = sent
	return m, s.conn.Close()
}

func init() {
	sides["stream server"] = streamServer
	sides["stream client"] = streamClient
}
