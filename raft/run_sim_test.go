package raft

import (
	"fmt"
	"os"
	"strconv"
	"testing"
)

// envNumber reads a number by which a run is made longer.
func envNumber(t testing.TB, name string, otherwise uint64) uint64 {
	s := os.Getenv(name)
	if s == "" {
		return otherwise
	}
	n, err := strconv.ParseUint(s, 10, 64)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return n
}

// rareEvents must each come about in a long run, else it has not tried enough.
var rareEvents = []string{
	"conflict truncation",
	"damaged entry",
	"leader change within a joint configuration",
	"lost chunk",
	"membership change",
	"read",
	"request came twice",
	"snapshot installed",
	"snapshot of what is held uncommitted",
	"snapshot over an uncommitted configuration",
	"transfer",
	"wipe",
}

// TestSim runs seeds. TERALOG_RAFT_SEEDS says how many and TERALOG_RAFT_SEED
// the first one; with -v and one seed every event is shown.
func TestSim(t *testing.T) {
	count, first := envNumber(t, "TERALOG_RAFT_SEEDS", 100), envNumber(t, "TERALOG_RAFT_SEED", 1)
	rare, events := map[string]int{}, 0
	for seed := first; seed < first+count; seed++ {
		var trace func(string)
		if count == 1 && testing.Verbose() {
			trace = func(s string) { fmt.Println(s) }
		}
		w := newWorld(seed, trace)
		if failure := w.run(); failure != "" {
			t.Errorf("seed %d: %s\nreplay: TERALOG_RAFT_SEEDS=1 TERALOG_RAFT_SEED=%d go test ./raft -run TestSim$ -v", seed, failure, seed)
		}
		events += w.events
		for k, n := range w.rare {
			rare[k] += n
		}
		if seed%100 == 0 {
			again := newWorld(seed, nil)
			again.run()
			if again.hash != w.hash || again.events != w.events {
				t.Errorf("seed %d: run twice it goes two ways: %d and %d events", seed, w.events, again.events)
			}
		}
	}
	for _, name := range rareEvents {
		if count >= 2000 && rare[name] == 0 {
			t.Errorf("%q never happened in %d seeds", name, count)
		}
	}
	if 5*rare["viable"] < 2*int(count) {
		t.Errorf("only %d of %d seeds had to come to life again", rare["viable"], count)
	}
	t.Logf("%d seeds, %d events: %v", count, events, rare)
}
