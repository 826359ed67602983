package broker

import (
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

// TestKeys checks that every default is a value its own key accepts, so that
// what help prints can be pasted into a file.
func TestKeys(t *testing.T) {
	for _, k := range Keys {
		c := DefaultConfig()
		if k.Default() == "" {
			continue // advertise: unset
		}
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
	err := c.ReadEnv(func(name string) (string, bool) {
		if name == "TERALOG_DRAIN_TIMEOUT" {
			return "5s", true
		}
		return "", false
	})
	if err != nil || c.DrainTimeout != 5*time.Second {
		t.Fatalf("drain timeout %v, %v", c.DrainTimeout, err)
	}
	err = c.ReadEnv(func(name string) (string, bool) { return "nonsense", name == "TERALOG_NODE" })
	if err == nil || !strings.HasPrefix(err.Error(), "TERALOG_NODE: ") {
		t.Fatalf("a bad environment variable gave %v", err)
	}
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
}
