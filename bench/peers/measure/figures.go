package measure

import (
	"fmt"
	"math"
	"slices"
	"strconv"
)

// A Ratio of two systems was taken round by round. It is zero if no round has
// both.
type Ratio struct {
	Median float64 `json:"median"`
	Min    float64 `json:"min"`
	Max    float64 `json:"max"`
}

// RatioOf sums up one value a round. Rounds that one side did not finish give
// zero, infinity or NaN, and are left out.
func RatioOf(values []float64) Ratio {
	var ok []float64
	for _, v := range values {
		if v > 0 && !math.IsInf(v, 0) {
			ok = append(ok, v)
		}
	}
	if len(ok) == 0 {
		return Ratio{}
	}
	return Ratio{Median(ok), slices.Min(ok), slices.Max(ok)}
}

func (r Ratio) String() string {
	if r.Median == 0 {
		return ""
	}
	return Short(r.Median) + "×" + Within(r.Min, r.Max)
}

// Within writes the bounds of several runs, with a space before them; of one
// run nothing.
func Within(least, most float64) string {
	if least == most {
		return ""
	}
	return fmt.Sprintf(" [%s..%s]", Short(least), Short(most))
}

// Median returns the middle of values, of an even number the mean of the two
// in the middle; 0 if there are none.
func Median(values []float64) float64 {
	if len(values) == 0 {
		return 0
	}
	s := slices.Sorted(slices.Values(values))
	return (s[(len(s)-1)/2] + s[len(s)/2]) / 2
}

// Short writes a figure, not negative, with three digits that count.
func Short(v float64) string {
	unit := ""
	switch {
	case v >= 999.5e3:
		v, unit = v/1e6, " M"
	case v >= 9995:
		v, unit = v/1e3, " k"
	}
	digits := 0
	for x := v; x > 0 && x < 99.95 && digits < 3; x *= 10 {
		digits++
	}
	return strconv.FormatFloat(v, 'f', digits, 64) + unit
}

// Micros writes a time in microseconds; "-" if there is none.
func Micros(us float64) string {
	switch {
	case us <= 0:
		return "-"
	case us >= 1000:
		return Short(us/1000) + " ms"
	}
	return Short(us) + " µs"
}
