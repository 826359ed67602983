package broker

import (
	"errors"
	"fmt"
	"math"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/teralog/teralog/repl"
	"github.com/teralog/teralog/storage"
	"github.com/teralog/teralog/wire"
)

// Bounds of one look at records, inclusive.
const (
	maxShownRecords = 200             // in an answer
	maxSearchBytes  = 64 << 20        // of batches looked through, uncompressed
	maxSearchTime   = 2 * time.Second // checked between two reads
	maxSearchDamage = 100             // damaged ranges passed over
	maxSearches     = 2               // at once; they run beside the workers of clients
	searchChunk     = 1 << 20         // bytes read at once; a longer batch is read whole
)

var errSearches error = &wire.Error{Code: wire.CodeBusy, Message: fmt.Sprintf("%d look-ups of records run already", maxSearches), RetryAfter: time.Second}

// A recordPage is the records of a part of one partition.
type recordPage struct {
	Topic     string        `json:"topic"`
	Partition int32         `json:"partition"`
	Start     wire.Offset   `json:"start"`     // of the partition
	Committed wire.Offset   `json:"committed"` // likewise
	From      wire.Offset   `json:"from"`      // all from here
	To        wire.Offset   `json:"to"`        // to here, exclusive, was looked at
	Looked    int64         `json:"looked"`    // records looked at
	Records   []shownRecord `json:"records"`
	Damaged   []damagedPart `json:"damaged"`
	// Stopped says that the bounds of a search ended it before it had found
	// all that was asked for.
	Stopped bool `json:"stopped"`
}

// A damagedPart is a run of records that cannot be read, To exclusive.
type damagedPart struct {
	From wire.Offset `json:"from"`
	To   wire.Offset `json:"to"`
	Why  string      `json:"why"`
}

// A search walks through one partition, forward or backward, and keeps the
// records that match. It reads as a fetch does, and looks no farther than its
// bounds.
type search struct {
	b     *Broker
	v     *repl.View
	match func(*wire.Record) bool
	limit int
	gone  <-chan struct{} // closed when nobody waits any more

	until   time.Duration // on the monotonic clock
	bytes   int64         // that may still be looked through
	page    recordPage
	decoder wire.Decoder // of what is stored
	plain   wire.Decoder // of that without its codec
}

// askedPartition returns the partition that q names.
func (b *Broker) askedPartition(q *question) (*repl.Partition, error) {
	n := q.number("partition", 0, math.MaxInt32, 0)
	if q.text("topic") == "" {
		q.bad("which topic?")
	}
	if q.err != nil {
		return nil, q.err
	}
	t := b.Image().Topic(q.text("topic"))
	if t == nil {
		return nil, wire.Errorf(wire.CodeUnknownTopic, "there is no topic %q", q.text("topic"))
	}
	if n >= int64(len(t.Partitions)) {
		return nil, wire.Errorf(wire.CodeUnknownPartition, "%s has %d partitions, from 0; there is no %d", t.Name, len(t.Partitions), n)
	}
	return b.leader(wire.PartitionID{Topic: t.ID, Partition: int32(n)})
}

// searchRecords answers /api/records: the records at and after an offset or a time,
// or those before an offset.
func (b *Broker) searchRecords(r *http.Request) (any, error) {
	if err := b.mayRead(r); err != nil {
		return nil, err
	}
	q := askedOf(r, "topic", "partition", "offset", "before", "time", "limit", "key", "value", "header")
	s := search{b: b, gone: r.Context().Done(), bytes: maxSearchBytes, until: b.time().Mono + maxSearchTime}
	s.limit = int(q.number("limit", 1, maxShownRecords, 50))
	s.match = matching(q.text("key"), q.text("value"), q.text("header"))
	offset, before := q.number("offset", 0, math.MaxInt64, -1), q.number("before", 0, math.MaxInt64, -1)
	at := int64(-1)
	if text := q.text("time"); text != "" {
		var err error
		if at, err = wire.ParseTime(text, time.UnixMilli(b.time().Wall)); err != nil {
			q.bad("%v", err)
		}
	}
	asked := 0
	for _, name := range []string{"offset", "before", "time"} {
		if q.text(name) != "" {
			asked++
		}
	}
	if asked > 1 {
		q.bad("offset, before and time say different things; give one of them")
	}
	p, err := b.askedPartition(q)
	if err != nil {
		return nil, err
	}
	if !b.searches.TryTake(1) {
		return nil, errSearches
	}
	defer b.searches.Give(1)
	defer s.decoder.Release()
	s.v = p.View()
	s.page = recordPage{
		Topic: p.Topic(), Partition: p.ID().Partition, Start: s.v.Start, Committed: s.v.Committed,
		Records: []shownRecord{}, Damaged: []damagedPart{},
	}
	switch {
	case q.text("time") != "":
		err = s.fromTime(at)
	case before >= 0:
		err = s.backward(wire.Offset(before))
	default:
		if offset < 0 {
			offset = int64(s.v.Start)
		}
		err = s.forward(wire.Offset(offset))
	}
	if err != nil {
		return nil, err
	}
	return &s.page, nil
}

