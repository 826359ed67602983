package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/teralog/teralog/bench/peers/measure"
)

// root is where Teralog's own module lies, seen from this one.
const root = "../.."

// teralog is Teralog as it is in this tree, driven by `teralog bench`.
func teralog(ctx context.Context, bin string) (system, error) {
	t := tera(filepath.Join(bin, "teralog"))
	if _, _, err := measure.Drive(ctx, "go", "build", "-C", root, "-o", string(t), "."); err != nil {
		return system{}, err
	}
	text, _, err := measure.Drive(ctx, string(t), "version")
	if err != nil {
		return system{}, err
	}
	version := "unknown"
	if words := strings.Fields(string(text)); len(words) > 1 {
		version = words[1]
	}
	return system{name: "teralog", version: version, start: t.start, ways: t.ways}, nil
}

// tera is the path of the binary.
type tera string

func (t tera) start(ctx context.Context, dir string, _ bool) (*server, error) {
	addr, err := freeAddr()
	if err != nil {
		return nil, err
	}
	return start(ctx, addr, filepath.Join(dir, "log"), string(t), "serve", "--data-dir", filepath.Join(dir, "data"), "--listen", addr)
}

func (t tera) ways(l load) []way {
	ack, flush := "written to the page cache (acks=1, flush=async)", "async"
	if l.sync {
		ack, flush = "fsynced (acks=1, flush=sync)", "sync"
	}
	args := []string{"--acks", "1", "--flush", flush, "--size", strconv.Itoa(l.size)}
	produce := func(how string, first int, more ...string) way {
		return way{
			how: "teralog bench produce: 1 producer, 1 partition, " + how, ack: ack, latency: "a record", first: first,
			drive: t.bench("produce", append(more, args...)...), held: t.held,
		}
	}
	small := produce("batches of 64 KiB, 5 in flight", min(1_000_000, maxBytes/8/l.size), "--batch", "64KiB")
	large := produce("batches of 1 MiB, 5 in flight", min(1_000_000, maxBytes/8/l.size), "--batch", "1MiB")
	switch {
	case l.consume:
		return []way{{
			how: "teralog bench consume: 1 consumer, CRC and decoding", ack: "read from the page cache",
			first: min(5_000_000, maxBytes/2/l.size),
			fill: func(ctx context.Context, s *server, records int) error {
				_, err := small.drive(ctx, s, records)
				return err
			},
			drive: t.bench("consume", args...), held: t.held,
		}}
	case l.single && l.sync:
		return []way{produce("one record at a time", 300, "--one")}
	case l.single:
		return []way{produce("one record at a time", 5_000, "--one")}
	}
	return []way{small, large}
}

func (t tera) bench(verb string, args ...string) func(context.Context, *server, int) (driven, error) {
	return func(ctx context.Context, s *server, records int) (driven, error) {
		all := append([]string{"bench", verb, "--server", s.addr, "--topic", stream}, args...)
		text, cpu, err := measure.Drive(ctx, string(t), append(all, "--records", strconv.Itoa(records), "--warm-up", "0s", "-q", "-o", "json")...)
		if err != nil {
			return driven{}, err
		}
		out, err := parseTeralog(text, records)
		out.cpu = cpu
		return out, err
	}
}

// parseTeralog reads what `teralog bench -o json` prints about a run of so many
// records.
func parseTeralog(text []byte, records int) (driven, error) {
	var r struct {
		RecordsPerSecond float64 `json:"records_per_second"`
		Latency          latency `json:"latency_us"`
	}
	if err := json.Unmarshal(text, &r); err != nil {
		return driven{}, fmt.Errorf("teralog bench: %w", err)
	}
	if r.RecordsPerSecond <= 0 {
		return driven{}, errors.New("teralog bench tells no records_per_second")
	}
	return driven{records: records, took: time.Duration(float64(records) / r.RecordsPerSecond * float64(time.Second)), latency: r.Latency}, nil
}

func (t tera) held(ctx context.Context, s *server) (n int, err error) {
	text, _, err := measure.Drive(ctx, string(t), "offsets", stream, "--servers", s.addr, "-o", "json")
	if err != nil {
		return 0, err
	}
	var topic struct {
		Partitions []struct {
			Start int `json:"start"`
			End   int `json:"end"`
		} `json:"partitions"`
	}
	if err := json.Unmarshal(text, &topic); err != nil {
		return 0, fmt.Errorf("teralog offsets: %w", err)
	}
	for _, p := range topic.Partitions {
		n += p.End - p.Start
	}
	return n, nil
}
