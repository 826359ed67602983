package wire

// MetadataRequest asks where partitions are.
type MetadataRequest struct {
	All    bool // every topic; Topics is then ignored
	Topics []string
}

// MetadataResponse lists brokers, and the topics asked for in the order asked,
// or all by name.
type MetadataResponse struct {
	Nodes      []NodeAddr
	Controller NodeID
	Topics     []TopicMeta
}

// A NodeAddr is a broker and the address clients reach it at.
type NodeAddr struct {
	ID   NodeID
	Addr string // host:port
}

// A TopicMeta is one topic. Unless Code is CodeOK only Name is set.
type TopicMeta struct {
	Code       Code
	Name       string
	ID         TopicID
	Partitions []PartitionMeta // ascending by number
}

// A PartitionMeta says who leads one partition.
type PartitionMeta struct {
	Partition int32
	Code      Code // CodeOK, or why it cannot be served now
	Leader    NodeID
	Epoch     Epoch
}

func (*MetadataRequest) API() API { return APIMetadata }

func (m *MetadataRequest) AppendTo(dst []byte, _ Version) []byte {
	dst = AppendBool(dst, m.All)
	return appendStrings(dst, m.Topics)
}

func (m *MetadataRequest) Decode(r *Reader, _ Version) {
	m.All = r.Bool()
	m.Topics = readStrings(r, m.Topics)
}

func (*MetadataResponse) API() API { return APIMetadata }

func (m *MetadataResponse) AppendTo(dst []byte, _ Version) []byte {
	dst = appendSlice(dst, m.Nodes)
	dst = Append32(dst, m.Controller)
	return appendSlice(dst, m.Topics)
}

func (m *MetadataResponse) Decode(r *Reader, _ Version) {
	m.Nodes = readSlice(r, m.Nodes)
	m.Controller = NodeID(r.I32())
	m.Topics = readSlice(r, m.Topics)
}

func (*NodeAddr) least() int { return 5 }

func (n *NodeAddr) append(dst []byte) []byte {
	dst = Append32(dst, n.ID)
	return AppendString(dst, n.Addr)
}

func (n *NodeAddr) decode(r *Reader) {
	n.ID = NodeID(r.I32())
	n.Addr = r.String()
}

func (*TopicMeta) least() int { return 12 }

func (t *TopicMeta) append(dst []byte) []byte {
	dst = Append16(dst, t.Code)
	dst = AppendString(dst, t.Name)
	dst = Append64(dst, t.ID)
	return appendSlice(dst, t.Partitions)
}

func (t *TopicMeta) decode(r *Reader) {
	t.Code = Code(r.U16())
	t.Name = r.String()
	t.ID = TopicID(r.U64())
	t.Partitions = readSlice(r, t.Partitions)
}

func (*PartitionMeta) least() int { return 14 }

func (p *PartitionMeta) append(dst []byte) []byte {
	dst = Append32(dst, p.Partition)
	dst = Append16(dst, p.Code)
	dst = Append32(dst, p.Leader)
	return Append32(dst, p.Epoch)
}

func (p *PartitionMeta) decode(r *Reader) {
	p.Partition = r.I32()
	p.Code = Code(r.U16())
	p.Leader = NodeID(r.I32())
	p.Epoch = Epoch(r.I32())
}
