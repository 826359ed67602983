package bench

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestMain lets this test's binary be what `teralog bench` is to the command:
// the program whose children the probes are, and the workloads of a suite.
func TestMain(m *testing.M) {
	switch {
	case len(os.Args) > 2 && os.Args[1] == "bench":
		if err := Run(context.Background(), os.Args[2:], startInside, os.Stdin, os.Stdout, os.Stderr); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	case len(os.Args) == 2 && os.Args[1] == "parent":
		parentOfProbe()
	}
	os.Exit(m.Run())
}

// parentOfProbe starts a server, says where it listens, and waits to be killed.
func parentOfProbe() {
	c, err := begin(context.Background(), task{Side: "ping server", Batch: 1})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	var addr string
	c.out.Decode(&addr)
	fmt.Println(addr)
	io.Copy(io.Discard, os.Stdin)
}

// TestChildEndsWithParent kills the parent of a probe, which must then end too:
// its connection does.
func TestChildEndsWithParent(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	parent := exec.CommandContext(t.Context(), self, "parent")
	if _, err := parent.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := parent.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := parent.Start(); err != nil {
		t.Fatal(err)
	}
	addr, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	c, err := net.Dial("tcp", strings.TrimSpace(addr))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	var one [1]byte
	if _, err := c.Write(one[:]); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(c, one[:]); err != nil {
		t.Fatalf("the probe does not answer: %v", err)
	}
	if err := parent.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	parent.Wait()
	c.SetReadDeadline(time.Now().Add(time.Minute)) // so that a failure ends
	if _, err := c.Read(one[:]); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("the probe outlives its parent: %v", err)
	}
}

func TestSpreadOf(t *testing.T) {
	f := func(values []float64, want Spread) {
		t.Helper()
		given := fmt.Sprint(values)
		if got := spreadOf(values); got != want || fmt.Sprint(values) != given {
			t.Fatalf("spreadOf(%s) = %v, want %v; values are now %v", given, got, want, values)
		}
	}

	f(nil, Spread{})
	f([]float64{7}, Spread{7, 7, 7})
	f([]float64{9, 1}, Spread{5, 1, 9})
	f([]float64{3, 1, 2}, Spread{2, 1, 3})
	f([]float64{4, 3, 1, 20}, Spread{3.5, 1, 20})
}

// TestRoundOf divides by bytes and by the server's clock.
func TestRoundOf(t *testing.T) {
	s := measure{Bytes: 2e9, Seconds: 4, CPU: 1, P50: 1, P99: 2}
	c := measure{Bytes: 1e9, Seconds: 5, CPU: 3, P50: 10, P99: 20}
	want := Round{MBPerSecond: 500, ServerCPU: 0.5, ClientCPU: 3, P50: 10, P99: 20}
	if got := roundOf(s, c); got != want {
		t.Fatalf("roundOf = %+v, want %+v", got, want)
	}
	if got := roundOf(measure{}, measure{}); got != (Round{}) {
		t.Fatalf("roundOf nothing = %+v", got)
	}
}

func TestBuildBatch(t *testing.T) {
	f := func(room, value, records int) {
		t.Helper()
		b := buildBatch(make([]byte, room), sampleValue(value))
		var c checker
		n, need, err := c.whole(b)
		if n != len(b) || need != 0 || err != nil || c.batches != 1 {
			t.Fatalf("room %d, values of %d: %d of %d bytes are whole, need %d: %v", room, value, n, len(b), need, err)
		}
		if got, err := walk(b); got != records || err != nil {
			t.Fatalf("room %d, values of %d: %d records (%v), want %d", room, value, got, err, records)
		}
	}

	f(200, 100, 1)
	f(8+2*(5+1+100)+3, 100, 1) // one byte short of the second's length
	f(8+2*(2+4+1+2+100), 100, 2)
	f(64<<10, 100, 596) // 64 of 109 bytes and 532 of 110
	f(1<<20, 1<<10, 1014)
}

// someBatches returns n batches back to back.
func someBatches(n int) []byte {
	var all []byte
	for i := range n {
		all = append(all, buildBatch(make([]byte, 3000+i), sampleValue(50+i))...)
	}
	return all
}

