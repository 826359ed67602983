package coord

import (
	"fmt"

	"github.com/teralog/teralog/storage"
	"github.com/teralog/teralog/wire"
)

// Barrier changes nothing. Its Result names an entry that was committed after it
// was asked for: a node whose image shows that has seen all that was answered
// before.
type Barrier struct{}

func (Barrier) requestID() wire.UUID       { return wire.UUID{} }
func (Barrier) appendTo(dst []byte) []byte { return dst }

// The numbers of commands as one node hands them to another.
const (
	commandCreateTopic       = 1
	commandDeleteTopic       = 2
	commandForgetTopics      = 3
	commandBumpEpochs        = 4
	commandAllocateProducers = 5
	commandBarrier           = 6
)

const commandVersion = 1

// AppendCommand appends
//
//	| version u8 = 1 | command u8 |
//	| 1: request UUID | name | partitions i32 | replication i16 | settings: count, { key | value } … | validateOnly u8 |
//	| 2: request UUID | id u64 |
//	| 3: ids: count, u64 … |
//	| 4: directory UUID |
//	| 5: count i64 |
//	| 6: nothing |
func AppendCommand(dst []byte, cmd Command) []byte {
	dst = append(dst, commandVersion)
	switch c := cmd.(type) {
	case CreateTopic:
		dst = append(append(dst, commandCreateTopic), c.Request[:]...)
		dst = wire.AppendBytes(dst, []byte(c.Name))
		dst = wire.Append16(wire.Append32(dst, c.Partitions), c.Replication)
		dst = wire.AppendCount(dst, len(c.Settings))
		for _, s := range c.Settings {
			dst = wire.AppendBytes(wire.AppendBytes(dst, []byte(s.Key)), []byte(s.Value))
		}
		return wire.AppendBool(dst, c.ValidateOnly)
	case DeleteTopic:
		return wire.Append64(append(append(dst, commandDeleteTopic), c.Request[:]...), c.ID)
	case ForgetTopics:
		dst = wire.AppendCount(append(dst, commandForgetTopics), len(c.IDs))
		for _, id := range c.IDs {
			dst = wire.Append64(dst, id)
		}
		return dst
	case BumpEpochs:
		return append(append(dst, commandBumpEpochs), c.Dir[:]...)
	case AllocateProducers:
		return wire.Append64(append(dst, commandAllocateProducers), c.Count)
	case Barrier:
		return append(dst, commandBarrier)
	}
	panic(fmt.Sprintf("BUG: %T cannot be handed on", cmd))
}

// ReadCommand reads what AppendCommand wrote, and nothing else.
func ReadCommand(b []byte) (Command, error) {
	r := wire.NewReader(b)
	if v := r.U8(); r.Err() == nil && v != commandVersion {
		return nil, fmt.Errorf("command of version %d: %w", v, storage.ErrNewer)
	}
	var cmd Command
	switch kind := r.U8(); kind {
	case commandCreateTopic:
		c := CreateTopic{Request: r.UUID(), Name: r.String(), Partitions: r.I32(), Replication: r.I16()}
		for range r.Count(2) {
			c.Settings = append(c.Settings, wire.Setting{Key: r.String(), Value: r.String()})
		}
		c.ValidateOnly = r.Bool()
		cmd = c
	case commandDeleteTopic:
		cmd = DeleteTopic{Request: r.UUID(), ID: wire.TopicID(r.U64())}
	case commandForgetTopics:
		c := ForgetTopics{}
		for range r.Count(8) {
			c.IDs = append(c.IDs, wire.TopicID(r.U64()))
		}
		cmd = c
	case commandBumpEpochs:
		cmd = BumpEpochs{Dir: r.UUID()}
	case commandAllocateProducers:
		cmd = AllocateProducers{Count: r.I64()}
	case commandBarrier:
		cmd = Barrier{}
	default:
		r.Failf("command %d", kind)
	}
	return cmd, r.Finish()
}
