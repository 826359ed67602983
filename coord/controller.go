package coord

import (
	"hash/crc32"
	"math"
	"slices"

	"github.com/teralog/teralog/mem"
	"github.com/teralog/teralog/wire"
)

// A Command asks for a change of the metadata: CreateTopic, DeleteTopic,
// ForgetTopics, BumpEpochs, AllocateProducers or Barrier.
type Command interface {
	// requestID returns the id under which the command is remembered, zero if
	// it is not.
	requestID() wire.UUID
	// appendTo appends what makes the command this one and no other, its
	// request id aside.
	appendTo(dst []byte) []byte
}

// CreateTopic makes a topic. Its Result names the topic's id.
//
// Errors: INVALID_NAME, INVALID_SETTING; INVALID_REQUEST for partitions other
// than 1 to MaxTopicPartitions; UNSUPPORTED for a replication factor other than
// 1; TOPIC_EXISTS; QUOTA where MaxPartitions or the node's MaxHosted would be
// passed; OFFLINE if no data directory takes partitions.
type CreateTopic struct {
	Request      wire.UUID // a repeat with the same id is answered as the first; zero: not remembered
	Name         string
	Partitions   int32
	Replication  int16
	Settings     []wire.Setting
	ValidateOnly bool // only check; the Result's topic is 0
}

// DeleteTopic deletes a topic and all its records. The id stays known as
// deleted until ForgetTopics. The error is TOPIC_RECREATED if no topic has the
// id.
type DeleteTopic struct {
	Request wire.UUID // as in CreateTopic
	ID      wire.TopicID
}

// ForgetTopics drops deleted topics. Submit it only when no data directory
// holds anything of them any more, deleted/ included. Ids that are not those of
// deleted topics are passed over. At most MaxTopicPartitions ids.
type ForgetTopics struct{ IDs []wire.TopicID }

// BumpEpochs gives every partition in the data directory the next leader epoch.
// It is due before the first of them is led after a crash of the machine.
type BumpEpochs struct{ Dir wire.UUID }

// AllocateProducers takes Count producer ids, 1 to MaxProducerBlock, which its
// Result names. NextProducer gives single ones.
type AllocateProducers struct{ Count int64 }

// MaxProducerBlock is the most producer ids one command may take.
const MaxProducerBlock = 1 << 20

// A Result is what a command did.
type Result struct {
	Offset wire.Offset  // of the metadata entry that applied it, or that its answer rests on; its index less 1
	Topic  wire.TopicID // created or deleted
	First  wire.ProducerID
	Count  int64 // of producer ids, from First on
}

func (c CreateTopic) requestID() wire.UUID {
	if c.ValidateOnly {
		return wire.UUID{}
	}
	return c.Request
}
func (c DeleteTopic) requestID() wire.UUID     { return c.Request }
func (ForgetTopics) requestID() wire.UUID      { return wire.UUID{} }
func (BumpEpochs) requestID() wire.UUID        { return wire.UUID{} }
func (AllocateProducers) requestID() wire.UUID { return wire.UUID{} }

func (c CreateTopic) appendTo(dst []byte) []byte {
	dst = append(dst, byte(kindTopicCreated))
	dst = wire.AppendBytes(dst, []byte(c.Name))
	dst = wire.Append32(wire.Append32(dst, c.Partitions), int32(c.Replication))
	for _, s := range c.Settings {
		dst = wire.AppendBytes(wire.AppendBytes(dst, []byte(s.Key)), []byte(s.Value))
	}
	return dst
}
func (c DeleteTopic) appendTo(dst []byte) []byte {
	return wire.Append64(append(dst, byte(kindTopicDeleted)), c.ID)
}
func (ForgetTopics) appendTo(dst []byte) []byte      { return dst }
func (BumpEpochs) appendTo(dst []byte) []byte        { return dst }
func (AllocateProducers) appendTo(dst []byte) []byte { return dst }

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// checksum returns one over the command. A request id that comes with another
// command is a mistake of its sender and must not get the old answer.
func checksum(c Command) uint32 {
	if c.requestID() == (wire.UUID{}) {
		return 0
	}
	return crc32.Checksum(c.appendTo(nil), castagnoli)
}

// An env is all that a decision depends on beside the image and the command.
type env struct {
	now        mem.Now
	node       wire.NodeID
	dirs       []DirSpace
	maxHosted  int                 // partitions in dirs, at most; 0: no bound
	newTopicID func() wire.TopicID // random; any values, even known ones
}

// handle decides a command against the image. It changes nothing: what is to
// change are the records, and the result holds once they are replayed. No
// records and no error mean that nothing needs to change.
func (e env) handle(i *Image, cmd Command) ([]record, Result, error) {
	if r := i.request(cmd.requestID()); r != nil {
		if r.sum != checksum(cmd) {
			return nil, Result{}, wire.Errorf(wire.CodeConflict, "request %v was another command before", r.id)
		}
		return nil, Result{Offset: r.offset, Topic: r.topic}, nil
	}
	switch c := cmd.(type) {
	case CreateTopic:
		return e.createTopic(i, c)
	case DeleteTopic:
		return deleteTopic(i, c)
	case ForgetTopics:
		return forgetTopics(i, c)
	case BumpEpochs:
		return bumpEpochs(i, c)
	case AllocateProducers:
		return allocateProducers(i, c)
	case Barrier:
		return nil, Result{Offset: i.version}, nil // proposal sees to the entry
	}
	panic("BUG: a command that is none of the commands")
}

