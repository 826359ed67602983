package sim

import (
	"fmt"
	"slices"
	"sync"

	"github.com/teralog/teralog/bench"
	"github.com/teralog/teralog/wire"
)

// A history feeds the checker with what clients saw, in the order in which they
// saw it, and keeps what is wrong at once. It may be used from anywhere.
type history struct {
	run uint32

	mu      sync.Mutex
	checker *bench.Checker
	owners  map[wire.PartitionID][]bench.ID // by offset: whose it is, as acknowledged or read; nil: the checker alone looks
	next    uint32                          // the next producer or consumer
	counts  loadCounts
	wrong   []string
}

// maxWrong is how many violations are kept: they tend to have one cause.
const maxWrong = 8

// loadCounts is what a load did.
type loadCounts struct {
	sent, acked, failed, doubtful, bytes    int64
	read, behind                            int64 // by readers while records were sent; of these by those from far behind
	created, deleted, outOfRange, truncated int64
}

func newHistory(run uint32) *history {
	return &history{run: run, checker: bench.NewChecker(run), owners: map[wire.PartitionID][]bench.ID{}}
}

// own notes that a record was acknowledged or read at an offset. Two there is
// one too many, whether or not retention has deleted them by the end of the
// run, when the checker looks. h.mu is held.
func (h *history) own(p wire.PartitionID, at wire.Offset, id bench.ID) {
	if at < 0 || at >= 1<<31 || h.owners == nil {
		return
	}
	all := h.owners[p]
	if n := int(at) + 1 - len(all); n > 0 {
		all = append(all, make([]bench.ID, n)...)
		h.owners[p] = all
	}
	if none := (bench.ID{}); all[at] != none && all[at] != id && len(h.wrong) < maxWrong {
		h.wrong = append(h.wrong, fmt.Sprintf("offset %d of %v belongs to %+v and to %+v", at, p, all[at], id))
	}
	all[at] = id
}

// ownAll is own for what a reader got.
func (h *history) ownAll(p wire.PartitionID, reads []bench.Read) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, r := range reads {
		if r.Sound {
			h.own(p, r.Offset, r.ID)
		}
	}
}

func (h *history) apply(e bench.Event) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.checker.Apply(e)
}

// acked returns how many records have been acknowledged.
func (h *history) acked() int64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.counts.acked
}

// count changes the counters under the lock.
func (h *history) count(f func(*loadCounts)) {
	h.mu.Lock()
	defer h.mu.Unlock()
	f(&h.counts)
}

// violate notes something that must not happen. The first few are kept.
func (h *history) violate(format string, args ...any) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.wrong) < maxWrong {
		h.wrong = append(h.wrong, fmt.Sprintf(format, args...))
	}
}

// number returns a number for a producer or consumer, never given twice.
func (h *history) number() uint32 {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.next++
	return h.next
}

// violations returns what was noted.
func (h *history) violations() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.wrong)
}
