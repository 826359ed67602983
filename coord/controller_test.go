package coord

import (
	"errors"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/teralog/teralog/mem"
	"github.com/teralog/teralog/wire"
)

var (
	dirA = wire.UUID{0xa}
	dirB = wire.UUID{0xb}
)

// testEnv is an env with two directories, whose topic ids count from 2000.
func testEnv() env {
	id := wire.TopicID(1999)
	return env{
		now: mem.Now{Wall: 1_000_000}, node: 7,
		dirs:       []DirSpace{{dirA, 1 << 40}, {dirB, 1 << 40}},
		newTopicID: func() wire.TopicID { id++; return id },
	}
}

// apply handles the commands one after the other and returns the image after
// them and the last outcome.
func apply(t *testing.T, i *Image, e env, cmds ...Command) (*Image, Result, error) {
	t.Helper()
	var last answer
	for _, cmd := range cmds {
		p := proposal{image: i}
		p.add(e, task{cmd: cmd})
		if p.draft != nil {
			i = &p.draft.Image
		}
		last = p.answers[0]
	}
	return i, last.result, last.err
}

func create(name string, partitions int32, settings ...string) CreateTopic {
	return CreateTopic{Name: name, Partitions: partitions, Replication: 1, Settings: set(settings...)}
}

func TestCreateTopic(t *testing.T) {
	i, r, err := apply(t, emptyImage, testEnv(), create("flights", 3, "flush=sync"))
	if err != nil || r != (Result{Topic: 2000}) {
		t.Fatalf("created %+v, %v", r, err)
	}
	topic := i.Topic("flights")
	if topic == nil || i.TopicByID(2000) != topic || i.Version() != 0 || len(i.Topics()) != 1 {
		t.Fatalf("image has %+v at version %d", topic, i.Version())
	}
	if topic.Config.Flush != FlushSync || topic.Created != 1_000_000 || !slices.Equal(topic.Settings, set("flush=sync")) {
		t.Fatalf("topic is %+v", topic)
	}
	want := []PartitionPlace{{7, 0, dirA}, {7, 0, dirB}, {7, 0, dirA}}
	if !slices.Equal(topic.Partitions, want) {
		t.Fatalf("partitions are %v, want %v", topic.Partitions, want)
	}
	if emptyImage.Topic("flights") != nil || len(emptyImage.hosted) != 0 {
		t.Fatal("the image before has changed")
	}
}

func TestCreateTopicRefused(t *testing.T) {
	e := testEnv()
	i, _, err := apply(t, emptyImage, e, create("taken", 1))
	if err != nil {
		t.Fatal(err)
	}
	f := func(c CreateTopic, want wire.Code) {
		t.Helper()
		after, _, err := apply(t, i, e, c)
		if !errors.Is(err, want) || after != i {
			t.Fatalf("%+v: %v, want %v and no change", c, err, want)
		}
		if !wire.CodeOf(err).Definite() {
			t.Fatalf("%v is not definite", err)
		}
		c.ValidateOnly = true
		if _, _, again := apply(t, i, e, c); again == nil || again.Error() != err.Error() {
			t.Fatalf("only validated: %v, want %v", again, err)
		}
	}

	f(create("", 1), wire.CodeInvalidName)
	f(create("..", 1), wire.CodeInvalidName)
	f(create("a/b", 1), wire.CodeInvalidName)
	f(create(strings.Repeat("a", 250), 1), wire.CodeInvalidName)
	f(create("a", 0), wire.CodeInvalidRequest)
	f(create("a", -1), wire.CodeInvalidRequest)
	f(create("a", MaxTopicPartitions+1), wire.CodeInvalidRequest)
	f(CreateTopic{Name: "a", Partitions: 1, Replication: 3}, wire.CodeUnsupported)
	f(CreateTopic{Name: "a", Partitions: 1, Replication: 0}, wire.CodeUnsupported)
	f(create("a", 1, "flash=sync"), wire.CodeInvalidSetting)
	f(create("taken", 1), wire.CodeTopicExists)

	e.dirs = nil
	f(create("a", 1), wire.CodeOffline)
}

