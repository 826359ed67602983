// Package broker is the server: it wires the rooms together and answers
// requests.
//
// A request is decoded, checked at the gate, handed to the room that decides,
// and its outcome encoded; what a handler would have to decide itself belongs
// into a room below. Metadata changes come from coord as a new image, which
// hosts.go makes true on disk; a request for records parks in park.go until
// its partitions have some.
package broker

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/teralog/teralog/coord"
	"github.com/teralog/teralog/mem"
	"github.com/teralog/teralog/repl"
	"github.com/teralog/teralog/storage"
	"github.com/teralog/teralog/wire"
)

// An Env is the world a broker runs in: the disk, the network, time and
// chance. NewEnv gives the real one; the simulator makes its own.
type Env struct {
	FS    storage.FS
	Boot  string           // changes with every start of the machine
	NewID func() wire.UUID // random
	Now   func() mem.Now   // the time
	Clock *mem.Clock       // for the loops of the rooms below; a manual broker has none
	Log   *slog.Logger
	// MaxFiles is how many descriptors the process may have; 0: no limit.
	MaxFiles int
	// SnapshotEvery is how many metadata entries lie between two snapshots of
	// it, TidyEvery how often retention is looked at; 0: the rooms' defaults.
	SnapshotEvery int
	TidyEvery     time.Duration
	// Listen and Dial reach other nodes. They and Stop, which ends a New that
	// waits for them when it is closed, are of no account for a node alone.
	Listen func(addr string) (net.Listener, error)
	Dial   wire.Dialer
	Stop   <-chan struct{}
	// Manual says that no goroutine is started: things happen in Turn only.
	Manual bool
}

// NewEnv returns the real world.
func NewEnv(log *slog.Logger) (Env, error) {
	boot, err := bootID()
	if err != nil {
		return Env{}, err
	}
	clock := mem.NewClock()
	return Env{FS: storage.OS(), Boot: boot, NewID: randomID, Now: clock.Now, Clock: clock, Log: log, MaxFiles: descriptorLimit(), Listen: listenTCP, Dial: &net.Dialer{}}, nil
}

func randomID() (id wire.UUID) {
	rand.Read(id[:]) // it never fails
	return id
}

// A Broker is one node. ServeCall may be called from anywhere; in a manual
// broker everything belongs to the one thread that calls Turn.
type Broker struct {
	config Config
	env    Env
	log    *slog.Logger

	dirs  []*storage.Dir // the first holds the metadata log
	dead  []deadDir      // those that could not be opened
	coord *coord.Coord
	set   *repl.Set
	wheel *mem.Wheel
	hosts hosts // what of the metadata is true on disk here

	ready    chan *fetch            // parked fetches to look at again
	work     jobs                   // decoding
	lanes    map[*storage.Dir]*lane // what may wait for a disk
	lot      lot                    // where parked fetches stand
	searches *mem.Budget            // look-ups of records by the console
	addr     atomic.Pointer[string] // told to clients

	followers atomic.Int32 // of the events

	secure    *secure // nil: TLS is not configured
	peers     *peers  // nil: this node is alone
	server    *wire.Server
	count     counts
	handovers handovers
	state     atomic.Int32  // begins, serves or ends
	took      time.Duration // the start
	events    events

	refusals  refusals
	gauges    []gauge     // of dirs
	creations *mem.Bucket // partitions made; nil: no bound
	house     *house      // of the main listener

	// endEvents ends the saving of events; nil: none are saved.
	endEvents func()
	fatal     chan error    // why the process must end
	hangs     chan struct{} // closed when a disk does not answer
	hung      sync.Once     // closes it
	loops     sync.WaitGroup
}

// Bounds of what waits inside a broker, inclusive. What comes on top is
// answered BUSY.
const (
	maxParked  = 1 << 14 // fetches
	maxWork    = 1 << 10 // decoding; maxLane is for what may wait for a disk
	maxBatches = 1 << 14 // batches of one produce request
)

