package client

import (
	"context"
	"crypto/rand"
	"fmt"
	"time"

	"github.com/teralog/teralog/wire"
)

// TopicSpec says what a new topic shall be.
type TopicSpec struct {
	Name        string
	Partitions  int32          // at least 1; 0 is 1
	Replication int16          // 0: the cluster's default
	Settings    []wire.Setting // what is not named takes the cluster's default

	// ValidateOnly has everything checked and nothing made.
	ValidateOnly bool
}

// newRequest identifies an admin request, so that its repetition after a lost
// answer is recognised and gets the first one's answer.
func newRequest() (u wire.UUID) {
	rand.Read(u[:]) // never fails
	return u
}

// perPartition is how much longer than other calls one that makes a topic may
// take for each of its partitions, whose files have to be durable.
const perPartition = 10 * time.Millisecond

// CreateTopic makes a topic and returns its id. Errors: INVALID_NAME,
// INVALID_SETTING, TOPIC_EXISTS. After one that wraps ErrUnanswered there may be
// such a topic, or may be soon: ListTopics tells.
func (c *Client) CreateTopic(ctx context.Context, s TopicSpec) (wire.TopicID, error) {
	ctx, cancel := c.boundedBy(ctx, c.o.RequestTimeout+time.Duration(max(s.Partitions, 1))*perPartition)
	defer cancel()
	req := wire.CreateTopicRequest{Request: newRequest(), Name: s.Name, Partitions: max(s.Partitions, 1),
		Replication: s.Replication, Settings: s.Settings, ValidateOnly: s.ValidateOnly}
	var resp wire.CreateTopicResponse
	if err := c.meta.askController(ctx, &req, &resp); err != nil {
		return 0, fmt.Errorf("create topic %q: %w", s.Name, err)
	}
	return resp.ID, nil
}

// DeleteTopic deletes the topic with this id; another topic of the same name
// made meanwhile is safe. An id that is not, or no longer, known is
// TOPIC_RECREATED or UNKNOWN_TOPIC. After an error that wraps ErrUnanswered it may
// be deleted, or be soon.
func (c *Client) DeleteTopic(ctx context.Context, id wire.TopicID) error {
	ctx, cancel := c.bounded(ctx)
	defer cancel()
	req := wire.DeleteTopicRequest{Request: newRequest(), ID: id}
	var resp wire.DeleteTopicResponse
	if err := c.meta.askController(ctx, &req, &resp); err != nil {
		return fmt.Errorf("delete topic with id %d: %w", id, err)
	}
	return nil
}

// DescribeTopics describes the named topics, in the order given, or all
// topics if none is named. A topic that does not exist comes back with Code
// UNKNOWN_TOPIC.
func (c *Client) DescribeTopics(ctx context.Context, names ...string) ([]wire.TopicDescription, error) {
	ctx, cancel := c.bounded(ctx)
	defer cancel()
	req := wire.DescribeTopicsRequest{Topics: names}
	var resp wire.DescribeTopicsResponse
	if err := c.meta.ask(ctx, &req, &resp); err != nil {
		return nil, fmt.Errorf("describe topics: %w", err)
	}
	return resp.Topics, nil
}

// ListTopics lists all topics with ids, partitions and leaders, sorted by
// name.
func (c *Client) ListTopics(ctx context.Context) ([]wire.TopicMeta, error) {
	ctx, cancel := c.bounded(ctx)
	defer cancel()
	req := wire.MetadataRequest{All: true}
	var resp wire.MetadataResponse
	if err := c.meta.ask(ctx, &req, &resp); err != nil {
		return nil, fmt.Errorf("list topics: %w", err)
	}
	return resp.Topics, nil
}

// Recovery returns the lines of the recovery report of the first server that
// answers: what its last start found on its disks.
func (c *Client) Recovery(ctx context.Context) ([]string, error) {
	ctx, cancel := c.bounded(ctx)
	defer cancel()
	var resp wire.RecoveryResponse
	if err := c.meta.ask(ctx, &wire.RecoveryRequest{}, &resp); err != nil {
		return nil, fmt.Errorf("recovery report: %w", err)
	}
	return resp.Lines, nil
}

// Partitions returns how many partitions a topic has.
func (c *Client) Partitions(ctx context.Context, name string) (int32, error) {
	ctx, cancel := c.bounded(ctx)
	defer cancel()
	t, err := c.meta.topic(ctx, name, false)
	if err != nil {
		return 0, err
	}
	return int32(len(t.parts)), nil
}

// Found is what a look-up found in one partition.
type Found struct {
	Partition int32
	Offset    wire.Offset // -1: nothing there yet
	Time      int64       // of the record found, by the clock asked for, ms; else -1
	Epoch     wire.Epoch  // leader epoch of what was found, -1 if none
}

