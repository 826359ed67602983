package wire

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/teralog/teralog/mem"
)

// A Server accepts connections and has their requests answered by a Handler.
//
// Fields are set before Serve and not changed after; the zero value of all but
// Handler and Hello means the default named.
//
// A connection costs one goroutine, its reader, and while it is idle no
// buffer. A second goroutine, the writer, exists only while there is something
// to send that the reader cannot send itself.
type Server struct {
	Handler Handler
	Hello   func() HelloResponse // limits and APIs left out are filled in by the server

	Requests *mem.Pool   // frames are read into it; default a pool of its own
	Replies  *mem.Pool   // responses are encoded into it; default a pool of its own
	Budget   *mem.Budget // of the process: bytes of requests in flight, 256 MiB

	ConnBudget  int64 // bytes of requests in flight of one connection, 64 MiB
	MaxFrame    int   // greatest frame, inclusive, MaxFrame
	MaxInFlight int   // calls of one connection not yet answered, 100; then it is no longer read
	MaxConns    int   // further connections are closed at once, 50,000
	AcceptRate  int64 // connections accepted a second, a tenth of a second's at once; others wait; 0: no bound
	MaxFile     int   // connections with a greater descriptor are closed at once, so that others stay for files; no limit

	// Connections that have not said Hello yet: in all, and from one source, an
	// IPv4 address or the first half of an IPv6 one. Further ones are closed at
	// once.
	MaxUnidentified       int // 4,096: of a first frame of 8 KiB each, 32 MiB
	MaxUnidentifiedSource int // 64 for more than a second; a quarter of all for a moment

	HelloTimeout time.Duration // from accept to Hello, the handshake of TLS included, 10 s
	IdleTimeout  time.Duration // without any call in flight, 10 min; noticed at the latest 125 ms later
	FrameTimeout time.Duration // for a frame to arrive, 30 s and 1 s for each 64 KiB of it
	SendTimeout  time.Duration // for a response to make no progress, 30 s

	// Session makes what the calls of a new connection carry, see Call.Session;
	// owner is what its listener was served for. Default: nothing.
	Session func(owner any) any
	// Refused hears of each refusal the server makes by itself. It must only
	// note it.
	Refused func(l Limit, remote string)
	// Unfit hears of each connection ended for how it began: reason is "tls" for a
	// handshake that failed and for plaintext where TLS is spoken, "plaintext" for the
	// reverse. It must only note it.
	Unfit func(reason, remote string, err error)
	// Paused is called when accepting fails for want of descriptors or memory, or
	// for another reason that may pass, and with nil once it works again. Between
	// the two nothing is accepted for up to a second at a time. It must not block.
	Paused func(err error)

	Log *slog.Logger // default discards

	once     sync.Once
	requests *mem.Pool
	replies  *mem.Pool

	mu        sync.Mutex
	listeners map[net.Listener]struct{}
	conns     map[*serverConn]struct{}
	unknown   strangers
	draining  bool
	empty     chan struct{} // closed when draining and the last connection has ended

	replySizes [len(apis)]replySize

	// bulk has a place for each large piece of a file that is being sent. A piece
	// keeps a processor for as long as it takes to copy 1 MiB, so readers of a
	// backlog leave one for all others.
	bulk *places

	accept     *mem.Bucket // nil: no bound
	born       time.Time
	handshakes chan struct{} // full of those that compute: they, too, leave a processor for all others

	traffic traffic
	times   Times
	count   struct {
		accepted, refused, failed, requests, badFrames, busy, panics, timeouts atomic.Int64
		handshakes, badHandshakes, spokeTLS                                    atomic.Int64
	}
}

