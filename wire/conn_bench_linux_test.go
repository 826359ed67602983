package wire

import (
	"context"
	"io"
	"net"
	"os"
	"sync"
	"testing"

	"github.com/teralog/teralog/mem"
)

// lean answers without allocating, so that what is counted is the transport's.
type lean struct{ trims, produces sync.Pool }

func newLean() *lean {
	return &lean{
		trims:    sync.Pool{New: func() any { return new(trimCall) }},
		produces: sync.Pool{New: func() any { return &produceCall{resp: ProduceResponse{Results: make([]ProduceResult, 1)}} }},
	}
}

type trimCall struct {
	req  TrimRequest
	resp TrimResponse
}

type produceCall struct {
	req  ProduceRequest
	resp ProduceResponse
}

func (h *lean) ServeCall(c *Call) {
	switch c.API {
	case APITrim:
		t := h.trims.Get().(*trimCall)
		if err := c.Decode(&t.req); err != nil {
			c.ReplyError(err)
			return
		}
		t.resp.Start = t.req.Before
		c.Reply(&t.resp)
		h.trims.Put(t)
	case APIProduce:
		p := h.produces.Get().(*produceCall)
		if err := c.Decode(&p.req); err != nil {
			c.ReplyError(err)
			return
		}
		if p.req.Acks == 0 {
			c.NoReply()
		} else {
			c.Reply(&p.resp)
		}
		h.produces.Put(p)
	}
}