func (s *search) fromTime(t int64) error {
	at, _, err := s.v.Log.FindTime(storage.EventTime, t, s.v.Committed, s.b.server.Budget)
	if err != nil {
		return err
	}
	if at < 0 {
		at = s.v.Committed // no record is that young
	}
	return s.forward(at)
}

// spent reports whether the search must end here, and notes so.
func (s *search) spent() bool {
	select {
	case <-s.gone:
		return true
	default:
	}
	s.page.Stopped = s.bytes <= 0 || s.b.time().Mono > s.until || len(s.page.Damaged) >= maxSearchDamage
	return s.page.Stopped
}

// forward looks at the records from at on.
func (s *search) forward(at wire.Offset) error {
	s.page.From, s.page.To = at, at
	if at < s.v.Start || at > s.v.Committed {
		return wire.Errorf(wire.CodeOutOfRange, "offset %d is outside %d to %d", at, s.v.Start, s.v.Committed)
	}
	for s.page.To < s.v.Committed && len(s.page.Records) < s.limit && !s.spent() {
		at := s.page.To
		_, next, err := s.read(at, searchChunk, func(r *wire.Record) error {
			if r.Offset < at {
				return nil
			}
			if len(s.page.Records) == s.limit {
				return errEnough
			}
			s.page.To = r.Offset + 1
			s.consider(r, &s.page.Records)
			return nil
		})
		if err == errEnough {
			return nil
		}
		if err != nil {
			if _, next, err = s.passOver(s.page.To, err); err != nil {
				return err
			}
		}
		if next <= at {
			return nil // what is committed is not to be read yet
		}
		s.page.To = next
	}
	return nil
}

// backward looks at the records before an offset, the youngest first, a batch
// at a time. The page has them in ascending order.
func (s *search) backward(before wire.Offset) error {
	before = min(before, s.v.Committed)
	if before < s.v.Start {
		return wire.Errorf(wire.CodeOutOfRange, "offset %d is outside %d to %d", before, s.v.Start, s.v.Committed)
	}
	s.page.From, s.page.To = before, before
	defer func() { slices.Reverse(s.page.Records) }()
	for s.page.From > s.v.Start && len(s.page.Records) < s.limit && !s.spent() {
		var found []shownRecord // of one batch, ascending
		first, _, err := s.read(s.page.From-1, 1, func(r *wire.Record) error {
			if r.Offset < s.page.From && r.Offset >= s.v.Start {
				s.consider(r, &found)
			}
			return nil
		})
		if err != nil {
			if first, _, err = s.passOver(s.page.From-1, err); err != nil {
				return err
			}
		}
		s.page.From = max(min(first, s.page.From-1), s.v.Start)
		if left := s.limit - len(s.page.Records); len(found) > left {
			found = found[len(found)-left:]
			s.page.From = found[0].Offset
		}
		slices.Reverse(found)
		s.page.Records = append(s.page.Records, found...)
	}
	return nil
}

// consider appends r to found if it matches.
func (s *search) consider(r *wire.Record, found *[]shownRecord) {
	s.page.Looked++
	if s.match(r) {
		*found = append(*found, show(r))
	}
}

// errEnough ends the walk through what was read.
var errEnough = errors.New("enough")

