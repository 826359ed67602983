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

// foundSeeds once failed for a reason that was mended since.
var foundSeeds = []uint64{
	2,       // a zstd encoder outgrew its buffer and left a fragment
	26,      // a reader of an epoch that was gone got OUT_OF_RANGE
	103,     // killed right after a failed fsync, records were replaced under the same epoch
	143,     // no room to record a new epoch, and the partition offline for good
	174,     // an fsync failed, the machine lived, and recovery did not sync again
	5101,    // an acknowledgement on its way during a crash
	5184,    // killed before it knew of a failed fsync
	7153,    // a stop that acknowledged by an old time
	1001222, // a reader told of an old record after a crash
}

func TestFoundSeeds(t *testing.T) {
	for _, seed := range foundSeeds {
		if r := One(seed, nil); r.Violation != "" {
			t.Errorf("seed %d: %s", seed, r.Violation)
		}
	}
}
