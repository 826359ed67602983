package bench

import (
	"fmt"
	"html"
	"html/template"
	"math"
	"strconv"
	"strings"
)

// Charts are drawn as SVG in the units of a 720 by 240 box; colours come from
// the page's style sheet, so that they fit its light and its dark form.
const (
	chartWidth, chartHeight = 720.0, 240.0
	plotLeft, plotRight     = 80.0, 684.0
	plotTop, plotBottom     = 18.0, 208.0
)

const (
	roomy = 1.05 // an axis reaches so far beyond its greatest value
	tiny  = 1e-9 // less than what arithmetic loses
)

// An axis maps values to 0 (its low end) to 1 (its high end). The low end may
// be the greater value.
type axis struct {
	low, high float64
	log       bool
	ticks     []axisTick // ascending
}

type axisTick struct {
	at    float64
	label string
}

// linear returns an axis from 0 that has room for high, with ticks at round
// numbers.
func linear(high float64, format func(float64) string) axis {
	if high *= roomy; high <= 0 {
		high = 1 // nothing happened
	}
	step := math.Pow(10, math.Floor(math.Log10(high/5)))
	for _, times := range []float64{2, 5, 10} { // at most five steps, of 1, 2, 5 or 10
		if decade := math.Pow(10, math.Floor(math.Log10(high/5))); high/step > 5 {
			step = times * decade
		}
	}
	a := axis{high: step * math.Ceil(high/step-tiny)}
	for n := 0.0; n*step <= a.high*(1+tiny); n++ {
		a.ticks = append(a.ticks, axisTick{n * step, format(n * step)})
	}
	return a
}

// logarithmic returns an axis of whole decades that has room for low to high,
// both more than 0.
func logarithmic(low, high float64, format func(float64) string) axis {
	first, last := math.Floor(math.Log10(low)+tiny), math.Ceil(math.Log10(high)-tiny)
	last = max(last, first+1)
	a := axis{low: math.Pow(10, first), high: math.Pow(10, last), log: true}
	parts := []float64{1}
	if last-first <= 2 {
		parts = []float64{1, 2, 5}
	}
	for d := first; d <= last; d++ {
		for _, p := range parts {
			if v := p * math.Pow(10, d); v <= a.high*(1+tiny) {
				a.ticks = append(a.ticks, axisTick{v, format(v)})
			}
		}
	}
	return a
}

// place returns where v lies, held within the axis.
func (a axis) place(v float64) float64 {
	low, high := a.low, a.high
	if a.log {
		low, high, v = math.Log(low), math.Log(high), math.Log(max(v, min(a.low, a.high)))
	}
	return min(max((v-low)/(high-low), 0), 1)
}

// A line is one series of a chart.
type line struct {
	name   string
	points []point // ascending by x
	dots   bool    // each point is marked and its value written beside it
}

type point struct{ x, y float64 }

// A chart is lines over common axes.
type chart struct {
	name  string // for those who cannot see it
	x, y  axis
	lines []line
	say   func(float64) string // a value of y in words
	where func(float64) string // a value of x in words
}

// svg is text under way.
type svg struct{ strings.Builder }

func (s *svg) put(format string, args ...any) { fmt.Fprintf(s, format, args...) }

// text writes words at a place; anchor is start, middle or end.
func (s *svg) text(class, anchor string, x, y float64, words string) {
	s.put(`<text class="%s" text-anchor="%s" x="%s" y="%s">%s</text>`, class, anchor, num(x), num(y), html.EscapeString(words))
}

func (s *svg) rule(class string, x1, y1, x2, y2 float64) {
	s.put(`<line class="%s" x1="%s" y1="%s" x2="%s" y2="%s"/>`, class, num(x1), num(y1), num(x2), num(y2))
}

// num is a coordinate, to a tenth.
func num(v float64) string { return strconv.FormatFloat(math.Round(v*10)/10, 'f', -1, 64) }

func (s *svg) html() template.HTML { return template.HTML(s.String()) }

func (c *chart) across(v float64) float64 { return plotLeft + (plotRight-plotLeft)*c.x.place(v) }
func (c *chart) up(v float64) float64     { return plotBottom - (plotBottom-plotTop)*c.y.place(v) }

// draw returns the chart with its legend, which a single line does not need.
func (c *chart) draw() template.HTML {
	var s svg
	if len(c.lines) > 1 {
		s.put(`<div class="legend">`)
		for i, l := range c.lines {
			s.put(`<span><i class="s%d"></i>%s</span>`, i+1, html.EscapeString(l.name))
		}
		s.put(`</div>`)
	}
	s.put(`<svg viewBox="0 0 %s %s" role="img" aria-label="%s">`, num(chartWidth), num(chartHeight), html.EscapeString(c.name))
	for _, t := range c.y.ticks {
		y := c.up(t.at)
		s.rule("grid", plotLeft, y, plotRight, y)
		s.text("tick", "end", plotLeft-8, y+4, t.label)
	}
	for _, t := range c.x.ticks {
		s.text("tick", "middle", c.across(t.at), plotBottom+20, t.label)
	}
	for i, l := range c.lines {
		c.drawLine(&s, i+1, l)
	}
	s.put(`</svg>`)
	return s.html()
}

func (c *chart) drawLine(s *svg, n int, l line) {
	if len(l.points) == 0 {
		return
	}
	s.put(`<polyline class="line s%d" points="`, n)
	for _, p := range l.points {
		s.put("%s,%s ", num(c.across(p.x)), num(c.up(p.y)))
	}
	s.put(`"/>`)
	for _, p := range l.points {
		class := "spot"
		if l.dots || len(l.points) == 1 {
			class = "dot"
		}
		x, y := c.across(p.x), c.up(p.y)
		// What the pointer rests on says its value.
		s.put(`<circle class="%s s%d" cx="%s" cy="%s" r="4"><title>%s</title></circle>`, class, n, num(x), num(y),
			html.EscapeString(strings.TrimSpace(l.name+" "+c.where(p.x)+": "+c.say(p.y))))
		if l.dots {
			anchor := "end" // over a rising line
			if x == plotLeft {
				anchor = "start"
			}
			s.text("value", anchor, x, y-10, c.say(p.y))
		}
	}
}
