package bench

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/teralog/teralog/wire"
)

const suiteHelp = `Usage: teralog bench suite [flags]

Measures each workload beside the limit of this machine for the same load: the
smallest pair of programs that does what cannot be left out. The two are run in
turn, engine after limit, several times, and what counts is the median of their
ratios. Broker and client are processes of their own.

  teralog bench suite
  teralog bench suite --only 'produce.*1MiB'
  teralog bench suite --long

It takes about a quarter of an hour, --long about 45 minutes, --quick less than
one. --quick makes everything small: it fails if a result is wrong, and judges
no speed; with --long it does so for the long ones. With --only or --quick files
are written only if they are named.
`

// A suite is one run of `bench suite`.
type suite struct {
	start       Start
	dir         string // for everything that is written on the way
	quick, long bool
	only        string
	most        int           // pairs of a trial
	budget      time.Duration // for everything
	say         func(format string, args ...any)
	freshen     func(ctx context.Context, bytes int64) error // freshMemory

	format, json, html, markdown string
}

// Markers between which the tables stand in a document.
const (
	beginTables, endTables         = "<!-- bench suite: begin -->", "<!-- bench suite: end -->"
	beginLongTables, endLongTables = "<!-- bench suite --long: begin -->", "<!-- bench suite --long: end -->"
)

