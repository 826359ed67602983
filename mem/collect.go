package mem

import (
	"runtime/debug"
	"runtime/metrics"
)

const (
	garbageRoom = 16 << 20 // bytes that a busy process may at least allocate between two collections
	gcPercent   = 100      // GOGC of the runtime's own accord,
	gcMost      = 400      // and the highest set here: the runtime's least heap grows with it, 4 MiB at 100
)

// A collector is the runtime's, as CollectRarely has set it.
type collector struct {
	percent int // GOGC in force
	read    [3]metrics.Sample
}

func newCollector() *collector {
	g := &collector{percent: gcPercent}
	for i, name := range [...]string{"/gc/heap/live:bytes", "/gc/scan/stack:bytes", "/gc/scan/globals:bytes"} {
		g.read[i].Name = name
	}
	return g
}

// look gives room to a busy process, and takes it from one that is not.
func (g *collector) look(busy bool) {
	if !busy {
		g.set(gcPercent)
		return
	}
	metrics.Read(g.read[:])
	g.set(percentFor(g.read[0].Value.Uint64() + g.read[1].Value.Uint64() + g.read[2].Value.Uint64()))
}

// set stops the world for a moment if it changes anything, which for a busy
// process is once a collection at most.
func (g *collector) set(percent int) {
	if percent != g.percent {
		debug.SetGCPercent(percent)
		g.percent = percent
	}
}

// percentFor returns the GOGC that gives garbageRoom to a process of which the
// last collection found so many bytes in use, gcPercent to gcMost.
func percentFor(inUse uint64) int {
	if inUse <= garbageRoom*100/gcMost {
		return gcMost
	}
	return max(gcPercent, int(garbageRoom*100/inUse))
}
