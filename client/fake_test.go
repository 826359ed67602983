package client

import (
	"context"
	"encoding/binary"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/teralog/teralog/wire"
)

// fakeAddr is where the fake broker listens in its network.
const fakeAddr = "broker:1"

// A fake is a broker in memory: it keeps real batches, checks sequences as a
// leader must, and parks fetches. Tests bend it through its fields.
type fake struct {
	net *wire.MemNet
	srv *wire.Server

	mu           sync.Mutex
	topics       map[string]*fakeTopic
	lastTopic    wire.TopicID
	lastProducer wire.ProducerID
	requests     map[wire.API]int

	// onProduce, if not nil, may refuse a batch before (append false) or
	// after (append true) it was taken.
	onProduce func(b wire.Batch) (code wire.Code, append bool)
	// onCall, if not nil, may take a call over.
	onCall func(c *wire.Call) bool
	nodes  []wire.NodeAddr
	leader wire.NodeID
}

type fakeTopic struct {
	id    wire.TopicID
	parts []*fakePart
}

type fakePart struct {
	epoch     wire.Epoch
	start     wire.Offset
	end       wire.Offset
	batches   []wire.Batch
	producers map[wire.ProducerID]*fakeProducer
	moved     chan struct{} // closed at the next append
}

// A fakeProducer is what a leader remembers of a producer.
type fakeProducer struct {
	next int32
	last []fakeBatch // at most five
}

type fakeBatch struct {
	seq  int32
	crc  uint32
	base wire.Offset
}

func newFake(t testing.TB, topics map[string]int) *fake {
	f := &fake{net: wire.NewMemNet(), topics: map[string]*fakeTopic{}, requests: map[wire.API]int{},
		lastTopic: wire.FirstUserTopic, nodes: []wire.NodeAddr{{ID: 1, Addr: fakeAddr}}, leader: 1}
	for name, n := range topics {
		f.create(name, n)
	}
	f.srv = &wire.Server{Handler: f, Hello: func() wire.HelloResponse { return wire.HelloResponse{Node: 1} }}
	ln, err := f.net.Listen(fakeAddr)
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan struct{})
	go func() { defer close(served); f.srv.Serve(ln) }()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		f.srv.Shutdown(ctx)
		<-served
	})
	return f
}

// client returns a client of the fake; change o as need be.
func (f *fake) client(t testing.TB, change ...func(*Options)) *Client {
	o := Options{Servers: []string{fakeAddr}, Dialer: f.net, BackoffMin: time.Millisecond, BackoffMax: 20 * time.Millisecond}
	for _, c := range change {
		c(&o)
	}
	c, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

func (f *fake) create(name string, n int) wire.TopicID {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.lastTopic++
	t := &fakeTopic{id: f.lastTopic}
	for range n {
		t.parts = append(t.parts, &fakePart{epoch: 1, producers: map[wire.ProducerID]*fakeProducer{}, moved: make(chan struct{})})
	}
	f.topics[name] = t
	return t.id
}

// count returns how many requests came for an API.
func (f *fake) count(a wire.API) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.requests[a]
}

// intercept sets onCall.
func (f *fake) intercept(onCall func(c *wire.Call) bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.onCall = onCall
}

// part returns a partition, with f.mu held by the caller.
func (f *fake) part(id wire.TopicID, p int32) (*fakePart, wire.Code) {
	for _, t := range f.topics {
		if t.id == id {
			if p < 0 || int(p) >= len(t.parts) {
				return nil, wire.CodeUnknownPartition
			}
			return t.parts[p], wire.CodeOK
		}
	}
	return nil, wire.CodeTopicRecreated
}

func (f *fake) ServeCall(c *wire.Call) {
	f.mu.Lock()
	f.requests[c.API]++
	onCall := f.onCall
	f.mu.Unlock()
	if onCall != nil && onCall(c) {
		return
	}
	req := c.API.NewRequest()
	if err := c.Decode(req); err != nil {
		c.ReplyError(err)
		return
	}
	switch m := req.(type) {
	case *wire.MetadataRequest:
		c.Reply(f.metadata(m))
	case *wire.InitProducerRequest:
		f.mu.Lock()
		f.lastProducer++
		id := f.lastProducer
		f.mu.Unlock()
		c.Reply(&wire.InitProducerResponse{Producer: id})
	case *wire.ProduceRequest:
		r := f.produce(m)
		if m.Acks == wire.AcksNone {
			c.NoReply()
		} else {
			c.Reply(r)
		}
	case *wire.FetchRequest:
		go f.fetch(c, m, time.Now().Add(time.Duration(m.MaxWaitMillis)*time.Millisecond))
	case *wire.ListOffsetsRequest:
		c.Reply(f.offsets(m))
	case *wire.CreateTopicRequest:
		c.Reply(&wire.CreateTopicResponse{ID: f.create(m.Name, int(m.Partitions))})
	case *wire.DeleteTopicRequest:
		f.delete(m.ID)
		c.Reply(&wire.DeleteTopicResponse{})
	case *wire.TrimRequest:
		f.mu.Lock()
		p, code := f.part(m.Topic, m.Partition)
		if code == wire.CodeOK {
			p.start = max(p.start, m.Before)
			p.batches = slices.DeleteFunc(p.batches, func(b wire.Batch) bool { return b.NextOffset() <= p.start })
		}
		f.mu.Unlock()
		if code != wire.CodeOK {
			c.ReplyError(code)
			return
		}
		c.Reply(&wire.TrimResponse{Start: m.Before})
	default:
		c.ReplyError(wire.CodeUnsupported)
	}
}

