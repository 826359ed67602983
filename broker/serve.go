package broker

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"strings"

	"github.com/teralog/teralog/coord"
	"github.com/teralog/teralog/wire"
)

// How a broker's process ends.
const (
	exitUsage  = 2  // the command line
	exitIO     = 74 // a disk that cannot be trusted; do not restart blindly
	exitConfig = 78 // a bad setting
)

// An exitError is an error that says how the process ends.
type exitError struct {
	code int
	err  error
}

func (e *exitError) Error() string { return e.err.Error() }
func (e *exitError) Unwrap() error { return e.err }
func (e *exitError) ExitCode() int { return e.code }

const serveHelp = `Usage: teralog serve [flags]

Runs a broker until it gets SIGTERM or SIGINT. Without any flag it keeps its
files in ./teralog-data and listens on 127.0.0.1:7400.

  teralog serve --data-dir /var/lib/teralog --listen 0.0.0.0:7400
  teralog serve --config /etc/teralog/teralog.conf

Flags; each may also stand in the file as "name = value", or in the
environment. A flag outdoes the environment, that the file, that the default.
`

// Serve runs a broker: the command `teralog serve`. When it is ready it prints
// one line with its addresses to out.
func Serve(ctx context.Context, args []string, _ io.Reader, out, notes io.Writer) error {
	c, err := readServe(args, os.LookupEnv, notes)
	if errors.Is(err, flag.ErrHelp) {
		return nil
	}
	if err != nil {
		return err
	}
	log := newLog(notes, c.LogLevel)
	env, err := NewEnv(log)
	if err != nil {
		return err
	}
	ln, err := net.Listen("tcp", c.Listen)
	if err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	defer ln.Close()
	b, err := New(c, env)
	if err != nil {
		if errors.Is(err, coord.ErrFailed) {
			return &exitError{exitIO, err}
		}
		return err
	}
	for _, line := range b.Recovery() {
		log.Info("recovery", "did", line)
	}
	fmt.Fprintf(out, "teralog %s ready: listen %s, data %s, node %d, cluster %v, %d topics\n",
		wire.Software, ln.Addr(), strings.Join(c.DataDirs, ","), c.Node, b.Cluster(), len(b.Image().Topics()))
	err = b.Run(ctx, ln)
	if errors.Is(err, coord.ErrFailed) {
		return &exitError{exitIO, err}
	}
	return err
}

// readServe puts the configuration together: defaults, file, environment,
// flags.
func readServe(args []string, look func(string) (string, bool), notes io.Writer) (Config, error) {
	c := DefaultConfig()
	flags := flag.NewFlagSet("serve", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	file := flags.String("config", "", "")
	given := map[string]string{}
	for _, k := range Keys {
		flags.Func(k.Name, k.Doc, func(v string) error {
			given[k.Name] = v
			probe := DefaultConfig()
			return k.set(&probe, v)
		})
	}
	switch err := flags.Parse(args); {
	case errors.Is(err, flag.ErrHelp):
		fmt.Fprint(notes, serveHelp)
		printKeys(notes)
		return c, err
	case err != nil:
		return c, &exitError{exitConfig, err}
	case flags.NArg() > 0:
		return c, &exitError{exitUsage, fmt.Errorf("unexpected argument %q; see teralog serve --help", flags.Arg(0))}
	}
	if path, ok := look("TERALOG_CONFIG"); ok && *file == "" {
		*file = path
	}
	if *file != "" {
		if err := c.ReadFile(*file); err != nil {
			return c, &exitError{exitConfig, err}
		}
	}
	if err := c.ReadEnv(look); err != nil {
		return c, &exitError{exitConfig, err}
	}
	for name, v := range given {
		if err := c.Set(name, v); err != nil {
			return c, &exitError{exitConfig, err}
		}
	}
	return c, nil
}

func printKeys(w io.Writer) {
	fmt.Fprintf(w, "\n  --%-16s %s\n", "config FILE", "read settings from FILE (TERALOG_CONFIG)")
	for _, k := range Keys {
		fmt.Fprintf(w, "  --%-16s %s", k.Name, k.Doc)
		if d := k.Default(); d != "" {
			fmt.Fprintf(w, " (default %s)", d)
		}
		fmt.Fprintln(w)
	}
}

func newLog(w io.Writer, level string) *slog.Logger {
	var l slog.Level
	if err := l.UnmarshalText([]byte(level)); err != nil {
		panic(fmt.Sprintf("BUG: log level %q was let through", level))
	}
	return slog.New(slog.NewTextHandler(w, &slog.HandlerOptions{Level: l}))
}
