package storage

import (
	"sync"
)

// defaultOpenFiles is how many sealed segments a data directory keeps open.
const defaultOpenFiles = 512

// openFiles keeps what is open of sealed segments that nobody holds, least
// recently used first, up to a bound. Segments that readers hold, and those not
// yet durable, stay open beyond it.
type openFiles struct {
	max   int
	cache cacheCounts

	mu         sync.Mutex // a leaf: never held across a call to the disk
	count      int        // segments in the idle list
	pinned     int        // segments that may not be closed
	head, tail *segment   // idle list: head was used longest ago
}

// A slot is what openFiles knows of one segment.
type slot struct {
	log        File // nil if not open
	maps       *indexMaps
	refs       int
	pinned     bool // not to be closed: being written, or not yet durable
	gone       bool // deleted
	idle       bool // in the idle list
	prev, next *segment
}

// indexMaps are the mapped .index and .timeindex.
type indexMaps [2]Mapping

// findable reports whether the first n entries by offset are there and in memory.
func (m *indexMaps) findable(n int) bool {
	if m == nil {
		return false
	}
	c, ok := m[0].(interface{ resident(n int) bool })
	return !ok || c.resident(n*indexFiles[0].width)
}

func (m *indexMaps) close() {
	for _, x := range m {
		if x != nil {
			x.Close()
		}
	}
}

func newOpenFiles(max int) *openFiles {
	return &openFiles{max: orDefault(max, defaultOpenFiles)}
}

// take returns the log file of s, opened for reading if need be, and holds s
// until give. A deleted segment can be taken as long as somebody holds it.
func (o *openFiles) take(s *segment) (File, error) {
	o.mu.Lock()
	c := &s.slot
	if c.gone && c.refs == 0 {
		o.mu.Unlock()
		return nil, errGone
	}
	c.refs++
	o.remove(s)
	f := c.log
	o.mu.Unlock()
	if f != nil {
		return f, nil
	}
	f, err := s.home.fs.Open(s.name(logSuffix), Read)
	if err != nil {
		if o.isGone(s) {
			err = errGone // between the two locks
		}
		o.give(s)
		return nil, err
	}
	return o.keepLog(s, f), nil
}

func (o *openFiles) isGone(s *segment) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return s.slot.gone
}

// keepLog gives s the file f, or closes f if s has got one meanwhile.
func (o *openFiles) keepLog(s *segment, f File) File {
	o.mu.Lock()
	had := s.slot.log
	if had == nil {
		s.slot.log = f
	}
	o.mu.Unlock()
	if had == nil {
		return f
	}
	f.Close()
	return had
}

// maps returns the maps of s, which the caller holds; nil if there are none.
func (o *openFiles) maps(s *segment) *indexMaps {
	o.mu.Lock()
	defer o.mu.Unlock()
	return s.slot.maps
}

// keepMaps is keepLog for maps.
func (o *openFiles) keepMaps(s *segment, m *indexMaps) *indexMaps {
	o.mu.Lock()
	had := s.slot.maps
	if had == nil {
		s.slot.maps = m
	}
	o.mu.Unlock()
	if had == nil {
		return m
	}
	m.close()
	return had
}

// give ends one take. The last one of a deleted segment closes its files.
func (o *openFiles) give(s *segment) {
	o.mu.Lock()
	s.slot.refs--
	closed := o.settle(s)
	o.mu.Unlock()
	closed.close()
}

// pin keeps f open for s until unpin.
func (o *openFiles) pin(s *segment, f File) {
	o.mu.Lock()
	defer o.mu.Unlock()
	s.slot.log = f
	o.hold(s, true)
}

// hold notes whether s is pinned; o.mu is held.
func (o *openFiles) hold(s *segment, pinned bool) {
	switch {
	case s.slot.pinned == pinned:
		return
	case pinned:
		o.pinned++
	default:
		o.pinned--
	}
	s.slot.pinned = pinned
}

// crowded reports whether more logs are being written than sealed segments
// are kept open.
func (o *openFiles) crowded() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.pinned > o.max
}

// unpin lets s be closed when it is the least recently used.
func (o *openFiles) unpin(s *segment) {
	o.mu.Lock()
	o.hold(s, false)
	closed := o.settle(s)
	o.mu.Unlock()
	closed.close()
}

// forget lets nobody take s again and closes its files once nobody holds it.
func (o *openFiles) forget(s *segment) {
	o.mu.Lock()
	s.slot.gone = true
	o.hold(s, false)
	closed := o.settle(s)
	o.mu.Unlock()
	closed.close()
}

// settle moves s to where its references say and returns what must be closed
// now, after the lock.
func (o *openFiles) settle(s *segment) closing {
	c := &s.slot
	switch {
	case c.refs > 0 || c.pinned:
		return closing{}
	case c.gone:
		o.remove(s)
		return c.empty()
	case c.log == nil && c.maps == nil:
		return closing{}
	}
	o.remove(s)
	o.push(s)
	if o.count <= o.max {
		return closing{}
	}
	oldest := o.head
	o.remove(oldest)
	return oldest.slot.empty()
}

func (o *openFiles) push(s *segment) {
	c := &s.slot
	c.idle, c.prev, c.next = true, o.tail, nil
	if o.tail != nil {
		o.tail.slot.next = s
	} else {
		o.head = s
	}
	o.tail = s
	o.count++
}

func (o *openFiles) remove(s *segment) {
	c := &s.slot
	if !c.idle {
		return
	}
	if c.prev != nil {
		c.prev.slot.next = c.next
	} else {
		o.head = c.next
	}
	if c.next != nil {
		c.next.slot.prev = c.prev
	} else {
		o.tail = c.prev
	}
	c.idle, c.prev, c.next = false, nil, nil
	o.count--
}

// closing is what a slot gave up, to be closed outside the lock.
type closing struct {
	log  File
	maps *indexMaps
}

func (c *slot) empty() closing {
	x := closing{c.log, c.maps}
	c.log, c.maps = nil, nil
	return x
}

func (x closing) close() {
	if x.maps != nil {
		x.maps.close()
	}
	if x.log != nil {
		x.log.Close()
	}
}