// ServerStats are a server's counters at one moment.
type ServerStats struct {
	Conns     int   // open now
	Accepted  int64 // connections so far
	Refused   int64 // of these closed at once: too many, descriptors included, or shutting down
	Failed    int64 // attempts to accept that failed
	Requests  int64 // frames handed to the handler, Hello not counted
	BadFrames int64 // connections ended for what they sent
	Busy      int64 // requests refused for want of memory
	Panics    int64 // handlers that panicked
	Timeouts  int64 // connections ended for sending or taking nothing
	Writers   int64 // writer goroutines started

	Handshakes    int64 // of TLS that ended well
	BadHandshakes int64 // and those that did not, plaintext among them
	SpokeTLS      int64 // connections ended for speaking TLS where nobody does

	// Counted after the socket took them, when a client may have them already;
	// those of a range before its Done.
	SentBytes     int64 // headers and fields
	SentFileBytes int64 // ranges, by sendfile
	SentCopyBytes int64 // ranges, through memory
}

// Stats returns the counters.
func (s *Server) Stats() ServerStats {
	s.mu.Lock()
	n := len(s.conns)
	s.mu.Unlock()
	return ServerStats{
		Conns:         n,
		Accepted:      s.count.accepted.Load(),
		Refused:       s.count.refused.Load(),
		Failed:        s.count.failed.Load(),
		Requests:      s.count.requests.Load(),
		BadFrames:     s.count.badFrames.Load(),
		Busy:          s.count.busy.Load(),
		Panics:        s.count.panics.Load(),
		Timeouts:      s.count.timeouts.Load(),
		Writers:       s.traffic.writers.Load(),
		Handshakes:    s.count.handshakes.Load(),
		BadHandshakes: s.count.badHandshakes.Load(),
		SpokeTLS:      s.count.spokeTLS.Load(),
		SentBytes:     s.traffic.plain.Load(),
		SentFileBytes: s.traffic.file.Load(),
		SentCopyBytes: s.traffic.copied.Load(),
	}
}

// bulkWait is how long a large piece of a file waits for its place: a hundred
// others take no longer, as long as none of them has to wait for a disk.
const bulkWait = 100 * time.Millisecond

// init fills in the defaults.
func (s *Server) init() {
	s.once.Do(func() {
		s.times.since = time.Now()
		s.requests, s.replies = s.Requests, s.Replies
		if s.requests == nil {
			s.requests = mem.NewPool("requests")
		}
		if s.replies == nil {
			s.replies = mem.NewPool("replies")
		}
		if s.Budget == nil {
			s.Budget = mem.NewBudget(256 << 20)
		}
		if s.Log == nil {
			s.Log = slog.New(slog.DiscardHandler)
		}
		if s.Paused == nil {
			s.Paused = func(err error) {
				if err != nil {
					s.Log.Warn("accept failed, trying again", "err", err)
				}
			}
		}
		orDefault(&s.ConnBudget, 64<<20)
		orDefault(&s.MaxFrame, MaxFrame)
		orDefault(&s.MaxInFlight, 100)
		orDefault(&s.MaxConns, 50_000)
		orDefault(&s.MaxUnidentified, 4096)
		orDefault(&s.MaxUnidentifiedSource, 64)
		orDefault(&s.HelloTimeout, 10*time.Second)
		orDefault(&s.IdleTimeout, 10*time.Minute)
		orDefault(&s.FrameTimeout, 30*time.Second)
		orDefault(&s.SendTimeout, 30*time.Second)
		s.listeners = map[net.Listener]struct{}{}
		s.conns = map[*serverConn]struct{}{}
		s.unknown.from = map[netip.Addr]source{}
		s.born = time.Now()
		if s.AcceptRate > 0 {
			s.accept = mem.NewBucket(s.AcceptRate, max(s.AcceptRate/10, 1))
		}
		s.empty = make(chan struct{})
		others := max(runtime.GOMAXPROCS(0)-1, 1)
		s.bulk = &places{taken: make(chan struct{}, others), wait: bulkWait, yield: mem.Yield}
		s.handshakes = make(chan struct{}, others)
	})
}

