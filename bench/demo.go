package bench

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
	"sync"
	"text/tabwriter"
	"time"

	"github.com/teralog/teralog/client"
	"github.com/teralog/teralog/mem"
	"github.com/teralog/teralog/wire"
)

const demoHelp = `Usage: teralog demo [flags]

Starts a broker of its own, loads 231,083 real flights, kills the broker with
SIGKILL half-way, reads everything back by offset and by time, and checks it.
Then an order centre: six stages an order, one faulty quarter of an hour found
by time, replayed and compensated exactly once an order.

  teralog demo
  teralog demo --data-dir ./demo-data -o json

Flags:
  --data-dir DIR   keep the broker's files in DIR (by default they are removed)
  -o FORMAT        table or json (default table)
`

// A demo is one run of it.
type demo struct {
	start  Start
	dir    string
	broker *Broker
	c      *client.Client
	notes  io.Writer
	live   bool // a person looks at notes
	steps  []step
}

// A step is one row of the table at the end.
type step struct {
	Name     string  `json:"name"`
	Expected string  `json:"expected"`
	Found    string  `json:"found"`
	OK       bool    `json:"ok"`
	Records  int64   `json:"records,omitempty"`
	Bytes    int64   `json:"bytes,omitempty"`
	Seconds  float64 `json:"seconds,omitempty"`
	P50      int64   `json:"ack_p50_us,omitempty"`
	P99      int64   `json:"ack_p99_us,omitempty"`
}

// Demo is the command `teralog demo`. flights holds flights-2001.csv.gz and
// flights-2001.expect.json. Any difference between what was found and what
// should have been is an error.
func Demo(ctx context.Context, args []string, flights fs.FS, start Start, out, notes io.Writer) error {
	f := flag.NewFlagSet("demo", flag.ContinueOnError)
	f.SetOutput(io.Discard)
	dir := f.String("data-dir", "", "")
	format := f.String("o", "table", "")
	switch err := f.Parse(args); {
	case errors.Is(err, flag.ErrHelp):
		fmt.Fprint(notes, demoHelp)
		return nil
	case err != nil:
		return usage{err}
	case f.NArg() > 0 || *format != "table" && *format != "json":
		return usage{fmt.Errorf("see teralog demo --help")}
	}
	if *dir == "" {
		temp, err := os.MkdirTemp("", "teralog-demo-")
		if err != nil {
			return err
		}
		defer os.RemoveAll(temp)
		*dir = temp
	}
	d := &demo{start: start, dir: *dir, notes: notes, live: isTerminal(notes)}
	if err := d.run(ctx, flights); err != nil {
		return err
	}
	return d.report(out, *format)
}

// A usage error ends the process with 2.
type usage struct{ error }

func (usage) ExitCode() int { return 2 }

func (d *demo) run(ctx context.Context, flights fs.FS) (err error) {
	if err := d.begin("127.0.0.1:0"); err != nil {
		return err
	}
	defer func() {
		d.c.Close()
		err = errors.Join(err, d.broker.Stop())
	}()
	if d.c, err = client.New(client.Options{Servers: []string{d.broker.Addr}, Name: "teralog-demo"}); err != nil {
		return err
	}
	if err := d.flights(ctx, flights); err != nil {
		return fmt.Errorf("flights: %w", err)
	}
	if err := d.orders(ctx); err != nil {
		return fmt.Errorf("order centre: %w", err)
	}
	return nil
}

// begin starts the broker.
func (d *demo) begin(listen string) error {
	b, err := d.start(d.dir, listen)
	if err != nil {
		return fmt.Errorf("start a broker: %w", err)
	}
	d.broker = b
	return nil
}

// crash kills the broker and starts it again on the same files and address.
func (d *demo) crash() error {
	if err := d.broker.Kill(); err != nil {
		return fmt.Errorf("kill the broker: %w", err)
	}
	return d.begin(d.broker.Addr)
}

// topic makes an empty topic, in place of one that an earlier run left.
func (d *demo) topic(ctx context.Context, name string, partitions int32) error {
	old, err := d.c.DescribeTopics(ctx, name)
	if err != nil {
		return err
	}
	if len(old) == 1 && old[0].Code == wire.CodeOK {
		if err := d.c.DeleteTopic(ctx, old[0].ID); err != nil {
			return err
		}
	}
	_, err = d.c.CreateTopic(ctx, client.TopicSpec{Name: name, Partitions: partitions})
	return err
}

// say tells a person what goes on.
func (d *demo) say(format string, args ...any) {
	if d.live {
		fmt.Fprintf(d.notes, "\r\x1b[K%s", fmt.Sprintf(format, args...))
	}
}

