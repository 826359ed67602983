package wire

import (
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"math"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
)

// A vector is one case of testdata/vectors/batches.json, made by another
// implementation. Bytes are hex, null is null.
type vector struct {
	Name   string
	Fields struct {
		BaseOffset    Offset
		AppendTime    int64
		ProducerID    ProducerID
		ProducerEpoch int16
		BaseSequence  int32
		TopicID       TopicID
		Partition     int32
		LeaderEpoch   Epoch
		Attributes    uint16
	}
	Records []struct {
		Time    int64
		Key     *string
		Value   *string
		Headers [][2]*string
	}
	Batch string
}

func vectors(t testing.TB) []vector {
	t.Helper()
	b, err := os.ReadFile("../testdata/vectors/batches.json")
	if err != nil {
		t.Fatal(err)
	}
	var vs []vector
	if err := json.Unmarshal(b, &vs); err != nil {
		t.Fatal(err)
	}
	if len(vs) == 0 {
		t.Fatal("no vectors")
	}
	return vs
}

func unhex(t testing.TB, s *string) []byte {
	t.Helper()
	if s == nil {
		return nil
	}
	b, err := hex.DecodeString(*s)
	if err != nil {
		t.Fatal(err)
	}
	return append([]byte{}, b...)
}

// records returns the vector's records with the offsets and times a reader
// sees.
func (v vector) records(t testing.TB) []Record {
	var rs []Record
	for i, r := range v.Records {
		rec := Record{
			Offset: v.Fields.BaseOffset + Offset(i), Time: r.Time,
			Key: unhex(t, r.Key), Value: unhex(t, r.Value),
		}
		if v.Fields.Attributes&attrAppendTime != 0 {
			rec.Time = v.Fields.AppendTime
		}
		for _, h := range r.Headers {
			rec.Headers = append(rec.Headers, Header{unhex(t, h[0]), unhex(t, h[1])})
		}
		rs = append(rs, rec)
	}
	return rs
}

// collect reads all records of b and keeps copies.
func collect(d *Decoder, b Batch) ([]Record, error) {
	var rs []Record
	err := b.Records(d, func(r *Record) error {
		c := *r
		c.Key, c.Value = slices.Clone(r.Key), slices.Clone(r.Value)
		c.Headers = nil
		for _, h := range r.Headers {
			c.Headers = append(c.Headers, Header{slices.Clone(h.Key), slices.Clone(h.Value)})
		}
		rs = append(rs, c)
		return nil
	})
	return rs, err
}

func TestVectorsEncode(t *testing.T) {
	for _, v := range vectors(t) {
		b := NewBuilder(BuilderOptions{
			Topic: v.Fields.TopicID, Partition: v.Fields.Partition,
			Producer: v.Fields.ProducerID, ProducerEpoch: v.Fields.ProducerEpoch, BaseSequence: v.Fields.BaseSequence,
			Transactional: v.Fields.Attributes&attrTransaction != 0,
		})
		for i, r := range v.records(t) {
			if ok, err := b.Add(v.Records[i].Time, r.Key, r.Value, r.Headers); !ok || err != nil {
				t.Fatalf("%s: Add = %v, %v", v.Name, ok, err)
			}
		}
		buf, err := b.Build()
		if err != nil {
			t.Fatal(err)
		}
		if f := v.Fields; f.LeaderEpoch != NoEpoch {
			Batch(buf.B).Stamp(f.BaseOffset, f.LeaderEpoch, f.AppendTime, f.Attributes&attrAppendTime != 0)
		}
		if got := hex.EncodeToString(buf.B); got != v.Batch {
			t.Errorf("%s:\n got %s\nwant %s", v.Name, got, v.Batch)
		}
		buf.Release()
	}
}

