package broker

import (
	"context"
	"log/slog"
	"strconv"
	"sync"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/teralog/teralog/mem"
)

// An EventKind says what happened.
type EventKind uint8

// What happens to a broker, with the fields that come with it.
const (
	EventStart            EventKind = iota + 1 // version, clean, topics, partitions, took
	EventStop                                  // why
	EventClockJumped                           // by
	EventTopicCreated                          // topic, id, partitions
	EventTopicDeleted                          // topic, id, partitions
	EventSegmentRolled                         // topic, part, offset: the first of the new segment
	EventLogTruncated                          // topic, part, from, to: the offsets dropped, to exclusive
	EventPartitionOffline                      // topic, part, err
	EventDamageFound                           // topic, part, from, to: offsets, to exclusive
	EventFlushLate                             // dir, took
	EventDirectorySlow                         // dir, why
	EventDirectoryOffline                      // dir, err
	EventLimitReached                          // limit, and what it met
	EventLimitLeft                             // limit: there is room again
	EventClientRefused                         // reason, remote, and what was asked for
	endOfKinds
)

// kinds has a row per kind: its name in /events, how grave it is, what its line
// in the log says. A stormy kind may come by the thousand, for some at the will
// of clients, so only some of its events are kept; the next one that is says in
// suppressed how many were not.
var kinds = [endOfKinds]struct {
	name   string
	level  slog.Level
	says   string
	stormy bool
}{
	EventStart:            {"start", slog.LevelInfo, "started", false},
	EventStop:             {"stop", slog.LevelInfo, "stops", false},
	EventClockJumped:      {"clock_jumped", slog.LevelWarn, "the wall clock jumped", false},
	EventTopicCreated:     {"topic_created", slog.LevelInfo, "topic created", false},
	EventTopicDeleted:     {"topic_deleted", slog.LevelInfo, "topic deleted", false},
	EventSegmentRolled:    {"segment_rolled", slog.LevelInfo, "segment rolled", false},
	EventLogTruncated:     {"log_truncated", slog.LevelWarn, "log truncated", false},
	EventPartitionOffline: {"partition_offline", slog.LevelError, "partition is offline", true},
	EventDamageFound:      {"damage_found", slog.LevelError, "damage found", false},
	EventFlushLate:        {"flush_late", slog.LevelWarn, "flush is late", false},
	EventDirectorySlow:    {"directory_slow", slog.LevelWarn, "data directory is slow", false},
	EventDirectoryOffline: {"directory_offline", slog.LevelError, "data directory failed", false},
	EventLimitReached:     {"limit_reached", slog.LevelWarn, "limit reached", true},
	EventLimitLeft:        {"limit_left", slog.LevelInfo, "limit left", true},
	EventClientRefused:    {"client_refused", slog.LevelWarn, "client refused", true},
}

// String returns the name used in /events.
func (k EventKind) String() string { return kinds[k].name }

// Bounds of the events, inclusive.
const (
	maxEvents     = 1024 // kept
	maxFields     = 16   // of one event
	maxFieldBytes = 256  // of a field's name, and of its value
	stormRate     = 1    // events a second of each stormy kind,
	stormBurst    = 16   // and at once
)

// An event is one thing that happened, in the form in which it is kept.
type event struct {
	seq  uint64 // from 1, without a gap
	line string // as JSON, without a line end
}

// events keeps the last maxEvents. Any goroutine.
type events struct {
	mu    sync.Mutex // a leaf, held for the time of a copy
	last  uint64     // seq of the newest; 0: none
	ring  [maxEvents]event
	added chan struct{} // closed with the next event, nil if nobody waits for it
	storm [endOfKinds]struct {
		let        *mem.Bucket
		suppressed int64
	}
}

// event notes that something happened, which an operator may act on: it is in
// /events, in the log, and outlives a restart. Any goroutine, at any time from
// New on. It never waits; where it is called often it costs some microseconds.
// Values longer than maxFieldBytes are cut, fields beyond maxFields left out.
func (b *Broker) event(kind EventKind, fields ...slog.Attr) {
	now := b.time()
	if fields, ok := b.events.calm(kind, fields, now); ok {
		b.events.add(kind, fields, now)
		b.log.LogAttrs(context.Background(), kinds[kind].level, kinds[kind].says, fields...)
	}
}

