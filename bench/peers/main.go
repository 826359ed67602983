// Peers measures Teralog beside other logs on one machine, in turn: each
// system with its own tool, at the same record sizes and the same durability.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"time"

	"github.com/teralog/teralog/bench/peers/measure"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "peers:", err)
		os.Exit(1)
	}
}

const help = `Usage: go run . [flags]      (in bench/peers)

Measures Teralog, NATS JetStream and Redis Streams in turn on this machine and
prints a table. A peer that cannot be had is skipped, and the table says so.
Everything runs on loopback; its files are removed afterwards.

  go run . -quick
  go run . -only 'consume' -o markdown

Flags:
`

func run(ctx context.Context, args []string) error {
	f := flag.NewFlagSet("", flag.ContinueOnError)
	f.Usage = func() {
		fmt.Fprint(f.Output(), help)
		f.PrintDefaults()
	}
	rounds := f.Int("rounds", 5, "how often each load goes round all systems")
	seconds := f.Float64("seconds", 3, "how long a run should take, besides its preparation")
	quick := f.Bool("quick", false, "one round of short runs: to see that everything works, not to be quoted")
	only := f.String("only", "", "only ways whose \"LOAD/SYSTEM\" matches this `regexp`, such as 'produce 100 B$|/redis'")
	dir := f.String("dir", "", "where the systems keep their files (by default the directory for temporary files)")
	format := f.String("o", "text", "text, json or markdown")
	within := f.Duration("within", time.Hour, "stop after this time with what there is")
	if err := f.Parse(args); err != nil {
		return err
	}
	print, known := formats[*format]
	match, err := regexp.Compile(*only)
	switch {
	case f.NArg() > 0:
		return fmt.Errorf("unexpected argument %q", f.Arg(0))
	case !known:
		return fmt.Errorf("-o %q: it is text, json or markdown", *format)
	case err != nil:
		return fmt.Errorf("-only: %w", err)
	case *rounds < 1 || *seconds <= 0 || *seconds > 60:
		return errors.New("-rounds is at least 1, -seconds more than 0 and at most 60")
	}
	less := 1
	if *quick {
		*rounds, *seconds, less = 1, 0.5, 10
	}
	ctx, cancel := context.WithTimeout(ctx, *within)
	defer cancel()

	home, err := os.MkdirTemp(*dir, "teralog-peers-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(home)
	bin := filepath.Join(home, "bin")
	if err := os.Mkdir(bin, 0o755); err != nil {
		return err
	}
	r := report{Command: measure.CommandLine("go run .", args), Date: time.Now().UTC().Format(time.DateOnly), Commit: commit(ctx), Skipped: []string{}, Losses: []string{}}
	if r.Machine, err = measure.Describe(home); err != nil {
		return err
	}
	r.measure(ctx, lab{home, *seconds, less}, *rounds, match, r.ready(ctx, bin))
	if len(r.Rows) == 0 {
		return fmt.Errorf("nothing was measured; skipped: %q", r.Skipped)
	}
	r.compare()
	return print(os.Stdout, &r)
}

// commit names the state of the tree.
func commit(ctx context.Context) string {
	out, err := exec.CommandContext(ctx, "git", "-C", root, "describe", "--always", "--dirty").Output()
	if err != nil {
		return "unknown"
	}
	return strings.TrimSpace(string(out))
}

// ready builds or finds the systems. Those that cannot be had are skipped.
func (r *report) ready(ctx context.Context, bin string) (systems []system) {
	for _, s := range []struct {
		name string
		get  func(context.Context, string) (system, error)
	}{{"teralog", teralog}, {"jetstream", jetStream}, {"redis", redisStreams}} {
		fmt.Fprintf(os.Stderr, "%s: making ready\n", s.name)
		sys, err := s.get(ctx, bin)
		if err != nil {
			r.skip(s.name, err)
			continue
		}
		systems = append(systems, sys)
	}
	return systems
}

func (r *report) skip(name string, err error) {
	r.Skipped = append(r.Skipped, fmt.Sprintf("%s: %v", name, err))
	fmt.Fprintf(os.Stderr, "%s: skipped: %v\n", name, err)
}

// measure takes the loads one after the other, and in each the systems in
// turn, round by round: what changes on the machine changes for all of them.
func (r *report) measure(ctx context.Context, b lab, rounds int, only *regexp.Regexp, systems []system) {
	for _, l := range loads {
		first := len(r.Rows)
		var turn []func(*row)
		for _, sys := range systems {
			if !only.MatchString(l.name + "/" + sys.name) {
				continue
			}
			for _, w := range sys.ways(l) {
				r.Rows = append(r.Rows, row{
					Load: l.name, System: sys.name, Version: sys.version, How: w.how, Ack: w.ack, LatencyOf: w.latency,
					size: l.size, single: l.single, Failures: []string{},
				})
				turn = append(turn, func(to *row) { b.round(ctx, sys, l, w, to) })
			}
		}
		for n := range rounds {
			for i, measure := range turn {
				if ctx.Err() != nil {
					break
				}
				to := &r.Rows[first+i]
				fmt.Fprintf(os.Stderr, "%s, round %d of %d: %s: ", to.Load, n+1, rounds, to.How)
				measure(to)
			}
		}
	}
	if err := ctx.Err(); err != nil {
		r.Skipped = append(r.Skipped, fmt.Sprintf("what is missing below: %v", context.Cause(ctx)))
	}
}

// tries is how often a run is begun before its round goes without it. Under
// load, the tools of peers give up at times.
const tries = 3

// round makes one run and adds it to a row.
func (b lab) round(ctx context.Context, sys system, l load, w way, to *row) {
	for range tries {
		s, err := b.measure(ctx, sys, l, w)
		if err == nil {
			fmt.Fprintf(os.Stderr, "%s records/s, broker %s s/GB\n", measure.Short(s.RecordsPerSecond), measure.Short(s.BrokerPerGB))
			to.Samples = append(to.Samples, s)
			return
		}
		fmt.Fprintln(os.Stderr, err)
		if ctx.Err() != nil {
			return
		}
		to.Failures = append(to.Failures, err.Error())
	}
	to.Samples = append(to.Samples, sample{})
}
