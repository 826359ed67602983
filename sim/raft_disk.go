package sim

import (
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"syscall"

	"github.com/teralog/teralog/coord"
	"github.com/teralog/teralog/mem"
	"github.com/teralog/teralog/raft"
	"github.com/teralog/teralog/storage"
	"github.com/teralog/teralog/wire"
)

// A disk is what a member's store lies on, through all its processes.
type disk interface {
	// open returns the store as a new process finds it.
	open(self raft.Peer) (raft.Store, error)
	// die is the end of a process. With the power gone, chance decides what is
	// left of what was not synced; without, all is.
	die(power bool)
	// stopAt lets the nth write from now fail, and all after it; done says
	// whether that one came through all the same. It ends with the process.
	stopAt(n int, done bool)
	// lie lets the next fsync fail, without effect.
	lie()
	// heal takes back what is still to come of those.
	heal()
	// damage makes something of the log unreadable that was synced, while no
	// process lives; n picks what. It reports whether there was anything.
	damage(n int, s *shadow) bool
}

func (q *quorum) newDisk(slot, wiped int) disk {
	if q.scenario.disks {
		return &fileDisk{fs: storage.NewMemFS(scramble(q.seed ^ uint64(slot)<<8 ^ uint64(wiped))), boots: 1}
	}
	return &memDisk{raft.NewMemStore(), func(n int) int { return int(q.draw(streamDisk, slot, uint64(n))) }}
}

// A memDisk is a store in memory with a disk's faults: fast.
type memDisk struct {
	store  *raft.MemStore
	chance func(n int) int
}

func (d *memDisk) open(raft.Peer) (raft.Store, error) { return d.store, nil }

func (d *memDisk) die(power bool) {
	if power {
		d.store = d.store.Restart(d.chance)
	} else {
		d.store = d.store.Restart(nil)
	}
}

func (d *memDisk) stopAt(n int, done bool) { d.store.StopAt(n, done) }
func (d *memDisk) lie()                    { d.store.StopAt(2, false) } // the first is what is to be synced
func (d *memDisk) heal()                   { d.store.StopAt(1<<40, false) }

func (d *memDisk) damage(n int, s *shadow) bool {
	k := s.live.last() - s.live.snapshot
	return k > 0 && d.store.Damage(s.live.snapshot+1+raft.Index(n)%k)
}

// A fileDisk is the store that servers use, on a file system in memory.
type fileDisk struct {
	fs    *storage.MemFS
	boots int
}

func (d *fileDisk) open(self raft.Peer) (raft.Store, error) {
	ids := 0
	dir, err := storage.OpenDir(d.fs, dataDir, storage.DirOptions{
		Node: wire.NodeID(self.ID), Boot: fmt.Sprint("boot-", d.boots), Format: true, Reserve: -1,
		NewID: func() (id wire.UUID) {
			id = wire.UUID(self.Incarnation)
			id[15] = byte(ids)
			ids++
			return id
		},
	})
	if err != nil {
		return nil, err
	}
	if raft.UUID(dir.ID()) != self.Incarnation {
		return nil, fmt.Errorf("the directory of %v is that of %x", self, dir.ID())
	}
	return coord.OpenStore(dir, self, slog.New(slog.DiscardHandler), mem.Now{Wall: wallBegin})
}

func (d *fileDisk) die(power bool) {
	if power {
		d.boots++
		d.fs = d.fs.Crash(storage.CrashAny)
	} else {
		d.fs = d.fs.Clone()
	}
}

func (d *fileDisk) stopAt(n int, done bool) {
	if done {
		n++
	}
	d.fs.StopAfter(n - 1)
}

func (d *fileDisk) lie()  { d.fs.Fail(storage.OpSync, 1, syscall.EIO) }
func (d *fileDisk) heal() { d.fs.Heal() }

// damage flips a bit of the log, though not of what was written last: what is
// wrong there cannot be told from a write that was torn.
func (d *fileDisk) damage(n int, s *shadow) bool {
	entries, err := d.fs.ReadDir(dataDir + "/metadata")
	if err != nil {
		return false
	}
	for _, e := range entries {
		digits, ok := strings.CutSuffix(e.Name, ".log")
		base, err := strconv.ParseInt(digits, 10, 64)
		last := s.live.last()
		proven := min(s.proven, last)
		if !ok || err != nil || proven < raft.Index(base)+4 {
			continue
		}
		// Entries differ in size, so well before where the last proven one may lie.
		before := e.Size * int64(proven-raft.Index(base)) / int64(last-raft.Index(base)) * 2 / 5
		return d.fs.FlipBit(dataDir+"/metadata/"+e.Name, before*int64(n%1000)/1000, uint(n%8)) == nil
	}
	return false
}

// stoppedOn reports whether a store failed since its disk did.
func stoppedOn(err error) bool {
	return errors.Is(err, raft.ErrStopped) || errors.Is(err, storage.ErrStopped) || errors.Is(err, syscall.EIO)
}
