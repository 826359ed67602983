package mem

import (
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/teralog/teralog/sim/script"
)

// TestBreaker runs the scripts in testdata/breaker.
func TestBreaker(t *testing.T) {
	files, err := filepath.Glob("testdata/breaker/*.txt")
	if err != nil || len(files) < 3 {
		t.Fatalf("%d scripts: %v", len(files), err)
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			var b Breaker
			var rule BreakerRule
			number := func(s string) int64 {
				n, err := strconv.ParseInt(s, 10, 64)
				if err != nil {
					t.Fatal(err)
				}
				return n
			}
			span := func(s string) time.Duration {
				d, err := time.ParseDuration(s)
				if err != nil {
					t.Fatal(err)
				}
				return d
			}
			script.Run(t, file, func(c *script.Command) string {
				switch c.Name {
				case "rule":
					rule = BreakerRule{number(c.Key("open", "")), number(c.Key("close", "")), span(c.Key("hold", "")), span(c.Key("probe", ""))}
					return ""
				case "ask": // TIME MEASURE
					said := "passes"
					if wait := b.Admit(&rule, Now{Mono: span(c.Args[0])}, number(c.Args[1])); wait > 0 {
						said = wait.String()
					}
					return fmt.Sprintf("%s, %v", said, breakerState(b.state.Load()))
				}
				return "unknown command " + c.Name
			})
		})
	}
}

// TestBreakerRuns asks at random times with random measures: whatever comes, an
// open breaker stays open for Hold, one that closes has seen no measure above
// Close for as long, and who is told to wait is told a time.
func TestBreakerRuns(t *testing.T) {
	rule := BreakerRule{Open: 80, Close: 20, Hold: second, Probe: 100 * ms}
	for seed := range uint64(50) {
		r := rand.New(rand.NewPCG(seed, 0))
		var b Breaker
		var now Now
		var openedAt, high, probed time.Duration
		calmly := false
		openings := 0
		for range 20_000 {
			now.Mono += time.Duration(r.Int64N(int64(60 * ms)))
			if r.IntN(200) == 0 {
				calmly = !calmly
			}
			measure := r.Int64N(100)
			if calmly {
				measure = r.Int64N(21)
			}
			was := breakerState(b.state.Load())
			wait := b.Admit(&rule, now, measure)
			is := breakerState(b.state.Load())
			switch {
			case was == closed && is == closed && wait != 0:
				t.Fatalf("seed %d at %v: a closed breaker refused", seed, now.Mono)
			case was == opened && is != opened && now.Mono-openedAt < rule.Hold:
				t.Fatalf("seed %d at %v: open for %v only", seed, now.Mono, now.Mono-openedAt)
			case is == closed && was != closed && (now.Mono-high < rule.Hold || measure > rule.Close):
				t.Fatalf("seed %d at %v: closed %v after a high measure", seed, now.Mono, now.Mono-high)
			case is == opened && wait == 0, is == opened && wait > rule.Hold:
				t.Fatalf("seed %d at %v: open, and says %v", seed, now.Mono, wait)
			case is == probing && wait == 0 && was == probing && now.Mono-probed < rule.Probe:
				t.Fatalf("seed %d at %v: two probes within %v", seed, now.Mono, now.Mono-probed)
			}
			if is == opened && (was != opened || wait == rule.Hold) {
				openedAt = now.Mono
				openings++
			}
			if is == probing && wait == 0 {
				probed = now.Mono
			}
			if measure > rule.Close {
				high = now.Mono
			}
		}
		if openings < 10 {
			t.Fatalf("seed %d: it opened %d times", seed, openings)
		}
	}
}
