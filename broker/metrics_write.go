package broker

import (
	"io"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/teralog/teralog/mem"
)

// An exposition is metrics on their way to who asked, in the text format 0.0.4
// of Prometheus. It holds no more than a part at a time: a node of 10,000
// partitions has megabytes to tell.
type exposition struct {
	w   io.Writer
	b   []byte
	err error // of the first write that failed; nothing is written after it
}

// partBytes is how much an exposition gathers before it writes.
const partBytes = 32 << 10

// writeMetrics writes rows to w.
func writeMetrics(w io.Writer, rows []metric, s *scrape) error {
	to := &exposition{w: w, b: make([]byte, 0, partBytes+4<<10)}
	for i := range rows {
		m := &rows[i]
		to.text("# HELP ").text(m.name).text(" ").text(escapeHelp(m.help))
		to.text("\n# TYPE ").text(m.name).text(" ").text(m.kind).text("\n")
		switch {
		case m.write != nil:
			m.write(s, to, m.name)
		case m.series != nil:
			m.series(s, func(labels string, v float64) { to.sample(m.name, labels, v) })
		default:
			if v := m.value(s); !math.IsNaN(v) {
				to.sample(m.name, "", v)
			}
		}
	}
	to.flush()
	return to.err
}

func (to *exposition) text(s string) *exposition {
	to.b = append(to.b, s...)
	return to
}

// sample writes one line.
func (to *exposition) sample(name, labels string, v float64) {
	to.text(name)
	if labels != "" {
		to.text("{").text(labels).text("}")
	}
	to.value(v)
}

// value writes the end of a line that text began.
func (to *exposition) value(v float64) {
	to.b = append(to.b, ' ')
	to.b = strconv.AppendFloat(to.b, v, 'g', -1, 64)
	to.end()
}

// count is value, for numbers that are whole.
func (to *exposition) count(n int64) {
	to.b = append(to.b, ' ')
	to.b = strconv.AppendInt(to.b, n, 10)
	to.end()
}

func (to *exposition) end() {
	to.b = append(to.b, '\n')
	if len(to.b) >= partBytes {
		to.flush()
	}
}

func (to *exposition) flush() {
	if to.err == nil {
		_, to.err = to.w.Write(to.b)
	}
	to.b = to.b[:0]
}

// histogram writes the lines of l. labels is what tells it from others of the
// name, "" for none.
func (to *exposition) histogram(name, labels string, l *mem.Latency) {
	counts, sum := l.Read()
	among := labels
	if among != "" {
		among += ","
	}
	n := int64(0)
	for i := range counts {
		n += counts[i]
		to.text(name).text("_bucket{").text(among).text(`le="`).text(boundTexts[i]).text(`"}`).count(n)
	}
	to.sample(name+"_sum", labels, sum.Seconds())
	to.sample(name+"_count", labels, float64(n))
}

// boundTexts are the upper bounds of a Latency in seconds.
var boundTexts = func() (texts [len(mem.LatencyBounds) + 1]string) {
	for i, d := range mem.LatencyBounds {
		texts[i] = strconv.FormatFloat(float64(d)/float64(time.Second), 'g', -1, 64)
	}
	texts[len(mem.LatencyBounds)] = "+Inf"
	return texts
}()

var (
	helpEscapes  = strings.NewReplacer(`\`, `\\`, "\n", `\n`)
	labelEscapes = strings.NewReplacer(`\`, `\\`, "\n", `\n`, `"`, `\"`)
)

func escapeHelp(s string) string { return helpEscapes.Replace(s) }

// label returns one label as it stands in a sample.
func label(name, value string) string { return name + `="` + escapeLabel(value) + `"` }
