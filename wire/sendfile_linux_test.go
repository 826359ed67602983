package wire

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/teralog/teralog/mem"
)

// sysReader is a file that names its descriptor.
type sysReader struct{ *os.File }

func (f sysReader) SysFd() uintptr {
	raw, err := f.SyscallConn()
	if err != nil {
		panic(err)
	}
	var fd uintptr
	raw.Control(func(f uintptr) { fd = f })
	return fd
}

// A loop is a server on a loopback socket.
type loop struct {
	addr   string
	server *Server
	pool   *mem.Pool
	client *mem.Pool
	tls    *tls.Config // of the clients
}

func newLoop(t testing.TB, h Handler, change ...func(*Server)) *loop {
	return newLoopOf(t, plaintext, h, change...)
}

func newLoopOf(t testing.TB, k kind, h Handler, change ...func(*Server)) *loop {
	l := &loop{pool: mem.NewPool("server"), client: mem.NewPool("client")}
	l.server = &Server{Handler: h, Hello: helloForTest, Requests: l.pool, Replies: l.pool}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l.addr = ln.Addr().String()
	l.server.init() // so that tests may look at what it makes
	l.server.bulk.wait = time.Hour
	for _, c := range change {
		c(l.server)
	}
	served := make(chan error, 1)
	serve := l.server.Serve
	if k == encrypted {
		serve, l.tls = serveTLSOn(t, l.server)
	}
	go func() { served <- serve(ln) }()
	t.Cleanup(func() {
		if err := l.server.Shutdown(context.Background()); err != nil {
			t.Error(err)
		}
		if err := <-served; err != nil {
			t.Error(err)
		}
		// Whoever sent on a connection that failed lets go of its buffer a moment after
		// the reader has told the server that it has ended.
		if n := left(l.pool); n != 0 {
			t.Errorf("%d buffers of the server are out", n)
		}
	})
	return l
}

