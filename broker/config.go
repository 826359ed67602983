package broker

import (
	"bufio"
	"cmp"
	"fmt"
	"io"
	"math"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/teralog/teralog/raft"
	"github.com/teralog/teralog/wire"
)

// A Config says where a broker keeps its files, where it listens and how much
// it may hold. DefaultConfig gives a complete one; every field has a key of
// the same meaning in the configuration file, a flag and an environment
// variable, see Keys.
type Config struct {
	DataDirs       []string // the first holds the metadata log
	Listen         string   // host:port; port 0 picks a free one
	Advertise      string   // address told to clients; empty: the one listened on
	HTTP           string   // host:port of the operator's view; empty: none
	Node           wire.NodeID
	PeerListen     string     // host:port for the other nodes; empty: this node's address in Peers
	Peers          []PeerAddr // all nodes that keep the metadata, this one included, by number; none: this one alone
	MaxConnections int
	Memory         int64         // bytes of requests held at once over all connections
	IdleTimeout    time.Duration // a connection with nothing in flight for this long is closed
	DrainTimeout   time.Duration // how long a stop waits for requests in flight
	Reserve        int64         // bytes kept allocated in each data directory for work that must go on when it is full
	Flushers       int           // fdatasync calls at once in each data directory
	FlushSlow      time.Duration // a flush that takes longer makes its directory slow, an event
	FlushLost      time.Duration // a flush that takes longer takes its directory offline
	LogLevel       string        // debug, info, warn or error
}

// DefaultConfig is what `teralog serve` runs with when nothing is configured.
// It listens on loopback only, since there are no logins yet.
func DefaultConfig() Config {
	return Config{
		DataDirs:       []string{"teralog-data"},
		Listen:         "127.0.0.1:7400",
		Node:           1,
		MaxConnections: 20_000,
		Memory:         512 << 20,
		IdleTimeout:    10 * time.Minute,
		DrainTimeout:   30 * time.Second,
		Reserve:        64 << 20,
		Flushers:       8,
		FlushSlow:      time.Second,
		FlushLost:      30 * time.Second,
		LogLevel:       "info",
	}
}

// A Key is one configuration setting: its name in the file and as a flag, and
// one line on what it means.
type Key struct {
	Name, Doc string
	set       func(*Config, string) error
	get       func(*Config) string
}

// Env returns the environment variable that sets k.
func (k Key) Env() string {
	return "TERALOG_" + strings.ToUpper(strings.ReplaceAll(k.Name, "-", "_"))
}

// Default returns the value k has when nothing sets it.
func (k Key) Default() string {
	c := DefaultConfig()
	return k.get(&c)
}

// Keys lists every setting, in the order in which help prints them.
var Keys = []Key{
	{"data-dir", "where the files lie; several, separated by commas, spread the partitions (the first holds the metadata)",
		setDataDirs, func(c *Config) string { return strings.Join(c.DataDirs, ",") }},
	{"listen", "address to accept clients on; port 0 picks a free one", setAddr(func(c *Config) *string { return &c.Listen }),
		func(c *Config) string { return c.Listen }},
	{"advertise", "address told to clients, where it differs from the one listened on", setAddr(func(c *Config) *string { return &c.Advertise }),
		func(c *Config) string { return c.Advertise }},
	{"http", "address to serve /metrics and /healthz on, unencrypted and open to whoever reaches it; empty: nowhere", setHTTP,
		func(c *Config) string { return c.HTTP }},
	{"node", "number of this node, from 1", setNode, func(c *Config) string { return strconv.Itoa(int(c.Node)) }},
	{"peers", "all nodes that keep the metadata together, this one included, as 1@host:port,2@host:port; empty: this one alone", setPeers,
		func(c *Config) string { return joinPeers(c.Peers) }},
	{"peer-listen", "address to hear the other nodes on, where it differs from the one in peers", setAddr(func(c *Config) *string { return &c.PeerListen }),
		func(c *Config) string { return c.PeerListen }},
	count("max-connections", "clients connected at once", 1, 1_000_000, func(c *Config) *int { return &c.MaxConnections }),
	size("memory", "bytes of requests held at once, over all connections", 32<<20, 1<<40, func(c *Config) *int64 { return &c.Memory }),
	duration("idle-timeout", "a connection that is silent for longer is closed", time.Second, func(c *Config) *time.Duration { return &c.IdleTimeout }),
	duration("drain-timeout", "how long a stop waits for requests in flight", 0, func(c *Config) *time.Duration { return &c.DrainTimeout }),
	size("reserve", "bytes kept free in each data directory so that deletes, trims and starts work on a full disk", 0, 1<<40, func(c *Config) *int64 { return &c.Reserve }),
	count("flushers", "fdatasync calls at once in each data directory", 1, 64, func(c *Config) *int { return &c.Flushers }),
	duration("flush-slow", "a flush that takes longer is reported", time.Millisecond, func(c *Config) *time.Duration { return &c.FlushSlow }),
	duration("flush-lost", "a flush that takes longer takes its data directory offline", time.Second, func(c *Config) *time.Duration { return &c.FlushLost }),
	{"log-level", "debug, info, warn or error", setLogLevel, func(c *Config) string { return c.LogLevel }},
}