// TestChecker cuts a stream of batches at random: the same are found whole.
func TestChecker(t *testing.T) {
	all := someBatches(20)
	var once checker
	if n, _, err := once.whole(all); n != len(all) || err != nil {
		t.Fatalf("%d of %d bytes: %v", n, len(all), err)
	}
	r := rand.New(rand.NewPCG(1, 2))
	for round := range 200 {
		var c checker
		from, to := 0, 0
		for to < len(all) {
			to = min(len(all), to+1+r.IntN(5000))
			n, need, err := c.whole(all[from:to])
			if err != nil {
				t.Fatalf("round %d: %v", round, err)
			}
			from += n
			if need > 0 && need <= to-from {
				t.Fatalf("round %d: %d bytes are there, batch of %d not seen", round, to-from, need)
			}
		}
		if from != len(all) || c.batches != 20 || c.sum != once.sum {
			t.Fatalf("round %d: %d bytes, %d batches, sum %x, want %x", round, from, c.batches, c.sum, once.sum)
		}
	}
}

// TestCheckerDamage flips each bit of a batch in turn.
func TestCheckerDamage(t *testing.T) {
	b := buildBatch(make([]byte, 300), sampleValue(100))
	for bit := range len(b) * 8 {
		b[bit/8] ^= 1 << (bit % 8)
		var c checker
		// A length may become greater than what is there; the end of the stream
		// tells then.
		if n, need, err := c.whole(b); !errors.Is(err, errBatch) && (n > 0 || need <= len(b)) {
			t.Fatalf("bit %d: %d bytes whole, need %d: %v", bit, n, need, err)
		}
		b[bit/8] ^= 1 << (bit % 8)
	}
	if _, err := walk(b[:len(b)-1]); !errors.Is(err, errBatch) {
		t.Fatalf("a batch cut short is walked through: %v", err)
	}
}

// sockets returns the two ends of a connection.
func sockets(t *testing.T) (a, b *sock) {
	t.Helper()
	addr := make(chan string, 1)
	taken := make(chan *sock, 1)
	go func() {
		socks, err := listen(1, func(at string) { addr <- at })
		if err != nil {
			t.Error(err)
			close(taken)
			return
		}
		taken <- socks[0]
	}()
	socks, err := dial(1, <-addr)
	if err != nil {
		t.Fatal(err)
	}
	a, b = socks[0], <-taken
	t.Cleanup(func() { a.conn.Close(); b.conn.Close() })
	return a, b
}

// TestSockUnpaced: a limit is not sent by a clock, as the kernel may do by default.
func TestSockUnpaced(t *testing.T) {
	a, b := sockets(t)
	for _, s := range []*sock{a, b} {
		var got string
		var err error
		s.raw.Control(func(fd uintptr) {
			got, err = unix.GetsockoptString(int(fd), unix.IPPROTO_TCP, unix.TCP_CONGESTION)
		})
		if got = strings.TrimRight(got, "\x00"); err != nil || got != "reno" {
			t.Errorf("sent by %q, %v", got, err)
		}
	}
}

// TestReceiveBatches sends streams to the produce server's reader.
func TestReceiveBatches(t *testing.T) {
	f := func(stream []byte, batch int, wantErr error) (kept []byte) {
		t.Helper()
		a, b := sockets(t)
		go func() {
			a.write(stream, false)
			a.conn.CloseWrite()
		}()
		var c checker
		err := receiveBatches(b, &c, batch, func(whole []byte) error {
			kept = append(kept, whole...)
			return nil
		})
		if !errors.Is(err, wantErr) || wantErr == nil && err != nil {
			t.Fatalf("%d bytes: %v, want %v", len(stream), err, wantErr)
		}
		return kept
	}

	small, large := someBatches(300), bytes.Repeat(buildBatch(make([]byte, 1<<20), sampleValue(1000)), 5)
	if got := f(small, 3300, nil); !bytes.Equal(got, small) {
		t.Fatalf("small batches: %d bytes kept of %d, or others", len(got), len(small))
	}
	if got := f(large, 1<<20, nil); !bytes.Equal(got, large) {
		t.Fatalf("large batches: %d bytes kept of %d, or others", len(got), len(large))
	}
	if got := f(large, 100, nil); !bytes.Equal(got, large) {
		t.Fatalf("larger batches than expected: %d bytes kept of %d, or others", len(got), len(large))
	}
	f(small[:len(small)-1], 3300, io.ErrUnexpectedEOF)
	f([]byte{0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0}, 3300, errBatch)
	damaged := bytes.Clone(small)
	damaged[len(damaged)/2] ^= 1
	if got := f(damaged, 3300, errBatch); len(got) > len(small)/2 || !bytes.HasPrefix(small, got) {
		t.Fatalf("%d bytes kept although the batch at %d is damaged", len(got), len(small)/2)
	}
}

