package bench

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/teralog/teralog/client"
)

// crowdTrials are those with many of something, and those that look at the
// broker's own economy.
func crowdTrials() []trial {
	steadily := func(ctx context.Context, s *suite) (*outcome, error) {
		return s.bench(ctx, "produce", "--size", "100", "--partitions", "12", "--rate", "1000000", "--acks", "1", "--warm-up", "2s", "--duration", s.lasting(15*time.Second))
	}
	// A reader that is parked asks for what is not there yet. These are of another
	// process, so that what wakes them takes no turn of the producer's.
	parked := func(readers int64) side {
		return func(ctx context.Context, s *suite) (*outcome, error) {
			return beside(ctx, s, nil, nil,
				when(readers > 0, []string{"consume", "--follow", "--topic", "bench", "--consumers", text(readers), "--warm-up", "0s", "--duration", s.lasting(14 * time.Second)}),
				[]string{"produce", "--topic", "bench", "--size", "100", "--rate", "20", "--warm-up", "2s", "--duration", s.lasting(10 * time.Second)})
		}
	}
	reading := func(readers int64) side {
		return func(ctx context.Context, s *suite) (*outcome, error) {
			backlog := []string{"consume", "--topic", "backlog", "--size", "1KiB", "--backlog", text(s.scaled(256 << 20)), "--warm-up", "0s"}
			return beside(ctx, s, nil, append(slices.Clip(backlog), "--duration", "1s"),
				when(readers > 0, append(slices.Clip(backlog), "--consumers", text(readers), "--duration", s.lasting(8*time.Second))),
				[]string{"produce", "--topic", "tail", "--size", "100", "--rate", "1000", "--warm-up", "2s", "--duration", s.lasting(4 * time.Second)})
		}
	}
	conns := idleConnections()
	return []trial{{
		section: sectionCrowd, name: "20 records/s to a partition with 1,000 parked readers", against: "the same with none",
		limit: parked(0), engine: parked(1000),
		figures: []figureOf{latencyAt("ack P99", 3, 1.5, p99)}, takes: 30 * time.Second, pairs: 3,
	}, {
		section: sectionCrowd, name: "1,000 records/s while 100 readers read a cached backlog of 256 MiB", against: "the same with none",
		limit: reading(0), engine: reading(100),
		figures: []figureOf{latencyAt("ack P99", 3, 1.5, p99)}, takes: 18 * time.Second, pairs: 3,
	}, {
		section: sectionCrowd, name: group(int64(conns)) + " idle connections",
		engine: func(ctx context.Context, s *suite) (*outcome, error) {
			return s.bench(ctx, "idle", "--connections", text(s.scaled(int64(conns))), "--duration", "2s")
		},
		figures: []figureOf{{name: "broker memory each", unit: "KiB", floor: 6, aim: 4, of: func(r *outcome) *float64 {
			if r.Idle == nil {
				return nil
			}
			return ratio(r.Idle.BytesEach, 1024)
		}}}, takes: 10 * time.Second, pairs: 1,
	}, {
		section: sectionSteady, name: "1,000,000 records/s of 100 B, 12 partitions",
		engine: steadily,
		figures: []figureOf{
			{name: "broker heap allocations", unit: "a batch", floor: 2, aim: 1, of: func(r *outcome) *float64 { return r.BrokerAllocsPerBatch }},
			collecting()},
		takes: 20 * time.Second, pairs: 1,
	}, {
		section: sectionSteady, name: "reading a cached backlog, 1 consumer, 100 B",
		engine: func(ctx context.Context, s *suite) (*outcome, error) {
			return s.bench(ctx, "consume", "--size", "100", "--partitions", "12", "--backlog", text(s.scaled(1<<30)), "--warm-up", "1s", "--duration", s.lasting(8*time.Second))
		},
		figures: []figureOf{
			{name: "broker heap allocations", unit: "a MiB", floor: 2, aim: 0.1, of: func(r *outcome) *float64 { return r.BrokerAllocsPerMiB }},
			collecting()},
		takes: 12 * time.Second, pairs: 1,
	}, {
		section: sectionRestart, name: "kill -9 with 1 GiB above the recovery point", against: "fdatasync, drop, read and check of 1 GiB",
		limit: func(ctx context.Context, s *suite) (*outcome, error) {
			r, err := probeReread(ctx, s.dir, s.scaled(1<<30))
			seconds := over(float64(s.scaled(1<<30))/1e6, r.MBPerSecond)
			return &outcome{restart: time.Duration(seconds * float64(time.Second))}, err
		},
		engine:  restartAfterKill,
		figures: []figureOf{{name: "time until it is ready", unit: "s", floor: 2.5, aim: 1.5, of: func(r *outcome) *float64 { return ratio(r.restart.Seconds(), 1) }}},
		takes:   9 * time.Second, pairs: 3, quick: true,
	}}
}