// BenchmarkPing is one small request after another on one connection.
func BenchmarkPing(b *testing.B) {
	c := newLoop(b, newLean()).dial(b)
	req, resp := &TrimRequest{Topic: FirstUserTopic}, &TrimResponse{}
	b.ReportAllocs()
	for b.Loop() {
		if err := c.Do(context.Background(), req, resp); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkPingPipelined keeps 16 small requests in flight.
func BenchmarkPingPipelined(b *testing.B) {
	c := newLoop(b, newLean()).dial(b)
	benchmarkPipeline(b, c, 16, &TrimRequest{Topic: FirstUserTopic}, func() Message { return &TrimResponse{} })
}

// BenchmarkProduce sends batches, eight in flight, which the server drops.
func BenchmarkProduce(b *testing.B) {
	for _, size := range []struct {
		name  string
		bytes int
	}{{"16KiB", 16 << 10}, {"64KiB", 64 << 10}, {"1MiB", 1 << 20}} {
		b.Run(size.name, func(b *testing.B) {
			c := newLoop(b, newLean()).dial(b)
			b.SetBytes(int64(size.bytes))
			req := &ProduceRequest{Acks: 1, Batches: []Batch{testBatch(size.bytes)}}
			benchmarkPipeline(b, c, 8, req, func() Message { return &ProduceResponse{} })
		})
	}
}

// testBatch returns n bytes that pass for a batch where only lengths matter.
func testBatch(n int) Batch {
	return make(Batch, n)
}

func benchmarkPipeline(b *testing.B, c *Conn, depth int, req Message, resp func() Message) {
	free := make(chan Message, depth)
	done := make([]func(error), depth)
	for i := range depth {
		r := resp()
		free <- r
		done[i] = func(err error) {
			if err != nil {
				b.Error(err)
			}
			free <- r
		}
	}
	b.ReportAllocs()
	i := 0
	for b.Loop() {
		c.Go(req, <-free, done[i%depth])
		i++
	}
	for range depth {
		<-free
	}
}

// BenchmarkFetch asks for ranges of a file in the page cache, one after another.
func BenchmarkFetch(b *testing.B) {
	for _, size := range []struct {
		name  string
		bytes int
	}{{"1KiB", 1 << 10}, {"64KiB", 64 << 10}, {"1MiB", 1 << 20}} {
		b.Run(size.name, func(b *testing.B) {
			f, _ := randomFile(b, size.bytes)
			c := newLoop(b, newFetchOne(newFixedFd(f), size.bytes)).dial(b)
			req, resp := fetchRanges([2]int{0, size.bytes}), &FetchResponse{}
			b.SetBytes(int64(size.bytes))
			b.ReportAllocs()
			for b.Loop() {
				buf, err := c.DoBuf(context.Background(), req, resp)
				if err != nil {
					b.Fatal(err)
				}
				buf.Release()
			}
		})
	}
}

// fetchOne answers every fetch with the same range.
type fetchOne struct {
	ranges []FileRange
	resp   FetchResponse
}

func newFetchOne(r io.ReaderAt, n int) *fetchOne {
	return &fetchOne{
		ranges: []FileRange{{R: r, Len: int64(n)}},
		resp:   FetchResponse{Partitions: []FetchResult{{Bytes: uint32(n)}}},
	}
}

func (h *fetchOne) ServeCall(c *Call) { c.ReplyFiles(&h.resp, h.ranges) }

// fixedFd is a file whose descriptor was asked for once.
type fixedFd struct {
	sysReader
	fd uintptr
}

func newFixedFd(f *os.File) *fixedFd { return &fixedFd{sysReader{f}, sysReader{f}.SysFd()} }

func (f *fixedFd) SysFd() uintptr { return f.fd }

// rawPing is a client that allocates nothing: what is counted is the server's.
type rawPing struct {
	nc       net.Conn
	request  []byte
	response []byte
}

func newRawPing(t testing.TB, addr string, request []byte, answer int) *rawPing {
	nc, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { nc.Close() })
	nc.Write(requestFrame(APIHello, 0, 1, &HelloRequest{}))
	if _, _, err := recvFrame(nc); err != nil {
		t.Fatal(err)
	}
	return &rawPing{nc: nc, request: request, response: make([]byte, answer)}
}

func (p *rawPing) ping(t testing.TB) {
	if _, err := p.nc.Write(p.request); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(p.nc, p.response); err != nil {
		t.Fatal(err)
	}
}

// TestServerAllocs pins what a request costs the warm server: nothing, be it
// small, a batch of 64 KiB, or a fetch sent by sendfile.
func TestServerAllocs(t *testing.T) {
	if mem.Checked {
		t.Skip("checked builds use no call and no buffer twice")
	}
	file, _ := randomFile(t, 64<<10)
	fetch := newFetchOne(newFixedFd(file), 64<<10)
	produced := &ProduceResponse{Results: make([]ProduceResult, 1)}
	f := func(name string, h Handler, request []byte, answer int) {
		t.Helper()
		p := newRawPing(t, newLoop(t, h).addr, request, answer)
		for range 50 {
			p.ping(t)
		}
		if n := testing.AllocsPerRun(300, func() { p.ping(t) }); n > 0 && !raceEnabled {
			t.Errorf("%s: %v allocations a request", name, n)
		}
	}

	f("ping", newLean(), trimFrame(1, 2), len((&TrimResponse{}).AppendTo(make([]byte, responseLen), 0)))
	f("produce", newLean(), requestFrame(APIProduce, 0, 1, &ProduceRequest{Acks: 1, Batches: []Batch{testBatch(64 << 10)}}),
		len(produced.AppendTo(make([]byte, responseLen), 0)))
	f("fetch", fetch, requestFrame(APIFetch, 0, 1, fetchRanges([2]int{0, 1})),
		len(fetch.resp.AppendTo(make([]byte, responseLen), 0))+64<<10)
}

// TestConnAllocs pins what a lone Do costs a warm client and server together.
func TestConnAllocs(t *testing.T) {
	if mem.Checked || raceEnabled {
		t.Skip("checked and race builds allocate for their own ends")
	}
	c := newLoop(t, newLean()).dial(t)
	req, resp := &TrimRequest{Topic: FirstUserTopic}, &TrimResponse{}
	do := func() {
		if err := c.Do(context.Background(), req, resp); err != nil {
			t.Fatal(err)
		}
	}
	for range 50 {
		do()
	}
	if n := testing.AllocsPerRun(300, do); n > 0 {
		t.Errorf("%v allocations a call", n)
	}
}