// Set gives the named setting a value; an unknown name or a bad value is an
// error that says what would be right.
func (c *Config) Set(name, value string) error {
	names := make([]string, len(Keys))
	for i, k := range Keys {
		if k.Name == name {
			if err := k.set(c, value); err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
			return nil
		}
		names[i] = k.Name
	}
	if near := wire.Nearest(name, names); near != "" {
		return fmt.Errorf("unknown setting %q; did you mean %q?", name, near)
	}
	return fmt.Errorf("unknown setting %q; known are %s", name, strings.Join(names, ", "))
}

// Read applies a configuration file: lines `key = value`, empty lines, and
// comments after #. An unknown or repeated key is an error that names the
// file, the line and the nearest known key; nothing is applied after it.
func (c *Config) Read(name string, r io.Reader) error {
	seen := map[string]int{}
	lines := bufio.NewScanner(r)
	for n := 1; lines.Scan(); n++ {
		text, _, _ := strings.Cut(lines.Text(), "#")
		if text = strings.TrimSpace(text); text == "" {
			continue
		}
		k, v, ok := strings.Cut(text, "=")
		if !ok {
			return fmt.Errorf("%s:%d: %q is not of the form key = value", name, n, text)
		}
		k, v = strings.TrimSpace(k), strings.TrimSpace(v)
		if seen[k] != 0 {
			return fmt.Errorf("%s:%d: %s is set twice, first in line %d", name, n, k, seen[k])
		}
		seen[k] = n
		if err := c.Set(k, v); err != nil {
			return fmt.Errorf("%s:%d: %w", name, n, err)
		}
	}
	if err := lines.Err(); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}

// ReadFile applies the configuration file at path, see Read.
func (c *Config) ReadFile(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	return c.Read(path, f)
}

// ReadEnv applies the environment variables that Key.Env names; look is
// os.LookupEnv or a test's table.
func (c *Config) ReadEnv(look func(string) (string, bool)) error {
	for _, k := range Keys {
		if v, ok := look(k.Env()); ok {
			if err := k.set(c, v); err != nil {
				return fmt.Errorf("%s: %w", k.Env(), err)
			}
		}
	}
	return nil
}

func setDataDirs(c *Config, s string) error {
	dirs := strings.Split(s, ",")
	for i, d := range dirs {
		dirs[i] = strings.TrimSpace(d)
		if dirs[i] == "" {
			return fmt.Errorf("%q names an empty path", s)
		}
		for _, other := range dirs[:i] {
			if other == dirs[i] {
				return fmt.Errorf("%q names %s twice", s, other)
			}
		}
	}
	c.DataDirs = dirs
	return nil
}

func setAddr(field func(*Config) *string) func(*Config, string) error {
	return func(c *Config, s string) error {
		_, port, err := net.SplitHostPort(s)
		if err == nil {
			_, err = strconv.ParseUint(port, 10, 16)
		}
		if err != nil {
			return fmt.Errorf("%q is not an address; write it like 127.0.0.1:7400 or [::1]:7400", s)
		}
		*field(c) = s
		return nil
	}
}