// collecting is the garbage collector's share of the broker's CPU time.
func collecting() figureOf {
	return figureOf{name: "collector's share of broker CPU", unit: "%", floor: 3, aim: 1, of: func(r *outcome) *float64 { return percent(r.BrokerGCShare) }}
}

// idleConnections is 15,000, or as many as descriptors allow.
func idleConnections() int {
	var l unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &l); err != nil {
		return 1000
	}
	return int(min(15_000, max(int64(l.Cur)-2000, 100)))
}

// when returns the others that beside is to run: those given, if any at all.
func when(any bool, others ...[]string) [][]string {
	if !any {
		return nil
	}
	return others
}

// beside runs a workload on a broker of its own, started with more flags, while
// others go on there for longer. Before them comes one that prepares the broker;
// nil: none.
func beside(ctx context.Context, s *suite, serve, before []string, others [][]string, own []string) (r *outcome, err error) {
	b, dir, err := s.broker(serve...)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, b.Stop(), os.RemoveAll(dir)) }()
	run := func(args []string) (*outcome, error) {
		return s.bench(ctx, args[0], append([]string{"--server", b.Addr, "--broker-http", b.HTTP, "--broker-pid", text(b.PID)}, args[1:]...)...)
	}
	if before != nil {
		if _, err := run(before); err != nil {
			return nil, err
		}
	}
	var going sync.WaitGroup
	errs := make([]error, len(others))
	for i, other := range others {
		going.Go(func() { _, errs[i] = run(other) })
	}
	r, err = run(own)
	going.Wait()
	return r, errors.Join(append(errs, err)...)
}

// restartAfterKill fills a log that is not flushed, kills the broker, and times
// the start that follows.
func restartAfterKill(ctx context.Context, s *suite) (r *outcome, err error) {
	b, dir, err := s.broker()
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, b.Stop(), os.RemoveAll(dir)) }()
	const record = 1 << 10
	records := s.scaled(1<<30) / record
	r, err = s.bench(ctx, "produce", "--server", b.Addr, "--broker-pid", text(b.PID), "--size", text(record), "--batch", text(1<<20), "--partitions", "1", "--acks", "1",
		"-c", "segment.bytes=2047MiB", "-c", "flush.bytes=8GiB", "-c", "flush.interval=1h", "--warm-up", "0s", "--records", text(records))
	if err != nil {
		return nil, err
	}
	if r.restart, err = s.restart(b, dir, b.Kill); err != nil {
		return nil, err
	}
	c, err := client.New(client.Options{Servers: []string{b.Addr}, Name: "teralog-suite"})
	if err != nil {
		return nil, err
	}
	defer c.Close()
	ends, err := c.Offsets(ctx, "bench", client.End())
	if err == nil && int64(ends[0].Offset) != records {
		err = fmt.Errorf("%d records were acknowledged, %d are there after a kill", records, ends[0].Offset)
	}
	return r, err
}

// The long ones.

