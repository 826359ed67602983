package storage

import (
	"cmp"
	"slices"
	"sync"
	"sync/atomic"
)

// A stretch is a part of a segment's file.
type stretch struct {
	s *segment
	span
}

// A span is the bytes of a file from from to to, exclusive.
type span struct{ from, to int64 }

// addSpan adds s, which lies behind all of spans, to them.
func addSpan(spans []span, s span) []span {
	if n := len(spans); n > 0 && spans[n-1].to == s.from {
		spans[n-1].to = s.to
		return spans
	}
	return append(spans, s)
}

const (
	// nearBytes is how far readers of cold bytes may be apart for the later one
	// to find what the earlier one brought in.
	nearBytes = 32 << 20
	// dropBytes is how much is dropped at a time.
	dropBytes = 4 << 20
	// maxWakes bounds the places of one log whose readers are known, and
	// maxFollowers the readers known at each.
	maxWakes     = 64
	maxFollowers = 64
)

// wakes are what readers of a log leave in memory behind them as they go through
// sealed segments that were not there: old bytes that nobody is likely to ask for
// again, for which newer ones would have to leave. They are dropped once the last
// reader has passed. What was in memory before is left alone, as far as somebody
// wrote or verified it, and so is the active segment.
type wakes struct {
	mu   sync.Mutex
	list []wake // those touched last come last
}

// A wake is one place where readers go through a segment.
type wake struct {
	stretch // brought in, and not dropped since
	readers []follower
}

// A follower is a reader in a wake: where it goes on, or where what it sends at
// the moment begins.
type follower struct {
	at      int64
	sending bool
}

func (f follower) compare(g follower) int { return cmp.Compare(f.at, g.at) }

// enter notes that a reader is about to send the bytes of r. sound says that they
// may go out unread, absent that they were not in memory. If they belong to a
// wake, enter returns true and passed is called once they are sent; brought is
// how many of them nobody had read before.
func (w *wakes) enter(r stretch, sound, absent bool) (follows bool, brought int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	i := slices.IndexFunc(w.list, func(k wake) bool {
		return k.s == r.s && k.from <= r.from && (r.from < k.to || r.from == k.to && !sound)
	})
	switch {
	case i >= 0:
	case sound || !absent:
		return false, 0
	default:
		if len(w.list) == maxWakes {
			w.list = slices.Delete(w.list, 0, 1)
		}
		w.list = append(w.list, wake{stretch: stretch{r.s, span{r.from, r.from}}})
		i = len(w.list) - 1
	}
	k := w.list[i]
	if r.to > k.to && !sound {
		brought, k.to = r.to-k.to, r.to
	}
	n := slices.Index(k.readers, follower{r.from, false})
	if n < 0 && len(k.readers) < maxFollowers {
		n, k.readers = len(k.readers), append(k.readers, follower{})
	}
	if n >= 0 {
		k.readers[n] = follower{r.from, true}
	}
	w.list = append(slices.Delete(w.list, i, i+1), k)
	return n >= 0, brought
}

// passed notes that a reader that entered with r has sent it.
func (w *wakes) passed(r stretch) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for i := range w.list {
		if w.list[i].s != r.s {
			continue
		}
		if n := slices.Index(w.list[i].readers, follower{r.from, true}); n >= 0 {
			w.list[i].readers[n] = follower{r.to, false}
			return
		}
	}
}

// due returns what nobody near needs any more. It is the caller's to drop.
func (w *wakes) due() (gone []stretch) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.list = slices.DeleteFunc(w.list, func(k wake) bool { return k.from >= k.s.final.size })
	for i := range w.list {
		k := &w.list[i]
		if len(k.readers) == 0 {
			continue
		}
		first := slices.MaxFunc(k.readers, follower.compare).at
		k.readers = slices.DeleteFunc(k.readers, func(f follower) bool { return f.at < first-nearBytes })
		to := slices.MinFunc(k.readers, follower.compare).at
		if to < k.s.final.size {
			to -= to % pageSize
		}
		if to-k.from >= dropBytes || to == k.s.final.size {
			gone = append(gone, stretch{k.s, span{k.from, to}})
			k.from = to
		}
	}
	return gone
}

// cacheCounts count what readers far behind, and the scrub, do to the page cache
// for one data directory, in bytes.
type cacheCounts struct{ cold, dropped, scrubbed atomic.Int64 }

// CacheStats are the counters of a data directory, in bytes since it was opened.
type CacheStats struct {
	Cold     int64 // brought in for readers
	Dropped  int64 // let go of behind them
	Scrubbed int64 // read by Scrub
}

// CacheStats returns the directory's counters. Any goroutine.
func (d *Dir) CacheStats() CacheStats {
	c := &d.files.cache
	return CacheStats{Cold: c.cold.Load(), Dropped: c.dropped.Load(), Scrubbed: c.scrubbed.Load()}
}

// follow notes that r is about to be sent, for the wake that it may belong to.
func (r *Range) follow(sound, absent bool) {
	if r.follows || r.s == r.v.active {
		return
	}
	w, of := &r.v.home.wakes, stretch{r.s, span{r.Off, r.Off + r.Len}}
	follows, brought := w.enter(of, sound, absent)
	r.v.home.files.cache.cold.Add(brought)
	if r.follows = follows; follows {
		give := r.Done
		r.Done = func() {
			w.passed(of)
			give()
		}
	}
}

// dropBehind drops what readers of the log have left behind. It calls the disk,
// so it belongs on a worker.
func (h *home) dropBehind() {
	for _, gone := range h.wakes.due() {
		f, err := h.files.take(gone.s)
		if err != nil {
			continue // deleted, or not to be opened: nothing of it stays for long
		}
		if f.DropCache(gone.from, gone.to-gone.from) == nil {
			h.files.cache.dropped.Add(gone.to - gone.from)
		}
		gone.s.done()
	}
}
