package client

import (
	"testing"

	"github.com/teralog/teralog/mem"
	"github.com/teralog/teralog/wire"
)

// FuzzFetchAnswer gives any bytes to a cursor as the answer to its fetch and
// reads what it accepts: no panic, no record outside what was asked for, and
// the position never falls.
func FuzzFetchAnswer(f *testing.F) {
	id := wire.PartitionID{Topic: wire.FirstUserTopic + 1, Partition: 2}
	w := wire.NewBuilder(wire.BuilderOptions{Topic: id.Topic, Partition: id.Partition, Codec: wire.Snappy})
	for i := range 5 {
		w.Add(int64(i), []byte("key"), make([]byte, 50), []wire.Header{{Key: []byte("h")}})
	}
	buf, err := w.Build()
	if err != nil {
		f.Fatal(err)
	}
	b := wire.Batch(buf.B)
	b.Stamp(7, 3, 1000, false)
	good := wire.FetchResponse{Partitions: []wire.FetchResult{{Topic: id.Topic, Partition: id.Partition, Epoch: 3, Committed: 12,
		Next: 12, Bytes: uint32(len(b)), Data: b}}}
	f.Add(good.AppendTo(nil, 0))
	good.Partitions[0].Code = wire.CodeTruncated
	f.Add(good.AppendTo(nil, 0))
	f.Add([]byte(nil))

	f.Fuzz(func(t *testing.T, body []byte) {
		var resp wire.FetchResponse
		var r wire.Reader
		if wire.DecodeBody(&r, &resp, 0, body) != nil {
			return
		}
		c := &cursor{topic: "t", id: id, current: wire.NoEpoch, end: -1}
		c.seek(unbounded(8))
		fr := &frame{buf: mem.NewPool("fuzz").Get(0), refs: 1}
		for i := range resp.Partitions {
			c.request(1 << 20)
			if err := c.answer(&resp.Partitions[i], fr); err != nil {
				if stops(err) {
					c.fail(err, &resp.Partitions[i])
				}
				continue
			}
			drain(t, c)
		}
	})
}

func drain(t *testing.T, c *cursor) {
	x := &Consumer{o: ConsumerOptions{MaxRecords: 1 << 20}}
	r := &x.open
	r.decoder = wire.Decoder{MaxRecords: 1 << 20}
	defer r.decoder.Release()
	for {
		pos := c.pos
		b := c.readable(func(k chunk) { k.frame.refs-- })
		if b == nil {
			return
		}
		r.cursor, r.pos, r.bounds, r.batch, r.begun = c, c.pos, c.bounds, b, false
		if done, err := r.take(x); err != nil || !done {
			return
		}
		c.passed(b)
		for _, m := range x.out {
			if m.Offset < pos || m.Offset >= c.pos {
				t.Fatalf("offset %d between positions %d and %d", m.Offset, pos, c.pos)
			}
		}
		x.out = x.out[:0]
		if c.pos < pos {
			t.Fatalf("position fell from %d to %d", pos, c.pos)
		}
	}
}