// greedyTrials measure what is left to others beside somebody who takes all he
// can, and far more than he may.
func greedyTrials() []trial {
	steadily := func(s *suite) []string {
		return []string{"produce", "--topic", "steady", "--producers", "49", "--size", "100", "--rate", "1000", "--warm-up", "2s", "--duration", s.lasting(6 * time.Second)}
	}
	flood := func(s *suite, more ...string) []string {
		return append([]string{"produce", "--topic", "flood", "--size", "1KiB", "--batch", text(64 << 10), "--warm-up", "0s", "--duration", s.lasting(10 * time.Second)}, more...)
	}
	connection := func(greedy bool) side {
		return func(ctx context.Context, s *suite) (*outcome, error) {
			return beside(ctx, s, []string{"--connection-bytes", "4MiB"}, nil, when(greedy, flood(s)), steadily(s))
		}
	}
	tenant := func(greedy bool) side {
		return func(ctx context.Context, s *suite) (*outcome, error) {
			addr, err := freeAddr()
			if err != nil {
				return nil, err
			}
			backlog := []string{"consume", "--topic", "backlog", "--size", "1KiB", "--backlog", text(s.scaled(256 << 20)), "--warm-up", "0s"}
			lagging := append(slices.Clip(backlog), "--server", addr, "--consumers", "100", "--duration", s.lasting(10*time.Second))
			return beside(ctx, s, []string{"--tenants", "batch@" + addr + " bytes=4MiB"}, append(slices.Clip(backlog), "--duration", "1s"),
				when(greedy, flood(s, "--server", addr, "--producers", "10"), lagging), steadily(s))
		}
	}
	return []trial{{
		section: sectionLong, name: "1,000 records/s of 49 producers beside a greedy connection held to 4 MiB/s", against: "the same without it",
		limit: connection(false), engine: connection(true),
		figures: []figureOf{latencyAt("ack P99", 3, 1.5, p99)}, takes: 26 * time.Second, pairs: 3,
	}, {
		section: sectionLong, name: "1,000 records/s of 49 producers beside 10 greedy ones and 100 lagging readers, a tenant held to 4 MiB/s", against: "the same without them",
		limit: tenant(false), engine: tenant(true),
		figures: []figureOf{latencyAt("ack P99", 3, 1.5, p99)}, takes: 30 * time.Second, pairs: 3,
	}}
}

// freeAddr returns a local address nobody listens on.
func freeAddr() (string, error) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	return ln.Addr().String(), ln.Close()
}

func coldTrial() trial {
	of := func(name, unit string, higher bool, floor, aim float64, of func(*Backlog) *float64) figureOf {
		return figureOf{name: name, unit: unit, higher: higher, floor: floor, aim: aim, of: func(r *outcome) *float64 {
			if r.Backlog == nil {
				return nil
			}
			return of(r.Backlog)
		}}
	}
	return trial{
		section: sectionLong, name: "cold backlog of 10 GiB read while producing at half speed, 1 KiB",
		engine: func(ctx context.Context, s *suite) (*outcome, error) {
			return s.bench(ctx, "backlog", "--backlog", text(s.scaled(10<<30)), "--size", "1KiB", "--partitions", "12", "--acks", "1", "--duration", s.lasting(15*time.Second))
		},
		figures: []figureOf{
			of("read rate", "GB/s", true, 0.4, 1.2, func(b *Backlog) *float64 { return ratio(b.MBPerSecond, 1e3) }),
			of("producer's P99 over undisturbed", "times", false, 3, 1.5, func(b *Backlog) *float64 { return b.P99Ratio }),
			of("newest bytes still in memory", "%", true, 80, 95, func(b *Backlog) *float64 { return percent(b.TailInCache) })},
		takes: 100 * time.Second, pairs: 3,
	}
}

