package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// TestTrials holds the tables of workloads to what rows need.
func TestTrials(t *testing.T) {
	f := func(ts []trial, most time.Duration) {
		t.Helper()
		names, total := map[string]bool{}, time.Duration(0)
		sections := []string{}
		for _, x := range ts {
			total += x.takes * time.Duration(x.atMost(5))
			if x.engine == nil || len(x.figures) == 0 || x.takes == 0 || (x.limit == nil) != (x.against == "") {
				t.Errorf("%s lacks something: %+v", x.name, x)
			}
			// What writes much in a short time would else measure whose memory it was.
			if writes := x.section == sectionProduce || strings.Contains(x.name, "asked for"); writes != (x.fresh > 0) {
				t.Errorf("%s finds %d bytes of held memory", x.name, x.fresh)
			}
			if len(sections) == 0 || sections[len(sections)-1] != x.section {
				sections = append(sections, x.section)
			}
			for _, g := range x.figures {
				name := x.section + x.name + g.name
				if names[name] {
					t.Errorf("%s: %s is there twice", x.name, g.name)
				}
				names[name] = true
				if g.of == nil || g.unit == "" || g.higher && g.aim < g.floor || !g.higher && g.aim > g.floor {
					t.Errorf("%s: %s asks for floor %v and aim %v", x.name, g.name, g.floor, g.aim)
				}
				if v := g.of(&outcome{}); v != nil && *v != 0 {
					t.Errorf("%s: %s of nothing is %v", x.name, g.name, *v)
				}
			}
		}
		slices.Sort(sections)
		if len(slices.Compact(sections)) != len(sections) {
			t.Errorf("a section is begun twice: %q", sections)
		}
		if total > most {
			t.Errorf("all take %v, not %v", total, most)
		}
	}

	f(trials(), 15*time.Minute)
	f(longTrials(), time.Hour)
}

func TestPlan(t *testing.T) {
	seconds := func(ns ...int) (ts []trial) {
		for _, n := range ns {
			ts = append(ts, trial{takes: time.Duration(n) * time.Second})
		}
		return ts
	}
	f := func(s suite, left []trial, passed, guessed time.Duration, pairs int, remaining time.Duration) {
		t.Helper()
		p, r := s.plan(left, passed, guessed)
		if p != pairs || r != remaining {
			t.Fatalf("%d pairs and %v left, want %d and %v", p, r, pairs, remaining)
		}
	}
	s := suite{most: 5, budget: 100 * time.Second}

	f(s, seconds(10, 10), 0, 0, 5, 100*time.Second)
	f(s, seconds(10, 10), time.Second, time.Second, 4, 80*time.Second)
	f(s, seconds(10, 10), 10*time.Second, 5*time.Second, 2, 80*time.Second) // all takes twice as long
	f(s, seconds(10, 10), 10*time.Second, 50*time.Second, 4, 80*time.Second)
	f(s, seconds(30), 55*time.Second, 55*time.Second, 1, 30*time.Second)
	f(s, seconds(30), time.Hour, time.Hour, 1, 30*time.Second) // late, but each is run once
	once := seconds(90, 2)
	once[0].pairs = 1
	f(s, once, 0, 0, 1, 100*time.Second)
	f(s, once[1:], 0, 0, 5, 10*time.Second)
	s.quick = true
	f(s, seconds(500, 500), 0, 0, 1, 8*time.Second)
}

func TestFits(t *testing.T) {
	f := func(pattern, text string, want bool) {
		t.Helper()
		if got := fits(pattern, text); got != want {
			t.Fatalf("fits(%q, %q) = %t", pattern, text, got)
		}
	}

	f("", "Produce 100 B", true)
	f("produce", "Produce 100 B", true)
	f("prod*100", "Produce 100 B", true)
	f("100*prod", "Produce 100 B", false)
	f("*b*", "Produce 100 B", true)
	f("produce 1 KiB", "Produce 100 B", false)
	f("o*o", "one", false) // a letter counts once
}