func TestCreateTopicLimits(t *testing.T) {
	e := testEnv()
	i := emptyImage
	for n := range MaxPartitions / MaxTopicPartitions {
		var err error
		if i, _, err = apply(t, i, e, create(string(rune('a'+n)), MaxTopicPartitions)); err != nil {
			t.Fatal(err)
		}
	}
	f := func(want error, cmds ...Command) {
		t.Helper()
		after, _, err := apply(t, i, e, cmds...)
		if !errors.Is(err, want) {
			t.Fatalf("%v, want %v", err, want)
		}
		i = after
	}

	f(wire.CodeQuota, create("more", 1))
	f(wire.CodeQuota, DeleteTopic{ID: 2000}, create("more", 1)) // its directories may still exist
	f(nil, ForgetTopics{[]wire.TopicID{2000}}, create("more", MaxTopicPartitions))
	f(wire.CodeQuota, create("again", 1))
}

// TestCreateTopicMaxHosted fills a node that has fewer descriptors than there may
// be partitions. Those of deleted topics and of directories that are gone do not
// count.
func TestCreateTopicMaxHosted(t *testing.T) {
	e := testEnv()
	e.maxHosted = 30
	i, _, err := apply(t, emptyImage, e, create("a", 20), create("b", 10))
	if err != nil {
		t.Fatal(err)
	}
	full := func() {
		t.Helper()
		after, _, err := apply(t, i, e, create("more", 1))
		if !errors.Is(err, wire.CodeQuota) || !strings.Contains(err.Error(), "limit of 30") || after != i {
			t.Fatalf("%v", err)
		}
	}
	full()
	if i, _, err = apply(t, i, e, DeleteTopic{ID: 2001}, create("c", 10)); err != nil {
		t.Fatal(err)
	}
	full()
	e.dirs = e.dirs[:1]
	if _, _, err := apply(t, i, e, create("d", 15)); err != nil {
		t.Fatal(err)
	}
}

func TestValidateOnly(t *testing.T) {
	c := create("a", 2)
	c.ValidateOnly, c.Request = true, wire.UUID{1}
	e := testEnv()
	i, r, err := apply(t, emptyImage, e, c)
	if err != nil || r.Topic != 0 || i != emptyImage {
		t.Fatalf("validated: %+v, %v, changed %v", r, err, i != emptyImage)
	}
	c.ValidateOnly = false
	if _, r, err = apply(t, i, e, c); err != nil || r.Topic != 2000 {
		t.Fatalf("created after validating under the same request id: %+v, %v", r, err)
	}
}

func TestTopicIDs(t *testing.T) {
	e := testEnv()
	i, _, _ := apply(t, emptyImage, e, create("a", 1), create("b", 1), DeleteTopic{ID: 2001})
	f := func(want wire.TopicID, draws ...wire.TopicID) {
		t.Helper()
		e.newTopicID = func() wire.TopicID {
			id := draws[0]
			if len(draws) > 1 {
				draws = draws[1:]
			}
			return id
		}
		_, r, err := apply(t, i, e, create("c", 1))
		if (err == nil) != (want != 0) || r.Topic != want {
			t.Fatalf("created %d, %v, want %d", r.Topic, err, want)
		}
	}

	f(5000, 5000)
	f(5000, 0, 1, 1023, 5000) // reserved
	f(1024, 1024)             // the first a user's topic may have
	f(5000, 2000, 5000)       // a topic has it
	f(5000, 2001, 5000)       // a deleted topic had it
	f(5000, 1<<63|5000)       // ids have 63 bits
	f(math.MaxInt64, math.MaxUint64)
	f(0, 2000) // for ever
}

