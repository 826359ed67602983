package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/teralog/teralog/broker"
	"github.com/teralog/teralog/client"
)

// inProcess is a Start whose broker lives in this process, on real files. It
// has no metrics to show.
func inProcess(t *testing.T) Start {
	return func(dir, listen string, _ ...string) (*Broker, error) {
		c := broker.DefaultConfig()
		c.DataDirs, c.Reserve = []string{filepath.Join(dir, "data")}, 0
		env, err := broker.NewEnv(slog.New(slog.DiscardHandler))
		if err != nil {
			return nil, err
		}
		ln, err := net.Listen("tcp", listen)
		if err != nil {
			return nil, err
		}
		b, err := broker.New(c, env)
		if err != nil {
			return nil, err
		}
		ctx, cancel := context.WithCancel(context.Background())
		ended := make(chan error, 1)
		go func() { ended <- b.Run(ctx, ln) }()
		stop := sync.OnceValue(func() error {
			cancel()
			return <-ended
		})
		t.Cleanup(func() { stop() })
		return &Broker{Addr: ln.Addr().String(), PID: os.Getpid(), Stop: stop}, nil
	}
}

// bench runs a workload to its end and returns the result it printed.
func bench(t *testing.T, args ...string) (r Result) {
	t.Helper()
	dir := t.TempDir()
	args = append(args, "--dir", dir, "-o", "json", "-q")
	var out bytes.Buffer
	if err := Run(t.Context(), args, inProcess(t), nil, &out, io.Discard); err != nil {
		t.Fatalf("%v: %v", args, err)
	}
	if err := json.Unmarshal(out.Bytes(), &r); err != nil {
		t.Fatalf("%v: %v\n%s", args, err, out.Bytes())
	}
	if left, _ := os.ReadDir(dir); len(left) > 0 {
		t.Fatalf("%v left %v", args, left)
	}
	if r.Errors != 0 || r.FirstError != nil || r.Interrupted || r.Seconds <= 0 || len(r.Intervals) == 0 || r.ClientCores <= 0 {
		t.Fatalf("%v: %+v", args, r)
	}
	return r
}

// TestKeep leaves the broker's files where it says.
func TestKeep(t *testing.T) {
	dir := t.TempDir()
	var notes bytes.Buffer
	args := []string{"produce", "--warm-up", "0s", "--records", "20", "--size", "100", "--keep", "--dir", dir, "-q"}
	if err := Run(t.Context(), args, inProcess(t), nil, io.Discard, &notes); err != nil {
		t.Fatal(err)
	}
	left, err := os.ReadDir(dir)
	if err != nil || len(left) != 1 || !strings.HasSuffix(strings.TrimSpace(notes.String()), filepath.Join(dir, left[0].Name())) {
		t.Fatalf("%v, %v, %q", left, err, notes.String())
	}
}

func TestProduce(t *testing.T) {
	f := func(timed uint64, args ...string) Result {
		t.Helper()
		r := bench(t, append([]string{"produce", "--warm-up", "0s", "--records", "20k", "--size", "100"}, args...)...)
		if r.Records != 20_000 || r.Latency == nil || r.Latency.Samples != timed {
			t.Fatalf("%v: %d records, %+v", args, r.Records, r.Latency)
		}
		intervals := int64(0)
		for _, i := range r.Intervals {
			intervals += i.Records
		}
		if intervals != r.Records {
			t.Fatalf("the intervals have %d records, the whole %d", intervals, r.Records)
		}
		return r
	}
	l := load{size: 100, batch: 64 << 10}
	every := uint64(l.timedEvery())
	f((20_000 + every - 1) / every)
	f(20_000, "--rate", "100k/s", "--partitions", "3", "--keys", "1k", "--acks", "1", "--producers", "2")
	f(20_000, "--one", "--rate", "1M", "--flush", "interval", "--partitions", "2")
	r := f((20_000+every-1)/every, "--tails", "2", "--codec", "zstd", "--batch", "64KiB", "-c", "segment.bytes=1MiB")
	if r.TailRecords != 40_000 || r.TailMissing != 0 {
		t.Fatalf("the tails read %d, missing %d", r.TailRecords, r.TailMissing)
	}
	if r.Bytes != 20_000*100 || r.Asked.Codec != "zstd" || r.BrokerCores == nil {
		t.Fatalf("%+v", r)
	}
	r = bench(t, "produce", "--duration", "100ms", "--warm-up", "10ms", "--acks", "0", "--keys", "3", "--size", "0")
	if r.Bytes != r.Records*keyLen || r.Records == 0 {
		t.Fatalf("%d bytes of %d records", r.Bytes, r.Records)
	}
}

