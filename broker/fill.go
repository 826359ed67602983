package broker

import (
	"context"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/teralog/teralog/storage"
	"github.com/teralog/teralog/wire"
)

// Marks are per cent of a file system in use from which on something changes;
// 100: never.
type Marks struct {
	Warn    int // the operator is told
	Refuse  int // nothing is produced
	Protect int // nothing but deletes, trims and reads
}

// A fill says which mark a file system has reached.
type fill uint32

const (
	roomy fill = iota
	warned
	refusing
	protected
)

// String returns the name of the key that says where it begins.
func (f fill) String() string {
	return [...]string{"", "disk-warn", "disk-refuse", "disk-protect"}[f]
}

// markSlack is by how many points use must fall below a mark until that is left,
// so that a disk at the mark does not change its mind with every segment.
const markSlack = 1

// after returns the mark that used per cent have reached, of a disk that was at
// another one.
func (m Marks) after(was fill, used float64) fill {
	for f := protected; f > roomy; f-- {
		at := float64(m.of(f))
		if was >= f {
			at -= markSlack
		}
		if m.of(f) < 100 && used >= at {
			return f
		}
	}
	return roomy
}

func (m Marks) of(f fill) int { return [...]int{0, m.Warn, m.Refuse, m.Protect}[f] }

// A gauge is how full the file system of one data directory was when it was
// looked at last.
type gauge struct {
	dir  *storage.Dir
	fill atomic.Uint32
	used atomic.Int64 // per cent
}

func (g *gauge) at() fill { return fill(g.fill.Load()) }

// lookEveryDisk is how often each data directory is asked for its space.
const lookEveryDisk = time.Second

// runGauge looks at one directory. Each has a goroutine of its own, which nobody
// waits for: a disk that hangs may not even say how full it is.
func (b *Broker) runGauge(ctx context.Context, g *gauge) {
	ticker := time.NewTicker(lookEveryDisk)
	defer ticker.Stop()
	for {
		b.look(g)
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
	}
}

// look asks a directory for its space, and tells when it passes a mark.
func (b *Broker) look(g *gauge) {
	if g.dir.Failed() != nil {
		return
	}
	total, free, err := g.dir.FS().Space(g.dir.Path())
	if err != nil || total <= 0 {
		return
	}
	used := 100 * float64(total-free) / float64(total)
	was := g.at()
	is := b.config.Disk.after(was, used)
	g.used.Store(int64(used))
	g.fill.Store(uint32(is))
	fields := []slog.Attr{slog.String("dir", g.dir.Path()), slog.Int("used_percent", int(used)), slog.Int64("free", free)}
	switch {
	case is > was:
		b.event(EventLimitReached, append(fields, slog.String("limit", is.String()))...)
	case is < was:
		b.event(EventLimitLeft, append(fields, slog.String("limit", was.String()))...)
	}
}

// markOf returns the mark that the file system of d had reached when it was
// looked at last.
func (b *Broker) markOf(d *storage.Dir) fill {
	for i := range b.gauges {
		if g := &b.gauges[i]; g.dir == d {
			return g.at()
		}
	}
	return roomy
}

// diskRefusal returns why nothing may be written to a directory that work may
// fill only up to a mark; nil if it may.
func (b *Broker) diskRefusal(d *storage.Dir, until fill) error {
	for i := range b.gauges {
		if g := &b.gauges[i]; g.dir == d && g.at() >= until {
			return &wire.Error{
				Code: wire.CodeDiskFull, RetryAfter: time.Second, Limit: wire.LimitDiskFull,
				Message: fmt.Sprintf("%d %% of the disk of %s are used; from %d %% on (%v) this is refused", g.used.Load(), d.Path(), b.config.Disk.of(until), until),
			}
		}
	}
	return nil
}

// protectedRefusal returns why the metadata may not grow.
func (b *Broker) protectedRefusal() error { return b.diskRefusal(b.dirs[0], protected) }

// fillRows are the metrics of the marks.
var fillRows = []metric{
	{name: "teralog_directory_mark", kind: "gauge", help: "The mark its file system has reached: 0 none, 1 disk-warn, 2 disk-refuse, 3 disk-protect.", series: func(s *scrape, emit func(string, float64)) {
		for i := range s.b.gauges {
			g := &s.b.gauges[i]
			emit(label("dir", g.dir.Path()), float64(g.at()))
		}
	}},
}
