package raft

import (
	"fmt"
	"testing"
)

// BenchmarkPropose turns three nodes that hear each other at once, over memory
// stores: the cost of the algorithm alone, with so many proposals a turn.
func BenchmarkPropose(b *testing.B) {
	for _, flight := range []int{1, 16, 256} {
		b.Run(fmt.Sprint(flight), func(b *testing.B) {
			h := &hub{drivers: map[Peer]*Driver{}}
			members := Members{Voters: peersOf([]int{1, 2, 3})}
			var list []*Driver
			for _, p := range members.Voters {
				s := NewMemStore()
				if err := Bootstrap(s, members); err != nil {
					b.Fatal(err)
				}
				d, err := NewDriver(Config{Cluster: cluster, Self: p}, s, h, &sumMachine{}, Options{})
				if err != nil {
					b.Fatal(err)
				}
				h.drivers[p], list = d, append(list, d)
			}
			turn := func() {
				for busy := true; busy; {
					busy = false
					for _, d := range list {
						worked, err := d.Turn()
						if err != nil {
							b.Fatal(err)
						}
						busy = busy || worked
					}
				}
			}
			for !list[0].Status().Leads {
				list[0].Tick()
				turn()
			}
			data, done := make([]byte, 100), 0
			b.ReportAllocs()
			b.ResetTimer()
			for done < b.N {
				for range flight {
					list[0].Propose(data, func(_ Index, err error) {
						if err != nil {
							b.Fatal(err)
						}
						done++
					})
				}
				turn()
			}
		})
	}
}
