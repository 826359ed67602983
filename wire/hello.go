package wire

// HelloRequest is the first request of every connection.
type HelloRequest struct {
	Client   string // what the client calls itself
	Software string // its program and version
}

// HelloResponse names the broker and what it takes on this connection.
type HelloResponse struct {
	Cluster     UUID
	Node        NodeID
	Software    string
	MaxFrame    uint32 // greatest size field of a request, inclusive
	MaxBatch    uint32 // greatest batchLength any topic takes, inclusive
	MaxInFlight uint32 // requests waiting for their response, inclusive
	APIs        []APIRange
}

// An APIRange is the versions of one API that a broker speaks, both inclusive.
type APIRange struct {
	API      API
	Min, Max Version
}

func (*HelloRequest) API() API { return APIHello }

func (m *HelloRequest) AppendTo(dst []byte, _ Version) []byte {
	dst = AppendString(dst, m.Client)
	return AppendString(dst, m.Software)
}

func (m *HelloRequest) Decode(r *Reader, _ Version) {
	m.Client = r.String()
	m.Software = r.String()
}

func (*HelloResponse) API() API { return APIHello }

func (m *HelloResponse) AppendTo(dst []byte, _ Version) []byte {
	dst = append(dst, m.Cluster[:]...)
	dst = Append32(dst, m.Node)
	dst = AppendString(dst, m.Software)
	dst = Append32(dst, m.MaxFrame)
	dst = Append32(dst, m.MaxBatch)
	dst = Append32(dst, m.MaxInFlight)
	return appendSlice(dst, m.APIs)
}

func (m *HelloResponse) Decode(r *Reader, _ Version) {
	m.Cluster = r.UUID()
	m.Node = NodeID(r.I32())
	m.Software = r.String()
	m.MaxFrame = r.U32()
	m.MaxBatch = r.U32()
	m.MaxInFlight = r.U32()
	m.APIs = readSlice(r, m.APIs)
}

func (*APIRange) least() int { return 6 }

func (a *APIRange) append(dst []byte) []byte {
	dst = Append16(dst, a.API)
	dst = Append16(dst, a.Min)
	return Append16(dst, a.Max)
}

func (a *APIRange) decode(r *Reader) {
	a.API = API(r.U16())
	a.Min = Version(r.U16())
	a.Max = Version(r.U16())
}
