package bench

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"math/bits"
)

// The probes' batches: enough of a batch that a receiver can tell where it ends
// and whether it is whole, and of records that a reader has to take them apart.
//
//	| length u32 | crc u32 | records … |        little-endian
//	     |            \_ CRC-32C of the records
//	     \_ of the whole batch, these 8 bytes included
//
// A record is coded as in Teralog's batches, by varints.
const batchHeader = 8

// errBatch says that bytes are no whole batch.
var errBatch = errors.New("damaged batch")

// maxBatch is the greatest length of a batch that a receiver takes, in bytes.
const maxBatch = 16 << 20

// buildBatch fills p from its front with as many records as fit, at least one,
// each with the given value, and returns the batch: a prefix of p.
func buildBatch(p, value []byte) []byte {
	at := batchHeader
	fixed := 4 + varintLen(len(value)) + len(value) // attributes, time, key and number of headers take a byte each
	for n := 0; ; n++ {
		body := fixed + varintLen(n)
		if n > 0 && at+varintLen(body)+body > len(p) {
			break
		}
		at = putVarint(p, at, body)
		p[at], p[at+1] = 0, 0 // attributes; time as the first record's
		at = putVarint(p, at+2, n)
		p[at] = 1 // no key: -1
		at = putVarint(p, at+1, len(value))
		at += copy(p[at:], value)
		p[at] = 0 // no headers
		at++
	}
	binary.LittleEndian.PutUint32(p, uint32(at))
	binary.LittleEndian.PutUint32(p[4:], crc32.Checksum(p[batchHeader:at], castagnoli))
	return p[:at]
}

// varintLen returns the length of v ≥ 0 as a zigzag varint.
func varintLen(v int) int {
	if v < 64 {
		return 1
	}
	return (bits.Len(uint(v)<<1) + 6) / 7
}

// putVarint codes v ≥ 0 at p[at:] and returns where the next number goes.
func putVarint(p []byte, at, v int) int {
	if v < 64 {
		p[at] = byte(v << 1)
		return at + 1
	}
	return at + binary.PutUvarint(p[at:], uint64(v)<<1)
}

// batchLen returns the length of the batch at the front of p; 0 if p is too
// short to tell.
func batchLen(p []byte) (int, error) {
	if len(p) < batchHeader {
		return 0, nil
	}
	n := binary.LittleEndian.Uint32(p)
	if n < batchHeader || n > maxBatch {
		return 0, fmt.Errorf("%w: length %d, allowed are %d to %d", errBatch, n, batchHeader, maxBatch)
	}
	return int(n), nil
}

// A checker checks the batches of a stream as they arrive, each byte once and
// soon, while the cache still has it.
type checker struct {
	batches int64
	sum     uint64 // of the checksums of the whole batches
	done    int    // bytes of the batch under way that crc covers, header included
	crc     uint32
}

// whole returns how many bytes at the front of p are whole batches, all of them
// checked. p begins with the batch under way; what is left of it must be at the
// front of p next time. need is the length of the batch behind them, 0 if
// p does not tell.
func (c *checker) whole(p []byte) (n, need int, err error) {
	for {
		rest := p[n:]
		need, err := batchLen(rest)
		if need == 0 || err != nil {
			return n, 0, err
		}
		upTo := min(need, len(rest))
		from := max(c.done, batchHeader)
		c.crc = crc32.Update(c.crc, castagnoli, rest[from:upTo])
		c.done = upTo
		if upTo < need {
			return n, need, nil
		}
		if want := binary.LittleEndian.Uint32(rest[4:]); c.crc != want {
			return n, 0, fmt.Errorf("%w: number %d has CRC %08x, its header says %08x", errBatch, c.batches, c.crc, want)
		}
		c.batches++
		c.sum += uint64(c.crc)
		c.done, c.crc = 0, 0
		n += need
	}
}

// walk goes from record to record of a checked batch, by their lengths, and
// returns how many there are. No reader of records can do less.
func walk(batch []byte) (records int, err error) {
	for at := batchHeader; at < len(batch); records++ {
		body, n := binary.Varint(batch[at:])
		if n <= 0 || body < 6 || body > int64(len(batch)-at-n) {
			return records, fmt.Errorf("%w: record %d has length %d, %d bytes are left", errBatch, records, body, len(batch)-at-n)
		}
		at += n + int(body)
	}
	return records, nil
}
