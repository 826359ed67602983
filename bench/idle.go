package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/teralog/teralog/wire"
)

const idleHelp = `Usage: teralog bench idle [flags]

Opens connections that say hello and then nothing, and tells what memory of the
broker each takes: the growth of its resident memory, that of the kernel for the
sockets not included.

  teralog bench idle --connections 15k
`

// idleSpare is how many descriptors are left for everything else.
const idleSpare = 100

func benchIdle(ctx context.Context, args []string, start Start, _ io.Reader, out, notes io.Writer) error {
	l := newLoad("idle")
	f := newFlags(idleHelp)
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return err
	}
	most := int64(limit.Cur) - idleSpare
	conns := min(10_000, most)
	l.brokerFlags(f)
	l.outputFlags(f)
	f.Var(value[int64]{&conns, parseCount, formatCount}, "connections", "connections to open")
	l.duration = 5 * time.Second
	f.Var(duration(&l.duration), "duration", "how long they stay open")
	l.refine = func() error {
		if conns < 1 || conns > most {
			return usage{fmt.Errorf("--connections %d: a process may have %d descriptors here, so it is 1 to %d (ulimit -n)", conns, limit.Cur, most)}
		}
		if l.server != "" && l.pid == 0 {
			return usage{errors.New("--server without --broker-pid: nobody could say what memory it takes")}
		}
		l.conns = int(conns)
		l.serve = []string{"--max-connections", strconv.FormatInt(conns+idleSpare, 10)}
		return nil
	}
	return l.execute(ctx, f, args, start, out, notes, measureIdle)
}

// Idle is what idle connections cost a broker.
type Idle struct {
	Connections    int     `json:"connections"`
	BytesEach      float64 `json:"broker_bytes_each"` // of resident memory
	BytesBefore    int64   `json:"broker_bytes_before"`
	BytesAfter     int64   `json:"broker_bytes_after"`
	OpenedInSecond float64 `json:"opened_per_second"`
}

func (i *Idle) text(line func(name, format string, args ...any)) {
	line("connections", "%s, opened at %s a second", group(int64(i.Connections)), group(int64(i.OpenedInSecond)))
	line("broker", "%.0f bytes resident each: %.1f MB before, %.1f MB with all of them", i.BytesEach, float64(i.BytesBefore)/1e6, float64(i.BytesAfter)/1e6)
}

// measureIdle opens the connections, lets them stay, and looks at the broker.
func measureIdle(ctx context.Context, t *target, l *load, d *Display) (*Result, error) {
	r := l.result(t)
	_, before, err := residentBytes(t.PID)
	if err != nil {
		return nil, err
	}
	m := newMeter()
	s := span{records: int64(l.conns)}
	from := t.cpu()
	stop := t.watch(d, "opening ", m, s)
	conns, err := dialAll(ctx, t, l.conns, m)
	opened := t.cpu()
	r.Intervals = stop()
	defer func() {
		for _, c := range conns {
			c.Close()
		}
	}()
	if err != nil {
		return nil, err
	}
	d.Say("%d connections are open and stay so for %v", len(conns), l.duration)
	select {
	case <-time.After(l.duration):
	case <-ctx.Done():
	}
	_, after, err := residentBytes(t.PID)
	if err != nil {
		return nil, err
	}
	r.Interrupted = ctx.Err() != nil
	r.Latency = latencyOf(m.end())
	r.account(from, t.cpu())
	r.Idle = &Idle{Connections: len(conns), BytesEach: float64(after-before) / float64(len(conns)), BytesBefore: before, BytesAfter: after,
		OpenedInSecond: float64(len(conns)) / opened.at.Sub(from.at).Seconds()}
	for _, c := range conns {
		if c.Err() != nil {
			return r, fmt.Errorf("a connection did not stay open: %w", c.Err())
		}
	}
	return r, nil
}

// portsEach is how many connections come from one address of our own: fewer
// than the kernel has ports for.
const portsEach = 20_000

// dialAll opens n connections, a few at a time.
func dialAll(ctx context.Context, t *target, n int, m *meter) ([]*wire.Conn, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	conns := make([]*wire.Conn, n)
	var next atomic.Int64
	var running sync.WaitGroup
	for range 8 {
		running.Go(func() {
			for i := int(next.Add(1)) - 1; i < n && ctx.Err() == nil; i = int(next.Add(1)) - 1 {
				began := time.Now()
				c, err := wire.Dial(ctx, dialerFor(t.Addr, i), t.Addr, wire.DialOptions{Client: "teralog-bench", Software: wire.Software, TLS: t.tls})
				if err != nil {
					cancel(fmt.Errorf("connection %d: %w", i+1, err))
					return
				}
				conns[i] = c
				m.observe(time.Since(began))
				m.add(1, 0)
			}
		})
	}
	running.Wait()
	open := conns[:0]
	for _, c := range conns {
		if c != nil {
			open = append(open, c)
		}
	}
	return open, context.Cause(ctx)
}

// dialerFor returns what opens connection i. To a broker on this machine they
// come from several addresses, since there are not ports enough on one.
func dialerFor(addr string, i int) wire.Dialer {
	d := &net.Dialer{Timeout: 10 * time.Second}
	host, _, _ := net.SplitHostPort(addr)
	if ip := net.ParseIP(host).To4(); ip.IsLoopback() && i >= portsEach {
		d.LocalAddr = &net.TCPAddr{IP: net.IPv4(127, 0, 0, byte(1+i/portsEach))}
	}
	return d
}
