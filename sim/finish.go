package sim

import (
	"fmt"
	"time"

	"github.com/teralog/teralog/bench"
	"github.com/teralog/teralog/wire"
)

// finish reads everything once more, holds it against the history, and asks
// questions whose answers are known by then.
func (w *one) finish() {
	w.run(w.now.Mono + 25*time.Second) // retention has seen the last records by then, and moves no start any more
	w.note("draining")
	if w.plan.stray && w.planted && !w.found(dataDir) {
		w.violate("a folder that no metadata names was deleted")
	}
	for _, t := range w.topics {
		for p := range t.partitions {
			w.drain(t, p)
		}
	}
	anomalies, counts := w.checker.Finish()
	if len(anomalies) > 0 {
		w.violate("%v (%v in all)", anomalies[0], counts)
	}
	if w.checker.Allowed() > 0 {
		w.count("lost what its mode may lose")
	}
	w.note("done", int64(w.checker.Allowed()))
}

// ask makes one call and waits for its answer.
func (w *one) ask(req, resp wire.Message) error {
	for range 100 {
		answered, outcome := false, error(nil)
		l := w.connect()
		if l == nil {
			return fmt.Errorf("the node is down though nothing fails any more")
		}
		l.call(req, resp, func(err error) { answered, outcome = true, err })
		for limit := w.now.Mono + 40*time.Second; !answered && w.broken == "" && w.now.Mono < limit; {
			w.run(w.now.Mono + 200*time.Microsecond)
		}
		if w.broken != "" || answered && (outcome == nil || !wire.CodeOf(outcome).Retriable()) {
			return outcome
		}
	}
	return fmt.Errorf("no answer to %v", req.API())
}

// A stored record, as the drain found it.
type stored struct {
	offset           wire.Offset
	time, appendTime int64
}

// drain reads a partition from its start to its end.
func (w *one) drain(t *topic, partition int32) {
	id := wire.PartitionID{Topic: t.id, Partition: partition}
	p, err := w.node.b.Set().Leader(id)
	if err != nil {
		w.violate("%v is not led at the end: %v", id, err)
		return
	}
	v := p.View()
	e := &bench.Drained{Partition: id, Start: v.Start}
	var all []stored
	for at := v.Start; at < v.End && w.broken == ""; {
		resp := &wire.FetchResponse{}
		err := w.ask(&wire.FetchRequest{Replica: wire.NoNode, MinBytes: 1, MaxBytes: 1 << 20, MaxWaitMillis: 10, Partitions: []wire.FetchPartition{
			{Topic: id.Topic, Partition: partition, Offset: at, Epoch: wire.NoEpoch, LastEpoch: wire.NoEpoch, MaxBytes: 1 << 20}}}, resp)
		if err != nil || resp.Partitions[0].Code != wire.CodeOK {
			w.violate("%v: the drain at %d: %v, %v", id, at, err, resp.Partitions)
			return
		}
		r := &resp.Partitions[0]
		reads, _, err := readRange(r.Data, at)
		if err != nil {
			w.violate("%v: the drain at %d: %v", id, at, err)
			return
		}
		eachRecord(r.Data, func(b wire.Batch, rec *wire.Record) {
			if rec.Offset >= at {
				all = append(all, stored{rec.Offset, rec.Time, b.AppendTime()})
			}
		})
		if len(reads) > 0 && r.Next <= at {
			w.violate("%v: the drain stands still at %d", id, at)
		}
		e.Reads = append(e.Reads, reads...)
		at = r.Next
	}
	if w.broken != "" {
		return
	}
	w.checker.Apply(e)
	w.askTimes(id, all)
}

// askTimes compares look-ups by time with a search through all records.
func (w *one) askTimes(id wire.PartitionID, all []stored) {
	r := w.stream("times")
	req, want := &wire.ListOffsetsRequest{}, []wire.Offset{}
	first := func(late func(stored) bool) wire.Offset {
		for _, s := range all {
			if late(s) {
				return s.offset
			}
		}
		return -1
	}
	for range 24 {
		t := w.now.Wall + r.Int64N(40_000) - 30_000
		if len(all) > 0 && r.IntN(3) > 0 {
			t = all[r.IntN(len(all))].time + r.Int64N(3) - 1
		}
		req.Queries = append(req.Queries, wire.OffsetQuery{Topic: id.Topic, Partition: id.Partition, Epoch: wire.NoEpoch, Kind: wire.AtEventTime, Time: t})
		want = append(want, first(func(s stored) bool { return s.time >= t }))
		if len(all) > 0 && r.IntN(3) > 0 {
			t = all[r.IntN(len(all))].appendTime + r.Int64N(3) - 1
		}
		req.Queries = append(req.Queries, wire.OffsetQuery{Topic: id.Topic, Partition: id.Partition, Epoch: wire.NoEpoch, Kind: wire.AtAppendTime, Time: t})
		want = append(want, first(func(s stored) bool { return s.appendTime >= t }))
	}
	greatest := wire.Offset(-1)
	for i, s := range all {
		if greatest < 0 || s.time > all[int(greatest-all[0].offset)].time {
			greatest = all[i].offset
		}
	}
	req.Queries = append(req.Queries, wire.OffsetQuery{Topic: id.Topic, Partition: id.Partition, Epoch: wire.NoEpoch, Kind: wire.Greatest})
	want = append(want, greatest)
	resp := &wire.ListOffsetsResponse{}
	if err := w.ask(req, resp); err != nil || len(resp.Results) != len(want) {
		w.violate("%v: look-ups by time: %v", id, err)
		return
	}
	for i, q := range req.Queries {
		if got := resp.Results[i]; got.Code != wire.CodeOK || got.Offset != want[i] {
			w.violate("%v: look-up %d of time %d gives %v offset %d, a search gives %d", id, q.Kind, q.Time, got.Code, got.Offset, want[i])
			return
		}
	}
}
