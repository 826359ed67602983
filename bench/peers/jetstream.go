package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/teralog/teralog/bench/peers/measure"
)

// jetStream is NATS JetStream with one stream of one replica in files, driven
// by `nats bench`. Server and tool are built from the versions in go.mod.
func jetStream(ctx context.Context, bin string) (system, error) {
	if _, _, err := measure.Drive(ctx, "go", "build", "-o", bin, "github.com/nats-io/nats-server/v2", "github.com/nats-io/natscli/nats"); err != nil {
		return system{}, err
	}
	j := &jet{server: filepath.Join(bin, "nats-server"), tool: filepath.Join(bin, "nats")}
	server, _, err := measure.Drive(ctx, j.server, "--version")
	if err != nil {
		return system{}, err
	}
	tool, _, err := measure.Drive(ctx, j.tool, "--version")
	if err != nil {
		return system{}, err
	}
	version := fmt.Sprintf("%s, nats %s", strings.TrimPrefix(lastWord(server), "v"), lastWord(tool))
	return system{name: "jetstream", version: version, start: j.start, ways: j.ways}, nil
}

func lastWord(out []byte) string {
	words := strings.Fields(string(out))
	if len(words) == 0 {
		return "unknown"
	}
	return words[len(words)-1]
}

type jet struct{ server, tool string }

const stream = "peers"

func (j *jet) start(ctx context.Context, dir string, sync bool) (*server, error) {
	addr, err := freeAddr()
	if err != nil {
		return nil, err
	}
	interval := "2m" // the default
	if sync {
		interval = "always"
	}
	conf := filepath.Join(dir, "nats.conf")
	text := fmt.Sprintf("listen: %q\njetstream { store_dir: %q, sync_interval: %s }\n", addr, filepath.Join(dir, "data"), interval)
	if err := os.WriteFile(conf, []byte(text), 0o644); err != nil {
		return nil, err
	}
	s, err := start(ctx, addr, filepath.Join(dir, "log"), j.server, "-c", conf)
	if err != nil {
		return nil, err
	}
	if _, _, err := j.nats(ctx, s, "stream", "add", stream, "--subjects", stream, "--storage", "file", "--replicas", "1",
		"--allow-batch", "--allow-fast", "--defaults"); err != nil {
		return nil, errors.Join(err, s.stop())
	}
	return s, nil
}

func (j *jet) nats(ctx context.Context, s *server, args ...string) (out []byte, cpu time.Duration, err error) {
	return measure.Drive(ctx, j.tool, append([]string{"--no-context", "--server", "nats://" + s.addr}, args...)...)
}

func (j *jet) ways(l load) []way {
	ack := "written to the page cache; fsync every 2 minutes"
	if l.sync {
		ack = "fsynced (sync_interval always)"
	}
	produce := func(how, latency string, first int, args ...string) way {
		return way{
			how: "nats bench js pub " + how, ack: ack, latency: latency, first: first,
			drive: j.bench(append([]string{"pub"}, args...), stream, "--size", strconv.Itoa(l.size)+"B"),
			held:  j.held,
		}
	}
	fast := produce("fast, an ack every 5,000, 2 outstanding", "", 50_000, "fast", "--batch", "5000", "--max-outstanding-acks", "2")
	switch {
	case l.consume:
		return []way{{
			how: "nats bench js consume: callback, no acks, pulls of 5,000", ack: "read from the server's cache or the page cache",
			first: min(1_000_000, maxBytes/4/l.size), once: true,
			fill: func(ctx context.Context, s *server, records int) error {
				_, err := fast.drive(ctx, s, records)
				return err
			},
			drive: func(ctx context.Context, s *server, records int) (driven, error) {
				d, err := j.bench([]string{"consume"}, "--acks", "none", "--batch", "5000")(ctx, s, records)
				if err == nil { // the tool's consumer would go on where it ended
					_, _, err = j.nats(ctx, s, "consumer", "rm", stream, "nats-bench", "--force")
				}
				return d, err
			},
			held: j.held,
		}}
	case l.single && l.sync:
		return []way{produce("sync, 1 client", "a record", 300, "sync")}
	case l.single:
		return []way{produce("sync, 1 client", "a record", 2_000, "sync")}
	case l.sync: // what is not an atomic batch is synced message by message
		return []way{produce("atomic, batches of 1,000", "a batch", 10_000, "atomic", "--batch", "1000")}
	}
	return []way{fast, produce("async, 5,000 in flight", "a batch", 50_000, "async", "--batch", "5000")}
}

func (j *jet) bench(verb []string, args ...string) func(context.Context, *server, int) (driven, error) {
	return func(ctx context.Context, s *server, records int) (driven, error) {
		csv := filepath.Join(filepath.Dir(s.log), "bench.csv")
		all := append([]string{"bench", "js"}, verb...)
		all = append(all, args...)
		all = append(all, "--stream", stream, "--msgs", strconv.Itoa(records), "--no-progress", "--csv", csv)
		_, cpu, err := j.nats(ctx, s, all...)
		if err != nil {
			return driven{}, err
		}
		b, err := os.ReadFile(csv)
		if err != nil {
			return driven{}, err
		}
		out, err := parseNATS(b)
		out.records, out.cpu = records, cpu
		return out, err
	}
}

// parseNATS reads the table that `nats bench --csv` writes for one client. Its
// MsgCount counts some messages twice and is left alone.
func parseNATS(text []byte) (driven, error) {
	cells, err := table(text)
	if err != nil {
		return driven{}, fmt.Errorf("nats bench: %w", err)
	}
	if cells["DurationSecs"] <= 0 {
		return driven{}, errors.New("nats bench tells no DurationSecs")
	}
	return driven{
		took: time.Duration(cells["DurationSecs"] * float64(time.Second)),
		latency: latency{
			P50: cells["P50LatencyMicroSecs"], P99: cells["P99LatencyMicroSecs"],
			P999: cells["P99.9LatencyMicroSecs"], Max: cells["MaxLatencyMicroSecs"],
		},
	}, nil
}

func (j *jet) held(ctx context.Context, s *server) (int, error) {
	text, _, err := j.nats(ctx, s, "stream", "info", stream, "--json")
	if err != nil {
		return 0, err
	}
	var answer struct {
		State struct {
			Messages int `json:"messages"`
		} `json:"state"`
	}
	if err := json.Unmarshal(text, &answer); err != nil {
		return 0, fmt.Errorf("nats stream info: %w", err)
	}
	return answer.State.Messages, nil
}
