package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"

	"github.com/teralog/teralog/bench/peers/measure"
)

// TestMembers has three nodes of each library replicate proposals.
func TestMembers(t *testing.T) {
	for name, open := range members {
		t.Run(name, func(t *testing.T) {
			addrs, err := freeAddrs(nodes)
			if err != nil {
				t.Fatal(err)
			}
			won := make(chan member, nodes)
			for i := range nodes {
				m, err := open(i+1, t.TempDir(), addrs)
				if err != nil {
					t.Fatal(err)
				}
				defer func() {
					if err := m.close(); err != nil {
						t.Error(err)
					}
				}()
				go func() {
					select {
					case <-m.leading():
						won <- m
					case <-t.Context().Done():
					}
				}()
			}
			r, err := load(t.Context(), <-won, task{InFlight: 4, Seconds: 0.05, Size: 100})
			if err != nil || r.Proposals < 4 || r.Latency.P50 <= 0 || r.Latency.Max < r.Latency.P99 {
				t.Fatalf("%+v, %v", r, err)
			}
		})
	}
}

// A fake is a member that answers at once, until it fails.
type fake struct {
	left atomic.Int64
	seen atomic.Int64 // bytes
}

var errFake = errors.New("lost my office")

func (f *fake) leading() <-chan struct{} {
	led := make(chan struct{})
	close(led)
	return led
}

func (f *fake) propose(ctx context.Context, slot int, data []byte) error {
	f.seen.Add(int64(len(data)))
	if f.left.Add(-1) < 0 && slot == 0 {
		return errFake
	}
	return ctx.Err()
}

func (f *fake) close() error { return nil }

func TestLoad(t *testing.T) {
	var good fake
	good.left.Store(1 << 60)
	r, err := load(t.Context(), &good, task{InFlight: 3, Seconds: 0.001, Size: 10})
	if err != nil || int64(r.Proposals)*10 != good.seen.Load() || r.Proposals < 3 {
		t.Fatalf("%+v, %v; %d bytes", r, err, good.seen.Load())
	}
	if _, err := load(t.Context(), &fake{}, task{InFlight: 3, Seconds: 60, Size: 10}); !errors.Is(err, errFake) {
		t.Fatal(err) // and not after a minute, nor that the others were cancelled
	}
}

func TestSummary(t *testing.T) {
	var took []time.Duration
	for i := 100; i > 0; i-- {
		took = append(took, time.Duration(i)*time.Microsecond)
	}
	want := result{Proposals: 100, Seconds: 2, PerSecond: 50, Latency: latency{P50: 50, P99: 99, Max: 100}}
	if got := summary(took, 2*time.Second); got != want {
		t.Fatalf("%+v, want %+v", got, want)
	}
}

func TestTask(t *testing.T) {
	f := func(ok bool, inFlight int, seconds float64, size int) {
		t.Helper()
		if err := (task{inFlight, seconds, size}).check(); (err == nil) != ok {
			t.Fatalf("%d, %g, %d: %v", inFlight, seconds, size, err)
		}
	}

	f(true, 1, 0.1, minSize)
	f(true, maxInFlight, maxSeconds, maxSize)
	f(false, 0, 1, 100)
	f(false, maxInFlight+1, 1, 100)
	f(false, 1, 0, 100)
	f(false, 1, maxSeconds+1, 100)
	f(false, 1, 1, minSize-1)
	f(false, 1, 1, maxSize+1)
}

// TestNode speaks to a node as the cluster does.
func TestNode(t *testing.T) {
	var fakes fake
	fakes.left.Store(1 << 60)
	members["fake"] = func(int, string, []string) (member, error) { return &fakes, nil }
	defer delete(members, "fake")
	in, out := io.Pipe()
	answers, said := io.Pipe()
	ended := make(chan error, 1)
	go func() {
		ended <- runNode(t.Context(), []string{"fake", "1", t.TempDir(), "a", "b", "c"}, in, said)
		said.Close()
	}()
	lines := json.NewDecoder(answers)
	next := func() (a answer) {
		t.Helper()
		if err := lines.Decode(&a); err != nil {
			t.Fatal(err)
		}
		return a
	}

	if a := next(); !a.Leader {
		t.Fatalf("%+v", a)
	}
	io.WriteString(out, `{"in_flight":2,"seconds":0.001,"size":10}`+"\n")
	if a := next(); a.Result == nil || a.Result.Proposals < 2 || a.Error != "" {
		t.Fatalf("%+v", a)
	}
	io.WriteString(out, `{"in_flight":0,"seconds":1,"size":10}`+"\n")
	if a := next(); a.Result != nil || !strings.Contains(a.Error, "0 in flight") {
		t.Fatalf("%+v", a)
	}
	out.Close()
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
}

