package storage

import (
	"cmp"
	"slices"

	"github.com/teralog/teralog/wire"
)

// A Point is a recovery point: what recovery may take for granted about one
// log. Every byte below Offset was fsynced before the point was written,
// directory entries included.
type Point struct {
	ID     wire.PartitionID
	Start  wire.Offset // of the log, inclusive; nothing below it is served again
	Offset wire.Offset // durable below

	SegmentBase wire.Offset // the segment that Offset lies in or ends,
	Position    int64       // and where in its file, in bytes

	Committed wire.Offset // consumers may have seen records below; may pass Offset

	GreatestTime int64 // greatest event time of that segment's batches below Offset, ms
	AppendTime   int64 // their greatest append time, ms

	IndexCount, TimeCount uint32 // entries of that segment's indexes below Offset
	IndexCRC, TimeCRC     uint32 // over those entries

	Snapshot wire.Offset // of the producer state that goes with it, -1 without one
}

// A CleanEnd is the end of a log that was closed with all its bytes fsynced.
type CleanEnd struct {
	Point     Point  // Point.Offset is the end
	Position  int64  // of the last batch in the file of Point.SegmentBase; -1: that file is empty
	HeaderCRC uint32 // of that batch
}

const (
	pointSize = 12 + 8*8 + 4*4
	endSize   = pointSize + 8 + 4
)

// Both files hold one entry a partition, sorted by partition. 64 MiB is room for
// some 600,000.
var (
	pointsFile = smallFile{magic: "TLrp", version: 1, max: 64 << 20}
	cleanFile  = smallFile{magic: "TLcl", version: 1, max: 64 << 20}
)

// append lays a point out:
//
//	| topicID u64 | partition u32 | start i64 | offset i64 | segmentBase i64 | position i64 |
//	| committed i64 | greatestTime i64 | appendTime i64 | snapshot i64 |
//	| indexCount u32 | timeCount u32 | indexCRC u32 | timeCRC u32 |
func (p Point) append(b []byte) []byte {
	b = wire.Append64(b, uint64(p.ID.Topic))
	b = wire.Append32(b, p.ID.Partition)
	for _, v := range [...]int64{int64(p.Start), int64(p.Offset), int64(p.SegmentBase), p.Position,
		int64(p.Committed), p.GreatestTime, p.AppendTime, int64(p.Snapshot)} {
		b = wire.Append64(b, v)
	}
	for _, v := range [...]uint32{p.IndexCount, p.TimeCount, p.IndexCRC, p.TimeCRC} {
		b = wire.Append32(b, v)
	}
	return b
}

func readPoint(r *wire.Reader) Point {
	p := Point{ID: readPartition(r)}
	p.Start, p.Offset, p.SegmentBase = wire.Offset(r.I64()), wire.Offset(r.I64()), wire.Offset(r.I64())
	p.Position = r.I64()
	p.Committed = wire.Offset(r.I64())
	p.GreatestTime, p.AppendTime = r.I64(), r.I64()
	p.Snapshot = wire.Offset(r.I64())
	p.IndexCount, p.TimeCount, p.IndexCRC, p.TimeCRC = r.U32(), r.U32(), r.U32(), r.U32()
	if r.Err() == nil && !p.plausible() {
		r.Failf("impossible recovery point %+v", p)
	}
	return p
}

func (p Point) plausible() bool {
	return 0 <= p.Start && p.Start <= p.Offset &&
		0 <= p.SegmentBase && p.SegmentBase <= p.Offset &&
		0 <= p.Position && 0 <= p.Committed &&
		-1 <= p.Snapshot && p.Snapshot <= p.Offset
}

func byPartition(a, b wire.PartitionID) int {
	return cmp.Or(cmp.Compare(a.Topic, b.Topic), cmp.Compare(a.Partition, b.Partition))
}

func encodePoints(points map[wire.PartitionID]Point) []byte {
	b := make([]byte, 0, len(points)*pointSize)
	for _, id := range sortedPartitions(points) {
		b = points[id].append(b)
	}
	return b
}

func sortedPartitions[V any](of map[wire.PartitionID]V) []wire.PartitionID {
	ids := make([]wire.PartitionID, 0, len(of))
	for id := range of {
		ids = append(ids, id)
	}
	slices.SortFunc(ids, byPartition)
	return ids
}

func decodePoints(b []byte) (map[wire.PartitionID]Point, error) {
	points := make(map[wire.PartitionID]Point, len(b)/pointSize)
	r := wire.NewReader(b)
	last := wire.PartitionID{}
	for r.Left() > 0 {
		p := readPoint(r)
		if r.Err() == nil && byPartition(last, p.ID) >= 0 {
			r.Failf("partition %v after %v", p.ID, last)
		}
		points[p.ID], last = p, p.ID
	}
	if err := r.Finish(); err != nil {
		return nil, err
	}
	return points, nil
}

// A cleanStop is the file that says that a start ended well. It holds only for
// the start it names: one that a power cut brought back says nothing.
type cleanStop struct {
	start uint64
	ends  map[wire.PartitionID]CleanEnd
}

// encode lays a clean stop out:
//
//	| start u64 | for each partition: point, position i64, headerCRC u32 |
func (c cleanStop) encode() []byte {
	b := make([]byte, 0, 8+len(c.ends)*endSize)
	b = wire.Append64(b, c.start)
	for _, id := range sortedPartitions(c.ends) {
		e := c.ends[id]
		b = e.Point.append(b)
		b = wire.Append64(b, e.Position)
		b = wire.Append32(b, e.HeaderCRC)
	}
	return b
}

func decodeCleanStop(b []byte) (cleanStop, error) {
	r := wire.NewReader(b)
	c := cleanStop{start: r.U64(), ends: make(map[wire.PartitionID]CleanEnd, len(b)/endSize)}
	last := wire.PartitionID{}
	for r.Left() > 0 {
		e := CleanEnd{Point: readPoint(r), Position: r.I64(), HeaderCRC: r.U32()}
		if r.Err() == nil && (byPartition(last, e.Point.ID) >= 0 || e.Position < -1) {
			r.Failf("end of partition %v after %v at %d", e.Point.ID, last, e.Position)
		}
		c.ends[e.Point.ID], last = e, e.Point.ID
	}
	if err := r.Finish(); err != nil {
		return cleanStop{}, err
	}
	return c, nil
}