func (f *fake) delete(id wire.TopicID) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for name, t := range f.topics {
		if t.id == id {
			delete(f.topics, name)
			for _, p := range t.parts {
				close(p.moved)
				p.moved = make(chan struct{})
			}
		}
	}
}

func (f *fake) metadata(m *wire.MetadataRequest) *wire.MetadataResponse {
	f.mu.Lock()
	defer f.mu.Unlock()
	r := &wire.MetadataResponse{Nodes: f.nodes, Controller: 1}
	names := m.Topics
	if m.All {
		names = nil
		for name := range f.topics {
			names = append(names, name)
		}
		slices.Sort(names)
	}
	for _, name := range names {
		t := f.topics[name]
		if t == nil {
			r.Topics = append(r.Topics, wire.TopicMeta{Code: wire.CodeUnknownTopic, Name: name})
			continue
		}
		tm := wire.TopicMeta{Name: name, ID: t.id}
		for i, p := range t.parts {
			tm.Partitions = append(tm.Partitions, wire.PartitionMeta{Partition: int32(i), Leader: f.leader, Epoch: p.epoch})
		}
		r.Topics = append(r.Topics, tm)
	}
	return r
}

func (f *fake) produce(m *wire.ProduceRequest) *wire.ProduceResponse {
	f.mu.Lock()
	defer f.mu.Unlock()
	r := &wire.ProduceResponse{}
	for _, b := range m.Batches {
		r.Results = append(r.Results, f.take(b))
	}
	return r
}

func (f *fake) take(b wire.Batch) (r wire.ProduceResult) {
	r.Base = -1
	late := wire.CodeOK
	if f.onProduce != nil {
		code, take := f.onProduce(b)
		if code != wire.CodeOK && !take {
			r.Code = code
			return r
		}
		late = code
	}
	p, code := f.part(b.Topic(), b.Partition())
	if code == wire.CodeOK {
		if err := b.VerifyProduce(wire.BatchLimits{}); err != nil {
			r.Message = err.Error()
			code = wire.CodeOf(err)
		}
	}
	if code == wire.CodeOK {
		r.Base, code = p.append(b)
		r.Epoch = p.epoch
	}
	r.AppendTime = 1000 + int64(r.Base)
	if r.Code = code; code == wire.CodeOK {
		r.Code = late
	}
	return r
}

// append does what a leader does: sequences are checked, repetitions answered
// with their offset, others stamped and kept.
func (p *fakePart) append(b wire.Batch) (wire.Offset, wire.Code) {
	id, _, seq := b.Producer()
	if id != wire.NoProducer {
		pr := p.producers[id]
		if pr == nil {
			if seq != 0 {
				return -1, wire.CodeUnknownProducer
			}
			pr = &fakeProducer{}
			p.producers[id] = pr
		}
		for _, l := range pr.last {
			if l.seq == seq {
				if l.crc != b.RecordsCRC() {
					return -1, wire.CodeSequenceReused
				}
				return l.base, wire.CodeOK
			}
		}
		if behind := wire.NextSequence(pr.next, -seq); seq != pr.next && behind < 1<<30 {
			return -1, wire.CodeOK // older than those remembered
		}
		if seq != pr.next {
			return -1, wire.CodeOutOfOrderSequence
		}
		pr.next = wire.NextSequence(seq, int32(b.Count()))
		pr.last = append(pr.last, fakeBatch{seq, b.RecordsCRC(), p.end})
		if len(pr.last) > 5 {
			pr.last = pr.last[1:]
		}
	}
	own := slices.Clone(b)
	own.Stamp(p.end, p.epoch, 1000+int64(p.end), false)
	base := p.end
	p.batches = append(p.batches, own)
	p.end = own.NextOffset()
	close(p.moved)
	p.moved = make(chan struct{})
	return base, wire.CodeOK
}

