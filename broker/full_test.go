package broker

import (
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/teralog/teralog/storage"
	"github.com/teralog/teralog/wire"
)

// takesSpace reports whether an operation may be refused for want of space.
func takesSpace(fs *storage.MemFS, op storage.Op) bool {
	switch op.Kind {
	case storage.OpWrite, storage.OpAllocate, storage.OpMkdir, storage.OpRename:
		return true
	case storage.OpOpen: // those that make a file
		_, err := fs.Stat(op.Name)
		return err != nil
	}
	return false
}

// A fullLife is what a broker does while its disk is full for a moment, and what
// it said about each record.
type fullLife struct {
	*rig
	topics  []wire.TopicID // one flushed at once, one later
	acked   map[wire.TopicID][]string
	refused int // requests, definitely
}

// newFullRig returns a stopped broker whose topics are those of a fullLife.
func newFullRig(t *testing.T) (*rig, []wire.TopicID) {
	r := newRig(t)
	topics := []wire.TopicID{
		r.create("sync", 1, wire.Setting{Key: "flush", Value: "sync"}, wire.Setting{Key: "segment.bytes", Value: "1MiB"}),
		r.create("async", 1, wire.Setting{Key: "segment.bytes", Value: "1MiB"}),
	}
	r.stop()
	return r, topics
}

// newFullLife starts on a copy of the disk of first, which is stopped.
func newFullLife(first *rig, topics []wire.TopicID) *fullLife {
	l := &fullLife{rig: &rig{t: first.t, fs: first.fs.Clone(), now: first.now, boot: first.boot, ids: 1000, config: first.config},
		topics: topics, acked: map[wire.TopicID][]string{}}
	l.start()
	return l
}

// tried judges an error: on a full disk it is definite and says so.
func (l *fullLife) tried(what string, err error) bool {
	l.t.Helper()
	if err == nil {
		return true
	}
	if code := wire.CodeOf(err); code != wire.CodeDiskFull && code != wire.CodeOffline || !code.Definite() {
		l.t.Fatalf("%s: %v", what, err)
	}
	l.refused++
	return false
}

// live makes topics, rolls segments, leaves recovery points, trims by retention,
// makes a topic more and deletes it. What is refused it asks for again later.
func (l *fullLife) live() {
	l.t.Helper()
	value := strings.Repeat("v", 400_000)
	for n := range 8 {
		for _, id := range l.topics {
			text := strconv.Itoa(n) + value
			res := l.send(batchOf(l.t, wire.BuilderOptions{Topic: id}, text))[0]
			if err := error(&wire.Error{Code: res.Code, Message: res.Message}); res.Code == wire.CodeOK || l.tried("produce", err) {
				l.acked[id] = append(l.acked[id], text)
			}
		}
		l.pass(time.Second)
	}
	var made wire.CreateTopicResponse
	if !l.tried("create", l.ask(&wire.CreateTopicRequest{Name: "more", Partitions: 2}, &made)) {
		l.pass(11 * time.Second)
	}
	if t := l.b.Image().Topic("more"); t != nil {
		l.tried("delete", l.ask(&wire.DeleteTopicRequest{ID: t.ID}, &wire.DeleteTopicResponse{}))
	}
	l.pass(12 * time.Second)
	for _, d := range l.b.dirs {
		if d.Failed() != nil {
			l.t.Fatalf("a full disk ended %s: %v", d.Path(), d.Failed())
		}
	}
	if err := l.b.Fatal(); err != nil {
		l.t.Fatalf("a full disk ended the broker: %v", err)
	}
}

func (l *fullLife) check(when string) {
	l.t.Helper()
	for _, id := range l.topics {
		if got := l.readAll(id, 0); !slices.Equal(got, l.acked[id]) {
			l.t.Fatalf("%s: %d records are left, %d were acknowledged", when, len(got), len(l.acked[id]))
		}
	}
}

// TestFullDiskEverywhere has each operation that takes space refused in turn,
// once, and the disk full from each on: what is refused is refused definitely and
// is not there, what was acknowledged is, before and after a restart on the full
// disk; and all works again once there is room.
func TestFullDiskEverywhere(t *testing.T) {
	first, topics := newFullRig(t)
	f := func(nth int, stays bool) (met bool, refused int) {
		t.Helper()
		l := newFullLife(first, topics)
		seen := 0
		l.fs.BeforeOp(func(op storage.Op) error {
			if op.Kind == storage.OpStat || !takesSpace(l.fs, op) {
				return nil
			}
			if seen++; seen != nth {
				return nil
			}
			met = true
			if stays {
				total, free, _ := l.fs.Space("data")
				l.fs.SetCapacity(total - free)
				return nil
			}
			return syscall.ENOSPC
		})
		l.live()
		l.fs.BeforeOp(nil)
		l.check("before a restart")
		switch nth % 3 {
		case 0:
			if err := l.b.Close(); err != nil {
				t.Fatalf("operation %d: stop: %v", nth, err)
			}
		case 1:
			l.kill(false)
		case 2:
			l.pass(3 * time.Second) // the async one is flushed
			l.kill(true)
		}
		l.start()
		l.check("after a restart")
		l.fs.SetCapacity(0)
		l.pass(11 * time.Second) // recovers by itself
		for _, id := range topics {
			l.acked[id] = append(l.acked[id], "last")
			l.write(id, 0, "last")
		}
		l.create("last", 1)
		l.check("with room again")
		l.kill(false)
		return met, l.refused
	}

	step, refusals := 5, 0
	if os.Getenv("TERALOG_BOX") != "" {
		step = 1 // takes a minute
	}
	for mode, stays := range []bool{false, true} {
		n := 1 + mode
		for ; ; n += step {
			met, refused := f(n, stays)
			refusals += refused
			if !met {
				break
			}
		}
		if n < 60 {
			t.Fatalf("only %d operations take space", n)
		}
		t.Logf("stays %v: %d operations", stays, n)
	}
	if refusals == 0 {
		t.Fatal("nothing was ever refused")
	}
}

// TestDrainedReserve: a disk without a byte left, the reserve included, keeps no
// broker from starting, however the last one ended, and reads and deletes work.
func TestDrainedReserve(t *testing.T) {
	first, topics := newFullRig(t)
	f := func(end func(l *fullLife)) {
		t.Helper()
		l := newFullLife(first, topics)
		l.live()
		l.pass(3 * time.Second)
		reserve, err := l.fs.Open("data/reserve", storage.ReadWrite)
		if err == nil {
			err = reserve.Truncate(0)
		}
		if err != nil {
			t.Fatal(err)
		}
		reserve.Close()
		for range 3 { // on a disk that is full to the end each start must be possible again
			total, free, _ := l.fs.Space("data")
			l.fs.SetCapacity(total - free)
			end(l)
			l.start()
			l.check("after a start")
		}
		if !l.tried("delete", l.ask(&wire.DeleteTopicRequest{ID: topics[0]}, &wire.DeleteTopicResponse{})) {
			t.Error("nothing can be deleted")
		}
		l.fs.SetCapacity(0)
		l.pass(11 * time.Second)
		l.topics = topics[1:]
		l.acked[topics[1]] = append(l.acked[topics[1]], "last")
		l.write(topics[1], 0, "last")
		l.check("with room again")
		l.kill(false)
	}
	f(func(l *fullLife) { l.kill(false) })
	f(func(l *fullLife) { l.kill(true) })
	f(func(l *fullLife) { l.b.Close() })
}
