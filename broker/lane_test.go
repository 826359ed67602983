package broker

import (
	"bytes"
	"context"
	"fmt"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/teralog/teralog/mem"
	"github.com/teralog/teralog/storage"
	"github.com/teralog/teralog/wire"
)

// A coldRig is a broker in a synctest bubble with two data directories on a disk
// that keeps its cache, and a topic whose partitions have two sealed segments each.
type coldRig struct {
	*live
	t       *testing.T
	fs      *storage.MemFS
	network *wire.MemNet
	id      wire.TopicID
	dirs    []string // of each partition
}

const coldPartitions = 6

func coldBubble(t *testing.T, f func(r *coldRig)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		r := &coldRig{t: t, fs: storage.NewMemFS(1), network: wire.NewMemNet()}
		r.fs.KeepCache()
		ln, err := r.network.Listen("broker:1")
		if err != nil {
			t.Fatal(err)
		}
		r.live = run(t, r.fs, "data,other", ln)
		defer func() {
			r.fs.BeforeOp(nil)
			if err := r.stop(); err != nil {
				t.Error(err)
			}
		}()
		c := r.dial()
		defer c.Close()
		r.id = createOn(t, c, "t", coldPartitions, wire.Setting{Key: "segment.bytes", Value: "1MiB"})
		for p := range int32(coldPartitions) {
			for range 23 { // ten fit a segment
				sendOn(t, c, batchOf(t, wire.BuilderOptions{Topic: r.id, Partition: p}, strings.Repeat("v", 100_000)))
			}
			at, err := r.b.Set().Leader(wire.PartitionID{Topic: r.id, Partition: p})
			if err != nil {
				t.Fatal(err)
			}
			r.dirs = append(r.dirs, at.Dir().Path())
		}
		time.Sleep(3 * time.Second) // flushed
		f(r)
	})
}

func (r *coldRig) dial() *wire.Conn { return dial(r.t, r.network, "broker:1") }

func (r *coldRig) folder(p int32) string {
	return fmt.Sprintf("%s/topics/t/partition-%04d/", r.dirs[p], p)
}

func (r *coldRig) file(p int32, base wire.Offset) string {
	return fmt.Sprintf("%s%020d.log", r.folder(p), base)
}

// forget has the sealed segments of a partition leave memory.
func (r *coldRig) forget(p int32) {
	r.t.Helper()
	for _, base := range []wire.Offset{0, 10} {
		f, err := r.fs.Open(r.file(p, base), storage.Read)
		if err != nil {
			r.t.Fatal(err)
		}
		f.DropCache(0, 0)
		f.Close()
	}
}

// fetch reads from a partition.
func (r *coldRig) fetch(c *wire.Conn, p int32, at wire.Offset, plain bool) wire.FetchResult {
	r.t.Helper()
	req := fetchOf(r.id, p, at)
	req.Plain, req.MaxBytes = plain, 1<<20
	var resp wire.FetchResponse
	buf, err := c.DoBuf(context.Background(), req, &resp)
	if err != nil {
		r.t.Fatalf("fetch of partition %d: %v", p, err)
	}
	defer buf.Release()
	return resp.Partitions[0]
}