// New opens the data directories, recovers everything in them and makes the
// files agree with the metadata. Nothing is served before Run or Turn.
func New(c Config, e Env) (*Broker, error) {
	b := &Broker{
		config: c, env: e, log: e.Log,
		wheel:    mem.NewWheel(),
		ready:    make(chan *fetch, maxParked),
		work:     make(jobs, maxWork),
		fatal:    make(chan error, 1),
		hangs:    make(chan struct{}),
		lot:      lot{max: maxParked},
		searches: mem.NewBudget(maxSearches),
	}
	began := b.time().Mono
	var err error
	if b.secure, err = openSecure(c); err != nil {
		return nil, err
	}
	if err := b.open(); err != nil {
		b.abandon()
		return nil, err
	}
	b.took = b.time().Mono - began
	if e.Manual {
		b.state.Store(serves)
	}
	b.event(EventStart, slog.String("version", wire.Software), slog.Bool("clean", b.Clean()), slog.Int("topics", len(b.Image().Topics())),
		slog.Int("partitions", len(b.set.Partitions())), slog.Duration("took", b.took))
	b.house = b.newHouse(theDefault, Rates{}, "")
	if c.CreateRate > 0 {
		b.creations = mem.NewBucket(int64(c.CreateRate), int64(c.CreateRate))
	}
	b.gauges = make([]gauge, len(b.dirs))
	for i, d := range b.dirs {
		b.gauges[i].dir = d
	}
	b.server = &wire.Server{
		Handler:     b,
		Requests:    mem.NewPool("requests"),
		Replies:     mem.NewPool("replies"),
		Hello:       b.hello,
		Budget:      mem.NewBudget(c.Memory),
		ConnBudget:  c.ConnMemory,
		MaxConns:    c.MaxConnections,
		AcceptRate:  int64(c.AcceptRate),
		Session:     b.session,
		Refused:     func(l wire.Limit, remote string) { b.refused(l, func() string { return remote }) },
		MaxFile:     b.maxConnFile(),
		IdleTimeout: c.IdleTimeout,
		Paused:      b.paused,
		Unfit:       b.unfit,
		Log:         e.Log,
	}
	return b, nil
}

func (b *Broker) time() mem.Now { return b.env.Now() }

func (b *Broker) hello() wire.HelloResponse {
	return wire.HelloResponse{
		Cluster:  b.dirs[0].Cluster(),
		Node:     b.config.Node,
		Software: "teralog " + wire.Software,
		MaxBatch: wire.MaxBatchBytes,
	}
}

// Cluster returns the id of the cluster the broker belongs to.
func (b *Broker) Cluster() wire.UUID { return b.dirs[0].Cluster() }

// Clean reports whether the last use of every data directory was ended by a
// clean stop, so that nothing was scanned at the start.
func (b *Broker) Clean() bool {
	return !slices.ContainsFunc(b.dirs, func(d *storage.Dir) bool { return !d.Start().Clean })
}

// Set returns the partitions hosted here.
func (b *Broker) Set() *repl.Set { return b.set }

// Image returns the newest metadata.
func (b *Broker) Image() *coord.Image { return b.coord.Image() }

// Stats returns the counters of the server's connections.
func (b *Broker) Stats() wire.ServerStats { return b.server.Stats() }

// Recovery returns what was found and done at the start, a line each.
func (b *Broker) Recovery() []string {
	var lines []string
	for _, d := range b.dirs {
		lines = append(lines, d.Report()...)
	}
	return append(lines, b.hosts.report()...)
}

// Run serves on ln, which may be nil after ServeTLS, and on the listeners of the
// configured tenants in their order, until ctx is done, then stops cleanly:
// requests in flight are answered, everything is fsynced, and the clean marks are
// written. An error means that it stopped by itself, or not cleanly.
func (b *Broker) Run(ctx context.Context, ln net.Listener, tenants ...net.Listener) error {
	// The loops outlive the connections: what is in flight needs them.
	loops, stop := context.WithCancel(context.Background())
	defer stop()
	watching, unwatch := context.WithCancel(context.Background())
	defer unwatch() // last of all: whatever is left to do may meet a disk that hangs
	go b.set.Run(watching)
	if b.peers == nil {
		b.loop(func() { b.report(b.coord.Run(loops)) })
	}
	go b.runLog(loops)
	defer b.logLast()
	b.loop(func() { b.runHosts(loops) })
	b.loop(func() { b.runWheel(loops) })
	for range runtime.GOMAXPROCS(0) {
		b.loop(func() { b.runReady(loops) })
		b.loop(func() { b.runJobs(loops, b.work) })
	}
	for i := range b.gauges {
		go b.runGauge(loops, &b.gauges[i])
	}
	for _, l := range b.lanes {
		for range laneWorkers {
			go b.runJobs(loops, l.jobs) // not waited for: its disk may hang
		}
	}
	b.state.Store(serves)
	served := b.serve(ln, tenants)

	var failure error
	select {
	case <-ctx.Done():
	case failure = <-b.fatal:
	case failure = <-served:
	}
	b.state.Store(ends)
	b.event(EventStop, slog.Any("why", cmp.Or(failure, errAsked)))
	drain, cancel := context.WithTimeout(context.Background(), b.config.DrainTimeout)
	defer cancel()
	b.unpark()
	if err := b.server.Shutdown(drain); err != nil {
		b.log.Warn("connections were cut with requests in flight", "err", err)
	}
	stop()
	err := b.end(drain)
	if failed := b.dirs[0].Failed(); failed != nil && failure == nil {
		failure = lost(failed) // the stop has met it
	}
	return errors.Join(failure, err, b.Fatal())
}

