package broker

import "github.com/teralog/teralog/wire"

// calls has one row per API. Hello is the transport's own.
var calls = map[wire.API]func(*Broker, *wire.Call){
	wire.APIMetadata:       (*Broker).metadata,
	wire.APIProduce:        (*Broker).produce,
	wire.APIFetch:          (*Broker).fetch,
	wire.APIListOffsets:    (*Broker).offsets,
	wire.APIInitProducer:   (*Broker).initProducer,
	wire.APICreateTopic:    (*Broker).createTopic,
	wire.APIDeleteTopic:    (*Broker).deleteTopic,
	wire.APIDescribeTopics: (*Broker).describe,
	wire.APITrim:           (*Broker).trim,
	wire.APIRecovery:       (*Broker).recovery,
}

// ServeCall answers one request. It never blocks, so it may run on the
// connection's reader.
func (b *Broker) ServeCall(c *wire.Call) {
	serve := calls[c.API]
	if serve == nil {
		c.ReplyError(wire.Errorf(wire.CodeUnsupported, "%v is not served here", c.API))
		return
	}
	b.count.requests[c.API].Add(1)
	if err := b.admit(c); err != nil {
		b.refuse(c, err)
		return
	}
	serve(b, c)
}

// effort returns how much has been done: the requests, and one more for each 64 KiB
// of records that came or went. A few large requests keep the processors as busy as
// many small ones.
func (b *Broker) effort() (n int64) {
	for i := range b.count.requests {
		n += b.count.requests[i].Load()
	}
	n += (b.count.bytes.Load() + b.count.fetched.Load()) >> 16
	return n
}
