package wire

import (
	"encoding/binary"
	"fmt"
)

// EmptyBatch returns a batch without records that covers n offsets, at least 1.
// It stands where batches went as a whole, so that offsets have no gap.
func EmptyBatch(id PartitionID, n int32) Batch {
	if n < 1 {
		panic(fmt.Sprintf("BUG: empty batch over %d offsets", n))
	}
	b := make(Batch, HeaderSize)
	NewBuilder(BuilderOptions{Topic: id.Topic, Partition: id.Partition}).writeHeader(b, None, 0)
	binary.LittleEndian.PutUint32(b[atLastOffsetDelta:], uint32(n-1))
	binary.LittleEndian.PutUint32(b[atRecordCount:], 0)
	b.sealHeader()
	return b
}
