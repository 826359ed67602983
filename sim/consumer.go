package sim

import (
	"errors"
	"time"

	"github.com/teralog/teralog/bench"
	"github.com/teralog/teralog/wire"
)

// A consumer reads every partition, one fetch at a time, and tells the checker
// what each brought.
type consumer struct {
	w      *one
	n      uint32
	link   *link
	places []*spot
	busy   bool
	next   int
}

// A spot is where a consumer is in one partition.
type spot struct {
	t         *topic
	id        wire.PartitionID
	position  wire.Offset
	epoch     wire.Epoch // of the last batch read
	committed wire.Offset
	seenIn    wire.Epoch // the leader epoch committed was seen in
}

func (w *one) addConsumer(n uint32) {
	c := &consumer{w: w, n: n}
	w.readers = append(w.readers, c)
	for _, t := range w.topics {
		for p := range t.partitions {
			c.places = append(c.places, &spot{t: t, id: wire.PartitionID{Partition: p}, epoch: wire.NoEpoch, seenIn: wire.NoEpoch})
		}
	}
	var live func()
	live = func() {
		c.fetch()
		w.after(w.between("consume", time.Millisecond, 25*time.Millisecond), live)
	}
	w.after(w.between("consume", 0, 50*time.Millisecond), live)
}

// behind returns a place that is not at the end, nil if all are.
func (c *consumer) behind() *spot {
	for _, at := range c.places {
		p, err := c.w.node.b.Set().Leader(wire.PartitionID{Topic: at.t.id, Partition: at.id.Partition})
		if err != nil || p.View().Err != nil || at.position < p.View().End || p.View().Committed < p.View().End {
			return at
		}
	}
	return nil
}

func (c *consumer) fetch() {
	w := c.w
	if c.busy {
		return
	}
	if !c.link.alive() {
		if c.link != nil && !c.link.cut {
			c.link.hangUp()
		}
		if c.link = w.connect(); c.link == nil {
			return
		}
	}
	at := c.places[c.next%len(c.places)]
	c.next++
	if at.t.id == 0 {
		return
	}
	at.id.Topic = at.t.id
	c.busy = true
	r := w.stream("fetch")
	req := &wire.FetchRequest{Replica: wire.NoNode, MaxWaitMillis: uint32(r.IntN(100)), MinBytes: 1 + uint32(r.IntN(300)),
		MaxBytes: 1 + uint32(r.IntN(8192)), Plain: r.IntN(3) == 0,
		Partitions: []wire.FetchPartition{{Topic: at.id.Topic, Partition: at.id.Partition, Offset: at.position,
			Epoch: wire.NoEpoch, LastEpoch: at.epoch, MaxBytes: 1 + uint32(r.IntN(8192))}}}
	resp := &wire.FetchResponse{}
	c.link.call(req, resp, func(err error) {
		c.busy = false
		if err == nil && len(resp.Partitions) != 1 {
			w.violate("%d results for one partition", len(resp.Partitions))
		}
		if err == nil && w.broken == "" {
			c.take(at, &resp.Partitions[0])
		}
	})
}

func (c *consumer) take(at *spot, r *wire.FetchResult) {
	w := c.w
	w.note("fetched", int64(r.Code), int64(at.id.Partition), int64(at.position), int64(r.Next))
	switch r.Code {
	case wire.CodeOK:
	case wire.CodeTruncated:
		w.count("reader told of a truncation")
		if r.DivergeEnd > at.position {
			w.violate("%v: a reader at %d is told that the log agrees up to %d", at.id, at.position, r.DivergeEnd)
		}
		c.seek(at, max(r.DivergeEnd, 0))
		at.epoch = r.Diverge
		return
	case wire.CodeOutOfRange:
		if at.position <= r.End && at.position >= r.LogStart {
			w.violate("%v: offset %d is out of range of %d to %d", at.id, at.position, r.LogStart, r.End)
		}
		if at.position > r.End && at.epoch != wire.NoEpoch {
			w.violate("%v: a reader at %d of epoch %d hears of no truncation, the log ends at %d", at.id, at.position, at.epoch, r.End)
		}
		w.count("reader out of range")
		c.seek(at, r.LogStart)
		at.epoch = wire.NoEpoch
		return
	case wire.CodeOffline, wire.CodeNotLeader, wire.CodeTopicRecreated, wire.CodeShuttingDown, wire.CodeBusy:
		return // later
	default:
		w.violate("%v: a fetch at %d got %v", at.id, at.position, r.Code)
		return
	}
	if at.seenIn == r.Epoch && r.Committed < at.committed {
		w.violate("%v: the committed offset fell from %d to %d within epoch %d", at.id, at.committed, r.Committed, r.Epoch)
	}
	at.seenIn, at.committed = r.Epoch, r.Committed
	reads, epoch, err := readRange(r.Data, at.position)
	if err != nil {
		w.violate("%v: a fetch at %d brought damage: %v", at.id, at.position, err)
		return
	}
	if len(r.Data) == 0 {
		return
	}
	w.checker.Apply(&bench.Polled{Consumer: c.n, Partition: at.id, Position: at.position, Next: r.Next, Reads: reads})
	at.position, at.epoch = r.Next, epoch
}

