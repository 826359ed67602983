package coord

import (
	"fmt"
	"math"
	"slices"

	"github.com/teralog/teralog/storage"
	"github.com/teralog/teralog/wire"
)

// A record is one change of the metadata. Records are all that is ever stored
// of a decision: replaying them in order is the only way state changes.
type record interface {
	kind() recordKind
	appendTo(dst []byte) []byte
	// replay applies the change. It fails only if the record does not follow
	// from the state, which no record of ours does.
	replay(d *draft) error
}

// A recordKind numbers a form of record. Numbers never change their meaning; a
// changed form gets a new number.
type recordKind uint8

const (
	kindTopicCreated       recordKind = 1
	kindTopicDeleted       recordKind = 2
	kindTopicsForgotten    recordKind = 3
	kindEpochsBumped       recordKind = 4
	kindProducersAllocated recordKind = 5
)

type (
	// topicCreated adds a topic with all it consists of.
	topicCreated struct{ topic *Topic }

	// topicDeleted moves a topic to the deleted ones, where its id stays known.
	topicDeleted struct{ id wire.TopicID }

	// topicsForgotten drops deleted topics: no directory bears their ids.
	topicsForgotten struct{ ids []wire.TopicID }

	// epochsBumped gives each partition of a data directory the next leader
	// epoch: its machine crashed, so offsets readers saw may name other records
	// now, and the epoch tells them.
	epochsBumped struct{ dir wire.UUID }

	// producersAllocated hands out the ids first to first+count-1. No later
	// record names them, so what of them was not used is never used.
	producersAllocated struct {
		first wire.ProducerID
		count int64
	}
)

func (topicCreated) kind() recordKind       { return kindTopicCreated }
func (topicDeleted) kind() recordKind       { return kindTopicDeleted }
func (topicsForgotten) kind() recordKind    { return kindTopicsForgotten }
func (epochsBumped) kind() recordKind       { return kindEpochsBumped }
func (producersAllocated) kind() recordKind { return kindProducersAllocated }

func (r topicCreated) appendTo(dst []byte) []byte { return appendTopic(dst, r.topic) }
func (r topicDeleted) appendTo(dst []byte) []byte { return wire.Append64(dst, r.id) }

func (r topicsForgotten) appendTo(dst []byte) []byte {
	dst = wire.AppendCount(dst, len(r.ids))
	for _, id := range r.ids {
		dst = wire.Append64(dst, id)
	}
	return dst
}

func (r epochsBumped) appendTo(dst []byte) []byte { return append(dst, r.dir[:]...) }

func (r producersAllocated) appendTo(dst []byte) []byte {
	return wire.Append64(wire.Append64(dst, r.first), r.count)
}

// appendRecord appends
//
//	| kind u8 | length uvarint | body |
func appendRecord(dst []byte, r record) []byte {
	return wire.AppendBytes(append(dst, byte(r.kind())), r.appendTo(nil))
}

func readRecord(r *wire.Reader) (record, error) {
	kind, body := recordKind(r.U8()), wire.NewReader(r.Bytes())
	if r.Err() != nil {
		return nil, r.Err()
	}
	var rec record
	var err error
	switch kind {
	case kindTopicCreated:
		var t *Topic
		t, err = readTopic(body)
		rec = topicCreated{t}
	case kindTopicDeleted:
		rec = topicDeleted{wire.TopicID(body.U64())}
	case kindTopicsForgotten:
		ids := make([]wire.TopicID, body.Count(8))
		for i := range ids {
			ids[i] = wire.TopicID(body.U64())
		}
		rec = topicsForgotten{ids}
	case kindEpochsBumped:
		rec = epochsBumped{body.UUID()}
	case kindProducersAllocated:
		rec = producersAllocated{wire.ProducerID(body.I64()), body.I64()}
	default:
		return nil, fmt.Errorf("record of kind %d: %w", kind, storage.ErrNewer)
	}
	if err == nil {
		err = body.Finish()
	}
	return rec, err
}

// appendTopic appends
//
//	| name | id u64 | created i64 | settings: count, key, value … |
//	| directories: count, UUID … | partitions: count, leader i32, epoch i32, index into the directories uvarint … |
//
// It takes at least leastTopic bytes.
func appendTopic(dst []byte, t *Topic) []byte {
	dst = wire.AppendString(dst, t.Name)
	dst = wire.Append64(dst, t.ID)
	dst = wire.Append64(dst, t.Created)
	dst = wire.AppendCount(dst, len(t.Settings))
	for _, s := range t.Settings {
		dst = wire.AppendString(wire.AppendString(dst, s.Key), s.Value)
	}
	var dirs []wire.UUID
	places := wire.AppendCount(nil, len(t.Partitions))
	for _, p := range t.Partitions {
		at := slices.Index(dirs, p.Dir)
		if at < 0 {
			at = len(dirs)
			dirs = append(dirs, p.Dir)
		}
		places = wire.Append32(wire.Append32(places, p.Leader), p.Epoch)
		places = wire.AppendUvarint(places, uint64(at))
	}
	dst = wire.AppendCount(dst, len(dirs))
	for _, d := range dirs {
		dst = append(dst, d[:]...)
	}
	return append(dst, places...)
}