func TestConsume(t *testing.T) {
	// Two consumers read 1000 records over and over; each Poll returns whole
	// batches, so they stop past the limit.
	r := bench(t, "consume", "--warm-up", "0s", "--backlog", "100kB", "--size", "100", "--partitions", "2", "--consumers", "2", "--records", "50k")
	if r.Records < 50_000 || r.Bytes != r.Records*100 || r.Latency != nil {
		t.Fatalf("%d records, %d bytes", r.Records, r.Bytes)
	}
}

// TestShortRead has a reader find fewer records than there should be.
func TestShortRead(t *testing.T) {
	b, err := inProcess(t)(t.TempDir(), "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l := newLoad("consume")
	l.server, l.backlog, l.size = b.Addr, 1000, 10
	tg, err := l.open(nil)
	if err != nil {
		t.Fatal(err)
	}
	defer tg.close()
	if err := tg.prepare(t.Context(), l); err != nil {
		t.Fatal(err)
	}
	n, err := tg.fill(t.Context(), l, NewDisplay(io.Discard, true))
	if err != nil || n != 100 {
		t.Fatal(n, err)
	}
	f := func(held int64, want string) {
		t.Helper()
		rs, err := openReaders(t.Context(), tg, l, client.Range{To: client.End()})
		if err != nil {
			t.Fatal(err)
		}
		defer closeReaders(rs)
		rs[0].held = held
		err = readAll(t.Context(), rs, newMeter(), span{records: 1000})
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Fatalf("holding %d: %v, want %q", held, err, want)
		}
	}
	f(100, "")
	f(101, "100 records were read to the end")
}

func TestEndToEnd(t *testing.T) {
	f := func(samples uint64, args ...string) {
		t.Helper()
		r := bench(t, append([]string{"e2e", "--warm-up", "0s", "--records", "300"}, args...)...)
		if r.Latency == nil || r.Latency.Samples != samples || r.Records != int64(samples) || r.AckLatency == nil || r.AckLatency.Samples != 300 {
			t.Fatalf("%v: %d records, %+v, %+v", args, r.Records, r.Latency, r.AckLatency)
		}
	}
	f(300)
	f(600, "--consumers", "2", "--partitions", "3", "--size", "16")
	f(300, "--rate", "10k/s", "--producers", "3", "--keys", "10")
}

func TestIdle(t *testing.T) {
	r := bench(t, "idle", "--connections", "50", "--duration", "1ms")
	if r.Idle == nil || r.Idle.Connections != 50 || r.Idle.OpenedInSecond <= 0 || r.Latency == nil || r.Latency.Samples != 50 {
		t.Fatalf("%+v %+v", r.Idle, r.Latency)
	}
}

func TestBacklog(t *testing.T) {
	r := bench(t, "backlog", "--backlog", "2MB", "--size", "1000", "--partitions", "3", "--duration", "50ms", "--warm-up", "0s")
	b := r.Backlog
	if b == nil || b.Records != 2000 || b.Bytes != 2_000_000 || !b.Cold || b.Undisturbed == nil || b.TailBytes < 2_000_000 || b.TailInCache == nil {
		t.Fatalf("%+v", b)
	}
	if r.AskedRate == nil || *r.AskedRate < 1 {
		t.Fatal("no rate was derived from full speed")
	}
}