// seek moves the place without a poll.
func (c *consumer) seek(at *spot, to wire.Offset) {
	c.w.checker.Apply(&bench.Sought{Consumer: c.n, Partition: at.id})
	at.position = to
}

// readRange reads the records of whole batches from position on.
func readRange(data []byte, position wire.Offset) (reads []bench.Read, epoch wire.Epoch, err error) {
	epoch = wire.NoEpoch
	err = eachRecord(data, func(b wire.Batch, r *wire.Record) {
		epoch = b.LeaderEpoch()
		if r.Offset < position {
			return
		}
		id, err := bench.ParseValue(r.Value)
		reads = append(reads, bench.Read{Offset: r.Offset, Epoch: b.LeaderEpoch(), ID: id, Sound: err == nil})
	})
	return reads, epoch, err
}

func eachRecord(data []byte, f func(wire.Batch, *wire.Record)) error {
	var d wire.Decoder
	defer d.Release()
	for b, err := range wire.Batches(data) {
		if err == nil {
			err = b.Verify()
		}
		if err == nil {
			err = b.Records(&d, func(r *wire.Record) error { f(b, r); return nil })
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// An admin creates the topics, and now and then another one, which it deletes
// again.
func (w *one) addAdmin() {
	var l *link
	pending, passing := false, wire.TopicID(0)
	ask := func(req, resp wire.Message, done func(error)) {
		pending = true
		l.call(req, resp, func(err error) { pending = false; done(err) })
	}
	var live func()
	live = func() {
		w.after(w.between("admin", 5*time.Millisecond, 60*time.Millisecond), live)
		if pending {
			return
		}
		if !l.alive() {
			if l != nil && !l.cut {
				l.hangUp()
			}
			if l = w.connect(); l == nil {
				return
			}
		}
		for i, t := range w.topics {
			if t.id == 0 {
				resp := &wire.CreateTopicResponse{}
				ask(&wire.CreateTopicRequest{Request: wire.UUID{1, byte(i)}, Name: t.name, Partitions: t.partitions, Settings: t.settings}, resp, func(err error) {
					if err == nil {
						t.id = resp.ID
					}
					w.admit(err)
				})
				return
			}
		}
		switch {
		case w.healed:
		case passing != 0:
			ask(&wire.DeleteTopicRequest{ID: passing}, &wire.DeleteTopicResponse{}, func(err error) {
				if err == nil || wire.CodeOf(err) == wire.CodeTopicRecreated {
					passing = 0
					w.count("deleted a topic")
				} else {
					w.admit(err)
				}
			})
		case w.odds("passing topic", 6):
			resp := &wire.CreateTopicResponse{}
			ask(&wire.CreateTopicRequest{Name: "passing", Partitions: 2, Settings: []wire.Setting{{Key: "segment.bytes", Value: "1MiB"}}}, resp, func(err error) {
				if err == nil {
					passing = resp.ID
				} else if wire.CodeOf(err) == wire.CodeTopicExists {
					w.lookUp(l, "passing", &passing, &pending)
				} else {
					w.admit(err)
				}
			})
		}
	}
	w.after(w.between("admin", 0, 5*time.Millisecond), live)
}

// lookUp finds the id of a topic whose creation went unanswered.
func (w *one) lookUp(l *link, name string, id *wire.TopicID, pending *bool) {
	if !l.alive() {
		return
	}
	*pending = true
	resp := &wire.MetadataResponse{}
	l.call(&wire.MetadataRequest{Topics: []string{name}}, resp, func(err error) {
		*pending = false
		if err == nil && len(resp.Topics) == 1 && resp.Topics[0].Code == wire.CodeOK {
			*id = resp.Topics[0].ID
		}
	})
}

// admit lets the errors pass that faults excuse.
func (w *one) admit(err error) {
	if err == nil || errors.Is(err, errCut) || errors.Is(err, errNotSent) {
		return
	}
	switch wire.CodeOf(err) {
	case wire.CodeBusy, wire.CodeDiskFull, wire.CodeOffline, wire.CodeStorageError, wire.CodeShuttingDown:
		return
	}
	w.violate("an admin request failed: %v", err)
}
