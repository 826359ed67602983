package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/teralog/teralog/broker"
	"github.com/teralog/teralog/client"
	"github.com/teralog/teralog/wire"
)

// startInside is a Start that runs the broker in this process. Its Kill is a
// clean stop: what dies here is not the process.
func startInside(dir, listen string, _ ...string) (*Broker, error) {
	c := broker.DefaultConfig()
	c.DataDirs, c.Listen, c.Reserve = []string{dir}, listen, 0
	env, err := broker.NewEnv(slog.New(slog.DiscardHandler))
	if err != nil {
		return nil, err
	}
	ln, err := net.Listen("tcp", listen)
	if err != nil {
		return nil, err
	}
	b, err := broker.New(c, env)
	if err != nil {
		ln.Close()
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- b.Run(ctx, ln) }()
	stop := func() error {
		cancel()
		return <-ended
	}
	return &Broker{Addr: ln.Addr().String(), PID: os.Getpid(), Kill: stop, Stop: stop}, nil
}

// verified runs a verification of n records whose log is changed by plant
// before it is read back.
func verified(t *testing.T, n string, plant func(*verification) error, args ...string) verdict {
	t.Helper()
	v := &verification{notes: io.Discard, quiet: plant}
	v.node.start = startInside
	args = append([]string{"--records", n, "--data-dir", t.TempDir(), "--partitions", "2", "--producers", "2", "--seed", "7"}, args...)
	if err := v.parse(args, io.Discard); err != nil {
		t.Fatal(err)
	}
	d, err := v.run(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func TestVerify(t *testing.T) {
	f := func(n string, records int64, reads int64, args ...string) {
		t.Helper()
		d := verified(t, n, nil, args...)
		r := d.Records
		if !d.OK || d.err() != nil || r.Sent != records || r.Acknowledged != records || r.Read != reads || r.ReadBack != records {
			t.Fatalf("%+v", d)
		}
	}
	f("3001", 3001, 3001)
	f("2000", 2000, 4000, "--consumers", "2", "--codec", "zstd", "--size", "24")
	f("1000", 1000, 0, "--consumers", "0", "--flush", "sync", "--size", "1KiB")
	f("1", 1, 1)
	f("3000", 3000, 3000, "--kill-broker", "--kill-every", "5ms")
}

// TestVerifyFinds puts each kind of fault into the log behind the broker's back.
func TestVerifyFinds(t *testing.T) {
	f := func(name string, plant func(*verification) error, want string) {
		t.Helper()
		d := verified(t, "2000", plant)
		if d.OK || d.err() == nil || !strings.Contains(strings.Join(d.Witnesses, "\n"), want) {
			t.Fatalf("%s: %+v, want %q", name, d, want)
		}
	}
	edited := func(edit func([]byte) []byte, unknown ...string) func(*verification) error {
		return func(v *verification) error { return editLog(v, edit, unknown...) }
	}
	all := []string{"clean", "recovery-points", "topics/*/*/*.index", "topics/*/*/*.timeindex", "topics/*/*/*.producers"}

	f("a lost end", edited(func(log []byte) []byte {
		return log[:len(log)-len(last(batchesOf(t, log)))]
	}, all...), "is gone, at the end of the log")
	f("a changed bit", edited(func(log []byte) []byte {
		log[len(log)/2] ^= 4
		return log
	}), "reading back: ")
	f("another order", edited(func(log []byte) []byte {
		bs := batchesOf(t, log)
		a, b := bs[0], bs[1]
		base := a.BaseOffset()
		b.Stamp(base, b.LeaderEpoch(), b.AppendTime(), false)
		a.Stamp(b.NextOffset(), a.LeaderEpoch(), a.AppendTime(), false)
		swapped := append(append([]byte(nil), b...), a...)
		return append(swapped, log[len(swapped):]...)
	}, all...), "A1 in ")
	f("a copy", func(v *verification) error { return again(v, func(value []byte) []byte { return value }) }, "A2 in ")
	f("a record nobody sent", func(v *verification) error {
		return again(v, func([]byte) []byte { return AppendValue(nil, ID{v.ledger.run, 9, 0}, 100) })
	}, "which nobody sent")
	f("a damaged value", func(v *verification) error {
		return again(v, func(value []byte) []byte { return append(value[:len(value)-1], value[len(value)-1]^1) })
	}, "A3 in ")
}

// editLog changes the first partition's log while the broker is down, and takes
// away the files that know better.
func editLog(v *verification, edit func([]byte) []byte, unknown ...string) error {
	if err := v.node.broker.Stop(); err != nil {
		return err
	}
	for _, pattern := range unknown {
		names, _ := filepath.Glob(filepath.Join(v.node.dir, pattern))
		for _, n := range names {
			if err := os.Remove(n); err != nil {
				return err
			}
		}
	}
	name := filepath.Join(v.node.dir, "topics", v.name, "partition-0000", "00000000000000000000.log")
	log, err := os.ReadFile(name)
	if err != nil {
		return err
	}
	if err := os.WriteFile(name, edit(log), 0o600); err != nil {
		return err
	}
	return v.node.begin(v.node.broker.Addr)
}

// again produces a record made of the first one's value.
func again(v *verification, change func([]byte) []byte) error {
	ctx := context.Background()
	x, err := v.c.NewConsumer(client.ConsumerOptions{})
	if err != nil {
		return err
	}
	defer x.Close()
	if err := x.Assign(ctx, v.name, 0, client.Range{}); err != nil {
		return err
	}
	ms, err := x.Poll(ctx)
	if err != nil {
		return err
	}
	p, err := v.c.NewProducer(client.ProducerOptions{})
	if err != nil {
		return err
	}
	defer p.Close()
	_, err = p.Produce(ctx, client.Record{Topic: v.name, Pinned: true, Value: change(ms[0].Value)})
	return err
}

func batchesOf(t *testing.T, log []byte) (bs []wire.Batch) {
	t.Helper()
	for b, err := range wire.Batches(log) {
		if err != nil {
			t.Fatal(err)
		}
		bs = append(bs, b)
	}
	if len(bs) < 2 {
		t.Fatalf("%d batches", len(bs))
	}
	return bs
}

func last[T any](s []T) T { return s[len(s)-1] }

// TestVerifyCommand runs the command: its flags, what it prints, how it ends.
func TestVerifyCommand(t *testing.T) {
	run := func(args ...string) (string, error) {
		var out bytes.Buffer
		err := verify(t.Context(), args, startInside, nil, &out, io.Discard)
		return out.String(), err
	}
	f := func(want string, args ...string) {
		t.Helper()
		out, err := run(args...)
		if coded := (usage{}); !errors.As(err, &coded) || !strings.Contains(err.Error(), want) || out != "" {
			t.Fatalf("%q: %q, %v; want %q", args, out, err, want)
		}
	}
	f("--records 0: it is 1 to", "--records", "0")
	f("--size 23: it is 24 to 65536", "--size", "23")
	f("--partitions 2000: it is", "--partitions", "2000")
	f("did you mean --records?", "--recrods", "1")
	f("unexpected argument", "now")
	f("--kill-broker and --data-dir are for a broker started here", "--kill-broker", "--server", "127.0.0.1:1")
	f("table, json", "-o", "xml")

	out, err := run("--help")
	if err != nil || !strings.HasPrefix(out, "Usage: teralog bench verify") {
		t.Fatalf("%q, %v", out, err)
	}
	out, err = run("--records", "100")
	if err != nil || !strings.Contains(out, "100 records, 100 acknowledged, 0 failed") || !strings.Contains(out, "no anomaly") {
		t.Fatalf("%q, %v", out, err)
	}
	out, err = run("--records", "100", "-o", "json")
	var d struct {
		OK      bool
		Records struct {
			ReadBack int64 `json:"read_back"`
		}
		Memory int64 `json:"peak_memory_bytes"`
	}
	if err := errors.Join(err, json.Unmarshal([]byte(out), &d)); err != nil || !d.OK || d.Records.ReadBack != 100 || d.Memory < 1<<20 {
		t.Fatalf("%q, %v", out, err)
	}
}

// TestVerdict checks what the end says.
func TestVerdict(t *testing.T) {
	f := func(d verdict, want string) {
		t.Helper()
		var out bytes.Buffer
		err := d.report(&out, false)
		if text := out.String(); want == "" && (err != nil || !strings.Contains(text, "no anomaly")) || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Fatalf("%v, %s; want %q", err, text, want)
		}
	}
	f(verdict{}, "")
	f(verdict{Witnesses: []string{"stuck"}}, "stuck")
	f(verdict{Witnesses: []string{"A1 here"}, Counts: map[string]int{"A1": 40, "A6": 2}}, "42 anomalies, the first: A1 here")
	f(verdict{Records: tally{Sent: 10, Failed: 1, Doubtful: 2}, failure: errors.New("why")}, "3 of 10 records were not acknowledged: why")
}
