//go:build linux

package sim

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/teralog/teralog/client"
	"github.com/teralog/teralog/wire"
)

// TestSmallMemory has a thousand readers catch up from everywhere in a backlog, a
// producer beside them, on a broker whose control group may hold 256 MiB, what it
// has of the page cache included: far less than the backlog. It must get through
// without being killed, since all that requests and answers take is bounded.
func TestSmallMemory(t *testing.T) {
	asked(t)
	const limit, backlog, readers, each = 256 << 20, 400 << 20, 1000, 1 << 20
	dir := t.TempDir()
	log := filepath.Join(dir, "broker.log")
	p, err := launch(log, "serve", "--data-dir", filepath.Join(dir, "data"), "--listen", "127.0.0.1:0", "--reserve", "1MiB")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.kill() })
	group := confine(t, p, limit)
	if err := p.serving(t.Context()); err != nil {
		t.Fatalf("%v\n%s", err, lastLines(log, 20))
	}
	c, err := dial(p.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.CreateTopic(t.Context(), client.TopicSpec{Name: "backlog", Settings: []wire.Setting{{Key: "segment.bytes", Value: "64MiB"}}}); err != nil {
		t.Fatal(err)
	}
	out, err := c.NewProducer(client.ProducerOptions{BufferBytes: 4 << 20})
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	value := make([]byte, 8<<10)
	give := func() error {
		return out.ProduceAsync(t.Context(), client.Record{Topic: "backlog", Value: value}, func(_ client.Ack, err error) {
			if err != nil {
				t.Error(err)
			}
		})
	}
	const records = backlog / (8 << 10)
	for range records {
		if err := give(); err != nil {
			t.Fatal(err)
		}
	}
	if err := out.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}

	var going sync.WaitGroup
	var read atomic.Int64
	for n := range readers {
		going.Go(func() {
			at := client.At(wire.Offset(rand.Int64N(records - each/int64(len(value)))))
			got, err := readSome(t, c, client.Range{From: at}, each)
			if read.Add(int64(got)); err != nil {
				t.Errorf("reader %d: %v after %d B", n, err, got)
			}
		})
	}
	done := make(chan struct{})
	go func() { going.Wait(); close(done) }()
	for beside := 0; ; beside++ {
		select {
		case <-done:
			t.Logf("%d MB read, %d records written meanwhile, %s", read.Load()/1e6, beside, group.said(t))
		case <-p.ended:
			t.Fatalf("the broker ended: %v; %s\n%s", p.err, group.said(t), lastLines(log, 20))
		default:
			if err := give(); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Millisecond) // a rate, not a wait for anything
			continue
		}
		break
	}
	if group.kills(t) > 0 {
		t.Fatal(group.said(t))
	}
}

// readSome reads so many bytes of values with a consumer that holds little.
func readSome(t *testing.T, c *client.Client, from client.Range, bytes int) (got int, err error) {
	x, err := c.NewConsumer(client.ConsumerOptions{BufferBytes: 256 << 10, PartitionBytes: 128 << 10})
	if err != nil {
		return 0, err
	}
	defer x.Close()
	if err := x.Assign(t.Context(), "backlog", 0, from); err != nil {
		return 0, err
	}
	for got < bytes {
		ms, err := x.Poll(t.Context())
		if err != nil {
			return got, err
		}
		for i := range ms {
			got += len(ms[i].Value)
		}
	}
	return got, nil
}

// A memoryGroup is a control group with a bound of memory, of either version.
type memoryGroup struct{ dir, events, most string }

// confine puts p into a new one until the test ends, and p with it. It skips the
// test where there are none.
func confine(t *testing.T, p *process, bytes int64) memoryGroup {
	t.Helper()
	name := fmt.Sprintf("teralog-test-%d", os.Getpid())
	one, two := filepath.Join("/sys/fs/cgroup/memory", name), filepath.Join("/sys/fs/cgroup", name)
	g, bound := memoryGroup{one, "memory.oom_control", "memory.max_usage_in_bytes"}, "memory.limit_in_bytes"
	if _, err := os.Stat(filepath.Dir(one)); err != nil {
		g, bound = memoryGroup{two, "memory.events", "memory.peak"}, "memory.max"
	}
	if err := os.Mkdir(g.dir, 0o755); err != nil {
		t.Skip(err)
	}
	t.Cleanup(func() {
		p.kill()
		for range 100 { // it leaves the group only once it is gone
			if syscall.Rmdir(g.dir) == nil {
				return
			}
			time.Sleep(10 * time.Millisecond)
		}
		t.Errorf("%s is left", g.dir)
	})
	for file, v := range map[string]int64{bound: bytes, "cgroup.procs": int64(p.cmd.Process.Pid)} {
		if err := os.WriteFile(filepath.Join(g.dir, file), fmt.Append(nil, v), 0o644); err != nil {
			t.Skip(err)
		}
	}
	return g
}

// kills returns how many processes of the group the kernel has killed.
func (g memoryGroup) kills(t *testing.T) (n int) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(g.dir, g.events))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(line, "oom_kill "); ok {
			fmt.Sscan(rest, &n)
		}
	}
	return n
}

func (g memoryGroup) said(t *testing.T) string {
	most, _ := os.ReadFile(filepath.Join(g.dir, g.most))
	return fmt.Sprintf("at most %s B in memory, %d killed", strings.TrimSpace(string(most)), g.kills(t))
}
