package bench

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"runtime/metrics"
	"runtime/pprof"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// cpuTime returns the CPU time that a process has used, all its threads
// together, those that have ended included. Unlike /proc/PID/stat, which
// counts in ticks of 10 ms, the process's clock is exact.
func cpuTime(pid int) (time.Duration, error) {
	const scheduler = 2 // which clock of the process: the one that counts nanoseconds on a CPU
	var ts unix.Timespec
	if err := unix.ClockGettime(int32(^pid)<<3|scheduler, &ts); err != nil {
		return 0, fmt.Errorf("CPU time of process %d: %w", pid, err)
	}
	return time.Duration(ts.Nano()), nil
}

// residentBytes returns the memory of a process: all of it, and what of it is
// not backed by files.
func residentBytes(pid int) (all, anonymous int64, err error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, 0, err
	}
	for line := range bytes.Lines(b) {
		var to *int64
		name, rest, _ := strings.Cut(string(line), ":")
		switch name {
		case "VmRSS":
			to = &all
		case "RssAnon":
			to = &anonymous
		default:
			continue
		}
		n, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(rest), " kB"), 10, 64)
		if err != nil {
			return 0, 0, fmt.Errorf("memory of process %d: %w", pid, err)
		}
		*to = n << 10
	}
	return all, anonymous, nil
}

// maxPage bounds a broker's page of metrics, in bytes.
const maxPage = 4 << 20

// ReadPage reads the metrics of the broker whose operator view is at addr, host:port: of each name the
// sum over its labels.
func ReadPage(ctx context.Context, addr string) (map[string]float64, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+addr+"/metrics", nil)
	if err != nil {
		return nil, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, fmt.Errorf("metrics of the broker: %w", err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("metrics of the broker at %s: %s", addr, resp.Status)
	}
	return parsePage(io.LimitReader(resp.Body, maxPage))
}

// parsePage reads the text format of Prometheus as far as it is needed here:
// lines `name{labels} value`, of which it adds up those of one name.
func parsePage(r io.Reader) (map[string]float64, error) {
	page := map[string]float64{}
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		text := lines.Text()
		if text == "" || text[0] == '#' {
			continue
		}
		end := strings.LastIndexByte(text, ' ')
		if end < 0 {
			return nil, fmt.Errorf("metrics: %.80q is not of the form name value", text)
		}
		v, err := strconv.ParseFloat(text[end+1:], 64)
		if err != nil {
			return nil, fmt.Errorf("metrics: %.80q: %w", text, err)
		}
		name, _, _ := strings.Cut(text[:end], "{")
		page[strings.TrimSpace(name)] += v
	}
	return page, lines.Err()
}

// A mark is what broker and client had used at one moment. What could not be
// learned is zero.
type mark struct {
	at       time.Time
	broker   time.Duration // CPU
	client   time.Duration
	resident int64              // bytes of the broker
	page     map[string]float64 // the broker's metrics; nil: none
	allocs   float64            // heap allocations of the client
	gc       float64            // CPU seconds of its collector
}

// cpu reads only the clocks, which costs next to nothing.
func (t *target) cpu() (m mark) {
	m.at = time.Now()
	if t.PID != 0 {
		m.broker, _ = cpuTime(t.PID) // it may have died, which the load will notice
	}
	m.client, _ = cpuTime(os.Getpid())
	return m
}

// mark reads everything. An error says that the broker did not show its
// metrics; the rest is there.
func (t *target) mark(ctx context.Context) (m mark, err error) {
	var page map[string]float64
	if t.HTTP != "" {
		page, err = ReadPage(context.WithoutCancel(ctx), t.HTTP)
	}
	samples := []metrics.Sample{{Name: "/gc/heap/allocs:objects"}, {Name: "/cpu/classes/gc/total:cpu-seconds"}}
	metrics.Read(samples)
	m = t.cpu()
	m.page, m.allocs, m.gc = page, float64(samples[0].Value.Uint64()), samples[1].Value.Float64()
	if t.PID != 0 {
		m.resident, _, _ = residentBytes(t.PID)
	}
	return m, err
}

// profiled calls f and writes a profile of it, if one was asked for.
func (l *load) profiled(f func() error) (err error) {
	if l.profile == "" {
		return f()
	}
	return writeFile(l.profile, func(w io.Writer) error {
		if err := pprof.StartCPUProfile(w); err != nil {
			return err
		}
		defer pprof.StopCPUProfile()
		return f()
	})
}
