package client

import (
	"slices"

	"github.com/teralog/teralog/wire"
)

// refresh has metadata fetched, unless that is under way; x.mu is held.
func (x *Consumer) refresh() {
	x.doubtful = true
	if x.refreshing || x.closed {
		return
	}
	x.refreshing, x.doubtful = true, false
	var names []string
	for _, c := range x.cursors {
		if !slices.Contains(names, c.topic) {
			names = append(names, c.topic)
		}
	}
	x.loops.Add(1)
	go x.refreshNow(names)
}

// refreshNow fetches metadata once and points cursors at their leaders. It
// ends not before a back-off has passed, which spaces the questions: longer
// each time the answer helps nothing.
func (x *Consumer) refreshNow(names []string) {
	defer x.loops.Done()
	ctx, cancel := x.c.bounded(x.ctx)
	err := x.c.meta.refresh(ctx, names...)
	cancel()

	x.mu.Lock()
	x.futile++
	lost := err != nil
	for _, c := range x.cursors {
		if slices.Contains(names, c.topic) {
			x.redirect(c, x.c.meta.cached(c.topic))
		}
		lost = lost || c.leader == wire.NoNode
	}
	if !lost {
		x.futile = 0
	}
	pause := x.wait(x.futile+1, 0)
	x.notify()
	x.mu.Unlock()

	sleep(x.ctx, pause)
	x.mu.Lock()
	x.refreshing = false
	if x.doubtful || lost {
		x.refresh()
	}
	x.mu.Unlock()
}

// redirect takes what the cluster says now about a cursor's topic; nil: that
// there is none. Offsets of a topic that was deleted mean nothing in another
// one of its name, so the cursor stops.
func (x *Consumer) redirect(c *cursor, t *topic) {
	if t == nil || t.id != c.id.Topic || int(c.id.Partition) >= len(t.parts) {
		if c.err == nil {
			c.fail(wire.Errorf(wire.CodeTopicRecreated, "topic %q with id %d was deleted", c.topic, c.id.Topic), nil)
		}
		return
	}
	p := t.parts[c.id.Partition]
	c.leader, c.current = p.leader, max(c.current, p.epoch)
	if c.leader != wire.NoNode {
		x.aim(c)
	}
}
