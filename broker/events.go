package broker

import (
	"context"
	"log/slog"
	"sort"
	"sync"
	"time"

	"github.com/teralog/teralog/mem"
)

// An EventKind says what happened.
type EventKind uint8

// What happens to a broker, with the fields that come with it.
const (
	EventStart              EventKind = iota + 1 // version, clean, topics, partitions, took
	EventStop                                    // why
	EventClockJumped                             // by
	EventTopicCreated                            // topic, id, partitions
	EventTopicDeleted                            // topic, id, partitions
	EventSegmentRolled                           // topic, part, offset: the first of the new segment
	EventLogTrimmed                              // topic, part, from, to: the offsets dropped at its beginning, to exclusive
	EventLogTruncated                            // topic, part, offset, bytes: cut off behind its end by a start, and err, why
	EventPartitionOffline                        // topic, part, err
	EventDamageFound                             // topic, part, from, to: offsets, to exclusive
	EventFlushLate                               // dir, took
	EventDirectorySlow                           // dir, why
	EventDirectoryOffline                        // dir, err
	EventLimitReached                            // limit, and what it met
	EventLimitLeft                               // limit: there is room again
	EventClientRefused                           // reason, remote, and what was asked for
	EventRetentionHeld                           // topic, part, bytes: kept though old by a clock that jumped
	EventCertificateLoaded                       // cert, expires
	EventCertificateRefused                      // err: the old one stays
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
	EventStart:              {"start", slog.LevelInfo, "started", false},
	EventStop:               {"stop", slog.LevelInfo, "stops", false},
	EventClockJumped:        {"clock_jumped", slog.LevelWarn, "the wall clock jumped", false},
	EventTopicCreated:       {"topic_created", slog.LevelInfo, "topic created", false},
	EventTopicDeleted:       {"topic_deleted", slog.LevelInfo, "topic deleted", false},
	EventSegmentRolled:      {"segment_rolled", slog.LevelInfo, "segment rolled", true},
	EventLogTruncated:       {"log_truncated", slog.LevelWarn, "log truncated", true},
	EventLogTrimmed:         {"log_trimmed", slog.LevelInfo, "log trimmed", true},
	EventPartitionOffline:   {"partition_offline", slog.LevelError, "partition is offline", true},
	EventDamageFound:        {"damage_found", slog.LevelError, "damage found", true},
	EventFlushLate:          {"flush_late", slog.LevelWarn, "flush is late", false},
	EventDirectorySlow:      {"directory_slow", slog.LevelWarn, "data directory is slow", false},
	EventDirectoryOffline:   {"directory_offline", slog.LevelError, "data directory failed", false},
	EventLimitReached:       {"limit_reached", slog.LevelWarn, "limit reached", true},
	EventLimitLeft:          {"limit_left", slog.LevelInfo, "limit left", true},
	EventClientRefused:      {"client_refused", slog.LevelWarn, "client refused", true},
	EventRetentionHeld:      {"retention_held", slog.LevelWarn, "retention waits, since the clock jumped and more than half of the partition seems old", true},
	EventCertificateLoaded:  {"certificate_loaded", slog.LevelInfo, "certificate loaded", false},
	EventCertificateRefused: {"certificate_refused", slog.LevelError, "the new certificate is of no use, the old one stays", false},
}

// String returns the name used in /events.
func (k EventKind) String() string { return kinds[k].name }

// Bounds of the events, inclusive.
const (
	maxEvents     = 1024      // kept,
	maxLines      = 256 << 10 // bytes of their lines
	maxFields     = 12        // of one event
	maxFieldBytes = 512       // of a field's name, and of its value
	stormRate     = 1         // events a second of each stormy kind,
	stormBurst    = 16        // and at once
)

// An event is one thing that happened, in the form in which it is kept.
type event struct {
	seq    uint64 // from 1; only a start after a crash leaves numbers out
	line   string // as JSON, without a line end
	kind   EventKind
	wall   int64       // milliseconds since the Unix epoch
	fields []slog.Attr // cut already; nil if it is in the log, or was read from a file
}

// events keeps the last maxEvents, fewer if their lines are more than maxLines
// bytes. Whoever reads them does so at his own pace, and is told what he has
// missed: nobody who is slow, be it a client, a disk or what takes the log, holds
// up those to whom something happens. Any goroutine.
//
// The lines lie one behind the other in memory of their own. A string for each
// would live for minutes among what lives for microseconds, and keep a page of
// the heap from being given back.
type events struct {
	mu      sync.Mutex // a leaf, held for some microseconds
	last    uint64     // the newest number given away
	added   uint64     // events so far; the n-th lies in ring[n % maxEvents]
	first   uint64     // the oldest of them that is kept; added if there is none
	ring    [maxEvents]slot
	lines   []byte            // of maxLines bytes, or none yet; byte n lies in lines[n % maxLines]
	written uint64            // bytes of lines so far
	counts  [endOfKinds]int64 // those not kept included
	changed chan struct{}     // closed with the next event, nil if nobody waits for it
	storm   [endOfKinds]struct {
		let        *mem.Bucket
		suppressed int64
	}

	logged struct {
		sync.Mutex
		seq uint64 // of the newest event in the log
	}
}

// A slot holds one event, whose line is in events.lines.
type slot struct {
	event
	at  uint64 // where its line begins
	len int
}

