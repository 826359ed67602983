//go:build mutants

package raft

import "testing"

// mutants are deliberate bugs, each behind mutant in the code, with a seed that
// has found it. A simulator that misses one is broken itself.
var mutants = []struct {
	name string
	seed uint64
}{
	{"vote not fsynced", 1000109},
	{"self counted before fsync", 1000324},
	{"old-term commit", 1000010},
	{"configuration change before an own entry", 1000046},
	{"snapshot drops a matching suffix", 1000047},
	{"truncation on a matching prefix", 1000000},
	{"stale read after a pause", 1000105},
	{"wiped node votes", 1000046},
	{"damage treated as missing", 2000010},
}

// TestMutants runs each bug's recorded seed, then fresh ones until it is found
// again; TERALOG_MUTANT_SEEDS says how many at most.
func TestMutants(t *testing.T) {
	most := envNumber(t, "TERALOG_MUTANT_SEEDS", 2000)
	defer Plant("")
	for _, m := range mutants {
		t.Run(m.name, func(t *testing.T) {
			Plant("")
			if f := newWorld(m.seed, nil).run(); f != "" {
				t.Fatalf("without the bug seed %d finds %s", m.seed, f)
			}
			Plant(m.name)
			if f := newWorld(m.seed, nil).run(); f == "" {
				t.Errorf("seed %d does not find it any more", m.seed)
			}
			for seed := range most {
				if f := newWorld(3_000_000+seed, nil).run(); f != "" {
					t.Logf("found by seed %d, after %d: %s", 3_000_000+seed, seed+1, f)
					return
				}
			}
			t.Errorf("not found in %d seeds", most)
		})
	}
}
