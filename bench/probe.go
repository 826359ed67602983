package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"time"
)

// Probes are the smallest honest programs that do what a broker and its client
// cannot do without: move the bytes, check them, write them. They say how fast
// a machine could be. Each runs in processes of its own, one a side, as broker
// and client do, so that both are measured alike and can be divided.

// A Round is what one run of a probe measured.
type Round struct {
	MBPerSecond float64 `json:"mb_per_second"` // 10^6 bytes; 0 where it has no sense
	ServerCPU   float64 `json:"server_cpu_seconds_per_gb"`
	ClientCPU   float64 `json:"client_cpu_seconds_per_gb"` // CPU seconds per 10^9 bytes
	P50         float64 `json:"p50_us"`                    // µs; 0 where it has no sense
	P99         float64 `json:"p99_us"`
	Max         float64 `json:"max_us"`
}

// A Spread is the middle and the ends of what several rounds measured.
type Spread struct {
	Median float64 `json:"median"`
	Min    float64 `json:"min"`
	Max    float64 `json:"max"`
}

// spreadOf returns the spread of values, which it leaves as they are. The
// median of an even number is the mean of the middle two. Without values all
// is 0.
func spreadOf(values []float64) Spread {
	v := slices.Sorted(slices.Values(values))
	n := len(v)
	if n == 0 {
		return Spread{}
	}
	return Spread{Median: (v[(n-1)/2] + v[n/2]) / 2, Min: v[0], Max: v[n-1]}
}

// A task is what a child process is told, as one argument.
type task struct {
	Side   string `json:"side"`           // a name in sides
	Addr   string `json:"addr,omitempty"` // where the server listens; a client's task only
	Dir    string `json:"dir,omitempty"`  // for files, which have no name once open
	Batch  int    `json:"batch,omitempty"`
	Record int    `json:"record,omitempty"` // bytes of a record's value
	Window int    `json:"window,omitempty"` // batches in flight a connection
	Lowat  int    `json:"lowat,omitempty"`  // the reader's low-water mark; 0 is none
	Conns  int    `json:"conns,omitempty"`
	Bytes  int64  `json:"bytes,omitempty"` // of all connections together, after the warm-up
	Count  int    `json:"count,omitempty"`

	Recycled  bool `json:"recycled,omitempty"`  // the server writes over the same pages of its file again and again
	Unchecked bool `json:"unchecked,omitempty"` // the client does not look at what it reads
}

// A measure is what a child says at its end.
type measure struct {
	Bytes   int64   `json:"bytes"`   // moved while the clock ran
	Seconds float64 `json:"seconds"` // of that time
	CPU     float64 `json:"cpu"`     // seconds of user and system time meanwhile
	P50     float64 `json:"p50"`     // µs
	P99     float64 `json:"p99"`
	Max     float64 `json:"max"`
	Batches int64   `json:"batches"` // since the start, warm-up included
	Sum     uint64  `json:"sum"`     // of the checksums of all those batches
}

// sides are the programs that a child can be. A server calls ready with its
// address once it listens; others never do.
var sides = map[string]func(t task, ready func(addr string)) (measure, error){
	"stream server":           streamServer,
	"stream client":           streamClient,
	"produce server":          produceServer,
	"produce server, synced":  syncProduceServer,
	"produce client":          produceClient,
	"consume server":          consumeServer,
	"consume server, copying": copyingConsumeServer,
	"consume client":          consumeClient,
	"ping server":             pingServer,
	"ping client":             pingClient,
	"hand-off":                handOff,
	"pauses":                  pauses,
	"crc":                     checksum,
	"warm":                    warm,
	"sync":                    syncEach,
	"paced":                   paced,
	"reread":                  reread,
}

