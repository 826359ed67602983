package broker

import (
	"github.com/teralog/teralog/coord"
	"github.com/teralog/teralog/wire"
)

func (b *Broker) metadata(c *wire.Call) {
	var req wire.MetadataRequest
	if err := c.Decode(&req); err != nil {
		c.ReplyError(err)
		return
	}
	resp := wire.MetadataResponse{
		Nodes:      []wire.NodeAddr{{ID: b.config.Node, Addr: b.addressFor(c)}},
		Controller: b.config.Node,
	}
	b.topics(req.Topics, req.All, func(name string, t *coord.Topic) {
		m := wire.TopicMeta{Name: name, Code: wire.CodeUnknownTopic}
		if t != nil {
			m.Code, m.ID = wire.CodeOK, t.ID
			for n, place := range t.Partitions {
				m.Partitions = append(m.Partitions, wire.PartitionMeta{
					Partition: int32(n), Code: b.reachable(t.ID, n), Leader: place.Leader, Epoch: place.Epoch,
				})
			}
		}
		resp.Topics = append(resp.Topics, m)
	})
	c.Reply(&resp)
}

// describe tells everything known about topics.
func (b *Broker) describe(c *wire.Call) {
	var req wire.DescribeTopicsRequest
	if err := c.Decode(&req); err != nil {
		c.ReplyError(err)
		return
	}
	var resp wire.DescribeTopicsResponse
	b.topics(req.Topics, len(req.Topics) == 0, func(name string, t *coord.Topic) {
		d := wire.TopicDescription{Name: name, Code: wire.CodeUnknownTopic}
		if t != nil {
			d.Code, d.ID, d.Created, d.Settings = wire.CodeOK, t.ID, t.Created, t.Config.Settings()
			for n, place := range t.Partitions {
				d.Partitions = append(d.Partitions, b.describePartition(t, n, place))
			}
		}
		resp.Topics = append(resp.Topics, d)
	})
	c.Reply(&resp)
}

func (b *Broker) describePartition(t *coord.Topic, n int, place coord.PartitionPlace) wire.PartitionDescription {
	d := wire.PartitionDescription{
		Partition: int32(n), Leader: place.Leader, Epoch: place.Epoch, Code: b.condition(t.ID, n), Directory: place.Dir,
		Start: -1, Committed: -1, End: -1,
	}
	if p, err := b.set.Leader(wire.PartitionID{Topic: t.ID, Partition: int32(n)}); err == nil {
		v := p.View()
		d.Epoch, d.Start, d.Committed, d.End = v.Epoch, v.Start, v.Committed, v.End
		d.Bytes, d.GreatestTime, d.LastAppendTime = v.Log.Bytes(), v.Log.GreatestTime(), v.Log.LastAppendTime()
	}
	return d
}

// condition says whether a partition can be served now.
func (b *Broker) condition(topic wire.TopicID, n int) wire.Code {
	_, err := b.leader(wire.PartitionID{Topic: topic, Partition: int32(n)})
	return wire.CodeOf(err)
}

// reachable says whether clients can do anything with a partition: read it at
// least.
func (b *Broker) reachable(topic wire.TopicID, n int) wire.Code {
	_, _, err := b.reader(wire.PartitionID{Topic: topic, Partition: int32(n)})
	return wire.CodeOf(err)
}

// topics calls f for the named topics in that order, or for all by name; with
// nil for a name that is nobody's.
func (b *Broker) topics(names []string, all bool, f func(string, *coord.Topic)) {
	image := b.coord.Image()
	if all {
		for _, t := range image.Topics() {
			f(t.Name, t)
		}
		return
	}
	for _, name := range names {
		f(name, image.Topic(name))
	}
}

// address returns the address told to clients: who came by TLS is to come by TLS
// again.
func (b *Broker) address(encrypted bool) string {
	told, otherwise := &b.addr, b.config.Listen
	if encrypted {
		told, otherwise = &b.secure.addr, b.config.TLSListen
	}
	if addr := told.Load(); addr != nil {
		return *addr
	}
	return otherwise
}

// addressFor is address, but that of the tenant's listener for who came by one.
func (b *Broker) addressFor(c *wire.Call) string {
	if s := sessionOf(c); s != nil && s.addr != nil {
		return *s.addr
	}
	return b.address(c.Encrypted())
}

func (b *Broker) recovery(c *wire.Call) {
	var req wire.RecoveryRequest
	if err := c.Decode(&req); err != nil {
		c.ReplyError(err)
		return
	}
	c.Reply(&wire.RecoveryResponse{Lines: b.Recovery()})
}
