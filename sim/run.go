// Package sim runs whole brokers and Raft clusters in simulated time, on disks in
// memory, from a seed, and holds what their clients saw against what is
// promised. It also kills and tortures real brokers.
package sim

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

const help = `Usage: teralog sim one|raft|kill|torture [flags]

  teralog sim one -seed 1 -seeds 1000   run a simulated one-node broker from 1,000 seeds
  teralog sim raft -seeds 1000          run a simulated Raft cluster from 1,000 seeds
  teralog sim raft -seed 42 -trace      print everything that happens in seed 42
  teralog sim raft -scenario FILE       play what a failing seed was shrunk to
  teralog sim kill -rounds 100          kill a real broker with SIGKILL, 100 times
  teralog sim torture                   ten minutes of everything against a real broker

A seed is always the same run. One that fails prints what went wrong, the last
events, and how to run it again; of a Raft cluster also the shortest scenario
that still fails in the same way.
`

type usage struct{ error }

func (usage) ExitCode() int { return 2 }

// Run is the command `teralog sim`.
func Run(ctx context.Context, args []string, in io.Reader, out, notes io.Writer) error {
	if len(args) == 0 || args[0] == "-h" || args[0] == "--help" || args[0] == "help" {
		fmt.Fprint(notes, help)
		if len(args) == 0 {
			return usage{errors.New("one, raft, kill or torture?")}
		}
		return nil
	}
	switch args[0] {
	case "one":
		return simulation{name: "one", run: One}.command(ctx, args[1:], out, notes)
	case "raft":
		return simulation{name: "raft", run: Raft, rare: raftRare, play: playScenario, smaller: smaller}.command(ctx, args[1:], out, notes)
	case "kill":
		return Kill(ctx, args[1:], in, out, notes)
	case "torture":
		return Torture(ctx, args[1:], in, out, notes)
	case "broker": // a child of these two
		return serveTortured(ctx, args[1:], in, out, notes)
	}
	return usage{fmt.Errorf("unknown subcommand %q; see teralog sim --help", args[0])}
}

// A simulation is something that is run from seeds.
type simulation struct {
	name    string
	run     func(seed uint64, trace io.Writer) Report
	rare    []string                                  // what has to happen in one of many seeds
	play    func(file string, trace io.Writer) error  // nil: it has no scenarios
	smaller func(seed uint64) (scenario fmt.Stringer) // that fails as the seed does; nil: likewise
}

// manySeeds are enough for everything rare to have happened.
const manySeeds = 2000

func (s simulation) command(ctx context.Context, args []string, out, notes io.Writer) error {
	f := flag.NewFlagSet("sim "+s.name, flag.ContinueOnError)
	f.SetOutput(io.Discard)
	seed := f.Uint64("seed", 1, "the first seed")
	seeds := f.Uint64("seeds", 1, "how many")
	trace := f.Bool("trace", false, "print every event")
	file := new(string)
	if s.play != nil {
		f.StringVar(file, "scenario", "", "play a scenario")
	}
	switch err := f.Parse(args); {
	case errors.Is(err, flag.ErrHelp):
		fmt.Fprint(notes, help)
		return nil
	case err != nil || f.NArg() > 0:
		return usage{errors.Join(err, errors.New("see teralog sim --help"))}
	case *file != "":
		return s.play(*file, out)
	case *trace:
		return s.run(*seed, out).err()
	}
	return s.many(ctx, *seed, *seeds, out)
}

func (r Report) err() error {
	if r.Violation == "" {
		return nil
	}
	first, _, _ := strings.Cut(r.Violation, "\n")
	return fmt.Errorf("seed %d: %s", r.Seed, first)
}

// many runs seeds on all processors, one in a hundred twice, and prints what
// they add up to. It stops at the first that fails.
func (s simulation) many(ctx context.Context, from, n uint64, out io.Writer) error {
	var next, done, steps atomic.Uint64
	var mu sync.Mutex
	var bad *Report
	seen := map[string]int{}
	defer debug.SetGCPercent(debug.SetGCPercent(400)) // little lives long
	started := time.Now()
	var workers sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		workers.Go(func() {
			for ctx.Err() == nil {
				i := next.Add(1) - 1
				if i >= n {
					return
				}
				r := s.run(from+i, nil)
				if i%100 == 0 && r.Violation == "" {
					if again := s.run(from+i, nil); again.Hash != r.Hash {
						r.Violation = fmt.Sprintf("two runs differ: hash %x and %x", r.Hash, again.Hash)
					}
				}
				done.Add(1)
				steps.Add(uint64(r.Steps))
				mu.Lock()
				for what, times := range r.Seen {
					seen[what] += min(times, 1)
				}
				if r.Violation != "" && (bad == nil || r.Seed < bad.Seed) {
					bad = &r
					next.Store(n)
				}
				mu.Unlock()
			}
		})
	}
	workers.Wait()
	if bad != nil {
		fmt.Fprintf(out, "%s\nseed %d: %s\nrun it again: teralog sim %s -seed %d -trace\n", bad.Last, bad.Seed, bad.Violation, s.name, bad.Seed)
		if s.smaller != nil {
			fmt.Fprintf(out, "it fails in the same way in this scenario (teralog sim %s -scenario FILE):\n%v", s.name, s.smaller(bad.Seed))
		}
		return bad.err()
	}
	took := time.Since(started)
	n = done.Load() // fewer if it was interrupted
	fmt.Fprintf(out, "%d seeds from %d: no violation, %d events, %.0f seeds a minute\n", n, from, steps.Load(), float64(n)/took.Minutes())
	for _, what := range slices.Sorted(maps.Keys(seen)) {
		fmt.Fprintf(out, "  %6d seeds: %s\n", seen[what], what)
	}
	for _, what := range s.rare {
		if n >= manySeeds && seen[what] == 0 {
			return fmt.Errorf("%q never happened in %d seeds: the simulation no longer reaches it", what, n)
		}
	}
	return ctx.Err()
}
