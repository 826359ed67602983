package bench

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/teralog/teralog/wire"
)

// A Start runs a broker as a child process on the files in dir, listening on
// listen, with more flags of `teralog serve` if given, and returns once it is
// ready. The child has a process group of its own, so that Ctrl-C reaches only
// who started it, and does not outlive this process.
type Start func(dir, listen string, flags ...string) (*Broker, error)

// A Broker is a child process that serves.
type Broker struct {
	Addr string // where clients connect, host:port
	HTTP string // where it serves /metrics, host:port; "" if it does not
	PID  int

	// Kill ends it at once (SIGKILL), Stop cleanly (SIGTERM). Both return when
	// the process has ended.
	Kill, Stop func() error
}

const runHelp = `Usage: teralog bench WORKLOAD [flags]

Loads a broker and says how fast it was, and what that cost the broker and the
load apart. Without --server it starts a broker of its own, in a directory that
is removed afterwards.

  teralog bench produce --size 1KiB --partitions 12 --duration 30s
  teralog bench produce --rate 250k/s --size 1KiB
  teralog bench consume --consumers 4 -o json

Workloads:
`

const unitsHelp = `  raft     the metadata of three nodes: proposals a second, and how long each takes

MB are 10^6 bytes and GB 10^9; KiB, MiB and GiB are powers of 1024. Bytes of
records are those of their keys and values. teralog bench WORKLOAD --help lists
the flags.
`

// A workload is one word after `teralog bench`.
type workload struct {
	name, summary string // without summary it is not listed
	run           func(ctx context.Context, args []string, start Start, in io.Reader, out, notes io.Writer) error
}

var workloads = []workload{
	{"produce", "write records: how many go, and how long each takes", benchProduce},
	{"consume", "read a backlog: how many records go", benchConsume},
	{"e2e", "from the producer to a consumer that waits: how long each record takes", benchE2E},
	{"idle", "connections that do nothing: what memory each takes", benchIdle},
	{"backlog", "read what is not in memory while others write: what that does to them", benchBacklog},
	{"limits", "what this machine could do at best, by the smallest programs that do the same", benchLimits},
	{"probe", "", benchProbe},
	{"suite", "every workload beside the limit of this machine, as tables and a page", benchSuite},
	{"verify", "check every record of a load: none lost, twice there, or in another order", verify},
}

// Run is the command `teralog bench`. Results go to out, progress to notes. An
// error with an ExitCode method says how the process ends.
func Run(ctx context.Context, args []string, start Start, in io.Reader, out, notes io.Writer) error {
	if len(args) == 0 || args[0] == "help" || args[0] == "-h" || args[0] == "--help" {
		help := out
		if len(args) == 0 {
			help = notes
		}
		fmt.Fprint(help, runHelp)
		for _, w := range workloads {
			if w.summary != "" {
				fmt.Fprintf(help, "  %-8s %s\n", w.name, w.summary)
			}
		}
		fmt.Fprint(help, unitsHelp)
		if len(args) == 0 {
			return usage{errors.New("")}
		}
		return nil
	}
	var names []string
	for _, w := range workloads {
		if w.name == args[0] {
			return w.run(ctx, args[1:], start, in, out, notes)
		}
		if w.summary != "" {
			names = append(names, w.name)
		}
	}
	if near := wire.Nearest(args[0], names); near != "" {
		return usage{fmt.Errorf("unknown workload %q; did you mean %q?", args[0], near)}
	}
	return usage{fmt.Errorf("unknown workload %q; see teralog bench --help", args[0])}
}
