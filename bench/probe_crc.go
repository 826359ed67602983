package bench

import (
	"context"
	"fmt"
	"hash/crc32"
)

// probeCRC checksums bytes by pieces of 64 KiB: always the same piece if hot,
// else each of a stretch of memory far larger than the caches.
func probeCRC(ctx context.Context, hot bool, bytes int64) (Round, error) {
	t := task{Side: "crc", Batch: int(max(1, min(crcStretch, bytes)/crcPiece)) * crcPiece, Bytes: bytes}
	if hot {
		t.Batch = crcPiece
	}
	m, err := alone(ctx, t)
	return roundOf(m, measure{}), err
}

const (
	crcPiece   = 64 << 10
	crcStretch = 256 << 20
)

func checksum(t task, _ func(string)) (measure, error) {
	p := sampleValue(t.Batch)
	piece := crc32.Checksum(p[:crcPiece], castagnoli)
	w := startWatch()
	var done int64
	for at := 0; done < t.Bytes; at = (at + crcPiece) % len(p) {
		// A piece begins with the same byte as every other: 256 divides its length.
		if got := crc32.Checksum(p[at:at+crcPiece], castagnoli); got != piece {
			return measure{}, fmt.Errorf("CRC %08x of equal bytes is %08x at %d", piece, got, at)
		}
		done += crcPiece
	}
	return w.stop(done), nil
}