// TestColdReadStalls: while a disk delivers nothing of what is not in memory,
// those who ask for it wait and nobody else does: neither who produces, on their
// own connection even, nor who reads what is in memory, nor a fetch that was
// parked, nor who reads from another disk.
func TestColdReadStalls(t *testing.T) {
	coldBubble(t, func(r *coldRig) {
		warm, other := int32(-1), int32(-1)
		for p := range int32(coldPartitions) {
			switch {
			case p == 0:
			case r.dirs[p] == r.dirs[0]:
				warm = p
			default:
				other = p
			}
		}
		if warm < 0 || other < 0 {
			t.Fatalf("partitions lie in %q", r.dirs)
		}
		reader := r.dial()
		r.fetch(reader, warm, 0, false) // which maps its index
		reader.Close()
		r.forget(0)
		r.forget(other)
		open, stalled := make(chan struct{}), new(atomic.Int32)
		defer func() {
			if t.Failed() {
				close(open)
			}
		}()
		r.fs.BeforeOp(func(op storage.Op) error {
			if op.Kind == storage.OpRead && op.Cold && strings.HasPrefix(op.Name, r.folder(0)) {
				stalled.Add(1)
				<-open
			}
			return nil
		})
		cold, hot, parked := r.dial(), r.dial(), r.dial()
		defer cold.Close()
		defer hot.Close()
		defer parked.Close()
		var waiting []<-chan error
		for range laneWorkers { // what lies in the newest sealed segment is known without the disk, what lies before is not
			waiting = append(waiting, goOn(cold, fetchOf(r.id, 0, 11), new(wire.FetchResponse)), goOn(cold, fetchOf(r.id, 0, 1), new(wire.FetchResponse)))
		}
		tail := fetchOf(r.id, warm, 23)
		tail.MaxWaitMillis, tail.MinBytes = 60_000, 1
		woken := goOn(parked, tail, new(wire.FetchResponse))
		synctest.Wait()
		if n := stalled.Load(); n != laneWorkers {
			t.Fatalf("%d reads wait for the disk, want %d", n, laneWorkers)
		}

		began := time.Now()
		batch := func(p int32) wire.Batch { return batchOf(t, wire.BuilderOptions{Topic: r.id, Partition: p}, "new") }
		for _, c := range []*wire.Conn{hot, cold} {
			for _, p := range []int32{0, warm, other} {
				if res := sendOn(t, c, batch(p))[0]; res.Code != wire.CodeOK {
					t.Fatalf("produce to partition %d: %v", p, res.Code)
				}
			}
			for _, plain := range []bool{false, true} {
				if res := r.fetch(c, warm, 0, plain); res.Code != wire.CodeOK || res.Bytes == 0 {
					t.Fatalf("what is in memory: %+v", res)
				}
				if res := r.fetch(c, 0, 22, plain); res.Code != wire.CodeOK || res.Bytes == 0 {
					t.Fatalf("the newest of the partition whose old records do not come: %+v", res)
				}
				if res := r.fetch(c, other, 0, plain); res.Code != wire.CodeOK || res.Bytes == 0 {
					t.Fatalf("another disk: %+v", res)
				}
			}
		}
		if err := <-woken; err != nil {
			t.Fatal(err)
		}
		if took := time.Since(began); took > 0 {
			t.Errorf("that took %v", took)
		}
		if t.Failed() {
			return
		}
		close(open)
		for _, done := range waiting {
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
	})
}

// TestLaneRest: readers far behind are paced while others produce, and only then.
func TestLaneRest(t *testing.T) {
	const rate = 100 << 20
	l := newLane(rate)
	at := func(ms int64) mem.Now { return mem.Now{Mono: time.Duration(ms) * time.Millisecond} }
	f := func(ms, n, produced int64, want time.Duration) {
		t.Helper()
		if got := l.rest(n, produced, at(ms)); got < want-time.Millisecond || got > want+time.Millisecond {
			t.Errorf("at %d ms, %d batches produced: rests %v before %d bytes, want %v", ms, produced, got, n, want)
		}
	}

	f(0, 1<<30, 0, 0) // nobody produces
	f(1000, 1<<30, 0, 0)
	f(1001, paceBurst, 5, 0) // somebody does
	f(1001, 10<<20, 6, 0)    // the last one on credit
	f(1001, 10<<20, 7, 100*time.Millisecond)
	f(1101, 10<<20, 7, 100*time.Millisecond)
	f(1202, 1<<30, 7, 0) // nobody any more
	l = newLane(0)
	f(0, 1<<40, 5, 0)
	f(1, 1<<40, 6, 0)
}

// TestCatchUpPace reads what is on the disk only, with and without somebody who
// produces, and looks at the clock.
func TestCatchUpPace(t *testing.T) {
	coldBubble(t, func(r *coldRig) {
		for _, l := range r.b.lanes {
			l.pace = mem.NewBucket(1<<20, 1)
			l.rest(0, r.b.count.batches.Load(), r.b.time()) // what was produced before is no news
		}
		time.Sleep(time.Second)
		c := r.dial()
		defer c.Close()
		read := func() (bytes int64, took time.Duration) {
			began := time.Now()
			for p := range int32(coldPartitions) {
				r.forget(p)
				for at := wire.Offset(0); at < 10; {
					res := r.fetch(c, p, at, false)
					bytes += int64(res.Bytes)
					at = res.Next
				}
			}
			return bytes, time.Since(began)
		}
		if _, took := read(); took > 0 {
			t.Errorf("with nobody to spare it took %v", took)
		}
		ctx, stop := context.WithCancel(context.Background())
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			other := r.dial()
			defer other.Close()
			for ctx.Err() == nil {
				sendOn(t, other, batchOf(t, wire.BuilderOptions{Topic: r.id}, "v"))
				time.Sleep(paceQuiet / 2)
			}
		}()
		synctest.Wait()
		bytes, took := read()
		stop()
		<-ended
		// Each of two disks lets its first read pass on credit.
		if least := time.Duration(bytes-4<<20) * time.Second / (1 << 20); took < least/2 || took > 2*least {
			t.Errorf("%d bytes at 1 MiB a second from each disk took %v", bytes, took)
		}
	})
}