func TestFrame(t *testing.T) {
	msg := &raftpb.Message{Type: raftpb.MsgApp.Enum(), To: new(uint64(2)), Entries: []*raftpb.Entry{{Data: []byte("x")}}}
	b, err := appendFrame(nil, msg)
	if err != nil {
		t.Fatal(err)
	}
	got, err := readFrame(bytes.NewReader(b))
	if err != nil || !proto.Equal(got, msg) {
		t.Fatalf("%v, %v", got, err)
	}
	for n := range len(b) {
		if _, err := readFrame(bytes.NewReader(b[:n])); err == nil {
			t.Fatalf("%d of %d bytes are taken for a message", n, len(b))
		}
	}
	if _, err := readFrame(bytes.NewReader([]byte{0xff, 0xff, 0xff, 0xff})); err == nil || !strings.Contains(err.Error(), "4294967295 bytes") {
		t.Fatal(err)
	}
}

func FuzzFrame(f *testing.F) {
	f.Add([]byte{2, 0, 0, 0, 8, 3})
	f.Fuzz(func(t *testing.T, b []byte) {
		if msg, err := readFrame(bytes.NewReader(b)); err == nil {
			if _, err := appendFrame(nil, msg); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// measured is a report of two contenders over two rounds, of which the second
// failed for the other.
func measured() *report {
	run := func(proposals int, rate, cpu, sync, p50 float64) sample {
		return sample{result{Proposals: proposals, PerSecond: rate, CPUSeconds: cpu, Latency: latency{P50: p50}}, sync}
	}
	r := &report{
		Skipped: []string{"somebody: not here"},
		Rows: []row{
			{InFlight: 16, Name: "teralog", Samples: []sample{run(100_000, 200, 2, 100, 300), run(100_000, 400, 4, 200, 600)}},
			{InFlight: 16, Name: "etcd", Samples: []sample{run(50_000, 100, 4, 100, 200), {}}, Failures: []string{"no leader"}},
			{InFlight: 1, Name: "etcd", Samples: []sample{run(1, 1, 1, 1, 1)}},
		},
	}
	r.sum()
	return r
}

func TestSum(t *testing.T) {
	r := measured()
	if w := r.Rows[0]; w.PerSecond != 300 || w.CPU != 3 || w.P50Syncs != 3 || w.PerSync != 0.05 || w.RateRatio.Median != 0 {
		t.Fatalf("%+v", w)
	}
	want, cpu := measure.Ratio{Median: 2, Min: 2, Max: 2}, measure.Ratio{Median: 4, Min: 4, Max: 4}
	if w := r.Rows[1]; w.PerSecond != 100 || w.RateRatio != want || w.CPURatio != cpu {
		t.Fatalf("%+v", w)
	}
	if w := r.Rows[2]; w.RateRatio.Median != 0 { // Teralog has no run of this load
		t.Fatalf("%+v", w)
	}
}

// TestFormats expects in each format what a reader must not miss.
func TestFormats(t *testing.T) {
	for name, write := range formats {
		var b bytes.Buffer
		if err := write(&b, measured()); err != nil {
			t.Fatal(err)
		}
		for _, want := range []string{"somebody: not here", "no leader"} {
			if !strings.Contains(b.String(), want) {
				t.Errorf("%s: no %q in\n%s", name, want, b.String())
			}
		}
	}
}

// TestContender takes a result from a command, and no result for none.
func TestContender(t *testing.T) {
	f := func(fault, script string) {
		t.Helper()
		r, err := contender{"x", []string{"sh", "-c", script}}.run(t.Context(), t.TempDir(), task{1, 1, 100})
		if fault == "" && (err != nil || r.Proposals != 5) || fault != "" && (err == nil || !strings.Contains(err.Error(), fault)) {
			t.Fatalf("%q: %+v, %v", script, r, err)
		}
	}

	f("", `echo '{"proposals":5,"proposals_per_second":2}'`)
	f("no proposals", `echo '{}'`)
	f("unexpected end", `:`)
	f("no such thing", `echo no such thing >&2; exit 2`)
}
