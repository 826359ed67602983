package sim

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// TestRaftPartialNetworks breaks the network in each shape that leaves a
// majority which hears each other, and does not mend it. There is a leader who
// commits within a second, ten of the shortest election timeouts, and goes on;
// once there is one, none has to be elected again.
func TestRaftPartialNetworks(t *testing.T) {
	seeds := 2
	if testing.Short() {
		seeds = 1
	}
	const broken, within, until = time.Second, time.Second, 3 * time.Second
	f := func(fault string) {
		t.Helper()
		for seed := range seeds {
			s, err := readScenario(strings.NewReader(fmt.Sprintf(
				"cluster seed=%d voters=5 callers=2 propose=10ms window=16 appends=1000 until=9s\nnetwork\nat %v %s\n", seed, broken, fault)))
			if err != nil {
				t.Fatal(err)
			}
			q := &quorum{world: newWorld(s.seed, nil), scenario: s, seen: map[string]int{}}
			q.begin()
			q.run(broken + within)
			settled := q.elections
			for q.now.Mono < until && q.broken == "" {
				last := q.truth.last()
				q.run(q.now.Mono + 400*time.Millisecond)
				if q.truth.last() == last {
					t.Fatalf("seed %d, %s: nothing was committed in the 400 ms before %v\n%v", seed, fault, q.now.Mono, q)
				}
			}
			if q.broken != "" || q.elections != settled {
				t.Fatalf("seed %d, %s: %d elections after there was a leader; %s", seed, fault, q.elections-settled, q.broken)
			}
		}
	}

	f("cut 3 shape=bridge half=1,2")
	f("cut leader shape=bridge half=1,2")
	f("cut leader shape=bridge half=1,2,3")
	f("cut 1 shape=ring")
	f("cut 1 shape=halves half=1,2")
	f("cut leader shape=halves half=3,4")
	f("cut leader shape=alone")
	f("cut leader shape=deaf")
	f("cut leader shape=dumb")
	f("cut leader shape=link to=2")
	f("cut 2 shape=deaf")
	f("cut 2 shape=dumb")
	f("flap leader to=2 every=20ms lasts=9s")
	f("flap leader to=2 every=150ms lasts=9s")
	f("flap 3 to=4 every=150ms lasts=9s")
}
