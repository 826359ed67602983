package broker

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestConfigRead(t *testing.T) {
	f := func(text, want string) {
		t.Helper()
		c := DefaultConfig()
		err := c.Read("t.conf", strings.NewReader(text))
		if want == "" && err != nil || want != "" && (err == nil || err.Error() != want) {
			t.Fatalf("Read(%q) = %v, want %q", text, err, want)
		}
	}

	f("", "")
	f("# a comment\n\nlisten = [::1]:0 # and one behind\nmemory=1GiB\nidle-timeout = 90s", "")
	f("listen = 127.0.0.1:1\nlisen = x", `t.conf:2: unknown setting "lisen"; did you mean "listen"?`)
	f("node = 1\nnode = 2", "t.conf:2: node is set twice, first in line 1")
	f("node = 1\nlisten = [::1]:0\n\n# x\nnode = 1", "t.conf:5: node is set twice, first in line 1")
	f("drain_timeout = 1s", `t.conf:1: unknown setting "drain_timeout"; did you mean "drain-timeout"?`)
	f("node = 1\r\nlisten = [::1]:0\r\n", "")
	f("nothing-like-it-at-all = 1", `t.conf:1: unknown setting "nothing-like-it-at-all"; known are `+known())
	f("= 1", `t.conf:1: unknown setting ""; known are `+known())
	f("node 1 # secret", `t.conf:1: "node" is not of the form key = value`)
	f(strings.Repeat("x", 1<<17), "t.conf:1: bufio.Scanner: token too long")
	f("advertise =\npeer-listen =\npeers =\nlisten =", "")
	f("node", `t.conf:1: "node" is not of the form key = value`)
	f("node = 0", `t.conf:1: node: "0" is not a node number; it is a whole number from 1 to 2147483647`)
	f("listen = 7400", `t.conf:1: listen: "7400" is not an address; write it like 127.0.0.1:7400 or [::1]:7400`)
	f("memory = 1MiB", "t.conf:1: memory: 1MiB is out of bounds, it goes from 32MiB to 1TiB")
	f("flush-lost = 1ms", "t.conf:1: flush-lost: 1ms is too short, the least is 1s")
	f("http =\nlisten = 127.0.0.1:1", "")
	f("http = 9400", `t.conf:1: http: "9400" is not an address; write it like 127.0.0.1:7400 or [::1]:7400`)
	f("peers = 1@a:1, 2@b:2", "")
	f("peers = 1@a:1,1@b:2", `t.conf:1: peers: "1@a:1,1@b:2" names node 1 twice`)
	f("peers = a:1", `t.conf:1: peers: "a:1" does not name nodes; write them like 1@10.0.0.1:7401,2@10.0.0.2:7401`)
	f("data-dir = a,,b", `t.conf:1: data-dir: "a,,b" names an empty path`)
	f("data-dir = a,a", `t.conf:1: data-dir: "a,a" names a twice`)
	f("log-level = loud", `t.conf:1: log-level: "loud" is not a level; it is debug, info, warn or error`)
}

func known() string {
	names := make([]string, len(Keys))
	for i, k := range Keys {
		names[i] = k.Name
	}
	return strings.Join(names, ", ")
}

// TestConfigComments tells a comment from a # inside a value.
func TestConfigComments(t *testing.T) {
	f := func(line, want string) {
		t.Helper()
		if got := uncommented(line); got != want {
			t.Fatalf("%q without its comment is %q, want %q", line, got, want)
		}
	}
	f("", "")
	f("# all of it", "")
	f(" \t# all of it", "")
	f("data-dir = /a#1 # the first", "data-dir = /a#1")
	f("data-dir = /a\t#b", "data-dir = /a")
}

// TestKeys checks that every default is a value its own key accepts, so that
// what help prints can be pasted into a file.
func TestKeys(t *testing.T) {
	for _, k := range Keys {
		c := DefaultConfig()
		if err := c.Set(k.Name, k.Default()); err != nil {
			t.Errorf("default of %s: %v", k.Name, err)
		}
		if k.get(&c) != k.Default() {
			t.Errorf("%s = %s reads back as %s", k.Name, k.Default(), k.get(&c))
		}
	}
}

