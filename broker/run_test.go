package broker

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/teralog/teralog/coord"
	"github.com/teralog/teralog/mem"
	"github.com/teralog/teralog/repl"
	"github.com/teralog/teralog/storage"
	"github.com/teralog/teralog/wire"
)

// A live is a broker that runs.
type live struct {
	t     testing.TB
	b     *Broker
	ended chan error
	stop  func() error // once
}

// run starts a broker with its data in dir, or some, parted by commas, on fs.
func run(t testing.TB, fs storage.FS, dir string, ln net.Listener) *live {
	t.Helper()
	env, err := NewEnv(slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	env.FS = fs
	c := DefaultConfig()
	c.DataDirs, c.Reserve = strings.Split(dir, ","), 0
	b, err := New(c, env)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- b.Run(ctx, ln) }()
	return &live{t, b, ended, func() error { cancel(); return <-ended }}
}

// bubble runs f in a synctest bubble with a broker on a disk and a network in
// memory, and stops the broker if f did not.
func bubble(t *testing.T, f func(t *testing.T, l *live, fs *storage.MemFS, network *wire.MemNet)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		fs, network := storage.NewMemFS(1), wire.NewMemNet()
		ln, err := network.Listen("broker:1")
		if err != nil {
			t.Fatal(err)
		}
		l := run(t, fs, "data", ln)
		stopped := false
		stop := l.stop
		l.stop = func() error { stopped = true; return stop() }
		f(t, l, fs, network)
		if !stopped {
			if err := l.stop(); err != nil {
				t.Fatal(err)
			}
		}
	})
}

