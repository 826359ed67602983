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

// jumpMillis is how much farther the stamp clock may move between two looks than
// time does, either way, inclusive; beyond it it has jumped. holdLongest is how
// long retention by age is careful after that.
const (
	jumpMillis  = int64(time.Hour / time.Millisecond)
	holdLongest = 24 * time.Hour
)

// jumped reports whether the stamp clock jumped between two moments. A clock
// that runs a tenth too fast or slow for ten hours looks the same.
func jumped(from, to mem.Now) bool {
	by := to.Wall - from.Wall - (to.Mono - from.Mono).Milliseconds()
	return by > jumpMillis || by < -jumpMillis
}

// Retain gives up the oldest segments as the retention settings say, but none
// with an offset at or behind bound. It reports whether the log's start moved.
//
// What a clock says that has just jumped may be wrong, and what is deleted does
// not come back when the clock does. For as long as RetentionAge after a jump, a
// day at most, age alone deletes no more than half of the log's bytes at once:
// if more seems to be old, nothing is. A start is a jump if it comes more than
// an hour after the last sign of life in the data directory, since a clock that
// was set meanwhile cannot be told from time that passed.
func (l *Log) Retain(now mem.Now, bound wire.Offset) (trimmed bool) {
	if jumped(l.looked, now) {
		l.careful = now.Mono + min(l.o.RetentionAge, holdLongest)
	}
	l.looked, l.withheld = now, 0
	if l.o.RetentionBytes <= 0 && l.o.RetentionAge <= 0 || len(l.sealed) == 0 {
		return false
	}
	pieces := make([]piece, len(l.sealed))
	for i, s := range l.sealed {
		pieces[i] = piece{s.final.end, s.final.size, s.final.maxAppend, s.aged}
	}
	n := expired(pieces, l.tail.size, now.Wall, bound, l.o.RetentionBytes, l.o.RetentionAge)
	if now.Mono < l.careful {
		if old := sizeOf(pieces[:n]); old > (sizeOf(pieces)+l.tail.size)/2 {
			n = expired(pieces, l.tail.size, now.Wall, bound, l.o.RetentionBytes, 0)
			l.withheld = old - sizeOf(pieces[:n])
		}
	}
	if n == 0 || l.sealed[n-1].final.end <= l.start {
		return false
	}
	return l.Trim(l.sealed[n-1].final.end) == nil
}

func sizeOf(pieces []piece) (n int64) {
	for _, p := range pieces {
		n += p.bytes
	}
	return n
}

// Withheld returns the bytes that the last Retain did not give up though they
// seemed old enough, since the clock had jumped.
func (l *Log) Withheld() int64 { return l.withheld }

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
