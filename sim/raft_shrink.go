package sim

import (
	"slices"
	"time"
)

// maxShrinkRuns bounds how often a scenario is played to make it smaller.
const maxShrinkRuns = 4000

// A shrinker makes a scenario that breaks an invariant smaller, as long as it
// breaks the same one.
type shrinker struct {
	best *scenario
	name string // of the invariant
	runs int
	end  time.Duration // when best breaks it
}

// shrink returns a small scenario that breaks the same invariant as s does, or
// s if it breaks none.
func (s *scenario) shrink() *scenario {
	h := &shrinker{best: s}
	r := s.run(nil)
	if r.Violation == "" {
		return s
	}
	h.name, h.end = invariant(r.Violation), r.End
	for before := -1; before != h.best.weight() && h.runs < maxShrinkRuns; {
		before = h.best.weight()
		h.cutTail()
		h.dropFaults()
		h.calm()
		h.round()
	}
	return h.best
}

// weight is what shrinking makes less.
func (s *scenario) weight() int {
	w := s.nodes() + s.callers + len(s.left) + s.loss + s.repeat + s.late + s.foreign
	for i := range s.faults {
		w += len(s.faults[i].String())
	}
	return w
}

// try keeps the scenario that change makes of the best one, if it still breaks
// the invariant.
func (h *shrinker) try(change func(s *scenario)) bool {
	if h.runs >= maxShrinkRuns {
		return false
	}
	s := *h.best
	s.faults = slices.Clone(s.faults)
	change(&s)
	if s.check() != nil {
		return false
	}
	h.runs++
	r := s.run(nil)
	if r.Violation == "" || invariant(r.Violation) != h.name {
		return false
	}
	h.best, h.end = &s, r.End
	return true
}

// cutTail drops what comes after the end.
func (h *shrinker) cutTail() {
	h.try(func(s *scenario) {
		s.faults = slices.DeleteFunc(s.faults, func(f fault) bool { return f.election == 0 && f.at > h.end })
	})
	h.try(func(s *scenario) { s.until = min(s.until, h.end.Truncate(time.Millisecond)+time.Millisecond) })
}

// dropFaults drops runs of faults, first long ones.
func (h *shrinker) dropFaults() {
	for size := len(h.best.faults); size > 0; size /= 2 {
		for from := 0; from < len(h.best.faults); {
			to := min(from+size, len(h.best.faults))
			if !h.try(func(s *scenario) { s.faults = slices.Delete(s.faults, from, to) }) {
				from = to
			}
		}
	}
}

// calm drops what makes the cluster restless or large.
func (h *shrinker) calm() {
	for _, change := range []func(s *scenario){
		func(s *scenario) { s.loss = 0 },
		func(s *scenario) { s.repeat = 0 },
		func(s *scenario) { s.late = 0 },
		func(s *scenario) { s.foreign = 0 },
		func(s *scenario) { s.ordered = true },
		func(s *scenario) { s.skew = nil },
		func(s *scenario) { s.fsync = 0 },
		func(s *scenario) { s.left = nil },
		func(s *scenario) { s.wild = false },
		func(s *scenario) { s.snapshotBytes = 0 },
		func(s *scenario) { s.window, s.appendBytes = 16, 1000 },
		func(s *scenario) { s.callers-- },
		func(s *scenario) { s.callers = 1 },
		func(s *scenario) { s.spares-- },
		func(s *scenario) { s.voters -= 2 },
	} {
		h.try(change)
	}
}

// round makes times round and faults plain.
func (h *shrinker) round() {
	for i := range h.best.faults {
		for _, grain := range []time.Duration{100 * time.Millisecond, 10 * time.Millisecond, time.Millisecond} {
			if h.try(func(s *scenario) { s.faults[i].at = s.faults[i].at.Round(grain) }) {
				break
			}
		}
		for _, grain := range []time.Duration{time.Second, 100 * time.Millisecond, 10 * time.Millisecond, time.Millisecond} {
			if h.try(func(s *scenario) { s.faults[i].lasts = s.faults[i].lasts.Round(grain) }) {
				break
			}
		}
		h.try(func(s *scenario) { s.faults[i].power = false })
		h.try(func(s *scenario) { s.faults[i].n /= 2 })
	}
}