// TestSink keeps what connections append apart, and a ring within its length.
func TestSink(t *testing.T) {
	f := func(ring int64, want string) {
		t.Helper()
		file, err := tempFile(t.TempDir())
		if err != nil {
			t.Fatal(err)
		}
		defer file.Close()
		k := sink{f: file, ring: ring}
		for _, s := range []string{"abc", "def", "gh"} {
			if err := k.append([]byte(s)); err != nil {
				t.Fatal(err)
			}
		}
		got := make([]byte, 100)
		n, _ := file.ReadAt(got, 0)
		if string(got[:n]) != want {
			t.Fatalf("ring %d: %q, want %q", ring, got[:n], want)
		}
	}

	f(0, "abcdefgh")
	f(6, "ghcdef")
}

// TestProbePairs moves some megabytes through each pair: both sides must have
// seen the same batches (pair compares), as many as were asked for.
func TestProbePairs(t *testing.T) {
	const moved = 8 << 20
	f := func(server, client string, o task, want int64) {
		t.Helper()
		dir := t.TempDir()
		o.Dir, o.Bytes = dir, moved
		a, b := o, o
		a.Side, b.Side = server, client
		s, c, err := pair(t.Context(), a, b)
		if err != nil {
			t.Fatal(err)
		}
		if s.Batches == 0 || s.Bytes == 0 || c.Bytes == 0 || s.CPU <= 0 || s.Seconds <= 0 || c.CPU <= 0 {
			t.Fatalf("%s, %+v: server %+v, client %+v", server, o, s, c)
		}
		// A producer sends a whole chunk where one batch would be enough.
		more := int64(0)
		if client == "produce client" {
			more = int64(o.Conns * max(0, sendChunk/o.Batch-1))
		}
		if s.Batches < want || s.Batches > want+more {
			t.Fatalf("%s, %+v: %d batches, want %d, at most %d more", server, o, s.Batches, want, more)
		}
		if files, err := os.ReadDir(dir); err != nil || len(files) > 0 {
			t.Fatalf("%s left %v, %v", server, files, err)
		}
	}
	all := int64(moved + moved/8)
	batches := func(size, record, conns int) int64 { // the least number that makes up the bytes, on each connection
		n := int64(len(buildBatch(make([]byte, size), sampleValue(record))))
		return (all/int64(conns) + n - 1) / n * int64(conns)
	}

	f("stream server", "stream client", task{Batch: 16 << 10, Conns: 1}, all)
	f("stream server", "stream client", task{Batch: 1 << 20, Lowat: 256 << 10, Conns: 2}, all)
	f("produce server", "produce client", task{Batch: 16 << 10, Window: 16, Conns: 1}, batches(16<<10, 100, 1))
	f("produce server", "produce client", task{Batch: 64 << 10, Record: 1000, Window: 8, Conns: 3}, batches(64<<10, 1000, 3))
	f("produce server", "produce client", task{Batch: 1 << 20, Record: 100, Window: 3, Conns: 1, Recycled: true}, batches(1<<20, 100, 1))
	f("produce server, synced", "produce client", task{Batch: 64 << 10, Record: 100, Window: 4, Conns: 2}, batches(64<<10, 100, 2))

	portion := func(fetch int) (length, count int64) {
		n := len(buildBatch(make([]byte, min(fetch, backlogBatch)), sampleValue(100)))
		return int64(fetch / n * n), int64(fetch / n)
	}
	answers := func(fetch, readers int) (bytes, batches int64) {
		length, count := portion(fetch)
		each := (all/int64(readers)+length-1)/length + requestsInFlight - 1
		return each * length * int64(readers), each * count * int64(readers)
	}
	for _, server := range []string{"consume server", "consume server, copying"} {
		for _, fetch := range []int{16 << 10, 1 << 20} {
			b, n := answers(fetch, 1)
			f(server, "consume client", task{Batch: fetch, Record: 100, Conns: 1}, n)
			f(server, "consume client", task{Batch: fetch, Record: 100, Conns: 1, Unchecked: true}, b)
		}
		_, n := answers(64<<10, 3)
		f(server, "consume client", task{Batch: 64 << 10, Record: 100, Conns: 3}, n)
	}
	f("ping server", "ping client", task{Batch: 100, Count: 50}, pingWarmUp+50)
}