func dial(t testing.TB, d wire.Dialer, addr string) *wire.Conn {
	t.Helper()
	c, err := wire.Dial(context.Background(), d, addr, wire.DialOptions{Client: "test"})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func do(t testing.TB, c *wire.Conn, req, resp wire.Message) {
	t.Helper()
	if err := c.Do(context.Background(), req, resp); err != nil {
		t.Fatalf("%v: %v", req.API(), err)
	}
}

func createOn(t testing.TB, c *wire.Conn, name string, partitions int32, settings ...wire.Setting) wire.TopicID {
	t.Helper()
	var resp wire.CreateTopicResponse
	do(t, c, &wire.CreateTopicRequest{Name: name, Partitions: partitions, Settings: settings}, &resp)
	return resp.ID
}

func sendOn(t testing.TB, c *wire.Conn, batches ...wire.Batch) []wire.ProduceResult {
	t.Helper()
	var resp wire.ProduceResponse
	do(t, c, &wire.ProduceRequest{Acks: wire.AcksAll, Batches: batches}, &resp)
	return resp.Results
}

// goOn sends a request; what comes of it is awaited elsewhere.
func goOn(c *wire.Conn, req, resp wire.Message) <-chan error {
	done := make(chan error, 1)
	c.Go(req, resp, func(err error) { done <- err })
	return done
}

// TestParkedFetch checks that a fetch that waits delays nothing behind it on
// its connection, is answered when its time is up, and not before.
func TestParkedFetch(t *testing.T) {
	bubble(t, func(t *testing.T, l *live, _ *storage.MemFS, network *wire.MemNet) {
		c := dial(t, network, "broker:1")
		defer c.Close()
		id := createOn(t, c, "t", 1)
		began := time.Now()
		var all []<-chan error
		for i := range 50 {
			req := fetchOf(id, 0, 0)
			req.MaxWaitMillis, req.MinBytes = uint32(1000+i), 1<<20
			all = append(all, goOn(c, req, new(wire.FetchResponse)))
		}
		for range 10 {
			sendOn(t, c, batchOf(t, wire.BuilderOptions{Topic: id}, "v"))
			do(t, c, &wire.MetadataRequest{All: true}, new(wire.MetadataResponse))
		}
		if waited := time.Since(began); waited != 0 {
			t.Fatalf("what came behind the fetches waited %v", waited)
		}
		for i, done := range all {
			if err := <-done; err != nil {
				t.Fatal(err)
			}
			if waited, want := time.Since(began), time.Duration(1000+i)*time.Millisecond; waited < want || waited > want+5*time.Millisecond {
				t.Fatalf("fetch %d was answered after %v, want %v", i, waited, want)
			}
		}
	})
}

// TestStop checks that a stop answers what waits, that what it acknowledged is
// there, and that the next start is a clean one.
func TestStop(t *testing.T) {
	bubble(t, func(t *testing.T, l *live, fs *storage.MemFS, network *wire.MemNet) {
		c := dial(t, network, "broker:1")
		defer c.Close()
		id := createOn(t, c, "t", 1, wire.Setting{Key: "flush", Value: "sync"})
		var parked, written []<-chan error
		var fetched []*wire.FetchResponse
		for range 10 {
			req := fetchOf(id, 0, 0)
			req.MaxWaitMillis, req.MinBytes = 60_000, 1<<20
			fetched = append(fetched, new(wire.FetchResponse))
			parked = append(parked, goOn(c, req, fetched[len(fetched)-1]))
		}
		fs.BeforeOp(func(op storage.Op) error { // the disk takes a second for each fsync
			if op.Kind == storage.OpSync && strings.HasSuffix(op.Name, ".log") {
				time.Sleep(time.Second)
			}
			return nil
		})
		var answers []*wire.ProduceResponse
		for i := range 10 {
			answers = append(answers, new(wire.ProduceResponse))
			written = append(written, goOn(c, &wire.ProduceRequest{Acks: wire.AcksAll, Batches: []wire.Batch{
				batchOf(t, wire.BuilderOptions{Topic: id}, fmt.Sprint(i))}}, answers[i]))
		}
		do(t, c, &wire.MetadataRequest{}, new(wire.MetadataResponse)) // so all before it have arrived
		began := time.Now()
		if err := l.stop(); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(began); took > 10*time.Second {
			t.Fatalf("the stop took %v", took)
		}
		for i, done := range written {
			if err := <-done; err != nil || answers[i].Results[0].Code != wire.CodeOK {
				t.Fatalf("write %d: %v, %+v", i, err, answers[i].Results)
			}
		}
		for i, done := range parked {
			if err := <-done; err != nil || fetched[i].Partitions[0].Code != wire.CodeOK {
				t.Fatalf("fetch %d: %v, %+v", i, err, fetched[i].Partitions)
			}
		}

		fs.BeforeOp(nil)
		ln, err := network.Listen("broker:1")
		if err != nil {
			t.Fatal(err)
		}
		again := run(t, fs, "data", ln)
		if s := again.b.dirs[0].Start(); !s.Clean {
			t.Fatalf("the next start: %+v", s)
		}
		if lines := again.b.Recovery(); len(lines) != 1 || !strings.Contains(lines[0], "clean stop") {
			t.Fatalf("a clean start has to say %q", lines)
		}
		d := dial(t, network, "broker:1")
		defer d.Close()
		if n := sendOn(t, d, batchOf(t, wire.BuilderOptions{Topic: id}, "more"))[0].Base; n != 10 {
			t.Fatalf("the next offset is %d", n)
		}
		if err := again.stop(); err != nil {
			t.Fatal(err)
		}
	})
}

// TestManyPartitions makes and deletes a topic whose partitions are worked on
// several at a time, and one of which some cannot be made.
func TestManyPartitions(t *testing.T) {
	bubble(t, func(t *testing.T, l *live, fs *storage.MemFS, network *wire.MemNet) {
		c := dial(t, network, "broker:1")
		defer c.Close()
		const n = 300
		for range 2 {
			id := createOn(t, c, "t", n)
			var batches []wire.Batch
			for p := range int32(n) {
				batches = append(batches, batchOf(t, wire.BuilderOptions{Topic: id, Partition: p}, "v"))
			}
			for _, res := range sendOn(t, c, batches...) {
				if res.Code != wire.CodeOK || res.Base != 0 {
					t.Fatalf("%+v", res)
				}
			}
			do(t, c, &wire.DeleteTopicRequest{ID: id}, &wire.DeleteTopicResponse{})
			if left := l.b.Set().Partitions(); len(left) != 0 {
				t.Fatalf("%d partitions are left", len(left))
			}
		}
		fs.BeforeOp(func(op storage.Op) error {
			if op.Kind == storage.OpOpen && strings.Contains(op.Name, "7/0") { // the log of each tenth
				return syscall.EIO
			}
			return nil
		})
		err := c.Do(context.Background(), &wire.CreateTopicRequest{Name: "u", Partitions: n}, new(wire.CreateTopicResponse))
		if wire.CodeOf(err) != wire.CodeOffline || !strings.Contains(err.Error(), "30 of 300") || len(err.Error()) > 500 {
			t.Fatalf("created with each tenth partition failing: %v", err)
		}
		if made := l.b.Set().Partitions(); len(made) != n-n/10 {
			t.Fatalf("%d partitions were made", len(made))
		}
		fs.BeforeOp(nil)
	})
}

// TestMetadataHangs has the fsync of the metadata log not come back, with nothing
// else to be flushed: the broker ends by itself, or its stop does, and says that
// it must not be restarted blindly.
func TestMetadataHangs(t *testing.T) {
	f := func(hangs string, stop bool) {
		t.Helper()
		synctest.Test(t, func(t *testing.T) {
			fs, network := storage.NewMemFS(1), wire.NewMemNet()
			ln, err := network.Listen("broker:1")
			if err != nil {
				t.Fatal(err)
			}
			l := run(t, fs, "data", ln)
			c := dial(t, network, "broker:1")
			defer c.Close()
			createOn(t, c, "t", 1)
			open := make(chan struct{})
			defer close(open)
			fs.BeforeOp(func(op storage.Op) error {
				if (op.Kind == storage.OpSync || op.Kind == storage.OpSyncDir) && strings.Contains(op.Name, hangs) {
					<-open
				}
				return nil
			})
			began := time.Now()
			created := goOn(c, &wire.CreateTopicRequest{Name: "u", Partitions: 1}, new(wire.CreateTopicResponse))
			if stop {
				synctest.Wait() // it hangs
				err = l.stop()
			} else {
				err = <-l.ended
			}
			var exit interface{ ExitCode() int }
			if !errors.Is(err, repl.ErrHangs) || !errors.As(err, &exit) || exit.ExitCode() != exitIO {
				t.Errorf("hangs at %s: the broker ended with %v", hangs, err)
			}
			if took := time.Since(began); took > l.b.config.FlushLost+2*l.b.config.DrainTimeout {
				t.Errorf("hangs at %s: it took %v", hangs, took)
			}
			if <-created == nil {
				t.Errorf("hangs at %s: the topic was created", hangs)
			}
		})
	}

	f("metadata/", false)
	f("metadata/", true)
	f("topics/u", false) // of the same disk
	f("topics/u", true)
	f("", false) // nor is the note of it written
	f("", true)
}

// TestOtherDiskHangs has a directory without the metadata hang while a topic is
// made in it, and while one is deleted: both are answered, and topics are made
// and deleted elsewhere.
func TestOtherDiskHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fs, network := storage.NewMemFS(1), wire.NewMemNet()
		ln, err := network.Listen("broker:1")
		if err != nil {
			t.Fatal(err)
		}
		l := run(t, fs, "data,other", ln)
		c := dial(t, network, "broker:1")
		defer c.Close()
		old := createOn(t, c, "old", 4)
		open := make(chan struct{})
		defer close(open)
		fs.BeforeOp(func(op storage.Op) error {
			if op.Kind == storage.OpSyncDir && strings.Contains(op.Name, "other/") {
				<-open
			}
			return nil
		})
		began := time.Now()
		deleted := goOn(c, &wire.DeleteTopicRequest{ID: old}, new(wire.DeleteTopicResponse))
		made := goOn(c, &wire.CreateTopicRequest{Name: "new", Partitions: 4}, new(wire.CreateTopicResponse))
		if err := <-deleted; wire.CodeOf(err) != wire.CodeOffline {
			t.Errorf("delete: %v", err)
		}
		if err := <-made; wire.CodeOf(err) != wire.CodeOffline {
			t.Errorf("create: %v", err)
		}
		if took := time.Since(began); took > l.b.config.FlushLost+5*time.Second {
			t.Errorf("it took %v", took)
		}
		id := createOn(t, c, "elsewhere", 4)
		for p := range int32(4) {
			if res := sendOn(t, c, batchOf(t, wire.BuilderOptions{Topic: id, Partition: p}, "v"))[0]; res.Code != wire.CodeOK {
				t.Errorf("produce: %+v", res)
			}
		}
		do(t, c, &wire.DeleteTopicRequest{ID: id}, new(wire.DeleteTopicResponse))
		if err := l.stop(); err == nil || errors.Is(err, coord.ErrFailed) {
			t.Errorf("the stop: %v", err)
		}
	})
}

