package coord

import "github.com/teralog/teralog/wire"

// A DirSpace is a data directory that takes new partitions.
type DirSpace struct {
	ID   wire.UUID
	Free int64 // bytes, the reserve not counted
}

// place returns the data directory of each of n new partitions: the one with
// the most free space once each partition placed here before it has taken
// expect bytes; among equals the one with the fewest partitions, then the first.
// dirs is not empty.
func place(n int, dirs []DirSpace, expect int64, hosted func(wire.UUID) int) []wire.UUID {
	type candidate struct {
		free  int64
		count int
	}
	left := make([]candidate, len(dirs))
	for i, d := range dirs {
		left[i] = candidate{d.Free, hosted(d.ID)}
	}
	placed := make([]wire.UUID, n)
	for p := range placed {
		best := 0
		for i, c := range left {
			if b := left[best]; c.free > b.free || c.free == b.free && c.count < b.count {
				best = i
			}
		}
		placed[p] = dirs[best].ID
		left[best].free -= expect
		left[best].count++
	}
	return placed
}
