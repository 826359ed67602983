package sim

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/teralog/teralog/client"
	"github.com/teralog/teralog/wire"
)

const killHelp = `Usage: teralog sim kill [flags]

Runs a broker in a process of its own under load and kills it with SIGKILL, again
and again: every other time at a random moment, otherwise at a chosen disk
operation, such as the making of a new segment. Producers, readers and topics
that come and go stay at work all the while. At the end everything is read back:
no acknowledged record is lost, none lies at two offsets, none that was not sent
is there, and look-ups by time find what a walk finds.

  teralog sim kill -rounds 100
  teralog sim kill -rounds 20 -flush sync -seed 7 -v

Flags:
  -rounds N     how often it is killed (default 100)
  -flush MODE   async, interval, sync or all (default all)
  -seed S       draws the moments (default 1); real processes differ all the same
  -dir D        keep the files in D (default: temporary, kept on failure)
  -v            a line a round
`

// A killing is one run of `teralog sim kill`.
type killing struct {
	rounds  int
	seed    uint64
	modes   []string
	dir     string
	verbose bool
	notes   io.Writer

	rnd   *rand.Rand
	addr  string
	h     *history
	l     *load
	due   []*visit // places to visit, the next one first; all of them, then all again
	all   []*visit
	kills map[string]int // at no place in particular, by what the broker was at
	took  time.Duration
	ups   int // look-ups by time
}

// A visit is one place at one moment, and what came of it.
type visit struct {
	place       *place
	moment      string
	met, missed int
}

// Kill is the command `teralog sim kill`.
func Kill(ctx context.Context, args []string, _ io.Reader, out, notes io.Writer) error {
	f := flag.NewFlagSet("sim kill", flag.ContinueOnError)
	f.SetOutput(io.Discard)
	k := &killing{notes: notes, kills: map[string]int{}}
	f.IntVar(&k.rounds, "rounds", 100, "")
	f.Uint64Var(&k.seed, "seed", 1, "")
	f.StringVar(&k.dir, "dir", "", "")
	f.BoolVar(&k.verbose, "v", false, "")
	mode := f.String("flush", "all", "")
	switch err := f.Parse(args); {
	case errors.Is(err, flag.ErrHelp):
		fmt.Fprint(notes, killHelp)
		return nil
	case err != nil:
		return err
	}
	if k.modes = []string{*mode}; *mode == "all" {
		k.modes = []string{"async", "interval", "sync"}
	}
	if k.rounds < 1 || f.NArg() > 0 || !slices.Contains([]string{"all", "async", "interval", "sync"}, *mode) {
		return errors.New("see teralog sim kill -h")
	}
	return k.main(ctx, out)
}

func (k *killing) main(ctx context.Context, out io.Writer) error {
	keep := k.dir != ""
	dir, err := workplace(k.dir, "teralog-kill-")
	if err != nil {
		return err
	}
	k.dir = dir
	started := time.Now()
	err = k.run(ctx)
	k.took = time.Since(started)
	k.report(out)
	return leave(dir, keep, err)
}

func (k *killing) run(ctx context.Context) (err error) {
	k.rnd = rand.New(rand.NewPCG(k.seed, 0x4B1))
	k.h = newHistory(uint32(k.seed)<<8 | uint32(os.Getpid())&0xFF)
	k.plan()
	p, err := k.serve(ctx, "127.0.0.1:0")
	if err != nil {
		return err
	}
	k.addr = p.addr
	if err := k.begin(ctx); err != nil {
		return errors.Join(err, p.kill())
	}
	defer k.l.abort()
	if err := p.kill(); err != nil {
		return err
	}
	for n := range k.rounds {
		if err := k.round(ctx, n); err != nil {
			return fmt.Errorf("round %d: %w", n, err)
		}
		if len(k.h.violations()) > 0 {
			break
		}
	}
	if p, err = k.serve(ctx, k.addr); err != nil {
		return err
	}
	if err := k.end(ctx); err != nil {
		return errors.Join(err, p.kill())
	}
	if err := p.stop(); err != nil {
		return fmt.Errorf("stop: %w", err)
	}
	return k.judge()
}

// plan puts the places in an order of chance. A run too short for all of them
// meets as many as it can.
func (k *killing) plan() {
	for i := range places {
		for _, m := range moments {
			if m != "amid" || places[i].op == "write" {
				k.all = append(k.all, &visit{place: &places[i], moment: m})
			}
		}
	}
	// Every place at one moment before any at its second.
	k.rnd.Shuffle(len(k.all), func(i, j int) { k.all[i], k.all[j] = k.all[j], k.all[i] })
	seen := map[*place]int{}
	turn := map[*visit]int{}
	for _, v := range k.all {
		turn[v] = seen[v.place]
		seen[v.place]++
	}
	slices.SortStableFunc(k.all, func(a, b *visit) int { return turn[a] - turn[b] })
	k.due = slices.Clone(k.all)
}

// upTo draws a time below d.
func (k *killing) upTo(d time.Duration) time.Duration { return time.Duration(k.rnd.Int64N(int64(d))) }

func (k *killing) data() string { return filepath.Join(k.dir, "data") }
func (k *killing) log() string  { return filepath.Join(k.dir, "broker.log") }

// serve starts the broker that users start.
func (k *killing) serve(ctx context.Context, listen string) (*process, error) {
	p, err := launch(k.log(), "serve", "--data-dir", k.data(), "--listen", listen, "--reserve", "1MiB")
	if err != nil {
		return nil, err
	}
	if err := p.serving(ctx); err != nil {
		p.cmd.Process.Kill()
		return nil, err
	}
	return p, nil
}

// begin makes the topics and starts the load.
func (k *killing) begin(ctx context.Context) error {
	c, err := dial(k.addr)
	if err != nil {
		return err
	}
	k.l = &load{h: k.h, seed: k.seed, c: c, passing: k.modes}
	for _, mode := range k.modes {
		t := loadTopic{name: "kept-" + mode, partitions: 2, flush: mode}
		settings := append([]wire.Setting{{Key: "flush", Value: mode}}, torturedSettings...)
		if t.id, err = c.CreateTopic(ctx, client.TopicSpec{Name: t.name, Partitions: t.partitions, Settings: settings}); err != nil {
			return err
		}
		k.l.topics = append(k.l.topics, t)
	}
	return k.l.begin()
}

// settleLimit is how long the clients may need for what is still to be done once
// the broker stays up.
const settleLimit = 2 * time.Minute

// end lets everything come to an outcome and reads it back.
func (k *killing) end(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, settleLimit)
	defer cancel()
	if err := k.l.finish(ctx); err != nil {
		return err
	}
	for _, t := range k.l.topics {
		for p := range t.partitions {
			all, err := k.l.drain(ctx, t, p)
			if err != nil {
				return fmt.Errorf("read back %s/%d: %w", t.name, p, err)
			}
			n, err := k.l.lookUps(ctx, t, p, all, k.rnd)
			if err != nil {
				return fmt.Errorf("look up times in %s/%d: %w", t.name, p, err)
			}
			k.ups += n
		}
	}
	return nil
}
