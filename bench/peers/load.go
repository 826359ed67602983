package main

import (
	"bytes"
	"context"
	"encoding/csv"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"time"

	"github.com/teralog/teralog/bench/peers/measure"
)

// A load is one question, put to every system in the same words.
type load struct {
	name    string
	consume bool
	size    int  // bytes of a record, which are those of its value
	sync    bool // an acknowledgement waits for fsync
	single  bool // one record in flight
}

var loads = []load{
	{name: "produce 100 B", size: 100},
	{name: "produce 1 KiB", size: 1024},
	{name: "consume 100 B", size: 100, consume: true},
	{name: "consume 1 KiB", size: 1024, consume: true},
	{name: "produce 100 B, one in flight", size: 100, single: true},
	{name: "produce 100 B, synced", size: 100, sync: true},
	{name: "produce 1 KiB, synced", size: 1024, sync: true},
	{name: "produce 100 B, synced, one in flight", size: 100, sync: true, single: true},
}

// A system is a log, ours or another.
type system struct {
	name    string
	version string
	// start runs a server on the files in dir; with sync every
	// acknowledgement waits for fsync.
	start func(ctx context.Context, dir string, sync bool) (*server, error)
	ways  func(l load) []way // from the best documented one down
}

// A way is how a system takes a load.
type way struct {
	how     string // client, batch and in-flight settings
	ack     string // what an acknowledgement, or a record read, means
	latency string // what the latency is one of; "" if the tool measures none

	// first is how many records warm up the server. To consume it is the
	// backlog, which a run reads again and again, unless it can be read only
	// once.
	first int
	once  bool

	fill  func(ctx context.Context, s *server, records int) error // makes the backlog; nil to produce
	drive func(ctx context.Context, s *server, records int) (driven, error)
	held  func(ctx context.Context, s *server) (int, error) // how many records the server has
}

// driven is what a system's own tool says about a run.
type driven struct {
	records int // acknowledged or read
	took    time.Duration
	latency latency
	cpu     time.Duration // of the driver's process, if it was not this one
}

// latency is in microseconds. A figure that the tool does not give is zero.
type latency struct {
	P50  float64 `json:"p50"`
	P95  float64 `json:"p95"`
	P99  float64 `json:"p99"`
	P999 float64 `json:"p999"`
	Max  float64 `json:"max"`
}

// A sample is one run of one way.
type sample struct {
	Records          int     `json:"records"`
	Seconds          float64 `json:"seconds"`
	RecordsPerSecond float64 `json:"records_per_second"`
	MBPerSecond      float64 `json:"mb_per_second"`
	Latency          latency `json:"latency_us"`
	BrokerPerGB      float64 `json:"broker_cpu_seconds_per_gb"`
	BrokerPerMillion float64 `json:"broker_cpu_seconds_per_million"`
	ClientPerGB      float64 `json:"client_cpu_seconds_per_gb"`
	PeakBytes        int64   `json:"broker_peak_memory_bytes"`

	// Others is the share of the machine that neither broker nor client used,
	// yet was used: by other processes, and by the kernel for all.
	Others float64 `json:"others_share"`
}

// table reads what a tool writes as CSV: a line of names and one of values.
// Values that are not numbers are left out.
func table(text []byte) (map[string]float64, error) {
	rows, err := csv.NewReader(bytes.NewReader(text)).ReadAll()
	if err != nil {
		return nil, err
	}
	if len(rows) != 2 {
		return nil, fmt.Errorf("%d lines, not 2", len(rows))
	}
	cells := map[string]float64{}
	for i, name := range rows[0] {
		if v, err := strconv.ParseFloat(rows[1][i], 64); err == nil {
			cells[name] = v
		}
	}
	return cells, nil
}

const (
	runWithin = 2 * time.Minute // one run with its preparation
	maxBytes  = 1 << 30         // of records in one run, so that write-back does not begin in its midst
)