// TestDrain checks that a stop does not wait for ever for a disk that hangs.
func TestDrain(t *testing.T) {
	bubble(t, func(t *testing.T, l *live, fs *storage.MemFS, network *wire.MemNet) {
		c := dial(t, network, "broker:1")
		defer c.Close()
		id := createOn(t, c, "t", 1, wire.Setting{Key: "flush", Value: "sync"})
		hang := make(chan struct{})
		fs.BeforeOp(func(op storage.Op) error {
			if op.Kind == storage.OpSync && strings.Contains(op.Name, "topics") {
				<-hang
			}
			return nil
		})
		var resp wire.ProduceResponse
		done := goOn(c, &wire.ProduceRequest{Acks: wire.AcksAll, Batches: []wire.Batch{batchOf(t, wire.BuilderOptions{Topic: id}, "v")}}, &resp)
		synctest.Wait()
		began := time.Now()
		err := l.stop()
		if took := time.Since(began); err == nil || took > 2*time.Minute {
			t.Fatalf("stopped after %v with %v", took, err)
		}
		if err := <-done; err == nil && resp.Results[0].Code.Definite() {
			t.Fatalf("the write in doubt is answered %+v", resp.Results[0])
		}
		fs.BeforeOp(nil)
		close(hang)
	})
}

