package broker

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/teralog/teralog/coord"
	"github.com/teralog/teralog/wire"
)

// TestTopicSettings creates a topic with each setting at each of its bounds:
// it can be described as it was asked for, listed, written to, restarted,
// deleted and created again.
func TestTopicSettings(t *testing.T) {
	r := newRig(t)
	f := func(settings ...wire.Setting) {
		t.Helper()
		for round := range 2 {
			id := r.create("t", 1, settings...)
			var d wire.DescribeTopicsResponse
			if err := r.ask(&wire.DescribeTopicsRequest{Topics: []string{"t"}}, &d); err != nil || len(d.Topics) != 1 {
				t.Fatalf("%v: describe: %v, %+v", settings, err, d)
			}
			got := d.Topics[0]
			for _, s := range settings {
				if !slices.Contains(got.Settings, s) {
					t.Fatalf("%v is described as %v", s, got.Settings)
				}
			}
			if p := got.Partitions[0]; got.ID != id || p.Code != wire.CodeOK || p.Start != 0 || p.End != 0 || p.Directory != r.b.dirs[0].ID() {
				t.Fatalf("%v: %+v", settings, got)
			}
			var m wire.MetadataResponse
			if err := r.ask(&wire.MetadataRequest{All: true}, &m); err != nil || len(m.Topics) != 1 || m.Topics[0].ID != id || m.Topics[0].Partitions[0].Code != wire.CodeOK {
				t.Fatalf("%v: metadata: %v, %+v", settings, err, m)
			}
			r.write(id, 0, "v")
			if round == 0 {
				r.stop()
				r.start()
			}
			if values := r.readAll(id, 0); !slices.Equal(values, []string{"v"}) {
				t.Fatalf("%v: read %q", settings, values)
			}
			// What describe says makes the same topic again.
			r.delete(id)
			settings = got.Settings
		}
	}

	for _, s := range coord.TopicSettings() {
		bounds := strings.Split(strings.ReplaceAll(s.Bounds, " to ", ", "), ", ")
		for _, v := range append(bounds, s.Default) {
			v = strings.TrimPrefix(v, "or ")
			settings := []wire.Setting{{Key: s.Key, Value: v}}
			switch s.Key { // a batch must fit into a segment
			case "segment.bytes":
				settings = append(settings, wire.Setting{Key: "max.batch.bytes", Value: "1KiB"})
			case "retention.age", "segment.age", "retention.bytes":
				// What is too old at once may go before it is read; time stands still here.
			}
			f(settings...)
		}
	}
}

// TestTopicRefusals checks what a create, a delete and a trim refuse.
func TestTopicRefusals(t *testing.T) {
	r := newRig(t)
	id := r.create("t", 1)
	r.write(id, 0, "a", "b")
	f := func(req, resp wire.Message, want wire.Code) {
		t.Helper()
		if err := r.ask(req, resp); wire.CodeOf(err) != want {
			t.Fatalf("%+v: %v, want %v", req, err, want)
		}
	}
	create := func(want wire.Code, name string, partitions int32, settings ...wire.Setting) {
		t.Helper()
		f(&wire.CreateTopicRequest{Name: name, Partitions: partitions, Settings: settings}, &wire.CreateTopicResponse{}, want)
	}

	create(wire.CodeTopicExists, "t", 1)
	create(wire.CodeInvalidName, "", 1)
	create(wire.CodeInvalidName, "..", 1)
	create(wire.CodeInvalidName, "a/b", 1)
	create(wire.CodeInvalidName, strings.Repeat("n", 250), 1)
	create(wire.CodeInvalidRequest, "u", 0)
	create(wire.CodeInvalidRequest, "u", coord.MaxTopicPartitions+1)
	create(wire.CodeInvalidSetting, "u", 1, wire.Setting{Key: "flush", Value: "never"})
	create(wire.CodeInvalidSetting, "u", 1, wire.Setting{Key: "flsh", Value: "sync"})
	f(&wire.CreateTopicRequest{Name: "u", Partitions: 1, Replication: 2}, &wire.CreateTopicResponse{}, wire.CodeUnsupported)
	f(&wire.CreateTopicRequest{Name: "u", Partitions: 1, ValidateOnly: true}, &wire.CreateTopicResponse{}, wire.CodeOK)
	f(&wire.DeleteTopicRequest{ID: 99}, &wire.DeleteTopicResponse{}, wire.CodeTopicRecreated)
	f(&wire.TrimRequest{Topic: id, Before: 3}, &wire.TrimResponse{}, wire.CodeOutOfRange)
	f(&wire.TrimRequest{Topic: id, Partition: 1, Before: 0}, &wire.TrimResponse{}, wire.CodeUnknownPartition)
	f(&wire.TrimRequest{Topic: 99}, &wire.TrimResponse{}, wire.CodeTopicRecreated)
	if n := len(r.b.Image().Topics()); n != 1 {
		t.Fatalf("%d topics", n)
	}
	create(wire.CodeOK, strings.Repeat("n", 249), 1)

	// A request that is sent again, since its answer was lost, is done once.
	req := &wire.CreateTopicRequest{Request: wire.UUID{1}, Name: "once", Partitions: 2}
	var first, second wire.CreateTopicResponse
	f(req, &first, wire.CodeOK)
	f(req, &second, wire.CodeOK)
	if first.ID != second.ID {
		t.Fatalf("ids %d and %d", first.ID, second.ID)
	}

	// More at once than there are places is BUSY, and the places come back.
	var all []*pending
	busy := 0
	for i := range maxSettles + 10 {
		all = append(all, r.begin(&wire.CreateTopicRequest{Name: fmt.Sprint("many-", i), Partitions: 1}, &wire.CreateTopicResponse{}))
	}
	r.settle()
	for _, p := range all {
		if p.answers != 1 {
			t.Fatalf("%d answers", p.answers)
		}
		if wire.CodeOf(p.err) == wire.CodeBusy && p.after > 0 {
			busy++
		} else if p.err != nil {
			t.Fatal(p.err)
		}
	}
	if busy != 10 || r.b.hosts.places.Used() != 0 {
		t.Fatalf("%d were refused, %d places are taken", busy, r.b.hosts.places.Used())
	}
}

