package cli

import (
	"fmt"
	"io"
	"strings"
	"time"
)

// A progress shows how far long work is, on a terminal, twice a second: a bar
// where the size of the whole is known, else a count. One goroutine uses it.
type progress struct {
	w     io.Writer // nil: nobody looks
	verb  string
	size  int64 // bytes of the whole, 0: not known
	start time.Time
	next  time.Time

	records, bytes int64
}

func newProgress(w io.Writer, verb string, size int64) *progress {
	p := &progress{verb: verb, size: size, start: time.Now()}
	p.next = p.start.Add(500 * time.Millisecond)
	if isTerminal(w) {
		p.w = w
	}
	return p
}

func (p *progress) add(records, bytes int64) {
	p.records += records
	p.bytes += bytes
	if p.w == nil || p.records%64 != 0 {
		return
	}
	if now := time.Now(); now.After(p.next) {
		p.next = now.Add(500 * time.Millisecond)
		fmt.Fprintf(p.w, "\r\x1b[K%s", p.line(now))
	}
}

func (p *progress) line(now time.Time) string {
	rate := float64(p.records) / now.Sub(p.start).Seconds()
	text := fmt.Sprintf("%d records %s, %.0f/s", p.records, p.verb, rate)
	if p.size <= 0 {
		return text
	}
	const width = 30
	done := min(int(p.bytes*width/p.size), width)
	return fmt.Sprintf("[%s%s] %3d %%  %s", strings.Repeat("#", done), strings.Repeat(".", width-done), min(p.bytes*100/p.size, 100), text)
}

// end leaves the last line standing.
func (p *progress) end() {
	if p.w != nil && p.records > 0 {
		fmt.Fprintf(p.w, "\r\x1b[K%s\n", p.line(time.Now()))
	}
}