// TestColdYields: who has read a piece from the disk lets others go first, before
// it is sent; what is in memory needs no such thing.
func TestColdYields(t *testing.T) {
	coldBubble(t, func(r *coldRig) {
		var yields atomic.Int64
		for _, l := range r.b.lanes {
			l.yield = func() { yields.Add(1) }
		}
		c := r.dial()
		defer c.Close()
		f := func(want int64) {
			t.Helper()
			before := yields.Load()
			r.fetch(c, 0, 0, false)
			if got := yields.Load() - before; got != want {
				t.Errorf("gave up the processor %d times, want %d", got, want)
			}
		}

		r.forget(0)
		f(1)
		f(0)
		r.forget(0)
		f(1)
	})
}

// TestDamageShows: damage that a reader meets is in /recovery, in the metrics and,
// once, among the events.
func TestDamageShows(t *testing.T) {
	coldBubble(t, func(r *coldRig) {
		c := r.dial()
		defer c.Close()
		page := func() *recoveryPage {
			p, err := r.b.recoveryPage(httptest.NewRequest("GET", "/recovery", nil))
			if err != nil {
				t.Fatal(err)
			}
			return p.(*recoveryPage)
		}
		if p := page(); p.Damaged != 0 || len(p.Scrubs) != 2 || p.Scrubs[0].Rate != DefaultConfig().ScrubRate {
			t.Fatalf("before: %+v", p)
		}
		r.forget(3)
		if err := r.fs.FlipBit(r.file(3, 0), 350_000, 1); err != nil { // of the batch at offset 3
			t.Fatal(err)
		}
		if res := r.fetch(c, 3, 3, false); res.Code != wire.CodeCorrupt || res.CorruptFrom != 3 || res.CorruptTo != 4 {
			t.Fatalf("%+v", res)
		}
		if p, want := page(), (damagedRange{"t", 3, offsetsRange{3, 4}}); p.Damaged != 1 || p.Damage[0] != want {
			t.Fatalf("%+v, want %+v", p, want)
		}
		var text bytes.Buffer
		writeMetrics(&text, metricRows, newScrape(r.b))
		if !strings.Contains(text.String(), "\nteralog_damaged_ranges 1\n") || !strings.Contains(text.String(), `teralog_cold_read_bytes_total{dir="`) {
			t.Errorf("metrics: %s", text.String())
		}
		time.Sleep(time.Hour) // the janitor, and passes of the scrub, come by
		events, _, _ := r.b.events.after(0, maxEvents)
		n := 0
		for _, e := range events {
			if strings.Contains(e.line, "damage_found") {
				n++
				if !strings.Contains(e.line, `"part":3,"from":3,"to":4`) {
					t.Error(e.line)
				}
			}
		}
		if n != 1 {
			t.Errorf("%d events of damage", n)
		}
		if s := page().Scrubs; s[0].Passes+s[1].Passes != 2 || s[0].Ended == 0 {
			t.Errorf("scrubs: %+v", s)
		}
	})
}
