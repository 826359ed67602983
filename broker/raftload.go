package broker

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"

	"github.com/teralog/teralog/storage"
	"github.com/teralog/teralog/wire"
)

const raftLoadHelp = `Usage: teralog bench raft [flags]

Runs three processes on loopback that keep a Raft log as brokers keep their
metadata, every write synced, and proposes in a closed loop in the one that
leads. With --kills it kills the leader that often instead and says how long
there was none. Files lie below --dir and are removed.

  teralog bench raft --in-flight 256 --seconds 3
  teralog bench raft --kills 100

  --in-flight N   proposals under way at once (default 16)
  --seconds S     how long, after half of that to warm up (default 3)
  --size N        bytes of a proposal (default 100)
  --kills N       kill the leader so often with SIGKILL
  --dir DIR       where the files lie (default the system's temporary folder)
  -o FORMAT       text or json (default text)
`

// RaftLoad measures consensus over the store and the links that brokers use: the
// command `teralog bench raft`.
func RaftLoad(ctx context.Context, args []string, in io.Reader, out, notes io.Writer) error {
	if len(args) > 0 && args[0] == "node" {
		return runLoadNode(ctx, args[1:], in, out, notes)
	}
	flags := flag.NewFlagSet("raft", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	var o loadOrder
	flags.IntVar(&o.InFlight, "in-flight", 16, "")
	flags.Float64Var(&o.Seconds, "seconds", 3, "")
	flags.IntVar(&o.Size, "size", 100, "")
	kills := flags.Int("kills", 0, "")
	dir := flags.String("dir", "", "")
	format := flags.String("o", "text", "")
	switch err := flags.Parse(args); {
	case errors.Is(err, flag.ErrHelp):
		_, err := io.WriteString(out, raftLoadHelp)
		return err
	case err != nil:
		return &exitError{exitUsage, err}
	case o.InFlight < 1 || o.InFlight > 10_000 || o.Seconds <= 0 || o.Size < 1 || o.Size > 1<<20 || *kills < 0 || *format != "text" && *format != "json":
		return &exitError{exitUsage, errors.New("a flag is out of its bounds; see teralog bench raft --help")}
	}
	root, err := os.MkdirTemp(*dir, "raft-load-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(root)
	fdatasync, err := syncCost(root)
	if err != nil {
		return err
	}
	c, err := startLoad(ctx, root, notes)
	if err != nil {
		return err
	}
	defer c.close()
	if *kills > 0 {
		return c.failOver(ctx, *kills, out, *format == "json")
	}
	r, err := c.load(ctx, o)
	if err != nil {
		return err
	}
	r.Sync = fdatasync
	if *format == "json" {
		return json.NewEncoder(out).Encode(r)
	}
	_, err = fmt.Fprintf(out, "%d in flight: %.0f proposals/s, p50 %d µs, p99 %d µs, max %d µs; %.1f CPU µs and 1/%.0f sync of the leader each; one fdatasync %.0f µs\n",
		o.InFlight, r.PerSecond, r.Latency["p50"], r.Latency["p99"], r.Latency["max"], r.CPU*1e6/float64(max(r.Proposals, 1)), float64(r.Proposals)/float64(max(r.Syncs, 1)), r.Sync)
	return err
}

// syncCost returns the median of what a write of one page at a file's end and
// its fdatasync take, in µs.
func syncCost(dir string) (float64, error) {
	f, err := storage.OS().Open(dir+"/probe", storage.Create)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	var took []time.Duration
	for i := range int64(200) {
		began := time.Now()
		if _, err := f.WriteAt(make([]byte, 4096), i*4096); err != nil {
			return 0, err
		}
		if err := f.Sync(); err != nil {
			return 0, err
		}
		took = append(took, time.Since(began))
	}
	slices.Sort(took)
	return float64(took[len(took)/2].Nanoseconds()) / 1000, nil
}

// A loadCluster is three child processes.
type loadCluster struct {
	root, peers string
	notes       io.Writer
	nodes       [3]*loadChild
	heard       chan heard
}

type loadChild struct {
	cmd    *exec.Cmd
	in     io.WriteCloser
	killed bool
}

// heard is a line that a child printed; "" is its end.
type heard struct {
	node int
	line string
	at   time.Time
}

func startLoad(ctx context.Context, root string, notes io.Writer) (*loadCluster, error) {
	c := &loadCluster{root: root, notes: notes, heard: make(chan heard, 1024)}
	var peers []PeerAddr
	for i := range c.nodes {
		ln, err := net.Listen("tcp", "127.0.0.1:0") // a port that is free
		if err != nil {
			return nil, err
		}
		peers = append(peers, PeerAddr{wire.NodeID(i + 1), ln.Addr().String()})
		ln.Close()
	}
	c.peers = joinPeers(peers)
	for i := range c.nodes {
		if err := c.start(ctx, i); err != nil {
			c.close()
			return nil, err
		}
	}
	return c, nil
}

func (c *loadCluster) start(ctx context.Context, i int) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, self, "bench", "raft", "node", "--node", fmt.Sprint(i+1), "--peers", c.peers, "--dir", fmt.Sprintf("%s/%d", c.root, i+1))
	cmd.Stderr = c.notes
	in, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	c.nodes[i] = &loadChild{cmd: cmd, in: in}
	go func() {
		for lines := bufio.NewScanner(out); lines.Scan(); {
			c.heard <- heard{i, lines.Text(), time.Now()}
		}
		c.heard <- heard{i, "", time.Now()}
	}()
	return nil
}