// TestDeleteAndCreateAgain is what a client sees that holds the old topic's id.
func TestDeleteAndCreateAgain(t *testing.T) {
	e := testEnv()
	i, old, _ := apply(t, emptyImage, e, create("orders", 2))
	i, _, err := apply(t, i, e, DeleteTopic{ID: old.Topic})
	if err != nil || i.Topic("orders") != nil || !i.Deleted(old.Topic) || i.Hosted(dirA) != 0 {
		t.Fatalf("deleted: %v, image has %+v", err, i)
	}
	i, now, err := apply(t, i, e, create("orders", 1))
	if err != nil || now.Topic == old.Topic {
		t.Fatalf("created again as %d, %v; it was %d", now.Topic, err, old.Topic)
	}
	f := func(id wire.TopicID, partition int32, want error) {
		t.Helper()
		topic, err := i.Resolve(wire.PartitionID{Topic: id, Partition: partition})
		if !errors.Is(err, want) || (topic == nil) != (want != nil) {
			t.Fatalf("%d-%d resolves to %v, %v, want %v", id, partition, topic, err, want)
		}
	}

	f(now.Topic, 0, nil)
	f(now.Topic, 1, wire.CodeUnknownPartition) // the old one had it
	f(now.Topic, -1, wire.CodeUnknownPartition)
	f(old.Topic, 0, wire.CodeTopicRecreated)
	f(1<<62, 0, wire.CodeTopicRecreated) // from before the metadata was lost

	if _, _, err := apply(t, i, e, DeleteTopic{ID: old.Topic}); !errors.Is(err, wire.CodeTopicRecreated) {
		t.Fatalf("a late delete of the old topic: %v", err)
	}
	if got := i.DeletedTopics(); len(got) != 1 || got[0].ID != old.Topic || got[0].Partitions[1].Dir != dirB {
		t.Fatalf("deleted topics are %+v", got)
	}

	// Only once no directory bears the id may it be forgotten.
	i, _, err = apply(t, i, e, ForgetTopics{[]wire.TopicID{old.Topic, now.Topic, old.Topic, 77}})
	if err != nil || i.Deleted(old.Topic) || i.Topic("orders") == nil || i.partitions != 1 {
		t.Fatalf("forgotten: %v, image has %+v", err, i)
	}
	again, _, err := apply(t, i, e, ForgetTopics{[]wire.TopicID{old.Topic}})
	if err != nil || again != i {
		t.Fatalf("forgotten twice: %v, changed %v", err, again != i)
	}
}

func TestRequests(t *testing.T) {
	e := testEnv()
	c := create("a", 1)
	c.Request = wire.UUID{1}
	i, first, _ := apply(t, emptyImage, e, c)
	again, r, err := apply(t, i, e, c)
	if err != nil || r != first || again != i {
		t.Fatalf("repeated: %+v, %v; the first was %+v", r, err, first)
	}

	d := DeleteTopic{Request: wire.UUID{2}, ID: first.Topic}
	i, deleted, _ := apply(t, i, e, d)
	if _, r, err = apply(t, i, e, d); err != nil || r != deleted {
		t.Fatalf("delete repeated: %+v, %v", r, err)
	}
	if _, r, err = apply(t, i, e, c); err != nil || r != first {
		t.Fatalf("create repeated after the delete: %+v, %v; it must not create again", r, err)
	}
	for _, other := range []Command{create("b", 1), create("a", 2), create("a", 1, "flush=sync"), DeleteTopic{ID: first.Topic}} {
		switch o := other.(type) {
		case CreateTopic:
			o.Request = wire.UUID{1}
			other = o
		case DeleteTopic:
			o.Request = wire.UUID{1}
			other = o
		}
		if _, _, err := apply(t, i, e, other); !errors.Is(err, wire.CodeConflict) {
			t.Fatalf("%+v under the id of %+v: %v, want CONFLICT", other, c, err)
		}
	}

	// The memory is bounded; the oldest goes first.
	d.Request = wire.UUID{3}
	if _, _, err := apply(t, i, e, d); !errors.Is(err, wire.CodeTopicRecreated) {
		t.Fatal(err)
	}
	edit := i.edit()
	for n := range MaxRequests - 1 {
		edit.remember(request{id: wire.UUID{9, byte(n), byte(n >> 8)}})
	}
	if len(edit.requests) != MaxRequests || edit.request(c.Request) != nil || edit.request(wire.UUID{2}) == nil {
		t.Fatalf("%d requests are remembered", len(edit.requests))
	}
}