// TestFiles writes what was asked for beside the result.
func TestFiles(t *testing.T) {
	dir := t.TempDir()
	csv, page, profile := filepath.Join(dir, "r.csv"), filepath.Join(dir, "r.html"), filepath.Join(dir, "r.prof")
	bench(t, "produce", "--records", "1k", "--warm-up", "0s", "--csv", csv, "--html", page, "--cpu-profile", profile)
	f := func(name, begin string) {
		t.Helper()
		b, err := os.ReadFile(name)
		if err != nil || !strings.HasPrefix(string(b), begin) {
			t.Fatalf("%s begins %.40q: %v", name, b, err)
		}
	}
	f(csv, "at_seconds,")
	f(page, "<!")
	f(profile, "\x1f\x8b")
}

// TestExisting loads a topic that is there already.
func TestExisting(t *testing.T) {
	b, err := inProcess(t)(t.TempDir(), "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	f := func(want string, args ...string) string {
		t.Helper()
		var out bytes.Buffer
		args = append(args, "--server", b.Addr, "-q")
		err := Run(t.Context(), args, nil, nil, &out, io.Discard)
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Fatalf("%v: %v, want %q", args, err, want)
		}
		return out.String()
	}
	produce := []string{"produce", "--warm-up", "0s", "--records", "1000", "--size", "10"}
	f("", append(produce, "--partitions", "2")...)
	f("", append(produce, "--partitions", "2", "--flush", "async")...)
	if text := f("", produce...); !strings.Contains(text, "2 partitions") || !strings.Contains(text, "flush=async") {
		t.Fatal(text)
	}
	f("has 2 partitions, not 1", append(produce, "--partitions", "1")...)
	f("has flush=async, not sync", append(produce, "--flush", "sync")...)
	f("has segment.bytes=1GiB, not 512MiB", append(produce, "-c", "segment.bytes=512MiB")...)
	for range 2 {
		f("", append(produce, "--topic", "other", "-c", "flush=sync", "-c", "segment.bytes=536870912", "-c", "segment.age=60m")...)
	}
	text := f("", "consume", "--warm-up", "0s", "--records", "3000", "--backlog", "1GB")
	if !strings.Contains(text, "3,000 in") {
		t.Fatalf("the 3000 records there are were not read:\n%s", text)
	}
	f("without --broker-pid", "idle")
}

// A canceler ends a run at the first line it shows.
type canceler struct {
	cancel context.CancelFunc
	strings.Builder
}

func (c *canceler) Write(b []byte) (int, error) {
	c.cancel()
	return c.Builder.Write(b)
}

// TestInterrupt is Ctrl-C: what was measured is printed, and nothing is left.
func TestInterrupt(t *testing.T) {
	f := func(args ...string) {
		t.Helper()
		ctx, cancel := context.WithCancel(t.Context())
		notes, out, dir := &canceler{cancel: cancel}, &bytes.Buffer{}, t.TempDir()
		err := Run(ctx, append(args, "--warm-up", "0s", "--dir", dir, "--duration", "1h"), inProcess(t), nil, out, notes)
		var coded interface{ ExitCode() int }
		if !errors.As(err, &coded) || coded.ExitCode() != 130 || err.Error() != "" {
			t.Fatalf("%v: %v", args, err)
		}
		if !strings.Contains(out.String(), "records/s") || !strings.Contains(notes.String(), "records/s") {
			t.Fatalf("%v printed\n%s\n%s", args, out, notes)
		}
		if left, _ := os.ReadDir(dir); len(left) > 0 {
			t.Fatalf("%v left %v", args, left)
		}
	}
	f("produce", "--size", "100", "--tails", "1")
	f("e2e", "--rate", "100/s")
}

