package main

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/teralog/teralog/bench/peers/measure"
)

// A report is everything that was measured, and where.
type report struct {
	Command string          `json:"command"`
	Date    string          `json:"date"`
	Commit  string          `json:"commit"`
	Machine measure.Machine `json:"machine"`
	Skipped []string        `json:"skipped"`
	Rows    []row           `json:"rows"`
	Losses  []string        `json:"losses"` // where Teralog does worse than a peer, in words
}

// A row is one way of one system to take a load. Figures are medians over the
// runs that succeeded.
type row struct {
	Load      string `json:"load"`
	System    string `json:"system"`
	Version   string `json:"version"`
	How       string `json:"how"`
	Ack       string `json:"acknowledgement"`
	LatencyOf string `json:"latency_of,omitempty"`
	sample
	Spread   float64  `json:"spread"`   // of the records a second: (max - min) / measure.Median
	Failures []string `json:"failures"` // of runs
	Samples  []sample `json:"samples"`  // by round; without records if the run failed

	// Versus is Teralog's first way against this one, round by round; above 1
	// Teralog does better. It is nil for Teralog itself.
	Versus *versus `json:"teralog_against_it,omitempty"`

	size   int
	single bool // latencies are those of single records
}

type versus struct {
	Rate   measure.Ratio `json:"records_per_second"`
	CPU    measure.Ratio `json:"broker_cpu"`
	Memory measure.Ratio `json:"broker_peak_memory"`
	P50    measure.Ratio `json:"p50"` // without a median unless both are of a single record in flight
	P99    measure.Ratio `json:"p99"`
}

// summarize makes the figures of a row out of its samples.
func (r *row) summarize() {
	var ok []sample
	for _, s := range r.Samples {
		if s.Records > 0 {
			ok = append(ok, s)
		}
	}
	of := func(f func(sample) float64) float64 {
		values := make([]float64, len(ok))
		for i, s := range ok {
			values[i] = f(s)
		}
		return measure.Median(values)
	}
	r.sample = sample{
		Records:          int(of(func(s sample) float64 { return float64(s.Records) })),
		Seconds:          of(func(s sample) float64 { return s.Seconds }),
		RecordsPerSecond: of(func(s sample) float64 { return s.RecordsPerSecond }),
		MBPerSecond:      of(func(s sample) float64 { return s.MBPerSecond }),
		Latency: latency{
			P50:  of(func(s sample) float64 { return s.Latency.P50 }),
			P95:  of(func(s sample) float64 { return s.Latency.P95 }),
			P99:  of(func(s sample) float64 { return s.Latency.P99 }),
			P999: of(func(s sample) float64 { return s.Latency.P999 }),
			Max:  of(func(s sample) float64 { return s.Latency.Max }),
		},
		BrokerPerGB:      of(func(s sample) float64 { return s.BrokerPerGB }),
		BrokerPerMillion: of(func(s sample) float64 { return s.BrokerPerMillion }),
		ClientPerGB:      of(func(s sample) float64 { return s.ClientPerGB }),
		PeakBytes:        int64(of(func(s sample) float64 { return float64(s.PeakBytes) })),
		Others:           of(func(s sample) float64 { return s.Others }),
	}
	r.Spread = 0
	if least, most := r.rates(); r.RecordsPerSecond > 0 {
		r.Spread = (most - least) / r.RecordsPerSecond
	}
}

// rates returns the least and the most records a second of a run.
func (r *row) rates() (least, most float64) {
	for _, s := range r.Samples {
		if s.Records > 0 {
			if most = max(most, s.RecordsPerSecond); least == 0 || s.RecordsPerSecond < least {
				least = s.RecordsPerSecond
			}
		}
	}
	return least, most
}

// compare sets what follows from the samples.
func (r *report) compare() {
	for i := range r.Rows {
		r.Rows[i].summarize()
	}
	for i := range r.Rows {
		peer := &r.Rows[i]
		ours := slices.IndexFunc(r.Rows, func(o row) bool { return o.Load == peer.Load && o.System == "teralog" })
		if peer.System != "teralog" && ours >= 0 && r.Rows[ours].Records > 0 && peer.Records > 0 {
			peer.against(&r.Rows[ours])
			r.Losses = append(r.Losses, peer.losses()...)
		}
	}
}

func (r *row) against(ours *row) {
	over := func(f func(ours, peer sample) float64) measure.Ratio {
		var values []float64
		for i := range min(len(ours.Samples), len(r.Samples)) {
			values = append(values, f(ours.Samples[i], r.Samples[i]))
		}
		return measure.RatioOf(values)
	}
	r.Versus = &versus{
		Rate:   over(func(o, p sample) float64 { return o.RecordsPerSecond / p.RecordsPerSecond }),
		CPU:    over(func(o, p sample) float64 { return p.BrokerPerGB / o.BrokerPerGB }),
		Memory: over(func(o, p sample) float64 { return float64(p.PeakBytes) / float64(o.PeakBytes) }),
	}
	if r.single && ours.single {
		r.Versus.P50 = over(func(o, p sample) float64 { return p.Latency.P50 / o.Latency.P50 })
		r.Versus.P99 = over(func(o, p sample) float64 { return p.Latency.P99 / o.Latency.P99 })
	}
}

// losses says where Teralog does worse.
func (r *row) losses() (all []string) {
	for _, c := range []struct {
		what string
		measure.Ratio
	}{
		{"records/s", r.Versus.Rate}, {"the broker's CPU per GB", r.Versus.CPU}, {"the broker's peak memory", r.Versus.Memory},
		{"P50", r.Versus.P50}, {"P99", r.Versus.P99},
	} {
		if c.Median > 0 && c.Median < 1 {
			all = append(all, fmt.Sprintf("%s: %s (%s) does better in %s by a factor of %s", r.Load, r.System, r.How, c.what, measure.Short(1/c.Median)))
		}
	}
	return all
}

