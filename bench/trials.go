package bench

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/teralog/teralog/wire"
)

// An outcome is what one run of one side measured: a result, and what a result
// has no place for.
type outcome struct {
	Result
	each    float64       // bytes of the broker's memory for each of something
	growth  float64       // of the broker's memory: late over early
	start   time.Duration // after a clean stop, until it was ready
	restart time.Duration // after a kill
	held    float64       // bytes of memory of a broker just started
}

// A side runs an engine or a limit once.
type side func(ctx context.Context, s *suite) (*outcome, error)

// A trial is a workload and the limit it is compared with. The two are run in
// turn.
type trial struct {
	section, name string
	against       string // what the limit is
	limit, engine side   // without a limit the figures stand for themselves
	figures       []figureOf
	takes         time.Duration // about, for one pair
	pairs         int           // at most; 0: as many as the suite makes
	fresh         int64         // bytes of new pages that one run takes, if that matters
	quick         bool          // part of the smoke form
}

// The figures that many trials have.

func throughput(floor, aim float64) figureOf {
	return figureOf{name: "throughput", unit: "MB/s", higher: true, floor: floor, aim: aim, of: func(r *outcome) *float64 { return &r.MBPerSecond }}
}

func brokerCPU(floor, aim float64) figureOf {
	return figureOf{name: "broker CPU", unit: "s/GB", floor: floor, aim: aim, of: func(r *outcome) *float64 { return r.BrokerCPUPerGB }}
}

func latencyAt(name string, floor, aim float64, of func(*Latency) float64) figureOf {
	return figureOf{name: name, unit: "µs", floor: floor, aim: aim, of: func(r *outcome) *float64 {
		if r.Latency == nil {
			return nil
		}
		return ratio(of(r.Latency), 1)
	}}
}

func p50(l *Latency) float64  { return l.P50 }
func p99(l *Latency) float64  { return l.P99 }
func p999(l *Latency) float64 { return l.P999 }

// inMillis turns microseconds into milliseconds.
func (f figureOf) inMillis() figureOf {
	of := f.of
	f.unit, f.of = "ms", func(r *outcome) *float64 {
		v := of(r)
		if v == nil {
			return nil
		}
		return ratio(*v, 1e3)
	}
	return f
}

const (
	sectionProduce = "Produce"
	sectionConsume = "Consume"
	sectionLatency = "Latency"
	sectionSync    = "Flush before every acknowledgement"
	sectionCrowd   = "Many readers, connections and partitions"
	sectionSteady  = "Steady state"
	sectionRestart = "Restart"
	sectionLong    = "Long runs"
)

// trials returns what `bench suite` runs, in order.
func trials() []trial {
	var ts []trial
	for _, batch := range []int64{16 << 10, 64 << 10, 1 << 20} {
		for _, record := range []int64{100, 1 << 10} {
			for _, partitions := range []int{1, 12} {
				ts = append(ts, produceTrial(shape{record, batch, partitions}))
			}
		}
	}
	for _, record := range []int64{100, 1 << 10} {
		for _, consumers := range []int{1, 10} {
			ts = append(ts, consumeTrial(record, consumers))
		}
	}
	ts = append(ts, latencyTrials()...)
	ts = append(ts, openLoop(100, 1_000_000, 30*time.Second), openLoop(1<<10, 250_000, 30*time.Second))
	ts = append(ts, syncTrials()...)
	return append(ts, crowdTrials()...)
}

// longTrials returns what `bench suite --long` runs.
func longTrials() []trial {
	all := []trial{
		openLoop(100, 1_000_000, 5*time.Minute), openLoop(1<<10, 250_000, 5*time.Minute),
		coldTrial(), sustainedTrial(), scaleTrial(), idlePartitionsTrial(), soakTrial(),
	}
	return append(all, greedyTrials()...)
}

// windows is how many batches of a size are in flight: enough that neither side
// waits for the other, few enough that their bytes stay in the caches.
var windows = map[int64]int64{16 << 10: 16, 64 << 10: 8, 1 << 20: 3}

// inFlight is how many batches of one partition a producer has on their way at
// most, so a limit with one partition has no more.
const inFlight = 5

// windowBytes is what --window must be for so many batches to be in flight.
func windowBytes(record, batch, batches int64) string {
	l := load{size: record, batch: batch}
	return text(batches * max(batch/(l.recordBytes()+8), 1) * l.cost())
}

