//go:build mutants

package sim

import (
	"os"
	"strconv"
	"testing"

	"github.com/teralog/teralog/mem"
)

// mutants are deliberate bugs, each behind mem.Mutant in the code, with a seed
// that has found it. A simulator that misses one is broken itself.
var mutants = []struct {
	name string
	seed uint64
}{
	{"ack before fsync", 1000000},
	{"no directory fsync on roll", 1000000},
	{"no fsync after a recovery cut", 1000000},
	{"fsync retried", 1000007},
	{"clean marker removed after load", 1000000},
	{"unknown producer accepted", 1000201},
	{"duplicate answered before its original is durable", 1000000},
	{"stray directory deleted", 1000000},
	{"time index entry one batch late", 1000000},
}

// TestMutants runs each bug's recorded seed, then fresh ones until it is found
// again; TERALOG_MUTANT_SEEDS says how many at most.
func TestMutants(t *testing.T) {
	most := uint64(2000)
	if s := os.Getenv("TERALOG_MUTANT_SEEDS"); s != "" {
		n, err := strconv.ParseUint(s, 10, 32)
		if err != nil {
			t.Fatal(err)
		}
		most = n
	}
	defer mem.Plant("")
	for _, m := range mutants {
		t.Run(m.name, func(t *testing.T) {
			mem.Plant("")
			if m.seed != 0 {
				if r := One(m.seed, nil); r.Violation != "" {
					t.Fatalf("without the bug seed %d finds %s", m.seed, r.Violation)
				}
				mem.Plant(m.name)
				if r := One(m.seed, nil); r.Violation == "" {
					t.Errorf("seed %d does not find it any more", m.seed)
				}
			}
			mem.Plant(m.name)
			for seed := range most {
				r := One(1_000_000+seed, nil)
				if r.Violation != "" {
					t.Logf("found by seed %d, after %d: %s", r.Seed, seed+1, r.err())
					return
				}
			}
			t.Errorf("not found in %d seeds", most)
		})
	}
}