var formats = map[string]func(io.Writer, *report) error{"text": writeText, "json": writeJSON, "markdown": writeMarkdown}

func writeJSON(w io.Writer, r *report) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(r)
}

// cells are a row's columns after the system.
func (r *row) cells() []string {
	if r.Records == 0 {
		return []string{r.How, "failed", "", "", "", "", "", "", "", ""}
	}
	least, most := r.rates()
	cells := []string{
		r.How, measure.Short(r.RecordsPerSecond) + measure.Within(least, most), measure.Short(r.MBPerSecond),
		measure.Micros(r.Latency.P50), measure.Micros(r.Latency.P99), measure.Short(r.BrokerPerGB), measure.Short(r.BrokerPerMillion), measure.Short(float64(r.PeakBytes) / (1 << 20)),
	}
	if r.Versus == nil {
		return append(cells, "", "")
	}
	return append(cells, r.Versus.Rate.String(), r.Versus.CPU.String())
}

var columns = []string{"system", "how", "records/s", "MB/s", "P50", "P99", "broker s/GB", "s/million", "peak MiB", "Teralog's rate", "CPU it saves"}

const legend = `Each system is driven by its own tool, as a process of its own on the same cores, with a new server on new files for every run. Figures are medians over the runs, with the least and the most in brackets. MB are 10^6 bytes of record values; s/GB and s/million are CPU seconds of the broker's process per 10^9 of them and per 10^6 records. The last two columns divide round by round: Teralog's records/s (its first way) by the peer's, and the peer's CPU per GB by Teralog's.`

// loads returns the report's loads in order.
func (r *report) loads() (names []string) {
	for _, row := range r.Rows {
		if !slices.Contains(names, row.Load) {
			names = append(names, row.Load)
		}
	}
	return names
}

// notes say, for one load, what an acknowledgement means and what a latency is
// one of, and which runs failed.
func (r *report) notes(load string) (notes []string) {
	for _, row := range r.Rows {
		if row.Load != load {
			continue
		}
		note := fmt.Sprintf("%s: %s", row.System, row.Ack)
		if row.LatencyOf != "" {
			note += "; latency of " + row.LatencyOf
		}
		if len(row.Failures) > 0 {
			note += fmt.Sprintf("; with %s %d runs failed, the last: %s", row.How, len(row.Failures), row.Failures[len(row.Failures)-1])
		}
		if !slices.Contains(notes, note) {
			notes = append(notes, note)
		}
	}
	return notes
}

// busy returns the median share of the machine that others used meanwhile.
func (r *report) busy() float64 {
	var values []float64
	for _, row := range r.Rows {
		if row.Records > 0 {
			values = append(values, row.Others)
		}
	}
	return measure.Median(values)
}

func (r *report) versions() string {
	var all []string
	for _, row := range r.Rows {
		if v := row.System + " " + row.Version; !slices.Contains(all, v) {
			all = append(all, v)
		}
	}
	return strings.Join(all, "; ")
}

func writeText(w io.Writer, r *report) error {
	fmt.Fprintf(w, "%s, commit %s: %s\n%s\n%s\nBesides broker and client %.0f %% of the machine was in use.\n", r.Date, r.Commit, r.Command, r.Machine, r.versions(), r.busy()*100)
	for _, s := range r.Skipped {
		fmt.Fprintln(w, "skipped:", s)
	}
	for _, load := range r.loads() {
		fmt.Fprintf(w, "\n%s\n", load)
		t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
		fmt.Fprintln(t, strings.ToUpper(strings.Join(columns, "\t")))
		for _, row := range r.Rows {
			if row.Load == load {
				fmt.Fprintf(t, "%s\t%s\n", row.System, strings.Join(row.cells(), "\t"))
			}
		}
		if err := t.Flush(); err != nil {
			return err
		}
		for _, n := range r.notes(load) {
			fmt.Fprintln(w, " ", n)
		}
	}
	fmt.Fprintf(w, "\n%s\n", legend)
	for i, s := range r.Losses {
		if i == 0 {
			fmt.Fprintln(w, "\nWhere Teralog loses:")
		}
		fmt.Fprintln(w, " ", s)
	}
	return nil
}

func writeMarkdown(w io.Writer, r *report) error {
	fmt.Fprintf(w, "%s\n\n- `%s` in `bench/peers`, %s, commit %s\n- %s\n- %s\n- besides broker and client %.0f %% of the machine was in use\n",
		legend, r.Command, r.Date, r.Commit, r.Machine, r.versions(), r.busy()*100)
	for _, s := range r.Skipped {
		fmt.Fprintf(w, "- skipped: %s\n", s)
	}
	for _, load := range r.loads() {
		fmt.Fprintf(w, "\n#### %s\n\n| %s |\n|%s\n", load, strings.Join(columns, " | "), strings.Repeat("---|", len(columns)))
		for _, row := range r.Rows {
			if row.Load == load {
				fmt.Fprintf(w, "| %s | %s |\n", row.System, strings.Join(row.cells(), " | "))
			}
		}
		fmt.Fprintln(w)
		for _, n := range r.notes(load) {
			fmt.Fprintf(w, "- %s\n", n)
		}
	}
	if len(r.Losses) > 0 {
		fmt.Fprintf(w, "\n#### Where Teralog loses\n\n- %s\n", strings.Join(r.Losses, "\n- "))
	}
	return nil
}