// TestPairs runs sides in turn, and keeps what was measured before a failure.
func TestPairs(t *testing.T) {
	var order strings.Builder
	named := func(name string, fails int) side {
		n := 0
		return func(context.Context, *suite) (*outcome, error) {
			order.WriteString(name)
			if n++; n == fails {
				return nil, errors.New(name + " is broken")
			}
			return &outcome{}, nil
		}
	}
	f := func(limit, engine side, n int, want string, limits, engines int, fault string) {
		t.Helper()
		order.Reset()
		ls, es, err := (&suite{}).pairs(t.Context(), &trial{limit: limit, engine: engine}, n, func(int, string) {})
		if order.String() != want || len(ls) != limits || len(es) != engines || (err == nil) != (fault == "") || err != nil && !strings.Contains(err.Error(), fault) {
			t.Fatalf("%s: %d, %d, %v", &order, len(ls), len(es), err)
		}
	}

	f(named("a", 0), named("B", 0), 3, "aBaBaB", 3, 3, "")
	f(nil, named("B", 0), 2, "BB", 0, 2, "")
	f(named("a", 0), named("B", 2), 3, "aBaB", 1, 1, "B is broken")
	f(named("a", 2), named("B", 0), 3, "aBa", 1, 1, "limit: a is broken")

	// Both sides find the same memory.
	fresh := func(quick bool, bytes int64, want string, fault error) {
		t.Helper()
		order.Reset()
		s := &suite{quick: quick, freshen: func(_ context.Context, n int64) error {
			fmt.Fprint(&order, n)
			return fault
		}}
		_, _, err := s.pairs(t.Context(), &trial{limit: named("a", 0), engine: named("B", 0), fresh: bytes}, 2, func(int, string) {})
		if order.String() != want || err != fault {
			t.Fatalf("%s: %v", &order, err)
		}
	}
	fresh(false, 7, "7a7B7a7B", nil)
	fresh(false, 0, "aBaB", nil)
	fresh(true, 7, "aBaB", nil)
	fresh(false, 7, "7", errors.New("no memory"))
}

// TestFreshMemory: nobody waits for it who has given up.
func TestFreshMemory(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := freshMemory(ctx, 1<<20); err != context.Canceled {
		t.Error(err)
	}
}

func TestWrong(t *testing.T) {
	f := func(o outcome, want string) {
		t.Helper()
		err := o.wrong()
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Fatalf("%v, want %q", err, want)
		}
	}
	f(outcome{Result: Result{Records: 1}}, "")
	f(outcome{Result: Result{Idle: &Idle{}}}, "")
	f(outcome{}, "not one record")
	f(outcome{Result: Result{Records: 9, Errors: 1}}, "1 records were not acknowledged")
	f(outcome{Result: Result{Records: 9, TailMissing: 2}}, "2 records did not reach")
	f(outcome{Result: Result{Records: 9, TailMissing: -2}}, "did not reach") // more than there are is as wrong
}

func TestGrowth(t *testing.T) {
	f := func(want float64, samples ...float64) {
		t.Helper()
		if got := growth(samples); got != want {
			t.Fatalf("%v, want %v", got, want)
		}
	}
	f(0)
	f(0, 1, 2, 3)
	f(1.5, 1, 2, 9, 9, 9, 9, 9, 9, 9, 3)
	f(2, 1, 1, 4, 2, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 4, 8)
}

// TestWindowBytes checks that a window of so many batches is what the load's
// own default makes of it.
func TestWindowBytes(t *testing.T) {
	for _, record := range []int64{100, 1 << 10} {
		for _, batch := range []int64{16 << 10, 64 << 10, 1 << 20} {
			l := load{size: record, batch: batch}
			if got := windowBytes(record, batch, 8); got != text(l.window()) {
				t.Errorf("records of %d in batches of %d: %s, and the load takes %d", record, batch, got, l.window())
			}
		}
	}
}

// TestValuesOf checks the share of a batch that is values.
func TestValuesOf(t *testing.T) {
	o := valuesOf(Round{MBPerSecond: 1000, ServerCPU: 0.5, P50: 7, P99: 8}, 100, 64<<10)
	if o.MBPerSecond < 900 || o.MBPerSecond > 950 || o.Latency.P50 != 7 || o.Latency.P99 != 8 {
		t.Fatalf("%+v", o)
	}
	if got := o.MBPerSecond * *o.BrokerCPUPerGB; got < 499.9 || got > 500.1 { // the server's cores, whatever is counted
		t.Fatalf("%v", got)
	}
}

// aReport has rows of every standing.
func aReport() *suiteReport {
	v := func(x float64) *float64 { return &x }
	pairs := []Pair{{v(100), 90}, {v(100), 85}}
	return &suiteReport{Started: "2026-01-02T03:04:05Z", Command: "teralog bench suite --only '<x>'", Commit: "0123456789ab", Seconds: 90, Rows: []Row{
		{Section: "One", Workload: "<fast>", Unit: "MB/s", Higher: true, Limit: v(100), Engine: v(87.5), Ratio: v(0.875), Spread: &Spread{0.875, 0.85, 0.9}, Floor: 0.6, Aim: 0.85,
			Against: "the least", Standing: MeetsAim, Pairs: pairs, Command: "teralog bench produce"},
		{Section: "One", Workload: "slow", Unit: "s/GB", Limit: v(1), Engine: v(90), Ratio: v(90), Spread: &Spread{90, 80, 1000}, Floor: 2, Aim: 1.25, Against: "x", Standing: BelowFloor, Pairs: pairs},
		{Section: "Two", Workload: "fair", Unit: "µs", Engine: v(150), Spread: &Spread{150, 150, 150}, Floor: 200, Aim: 110, Standing: MeetsFloor, Pairs: []Pair{{nil, 150}}},
		{Section: "Two", Workload: "gone", Unit: "s", Floor: 2, Aim: 1, Standing: NotMeasured, Why: "no <disk>"},
	}, failures: []error{errors.New("gone: no <disk>")}}
}

