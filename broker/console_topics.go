package broker

import (
	"cmp"
	"math"
	"net/http"
	"slices"
	"strings"

	"github.com/teralog/teralog/coord"
	"github.com/teralog/teralog/wire"
)

// maxShownRows bounds the topics and partitions in one answer, inclusive.
const maxShownRows = 500

// A shownTopic is a topic with the sums over its partitions that are led here.
type shownTopic struct {
	Name       string `json:"name"`
	Partitions int    `json:"partitions"`
	Offline    int    `json:"offline"`  // partitions out of service
	Records    int64  `json:"records"`  // offsets from the start to the committed end
	Appended   int64  `json:"appended"` // sum of the ends: what it grows by was appended
	Bytes      int64  `json:"bytes"`
	Queued     int    `json:"queued"`      // tasks in mailboxes
	LastAppend int64  `json:"last_append"` // ms since the epoch, 0: never
	Flush      string `json:"flush"`
}

// A shownPartition is one partition. Offsets are -1 if it is not led here or
// out of service.
type shownPartition struct {
	Topic       string      `json:"topic"`
	Partition   int32       `json:"partition"`
	State       string      `json:"state"` // OK, or why it is not served
	Leader      wire.NodeID `json:"leader"`
	Epoch       wire.Epoch  `json:"epoch"`
	Start       wire.Offset `json:"start"`
	Committed   wire.Offset `json:"committed"`
	End         wire.Offset `json:"end"`
	Bytes       int64       `json:"bytes"`
	Queued      int         `json:"queued"`
	QueuedBytes int64       `json:"queued_bytes"`
	LastAppend  int64       `json:"last_append"` // ms since the epoch, 0: never
	Directory   string      `json:"directory"`
}

// rows is a part of a list that was put in order.
type rows[T any] struct {
	Now   int64 `json:"now"`   // ms, on a clock of its own: what lies between two answers
	Total int   `json:"total"` // of the whole list
	Skip  int   `json:"skip"`
	Rows  []T   `json:"rows"`

	Settings []shownSetting `json:"settings,omitempty"` // of the one topic asked for
}

type shownSetting struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

// A column is something that rows can be put in order by.
type column[T any] struct {
	name    string
	compare func(a, b *T) int
}

// by returns a column whose values have an order of their own.
func by[T any, V cmp.Ordered](name string, value func(*T) V) column[T] {
	return column[T]{name, func(a, b *T) int { return cmp.Compare(value(a), value(b)) }}
}

var topicColumns = []column[shownTopic]{
	by("name", func(t *shownTopic) string { return t.Name }),
	by("partitions", func(t *shownTopic) int { return t.Partitions }),
	by("offline", func(t *shownTopic) int { return t.Offline }),
	by("records", func(t *shownTopic) int64 { return t.Records }),
	by("bytes", func(t *shownTopic) int64 { return t.Bytes }),
	by("queued", func(t *shownTopic) int { return t.Queued }),
	by("last_append", func(t *shownTopic) int64 { return t.LastAppend }),
	by("flush", func(t *shownTopic) string { return t.Flush }),
}

var partitionColumns = []column[shownPartition]{
	{"partition", func(a, b *shownPartition) int {
		return cmp.Or(cmp.Compare(a.Topic, b.Topic), cmp.Compare(a.Partition, b.Partition))
	}},
	by("state", func(p *shownPartition) string { return p.State }),
	by("start", func(p *shownPartition) wire.Offset { return p.Start }),
	by("committed", func(p *shownPartition) wire.Offset { return p.Committed }),
	by("end", func(p *shownPartition) wire.Offset { return p.End }),
	by("bytes", func(p *shownPartition) int64 { return p.Bytes }),
	by("queued", func(p *shownPartition) int { return p.Queued }),
	by("last_append", func(p *shownPartition) int64 { return p.LastAppend }),
	by("directory", func(p *shownPartition) string { return p.Directory }),
}

// A listing says which part of a list is wanted, in which order.
type listing[T any] struct {
	columns     []column[T]
	sort        string
	desc        bool
	skip, limit int
}