// fetch answers once there is something or the time is over.
func (f *fake) fetch(c *wire.Call, m *wire.FetchRequest, deadline time.Time) {
	for {
		f.mu.Lock()
		r, ready := f.look(m)
		var moved []chan struct{}
		for _, q := range m.Partitions {
			if p, code := f.part(q.Topic, q.Partition); code == wire.CodeOK {
				moved = append(moved, p.moved)
			}
		}
		f.mu.Unlock()
		left := time.Until(deadline)
		if ready || left <= 0 || len(moved) == 0 {
			c.Reply(r)
			return
		}
		timer := time.NewTimer(left)
		select { // the first partition stands for all; the rest is looked at in time
		case <-moved[0]:
		case <-moved[len(moved)-1]:
		case <-timer.C:
		case <-c.Cancelled():
		}
		timer.Stop()
		select {
		case <-c.Cancelled():
			deadline = time.Time{}
		default:
		}
	}
}

func (f *fake) look(m *wire.FetchRequest) (r *wire.FetchResponse, ready bool) {
	r = &wire.FetchResponse{}
	left := int(m.MaxBytes)
	for _, q := range m.Partitions {
		res := wire.FetchResult{Topic: q.Topic, Partition: q.Partition, Next: q.Offset, Data: []byte{}}
		p, code := f.part(q.Topic, q.Partition)
		if code == wire.CodeOK {
			res.Epoch, res.LogStart, res.Committed, res.End = p.epoch, p.start, p.end, p.end
			if q.Offset < p.start || q.Offset > p.end {
				code = wire.CodeOutOfRange
			} else {
				res.Data, res.Next = p.read(q.Offset, min(int(q.MaxBytes), left))
			}
		}
		res.Code = code
		res.Bytes = uint32(len(res.Data))
		left -= len(res.Data)
		ready = ready || code != wire.CodeOK || len(res.Data) > 0 || res.Next > q.Offset
		r.Partitions = append(r.Partitions, res)
	}
	return r, ready
}

// read returns whole batches from the one that holds from, the first one
// whatever its size.
func (p *fakePart) read(from wire.Offset, most int) (data []byte, next wire.Offset) {
	data, next = []byte{}, from
	i, _ := slices.BinarySearchFunc(p.batches, from, func(b wire.Batch, o wire.Offset) int {
		if b.NextOffset() <= o {
			return -1
		}
		return 1
	})
	for ; i < len(p.batches); i++ {
		b := p.batches[i]
		if len(data) > 0 && len(data)+len(b) > most {
			break
		}
		data, next = append(data, b...), b.NextOffset()
	}
	return data, next
}

func (f *fake) offsets(m *wire.ListOffsetsRequest) *wire.ListOffsetsResponse {
	f.mu.Lock()
	defer f.mu.Unlock()
	r := &wire.ListOffsetsResponse{}
	for _, q := range m.Queries {
		p, code := f.part(q.Topic, q.Partition)
		res := wire.OffsetResult{Code: code, Offset: -1, Time: -1, Epoch: 1}
		if code == wire.CodeOK {
			switch q.Kind {
			case wire.Earliest:
				res.Offset = p.start
			case wire.Latest:
				res.Offset = p.end
			default:
				p.each(func(b wire.Batch, rec *wire.Record) {
					at := rec.Time
					if q.Kind == wire.AtAppendTime {
						at = b.AppendTime()
					}
					switch {
					case q.Kind == wire.Greatest && (res.Offset < 0 || at > res.Time),
						q.Kind != wire.Greatest && res.Offset < 0 && at >= q.Time:
						res.Offset, res.Time = rec.Offset, at
					}
				})
			}
		}
		r.Results = append(r.Results, res)
	}
	return r
}

// each calls fn with every record.
func (p *fakePart) each(fn func(wire.Batch, *wire.Record)) {
	var d wire.Decoder
	defer d.Release()
	for _, b := range p.batches {
		if err := b.Records(&d, func(r *wire.Record) error { fn(b, r); return nil }); err != nil {
			panic(err)
		}
	}
}

// counters returns the counters in the values of a partition's records.
func (f *fake) counters(topic string, part int) (all []uint64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.topics[topic].parts[part].each(func(_ wire.Batch, r *wire.Record) {
		all = append(all, binary.LittleEndian.Uint64(r.Value))
	})
	return all
}

func counter(n uint64) []byte { return binary.LittleEndian.AppendUint64(nil, n) }

// wantCounters fails unless got is 0, 1, 2 … n-1.
func wantCounters(t *testing.T, got []uint64, n int) {
	t.Helper()
	if len(got) != n {
		t.Fatalf("%d records, want %d", len(got), n)
	}
	for i, v := range got {
		if v != uint64(i) {
			t.Fatalf("record %d is %d", i, v)
		}
	}
}
