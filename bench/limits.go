package bench

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"regexp"
	"strings"
	"time"
	"unicode/utf8"

	"golang.org/x/sys/unix"
)

const limitsHelp = `Usage: teralog bench limits [flags]

Measures what this machine could do at best: the smallest honest programs that
do what a broker and its client cannot do without. All are run in turn, round
after round. A row is the median of the rounds with the least and the greatest,
and the CPU seconds per GB of the server's and of the client's process.

  teralog bench limits
  teralog bench limits --only 'receive|fdatasync' --rounds 5 --dir /var/lib -o json

The longest pause is that of 2 seconds on every processor, with --quick of 0.2.
MB are 10^6 bytes and GB 10^9; KiB and MiB are powers of 1024. "16KiB x 16" are
batches of 16KiB, 16 of them in flight on one connection.
`

// A limit is one thing that is measured.
type limit struct {
	group, name string
	numbers     []number
	run         func(ctx context.Context, dir string, scale float64) (Round, error)
	newBytes    int64 // of new file that it writes
}

// A number is one of a round; its text follows the limit's name.
type number struct {
	text, unit string
	of         func(Round) float64
}

var (
	rate     = []number{{"", "MB/s", func(r Round) float64 { return r.MBPerSecond }}}
	median   = []number{{"", "µs", func(r Round) float64 { return r.P50 }}}
	longest  = []number{{"", "µs", func(r Round) float64 { return r.Max }}}
	quantile = []number{
		{", P50", "µs", func(r Round) float64 { return r.P50 }},
		{", P99", "µs", func(r Round) float64 { return r.P99 }},
	}
)

// A limitRow is what is said about one number.
type limitRow struct {
	Group string `json:"group"`
	Name  string `json:"name"`
	Unit  string `json:"unit"`
	Spread
	ServerCPU Spread    `json:"server_cpu_seconds_per_gb"`
	ClientCPU Spread    `json:"client_cpu_seconds_per_gb"`
	Rounds    []float64 `json:"rounds"`
}

// A limitsReport is the result of `bench limits`.
type limitsReport struct {
	Command string     `json:"command"`
	Started string     `json:"started"`
	Seconds float64    `json:"seconds"`
	Machine Machine    `json:"machine"`
	Dir     string     `json:"dir"`
	Rounds  int        `json:"rounds"`
	Quick   bool       `json:"quick"`
	Limits  []limitRow `json:"limits"`
}

// A limiting is one call of `bench limits`.
type limiting struct {
	dir    string
	only   *regexp.Regexp
	rounds int
	within time.Duration // no round begins that would end later; 0: however long it takes
	quick  bool
	format string
}

// Without --rounds a limit is measured up to maxRounds times, and no longer
// than enough.
const (
	maxRounds = 5
	enough    = 110 * time.Second
)

// quickScale is the share of the work that --quick does.
const quickScale = 0.1

func benchLimits(ctx context.Context, args []string, _ Start, _ io.Reader, out, notes io.Writer) error {
	l := limiting{format: "table"}
	f := newFlags(limitsHelp)
	f.StringVar(&l.dir, "dir", os.TempDir(), "where files are made, which have no name and vanish with their process")
	only := f.String("only", "", "regular expression: only limits whose name it finds, in either case")
	f.IntVar(&l.rounds, "rounds", 0, "how often each is measured (by default up to 5 times, as long as all is done in 2 minutes)")
	f.BoolVar(&l.quick, "quick", false, "one round of a tenth of the work, in less than 20 seconds")
	f.Var(oneOf(&l.format, "table", "json"), "o", "table or json")
	switch err := f.parse(args, out); {
	case errors.Is(err, flag.ErrHelp):
		return nil
	case err != nil:
		return err
	case f.isSet("rounds") && (l.rounds < 1 || l.rounds > 1000):
		return usage{fmt.Errorf("--rounds %d: it is 1 to 1000", l.rounds)}
	case f.isSet("rounds"):
	case l.quick:
		l.rounds = 1
	default:
		l.rounds, l.within = maxRounds, enough
	}
	var err error
	if l.only, err = regexp.Compile("(?i)" + *only); err != nil {
		return usage{fmt.Errorf("--only: %w", err)}
	}
	chosen := l.chosen(limits())
	if len(chosen) == 0 {
		return usage{fmt.Errorf("no limit's name matches %q; they are:%s", *only, names(limits()))}
	}
	if err := enoughSpace(l.dir); err != nil {
		return err
	}
	started := time.Now()
	measured, err := l.measure(ctx, chosen, NewDisplay(notes, false))
	if err != nil {
		return err
	}
	report := limitsReport{Command: strings.Join(append([]string{"teralog bench limits"}, args...), " "), Started: started.UTC().Format(time.RFC3339),
		Machine: machineOf(l.dir), Dir: l.dir, Rounds: len(measured[0]), Quick: l.quick}
	report.Seconds = time.Since(started).Seconds()
	for i, c := range chosen {
		report.Limits = append(report.Limits, c.rows(measured[i])...)
	}
	if l.format == "json" {
		e := json.NewEncoder(out)
		e.SetIndent("", "  ")
		return e.Encode(report)
	}
	return report.table(out)
}