// TestTopicAgain deletes a topic and creates one of its name while requests
// with the old id are under way: none of them touches the new one.
func TestTopicAgain(t *testing.T) {
	r := newRig(t)
	old := r.create("t", 1)
	r.write(old, 0, "old", "old")
	req := fetchOf(old, 0, 2)
	req.MinBytes, req.MaxWaitMillis = 1<<20, 60_000
	parked := r.begin(req, new(wire.FetchResponse))
	r.settle()

	del := r.begin(&wire.DeleteTopicRequest{ID: old}, new(wire.DeleteTopicResponse))
	again := r.begin(&wire.CreateTopicRequest{Name: "t", Partitions: 1}, new(wire.CreateTopicResponse))
	late := r.begin(&wire.ProduceRequest{Acks: wire.AcksAll, Batches: []wire.Batch{batchOf(t, wire.BuilderOptions{Topic: old}, "late")}}, new(wire.ProduceResponse))
	r.settle()
	if del.answers != 1 || del.err != nil || again.answers != 1 || again.err != nil {
		t.Fatalf("delete: %v; create: %v", del.err, again.err)
	}
	if parked.answers != 1 || parked.resp.(*wire.FetchResponse).Partitions[0].Code != wire.CodeTopicRecreated {
		t.Fatalf("the parked fetch: %d answers, %+v", parked.answers, parked.resp)
	}
	if res := late.resp.(*wire.ProduceResponse).Results; late.answers != 1 || res[0].Code != wire.CodeOK && !res[0].Code.Definite() {
		t.Fatalf("the write in flight: %d answers, %+v", late.answers, res)
	}
	id := again.resp.(*wire.CreateTopicResponse).ID
	if id == old {
		t.Fatal("an id was given twice")
	}
	if res := r.send(batchOf(t, wire.BuilderOptions{Topic: old}, "x"))[0]; res.Code != wire.CodeTopicRecreated {
		t.Fatalf("produce with the old id: %v", res.Code)
	}
	if res := r.read(fetchOf(old, 0, 1))[0]; res.Code != wire.CodeTopicRecreated {
		t.Fatalf("fetch with the old id: %v", res.Code)
	}
	var found wire.ListOffsetsResponse
	if err := r.ask(&wire.ListOffsetsRequest{Queries: []wire.OffsetQuery{{Topic: old, Epoch: wire.NoEpoch, Kind: wire.Latest}}}, &found); err != nil || found.Results[0].Code != wire.CodeTopicRecreated {
		t.Fatalf("offsets with the old id: %v, %+v", err, found)
	}
	if got := r.readAll(id, 0); len(got) != 0 {
		t.Fatalf("the new topic holds %q", got)
	}
	r.write(id, 0, "new")

	// The process dies before, while and after the files follow the metadata.
	for steps := range 8 {
		del := r.begin(&wire.DeleteTopicRequest{ID: id}, new(wire.DeleteTopicResponse))
		again := r.begin(&wire.CreateTopicRequest{Name: "t", Partitions: 1}, new(wire.CreateTopicResponse))
		for range steps {
			all := r.b.Steps(nil)
			r.b.Step(all[len(all)-1])
			r.b.Step(Step{Kind: StepCoord})
		}
		r.kill(steps%2 == 1)
		r.start()
		r.settle()
		if del.answers > 1 || again.answers > 1 {
			t.Fatal("answered twice")
		}
		top := r.b.Image().Topic("t")
		switch {
		case top == nil: // deleted, not created yet
			id = r.create("t", 1)
		case top.ID == id: // not deleted
			if values := r.readAll(id, 0); steps%2 == 0 && !slices.Equal(values, []string{"new"}) {
				t.Fatalf("step %d: %q", steps, values)
			}
			r.delete(id)
			id = r.create("t", 1)
		default:
			id = top.ID
			if values := r.readAll(id, 0); len(values) != 0 {
				t.Fatalf("step %d: the new topic holds %q", steps, values)
			}
		}
		r.write(id, 0, "new")
		r.pass(2 * time.Second)
	}
}