func TestConfigEnv(t *testing.T) {
	c := DefaultConfig()
	err := c.ReadEnv([]string{"HOME=/root", "TERALOG_DRAIN_TIMEOUT=5s", "TERALOG_CONFIG=x", "TERALOG_SERVERS=y", "TERALOG_PORT_7400_TCP=z"})
	if err != nil || c.DrainTimeout != 5*time.Second {
		t.Fatalf("drain timeout %v, %v", c.DrainTimeout, err)
	}
	f := func(variable, want string) {
		t.Helper()
		if err := c.ReadEnv([]string{variable}); err == nil || err.Error() != want {
			t.Fatalf("%s gives %v, want %s", variable, err, want)
		}
	}
	f("TERALOG_NODE=nonsense", `TERALOG_NODE: "nonsense" is not a node number; it is a whole number from 1 to 2147483647`)
	f("TERALOG_LISEN=127.0.0.1:0", "TERALOG_LISEN is no setting; did you mean TERALOG_LISTEN?")
	f("TERALOG_DRAIN-TIMEOUT=1s", "TERALOG_DRAIN-TIMEOUT is no setting; did you mean TERALOG_DRAIN_TIMEOUT?")
	f("TERALOG_CONFG=x", "TERALOG_CONFG is no setting; did you mean TERALOG_CONFIG?")
}

// TestSecret marks a key as secret: its value comes from a file only, and no
// error, no page and no command shows it.
func TestSecret(t *testing.T) {
	const canary = "canary7"
	c := DefaultConfig()
	password := ""
	keys := append(slices.Clone(Keys), Key{Name: "password", Secret: true,
		set: func(_ *Config, s string) error {
			if len(s) > 10 {
				return fmt.Errorf("%q is too long", s)
			}
			password = s
			return nil
		},
		get: func(*Config) string { return password },
	})
	r := reading{keys, &c}
	shown := func() string {
		var b bytes.Buffer
		writeSettings(&b, inForce(keys, &c))
		return b.String()
	}
	if text := shown(); strings.Contains(text, hidden) {
		t.Fatalf("a secret that is not set: %s", text)
	}
	if err := r.file("t.conf", strings.NewReader("password = "+canary)); err != nil || password != canary {
		t.Fatalf("%q, %v", password, err)
	}
	if text := shown(); strings.Contains(text, canary) || !strings.Contains(text, "password = ***") || !strings.Contains(text, "# t.conf:1\n") {
		t.Fatal(text)
	}
	refused := func(err error) {
		t.Helper()
		if err == nil || strings.Contains(err.Error(), canary) || !strings.Contains(strings.ToLower(err.Error()), "password") {
			t.Fatalf("%v", err)
		}
	}
	refused(r.file("t.conf", strings.NewReader("password = "+canary+canary)))
	refused(r.file("t.conf", strings.NewReader("password "+canary)))
	refused(r.file("t.conf", strings.NewReader("password = a\npassword = "+canary)))
	refused(r.env([]string{"TERALOG_PASSWORD=" + canary}))
	refused(r.flags(map[string]string{"password": canary}))
}

