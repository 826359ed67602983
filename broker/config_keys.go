package broker

import (
	"cmp"
	"fmt"
	"math"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/teralog/teralog/raft"
	"github.com/teralog/teralog/wire"
)

// A Key is one configuration setting: its name in the file and as a flag, and
// one line on what it means.
type Key struct {
	Name, Doc string
	// Secret says that the value is shown to nobody, and is taken from a file
	// only: others see a command line, and an environment is handed on.
	Secret bool

	set func(*Config, string) error
	get func(*Config) string
}

// Env returns the environment variable that sets k.
func (k Key) Env() string {
	return envPrefix + strings.ToUpper(strings.ReplaceAll(k.Name, "-", "_"))
}

// Default returns the value k has when nothing sets it.
func (k Key) Default() string {
	c := DefaultConfig()
	return k.get(&c)
}

// Keys lists every setting, in the order in which help prints them.
var Keys = []Key{
	key("data-dir", "where the files lie; several, separated by commas, spread the partitions (the first holds the metadata); 64 at most",
		setDataDirs, func(c *Config) string { return strings.Join(c.DataDirs, ",") }),
	key("metadata-dir", "where the metadata lies, if not in the first of data-dir: a directory for nothing else, on a disk of its own; to be set before the first start",
		func(c *Config, s string) error { c.MetadataDir = strings.TrimSpace(s); return nil }, func(c *Config) string { return c.MetadataDir }),
	key("lost-dirs", "ids of data directories that are lost for good, separated by commas: empty ones may take their place",
		setLostDirs, func(c *Config) string { return joinUUIDs(c.LostDirs) }),
	optionalAddr("listen", "address to accept clients on, unencrypted; port 0 picks a free one; empty: nowhere", func(c *Config) *string { return &c.Listen }),
	optionalAddr("advertise", "address told to clients, where it differs from the one listened on", func(c *Config) *string { return &c.Advertise }),
	optionalAddr("tls-listen", "address to accept clients on by TLS 1.2 or later; empty: nowhere", func(c *Config) *string { return &c.TLSListen }),
	optionalAddr("tls-advertise", "address told to clients that came by TLS, where it differs from tls-listen", func(c *Config) *string { return &c.TLSAdvertise }),
	text("tls-cert", "certificate for tls-listen, and those above it: a PEM file, or credential:NAME of systemd; read again on SIGHUP", func(c *Config) *string { return &c.TLSCert }),
	text("tls-key", "its private key, likewise; a file that others may read is refused", func(c *Config) *string { return &c.TLSKey }),
	text("tls-client-ca", "clients must present a certificate signed by one of these, likewise; empty: they need none", func(c *Config) *string { return &c.TLSClientCA }),
	optionalAddr("http", "address to serve the console, /metrics, /healthz, /readyz, /events, /recovery and /config on, unencrypted and open to whoever reaches it; empty: nowhere",
		func(c *Config) *string { return &c.HTTP }),
	toggle("http-pprof", "serve profiles of the process at /debug/pprof/ of http, which must be a loopback address then", func(c *Config) *bool { return &c.HTTPPprof }),
	key("http-records", "who may see records on the console: local (who connects from this machine by its loopback address), on (whoever reaches http) or off", setHTTPRecords,
		func(c *Config) string { return c.HTTPRecords }),
	key("node", "number of this node, from 1", setNode, func(c *Config) string { return strconv.Itoa(int(c.Node)) }),
	key("peers", "all nodes that keep the metadata together, this one included, as 1@host:port,2@host:port; empty: this one alone", setPeers,
		func(c *Config) string { return joinPeers(c.Peers) }),
	optionalAddr("peer-listen", "address to hear the other nodes on, where it differs from the one in peers", func(c *Config) *string { return &c.PeerListen }),
	key("tenants", "listeners whose clients share a quota, as name@host:port, separated by commas; after each may stand tls, bytes=SIZE and requests=COUNT, both a second, and advertise=host:port",
		setTenants, func(c *Config) string { return joinTenants(c.Tenants) }),
	text("peer-ca", "the nodes talk by TLS, and each shows the others tls-cert, which one of these has signed: a PEM file or credential; empty: unencrypted", func(c *Config) *string { return &c.PeerCA }),
	count("max-connections", "clients connected at once", 1, 1_000_000, func(c *Config) *int { return &c.MaxConnections }),
	count("accept-rate", "connections accepted a second, others wait; 0: as many as come", 0, 1_000_000, func(c *Config) *int { return &c.AcceptRate }),
	size("memory", "bytes of requests held at once, over all connections", 32<<20, 1<<40, func(c *Config) *int64 { return &c.Memory }),
	size("connection-memory", "bytes of requests held at once by one connection", 1<<20, 1<<40, func(c *Config) *int64 { return &c.ConnMemory }),
	bytesRate("connection-bytes", "bytes a second written and read by one connection", func(c *Config) *Rates { return &c.Connection }),
	requestRate("connection-requests", "requests a second of one connection", func(c *Config) *Rates { return &c.Connection }),
	bytesRate("tenant-bytes", "bytes a second written and read by one tenant: all who come by one listener, listen's included", func(c *Config) *Rates { return &c.Tenant }),
	requestRate("tenant-requests", "requests a second of one tenant", func(c *Config) *Rates { return &c.Tenant }),
	bytesRate("topic-bytes", "bytes a second written and read of one topic, unless its quota.bytes says otherwise", func(c *Config) *Rates { return &c.Topic }),
	requestRate("topic-requests", "batches and answers with records a second of one topic, unless its quota.requests says otherwise", func(c *Config) *Rates { return &c.Topic }),
	count("create-rate", "partitions made a second, for all clients together; 0: no bound", 0, 1_000_000, func(c *Config) *int { return &c.CreateRate }),
	duration("idle-timeout", "a connection that is silent for longer is closed", time.Second, func(c *Config) *time.Duration { return &c.IdleTimeout }),
	duration("drain-timeout", "how long a stop waits for requests in flight", 0, func(c *Config) *time.Duration { return &c.DrainTimeout }),
	size("reserve", "bytes kept free in each data directory so that deletes, trims and starts work on a full disk", 0, 1<<40, func(c *Config) *int64 { return &c.Reserve }),
	count("flushers", "fdatasync calls at once in each data directory", 1, 64, func(c *Config) *int { return &c.Flushers }),
	duration("flush-slow", "a flush that takes longer is reported", time.Millisecond, func(c *Config) *time.Duration { return &c.FlushSlow }),
	duration("flush-lost", "a flush that takes longer takes its data directory offline", time.Second, func(c *Config) *time.Duration { return &c.FlushLost }),
	duration("disk-slow", "while an append or flush takes longer nothing is produced to its data directory", time.Second, func(c *Config) *time.Duration { return &c.DiskSlow }),
	count("disk-warn", "per cent of a disk in use at which the operator is told; 100: never", 1, 100, func(c *Config) *int { return &c.Disk.Warn }),
	count("disk-refuse", "per cent of a disk in use at which nothing is produced to it; 100: never", 1, 100, func(c *Config) *int { return &c.Disk.Refuse }),
	count("disk-protect", "per cent of the metadata's disk in use at which there is nothing but deletes, trims and reads; 100: never", 1, 100, func(c *Config) *int { return &c.Disk.Protect }),
	size("dirty-limit", "bytes of each data directory that may wait for its disk before produce is refused with DISK_SLOW; 0: any number", 0, 1<<50,
		func(c *Config) *int64 { return &c.DirtyLimit }),
	size("catchup-rate", "bytes a second read from each disk for readers far behind, while others produce; 0: any number", 0, 1<<50,
		func(c *Config) *int64 { return &c.CatchUpRate }),
	size("scrub-rate", "bytes a second that are read of each data directory to find damage before anybody needs them; 0: none", 0, 1<<50,
		func(c *Config) *int64 { return &c.ScrubRate }),
	duration("scrub-every", "a pass of the scrub over a data directory begins at most so often", time.Minute, func(c *Config) *time.Duration { return &c.ScrubEvery }),
	key("log-level", "debug, info, warn or error", setLogLevel, func(c *Config) string { return c.LogLevel }),
}

