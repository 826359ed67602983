package broker

import (
	"github.com/teralog/teralog/storage"
	"github.com/teralog/teralog/wire"
)

// offsets answers questions about where partitions begin and end, and which
// record comes first at or after a time. The latter read the disk, so they go
// to its lane; what they look into takes its memory from the budget of requests.
func (b *Broker) offsets(c *wire.Call) {
	var req wire.ListOffsetsRequest
	if err := c.Decode(&req); err != nil {
		c.ReplyError(err)
		return
	}
	answer := func() {
		resp := wire.ListOffsetsResponse{Results: make([]wire.OffsetResult, len(req.Queries))}
		for i, q := range req.Queries {
			resp.Results[i] = b.offset(q)
		}
		c.Reply(&resp)
	}
	for _, q := range req.Queries {
		if q.Kind != wire.Earliest && q.Kind != wire.Latest {
			workers := b.work
			if _, at, err := b.reader(wire.PartitionID{Topic: q.Topic, Partition: q.Partition}); err == nil {
				workers = at.jobs
			}
			if !workers.submit(answer, c.Fail) {
				b.refuse(c, errBusy)
			}
			return
		}
	}
	answer()
}

func (b *Broker) offset(q wire.OffsetQuery) wire.OffsetResult {
	r := wire.OffsetResult{Offset: -1, Time: -1, Epoch: wire.NoEpoch}
	fail := func(err error) wire.OffsetResult {
		r.Code = wire.CodeOf(err)
		return r
	}
	id := wire.PartitionID{Topic: q.Topic, Partition: q.Partition}
	if _, err := b.coord.Image().Resolve(id); err != nil {
		return fail(err)
	}
	v, _, err := b.reader(id)
	if err != nil {
		return fail(err)
	}
	r.Epoch = v.Epoch
	if err := checkEpoch(q.Epoch, v.Epoch); err != nil {
		return fail(err)
	}
	memory := b.server.Budget
	switch q.Kind {
	case wire.Earliest:
		r.Offset = v.Start
	case wire.Latest:
		r.Offset = v.Bound()
	case wire.Greatest:
		r.Offset, r.Time, err = v.Log.FindGreatest(v.Bound(), memory)
	case wire.AtEventTime:
		r.Offset, r.Time, err = v.Log.FindTime(storage.EventTime, q.Time, v.Bound(), memory)
	case wire.AtAppendTime:
		r.Offset, r.Time, err = v.Log.FindTime(storage.AppendTime, q.Time, v.Bound(), memory)
	}
	if err != nil || r.Offset < 0 {
		r.Offset, r.Time = -1, -1
	}
	if err != nil {
		return fail(err)
	}
	return r
}
