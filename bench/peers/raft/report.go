package main

import (
	"encoding/json"
	"fmt"
	"io"
	"runtime/debug"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/teralog/teralog/bench/peers/measure"
)

// A report is everything that was measured, and where.
type report struct {
	Command  string          `json:"command"`
	Date     string          `json:"date"`
	Versions []string        `json:"versions"`
	Machine  measure.Machine `json:"machine"`
	Size     int             `json:"size"`
	Skipped  []string        `json:"skipped"`
	Rows     []row           `json:"rows"`
}

// A sample is one run. Without proposals it failed.
type sample struct {
	result
	SyncP50 float64 `json:"fdatasync_4KiB_p50_us"` // just before
}

// A row is one contender under one load; figures are medians over the runs
// that succeeded.
type row struct {
	InFlight  int     `json:"in_flight"`
	Name      string  `json:"name"`
	PerSecond float64 `json:"proposals_per_second"`
	Spread    float64 `json:"spread"` // of the proposals a second: (max - min) / median
	Latency   latency `json:"latency_us"`
	CPU       float64 `json:"cpu_seconds_per_100000"`

	// PerSync is how many proposals are done in the time of one fdatasync, P50Syncs
	// how many fdatasyncs fit into the median latency.
	PerSync  float64 `json:"proposals_per_fdatasync_time"`
	P50Syncs float64 `json:"p50_in_fdatasyncs"`

	// RateRatio is Teralog's proposals a second over this contender's, CPURatio
	// this contender's CPU over Teralog's, both round by round: above 1 Teralog
	// does better. They are zero where there is no such pair.
	RateRatio measure.Ratio `json:"teralog_rate_over_it"`
	CPURatio  measure.Ratio `json:"its_cpu_over_teralog"`

	Failures []string `json:"failures"`
	Samples  []sample `json:"samples"`
}

func (s *sample) cpu() float64 { return s.CPUSeconds / float64(s.Proposals) * 1e5 }

// done returns one figure of each run that succeeded.
func (r *row) done(f func(*sample) float64) (values []float64) {
	for i := range r.Samples {
		if r.Samples[i].Proposals > 0 {
			values = append(values, f(&r.Samples[i]))
		}
	}
	return values
}

// sum makes the figures of all rows out of their samples.
func (r *report) sum() {
	for i := range r.Rows {
		w := &r.Rows[i]
		of := func(f func(*sample) float64) float64 { return measure.Median(w.done(f)) }
		w.PerSecond = of(func(s *sample) float64 { return s.PerSecond })
		w.Latency = latency{
			P50: of(func(s *sample) float64 { return s.Latency.P50 }),
			P99: of(func(s *sample) float64 { return s.Latency.P99 }),
			Max: of(func(s *sample) float64 { return s.Latency.Max }),
		}
		w.CPU = of((*sample).cpu)
		w.PerSync = of(func(s *sample) float64 { return s.PerSecond * s.SyncP50 / 1e6 })
		w.P50Syncs = of(func(s *sample) float64 { return s.Latency.P50 / s.SyncP50 })
		if rates := w.done(perSecond); len(rates) > 0 {
			w.Spread = (slices.Max(rates) - slices.Min(rates)) / w.PerSecond
		}
		ours := slices.IndexFunc(r.Rows, func(o row) bool { return o.InFlight == w.InFlight && o.Name == "teralog" })
		if ours >= 0 && ours != i {
			w.against(&r.Rows[ours])
		}
	}
}

func perSecond(s *sample) float64 { return s.PerSecond }

func (r *row) against(ours *row) {
	var rates, cpus []float64
	for i := range min(len(r.Samples), len(ours.Samples)) {
		o, it := &ours.Samples[i], &r.Samples[i]
		if o.Proposals > 0 && it.Proposals > 0 {
			rates, cpus = append(rates, o.PerSecond/it.PerSecond), append(cpus, it.cpu()/o.cpu())
		}
	}
	r.RateRatio, r.CPURatio = measure.RatioOf(rates), measure.RatioOf(cpus)
}

// modules names the libraries that this program was built with.
func modules() (all []string) {
	b, ok := debug.ReadBuildInfo()
	if !ok {
		return []string{"libraries of unknown versions"}
	}
	for _, m := range b.Deps {
		switch m.Path {
		case "go.etcd.io/raft/v3", "go.etcd.io/etcd/server/v3", "github.com/hashicorp/raft", "github.com/hashicorp/raft-wal":
			all = append(all, m.Path+" "+m.Version)
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

var columns = []string{"in flight", "library", "proposals/s", "P50", "P99", "CPU s/100,000", "per fdatasync", "P50 in fdatasyncs", "Teralog's rate", "CPU it saves"}

func (r *row) cells() []string {
	cells := []string{fmt.Sprint(r.InFlight), r.Name}
	rates := r.done(perSecond)
	if len(rates) == 0 {
		return append(cells, "failed", "", "", "", "", "", "", "")
	}
	return append(cells, measure.Short(r.PerSecond)+measure.Within(slices.Min(rates), slices.Max(rates)), measure.Micros(r.Latency.P50), measure.Micros(r.Latency.P99),
		measure.Short(r.CPU), measure.Short(r.PerSync), measure.Short(r.P50Syncs), r.RateRatio.String(), r.CPURatio.String())
}

const legend = `Three processes on loopback, every write synced before it counts; proposals come from a closed loop in the leader's process and are done when applied there. Figures are medians over the runs, with the least and the most in brackets. CPU is that of all three processes, for 100,000 proposals. "Per fdatasync" is how many proposals are done in the time that one fdatasync after 4 KiB took just before the run. The last two columns divide round by round: Teralog's rate by the library's, and the library's CPU by Teralog's; below 1 Teralog loses.`

// head is the lines above the table.
func (r *report) head() (lines []string) {
	lines = []string{
		fmt.Sprintf("`%s` in `bench/peers/raft`, %s, proposals of %d bytes", r.Command, r.Date, r.Size),
		r.Machine.String(), strings.Join(r.Versions, "; "),
	}
	for _, s := range r.Skipped {
		lines = append(lines, "skipped: "+s)
	}
	for _, row := range r.Rows {
		if n := len(row.Failures); n > 0 {
			lines = append(lines, fmt.Sprintf("%s at %d in flight: %d runs failed, the last: %s", row.Name, row.InFlight, n, row.Failures[n-1]))
		}
	}
	return lines
}

func writeText(w io.Writer, r *report) error {
	fmt.Fprintf(w, "%s\n\n", strings.Join(r.head(), "\n"))
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, strings.ToUpper(strings.Join(columns, "\t")))
	for _, row := range r.Rows {
		fmt.Fprintln(t, strings.Join(row.cells(), "\t"))
	}
	if err := t.Flush(); err != nil {
		return err
	}
	_, err := fmt.Fprintf(w, "\n%s\n", legend)
	return err
}

func writeMarkdown(w io.Writer, r *report) error {
	fmt.Fprintf(w, "%s\n\n- %s\n\n| %s |\n|%s\n", legend, strings.Join(r.head(), "\n- "), strings.Join(columns, " | "), strings.Repeat("---|", len(columns)))
	for _, row := range r.Rows {
		if _, err := fmt.Fprintf(w, "| %s |\n", strings.Join(row.cells(), " | ")); err != nil {
			return err
		}
	}
	return nil
}