func sustainedTrial() trial {
	const bytes = 10 << 30 // 8 GiB past where write-back begins on a machine of this size
	return trial{
		section: sectionLong, name: "10 GiB at full speed, 1 KiB, batches of 1 MiB, 12 partitions", against: "buffered writing with paced write-back",
		limit: func(ctx context.Context, s *suite) (*outcome, error) {
			r, err := probePaced(ctx, s.dir, s.scaled(bytes))
			return &outcome{Result: Result{MBPerSecond: r.MBPerSecond}}, err
		},
		engine: func(ctx context.Context, s *suite) (*outcome, error) {
			return s.bench(ctx, "produce", shape{1 << 10, 1 << 20, 12}.flags("--acks", "1", "--warm-up", "0s", "--records", text(s.scaled(bytes)>>10))...)
		},
		figures: []figureOf{throughput(0.4, 0.65)}, takes: 40 * time.Second, pairs: 3,
	}
}

func scaleTrial() trial {
	// For minutes after thousands of files are deleted ext4 passes over their inodes
	// one by one whenever a file is made, so this run's stay as long as the suite,
	// empty.
	spread := func(partitions int64) side {
		return func(ctx context.Context, s *suite) (*outcome, error) {
			r, err := s.bench(ctx, "produce", shape{100, 16 << 10, int(max(s.scaled(partitions), 12))}.flags("--acks", "1", "--keep", "--warm-up", "3s", "--duration", s.lasting(10*time.Second))...)
			return r, errors.Join(err, emptyFiles(s.dir))
		}
	}
	return trial{
		section: sectionLong, name: "10,000 partitions, 100 B, batches of 16 KiB", against: "12 partitions, equal batches",
		limit: spread(12), engine: spread(10_000),
		figures: []figureOf{throughput(0.5, 0.7)}, takes: 60 * time.Second, pairs: 3,
	}
}

// emptyFiles frees what the files below dir take and leaves them there.
func emptyFiles(dir string) error {
	return filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err == nil && e.Type().IsRegular() {
			err = os.Truncate(path, 0)
		}
		return err
	})
}

// idlePartitionsTrial makes a topic of 10,000 partitions, looks at what the
// broker has grown by, and starts it twice: stopped before, and killed.
func idlePartitionsTrial() trial {
	const partitions = 10_000
	return trial{
		section: sectionLong, name: group(partitions) + " idle partitions",
		engine: func(ctx context.Context, s *suite) (r *outcome, err error) {
			b, dir, err := s.broker()
			if err != nil {
				return nil, err
			}
			defer func() { err = errors.Join(err, b.Stop(), os.RemoveAll(dir)) }()
			c, err := client.New(client.Options{Servers: []string{b.Addr}, Name: "teralog-suite", RequestTimeout: 5 * time.Minute})
			if err != nil {
				return nil, err
			}
			defer c.Close()
			n := s.scaled(partitions)
			_, before, err := residentBytes(b.PID)
			if err != nil {
				return nil, err
			}
			if _, err := c.CreateTopic(ctx, client.TopicSpec{Name: "idle", Partitions: int32(n)}); err != nil {
				return nil, err
			}
			_, after, err := residentBytes(b.PID)
			if err != nil {
				return nil, err
			}
			r = &outcome{each: float64(after-before) / float64(n)}
			if r.start, err = s.restart(b, dir, b.Stop); err != nil {
				return nil, err
			}
			_, held, err := residentBytes(b.PID)
			if err != nil {
				return nil, err
			}
			r.held = float64(held)
			r.restart, err = s.restart(b, dir, b.Kill)
			return r, err
		},
		figures: []figureOf{
			{name: "broker memory each", unit: "KiB", floor: 40, aim: 24, of: func(r *outcome) *float64 { return ratio(r.each, 1024) }},
			{name: "start after a clean stop", unit: "s", floor: 5, aim: 5, of: func(r *outcome) *float64 { return known(r.start.Seconds()) }},
			{name: "start after a kill", unit: "s", floor: 5, aim: 5, of: func(r *outcome) *float64 { return known(r.restart.Seconds()) }},
			{name: "broker memory after the start", unit: "MB", floor: 400, aim: 400, of: func(r *outcome) *float64 { return ratio(r.held, 1e6) }}},
		takes: 60 * time.Second, pairs: 1,
	}
}

