// Package cli is the command line that talks to a broker: topic, produce,
// consume and offsets. Data goes to standard output, notes and progress to
// standard error; every failure is one line that says what, where and what to
// do, and the exit code tells its kind.
package cli

import (
	"context"
	"crypto/tls"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"time"

	"github.com/teralog/teralog/client"
	"github.com/teralog/teralog/wire"
)

// How a command ends when it does not end well. Other failures are 1.
const (
	exitUsage       = 2
	exitNotFound    = 3
	exitExists      = 4
	exitUnreachable = 6
	exitConflict    = 7
	exitPartly      = 8 // some of many records failed
	exitInterrupted = 130
)

// defaultServer is where a broker listens that nobody configured.
const defaultServer = "127.0.0.1:7400"

// An exitError is an error that says how the process ends. Without err it ends
// silently, since everything has been said.
type exitError struct {
	code int
	err  error
}

func (e *exitError) Error() string {
	if e.err == nil {
		return ""
	}
	return e.err.Error()
}
func (e *exitError) Unwrap() error { return e.err }
func (e *exitError) ExitCode() int { return e.code }

func usageError(format string, args ...any) error {
	return &exitError{exitUsage, fmt.Errorf(format, args...)}
}

// coded gives err the exit code of its kind.
func coded(ctx context.Context, err error) error {
	var exit *exitError
	var dial *net.OpError
	var cert *tls.CertificateVerificationError
	switch code := wire.CodeOf(err); {
	case err == nil || errors.As(err, &exit):
		return err
	case ctx.Err() != nil:
		return &exitError{exitInterrupted, errors.New("interrupted")}
	case code == wire.CodeUnknownTopic:
		return &exitError{exitNotFound, err}
	case code == wire.CodeTopicExists:
		return &exitError{exitExists, err}
	case code == wire.CodeInvalidName || code == wire.CodeInvalidSetting || code == wire.CodeInvalidRequest || code == wire.CodeUnsupported:
		return &exitError{exitUsage, err}
	case code == wire.CodeTopicRecreated || code == wire.CodeTruncated || code == wire.CodeOutOfRange:
		return &exitError{exitConflict, err}
	case errors.As(err, &dial) || errors.As(err, &cert) || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, client.ErrTimeout):
		return &exitError{exitUnreachable, err}
	}
	return err
}

// A command's flags, and what stands before and after them in --help.
type flags struct {
	*flag.FlagSet
	usage   string
	servers string
	tls     client.TLSFiles
	out     io.Writer // for help that was asked for
}

func newFlags(usage string, out io.Writer) *flags {
	f := &flags{FlagSet: flag.NewFlagSet("", flag.ContinueOnError), usage: usage, out: out}
	f.SetOutput(io.Discard)
	servers := os.Getenv("TERALOG_SERVERS")
	if servers == "" {
		servers = defaultServer
	}
	f.StringVar(&f.servers, "servers", servers, "brokers to begin with, separated by commas (TERALOG_SERVERS)")
	f.tls.Flags(f.FlagSet)
	return f
}

// errHelp ends a command that was asked for its help, with success.
var errHelp = errors.New("help was printed")

// parse reads flags and arguments in any order and returns the arguments,
// least to most of them.
func (f *flags) parse(args []string, least, most int) (rest []string, err error) {
	for {
		switch err := f.Parse(args); {
		case errors.Is(err, flag.ErrHelp):
			f.help()
			return nil, errHelp
		case err != nil:
			return nil, usageError("%w; %s", err, f.hint(err))
		}
		if f.NArg() == 0 {
			break
		}
		rest, args = append(rest, f.Arg(0)), f.Args()[1:]
	}
	if len(rest) < least || len(rest) > most {
		first, _, _ := strings.Cut(f.usage, "\n")
		return nil, usageError("%d arguments given; %s", len(rest), first)
	}
	return rest, nil
}