// TestCrowd lets producers, readers, and people who create and delete topics
// at each other, with large and small requests; it is for the race detector and
// the checked build. Whatever was acknowledged is there, once and in order.
func TestCrowd(t *testing.T) {
	bubble(t, func(t *testing.T, l *live, fs *storage.MemFS, network *wire.MemNet) {
		const parts, producers, rounds = 4, 6, 60
		admin := dial(t, network, "broker:1")
		defer admin.Close()
		id := createOn(t, admin, "t", parts, wire.Setting{Key: "segment.bytes", Value: "64KiB"}, wire.Setting{Key: "max.batch.bytes", Value: "32KiB"})
		var other atomic.Uint64
		other.Store(uint64(createOn(t, admin, "other", 2)))

		var mu sync.Mutex
		acked := map[int32]map[wire.Offset]string{}
		for p := range int32(parts) {
			acked[p] = map[wire.Offset]string{}
		}
		var working, reading sync.WaitGroup
		for n := range producers {
			working.Go(func() {
				r := rand.New(rand.NewPCG(1, uint64(n)))
				c := dial(t, network, "broker:1")
				defer c.Close()
				for i := range rounds {
					var batches []wire.Batch
					for k := range 1 + r.IntN(8) {
						o := wire.BuilderOptions{Topic: id, Partition: r.Int32N(parts), Codec: []wire.Codec{wire.None, wire.Snappy}[k%2]}
						if r.IntN(10) == 0 {
							o.Topic = 5 // nobody's
						}
						batches = append(batches, batchOf(t, o, fmt.Sprintf("%d/%d/%d%s", n, i, k, strings.Repeat(".", r.IntN(20_000)))))
					}
					var resp wire.ProduceResponse
					if i%10 == 9 {
						<-goOn(c, &wire.ProduceRequest{Batches: batches[:0:0], Acks: 1}, new(wire.ProduceResponse)) // INVALID_REQUEST
					}
					do(t, c, &wire.ProduceRequest{Acks: wire.AcksLeader, Batches: batches}, &resp)
					mu.Lock()
					for k, res := range resp.Results {
						b := batches[k]
						switch {
						case b.Topic() != id && res.Code != wire.CodeTopicRecreated, b.Topic() == id && res.Code != wire.CodeOK && res.Code != wire.CodeBusy:
							t.Errorf("batch for %d: %v %s", b.Topic(), res.Code, res.Message)
						case res.Code == wire.CodeOK:
							acked[b.Partition()][res.Base] = fmt.Sprintf("%d/%d/%d", n, i, k)
						}
					}
					mu.Unlock()
					time.Sleep(time.Duration(r.IntN(5)) * time.Millisecond)
				}
			})
		}
		ctx, cancel := context.WithCancel(context.Background())
		for n := range 4 {
			reading.Go(func() {
				r := rand.New(rand.NewPCG(2, uint64(n)))
				c := dial(t, network, "broker:1")
				defer c.Close()
				at := [parts]wire.Offset{}
				for ctx.Err() == nil {
					req := &wire.FetchRequest{Replica: wire.NoNode, MaxWaitMillis: uint32(r.IntN(50)), MinBytes: uint32(r.IntN(100_000)), MaxBytes: uint32(r.IntN(200_000)), Plain: n%2 == 1}
					for p := range int32(parts) {
						req.Partitions = append(req.Partitions, position(id, p, at[p]))
					}
					if r.IntN(5) == 0 {
						req.Partitions = append(req.Partitions, position(wire.TopicID(other.Load()), 0, 0))
					}
					var resp wire.FetchResponse
					buf, err := c.DoBuf(context.Background(), req, &resp)
					if err != nil {
						if wire.CodeOf(err) != wire.CodeBusy {
							t.Errorf("fetch: %v", err)
							return
						}
						continue
					}
					for p := range parts {
						res := resp.Partitions[p]
						if res.Code != wire.CodeOK {
							t.Errorf("partition %d: %v", p, res.Code)
						}
						next := at[p]
						for b, err := range wire.Batches(res.Data) {
							if err != nil || b.Verify() != nil || b.BaseOffset() != next {
								t.Errorf("partition %d: a batch at %d instead of %d, %v", p, b.BaseOffset(), next, err)
								break
							}
							next = b.NextOffset()
						}
						if next != res.Next {
							t.Errorf("partition %d: the data ends at %d, next is %d", p, next, res.Next)
						}
						at[p] = res.Next
					}
					buf.Release()
				}
			})
		}
		working.Go(func() {
			for i := range 20 {
				resp := new(wire.FetchResponse)
				old := wire.TopicID(other.Load())
				req := fetchOf(old, 1, 0)
				req.MaxWaitMillis = 1000
				parked := goOn(admin, req, resp)
				time.Sleep(3 * time.Millisecond)
				do(t, admin, &wire.DeleteTopicRequest{ID: old}, new(wire.DeleteTopicResponse))
				if err := <-parked; err != nil || resp.Partitions[0].Code != wire.CodeTopicRecreated {
					t.Errorf("round %d: the reader of a deleted topic hears %v, %+v", i, err, resp.Partitions)
				}
				other.Store(uint64(createOn(t, admin, "other", 2)))
			}
		})
		working.Wait()
		cancel()
		reading.Wait()
		if used := l.b.server.Budget.Used(); used != 0 {
			t.Fatalf("%d bytes are still charged", used)
		}
		for p := range int32(parts) {
			at := wire.Offset(0)
			for n := 0; ; n++ {
				var resp wire.FetchResponse
				buf, err := admin.DoBuf(context.Background(), fetchOf(id, p, at), &resp)
				if err != nil {
					t.Fatal(err)
				}
				res := resp.Partitions[0]
				for _, v := range valuesOf(t, res.Data) {
					if want := acked[p][at]; strings.TrimRight(v, ".") != want {
						t.Fatalf("partition %d, offset %d: %.20q, acknowledged was %q", p, at, v, want)
					}
					at++
				}
				buf.Release()
				if res.Bytes == 0 {
					break
				}
			}
			if int(at) != len(acked[p]) {
				t.Fatalf("partition %d holds %d records, %d were acknowledged", p, at, len(acked[p]))
			}
		}
	})
}