// read calls use with the records of whole batches, from the one that holds at,
// as many as fit length, but at least one. It returns the offsets they begin at
// and end before.
func (s *search) read(at wire.Offset, length int, use func(*wire.Record) error) (first, next wire.Offset, err error) {
	found, err := s.v.Log.Find(at, s.v.Committed, length)
	if err != nil || found.Len == 0 {
		return at, at, err
	}
	defer found.Done()
	plain, err := s.b.decode(&found, int64(length), true, &s.decoder)
	if err != nil {
		return at, at, err
	}
	defer plain.done()
	s.bytes -= plain.len
	for batch := range wire.Batches(plain.buf.B) {
		if err := batch.Records(&s.plain, use); err != nil {
			return found.First, plain.next, err
		}
	}
	return found.First, plain.next, nil
}

// passOver notes that what stands at an offset cannot be read, and returns the
// bounds of it; or the error, if it is none of the bytes there.
func (s *search) passOver(at wire.Offset, err error) (from, to wire.Offset, _ error) {
	from, to = at, at+1
	var bad *storage.CorruptRange
	switch {
	case errors.As(err, &bad):
		from, to = min(bad.From, at), max(bad.To, at+1)
	case wire.CodeOf(err) == wire.CodeTooLarge, errors.Is(err, wire.ErrCorrupt):
		one, err := s.v.Log.Find(at, s.v.Committed, 1)
		if err != nil {
			return 0, 0, err
		}
		if one.Len > 0 {
			from, to = one.First, one.Next
			one.Done()
		}
	default:
		return 0, 0, err
	}
	s.page.Damaged = append(s.page.Damaged, damagedPart{max(from, s.v.Start), to, err.Error()})
	return from, to, nil
}

// serveValue answers /api/value: the bytes of a record's value, of its key, or
// of the value of one of its headers, counted from 0.
func (b *Broker) serveValue(w http.ResponseWriter, r *http.Request) {
	body, name, err := b.wholeValue(r)
	if err != nil {
		refuseJSON(w, err)
		return
	}
	h := w.Header()
	guardHeaders(h)
	h.Set("Content-Type", "application/octet-stream")
	h.Set("Content-Disposition", `attachment; filename="`+name+`"`)
	h.Set("Cache-Control", "no-store")
	w.Write(body)
}

func (b *Broker) wholeValue(r *http.Request) (body []byte, name string, err error) {
	if err := b.mayRead(r); err != nil {
		return nil, "", err
	}
	q := askedOf(r, "topic", "partition", "offset", "part", "header")
	at := wire.Offset(q.number("offset", 0, math.MaxInt64, -1))
	if at < 0 {
		q.bad("which offset?")
	}
	part := q.oneOf("part", "value", "key", "header")
	header := int(q.number("header", 0, math.MaxInt32, 0))
	p, err := b.askedPartition(q)
	if err != nil {
		return nil, "", err
	}
	if !b.searches.TryTake(1) {
		return nil, "", errSearches
	}
	defer b.searches.Give(1)
	s := search{b: b, v: p.View()}
	defer s.decoder.Release()
	if at >= s.v.Committed {
		return nil, "", wire.Errorf(wire.CodeOutOfRange, "offset %d is outside %d to %d", at, s.v.Start, s.v.Committed)
	}
	found, headers := false, 0
	_, _, err = s.read(at, 1, func(r *wire.Record) error {
		if r.Offset != at {
			return nil
		}
		found, headers = true, len(r.Headers)
		switch {
		case part == "key":
			body = slices.Clone(r.Key)
		case part == "value":
			body = slices.Clone(r.Value)
		case header < len(r.Headers):
			body = slices.Clone(r.Headers[header].Value)
		}
		return errEnough
	})
	if err != nil && err != errEnough {
		return nil, "", err
	}
	if !found {
		return nil, "", wire.Errorf(wire.CodeOutOfRange, "there is no record at offset %d any more", at)
	}
	if part == "header" && header >= headers {
		return nil, "", wire.Errorf(wire.CodeOutOfRange, "the record has %d headers, counted from 0; there is no %d", headers, header)
	}
	return body, p.Topic() + "-" + strconv.Itoa(int(p.ID().Partition)) + "-" + strconv.FormatInt(int64(at), 10) + "." + part, nil
}
