package bench

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"
	"text/tabwriter"
	"time"

	"golang.org/x/sys/unix"

	"github.com/teralog/teralog/client"
	"github.com/teralog/teralog/wire"
)

// A tally counts what a verification has seen so far, in records.
type tally struct {
	Sent         int64 `json:"sent"`
	Acknowledged int64 `json:"acknowledged"`
	Failed       int64 `json:"failed"`   // not in the log, and never to be
	Doubtful     int64 `json:"in_doubt"` // in the log or not
	Read         int64 `json:"read"`     // by all consumers while records were sent
	ReadBack     int64 `json:"read_back"`
}

// A ledger feeds the checker with what clients see, in the order in which they
// see it. It may be used from anywhere.
type ledger struct {
	run uint32

	mu      sync.Mutex
	checker *Checker
	count   tally
	wrong   []string // violations that no event tells of, the first few
	failure error    // of the first record that was not acknowledged
}

// maxWrong bounds the violations that are kept: they tend to have one cause.
const maxWrong = 8

func (l *ledger) sent(id ID, p wire.PartitionID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.count.Sent++
	l.checker.Apply(&Sent{ID: id, Partition: p, Idempotent: true})
}

func (l *ledger) decided(id ID, a client.Ack, err error) {
	e := Decided{ID: id, Offset: a.Offset, Epoch: wire.NoEpoch}
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case err == nil:
		l.count.Acknowledged++
	case errors.Is(err, client.ErrIndefinite):
		e.Outcome, e.Offset = Info, -1
		l.count.Doubtful++
	default:
		e.Outcome, e.Offset = Fail, -1
		l.count.Failed++
	}
	if err != nil && l.failure == nil {
		l.failure = err
	}
	l.checker.Apply(&e)
}

func (l *ledger) polled(e *Polled) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.count.Read += int64(len(e.Reads))
	l.checker.Apply(e)
}

func (l *ledger) drained(e *Drained) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.count.ReadBack += int64(len(e.Reads))
	l.checker.Apply(e)
}

// violate notes something that must not happen.
func (l *ledger) violate(format string, args ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.wrong) < maxWrong {
		l.wrong = append(l.wrong, fmt.Sprintf(format, args...))
	}
}

func (l *ledger) tally() tally {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.count
}

// A verdict is what a verification found.
type verdict struct {
	OK         bool           `json:"ok"`
	Records    tally          `json:"records"`
	Seconds    float64        `json:"seconds"`
	Kills      int            `json:"kills"`
	Seed       uint64         `json:"seed"`
	DownMillis int64          `json:"down_ms"`           // the longest time from a kill until it was ready again
	Memory     int64          `json:"peak_memory_bytes"` // of this process; 0: not known
	Counts     map[string]int `json:"anomalies"`         // by kind
	Witnesses  []string       `json:"witnesses"`         // some of each kind

	failure error
}

// verdict ends the history. The ledger is not used after it.
func (l *ledger) verdict(v *verification) verdict {
	l.mu.Lock()
	defer l.mu.Unlock()
	found, counts := l.checker.Finish()
	kills, down := v.node.deaths()
	d := verdict{Records: l.count, Seconds: time.Since(v.began).Seconds(), Kills: kills, Seed: v.seed,
		DownMillis: down.Milliseconds(), Memory: peakMemory(), Counts: counts, Witnesses: append([]string{}, l.wrong...), failure: l.failure}
	for _, a := range found {
		d.Witnesses = append(d.Witnesses, a.String())
	}
	d.OK = len(d.Witnesses) == 0 && d.failure == nil
	return d
}

// peakMemory returns the most memory this process ever had resident, in bytes;
// 0 if that is not known.
func peakMemory() int64 {
	var u unix.Rusage
	if unix.Getrusage(unix.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return u.Maxrss << 10
}

// err says what was found in one line; nil: nothing.
func (d verdict) err() error {
	n := 0
	for _, c := range d.Counts {
		n += c
	}
	switch {
	case n > 0:
		return fmt.Errorf("%d anomalies, the first: %s", n, d.Witnesses[0])
	case len(d.Witnesses) > 0:
		return errors.New(d.Witnesses[0])
	case d.failure != nil:
		return fmt.Errorf("%d of %d records were not acknowledged: %w", d.Records.Failed+d.Records.Doubtful, d.Records.Sent, d.failure)
	}
	return nil
}

func (d verdict) report(out io.Writer, asJSON bool) error {
	if asJSON {
		e := json.NewEncoder(out)
		e.SetIndent("", "  ")
		return errors.Join(e.Encode(d), d.err())
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	r := d.Records
	fmt.Fprintf(w, "sent\t%d records, %d acknowledged, %d failed, %d in doubt\n", r.Sent, r.Acknowledged, r.Failed, r.Doubtful)
	fmt.Fprintf(w, "read\t%d meanwhile, %d at the end\n", r.Read, r.ReadBack)
	if d.Kills > 0 {
		fmt.Fprintf(w, "killed\t%d times, back after %d ms at most\n", d.Kills, d.DownMillis)
	}
	fmt.Fprintf(w, "took\t%.1f s, %d MB of memory\n", d.Seconds, d.Memory/1e6)
	if len(d.Witnesses) == 0 {
		fmt.Fprintf(w, "found\tno anomaly\n")
	}
	for _, a := range d.Witnesses {
		fmt.Fprintf(w, "found\t%s\n", a)
	}
	w.Flush()
	return d.err()
}
