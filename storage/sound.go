package storage

import (
	"math"
	"sync"
)

// A sound knows which bytes of a .log file may go to readers unread: those that
// this process wrote or verified, as far as they have not left memory since. A
// disk may change what it is given to keep, and that a page is in memory does
// not say who has looked at it: a read brings in its neighbours.
//
// It keeps one range beside what was written last. A reader that goes through a
// cold segment has each of its bytes verified once, the one behind it then none.
type sound struct {
	mu       sync.Mutex
	own      int64 // from here on; MaxInt64 for nothing
	from, to int64 // and these, which end below own
}

// nothing is what is sound of a file that this process has just met.
const nothing = math.MaxInt64

func (s *sound) set(own int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.own, s.from, s.to = own, 0, 0
}

// holds reports whether all bytes from off to end are sound.
func (s *sound) holds(off, end int64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return off >= s.own || s.from <= off && end <= s.to
}

// verified notes that the bytes from off to end are sound.
func (s *sound) verified(off, end int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if off <= s.to && s.from <= end {
		off, end = min(off, s.from), max(end, s.to)
	}
	if end >= s.own {
		s.own, s.from, s.to = min(off, s.own), 0, 0
		return
	}
	s.from, s.to = off, end
}

// left notes that the bytes from off to end are not in memory, of a file of size
// bytes. If they were sound, others may have left with them, and come back with
// the next read: nobody can tell which.
func (s *sound) left(off, end, size int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if end > s.own || off < s.to && s.from < end {
		s.own, s.from, s.to = max(s.own, size), 0, 0
	}
}

// A cacheFile can tell what of it is in memory.
type cacheFile interface {
	readNow(p []byte, off int64) bool // reads all of p, without waiting for the disk
	resident(off, n int64) bool       // all of the range
	absent(off, n int64) []span       // what is not
}

// touch looks whether the n bytes at off of s, whose picture is x, are in memory
// before they are read.
func (s *segment) touch(f File, x *tail, off, n int64) {
	n = min(n, x.size-off)
	if c, ok := f.(cacheFile); ok && !c.resident(off, n) {
		s.sound.left(off, off+n, x.size)
	}
}

// Sound reports whether the range may be sent unread. One that may not is to be
// checked first.
func (r *Range) Sound() bool {
	c, ok := r.R.(cacheFile)
	if !ok {
		return true // a disk in memory
	}
	absent := !c.resident(r.Off, r.Len)
	if absent {
		_, x := r.v.picture(r.v.holds(r.s.base))
		r.s.sound.left(r.Off, r.Off+r.Len, x.size)
	}
	sound := r.s.sound.holds(r.Off, r.Off+r.Len)
	r.follow(sound, absent)
	return sound
}

// ReadNow reads all of the range into p, which is as long, if that may be sent
// unread and is in memory: for a few bytes one call to the disk instead of a look
// at their pages and one that sends them. If it returns false p holds nothing
// of use.
func (r *Range) ReadNow(p []byte) bool {
	if r.s != r.v.active {
		return false // a reader of old bytes is followed
	}
	c, ok := r.R.(cacheFile)
	if !ok {
		n, _ := r.R.ReadAt(p, r.Off)
		return n == len(p)
	}
	return r.s.sound.holds(r.Off, r.Off+r.Len) && c.readNow(p, r.Off)
}
