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
	"os/signal"
	"strings"
	"syscall"

	"github.com/teralog/teralog/coord"
	"github.com/teralog/teralog/mem"
	"github.com/teralog/teralog/storage"
	"github.com/teralog/teralog/wire"
)

// How a broker's process ends, besides 0 after a stop in order and 1.
const (
	exitUsage  = 2  // the command line; a panic ends with 2 too
	exitIO     = 74 // a disk that cannot be trusted; do not restart blindly
	exitConfig = 78 // a bad setting, or a data directory of another node or cluster
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
teralog config check FILE tells what would be in force.

On SIGHUP it reads the certificates of TLS again; connections live on.

It ends with 0 when it was stopped, 2 for a bad command line, 78 for a bad
setting or the data directory of another node, 74 for a disk that cannot be
trusted any more, and 1 for anything else.
`

// Serve runs a broker: the command `teralog serve`. When it is ready it prints
// one line with its addresses to out.
func Serve(ctx context.Context, args []string, _ io.Reader, out, notes io.Writer) error {
	c, err := readServe(args, os.Environ())
	if errors.Is(err, flag.ErrHelp) {
		fmt.Fprint(out, serveHelp)
		printKeys(out)
		return nil
	}
	if err != nil {
		return err
	}
	return coded(serve(ctx, c, out, newLog(notes, c.LogLevel)))
}

// maxKeptProcs bounds the processors that the runtime gets for calls that wait for
// a disk.
const maxKeptProcs = 32

func serve(ctx context.Context, c Config, out io.Writer, log *slog.Logger) error {
	env, err := NewEnv(log)
	if err != nil {
		return err
	}
	return serveIn(ctx, c, env, out)
}

// ServeIn does what the command does, in a world that may differ from the one
// that NewEnv gives. Its error may have an ExitCode.
func ServeIn(ctx context.Context, c Config, env Env, out io.Writer) error {
	return coded(serveIn(ctx, c, env, out))
}

func serveIn(ctx context.Context, c Config, env Env, out io.Writer) error {
	log := env.Log
	env.Stop = ctx.Done()
	manager, err := openNotifier(os.LookupEnv, os.Getpid(), log)
	if err != nil {
		log.Warn("no service manager will be told anything", "err", err)
	}
	if err := mem.Prompt(); err != nil {
		log.Info("the kernel gives no short slices", "err", err)
	}
	hung := make(chan os.Signal, 1)
	signal.Notify(hung, syscall.SIGHUP) // from here on it does not end the process
	defer signal.Stop(hung)
	l, err := openListeners(c)
	defer l.close()
	if err != nil {
		return err
	}
	shown := &front{config: &c, log: log}
	if l.http != nil {
		defer shown.serve(l.http)()
	}
	b, err := New(c, env)
	if err != nil {
		return err
	}
	shown.b.Store(b)
	for _, line := range b.Recovery() {
		log.Info("recovery", "did", line)
	}
	b.warnOfFiles()
	if l.tls != nil {
		b.ServeTLS(l.tls)
	}
	fmt.Fprintf(out, "teralog %s ready: %v, data %s, node %d, cluster %v, %d topics\n",
		wire.Software, l, strings.Join(c.Dirs(), ","), c.Node, b.Cluster(), len(b.Image().Topics()))
	serving, end := context.WithCancel(ctx)
	defer end()
	go b.reloadOn(serving, hung)
	go mem.Calm(ctx, min((c.Flushers+laneWorkers)*len(c.Dirs()), maxKeptProcs), b.effort)
	go mem.CollectRarely(ctx, b.effort)
	return b.Run(ctx, manager.attend(b, l.plain, l.String()), l.tenants...)
}

// listeners are where a broker is heard; nil: not there.
type listeners struct {
	plain, tls, http net.Listener
	tenants          []net.Listener // in the order of the configuration
	names            []string       // of them
}

// openListeners opens those that c names. After an error some may be open.
func openListeners(c Config) (l listeners, err error) {
	for _, one := range []struct {
		ln         *net.Listener
		name, addr string
	}{{&l.plain, "listen", c.Listen}, {&l.tls, "tls-listen", c.TLSListen}, {&l.http, "http", c.HTTP}} {
		if one.addr == "" {
			continue
		}
		if *one.ln, err = net.Listen("tcp", one.addr); err != nil {
			*one.ln = nil
			return l, fmt.Errorf("%s: %w", one.name, err)
		}
	}
	for _, t := range c.Tenants {
		ln, err := net.Listen("tcp", t.Listen)
		if err != nil {
			return l, fmt.Errorf("tenant %s: %w", t.Name, err)
		}
		l.tenants, l.names = append(l.tenants, ln), append(l.names, t.Name)
	}
	return l, nil
}

func (l listeners) close() {
	for _, ln := range append([]net.Listener{l.plain, l.tls, l.http}, l.tenants...) {
		if ln != nil {
			ln.Close()
		}
	}
}

// String names the addresses, as scripts read them from the line of a broker that
// is ready.
func (l listeners) String() string {
	var all []string
	add := func(name string, ln net.Listener) {
		if ln != nil {
			all = append(all, name+" "+ln.Addr().String())
		}
	}
	add("listen", l.plain)
	add("tls", l.tls)
	add("http", l.http)
	for i, ln := range l.tenants {
		add("tenant "+l.names[i], ln)
	}
	return strings.Join(all, ", ")
}

// coded gives an error after which a restart would be no help its exit code: a
// disk that cannot be trusted any more, a directory that is somebody else's.
func coded(err error) error {
	if errors.Is(err, storage.ErrIdentity) {
		return &exitError{exitConfig, err}
	}
	for _, e := range []error{coord.ErrFailed, coord.ErrDamaged, storage.ErrSync} {
		if errors.Is(err, e) {
			return &exitError{exitIO, err}
		}
	}
	return err
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