func askedListing[T any](q *question, columns []column[T]) listing[T] {
	names := make([]string, len(columns))
	for i, c := range columns {
		names[i] = c.name
	}
	return listing[T]{
		columns: columns, sort: q.oneOf("sort", names...), desc: q.oneOf("order", "asc", "desc") == "desc",
		skip: int(q.number("skip", 0, math.MaxInt32, 0)), limit: int(q.number("limit", 1, maxShownRows, 100)),
	}
}

// of returns the part of all that is wanted. Rows that the order does not tell
// apart stay as they are.
func (l *listing[T]) of(all []T) rows[T] {
	i := slices.IndexFunc(l.columns, func(c column[T]) bool { return c.name == l.sort })
	slices.SortStableFunc(all, func(a, b T) int {
		if l.desc {
			a, b = b, a
		}
		return l.columns[i].compare(&a, &b)
	})
	skip := min(l.skip, len(all))
	return rows[T]{Total: len(all), Skip: skip, Rows: all[skip:min(skip+l.limit, len(all))]}
}

// listTopics answers /api/topics.
func (b *Broker) listTopics(r *http.Request) (any, error) {
	q := askedOf(r, "find", "sort", "order", "skip", "limit")
	list := askedListing(q, topicColumns)
	if q.err != nil {
		return nil, q.err
	}
	all := []shownTopic{}
	for _, t := range b.Image().Topics() {
		if strings.Contains(t.Name, q.text("find")) {
			all = append(all, b.showTopic(t))
		}
	}
	answer := list.of(all)
	answer.Now = b.time().Mono.Milliseconds()
	return answer, nil
}

func (b *Broker) showTopic(t *coord.Topic) shownTopic {
	s := shownTopic{Name: t.Name, Partitions: len(t.Partitions)}
	for _, set := range t.Config.Settings() {
		if set.Key == "flush" {
			s.Flush = set.Value
		}
	}
	for n, place := range t.Partitions {
		p := b.showPartition(t, n, place)
		if p.State != wire.CodeOK.Error() {
			s.Offline++
			continue
		}
		s.Records += int64(p.Committed - p.Start)
		s.Appended += int64(p.End)
		s.Bytes += p.Bytes
		s.Queued += p.Queued
		s.LastAppend = max(s.LastAppend, p.LastAppend)
	}
	return s
}

// listPartitions answers /api/partitions: those of one topic, or of all.
func (b *Broker) listPartitions(r *http.Request) (any, error) {
	q := askedOf(r, "topic", "sort", "order", "skip", "limit")
	list := askedListing(q, partitionColumns)
	if q.err != nil {
		return nil, q.err
	}
	topics, settings := b.Image().Topics(), []shownSetting(nil)
	if name := q.text("topic"); name != "" {
		t := b.Image().Topic(name)
		if t == nil {
			return nil, wire.Errorf(wire.CodeUnknownTopic, "there is no topic %q", name)
		}
		topics = []*coord.Topic{t}
		for _, set := range t.Config.Settings() {
			settings = append(settings, shownSetting{set.Key, set.Value})
		}
	}
	all := []shownPartition{}
	for _, t := range topics {
		for n, place := range t.Partitions {
			all = append(all, b.showPartition(t, n, place))
		}
	}
	answer := list.of(all)
	answer.Now, answer.Settings = b.time().Mono.Milliseconds(), settings
	return answer, nil
}

func (b *Broker) showPartition(t *coord.Topic, n int, place coord.PartitionPlace) shownPartition {
	d := b.describePartition(t, n, place)
	s := shownPartition{
		Topic: t.Name, Partition: d.Partition, State: d.Code.Error(), Leader: d.Leader, Epoch: d.Epoch,
		Start: d.Start, Committed: d.Committed, End: d.End, Bytes: d.Bytes,
		LastAppend: max(d.LastAppendTime, 0),
	}
	if p, err := b.set.Leader(wire.PartitionID{Topic: t.ID, Partition: d.Partition}); err == nil {
		of := p.Stats()
		s.Queued, s.QueuedBytes = of.Queued, of.QueuedBytes
	}
	if dir := b.directory(place.Dir); dir != nil {
		s.Directory = dir.Path()
	}
	return s
}