// benchSuite is the command `teralog bench suite`.
func benchSuite(ctx context.Context, args []string, start Start, _ io.Reader, out, notes io.Writer) error {
	s := &suite{start: start, most: 5, budget: 15 * time.Minute, format: "table", freshen: freshMemory}
	f := newFlags(suiteHelp)
	f.BoolVar(&s.long, "long", false, "the long workloads instead: open loop for minutes, cold backlog, past write-back, 10,000 partitions, soak")
	f.BoolVar(&s.quick, "quick", false, "a smoke test")
	f.StringVar(&s.only, "only", "", "only workloads whose section and name fit this pattern: words in order, * for anything between, letters of any case")
	f.IntVar(&s.most, "pairs", s.most, "pairs of engine and limit a workload, if time allows")
	f.Var(duration(&s.budget), "time", "how long everything may take; then there are fewer pairs")
	f.StringVar(&s.dir, "dir", "", "where the brokers' directories are made (by default the directory for temporary files)")
	f.Var(oneOf(&s.format, "table", "json"), "o", "table or json")
	f.StringVar(&s.json, "json", "", "write the rows to this file (by default bench-suite.json)")
	f.StringVar(&s.html, "html", "", "write a page to this file (by default bench-suite.html)")
	f.StringVar(&s.markdown, "markdown", "", "put the tables into this file, between its marker lines (by default BENCHMARKS.md, if there is one)")
	quiet := f.Bool("q", false, "show no progress")
	switch err := f.parse(args, out); {
	case errors.Is(err, flag.ErrHelp):
		return nil
	case err != nil:
		return err
	}
	if s.most < 1 || s.most > 100 {
		return usage{fmt.Errorf("--pairs %d: it is 1 to 100", s.most)}
	}
	if s.long && !f.isSet("time") {
		s.budget = time.Hour
	}
	s.fileNames()
	if s.markdown != "" {
		if _, err := s.document(""); err != nil { // before a quarter of an hour has passed
			return usage{fmt.Errorf("--markdown %s: %w", s.markdown, err)}
		}
	}
	temp, err := os.MkdirTemp(s.dir, "teralog-suite-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(temp)
	s.dir = temp
	d := NewDisplay(notes, *quiet)
	s.say = d.Say
	report, err := s.run(ctx, d)
	if ctx.Err() != nil {
		return interrupted{}
	}
	if err != nil {
		return err
	}
	report.Command = strings.Join(append([]string{"teralog bench suite"}, args...), " ")
	return errors.Join(s.write(report, out), report.err())
}

// fileNames fills in the files that are written without being named.
func (s *suite) fileNames() {
	if s.only != "" || s.quick {
		return
	}
	name := "bench-suite"
	if s.long {
		name += "-long"
	}
	s.json, s.html = cmp.Or(s.json, name+".json"), cmp.Or(s.html, name+".html")
	if _, err := os.Stat("BENCHMARKS.md"); err == nil {
		s.markdown = cmp.Or(s.markdown, "BENCHMARKS.md")
	}
}

// document returns what --markdown names with the tables in it.
func (s *suite) document(tables string) (string, error) {
	old, err := os.ReadFile(s.markdown)
	if err != nil {
		return "", err
	}
	if s.long {
		return between(string(old), beginLongTables, endLongTables, tables)
	}
	return between(string(old), beginTables, endTables, tables)
}

// chosen returns the trials to run.
func (s *suite) chosen() ([]trial, error) {
	all := trials()
	if s.long {
		all = longTrials()
	}
	all = slices.DeleteFunc(all, func(t trial) bool {
		return s.quick && !s.long && !t.quick || s.only != "" && !fits(s.only, t.section+" "+t.name)
	})
	if len(all) == 0 {
		return nil, usage{fmt.Errorf("no workload fits --only %q; teralog bench suite lists them in its report", s.only)}
	}
	return all, nil
}

// fits reports whether the parts of a pattern between its stars stand in a
// text, in their order.
func fits(pattern, text string) bool {
	text = strings.ToLower(text)
	for part := range strings.SplitSeq(strings.ToLower(pattern), "*") {
		at := strings.Index(text, part)
		if at < 0 {
			return false
		}
		text = text[at+len(part):]
	}
	return true
}

// run runs the trials one after the other.
func (s *suite) run(ctx context.Context, d *Display) (*suiteReport, error) {
	ts, err := s.chosen()
	if err != nil {
		return nil, err
	}
	machine := machineOf(s.dir)
	report := &suiteReport{Started: time.Now().UTC().Format(time.RFC3339), Commit: machine.Commit, Machine: machine, Long: s.long, Quick: s.quick}
	began := time.Now()
	var guess time.Duration // of what was done
	if !s.quick {
		s.say("warming the machine's memory with a file of 3GiB")
		if err := warmMemory(ctx, s.dir, 3<<30); err != nil {
			return nil, err
		}
	}
	for i := range ts {
		n, left := s.plan(ts[i:], time.Since(began), guess)
		guess += ts[i].takes * time.Duration(n)
		s.say("%2d/%d %s, %s: %s, about %v left", i+1, len(ts), strings.ToLower(ts[i].section), ts[i].name, counted(n, "pair"), left.Round(10*time.Second))
		limits, engines, err := s.pairs(ctx, &ts[i], n, func(p int, side string) {
			d.Bar(fmt.Sprintf("pair %d of %d: %s", p+1, n, side), float64(i)/float64(len(ts)))
		})
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		for _, f := range ts[i].figures {
			row := f.row(ts[i].section, ts[i].name, ts[i].against, limits, engines)
			if err != nil {
				row.Why = err.Error()
			}
			if s.quick && row.Engine != nil {
				row.Standing = NotJudged
			}
			report.Rows = append(report.Rows, row)
		}
		if err != nil {
			report.failures = append(report.failures, fmt.Errorf("%s: %w", ts[i].name, err))
			s.say("      failed: %v", err)
		}
	}
	if s.quick {
		s.say("records checked one by one while their broker is killed")
		if err := s.check(ctx); err != nil {
			report.failures = append(report.failures, fmt.Errorf("verify: %w", err))
		}
	}
	d.Clear()
	report.Seconds = time.Since(began).Seconds()
	return report, nil
}

// plan returns how many pairs the first of the trials that are left gets, and
// how long all of them will take: as many pairs as time allows, at least one.
// What took longer than it was guessed to says that the rest will too.
func (s *suite) plan(left []trial, passed, guessed time.Duration) (pairs int, remaining time.Duration) {
	slower := 1.0
	if guessed > 0 {
		slower = max(slower, float64(passed)/float64(guessed))
	}
	if s.quick {
		return 1, time.Duration(len(left)) * 4 * time.Second
	}
	for most := s.most; ; most-- {
		remaining = 0
		for i := range left {
			remaining += left[i].takes * time.Duration(left[i].atMost(most))
		}
		remaining = time.Duration(slower * float64(remaining))
		if most == 1 || passed+remaining <= s.budget {
			return left[0].atMost(most), remaining
		}
	}
}

// atMost is how many pairs of the trial are run where others have most.
func (t *trial) atMost(most int) int {
	if t.pairs > 0 {
		return min(most, t.pairs)
	}
	return most
}

// pairs runs limit and engine of a trial in turn. After an error it returns
// what was measured before.
func (s *suite) pairs(ctx context.Context, t *trial, n int, tell func(pair int, side string)) (limits, engines []*outcome, err error) {
	for p := range n {
		var l *outcome
		if t.limit != nil {
			tell(p, "limit")
			if err := s.fresh(ctx, t); err != nil {
				return limits, engines, err
			}
			if l, err = t.limit(ctx, s); err != nil {
				return limits, engines, fmt.Errorf("limit: %w", err)
			}
		}
		tell(p, "Teralog")
		if err := s.fresh(ctx, t); err != nil {
			return limits, engines, err
		}
		e, err := t.engine(ctx, s)
		if err != nil {
			return limits, engines, err
		}
		if l != nil {
			limits = append(limits, l)
		}
		engines = append(engines, e)
	}
	return limits, engines, nil
}

// fresh has memory ready for the new pages of a run, if the trial is one of those that
// depend on it.
func (s *suite) fresh(ctx context.Context, t *trial) error {
	if t.fresh == 0 || s.quick {
		return nil
	}
	return s.freshen(ctx, t.fresh)
}

// bench runs a workload as a child, so that each run begins alike and its
// client's CPU time is the load's alone, and sees to it that its result is
// right. The command in it is what a person may type.
func (s *suite) bench(ctx context.Context, workload string, args ...string) (*outcome, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	all := append([]string{"bench", workload}, args...)
	if !slices.Contains(args, "--server") {
		all = append(all, "--dir", s.dir)
	}
	cmd := exec.CommandContext(ctx, self, append(all, "-q", "-o", "json")...)
	cmd.Cancel = func() error { return cmd.Process.Signal(unix.SIGTERM) } // so that it stops its broker
	cmd.WaitDelay = 20 * time.Second
	cmd.SysProcAttr = &unix.SysProcAttr{Pdeathsig: unix.SIGKILL}
	var notes bytes.Buffer
	cmd.Stderr = &notes
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("bench %s: %s", workload, cmp.Or(strings.TrimSpace(notes.String()), err.Error()))
	}
	var o outcome
	if err := json.Unmarshal(out, &o.Result); err != nil {
		return nil, fmt.Errorf("bench %s: its result: %w", workload, err)
	}
	o.Command = "teralog bench " + workload + " " + strings.Join(args, " ")
	return &o, o.wrong()
}

// wrong says what no result may have, however slow the machine is.
func (o *outcome) wrong() error {
	switch {
	case o.Errors > 0:
		return fmt.Errorf("%d records were not acknowledged", o.Errors)
	case o.TailMissing != 0:
		return fmt.Errorf("%d records did not reach those who followed", o.TailMissing)
	case o.Records == 0 && o.Idle == nil:
		return errors.New("not one record went through")
	}
	return nil
}

// What --quick makes of amounts: all of them small, none of them 0.

const quickShare = 50

func (s *suite) scaled(n int64) int64 {
	if s.quick {
		return max(n/quickShare, 1)
	}
	return n
}

// slowed is a rate that any machine reaches.
func (s *suite) slowed(rate int64) int64 {
	if s.quick {
		return max(rate/quickShare, 1)
	}
	return rate
}

func (s *suite) lasting(d time.Duration) string {
	if s.quick {
		d = min(d, time.Second)
	}
	return wire.FormatDuration(d)
}