func TestBadCommands(t *testing.T) {
	f := func(want string, args ...string) {
		t.Helper()
		never := func(string, string, ...string) (*Broker, error) { return nil, errors.New("a broker was started") }
		err := Run(t.Context(), args, never, nil, io.Discard, io.Discard)
		var coded interface{ ExitCode() int }
		if err == nil || !strings.Contains(err.Error(), want) || !errors.As(err, &coded) || coded.ExitCode() != 2 {
			t.Fatalf("%v: %v, want %q and exit code 2", args, err, want)
		}
		if strings.Contains(err.Error(), "\n") {
			t.Fatalf("%v: more than a line: %v", args, err)
		}
	}
	f("")
	f(`did you mean "produce"?`, "prodcue")
	f("see teralog bench --help", "xyzzy")
	f("did you mean --size?", "produce", "--sise", "1KiB")
	f("--help lists the flags", "produce", "--xyzzy")
	f(`unexpected argument "t"`, "produce", "t")
	f(`did you mean "async"?`, "produce", "--flush", "asinc")
	f("one of 0, 1, all", "produce", "--acks", "2")
	f(`write it like 250k/s`, "produce", "--rate", "100MB/s")
	f(`write it like 5000, 250k or 1.5M`, "produce", "--records", "many")
	f("is not a size", "produce", "--size", "1 kilo")
	f("is not a duration", "produce", "--duration", "10")
	f("key=value", "produce", "-c", "flush")
	f("--partitions -1: it is 0 to 100000", "produce", "--partitions", "-1")
	f("--in-flight 6: it is 1 to 5", "produce", "--in-flight", "6")
	f("--batch 100: it is 1024 to", "produce", "--batch", "100")
	f("whole milliseconds", "produce", "--linger", "100us")
	f("less than one record a second for each of 4", "produce", "--rate", "3", "--producers", "4")
	f("less than one for each of 4", "produce", "--records", "3", "--producers", "4")
	f("has no room for a record", "produce", "--window", "100")
	f("must be more than 0", "produce", "--duration", "0s")
	f("go with --server", "produce", "--broker-pid", "1")
	f("without --server", "produce", "--server", "127.0.0.1:1", "--dir", "/")
	f("without --server", "produce", "--server", "127.0.0.1:1", "--keep")
	f("nobody reads", "consume", "--consumers", "0")
	f("nobody waits", "e2e", "--consumers", "0")
	f("in 16 bytes", "e2e", "--size", "15")
	f("could not be told", "e2e", "--acks", "0")
	f("--producers is 1", "e2e", "--producers", "2")
	f("a process may have", "idle", "--connections", "2G")
}

// TestUnreachable says where nobody listens, and does not wait for long.
func TestUnreachable(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := ln.Addr().String()
	ln.Close()
	err = Run(t.Context(), []string{"produce", "--server", addr}, nil, nil, io.Discard, io.Discard)
	if err == nil || !strings.Contains(err.Error(), addr) {
		t.Fatal(err)
	}
}

func TestHelp(t *testing.T) {
	for _, w := range workloads {
		if w.summary == "" {
			continue
		}
		var out bytes.Buffer
		if err := Run(t.Context(), []string{w.name, "--help"}, nil, nil, &out, io.Discard); err != nil {
			t.Fatalf("%s: %v", w.name, err)
		}
		if text := out.String(); !strings.HasPrefix(text, "Usage: teralog bench "+w.name) || !strings.Contains(text, "Flags:") {
			t.Fatalf("%s --help:\n%s", w.name, text)
		}
	}
}

