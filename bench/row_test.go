package bench

import (
	"reflect"
	"strings"
	"testing"
)

func TestStanding(t *testing.T) {
	f := func(v, floor, aim float64, higher bool, want Standing) {
		t.Helper()
		if got := standing(v, floor, aim, higher); got != want {
			t.Fatalf("%v against %v and %v: %q, want %q", v, floor, aim, got, want)
		}
	}

	f(0.59, 0.6, 0.85, true, BelowFloor)
	f(0.6, 0.6, 0.85, true, MeetsFloor)
	f(0.85, 0.6, 0.85, true, MeetsAim)
	f(2.01, 2, 1.25, false, BelowFloor)
	f(2, 2, 1.25, false, MeetsFloor)
	f(1.25, 2, 1.25, false, MeetsAim)
	f(0, 2, 1.25, false, MeetsAim)
}

// TestRow makes rows of what both sides measured.
func TestRow(t *testing.T) {
	speeds := func(vs ...float64) (os []*outcome) {
		for _, v := range vs {
			os = append(os, &outcome{Result: Result{MBPerSecond: v, Command: "teralog bench x"}})
		}
		return os
	}
	fast := throughput(0.6, 0.85)
	f := func(of figureOf, limits, engines []*outcome, limit, engine, ratio float64, spread Spread, standing Standing, pairs int) {
		t.Helper()
		r := of.row("s", "w", "the limit", limits, engines)
		value := func(p *float64) float64 {
			if p == nil {
				return -1
			}
			return *p
		}
		if value(r.Limit) != limit || value(r.Engine) != engine || value(r.Ratio) != ratio || *r.Spread != spread || r.Standing != standing || len(r.Pairs) != pairs {
			t.Fatalf("limit %v, engine %v, ratio %v, %+v", value(r.Limit), value(r.Engine), value(r.Ratio), r)
		}
		if r.Workload != "w: throughput" || r.Command != "teralog bench x" || (r.Against == "") != (r.Limit == nil) {
			t.Fatalf("%+v", r)
		}
	}

	f(fast, speeds(100, 200, 400), speeds(50, 180, 240), 200, 180, 0.6, Spread{0.6, 0.5, 0.9}, MeetsFloor, 3) // of the ratios, not of the medians
	f(fast, nil, speeds(0.5, 0.9), -1, 0.7, -1, Spread{0.7, 0.5, 0.9}, MeetsFloor, 2)
	f(fast, speeds(100, 0), speeds(90, 77), 100, 90, 0.9, Spread{0.9, 0.9, 0.9}, MeetsAim, 1) // a limit of 0 divides nothing
	f(fast, nil, speeds(0.3), -1, 0.3, -1, Spread{0.3, 0.3, 0.3}, BelowFloor, 1)

	cpu := brokerCPU(2, 1.25)
	if r := cpu.row("s", "w", "l", speeds(1), speeds(1)); r.Standing != NotMeasured || r.Engine != nil || r.Spread != nil || r.Why == "" {
		t.Fatalf("a figure that nobody measured: %+v", r)
	}
	if r := cpu.row("s", "w", "l", nil, nil); r.Standing != NotMeasured || r.Why == "" {
		t.Fatalf("no pair at all: %+v", r)
	}
	why := "slow <client>"
	bound := speeds(5)
	bound[0].GeneratorBound, bound[0].GeneratorReason = true, &why
	if r := fast.row("s", "w", "", nil, bound); !strings.Contains(r.Why, why) {
		t.Fatalf("%+v", r)
	}
}

func TestBetween(t *testing.T) {
	f := func(document, want, fault string) {
		t.Helper()
		got, err := between(document, "<b>", "<e>", "new\n")
		if got != want || (err == nil) != (fault == "") || err != nil && !strings.Contains(err.Error(), fault) {
			t.Fatalf("between(%q) = %q, %v", document, got, err)
		}
	}

	f("a\n<b>\nold\n<e>\nz\n", "a\n<b>\nnew\n<e>\nz\n", "")
	f("<b><e>", "<b>\nnew\n<e>", "")
	f("a\n<e>\n<b>\n", "", "<e> behind <b>")
	f("nothing", "", "no line <b>")
}

func TestMarkdown(t *testing.T) {
	v := func(x float64) *float64 { return &x }
	rows := []Row{
		{Section: "One", Workload: "w: a|b", Unit: "MB/s", Higher: true, Limit: v(200), Engine: v(100), Ratio: v(0.5), Spread: &Spread{0.5, 0.4, 0.6}, Floor: 0.6, Aim: 0.85,
			Standing: BelowFloor, Pairs: make([]Pair, 2)},
		{Section: "One", Workload: "x", Unit: "µs", Engine: v(63), Spread: &Spread{63, 63, 63}, Floor: 200, Aim: 110, Standing: MeetsAim, Pairs: make([]Pair, 1)},
		{Section: "Two", Workload: "y", Unit: "s", Floor: 2.5, Aim: 1.5, Standing: NotMeasured, Why: "no\ndisk"},
	}
	var b strings.Builder
	markdown(&b, rows)
	var got []string
	for l := range strings.Lines(b.String()) {
		if l = strings.TrimSpace(l); l != "" && !strings.HasPrefix(l, "|---") && !strings.HasPrefix(l, "| workload") {
			got = append(got, l)
		}
	}
	want := []string{
		"### One",
		`| w: a\|b | MB/s | 200 | 100 | 0.50 | 0.40 to 0.60 | 0.60 | 0.85 | below floor |`,
		"| x | µs | – | 63.0 | – |  | 200 | 110 | meets aim |",
		"### Two",
		"| y | s | – | – | – |  | 2.50 | 1.50 | not measured: no disk |",
	}
	if !reflect.DeepEqual(got, want) {
		t.Fatalf("%s", strings.Join(got, "\n"))
	}
}