func TestVectorsDecode(t *testing.T) {
	for _, v := range vectors(t) {
		b := Batch(unhex(t, &v.Batch))
		if err := b.Verify(); err != nil {
			t.Fatalf("%s: %v", v.Name, err)
		}
		f := v.Fields
		id, epoch, seq := b.Producer()
		got := []any{b.BaseOffset(), b.AppendTime(), id, epoch, seq, b.Topic(), b.Partition(), b.LeaderEpoch(), b.Attributes()}
		want := []any{f.BaseOffset, f.AppendTime, f.ProducerID, f.ProducerEpoch, f.BaseSequence, f.TopicID, f.Partition, f.LeaderEpoch, f.Attributes}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("%s: fields %v, want %v", v.Name, got, want)
		}
		rs, err := collect(new(Decoder), b)
		if err != nil || !reflect.DeepEqual(rs, v.records(t)) {
			t.Errorf("%s: records %v (%v), want %v", v.Name, rs, err, v.records(t))
		}
	}
}

// sample returns a good produced batch of three records.
func sample(t testing.TB, o BuilderOptions) Batch {
	t.Helper()
	if o.Topic == 0 {
		o.Topic = 1024
	}
	b := NewBuilder(o)
	for i := range int64(3) {
		ok, err := b.Add(1700000000000+i, []byte("key"), []byte(strings.Repeat("value ", 20)), []Header{{[]byte("h"), nil}})
		if !ok || err != nil {
			t.Fatal(ok, err)
		}
	}
	buf, err := b.Build()
	if err != nil {
		t.Fatal(err)
	}
	defer buf.Release()
	return slices.Clone(Batch(buf.B))
}

// edit returns a copy of b changed by change, with a right header CRC.
func edit(b Batch, change func(b Batch)) Batch {
	b = slices.Clone(b)
	change(b)
	b.sealHeader()
	return b
}

func put16(at int, v uint16) func(Batch) {
	return func(b Batch) { binary.LittleEndian.PutUint16(b[at:], v) }
}

func put32(at int, v uint32) func(Batch) {
	return func(b Batch) { binary.LittleEndian.PutUint32(b[at:], v) }
}

func put64(at int, v uint64) func(Batch) {
	return func(b Batch) { binary.LittleEndian.PutUint64(b[at:], v) }
}

