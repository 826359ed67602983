//go:build mutants

package sim

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/teralog/teralog/raft"
)

var record = flag.Bool("raft.record", false, "look for each planted bug anew and write into testdata/raft what finds it")

// raftMutants are deliberate bugs, each behind mutant in the code of raft. A
// simulator that misses one is broken itself.
var raftMutants = []string{
	"vote not fsynced",
	"self counted before fsync",
	"old-term commit",
	"configuration change before an own entry",
	"snapshot drops a matching suffix",
	"truncation on a matching prefix",
	"stale read after a pause",
	"wiped node votes",
	"damage treated as missing",
	"what a start finds is not fsynced",
}

// freshSeeds begin here.
const freshSeeds = 3_000_000

// TestRaftMutants plays the scenario that a bug was found with, made smaller, and
// then fresh seeds until one finds it again. Each must find nothing without the
// bug. A scenario goes on finding it when seeds come to draw other ones.
func TestRaftMutants(t *testing.T) {
	most := mutantSeeds(t)
	defer raft.Plant("")
	for _, bug := range raftMutants {
		t.Run(bug, func(t *testing.T) {
			file := filepath.Join("testdata/raft", strings.ReplaceAll(bug, " ", "-")+".txt")
			if *record {
				recordMutant(t, bug, file, most)
			}
			small, err := openScenario(file)
			if err != nil {
				t.Fatal(err)
			}
			if !finds(t, bug, small) {
				t.Errorf("%s does not find it any more; -raft.record looks for another one", file)
			}
			if seed, ok := hunt(t, bug, freshSeeds, most); ok {
				t.Logf("found after %d fresh seeds", seed-freshSeeds+1)
			} else {
				t.Errorf("not found in %d fresh seeds", most)
			}
		})
	}
}

// finds plays a scenario with a bug, and if that breaks something, without it.
func finds(t *testing.T, bug string, s *scenario) bool {
	raft.Plant(bug)
	r := s.run(nil)
	raft.Plant("")
	if r.Violation == "" {
		return false
	}
	if clean := s.run(nil); clean.Violation != "" {
		t.Fatalf("without the bug: %v", clean.err())
	}
	return true
}

func hunt(t *testing.T, bug string, from, most uint64) (seed uint64, found bool) {
	for seed := from; seed < from+most; seed++ {
		if finds(t, bug, drawScenario(seed)) {
			return seed, true
		}
	}
	return 0, false
}

// recordMutant shrinks what the first seed that finds a bug is about, so that
// the scenario tells the story of that bug.
func recordMutant(t *testing.T, bug, file string, most uint64) {
	seed, ok := hunt(t, bug, 1, most)
	if !ok {
		t.Fatalf("not found in %d seeds", most)
	}
	raft.Plant(bug)
	s := drawScenario(seed).shrink()
	r := s.run(nil)
	raft.Plant("")
	first, _, _ := strings.Cut(r.Violation, "\n")
	text := fmt.Sprintf("# What comes of the bug %q:\n# %s\n%v", bug, first, s)
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// TestShrinkMutants makes a scenario smaller that breaks an invariant: it breaks
// the same one, by few faults.
func TestShrinkMutants(t *testing.T) {
	const bug = "old-term commit"
	defer raft.Plant("")
	seed, ok := hunt(t, bug, freshSeeds, mutantSeeds(t))
	if !ok {
		t.Fatal("not found")
	}
	raft.Plant(bug)
	before := drawScenario(seed)
	want := invariant(before.run(nil).Violation)
	after := before.shrink()
	if got := invariant(after.run(nil).Violation); got != want || len(after.faults) > 8 || len(after.faults) >= len(before.faults) {
		t.Fatalf("%d faults that break %s become %d that break %q:\n%v", len(before.faults), want, len(after.faults), got, after)
	}
	raft.Plant("")
	if same := after.shrink(); same != after {
		t.Fatal("a scenario that breaks nothing becomes another one")
	}
}