// TestOffsets asks for each kind of offset.
func TestOffsets(t *testing.T) {
	r := newRig(t)
	id := r.create("t", 1)
	f := func(kind wire.OffsetKind, at int64, offset wire.Offset, time int64) {
		t.Helper()
		var resp wire.ListOffsetsResponse
		if err := r.ask(&wire.ListOffsetsRequest{Queries: []wire.OffsetQuery{
			{Topic: id, Epoch: wire.NoEpoch, Kind: wire.Earliest}, {Topic: id, Epoch: 0, Kind: kind, Time: at}, {Topic: id, Partition: 7, Epoch: wire.NoEpoch, Kind: kind},
		}}, &resp); err != nil {
			t.Fatal(err)
		}
		if got := resp.Results[1]; got.Code != wire.CodeOK || got.Offset != offset || got.Time != time || got.Epoch != 0 {
			t.Fatalf("kind %d at %d: %+v, want offset %d, time %d", kind, at, got, offset, time)
		}
		if resp.Results[2].Code != wire.CodeUnknownPartition || resp.Results[2].Offset != -1 {
			t.Fatalf("no such partition: %+v", resp.Results[2])
		}
	}

	f(wire.Latest, 0, 0, -1)
	f(wire.Greatest, 0, -1, -1)
	f(wire.AtEventTime, 0, -1, -1)
	r.write(id, 0, "a", "b", "c") // at 1000, 1001, 1002
	began := r.now.Wall
	r.pass(5 * time.Second)
	r.write(id, 0, "d")
	f(wire.Earliest, 0, 0, -1)
	f(wire.Latest, 0, 4, -1)
	f(wire.Greatest, 0, 2, 1002)
	f(wire.AtEventTime, 1001, 1, 1001)
	f(wire.AtEventTime, 1003, -1, -1)
	f(wire.AtAppendTime, began+1, 3, r.now.Wall)

	for r.b.lanes[r.b.dirs[0]].submit(func() {}, func() {}) {
	}
	p := r.begin(&wire.ListOffsetsRequest{Queries: []wire.OffsetQuery{{Topic: id, Epoch: wire.NoEpoch, Kind: wire.Greatest}}}, new(wire.ListOffsetsResponse))
	if p.answers != 1 || wire.CodeOf(p.err) != wire.CodeBusy || p.after == 0 {
		t.Fatalf("with the lane full: %d answers, %v", p.answers, p.err)
	}
}

// TestOffsetsMemory looks up times while the memory for requests is taken: what
// has to look into a batch is refused, for now, what has not is answered, and
// nothing stays taken.
func TestOffsetsMemory(t *testing.T) {
	r := newRig(t)
	id := r.create("t", 1)
	r.send(batchOf(t, wire.BuilderOptions{Topic: id, Codec: wire.Zstd}, "a", strings.Repeat("b", 5000))) // at 1000, 1001
	began := r.now.Wall
	f := func(kind wire.OffsetKind, at int64, want wire.Code, offset wire.Offset) {
		t.Helper()
		var resp wire.ListOffsetsResponse
		if err := r.ask(&wire.ListOffsetsRequest{Queries: []wire.OffsetQuery{{Topic: id, Epoch: wire.NoEpoch, Kind: kind, Time: at}}}, &resp); err != nil {
			t.Fatal(err)
		}
		if got := resp.Results[0]; got.Code != want || got.Offset != offset {
			t.Fatalf("kind %d: %+v, want %v, offset %d", kind, got, want, offset)
		}
	}
	memory := r.b.server.Budget
	rest := memory.Max() - 5000
	if !memory.TryTake(rest) {
		t.Fatal("memory is taken already")
	}

	f(wire.AtEventTime, 1001, wire.CodeBusy, -1) // the batch is small, its records are not
	f(wire.Greatest, 0, wire.CodeBusy, -1)
	f(wire.AtAppendTime, began, wire.CodeOK, 0) // which its header tells
	f(wire.Latest, 0, wire.CodeOK, 2)
	memory.Give(rest)
	f(wire.AtEventTime, 1001, wire.CodeOK, 1)
	f(wire.Greatest, 0, wire.CodeOK, 1)
	if used := memory.Used(); used != 0 {
		t.Fatalf("%d bytes stay taken", used)
	}
}

// TestProducerIDs checks that no id is given twice, whatever happens between.
func TestProducerIDs(t *testing.T) {
	r := newRig(t)
	seen := map[wire.ProducerID]bool{}
	for round := range 4 {
		for range 3 {
			var resp wire.InitProducerResponse
			if err := r.ask(&wire.InitProducerRequest{}, &resp); err != nil || resp.Producer <= 0 || seen[resp.Producer] {
				t.Fatalf("producer %d (seen: %v): %v", resp.Producer, seen[resp.Producer], err)
			}
			seen[resp.Producer] = true
		}
		if round == 2 {
			r.stop()
		} else {
			r.kill(round%2 == 0)
		}
		r.start()
	}
}
