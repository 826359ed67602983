package broker

import (
	"fmt"
	"log/slog"
	"os"
	"syscall"

	"github.com/teralog/teralog/storage"
)

// otherFiles is room for what is neither a client nor a file of a log: the
// listeners, the operator's view, other nodes, what the runtime needs.
const otherFiles = 128

// descriptors returns how many files the process may come to have open at once,
// with the topics there are.
func (b *Broker) descriptors() int {
	partitions := 0
	for _, t := range b.Image().Topics() {
		for n := range t.Partitions {
			if t.Partitions[n].Leader == b.config.Node {
				partitions++
			}
		}
	}
	return storage.Descriptors(len(b.dirs), partitions) + b.config.MaxConnections + otherFiles
}

// Clients and partitions must not take each other's descriptors, nor those that
// partitions in service cannot do without: the next segment, an fsync of a
// folder, recovery points. So there are at most half as many partitions as
// descriptors, no more clients are let in when a quarter is left, 4,096 at most,
// and no more partitions opened when an eighth is.

// maxHosted returns how many partitions may be hosted; 0: no bound.
func (b *Broker) maxHosted() int { return b.env.MaxFiles / 2 }

// maxConnFile returns the greatest descriptor that a connection may have; 0: any.
func (b *Broker) maxConnFile() int { return b.env.MaxFiles - min(b.env.MaxFiles/4, 4096) }

// roomForLog returns an error if too few descriptors are left to open one more
// partition.
func (b *Broker) roomForLog() error {
	if b.env.MaxFiles == 0 {
		return nil
	}
	f, err := os.Open(os.DevNull) // gets the lowest number that is free
	if err != nil {
		return err
	}
	defer f.Close()
	if f.Fd() >= uintptr(b.env.MaxFiles-min(b.env.MaxFiles/8, 2048)) {
		return fmt.Errorf("too few descriptors are left of %d; raise LimitNOFILE or ulimit -n and start again", b.env.MaxFiles)
	}
	return nil
}

// segmentFiles returns how many older segments each data directory may keep
// open; 0: as many as is good. Each takes up to three descriptors.
func (b *Broker) segmentFiles() int {
	if b.env.MaxFiles == 0 {
		return 0
	}
	return min(512, max(4, b.env.MaxFiles/len(b.config.Dirs())/16))
}

// warnOfFiles warns if the process may not open as many files as it may need.
func (b *Broker) warnOfFiles() {
	if need := b.descriptors(); b.env.MaxFiles > 0 && b.env.MaxFiles < need {
		b.log.Warn("too few files may be open at once: clients and partitions may be refused; raise LimitNOFILE or ulimit -n, or lower max-connections",
			"limit", b.env.MaxFiles, "need", need, "max-connections", b.config.MaxConnections)
	}
}

// descriptorLimit returns how many files the process may have open; 0: not known. The
// runtime has raised the soft limit to the hard one.
func descriptorLimit() int {
	var l syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &l); err != nil {
		return 0
	}
	return int(min(l.Cur, 1<<30))
}

// paused hears that no client can be accepted for now, and with nil that they
// can be again.
func (b *Broker) paused(err error) {
	if err == nil {
		b.event(EventLimitLeft, slog.String("limit", "accept"))
		return
	}
	b.event(EventLimitReached, slog.String("limit", "accept"), slog.Any("err", err))
}
