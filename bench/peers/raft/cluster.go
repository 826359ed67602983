package main

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
	"path/filepath"
	"strconv"
	"time"

	"github.com/teralog/teralog/bench/peers/measure"
)

const (
	nodes       = 3
	electWithin = 20 * time.Second
	warmUp      = 0.5 // of the seconds of a task
)

// runCluster starts the three processes of an implementation, has the leader
// warm up and run one task, and prints the result:
//
//	cluster IMPLEMENTATION --in-flight N --seconds S --size BYTES --dir DIR -o json
//
// It is what `teralog bench raft` with the same flags does for our own.
func runCluster(ctx context.Context, args []string, out io.Writer) (err error) {
	if len(args) == 0 || members[args[0]] == nil {
		return fmt.Errorf("cluster IMPLEMENTATION [flags], not %q", args)
	}
	f := flag.NewFlagSet("cluster", flag.ContinueOnError)
	var t task
	f.IntVar(&t.InFlight, "in-flight", 1, "proposals on their way at once")
	f.Float64Var(&t.Seconds, "seconds", 3, "how long to propose")
	f.IntVar(&t.Size, "size", 100, "bytes of a proposal")
	dir := f.String("dir", "", "where the nodes keep their files")
	f.String("o", "json", "json")
	if err := f.Parse(args[1:]); err != nil {
		return err
	}
	if err := t.check(); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, electWithin+time.Duration(2*t.Seconds*float64(time.Second))+20*time.Second)
	defer cancel()
	c, err := startCluster(ctx, args[0], *dir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.stop()) }()
	leader, err := c.leader(ctx)
	if err != nil {
		return err
	}
	warm := t
	warm.Seconds *= warmUp
	if _, err := leader.run(ctx, warm); err != nil {
		return fmt.Errorf("warm-up: %w", err)
	}
	before, err := c.cpu()
	if err != nil {
		return err
	}
	r, err := leader.run(ctx, t)
	if err != nil {
		return err
	}
	after, err := c.cpu()
	if err != nil {
		return err
	}
	r.CPUSeconds = (after - before).Seconds()
	return json.NewEncoder(out).Encode(r)
}

// A cluster is three processes.
type cluster []*process

// A process is one node, which ends with its standard input.
type process struct {
	cmd     *exec.Cmd
	in      io.WriteCloser
	answers chan answer // what it writes; closed when it ends
}

func startCluster(ctx context.Context, implementation, dir string) (c cluster, err error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	addrs, err := freeAddrs(nodes)
	if err != nil {
		return nil, err
	}
	for i := range nodes {
		home := filepath.Join(dir, strconv.Itoa(i+1))
		if err := os.MkdirAll(home, 0o755); err != nil {
			return nil, errors.Join(err, c.stop())
		}
		p := &process{cmd: exec.CommandContext(ctx, self, append([]string{"node", implementation, strconv.Itoa(i + 1), home}, addrs...)...)}
		measure.Child(p.cmd)
		p.cmd.Stderr = os.Stderr
		p.cmd.WaitDelay = time.Second
		out, err := p.cmd.StdoutPipe()
		if err == nil {
			p.in, err = p.cmd.StdinPipe()
		}
		if err == nil {
			err = p.cmd.Start()
		}
		if err != nil {
			return nil, errors.Join(err, c.stop())
		}
		p.answers = make(chan answer, 4) // a node writes one answer to each task
		go p.listen(out)
		c = append(c, p)
	}
	return c, nil
}

func (p *process) listen(out io.Reader) {
	defer close(p.answers)
	lines := json.NewDecoder(bufio.NewReader(out))
	for {
		var a answer
		if lines.Decode(&a) != nil {
			return
		}
		p.answers <- a
	}
}

// leader waits for the first node that says it leads.
func (c cluster) leader(ctx context.Context) (*process, error) {
	ctx, cancel := context.WithTimeout(ctx, electWithin)
	defer cancel()
	won := make(chan *process, len(c))
	for _, p := range c {
		go func() {
			select {
			case a := <-p.answers:
				if a.Leader {
					won <- p
				}
			case <-ctx.Done():
			}
		}()
	}
	select {
	case p := <-won:
		return p, nil
	case <-ctx.Done():
		return nil, fmt.Errorf("no node leads after %v: %w", electWithin, ctx.Err())
	}
}

// run gives the node a task and returns its result.
func (p *process) run(ctx context.Context, t task) (result, error) {
	if err := json.NewEncoder(p.in).Encode(t); err != nil {
		return result{}, err
	}
	select {
	case a, ok := <-p.answers:
		switch {
		case !ok:
			return result{}, errors.New("the leader's process ended")
		case a.Error != "":
			return result{}, errors.New(a.Error)
		case a.Result == nil:
			return result{}, errors.New("the leader gave no result")
		}
		return *a.Result, nil
	case <-ctx.Done():
		return result{}, ctx.Err()
	}
}

func (c cluster) cpu() (sum time.Duration, err error) {
	for _, p := range c {
		t, err := measure.CPUTime(p.cmd.Process.Pid)
		if err != nil {
			return 0, err
		}
		sum += t
	}
	return sum, nil
}

// stop ends all processes: those that do not see the end of their input in
// time are killed.
func (c cluster) stop() error {
	var errs []error
	for _, p := range c {
		p.in.Close()
	}
	for _, p := range c {
		late := time.AfterFunc(5*time.Second, func() { p.cmd.Process.Kill() })
		for range p.answers { // until the pipe ends, as Wait wants it
		}
		errs = append(errs, p.cmd.Wait())
		late.Stop()
	}
	return errors.Join(errs...)
}

// freeAddrs returns n loopback addresses on which nobody listens.
func freeAddrs(n int) (addrs []string, err error) {
	for range n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		defer l.Close() // all stay open until the last is found, so they differ
		addrs = append(addrs, l.Addr().String())
	}
	return addrs, nil
}
