// Teralog is a distributed log in one binary: the broker, the command line
// that talks to it, and the tools that test and measure it.
package main

import (
	"bufio"
	"context"
	"embed"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strings"
	"syscall"

	"github.com/teralog/teralog/bench"
	"github.com/teralog/teralog/broker"
	"github.com/teralog/teralog/client/cli"
	"github.com/teralog/teralog/sim"
	"github.com/teralog/teralog/wire"
)

// A command reads its own flags from args. It writes what was asked for to
// out, and notes and progress to notes. Its error is one line; an error with
// an ExitCode method says how the process ends, any other ends it with 1.
type command struct {
	name, summary string
	run           func(ctx context.Context, args []string, in io.Reader, out, notes io.Writer) error
}

var commands = []command{
	{"serve", "run a broker", broker.Serve},
	{"topic", "create, list, describe and delete topics", cli.Topic},
	{"produce", "write records from stdin or a file", cli.Produce},
	{"consume", "read records by offset or by time", cli.Consume},
	{"offsets", "show where the partitions of a topic begin and end", cli.Offsets},
	{"config", "check a configuration file, and show what would be in force", broker.ConfigCommand},
	{"log", "look into the files of a stopped broker", broker.Log},
	{"demo", "load real records, read them back, kill the broker, check everything", demo},
	{"bench", "measure this machine and Teralog on it", benchRun},
	{"sim", "run a simulated broker through crashes and power cuts", sim.Run},
	{"version", "print the version", version},
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	os.Exit(run(ctx, os.Args[1:]))
}

func run(ctx context.Context, args []string) int {
	if len(args) == 0 || args[0] == "help" || args[0] == "-h" || args[0] == "--help" {
		usage(os.Stdout)
		if len(args) == 0 {
			return 2
		}
		return 0
	}
	names := make([]string, len(commands))
	for i, c := range commands {
		names[i] = c.name
		if c.name != args[0] {
			continue
		}
		err := c.run(ctx, args[1:], os.Stdin, os.Stdout, os.Stderr)
		if err == nil {
			return 0
		}
		if text := err.Error(); text != "" {
			fmt.Fprintf(os.Stderr, "teralog %s: %s\n", c.name, text)
		}
		var coded interface{ ExitCode() int }
		if errors.As(err, &coded) {
			return coded.ExitCode()
		}
		return 1
	}
	fmt.Fprintf(os.Stderr, "teralog: unknown command %q", args[0])
	if near := wire.Nearest(args[0], names); near != "" {
		fmt.Fprintf(os.Stderr, "; did you mean %q?", near)
	}
	fmt.Fprintln(os.Stderr, "\nRun `teralog help` for the commands.")
	return 2
}

func usage(w io.Writer) {
	fmt.Fprint(w, "Teralog is a distributed log: topics of partitions, each an append-only sequence of records.\n\nUsage: teralog COMMAND [flags]\n\nCommands:\n")
	for _, c := range commands {
		fmt.Fprintf(w, "  %-9s %s\n", c.name, c.summary)
	}
	fmt.Fprint(w, `
A first round, with the broker in one terminal and the rest in another:
  teralog serve
  teralog topic create greetings -p 3
  echo hello | teralog produce greetings
  teralog consume greetings --from start --until-end

teralog COMMAND --help tells more. TERALOG_SERVERS names the broker (default 127.0.0.1:7400).
`)
}

func version(_ context.Context, _ []string, _ io.Reader, out, _ io.Writer) error {
	revision := "unknown revision"
	if b, ok := debug.ReadBuildInfo(); ok {
		for _, s := range b.Settings {
			if s.Key == "vcs.revision" {
				revision = s.Value
			}
		}
	}
	_, err := fmt.Fprintf(out, "teralog %s (%s, %s, %s/%s)\n", wire.Software, revision, runtime.Version(), runtime.GOOS, runtime.GOARCH)
	return err
}

// flights are real records for the demo to load; testdata/flights says which.
//
//go:embed testdata/flights
var flights embed.FS

func demo(ctx context.Context, args []string, _ io.Reader, out, notes io.Writer) error {
	dir, err := fs.Sub(flights, "testdata/flights")
	if err != nil {
		return err
	}
	return bench.Demo(ctx, args, dir, startBroker, out, notes)
}

func benchRun(ctx context.Context, args []string, in io.Reader, out, notes io.Writer) error {
	if len(args) > 0 && args[0] == "raft" {
		return broker.RaftLoad(ctx, args[1:], in, out, notes) // bench knows no raft
	}
	return bench.Run(ctx, args, startBroker, in, out, notes)
}

// startBroker runs this same binary as a broker in a process of its own, so
// that it can be killed and its cost told from ours: a bench.Start. Its log
// goes to broker.log beside its data.
func startBroker(dir, listen string, flags ...string) (*bench.Broker, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	logName := filepath.Join(dir, "broker.log")
	log, err := os.OpenFile(logName, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	child := exec.Command(self, append([]string{"serve", "--data-dir", filepath.Join(dir, "data"), "--listen", listen}, flags...)...)
	child.Stderr = log
	child.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	ready, err := child.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := child.Start(); err != nil {
		return nil, err
	}
	line, _ := bufio.NewReader(ready).ReadString('\n')
	addr, ok := said(line, "ready: listen ")
	if !ok {
		child.Process.Kill()
		return nil, fmt.Errorf("the broker did not become ready (%w); its log is %s", child.Wait(), logName)
	}
	b := &bench.Broker{Addr: addr, PID: child.Process.Pid}
	b.HTTP, _ = said(line, ", http ")
	b.Kill = func() error {
		if err := child.Process.Kill(); err != nil {
			return err
		}
		child.Wait() // "signal: killed" is what was asked for
		return nil
	}
	b.Stop = func() error {
		if err := child.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
			return err
		}
		if err := child.Wait(); err != nil {
			return fmt.Errorf("the broker ended with %v", err) // whose exit code is not ours
		}
		return nil
	}
	return b, nil
}

// said returns what stands in a broker's ready line after word, up to the next
// comma.
func said(line, word string) (string, bool) {
	_, rest, ok := strings.Cut(strings.TrimSpace(line), word)
	value, _, _ := strings.Cut(rest, ",")
	return value, ok
}