func orDefault[T comparable](v *T, d T) {
	var zero T
	if *v == zero {
		*v = d
	}
}

// helloResponse returns what Hello is answered with.
func (s *Server) helloResponse() HelloResponse {
	r := s.Hello()
	if r.APIs == nil {
		r.APIs = supported()
	}
	orDefault(&r.MaxFrame, uint32(s.MaxFrame))
	orDefault(&r.MaxInFlight, uint32(s.MaxInFlight))
	return r
}

// supported returns the versions of every API this code speaks.
func supported() []APIRange {
	var rs []APIRange
	for a := range apis {
		if apis[a].name != "" {
			rs = append(rs, APIRange{API: API(a), Min: apis[a].min, Max: apis[a].max})
		}
	}
	return rs
}

// checkVersion returns the refusal of a request that no row of the API table covers.
func checkVersion(a API, v Version) error {
	if a == 0 || int(a) >= len(apis) || apis[a].name == "" {
		return Errorf(CodeUnsupported, "there is no %v", a)
	}
	if v < apis[a].min || v > apis[a].max {
		return Errorf(CodeUnsupportedVersion, "%v version %d, spoken are %d to %d", a, v, apis[a].min, apis[a].max)
	}
	return nil
}

// Serve accepts connections on ln, which it closes in the end, until Shutdown
// (then it returns nil) or until ln fails for good. A lack of descriptors or
// memory is waited out.
func (s *Server) Serve(ln net.Listener) error { return s.ServeFor(ln, nil) }

// ServeFor is Serve for the clients of one owner, whom Session is told.
func (s *Server) ServeFor(ln net.Listener, owner any) error {
	return s.serve(ln, owner, func(nc net.Conn) net.Conn { return nc })
}

// serve is Serve for what as makes of connections.
func (s *Server) serve(ln net.Listener, owner any, as func(net.Conn) net.Conn) error {
	s.init()
	defer ln.Close()
	if !s.listen(ln) {
		return nil
	}
	defer s.unlisten(ln)
	var pause backoff
	for {
		c, err := ln.Accept()
		switch {
		case err == nil:
			if !pause.first() {
				s.Paused(nil)
			}
			pause.reset()
			s.open(as(c), descriptor(c), owner)
			s.pace()
		case s.isDraining():
			return nil
		case !transient(err):
			return err
		default:
			s.count.failed.Add(1)
			if pause.first() {
				s.Paused(err)
			}
			pause.wait()
		}
	}
}

// transient reports whether a failed accept may succeed later.
func transient(err error) bool {
	for _, e := range []error{syscall.EMFILE, syscall.ENFILE, syscall.ENOMEM, syscall.ENOBUFS,
		syscall.ECONNABORTED, syscall.ECONNRESET, syscall.EINTR, syscall.EPROTO} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// A backoff waits longer and longer, 5 ms up to 1 s.
type backoff struct{ next time.Duration }

func (b *backoff) reset()      { b.next = 0 }
func (b *backoff) first() bool { return b.next == 0 }
func (b *backoff) wait() {
	b.next = min(max(2*b.next, 5*time.Millisecond), time.Second)
	time.Sleep(b.next)
}

// crowdedPause is how long accepting pauses after each connection while many have
// not said Hello: whoever opens silent ones must not stop it.
const crowdedPause = time.Millisecond

// mono returns the time since the server's first connection could come.
func (s *Server) mono() time.Duration { return time.Since(s.born) }

// pace waits until another connection may be accepted. While many have not said
// Hello it gives them a little time for it: the others wait in the kernel, and
// fewer of those who all come at once have to be refused.
func (s *Server) pace() {
	s.mu.Lock()
	crowded := s.unknown.all > s.MaxUnidentifiedSource
	s.mu.Unlock()
	if crowded {
		time.Sleep(crowdedPause)
	}
	if s.accept == nil {
		return
	}
	now := mem.Now{Mono: s.mono()}
	s.accept.Take(now, 1)
	if wait := s.accept.Wait(now); wait > 0 {
		time.Sleep(wait)
	}
}

func (s *Server) listen(ln net.Listener) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.draining {
		s.listeners[ln] = struct{}{}
	}
	return !s.draining
}

