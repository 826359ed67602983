package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"html/template"
	"io"
	"os"
	"strings"
	"text/tabwriter"
)

// A suiteReport is what a suite found.
type suiteReport struct {
	Started string  `json:"started"` // RFC 3339, UTC
	Command string  `json:"command"`
	Commit  string  `json:"commit"`
	Machine Machine `json:"machine"`
	Seconds float64 `json:"seconds"`
	Long    bool    `json:"long"`
	Quick   bool    `json:"quick"`
	Rows    []Row   `json:"rows"`

	failures []error // of trials that could not be run, or whose result was wrong
}

// err is what ends the command with 1: never that something was slow.
func (r *suiteReport) err() error {
	if len(r.failures) == 0 {
		return nil
	}
	return fmt.Errorf("%s failed:\n%w", counted(len(r.failures), "workload"), errors.Join(r.failures...))
}

// write prints the report and writes the files that were asked for.
func (s *suite) write(r *suiteReport, out io.Writer) error {
	encode := func(w io.Writer) error {
		e := json.NewEncoder(w)
		e.SetIndent("", "  ")
		return e.Encode(r)
	}
	var errs []error
	if s.format == "json" {
		errs = append(errs, encode(out))
	} else {
		r.table(out)
	}
	if s.json != "" {
		errs = append(errs, writeFile(s.json, encode))
	}
	if s.html != "" {
		errs = append(errs, writeFile(s.html, r.page().write))
	}
	if s.markdown != "" {
		text, err := s.document(r.markdown())
		if err == nil {
			err = os.WriteFile(s.markdown, []byte(text), 0o644)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

func (r *suiteReport) table(out io.Writer) {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "WORKLOAD\tUNIT\tLIMIT\tTERALOG\tRATIO\tSPREAD\tFLOOR\tAIM\t")
	for i := range r.Rows {
		row := &r.Rows[i]
		if i == 0 || r.Rows[i-1].Section != row.Section {
			fmt.Fprintf(w, "%s\t\t\t\t\t\t\t\t\n", strings.ToUpper(row.Section))
		}
		says := string(row.Standing)
		if row.Why != "" {
			says += ": " + row.Why
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", row.Workload, row.Unit, orNone(row.Limit), orNone(row.Engine), orNone(row.Ratio),
			row.spreadText(), short(row.Floor), short(row.Aim), says)
	}
	w.Flush()
	fmt.Fprintf(out, "%s\n", r.summary())
}

// summary counts the standings in one sentence.
func (r *suiteReport) summary() string {
	n := map[Standing]int{}
	for _, row := range r.Rows {
		n[row.Standing]++
	}
	var parts []string
	for _, s := range []struct {
		standing Standing
		does     string
	}{{MeetsAim, "at the aim or better"}, {MeetsFloor, "between floor and aim"}, {BelowFloor, "below the floor"}, {NotMeasured, "not measured"}, {NotJudged, "not judged"}} {
		if n[s.standing] > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", n[s.standing], s.does))
		}
	}
	return fmt.Sprintf("%s: %s.", counted(len(r.Rows), "figure"), strings.Join(parts, ", "))
}

// markdown is the tables as they stand in a document.
func (r *suiteReport) markdown() string {
	var b strings.Builder
	fmt.Fprintf(&b, "\nMeasured %s in %.0f minutes by `%s` at commit %s on %s.\n", r.Started, r.Seconds/60, r.Command, r.Commit, r.Machine)
	fmt.Fprintf(&b, "%s Figures are medians. A ratio is Teralog over the limit, each measured right after the other; the spread is of that ratio,\n"+
		"or of the figure itself where there is no limit. Where less is better floor and aim are the most a ratio may be. MB are 10^6 bytes.\n", r.summary())
	markdown(&b, r.Rows)
	b.WriteString("\n")
	return b.String()
}

// A pageGroup is the rows of one section on the page.
type pageGroup struct {
	Title string
	Rows  []pageRow
}

type pageRow struct {
	*Row
	Limit, Engine, Ratio, Spread, Floor, Aim string
	Class                                    string
	Drawing                                  template.HTML
}

func (r *suiteReport) page() *page {
	p := &page{Title: "Teralog beside the limits of its machine", Command: r.Command,
		Lead: "Each workload beside the smallest honest program that does what cannot be left out, measured in turn on the same machine. " +
			"Floor is what must be reached, aim what should be. " + r.summary(),
		Facts: []fact{{"started", r.Started}, {"took", fmt.Sprintf("%.1f minutes", r.Seconds/60)}, {"commit", r.Commit}, {"machine", r.Machine.String()}}}
	if r.Quick {
		p.Notices = append(p.Notices, "This was a smoke test: everything was made small, and the figures say nothing about speed.")
	}
	for _, f := range r.failures {
		p.Notices = append(p.Notices, "Failed: "+f.Error())
	}
	for i := range r.Rows {
		row := &r.Rows[i]
		if i == 0 || r.Rows[i-1].Section != row.Section {
			p.Groups = append(p.Groups, pageGroup{Title: row.Section})
		}
		g := &p.Groups[len(p.Groups)-1]
		g.Rows = append(g.Rows, pageRow{Row: row, Limit: orNone(row.Limit), Engine: orNone(row.Engine), Ratio: orNone(row.Ratio), Spread: row.spreadText(),
			Floor: short(row.Floor), Aim: short(row.Aim), Class: row.Standing.class(), Drawing: row.draw()})
		p.Details = append(p.Details, row.details())
	}
	return p
}

// class is the style of a standing.
func (s Standing) class() string {
	switch s {
	case MeetsAim:
		return "met"
	case MeetsFloor:
		return "fair"
	case BelowFloor:
		return "short"
	}
	return "none"
}

// details is every pair of a row.
func (r *Row) details() pageTable {
	t := pageTable{Title: r.Section + ", " + r.Workload, Command: r.Command, Head: []string{"pair", "limit, " + r.Unit, "Teralog, " + r.Unit, "ratio"}}
	if r.Against != "" {
		t.Text = "The limit: " + r.Against + "."
	}
	if r.Why != "" {
		t.Text = strings.TrimSpace(t.Text + " To mind: " + r.Why + ".")
	}
	for i, p := range r.Pairs {
		row := []string{fmt.Sprint(i + 1), orNone(p.Limit), short(p.Engine), "–"}
		if p.Limit != nil {
			row[3] = short(over(p.Engine, *p.Limit))
		}
		t.Rows = append(t.Rows, row)
	}
	return t
}

// The bar of a row, in the units of its own box.
const (
	barWidth, barHeight = 220.0, 26.0
	barTop, barDepth    = 7.0, 12.0
)

// draw draws the median as a bar with the ends of its spread, and floor and aim
// as marks across it. A figure far beyond what is asked is cut off.
func (r *Row) draw() template.HTML {
	if r.Spread == nil {
		return ""
	}
	mark := max(r.Floor, r.Aim)
	a := axis{high: min(max(mark, r.Spread.Max)*1.08, 2*mark)}
	at := func(v float64) float64 { return 1 + (barWidth-2)*a.place(v) }
	var s svg
	s.put(`<svg viewBox="0 0 %s %s" role="img" aria-label="%s">`, num(barWidth), num(barHeight), template.HTMLEscapeString(r.words()))
	s.put(`<title>%s</title>`, template.HTMLEscapeString(r.words()))
	s.put(`<rect class="score %s" x="1" y="%s" width="%s" height="%s" rx="2"/>`, r.Standing.class(), num(barTop), num(max(at(r.Spread.Median)-1, 1)), num(barDepth))
	if r.Spread.Max > r.Spread.Min {
		s.rule("range", at(r.Spread.Min), barTop+barDepth/2, at(r.Spread.Max), barTop+barDepth/2)
	}
	s.rule("floor", at(r.Floor), 1, at(r.Floor), barHeight-1)
	s.rule("aim", at(r.Aim), 1, at(r.Aim), barHeight-1)
	s.put(`</svg>`)
	return s.html()
}

// words is what the bar shows.
func (r *Row) words() string {
	return fmt.Sprintf("%s, between %s and %s; floor %s, aim %s", short(r.Spread.Median), short(r.Spread.Min), short(r.Spread.Max), short(r.Floor), short(r.Aim))
}

// check has a load verified while its broker is killed: part of the smoke form.
func (s *suite) check(ctx context.Context) error {
	v := &verification{notes: io.Discard}
	v.node.start = s.start
	if err := v.parse([]string{"--records", "200000", "--kill-broker", "--kill-every", "500ms", "--data-dir", s.dir}, io.Discard); err != nil {
		return err
	}
	d, err := v.run(ctx)
	return errors.Join(err, d.err())
}
