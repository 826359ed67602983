package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"sync"
	"time"
)

// A member is one node of a cluster that replicates a log.
type member interface {
	// leading is closed once the node leads.
	leading() <-chan struct{}
	// propose returns once data, which belongs to the member from now on, is
	// committed and was applied here. At most one call per slot, 0 to
	// maxInFlight-1, is on its way.
	propose(ctx context.Context, slot int, data []byte) error
	close() error
}

const (
	maxInFlight = 4096
	maxSize     = 1 << 20
	minSize     = 8 // room for what a member writes into it
	maxSeconds  = 60
)

// members open node id, 1 to 3, of the cluster at addrs on the files in dir.
var members = map[string]func(id int, dir string, addrs []string) (member, error){
	"etcd":      openEtcd,
	"hashicorp": openHashicorp,
}

// A task is a closed loop of proposals: as many on their way as may be, each
// followed by the next.
type task struct {
	InFlight int     `json:"in_flight"`
	Seconds  float64 `json:"seconds"`
	Size     int     `json:"size"` // bytes of a proposal
}

func (t task) check() error {
	switch {
	case t.InFlight < 1 || t.InFlight > maxInFlight:
		return fmt.Errorf("%d in flight: it is 1 to %d", t.InFlight, maxInFlight)
	case t.Size < minSize || t.Size > maxSize:
		return fmt.Errorf("a size of %d: it is %d to %d", t.Size, minSize, maxSize)
	case t.Seconds <= 0 || t.Seconds > maxSeconds:
		return fmt.Errorf("%g seconds: it is more than 0 and at most %d", t.Seconds, maxSeconds)
	}
	return nil
}

// A result is what a cluster prints of a task.
type result struct {
	Proposals  int     `json:"proposals"`
	Seconds    float64 `json:"seconds"`
	PerSecond  float64 `json:"proposals_per_second"`
	Latency    latency `json:"latency_us"`
	CPUSeconds float64 `json:"cpu_seconds"` // of all three processes, the proposer included, over these seconds
}

type latency struct {
	P50 float64 `json:"p50"`
	P99 float64 `json:"p99"`
	Max float64 `json:"max"`
}

// load runs a task on the leader.
func load(ctx context.Context, m member, t task) (result, error) {
	if err := t.check(); err != nil {
		return result{}, err
	}
	length := time.Duration(t.Seconds * float64(time.Second))
	ctx, cancel := context.WithTimeout(ctx, length+10*time.Second)
	defer cancel()
	took := make([][]time.Duration, t.InFlight)
	errs := make([]error, t.InFlight)
	start := time.Now()
	var running sync.WaitGroup
	for slot := range t.InFlight {
		running.Go(func() {
			for from := start; from.Sub(start) < length; {
				if errs[slot] = m.propose(ctx, slot, make([]byte, t.Size)); errs[slot] != nil {
					cancel() // the others need not wait for their time
					return
				}
				now := time.Now()
				took[slot] = append(took[slot], now.Sub(from))
				from = now
			}
		})
	}
	running.Wait()
	if err := first(errs); err != nil {
		return result{}, err
	}
	return summary(slices.Concat(took...), time.Since(start)), nil
}

// first returns the error that made the others stop.
func first(errs []error) (err error) {
	for _, e := range errs {
		if e != nil && (err == nil || errors.Is(err, context.Canceled)) {
			err = e
		}
	}
	return err
}

// summary is of at least one proposal.
func summary(took []time.Duration, over time.Duration) result {
	slices.Sort(took)
	at := func(share float64) float64 {
		return float64(took[int(share*float64(len(took)-1))].Nanoseconds()) / 1e3
	}
	return result{
		Proposals: len(took), Seconds: over.Seconds(), PerSecond: float64(len(took)) / over.Seconds(),
		Latency: latency{P50: at(0.5), P99: at(0.99), Max: at(1)},
	}
}

// An answer is a line that a node writes.
type answer struct {
	Leader bool    `json:"leader,omitempty"` // it leads now
	Result *result `json:"result,omitempty"`
	Error  string  `json:"error,omitempty"`
}

// runNode is one process of a cluster: node IMPLEMENTATION ID DIR ADDRESS…. It
// says when it leads, takes tasks from in line by line, and ends with in.
func runNode(ctx context.Context, args []string, in io.Reader, out io.Writer) error {
	if len(args) < 4 {
		return fmt.Errorf("node IMPLEMENTATION ID DIR ADDRESS…, not %q", args)
	}
	open, known := members[args[0]]
	id, err := strconv.Atoi(args[1])
	if !known || err != nil || id < 1 || id > len(args)-3 {
		return fmt.Errorf("no node %s of implementation %q and %d addresses", args[1], args[0], len(args)-3)
	}
	m, err := open(id, args[2], args[3:])
	if err != nil {
		return err
	}
	write := json.NewEncoder(out)
	ended := make(chan struct{})
	var announcing sync.WaitGroup
	announcing.Go(func() {
		select {
		case <-m.leading():
			write.Encode(answer{Leader: true}) // tasks come only after it
		case <-ended:
		}
	})
	lines := bufio.NewScanner(in)
	for lines.Scan() {
		var t task
		err := json.Unmarshal(lines.Bytes(), &t)
		var r result
		if err == nil {
			r, err = load(ctx, m, t)
		}
		a := answer{Result: &r}
		if err != nil {
			a = answer{Error: err.Error()}
		}
		if err := write.Encode(a); err != nil {
			return err
		}
	}
	close(ended)
	announcing.Wait()
	return errors.Join(lines.Err(), m.close())
}
