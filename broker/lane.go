package broker

import (
	"sync/atomic"
	"time"

	"github.com/teralog/teralog/mem"
	"github.com/teralog/teralog/storage"
)

// A lane does what may have to wait for the disk of one data directory: reads of
// what is not in memory, and look-ups. A disk that stalls holds up its own lane,
// and neither a connection nor what is in memory nor another disk.
type lane struct {
	jobs
	pace  *mem.Bucket // bytes read for readers far behind; nil: as many as come
	yield func()      // mem.Yield: who has read and summed up a piece lets producers go first

	produced atomic.Int64 // batches the broker had taken when it was looked last,
	at       atomic.Int64 // and when that had last changed, on the monotonic clock
}

const (
	// laneWorkers is how many jobs of a lane run at once: one waits for the disk
	// while another sums up what it has got.
	laneWorkers = 2
	// maxLane is how many wait at most, inclusive.
	maxLane = 1 << 10
	// paceBurst is how many bytes are read without a pause.
	paceBurst = 4 << 20
	// paceQuiet is how long nobody must have produced for nobody to be spared.
	paceQuiet = 100 * time.Millisecond
)

func newLane(rate int64) *lane {
	l := &lane{jobs: make(jobs, maxLane), yield: mem.Yield}
	if rate > 0 {
		l.pace = mem.NewBucket(rate, paceBurst)
	}
	l.at.Store(-int64(paceQuiet) - 1)
	return l
}

// openLanes makes a lane for each data directory.
func (b *Broker) openLanes() {
	b.lanes = make(map[*storage.Dir]*lane, len(b.dirs))
	for _, d := range b.dirs {
		b.lanes[d] = newLane(b.config.CatchUpRate)
	}
}

// rest returns how long to wait before n more bytes are read from the disk for
// readers that are behind, when so many batches had been produced. Only producers
// are yielded to: what is read, and what readers then do with it, takes processors
// and the disk from them.
func (l *lane) rest(n int64, produced int64, now mem.Now) time.Duration {
	if l.pace == nil {
		return 0
	}
	if l.produced.Swap(produced) != produced {
		l.at.Store(int64(now.Mono))
	}
	if now.Mono-time.Duration(l.at.Load()) > paceQuiet {
		return 0
	}
	wait := l.pace.Wait(now)
	l.pace.Take(now, n)
	return wait
}

// rest waits until the lane may read n more bytes.
func (b *Broker) rest(l *lane, n int64) {
	if wait := l.rest(n, b.count.batches.Load(), b.time()); wait > 0 && !b.env.Manual {
		time.Sleep(wait)
	}
}

// nextJob returns what a manual broker's workers are to do next, false if nothing.
func (b *Broker) nextJob() (job, bool) {
	select {
	case j := <-b.work:
		return j, true
	default:
	}
	for _, d := range b.dirs {
		select {
		case j := <-b.lanes[d].jobs:
			return j, true
		default:
		}
	}
	return job{}, false
}

// busyWorkers reports whether nextJob has something.
func (b *Broker) busyWorkers() bool {
	busy := len(b.work) > 0
	for _, l := range b.lanes {
		busy = busy || len(l.jobs) > 0
	}
	return busy
}