func (s *Server) unlisten(ln net.Listener) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.listeners, ln)
}

func (s *Server) isDraining() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.draining
}

// open starts the reader of a new connection, whose descriptor is file.
func (s *Server) open(nc net.Conn, file int, owner any) {
	s.count.accepted.Add(1)
	c := newServerConn(s, nc)
	if s.Session != nil {
		c.session = s.Session(owner)
	}
	ok, hit := s.enter(c, file)
	if !ok {
		s.count.refused.Add(1)
		if hit != NoLimit {
			s.refused(hit, c.remote())
		}
		nc.Close()
		return
	}
	go c.run()
}

// enter counts a new connection in, unless the server drains or has as many as
// it may.
func (s *Server) enter(c *serverConn, file int) (ok bool, hit Limit) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.draining:
		return false, NoLimit
	case len(s.conns) >= s.MaxConns:
		return false, LimitConnections
	case s.MaxFile > 0 && file > s.MaxFile:
		return false, LimitFiles
	}
	if hit := s.unknown.enter(c.source, s.mono(), s.MaxUnidentified, s.MaxUnidentifiedSource); hit != NoLimit {
		return false, hit
	}
	s.conns[c] = struct{}{}
	return true, NoLimit
}

// refused tells of a refusal.
func (s *Server) refused(l Limit, remote string) {
	if s.Refused != nil {
		s.Refused(l, remote)
	}
}

// identified counts c as one that has said Hello.
func (s *Server) identified(c *serverConn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.unknown.leave(c.source, s.MaxUnidentifiedSource)
}

// descriptor returns the number of a connection's descriptor, -1 if it has none.
// The kernel gives the lowest that is free, so it says how many are taken.
func descriptor(nc net.Conn) int {
	n := -1
	if c, ok := nc.(syscall.Conn); ok {
		if raw, err := c.SyscallConn(); err == nil {
			raw.Control(func(fd uintptr) { n = int(fd) }) // a closed one is refused anyway
		}
	}
	return n
}

// closed forgets a connection that has ended.
func (s *Server) closed(c *serverConn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !c.greeted {
		s.unknown.leave(c.source, s.MaxUnidentifiedSource)
	}
	delete(s.conns, c)
	if s.draining && len(s.conns) == 0 {
		close(s.empty)
	}
}

// Shutdown ends the server gracefully: it stops accepting and reading, lets
// every call in flight be answered, and closes each connection after its last
// answer was sent. Requests that were read but not yet handed to the handler
// are answered SHUTTING_DOWN. When ctx ends first the remaining connections
// are cut, and Shutdown returns ctx's error. Handlers must see to it that
// calls which wait for something are answered.
func (s *Server) Shutdown(ctx context.Context) error {
	s.init()
	s.mu.Lock()
	first := !s.draining
	s.draining = true
	for ln := range s.listeners {
		ln.Close()
	}
	if first && len(s.conns) == 0 {
		close(s.empty)
	}
	conns := s.snapshot()
	s.mu.Unlock()
	for _, c := range conns {
		c.drain()
	}
	select {
	case <-s.empty:
		return nil
	case <-ctx.Done():
	}
	s.mu.Lock()
	conns = s.snapshot()
	s.mu.Unlock()
	for _, c := range conns {
		c.cut(ctx.Err())
	}
	return ctx.Err()
}

// snapshot returns the open connections; s.mu is held.
func (s *Server) snapshot() []*serverConn {
	conns := make([]*serverConn, 0, len(s.conns))
	for c := range s.conns {
		conns = append(conns, c)
	}
	return conns
}
