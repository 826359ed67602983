package wire

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// The grammar of sizes, durations and times that people type. It stands here
// because topic settings travel as text: broker, client and command line must
// read the same text as the same number.

var sizeUnits = []struct {
	suffix string
	bytes  float64
}{
	{"KiB", 1 << 10}, {"MiB", 1 << 20}, {"GiB", 1 << 30}, {"TiB", 1 << 40},
	{"KB", 1e3}, {"MB", 1e6}, {"GB", 1e9}, {"TB", 1e12},
	{"kB", 1e3}, {"k", 1e3}, {"B", 1}, {"", 1},
}

// ParseSize reads a number of bytes such as 4096, 64KiB, 1.5GiB or 1GB. KiB,
// MiB, GiB and TiB count in powers of 1024, KB, MB, GB and TB in powers of
// 1000. The result is never negative and always whole.
func ParseSize(s string) (int64, error) {
	for _, u := range sizeUnits {
		digits, ok := strings.CutSuffix(s, u.suffix)
		if !ok || digits == "" || strings.Trim(digits, "0123456789.") != "" {
			continue
		}
		n, err := strconv.ParseFloat(digits, 64)
		b := n * u.bytes
		if err != nil || b != math.Trunc(b) || b >= math.MaxInt64 {
			break
		}
		return int64(b), nil
	}
	return 0, fmt.Errorf("%q is not a size; write it like 4096, 64KiB or 1.5GiB", s)
}

// FormatSize writes n bytes in the largest binary unit that divides it, so
// that ParseSize gives n back.
func FormatSize(n int64) string {
	for _, u := range []struct {
		suffix string
		shift  uint
	}{{"TiB", 40}, {"GiB", 30}, {"MiB", 20}, {"KiB", 10}} {
		if n != 0 && n%(1<<u.shift) == 0 {
			return strconv.FormatInt(n>>u.shift, 10) + u.suffix
		}
	}
	return strconv.FormatInt(n, 10)
}

// ParseDuration reads a duration such as 250ms, 1h30m, 7d or 2w. It takes what
// time.ParseDuration takes, plus w (7 days) and d (24 hours) as the first
// parts. The result is never negative.
func ParseDuration(s string) (time.Duration, error) {
	bad := fmt.Errorf("%q is not a duration; write it like 250ms, 90s, 1h30m or 7d", s)
	rest, total := s, time.Duration(0)
	for _, u := range []struct {
		suffix string
		unit   time.Duration
	}{{"w", 7 * 24 * time.Hour}, {"d", 24 * time.Hour}} {
		digits, after, ok := strings.Cut(rest, u.suffix)
		if !ok {
			continue
		}
		n, err := strconv.ParseUint(digits, 10, 31)
		if err != nil || time.Duration(n) > math.MaxInt64/u.unit || total+time.Duration(n)*u.unit < 0 {
			return 0, bad
		}
		total, rest = total+time.Duration(n)*u.unit, after
	}
	if rest == "" && s != "" {
		return total, nil
	}
	d, err := time.ParseDuration(rest)
	if err != nil || d < 0 || total+d < total {
		return 0, bad
	}
	return total + d, nil
}

// FormatDuration writes d so that ParseDuration gives it back, in days where
// it is a whole number of them.
func FormatDuration(d time.Duration) string {
	const day = 24 * time.Hour
	if d >= day && d%day == 0 {
		return strconv.FormatInt(int64(d/day), 10) + "d"
	}
	s := d.String()
	for _, zero := range []string{"m0s", "h0m"} {
		if strings.HasSuffix(s, zero) {
			s = s[:len(s)-2]
		}
	}
	return s
}

// ParseTime reads a point in time as milliseconds since the Unix epoch: a
// number of more than 10 digits counts milliseconds, a shorter one seconds; else
// a date (2006-01-02, midnight UTC), an RFC 3339 time with or without seconds,
// or a duration before now (-15m).
func ParseTime(s string, now time.Time) (int64, error) {
	if ago, ok := strings.CutPrefix(s, "-"); ok {
		d, err := ParseDuration(ago)
		if err != nil {
			return 0, err
		}
		return now.Add(-d).UnixMilli(), nil
	}
	if n, err := strconv.ParseInt(s, 10, 64); err == nil {
		if len(s) > 10 {
			return n, nil
		}
		return n * 1000, nil
	}
	for _, layout := range []string{time.RFC3339Nano, "2006-01-02T15:04Z07:00", "2006-01-02"} {
		if t, err := time.Parse(layout, s); err == nil {
			return t.UnixMilli(), nil
		}
	}
	return 0, fmt.Errorf("%q is not a time; write it like 2026-09-18T10:00:00Z, 2026-09-18, 1789034400000 (ms) or -15m", s)
}

// Nearest returns the entry of known that is closest to s by edit distance,
// or "" if none is close enough to be a likely slip of the keyboard.
func Nearest(s string, known []string) string {
	best, at := "", max(2, len(s)/3)+1
	for _, k := range known {
		if d := editDistance(s, k); d < at {
			best, at = k, d
		}
	}
	return best
}

func editDistance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := diagonal
			if a[i] != b[j] {
				cost++
			}
			diagonal = row[j+1]
			row[j+1] = min(cost, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}
