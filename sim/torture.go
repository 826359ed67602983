package sim

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/teralog/teralog/bench"
	"github.com/teralog/teralog/client"
	"github.com/teralog/teralog/wire"
)

const tortureHelp = `Usage: teralog sim torture [flags]

Runs a broker in a process of its own under load and does to it, at moments drawn
from the seed, what happens to brokers. A minute has 6 kills by SIGKILL, 2 pauses
by SIGSTOP of up to 3 s; ten minutes have 5 times a full disk, 3 failed fsyncs and
5 power cuts; each at least once, however short the run. Producers, readers at the
end and from far behind, and topics that come and go are at work meanwhile, and so
are hostile clients: garbage, half frames, impossible lengths, readers that hardly
read, storms of connections.

At the end everything is read back and a checker looks for what a log must not do.
No fault loses a record acknowledged with flush=sync. A power cut or a failed fsync
may take an end of what flush=async had acknowledged, and with flush=interval no
more than its bounds. After each fault records are acknowledged again by themselves
within 30 s, and when all is quiet memory, descriptors and goroutines are what they
were. Exits with 1 if anything is otherwise, and keeps the files.

Root is not needed: the broker's disk is one in its own process over the real one,
which can be made full, slow to sync, or fail an fsync, and which forgets what was
not synced when the power is cut.

  teralog sim torture
  teralog sim torture --minutes 0.5 --records 200000 --seed 7 -o json

Flags:
  --minutes M   how long faults go on, 0.02 to 1440 (default 10)
  --records N   how many records are acknowledged at least, 1000 to 1000000000
                (default 1000000 a minute); each takes some 130 bytes of memory here
  --seed S      draws faults and loads (default 1); real processes differ all the same
  --dir D       keep the files in D (default: temporary, kept on failure)
  -o FORMAT     table or json (default table)
`

// A torture is one run of `teralog sim torture`.
type torture struct {
	minutes float64
	records int64
	seed    uint64
	dir     string
	show    *bench.Display

	rnd     *rand.Rand // of the faults
	boots   int        // of the machine
	starts  uint64     // of the broker
	flags   []string   // how the next broker's world differs
	addr    string
	p       *process
	h       *history
	l       *load
	losses  losses
	hostile hostile
	begun   time.Time
	doing   atomic.Pointer[string] // the fault at hand
	result  TortureReport
}

// Torture is the command `teralog sim torture`.
func Torture(ctx context.Context, args []string, _ io.Reader, out, notes io.Writer) error {
	f := flag.NewFlagSet("sim torture", flag.ContinueOnError)
	f.SetOutput(io.Discard)
	t := &torture{show: bench.NewDisplay(notes, false)}
	f.Float64Var(&t.minutes, "minutes", 10, "")
	f.Int64Var(&t.records, "records", 0, "")
	f.Uint64Var(&t.seed, "seed", 1, "")
	f.StringVar(&t.dir, "dir", "", "")
	format := f.String("o", "table", "")
	switch err := f.Parse(args); {
	case errors.Is(err, flag.ErrHelp):
		fmt.Fprint(out, tortureHelp)
		return nil
	case err != nil:
		return usage{fmt.Errorf("%w; see teralog sim torture --help", err)}
	}
	if t.records == 0 {
		t.records = max(1000, int64(t.minutes*1e6))
	}
	switch {
	case f.NArg() > 0:
		return usage{fmt.Errorf("unexpected argument %q; see teralog sim torture --help", f.Arg(0))}
	case !(t.minutes >= 0.02 && t.minutes <= 1440):
		return usage{fmt.Errorf("--minutes %v: it is 0.02 to 1440", t.minutes)}
	case t.records < 1000 || t.records > 1_000_000_000:
		return usage{fmt.Errorf("--records %d: it is 1000 to 1000000000", t.records)}
	case *format != "table" && *format != "json":
		return usage{fmt.Errorf("-o %s: it is table or json", *format)}
	}
	return t.main(ctx, *format, out)
}

func (t *torture) main(ctx context.Context, format string, out io.Writer) error {
	keep := t.dir != ""
	dir, err := workplace(t.dir, "teralog-torture-")
	if err != nil {
		return err
	}
	t.dir = dir
	// The checker's memory lives to the end; collecting at twice its size would
	// double it.
	defer debug.SetMemoryLimit(debug.SetMemoryLimit(256<<20 + 80*t.records))
	defer debug.SetGCPercent(debug.SetGCPercent(30))
	t.begun = time.Now()
	t.result.Faults, t.result.Longest = map[string]int{}, map[string]float64{}
	err = t.run(ctx)
	t.summarize(err)
	if err := t.result.report(out, format); err != nil {
		return err
	}
	return leave(dir, keep, err)
}

// run makes a broker, sets the nemeses on it, lets it rest, and judges.
func (t *torture) run(ctx context.Context) (err error) {
	t.rnd = rand.New(rand.NewPCG(t.seed, 0x7047))
	t.h = newHistory(uint32(t.seed)<<8 | uint32(os.Getpid())&0xFF)
	t.h.owners = nil // nothing but one small topic is ever deleted, so the checker sees all
	if err := t.start(ctx); err != nil {
		return err
	}
	defer func() {
		if t.p != nil {
			err = errors.Join(err, t.p.kill())
		}
	}()
	if err := t.begin(ctx); err != nil {
		return err
	}
	defer t.l.abort()
	if err := t.afflict(ctx); err != nil {
		return err
	}
	if err := t.settle(ctx); err != nil {
		return err
	}
	if err := t.rest(ctx); err != nil {
		return err
	}
	p := t.p
	t.p = nil
	if err := p.stop(); err != nil {
		return fmt.Errorf("stop: %w", err)
	}
	return t.judge()
}