// soakTrial loads a broker for ten minutes and compares its memory in the
// second minute with that in the last.
func soakTrial() trial {
	const lasts = 10 * time.Minute
	return trial{
		section: sectionLong, name: "ten minutes of 200,000 records/s of 1 KiB with a tail",
		engine: func(ctx context.Context, s *suite) (r *outcome, err error) {
			b, dir, err := s.broker()
			if err != nil {
				return nil, err
			}
			defer func() { err = errors.Join(err, b.Stop(), os.RemoveAll(dir)) }()
			watching, stop := context.WithCancel(ctx)
			samples := make(chan []float64, 1)
			go func() { samples <- watchMemory(watching, b.PID) }()
			r, err = s.bench(ctx, "produce", "--server", b.Addr, "--broker-http", b.HTTP, "--broker-pid", text(b.PID), "--rate", text(s.slowed(200_000)),
				"--size", "1KiB", "--partitions", "12", "--acks", "1", "--tails", "1", "-c", "segment.bytes=64MiB", "-c", "retention.bytes=256MiB", "--duration", s.lasting(lasts))
			stop()
			if got := <-samples; r != nil {
				r.growth = growth(got)
			}
			return r, err
		},
		figures: []figureOf{
			{name: "broker memory, last minute over second", unit: "times", floor: 1.1, aim: 1.02, of: func(r *outcome) *float64 { return known(r.growth) }},
			{name: "broker heap allocations", unit: "a batch", floor: 2, aim: 1, of: func(r *outcome) *float64 { return r.BrokerAllocsPerBatch }}, collecting()},
		takes: lasts + 10*time.Second, pairs: 1,
	}
}

// known returns a figure that is never 0, nil if it is.
func known(v float64) *float64 {
	if v == 0 {
		return nil
	}
	return &v
}

// watchMemory returns what a process holds that no file backs, second by
// second.
func watchMemory(ctx context.Context, pid int) (bytes []float64) {
	ticks := time.NewTicker(time.Second)
	defer ticks.Stop()
	for {
		select {
		case <-ctx.Done():
			return bytes
		case <-ticks.C:
			if _, anonymous, err := residentBytes(pid); err == nil {
				bytes = append(bytes, float64(anonymous))
			}
		}
	}
}

// growth returns the median of the last tenth of samples over that of the
// second; 0 if they are too few.
func growth(samples []float64) float64 {
	tenth := len(samples) / 10
	if tenth == 0 {
		return 0
	}
	return over(spreadOf(samples[len(samples)-tenth:]).Median, spreadOf(samples[tenth:2*tenth]).Median)
}

// restart ends a broker and starts one on its files, which b is from then on. It
// returns how long the start took.
func (s *suite) restart(b *Broker, dir string, end func() error) (took time.Duration, err error) {
	if err := end(); err != nil {
		return 0, err
	}
	began := time.Now()
	again, err := s.start(dir, "127.0.0.1:0")
	if err != nil {
		return 0, fmt.Errorf("start again: %w", err)
	}
	*b = *again
	return time.Since(began), nil
}

// broker starts one for a trial whose parts share it.
func (s *suite) broker(flags ...string) (b *Broker, dir string, err error) {
	dir, err = os.MkdirTemp(s.dir, "broker-")
	if err != nil {
		return nil, "", err
	}
	if b, err = s.start(dir, "127.0.0.1:0", append([]string{"--http", "127.0.0.1:0"}, flags...)...); err != nil {
		return nil, "", errors.Join(fmt.Errorf("start a broker: %w", err), os.RemoveAll(dir))
	}
	return b, dir, nil
}
