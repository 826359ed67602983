//go:build linux

package sim

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/teralog/teralog/client"
	"github.com/teralog/teralog/wire"
)

// A crowded broker may open fewer files than its clients would like to take.
type crowded struct {
	t    *testing.T
	dir  string
	addr string
	p    *process

	files int
}

const crowdedFiles = 400

func (c *crowded) log() string { return filepath.Join(c.dir, "log") }

func (c *crowded) start() {
	c.t.Helper()
	self, err := os.Executable()
	if err != nil {
		c.t.Fatal(err)
	}
	limited := fmt.Sprintf(`ulimit -n %d && exec "$0" "$@"`, c.files)
	c.p, err = launchAs(c.log(), "/bin/sh", "-c", limited, self, "serve", "--data-dir", filepath.Join(c.dir, "data"), "--listen", c.addr, "--reserve", "1MiB")
	if err == nil {
		err = c.p.serving(c.t.Context())
	}
	if err != nil {
		c.t.Fatalf("%v\n%s", err, lastLines(c.log(), 20))
	}
	c.addr = c.p.addr
}

// open returns how many descriptors the broker has open.
func (c *crowded) open() int {
	c.t.Helper()
	names, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", c.p.cmd.Process.Pid))
	if err != nil {
		c.t.Fatal(err)
	}
	return len(names)
}

// said waits until the log holds text.
func (c *crowded) said(text string) {
	c.t.Helper()
	for begun := time.Now(); ; time.Sleep(5 * time.Millisecond) {
		b, err := os.ReadFile(c.log())
		if err == nil && strings.Contains(string(b), text) {
			return
		}
		if time.Since(begun) > 30*time.Second {
			c.t.Fatalf("the log never says %q:\n%s", text, lastLines(c.log(), 20))
		}
	}
}

// fill sends records to every partition, enough that segments roll.
func (c *crowded) fill(p *client.Producer, partitions int) {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(c.t.Context(), time.Minute)
	defer cancel()
	failed := make(chan error, 1)
	for n := range 4 * partitions {
		r := client.Record{Topic: "crowd", Partition: int32(n % partitions), Pinned: true, Value: zeros[:]}
		if n%partitions < 4 {
			r.Value = make([]byte, 700_000)
		}
		err := p.ProduceAsync(ctx, r, func(_ client.Ack, err error) {
			if err != nil {
				select {
				case failed <- err:
				default:
				}
			}
		})
		if err != nil {
			c.t.Fatal(err)
		}
	}
	if err := p.Flush(ctx); err != nil {
		c.t.Fatalf("%v\n%s", err, lastLines(c.log(), 20))
	}
	select {
	case err := <-failed:
		c.t.Fatalf("a record was refused: %v\n%s", err, lastLines(c.log(), 20))
	default:
	}
}

// TestTooFewFiles has idle clients take as many descriptors of a broker as they
// can get: it says so at the start, goes on for those who are connected, rolls
// and fsyncs, and takes others again once there is room. No start leaves more
// files open than the one before.
func TestTooFewFiles(t *testing.T) {
	if testing.Short() {
		t.Skip("starts real processes")
	}
	const partitions = 100
	c := &crowded{t: t, dir: t.TempDir(), addr: "127.0.0.1:0", files: crowdedFiles}
	c.start()
	defer func() { c.p.kill() }()
	c.said("too few files may be open at once")
	c.said("limit=" + strconv.Itoa(crowdedFiles))
	conn, err := dial(c.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := conn.CreateTopic(t.Context(), client.TopicSpec{Name: "crowd", Partitions: partitions,
		Settings: []wire.Setting{{Key: "segment.bytes", Value: "1MiB"}}}); err != nil {
		t.Fatal(err)
	}
	p, err := conn.NewProducer(client.ProducerOptions{})
	if err != nil {
		t.Fatal(err)
	}
	c.fill(p, partitions)

	var idle []*wire.Conn
	for len(idle) <= crowdedFiles {
		nc, err := wire.Dial(t.Context(), &net.Dialer{}, c.addr, wire.DialOptions{Client: "idle"})
		if err != nil {
			break // refused
		}
		idle = append(idle, nc)
	}
	if len(idle) > crowdedFiles {
		t.Fatalf("%d clients for %d descriptors", len(idle), crowdedFiles)
	}
	if open := c.open(); open > crowdedFiles-40 {
		t.Fatalf("of %d descriptors %d are taken", crowdedFiles, open)
	}
	c.fill(p, partitions)
	for _, nc := range idle {
		nc.Close()
	}
	other, err := dial(c.addr)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := other.CreateTopic(t.Context(), client.TopicSpec{Name: "late", Partitions: 1}); err != nil {
		t.Fatal(err)
	}
	other.Close()
	c.fill(p, partitions)
	p.Close()
	if text, _ := os.ReadFile(c.log()); strings.Contains(string(text), "too many open files") {
		t.Fatalf("a file found no descriptor:\n%s", lastLines(c.log(), 20))
	}

	var first int
	for n := range 4 {
		if err := c.p.kill(); err != nil {
			t.Fatal(err)
		}
		c.start()
		switch open := c.open(); n {
		case 0:
			first = open
		default:
			if open > first+8 { // sockets of the moment
				t.Fatalf("start %d has %d files open, the first had %d", n+1, open, first)
			}
		}
	}

	// No topic is made that would take more than half of the descriptors.
	if conn, err = dial(c.addr); err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_, err = conn.CreateTopic(t.Context(), client.TopicSpec{Name: "many", Partitions: crowdedFiles/2 - partitions})
	if !errors.Is(err, wire.CodeQuota) || !strings.Contains(err.Error(), "ulimit -n") {
		t.Fatal(err)
	}
	if _, err := conn.CreateTopic(t.Context(), client.TopicSpec{Name: "many", Partitions: crowdedFiles/2 - partitions - 1}); err != nil {
		t.Fatal(err)
	}
	if p, err = conn.NewProducer(client.ProducerOptions{}); err != nil {
		t.Fatal(err)
	}
	c.fill(p, partitions)
	p.Close()
	if err := c.p.stop(); err != nil {
		t.Fatalf("%v\n%s", err, lastLines(c.log(), 20))
	}

	// Fewer descriptors than before: some partitions are not served, all else is.
	c.files -= 100
	c.start()
	c.said(fmt.Sprintf("%d partitions are hosted here, and there is room for no more", c.files/2))
	c.said(fmt.Sprintf("partitions=%d", c.files/2))
}
