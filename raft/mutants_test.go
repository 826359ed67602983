//go:build mutants

package raft

import "testing"

// mutants are deliberate bugs, each behind mutant in the code, with a seed that
// has found it. A simulator that misses one is broken itself.
var mutants = []struct {
	name string
	seed uint64
}{
	{"vote not fsynced", 0},
	{"self counted before fsync", 0},
	{"old-term commit", 0},
	{"configuration change before an own entry", 0},
	{"snapshot drops a matching suffix", 0},
	{"truncation on a matching prefix", 0},
	{"stale read after a pause", 0},
	{"wiped node votes", 0},
	{"damage treated as missing", 0},
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
				if f := newWorld(1_000_000+seed, nil).run(); f != "" {
					t.Logf("found by seed %d, after %d: %s", 1_000_000+seed, seed+1, f)
					return
				}
			}
			t.Errorf("not found in %d seeds", most)
		})
	}
}
