package cli

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/teralog/teralog/wire"
)

// A place names a point of every partition at once, before the partitions
// were asked where it lies.
type place struct {
	kind placeKind
	n    int64 // an offset, a number of records, or milliseconds since the epoch
}

type placeKind uint8

const (
	atStart  placeKind = iota // the first record there is, n records further
	atEnd                     // behind the newest record, n records back
	atOffset                  // offset n
	atTime                    // the first record at or after time n
	never                     // only as the end of a window: go on waiting
)

// A window is what --from asks for: records from one place up to, and not
// including, another.
type window struct{ from, to place }

const windowHelp = `start, end, N (an offset), +N (N after the start), -N (the newest N), N1:N2 and :N (up to, not including),
:end (what is there now), @TIME, @TIME1:TIME2 and @:TIME (a window of time, its end not included), -15m (since then);
a TIME is RFC 3339, a date, milliseconds, seconds, -15m (ago) or, as an end, +15m (after the first)`

// parseWindow reads the grammar of --from. A window of time may hold colons
// inside its times, so every colon is tried as the one in the middle; a text
// that is one time as a whole is never cut.
func parseWindow(s string, now time.Time) (window, error) {
	if t, ok := strings.CutPrefix(s, "@"); ok {
		return parseTimes(t, now)
	}
	left, right, isRange := strings.Cut(s, ":")
	w := window{to: place{kind: never}}
	var err error
	if left != "" || !isRange {
		if w.from, err = parsePlace(left, now); err != nil {
			return w, err
		}
	}
	if right != "" {
		if w.to, err = parsePlace(right, now); err != nil {
			return w, err
		}
	}
	if w.from.kind == atOffset && w.to.kind == atOffset && w.to.n < w.from.n {
		return w, fmt.Errorf("%q ends before it begins", s)
	}
	return w, nil
}

func parsePlace(s string, now time.Time) (place, error) {
	switch s {
	case "start":
		return place{kind: atStart}, nil
	case "end":
		return place{kind: atEnd}, nil
	}
	digits := strings.TrimLeft(s, "+-")
	n, err := strconv.ParseInt(digits, 10, 64)
	if err != nil && strings.HasPrefix(s, "-") {
		if t, err := wire.ParseTime(s, now); err == nil {
			return place{atTime, t}, nil
		}
	}
	switch {
	case err != nil || len(s) > len(digits)+1:
		return place{}, fmt.Errorf("%q is not a place in a topic; write %s", s, windowHelp)
	case s[0] == '+':
		return place{atStart, n}, nil
	case s[0] == '-':
		return place{atEnd, n}, nil
	}
	return place{atOffset, n}, nil
}

func parseTimes(s string, now time.Time) (window, error) {
	if t, err := wire.ParseTime(s, now); err == nil {
		return window{place{atTime, t}, place{kind: never}}, nil
	}
	for i := range len(s) {
		if s[i] != ':' {
			continue
		}
		w := window{place{kind: atStart}, place{kind: never}}
		var err error
		if s[:i] != "" {
			if w.from.n, err = wire.ParseTime(s[:i], now); err != nil {
				continue
			}
			w.from.kind = atTime
		}
		if w.to, err = parseTimeEnd(strings.TrimPrefix(s[i+1:], "@"), w.from, now); err != nil {
			continue
		}
		if w.to.kind == atTime && w.to.n < w.from.n {
			return w, fmt.Errorf("%q ends before it begins", "@"+s)
		}
		return w, nil
	}
	return window{}, fmt.Errorf("%q is not a window of time; write %s", "@"+s, windowHelp)
}

func parseTimeEnd(s string, from place, now time.Time) (place, error) {
	if s == "" {
		return place{kind: never}, nil
	}
	if s == "end" {
		return place{kind: atEnd}, nil
	}
	if after, ok := strings.CutPrefix(s, "+"); ok && from.kind == atTime {
		d, err := wire.ParseDuration(after)
		if err != nil || from.n > math.MaxInt64-d.Milliseconds() {
			return place{}, fmt.Errorf("%q is not a length of time", s)
		}
		return place{atTime, from.n + d.Milliseconds()}, nil
	}
	t, err := wire.ParseTime(s, now)
	return place{atTime, t}, err
}