// valuesOf turns a probe's round, which counts whole batches, into one
// that counts the records' values as the engine's does.
func valuesOf(r Round, record, batch int64) *outcome {
	b := buildBatch(make([]byte, batch), sampleValue(int(record)))
	n, err := walk(b)
	if err != nil {
		panic(fmt.Sprintf("BUG: the probe's own batch: %v", err))
	}
	share := float64(int64(n)*record) / float64(len(b))
	return &outcome{Result: Result{MBPerSecond: r.MBPerSecond * share, BrokerCPUPerGB: ratio(r.ServerCPU, share), Latency: &Latency{P50: r.P50, P99: r.P99}}}
}

// A shape is what load and limit have in common.
type shape struct {
	record, batch int64
	partitions    int
}

func (a shape) flags(more ...string) []string {
	return append([]string{"--size", text(a.record), "--batch", text(a.batch), "--partitions", text(a.partitions)}, more...)
}

func (a shape) String() string {
	return fmt.Sprintf("%s, batches of %s, %s", spaced(a.record), spaced(a.batch), counted(a.partitions, "partition"))
}

// text writes a number as a flag takes it.
func text[T int | int64](n T) string { return strconv.FormatInt(int64(n), 10) }

// spaced writes bytes as text does, 64 KiB, and not as a flag does.
func spaced(bytes int64) string {
	s := wire.FormatSize(bytes)
	if digits := strings.TrimRight(s, "KMGTiB"); digits != s {
		return digits + " " + s[len(digits):]
	}
	return s + " B"
}

// counted writes a number of things.
func counted(n int, thing string) string {
	if n != 1 {
		thing += "s"
	}
	return group(int64(n)) + " " + thing
}

func produceTrial(a shape) trial {
	window := windows[a.batch]
	limitWindow := window
	if a.partitions == 1 {
		limitWindow = min(window, inFlight)
	}
	bytes := min(max(a.batch*12<<10, 400e6), 1e9)
	low, aim, cpuAim := 0.6, 0.85, 1.25
	if a.batch == 16<<10 {
		low, aim, cpuAim = 0.5, 0.7, 1.4
	}
	return trial{
		section: sectionProduce, name: a.String(), against: "receive, check, one write a read, into the page cache",
		limit: func(ctx context.Context, s *suite) (*outcome, error) {
			r, err := probeProduce(ctx, s.dir, int(a.batch), int(a.record), int(limitWindow), 1, s.scaled(bytes))
			return valuesOf(r, a.record, a.batch), err
		},
		engine: func(ctx context.Context, s *suite) (*outcome, error) {
			return s.bench(ctx, "produce", a.flags("--acks", "1", "--window", windowBytes(a.record, a.batch, window), "--warm-up", "300ms",
				"--records", text(s.scaled(bytes)/a.record))...)
		},
		figures: []figureOf{throughput(low, aim), brokerCPU(2, cpuAim)},
		fresh:   bytes + 500e6, // and what is moved to warm up
		takes:   7500 * time.Millisecond, pairs: 3, quick: a.batch == 64<<10 && a.partitions == 12,
	}
}

func consumeTrial(record int64, consumers int) trial {
	a := shape{record, 64 << 10, 12}
	const fetch, bytes = 1 << 20, 4e9
	return trial{
		section: sectionConsume, name: fmt.Sprintf("%s, %s", counted(consumers, "consumer"), a), against: "sendfile of a cached file, check and decode",
		limit: func(ctx context.Context, s *suite) (*outcome, error) {
			r, err := probeConsume(ctx, s.dir, fetch, int(record), consumers, s.scaled(bytes))
			return valuesOf(r, record, backlogBatch), err
		},
		engine: func(ctx context.Context, s *suite) (*outcome, error) {
			return s.bench(ctx, "consume", a.flags("--consumers", text(consumers), "--backlog", text(s.scaled(1<<30)), "--warm-up", "500ms",
				"--duration", s.lasting(2*time.Second))...)
		},
		figures: []figureOf{throughput(0.5, 0.7), brokerCPU(2.5, 1.5)},
		takes:   8 * time.Second, quick: consumers == 1,
	}
}

func latencyTrials() []trial {
	return []trial{{
		section: sectionLatency, name: "one record of 100 B in flight, acks=1", against: "round trip of 100 bytes",
		limit: func(ctx context.Context, s *suite) (*outcome, error) { return pinged(ctx, s.scaled(40_000)) },
		engine: func(ctx context.Context, s *suite) (*outcome, error) {
			return s.bench(ctx, "produce", "--one", "--size", "100", "--acks", "1", "--warm-up", "500ms", "--records", text(s.scaled(40_000)))
		},
		figures: []figureOf{latencyAt("P50", 3, 1.8, p50), latencyAt("P99", 4, 2.5, p99)}, takes: 7 * time.Second, quick: true,
	}, {
		section: sectionLatency, name: "end to end to a parked consumer on an idle broker, 100 B",
		engine: func(ctx context.Context, s *suite) (*outcome, error) {
			return s.bench(ctx, "e2e", "--size", "100", "--acks", "1", "--warm-up", "500ms", "--records", text(s.scaled(20_000)))
		},
		figures: []figureOf{latencyAt("P50", 200, 110, p50)}, takes: 6 * time.Second, quick: true,
	}}
}

