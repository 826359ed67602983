package broker

import (
	"cmp"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/teralog/teralog/mem"
	"github.com/teralog/teralog/wire"
)

// handovers are how long records lay in their topic before a consumer was given
// them. The first maxHandovers topics that are read have times of their own, all
// others some together. Any goroutine.
type handovers struct {
	mu   sync.Mutex                                     // of who changes topics
	of   atomic.Pointer[map[wire.TopicID]*handoverTime] // copied on write
	rest mem.Latency
}

type handoverTime struct {
	topic string
	took  mem.Latency
}

// maxHandovers bounds the topics with times of their own, inclusive.
const maxHandovers = 100

// record notes that records of a topic were handed over after took. name is
// asked for the first time.
func (h *handovers) record(id wire.TopicID, name func(wire.TopicID) string, took time.Duration) {
	if t := h.topics()[id]; t != nil {
		t.took.Record(took)
		return
	}
	h.add(id, name).Record(took)
}

func (h *handovers) topics() map[wire.TopicID]*handoverTime {
	if m := h.of.Load(); m != nil {
		return *m
	}
	return nil
}

func (h *handovers) add(id wire.TopicID, name func(wire.TopicID) string) *mem.Latency {
	if len(h.topics()) >= maxHandovers {
		return &h.rest
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	old := h.topics()
	if t := old[id]; t != nil {
		return &t.took
	}
	if len(old) >= maxHandovers {
		return &h.rest
	}
	next := maps.Clone(old)
	if next == nil {
		next = map[wire.TopicID]*handoverTime{}
	}
	t := &handoverTime{topic: name(id)}
	next[id] = t
	h.of.Store(&next)
	return &t.took
}

// drop forgets a topic that is gone.
func (h *handovers) drop(id wire.TopicID) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.topics()[id] != nil {
		next := maps.Clone(h.topics())
		delete(next, id)
		h.of.Store(&next)
	}
}

// each calls f for every topic, ordered by name, and with "" for the rest.
func (h *handovers) each(f func(topic string, l *mem.Latency)) {
	all := slices.SortedFunc(maps.Values(h.topics()), func(a, b *handoverTime) int { return cmp.Compare(a.topic, b.topic) })
	for _, t := range all {
		f(t.topic, &t.took)
	}
	f("", &h.rest)
}

// handOver notes the age of what a timed fetch is about to be answered with.
func (f *fetch) handOver() {
	if !f.call.Timed() {
		return
	}
	wall, n := f.b.time().Wall, 0
	for i := range f.resp.Partitions {
		r := &f.resp.Partitions[i]
		if r.Bytes == 0 {
			continue
		}
		if at := f.ranges[n].Appended; at > 0 {
			f.b.handovers.record(r.Topic, f.b.topicName, time.Duration(wall-at)*time.Millisecond)
		}
		n++
	}
}
