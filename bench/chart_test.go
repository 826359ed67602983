package bench

import (
	"encoding/xml"
	"errors"
	"fmt"
	"html/template"
	"io"
	"math"
	"strings"
	"testing"
)

// elementsOf reads a page or drawing as XML, which is stricter than a browser,
// and returns how often each element occurs.
func elementsOf(t *testing.T, text string) map[string]int {
	t.Helper()
	n := map[string]int{}
	d := xml.NewDecoder(strings.NewReader(text))
	for {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			return n
		}
		if err != nil {
			t.Fatalf("%v in:\n%s", err, text)
		}
		if e, ok := token.(xml.StartElement); ok {
			n[e.Name.Local]++
		}
	}
}

func TestLinear(t *testing.T) {
	f := func(high, top float64, ticks string) {
		t.Helper()
		a := linear(high, short3)
		var labels []string
		for _, k := range a.ticks {
			labels = append(labels, k.label)
		}
		if got := strings.Join(labels, " "); got != ticks || math.Abs(a.high-top) > 1e-9*top {
			t.Fatalf("linear(%v) goes to %v with %q; want %v with %q", high, a.high, got, top, ticks)
		}
		if a.place(0) != 0 || a.place(a.high) != 1 || a.place(2*a.high) != 1 || a.place(-1) != 0 {
			t.Fatalf("linear(%v) places its ends at %v and %v", high, a.place(0), a.place(a.high))
		}
	}

	f(1, 1.5, "0 0.5 1 1.5")
	f(0.95, 1, "0 0.2 0.4 0.6 0.8 1")
	f(440, 500, "0 100 200 300 400 500")
	f(4, 5, "0 1 2 3 4 5")
	f(9, 10, "0 2 4 6 8 10")
	f(24, 30, "0 10 20 30")
	f(1990, 2500, "0 500 1000 1500 2000 2500")
	f(0, 1, "0 0.2 0.4 0.6 0.8 1") // nothing happened
}

func TestLogarithmic(t *testing.T) {
	f := func(low, high, bottom, top float64, ticks string) {
		t.Helper()
		a := logarithmic(low, high, roundLatency)
		var labels []string
		for _, k := range a.ticks {
			labels = append(labels, k.label)
		}
		if got := strings.Join(labels, ", "); got != ticks || a.low != bottom || a.high != top {
			t.Fatalf("logarithmic(%v, %v) goes from %v to %v with %q", low, high, a.low, a.high, got)
		}
	}

	f(700, 800e3, 100, 1e6, "100 µs, 1 ms, 10 ms, 100 ms, 1 s")
	f(20, 300, 10, 1000, "10 µs, 20 µs, 50 µs, 100 µs, 200 µs, 500 µs, 1 ms")
	f(50, 50, 10, 100, "10 µs, 20 µs, 50 µs, 100 µs")
	f(100, 100, 100, 1000, "100 µs, 200 µs, 500 µs, 1 ms") // an axis has some length
	f(1, 1000, 1, 1000, "1 µs, 10 µs, 100 µs, 1 ms")

	a := axis{low: 0.5, high: 0.0001, log: true} // the greater value first
	if a.place(0.5) != 0 || a.place(0.0001) != 1 || a.place(0.9) != 0 {
		t.Fatalf("ends at %v, %v, and beyond at %v", a.place(0.5), a.place(0.0001), a.place(0.9))
	}
	if at := a.place(0.01); at < 0.45 || at > 0.47 {
		t.Fatalf("99 %% at %v", at)
	}
}

// TestChart draws and looks for what must be there.
func TestChart(t *testing.T) {
	f := func(lines []line, elements map[string]int, texts ...string) {
		t.Helper()
		c := chart{name: `a "chart" <of> things`, x: linear(3, short3), y: linear(7, short3), lines: lines,
			say: func(v float64) string { return fmt.Sprintf("%v <units>", v) }, where: short3}
		text := string(c.draw())
		got := elementsOf(t, "<div>"+text+"</div>")
		for name, n := range elements {
			if got[name] != n {
				t.Fatalf("%d of %s, want %d in:\n%s", got[name], name, n, text)
			}
		}
		for _, want := range texts {
			if !strings.Contains(text, template.HTMLEscapeString(want)) {
				t.Fatalf("nothing says %q in:\n%s", want, text)
			}
		}
	}
	ps := []point{{0, 1}, {1, 7}, {3, 2}}

	f([]line{{points: ps}}, map[string]int{"svg": 1, "polyline": 1, "circle": 3, "i": 0}, `a "chart" <of> things`, "1: 7 <units>")
	f([]line{{name: "one", points: ps}, {name: "<two>", points: ps[:1]}}, map[string]int{"polyline": 2, "circle": 4, "i": 2}, "<two>", "one 3: 2 <units>")
	f([]line{{name: "none"}}, map[string]int{"polyline": 0, "circle": 0})
	f([]line{{points: ps, dots: true}}, map[string]int{"circle": 3, "title": 3}, ">7 <units><"[1:10])
}