func TestParseCount(t *testing.T) {
	f := func(s string, want int64) {
		t.Helper()
		got, err := parseCount(s)
		if err == nil != (want >= 0) || err == nil && got != want {
			t.Fatalf("%q is %d, %v; want %d", s, got, err, want)
		}
		if err != nil {
			return
		}
		if back, err := parseCount(formatCount(got)); err != nil || back != got {
			t.Fatalf("%q is written %q, which is %d, %v", s, formatCount(got), back, err)
		}
	}
	f("0", 0)
	f("5000", 5000)
	f("1_000_000", 1e6)
	f("250k", 250_000)
	f("1.5M", 1_500_000)
	f("0.5k", 500)
	f("1G", 1e9)
	f("1000G", 1e12)
	f("1001G", -1)
	f("1.5", -1)
	f("", -1)
	f("k", -1)
	f("-1", -1)
	f("1e3", -1)
	f("0x10", -1)
	f("NaN", -1)
}

func TestTimedEvery(t *testing.T) {
	f := func(l load, want int64) {
		t.Helper()
		if got := l.timedEvery(); got != want {
			t.Fatalf("%+v: one in %d is timed, want %d", l, got, want)
		}
	}
	f(load{size: 99, batch: 64 << 10}, 163)
	f(load{size: 99, batch: 1 << 20}, 163)
	f(load{size: 99, batch: 1 << 10}, 3)
	f(load{size: 16 << 10, batch: 64 << 10}, 1)
	f(load{size: 1, batch: 64 << 10, rate: 100_000, producers: 1}, 1)
	f(load{size: 1, batch: 64 << 10, rate: 1_000_000, producers: 1}, 11)
	f(load{size: 1, batch: 64 << 10, rate: 1_000_000, producers: 5}, 3)
	f(load{size: 1, batch: 64 << 10, one: true}, 1)
}

func TestWindow(t *testing.T) {
	f := func(l load, want int64) {
		t.Helper()
		if got := l.window(); got != want {
			t.Fatalf("%+v: window %d, want %d", l, got, want)
		}
	}
	f(load{buffer: 7, size: 1, batch: 1024}, 7)
	f(load{size: 1016, batch: 1024}, 8*1048)
	f(load{size: 10_000, batch: 1024}, 8*10_032) // a record of its own in each batch
	f(load{size: 1008, batch: 1024, keys: 1, partitions: 3}, 8*1048)
	f(load{size: 1008, batch: 1024, keys: 1, partitions: 30}, 60*1048)
	f(load{size: 1008, batch: 64 << 10, keys: 1, partitions: 10_000}, 64<<20)
}

func TestKeyTable(t *testing.T) {
	l := load{keys: 10_000}
	seen := map[string]bool{}
	for _, k := range l.keyTable() {
		if len(k) != keyLen || seen[string(k)] {
			t.Fatalf("key %q", k)
		}
		seen[string(k)] = true
	}
	if len(seen) != 10_000 {
		t.Fatal(len(seen))
	}
}

// TestResident counts the pages of the end of a file.
func TestResident(t *testing.T) {
	page := int64(os.Getpagesize())
	name := filepath.Join(t.TempDir(), "f")
	if err := os.WriteFile(name, make([]byte, 10*page+1), 0o644); err != nil {
		t.Fatal(err)
	}
	f := func(n, pages int64) {
		t.Helper()
		got, resident, err := residentTail(name, n)
		if err != nil || got != pages || resident < 0 || resident > got {
			t.Fatalf("%d of %d pages of the last %d bytes are resident: %v", resident, got, n, err)
		}
	}
	f(1, 1)
	f(2, 2) // a byte of the last page and one of the page before
	f(100*page, 11)
	g := func(but, kept int64) {
		t.Helper()
		if got, err := forgetFile(name, but); err != nil || got != kept {
			t.Fatalf("all but %d bytes forgotten: %d kept, %v", but, got, err)
		}
	}
	g(100*page, 10*page+1)
	g(3*page, 3*page)
	g(0, 0)
	f(0, 0)
	if _, _, err := residentTail(filepath.Join(t.TempDir(), "none"), 1); err == nil {
		t.Fatal("residency of no file")
	}
}

