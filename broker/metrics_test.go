package broker

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/teralog/teralog/mem"
	"github.com/teralog/teralog/storage"
	"github.com/teralog/teralog/wire"
)

// A counter counts what is written, and how often.
type counter struct{ bytes, writes, greatest int }

func (c *counter) Write(p []byte) (int, error) {
	c.bytes += len(p)
	c.writes++
	c.greatest = max(c.greatest, len(p))
	return len(p), nil
}

// TestManyPartitionsMetrics has /metrics tell of many partitions: it holds no
// more memory for it, allocates nothing for each, and grows by a known number of
// bytes.
func TestManyPartitionsMetrics(t *testing.T) {
	type cost struct {
		counter
		allocs float64
	}
	measure := func(partitions int32) (c cost) {
		r := newRig(t)
		defer r.stop()
		r.create("orders", partitions)
		c.allocs = testing.AllocsPerRun(3, func() {
			c.counter = counter{}
			writeMetrics(&c.counter, metricRows, newScrape(r.b))
		})
		return c
	}
	few, many := measure(1), measure(1001)
	if grown := many.allocs - few.allocs; grown > 20 {
		t.Errorf("%v allocations for a thousand partitions", grown)
	}
	if each := (many.bytes - few.bytes) / 1000; each > 400 {
		t.Errorf("%d bytes for a partition", each)
	}
	if many.greatest > partBytes+4<<10 {
		t.Errorf("%d bytes at once", many.greatest)
	}
}

// TestPartitionSeries bounds the partitions that are told of one by one.
func TestPartitionSeries(t *testing.T) {
	r := newRig(t)
	defer r.stop()
	a, b := r.create("a", 2), r.create("b", 1)
	r.write(a, 1, "one", "two")
	r.write(b, 0, "three")
	s := scraped(t, r.b)
	f := func(want float64, name, labels string) {
		t.Helper()
		if got := valueOf(t, s, name, labels); got != want {
			t.Fatalf("%s{%s} is %v, want %v", name, labels, got, want)
		}
	}

	f(0, "teralog_partition_start_offset", `topic="a",partition="1"`)
	f(2, "teralog_partition_end_offset", `topic="a",partition="1"`)
	f(2, "teralog_partition_committed_offset", `topic="a",partition="1"`)
	f(0, "teralog_partition_end_offset", `topic="a",partition="0"`)
	f(0, "teralog_partition_queued_bytes", `topic="b",partition="0"`)
	f(float64(len(batchOf(t, wire.BuilderOptions{Topic: b}, "three"))), "teralog_partition_bytes", `topic="b",partition="0"`)
	f(float64(len(batchOf(t, wire.BuilderOptions{Topic: a}, "one", "two"))), "teralog_topic_append_bytes_total", `topic="a"`)
	f(1, "teralog_topic_append_batches_total", `topic="b"`)
	f(3, "teralog_partitions", "")
	f(3, "teralog_partitions_in_service", "")
	f(3, "teralog_partitions_expected", "")
	f(0, "teralog_damaged_ranges", "")
}