// A lab is where the runs are made.
type lab struct {
	dir     string
	seconds float64 // how long a run should take
	less    int     // warm-ups and backlogs are divided by it
}

// measure makes one run of a way: a new server on new files, a warm-up or a
// backlog, then as many records as take the wanted time.
func (b *lab) measure(ctx context.Context, sys system, l load, w way) (_ sample, err error) {
	ctx, cancel := context.WithTimeout(ctx, runWithin)
	defer cancel()
	dir, err := os.MkdirTemp(b.dir, sys.name+"-")
	if err != nil {
		return sample{}, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	if dir, err = filepath.Abs(dir); err != nil {
		return sample{}, err
	}
	s, err := sys.start(ctx, dir, l.sync)
	if err != nil {
		return sample{}, fmt.Errorf("start: %w", err)
	}
	defer func() { err = errors.Join(err, s.stop()) }()

	first := w.first / b.less
	stored := first
	if w.fill != nil {
		if err := w.fill(ctx, s, first); err != nil {
			return sample{}, fmt.Errorf("fill: %w", err)
		}
	}
	warm, err := w.drive(ctx, s, first)
	if err != nil {
		return sample{}, fmt.Errorf("warm-up: %w", err)
	}
	records := max(first, int(float64(warm.records)/warm.took.Seconds()*b.seconds))
	switch {
	case w.fill == nil:
		records = min(records, maxBytes/l.size)
		stored += records
	case w.once:
		records = first
	}
	d, m, err := b.run(ctx, s, w, records)
	if err != nil {
		return sample{}, err
	}
	if n, err := w.held(ctx, s); err != nil {
		return sample{}, err
	} else if n < stored {
		return sample{}, fmt.Errorf("the server holds %d records; %d were acknowledged", n, stored)
	}
	if w.latency == "" {
		d.latency = latency{}
	}
	return m.sample(d, l)
}

// meters are what was used during one run.
type meters struct {
	broker, client, machine, wall time.Duration
	peak                          int64
}

func (b *lab) run(ctx context.Context, s *server, w way, records int) (driven, meters, error) {
	read := func(sign time.Duration, m *meters) error {
		pids, at := []int{s.cmd.Process.Pid, os.Getpid()}, []*time.Duration{&m.broker, &m.client}
		for i, pid := range pids {
			t, err := measure.CPUTime(pid)
			if err != nil {
				return err
			}
			*at[i] += sign * t
		}
		t, err := measure.BusyTime()
		m.machine += sign * t
		m.wall += sign * time.Duration(time.Now().UnixNano())
		return err
	}
	var m meters
	if err := read(-1, &m); err != nil {
		return driven{}, m, err
	}
	d, err := w.drive(ctx, s, records)
	if err != nil {
		return driven{}, m, err
	}
	if err := read(1, &m); err != nil {
		return driven{}, m, err
	}
	m.client += d.cpu
	m.peak, err = measure.PeakBytes(s.cmd.Process.Pid)
	return d, m, err
}

func (m meters) sample(d driven, l load) (sample, error) {
	if d.records <= 0 || d.took <= 0 {
		return sample{}, fmt.Errorf("the driver tells of %d records in %s", d.records, d.took)
	}
	seconds, bytes := d.took.Seconds(), float64(d.records)*float64(l.size)
	return sample{
		Records:          d.records,
		Seconds:          seconds,
		RecordsPerSecond: float64(d.records) / seconds,
		MBPerSecond:      bytes / 1e6 / seconds,
		Latency:          d.latency,
		BrokerPerGB:      m.broker.Seconds() / bytes * 1e9,
		BrokerPerMillion: m.broker.Seconds() / float64(d.records) * 1e6,
		ClientPerGB:      m.client.Seconds() / bytes * 1e9,
		PeakBytes:        m.peak,
		Others:           max(0, (m.machine-m.broker-m.client).Seconds()) / m.wall.Seconds() / float64(runtime.NumCPU()),
	}, nil
}