// loopback runs a broker on real files and a real socket.
func loopback(t testing.TB) (*live, *wire.Conn) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l := run(t, storage.OS(), t.TempDir(), ln)
	c := dial(t, new(net.Dialer), ln.Addr().String())
	t.Cleanup(func() {
		c.Close()
		if err := l.stop(); err != nil {
			t.Error(err)
		}
	})
	return l, c
}

// TestSendfile checks by the server's counters that every byte of warm records
// left the broker by sendfile, over several segments, and was never copied.
func TestSendfile(t *testing.T) {
	l, c := loopback(t)
	id := createOn(t, c, "t", 3, wire.Setting{Key: "segment.bytes", Value: "1MiB"})
	r := rand.New(rand.NewPCG(3, 3))
	stored := int64(0)
	for i := range 60 {
		value := make([]byte, 1+r.IntN(200_000))
		for i := 0; i+8 <= len(value); i += 8 {
			binary.LittleEndian.PutUint64(value[i:], r.Uint64())
		}
		b := batchOf(t, wire.BuilderOptions{Topic: id, Partition: int32(i % 3)}, string(value))
		stored += int64(len(b))
		if res := sendOn(t, c, b)[0]; res.Code != wire.CodeOK {
			t.Fatalf("%+v", res)
		}
	}
	before := l.b.Stats()
	got := int64(0)
	at := [3]wire.Offset{}
	for got < stored {
		req := &wire.FetchRequest{Replica: wire.NoNode, MinBytes: 1, MaxBytes: 3 << 20}
		for p := range int32(3) {
			req.Partitions = append(req.Partitions, position(id, p, at[p]))
		}
		var resp wire.FetchResponse
		buf, err := c.DoBuf(context.Background(), req, &resp)
		if err != nil {
			t.Fatal(err)
		}
		for p := range 3 {
			for b, err := range wire.Batches(resp.Partitions[p].Data) {
				if err = errors.Join(err, b.Verify()); err != nil {
					t.Fatal(err)
				}
			}
			got += int64(resp.Partitions[p].Bytes)
			at[p] = resp.Partitions[p].Next
		}
		buf.Release()
	}
	do(t, c, &wire.MetadataRequest{}, new(wire.MetadataResponse)) // its answer follows the last range, which is counted then
	after := l.b.Stats()
	if sent := after.SentFileBytes - before.SentFileBytes; got != stored || sent != stored || after.SentCopyBytes != 0 {
		t.Fatalf("%d bytes are stored, %d were read, %d of them by sendfile; %d were copied", stored, got, sent, after.SentCopyBytes)
	}
}

