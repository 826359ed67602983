package sim

import "testing"

// TestOne runs a few seeds of the simulated node; .ci/run runs many.
func TestOne(t *testing.T) {
	seeds := uint64(24)
	if testing.Short() {
		seeds = 6
	}
	for seed := range seeds {
		if r := One(seed, nil); r.Violation != "" {
			t.Fatalf("%sseed %d: %s\nrun it again: teralog sim one -seed %d -trace", r.Last, seed, r.Violation, seed)
		}
	}
}

// TestOneIsTheSameTwice holds the simulator to its word: a seed is a run.
func TestOneIsTheSameTwice(t *testing.T) {
	for seed := range uint64(4) {
		a, b := One(seed, nil), One(seed, nil)
		if a.Hash != b.Hash || a.Steps != b.Steps {
			t.Fatalf("seed %d: hash %x after %d events, then %x after %d", seed, a.Hash, a.Steps, b.Hash, b.Steps)
		}
	}
	if One(1, nil).Hash == One(2, nil).Hash {
		t.Fatal("two seeds are the same run")
	}
}
