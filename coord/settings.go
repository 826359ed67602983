package coord

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/teralog/teralog/storage"
	"github.com/teralog/teralog/wire"
)

// A FlushMode says when a topic's appended records are made durable.
type FlushMode uint8

// The flush modes.
const (
	FlushAsync    FlushMode = iota // in the background, off the append path
	FlushInterval                  // produce waits where bytes or age of the unflushed records reach their bound
	FlushSync                      // before the acknowledgement
)

// A TimeType says which clock a record's time is from.
type TimeType uint8

// The time types.
const (
	EventTime  TimeType = iota // the producer's
	AppendTime                 // the broker's stamp clock at the append
)

// A TopicConfig is what a topic's settings mean, defaults filled in. Sizes are
// in bytes.
type TopicConfig struct {
	Flush             FlushMode
	FlushBytes        int64
	FlushInterval     time.Duration
	SegmentBytes      int64
	SegmentAge        time.Duration
	RetentionBytes    int64         // of one partition; 0: no limit
	RetentionAge      time.Duration // by append time; 0: no limit
	MaxBatchBytes     int64
	IndexInterval     int64
	TimeType          TimeType
	ProducerRetention time.Duration
	QuotaBytes        int64 // a second, of the topic on one node; 0: no limit of its own
	QuotaRequests     int64
}

// A TopicSetting documents one key of a topic's settings.
type TopicSetting struct {
	Key     string
	Default string
	Bounds  string // the values it takes, inclusive
	Doc     string

	parse  func(*TopicConfig, string) error
	inside func(*TopicConfig) bool // within the bounds
	format func(*TopicConfig) string
}

// none is how a limit that does not apply is written.
const none = "none"

const day = 24 * time.Hour

// maxSettingValue bounds the bytes of a value, inclusive.
const maxSettingValue = 64

// topicSettings has one row per key, ascending. A bound may be moved in a later
// version: it holds for what is asked, not for what is already stored.
var topicSettings = []TopicSetting{
	choice("flush", []string{"async", "interval", "sync"}, func(c *TopicConfig) *FlushMode { return &c.Flush },
		"when records are made durable: in the background, within hard bounds, or before the acknowledgement"),
	size("flush.bytes", "64MiB", 4<<10, 1<<40, func(c *TopicConfig) *int64 { return &c.FlushBytes },
		"unflushed bytes of a partition at which async starts a flush and interval makes produce wait"),
	duration("flush.interval", "1s", time.Millisecond, time.Hour, func(c *TopicConfig) *time.Duration { return &c.FlushInterval },
		"age of unflushed records at which async starts a flush and interval makes produce wait"),
	size("index.interval", "4KiB", 64, 1<<20, func(c *TopicConfig) *int64 { return &c.IndexInterval },
		"bytes of log between two index entries"),
	size("max.batch.bytes", "1MiB", 1<<10, 16<<20-64<<10, func(c *TopicConfig) *int64 { return &c.MaxBatchBytes },
		"the largest batch accepted, as compressed, header included"),
	duration("producer.retention", "1d", time.Minute, 3650*day, func(c *TopicConfig) *time.Duration { return &c.ProducerRetention },
		"how long an idle idempotent producer is remembered; at least twice its delivery timeout"),
	limit(size("quota.bytes", none, 1<<10, 1<<50, func(c *TopicConfig) *int64 { return &c.QuotaBytes },
		"bytes a second that a node writes and reads of the topic, all clients together; the node's topic-bytes if none")),
	limit(measure("quota.requests", none, 1, 1_000_000_000, func(c *TopicConfig) *int64 { return &c.QuotaRequests }, parseWhole, formatWhole,
		"batches and answers with records of the topic a second, on one node; the node's topic-requests if none")),
	limit(duration("retention.age", "7d", time.Second, 36500*day, func(c *TopicConfig) *time.Duration { return &c.RetentionAge },
		"a segment is deleted once its newest record was appended this long ago")),
	limit(size("retention.bytes", none, 1<<10, 1<<60, func(c *TopicConfig) *int64 { return &c.RetentionBytes },
		"size of a partition above which its oldest segments are deleted")),
	duration("segment.age", "7d", time.Second, 3650*day, func(c *TopicConfig) *time.Duration { return &c.SegmentAge },
		"age of a segment at which a new one is begun"),
	size("segment.bytes", "1GiB", 4<<10, 2047<<20, func(c *TopicConfig) *int64 { return &c.SegmentBytes },
		"size of a segment at which a new one is begun; at least max.batch.bytes"),
	choice("time.type", []string{"event", "append"}, func(c *TopicConfig) *TimeType { return &c.TimeType },
		"whose clock a record's time is from: the producer's, or the broker's at the append"),
}

// TopicSettings lists every key a topic's settings may have, ascending.
func TopicSettings() []TopicSetting { return slices.Clone(topicSettings) }

// choice is a setting that names one of a few values, the first by default; the
// field holds the index of the value.
func choice[T ~uint8](key string, values []string, field func(*TopicConfig) *T, doc string) TopicSetting {
	return TopicSetting{
		Key: key, Default: values[0], Bounds: strings.Join(values, ", "), Doc: doc,
		parse: func(c *TopicConfig, s string) error {
			n := slices.Index(values, s)
			if n < 0 {
				return fmt.Errorf("%.40q is none of %s", s, strings.Join(values, ", "))
			}
			*field(c) = T(n)
			return nil
		},
		inside: func(c *TopicConfig) bool { return true },
		format: func(c *TopicConfig) string { return values[*field(c)] },
	}
}

func size(key, def string, least, most int64, field func(*TopicConfig) *int64, doc string) TopicSetting {
	return measure(key, def, least, most, field, wire.ParseSize, wire.FormatSize, doc)
}

