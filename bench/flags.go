package bench

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/teralog/teralog/wire"
)

// flags are those of one workload, with what stands before them in --help.
type flags struct {
	*flag.FlagSet
	help string
}

func newFlags(help string) *flags {
	f := &flags{flag.NewFlagSet("", flag.ContinueOnError), help}
	f.SetOutput(io.Discard)
	return f
}

// parse reads args, which are flags only. If help was asked for it is printed
// to out and the error is flag.ErrHelp.
func (f *flags) parse(args []string, out io.Writer) error {
	switch err := f.Parse(args); {
	case errors.Is(err, flag.ErrHelp):
		f.print(out)
		return err
	case err != nil:
		return usage{fmt.Errorf("%w; %s", err, f.hint(err))}
	case f.NArg() > 0:
		return usage{fmt.Errorf("unexpected argument %q; --help lists the flags", f.Arg(0))}
	}
	return nil
}

// hint names the flag that was probably meant.
func (f *flags) hint(err error) string {
	var known []string
	f.VisitAll(func(g *flag.Flag) { known = append(known, g.Name) })
	_, name, ok := strings.Cut(err.Error(), "not defined: -")
	if near := wire.Nearest(strings.TrimPrefix(name, "-"), known); ok && near != "" {
		return fmt.Sprintf("did you mean --%s?", near)
	}
	return "--help lists the flags"
}

func (f *flags) print(out io.Writer) {
	fmt.Fprintf(out, "%s\nFlags:\n", f.help)
	f.VisitAll(func(g *flag.Flag) {
		dash := "--"
		if len(g.Name) == 1 {
			dash = "-"
		}
		fmt.Fprintf(out, "  %-14s %s", dash+g.Name, g.Usage)
		if g.DefValue != "" && g.DefValue != "0" && g.DefValue != "0s" && g.DefValue != "false" {
			fmt.Fprintf(out, " (default %s)", g.DefValue)
		}
		fmt.Fprintln(out)
	})
}

// isSet reports whether the flag was given.
func (f *flags) isSet(name string) (set bool) {
	f.Visit(func(g *flag.Flag) { set = set || g.Name == name })
	return set
}

// A value is a flag with a grammar of its own.
type value[T any] struct {
	to     *T
	parse  func(string) (T, error)
	format func(T) string
}

func (v value[T]) String() string {
	if v.to == nil {
		return ""
	}
	return v.format(*v.to)
}

func (v value[T]) Set(s string) (err error) {
	*v.to, err = v.parse(s)
	return err
}

// oneOf is a flag whose value is one of a few words.
func oneOf(to *string, words ...string) flag.Value {
	return value[string]{to, func(s string) (string, error) {
		for _, w := range words {
			if s == w {
				return s, nil
			}
		}
		known := strings.Join(words, ", ")
		if near := wire.Nearest(s, words); near != "" {
			return "", fmt.Errorf("it is one of %s; did you mean %q?", known, near)
		}
		return "", fmt.Errorf("it is one of %s", known)
	}, func(s string) string { return s }}
}

// settings is a flag key=value that may be given more than once.
type settings []wire.Setting

func (l *settings) String() string { return "" }

func (l *settings) Set(s string) error {
	k, v, ok := strings.Cut(s, "=")
	if !ok {
		return fmt.Errorf("%q is not of the form key=value", s)
	}
	*l = append(*l, wire.Setting{Key: k, Value: v})
	return nil
}

// or returns l with key set to value unless it is set already.
func (l settings) or(key, value string) settings {
	if l.get(key) != "" {
		return l
	}
	return append(slices.Clip(l), wire.Setting{Key: key, Value: value})
}

// get returns the value of key, "" if there is none.
func (l settings) get(key string) string {
	for _, s := range l {
		if s.Key == key {
			return s.Value
		}
	}
	return ""
}

// maxCount bounds rates and numbers of records, inclusive.
const maxCount = 1e12

// parseCount reads a whole number such as 1000000, 1_000_000, 250k or 1.5M.
func parseCount(s string) (int64, error) {
	digits, scale := strings.ReplaceAll(s, "_", ""), 1.0
	for suffix, by := range map[string]float64{"k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9} {
		if d, ok := strings.CutSuffix(digits, suffix); ok {
			digits, scale = d, by
			break
		}
	}
	n, err := strconv.ParseFloat(digits, 64)
	if n *= scale; err != nil || strings.Trim(digits, "0123456789.") != "" || n != float64(int64(n)) || n > maxCount {
		return 0, fmt.Errorf("%q is not a number of records; write it like 5000, 250k or 1.5M", s)
	}
	return int64(n), nil
}

// parseRate reads records a second, such as 250k/s; "/s" may be left out.
func parseRate(s string) (int64, error) {
	n, err := parseCount(strings.TrimSuffix(s, "/s"))
	if err != nil || n == 0 {
		return 0, fmt.Errorf("%q is not a rate, which counts records; write it like 250k/s", s)
	}
	return n, nil
}

// formatCount writes n so that parseCount gives it back, as shortly as that
// goes.
func formatCount(n int64) string {
	switch {
	case n != 0 && n%1e6 == 0:
		return strconv.FormatInt(n/1e6, 10) + "M"
	case n != 0 && n%1e3 == 0:
		return strconv.FormatInt(n/1e3, 10) + "k"
	}
	return strconv.FormatInt(n, 10)
}
