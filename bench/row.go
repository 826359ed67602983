package bench

import (
	"fmt"
	"strings"
)

// A Row is one figure of one workload beside the limit of the machine, or
// beside the workload that it is compared with.
type Row struct {
	Section  string `json:"section"`
	Workload string `json:"workload"` // what was done, and which figure of it this is
	Unit     string `json:"unit"`     // of limit and engine, and of floor and aim if there is no limit
	Higher   bool   `json:"higher_is_better"`

	Limit  *float64 `json:"limit"`  // median; null: the figure stands for itself
	Engine *float64 `json:"engine"` // median; null: not measured
	Ratio  *float64 `json:"ratio"`  // median over the pairs of engine over limit
	Spread *Spread  `json:"spread"` // of the ratio, without a limit of the engine
	Floor  float64  `json:"floor"`  // of the ratio, without a limit of the engine
	Aim    float64  `json:"aim"`

	Against  string   `json:"against"`  // what the limit is
	Standing Standing `json:"standing"` // of the median
	Why      string   `json:"why"`      // it was not measured, or what to mind
	Pairs    []Pair   `json:"pairs"`    // as they were measured, in turn
	Command  string   `json:"command"`  // of the engine
}

// A Pair is what one turn measured.
type Pair struct {
	Limit  *float64 `json:"limit"`
	Engine float64  `json:"engine"`
}

// A Standing says how a figure does against floor and aim.
type Standing string

// The standings.
const (
	MeetsAim    Standing = "meets aim"
	MeetsFloor  Standing = "meets floor"
	BelowFloor  Standing = "below floor"
	NotMeasured Standing = "not measured"
	NotJudged   Standing = "not judged" // so little was done that it says nothing
)

// figureOf is one figure of a workload: how it is read from what either side
// measured, and what is asked of it.
type figureOf struct {
	name, unit string
	higher     bool
	floor, aim float64
	of         func(*outcome) *float64
}

// row makes the row of a figure from what both sides of a trial measured, in
// turn; limits is empty if there is none.
func (f *figureOf) row(section, workload, against string, limits, engines []*outcome) Row {
	r := Row{Section: section, Workload: workload, Unit: f.unit, Higher: f.higher, Floor: f.floor, Aim: f.aim, Standing: NotMeasured}
	if f.name != "" {
		r.Workload += ": " + f.name
	}
	var ls, es, ratios []float64
	for i, e := range engines {
		v := f.of(e)
		if v == nil {
			continue
		}
		p := Pair{Engine: *v}
		if i < len(limits) {
			if p.Limit = f.of(limits[i]); p.Limit == nil || *p.Limit == 0 {
				continue
			}
			ls, ratios = append(ls, *p.Limit), append(ratios, *v / *p.Limit)
		}
		es, r.Pairs = append(es, *v), append(r.Pairs, p)
		r.Command = e.Command
		if e.GeneratorBound {
			r.Why = "the generator was the bottleneck: " + *e.GeneratorReason
		}
	}
	if len(es) == 0 {
		if r.Why == "" {
			r.Why = "the figure could not be read"
		}
		return r
	}
	spread := spreadOf(es)
	r.Engine = &spread.Median
	if len(ratios) > 0 {
		limit := spreadOf(ls).Median
		spread := spreadOf(ratios)
		r.Against, r.Limit, r.Ratio, r.Spread = against, &limit, &spread.Median, &spread
	} else {
		r.Spread = &spread
	}
	r.Standing = standing(r.Spread.Median, r.Floor, r.Aim, r.Higher)
	return r
}

// standing compares a figure with what is asked, bounds inclusive.
func standing(v, floor, aim float64, higher bool) Standing {
	if !higher {
		v, floor, aim = -v, -floor, -aim
	}
	switch {
	case v >= aim:
		return MeetsAim
	case v >= floor:
		return MeetsFloor
	}
	return BelowFloor
}

// spreadText writes the ends of what was measured.
func (r *Row) spreadText() string {
	if r.Spread == nil || len(r.Pairs) < 2 {
		return ""
	}
	return short(r.Spread.Min) + " to " + short(r.Spread.Max)
}

// orNone writes a figure, or that there is none.
func orNone(v *float64) string {
	if v == nil {
		return "–"
	}
	return short(*v)
}

// markdown writes rows as tables, one a section, which read well as plain text
// too.
func markdown(b *strings.Builder, rows []Row) {
	for i := range rows {
		r := &rows[i]
		if i == 0 || rows[i-1].Section != r.Section {
			fmt.Fprintf(b, "\n### %s\n\n| workload | unit | limit | Teralog | ratio | spread | floor | aim | |\n|---|---|---:|---:|---:|---|---:|---:|---|\n", r.Section)
		}
		says := string(r.Standing)
		if r.Why != "" {
			says += ": " + r.Why
		}
		fmt.Fprintf(b, "| %s | %s | %s | %s | %s | %s | %s | %s | %s |\n", cell(r.Workload), r.Unit, orNone(r.Limit), orNone(r.Engine), orNone(r.Ratio),
			r.spreadText(), short(r.Floor), short(r.Aim), cell(says))
	}
}

// cell keeps text from ending its cell.
func cell(s string) string { return strings.NewReplacer("|", "\\|", "\n", " ").Replace(s) }

// between puts text between the two marker lines of a document, in place of
// what stood there.
func between(document, begin, end, text string) (string, error) {
	from := strings.Index(document, begin)
	if from < 0 {
		return "", fmt.Errorf("there is no line %s", begin)
	}
	from += len(begin)
	n := strings.Index(document[from:], end)
	if n < 0 {
		return "", fmt.Errorf("there is no line %s behind %s", end, begin)
	}
	return document[:from] + "\n" + text + document[from+n:], nil
}