// benchProbe is the hidden command `teralog bench probe`, a child's whole life.
func benchProbe(_ context.Context, args []string, _ Start, _ io.Reader, out, _ io.Writer) error {
	if len(args) != 1 {
		return usage{errors.New("bench probe is for bench limits and bench suite to run")}
	}
	var t task
	if err := json.Unmarshal([]byte(args[0]), &t); err != nil {
		return usage{fmt.Errorf("bench probe: %w", err)}
	}
	side := sides[t.Side]
	if side == nil {
		return usage{fmt.Errorf("bench probe: unknown side %q", t.Side)}
	}
	say := json.NewEncoder(out)
	m, err := side(t, func(addr string) { say.Encode(addr) })
	if err != nil {
		return err
	}
	return say.Encode(m)
}

// A child is a running side. It dies with this process: its files have no
// names, so nothing is left.
type child struct {
	side  string
	cmd   *exec.Cmd
	out   *json.Decoder
	notes bytes.Buffer
}

func begin(ctx context.Context, t task) (*child, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	arg, err := json.Marshal(t)
	if err != nil {
		return nil, err
	}
	c := &child{side: t.Side, cmd: exec.CommandContext(ctx, self, "bench", "probe", string(arg))}
	c.cmd.Stderr = &c.notes
	c.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	out, err := c.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := c.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start probe %s: %w", t.Side, err)
	}
	c.out = json.NewDecoder(out)
	return c, nil
}

// finish reads the child's measure and waits for its end.
func (c *child) finish() (m measure, err error) {
	said := c.out.Decode(&m)
	err = c.cmd.Wait()
	switch note := strings.TrimSpace(c.notes.String()); {
	case err != nil && note != "":
		return m, fmt.Errorf("probe %s: %s", c.side, note)
	case err != nil:
		return m, fmt.Errorf("probe %s: %w", c.side, err)
	case said != nil:
		return m, fmt.Errorf("probe %s said nothing: %w", c.side, said)
	}
	return m, nil
}

// alone runs a task that needs no other side.
func alone(ctx context.Context, t task) (measure, error) {
	c, err := begin(ctx, t)
	if err != nil {
		return measure{}, err
	}
	m, err := c.finish()
	if ctx.Err() != nil {
		return m, ctx.Err()
	}
	return m, err
}

// pair runs a server and then its client. If one fails, the other ends, and the
// error tells of both unless one was only ended for the other's sake.
func pair(ctx context.Context, server, client task) (s, c measure, err error) {
	inner, cancel := context.WithCancel(ctx)
	defer cancel()
	first, err := begin(inner, server)
	if err != nil {
		return s, c, err
	}
	if first.out.Decode(&client.Addr) != nil {
		_, err := first.finish()
		return s, c, errors.Join(ctx.Err(), err)
	}
	second, err := begin(inner, client)
	if err != nil {
		cancel()
		first.finish()
		return s, c, err
	}
	ended := make(chan error, 2)
	end := func(of *child, m *measure) {
		var err error
		if *m, err = of.finish(); err != nil && inner.Err() != nil {
			err = nil
		}
		ended <- err
	}
	go end(first, &s)
	go end(second, &c)
	for range 2 {
		if e := <-ended; e != nil {
			err = errors.Join(err, e)
			// The other side sees its connection end and says what it knows; one
			// that never got a connection would wait for ever.
			time.AfterFunc(time.Second, cancel)
		}
	}
	switch {
	case ctx.Err() != nil:
		err = ctx.Err()
	case err == nil && (s.Batches != c.Batches || s.Sum != c.Sum):
		err = fmt.Errorf("probe %s has %d batches of sum %x, %s has %d of sum %x", server.Side, s.Batches, s.Sum, client.Side, c.Batches, c.Sum)
	}
	return s, c, err
}

// roundOf divides: the server's clock counts, the CPU of both by their bytes.
func roundOf(s, c measure) Round {
	perGB := func(m measure) float64 {
		if m.Bytes == 0 {
			return 0
		}
		return m.CPU / (float64(m.Bytes) / 1e9)
	}
	r := Round{ServerCPU: perGB(s), ClientCPU: perGB(c), P50: c.P50, P99: c.P99}
	if s.Seconds > 0 {
		r.MBPerSecond = float64(s.Bytes) / 1e6 / s.Seconds
	}
	return r
}