func setHTTP(c *Config, s string) error {
	if s == "" {
		c.HTTP = ""
		return nil
	}
	return setAddr(func(c *Config) *string { return &c.HTTP })(c, s)
}

func setNode(c *Config, s string) error {
	n, err := strconv.ParseInt(s, 10, 32)
	if err != nil || n < 1 {
		return fmt.Errorf("%q is not a node number; it is a whole number from 1 to %d", s, math.MaxInt32)
	}
	c.Node = wire.NodeID(n)
	return nil
}

// setPeers reads "1@host:port,2@host:port".
func setPeers(c *Config, s string) error {
	var peers []PeerAddr
	for one := range strings.SplitSeq(s, ",") {
		if s == "" {
			break
		}
		node, addr, ok := strings.Cut(strings.TrimSpace(one), "@")
		n, err := strconv.ParseInt(node, 10, 32)
		if err == nil {
			_, _, err = net.SplitHostPort(addr)
		}
		if !ok || err != nil || n < 1 {
			return fmt.Errorf("%q does not name nodes; write them like 1@10.0.0.1:7401,2@10.0.0.2:7401", s)
		}
		peers = append(peers, PeerAddr{wire.NodeID(n), addr})
	}
	slices.SortFunc(peers, func(a, b PeerAddr) int { return cmp.Compare(a.Node, b.Node) })
	for i := range peers {
		if i > 0 && peers[i].Node == peers[i-1].Node {
			return fmt.Errorf("%q names node %d twice", s, peers[i].Node)
		}
	}
	if len(peers) > raft.MaxMembers {
		return fmt.Errorf("%d nodes; at most %d can keep the metadata", len(peers), raft.MaxMembers)
	}
	c.Peers = peers
	return nil
}

func joinPeers(peers []PeerAddr) string {
	all := make([]string, len(peers))
	for i, p := range peers {
		all[i] = p.String()
	}
	return strings.Join(all, ",")
}

// Check returns an error if settings that are each right do not fit together.
func (c *Config) Check() error {
	mine := slices.ContainsFunc(c.Peers, func(p PeerAddr) bool { return p.Node == c.Node })
	switch {
	case len(c.Peers) > 0 && !mine:
		return fmt.Errorf("peers (%s) do not name this node, which is %d", joinPeers(c.Peers), c.Node)
	case c.PeerListen != "" && len(c.Peers) == 0:
		return fmt.Errorf("peer-listen without peers: there is nobody to hear")
	}
	return nil
}

func setLogLevel(c *Config, s string) error {
	switch s {
	case "debug", "info", "warn", "error":
		c.LogLevel = s
		return nil
	}
	return fmt.Errorf("%q is not a level; it is debug, info, warn or error", s)
}

func count(name, doc string, low, high int, field func(*Config) *int) Key {
	return Key{name, doc, func(c *Config, s string) error {
		n, err := strconv.Atoi(s)
		if err != nil || n < low || n > high {
			return fmt.Errorf("%q is not a whole number from %d to %d", s, low, high)
		}
		*field(c) = n
		return nil
	}, func(c *Config) string { return strconv.Itoa(*field(c)) }}
}

func size(name, doc string, low, high int64, field func(*Config) *int64) Key {
	return Key{name, doc, func(c *Config, s string) error {
		n, err := wire.ParseSize(s)
		if err != nil {
			return err
		}
		if n < low || n > high {
			return fmt.Errorf("%s is out of bounds, it goes from %s to %s", s, wire.FormatSize(low), wire.FormatSize(high))
		}
		*field(c) = n
		return nil
	}, func(c *Config) string { return wire.FormatSize(*field(c)) }}
}

func duration(name, doc string, low time.Duration, field func(*Config) *time.Duration) Key {
	return Key{name, doc, func(c *Config, s string) error {
		d, err := wire.ParseDuration(s)
		if err != nil {
			return err
		}
		if d < low {
			return fmt.Errorf("%s is too short, the least is %s", s, wire.FormatDuration(low))
		}
		*field(c) = d
		return nil
	}, func(c *Config) string { return wire.FormatDuration(*field(c)) }}
}
