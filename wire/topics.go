package wire

// A Setting is one setting of a topic as it was given.
type Setting struct {
	Key, Value string
}

// CreateTopicRequest makes a topic. Asked again under the same Request it is
// answered as the first time.
type CreateTopicRequest struct {
	Request      UUID
	Name         string
	Partitions   int32
	Replication  int16
	Settings     []Setting
	ValidateOnly bool // check everything and make nothing
}

// CreateTopicResponse names the new topic; 0 when only validated.
type CreateTopicResponse struct {
	ID TopicID
}

// DeleteTopicRequest deletes a topic by id, so that a late one cannot hit a
// new topic of the same name.
type DeleteTopicRequest struct {
	Request UUID
	ID      TopicID
}

// DeleteTopicResponse says that the delete is durable.
type DeleteTopicResponse struct{}

// DescribeTopicsRequest asks for everything known about topics.
type DescribeTopicsRequest struct {
	Topics []string // empty: all
}

// DescribeTopicsResponse has one description per topic, in the order asked, or
// all by name.
type DescribeTopicsResponse struct {
	Topics []TopicDescription
}

// A TopicDescription is one topic. Unless Code is CodeOK only Name is set.
type TopicDescription struct {
	Code       Code
	Name       string
	ID         TopicID
	Created    int64 // ms since the epoch
	Settings   []Setting
	Partitions []PartitionDescription // ascending by number
}

// A PartitionDescription is the state of one partition at its leader.
type PartitionDescription struct {
	Partition      int32
	Leader         NodeID
	Epoch          Epoch
	Code           Code // CodeOK, or why it cannot be served now
	Start          Offset
	Committed      Offset
	End            Offset
	Bytes          int64 // of all segments
	GreatestTime   int64 // greatest event time, ms
	LastAppendTime int64 // ms
	Directory      UUID  // the data directory that holds it
}

// FutureTime reports whether an event time lies more than an hour ahead of an
// append time, both in ms: a clock or a unit is wrong then, such as microseconds
// sent as milliseconds.
func FutureTime(event, appended int64) bool {
	const hour = 60 * 60 * 1000
	return event > 0 && event-hour > appended
}

// TrimRequest gives up the records of one partition before an offset.
type TrimRequest struct {
	Topic     TopicID
	Partition int32
	Before    Offset
}

// TrimResponse says where the partition starts now.
type TrimResponse struct {
	Start Offset
}

func (*Setting) least() int { return 2 }

func (s *Setting) append(dst []byte) []byte {
	dst = AppendString(dst, s.Key)
	return AppendString(dst, s.Value)
}

func (s *Setting) decode(r *Reader) {
	s.Key = r.String()
	s.Value = r.String()
}

func (*CreateTopicRequest) API() API { return APICreateTopic }

func (m *CreateTopicRequest) AppendTo(dst []byte, _ Version) []byte {
	dst = append(dst, m.Request[:]...)
	dst = AppendString(dst, m.Name)
	dst = Append32(dst, m.Partitions)
	dst = Append16(dst, m.Replication)
	dst = appendSlice(dst, m.Settings)
	return AppendBool(dst, m.ValidateOnly)
}

func (m *CreateTopicRequest) Decode(r *Reader, _ Version) {
	m.Request = r.UUID()
	m.Name = r.String()
	m.Partitions = r.I32()
	m.Replication = r.I16()
	m.Settings = readSlice(r, m.Settings)
	m.ValidateOnly = r.Bool()
}

func (*CreateTopicResponse) API() API { return APICreateTopic }

func (m *CreateTopicResponse) AppendTo(dst []byte, _ Version) []byte {
	return Append64(dst, m.ID)
}

func (m *CreateTopicResponse) Decode(r *Reader, _ Version) { m.ID = TopicID(r.U64()) }

func (*DeleteTopicRequest) API() API { return APIDeleteTopic }