func (e env) createTopic(i *Image, c CreateTopic) ([]record, Result, error) {
	config, settings, err := e.checkCreate(i, c)
	if err != nil || c.ValidateOnly {
		return nil, Result{Offset: i.version}, err
	}
	id, err := e.freeTopicID(i)
	if err != nil {
		return nil, Result{}, err
	}
	t := &Topic{Name: c.Name, ID: id, Created: e.now.Wall, Settings: settings, Config: config}
	for _, dir := range place(int(c.Partitions), e.dirs, config.SegmentBytes, i.Hosted) {
		t.Partitions = append(t.Partitions, PartitionPlace{Leader: e.node, Dir: dir})
	}
	return []record{topicCreated{t}}, Result{Topic: id}, nil
}

func (e env) checkCreate(i *Image, c CreateTopic) (TopicConfig, []wire.Setting, error) {
	config, settings, err := parseSettings(c.Settings)
	switch t := i.Topic(c.Name); {
	case !wire.ValidName(c.Name):
		err = wire.Errorf(wire.CodeInvalidName, "%.60q cannot name a topic: 1 to %d characters of A-Z a-z 0-9 . _ - are allowed, and neither . nor ..", c.Name, wire.MaxName)
	case c.Partitions < 1 || c.Partitions > MaxTopicPartitions:
		err = wire.Errorf(wire.CodeInvalidRequest, "%d partitions; a topic has 1 to %d", c.Partitions, MaxTopicPartitions)
	case c.Replication != 1:
		err = wire.Errorf(wire.CodeUnsupported, "replication factor %d; only 1 is possible, since the cluster has one node", c.Replication)
	case err != nil:
	case t != nil:
		err = wire.Errorf(wire.CodeTopicExists, "topic %s exists, with id %d", t.Name, t.ID)
	case i.partitions+int(c.Partitions) > MaxPartitions:
		err = wire.Errorf(wire.CodeQuota, "%d partitions exist, those of deleted topics still on disk included; %d more would pass the limit of %d",
			i.partitions, c.Partitions, MaxPartitions)
	case e.maxHosted > 0 && e.hosted(i)+int(c.Partitions) > e.maxHosted:
		err = wire.Errorf(wire.CodeQuota, "node %d has %d partitions; %d more would pass its limit of %d, half the files it may open (LimitNOFILE, ulimit -n)",
			e.node, e.hosted(i), c.Partitions, e.maxHosted)
	case len(e.dirs) == 0:
		err = wire.Errorf(wire.CodeOffline, "no data directory takes new partitions")
	}
	return config, settings, err
}

// hosted returns how many partitions the directories have that take new ones.
func (e env) hosted(i *Image) (n int) {
	for _, d := range e.dirs {
		n += i.Hosted(d.ID)
	}
	return n
}

// freeTopicID draws an id that no topic has and no deleted one had. Ids are
// random over 63 bits, so even a cluster that lost its metadata does not draw
// one again that a directory or a client remembers.
func (e env) freeTopicID(i *Image) (wire.TopicID, error) {
	const draws = 100
	for range draws {
		id := e.newTopicID() & math.MaxInt64
		if userTopic(id) && i.TopicByID(id) == nil && !i.Deleted(id) {
			return id, nil
		}
	}
	return 0, wire.Errorf(wire.CodeBusy, "%d random topic ids were all taken; the source of random numbers is broken", draws)
}

func deleteTopic(i *Image, c DeleteTopic) ([]record, Result, error) {
	if i.TopicByID(c.ID) == nil {
		return nil, Result{}, wire.Errorf(wire.CodeTopicRecreated, "no topic has the id %d, or no longer", c.ID)
	}
	return []record{topicDeleted{c.ID}}, Result{Topic: c.ID}, nil
}

func forgetTopics(i *Image, c ForgetTopics) ([]record, Result, error) {
	if len(c.IDs) > MaxTopicPartitions {
		return nil, Result{}, wire.Errorf(wire.CodeInvalidRequest, "%d topics to forget; at most %d at once", len(c.IDs), MaxTopicPartitions)
	}
	var known []wire.TopicID
	for _, id := range c.IDs {
		if i.Deleted(id) && !slices.Contains(known, id) {
			known = append(known, id)
		}
	}
	if known == nil {
		return nil, Result{Offset: i.version}, nil
	}
	return []record{topicsForgotten{known}}, Result{}, nil
}

func bumpEpochs(i *Image, c BumpEpochs) ([]record, Result, error) {
	if i.Hosted(c.Dir) == 0 {
		return nil, Result{Offset: i.version}, nil
	}
	return []record{epochsBumped{c.Dir}}, Result{}, nil
}

func allocateProducers(i *Image, c AllocateProducers) ([]record, Result, error) {
	if c.Count < 1 || c.Count > MaxProducerBlock {
		return nil, Result{}, wire.Errorf(wire.CodeInvalidRequest, "a block of %d producer ids; 1 to %d are possible", c.Count, MaxProducerBlock)
	}
	if c.Count > math.MaxInt64-int64(i.nextProducer) {
		return nil, Result{}, wire.Errorf(wire.CodeQuota, "producer ids are used up: the next would be %d", i.nextProducer)
	}
	return []record{producersAllocated{i.nextProducer, c.Count}}, Result{First: i.nextProducer, Count: c.Count}, nil
}