// errAsked is why a broker stops that was told to.
var errAsked = errors.New("it was told to")

// serve begins to serve clients, on ln and by TLS. Why the first listener ended comes
// from served.
func (b *Broker) serve(ln net.Listener, tenants []net.Listener) (served <-chan error) {
	ended := make(chan error, 2+len(tenants))
	for i, h := range b.houses(tenants) {
		go func() { ended <- b.serveHouse(tenants[i], h, b.config.Tenants[i].TLS) }()
	}
	if ln != nil {
		addr := cmp.Or(b.config.Advertise, ln.Addr().String())
		b.addr.Store(&addr)
		go func() { ended <- b.serveHouse(ln, b.house, false) }()
	}
	if s := b.secure; s != nil && s.ln != nil {
		addr := cmp.Or(b.config.TLSAdvertise, s.ln.Addr().String())
		s.addr.Store(&addr)
		go func() { ended <- b.serveHouse(s.ln, b.house, true) }()
	}
	return ended
}

// serveHouse serves the clients of one tenant.
func (b *Broker) serveHouse(ln net.Listener, h *house, encrypted bool) error {
	if encrypted {
		return b.server.ServeTLSFor(ln, h, b.secure.config)
	}
	return b.server.ServeFor(ln, h)
}

// end waits for the loops and closes everything, but no longer than drain for a
// disk that hangs.
func (b *Broker) end(drain context.Context) error {
	ended := make(chan error, 1)
	go func() {
		b.loops.Wait()
		ended <- b.Close()
	}()
	select {
	case err := <-ended:
		return err
	case <-b.hangs:
	}
	select {
	case err := <-ended:
		return err
	case <-drain.Done():
		return fmt.Errorf("not closed cleanly: %w", repl.ErrHangs)
	}
}

func (b *Broker) loop(f func()) {
	b.loops.Add(1)
	go func() {
		defer b.loops.Done()
		f()
	}()
}

// report notes an error that must end the process.
func (b *Broker) report(err error) {
	if err == nil {
		return
	}
	select {
	case b.fatal <- err:
	default:
	}
}

// Fatal returns the error for which the process must end, once. A manual broker
// must be taken down then.
func (b *Broker) Fatal() error {
	select {
	case err := <-b.fatal:
		return err
	default:
		return nil
	}
}

// Close stops a broker that does not run: it flushes and closes every log and
// writes the clean marks last.
func (b *Broker) Close() error {
	if b.peers != nil {
		b.peers.close()
	}
	ends := b.set.Close()
	end, err := b.coord.Close()
	if err != nil {
		delete(ends, b.dirs[0])
	} else if list, ok := ends[b.dirs[0]]; ok {
		ends[b.dirs[0]] = append(list, end)
	}
	if b.endEvents != nil {
		b.endEvents()
	}
	errs := []error{err}
	for _, d := range b.dirs {
		list, ok := ends[d]
		if !ok {
			errs = append(errs, fmt.Errorf("data directory %s: not closed cleanly", d.Path()), d.Abandon())
			continue
		}
		errs = append(errs, d.Close(list))
	}
	return errors.Join(errs...)
}

// abandon gives up the directories without a clean mark.
func (b *Broker) abandon() {
	if b.peers != nil {
		b.peers.close()
	}
	b.logLast()
	if b.endEvents != nil {
		b.endEvents()
	}
	for _, d := range b.dirs {
		if d != nil {
			d.Abandon()
		}
	}
}

// Turn does all waiting work once, for a simulator that does not care for the
// order. It returns whether there was any.
func (b *Broker) Turn() (worked bool) {
	for _, s := range b.Steps(nil) {
		worked = b.Step(s) || worked
	}
	return worked
}

// newTopicID draws a topic id; coord sees to it that it is a fit one.
func (b *Broker) newTopicID() wire.TopicID {
	id := b.env.NewID()
	return wire.TopicID(binary.LittleEndian.Uint64(id[:]))
}
