package repl

import (
	"fmt"
	"slices"

	"github.com/teralog/teralog/wire"
)

// offsets are the watermarks of one partition. All are exclusive upper bounds
// but start, the first offset kept.
type offsets struct {
	start     wire.Offset
	stable    wire.Offset // below it no transaction is open (elsewhere: LSO)
	committed wire.Offset // below it every replica that counts has a copy (HW)
	flushed   wire.Offset // below it this node's disk has everything
	end       wire.Offset // of the log here (LEO)
}

// check panics if the marks are out of order. It is called wherever one moves.
func (o offsets) check() {
	if o.start > o.stable || o.stable > o.committed || o.committed > o.end || o.flushed > o.end {
		panic(fmt.Sprintf("BUG: want start %d ≤ stable %d ≤ committed %d ≤ end %d and flushed %d ≤ end",
			o.start, o.stable, o.committed, o.end, o.flushed))
	}
}

// after returns the marks that follow o once the log reaches from start to
// end, flushed is durable and the replicas in sync count for so much each.
//
// No transaction is ever open yet, so whatever is committed is stable.
func (o offsets) after(start, flushed, end wire.Offset, counted ...wire.Offset) offsets {
	next := offsets{start: start, flushed: flushed, end: end}
	next.committed = committed(o.committed, counted)
	next.stable = next.committed
	next.check()
	return next
}

// committed returns the offset below which every in-sync replica counts. It
// never falls: a replica that lost its tail may rejoin the set only after it
// has caught up to the old value again.
func committed(old wire.Offset, counted []wire.Offset) wire.Offset {
	if len(counted) == 0 {
		return old
	}
	return max(old, slices.Min(counted))
}
