package wire

// An OffsetKind is a question about a partition's offsets.
type OffsetKind uint8

// The questions. The two by time ask for the first offset at or after a time,
// by event time or by append time.
const (
	Earliest     OffsetKind = 0 // first offset retained
	Latest       OffsetKind = 1 // bound of what consumers see
	Greatest     OffsetKind = 2 // first record with the greatest event time
	AtEventTime  OffsetKind = 3
	AtAppendTime OffsetKind = 4
)

// ListOffsetsRequest asks for offsets, any number of partitions at once.
type ListOffsetsRequest struct {
	Queries []OffsetQuery
}

// An OffsetQuery is one question about one partition.
type OffsetQuery struct {
	Topic     TopicID
	Partition int32
	Epoch     Epoch // current leader epoch as the client knows it; NoEpoch: do not check
	Kind      OffsetKind
	Time      int64 // ms since the epoch; for the two kinds by time
}

// ListOffsetsResponse has one result per query, in the order of the request.
type ListOffsetsResponse struct {
	Results []OffsetResult
}

// An OffsetResult answers one query.
type OffsetResult struct {
	Code   Code
	Offset Offset // -1: none yet
	Time   int64  // of the record found, where one was
	Epoch  Epoch  // the leader's
}

func (*ListOffsetsRequest) API() API { return APIListOffsets }

func (m *ListOffsetsRequest) AppendTo(dst []byte, _ Version) []byte {
	return appendSlice(dst, m.Queries)
}

func (m *ListOffsetsRequest) Decode(r *Reader, _ Version) {
	m.Queries = readSlice(r, m.Queries)
}

func (*OffsetQuery) least() int { return 25 }

func (q *OffsetQuery) append(dst []byte) []byte {
	dst = Append64(dst, q.Topic)
	dst = Append32(dst, q.Partition)
	dst = Append32(dst, q.Epoch)
	dst = Append8(dst, q.Kind)
	return Append64(dst, q.Time)
}

func (q *OffsetQuery) decode(r *Reader) {
	q.Topic = TopicID(r.U64())
	q.Partition = r.I32()
	q.Epoch = Epoch(r.I32())
	q.Kind = OffsetKind(r.U8())
	if q.Kind > AtAppendTime {
		r.Failf("offset kind %d", q.Kind)
	}
	q.Time = r.I64()
}

func (*ListOffsetsResponse) API() API { return APIListOffsets }

func (m *ListOffsetsResponse) AppendTo(dst []byte, _ Version) []byte {
	return appendSlice(dst, m.Results)
}

func (m *ListOffsetsResponse) Decode(r *Reader, _ Version) {
	m.Results = readSlice(r, m.Results)
}

func (*OffsetResult) least() int { return 22 }

func (o *OffsetResult) append(dst []byte) []byte {
	dst = Append16(dst, o.Code)
	dst = Append64(dst, o.Offset)
	dst = Append64(dst, o.Time)
	return Append32(dst, o.Epoch)
}

func (o *OffsetResult) decode(r *Reader) {
	o.Code = Code(r.U16())
	o.Offset = Offset(r.I64())
	o.Time = r.I64()
	o.Epoch = Epoch(r.I32())
}
