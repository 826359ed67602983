package bench

import (
	_ "embed"
	"fmt"
	"html/template"
	"io"
)

// A page is one file that needs no other: style and drawings stand in it, and
// nothing in it runs.
type page struct {
	Title, Lead string
	Tiles       []tile
	Notices     []string
	Figures     []figure
	Groups      []pageGroup
	Figured     []fact
	Details     []pageTable
	Facts       []fact // how it was measured
	Command     string
}

type tile struct{ Name, Value, Note string }

type fact struct{ Name, Value string }

type figure struct {
	Title, Text string
	Drawing     template.HTML
}

// A pageTable is folded until somebody opens it.
type pageTable struct {
	Title, Text, Command string
	Head                 []string
	Rows                 [][]string
}

//go:embed page.html
var pageText string

var pageForm = template.Must(template.New("page").Parse(pageText))

func (p *page) write(w io.Writer) error { return pageForm.Execute(w, p) }

// writePage writes a page about one run, for a person who was not there.
func writePage(w io.Writer, r *Result) error { return r.page().write(w) }

func (r *Result) page() *page {
	p := &page{Title: "teralog bench " + r.Workload, Lead: r.Asked.text() + ".", Command: r.Command,
		Facts: []fact{{"started", r.Started}, {"commit", r.Commit}, {"machine", r.Machine.String()}}}
	p.Tiles = r.tiles()
	if r.GeneratorBound {
		p.Notices = append(p.Notices, "The generator was the bottleneck, so this is not the broker's limit: "+*r.GeneratorReason+".")
	}
	if r.FirstError != nil {
		p.Notices = append(p.Notices, fmt.Sprintf("%s records were not acknowledged, the first: %s.", group(r.Errors), *r.FirstError))
	}
	if r.Interrupted {
		p.Notices = append(p.Notices, "The run was interrupted; the figures are of the part that ran.")
	}
	p.Figures = r.figures()
	p.Figured = r.figured()
	if len(r.Intervals) > 1 {
		p.Details = append(p.Details, r.secondsTable())
	}
	return p
}

func (r *Result) tiles() []tile {
	var ts []tile
	if r.Records > 0 {
		ts = append(ts, tile{"throughput", fmt.Sprintf("%.1f MB/s", r.MBPerSecond), group(int64(r.RecordsPerSecond)) + " records/s"})
	}
	if l := r.Latency; l != nil {
		ts = append(ts, tile{"latency P99", latency(l.P99), "P50 " + latency(l.P50) + ", P99.9 " + latency(l.P999)})
	}
	if r.BrokerCPUPerGB != nil {
		ts = append(ts, tile{"broker CPU", fmt.Sprintf("%.3f s/GB", *r.BrokerCPUPerGB), fmt.Sprintf("%.2f cores", *r.BrokerCores)})
	}
	if r.Bytes > 0 {
		ts = append(ts, tile{"client CPU", fmt.Sprintf("%.3f s/GB", r.ClientCPUPerGB), fmt.Sprintf("%.2f cores", r.ClientCores)})
	}
	return ts
}

func (r *Result) figures() (fs []figure) {
	timed := false
	for _, i := range r.Intervals {
		timed = timed || i.Max > 0
	}
	if len(r.Intervals) > 1 {
		fs = append(fs, figure{"Throughput over time", "MB of keys and values in each second.", r.overTime("throughput over time", megabytes,
			line{name: "throughput", points: r.points(func(i *Interval) float64 { return over(float64(i.Bytes)/1e6, i.Seconds) })})})
	}
	if r.Latency != nil && r.Latency.P50 > 0 {
		fs = append(fs, figure{"Latency by percentile", fmt.Sprintf("At 99 %% stands how long the quickest 99 of 100 records took at most. %s records were timed, the slowest took %s. Both axes are logarithmic.",
			group(int64(r.Latency.Samples)), latency(r.Latency.Max)), r.Latency.draw()})
	}
	if len(r.Intervals) > 1 && timed {
		fs = append(fs, figure{"Latency over time", "Of the records timed in each second.", r.latencyOverTime()})
	}
	if len(r.Intervals) > 1 {
		fs = append(fs, figure{"CPU over time", "Cores in use, broker and client apart.", r.overTime("cores in use over time", cores,
			line{name: "broker", points: r.points(func(i *Interval) float64 { return i.BrokerCPU })},
			line{name: "client", points: r.points(func(i *Interval) float64 { return i.ClientCPU })})})
	}
	return fs
}

func megabytes(v float64) string { return short3(v) + " MB/s" }
func cores(v float64) string     { return short3(v) + " cores" }
func seconds(v float64) string   { return short3(v) + " s" }

// short writes a figure with as many digits as it deserves.
func short(v float64) string {
	switch {
	case v == 0:
		return "0"
	case v >= 100:
		return fmt.Sprintf("%.0f", v)
	case v >= 10:
		return fmt.Sprintf("%.1f", v)
	case v >= 0.1:
		return fmt.Sprintf("%.2f", v)
	}
	return fmt.Sprintf("%.3g", v)
}

// points returns a value of each interval, at its end.
func (r *Result) points(value func(*Interval) float64) []point {
	ps := make([]point, len(r.Intervals))
	for n := range r.Intervals {
		ps[n] = point{r.Intervals[n].At, value(&r.Intervals[n])}
	}
	return ps
}

// overTime draws lines over the seconds of the run.
func (r *Result) overTime(name string, say func(float64) string, lines ...line) template.HTML {
	high := 0.0
	for _, l := range lines {
		for _, p := range l.points {
			high = max(high, p.y)
		}
	}
	c := chart{name: name, x: r.timeAxis(), y: linear(high, say), lines: lines, say: say, where: seconds}
	return c.draw()
}