// TestConsumerSeesDamage answers a probe's client with a damaged batch.
func TestConsumerSeesDamage(t *testing.T) {
	f := func(answer []byte, wantErr error) {
		t.Helper()
		a, b := sockets(t)
		sent := bytes.Clone(answer)
		go func() {
			b.write(sent, false)
			b.conn.CloseWrite()
		}()
		c := consuming{s: a, g: &gauge{}, fetch: 1 << 20, buf: make([]byte, answerChunk)}
		n, err := c.readAnswer()
		if !errors.Is(err, wantErr) || wantErr == nil && (err != nil || n != len(answer)-consumeHeader) {
			t.Fatalf("answer of %d bytes: %d, %v; want %v", len(answer), n, err, wantErr)
		}
	}

	b := someBatches(100)
	head := make([]byte, consumeHeader)
	head[0], head[1], head[2] = byte(len(b)), byte(len(b)>>8), byte(len(b)>>16)
	answer := append(head, b...)
	f(answer, nil)
	f(answer[:len(answer)-1], io.EOF)
	answer[len(answer)-10] ^= 1
	f(answer, errBatch)
}

// TestPairFails tells whose fault it was, and ends both.
func TestPairFails(t *testing.T) {
	f := func(server, client task, want string) {
		t.Helper()
		_, _, err := pair(t.Context(), server, client)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Fatalf("%s, %s: %v, want %q in it", server.Side, client.Side, err, want)
		}
	}

	nowhere := filepath.Join(t.TempDir(), "nowhere")
	f(task{Side: "produce server", Dir: nowhere, Conns: 1}, task{Side: "produce client", Conns: 1}, nowhere)
	f(task{Side: "ping server", Batch: 1}, task{Side: "no client"}, "no client")
	f(task{Side: "produce server", Dir: t.TempDir(), Batch: 1000, Conns: 1, Bytes: 1000},
		task{Side: "stream client", Batch: 1000, Conns: 1, Bytes: 1000}, errBatch.Error()) // zeros are no batch
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, _, err := pair(ctx, task{Side: "ping server", Batch: 1}, task{Side: "ping client", Batch: 1}); !errors.Is(err, context.Canceled) {
		t.Fatalf("cancelled: %v", err)
	}
}

// TestAlone runs the probes of one side.
func TestAlone(t *testing.T) {
	f := func(o task, wantBytes int64) {
		t.Helper()
		dir := t.TempDir()
		o.Dir = dir
		m, err := alone(t.Context(), o)
		if err != nil || m.Bytes != wantBytes || m.Seconds <= 0 {
			t.Fatalf("%+v: %+v, %v; want %d bytes", o, m, err, wantBytes)
		}
		if files, err := os.ReadDir(dir); err != nil || len(files) > 0 {
			t.Fatalf("%s left %v, %v", o.Side, files, err)
		}
	}

	f(task{Side: "warm", Bytes: 3<<20 + 5}, 3<<20+5)
	f(task{Side: "sync", Batch: 4096, Count: 7}, 7*4096)
	f(task{Side: "paced", Bytes: 33<<20 + 7}, 33<<20+7)
	f(task{Side: "reread", Bytes: 17<<20 + 3}, 17<<20+3)
	f(task{Side: "crc", Batch: 2 * crcPiece, Bytes: 5 * crcPiece}, 5*crcPiece)
	f(task{Side: "hand-off", Count: 100}, 0)
	f(task{Side: "pauses", Count: 2000}, 0)
}

// TestLongestPause: what counts is the clock's greatest step, also the one that ends it.
func TestLongestPause(t *testing.T) {
	f := func(want time.Duration, steps ...time.Duration) {
		t.Helper()
		now, n := time.Unix(0, 0), -1
		clock := func() time.Time {
			if n++; n > 0 {
				now = now.Add(steps[n-1])
			}
			return now
		}
		if got := longestPause(clock, time.Second); got != want || n != len(steps) {
			t.Errorf("steps %v: %v after %d of them, want %v", steps, got, n, want)
		}
	}
	f(time.Second, time.Second)
	f(3*time.Second, time.Millisecond, 3*time.Second)
	f(700*time.Millisecond, 200*time.Millisecond, 700*time.Millisecond, 50*time.Millisecond, 50*time.Millisecond)
}

