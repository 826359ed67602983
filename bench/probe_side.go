package bench

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// This file is what the sides have in common: how they measure themselves, and
// where their bytes come from.

// A stopwatch measures a process between two moments.
type stopwatch struct {
	at  time.Time
	cpu float64
}

func startWatch() stopwatch { return stopwatch{time.Now(), cpuSeconds()} }

// stop returns the measure of bytes moved since the start.
func (w stopwatch) stop(bytes int64) measure {
	return measure{Bytes: bytes, Seconds: time.Since(w.at).Seconds(), CPU: cpuSeconds() - w.cpu}
}

// cpuSeconds returns the user and system time this process has taken.
func cpuSeconds() float64 {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		panic("BUG: getrusage of this process: " + err.Error())
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano()).Seconds()
}

// warmUp returns how many bytes all connections of a task together move before
// the clock starts: buffers have their pages by then, the kernel has found its
// window.
func (t task) warmUp() int64 { return min(32<<20, t.Bytes/8) }

// perConn returns how many bytes each connection moves, warm-up included.
func (t task) perConn() int64 { return (t.warmUp() + t.Bytes) / int64(t.Conns) }

// A gauge adds up what all connections of a side move and starts the clock when
// the warm-up is over.
type gauge struct {
	mu      sync.Mutex
	moved   int64
	warm    int64
	began   bool
	beganAt int64
	watch   stopwatch
}

func (g *gauge) add(n int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.moved += int64(n); !g.began && g.moved >= g.warm {
		g.began, g.beganAt, g.watch = true, g.moved, startWatch()
	}
}

// stop returns the measure of what was moved since the clock started; if it
// never did, nothing.
func (g *gauge) stop() measure {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.began {
		return measure{}
	}
	return g.watch.stop(g.moved - g.beganAt)
}

// each runs f for each sock, all at once, and returns their errors joined.
func each(socks []*sock, f func(i int, s *sock) error) error {
	errs := make([]error, len(socks))
	var wg sync.WaitGroup
	for i, s := range socks {
		wg.Go(func() {
			errs[i] = f(i, s)
			s.conn.Close() // so that the peer learns of an error too
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// tempFile returns an open file in dir that has no name any more: whatever
// becomes of the process, nothing is left.
func tempFile(dir string) (*os.File, error) {
	f, err := os.CreateTemp(dir, "teralog-probe-")
	if err != nil {
		return nil, err
	}
	return f, os.Remove(f.Name())
}

// endOfStream returns nil if a stream has ended where it may, with no bytes
// left over.
func endOfStream(err error, left int) error {
	switch {
	case err != io.EOF:
		return err
	case left > 0:
		return fmt.Errorf("%d bytes are left over: %w", left, io.ErrUnexpectedEOF)
	}
	return nil
}

// sampleValue returns a value of n bytes that are not all the same.
func sampleValue(n int) []byte {
	var period [256]byte
	for i := range period {
		period[i] = byte(i)*37 + 11
	}
	return bytes.Repeat(period[:], n/len(period)+1)[:n]
}