func (r *Result) timeAxis() axis {
	a := linear(r.Intervals[len(r.Intervals)-1].At/roomy, seconds)
	a.high = r.Intervals[len(r.Intervals)-1].At
	for len(a.ticks) > 1 && a.ticks[len(a.ticks)-1].at > a.high {
		a.ticks = a.ticks[:len(a.ticks)-1]
	}
	return a
}

func (r *Result) latencyOverTime() template.HTML {
	lines := []line{
		{name: "P50", points: r.points(func(i *Interval) float64 { return i.P50 })},
		{name: "P99", points: r.points(func(i *Interval) float64 { return i.P99 })},
		{name: "slowest", points: r.points(func(i *Interval) float64 { return i.Max })},
	}
	low, high := 0.0, 0.0
	for _, l := range lines {
		for _, p := range l.points {
			if p.y > 0 && (low == 0 || p.y < low) {
				low = p.y
			}
			high = max(high, p.y)
		}
	}
	c := chart{name: "latency over time", x: r.timeAxis(), y: logarithmic(low, high, roundLatency), lines: lines, say: latency, where: seconds}
	return c.draw()
}

// roundLatency writes microseconds that are round.
func roundLatency(us float64) string {
	switch {
	case us < 1000:
		return short3(us) + " µs"
	case us < 1e6:
		return short3(us/1e3) + " ms"
	}
	return short3(us/1e6) + " s"
}

// short3 writes a figure with at most three digits that count, and none after
// them.
func short3(v float64) string {
	if v >= 100 {
		return fmt.Sprintf("%.0f", v)
	}
	return fmt.Sprintf("%.3g", v)
}

// draw draws the percentiles, each nine taking the same room.
func (l *Latency) draw() template.HTML {
	x := axis{low: 0.5, high: 0.0001, log: true} // the share that is slower
	of := map[float64]string{0.5: "50 %", 0.1: "90 %", 0.05: "95 %", 0.01: "99 %", 0.001: "99.9 %", 0.0001: "99.99 %"}
	for _, share := range []float64{0.5, 0.1, 0.01, 0.001, 0.0001} {
		x.ticks = append(x.ticks, axisTick{share, of[share]})
	}
	points := []point{{0.5, l.P50}, {0.05, l.P95}, {0.01, l.P99}, {0.001, l.P999}, {0.0001, l.P9999}}
	c := chart{name: "latency by percentile", x: x, y: logarithmic(l.P50, max(l.P9999, l.P50), roundLatency),
		lines: []line{{points: points, dots: true}}, say: latency, where: func(v float64) string { return of[v] }}
	return c.draw()
}

// figured is every figure of the run in words.
func (r *Result) figured() (all []fact) {
	add := func(name, format string, args ...any) {
		all = append(all, fact{name, fmt.Sprintf(format, args...)})
	}
	optional := func(name, format string, v *float64) {
		if v != nil {
			add(name, format, *v)
		}
	}
	add("records", "%s in %.1f s", group(r.Records), r.Seconds)
	if r.AskedRate != nil {
		add("rate asked for", "%s records/s", group(*r.AskedRate))
	}
	add("rate", "%s records/s, %.1f MB/s", group(int64(r.RecordsPerSecond)), r.MBPerSecond)
	for _, l := range []struct {
		name string
		*Latency
	}{{"latency", r.Latency}, {"latency of the acknowledgement", r.AckLatency}} {
		if l.Latency != nil {
			add(l.name, "mean %s, P50 %s, P95 %s, P99 %s, P99.9 %s, P99.99 %s, slowest %s", latency(l.Mean), latency(l.P50), latency(l.P95),
				latency(l.P99), latency(l.P999), latency(l.P9999), latency(l.Max))
		}
	}
	optional("broker CPU", "%.3f s/GB", r.BrokerCPUPerGB)
	optional("broker CPU a million records", "%.3f s", r.BrokerCPUPerMillion)
	optional("broker allocations a batch produced", "%.2f", r.BrokerAllocsPerBatch)
	optional("broker allocations a MiB fetched", "%.2f", r.BrokerAllocsPerMiB)
	optional("broker CPU that its garbage collector took", "%.2f %%", percent(r.BrokerGCShare))
	if r.BrokerResidentBytes != nil {
		add("broker memory at the end", "%.1f MB", float64(*r.BrokerResidentBytes)/1e6)
	}
	add("client CPU", "%.3f s/GB", r.ClientCPUPerGB)
	add("client CPU a million records", "%.3f s", r.ClientCPUPerMillion)
	add("client allocations a record", "%.3f", r.ClientAllocsPerRecord)
	add("client CPU that its garbage collector took", "%.2f %%", 100*r.ClientGCShare)
	optional("time producers waited for room", "%.1f %%", percent(r.WaitedShare))
	if r.TailRecords > 0 || r.TailMissing > 0 {
		add("records that consumers followed with", "%s, %s missing", group(r.TailRecords), group(r.TailMissing))
	}
	add("records not acknowledged", "%s", group(r.Errors))
	return all
}

func (r *Result) secondsTable() pageTable {
	t := pageTable{Title: fmt.Sprintf("second by second, %d rows", len(r.Intervals)),
		Head: []string{"until", "records", "MB/s", "P50", "P99", "slowest", "broker cores", "client cores"}}
	for _, i := range r.Intervals {
		row := []string{seconds(i.At), group(i.Records), short(over(float64(i.Bytes)/1e6, i.Seconds))}
		for _, us := range []float64{i.P50, i.P99, i.Max} {
			if i.Max == 0 {
				row = append(row, "")
			} else {
				row = append(row, latency(us))
			}
		}
		t.Rows = append(t.Rows, append(row, short(i.BrokerCPU), short(i.ClientCPU)))
	}
	return t
}