func key(name, doc string, set func(*Config, string) error, get func(*Config) string) Key {
	return Key{Name: name, Doc: doc, set: set, get: get}
}

// text is a setting that may be anything.
func text(name, doc string, field func(*Config) *string) Key {
	return key(name, doc, func(c *Config, s string) error { *field(c) = s; return nil }, func(c *Config) string { return *field(c) })
}

func addr(name, doc string, field func(*Config) *string) Key {
	return key(name, doc, func(c *Config, s string) error {
		_, port, err := net.SplitHostPort(s)
		if err == nil {
			_, err = strconv.ParseUint(port, 10, 16)
		}
		if err != nil {
			return fmt.Errorf("%q is not an address; write it like 127.0.0.1:7400 or [::1]:7400", s)
		}
		*field(c) = s
		return nil
	}, func(c *Config) string { return *field(c) })
}

func optionalAddr(name, doc string, field func(*Config) *string) Key {
	k := addr(name, doc, field)
	set := k.set
	k.set = func(c *Config, s string) error {
		if s == "" {
			*field(c) = ""
			return nil
		}
		return set(c, s)
	}
	return k
}

// maxDataDirs bounds the data directories of a node, inclusive.
const maxDataDirs = 64

func setDataDirs(c *Config, s string) error {
	dirs := strings.Split(s, ",")
	if len(dirs) > maxDataDirs {
		return fmt.Errorf("%d data directories; the limit is %d", len(dirs), maxDataDirs)
	}
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

func setLostDirs(c *Config, s string) error {
	var ids []wire.UUID
	for one := range strings.SplitSeq(s, ",") {
		if s == "" {
			break
		}
		id, err := wire.ParseUUID(strings.TrimSpace(one))
		if err != nil {
			return err
		}
		ids = append(ids, id)
	}
	c.LostDirs = ids
	return nil
}

func joinUUIDs(ids []wire.UUID) string {
	all := make([]string, len(ids))
	for i, id := range ids {
		all[i] = id.String()
	}
	return strings.Join(all, ",")
}

func setNode(c *Config, s string) error {
	n, err := strconv.ParseInt(s, 10, 32)
	if err != nil || n < 1 {
		return fmt.Errorf("%q is not a node number; it is a whole number from 1 to %d", s, math.MaxInt32)
	}
	c.Node = wire.NodeID(n)
	return nil
}

func toggle(name, doc string, field func(*Config) *bool) Key {
	return key(name, doc, func(c *Config, s string) error {
		on, err := strconv.ParseBool(s)
		if err != nil {
			return fmt.Errorf("%q is neither true nor false", s)
		}
		*field(c) = on
		return nil
	}, func(c *Config) string { return strconv.FormatBool(*field(c)) })
}

func setHTTPRecords(c *Config, s string) error {
	switch s {
	case recordsLocal, recordsOn, recordsOff:
		c.HTTPRecords = s
		return nil
	}
	return fmt.Errorf("%q is none of local, on and off", s)
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

func setLogLevel(c *Config, s string) error {
	switch s {
	case "debug", "info", "warn", "error":
		c.LogLevel = s
		return nil
	}
	return fmt.Errorf("%q is not a level; it is debug, info, warn or error", s)
}

func count(name, doc string, low, high int, field func(*Config) *int) Key {
	return key(name, doc, func(c *Config, s string) error {
		n, err := strconv.Atoi(s)
		if err != nil || n < low || n > high {
			return fmt.Errorf("%q is not a whole number from %d to %d", s, low, high)
		}
		*field(c) = n
		return nil
	}, func(c *Config) string { return strconv.Itoa(*field(c)) })
}

func size(name, doc string, low, high int64, field func(*Config) *int64) Key {
	return key(name, doc, func(c *Config, s string) error {
		n, err := wire.ParseSize(s)
		if err != nil {
			return err
		}
		if n < low || n > high {
			return fmt.Errorf("%s is out of bounds, it goes from %s to %s", s, wire.FormatSize(low), wire.FormatSize(high))
		}
		*field(c) = n
		return nil
	}, func(c *Config) string { return wire.FormatSize(*field(c)) })
}

func duration(name, doc string, low time.Duration, field func(*Config) *time.Duration) Key {
	return key(name, doc, func(c *Config, s string) error {
		d, err := wire.ParseDuration(s)
		if err != nil {
			return err
		}
		if d < low {
			return fmt.Errorf("%s is too short, the least is %s", s, wire.FormatDuration(low))
		}
		*field(c) = d
		return nil
	}, func(c *Config) string { return wire.FormatDuration(*field(c)) })
}
