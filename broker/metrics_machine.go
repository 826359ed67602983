package broker

import (
	"bufio"
	"bytes"
	"fmt"
	"math"
	"os"
	"runtime/metrics"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/teralog/teralog/mem"
	"github.com/teralog/teralog/storage"
)

// machineRows are what the machine says of itself, and the pools of buffers.
var machineRows = []metric{
	{name: "teralog_machine_dirty_bytes", kind: "gauge", help: "Bytes in the page cache that wait to be written to disk, of the whole machine.", value: memoryValue("Dirty:")},
	{name: "teralog_machine_writeback_bytes", kind: "gauge", help: "Bytes being written to disk, of the whole machine.", value: memoryValue("Writeback:")},
	{name: "teralog_directory_disk_queue", kind: "gauge", help: "Requests that the disk under the data directory has and has not answered.", series: dirSeries(diskQueue)},
	{name: "teralog_pool_live_bytes", kind: "gauge", help: "Memory of the buffers that are out.", series: poolSeries(func(p mem.PoolStats) float64 { return float64(p.LiveBytes) })},
	{name: "teralog_pool_kept_bytes", kind: "gauge", help: "Memory of the free buffers that are kept for ever.", series: poolSeries(func(p mem.PoolStats) float64 { return float64(p.KeptBytes) })},
	{name: "teralog_pool_gets_total", kind: "counter", help: "Buffers taken.", series: poolSeries(func(p mem.PoolStats) float64 { return float64(p.Gets) })},
	{name: "teralog_pool_misses_total", kind: "counter", help: "Of these, those for which none was kept.", series: poolSeries(func(p mem.PoolStats) float64 { return float64(p.Misses) })},
}

// poolSeries returns a series with a sample for each pool of the server.
func poolSeries(value func(mem.PoolStats) float64) func(*scrape, func(string, float64)) {
	return func(s *scrape, emit func(string, float64)) {
		for _, p := range []*mem.Pool{s.b.server.Requests, s.b.server.Replies} {
			of := p.Stats()
			emit(label("pool", of.Name), value(of))
		}
	}
}

// memoryValue returns a line of /proc/meminfo, which counts in KiB.
func memoryValue(name string) func(*scrape) float64 {
	return func(*scrape) float64 {
		text, err := os.ReadFile("/proc/meminfo")
		if err != nil {
			return math.NaN()
		}
		return 1024 * fieldAfter(text, name)
	}
}

// fieldAfter returns the number behind name, which begins a line; NaN if there
// is none.
func fieldAfter(text []byte, name string) float64 {
	for line := range bytes.Lines(text) {
		fields := bytes.Fields(line)
		if len(fields) < 2 || string(fields[0]) != name {
			continue
		}
		if n, err := strconv.ParseInt(string(fields[1]), 10, 64); err == nil {
			return float64(n)
		}
	}
	return math.NaN()
}

// diskQueue returns how many requests the disk under d has. A file system that
// no disk stands for by itself, such as an overlay, has none.
func diskQueue(_ *Broker, d *storage.Dir) float64 {
	st, err := os.Stat(d.Path())
	if err != nil {
		return math.NaN()
	}
	sys, ok := st.Sys().(*syscall.Stat_t)
	if !ok {
		return math.NaN()
	}
	f, err := os.Open("/proc/diskstats")
	if err != nil {
		return math.NaN()
	}
	defer f.Close()
	return inProgress(bufio.NewScanner(f), device(sys.Dev))
}

// device returns the number of a device as /proc/diskstats has it.
func device(n uint64) [2]string {
	return [2]string{fmt.Sprint(n>>8&0xfff | n>>32&^0xfff), fmt.Sprint(n&0xff | n>>12&0xffffff00)}
}

// inProgress returns the twelfth field of a device's line in /proc/diskstats.
func inProgress(lines *bufio.Scanner, device [2]string) float64 {
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		if len(fields) < 12 || fields[0] != device[0] || fields[1] != device[1] {
			continue
		}
		if n, err := strconv.ParseInt(fields[11], 10, 64); err == nil {
			return float64(n)
		}
	}
	return math.NaN()
}

// cpuSeconds is finer than the ticks of /proc/self/stat.
func cpuSeconds(*scrape) float64 {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return math.NaN()
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano()).Seconds()
}

// residentBytes is the second field of /proc/self/statm, in pages.
func residentBytes(*scrape) float64 {
	text, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		return math.NaN()
	}
	fields := strings.Fields(string(text))
	if len(fields) < 2 {
		return math.NaN()
	}
	pages, err := strconv.ParseInt(fields[1], 10, 64)
	if err != nil {
		return math.NaN()
	}
	return float64(pages) * float64(os.Getpagesize())
}

// openFiles asks for the size of the folder, which on newer kernels is the
// number of descriptors; older ones say 0 and have it listed.
func openFiles(*scrape) float64 {
	const folder = "/proc/self/fd"
	if st, err := os.Stat(folder); err == nil && st.Size() > 0 {
		return float64(st.Size())
	}
	names, err := os.ReadDir(folder)
	if err != nil {
		return math.NaN()
	}
	return float64(len(names) - 1) // without the one that lists them
}

func maxFiles(*scrape) float64 {
	var l syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &l); err != nil {
		return math.NaN()
	}
	return float64(l.Cur)
}

// runtimeValue returns the sum of what the Go runtime says under names.
func runtimeValue(names ...string) func(*scrape) float64 {
	return func(*scrape) (sum float64) {
		samples := make([]metrics.Sample, len(names))
		for i, n := range names {
			samples[i].Name = n
		}
		metrics.Read(samples)
		for _, m := range samples {
			switch m.Value.Kind() {
			case metrics.KindUint64:
				sum += float64(m.Value.Uint64())
			case metrics.KindFloat64:
				sum += m.Value.Float64()
			default:
				return math.NaN() // a runtime that does not know it
			}
		}
		return sum
	}
}