// Offset looks up one position of a partition. A position by time that no
// visible record has reached, or Greatest of an empty partition, gives offset
// -1.
func (c *Client) Offset(ctx context.Context, name string, partition int32, at Position) (Found, error) {
	ctx, cancel := c.bounded(ctx)
	defer cancel()
	found, _, err := c.lookup(ctx, name, partition, at, 0)
	return found, err
}

// Offsets looks up one position in each partition of a topic, in order of
// partitions.
func (c *Client) Offsets(ctx context.Context, name string, at Position) ([]Found, error) {
	ctx, cancel := c.bounded(ctx)
	defer cancel()
	t, err := c.meta.topic(ctx, name, false)
	if err != nil {
		return nil, err
	}
	all := make([]Found, len(t.parts))
	for p := range all {
		if all[p], _, err = c.lookup(ctx, name, int32(p), at, 0); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// lookup finds a position at the leader of a partition and says of which
// topic, by id, that holds. With want not 0 the topic must have that id.
func (c *Client) lookup(ctx context.Context, name string, partition int32, at Position, want wire.TopicID) (f Found, id wire.TopicID, err error) {
	err = c.onLeader(ctx, name, partition, want, func(conn *wire.Conn, t *topic) error {
		id = t.id
		f = Found{Partition: partition, Offset: wire.Offset(at.n), Time: -1, Epoch: wire.NoEpoch}
		if at.kind == exactly {
			return nil
		}
		req := wire.ListOffsetsRequest{Queries: []wire.OffsetQuery{at.query(t.id, partition, t.parts[partition].epoch)}}
		var resp wire.ListOffsetsResponse
		if err := conn.Do(ctx, &req, &resp); err != nil {
			return err
		}
		if len(resp.Results) != 1 {
			return fmt.Errorf("%d answers to one query: %w", len(resp.Results), wire.ErrCorrupt)
		}
		r := resp.Results[0]
		if r.Code != wire.CodeOK {
			return r.Code
		}
		f.Offset, f.Time, f.Epoch = r.Offset, r.Time, r.Epoch
		return nil
	})
	if err != nil {
		return Found{}, 0, fmt.Errorf("look up %s of %s/%d: %w", at, name, partition, err)
	}
	return f, id, nil
}

// Trim makes the records of a partition below before unreadable and lets the
// broker free their space. It returns the partition's start afterwards, which
// is higher than asked for if it was so already. Before may not pass the end
// of what consumers can see: OUT_OF_RANGE.
func (c *Client) Trim(ctx context.Context, name string, partition int32, before wire.Offset) (start wire.Offset, err error) {
	ctx, cancel := c.bounded(ctx)
	defer cancel()
	var pinned wire.TopicID // a repetition must not hit another topic of that name
	err = c.onLeader(ctx, name, partition, 0, func(conn *wire.Conn, t *topic) error {
		if pinned != 0 && pinned != t.id {
			return wire.Errorf(wire.CodeTopicRecreated, "topic %q is another one now", name)
		}
		pinned = t.id
		req := wire.TrimRequest{Topic: t.id, Partition: partition, Before: before}
		var resp wire.TrimResponse
		if err := conn.Do(ctx, &req, &resp); err != nil {
			return err
		}
		start = resp.Start
		return nil
	})
	if err != nil {
		return 0, fmt.Errorf("trim %s/%d before %d: %w", name, partition, before, err)
	}
	return start, nil
}

// onLeader runs f with a connection to the leader of a partition, again after
// fresh metadata when f learns that it talked to the wrong one. If the topic
// turns out to be another one than cached, that is found out first, unless the
// caller wants the one with this id.
func (c *Client) onLeader(ctx context.Context, name string, partition int32, want wire.TopicID, f func(*wire.Conn, *topic) error) error {
	fresh := false
	return c.retry(ctx, func(ctx context.Context) error {
		t, err := c.meta.topic(ctx, name, fresh)
		switch {
		case err != nil && wire.CodeOf(err) == wire.CodeUnknownTopic:
			return final{err} // just asked: waiting would not bring it about
		case err != nil:
			return err
		case want != 0 && t.id != want:
			return wire.Errorf(wire.CodeTopicRecreated, "topic %q had id %d, now %d", name, want, t.id)
		case partition < 0 || int(partition) >= len(t.parts):
			return final{wire.Errorf(wire.CodeUnknownPartition, "topic %q has partitions 0 to %d", name, len(t.parts)-1)}
		}
		stale := !fresh
		fresh = true
		addr, ok := c.meta.addr(t.parts[partition].leader)
		if !ok {
			return wire.Errorf(wire.CodeOffline, "%s/%d has no leader now", name, partition)
		}
		conn, err := c.conns.get(ctx, addr)
		if err == nil {
			err = f(conn, t)
		}
		if stale && want == 0 && wire.CodeOf(err) == wire.CodeTopicRecreated {
			return wire.CodeUnknownTopic // ask for its new id
		}
		return err
	})
}
