package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/teralog/teralog/bench/peers/measure"
)

// redisPinned is the version that the figures in BENCHMARKS.md are of. Another
// is measured as well, and named.
const redisPinned = "7.0.15"

// redisStreams is Redis with one stream and an append-only file, written by
// redis-benchmark and read by the client in resp.go.
func redisStreams(ctx context.Context, _ string) (system, error) {
	for _, name := range []string{"redis-server", "redis-benchmark"} {
		if _, err := exec.LookPath(name); err != nil {
			return system{}, fmt.Errorf("%w; on Debian: apt-get install redis-server redis-tools", err)
		}
	}
	text, _, err := measure.Drive(ctx, "redis-server", "--version")
	if err != nil {
		return system{}, err
	}
	version := "unknown"
	if _, rest, ok := strings.Cut(string(text), "v="); ok {
		version, _, _ = strings.Cut(rest, " ")
	}
	if version != redisPinned {
		version += " (not the pinned " + redisPinned + ")"
	}
	return system{name: "redis", version: version, start: startRedis, ways: redisWays}, nil
}

func startRedis(ctx context.Context, dir string, sync bool) (*server, error) {
	addr, err := freeAddr()
	if err != nil {
		return nil, err
	}
	_, port, _ := net.SplitHostPort(addr)
	policy := "everysec"
	if sync {
		policy = "always"
	}
	return start(ctx, addr, filepath.Join(dir, "log"), "redis-server", "--bind", "127.0.0.1", "--port", port, "--dir", dir,
		"--save", "", "--appendonly", "yes", "--appendfsync", policy, "--auto-aof-rewrite-percentage", "0")
}

func redisWays(l load) []way {
	ack := "written to the append-only file in the page cache; fsync every second"
	if l.sync {
		ack = "fsynced (appendfsync always)"
	}
	produce := func(clients, pipeline, first int) way {
		w := way{
			how: fmt.Sprintf("redis-benchmark XADD, %d clients, pipelines of %d", clients, pipeline), latency: "a pipeline",
			ack: ack, first: first, drive: xadd(l.size, clients, pipeline), held: xlen,
		}
		if pipeline == 1 {
			w.how, w.latency = "redis-benchmark XADD, 1 client, no pipeline", "a record"
		}
		return w
	}
	switch {
	case l.consume:
		return []way{{
			how: "XREAD COUNT 1000, 1 client", ack: "read from the server's memory",
			first: min(1_000_000, maxBytes/4/l.size),
			fill: func(ctx context.Context, s *server, records int) error {
				_, err := xadd(l.size, 8, 64)(ctx, s, records)
				return err
			},
			drive: xread, held: xlen,
		}}
	case l.single && l.sync:
		return []way{produce(1, 1, 500)}
	case l.single:
		return []way{produce(1, 1, 5_000)}
	}
	return []way{produce(8, 64, 100_000)}
}

func xadd(size, clients, pipeline int) func(context.Context, *server, int) (driven, error) {
	value := strings.Repeat("x", size)
	return func(ctx context.Context, s *server, records int) (driven, error) {
		_, port, _ := net.SplitHostPort(s.addr)
		text, cpu, err := measure.Drive(ctx, "redis-benchmark", "-h", "127.0.0.1", "-p", port, "-c", strconv.Itoa(clients), "-P", strconv.Itoa(pipeline),
			"-n", strconv.Itoa(records), "--csv", "--precision", "3", "XADD", stream, "*", "f", value)
		if err != nil {
			return driven{}, err
		}
		out, err := parseRedis(text, records)
		out.cpu = cpu
		return out, err
	}
}

// parseRedis reads the table that `redis-benchmark --csv` prints for one test
// of so many records.
func parseRedis(text []byte, records int) (driven, error) {
	cells, err := table(text)
	if err != nil {
		return driven{}, fmt.Errorf("redis-benchmark: %w", err)
	}
	if cells["rps"] <= 0 {
		return driven{}, errors.New("redis-benchmark tells no rps")
	}
	const ms = 1e3
	return driven{
		records: records,
		took:    time.Duration(float64(records) / cells["rps"] * float64(time.Second)),
		latency: latency{
			P50: cells["p50_latency_ms"] * ms, P95: cells["p95_latency_ms"] * ms,
			P99: cells["p99_latency_ms"] * ms, Max: cells["max_latency_ms"] * ms,
		},
	}, nil
}

func xlen(ctx context.Context, s *server) (int, error) {
	c, err := dialRESP(ctx, s.addr)
	if err != nil {
		return 0, err
	}
	defer c.Close()
	return c.number("XLEN", stream)
}

// xread reads the stream from its start, again and again until it has read so
// many records.
func xread(ctx context.Context, s *server, records int) (driven, error) {
	c, err := dialRESP(ctx, s.addr)
	if err != nil {
		return driven{}, err
	}
	defer c.Close()
	start, read := time.Now(), 0
	for read < records {
		n, err := c.walk(stream, 1000, records-read)
		if err != nil {
			return driven{}, err
		}
		if n == 0 {
			return driven{}, errors.New("the stream is empty")
		}
		read += n
	}
	return driven{records: read, took: time.Since(start)}, nil
}
