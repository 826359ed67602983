package repl

import "time"

// Thousands of partitions that are written to all at once, and flushed in the
// background once a second each, would keep the disk busy with nothing but
// fdatasyncs, each of which waits for the journal and has the disk empty its
// cache. One sync of the whole file system does the work of all of them for the
// price of a few. It takes longer than any one, and so is for those that may
// wait: for partitions of async topics whose flush is due by its age.
const (
	manyEvery = 250 * time.Millisecond // from one to the next
	manyFrom  = 64                     // flushes in that time make it worth while
	manyLong  = time.Second            // others write to that file system as well:
	manyRest  = 30 * time.Second       // after one that took longer there is none for so long
)

// A many has the logs of many partitions flushed at once. The directory's mutex
// guards it.
type many struct {
	running bool
	line    []*Partition // for the next
	since   time.Duration
	count   int           // flushes begun since, while it does not run
	after   time.Duration // not before
}

// take takes p, which may wait, into the line if it runs, or if with p it is worth
// while.
func (m *many) take(p *Partition, mono time.Duration) bool {
	if mono < m.after {
		return false
	}
	if !m.running {
		if mono-m.since > manyEvery {
			m.since, m.count = mono, 0
		}
		if m.count++; m.count < manyFrom {
			return false
		}
	}
	m.line = append(m.line, p)
	return true
}

// takeMany returns those to be flushed now. If they are too few it does not run
// any more.
func (d *directory) takeMany() (ps []*Partition, few bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	ps = d.many.line
	if d.many.line = nil; len(ps) < manyFrom/4 {
		d.many = many{after: d.many.after}
		return ps, true
	}
	return ps, false
}

// restMany ends it, and has none begin before after.
func (d *directory) restMany(after time.Duration) {
	d.mu.Lock()
	ps := d.many.line
	d.many = many{after: after}
	d.mu.Unlock()
	d.flushEach(ps)
}

func (d *directory) flushEach(ps []*Partition) {
	for _, p := range ps {
		d.flushAside(p)
	}
}