// add notes a row; expected and found are compared as text.
func (d *demo) add(s step, expected, found string) {
	s.Expected, s.Found, s.OK = expected, found, expected == found
	d.steps = append(d.steps, s)
}

func (d *demo) report(out io.Writer, format string) error {
	d.say("")
	bad := 0
	for _, s := range d.steps {
		if !s.OK {
			bad++
		}
	}
	if format == "json" {
		e := json.NewEncoder(out)
		e.SetIndent("", "  ")
		if err := e.Encode(d.steps); err != nil {
			return err
		}
	} else {
		d.table(out)
	}
	if bad > 0 {
		return fmt.Errorf("%d of %d checks found something else than expected", bad, len(d.steps))
	}
	return nil
}

func (d *demo) table(out io.Writer) {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "DONE\t\tFOUND\tEXPECTED\tRECORDS/S\tMB/S\tACK P50\tACK P99")
	for _, s := range d.steps {
		mark := "ok"
		if !s.OK {
			mark = "DIFFERS"
		}
		rate, volume, p50, p99 := "", "", "", ""
		if s.Seconds > 0 {
			rate = fmt.Sprintf("%.0f", float64(s.Records)/s.Seconds)
			if s.Bytes > 0 {
				volume = fmt.Sprintf("%.1f", float64(s.Bytes)/1e6/s.Seconds)
			}
		}
		if s.P99 > 0 {
			p50 = fmt.Sprintf("%.2f ms", float64(s.P50)/1e3)
			p99 = fmt.Sprintf("%.2f ms", float64(s.P99)/1e3)
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", s.Name, mark, s.Found, s.Expected, rate, volume, p50, p99)
	}
	w.Flush()
}

// A loading sends records and follows each to its outcome.
type loading struct {
	p    *client.Producer
	hist mem.Hist // µs from the call that gave a record to its acknowledgement

	mu      sync.Mutex
	failed  error
	acked   int64
	wake    chan struct{} // closed when acked reaches wakeAt
	wakeAt  int64
	started time.Time
	bytes   int64
}

func (d *demo) load(wakeAt int64) (*loading, error) {
	// A small buffer: what waits in it would count as the broker's latency.
	p, err := d.c.NewProducer(client.ProducerOptions{BufferBytes: 2 << 20})
	if err != nil {
		return nil, err
	}
	return &loading{p: p, wakeAt: wakeAt, wake: make(chan struct{}), started: time.Now()}, nil
}

// send gives one record; done, if not nil, learns where it lies.
func (l *loading) send(ctx context.Context, r client.Record, done func(client.Ack)) error {
	given := time.Now()
	l.bytes += int64(len(r.Key) + len(r.Value))
	return l.p.ProduceAsync(ctx, r, func(a client.Ack, err error) {
		l.mu.Lock()
		defer l.mu.Unlock()
		if err != nil {
			if l.failed == nil {
				l.failed = err
			}
			return
		}
		l.hist.Record(time.Since(given).Microseconds())
		if l.acked++; l.acked == l.wakeAt {
			close(l.wake)
		}
		if done != nil {
			done(a)
		}
	})
}

// finish waits for the rest and returns what the loading has of a row.
func (l *loading) finish(ctx context.Context, name string) (step, error) {
	defer l.p.Close()
	if err := l.p.Flush(ctx); err != nil {
		return step{}, err
	}
	took := time.Since(l.started)
	l.mu.Lock()
	defer l.mu.Unlock()
	return step{Name: name, Records: l.acked, Bytes: l.bytes, Seconds: took.Seconds(),
		P50: l.hist.Quantile(0.5), P99: l.hist.Quantile(0.99)}, l.failed
}

// read calls f for every record of a range of a topic and returns what the
// reading has of a row.
func (d *demo) read(ctx context.Context, name, topic string, r client.Range, f func(*client.Message) error) (step, error) {
	x, err := d.c.NewConsumer(client.ConsumerOptions{})
	if err != nil {
		return step{}, err
	}
	defer x.Close()
	started := time.Now()
	if err := x.AssignTopic(ctx, topic, r); err != nil {
		return step{}, err
	}
	s := step{Name: name}
	for {
		records, err := x.Poll(ctx)
		if errors.Is(err, client.ErrEnd) {
			s.Seconds = time.Since(started).Seconds()
			return s, nil
		}
		if err != nil {
			return s, err
		}
		for i := range records {
			m := &records[i]
			s.Records++
			s.Bytes += int64(len(m.Key) + len(m.Value))
			if err := f(m); err != nil {
				return s, err
			}
		}
		d.say("%s: %d records", strings.TrimSpace(name), s.Records)
	}
}

func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok {
		return false
	}
	st, err := f.Stat()
	return err == nil && st.Mode()&os.ModeCharDevice != 0
}
