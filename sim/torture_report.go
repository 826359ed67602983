package sim

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"
)

// A TortureReport is what came of a run of `teralog sim torture`.
type TortureReport struct {
	Seed     uint64             `json:"seed"`
	Seconds  float64            `json:"seconds"`
	Faults   map[string]int     `json:"faults"`
	Longest  map[string]float64 `json:"longest_seconds"` // of each kind of fault, until all was well again
	Hostile  map[string]int64   `json:"hostile"`         // connections, by what they do
	Sent     int64              `json:"sent"`            // records, as all that follows
	Acked    int64              `json:"acknowledged"`
	Failed   int64              `json:"failed"`
	Doubtful int64              `json:"in_doubt"`
	Bytes    int64              `json:"bytes"` // of values
	Read     int64              `json:"read"`
	Behind   int64              `json:"read_from_behind"` // of these
	ReadBack int64              `json:"read_back"`
	Lost     map[string]int64   `json:"acknowledged_lost"` // to power cuts and failed fsyncs, by flush mode
	Created  int64              `json:"topics_created"`    // beside those that last
	Deleted  int64              `json:"topics_deleted"`

	Before    Footprint      `json:"before"`
	After     Footprint      `json:"after"`
	Anomalies map[string]int `json:"anomalies"` // that the checker found, by kind
	Verdict   string         `json:"verdict"`   // "nothing wrong", or what is
}

// summarize fills in what the run has counted.
func (t *torture) summarize(err error) {
	r := &t.result
	t.h.mu.Lock()
	defer t.h.mu.Unlock()
	c := &t.h.counts
	r.Seed, r.Seconds, r.Lost, r.Hostile = t.seed, time.Since(t.begun).Seconds(), t.losses.gone, t.hostile.counts()
	r.Sent, r.Acked, r.Failed, r.Doubtful, r.Bytes = c.sent, c.acked, c.failed, c.doubtful, c.bytes
	r.Read, r.Behind, r.Created, r.Deleted = c.read, c.behind, c.created, c.deleted
	if r.Verdict = "nothing wrong"; err != nil {
		r.Verdict = err.Error()
	}
	t.show.Clear()
}

func (r *TortureReport) report(out io.Writer, format string) error {
	if format == "json" {
		e := json.NewEncoder(out)
		e.SetIndent("", "  ")
		return e.Encode(r)
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	row := func(name, format string, args ...any) {
		fmt.Fprintf(w, "%s\t%s\n", name, fmt.Sprintf(format, args...))
	}
	row("torture", "seed %d, %.1f s", r.Seed, r.Seconds)
	row("records", "%d acknowledged of %d sent (%.0f MB), %d failed, %d in doubt", r.Acked, r.Sent, float64(r.Bytes)/1e6, r.Failed, r.Doubtful)
	row("read", "%d while they came, %d of these from far behind; %d read back", r.Read, r.Behind, r.ReadBack)
	for _, k := range nemeses {
		row(k.kind, "%d times, well again after %.1f s at most", r.Faults[k.kind], r.Longest[k.kind])
	}
	var kinds []string
	for _, k := range hostileKinds {
		kinds = append(kinds, fmt.Sprintf("%s %d", k.name, r.Hostile[k.name]))
	}
	row("hostile connections", "%s", strings.Join(kinds, ", "))
	row("topics beside", "%d created, %d deleted", r.Created, r.Deleted)
	row("acknowledged and lost", "sync %d, interval %d, async %d", r.Lost["sync"], r.Lost["interval"], r.Lost["async"])
	row("the broker", "before\tat rest after")
	row("  descriptors", "%d\t%d, of these %d of logs and %d sockets", r.Before.Descriptors, r.After.Descriptors, r.After.Logs, r.After.Sockets)
	row("  goroutines", "%d\t%d", r.Before.Goroutines, r.After.Goroutines)
	row("  resident", "%d MB\t%d MB", r.Before.Resident/1e6, r.After.Resident/1e6)
	row("verdict", "%s", r.Verdict)
	return w.Flush()
}

// progress tells a person each second how far it is.
func (t *torture) progress(ctx context.Context) {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		passed := time.Since(t.begun)
		t.h.mu.Lock()
		c := t.h.counts
		t.h.mu.Unlock()
		t.show.Say("%6.1f s %12d acknowledged %12d read   %s", passed.Seconds(), c.acked, c.read, *t.doing.Load())
		t.show.Bar("torture", min(1, passed.Minutes()/t.minutes))
	}
}