// close ends all children.
func (c *loadCluster) close() {
	for _, n := range c.nodes {
		if n != nil {
			n.in.Close()
			n.cmd.Process.Kill()
			n.cmd.Wait()
		}
	}
}

// loadWait bounds how long a child is waited for.
const loadWait = time.Minute

// await returns the next line that begins with prefix.
func (c *loadCluster) await(ctx context.Context, prefix string, or time.Duration) (heard, error) {
	deadline := time.After(or)
	for {
		select {
		case h := <-c.heard:
			if strings.HasPrefix(h.line, prefix) {
				h.line = strings.TrimPrefix(h.line, prefix)
				return h, nil
			}
			if h.line == "" && !c.nodes[h.node].killed {
				return h, fmt.Errorf("node %d ended by itself", h.node+1)
			}
		case <-deadline:
			return heard{}, fmt.Errorf("no %q within %v", prefix, or)
		case <-ctx.Done():
			return heard{}, ctx.Err()
		}
	}
}

func (c *loadCluster) load(ctx context.Context, o loadOrder) (r loadOutcome, err error) {
	leader, err := c.await(ctx, "leads ", loadWait)
	if err != nil {
		return r, err
	}
	order, err := json.Marshal(o)
	if err != nil {
		return r, err
	}
	if _, err := fmt.Fprintf(c.nodes[leader.node].in, "load %s\n", order); err != nil {
		return r, err
	}
	if _, err := c.await(ctx, "begins", loadWait); err != nil {
		return r, err
	}
	before, err := c.cpu()
	if err != nil {
		return r, err
	}
	h, err := c.await(ctx, "loaded ", loadWait+time.Duration(2*o.Seconds*float64(time.Second)))
	if err != nil {
		return r, err
	}
	after, err := c.cpu()
	if err != nil {
		return r, err
	}
	err = json.Unmarshal([]byte(h.line), &r)
	r.CPU = after - before
	if err == nil && r.Failed > 0 {
		err = fmt.Errorf("%d proposals failed: the node lost the lead", r.Failed)
	}
	return r, err
}

// cpu returns the CPU seconds that the children have used.
func (c *loadCluster) cpu() (sum float64, err error) {
	for _, n := range c.nodes {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", n.cmd.Process.Pid))
		if err != nil {
			return 0, err
		}
		f := strings.Fields(string(b[strings.LastIndexByte(string(b), ')')+1:]))
		var user, system float64
		if _, err := fmt.Sscan(f[11]+" "+f[12], &user, &system); err != nil {
			return 0, err
		}
		sum += (user + system) / 100 // hundredths, whatever the kernel's own ticks are
	}
	return sum, nil
}

// A failOver is how long there was no leader, from the kill of one until the
// next has committed an entry.
type failOver struct {
	Kills  int   `json:"kills"`
	Within int   `json:"within_2s"`
	P50    int64 `json:"p50_ms"`
	P99    int64 `json:"p99_ms"`
	Max    int64 `json:"max_ms"`
}

// failOver kills leaders and brings them back.
func (c *loadCluster) failOver(ctx context.Context, kills int, out io.Writer, asJSON bool) error {
	leader, err := c.await(ctx, "leads ", loadWait)
	if err != nil {
		return err
	}
	var took []time.Duration
	for n := range kills {
		select { // at another moment between two heartbeats each time
		case <-time.After(time.Second + time.Duration(n*37%100)*time.Millisecond):
		case <-ctx.Done():
			return ctx.Err()
		}
		old := leader.node
		began := time.Now()
		c.nodes[old].killed = true
		if err := c.nodes[old].cmd.Process.Kill(); err != nil {
			return err
		}
		if leader, err = c.await(ctx, "leads ", loadWait); err != nil {
			return err
		}
		took = append(took, leader.at.Sub(began))
		c.nodes[old].cmd.Wait()
		if err := c.start(ctx, old); err != nil {
			return err
		}
		if _, err := c.await(ctx, "follows", loadWait); err != nil {
			return err
		}
	}
	slices.Sort(took)
	ms := func(d time.Duration) int64 { return d.Milliseconds() }
	r := failOver{Kills: kills, P50: ms(took[kills/2]), P99: ms(took[(kills*99+99)/100-1]), Max: ms(took[kills-1])}
	for _, d := range took {
		if d <= 2*time.Second {
			r.Within++
		}
	}
	if asJSON {
		return json.NewEncoder(out).Encode(r)
	}
	_, err = fmt.Fprintf(out, "%d leaders killed: %d replaced within 2 s; p50 %d ms, p99 %d ms, max %d ms\n", r.Kills, r.Within, r.P50, r.P99, r.Max)
	return err
}
