package repl

import "sync/atomic"

// Stats are counts of one partition since it was hosted, and what waits in it.
type Stats struct {
	Batches int64 // appended
	Bytes   int64 // of them
	Writes  int64 // calls that appended them: Batches/Writes says how well they are merged
	Flushes int64 // fdatasyncs that landed

	Queued      int   // tasks in the mailbox
	QueuedBytes int64 // of the batches in it

	Withheld int64 // bytes that are kept though they seem old enough, since the clock jumped
}

// counters are what Stats takes from the holder of the turn.
type counters struct {
	batches, bytes, writes, flushes, withheld atomic.Int64
}

// Stats returns the partition's counts. Any goroutine; the fields are read one
// after the other.
func (p *Partition) Stats() Stats {
	c := &p.leader.count
	return Stats{
		Batches: c.batches.Load(), Bytes: c.bytes.Load(), Writes: c.writes.Load(),
		Flushes: c.flushes.Load(),
		Queued:  p.inbox.Len(), QueuedBytes: p.queued.Used(),
		Withheld: c.withheld.Load(),
	}
}
