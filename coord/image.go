package coord

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"github.com/teralog/teralog/wire"
)

// The bounds of the metadata, inclusive.
const (
	MaxTopicPartitions = 10_000  // partitions of one topic
	MaxPartitions      = 100_000 // of all topics, deleted ones whose directories still exist included
	MaxRequests        = 4096    // request ids remembered, newest first
)

// A Topic is a topic as metadata knows it. It is immutable; a change makes a
// new one.
type Topic struct {
	Name       string
	ID         wire.TopicID
	Created    int64            // stamp-clock milliseconds
	Settings   []wire.Setting   // as given at creation, ascending by key
	Config     TopicConfig      // what they mean, defaults filled in
	Partitions []PartitionPlace // by partition number
}

// A PartitionPlace says who leads a partition and where its files lie.
type PartitionPlace struct {
	Leader wire.NodeID
	Epoch  wire.Epoch // leader epoch, from 0
	Dir    wire.UUID  // the data directory
}

// An Image is the whole metadata after one entry of the metadata log. It is
// immutable, so anyone may read it without a lock, and so are the topics and
// slices it returns.
type Image struct {
	version      wire.Offset       // of the last entry applied, -1: none
	names        []*Topic          // ascending by name
	ids          []*Topic          // the same, ascending by id
	deleted      []*Topic          // ascending by id
	partitions   int               // of ids and deleted
	hosted       map[wire.UUID]int // living partitions by data directory, never 0
	nextProducer wire.ProducerID   // the first id no block holds
	requests     []request         // oldest first
}

// A request remembers a command that was applied, so that it is applied once
// however often it is sent.
type request struct {
	id     wire.UUID
	sum    uint32       // checksum of the command: the id must not come with another one
	topic  wire.TopicID // its result
	offset wire.Offset  // of its entry
}

var emptyImage = &Image{version: -1, nextProducer: 1}

// Version returns the offset of the last metadata entry in the image, -1 if
// there is none.
func (i *Image) Version() wire.Offset { return i.version }

// Topics returns the topics, ascending by name.
func (i *Image) Topics() []*Topic { return i.names }

// Topic returns the topic with that name, nil if there is none.
func (i *Image) Topic(name string) *Topic {
	if at, ok := slices.BinarySearchFunc(i.names, name, byName); ok {
		return i.names[at]
	}
	return nil
}

// TopicByID returns the topic with that id, nil if there is none or it was
// deleted.
func (i *Image) TopicByID(id wire.TopicID) *Topic { return find(i.ids, id) }

// Resolve returns the topic that holds the partition. The error is
// TOPIC_RECREATED if the id names no topic, or no longer, and
// UNKNOWN_PARTITION if the topic has no such partition.
func (i *Image) Resolve(id wire.PartitionID) (*Topic, error) {
	t := i.TopicByID(id.Topic)
	switch {
	case t == nil:
		return nil, wire.Errorf(wire.CodeTopicRecreated, "no topic has the id %d; it was deleted, and the name may belong to another topic now", id.Topic)
	case id.Partition < 0 || int(id.Partition) >= len(t.Partitions):
		return nil, wire.Errorf(wire.CodeUnknownPartition, "topic %s has partitions 0 to %d, not %d", t.Name, len(t.Partitions)-1, id.Partition)
	}
	return t, nil
}

// Deleted reports whether a committed delete names the id: a directory that
// bears it is to be unlinked. Any other directory whose id is not a topic's is
// an orphan and must be kept.
func (i *Image) Deleted(id wire.TopicID) bool { return find(i.deleted, id) != nil }

// DeletedTopics returns the deleted topics whose directories may still exist,
// ascending by id. Once they are gone from every data directory, submit
// ForgetTopics.
func (i *Image) DeletedTopics() []*Topic { return i.deleted }

// Hosted returns how many partitions lie in the data directory.
func (i *Image) Hosted(dir wire.UUID) int { return i.hosted[dir] }

func (i *Image) request(id wire.UUID) *request {
	if id == (wire.UUID{}) {
		return nil
	}
	for at := len(i.requests) - 1; at >= 0; at-- {
		if i.requests[at].id == id {
			return &i.requests[at]
		}
	}
	return nil
}

func byName(t *Topic, name string) int   { return strings.Compare(t.Name, name) }
func byID(t *Topic, id wire.TopicID) int { return cmp.Compare(t.ID, id) }

func find(ts []*Topic, id wire.TopicID) *Topic {
	if at, ok := slices.BinarySearchFunc(ts, id, byID); ok {
		return ts[at]
	}
	return nil
}

// A draft is an image in the making: records are replayed into it, by one
// goroutine, until it is published.
type draft struct{ Image }

// edit returns a draft that starts as i. Topics are shared, lists are not.
func (i *Image) edit() *draft {
	d := &draft{*i}
	d.names = slices.Clone(i.names)
	d.ids = slices.Clone(i.ids)
	d.deleted = slices.Clone(i.deleted)
	d.hosted = maps.Clone(i.hosted)
	d.requests = slices.Clone(i.requests)
	if d.hosted == nil {
		d.hosted = map[wire.UUID]int{}
	}
	return d
}

func (d *draft) addTopic(t *Topic) {
	at, _ := slices.BinarySearchFunc(d.names, t.Name, byName)
	d.names = slices.Insert(d.names, at, t)
	at, _ = slices.BinarySearchFunc(d.ids, t.ID, byID)
	d.ids = slices.Insert(d.ids, at, t)
	d.partitions += len(t.Partitions)
	for _, p := range t.Partitions {
		d.hosted[p.Dir]++
	}
}

func (d *draft) deleteTopic(t *Topic) {
	at, _ := slices.BinarySearchFunc(d.names, t.Name, byName)
	d.names = slices.Delete(d.names, at, at+1)
	at, _ = slices.BinarySearchFunc(d.ids, t.ID, byID)
	d.ids = slices.Delete(d.ids, at, at+1)
	at, _ = slices.BinarySearchFunc(d.deleted, t.ID, byID)
	d.deleted = slices.Insert(d.deleted, at, t)
	for _, p := range t.Partitions {
		if d.hosted[p.Dir]--; d.hosted[p.Dir] == 0 {
			delete(d.hosted, p.Dir)
		}
	}
}

func (d *draft) forgetTopic(t *Topic) {
	at, _ := slices.BinarySearchFunc(d.deleted, t.ID, byID)
	d.deleted = slices.Delete(d.deleted, at, at+1)
	d.partitions -= len(t.Partitions)
}

func (d *draft) remember(r request) {
	if r.id == (wire.UUID{}) {
		return
	}
	if len(d.requests) == MaxRequests {
		d.requests = slices.Delete(d.requests, 0, 1)
	}
	d.requests = append(d.requests, r)
}