func TestVerifyProduce(t *testing.T) {
	good := sample(t, BuilderOptions{Producer: 7})
	zipped := sample(t, BuilderOptions{Codec: Zstd})
	f := func(b Batch, want Code) {
		t.Helper()
		err := b.VerifyProduce(BatchLimits{MaxBatch: 2000, MaxRecords: 3000})
		if CodeOf(err) != want {
			t.Errorf("VerifyProduce: %v, want %v", err, want)
		}
		if err != nil && !CodeOf(err).Definite() {
			t.Errorf("refused with %v, which is not definite", err)
		}
	}
	changed := func(change func(Batch), want Code) {
		t.Helper()
		f(edit(good, change), want)
	}

	f(good, CodeOK)
	f(zipped, CodeOK)

	// not a batch at all
	f(nil, CodeInvalidBatch)
	f(good[:HeaderSize-1], CodeInvalidBatch)
	f(make(Batch, HeaderSize), CodeInvalidBatch) // zeros
	changed(func(b Batch) { b[0] = 'X' }, CodeInvalidBatch)
	changed(func(b Batch) { b[3] = 2 }, CodeUnsupported) // a format to come

	// CRCs
	f(append(slices.Clone(good[:len(good)-1]), 'x'), CodeCorruptBatch)
	changed(put32(atRecordsCRC, 1), CodeCorruptBatch)
	bad := slices.Clone(good)
	bad[atHeaderCRC]++
	f(bad, CodeCorruptBatch)

	// lengths
	f(good[:len(good)-1], CodeInvalidBatch)               // shorter than it says
	f(append(slices.Clone(good), 0), CodeInvalidBatch)    // longer than it says
	changed(put32(atBatchLength, 95), CodeInvalidBatch)   // shorter than a header
	changed(put32(atRecordsLength, 10), CodeInvalidBatch) // other than batchLength-96 without codec
	changed(put32(atRecordsLength, uint32(len(good)-HeaderSize-1)), CodeInvalidBatch)
	changed(put32(atRecordsLength, uint32(len(good)-HeaderSize+1)), CodeInvalidBatch)
	changed(put32(atBatchLength, 1<<31), CodeTooLarge)            // beyond every limit
	changed(put32(atRecordsLength, 1<<31), CodeTooLarge)          // the same
	f(edit(zipped, put32(atRecordsLength, 20)), CodeInvalidBatch) // too short for three records
	f(edit(zipped, put32(atRecordsLength, 3001)), CodeTooLarge)   // above the decompression limit
	f(edit(zipped, put32(atRecordsLength, 3000)), CodeOK)         // at the limit; the lie is the readers' to find
	f(sample(t, BuilderOptions{}), CodeOK)

	// topic and partition
	changed(put64(atTopicID, 0), CodeInvalidBatch)
	changed(put32(atPartition, math.MaxUint32), CodeInvalidBatch)

	// counts
	changed(put32(atRecordCount, 0), CodeInvalidBatch)
	changed(put32(atRecordCount, math.MaxUint32), CodeInvalidBatch)
	changed(func(b Batch) { put32(atRecordCount, 1<<20)(b); put32(atLastOffsetDelta, 1<<20-1)(b) }, CodeInvalidBatch)
	changed(put32(atRecordCount, 2), CodeInvalidBatch)     // lastOffsetDelta is not recordCount-1
	changed(put32(atLastOffsetDelta, 3), CodeInvalidBatch) // the same
	changed(put32(atLastOffsetDelta, 1<<31), CodeInvalidBatch)

	changed(func(b Batch) { put32(atRecordCount, 0)(b); put32(atLastOffsetDelta, 0)(b) }, CodeInvalidBatch)
	f(edit(good[:HeaderSize], func(b Batch) { // what compaction leaves is not for producers
		put32(atBatchLength, HeaderSize)(b)
		put32(atRecordsCRC, 0)(b)
		put32(atRecordCount, 0)(b)
		put32(atRecordsLength, 0)(b)
		b.SetProducer(NoProducer, -1, -1)
	}), CodeInvalidBatch)

	// times
	changed(put64(atMaxTime, 1699999999999), CodeInvalidBatch) // below baseTime

	// attributes
	changed(put16(atAttributes, attrControl), CodeInvalidBatch)
	changed(put16(atAttributes, attrTransaction), CodeUnsupported)
	changed(put16(atAttributes, 3), CodeUnsupported) // lz4
	changed(put16(atAttributes, 5), CodeUnsupported) // xerial
	changed(put16(atAttributes, 6), CodeUnsupported)
	changed(put16(atAttributes, 7), CodeUnsupported)
	for bit := 6; bit < 16; bit++ {
		changed(put16(atAttributes, 1<<bit), CodeUnsupported)
	}
	changed(put32(atReserved, 1), CodeInvalidBatch)

	// producers: all three fields or none
	changed(put64(atProducerID, 0), CodeInvalidBatch)
	changed(put64(atProducerID, math.MaxUint64-1), CodeInvalidBatch)
	changed(put64(atProducerID, math.MaxUint64), CodeInvalidBatch) // epoch and sequence left over
	changed(put16(atProducerEpoch, math.MaxUint16), CodeInvalidBatch)
	changed(put32(atBaseSequence, math.MaxUint32), CodeInvalidBatch)

	// what the leader overwrites is no reason to refuse
	changed(put64(atBaseOffset, math.MaxUint64), CodeOK)
	changed(put64(atBaseOffset, math.MaxInt64), CodeOK)
	changed(put64(atAppendTime, 9), CodeOK)
	changed(put32(atLeaderEpoch, 1<<31), CodeOK)
	changed(put16(atAttributes, attrAppendTime), CodeOK)
}

func TestVerifyProduceDefaults(t *testing.T) {
	big := func(bytes int) Batch {
		b := NewBuilder(BuilderOptions{Topic: 1024, MaxBytes: 2 << 20})
		if ok, err := b.Add(0, nil, make([]byte, bytes), nil); !ok || err != nil {
			t.Fatal(ok, err)
		}
		buf, _ := b.Build()
		return buf.B
	}
	f := func(b Batch, l BatchLimits, want Code) {
		t.Helper()
		if err := b.VerifyProduce(l); CodeOf(err) != want {
			t.Errorf("%d bytes: %v, want %v", len(b), err, want)
		}
	}
	fits := big(DefaultMaxBatch - HeaderSize - 11)
	if len(fits) != DefaultMaxBatch {
		t.Fatalf("%d bytes, want %d", len(fits), DefaultMaxBatch)
	}
	f(fits, BatchLimits{}, CodeOK)
	f(big(DefaultMaxBatch-HeaderSize-10), BatchLimits{}, CodeTooLarge)
	f(big(DefaultMaxBatch), BatchLimits{MaxBatch: 2 << 20}, CodeOK)
	f(edit(sample(t, BuilderOptions{Codec: Snappy}), put32(atRecordsLength, DefaultMaxRecords+1)), BatchLimits{}, CodeTooLarge)
}

