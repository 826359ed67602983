package storage

import (
	"math"
	"time"

	"github.com/teralog/teralog/mem"
	"github.com/teralog/teralog/wire"
)

// A piece is one segment as retention sees it.
type piece struct {
	end   wire.Offset
	bytes int64
	last  int64 // greatest append time in it, ms
	aged  int64 // stamp clock when this node sealed or opened it, ms
}

// age returns the moment from which p grows old. A clock that once ran far
// ahead must not keep a segment for ever.
func (p piece) age(now int64) int64 {
	if wire.FutureTime(p.last, now) {
		return p.aged
	}
	return p.last
}

// expired returns how many of the sealed segments, oldest first, may go: while
// the rest still has maxBytes, or while their last append is maxAge old, and
// only whole ones below bound. active is the size of the segment that stays.
// A zero limit is none.
func expired(sealed []piece, active int64, now int64, bound wire.Offset, maxBytes int64, maxAge time.Duration) int {
	total := active
	for _, p := range sealed {
		total += p.bytes
	}
	n := 0
	for _, p := range sealed {
		old := maxAge > 0 && now-p.age(now) >= maxAge.Milliseconds()
		big := maxBytes > 0 && total-p.bytes >= maxBytes
		if p.end > bound || !old && !big {
			break
		}
		total -= p.bytes
		n++
	}
	return n
}

// Retain gives up the oldest segments as the retention settings say, but none
// with an offset at or behind bound. It reports whether the log's start moved.
func (l *Log) Retain(now mem.Now, bound wire.Offset) (trimmed bool) {
	if l.o.RetentionBytes <= 0 && l.o.RetentionAge <= 0 || len(l.sealed) == 0 {
		return false
	}
	pieces := make([]piece, len(l.sealed))
	for i, s := range l.sealed {
		pieces[i] = piece{s.final.end, s.final.size, s.final.maxAppend, s.aged}
	}
	n := expired(pieces, l.tail.size, now.Wall, bound, l.o.RetentionBytes, l.o.RetentionAge)
	if n == 0 || l.sealed[n-1].final.end <= l.start {
		return false
	}
	return l.Trim(l.sealed[n-1].final.end) == nil
}

// RollIdle rolls the active segment once its first batch is too old for it, or
// once all of it is old enough for retention, so that it does not stay only
// because nothing more is written.
func (l *Log) RollIdle(now mem.Now) (rolled bool, err error) {
	if l.broken != nil || l.tail.size == 0 {
		return false, l.broken
	}
	last := piece{last: l.tail.maxAppend, aged: l.active.aged}.age(now.Wall)
	stale := l.o.RetentionAge > 0 && last != math.MinInt64 && now.Wall-last >= l.o.RetentionAge.Milliseconds()
	if !stale && !tooOld(l.tail.first, now.Wall, l.o.SegmentAge) {
		return false, nil
	}
	if err := l.roll(); err != nil {
		return false, err
	}
	l.sealed[len(l.sealed)-1].aged = now.Wall
	return true, nil
}