func (l *loop) dial(t testing.TB) *Conn {
	c, err := Dial(context.Background(), &net.Dialer{}, l.addr, DialOptions{Pool: l.client, TLS: l.tls})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

// randomFile returns a file of n random bytes.
func randomFile(t testing.TB, n int) (*os.File, []byte) {
	t.Helper()
	data := make([]byte, n)
	rng := rand.NewChaCha8([32]byte{1})
	rng.Read(data)
	f, err := os.Create(filepath.Join(t.TempDir(), "log"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	if _, err := f.Write(data); err != nil {
		t.Fatal(err)
	}
	return f, data
}

// serveRanges answers a fetch with as many ranges as it names partitions: from
// Offset, MaxBytes bytes of r.
//
// The group counts ranges that are to end; one that ends twice panics there.
func serveRanges(r io.ReaderAt, open *sync.WaitGroup) Handler {
	return handlerFunc(func(c *Call) {
		var q FetchRequest
		if err := c.Decode(&q); err != nil {
			c.ReplyError(err)
			return
		}
		resp := &FetchResponse{}
		var fs []FileRange
		for _, p := range q.Partitions {
			resp.Partitions = append(resp.Partitions, FetchResult{Topic: p.Topic, Bytes: p.MaxBytes})
			fs = append(fs, FileRange{R: r, Off: int64(p.Offset), Len: int64(p.MaxBytes), Done: open.Done})
		}
		c.ReplyFiles(resp, fs)
	})
}

func fetchRanges(ranges ...[2]int) *FetchRequest {
	q := &FetchRequest{}
	for _, r := range ranges {
		q.Partitions = append(q.Partitions, FetchPartition{Topic: FirstUserTopic, Offset: Offset(r[0]), MaxBytes: uint32(r[1])})
	}
	return q
}

// checkFetch fetches ranges and compares them with data.
func checkFetch(t testing.TB, c *Conn, data []byte, ranges ...[2]int) (total int64) {
	t.Helper()
	var r FetchResponse
	b, err := c.DoBuf(context.Background(), fetchRanges(ranges...), &r)
	if err != nil {
		t.Error(err)
		return 0
	}
	defer b.Release()
	for i, want := range ranges {
		if !bytes.Equal(r.Partitions[i].Data, data[want[0]:want[0]+want[1]]) {
			t.Errorf("range %v differs", want)
		}
		total += int64(want[1])
	}
	return total
}

// TestSendFile fetches ranges of one file over several connections at once and
// expects every byte right, and none of them copied.
func TestSendFile(t *testing.T) {
	const size = 8 << 20
	f, data := randomFile(t, size)
	var open sync.WaitGroup
	var total atomic.Int64
	l := newLoop(t, serveRanges(sysReader{f}, &open))
	var wg sync.WaitGroup
	for g := range uint64(4) {
		c := l.dial(t)
		rng := rand.New(rand.NewPCG(g, 2))
		wg.Go(func() {
			for range 12 {
				var q [][2]int
				for range 1 + rng.IntN(4) {
					n := []int{0, 1, 100, 70_000, 3 << 20}[rng.IntN(5)]
					q = append(q, [2]int{rng.IntN(size - n), n})
				}
				open.Add(len(q))
				total.Add(checkFetch(t, c, data, q...))
			}
		})
	}
	wg.Wait()
	open.Wait() // the client may be faster than the server's counter
	s := l.server.Stats()
	if s.SentFileBytes != total.Load() || s.SentCopyBytes != 0 {
		t.Errorf("%d bytes by sendfile and %d copied, want %d and 0", s.SentFileBytes, s.SentCopyBytes, total.Load())
	}
}

// A slice fills answers with its bytes, if it is not empty.
type slice []byte

func (b slice) Fill(p []byte) bool { return copy(p, b) == len(p) }

// TestReplyFilled: bytes that are filled in follow the message like those of a
// file; a call whose filler cannot is answered in another way.
func TestReplyFilled(t *testing.T) {
	f, data := randomFile(t, 300_000)
	var refused atomic.Int32
	var open sync.WaitGroup
	ranges := serveRanges(sysReader{f}, &open)
	l := newLoop(t, handlerFunc(func(c *Call) {
		var q FetchRequest
		if err := c.Decode(&q); err != nil {
			c.ReplyError(err)
			return
		}
		p := q.Partitions[0]
		resp := &FetchResponse{Partitions: []FetchResult{{Topic: p.Topic, Bytes: p.MaxBytes}}}
		from := slice(data[p.Offset:][:p.MaxBytes])
		if p.Offset%2 == 1 {
			from = from[:len(from)/2]
		}
		if !c.ReplyFilled(resp, int(p.MaxBytes), from) {
			refused.Add(1)
			open.Add(1)
			ranges.ServeCall(c)
		}
	}))
	c := l.dial(t)
	for _, n := range []int{1, 100, replyBuf, 70_000, 200_000} {
		checkFetch(t, c, data, [2]int{2, n})
		checkFetch(t, c, data, [2]int{3, n})
	}
	open.Wait()
	if n := refused.Load(); n != 5 {
		t.Errorf("%d calls were refused by their filler, want 5", n)
	}
}

// TestInlineRange: who answers with a small range sends it himself, as far as the
// socket takes it; a large one goes by a goroutine.
func TestInlineRange(t *testing.T) {
	f, data := randomFile(t, 4*maxInline)
	var open sync.WaitGroup
	h := serveRanges(sysReader{f}, &open)
	l := newLoop(t, handlerFunc(func(c *Call) {
		if c.correlation%2 == 0 {
			go h.ServeCall(c) // as a fetch that was parked
			return
		}
		h.ServeCall(c)
	}))
	c := l.dial(t)
	l.server.mu.Lock()
	out := &l.server.snapshot()[0].out
	l.server.mu.Unlock()
	sending := func() bool {
		out.mu.Lock()
		defer out.mu.Unlock()
		return out.turn
	}
	check := func(lens ...int) {
		t.Helper()
		var q [][2]int
		for i, n := range lens {
			q = append(q, [2]int{i, n})
		}
		open.Add(len(q))
		checkFetch(t, c, data, q...)
		for open.Wait(); sending(); runtime.Gosched() { // who has sent this answer sends no other
		}
	}
	for range 20 {
		check(1)
		check(maxInline)
		check(100, 0, 3000)
	}
	if n := l.server.Stats().Writers; n != 0 {
		t.Errorf("%d goroutines for small ranges", n)
	}
	check(maxInline + 1)
	if n := l.server.Stats().Writers; n != 1 {
		t.Errorf("%d goroutines for a large range", n)
	}

	// Answers that nobody reads fill the socket; all of them arrive in the end.
	const many, ranges = 90, 8 // 45 MiB, more than sockets hold
	answers := make(chan error, many)
	full := func() error {
		for began := time.Now(); l.server.Stats().Writers == 1; runtime.Gosched() {
			if time.Since(began) > time.Minute {
				return errors.New("the socket never got full")
			}
		}
		return nil
	}
	open.Add(many * ranges)
	for i := range many {
		r := new(FetchResponse)
		q := slices.Repeat([][2]int{{i, maxInline}}, ranges)
		c.GoBuf(fetchRanges(q...), r, func(b *mem.Buf, err error) {
			if err == nil {
				if i == 0 {
					err = full() // keeps the connection's reader
				}
				for _, p := range r.Partitions {
					if !bytes.Equal(p.Data, data[i:i+maxInline]) {
						err = errors.New("wrong bytes")
					}
				}
				b.Release()
			}
			answers <- err
		})
	}
	for range many {
		if err := <-answers; err != nil {
			t.Fatal(err)
		}
	}
	open.Wait()
}

// TestFlushEnds: who sends what others answer meanwhile is let go in the end, be
// they as fast as they like.
func TestFlushEnds(t *testing.T) {
	f, _ := randomFile(t, 10)
	const many = 90
	parked := make(chan *Call, many)
	l := newLoop(t, handlerFunc(func(c *Call) { parked <- c }))
	c := l.dial(t)
	answers := make(chan error, many)
	for range many {
		c.Go(fetchRanges([2]int{0, 1}), &FetchResponse{}, func(err error) { answers <- err })
	}
	var calls []*Call
	for range many {
		calls = append(calls, <-parked)
	}
	var last atomic.Int32 // that was sent before a goroutine took over
	var answer func(n int)
	answer = func(n int) { // each once the one before has been sent
		calls[n].ReplyFiles(&FetchResponse{Partitions: []FetchResult{{Bytes: 1}}}, []FileRange{{R: sysReader{f}, Len: 1, Done: func() {
			if l.server.Stats().Writers == 0 {
				last.Store(int32(n))
			}
			if n+1 < many {
				answer(n + 1)
			}
		}}})
	}
	go answer(0) // as a fetch that was parked
	for range many {
		if err := <-answers; err != nil {
			t.Fatal(err)
		}
	}
	if n, writers := last.Load()+1, l.server.Stats().Writers; n != maxLoads || writers != 1 {
		t.Errorf("one caller sent %d answers, %d goroutines the others", n, writers)
	}
}

// TestBulk: while all places for large pieces are taken, a large answer waits and
// small ones pass.
func TestBulk(t *testing.T) {
	f, data := randomFile(t, 4<<20)
	var open sync.WaitGroup
	l := newLoop(t, serveRanges(sysReader{f}, &open))
	large, small := l.dial(t), l.dial(t)
	for range cap(l.server.bulk.taken) {
		l.server.bulk.taken <- struct{}{}
	}
	open.Add(1)
	done := make(chan error, 1)
	var r FetchResponse
	large.GoBuf(fetchRanges([2]int{1, 3 << 20}), &r, func(b *mem.Buf, err error) {
		if err == nil {
			if !bytes.Equal(r.Partitions[0].Data, data[1:1+3<<20]) {
				err = errors.New("wrong bytes")
			}
			b.Release()
		}
		done <- err
	})
	for range 50 {
		open.Add(1)
		checkFetch(t, small, data, [2]int{3, maxInline})
	}
	if n := l.server.Stats().SentFileBytes; n > 50*maxInline {
		t.Errorf("%d bytes of files were sent, the small answers have less", n)
	}
	for range cap(l.server.bulk.taken) {
		<-l.server.bulk.taken
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
	open.Wait()
	if n := len(l.server.bulk.taken); n != 0 {
		t.Errorf("%d places are still taken", n)
	}
}

// TestPlaces: who waits for a place gets the next one that comes free, and goes
// on without when that takes too long.
func TestPlaces(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		yields := 0
		p := &places{taken: make(chan struct{}, 2), wait: time.Second, yield: func() { yields++ }}
		f := func(want bool, after time.Duration) {
			t.Helper()
			began := time.Now()
			if got := p.enter(); got != want || time.Since(began) != after {
				t.Errorf("got a place: %v, after %v; want %v after %v", got, time.Since(began), want, after)
			}
		}
		f(true, 0)
		f(true, 0)
		f(false, time.Second)
		time.AfterFunc(time.Second/2, p.leave)
		f(true, time.Second/2)
		f(false, time.Second)
		if yields != 1 {
			t.Errorf("gave up the processor %d times, one place was left while somebody waited", yields)
		}
		p.leave()
		p.leave()
		f(true, 0)
		if yields != 1 {
			t.Error("gave up the processor, though nobody waited")
		}
	})
}

// TestYieldingReads: a client lets others have the processor after each long read,
// and only then.
func TestYieldingReads(t *testing.T) {
	f, data := randomFile(t, 4<<20)
	var open sync.WaitGroup
	c := newLoop(t, serveRanges(sysReader{f}, &open)).dial(t)
	yields := 0 // of the reading turn
	c.in.yield = func() { yields++ }
	read := func(ranges ...[2]int) int {
		open.Add(len(ranges))
		before := yields
		checkFetch(t, c, data, ranges...)
		return yields - before
	}
	if n := read([2]int{7, 3 << 20}); n == 0 {
		t.Errorf("yielded %d times in 3 MiB", n)
	}
	if n := read([2]int{7, longRead / 2}); n != 0 {
		t.Errorf("yielded %d times in half of a long read", n)
	}
	open.Wait()
}

// TestBulkLost: who keeps his place for ever, since his disk hangs, keeps nobody
// from sending.
func TestBulkLost(t *testing.T) {
	f, data := randomFile(t, 4<<20)
	var open sync.WaitGroup
	c := newLoop(t, serveRanges(sysReader{f}, &open), func(s *Server) {
		s.bulk = &places{taken: make(chan struct{}), wait: time.Microsecond} // none will come free
	}).dial(t)
	open.Add(1)
	checkFetch(t, c, data, [2]int{1, 3 << 20})
	open.Wait()
}

// TestCopiedRange sends from what is no file of the system.
func TestCopiedRange(t *testing.T) {
	data := make([]byte, 1<<20)
	rand.NewChaCha8([32]byte{2}).Read(data)
	var open sync.WaitGroup
	l := newLoop(t, serveRanges(bytes.NewReader(data), &open))
	open.Add(3)
	total := checkFetch(t, l.dial(t), data, [2]int{5, 600_000}, [2]int{0, 0}, [2]int{1000, 10})
	open.Wait()
	if s := l.server.Stats(); s.SentCopyBytes != total || s.SentFileBytes != 0 {
		t.Errorf("%+v", s)
	}
}

// brokenReader fails after some bytes, as a disk does.
type brokenReader struct{ good int64 }

var errBroken = errors.New("broken disk")

func (r brokenReader) ReadAt(p []byte, off int64) (int, error) {
	if off+int64(len(p)) > r.good {
		return 0, errBroken
	}
	return len(p), nil
}

// TestShortRange promises more bytes than there are. The connection must end
// short of the promise: whatever filled it up would pass for data.
func TestShortRange(t *testing.T) {
	f, _ := randomFile(t, 100_000)
	for _, r := range []io.ReaderAt{sysReader{f}, bytes.NewReader(make([]byte, 100_000)), brokenReader{copyBuf}} {
		var open sync.WaitGroup
		l := newLoop(t, serveRanges(r, &open))
		c := l.dial(t)
		other := l.dial(t)
		open.Add(4)
		_, err := c.DoBuf(context.Background(), fetchRanges([2]int{10, 50_000}, [2]int{99_990, 700_000}, [2]int{0, 10}), &FetchResponse{})
		if !errors.Is(err, ErrConnLost) {
			t.Errorf("%T: %v", r, err)
		}
		if _, err := other.DoBuf(context.Background(), fetchRanges([2]int{0, 0}), &FetchResponse{}); err != nil {
			t.Errorf("%T: another connection: %v", r, err)
		}
		open.Wait()
	}
}

// TestPartialSends takes a large response in small sips, so that the server
// sends it in many parts and waits between them.
func TestPartialSends(t *testing.T) {
	const size = 16 << 20 // more than the buffers of both sockets hold
	f, data := randomFile(t, size)
	var open sync.WaitGroup
	open.Add(2)
	l := newLoop(t, serveRanges(sysReader{f}, &open))
	nc, err := net.Dial("tcp", l.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	nc.Write(requestFrame(APIHello, 0, 1, &HelloRequest{}))
	if _, _, err := recvFrame(nc); err != nil {
		t.Fatal(err)
	}
	nc.Write(requestFrame(APIFetch, 0, 2, fetchRanges([2]int{0, 3 << 20}, [2]int{77, size - 77})))
	h, body, err := recvFrame(iotestSips{nc})
	if err != nil || h.correlation != 2 {
		t.Fatal(h, err)
	}
	var r FetchResponse
	if err := DecodeBody(new(Reader), &r, 0, body); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(r.Partitions[0].Data, data[:3<<20]) || !bytes.Equal(r.Partitions[1].Data, data[77:]) {
		t.Error("bytes differ")
	}
	open.Wait()
	if s := l.server.Stats(); s.SentFileBytes != 3<<20+size-77 || s.SentCopyBytes != 0 {
		t.Errorf("%+v", s)
	}
}

// iotestSips reads at most 5,000 bytes at once.
type iotestSips struct{ io.Reader }

func (r iotestSips) Read(p []byte) (int, error) { return r.Reader.Read(p[:min(len(p), 5000)]) }

// TestLowWaterMark watches the socket's low-water mark through a large
// response: up inside it, never above what is missing, and down again.
func TestLowWaterMark(t *testing.T) {
	f, data := randomFile(t, 4<<20)
	var open sync.WaitGroup
	open.Add(2)
	l := newLoop(t, serveRanges(sysReader{f}, &open))
	c := l.dial(t)
	var marks []int
	inner := c.in.onRead
	c.in.onRead = func(fd uintptr) bool {
		done := inner(fd)
		mark, err := unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVLOWAT)
		if err != nil {
			t.Error(err)
		}
		marks = append(marks, mark)
		return done
	}
	checkFetch(t, c, data, [2]int{0, 3 << 20})
	if high := max(marks[0], marks[len(marks)/2]); high != maxLowat {
		t.Errorf("marks %v: never raised to %d", marks, maxLowat)
	}
	marks = nil
	checkFetch(t, c, data, [2]int{0, 100})
	for _, m := range marks {
		if m != 1 {
			t.Errorf("marks %v in a small response", marks)
		}
	}
}

// TestAim gives the low-water mark for what is missing.
func TestAim(t *testing.T) {
	f := func(lowat, missing, want int) {
		t.Helper()
		r := frameReader{lowat: lowat}
		r.aim(missing)
		if r.wantLowat != want {
			t.Errorf("mark %d with %d bytes missing became %d, want %d", lowat, missing, r.wantLowat, want)
		}
	}

	f(1, 0, 1)
	f(1, -5, 1)
	f(1, minLowat, 1)
	f(1, minLowat+1, minLowat+1)
	f(1, 10<<20, maxLowat)
	f(maxLowat, 9<<20, maxLowat)
	f(maxLowat, maxLowat, maxLowat)
	f(maxLowat, maxLowat-1, maxLowat-1) // never above what is certain to come
	f(maxLowat, 1000, 1)
	f(100_000, 200_000, 100_000) // still right, no need to tell the socket
}

func TestStormTCP(t *testing.T) {
	both(t, func(t *testing.T, k kind) {
		l := newLoopOf(t, k, handlerFunc(scatter))
		storm(t, func() *Conn { return l.dial(t) }, 200)
		if n := left(l.client); n != 0 {
			t.Errorf("%d buffers of the client are out", n)
		}
	})
}

// left returns how many buffers of p are out for good: a reader gives its buffer
// up a moment after its last answer was read.
func left(p *mem.Pool) int64 {
	for deadline := time.Now().Add(10 * time.Second); p.Stats().Live > 0 && time.Now().Before(deadline); {
		runtime.Gosched()
	}
	return int64(p.Stats().Live)
}

// TestLargeRequests sends frames of all sizes on one connection, so that the
// reader goes through its buffer sizes, and compares what arrives.
func TestLargeRequests(t *testing.T) { both(t, testLargeRequests) }

func testLargeRequests(t *testing.T, k kind) {
	var sums sync.Map
	l := newLoopOf(t, k, handlerFunc(func(c *Call) {
		b := c.body[len(c.body)-8:]
		sums.Store(Offset(len(c.body)), [2]byte{b[0], b[7]})
		c.Reply(&ProduceResponse{})
	}))
	c := l.dial(t)
	var wg sync.WaitGroup
	for _, n := range []int{1 << 10, 4 << 10, 5000, 64 << 10, 65 << 10, 200_000, 1 << 20, 1000, 5 << 20, 15 << 20, 10, 1 << 20, 64 << 10} {
		batch := make([]byte, n)
		batch[n-8], batch[n-1] = byte(n), byte(n>>8)
		wg.Add(1)
		c.Go(&ProduceRequest{Acks: 1, Batches: []Batch{batch}}, &ProduceResponse{}, func(err error) {
			if err != nil {
				t.Errorf("request of %d bytes: %v", n, err)
			}
			wg.Done()
		})
	}
	wg.Wait()
	sums.Range(func(k, v any) bool {
		n := int(k.(Offset))
		for head := range 64 { // fields before the batch
			if s := v.([2]byte); s == [2]byte{byte(n - head), byte((n - head) >> 8)} {
				return true
			}
		}
		t.Errorf("a body of %d bytes ends in %v", n, v)
		return true
	})
}

// TestIdleSocketHoldsNothing is TestIdleHoldsNothing on real sockets.
func TestIdleSocketHoldsNothing(t *testing.T) { both(t, testIdleSocketHoldsNothing) }

func testIdleSocketHoldsNothing(t *testing.T, k kind) {
	l := newLoopOf(t, k, echo)
	for range 20 {
		c := l.dial(t)
		for range 3 {
			if err := c.Do(context.Background(), &TrimRequest{Topic: FirstUserTopic}, &TrimResponse{}); err != nil {
				t.Fatal(err)
			}
		}
	}
	if n := left(l.pool); n != 0 {
		t.Errorf("20 idle connections hold %d buffers", n)
	}
	if n := l.client.Stats().Live; n != 0 {
		t.Errorf("20 idle clients hold %d buffers", n)
	}
	if s := l.server.Stats(); s.Writers != 0 || s.Conns != 20 {
		t.Errorf("%+v", s)
	}
}

// TestResetByPeer ends connections the hard way, in the middle of a response.
func TestResetByPeer(t *testing.T) {
	f, _ := randomFile(t, 4<<20)
	var open sync.WaitGroup
	open.Add(10)
	l := newLoop(t, serveRanges(sysReader{f}, &open))
	for range 10 {
		nc, err := net.Dial("tcp", l.addr)
		if err != nil {
			t.Fatal(err)
		}
		nc.Write(requestFrame(APIHello, 0, 1, &HelloRequest{}))
		if _, _, err := recvFrame(nc); err != nil {
			t.Fatal(err)
		}
		nc.Write(requestFrame(APIFetch, 0, 2, fetchRanges([2]int{0, 4 << 20})))
		io.ReadFull(nc, make([]byte, 100_000))
		nc.(*net.TCPConn).SetLinger(0)
		nc.Close()
	}
	c := l.dial(t)
	if err := c.Do(context.Background(), &FetchRequest{}, &FetchResponse{}); err != nil {
		t.Error(err)
	}
	open.Wait()
}

func TestTransient(t *testing.T) {
	f := func(err error, want bool) {
		t.Helper()
		if transient(err) != want {
			t.Errorf("transient(%v) = %v", err, !want)
		}
	}

	f(&net.OpError{Op: "accept", Err: os.NewSyscallError("accept4", syscall.EMFILE)}, true)
	f(&net.OpError{Op: "accept", Err: os.NewSyscallError("accept4", syscall.ECONNABORTED)}, true)
	f(net.ErrClosed, false)
	f(&net.OpError{Op: "accept", Err: os.NewSyscallError("accept4", syscall.EINVAL)}, false)
}

// tcpPair returns both ends of a connection, closed when the test ends.
func tcpPair(t *testing.T) (near, far net.Conn) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	if near, err = net.Dial("tcp", ln.Addr().String()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { near.Close() })
	if far, err = ln.Accept(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { far.Close() })
	return near, far
}

func TestSocketEnded(t *testing.T) {
	near, far := tcpPair(t)
	s := newSocket(near, time.Second)
	near.SetReadDeadline(time.Unix(1, 0)) // a deadline that is over changes nothing
	f := func(want bool) {
		t.Helper()
		if s.ended() != want {
			t.Errorf("ended() = %v", !want)
		}
	}

	f(false)
	far.Write([]byte{1})
	f(false)
	far.Close()
	f(false) // a byte is left
	near.SetReadDeadline(time.Time{})
	io.ReadFull(near, make([]byte, 1))
	near.Read(make([]byte, 1)) // waits for the end to arrive
	f(true)
	near.Close()
	f(true)
}

// TestSocketUnpaced: between two ends on one machine nothing is sent by a clock,
// whatever the kernel does by default, encrypted or not.
func TestSocketUnpaced(t *testing.T) {
	allowed, err := os.ReadFile("/proc/sys/net/ipv4/tcp_allowed_congestion_control")
	if err != nil {
		t.Skip(err)
	}
	f := func(c net.Conn, before string, wrap func(net.Conn) *socket) {
		t.Helper()
		raw := systemSocket(c)
		raw.Control(func(fd uintptr) {
			err = unix.SetsockoptString(int(fd), unix.IPPROTO_TCP, unix.TCP_CONGESTION, before)
		})
		if err != nil {
			t.Fatal(err)
		}
		wrap(c)
		var got string
		raw.Control(func(fd uintptr) {
			got, err = unix.GetsockoptString(int(fd), unix.IPPROTO_TCP, unix.TCP_CONGESTION)
		})
		if got = strings.TrimRight(got, "\x00"); err != nil || got != "reno" {
			t.Errorf("%s became %q, %v", before, got, err)
		}
	}
	plain := func(c net.Conn) *socket { return newSocket(c, time.Second) }
	below := func(c net.Conn) *socket { return newTLSConn(c, tls.Client, &tls.Config{}, nil, time.Second, nil).below }
	for _, before := range strings.Fields(string(allowed)) {
		near, far := tcpPair(t)
		f(near, before, plain)
		f(far, before, below)
	}
}