// calm returns the fields as they are to be kept, ok = false if the event is
// one too many of its kind.
func (e *events) calm(kind EventKind, fields []slog.Attr, now mem.Now) (kept []slog.Attr, ok bool) {
	kept = fields[:min(len(fields), maxFields)]
	if !kinds[kind].stormy {
		return kept, true
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	s := &e.storm[kind]
	if s.let == nil {
		s.let = mem.NewBucket(stormRate, stormBurst-1) // an empty one lets one more pass, on credit
	}
	if s.let.Wait(now) > 0 {
		s.suppressed++
		return nil, false
	}
	s.let.Take(now, 1)
	if s.suppressed > 0 {
		kept = append(kept[:len(kept):len(kept)], slog.Int64("suppressed", s.suppressed))
		s.suppressed = 0
	}
	return kept, true
}

func (e *events) add(kind EventKind, fields []slog.Attr, now mem.Now) {
	rest := appendEvent(nil, kind, fields, now)
	e.mu.Lock()
	defer e.mu.Unlock()
	e.last++
	line := append(strconv.AppendUint([]byte(`{"seq":`), e.last, 10), rest...)
	e.ring[e.last%maxEvents] = event{e.last, string(line)}
	if e.added != nil {
		close(e.added)
		e.added = nil
	}
}

// after returns the oldest events that come after the one numbered seq, at most
// some, and how many between them and seq are not kept any more. Is there none,
// wake is closed once there is.
func (e *events) after(seq uint64, some int) (found []event, lost uint64, wake <-chan struct{}) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if seq >= e.last {
		if e.added == nil {
			e.added = make(chan struct{})
		}
		return nil, 0, e.added
	}
	from := seq + 1
	if e.last > maxEvents {
		from = max(from, e.last-maxEvents+1)
	}
	for n := from; n <= e.last && len(found) < some; n++ {
		found = append(found, e.ring[n%maxEvents])
	}
	return found, from - seq - 1, nil
}

// appendEvent appends an event as JSON, without its beginning and its number.
func appendEvent(to []byte, kind EventKind, fields []slog.Attr, now mem.Now) []byte {
	to = append(to, `,"time":"`...)
	to = time.UnixMilli(now.Wall).UTC().AppendFormat(to, "2006-01-02T15:04:05.000Z")
	to = append(to, `","kind":"`...)
	to = append(to, kind.String()...)
	to = append(to, `","fields":{`...)
	for i, f := range fields {
		if i > 0 {
			to = append(to, ',')
		}
		to = append(appendText(to, f.Key), ':')
		switch v := f.Value.Resolve(); v.Kind() {
		case slog.KindInt64:
			to = strconv.AppendInt(to, v.Int64(), 10)
		case slog.KindUint64:
			to = strconv.AppendUint(to, v.Uint64(), 10)
		case slog.KindBool:
			to = strconv.AppendBool(to, v.Bool())
		default: // durations too, as in the log
			to = appendText(to, v.String())
		}
	}
	return append(to, "}}"...)
}

// appendText appends s as a JSON string, cut to maxFieldBytes. What a terminal
// might obey is escaped, beyond what JSON asks for.
func appendText(to []byte, s string) []byte {
	const hex = "0123456789abcdef"
	to = append(to, '"')
	for i, r := range s {
		switch {
		case i+utf8.RuneLen(r) > maxFieldBytes:
			return append(to, `…"`...)
		case r == '"' || r == '\\':
			to = append(to, '\\', byte(r))
		case unicode.IsPrint(r):
			to = utf8.AppendRune(to, r)
		case r > 0xffff:
			to = utf8.AppendRune(to, utf8.RuneError)
		default:
			to = append(to, '\\', 'u', hex[r>>12&15], hex[r>>8&15], hex[r>>4&15], hex[r&15])
		}
	}
	return append(to, '"')
}
