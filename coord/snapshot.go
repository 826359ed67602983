package coord

import (
	"slices"
	"strings"

	"github.com/teralog/teralog/wire"
)

// appendState appends
//
//	| next producer i64 | topics: count, topic … | deleted: count, topic … |
//	| requests: count, { id UUID | sum u32 | topic u64 | offset i64 } … |
//
// topics in ascending order of their ids, requests from the oldest to the
// newest. Equal images give equal bytes.
func appendState(dst []byte, i *Image) []byte {
	dst = wire.Append64(dst, i.nextProducer)
	for _, ts := range [][]*Topic{i.ids, i.deleted} {
		dst = wire.AppendCount(dst, len(ts))
		for _, t := range ts {
			dst = appendTopic(dst, t)
		}
	}
	dst = wire.AppendCount(dst, len(i.requests))
	for _, r := range i.requests {
		dst = wire.Append32(append(dst, r.id[:]...), r.sum)
		dst = wire.Append64(wire.Append64(dst, r.topic), r.offset)
	}
	return dst
}

// readState returns the image at a version. It takes nothing that a sequence
// of records could not have made.
func readState(r *wire.Reader, version wire.Offset) (*Image, error) {
	d := emptyImage.edit()
	d.version = version
	d.nextProducer = wire.ProducerID(r.I64())
	if d.nextProducer < 1 {
		r.Failf("next producer id %d", d.nextProducer)
	}
	var err error
	if d.ids, err = readTopics(r); err != nil {
		return nil, err
	}
	if d.deleted, err = readTopics(r); err != nil {
		return nil, err
	}
	d.names = slices.SortedFunc(slices.Values(d.ids), func(a, b *Topic) int { return strings.Compare(a.Name, b.Name) })
	for n, t := range d.names {
		if n > 0 && d.names[n-1].Name == t.Name || d.Deleted(t.ID) {
			r.Failf("topic %s with id %d, but the name or the id is taken", t.Name, t.ID)
		}
		for _, p := range t.Partitions {
			d.hosted[p.Dir]++
		}
	}
	for _, ts := range [][]*Topic{d.ids, d.deleted} {
		for _, t := range ts {
			d.partitions += len(t.Partitions)
		}
	}
	n := r.Count(36)
	if n > MaxRequests {
		r.Failf("%d requests, the limit is %d", n, MaxRequests)
	}
	for range n {
		d.requests = append(d.requests, request{r.UUID(), r.U32(), wire.TopicID(r.U64()), wire.Offset(r.I64())})
	}
	return &d.Image, r.Err()
}

// readTopics reads topics in ascending order of their ids.
func readTopics(r *wire.Reader) ([]*Topic, error) {
	var ts []*Topic
	for range r.Count(leastTopic) {
		t, err := readTopic(r)
		if err != nil {
			return nil, err
		}
		if len(ts) > 0 && ts[len(ts)-1].ID >= t.ID {
			r.Failf("topic id %d after %d", t.ID, ts[len(ts)-1].ID)
		}
		ts = append(ts, t)
	}
	return ts, r.Err()
}