func (m *DeleteTopicRequest) AppendTo(dst []byte, _ Version) []byte {
	dst = append(dst, m.Request[:]...)
	return Append64(dst, m.ID)
}

func (m *DeleteTopicRequest) Decode(r *Reader, _ Version) {
	m.Request = r.UUID()
	m.ID = TopicID(r.U64())
}

func (*DeleteTopicResponse) API() API { return APIDeleteTopic }

func (*DeleteTopicResponse) AppendTo(dst []byte, _ Version) []byte { return dst }

func (*DeleteTopicResponse) Decode(*Reader, Version) {}

func (*DescribeTopicsRequest) API() API { return APIDescribeTopics }

func (m *DescribeTopicsRequest) AppendTo(dst []byte, _ Version) []byte {
	return appendStrings(dst, m.Topics)
}

func (m *DescribeTopicsRequest) Decode(r *Reader, _ Version) {
	m.Topics = readStrings(r, m.Topics)
}

func (*DescribeTopicsResponse) API() API { return APIDescribeTopics }

func (m *DescribeTopicsResponse) AppendTo(dst []byte, _ Version) []byte {
	return appendSlice(dst, m.Topics)
}

func (m *DescribeTopicsResponse) Decode(r *Reader, _ Version) {
	m.Topics = readSlice(r, m.Topics)
}

func (*TopicDescription) least() int { return 21 }

func (t *TopicDescription) append(dst []byte) []byte {
	dst = Append16(dst, t.Code)
	dst = AppendString(dst, t.Name)
	dst = Append64(dst, t.ID)
	dst = Append64(dst, t.Created)
	dst = appendSlice(dst, t.Settings)
	return appendSlice(dst, t.Partitions)
}

func (t *TopicDescription) decode(r *Reader) {
	t.Code = Code(r.U16())
	t.Name = r.String()
	t.ID = TopicID(r.U64())
	t.Created = r.I64()
	t.Settings = readSlice(r, t.Settings)
	t.Partitions = readSlice(r, t.Partitions)
}

func (*PartitionDescription) least() int { return 78 }

func (p *PartitionDescription) append(dst []byte) []byte {
	dst = Append32(dst, p.Partition)
	dst = Append32(dst, p.Leader)
	dst = Append32(dst, p.Epoch)
	dst = Append16(dst, p.Code)
	dst = Append64(dst, p.Start)
	dst = Append64(dst, p.Committed)
	dst = Append64(dst, p.End)
	dst = Append64(dst, p.Bytes)
	dst = Append64(dst, p.GreatestTime)
	dst = Append64(dst, p.LastAppendTime)
	return append(dst, p.Directory[:]...)
}

func (p *PartitionDescription) decode(r *Reader) {
	p.Partition = r.I32()
	p.Leader = NodeID(r.I32())
	p.Epoch = Epoch(r.I32())
	p.Code = Code(r.U16())
	p.Start = Offset(r.I64())
	p.Committed = Offset(r.I64())
	p.End = Offset(r.I64())
	p.Bytes = r.I64()
	p.GreatestTime = r.I64()
	p.LastAppendTime = r.I64()
	p.Directory = r.UUID()
}

func (*TrimRequest) API() API { return APITrim }

func (m *TrimRequest) AppendTo(dst []byte, _ Version) []byte {
	dst = Append64(dst, m.Topic)
	dst = Append32(dst, m.Partition)
	return Append64(dst, m.Before)
}

func (m *TrimRequest) Decode(r *Reader, _ Version) {
	m.Topic = TopicID(r.U64())
	m.Partition = r.I32()
	m.Before = Offset(r.I64())
}

func (*TrimResponse) API() API { return APITrim }

func (m *TrimResponse) AppendTo(dst []byte, _ Version) []byte { return Append64(dst, m.Start) }

func (m *TrimResponse) Decode(r *Reader, _ Version) { m.Start = Offset(r.I64()) }
