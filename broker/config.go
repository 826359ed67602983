package broker

import (
	"fmt"
	"slices"
	"time"

	"github.com/teralog/teralog/wire"
)

// A Config says where a broker keeps its files, where it listens and how much
// it may hold. DefaultConfig gives a complete one; every field but From has a key of
// the same meaning in the configuration file, a flag and an environment
// variable, see Keys.
type Config struct {
	DataDirs       []string    // the first holds the metadata log, unless MetadataDir does
	MetadataDir    string      // for the metadata log and nothing else; empty: the first of DataDirs
	LostDirs       []wire.UUID // ids of data directories that will not come back: empty ones may take their place
	Listen         string      // host:port for plaintext; port 0 picks a free one; empty: none
	Advertise      string      // address told to clients; empty: the one listened on
	TLSListen      string      // host:port for TLS; empty: none
	TLSAdvertise   string      // what Advertise is for those who came by TLS
	TLSCert        string      // a path or credential:NAME, of PEM, like the two below
	TLSKey         string
	TLSClientCA    string // whose certificates clients must present; empty: they need none
	PeerCA         string // whose certificates the nodes show each other; empty: they talk in plaintext
	HTTP           string // host:port of the operator's view; empty: none
	HTTPPprof      bool   // profiles are served there, too
	HTTPRecords    string // who may see records there: local, on or off
	Node           wire.NodeID
	PeerListen     string     // host:port for the other nodes; empty: this node's address in Peers
	Peers          []PeerAddr // all nodes that keep the metadata, this one included, by number; none: this one alone
	Tenants        []Tenant   // each with a listener of its own
	MaxConnections int
	AcceptRate     int           // connections accepted a second; 0: as many as come
	Memory         int64         // bytes of requests held at once over all connections
	ConnMemory     int64         // of it, by one connection
	Connection     Rates         // of each connection
	Tenant         Rates         // of all connections by one listener together
	Topic          Rates         // of each topic on this node, unless its settings say otherwise
	CreateRate     int           // partitions made a second, for all clients together; 0: no bound
	IdleTimeout    time.Duration // a connection with nothing in flight for this long is closed
	DrainTimeout   time.Duration // how long a stop waits for requests in flight
	Reserve        int64         // bytes kept allocated in each data directory for work that must go on when it is full
	Flushers       int           // fdatasync calls at once in each data directory
	FlushSlow      time.Duration // a flush that takes longer makes its directory slow, an event
	FlushLost      time.Duration // a flush that takes longer takes its directory offline
	DirtyLimit     int64         // bytes of a data directory that may wait for its disk; 0: any number
	CatchUpRate    int64         // bytes a second read from each disk for readers far behind, while others produce; 0: any number
	ScrubRate      int64         // bytes a second that each data directory's scrub reads; 0: there is none
	ScrubEvery     time.Duration // its passes begin at most so often
	DiskSlow       time.Duration // while an append or flush takes longer nothing is produced to its directory
	Disk           Marks
	LogLevel       string // debug, info, warn or error

	// From says where settings come from, by key: the line of a file, a
	// variable, a flag. Those that are missing are as the code that made the
	// Config left them.
	From map[string]string
}

// DefaultConfig is what `teralog serve` runs with when nothing is configured.
// It listens on loopback only, since there are no logins yet.
func DefaultConfig() Config {
	return Config{
		DataDirs:       []string{"teralog-data"},
		Listen:         "127.0.0.1:7400",
		HTTPRecords:    recordsLocal,
		Node:           1,
		MaxConnections: 20_000,
		AcceptRate:     5_000,
		Memory:         512 << 20,
		ConnMemory:     64 << 20,
		IdleTimeout:    10 * time.Minute,
		DrainTimeout:   30 * time.Second,
		Reserve:        64 << 20,
		Flushers:       8,
		FlushSlow:      time.Second,
		FlushLost:      30 * time.Second,
		DiskSlow:       5 * time.Second,
		Disk:           Marks{Warn: 85, Refuse: 92, Protect: 97},
		DirtyLimit:     2 << 30,
		CatchUpRate:    512 << 20,
		ScrubRate:      16 << 20,
		ScrubEvery:     24 * time.Hour,
		LogLevel:       "info",
	}
}

// Check returns an error if settings that are each right do not fit together.
func (c *Config) Check() error {
	mine := slices.ContainsFunc(c.Peers, func(p PeerAddr) bool { return p.Node == c.Node })
	switch {
	case slices.Contains(c.DataDirs, c.MetadataDir):
		return fmt.Errorf("metadata-dir %s is in data-dir too; name it in one of them", c.MetadataDir)
	case len(c.Peers) > 0 && !mine:
		return fmt.Errorf("peers (%s) do not name this node, which is %d", joinPeers(c.Peers), c.Node)
	case c.HTTPPprof && !isLoopback(c.HTTP):
		return fmt.Errorf("http-pprof: http is %q; profiles are served on a loopback address only, such as 127.0.0.1:7480", c.HTTP)
	case c.PeerListen != "" && len(c.Peers) == 0:
		return fmt.Errorf("peer-listen without peers: there is nobody to hear")
	case c.TLSListen == "" && slices.ContainsFunc(c.Tenants, func(t Tenant) bool { return t.TLS }):
		return fmt.Errorf("a tenant with tls, but no tls-listen: its certificate is that one's")
	case c.Disk.Warn > c.Disk.Refuse || c.Disk.Refuse > c.Disk.Protect:
		return fmt.Errorf("disk-warn %d, disk-refuse %d and disk-protect %d must not fall", c.Disk.Warn, c.Disk.Refuse, c.Disk.Protect)
	case c.ConnMemory > c.Memory:
		return fmt.Errorf("connection-memory %s is more than memory, %s", wire.FormatSize(c.ConnMemory), wire.FormatSize(c.Memory))
	}
	return c.checkListeners()
}

// checkListeners sees that nobody believes in encryption that is not there.
func (c *Config) checkListeners() error {
	switch {
	case c.Listen == "" && c.TLSListen == "":
		return fmt.Errorf("neither listen nor tls-listen: no client could come")
	case c.Listen == "" && c.Advertise != "":
		return fmt.Errorf("advertise without listen; for clients of TLS it is tls-advertise")
	case c.PeerCA != "" && len(c.Peers) == 0:
		return fmt.Errorf("peer-ca without peers: there is nobody to talk to")
	case c.TLSListen+c.PeerCA != "" && (c.TLSCert == "" || c.TLSKey == ""):
		return fmt.Errorf("tls-listen and peer-ca need tls-cert and tls-key")
	case c.TLSListen == "" && c.TLSClientCA+c.TLSAdvertise != "", c.TLSListen+c.PeerCA == "" && c.TLSCert+c.TLSKey != "":
		return fmt.Errorf("settings of TLS without tls-listen: nothing would be encrypted")
	}
	return nil
}
