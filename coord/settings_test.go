package coord

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/teralog/teralog/wire"
)

// set turns "key=value" into settings.
func set(kvs ...string) []wire.Setting {
	var all []wire.Setting
	for _, kv := range kvs {
		key, value, _ := strings.Cut(kv, "=")
		all = append(all, wire.Setting{Key: key, Value: value})
	}
	return all
}

func TestSettings(t *testing.T) {
	f := func(want func(*TopicConfig), kvs ...string) {
		t.Helper()
		got, sorted, err := parseSettings(set(kvs...))
		c, _, _ := parseSettings(nil)
		want(&c)
		if err != nil || got != c {
			t.Fatalf("%q: %+v, %v; want %+v", kvs, got, err, c)
		}
		if !slices.IsSortedFunc(sorted, func(a, b wire.Setting) int { return strings.Compare(a.Key, b.Key) }) || len(sorted) != len(kvs) {
			t.Fatalf("%q is kept as %q", kvs, sorted)
		}
	}

	f(func(c *TopicConfig) {
		*c = TopicConfig{FlushBytes: 64 << 20, FlushInterval: time.Second, SegmentBytes: 1 << 30, SegmentAge: 7 * day,
			RetentionAge: 7 * day, MaxBatchBytes: 1 << 20, IndexInterval: 4 << 10, ProducerRetention: day}
	})
	f(func(c *TopicConfig) { c.Flush = FlushSync }, "flush=sync")
	f(func(c *TopicConfig) {
		c.Flush, c.FlushBytes, c.FlushInterval = FlushInterval, 1<<20, 250*time.Millisecond
	},
		"flush=interval", "flush.interval=250ms", "flush.bytes=1MiB")
	f(func(c *TopicConfig) { c.SegmentBytes = 1_500_000_000 }, "segment.bytes=1.5GB")
	f(func(c *TopicConfig) { c.RetentionAge, c.RetentionBytes = 0, 1<<40 }, "retention.age=none", "retention.bytes=1TiB")
	f(func(c *TopicConfig) { c.RetentionAge = 90 * time.Minute }, "retention.age=1h30m", "retention.bytes=none")
	f(func(c *TopicConfig) { c.TimeType = AppendTime }, "time.type=append")
	f(func(c *TopicConfig) { c.MaxBatchBytes = 16<<20 - 64<<10 }, "max.batch.bytes=16711680") // the frame limit less 64 KiB
	f(func(c *TopicConfig) { c.SegmentBytes = 2047 << 20 }, "segment.bytes=2047MiB")
}

func TestSettingsRefused(t *testing.T) {
	f := func(message string, kvs ...string) {
		t.Helper()
		_, _, err := parseSettings(set(kvs...))
		if !errors.Is(err, wire.CodeInvalidSetting) || !strings.Contains(err.Error(), message) {
			t.Fatalf("%q: %v, want INVALID_SETTING with %q", kvs, err, message)
		}
	}

	f(`did you mean "retention.age"?`, "retention.ago=7d")
	f(`did you mean "flush.bytes"?`, "flush.byte=1MiB")
	f("known are flush, flush.bytes", "compaction=on")
	f("known are", "=")
	f("flush is set twice", "flush=sync", "time.type=event", "flush=sync")
	f("none of async, interval, sync", "flush=always")
	f("none of async, interval, sync", "flush=")
	f("not a size", "segment.bytes=1G")
	f("not a size", "segment.bytes=-1")
	f("not a size", "segment.bytes=none") // only limits can be none
	f("it takes 4KiB to 2047MiB", "segment.bytes=2GiB")
	f("it takes 4KiB to 2047MiB", "segment.bytes=4095", "max.batch.bytes=1KiB")
	f("it takes 1KiB to 16320KiB", "max.batch.bytes=16MiB")
	f("not a duration", "segment.age=7")
	f("it takes 1ms to 1h", "flush.interval=1us")
	f("it takes 1s to 36500d, or none", "retention.age=1ms")
	f("write none for no limit", "retention.age=0s")
	f("write none for no limit", "retention.bytes=0")
	f("a batch lies in one segment", "segment.bytes=64KiB")
	f("at most 64 are allowed", "flush.bytes="+strings.Repeat("1", 65))
}

// TestSettingsBounds takes each number at its bounds and just outside, and
// expects what is accepted to be written so that it is accepted again.
func TestSettingsBounds(t *testing.T) {
	other := map[string]string{"segment.bytes": "max.batch.bytes=1KiB", "max.batch.bytes": "segment.bytes=2047MiB"}
	for _, s := range topicSettings {
		least, most, numbers := strings.Cut(strings.TrimSuffix(s.Bounds, ", or none"), " to ")
		values := strings.Split(s.Bounds, ", ")
		if numbers {
			values = []string{least, most}
		}
		for _, v := range values {
			given := set(s.Key + "=" + v)
			if o, ok := other[s.Key]; ok {
				given = append(given, set(o)...)
			}
			c, _, err := parseSettings(given)
			if err != nil {
				t.Fatalf("%s=%s: %v", s.Key, v, err)
			}
			again, _, err := parseSettings(c.Settings())
			if err != nil || again != c {
				t.Fatalf("%s=%s is listed as %q, which means %+v, %v; want %+v", s.Key, v, c.Settings(), again, err, c)
			}
		}
	}
}

func TestSettingsDocumented(t *testing.T) {
	all := TopicSettings()
	if !slices.IsSortedFunc(all, func(a, b TopicSetting) int { return strings.Compare(a.Key, b.Key) }) {
		t.Fatal("the keys are not in order")
	}
	defaults, _, _ := parseSettings(nil)
	for i, s := range all {
		if s.Doc == "" || s.Bounds == "" {
			t.Errorf("%s is not documented", s.Key)
		}
		if got := s.format(&defaults); got != s.Default {
			t.Errorf("the default of %s is written %s and listed as %s", s.Key, s.Default, got)
		}
		if defaults.Settings()[i].Key != s.Key {
			t.Errorf("setting %d is %q", i, defaults.Settings()[i].Key)
		}
	}
}

// FuzzSettings expects that whatever is accepted can be listed and given again.
func FuzzSettings(f *testing.F) {
	f.Add("flush", "sync")
	f.Add("retention.age", "1h30m")
	f.Add("retention.bytes", "none")
	f.Add("segment.bytes", "1.5GiB")
	f.Add("segment.age", "100w52d")
	f.Fuzz(func(t *testing.T, key, value string) {
		c, kept, err := parseSettings([]wire.Setting{{Key: key, Value: value}})
		if err != nil {
			if !errors.Is(err, wire.CodeInvalidSetting) {
				t.Fatal(err)
			}
			return
		}
		for _, given := range [][]wire.Setting{kept, c.Settings()} {
			if again, _, err := parseSettings(given); err != nil || again != c {
				t.Fatalf("%q means %+v, %v; want %+v", given, again, err, c)
			}
		}
	})
}