// TestInForce checks that what is shown says where it comes from, and is a file
// that gives the same configuration again.
func TestInForce(t *testing.T) {
	file := filepath.Join(t.TempDir(), "a.conf")
	if err := os.WriteFile(file, []byte("\nlisten = [::1]:1\nnode = 2\nmemory = 1.5GiB\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	c, err := readServe([]string{"--config", file, "--node", "4", "--http", "[::1]:2"}, []string{"TERALOG_NODE=3", "TERALOG_IDLE_TIMEOUT=90s"})
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]Setting{}
	for _, s := range c.InForce() {
		got[s.Name] = s
	}
	f := func(name, value, from string) {
		t.Helper()
		if s := got[name]; s.Value != value || s.From != from {
			t.Fatalf("%+v, want %s = %s from %s", s, name, value, from)
		}
	}
	f("listen", "[::1]:1", file+":2")
	f("node", "4", "--node")
	f("memory", "1536MiB", file+":4")
	f("idle-timeout", "1m30s", "TERALOG_IDLE_TIMEOUT")
	f("http", "[::1]:2", "--http")
	f("flushers", "8", "default")

	var text bytes.Buffer
	if err := writeSettings(&text, c.InForce()); err != nil {
		t.Fatal(err)
	}
	again := DefaultConfig()
	if err := again.Read("again", &text); err != nil {
		t.Fatal(err)
	}
	c.From, again.From = nil, nil
	if !reflect.DeepEqual(again, c) {
		t.Fatalf("%+v, then %+v", c, again)
	}
}

// TestConfigFields looks for a field of Config that no key shows.
func TestConfigFields(t *testing.T) {
	shown := func(c Config) string { return fmt.Sprint(c.InForce()) }
	fields := reflect.TypeFor[Config]()
	for i := range fields.NumField() {
		name := fields.Field(i).Name
		if name == "From" {
			continue
		}
		c := DefaultConfig()
		switch v := reflect.ValueOf(&c).Elem().Field(i); v.Kind() {
		case reflect.String:
			v.SetString("another")
		case reflect.Bool:
			v.SetBool(!v.Bool())
		case reflect.Slice:
			v.Set(reflect.MakeSlice(v.Type(), 3, 3))
		case reflect.Struct:
			for n := range v.NumField() {
				before := shown(c)
				v.Field(n).SetInt(v.Field(n).Int() + 1)
				if shown(c) == before {
					t.Errorf("%s.%s is in no setting", name, v.Type().Field(n).Name)
				}
			}
		default:
			v.SetInt(v.Int() + 1)
		}
		if shown(c) == shown(DefaultConfig()) {
			t.Errorf("%s is in no setting", name)
		}
	}
}

// TestConfigCommand checks files as an operator does.
func TestConfigCommand(t *testing.T) {
	file := filepath.Join(t.TempDir(), "a.conf")
	f := func(code int, text, want string, args ...string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		var out bytes.Buffer
		err := ConfigCommand(t.Context(), args, nil, &out, io.Discard)
		said := out.String()
		if err != nil {
			said += err.Error()
		}
		if exitCode(err) != code || !strings.Contains(said, want) {
			t.Fatalf("config %q of %q ends with %d: %s; want %d, %q", args, text, exitCode(err), said, code, want)
		}
	}
	f(0, "node = 2", "# "+file+":1\n", "check", file)
	f(0, "node = 2", "# --node\n", "check", file, "--node", "3")
	f(0, "", "teralog config check /etc", "--help")
	f(0, "", "teralog config check /etc", "check", "-h")
	f(78, "nod = 2", file+`:1: unknown setting "nod"; did you mean "node"?`, "check", file)
	f(78, "node = 2\nnode = 2", file+":2: node is set twice, first in line 1", "check", file)
	f(78, "peer-listen = a:1", "peer-listen without peers", "check", file)
	f(78, "", "no such file", "check", file+".not")
	f(2, "", "check what?")
	f(2, "", "which file?", "check")
	f(2, "", "which file?", "check", "--node", "2")
	f(2, "", `unknown subcommand "chek"`, "chek", file)
	f(2, "", "given twice", "check", file, "--config", file)
	f(2, "", "did you mean --node?", "check", file, "--nod", "3")
	t.Setenv("TERALOG_NODE", "5")
	f(0, "node = 2", "# TERALOG_NODE\n", "check", file)
	t.Setenv("TERALOG_FLUSHER", "5")
	f(78, "", "did you mean TERALOG_FLUSHERS?", "check", file)
}

func TestConfigCheck(t *testing.T) {
	f := func(text string, ok bool) {
		t.Helper()
		c := DefaultConfig()
		err := c.Read("t.conf", strings.NewReader(text))
		if err != nil {
			t.Fatal(err)
		}
		if err := c.Check(); (err == nil) != ok {
			t.Fatalf("%q: %v", text, err)
		}
	}

	f("", true)
	f("peers = 1@a:1,2@b:2\nnode = 2", true)
	f("peers = 1@a:1,2@b:2\nnode = 3", false)
	f("peer-listen = a:1", false)
	f("peer-listen = a:1\npeers = 1@b:1", true)
	f("http-pprof = true\nhttp = 127.0.0.1:7480", true)
	f("http-pprof = true\nhttp = [::1]:7480", true)
	f("http-pprof = true\nhttp = localhost:7480", true)
	f("http-pprof = true\nhttp = 0.0.0.0:7480", false)
	f("http-pprof = true\nhttp = :7480", false)
	f("http-pprof = true", false)
	f("http-pprof = false\nhttp = 0.0.0.0:7480", true)
}