func TestVerifyStored(t *testing.T) {
	stored := sample(t, BuilderOptions{Producer: 7})
	stored.Stamp(10, 3, 1700000000007, false)
	empty := edit(stored[:HeaderSize], func(b Batch) {
		put32(atBatchLength, HeaderSize)(b)
		put32(atRecordsCRC, 0)(b)
		put32(atRecordCount, 0)(b)
		put32(atRecordsLength, 0)(b)
		b.SetProducer(NoProducer, -1, -1)
	})
	f := func(b Batch, good bool) {
		t.Helper()
		err := b.Verify()
		if good != (err == nil) || err != nil && !errors.Is(err, ErrCorrupt) {
			t.Errorf("Verify: %v, want good %v", err, good)
		}
	}

	f(stored, true)
	f(empty, true) // compaction left nothing of it
	f(empty[:HeaderSize-1], false)
	f(edit(stored, put32(atRecordCount, 2)), true)       // compaction took one record; the walk over the records finds the lie
	f(edit(stored, put32(atLastOffsetDelta, 900)), true) // it took later ones
	f(edit(stored, put32(atLastOffsetDelta, 1)), false)  // more records than offsets
	f(edit(stored, put64(atMaxTime, 5)), true)           // the records left are older than the first
	f(edit(stored, put16(atAttributes, attrControl)), true)
	f(edit(stored, put64(atBaseOffset, math.MaxUint64)), false)
	f(edit(stored, put64(atBaseOffset, math.MaxInt64-3)), true)
	f(edit(stored, put64(atBaseOffset, math.MaxInt64-2)), false) // the next offset would not exist
	f(edit(stored, put32(atLeaderEpoch, 1<<31)), false)
	f(edit(empty, func(b Batch) { b.SetProducer(7, 0, 0) }), false)
	f(edit(append(slices.Clone(empty), 'x'), func(b Batch) { // a byte and no record
		put32(atBatchLength, HeaderSize+1)(b)
		put32(atRecordsLength, 1)(b)
		put32(atRecordsCRC, crcOf([]byte("x")))(b)
	}), false)
	f(edit(empty, put16(atAttributes, uint16(Zstd))), false)
}

func TestParseHeader(t *testing.T) {
	b := sample(t, BuilderOptions{})
	f := func(in []byte, want int) {
		t.Helper()
		got, err := ParseHeader(in)
		if want < 0 {
			if !errors.Is(err, ErrCorrupt) || got != nil {
				t.Errorf("ParseHeader = %d bytes, %v; want an error", len(got), err)
			}
			return
		}
		if err != nil || len(got) != want || got.Len() != len(b) {
			t.Errorf("ParseHeader = %d bytes, %v; want %d", len(got), err, want)
		}
	}

	f(b[:HeaderSize], HeaderSize)            // the records need not be there
	f(b[:len(b)-1], len(b)-1)                //
	f(append(slices.Clone(b), b...), len(b)) // cut to its length
	f(b[:HeaderSize-1], -1)
	f(make([]byte, 200), -1)
	f(edit(b, put64(atBaseOffset, math.MaxUint64)), -1)
}