// TestSuiteReport writes a report in all its forms.
func TestSuiteReport(t *testing.T) {
	dir := t.TempDir()
	name := func(s string) string { return filepath.Join(dir, s) }
	if err := os.WriteFile(name("B.md"), []byte("# Before\n"+beginTables+"\nold\n"+endTables+"\nafter\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	s := &suite{format: "table", json: name("s.json"), html: name("s.html"), markdown: name("B.md")}
	r := aReport()
	var out bytes.Buffer
	if err := s.write(r, &out); err != nil {
		t.Fatal(err)
	}
	says := func(text string, wants ...string) {
		t.Helper()
		for _, w := range wants {
			if !strings.Contains(text, w) {
				t.Fatalf("nothing says %q in:\n%s", w, text)
			}
		}
	}
	read := func(s string) string {
		b, err := os.ReadFile(name(s))
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	says(out.String(), "ONE", "<fast>", "meets aim", "not measured: no <disk>", "4 figures: 1 at the aim or better, 1 between floor and aim, 1 below the floor, 1 not measured.")
	md := read("B.md")
	says(md, "# Before\n"+beginTables+"\n", endTables+"\nafter\n", "### Two", "0123456789ab", "`teralog bench suite --only '<x>'`")
	if strings.Contains(md, "old") {
		t.Fatalf("%s", md)
	}
	page := read("s.html")
	n := elementsOf(t, page)
	if n["svg"] != 3 || n["details"] != 4 || n["script"] != 0 {
		t.Fatalf("%v", n)
	}
	says(page, "&lt;fast&gt;", "no &lt;disk&gt;", "0.85 to 0.90", "meets floor", "teralog bench produce", "The limit: the least.")

	var rows struct {
		Rows []map[string]any
	}
	if err := json.Unmarshal([]byte(read("s.json")), &rows); err != nil {
		t.Fatal(err)
	}
	for _, row := range rows.Rows {
		for _, key := range []string{"workload", "limit", "engine", "ratio", "spread", "floor", "aim"} {
			if _, there := row[key]; !there {
				t.Errorf("%v has no %s", row["workload"], key)
			}
		}
	}
	if err := r.err(); err == nil || !strings.Contains(err.Error(), "1 workload failed") {
		t.Fatal(err)
	}
	r.failures = nil
	if err := r.err(); err != nil {
		t.Fatalf("slow is no failure, but %v", err)
	}
}

// TestSuiteCommand checks what is refused before anything is measured.
func TestSuiteCommand(t *testing.T) {
	t.Chdir(t.TempDir())
	f := func(want string, args ...string) {
		t.Helper()
		var out bytes.Buffer
		err := benchSuite(t.Context(), args, nil, nil, &out, io.Discard)
		if coded := (usage{}); !errors.As(err, &coded) || !strings.Contains(err.Error(), want) {
			t.Fatalf("%q: %v, want %q", args, err, want)
		}
	}
	f("did you mean --quick", "--quik")
	f("--pairs 0", "--pairs", "0")
	f("no workload fits", "--only", "nothing of this name")
	f("no such file", "--markdown", "NOTHING.md")
	if err := os.WriteFile("BENCHMARKS.md", []byte("# No markers"), 0o644); err != nil {
		t.Fatal(err)
	}
	f("there is no line <!-- bench suite: begin -->")
	var out bytes.Buffer
	if err := benchSuite(t.Context(), []string{"--help"}, nil, nil, &out, io.Discard); err != nil || !strings.HasPrefix(out.String(), "Usage: teralog bench suite") {
		t.Fatalf("%q, %v", &out, err)
	}
}

// TestSuiteBench runs one workload as a child and one that fails.
func TestSuiteBench(t *testing.T) {
	s := &suite{dir: t.TempDir(), quick: true}
	o, err := s.bench(t.Context(), "produce", "--size", "100", "--records", "1000", "--warm-up", "0s")
	if err != nil || o.Records != 1000 || o.Command != "teralog bench produce --size 100 --records 1000 --warm-up 0s" || o.Latency == nil {
		t.Fatalf("%+v, %v", o, err)
	}
	if _, err := s.bench(t.Context(), "produce", "--no-such-flag"); err == nil || !strings.Contains(err.Error(), "no-such-flag") {
		t.Fatal(err)
	}
	left, err := os.ReadDir(s.dir)
	if err != nil || len(left) > 0 {
		t.Fatalf("%v is left, %v", left, err)
	}
}
