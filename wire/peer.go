package wire

// IntroduceRequest tells another node of the metadata cluster who asks. It goes
// to a node's peer listener, as RaftRequest and CommandRequest do.
type IntroduceRequest struct {
	Node        NodeID
	Incarnation UUID // of its first data directory
}

// IntroduceResponse says who answers.
type IntroduceResponse struct {
	Incarnation UUID
	Fresh       bool // it holds nothing of any metadata yet
}

func (*IntroduceRequest) API() API { return APIIntroduce }

func (m *IntroduceRequest) AppendTo(dst []byte, _ Version) []byte {
	return append(Append32(dst, m.Node), m.Incarnation[:]...)
}

func (m *IntroduceRequest) Decode(r *Reader, _ Version) {
	m.Node, m.Incarnation = NodeID(r.I32()), r.UUID()
}

func (*IntroduceResponse) API() API { return APIIntroduce }

func (m *IntroduceResponse) AppendTo(dst []byte, _ Version) []byte {
	return AppendBool(append(dst, m.Incarnation[:]...), m.Fresh)
}

func (m *IntroduceResponse) Decode(r *Reader, _ Version) {
	m.Incarnation, m.Fresh = r.UUID(), r.Bool()
}

// RaftRequest carries messages of Raft, in the order in which they were sent.
// What they say is Raft's; they alias the request.
type RaftRequest struct {
	Answer   bool // a response is wanted: without, there is none
	Messages [][]byte
}

// RaftResponse says that the messages were taken, and all before them.
type RaftResponse struct{}

func (*RaftRequest) API() API { return APIRaft }

func (m *RaftRequest) AppendTo(dst []byte, _ Version) []byte {
	dst = AppendCount(AppendBool(dst, m.Answer), len(m.Messages))
	for _, b := range m.Messages {
		dst = AppendBytes(dst, b)
	}
	return dst
}

func (m *RaftRequest) Decode(r *Reader, _ Version) {
	m.Answer = r.Bool()
	n := r.Count(1)
	m.Messages = m.Messages[:0]
	for range n {
		m.Messages = append(m.Messages, r.Bytes())
	}
}

func (*RaftResponse) API() API { return APIRaft }

func (*RaftResponse) AppendTo(dst []byte, _ Version) []byte { return dst }

func (*RaftResponse) Decode(*Reader, Version) {}

// CommandRequest hands a change of the metadata on to the node that leads it.
// What it says is coord's; it aliases the request.
type CommandRequest struct {
	Command []byte
}

// CommandResponse is what the command did, once it is committed.
type CommandResponse struct {
	Offset Offset // of the metadata entry that it rests on
	Topic  TopicID
	First  ProducerID
	Count  int64 // of producer ids
}

func (*CommandRequest) API() API { return APICommand }

func (m *CommandRequest) AppendTo(dst []byte, _ Version) []byte { return AppendBytes(dst, m.Command) }

func (m *CommandRequest) Decode(r *Reader, _ Version) { m.Command = r.Bytes() }

func (*CommandResponse) API() API { return APICommand }

func (m *CommandResponse) AppendTo(dst []byte, _ Version) []byte {
	dst = Append64(Append64(dst, m.Offset), m.Topic)
	return Append64(Append64(dst, m.First), m.Count)
}

func (m *CommandResponse) Decode(r *Reader, _ Version) {
	m.Offset, m.Topic = Offset(r.I64()), TopicID(r.U64())
	m.First, m.Count = ProducerID(r.I64()), r.I64()
}
