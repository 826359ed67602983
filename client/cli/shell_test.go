package cli

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"strings"
	"testing"

	"github.com/teralog/teralog/broker"
	"github.com/teralog/teralog/storage"
)

// A shell runs commands against a broker on loopback, as main does.
type shell struct{ t *testing.T }

// newShell starts a broker of its own and names it in TERALOG_SERVERS.
func newShell(t *testing.T) shell {
	t.Helper()
	env, err := broker.NewEnv(slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	env.FS = storage.NewMemFS(1)
	c := broker.DefaultConfig()
	c.DataDirs, c.Reserve = []string{"data"}, 0
	b, err := broker.New(c, env)
	if err != nil {
		t.Fatal(err)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- b.Run(ctx, ln) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	t.Setenv("TERALOG_SERVERS", ln.Addr().String())
	return shell{t}
}

// commands are those of main that talk to a broker.
var commands = map[string]func(context.Context, []string, io.Reader, io.Writer, io.Writer) error{
	"topic": Topic, "produce": Produce, "consume": Consume, "offsets": Offsets,
}

// split cuts a command line at blanks; what stands between ' is one argument.
func split(line string) (args []string) {
	for i, part := range strings.Split(line, "'") {
		if i%2 == 1 {
			args = append(args, part)
			continue
		}
		args = append(args, strings.Fields(part)...)
	}
	return args
}

// try runs a command line and returns what it wrote, with its error's text
// behind the notes, and how the process would end.
func (s shell) try(line string, in io.Reader) (out, notes string, code int) {
	s.t.Helper()
	args := split(line)
	run := commands[args[0]]
	if run == nil {
		s.t.Fatalf("no command %q", args[0])
	}
	var o, n bytes.Buffer
	err := run(s.t.Context(), args[1:], in, &o, &n)
	if err == nil {
		return o.String(), n.String(), 0
	}
	var coded interface{ ExitCode() int }
	code = 1
	if errors.As(err, &coded) {
		code = coded.ExitCode()
	}
	return o.String(), n.String() + err.Error(), code
}

// run is try of a command that must succeed; it returns what it printed.
func (s shell) run(line, in string) string {
	s.t.Helper()
	out, notes, code := s.try(line, strings.NewReader(in))
	if code != 0 {
		s.t.Fatalf("%s: exit %d: %s", line, code, notes)
	}
	return out
}

// fails runs a command that must end with code and say want.
func (s shell) fails(line, in string, code int, want string) (out string) {
	s.t.Helper()
	out, notes, got := s.try(line, strings.NewReader(in))
	if got != code || !strings.Contains(notes, want) {
		s.t.Fatalf("%s: exit %d, %q; want %d, %q", line, got, notes, code, want)
	}
	return out
}

// prints runs a command that must succeed and print want.
func (s shell) prints(line, in, want string) {
	s.t.Helper()
	if out := s.run(line, in); out != want {
		s.t.Fatalf("%s prints\n%swant\n%s", line, out, want)
	}
}