func (l *limiting) chosen(all []limit) (some []limit) {
	for _, one := range all {
		if l.only.MatchString(one.group + ": " + one.name) {
			some = append(some, one)
		}
	}
	return some
}

func names(all []limit) string {
	var b strings.Builder
	for _, one := range all {
		fmt.Fprintf(&b, "\n  %s: %s", one.group, one.name)
	}
	return b.String()
}

// spaceNeeded is what the longest file takes, and as much as a disk should
// have left.
const spaceNeeded = 4 << 30

func enoughSpace(dir string) error {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return fmt.Errorf("--dir %s: %w", dir, err)
	}
	if free := int64(st.Bavail) * st.Bsize; free < spaceNeeded {
		return fmt.Errorf("--dir %s has %.1f GB free; the files take up to 2 GB, and %.1f GB should be free", dir, float64(free)/1e9, spaceNeeded/1e9)
	}
	return nil
}

// measure runs each limit once a round and returns the rounds of each, as many
// of all.
func (l *limiting) measure(ctx context.Context, chosen []limit, d *Display) ([][]Round, error) {
	defer d.Clear()
	scale := 1.0
	if l.quick {
		scale = quickScale
	}
	measured := make([][]Round, len(chosen))
	started := time.Now()
	for n := range l.rounds {
		if passed := time.Since(started); n > 0 && l.within > 0 && passed+passed/time.Duration(n) > l.within {
			break
		}
		for i, c := range chosen {
			d.Bar(fmt.Sprintf("round %d of %d: %s, %s", n+1, l.rounds, c.group, c.name), float64(n*len(chosen)+i)/float64(l.rounds*len(chosen)))
			r, err := c.measure(ctx, l.dir, scale)
			if err != nil {
				return nil, fmt.Errorf("%s, %s: %w", c.group, c.name, err)
			}
			measured[i] = append(measured[i], r)
		}
	}
	return measured, nil
}

func (c *limit) measure(ctx context.Context, dir string, scale float64) (Round, error) {
	if c.newBytes > 0 {
		if err := warmMemory(ctx, dir, int64(float64(c.newBytes)*scale)); err != nil {
			return Round{}, err
		}
	}
	return c.run(ctx, dir, scale)
}

// rows returns a row for each number.
func (c *limit) rows(rounds []Round) (rows []limitRow) {
	spread := func(of func(Round) float64) (values []float64, s Spread) {
		for _, r := range rounds {
			values = append(values, of(r))
		}
		return values, spreadOf(values)
	}
	for _, f := range c.numbers {
		row := limitRow{Group: c.group, Name: c.name + f.text, Unit: f.unit}
		row.Rounds, row.Spread = spread(f.of)
		_, row.ServerCPU = spread(func(r Round) float64 { return r.ServerCPU })
		_, row.ClientCPU = spread(func(r Round) float64 { return r.ClientCPU })
		rows = append(rows, row)
	}
	return rows
}

func (r *limitsReport) table(out io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "%v\ncommit %s, files in %s, %s, %.0f s\n", r.Machine, r.Machine.Commit, r.Dir, few(r.Rounds, "round"), r.Seconds)
	wide := 0
	for _, row := range r.Limits {
		wide = max(wide, utf8.RuneCountInString(row.Name))
	}
	group := ""
	for _, row := range r.Limits {
		if row.Group != group {
			group = row.Group
			fmt.Fprintf(&b, "\n%-*s  %9s %9s %9s %5s  %8s %8s\n", wide+2, group, "median", "min", "max", "", "server", "client")
		}
		fmt.Fprintf(&b, "  %-*s  %9s %9s %9s %5s  %8s %8s\n", wide, row.Name, short(row.Median), short(row.Min), short(row.Max), row.Unit, cpu(row.ServerCPU), cpu(row.ClientCPU))
	}
	fmt.Fprintln(&b, "\nserver, client: median CPU seconds per GB of that side's process")
	_, err := io.WriteString(out, b.String())
	return err
}

func cpu(s Spread) string {
	if s.Max == 0 {
		return "-"
	}
	return fmt.Sprintf("%.3f", s.Median)
}
