package broker

import (
	"cmp"
	"time"

	"github.com/teralog/teralog/coord"
	"github.com/teralog/teralog/repl"
	"github.com/teralog/teralog/wire"
)

// The gate is where a request is refused before it costs anything further.
// Memory is admitted earlier still: the server takes a frame's length from the
// connection's and the process's budgets before it reads it.

// What the gate answers when the broker has as much to do as it may.
var (
	errMemory error = &wire.Error{Code: wire.CodeBusy, Message: "no memory for the request", RetryAfter: 100 * time.Millisecond}
	errBusy   error = &wire.Error{Code: wire.CodeBusy, Message: "too many look-ups wait", RetryAfter: 100 * time.Millisecond}
	errParked error = &wire.Error{Code: wire.CodeBusy, Message: "too many fetches wait for records", RetryAfter: time.Second}
)

// check says whether a batch may go to its partition, and which that is. The
// error is definite.
func (b *Broker) check(image *coord.Image, batch wire.Batch) (*repl.Partition, error) {
	id := wire.PartitionID{Topic: batch.Topic(), Partition: batch.Partition()}
	topic, err := image.Resolve(id)
	if err != nil {
		// A batch damaged on its way may name any topic.
		return nil, cmp.Or(batch.VerifyProduce(wire.BatchLimits{MaxBatch: wire.MaxBatchBytes}), err)
	}
	limits := wire.BatchLimits{MaxBatch: int(topic.Config.MaxBatchBytes), MaxRecords: wire.DefaultMaxRecords}
	if err := batch.VerifyProduce(limits); err != nil {
		return nil, err
	}
	return b.leader(id)
}

// leader returns the partition if it is led here and in service.
func (b *Broker) leader(id wire.PartitionID) (*repl.Partition, error) {
	p, err := b.set.Leader(id)
	if err != nil {
		return nil, b.hosts.why(id, err)
	}
	if err := p.View().Err; err != nil {
		return nil, err
	}
	return p, nil
}

// reader returns the view of a partition if it is led here and something in it may be read,
// though it may be out of service otherwise: its Bound says up to where.
func (b *Broker) reader(id wire.PartitionID) (*repl.View, error) {
	p, err := b.set.Leader(id)
	if err != nil {
		return nil, b.hosts.why(id, err)
	}
	v := p.View()
	if v.Err != nil && v.Bound() <= v.Start {
		return nil, v.Err
	}
	return v, nil
}

// checkEpoch compares the leader epoch a client knows with the true one.
func checkEpoch(known, ours wire.Epoch) error {
	switch {
	case known == wire.NoEpoch || known == ours:
		return nil
	case known < ours:
		return wire.Errorf(wire.CodeFencedEpoch, "the leader epoch is %d, not %d any more", ours, known)
	}
	return wire.Errorf(wire.CodeUnknownEpoch, "the leader epoch is still %d, not %d", ours, known)
}
