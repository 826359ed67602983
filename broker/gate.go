package broker

import (
	"cmp"
	"time"

	"github.com/teralog/teralog/coord"
	"github.com/teralog/teralog/mem"
	"github.com/teralog/teralog/repl"
	"github.com/teralog/teralog/wire"
)

// The gate is where a request is refused before it costs anything further, and
// before every queue. In the order in which a request meets them:
//
//	server     connections, their rate, those without a Hello; memory for the frame
//	admit      the quotas of the connection and of its tenant
//	check      for each batch: the quota of its topic, the mark of its disk, a
//	           disk that is too slow, a mailbox that is nearly full
//	find       for each partition read: the quota of its topic
//	create     partitions a second, the mark of the metadata's disk
//
// Each refusal is definite, says which limit it met and when to ask again, and
// is counted and told by refusals.go.

// What the gate answers when the broker has as much to do as it may.
var (
	errMemory  error = &wire.Error{Code: wire.CodeBusy, Message: "no memory for the request", RetryAfter: 100 * time.Millisecond, Limit: wire.LimitMemory}
	errBusy    error = &wire.Error{Code: wire.CodeBusy, Message: "too many look-ups wait", RetryAfter: 100 * time.Millisecond, Limit: wire.LimitWork}
	errChanges error = &wire.Error{Code: wire.CodeBusy, Message: "too many topics are being made or deleted", RetryAfter: 100 * time.Millisecond, Limit: wire.LimitMetadata}
	errParked  error = &wire.Error{Code: wire.CodeBusy, Message: "too many fetches wait for records", RetryAfter: time.Second, Limit: wire.LimitParked}
)

// check says whether a batch may go to its partition, and which that is. The
// error is definite.
func (b *Broker) check(image *coord.Image, batch wire.Batch, now mem.Now) (*repl.Partition, error) {
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
	p, err := b.leader(id)
	if err != nil {
		return nil, err
	}
	q := quotaOf(p)
	if err := q.wait(now, true); err != nil {
		return nil, err
	}
	if err := b.diskRefusal(p.Dir(), refusing); err != nil {
		return nil, err
	}
	if err := p.Admit(now); err != nil {
		return nil, err
	}
	q.take(now, int64(len(batch)), 1)
	return p, nil
}

// admitCreate says whether so many partitions may be made.
func (b *Broker) admitCreate(partitions int32, dry bool) error {
	if err := b.protectedRefusal(); err != nil || b.creations == nil || dry {
		return err
	}
	now := b.time()
	if wait := b.creations.Wait(now); wait > 0 {
		return overQuota(wire.LimitPartitionsCreated, wait, "all clients together may make %d partitions a second", b.config.CreateRate)
	}
	b.creations.Take(now, min(max(int64(partitions), 1), coord.MaxTopicPartitions))
	return nil
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
// though it may be out of service otherwise: its Bound says up to where. at is for
// what has to wait for its disk.
func (b *Broker) reader(id wire.PartitionID) (v *repl.View, at *lane, err error) {
	p, err := b.set.Leader(id)
	if err != nil {
		return nil, nil, b.hosts.why(id, err)
	}
	v = p.View()
	if v.Err != nil && v.Bound() <= v.Start {
		return nil, nil, v.Err
	}
	return v, b.lanes[p.Dir()], nil
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