// afflict runs hostile clients and the faults, until enough is acknowledged.
func (t *torture) afflict(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	var beside sync.WaitGroup
	defer beside.Wait()
	defer cancel()
	t.doing.Store(new(string))
	beside.Go(func() { t.progress(ctx) })
	beside.Go(func() { t.hostile.run(ctx, t.addr, t.l.topics[0].id, t.seed) })
	for _, f := range t.schedule() {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(time.Until(t.begun.Add(f.at))):
		}
		t.doing.Store(&f.by.kind)
		if err := t.suffer(ctx, f.by); err != nil {
			return err
		}
		if len(t.h.violations()) > 0 {
			return nil // judge says which
		}
	}
	late := max(recoverLimit, time.Duration(t.minutes*float64(time.Minute)))
	return t.await(ctx, late, "enough records", func() bool { return t.h.acked() >= t.records })
}

// The topics that last. Nothing of them is ever deleted, but of the short one,
// whose segments come and go.
var tortureTopics = []struct {
	loadTopic
	settings []wire.Setting
}{
	{loadTopic{name: "kept-async", partitions: 3, flush: "async"}, []wire.Setting{{Key: "segment.bytes", Value: "16MiB"}}},
	{loadTopic{name: "kept-interval", partitions: 3, flush: "interval"}, []wire.Setting{{Key: "segment.bytes", Value: "16MiB"},
		{Key: "flush.bytes", Value: fmt.Sprint(tortureFlushBytes)}, {Key: "flush.interval", Value: fmt.Sprintf("%dms", tortureFlushEvery)}}},
	{loadTopic{name: "kept-sync", partitions: 3, flush: "sync"}, []wire.Setting{{Key: "segment.bytes", Value: "16MiB"}}},
	{loadTopic{name: "kept-short", partitions: 1, flush: "sync"}, torturedSettings},
}

// The bounds of the topic with interval flush, which are promises.
const (
	tortureFlushBytes = 256 << 10
	tortureFlushEvery = 200 // ms
)

// loadShare is the share of the time in which the load is to be done: the rest
// is for what faults cost.
const loadShare = 0.85

// begin makes the topics, notes what the broker takes, and starts the load.
func (t *torture) begin(ctx context.Context) error {
	c, err := dial(t.p.addr)
	if err != nil {
		return err
	}
	t.losses = losses{acked: map[wire.PartitionID][]stamped{}, counts: map[wire.PartitionID]int64{}, epochs: map[wire.PartitionID]wire.Epoch{}, gone: map[string]int64{}}
	t.l = &load{h: t.h, seed: t.seed, c: c, passing: []string{"sync"}, acked: t.losses.note, excused: t.mayLose, most: 160}
	for _, make := range tortureTopics {
		topic := make.loadTopic
		settings := append([]wire.Setting{{Key: "flush", Value: topic.flush}}, make.settings...)
		if topic.id, err = c.CreateTopic(ctx, client.TopicSpec{Name: topic.name, Partitions: topic.partitions, Settings: settings}); err != nil {
			return err
		}
		t.l.topics = append(t.l.topics, topic)
	}
	if t.result.Before, err = t.footprint(ctx); err != nil {
		return err
	}
	t.l.rate = float64(t.records) / (loadShare * t.minutes * 60) / float64(len(t.l.topics)*producersPerTopic)
	if err := t.l.begin(); err != nil {
		return err
	}
	for i := range t.l.topics {
		t.l.run(func() { t.l.catchUp(t.l.topics[i], t.seed+uint64(i)) })
	}
	return nil
}

// mayLose reports whether a power cut may have taken acknowledged records of a
// topic.
func (t *torture) mayLose(id wire.TopicID) bool {
	for _, topic := range t.l.topics {
		if topic.id == id {
			return topic.flush != "sync" && t.losses.any.Load()
		}
	}
	return false
}

func (t *torture) data() string { return filepath.Join(t.dir, "data") }
func (t *torture) disk() string { return filepath.Join(t.dir, "disk.journal") }
func (t *torture) log() string  { return filepath.Join(t.dir, "broker.log") }

// start starts the broker, at the address of the one before, in the world that
// flags describe.
func (t *torture) start(ctx context.Context) error {
	if err := t.launch(); err != nil {
		return err
	}
	if err := t.p.serving(ctx); err != nil {
		t.p.cmd.Process.Kill()
		return err
	}
	t.addr = t.p.addr
	return nil
}

func (t *torture) launch() (err error) {
	t.starts++
	args := []string{"sim", "broker", "-data-dir", t.data(), "-listen", cmp.Or(t.addr, "127.0.0.1:0"), "-http", "127.0.0.1:0", "-reserve", fmt.Sprint(1 << 20),
		"-disk", t.disk(), "-seed", fmt.Sprint(t.seed<<32 + t.starts)}
	if t.boots > 0 {
		args = append(args, "-boot", fmt.Sprintf("boot-%d", t.boots))
	}
	t.p, err = launch(t.log(), append(args, t.flags...)...)
	t.flags = nil
	return err
}

// recoverLimit is how long anything may take that has to come by itself.
const recoverLimit = 30 * time.Second

// await looks until ok, at most for limit, counted in looks.
func (t *torture) await(ctx context.Context, limit time.Duration, what string, ok func() bool) error {
	late, stop := looks(limit)
	defer stop()
	for !ok() {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-t.p.ended:
			return fmt.Errorf("waiting for %s: the broker ended by itself: %w", what, t.p.err)
		case <-late:
			return fmt.Errorf("waited %v for %s", limit, what)
		case <-time.After(lookEvery):
		}
	}
	return nil
}