// event notes that something happened which an operator may act on: it is in
// /events, in the log, and outlives a restart. Any goroutine, at any time. It
// waits for nobody and takes some microseconds. Texts longer than maxFieldBytes
// are cut, fields beyond maxFields left out.
func (b *Broker) event(kind EventKind, fields ...slog.Attr) {
	b.events.add(kind, fields, b.time())
	if b.env.Manual {
		b.logEvents()
	}
}

func (e *events) add(kind EventKind, fields []slog.Attr, now mem.Now) {
	fields = kept(fields)
	e.mu.Lock()
	defer e.mu.Unlock()
	e.counts[kind]++
	fields, ok := e.calm(kind, fields, now)
	if !ok {
		return
	}
	e.last++
	e.put(event{seq: e.last, line: eventLine(e.last, kind, fields, now.Wall), kind: kind, wall: now.Wall, fields: fields})
	if e.changed != nil {
		close(e.changed)
		e.changed = nil
	}
}

// put keeps v, whose line has at most maxLines bytes, and lets go of as many of
// the oldest as that takes. e.mu is held.
func (e *events) put(v event) {
	if e.lines == nil {
		e.lines = make([]byte, maxLines)
	}
	line := v.line
	v.line = ""
	for e.first < e.added && (e.added-e.first == maxEvents || e.written+uint64(len(line))-e.slot(e.first).at > maxLines) {
		e.first++
	}
	n := copy(e.lines[e.written%maxLines:], line)
	copy(e.lines, line[n:])
	*e.slot(e.added) = slot{event: v, at: e.written, len: len(line)}
	e.added++
	e.written += uint64(len(line))
}

// slot returns where the n-th event is kept.
func (e *events) slot(n uint64) *slot { return &e.ring[n%maxEvents] }

// appendLine appends the line of the n-th event. e.mu is held.
func (e *events) appendLine(to []byte, n uint64) []byte {
	s := e.slot(n)
	line := e.lines[s.at%maxLines:]
	if s.len <= len(line) {
		return append(to, line[:s.len]...)
	}
	return append(append(to, line...), e.lines[:s.len-len(line)]...)
}

// calm adds to fields how many events of a stormy kind were left out; ok is
// false if this is one more. e.mu is held.
func (e *events) calm(kind EventKind, fields []slog.Attr, now mem.Now) (_ []slog.Attr, ok bool) {
	if !kinds[kind].stormy {
		return fields, true
	}
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
		fields = append(fields, slog.Int64("suppressed", s.suppressed))
		s.suppressed = 0
	}
	return fields, true
}

// after returns the oldest events that come after the one numbered seq, at most
// some of them, numbered without a gap; and how many between seq and the first
// are not to be had. If there is none, wake is closed once there is. A seq of
// the future is one of another data directory, and taken for 0.
func (e *events) after(seq uint64, some int) (found []event, lost uint64, wake <-chan struct{}) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if seq > e.last {
		seq = 0
	}
	at := e.find(seq)
	if at == e.added {
		if e.changed == nil {
			e.changed = make(chan struct{})
		}
		return nil, 0, e.changed
	}
	lost = e.slot(at).seq - seq - 1
	for next := seq + lost + 1; at < e.added && len(found) < some && e.slot(at).seq == next; next++ {
		v := e.slot(at).event
		v.line = string(e.appendLine(nil, at))
		found = append(found, v)
		at++
	}
	return found, lost, nil
}

// find returns which event is the oldest kept that comes after the one numbered
// seq, added if there is none. e.mu is held.
func (e *events) find(seq uint64) (n uint64) {
	return e.first + uint64(sort.Search(int(e.added-e.first), func(i int) bool { return e.slot(e.first+uint64(i)).seq > seq }))
}

// forget lets go of the fields of the event numbered seq, which is in the log.
func (e *events) forget(seq uint64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if n := e.find(seq - 1); n < e.added && e.slot(n).seq == seq {
		e.slot(n).fields = nil
	}
}

// count returns how many events of a kind there have been in this process.
func (e *events) count(kind EventKind) int64 {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.counts[kind]
}

// newestSeq returns the number of the newest event.
func (e *events) newestSeq() uint64 {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.last
}

// logEvents writes the events to the log that are not there yet, a line each,
// and returns what is closed with the next one. One caller at a time gets ahead.
func (b *Broker) logEvents() (wake <-chan struct{}) {
	l := &b.events.logged
	l.Lock()
	defer l.Unlock()
	for {
		found, lost, wake := b.events.after(l.seq, 64)
		if wake != nil {
			return wake
		}
		if lost > 0 {
			b.log.Warn("the log was too slow for some events; /events may have them", "lost", lost)
		}
		for _, v := range found {
			row := &kinds[v.kind]
			if b.log.Enabled(context.Background(), row.level) {
				line := slog.NewRecord(time.UnixMilli(v.wall), row.level, row.says, 0)
				line.AddAttrs(v.fields...)
				b.log.Handler().Handle(context.Background(), line) // nobody could be told of an error
			}
			b.events.forget(v.seq)
			l.seq = v.seq
		}
	}
}

// logLast brings the log up to date at an end.
func (b *Broker) logLast() {
	if b.env.Manual {
		return // it is
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		b.logEvents()
	}()
	await(done)
}

// runLog keeps the log up with the events.
func (b *Broker) runLog(ctx context.Context) {
	for {
		select {
		case <-b.logEvents():
		case <-ctx.Done():
			return
		}
	}
}