func TestProcess(t *testing.T) {
	before, err := cpuTime(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	for after := before; after == before; {
		if after, err = cpuTime(os.Getpid()); err != nil {
			t.Fatal(err)
		}
	}
	all, anonymous, err := residentBytes(os.Getpid())
	if err != nil || anonymous <= 0 || all < anonymous {
		t.Fatalf("%d bytes resident, %d anonymous: %v", all, anonymous, err)
	}
	if _, err := cpuTime(1 << 22); err == nil { // above what the kernel gives out
		t.Fatal("CPU time of no process")
	}
}

func TestDialerFor(t *testing.T) {
	f := func(addr string, i int, want string) {
		t.Helper()
		got := "<nil>"
		if d := dialerFor(addr, i).(*net.Dialer); d.LocalAddr != nil {
			got = d.LocalAddr.String()
		}
		if got != want {
			t.Fatalf("connection %d to %s from %s, want %s", i, addr, got, want)
		}
	}
	f("127.0.0.1:1", portsEach-1, "<nil>")
	f("127.0.0.1:1", portsEach, "127.0.0.2:0")
	f("127.0.0.1:1", 2*portsEach, "127.0.0.3:0")
	f("10.1.2.3:1", portsEach, "<nil>")
	f("broker.example:1", portsEach, "<nil>")
}

func TestDisplay(t *testing.T) {
	var b strings.Builder
	d := &Display{w: &b, live: true}
	d.Bar("x", 0.5)
	d.Say("line")
	d.Clear()
	if want := "\r\x1b[K[####################....................]  50 % x\r\x1b[Kline\n\r\x1b[K"; b.String() != want {
		t.Fatalf("%q", b.String())
	}
	b.Reset()
	d = NewDisplay(&b, false)
	d.Bar("x", 1)
	d.Say("%d", 1)
	d.Clear()
	if b.String() != "1\n" {
		t.Fatalf("%q", b.String())
	}
	i := Interval{At: 3, Seconds: 2, Records: 2000, Bytes: 4e6, BrokerCPU: 0.5, ClientCPU: 1, P50: 10, P99: 2000, Max: 3e6}
	if want := "   3.0 s        1,000 records/s      2.0 MB/s   P50     10 µs  P99   2.00 ms  max    3.00 s   client 1.00 cores  broker 0.50"; i.String() != want {
		t.Fatalf("%q", i.String())
	}
	if done := (span{duration: time.Second}).done(time.Second/2, 7); fmt.Sprint(done, span{records: 10}.done(0, 20)) != "0.5 1" {
		t.Fatal(done)
	}
}

// TestFollow reads what somebody else writes, and only that.
func TestFollow(t *testing.T) {
	b, err := inProcess(t)(t.TempDir(), "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	c, err := client.New(client.Options{Servers: []string{b.Addr}})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.CreateTopic(t.Context(), client.TopicSpec{Name: "bench", Partitions: 1}); err != nil {
		t.Fatal(err)
	}
	p, err := c.NewProducer(client.ProducerOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	before := make([]byte, 1000) // would count ten times as much
	if _, err := p.Produce(t.Context(), client.Record{Topic: "bench", Value: before}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var writing sync.WaitGroup
	writing.Go(func() {
		for ctx.Err() == nil {
			p.Produce(ctx, client.Record{Topic: "bench", Value: make([]byte, 100)})
		}
	})
	var out bytes.Buffer
	err = Run(t.Context(), []string{"consume", "--server", b.Addr, "--follow", "--warm-up", "0s", "--consumers", "3", "--records", "300", "-o", "json", "-q"}, nil, nil, &out, io.Discard)
	cancel()
	writing.Wait()
	if err != nil {
		t.Fatal(err)
	}
	var r Result
	if err := json.Unmarshal(out.Bytes(), &r); err != nil {
		t.Fatal(err)
	}
	if r.Records < 300 || r.Bytes != r.Records*100 {
		t.Errorf("%d records, %d bytes", r.Records, r.Bytes)
	}
}