// TestEveryFlippedBit flips each bit of batches of each kind: none passes.
func TestEveryFlippedBit(t *testing.T) {
	for _, codec := range []Codec{None, Gzip, Snappy, Zstd} {
		b := sample(t, BuilderOptions{Codec: codec, Producer: 7})
		for bit := range 8 * len(b) {
			b[bit/8] ^= 1 << (bit % 8)
			if err := b.VerifyProduce(BatchLimits{}); err == nil {
				t.Fatalf("%s: bit %d of byte %d flipped, still taken", codec, bit%8, bit/8)
			}
			if err := b.Verify(); !errors.Is(err, ErrCorrupt) {
				t.Fatalf("%s: bit %d of byte %d flipped, stored form: %v", codec, bit%8, bit/8, err)
			}
			b[bit/8] ^= 1 << (bit % 8)
		}
		if err := b.VerifyProduce(BatchLimits{}); err != nil {
			t.Fatal(err)
		}
	}
}

func TestEveryCut(t *testing.T) {
	b := sample(t, BuilderOptions{})
	for n := range len(b) {
		if err := b[:n].VerifyProduce(BatchLimits{}); err == nil {
			t.Fatalf("cut at byte %d, still taken", n)
		}
	}
}

func TestStamp(t *testing.T) {
	b := sample(t, BuilderOptions{Producer: 7})
	before := slices.Clone(b)
	b.Stamp(1<<40, 9, 1700000000999, true)
	if err := b.Verify(); err != nil {
		t.Fatal(err)
	}
	if b.BaseOffset() != 1<<40 || b.LastOffset() != 1<<40+2 || b.NextOffset() != 1<<40+3 ||
		b.LeaderEpoch() != 9 || b.AppendTime() != 1700000000999 || !b.AppendTimeType() {
		t.Fatalf("stamped fields: %x", b[:HeaderSize])
	}
	if b.RecordsCRC() != before.RecordsCRC() || string(b[HeaderSize:]) != string(before[HeaderSize:]) {
		t.Fatal("Stamp touched the records")
	}
	b.Stamp(0, NoEpoch, 0, false)
	if string(b) != string(before) {
		t.Fatalf("stamped back:\n got %x\nwant %x", b, before)
	}

	defer func() {
		if recover() == nil {
			t.Error("no panic past the last offset")
		}
	}()
	b.Stamp(math.MaxInt64-2, 0, 0, false)
}

func TestNextSequence(t *testing.T) {
	f := func(seq, n, want int32) {
		t.Helper()
		if got := NextSequence(seq, n); got != want {
			t.Errorf("NextSequence(%d, %d) = %d, want %d", seq, n, got, want)
		}
	}

	f(0, 1, 1)
	f(math.MaxInt32, 0, math.MaxInt32)
	f(math.MaxInt32, 1, 0) // after 2^31-1 comes 0
	f(math.MaxInt32-1, 5, 3)
	f(math.MaxInt32, math.MaxInt32, math.MaxInt32-1)

	b := sample(t, BuilderOptions{Producer: 7, BaseSequence: math.MaxInt32})
	if got := b.LastSequence(); got != 1 {
		t.Errorf("LastSequence = %d, want 1", got)
	}
}

func TestBatches(t *testing.T) {
	one, two := sample(t, BuilderOptions{}), sample(t, BuilderOptions{Codec: Gzip})
	f := func(in []byte, want []Batch, good bool) {
		t.Helper()
		var got []Batch
		var last error
		for b, err := range Batches(in) {
			if last != nil {
				t.Fatal("went on after an error")
			}
			if last = err; err == nil {
				got = append(got, b)
			}
		}
		if !reflect.DeepEqual(got, want) || good != (last == nil) || last != nil && !errors.Is(last, ErrCorrupt) {
			t.Errorf("%d batches, %v; want %d, good %v", len(got), last, len(want), good)
		}
	}

	both := slices.Concat(one, two)
	f(nil, nil, true)
	f(one, []Batch{one}, true)
	f(both, []Batch{one, two}, true)
	f(both[:len(both)-1], []Batch{one}, false) // the second is cut
	f(both[:len(one)+HeaderSize-1], []Batch{one}, false)
	f(append(slices.Clone(one), 0), []Batch{one}, false)
	f(slices.Concat(one, edit(two, put32(atBatchLength, 0))), []Batch{one}, false) // would never end
	f(slices.Concat(edit(one, put32(atBatchLength, math.MaxUint32))), nil, false)

	for range Batches(both) {
		break // the caller may stop
	}
}
