package storage

import (
	"errors"
	"fmt"
	"io"
	"math"
	"slices"

	"github.com/teralog/teralog/wire"
)

// Scrubbed says what one Scrub did.
type Scrubbed struct {
	Next  wire.Offset // where to go on
	Bytes int64       // read and verified
	Done  bool        // there is no sealed segment at or behind Next
	Found []CorruptRange
}

// Scrub reads and verifies the sealed batches from the one that holds from on,
// until it has n bytes of them, or meets damage or a segment's end. Damage is
// remembered as if a reader had met it; Found has what was not known before. What was not in
// memory is not there afterwards, so the disk is read, and nobody loses what is
// hot; what is in memory is verified there.
//
// After an error, which is the disk's, Next is behind what could not be read.
func (v *View) Scrub(from wire.Offset, n int64) (Scrubbed, error) {
	from = max(from, v.start)
	i := v.holds(from)
	if i == len(v.sealed) {
		return Scrubbed{Next: from, Done: true}, nil
	}
	s := v.sealed[i]
	x := &s.final
	if bad, _ := v.home.damage.ahead(from, x.end); bad != nil {
		return Scrubbed{Next: bad.To}, nil
	}
	if from >= x.end {
		return v.scrubbed(v.home.damage.all(), v.home.damage.add(x.end, v.nextBase(s))), nil
	}
	if _, err := v.home.files.take(s); err != nil {
		if err == errGone {
			err = nil
		}
		return Scrubbed{Next: x.end}, storageError(err)
	}
	defer s.done()
	f, err := s.home.fs.Open(s.name(logSuffix), Read) // not the readers' file: theirs reads ahead
	if err != nil {
		if notExist(err) {
			err = nil // deleted
		}
		return Scrubbed{Next: x.end}, storageError(err)
	}
	defer f.Close()
	f.Scattered() // what reads ahead all the same only costs memory
	return v.scrubIn(f, s, x, from, n)
}

// scrubIn is Scrub within s, whose picture is x, through f.
func (v *View) scrubIn(f File, s *segment, x *tail, from wire.Offset, n int64) (Scrubbed, error) {
	p := probe{rel: clamp(int64(from - s.base)), pos: math.MaxUint32}
	at, err := s.find(x, p)
	if err != nil {
		return Scrubbed{Next: x.end}, storageError(err)
	}
	start := int64(at.pos)
	var absent []span
	if c, ok := f.(cacheFile); ok {
		absent = c.absent(start, min(n+wire.MaxBatchBytes, x.size-start))
	}
	w := newWalker(f, v.home.id, start, s.base+wire.Offset(at.rel), x.size, scanBytes)
	defer w.close()
	defer func() { dropRead(f, absent, max(w.pos, w.lo+int64(len(w.window)))) }()
	for err == nil && w.next < x.end && w.pos-start < n {
		var b wire.Batch
		if b, err = w.batch(); err == nil {
			w.skip(b)
		}
	}
	done := Scrubbed{Next: w.next, Bytes: w.pos - start}
	v.home.files.cache.scrubbed.Add(done.Bytes)
	switch {
	case err == nil:
		return done, nil
	case err == io.EOF || errors.Is(err, wire.ErrCorrupt):
		known := v.home.damage.all()
		var bad *CorruptRange
		if err = v.damaged(s, x, &w, err); errors.As(err, &bad) {
			found := v.scrubbed(known, bad)
			found.Bytes = done.Bytes
			return found, nil
		}
	}
	at, found := s.behind(x, w.pos)
	done.Next = x.end
	if found {
		done.Next = s.base + wire.Offset(at.rel)
	}
	return done, storageError(fmt.Errorf("scrub %s at byte %d: %w", s.name(logSuffix), w.pos, err))
}

// behind returns the first index entry behind pos.
func (s *segment) behind(x *tail, pos int64) (at entry, ok bool) {
	e, err := s.entries(x)
	if err != nil {
		return at, false
	}
	to := wire.Offset(0)
	guard(func() { to = e.after(0, pos, -1) })
	return entry{rel: uint32(max(to, 0))}, to > 0
}

// scrubbed is Scrub's answer when it met bad and known was known before.
func (v *View) scrubbed(known []CorruptRange, bad *CorruptRange) Scrubbed {
	r := Scrubbed{Next: bad.To}
	if !slices.ContainsFunc(known, func(k CorruptRange) bool { return k.From <= bad.From && bad.To <= k.To }) {
		r.Found = []CorruptRange{*bad}
	}
	return r
}

// dropRead drops what of absent was read, up to end.
func dropRead(f File, absent []span, end int64) {
	for _, x := range absent {
		if x.from < end {
			f.DropCache(x.from, min(x.to, (end+pageSize-1)/pageSize*pageSize)-x.from)
		}
	}
}

// Damage returns the ranges of the log known to be damaged, ascending. The slice
// is shared. Any goroutine.
func (v *View) Damage() []CorruptRange { return v.home.damage.all() }

// A ScrubMark is how far the scrub of a data directory has come, so that a start
// goes on where the last one was. Times are in ms of the stamp clock.
type ScrubMark struct {
	Began int64            // when the pass began; 0: there was none yet
	Ended int64            // when it ended; 0 while it goes on
	ID    wire.PartitionID // the partition it is at,
	Next  wire.Offset      // and where in it
	Bytes int64            // it has read
}

var scrubFile = smallFile{magic: "TLsc", version: 1, max: 4 << 10}

// ScrubMark returns the mark saved last; zero if there is none, or none that can
// be read: then the pass begins anew.
func (d *Dir) ScrubMark() ScrubMark {
	m, err := readSmall(d, scrubFile, scrubName, decodeScrubMark)
	if err != nil {
		return ScrubMark{}
	}
	return m
}

// SaveScrubMark makes m the mark to go on from.
func (d *Dir) SaveScrubMark(m ScrubMark) error {
	if err := d.usable(); err != nil {
		return err
	}
	return d.settle(scrubFile.write(d.fs, d.in(scrubName), m.encode()))
}

// encode lays a mark out:
//
//	| began i64 | ended i64 | topicID u64 | partition u32 | next i64 | bytes i64 |
func (m ScrubMark) encode() []byte {
	b := wire.Append64(wire.Append64(nil, uint64(m.Began)), uint64(m.Ended))
	b = wire.Append32(wire.Append64(b, uint64(m.ID.Topic)), m.ID.Partition)
	return wire.Append64(wire.Append64(b, uint64(m.Next)), uint64(m.Bytes))
}

func decodeScrubMark(b []byte) (m ScrubMark, err error) {
	r := wire.NewReader(b)
	m.Began, m.Ended = r.I64(), r.I64()
	m.ID = wire.PartitionID{Topic: wire.TopicID(r.U64()), Partition: r.I32()}
	m.Next, m.Bytes = wire.Offset(r.I64()), r.I64()
	return m, r.Finish()
}
