package wire

import (
	"encoding/hex"
	"fmt"
	"strconv"
)

// An Offset numbers a record within its partition, from 0. As a bound of a
// range it is exclusive unless a comment says otherwise.
type Offset int64

// An Epoch counts the leaders of a partition, from 0. NoEpoch stands where
// none is known.
type Epoch int32

// NoEpoch is the leader epoch of a batch that no leader has stamped yet.
const NoEpoch Epoch = -1

// A NodeID numbers a broker, from 0. NoNode stands for none: a partition
// without leader, a fetch by a consumer.
type NodeID int32

// NoNode is the id of no broker.
const NoNode NodeID = -1

// A ProducerID names one idempotent producer. Ids are positive and are never
// given twice; NoProducer marks a batch that is not idempotent.
type ProducerID int64

// NoProducer is the producer id of a batch without idempotence.
const NoProducer ProducerID = -1

// A TopicID numbers a topic. Names may be used again after a delete, ids never.
type TopicID uint64

// The reserved topic ids: 0 is no topic, 1 the metadata log, ids below
// FirstUserTopic are internal.
const (
	MetadataTopic  TopicID = 1
	FirstUserTopic TopicID = 1024
)

// A PartitionID names one partition of one topic.
type PartitionID struct {
	Topic     TopicID
	Partition int32
}

// String returns "topicID-partition" in decimal.
func (p PartitionID) String() string {
	return strconv.FormatUint(uint64(p.Topic), 10) + "-" + strconv.FormatInt(int64(p.Partition), 10)
}

// MaxName is the greatest length of a topic name in bytes, inclusive.
const MaxName = 249

// ValidName reports whether s may name a topic: 1 to MaxName bytes of
// A-Z a-z 0-9 . _ - and neither "." nor "..", since topic names are also
// directory names.
func ValidName(s string) bool {
	if len(s) == 0 || len(s) > MaxName || s == "." || s == ".." {
		return false
	}
	for i := range len(s) {
		c := s[i]
		switch {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9':
		case c == '.', c == '_', c == '-':
		default:
			return false
		}
	}
	return true
}

// A UUID is 16 random bytes: a cluster, a data directory, a request.
type UUID [16]byte

// String returns the usual form in lower case,
// "xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx".
func (u UUID) String() string {
	b := make([]byte, 0, 36)
	for i, part := range [][]byte{u[0:4], u[4:6], u[6:8], u[8:10], u[10:16]} {
		if i > 0 {
			b = append(b, '-')
		}
		b = hex.AppendEncode(b, part)
	}
	return string(b)
}

// ParseUUID reads what String returns and nothing else.
func ParseUUID(s string) (UUID, error) {
	var u UUID
	if len(s) != 36 {
		return u, fmt.Errorf("uuid %.40q: %d characters, want 36", s, len(s))
	}
	digits := s[0:8] + s[9:13] + s[14:18] + s[19:23] + s[24:36]
	if _, err := hex.Decode(u[:], []byte(digits)); err != nil {
		return UUID{}, fmt.Errorf("uuid %q: %w", s, err)
	}
	if u.String() != s {
		return UUID{}, fmt.Errorf("uuid %q: not in the form %s", s, u)
	}
	return u, nil
}
