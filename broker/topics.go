package broker

import (
	"cmp"

	"github.com/teralog/teralog/coord"
	"github.com/teralog/teralog/wire"
)

// defaultReplication is the replication factor of a topic that asks for none.
const defaultReplication = 1

// createTopic answers when the topic is durable in the metadata and its
// partitions stand on disk, so that what is sent next finds them.
func (b *Broker) createTopic(c *wire.Call) {
	var req wire.CreateTopicRequest
	if err := c.Decode(&req); err != nil {
		c.ReplyError(err)
		return
	}
	if err := b.admitCreate(req.Partitions, req.ValidateOnly); err != nil {
		b.refuse(c, err)
		return
	}
	b.change(c, coord.CreateTopic{
		Request: req.Request, Name: req.Name, Partitions: req.Partitions, Replication: cmp.Or(req.Replication, defaultReplication),
		Settings: req.Settings, ValidateOnly: req.ValidateOnly,
	}, func(r coord.Result) wire.Message { return &wire.CreateTopicResponse{ID: r.Topic} })
}

// deleteTopic answers when the delete is durable in the metadata and no
// partition of the topic is served any more.
func (b *Broker) deleteTopic(c *wire.Call) {
	var req wire.DeleteTopicRequest
	if err := c.Decode(&req); err != nil {
		c.ReplyError(err)
		return
	}
	b.change(c, coord.DeleteTopic{Request: req.Request, ID: req.ID},
		func(coord.Result) wire.Message { return &wire.DeleteTopicResponse{} })
}

// change has a command decided, makes its outcome true here and answers.
func (b *Broker) change(c *wire.Call, cmd coord.Command, response func(coord.Result) wire.Message) {
	c.DropBody()
	b.decide(b.coord.Submit, cmd, func(r coord.Result, err error) {
		if err != nil {
			b.refuse(c, err)
			return
		}
		c.Reply(response(r))
	})
}

// decide submits a command and makes its outcome true here, before done hears
// of it.
func (b *Broker) decide(submit func(coord.Command, func(coord.Result, error)), cmd coord.Command, done func(coord.Result, error)) {
	if !b.hosts.reserve() {
		done(coord.Result{}, errChanges)
		return
	}
	submit(cmd, func(r coord.Result, err error) {
		if err != nil || r.Topic == 0 {
			b.hosts.release()
			done(r, err)
			return
		}
		b.hosts.push(settle{topic: r.Topic, done: func(err error) { done(r, err) }})
	})
}

func (b *Broker) initProducer(c *wire.Call) {
	var req wire.InitProducerRequest
	if err := c.Decode(&req); err != nil {
		c.ReplyError(err)
		return
	}
	if err := b.protectedRefusal(); err != nil {
		b.refuse(c, err)
		return
	}
	b.coord.NextProducer(func(id wire.ProducerID, err error) {
		if err != nil {
			b.refuse(c, err)
			return
		}
		c.Reply(&wire.InitProducerResponse{Producer: id})
	})
}

func (b *Broker) trim(c *wire.Call) {
	var req wire.TrimRequest
	if err := c.Decode(&req); err != nil {
		c.ReplyError(err)
		return
	}
	id := wire.PartitionID{Topic: req.Topic, Partition: req.Partition}
	if _, err := b.coord.Image().Resolve(id); err != nil {
		c.ReplyError(err)
		return
	}
	p, err := b.leader(id)
	if err != nil {
		c.ReplyError(err)
		return
	}
	p.Trim(req.Before, func(start wire.Offset, err error) {
		if err != nil {
			b.refuse(c, err)
			return
		}
		c.Reply(&wire.TrimResponse{Start: start})
	})
}