// TestReadBack notices what is not what was written.
func TestReadBack(t *testing.T) {
	const length = 17<<20 + 3
	file, err := tempFile(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if _, err := fillFile(file, length); err != nil {
		t.Fatal(err)
	}
	if got, err := readBack(file, length); got != crcOfPattern(length) || err != nil {
		t.Fatalf("read back %08x, want %08x: %v", got, crcOfPattern(length), err)
	}
	if _, err := file.WriteAt([]byte{1}, length-1); err != nil {
		t.Fatal(err)
	}
	if got, err := readBack(file, length); got == crcOfPattern(length) || err != nil {
		t.Fatalf("a changed byte is not seen: %v", err)
	}
	if _, err := readBack(file, length+1); !errors.Is(err, io.EOF) {
		t.Fatalf("a file too short is not seen: %v", err)
	}
}

func TestLowWater(t *testing.T) {
	f := func(now, want, mark int) {
		t.Helper()
		if got := lowWater(now, want); got != mark {
			t.Fatalf("lowWater(%d, %d) = %d, want %d", now, want, got, mark)
		}
	}

	f(1, 0, 1)
	f(1, 64<<10, 1)
	f(1, 100<<10, 100<<10)
	f(1, 8<<20, 1<<20)
	f(512<<10, 4<<20, 512<<10)   // stays
	f(512<<10, 100<<10, 100<<10) // never above what is sure to come
	f(512<<10, 10, 1)
}

// TestProbeRefuses wants a task that it knows.
func TestProbeRefuses(t *testing.T) {
	f := func(args ...string) {
		t.Helper()
		var out bytes.Buffer
		err := benchProbe(t.Context(), args, nil, nil, &out, io.Discard)
		if coded := (usage{}); !errors.As(err, &coded) || out.Len() > 0 {
			t.Fatalf("%q: %v, %q", args, err, &out)
		}
	}

	f()
	f("{")
	f(`{"side":"none"}`)
	f("{}", "{}")
}

// TestLimits runs every limit once with a little of its work, and looks at the
// report.
func TestLimits(t *testing.T) {
	dir := t.TempDir()
	seen := map[string]bool{}
	var report limitsReport
	for _, c := range limits() {
		r, err := c.measure(t.Context(), dir, 0.005)
		if err != nil {
			t.Fatalf("%s, %s: %v", c.group, c.name, err)
		}
		for _, row := range c.rows([]Round{r, r}) {
			if row.Median <= 0 || row.Median != row.Min || len(row.Rounds) != 2 {
				t.Fatalf("%s, %s: %+v of %+v", c.group, row.Name, row, r)
			}
			if seen[c.group+row.Name] {
				t.Fatalf("%s, %s is there twice", c.group, row.Name)
			}
			seen[c.group+row.Name] = true
			report.Limits = append(report.Limits, row)
		}
	}
	if files, err := os.ReadDir(dir); err != nil || len(files) > 0 {
		t.Fatalf("left are %v, %v", files, err)
	}
	var b bytes.Buffer
	if err := report.table(&b); err != nil || strings.Count(b.String(), "\n") < len(seen) {
		t.Fatalf("%v\n%s", err, &b)
	}
}

func TestLimitsCommand(t *testing.T) {
	f := func(args ...string) (string, error) {
		t.Helper()
		var out bytes.Buffer
		err := benchLimits(t.Context(), args, nil, nil, &out, io.Discard)
		return out.String(), err
	}

	out, err := f("--only", "HAND-off", "--quick", "-o", "json", "--dir", t.TempDir())
	var r limitsReport
	if err != nil || json.Unmarshal([]byte(out), &r) != nil || len(r.Limits) != 1 || r.Rounds != 1 || !r.Quick || r.Limits[0].Median <= 0 || r.Machine.Kernel == "" {
		t.Fatalf("%v\n%s", err, out)
	}
	if out, err := f("--help"); err != nil || !strings.Contains(out, "teralog bench limits --only") {
		t.Fatalf("--help: %v, %s", err, out)
	}
	bad := func(args ...string) {
		t.Helper()
		if out, err := f(args...); !errors.As(err, new(usage)) || out != "" {
			t.Fatalf("%q: %v, %s", args, err, out)
		}
	}
	bad("--only", "nothing of that name")
	bad("--only", "(")
	bad("--rounds", "0")
	bad("-o", "csv")
	bad("more")
	if _, err := f("--dir", filepath.Join(t.TempDir(), "nowhere")); err == nil {
		t.Fatal("a directory that is not there is taken")
	}
}

func TestMachine(t *testing.T) {
	m := machineOf(t.TempDir())
	if m.Cores < 1 || m.MemoryBytes < 1<<20 || !strings.HasPrefix(m.Kernel, "Linux ") || !strings.HasPrefix(m.Go, "go") || m.FileSystem == "unknown" {
		t.Fatalf("%+v", m)
	}
	if got := fileSystem("/proc/self"); got != "proc on proc" {
		t.Fatalf("/proc/self is on %q", got)
	}
}