func duration(key, def string, least, most time.Duration, field func(*TopicConfig) *time.Duration, doc string) TopicSetting {
	return measure(key, def, least, most, field, wire.ParseDuration, wire.FormatDuration, doc)
}

func parseWhole(s string) (int64, error) {
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil || n < 0 {
		return 0, fmt.Errorf("%.40q is not a whole number", s)
	}
	return n, nil
}

func formatWhole(n int64) string { return strconv.FormatInt(n, 10) }

func measure[T ~int64](key, def string, least, most T, field func(*TopicConfig) *T, parse func(string) (T, error), format func(T) string, doc string) TopicSetting {
	return TopicSetting{
		Key: key, Default: def, Bounds: format(least) + " to " + format(most), Doc: doc,
		parse: func(c *TopicConfig, s string) (err error) {
			*field(c), err = parse(s)
			return err
		},
		inside: func(c *TopicConfig) bool { return least <= *field(c) && *field(c) <= most },
		format: func(c *TopicConfig) string { return format(*field(c)) },
	}
}

// limit lets a measure be none, which its field holds as 0.
func limit(s TopicSetting) TopicSetting {
	parse, inside, format := s.parse, s.inside, s.format
	unlimited := format(new(TopicConfig)) // how the zero of the field reads
	s.Bounds += ", or " + none
	s.parse = func(c *TopicConfig, v string) error {
		if v == none {
			return parse(c, unlimited)
		}
		if err := parse(c, v); err != nil {
			return err
		}
		if format(c) == unlimited {
			return fmt.Errorf("%.40q keeps nothing; write %s for no limit", v, none)
		}
		return nil
	}
	s.inside = func(c *TopicConfig) bool { return format(c) == unlimited || inside(c) }
	s.format = func(c *TopicConfig) string {
		if v := format(c); v != unlimited {
			return v
		}
		return none
	}
	return s
}

// parseSettings returns what the settings mean and the settings ascending by
// key. The error is INVALID_SETTING and names the key, its bounds or the
// nearest known key.
func parseSettings(given []wire.Setting) (TopicConfig, []wire.Setting, error) {
	c, sorted, err := readSettings(given)
	if err != nil {
		return c, nil, err
	}
	for _, s := range topicSettings {
		if !s.inside(&c) {
			return c, nil, wire.Errorf(wire.CodeInvalidSetting, "%s=%s is out of bounds; it takes %s", s.Key, s.format(&c), s.Bounds)
		}
	}
	if c.MaxBatchBytes > c.SegmentBytes {
		return c, nil, wire.Errorf(wire.CodeInvalidSetting, "max.batch.bytes=%s is above segment.bytes=%s: a batch lies in one segment",
			wire.FormatSize(c.MaxBatchBytes), wire.FormatSize(c.SegmentBytes))
	}
	return c, sorted, nil
}

// readSettings is parseSettings without the bounds: what was accepted once can
// be read by every later version, wherever that one draws the bounds.
func readSettings(given []wire.Setting) (TopicConfig, []wire.Setting, error) {
	var c TopicConfig
	for _, s := range topicSettings {
		if err := s.parse(&c, s.Default); err != nil {
			panic(fmt.Sprintf("BUG: default of %s: %v", s.Key, err))
		}
	}
	sorted := slices.Clone(given)
	slices.SortFunc(sorted, func(a, b wire.Setting) int { return strings.Compare(a.Key, b.Key) })
	for n, kv := range sorted {
		at := slices.IndexFunc(topicSettings, func(s TopicSetting) bool { return s.Key == kv.Key })
		if at < 0 {
			return c, nil, unknownSetting(kv.Key)
		}
		if n > 0 && sorted[n-1].Key == kv.Key {
			return c, nil, wire.Errorf(wire.CodeInvalidSetting, "%s is set twice", kv.Key)
		}
		if len(kv.Value) > maxSettingValue {
			return c, nil, wire.Errorf(wire.CodeInvalidSetting, "the value of %s has %d bytes; at most %d are allowed", kv.Key, len(kv.Value), maxSettingValue)
		}
		if err := topicSettings[at].parse(&c, kv.Value); err != nil {
			return c, nil, wire.Errorf(wire.CodeInvalidSetting, "%s: %v; it takes %s", kv.Key, err, topicSettings[at].Bounds)
		}
	}
	return c, sorted, nil
}

func unknownSetting(key string) error {
	known := make([]string, len(topicSettings))
	for i, s := range topicSettings {
		known[i] = s.Key
	}
	if near := wire.Nearest(key, known); near != "" {
		return wire.Errorf(wire.CodeInvalidSetting, "unknown setting %.60q; did you mean %q?", key, near)
	}
	return wire.Errorf(wire.CodeInvalidSetting, "unknown setting %.60q; known are %s", key, strings.Join(known, ", "))
}

// Storage returns what the partition logs are to be opened with.
func (c TopicConfig) Storage() storage.Options {
	return storage.Options{
		SegmentBytes:      c.SegmentBytes,
		SegmentAge:        c.SegmentAge,
		IndexInterval:     int(c.IndexInterval),
		RetentionBytes:    c.RetentionBytes,
		RetentionAge:      c.RetentionAge,
		ProducerRetention: c.ProducerRetention,
		AppendTime:        c.TimeType == AppendTime,
	}
}

// Settings lists every setting with its value, ascending by key. Creating a
// topic with them gives the same configuration again.
func (c TopicConfig) Settings() []wire.Setting {
	all := make([]wire.Setting, len(topicSettings))
	for i, s := range topicSettings {
		all[i] = wire.Setting{Key: s.Key, Value: s.format(&c)}
	}
	return all
}
