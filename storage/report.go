package storage

import (
	"fmt"
	"strings"

	"github.com/teralog/teralog/wire"
)

// A RecoveryReport says what opening a log found and did.
type RecoveryReport struct {
	ID    wire.PartitionID
	Topic string
	Clean bool // opened without a scan

	Start, End wire.Offset
	Point      wire.Offset // the recovery point: below it nothing was scanned
	Committed  wire.Offset // what recovery-points says, at most End

	Scanned    int64       // bytes above the recovery point found good
	Cut        int64       // bytes cut off above it
	CutAt      wire.Offset // the offset due where they stood
	CutBatches int         // good batches among them
	Zeros      int64       // zero bytes cut off behind the last batch
	Reason     string      // why bytes were cut
	Kept       []string    // files in quarantine that hold them; none: dropped, for want of room

	Lost    wire.Offset    // the recovery point vouched for offsets up to here, the files end before; 0: no
	Damaged []CorruptRange // not cut, not served
	Rebuilt []string       // files made again from the log
}

// Touched reports whether there is anything an operator should read.
func (r RecoveryReport) Touched() bool {
	return !r.Clean || len(r.Damaged) > 0 || len(r.Rebuilt) > 0 || r.Lost > 0
}

// String returns the report as one line.
func (r RecoveryReport) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s-%04d (%v): offsets %d to %d", r.Topic, r.ID.Partition, r.ID, r.Start, r.End)
	if r.Clean {
		b.WriteString(", clean")
	} else {
		fmt.Fprintf(&b, ", recovery point %d, %d bytes scanned and kept", r.Point, r.Scanned)
	}
	if r.Zeros > 0 {
		fmt.Fprintf(&b, "; %d zero bytes behind the end removed", r.Zeros)
	}
	if r.Cut > 0 {
		fmt.Fprintf(&b, "; cut %d bytes at offset %d (%s; %d good batches among them), ", r.Cut, r.CutAt, r.Reason, r.CutBatches)
		if len(r.Kept) == 0 {
			b.WriteString("dropped for want of room")
		} else {
			fmt.Fprintf(&b, "kept in %s", strings.Join(r.Kept, ", "))
		}
	}
	if r.Lost > 0 {
		fmt.Fprintf(&b, "; LOST: offsets below %d were durable and are not there", r.Lost)
	}
	for _, d := range r.Damaged {
		fmt.Fprintf(&b, "; DAMAGED: offsets %d to %d", d.From, d.To)
	}
	if len(r.Rebuilt) > 0 {
		fmt.Fprintf(&b, "; rebuilt %s", strings.Join(r.Rebuilt, ", "))
	}
	return b.String()
}