func pinged(ctx context.Context, n int64) (*outcome, error) {
	r, err := probePing(ctx, 100, int(n))
	return &outcome{Result: Result{Latency: &Latency{P50: r.P50, P99: r.P99}}}, err
}

// openLoop asks for a rate while consumers follow and segments roll and expire.
func openLoop(record, rate int64, lasts time.Duration) trial {
	const kept = 12 * (256 + 2*64) << 20 // until retention makes room for what comes
	t := trial{
		section: sectionLatency, name: fmt.Sprintf("%s records/s of %s asked for, 12 partitions, 1 tail, %s", group(rate), spaced(record), wire.FormatDuration(lasts)),
		engine: func(ctx context.Context, s *suite) (*outcome, error) {
			return s.bench(ctx, "produce", "--rate", text(s.slowed(rate)), "--size", text(record), "--partitions", "12", "--acks", "1", "--tails", "1",
				"-c", "segment.bytes=64MiB", "-c", "retention.bytes=256MiB", "--warm-up", "2s", "--duration", s.lasting(lasts))
		},
		figures: []figureOf{
			{name: "sent rate", unit: "of asked", higher: true, floor: 0.999, aim: 0.999, of: func(r *outcome) *float64 {
				if r.AskedRate == nil {
					return nil
				}
				return ratio(r.RecordsPerSecond, float64(*r.AskedRate))
			}},
			latencyAt("ack P99", 10, 5, p99).inMillis(), latencyAt("ack P99.9", 50, 20, p999).inMillis()},
		takes: lasts + 10*time.Second, pairs: 1, quick: record == 100 && lasts < time.Minute, fresh: min(kept, record*rate*int64(lasts/time.Second)),
	}
	if lasts >= time.Minute {
		t.section = sectionLong
	}
	return t
}

func syncTrials() []trial {
	const record, batch = 100, 64 << 10
	flushed := func(partitions, producers int, window int64) side {
		return func(ctx context.Context, s *suite) (*outcome, error) {
			return s.bench(ctx, "produce", shape{record, batch, partitions}.flags("--flush", "sync", "--producers", text(producers),
				"--window", windowBytes(record, batch, window), "--warm-up", "500ms", "--duration", s.lasting(2*time.Second))...)
		}
	}
	return []trial{{
		section: sectionSync, name: "one record of 100 B in flight", against: "fdatasync of 4 KiB, and a round trip of 100 bytes",
		limit: func(ctx context.Context, s *suite) (*outcome, error) {
			r, err := pinged(ctx, s.scaled(10_000))
			if err != nil {
				return nil, err
			}
			disk, err := probeSync(ctx, s.dir, 4<<10, int(s.scaled(2_000)))
			r.Latency.P50 += disk.P50
			return r, err
		},
		engine: func(ctx context.Context, s *suite) (*outcome, error) {
			return s.bench(ctx, "produce", "--one", "--flush", "sync", "--size", "100", "--warm-up", "500ms", "--records", text(s.scaled(4_000)))
		},
		figures: []figureOf{latencyAt("P50", 1.6, 1.2, p50)}, takes: 6 * time.Second, quick: true,
	}, {
		section: sectionSync, name: "8 batches of 64 KiB in flight, 2 producers, 1 partition", against: "receive, check, write, fdatasync, receiving while syncing",
		limit: func(ctx context.Context, s *suite) (*outcome, error) {
			r, err := probeSyncProduce(ctx, s.dir, batch, record, 4, 2, s.scaled(600e6))
			return valuesOf(r, record, batch), err
		},
		engine:  flushed(1, 2, 4),
		figures: []figureOf{throughput(0.4, 0.8)}, takes: 8 * time.Second,
	}, {
		section: sectionSync, name: "16 partitions, 8 batches of 64 KiB in flight for each", against: "one partition, 8 batches in flight",
		limit: flushed(1, 2, 4), engine: flushed(16, 2, 64),
		figures: []figureOf{throughput(0.5, 0.9)}, takes: 8 * time.Second,
	}}
}