// TestColdDamage flips a byte of a sealed segment, drops it from memory and
// fetches: the broker reads what is not in memory before it sends it, so the
// damage is told and never sent, the rest comes.
func TestColdDamage(t *testing.T) {
	dir := t.TempDir()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l := run(t, storage.OS(), dir, ln)
	defer l.stop()
	c := dial(t, new(net.Dialer), ln.Addr().String())
	defer c.Close()
	id := createOn(t, c, "t", 1, wire.Setting{Key: "segment.bytes", Value: "16MiB"}, wire.Setting{Key: "flush", Value: "sync"})
	value := strings.Repeat("v", 100_000)
	for range 200 {
		sendOn(t, c, batchOf(t, wire.BuilderOptions{Topic: id}, value))
	}
	one := int64(len(batchOf(t, wire.BuilderOptions{Topic: id}, value)))
	logs, err := filepath.Glob(dir + "/topics/t/partition-0000/*.log")
	if err != nil || len(logs) != 2 {
		t.Fatal(logs, err)
	}
	drop := func(name string) storage.File {
		t.Helper()
		f, err := storage.OS().Open(name, storage.ReadWrite)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { f.Close() })
		if err := errors.Join(f.Sync(), f.DropCache(0, 0)); err != nil {
			t.Fatal(err)
		}
		return f
	}
	// The second segment tells whether this disk lets go of pages; asking brings
	// some back, so the first is left alone.
	drop(logs[1])
	p, err := l.b.Set().Leader(wire.PartitionID{Topic: id})
	if err != nil {
		t.Fatal(err)
	}
	found, err := p.View().Log.Find(180, 200, 1)
	if err != nil {
		t.Fatal(err)
	}
	cold := !found.Sound()
	found.Done()
	if !cold {
		t.Skip("the files lie on a disk that keeps its pages")
	}
	if _, err := drop(logs[0]).WriteAt([]byte("!"), 100*one+500); err != nil {
		t.Fatal(err)
	}
	drop(logs[0])
	fetch := func(at wire.Offset) (wire.FetchResult, int) {
		t.Helper()
		var resp wire.FetchResponse
		req := fetchOf(id, 0, at)
		req.MaxBytes, req.Partitions[0].MaxBytes = 32<<20, 32<<20
		buf, err := c.DoBuf(context.Background(), req, &resp)
		if err != nil {
			t.Fatal(err)
		}
		defer buf.Release()
		n := 0
		for b, err := range wire.Batches(resp.Partitions[0].Data) {
			if err = errors.Join(err, b.Verify()); err != nil {
				t.Fatal(err)
			}
			n++
		}
		return resp.Partitions[0], n
	}
	got := 0
	for at, steps := wire.Offset(0), 0; at < 200; steps++ {
		r, n := fetch(at)
		switch {
		case steps > 20:
			t.Fatalf("no end at %d: %+v", at, r)
		case r.Code == wire.CodeCorrupt && r.CorruptFrom == 100 && r.CorruptTo == 101 && at == 100:
			at = r.CorruptTo
		case r.Code != wire.CodeOK:
			t.Fatalf("at %d: %+v", at, r)
		default:
			got += n
			at = r.Next
		}
	}
	if got != 199 {
		t.Fatalf("%d of 199 sound batches", got)
	}
}

