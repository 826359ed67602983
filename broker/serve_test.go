package broker

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"flag"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/teralog/teralog/wire"
)

// exitCode is how a process ends with err.
func exitCode(err error) int {
	var coded interface{ ExitCode() int }
	switch {
	case err == nil:
		return 0
	case errors.As(err, &coded):
		return coded.ExitCode()
	}
	return 1
}

// TestReadServe checks who wins where a setting is given more than once, and
// how bad ones end the process.
func TestReadServe(t *testing.T) {
	file := filepath.Join(t.TempDir(), "teralog.conf")
	if err := os.WriteFile(file, []byte("# a file\nlisten = 10.0.0.1:1\nnode = 2\nidle-timeout = 2m\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	env := []string{"TERALOG_NODE=3", "TERALOG_IDLE_TIMEOUT=3m"}

	c, err := readServe([]string{"--config", file, "--idle-timeout", "4m", "-memory=64MiB"}, env)
	if err != nil {
		t.Fatal(err)
	}
	def := DefaultConfig()
	if c.Listen != "10.0.0.1:1" || c.Node != 3 || c.IdleTimeout != 4*time.Minute || c.Memory != 64<<20 || c.Reserve != def.Reserve {
		t.Fatalf("%+v", c)
	}
	if c, err = readServe(nil, append(env, "TERALOG_CONFIG="+file)); err != nil || c.Listen != "10.0.0.1:1" {
		t.Fatalf("%+v, %v", c, err)
	}

	f := func(code int, want string, args ...string) {
		t.Helper()
		_, err := readServe(args, env)
		if exitCode(err) != code || !strings.Contains(err.Error(), want) {
			t.Fatalf("%q ends with %d, %v; want %d, %q", args, exitCode(err), err, code, want)
		}
	}
	f(2, "did you mean --listen?", "--lisen", "127.0.0.1:0")
	f(2, "--help lists the flags", "--what-is-this")
	f(2, `unexpected argument "now"`, "now")
	f(2, "the flag is given twice", "--node", "1", "--node", "2")
	f(2, "flag needs an argument", "--listen")
	f(78, "--listen: ", "--listen", "here")
	f(78, "--node: ", "--node", "0")
	f(78, "no such file", "--config", file+".not")
	bad := func(want, text string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		f(78, file+want, "--config", file)
	}
	bad(`:2: unknown setting "lisen"; did you mean "listen"?`, "node = 1\nlisen = 127.0.0.1:0\n")
	bad(`:1: memory: `, "memory = 12 parsecs\n")
	env = append(env, "TERALOG_LISTEN=nowhere")
	f(78, "TERALOG_LISTEN: ")
	if _, err := readServe([]string{"--help"}, env); !errors.Is(err, flag.ErrHelp) {
		t.Fatal(err)
	}
}

// TestServeHelp checks that help goes to standard output and names every flag.
func TestServeHelp(t *testing.T) {
	var out, notes bytes.Buffer
	if err := Serve(t.Context(), []string{"-h"}, nil, &out, &notes); err != nil || notes.Len() > 0 {
		t.Fatalf("%v, notes %q", err, &notes)
	}
	for _, k := range Keys {
		if !strings.Contains(out.String(), "--"+k.Name) || !strings.Contains(out.String(), k.Default()) {
			t.Errorf("help says nothing of %s and its default %s", k.Name, k.Default())
		}
	}
}

// serving runs the command in dir until stop, and returns the line it printed.
func serving(t *testing.T, dir string, args ...string) (line string, stop func() error) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	r, w := io.Pipe()
	ended := make(chan error, 1)
	go func() {
		err := Serve(ctx, append([]string{"--data-dir", dir, "--listen", "127.0.0.1:0", "--reserve", "1MiB"}, args...), nil, w, io.Discard)
		w.CloseWithError(io.EOF)
		ended <- err
	}()
	line, err := bufio.NewReader(r).ReadString('\n')
	if err != nil {
		t.Fatalf("no line: %v; %v", err, <-ended)
	}
	return line, func() error { cancel(); return <-ended }
}

// TestServe runs the command: one line when it is ready, a second process on
// its directory refused, a clean end, and everything there the next time.
func TestServe(t *testing.T) {
	dir := t.TempDir()
	line, stop := serving(t, dir)
	_, rest, ok := strings.Cut(line, "ready: listen ")
	addr, _, _ := strings.Cut(rest, ",")
	if !ok || !strings.Contains(line, "data "+dir) || !strings.Contains(line, "node 1") || !strings.Contains(line, "0 topics") {
		t.Fatalf("%q", line)
	}
	c := dial(t, new(net.Dialer), addr)
	id := createOn(t, c, "t", 1)
	sendOn(t, c, batchOf(t, wire.BuilderOptions{Topic: id}, "v"))
	var m wire.MetadataResponse
	do(t, c, &wire.MetadataRequest{}, &m)
	if len(m.Nodes) != 1 || m.Nodes[0].Addr != addr {
		t.Fatalf("clients are told %+v, not %s", m.Nodes, addr)
	}
	if err := Serve(t.Context(), []string{"--data-dir", dir, "--listen", "127.0.0.1:0"}, nil, io.Discard, io.Discard); exitCode(err) != 1 || !strings.Contains(err.Error(), "locked") {
		t.Fatalf("a second process: %v", err)
	}
	if err := Serve(t.Context(), []string{"--data-dir", t.TempDir(), "--listen", addr}, nil, io.Discard, io.Discard); exitCode(err) != 1 || !strings.Contains(err.Error(), addr) {
		t.Fatalf("a second process at the address: %v", err)
	}
	parked := goOn(c, &wire.FetchRequest{Replica: wire.NoNode, MaxWaitMillis: 60_000, MinBytes: 1, Partitions: []wire.FetchPartition{position(id, 0, 1)}}, new(wire.FetchResponse))
	do(t, c, &wire.MetadataRequest{}, &m) // the fetch before it has arrived
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	if err := <-parked; err != nil {
		t.Fatalf("the parked fetch: %v", err)
	}
	c.Close()
	if _, err := os.Stat(dir + "/clean"); err != nil {
		t.Fatal(err)
	}

	line, stop = serving(t, dir, "--advertise", "log.example:7400")
	if !strings.Contains(line, "1 topics") {
		t.Fatalf("%q", line)
	}
	_, rest, _ = strings.Cut(line, "ready: listen ")
	addr, _, _ = strings.Cut(rest, ",")
	c = dial(t, new(net.Dialer), addr)
	defer c.Close()
	do(t, c, &wire.MetadataRequest{All: true}, &m)
	if m.Nodes[0].Addr != "log.example:7400" || len(m.Topics) != 1 || m.Topics[0].ID != id {
		t.Fatalf("%+v", m)
	}
	if err := stop(); err != nil {
		t.Fatal(err)
	}

	// Another node's directory is refused, with nothing changed.
	if err := Serve(t.Context(), []string{"--data-dir", dir, "--listen", "127.0.0.1:0", "--node", "9"}, nil, io.Discard, io.Discard); exitCode(err) != exitConfig {
		t.Fatalf("another node: %v", err)
	}
	// Damaged metadata is not started over.
	log := dir + "/metadata/00000000000000000000.log"
	b, err := os.ReadFile(log)
	if err != nil {
		t.Fatal(err)
	}
	b[120] ^= 1
	if err := os.WriteFile(log, b, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := Serve(t.Context(), []string{"--data-dir", dir, "--listen", "127.0.0.1:0"}, nil, io.Discard, io.Discard); exitCode(err) != exitIO {
		t.Fatalf("damaged metadata ends with %d: %v", exitCode(err), err)
	}
}

// TestLogCommand looks into the files of a stopped broker.
func TestLogCommand(t *testing.T) {
	dir := t.TempDir()
	line, stop := serving(t, dir)
	_, rest, _ := strings.Cut(line, "ready: listen ")
	addr, _, _ := strings.Cut(rest, ",")
	c := dial(t, new(net.Dialer), addr)
	id := createOn(t, c, "t", 1)
	sendOn(t, c, batchOf(t, wire.BuilderOptions{Topic: id}, "find me"))
	c.Close()
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	f := func(code int, want string, args ...string) {
		t.Helper()
		var out, notes bytes.Buffer
		err := Log(t.Context(), args, nil, &out, &notes)
		text := out.String() + notes.String()
		if err != nil {
			text += err.Error()
		}
		if exitCode(err) != code || !strings.Contains(text, want) {
			t.Fatalf("log %q ends with %d: %s; want %d, %q", args, exitCode(err), text, code, want)
		}
	}
	part := dir + "/topics/t/partition-0000"

	f(0, "find me", "dump", part, "--records")
	f(0, `"find me"`, "dump", "--records", "-o", "jsonl", part)
	f(0, "", "verify", dir)
	f(0, "Usage: teralog log", "--help")
	f(0, "Usage: teralog log", "dump", "-h")
	f(2, "dump or verify?")
	f(2, `unknown subcommand "look"`, "look", dir)
	f(2, "two paths", "dump", dir, part)
	f(2, "--help", "dump")
	f(2, "--help", "dump", dir, "-o", "xml")
	f(2, "not defined", "dump", dir, "--recrds")
	f(1, "no such file", "verify", dir+"/nothing")
	log := part + "/00000000000000000000.log"
	b, err := os.ReadFile(log)
	if err != nil {
		t.Fatal(err)
	}
	b[len(b)-3] ^= 1
	if err := os.WriteFile(log, b, 0o600); err != nil {
		t.Fatal(err)
	}
	f(1, "damaged", "verify", dir)
}
