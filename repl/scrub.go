package repl

import (
	"cmp"
	"slices"
	"sync/atomic"
	"time"

	"github.com/teralog/teralog/mem"
	"github.com/teralog/teralog/storage"
	"github.com/teralog/teralog/wire"
)

// A scrubber reads what one directory has sealed, pass after pass and no faster
// than it may, so that damage is found before the bytes are needed. It goes
// through the partitions by their ids; where it is outlives a restart.
type scrubber struct {
	dir   *directory
	pace  *mem.Bucket       // nil: it is off
	mark  storage.ScrubMark // where it is; the loop's, as all up to the line
	saved time.Duration     // when the mark was saved last

	// ----
	state  atomic.Pointer[storage.ScrubMark] // mark, for others to see
	passes atomic.Int64                      // ended since the start
	failed atomic.Int64                      // places that could not be read
}

const (
	scrubBytes     = 1 << 20          // read at a time
	scrubLooks     = 1024             // partitions looked at in a turn at most
	scrubSaveEvery = time.Minute      // and with the end of each pass
	scrubIdle      = 10 * time.Second // between two looks whether a pass is due
	scrubbedAll    = wire.Offset(1<<63 - 1)
)

func (s *scrubber) init(d *directory) {
	s.dir = d
	if rate := d.set.config.ScrubRate; rate > 0 {
		s.pace = mem.NewBucket(rate, scrubBytes)
	}
}

// turn goes on by one piece if one is due, and returns when the next one is.
func (s *scrubber) turn(now mem.Now) (next time.Duration) {
	if s.state.Load() == nil {
		s.mark, s.saved = s.dir.dir.ScrubMark(), now.Mono
	}
	defer func() {
		seen := s.mark
		s.state.Store(&seen)
	}()
	if !s.begun(now) {
		return now.Mono + scrubIdle
	}
	if wait := s.pace.Wait(now); wait > 0 {
		return now.Mono + wait
	}
	for range scrubLooks {
		p := s.partition()
		if p == nil {
			s.mark.Ended = max(now.Wall, s.mark.Began)
			s.passes.Add(1)
			s.save()
			return now.Mono + scrubIdle
		}
		if n := s.read(p); n > 0 {
			s.pace.Take(now, n)
			break
		}
	}
	if now.Mono-s.saved >= scrubSaveEvery {
		s.saved = now.Mono
		s.save()
	}
	return now.Mono + s.pace.Wait(now)
}

// begun reports whether a pass goes on, and begins one that is due.
func (s *scrubber) begun(now mem.Now) bool {
	m := &s.mark
	switch every := s.dir.set.config.ScrubEvery.Milliseconds(); {
	case m.Began == 0:
	case m.Ended == 0:
		return true
	case now.Wall-m.Began < every:
		return false
	}
	*m = storage.ScrubMark{Began: max(now.Wall, 1)}
	return true
}

// partition returns the one to go on with, nil after the last.
func (s *scrubber) partition() *Partition {
	all := s.dir.set.Partitions()
	i, _ := slices.BinarySearchFunc(all, s.mark.ID, func(p *Partition, id wire.PartitionID) int {
		return cmp.Or(cmp.Compare(p.id.Topic, id.Topic), cmp.Compare(p.id.Partition, id.Partition))
	})
	for _, p := range all[i:] {
		if p.dir == s.dir && (p.id != s.mark.ID || s.mark.Next != scrubbedAll) {
			return p
		}
	}
	return nil
}

// read verifies the next piece of p and returns how many bytes it read.
func (s *scrubber) read(p *Partition) (n int64) {
	from := wire.Offset(0)
	if s.mark.ID == p.id {
		from = s.mark.Next
	}
	s.mark.ID, s.mark.Next = p.id, scrubbedAll
	v := p.View()
	if v.Err != nil {
		return 0
	}
	var did storage.Scrubbed
	err := p.aside("scrub", func() (err error) {
		did, err = v.Log.Scrub(from, scrubBytes)
		return err
	})
	if err != nil {
		s.failed.Add(1)
		s.dir.set.config.Log.Error("scrub", "topic", p.topic, "part", p.id.Partition, "offset", from, "err", err)
	}
	if !did.Done && did.Next > from {
		s.mark.Next = did.Next
	}
	s.mark.Bytes += did.Bytes
	if p.closing.Load() != nil {
		return did.Bytes // its files may have been another's by then: a topic of the same name
	}
	if did.Bytes > 0 || did.Done { // else there may be more of the same damage
		p.tellDamage()
	}
	return did.Bytes
}

// save keeps the mark for the next start. One that cannot be kept costs that
// start some reading.
func (s *scrubber) save() {
	if s.dir.failure() == nil {
		s.dir.dir.SaveScrubMark(s.mark)
	}
}

// told is the damage of a partition that was reported.
type told struct {
	list atomic.Pointer[[]storage.CorruptRange]
}

// tellDamage reports damage that was found since it was last called, by whomever.
// Any goroutine.
func (p *Partition) tellDamage() {
	all, old := p.View().Log.Damage(), p.damage.list.Load()
	var known []storage.CorruptRange
	if old != nil {
		known = *old
	}
	if slices.Equal(all, known) || !p.damage.list.CompareAndSwap(old, &all) {
		return
	}
	for _, d := range all {
		if slices.ContainsFunc(known, func(k storage.CorruptRange) bool { return k.From <= d.From && d.To <= k.To }) {
			continue
		}
		p.set.event(Event{Kind: DamageFound, Dir: p.dir.dir, ID: p.id, Err: &d, From: d.From, To: d.To})
	}
}

// DirStats are what a set does to the disk of one directory behind its
// partitions' backs. Bytes are counted since the start.
type DirStats struct {
	Dir   *storage.Dir
	Dirty int64 // bytes appended and not known to be on the disk
	Told  int64 // bytes the disk was told to write before a flush was due
	Cache storage.CacheStats

	Scrub       storage.ScrubMark // zero until the first pass began, or if there is none
	ScrubPasses int64             // ended
	ScrubFailed int64             // places that the disk could not read
}

// DirStats returns the counters of each directory. Any goroutine.
func (s *Set) DirStats() []DirStats {
	all := make([]DirStats, len(s.dirs))
	for i, d := range s.dirs {
		all[i] = DirStats{Dir: d.dir, Dirty: d.back.dirty.Load(), Told: d.back.told.Load(), Cache: d.dir.CacheStats(),
			ScrubPasses: d.scrub.passes.Load(), ScrubFailed: d.scrub.failed.Load()}
		if m := d.scrub.state.Load(); m != nil {
			all[i].Scrub = *m
		}
	}
	return all
}