// leastTopic is the size in bytes of a topic with a name of one letter, one
// partition and no settings.
const leastTopic = 2 + 8 + 8 + 1 + 1 + 16 + 1 + 9

func readTopic(r *wire.Reader) (*Topic, error) {
	t := &Topic{Name: r.String(), ID: wire.TopicID(r.U64()), Created: r.I64()}
	for range r.Count(2) {
		t.Settings = append(t.Settings, wire.Setting{Key: r.String(), Value: r.String()})
	}
	dirs := make([]wire.UUID, r.Count(16))
	for i := range dirs {
		dirs[i] = r.UUID()
	}
	t.Partitions = make([]PartitionPlace, r.Count(9))
	for i := range t.Partitions {
		p := PartitionPlace{Leader: wire.NodeID(r.I32()), Epoch: wire.Epoch(r.I32())}
		if at := r.Uvarint(); at < uint64(len(dirs)) {
			p.Dir = dirs[at]
		} else {
			r.Failf("directory %d of %d", at, len(dirs))
		}
		if p.Epoch < 0 {
			r.Failf("leader epoch %d", p.Epoch)
		}
		t.Partitions[i] = p
	}
	if r.Err() == nil && (!wire.ValidName(t.Name) || !userTopic(t.ID) || len(t.Partitions) == 0) {
		r.Failf("topic %.40q with id %d and %d partitions", t.Name, t.ID, len(t.Partitions))
	}
	if r.Err() != nil {
		return nil, r.Err()
	}
	var err error
	if t.Config, t.Settings, err = readSettings(t.Settings); err != nil {
		return nil, fmt.Errorf("topic %s: %v: %w", t.Name, err, storage.ErrNewer)
	}
	return t, nil
}

// userTopic reports whether a topic that users create may have the id.
func userTopic(id wire.TopicID) bool { return wire.FirstUserTopic <= id && id <= math.MaxInt64 }

func (r topicCreated) replay(d *draft) error {
	t := r.topic
	if d.Topic(t.Name) != nil || d.TopicByID(t.ID) != nil || d.Deleted(t.ID) {
		return fmt.Errorf("%w: topic %s with id %d is created, but the name or the id is taken", wire.ErrCorrupt, t.Name, t.ID)
	}
	d.addTopic(t)
	return nil
}

func (r topicDeleted) replay(d *draft) error {
	t := d.TopicByID(r.id)
	if t == nil {
		return fmt.Errorf("%w: topic id %d is deleted, but there is none", wire.ErrCorrupt, r.id)
	}
	d.deleteTopic(t)
	return nil
}

func (r topicsForgotten) replay(d *draft) error {
	for _, id := range r.ids {
		t := find(d.deleted, id)
		if t == nil {
			return fmt.Errorf("%w: topic id %d is forgotten, but was not deleted", wire.ErrCorrupt, id)
		}
		d.forgetTopic(t)
	}
	return nil
}

func (r epochsBumped) replay(d *draft) error {
	for at, t := range d.ids {
		if !slices.ContainsFunc(t.Partitions, func(p PartitionPlace) bool { return p.Dir == r.dir }) {
			continue
		}
		bumped := *t
		bumped.Partitions = slices.Clone(t.Partitions)
		for i := range bumped.Partitions {
			p := &bumped.Partitions[i]
			if p.Dir != r.dir {
				continue
			}
			if p.Epoch == math.MaxInt32 {
				return fmt.Errorf("%w: partition %d of topic %s has no leader epoch left", wire.ErrCorrupt, i, t.Name)
			}
			p.Epoch++
		}
		d.ids[at] = &bumped
		named, _ := slices.BinarySearchFunc(d.names, t.Name, byName)
		d.names[named] = &bumped
	}
	return nil
}

func (r producersAllocated) replay(d *draft) error {
	if r.first != d.nextProducer || r.count < 1 || r.count > math.MaxInt64-int64(r.first) {
		return fmt.Errorf("%w: producer ids %d and %d after it are allocated, but the next is %d", wire.ErrCorrupt, r.first, r.count, d.nextProducer)
	}
	d.nextProducer += wire.ProducerID(r.count)
	return nil
}
