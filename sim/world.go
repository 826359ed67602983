package sim

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/teralog/teralog/mem"
)

// A world is simulated time: one thread takes events off a heap, and all chance
// comes from the seed. Equal seeds give equal worlds, to the last event.
type world struct {
	seed   uint64
	now    mem.Now
	skew   int64 // ms the wall clock is off
	events schedule
	seq    uint64
	hash   uint64 // of everything that happened
	steps  int
	trace  io.Writer // nil: only the ring
	ring   [200]note
	notes  int
	broken string // the first violation

	chance map[string]*rand.Rand // one stream a purpose, so that a draw more for one does not shift the others
}

// wallBegin is when simulated wall clocks start, ms.
const wallBegin = 1_750_000_000_000

func newWorld(seed uint64, trace io.Writer) *world {
	return &world{seed: seed, trace: trace, hash: 0xcbf29ce484222325, chance: map[string]*rand.Rand{},
		now: mem.Now{Wall: wallBegin}}
}

// An event is something that happens at a time.
type event struct {
	at  time.Duration
	tie uint64 // seeded, so that events of one moment come in any order
	seq uint64
	do  func()
}

// A schedule is a heap of events, the next one first.
type schedule []event

func (a *event) before(b *event) bool {
	if a.at != b.at {
		return a.at < b.at
	}
	if a.tie != b.tie {
		return a.tie < b.tie
	}
	return a.seq < b.seq
}

func (s *schedule) push(e event) {
	*s = append(*s, e)
	q, i := *s, len(*s)-1
	for i > 0 && e.before(&q[(i-1)/2]) {
		q[i] = q[(i-1)/2]
		i = (i - 1) / 2
	}
	q[i] = e
}

func (s *schedule) pop() event {
	q := *s
	first, e := q[0], q[len(q)-1]
	q[len(q)-1] = event{}
	q = q[:len(q)-1]
	*s = q
	if len(q) == 0 {
		return first
	}
	i := 0
	for {
		child := 2*i + 1
		if child >= len(q) {
			break
		}
		if child+1 < len(q) && q[child+1].before(&q[child]) {
			child++
		}
		if !q[child].before(&e) {
			break
		}
		q[i] = q[child]
		i = child
	}
	q[i] = e
	return first
}

// after lets do happen in d from now.
func (w *world) after(d time.Duration, do func()) {
	w.seq++
	w.events.push(event{w.now.Mono + d, w.stream("tie").Uint64(), w.seq, do})
}

// stream returns the chance of one purpose.
func (w *world) stream(name string) *rand.Rand {
	r := w.chance[name]
	if r == nil {
		h := w.seed*0x9E3779B97F4A7C15 + 1
		for _, c := range []byte(name) {
			h = (h ^ uint64(c)) * 0x100000001b3
		}
		r = rand.New(rand.NewPCG(w.seed, h))
		w.chance[name] = r
	}
	return r
}

// between draws a duration from low to high.
func (w *world) between(name string, low, high time.Duration) time.Duration {
	return low + time.Duration(w.stream(name).Int64N(int64(high-low)+1))
}

// odds draws true once in n times.
func (w *world) odds(name string, n int) bool { return w.stream(name).IntN(n) == 0 }

// run takes events until there is none, the time is until, or something broke.
func (w *world) run(until time.Duration) {
	for len(w.events) > 0 && w.broken == "" && w.events[0].at <= until {
		e := w.events.pop()
		w.now.Mono = e.at
		w.now.Wall = wallBegin + e.at.Milliseconds() + w.skew
		w.steps++
		e.do()
	}
	if w.broken == "" && w.now.Mono < until {
		w.now.Mono = until
		w.now.Wall = wallBegin + until.Milliseconds() + w.skew
	}
}

// A note is one line of the trace, put into words only if somebody reads it.
type note struct {
	at    time.Duration
	text  string
	n     [4]int64
	count int // of n that were given
}

func (n note) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%12v  %s", n.at, n.text)
	for _, v := range n.n[:n.count] {
		fmt.Fprintf(&b, " %d", v)
	}
	return b.String()
}

// note hashes and remembers what happened.
func (w *world) note(text string, ns ...int64) {
	n := note{at: w.now.Mono, text: text}
	n.count = copy(n.n[:], ns)
	w.mix(uint64(n.at))
	for _, c := range []byte(text) {
		w.hash = (w.hash ^ uint64(c)) * 0x100000001b3
	}
	for _, v := range n.n {
		w.mix(uint64(v))
	}
	w.ring[w.notes%len(w.ring)] = n
	w.notes++
	if w.trace != nil {
		fmt.Fprintln(w.trace, n)
	}
}

func (w *world) mix(v uint64) {
	for range 8 {
		w.hash = (w.hash ^ v&0xff) * 0x100000001b3
		v >>= 8
	}
}

// violate notes the first thing that must not be.
func (w *world) violate(format string, args ...any) {
	if w.broken == "" {
		w.broken = fmt.Sprintf(format, args...)
		w.note("VIOLATION " + w.broken)
	}
}

// last returns the newest lines of the trace.
func (w *world) last() string {
	var b strings.Builder
	for i := max(0, w.notes-len(w.ring)); i < w.notes; i++ {
		fmt.Fprintln(&b, w.ring[i%len(w.ring)])
	}
	return b.String()
}

// A listener is a log handler that puts what a broker says into the trace and
// breaks the run at what no fault excuses: a BUG.
type listener struct{ w *world }

func (l listener) Enabled(_ context.Context, level slog.Level) bool { return level >= slog.LevelWarn }

func (l listener) Handle(_ context.Context, r slog.Record) error {
	text := r.Message
	r.Attrs(func(a slog.Attr) bool {
		if a.Key != "stack" && a.Key != "took" {
			text += " " + a.String()
		}
		return true
	})
	l.w.note("log " + text)
	if strings.Contains(text, "BUG") || strings.Contains(text, "panic") {
		stack := ""
		r.Attrs(func(a slog.Attr) bool {
			if a.Key == "stack" {
				stack = "\n" + a.Value.String()
			}
			return true
		})
		l.w.violate("%s%s", text, stack)
	}
	return nil
}

func (l listener) WithAttrs([]slog.Attr) slog.Handler { return l }
func (l listener) WithGroup(string) slog.Handler      { return l }
