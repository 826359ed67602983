//go:build mutants

package sim

import (
	"os"
	"strconv"
	"testing"

	"github.com/teralog/teralog/mem"
)

// mutants are deliberate bugs, each behind mem.Mutant in the code. A simulator
// that misses one is broken itself.
var mutants = []string{
	"ack before fsync",
	"no directory fsync on roll",
	"no fsync after a recovery cut",
	"fsync retried",
	"clean marker removed after load",
	"unknown producer accepted",
	"duplicate answered before its original is durable",
	"stray directory deleted",
	"time index entry one batch late",
}

// TestMutants runs seeds with each bug until one finds it, which must find
// nothing without the bug; TERALOG_MUTANT_SEEDS says how many at most. Any
// change of the code makes other runs of the same seeds, so none is recorded.
func TestMutants(t *testing.T) {
	most := mutantSeeds(t)
	defer mem.Plant("")
	for _, name := range mutants {
		t.Run(name, func(t *testing.T) {
			for seed := uint64(1_000_000); seed < 1_000_000+most; seed++ {
				mem.Plant(name)
				r := One(seed, nil)
				if r.Violation == "" {
					continue
				}
				mem.Plant("")
				if clean := One(seed, nil); clean.Violation != "" {
					t.Fatalf("without the bug: %v", clean.err())
				}
				t.Logf("found after %d seeds: %v", seed-999_999, r.err())
				return
			}
			t.Errorf("not found in %d seeds", most)
		})
	}
}

func mutantSeeds(t *testing.T) uint64 {
	s := os.Getenv("TERALOG_MUTANT_SEEDS")
	if s == "" {
		return 2000
	}
	n, err := strconv.ParseUint(s, 10, 32)
	if err != nil {
		t.Fatal(err)
	}
	return n
}