// TestGoneScraper stops writing to one that has gone.
func TestGoneScraper(t *testing.T) {
	r := newRig(t)
	defer r.stop()
	r.create("orders", 1000)
	gone, writes := errors.New("gone"), 0
	err := writeMetrics(writerFunc(func([]byte) (int, error) { writes++; return 0, gone }), metricRows, newScrape(r.b))
	if err != gone || writes != 1 {
		t.Fatalf("%d writes, %v", writes, err)
	}
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

var _ io.Writer = writerFunc(nil)

func TestFieldAfter(t *testing.T) {
	f := func(name string, want float64) {
		t.Helper()
		got := fieldAfter([]byte("MemTotal:       8151152 kB\nDirty:               136 kB\nWriteback: x kB\nHuge:\n"), name)
		if got != want && !(math.IsNaN(got) && math.IsNaN(want)) {
			t.Fatalf("%s is %v, want %v", name, got, want)
		}
	}

	f("Dirty:", 136)
	f("MemTotal:", 8151152)
	f("Writeback:", math.NaN())
	f("Huge:", math.NaN())
	f("Free:", math.NaN())
}

func TestInProgress(t *testing.T) {
	const stats = "   8       0 sda 3 0 1 2 4 5 6 7 9 10 11 0\n   8       1 sda1 3 0 1 2 4 5 6 7 12 10 11 0\n 259  65536 nvme 1 2\n"
	f := func(n uint64, want float64) {
		t.Helper()
		got := inProgress(bufio.NewScanner(strings.NewReader(stats)), device(n))
		if got != want && !(math.IsNaN(got) && math.IsNaN(want)) {
			t.Fatalf("device %v has %v, want %v", device(n), got, want)
		}
	}

	f(0x800, 9)
	f(0x801, 12)
	f(0x802, math.NaN())
	f(259<<8|65536<<12, math.NaN()) // its line is cut
	if d := device(0x0000_1000_3ab0_07cd); d != [2]string{"4103", "240589"} {
		t.Fatalf("%v", d)
	}
}

// TestHandovers bounds the topics with times of their own.
func TestHandovers(t *testing.T) {
	var h handovers
	name := func(id wire.TopicID) string { return fmt.Sprintf("t%03d", id) }
	for id := range wire.TopicID(maxHandovers + 5) {
		h.record(id, name, time.Second)
		h.record(id, name, time.Second)
	}
	f := func(topics int, first string, rest time.Duration) {
		t.Helper()
		var names []string
		h.each(func(topic string, l *mem.Latency) {
			names = append(names, topic)
			_, sum := l.Read()
			if topic == "" && sum != rest || topic != "" && sum != 2*time.Second {
				t.Fatalf("%q has %v", topic, sum)
			}
		})
		if len(names) != topics+1 || names[0] != first || names[topics] != "" {
			t.Fatalf("%d topics: %q", len(names), names)
		}
	}

	f(maxHandovers, "t000", 10*time.Second)
	h.drop(0)
	h.drop(0)
	f(maxHandovers-1, "t001", 10*time.Second)
	h.record(200, name, 2*time.Second)
	f(maxHandovers, "t001", 10*time.Second)
}

// TestTimesOfRequests produces and fetches over a connection, often enough for
// each kind of time, and reads the histograms.
func TestTimesOfRequests(t *testing.T) {
	bubble(t, func(t *testing.T, l *live, _ *storage.MemFS, network *wire.MemNet) {
		c := dial(t, network, "broker:1")
		defer c.Close()
		id := createOn(t, c, "t", 1, wire.Setting{Key: "flush", Value: "sync"})
		for at := range wire.Offset(64) {
			wait := fetchOf(id, 0, at)
			wait.MaxWaitMillis = 60_000
			done := goOn(c, wait, new(wire.FetchResponse))
			time.Sleep(time.Second)
			sendOn(t, c, batchOf(t, wire.BuilderOptions{Topic: id}, "v"))
			if err := <-done; err != nil {
				t.Fatal(err)
			}
		}
		s := scraped(t, l.b)
		f := func(name, labels string) {
			t.Helper()
			if n := valueOf(t, s, name+"_count", labels); n < 4 || n > 32 {
				t.Errorf("%s{%s} has %v times", name, labels, n)
			}
		}

		f("teralog_request_seconds", `api="Produce"`)
		f("teralog_request_seconds", `api="Fetch"`)
		f("teralog_stage_seconds", `stage="admission"`)
		f("teralog_stage_seconds", `stage="verify"`)
		f("teralog_stage_seconds", `stage="queue"`)
		f("teralog_stage_seconds", `stage="append"`)
		f("teralog_stage_seconds", `stage="reply"`)
		f("teralog_handover_seconds", `topic="t"`)
		if n := valueOf(t, s, "teralog_flush_seconds_count", `dir="data"`); n < 64 {
			t.Errorf("%v flushes", n)
		}
		if sum := valueOf(t, s, "teralog_request_seconds_sum", `api="Fetch"`); sum != 0 {
			t.Errorf("fetches took %v s: the wait for records counts", sum)
		}
		if sum := valueOf(t, s, "teralog_handover_seconds_sum", `topic="t"`); sum != 0 {
			t.Errorf("records lay for %v s", sum)
		}
	})
}
