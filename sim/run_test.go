package sim

import (
	"fmt"
	"io"
	"strings"
	"sync/atomic"
	"testing"
)

// TestMany runs simulations that do not do as they should: seeds that fail, runs
// that are not the same twice, and something rare that does not happen any more.
// Each ends the command with an error, and whoever reads it can run it again.
func TestMany(t *testing.T) {
	clean := func(seed uint64) Report {
		return Report{Seed: seed, Hash: seed, Steps: 1, Seen: map[string]int{"event": 1}}
	}
	f := func(run func(seed uint64) Report, rare string, seeds int, wantErr string, wantOut ...string) {
		t.Helper()
		s := simulation{name: "raft", rare: []string{rare}, run: func(seed uint64, _ io.Writer) Report { return run(seed) },
			smaller: func(seed uint64) fmt.Stringer { return drawScenario(seed) }}
		var out strings.Builder
		err := s.command(t.Context(), []string{"-seed", "1", "-seeds", fmt.Sprint(seeds)}, &out, io.Discard)
		if got := fmt.Sprint(err); err == nil && wantErr != "" || !strings.Contains(got, wantErr) || wantErr == "" && err != nil {
			t.Errorf("%d seeds end with %q, want %q", seeds, got, wantErr)
		}
		for _, want := range wantOut {
			if !strings.Contains(out.String(), want) {
				t.Errorf("%q is not in\n%s", want, out.String())
			}
		}
	}

	f(clean, "event", 2500, "", "2500 seeds from 1: no violation, 2500 events", "2500 seeds: event")
	f(clean, "lost chunk", 1999, "") // too few to tell
	f(clean, "lost chunk", 2000, `"lost chunk" never happened`)
	bad := func(seed uint64) Report {
		r := clean(seed)
		if seed == 700 || seed == 702 {
			r.Violation, r.Last = "OneVote: 1 votes twice\nmore", "the last events\n"
		}
		return r
	}
	f(bad, "event", 2500, "seed 700: OneVote: 1 votes twice",
		"the last events", "teralog sim raft -seed 700 -trace", "teralog sim raft -scenario FILE", drawScenario(700).String())
	var runs atomic.Uint64
	other := func(seed uint64) Report { r := clean(seed); r.Hash = runs.Add(1); return r }
	f(other, "event", 1, "two runs differ")    // the first
	f(other, "event", 3000, "two runs differ") // and one in a hundred, whichever of them
	once := func(seed uint64) Report {         // only seeds 101, 201, ... are run again
		r := clean(seed)
		if seed == 301 {
			r.Hash = runs.Add(1) << 20
		}
		return r
	}
	f(once, "event", 400, "seed 301: two runs differ")
}
