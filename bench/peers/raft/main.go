// Raft measures consensus libraries beside Teralog's on one machine, in turn:
// three processes on loopback that sync what they write.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/teralog/teralog/bench/peers/measure"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "raft:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	if len(args) > 0 {
		switch args[0] {
		case "cluster":
			return runCluster(ctx, args[1:], os.Stdout)
		case "node":
			return runNode(context.WithoutCancel(ctx), args[1:], os.Stdin, os.Stdout)
		}
	}
	return compare(ctx, args)
}

const help = `Usage: go run . [flags]      (in bench/peers/raft)

Measures Teralog's raft, go.etcd.io/raft and github.com/hashicorp/raft in turn:
three processes each, on loopback, all writes synced, a closed loop of
proposals in the leader's process. Files are removed afterwards.

  go run . -quick
  go run . -o markdown

Flags:
`

// A contender is a command that runs a cluster and prints a result.
type contender struct {
	name    string
	command []string
}

// inFlight is how many proposals are on their way in the three loads.
var inFlight = []int{1, 16, 256}

func compare(ctx context.Context, args []string) error {
	f := flag.NewFlagSet("", flag.ContinueOnError)
	f.Usage = func() {
		fmt.Fprint(f.Output(), help)
		f.PrintDefaults()
	}
	rounds := f.Int("rounds", 5, "how often each load goes round all contenders")
	seconds := f.Float64("seconds", 3, "how long a run proposes")
	size := f.Int("size", 100, "bytes of a proposal")
	quick := f.Bool("quick", false, "one round of short runs: to see that everything works, not to be quoted")
	dir := f.String("dir", "", "where the nodes keep their files (by default the directory for temporary files)")
	format := f.String("o", "text", "text, json or markdown")
	within := f.Duration("within", time.Hour, "stop after this time with what there is")
	if err := f.Parse(args); err != nil {
		return err
	}
	print, known := formats[*format]
	switch {
	case f.NArg() > 0:
		return fmt.Errorf("unexpected argument %q", f.Arg(0))
	case !known:
		return fmt.Errorf("-o %q: it is text, json or markdown", *format)
	case *rounds < 1:
		return errors.New("-rounds is at least 1")
	}
	if *quick {
		*rounds, *seconds = 1, 0.5
	}
	if err := (task{1, *seconds, *size}).check(); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, *within)
	defer cancel()
	home, err := os.MkdirTemp(*dir, "teralog-raft-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(home)
	r := report{
		Command: measure.CommandLine("go run .", args), Date: time.Now().UTC().Format(time.DateOnly),
		Versions: versions(), Size: *size, Skipped: []string{},
	}
	if r.Machine, err = measure.Describe(home); err != nil {
		return err
	}
	contenders, err := r.ready(ctx, home)
	if err != nil {
		return err
	}
	for _, n := range inFlight {
		if err := r.measure(ctx, home, contenders, task{n, *seconds, *size}, *rounds); err != nil {
			r.Skipped = append(r.Skipped, fmt.Sprintf("what is missing below: %v", err))
			break
		}
	}
	r.sum()
	return print(os.Stdout, &r)
}

// root is where Teralog's own module lies, seen from this one.
const root = "../../.."

// ready builds Teralog and asks whether it has the command. Without it the
// others are measured all the same.
func (r *report) ready(ctx context.Context, home string) ([]contender, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	all := []contender{{"etcd", []string{self, "cluster", "etcd"}}, {"hashicorp", []string{self, "cluster", "hashicorp"}}}
	ours := filepath.Join(home, "teralog")
	if _, _, err := measure.Drive(ctx, "go", "build", "-C", root, "-o", ours, "."); err != nil {
		r.skip(fmt.Sprintf("teralog: %v", err))
		return all, nil
	}
	if _, _, err := measure.Drive(ctx, ours, "bench", "raft", "--help"); err != nil {
		r.skip(fmt.Sprintf("teralog: it has no command `teralog bench raft`, which must take the flags that README.md names: %v", err))
		return all, nil
	}
	return append([]contender{{"teralog", []string{ours, "bench", "raft"}}}, all...), nil
}

func (r *report) skip(why string) {
	r.Skipped = append(r.Skipped, why)
	fmt.Fprintln(os.Stderr, "skipped:", why)
}

// tries is how often a run is begun before its round goes without it: a node
// that is elected on a busy machine may lose its office at once.
const tries = 3

// measure lets all contenders run a task in turn, round by round, with the
// cost of a sync before each round. Its error says that time is over.
func (r *report) measure(ctx context.Context, home string, contenders []contender, t task, rounds int) error {
	first := len(r.Rows)
	for _, c := range contenders {
		r.Rows = append(r.Rows, row{InFlight: t.InFlight, Name: c.name, Failures: []string{}})
	}
	for n := range rounds {
		sync, _, err := measure.SyncCost(home)
		if err != nil {
			return err
		}
		for i, c := range contenders {
			if err := ctx.Err(); err != nil {
				return err
			}
			to := &r.Rows[first+i]
			s := sample{SyncP50: sync}
			for range tries {
				fmt.Fprintf(os.Stderr, "%d in flight, round %d of %d: %s: ", t.InFlight, n+1, rounds, c.name)
				if s.result, err = c.run(ctx, home, t); err == nil {
					fmt.Fprintf(os.Stderr, "%s proposals/s\n", measure.Short(s.PerSecond))
					break
				}
				fmt.Fprintln(os.Stderr, err)
				to.Failures = append(to.Failures, err.Error())
			}
			to.Samples = append(to.Samples, s)
		}
	}
	return nil
}

// run makes one run in a directory of its own.
func (c contender) run(ctx context.Context, home string, t task) (r result, err error) {
	dir, err := os.MkdirTemp(home, c.name+"-")
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute+time.Duration(2*t.Seconds*float64(time.Second)))
	defer cancel()
	args := append(c.command[1:len(c.command):len(c.command)], "--in-flight", strconv.Itoa(t.InFlight),
		"--seconds", strconv.FormatFloat(t.Seconds, 'g', -1, 64), "--size", strconv.Itoa(t.Size), "--dir", dir, "-o", "json")
	out, _, err := measure.Drive(ctx, c.command[0], args...)
	if err != nil {
		return r, err
	}
	if err := json.Unmarshal(out, &r); err != nil {
		return result{}, fmt.Errorf("result of %s: %w", c.name, err)
	}
	if r.Proposals <= 0 || r.PerSecond <= 0 {
		return result{}, fmt.Errorf("result of %s: no proposals in %s", c.name, out)
	}
	return r, nil
}

// versions names what is measured: the modules that this program was built
// with, and the state of our own tree.
func versions() (all []string) {
	commit := "unknown"
	if out, err := exec.Command("git", "-C", root, "describe", "--always", "--dirty").Output(); err == nil {
		commit = strings.TrimSpace(string(out))
	}
	return append([]string{"teralog commit " + commit}, modules()...)
}
