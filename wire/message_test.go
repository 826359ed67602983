package wire

import (
	"encoding/hex"
	"errors"
	"flag"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write the frozen samples of messages that have none yet")

// messages returns a filled sample of each message, every array with elements.
func messages(t testing.TB) []Message {
	uuid := UUID{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}
	var batches []Batch
	for _, v := range vectors(t)[:2] {
		batches = append(batches, unhex(t, &v.Batch))
	}
	return []Message{
		&HelloRequest{Client: "order-centre", Software: "teralog 1.0"},
		&HelloResponse{
			Cluster: uuid, Node: 3, Software: "teralog 1.0",
			MaxFrame: 16 << 20, MaxBatch: MaxBatchBytes, MaxInFlight: 100,
			APIs: []APIRange{{APIHello, 0, 0}, {APIFetch, 0, 7}},
		},
		&MetadataRequest{All: true, Topics: []string{"order_event", "", "flights"}},
		&MetadataResponse{
			Nodes:      []NodeAddr{{0, "127.0.0.1:9292"}, {1, "[::1]:9292"}},
			Controller: 1,
			Topics: []TopicMeta{
				{Name: "flights", ID: 4711, Partitions: []PartitionMeta{{0, CodeOK, 0, 5}, {1, CodeOffline, NoNode, NoEpoch}}},
				{Code: CodeUnknownTopic, Name: "none"},
			},
		},
		&ProduceRequest{Acks: AcksAll, TimeoutMillis: 30000, Batches: batches},
		&ProduceResponse{Results: []ProduceResult{
			{Base: 100, AppendTime: 1700000000000, LogStart: 7, Epoch: 5},
			{Code: CodeBusy, Base: -1, Epoch: NoEpoch, RetryAfterMillis: 250, Message: "queue full"},
		}},
		&FetchRequest{Replica: NoNode, MaxWaitMillis: 500, MinBytes: 1, MaxBytes: 8 << 20, Plain: true, Partitions: []FetchPartition{
			{Topic: 4711, Partition: 2, Offset: 1 << 40, Epoch: 5, LastEpoch: 4, MaxBytes: 1 << 20},
			{Topic: 1 << 63, Partition: 0, Offset: 0, Epoch: NoEpoch, LastEpoch: NoEpoch},
		}},
		&FetchResponse{Partitions: []FetchResult{
			{Topic: 4711, Partition: 2, Epoch: 5, LogStart: 1, Committed: 20, End: 21, Next: 19, Diverge: NoEpoch, DivergeEnd: -1, CorruptFrom: -1, CorruptTo: -1, Bytes: uint32(len(batches[0])), Data: batches[0]},
			{Topic: 4711, Partition: 3, Code: CodeCorrupt, Epoch: 5, Committed: 9, End: 9, CorruptFrom: 3, CorruptTo: 5},
			{Topic: 4712, Partition: 0, Epoch: 6, Committed: 40, End: 40, Next: 40, Bytes: uint32(len(batches[1])), Data: batches[1]},
		}},
		&ListOffsetsRequest{Queries: []OffsetQuery{{4711, 2, 5, Latest, 0}, {4711, 3, NoEpoch, AtEventTime, 1700000000000}}},
		&ListOffsetsResponse{Results: []OffsetResult{{CodeOK, 42, 1700000000001, 5}, {CodeNotLeader, -1, 0, 6}}},
		&InitProducerRequest{},
		&InitProducerResponse{Producer: 9001, Epoch: 2},
		&CreateTopicRequest{Request: uuid, Name: "order_event", Partitions: 6, Replication: 1, Settings: []Setting{{"flush", "sync"}, {"note", ""}}, ValidateOnly: true},
		&CreateTopicResponse{ID: 4711},
		&DeleteTopicRequest{Request: uuid, ID: 4711},
		&DeleteTopicResponse{},
		&DescribeTopicsRequest{Topics: []string{"flights"}},
		&DescribeTopicsResponse{Topics: []TopicDescription{
			{Name: "flights", ID: 4711, Created: 1700000000000, Settings: []Setting{{"flush", "sync"}}, Partitions: []PartitionDescription{
				{Partition: 1, Leader: 3, Epoch: 5, Start: 1, Committed: 2, End: 3, Bytes: 4, GreatestTime: 5, LastAppendTime: 6, Directory: uuid},
			}},
			{Code: CodeUnknownTopic, Name: "none"},
		}},
		&TrimRequest{Topic: 4711, Partition: 2, Before: 1000},
		&TrimResponse{Start: 998},
		&RecoveryRequest{},
		&RecoveryResponse{Lines: []string{"flights-0: kept 100 bytes", "flights-1: cut 7 bytes"}},
		&IntroduceRequest{Node: 3, Incarnation: uuid},
		&IntroduceResponse{Incarnation: uuid, Fresh: true},
		&RaftRequest{Answer: true, Messages: [][]byte{{1, 2, 3}, {4}}},
		&RaftResponse{},
		&CommandRequest{Command: []byte{1, 7, 7}},
		&CommandResponse{Offset: 41, Topic: 4711, First: 9001, Count: 1000},
	}
}

func nameOf(m Message) string { return reflect.TypeOf(m).Elem().Name() }

func blank(m Message) Message { return reflect.New(reflect.TypeOf(m).Elem()).Interface().(Message) }

// TestEveryMessageHasASample: the table of APIs and the samples name the same
// types, so that none is left out of the tests below.
func TestEveryMessageHasASample(t *testing.T) {
	var samples, table []string
	for _, m := range messages(t) {
		samples = append(samples, nameOf(m))
	}
	for _, r := range APIs() {
		for _, m := range []Message{r.API.NewRequest(), r.API.NewResponse()} {
			if m.API() != r.API {
				t.Errorf("%s stands in the row of %s", nameOf(m), r.API)
			}
			table = append(table, nameOf(m))
		}
	}
	if !slices.Equal(samples, table) {
		t.Errorf("samples %v\n  table %v", samples, table)
	}
}

// TestFrozen compares each sample with its frozen bytes, and decodes them to
// the sample again, into a fresh message and into a used one.
func TestFrozen(t *testing.T) {
	for _, m := range messages(t) {
		name := filepath.Join("../testdata/wire/v0", nameOf(m)+".hex")
		got := m.AppendTo(nil, 0)
		if _, err := os.Stat(name); *update && os.IsNotExist(err) {
			if err := os.WriteFile(name, []byte(wrap(hex.EncodeToString(got))), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		file, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		frozen, err := hex.DecodeString(strings.ReplaceAll(string(file), "\n", ""))
		if err != nil {
			t.Fatal(err)
		}
		if string(got) != string(frozen) {
			t.Errorf("%s:\n   got %x\nfrozen %x", nameOf(m), got, frozen)
		}

		back, used := blank(m), blank(m)
		if err := DecodeBody(new(Reader), back, 0, frozen); err != nil || !reflect.DeepEqual(back, m) {
			t.Errorf("%s: decoded %+v (%v), want %+v", nameOf(m), back, err, m)
		}
		for range 2 {
			err = DecodeBody(new(Reader), used, 0, frozen)
		}
		if err != nil || string(used.AppendTo(nil, 0)) != string(frozen) {
			t.Errorf("%s: decoded twice into one message: %+v (%v)", nameOf(m), used, err)
		}
	}
}

// wrap breaks s into lines of 80.
func wrap(s string) string {
	var b strings.Builder
	for len(s) > 80 {
		b.WriteString(s[:80] + "\n")
		s = s[80:]
	}
	return b.String() + s + "\n"
}

// allocated returns the bytes that f takes from the heap; 0 where they cannot
// be measured.
func allocated(f func()) uint64 {
	if raceEnabled {
		f()
		return 0
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

// TestDamagedMessages cuts each sample at every byte, adds a byte, and sets
// each byte to other values: no panic, and what is accepted is canonical.
func TestDamagedMessages(t *testing.T) {
	for _, m := range messages(t) {
		good := m.AppendTo(nil, 0)
		f := func(body []byte, mustFail bool, what string, at int) {
			t.Helper()
			back := blank(m)
			err := DecodeBody(new(Reader), back, 0, body)
			if err != nil && !errors.Is(err, ErrCorrupt) || err == nil && mustFail {
				t.Errorf("%s %s at byte %d: %v", nameOf(m), what, at, err)
			}
			if err == nil && string(back.AppendTo(nil, 0)) != string(body) {
				t.Errorf("%s %s at byte %d: accepted %x, encoded again %x", nameOf(m), what, at, body, back.AppendTo(nil, 0))
			}
		}
		size := allocated(func() {
			for at := range good {
				f(good[:at], true, "cut", at)
			}
		})
		if limit := uint64(len(good) * (2*len(good) + 1<<10)); size > limit {
			t.Errorf("%s: the cuts took %d bytes, want at most %d", nameOf(m), size, limit)
		}
		if m.API() != APIHello { // Hello skips what it does not know
			f(append(slices.Clone(good), 0), true, "with a byte more", len(good))
			for at := range good {
				for _, c := range []byte{0, 1, 0x7f, 0x80, 0xff, good[at] ^ 0x40} {
					bad := slices.Clone(good)
					bad[at] = c
					f(bad, false, "set", at)
				}
				f(slices.Concat(good[:at], []byte{good[at] | 0x80, 0}, good[at+1:]), false, "made not minimal", at)
			}
		}
	}
}

func TestHelloSkipsATail(t *testing.T) {
	for _, m := range messages(t)[:2] {
		body := append(m.AppendTo(nil, 0), 1, 2, 3)
		back := blank(m)
		if err := DecodeBody(new(Reader), back, 0, body); err != nil || !reflect.DeepEqual(back, m) {
			t.Errorf("%s with a tail: %+v, %v", nameOf(m), back, err)
		}
	}
}

// TestHugeCounts sets each count and length to values the bytes left cannot
// hold: an error, and no more memory than the error itself.
func TestHugeCounts(t *testing.T) {
	f := func(m Message, prefix int) {
		t.Helper()
		head := make([]byte, prefix)
		if p, ok := m.(*ProduceRequest); ok {
			head = p.AppendTo(nil, 0)[:prefix]
		}
		for _, n := range []uint64{1 << 20, MaxCount + 1, math.MaxInt32, math.MaxUint32, math.MaxInt64, math.MaxUint64} {
			body := AppendUvarint(head, n)
			body = append(body, make([]byte, 100)...)
			size := allocated(func() {
				if err := DecodeBody(new(Reader), blank(m), 0, body); !errors.Is(err, ErrCorrupt) {
					t.Errorf("%s, %d at byte %d: %v", nameOf(m), n, prefix, err)
				}
			})
			if size > 8<<10 {
				t.Errorf("%s, %d at byte %d: took %d bytes", nameOf(m), n, prefix, size)
			}
		}
	}

	f(&HelloRequest{}, 0)
	f(&HelloRequest{}, 1)
	f(&HelloResponse{}, 20)
	f(&HelloResponse{}, 33)
	f(&MetadataRequest{}, 1)
	f(&MetadataResponse{}, 0)
	f(&MetadataResponse{}, 5)
	f(&ProduceRequest{}, 5)
	f(&ProduceResponse{}, 0)
	f(&FetchRequest{}, 17)
	f(&FetchResponse{}, 0)
	f(&ListOffsetsRequest{}, 0)
	f(&ListOffsetsResponse{}, 0)
	f(&CreateTopicRequest{}, 16)
	f(&CreateTopicRequest{}, 23)
	f(&DescribeTopicsRequest{}, 0)
	f(&DescribeTopicsResponse{}, 0)
	f(&RecoveryResponse{}, 0)

	// a count that fits, of elements whose own counts do not
	fits := func(m Message, body []byte, factor int) {
		t.Helper()
		size := allocated(func() {
			if err := DecodeBody(new(Reader), m, 0, body); !errors.Is(err, ErrCorrupt) {
				t.Errorf("%s: %v", nameOf(m), err)
			}
		})
		if limit := uint64(factor*len(body) + 8<<10); size > limit {
			t.Errorf("%s: %d bytes took %d, want at most %d", nameOf(m), len(body), size, limit)
		}
	}
	many := func(n int) []byte { return append(AppendUvarint(nil, uint64(n)), make([]byte, 1<<20)...) }
	tail := func(b []byte) []byte { return append(b[:MaxCount], 0xff, 0xff, 0xff, 0xff, 0x0f) }
	fits(&MetadataRequest{}, append([]byte{0}, many(MaxCount)...), 4)             // left-over bytes
	fits(&MetadataResponse{}, append([]byte{0, 0, 0, 0, 0}, many(80_000)...), 10) // the topics end before the bytes
	fits(&FetchResponse{}, many(12_000), 4)
	fits(&ProduceResponse{}, many(29_000), 4)
	fits(&MetadataRequest{}, append([]byte{0}, tail(many(MaxCount-1))...), 40) // the last name is too long
}

// TestRequestMemory decodes the requests that grow most for their size and
// compares what they take with the table's estimate.
func TestRequestMemory(t *testing.T) {
	f := func(m Message) {
		t.Helper()
		body := m.AppendTo(nil, 0)
		back := m.API().NewRequest()
		got := int64(len(body)) + int64(allocated(func() {
			if err := DecodeBody(new(Reader), back, 0, body); err != nil {
				t.Errorf("%s: %v", nameOf(m), err)
			}
		}))
		if limit := m.API().RequestMemory(len(body)) + 1<<10; got > limit {
			t.Errorf("%s: a body of %d bytes took %d, the estimate is %d", nameOf(m), len(body), got, limit)
		}
	}
	b := sample(t, BuilderOptions{})[:HeaderSize]
	for _, n := range []int{1, 10, 1000, MaxCount} {
		f(&HelloRequest{Client: strings.Repeat("x", min(n, MaxString)), Software: "y"})
		f(&MetadataRequest{Topics: make([]string, n)})
		f(&MetadataRequest{Topics: slices.Repeat([]string{"abc"}, n)})
		f(&DescribeTopicsRequest{Topics: make([]string, n)})
		f(&CreateTopicRequest{Settings: make([]Setting, n)})
		f(&CreateTopicRequest{Settings: slices.Repeat([]Setting{{"k", "v"}}, n)})
		f(&FetchRequest{Partitions: make([]FetchPartition, n)})
		f(&ListOffsetsRequest{Queries: make([]OffsetQuery, n)})
		f(&ProduceRequest{Batches: slices.Repeat([]Batch{b}, n)})
	}
}

// TestLeast: what an element says of its smallest form is the length of its
// zero value.
func TestLeast(t *testing.T) {
	check(t, new(APIRange))
	check(t, new(NodeAddr))
	check(t, new(TopicMeta))
	check(t, new(PartitionMeta))
	check(t, new(ProduceResult))
	check(t, new(FetchPartition))
	check(t, new(FetchResult))
	check(t, new(OffsetQuery))
	check(t, new(OffsetResult))
	check(t, new(Setting))
	check(t, new(TopicDescription))
	check(t, new(PartitionDescription))
}

func check[T any, P element[T]](t *testing.T, p P) {
	t.Helper()
	if got := len(p.append(nil)); got != p.least() {
		t.Errorf("%T: zero value takes %d bytes, least is %d", p, got, p.least())
	}
}

func TestBadFields(t *testing.T) {
	f := func(m Message) {
		t.Helper()
		if err := DecodeBody(new(Reader), blank(m), 0, m.AppendTo(nil, 0)); !errors.Is(err, ErrCorrupt) {
			t.Errorf("%+v: %v", m, err)
		}
	}

	f(&ProduceRequest{Acks: 2})
	f(&ProduceRequest{Acks: -2})
	f(&ProduceRequest{Batches: []Batch{make(Batch, HeaderSize-1)}})
	f(&ProduceRequest{Batches: []Batch{make(Batch, HeaderSize-1), make(Batch, 200)}})
	f(&ListOffsetsRequest{Queries: []OffsetQuery{{Kind: AtAppendTime + 1}}})
	f(&HelloRequest{Client: strings.Repeat("x", MaxString+1)})
	f(&MetadataRequest{Topics: make([]string, MaxCount+1)})
}

func TestFetchResponseWithoutItsRange(t *testing.T) {
	m := &FetchResponse{Partitions: []FetchResult{{Bytes: 5}}}
	head := m.AppendTo(nil, 0)
	if want := 1 + m.Partitions[0].least(); len(head) != want {
		t.Fatalf("%d bytes, want %d: the range follows as a file", len(head), want)
	}
	var back FetchResponse
	if err := DecodeBody(new(Reader), &back, 0, append(head, "range"...)); err != nil || string(back.Partitions[0].Data) != "range" {
		t.Fatalf("%+v, %v", back, err)
	}

	panics := func(results ...FetchResult) {
		t.Helper()
		defer func() {
			if recover() == nil {
				t.Errorf("no panic over %+v", results)
			}
		}()
		(&FetchResponse{Partitions: results}).AppendTo(nil, 0)
	}
	five, four := []byte("range"), []byte("four")
	panics(FetchResult{Bytes: 5, Data: four})
	panics(FetchResult{Bytes: 4, Data: four}, FetchResult{Bytes: 5})             // one here, one as a file
	panics(FetchResult{Bytes: 5}, FetchResult{Bytes: 4, Data: four})             //
	panics(FetchResult{Bytes: 4, Data: five}, FetchResult{Bytes: 5, Data: four}) // the sums agree
}

// TestDecodeAllocs: decoding the requests of the hot paths into a used message
// takes nothing from the heap.
func TestDecodeAllocs(t *testing.T) {
	if raceEnabled {
		t.Skip("not measured under the race detector")
	}
	var r Reader
	for _, m := range messages(t) {
		switch m.(type) {
		case *ProduceRequest, *FetchRequest, *FetchResponse, *ListOffsetsRequest:
			body := m.AppendTo(nil, 0)
			back := blank(m)
			dst := make([]byte, 0, len(body))
			if n := testing.AllocsPerRun(100, func() {
				if err := DecodeBody(&r, back, 0, body); err != nil {
					t.Fatal(err)
				}
				dst = back.AppendTo(dst[:0], 0)
			}); n != 0 {
				t.Errorf("%s: %v allocations to decode and encode", nameOf(m), n)
			}
		}
	}
}
