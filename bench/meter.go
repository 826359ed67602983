package bench

import (
	"fmt"
	"io"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/teralog/teralog/mem"
)

// A meter counts what a load achieved. Add, Observe and Fail may be called from
// any goroutine.
type meter struct {
	records, bytes atomic.Int64
	failed         atomic.Int64             // records
	hist           atomic.Pointer[mem.Hist] // ns, since the last lap

	first sync.Once
	err   error // of the first that failed

	total mem.Hist  // of the laps that are merged
	ripe  *mem.Hist // of the last lap: somebody may just be recording there
}

func newMeter() *meter {
	m := &meter{}
	m.hist.Store(&mem.Hist{})
	return m
}

func (m *meter) add(records, bytes int64) {
	m.records.Add(records)
	m.bytes.Add(bytes)
}

func (m *meter) observe(d time.Duration) { m.hist.Load().Record(int64(d)) }

func (m *meter) fail(err error) {
	m.failed.Add(1)
	m.first.Do(func() { m.err = err })
}

// failure returns why the first record failed, nil if none has. What fails
// after the call is counted, but its error is lost.
func (m *meter) failure() error {
	m.first.Do(func() {})
	return m.err
}

// lap returns the latencies since the last lap. One goroutine calls it.
func (m *meter) lap() *mem.Hist {
	m.merge()
	m.ripe = m.hist.Swap(&mem.Hist{})
	return m.ripe
}

func (m *meter) merge() {
	if m.ripe != nil {
		m.total.Merge(m.ripe)
		m.ripe = nil
	}
}

// end returns all latencies. Nobody records any more.
func (m *meter) end() *mem.Hist {
	m.lap()
	m.merge()
	return &m.total
}

// An Interval is about a second of a run.
type Interval struct {
	At        float64 `json:"at"`      // its end, in seconds since counting began
	Seconds   float64 `json:"seconds"` // its length
	Records   int64   `json:"records"`
	Bytes     int64   `json:"bytes"`
	BrokerCPU float64 `json:"broker_cpu"` // cores; 0 if not known
	ClientCPU float64 `json:"client_cpu"`
	P50       float64 `json:"p50"` // µs; 0 if nothing was timed
	P99       float64 `json:"p99"`
	Max       float64 `json:"max"`
}

// interval tells what happened from one moment to the next.
func interval(began time.Time, from, to mark, records, bytes int64, h *mem.Hist) Interval {
	seconds := to.at.Sub(from.at).Seconds()
	return Interval{
		At: to.at.Sub(began).Seconds(), Seconds: seconds, Records: records, Bytes: bytes,
		BrokerCPU: (to.broker - from.broker).Seconds() / seconds, ClientCPU: (to.client - from.client).Seconds() / seconds,
		P50: micros(h.Quantile(0.5)), P99: micros(h.Quantile(0.99)), Max: micros(h.Max()),
	}
}

// micros turns nanoseconds into microseconds.
func micros(ns int64) float64 { return float64(ns) / 1e3 }

// A span is how long something goes on: until a time has passed, or, if
// records is not 0, until so many are done.
type span struct {
	duration time.Duration
	records  int64
}

// done returns the share that is done, 0 to 1.
func (s span) done(passed time.Duration, records int64) float64 {
	if s.records > 0 {
		return min(float64(records)/float64(s.records), 1)
	}
	return min(float64(passed)/float64(s.duration), 1)
}

// A Display shows a run to whoever looks at w: a line a second, on a terminal
// with a bar below.
type Display struct {
	w    io.Writer
	live bool // a terminal
}

// NewDisplay returns a display on w; a quiet one shows nothing.
func NewDisplay(w io.Writer, quiet bool) *Display {
	if quiet {
		w = io.Discard
	}
	return &Display{w, isTerminal(w)}
}

// Say writes a line.
func (d *Display) Say(format string, args ...any) {
	if d.live {
		fmt.Fprint(d.w, "\r\x1b[K")
	}
	fmt.Fprintf(d.w, format+"\n", args...)
}

// Bar draws how far the run is, 0 to 1, over the last one; on a terminal only.
func (d *Display) Bar(name string, done float64) {
	const width = 40
	if d.live {
		n := int(done * width)
		fmt.Fprintf(d.w, "\r\x1b[K[%s%s] %3.0f %% %s", strings.Repeat("#", n), strings.Repeat(".", width-n), done*100, name)
	}
}

// Clear removes the bar.
func (d *Display) Clear() {
	if d.live {
		fmt.Fprint(d.w, "\r\x1b[K")
	}
}

func (i *Interval) String() string {
	text := fmt.Sprintf("%6.1f s %12s records/s %8.1f MB/s", i.At, group(int64(float64(i.Records)/i.Seconds)), float64(i.Bytes)/1e6/i.Seconds)
	if i.Max > 0 {
		text += fmt.Sprintf("   P50 %9s  P99 %9s  max %9s", latency(i.P50), latency(i.P99), latency(i.Max))
	}
	text += fmt.Sprintf("   client %.2f cores", i.ClientCPU)
	if i.BrokerCPU > 0 {
		text += fmt.Sprintf("  broker %.2f", i.BrokerCPU)
	}
	return text
}

// watch shows an interval each second until the function it returns is called,
// which returns them all.
func (t *target) watch(d *Display, name string, m *meter, s span) (stop func() []Interval) {
	quit, finished := make(chan struct{}), make(chan []Interval)
	go func() {
		began := t.cpu()
		var all []Interval
		var records, bytes int64
		last := began
		lap := func() {
			now := t.cpu()
			r, b := m.records.Load(), m.bytes.Load()
			i := interval(began.at, last, now, r-records, b-bytes, m.lap())
			all = append(all, i)
			d.Say("%s%s", name, i.String())
			d.Bar(name, s.done(now.at.Sub(began.at), r))
			last, records, bytes = now, r, b
		}
		ticks := time.NewTicker(time.Second)
		defer ticks.Stop()
		d.Bar(name, 0)
		for {
			select {
			case <-ticks.C:
				lap()
			case <-quit:
				// An end that is short is left out, unless something came in it.
				if time.Since(last.at) > time.Second/10 || len(all) == 0 || m.records.Load() > records {
					lap()
				}
				d.Clear()
				finished <- all
				return
			}
		}
	}()
	return func() []Interval {
		close(quit)
		return <-finished
	}
}