// hint names the flag that was probably meant.
func (f *flags) hint(err error) string {
	_, name, ok := strings.Cut(err.Error(), "not defined: -")
	var known []string
	f.VisitAll(func(g *flag.Flag) { known = append(known, g.Name) })
	if near := wire.Nearest(name, known); ok && near != "" {
		return fmt.Sprintf("did you mean --%s?", near)
	}
	return "--help lists the flags"
}

func (f *flags) help() {
	fmt.Fprintf(f.out, "%s\nFlags:\n", f.usage)
	f.VisitAll(func(g *flag.Flag) {
		dash := "--"
		if len(g.Name) == 1 {
			dash = "-"
		}
		fmt.Fprintf(f.out, "  %-20s %s", dash+g.Name, g.Usage)
		if g.DefValue != "" && g.DefValue != "false" && g.DefValue != "[]" {
			fmt.Fprintf(f.out, " (default %s)", g.DefValue)
		}
		fmt.Fprintln(f.out)
	})
}

// run parses, connects, and calls do with the arguments.
func (f *flags) run(ctx context.Context, args []string, least, most int, do func(c *client.Client, args []string) error) error {
	rest, err := f.parse(args, least, most)
	if errors.Is(err, errHelp) {
		return nil
	}
	if err != nil {
		return err
	}
	o := client.Options{Servers: strings.Split(f.servers, ","), Name: "teralog-cli"}
	if o.TLS, err = f.tls.Config(); err != nil {
		return usageError("TLS: %w", err)
	}
	c, err := client.New(o)
	if err != nil {
		return usageError("%w", err)
	}
	defer c.Close()
	if err = reach(ctx, o); err == nil {
		err = do(c, rest)
	}
	return coded(ctx, f.advise(err))
}

// advise adds to an error what flag may be wrong.
func (f *flags) advise(err error) error {
	var dial *net.OpError
	var cert *tls.CertificateVerificationError
	switch {
	case errors.As(err, &cert):
		return fmt.Errorf("%w (--tls-ca names the authorities to believe, --tls-server-name the name to expect)", err)
	case errors.As(err, &dial) && dial.Op != "remote error": // of TLS: somebody does run there
		return fmt.Errorf("%w; is a broker running at %s? (--servers or TERALOG_SERVERS)", err, f.servers)
	case f.tls == (client.TLSFiles{}) && wire.CodeOf(err) == wire.CodeUnsupported && errors.Is(err, wire.ErrNotSent):
		return fmt.Errorf("%w (--tls and its like encrypt)", err)
	}
	return err
}

// reach returns an error if no broker answers at any of the servers. The client
// would go on trying, as is right for a program; a person wants to know.
func reach(ctx context.Context, o client.Options) (err error) {
	for _, addr := range o.Servers {
		patience, cancel := context.WithTimeout(ctx, dialTimeout)
		var c *wire.Conn
		c, err = wire.Dial(patience, &net.Dialer{}, addr, wire.DialOptions{Client: o.Name, Software: wire.Software, TLS: o.TLS})
		cancel()
		if err == nil {
			c.Close()
			return nil
		}
	}
	return err
}

const dialTimeout = 5 * time.Second

// A list is a flag that may be given more than once.
type list []string

func (l *list) String() string     { return fmt.Sprint([]string(*l)) }
func (l *list) Set(s string) error { *l = append(*l, s); return nil }

// oneOf returns an error unless value is one of the choices.
func oneOf(name, value string, choices ...string) error {
	for _, c := range choices {
		if value == c {
			return nil
		}
	}
	return usageError("%s %q: it is one of %s", name, value, strings.Join(choices, ", "))
}

// isSet reports whether the flag was given.
func (f *flags) isSet(name string) (set bool) {
	f.Visit(func(g *flag.Flag) { set = set || g.Name == name })
	return set
}

// isTerminal reports whether a person is at the other end of f.
func isTerminal(f any) bool {
	file, ok := f.(*os.File)
	if !ok {
		return false
	}
	st, err := file.Stat()
	if err != nil || st.Mode()&os.ModeCharDevice == 0 {
		return false
	}
	null, err := os.Stat(os.DevNull) // a character device, and nobody there
	return err != nil || !os.SameFile(st, null)
}
