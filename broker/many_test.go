package broker

import (
	"fmt"
	"os"
	"runtime"
	"testing"

	"github.com/teralog/teralog/storage"
	"github.com/teralog/teralog/wire"
)

// TestPartitionsAtStart has one broker host 10,000 partitions, the most there may be
// if TERALOG_BOX is set, and lose its power or be killed: what it then asks of the
// disk grows as they do and no faster, and neither they nor the start take more
// memory than the 24 KiB each that BENCHMARKS.md promises.
func TestPartitionsAtStart(t *testing.T) {
	most := int32(10_000)
	if os.Getenv("TERALOG_BOX") != "" {
		most = 100_000
	}
	for _, power := range []bool{true, false} {
		few, _ := startMany(t, most/10, power)
		many, each := startMany(t, most, power)
		t.Logf("power %v, %d partitions: %d operations, %d bytes of memory each", power, most, many, each)
		if many > 11*few {
			t.Errorf("power %v: the start takes %d operations for %d partitions, %d for a tenth of them", power, many, most, few)
		}
		if each > 24<<10 {
			t.Errorf("power %v: %d bytes each", power, each)
		}
	}
}

// startMany starts a broker of n partitions, one in a hundred of which holds
// records, after the end of the one before. It returns what the disk was asked for
// and the memory a partition then takes.
func startMany(t *testing.T, n int32, power bool) (ops int, each int64) {
	const topics = 10
	r := newRig(t, func(c *Config) { c.CreateRate = 0 })
	var ids [topics]wire.TopicID
	for i := range ids {
		ids[i] = r.create(fmt.Sprint("t", i), n/topics, wire.Setting{Key: "flush", Value: "sync"})
	}
	write := func(value string, at wire.Offset) {
		t.Helper()
		var batches []wire.Batch
		for p := int32(0); p < n/topics; p += 100 {
			for _, id := range ids {
				batches = append(batches, batchOf(t, wire.BuilderOptions{Topic: id, Partition: p}, value))
			}
		}
		for _, res := range r.send(batches...) {
			if res.Code != wire.CodeOK || res.Base != at {
				t.Fatalf("%s: %+v", value, res)
			}
		}
	}
	write("before", 0)
	r.kill(power)
	r.b = nil
	r.fs.ResetCounts()
	before := liveHeap()
	r.start()
	each = (liveHeap() - before) / int64(n)
	for _, kind := range []string{storage.OpOpen, storage.OpMkdir, storage.OpRename, storage.OpRemove, storage.OpReadDir, storage.OpStat, storage.OpSyncDir,
		storage.OpRead, storage.OpWrite, storage.OpTruncate, storage.OpSync, storage.OpAllocate, storage.OpMap} {
		ops += r.fs.Count(kind)
	}
	if got := len(r.b.Set().Partitions()); got != int(n) {
		t.Fatalf("%d partitions of %d are served", got, n)
	}
	write("after", 1)
	if got := r.readAll(ids[topics-1], 0); len(got) != 2 || got[0] != "before" || got[1] != "after" {
		t.Fatalf("a partition holds %q", got)
	}
	r.stop()
	return ops, each
}

// liveHeap returns the bytes that are reachable.
func liveHeap() int64 {
	runtime.GC()
	runtime.GC() // what pools hold is gone after two
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}