func TestBumpEpochs(t *testing.T) {
	e := testEnv()
	i, _, _ := apply(t, emptyImage, e, create("a", 3), create("b", 1))
	bumped, r, err := apply(t, i, e, BumpEpochs{dirB})
	if err != nil || r.Offset != i.Version()+1 {
		t.Fatalf("%+v, %v", r, err)
	}
	f := func(i *Image, topic string, want ...wire.Epoch) {
		t.Helper()
		for p, place := range i.Topic(topic).Partitions {
			if place.Epoch != want[p] {
				t.Fatalf("%s has partitions %v, want epochs %v", topic, i.Topic(topic).Partitions, want)
			}
		}
		if i.TopicByID(i.Topic(topic).ID) != i.Topic(topic) {
			t.Fatalf("%s is another topic by its id", topic)
		}
	}

	f(bumped, "a", 0, 1, 0)
	f(bumped, "b", 1) // the directory with fewer partitions
	f(i, "a", 0, 0, 0)
	bumped, _, _ = apply(t, bumped, e, BumpEpochs{dirA}, BumpEpochs{dirB})
	f(bumped, "a", 1, 2, 1)

	same, r, err := apply(t, bumped, e, BumpEpochs{wire.UUID{0xc}})
	if err != nil || same != bumped || r.Offset != bumped.Version() {
		t.Fatalf("a directory without partitions: %+v, %v", r, err)
	}
}

func TestAllocateProducers(t *testing.T) {
	i := emptyImage
	f := func(count int64, first wire.ProducerID, want error) {
		t.Helper()
		after, r, err := apply(t, i, testEnv(), AllocateProducers{count})
		if !errors.Is(err, want) || r.First != first || want == nil && r.Count != count {
			t.Fatalf("%d ids: %+v, %v", count, r, err)
		}
		i = after
	}

	f(1, 1, nil)
	f(1000, 2, nil)
	f(1, 1002, nil)
	f(0, 0, wire.CodeInvalidRequest)
	f(-1, 0, wire.CodeInvalidRequest)
	f(MaxProducerBlock+1, 0, wire.CodeInvalidRequest)
	f(MaxProducerBlock, 1003, nil)

	i = &Image{version: 3, nextProducer: math.MaxInt64 - 10}
	f(11, 0, wire.CodeQuota)
	f(10, math.MaxInt64-10, nil)
	f(1, 0, wire.CodeQuota)
}

func TestPlace(t *testing.T) {
	f := func(want string, n int, expect int64, hosted string, free ...int64) {
		t.Helper()
		var dirs []DirSpace
		for i, b := range free {
			dirs = append(dirs, DirSpace{wire.UUID{byte('A' + i)}, b})
		}
		got := ""
		for _, d := range place(n, dirs, expect, func(d wire.UUID) int { return strings.Count(hosted, string(rune(d[0]))) }) {
			got += string(rune(d[0]))
		}
		if got != want {
			t.Fatalf("place(%d, %v) = %s, want %s", n, free, got, want)
		}
	}

	f("AAA", 3, 10, "", 100)
	f("B", 1, 10, "", 99, 100)        // the most free space
	f("ABAB", 4, 10, "", 100, 100)    // shared among equals
	f("BABA", 4, 10, "AAB", 100, 100) // fewest partitions first
	f("BBAB", 4, 10, "", 80, 100)     // until the others have as much
	f("CABC", 4, 10, "", -5, -10, 0)  // all full: still one each
	f("AAAA", 4, 1, "AAAAA", 100, 50) // free space counts before numbers
}