// TestGoneFetches fills the lot with fetches of connections that are gone: who
// comes then finds a place when told to come again.
func TestGoneFetches(t *testing.T) {
	bubble(t, func(t *testing.T, l *live, _ *storage.MemFS, network *wire.MemNet) {
		c := dial(t, network, "broker:1")
		defer c.Close()
		id := createOn(t, c, "t", 1)
		waiting := fetchOf(id, 0, 0)
		waiting.MaxWaitMillis = 60_000
		l.b.lot.max = 300
		for range 4 {
			other := dial(t, network, "broker:1")
			for range 90 {
				goOn(other, waiting, new(wire.FetchResponse))
			}
			synctest.Wait()
			other.Close()
		}
		var err error
		for tries := range 3 {
			parked := goOn(c, waiting, new(wire.FetchResponse))
			synctest.Wait()
			select {
			case err = <-parked:
				if wire.CodeOf(err) != wire.CodeBusy {
					t.Fatalf("try %d: %v", tries, err)
				}
				time.Sleep(time.Second)
			default:
				sendOn(t, c, batchOf(t, wire.BuilderOptions{Topic: id}, "v"))
				if err := <-parked; err != nil {
					t.Fatal(err)
				}
				return
			}
		}
		t.Fatalf("the places of the gone are still taken: %v", err)
	})
}

// allocations returns what f allocates on average once it is warm.
func allocations(f func()) float64 {
	for range 200 {
		f()
	}
	return testing.AllocsPerRun(500, f)
}

// TestAllocations pins what requests allocate once warm, client and broker
// together: produce one view a turn, the log's inside the partition's, however
// many batches there are; a fetch nothing, even one that waits.
func TestAllocations(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates and empties pools at random")
	}
	if mem.Checked {
		t.Skip("a checked build reuses no calls")
	}
	_, c := loopback(t)
	id := createOn(t, c, "t", 2)
	ctx := context.Background()
	b := batchOf(t, wire.BuilderOptions{Topic: id}, strings.Repeat("v", 100))
	many := slices.Repeat([]wire.Batch{b}, 16)
	f := func(name string, want float64, do func()) {
		t.Helper()
		if got := allocations(do); got > want {
			t.Errorf("%s: %.2f allocations, want at most %.2f", name, got, want)
		}
	}
	var produced wire.ProduceResponse
	one, sixteen := &wire.ProduceRequest{Acks: wire.AcksAll, Batches: many[:1]}, &wire.ProduceRequest{Acks: wire.AcksAll, Batches: many}
	f("produce", 1, func() {
		if err := c.Do(ctx, one, &produced); err != nil || produced.Results[0].Code != wire.CodeOK {
			t.Fatal(err, produced)
		}
	})
	f("produce of 16 batches", 1, func() {
		if err := c.Do(ctx, sixteen, &produced); err != nil || produced.Results[15].Code != wire.CodeOK {
			t.Fatal(err, produced)
		}
	})
	var fetched wire.FetchResponse
	req := fetchOf(id, 0, 0)
	req.MaxBytes = 10_000
	f("fetch", 0, func() {
		buf, err := c.DoBuf(ctx, req, &fetched)
		if err != nil || fetched.Partitions[0].Bytes == 0 {
			t.Fatal(err, fetched)
		}
		buf.Release()
	})
	empty := fetchOf(id, 1, 0)
	empty.MaxWaitMillis = 1
	f("fetch that waits", 0, func() {
		buf, err := c.DoBuf(ctx, empty, &fetched)
		if err != nil {
			t.Fatal(err)
		}
		buf.Release()
	})
}
