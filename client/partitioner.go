package client

import (
	"encoding/binary"
	"math/rand/v2"
)

// murmur2 is the 32-bit hash by which Kafka's default partitioner spreads
// keys. Producers of both kinds that share a topic's keys agree on partitions
// only while this stays as it is, to the bit.
func murmur2(key []byte) uint32 {
	const (
		seed = 0x9747b28c
		m    = 0x5bd1e995
		r    = 24
	)
	h := seed ^ uint32(len(key))
	for ; len(key) >= 4; key = key[4:] {
		k := binary.LittleEndian.Uint32(key) * m
		k ^= k >> r
		h = h*m ^ k*m
	}
	switch len(key) {
	case 3:
		h ^= uint32(key[2]) << 16
		fallthrough
	case 2:
		h ^= uint32(key[1]) << 8
		fallthrough
	case 1:
		h = (h ^ uint32(key[0])) * m
	}
	h = (h ^ h>>13) * m
	return h ^ h>>15
}

// PartitionOf returns the partition, 0 to n-1, that a record with this
// non-null key goes to in a topic of n partitions, n at least 1. An empty key
// is a key like any other.
func PartitionOf(key []byte, n int32) int32 {
	return int32(murmur2(key)&0x7fffffff) % n
}

// sticky chooses the partition of records without key: one partition until a
// batch there is under way, then the next, so that batches fill instead of
// every partition getting a record in turn. The first choice is random, else
// all producers would begin with the same partition.
type sticky struct {
	at     int32
	begun  bool
	filled int // bytes of complete batches there since it moved
}

func (s *sticky) partition(n int32) int32 {
	if !s.begun {
		s.at, s.begun = rand.Int32N(n), true
	}
	return s.at % n
}

// is reports whether partition p is the one at hand.
func (s *sticky) is(p, n int32) bool { return s.begun && s.at%n == p }

// took says that a batch of so many bytes of partition p is complete.
func (s *sticky) took(p, n int32, bytes int) {
	if s.is(p, n) {
		s.filled += bytes
	}
}

// moved says that partition p has had its share, if it is the one at hand.
func (s *sticky) moved(p, n int32) {
	if s.is(p, n) {
		s.at, s.filled = (p+1)%n, 0
	}
}
