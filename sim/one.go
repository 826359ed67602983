package sim

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"runtime/debug"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/teralog/teralog/bench"
	"github.com/teralog/teralog/broker"
	"github.com/teralog/teralog/mem"
	"github.com/teralog/teralog/repl"
	"github.com/teralog/teralog/storage"
	"github.com/teralog/teralog/wire"
)

// One node: a broker on a disk in memory, a few clients, and what can happen
// to a machine. The plan of a run is drawn first: which faults exist at all,
// what the topics are like. Then faults and clients go on for faultTime; after
// that nothing fails any more, and everything has to come to an end: records
// get their outcome, readers reach the end, and a last look at every partition
// is held against the history.

const (
	faultTime  = 4 * time.Second
	healTime   = 90 * time.Second // more than every retry and time-out
	dataDir    = "data"
	producersN = 3
	consumersN = 2
)

// A plan is what one seed makes of a run.
type plan struct {
	kills, powerCuts, cutsInside, syncFaults, fullDisks, stalls, clockJumps, netFaults, stopStart, stray bool

	topics []topicPlan
}

// A topicPlan is one topic and what its settings promise.
type topicPlan struct {
	name       string
	partitions int32
	flush      string
	settings   []wire.Setting
	codec      wire.Codec
	bytes      int64         // interval mode: what may be acknowledged and not flushed
	every      time.Duration // and for how long
}

func (w *one) draw() {
	yes := func(name string) bool { return w.odds("plan "+name, 2) }
	w.plan = plan{
		kills: yes("kills"), powerCuts: yes("power"), cutsInside: yes("inside"), syncFaults: w.odds("plan sync", 4),
		fullDisks: w.odds("plan full", 4), stalls: yes("stalls"), clockJumps: w.odds("plan clock", 4), netFaults: yes("net"),
		stopStart: yes("stop"), stray: w.odds("plan stray", 4),
	}
	r := w.stream("plan")
	for i, flush := range []string{"sync", "async", "interval"} {
		if w.odds("plan topic", 4) && len(w.plan.topics) > 0 {
			continue
		}
		t := topicPlan{name: fmt.Sprintf("t%d-%s", i, flush), partitions: 1 + r.Int32N(2), flush: flush}
		segment := 4096 << r.IntN(3)
		t.settings = []wire.Setting{{Key: "flush", Value: flush}, {Key: "segment.bytes", Value: fmt.Sprint(segment)},
			{Key: "max.batch.bytes", Value: "4096"}, {Key: "index.interval", Value: fmt.Sprint(128 << r.IntN(4))}}
		if flush != "sync" {
			t.every, t.bytes = time.Duration(20<<r.IntN(5))*time.Millisecond, 4096<<r.IntN(4)
			t.settings = append(t.settings, wire.Setting{Key: "flush.interval", Value: t.every.String()},
				wire.Setting{Key: "flush.bytes", Value: fmt.Sprint(t.bytes)})
		}
		if w.odds("plan retention", 4) {
			t.settings = append(t.settings, wire.Setting{Key: "retention.bytes", Value: fmt.Sprint(segment * 3)})
		}
		if r.IntN(3) == 0 {
			t.codec = []wire.Codec{wire.Gzip, wire.Snappy, wire.Zstd}[r.IntN(3)]
		}
		w.plan.topics = append(w.plan.topics, t)
	}
}

// A one is the run of one seed.
type one struct {
	*world
	plan    plan
	fs      *storage.MemFS
	boot    int
	node    *node         // nil: the process is down
	lives   int           // processes so far
	healed  bool          // no fault any more
	stalled time.Duration // until then no flush ends
	planted bool          // the stray folder is there
	failed  bool          // an fsync failed in this life, whether the broker knows it yet or not

	topics  []*topic
	clients []*producer
	readers []*consumer
	checker *bench.Checker

	flushed map[wire.PartitionID]wire.Offset // at the last death
	losses  map[wire.PartitionID]wire.Offset // what is not lost for sure, not told to the checker yet
	acked   map[wire.PartitionID][]promise   // interval mode: acknowledged and perhaps not flushed
	seen    map[string]int                   // how often each rare thing happened
}

// A node is one life of the broker's process.
type node struct {
	b       *broker.Broker
	working bool // a step is scheduled
}

// A topic is a topic of the plan as clients know it.
type topic struct {
	topicPlan
	id wire.TopicID // 0: not created yet
}

// A promise is an acknowledged batch of interval mode.
type promise struct {
	end   wire.Offset
	bytes int64
	at    time.Duration
}

// A Report is what came out of a run.
type Report struct {
	Seed      uint64
	Hash      uint64 // equal for equal runs
	Steps     int
	Violation string
	End       time.Duration  // of simulated time
	Last      string         // the newest lines of the trace, if there is a violation
	Seen      map[string]int // how often each rare thing happened
}

// One runs seed. The trace, if not nil, gets every event.
func One(seed uint64, trace io.Writer) (r Report) {
	w := &one{world: newWorld(seed, trace), checker: bench.NewChecker(uint32(seed)), seen: map[string]int{},
		acked: map[wire.PartitionID][]promise{}, flushed: map[wire.PartitionID]wire.Offset{}, losses: map[wire.PartitionID]wire.Offset{}}
	defer func() {
		if p := recover(); p != nil {
			w.violate("panic: %v\n%s", p, debug.Stack())
		}
		r = Report{Seed: seed, Hash: w.hash, Steps: w.steps, Violation: w.broken, End: w.now.Mono, Seen: w.seen}
		if w.broken != "" {
			r.Last = w.last()
		}
	}()
	w.draw()
	w.fs = storage.NewMemFS(seed)
	w.start()
	for _, t := range w.plan.topics {
		w.topics = append(w.topics, &topic{topicPlan: t})
	}
	for i := range producersN {
		w.addProducer(uint32(i))
	}
	for i := range consumersN {
		w.addConsumer(uint32(i))
	}
	w.addAdmin()
	w.scheduleFaults()
	w.run(faultTime)
	w.heal()
	for w.broken == "" && !w.settled() && w.now.Mono < faultTime+healTime {
		w.run(w.now.Mono + 50*time.Millisecond)
	}
	if w.broken == "" && !w.settled() {
		w.violate("no liveness: %s", w.unsettled())
	}
	if w.broken == "" {
		w.finish()
	}
	return r
}

func (w *one) count(what string) { w.seen[what]++ }

// start begins a life of the process on what the disk holds.
func (w *one) start() {
	w.lives++
	if w.plan.cutsInside && !w.healed && w.odds("inside", 3) {
		w.fs.StopAfter(w.stream("inside").IntN(120))
	}
	w.fs.AfterOp(func(op storage.Op) {
		w.failed = w.failed || op.Kind == storage.OpSync && errors.Is(op.Err, syscall.EIO)
	})
	c := broker.DefaultConfig()
	c.DataDirs = []string{dataDir}
	c.Reserve = 64 << 10
	c.FlushLost = 5 * time.Second
	ids := w.stream("ids")
	b, err := broker.New(c, broker.Env{
		FS: w.fs, Boot: fmt.Sprintf("boot-%d", w.boot), Manual: true, Log: slog.New(listener{w.world}),
		NewID: func() (id wire.UUID) {
			binary.LittleEndian.PutUint64(id[:], ids.Uint64())
			binary.LittleEndian.PutUint64(id[8:], ids.Uint64())
			return id
		},
		Now: func() mem.Now { return w.now },
	})
	if err != nil {
		w.note("start failed: "+err.Error(), int64(w.lives))
		if w.healed || !w.stoppedDisk() && !errors.Is(err, syscall.EIO) && !errors.Is(err, syscall.ENOSPC) {
			w.violate("start %d: %v", w.lives, err)
			return
		}
		w.count("start failed")
		w.die(w.odds("power at start", 2))
		return
	}
	w.note("started", int64(w.lives))
	w.node = &node{b: b}
	// What recovery kept and cut is durable before it is served. (A clean start
	// reads nothing; a write that was undone before the stop may still be there.)
	if logs := w.fs.Unsynced(".log"); len(logs) > 0 && !b.Clean() && !w.stoppedDisk() {
		w.violate("after a start a power cut could still take back what is served: %v is not synced", logs)
	}
	w.tellLosses()
	w.work()
}

// tellLosses tells the checker what the crashes since the last start may have
// taken, and sees that they took no more.
func (w *one) tellLosses() {
	for _, p := range w.node.b.Set().Partitions() {
		keep, ok := w.losses[p.ID()]
		if !ok {
			continue
		}
		v := p.View()
		w.note("lossy", int64(p.ID().Topic%1000), int64(p.ID().Partition)*1000+int64(keep), int64(v.End), int64(v.Epoch))
		if v.End < keep {
			w.violate("%v: the log ends at %d after a crash, %d was flushed before it", p.ID(), v.End, keep)
		}
		w.checker.Apply(&bench.Lossy{Partition: p.ID(), Keep: keep, Epoch: v.Epoch})
		delete(w.losses, p.ID()) // of a partition that is offline it is told at a later start
	}
}

// told looks at an acknowledgement as the broker gives it: in interval mode all
// that is acknowledged and not flushed must be within the bound, whatever the
// disk does.
func (w *one) told(b wire.Batch, r *wire.ProduceResult) {
	i := slices.IndexFunc(w.topics, func(t *topic) bool { return t.id == b.Topic() })
	if i < 0 || w.topics[i].flush != "interval" || r.Code != wire.CodeOK || r.Base < 0 {
		return
	}
	t, id := w.topics[i], wire.PartitionID{Topic: b.Topic(), Partition: b.Partition()}
	p, err := w.node.b.Set().Leader(id)
	if err != nil {
		return
	}
	flushed, end := p.View().Flushed, r.Base+wire.Offset(b.Count())
	list := slices.DeleteFunc(w.acked[id], func(a promise) bool { return a.end <= flushed })
	w.acked[id] = list
	if end <= flushed || slices.ContainsFunc(list, func(a promise) bool { return a.end == end }) {
		return // nothing more is at stake
	}
	list = append(list, promise{end, int64(len(b)), w.now.Mono})
	w.acked[id] = list
	var bytes int64
	for _, a := range list {
		bytes += a.bytes
	}
	if bytes > t.bytes {
		w.violate("%v: %d bytes are acknowledged and not flushed, the bound is %d", id, bytes, t.bytes)
	}
	if w.now.Mono-list[0].at > t.every {
		w.violate("%v: records are acknowledged and not flushed since %v, the bound is %v", id, w.now.Mono-list[0].at, t.every)
	}
}

func (w *one) stoppedDisk() bool {
	_, err := w.fs.Stat(dataDir)
	return errors.Is(err, storage.ErrStopped)
}

// work schedules the node's next step.
func (w *one) work() {
	n := w.node
	if n == nil || n.working {
		return
	}
	n.working = true
	wait := w.between("work", 0, 200*time.Microsecond)
	if len(w.steps1(n)) == 1 {
		wait = w.between("idle", 2*time.Millisecond, 10*time.Millisecond)
	}
	w.after(wait, func() {
		n.working = false
		if w.node == n {
			w.step(n)
		}
	})
}

// steps1 returns what the node may do now.
func (w *one) steps1(n *node) []broker.Step {
	all := n.b.Steps(nil)
	if w.now.Mono >= w.stalled {
		return all
	}
	return slices.DeleteFunc(all, func(s broker.Step) bool {
		return s.Kind == broker.StepSet && s.Set.Kind == repl.StepFlushDone
	})
}

// step lets one of the things happen that may.
func (w *one) step(n *node) {
	all := w.steps1(n)
	s := all[w.stream("step").IntN(len(all))]
	if s.Kind != broker.StepCoord {
		w.note("step "+s.Set.Kind.String(), int64(s.Kind), int64(s.Set.ID.Topic), int64(s.Set.ID.Partition))
	}
	n.b.Step(s)
	w.afterWork(n)
}

// afterWork looks whether the node lives on after something it did.
func (w *one) afterWork(n *node) {
	if w.node != n {
		return
	}
	if w.stoppedDisk() {
		w.count("died inside an operation")
		w.die(w.odds("power inside", 2))
		return
	}
	if err := n.b.Fatal(); err != nil {
		w.note("gave up: " + err.Error())
		w.count("gave up after a failed fsync")
		w.die(false)
		return
	}
	w.work()
}

// die ends the process, with the machine if power is cut, and starts it again
// some time later.
func (w *one) die(power bool) {
	if n := w.node; n != nil {
		for _, p := range n.b.Set().Partitions() {
			w.flushed[p.ID()] = p.View().Flushed
		}
	}
	w.node = nil
	if w.failed { // a failed fsync loses what it was for, though the machine lives
		w.lose()
	}
	w.failed = false
	if power {
		w.lose()
		w.boot++
		w.note("power cut", int64(w.fs.Pending()))
		w.count("power cut")
		w.fs = w.fs.Crash(storage.CrashAny)
	} else {
		w.note("killed")
		w.count("killed")
		w.fs = w.fs.Clone()
	}
	clear(w.acked)
	w.plant()
	w.after(w.between("restart", time.Millisecond, 100*time.Millisecond), w.start)
}

// lose notes that everything not flushed may be gone. In sync mode nobody was
// told of anything else.
func (w *one) lose() {
	for _, t := range w.topics {
		for p := range t.partitions {
			id := wire.PartitionID{Topic: t.id, Partition: p}
			keep, ok := w.flushed[id]
			if !ok || t.flush == "sync" {
				continue
			}
			if old, ok := w.losses[id]; !ok || keep < old {
				w.losses[id] = keep
			}
		}
	}
}

// plant puts a folder among the partitions that no metadata names. It must
// never be deleted.
func (w *one) plant() {
	if !w.plan.stray || w.planted || w.healed || len(w.topics) == 0 || w.topics[0].id == 0 {
		return // before there is metadata, a folder of partitions is a reason not to start
	}
	dir := dataDir + "/topics/stray/partition-0000"
	err := w.fs.Mkdir(dir)
	if err == nil {
		var f storage.File
		if f, err = w.fs.Open(dir+"/00000000000000000000.log", storage.CreateNew); err == nil {
			_, err = f.WriteAt([]byte(precious), 0)
			err = errors.Join(err, f.Sync(), w.fs.SyncDir(dir), w.fs.SyncDir(dataDir+"/topics/stray"), w.fs.SyncDir(dataDir+"/topics"))
			f.Close()
		}
	}
	w.planted = err == nil
	w.note("planted a stray folder", int64(w.lives))
}

const precious = "somebody's precious bytes"

// found reports whether the stray folder's bytes still lie somewhere.
func (w *one) found(dir string) bool {
	entries, err := w.fs.ReadDir(dir)
	if err != nil {
		return false
	}
	for _, e := range entries {
		name := dir + "/" + e.Name
		if e.Dir {
			if w.found(name) {
				return true
			}
			continue
		}
		if !strings.HasSuffix(name, ".log") || e.Size < int64(len(precious)) {
			continue
		}
		f, err := w.fs.Open(name, storage.Read)
		if err != nil {
			continue
		}
		b := make([]byte, len(precious))
		f.ReadAt(b, 0)
		f.Close()
		if string(b) == precious {
			return true
		}
	}
	return false
}

// scheduleFaults draws what happens to the machine and when.
func (w *one) scheduleFaults() {
	every := func(on bool, name string, mean time.Duration, do func()) {
		if !on {
			return
		}
		var again func()
		again = func() {
			if w.healed {
				return
			}
			do()
			w.after(w.between(name, mean/4, mean*2), again)
		}
		w.after(w.between(name, mean/4, mean*2), again)
	}
	alive := func(do func(n *node)) func() {
		return func() {
			if w.node != nil {
				do(w.node)
			}
		}
	}
	every(w.plan.kills, "kill", 500*time.Millisecond, alive(func(*node) { w.die(false) }))
	every(w.plan.powerCuts, "power", 500*time.Millisecond, alive(func(*node) { w.die(true) }))
	every(w.plan.cutsInside, "inside", 300*time.Millisecond, alive(func(*node) { w.fs.StopAfter(w.stream("inside").IntN(30)) }))
	every(w.plan.syncFaults, "sync fault", time.Second, alive(func(*node) {
		w.note("an fsync will fail")
		w.fs.Fail(storage.OpSync, 1+w.stream("sync fault").IntN(3), syscall.EIO)
	}))
	every(w.plan.stalls, "stall", 400*time.Millisecond, func() {
		w.stalled = w.now.Mono + w.between("stall length", 10*time.Millisecond, time.Second)
		w.count("flushes stalled")
	})
	every(w.plan.clockJumps, "clock", time.Second, func() {
		w.skew += w.stream("clock jump").Int64N(7200_000) - 3600_000
		w.count("clock jumped")
	})
	every(w.plan.fullDisks, "full", time.Second, func() {
		total, free, _ := w.fs.Space(dataDir)
		w.fs.SetCapacity(total - free + int64(w.stream("full").IntN(16))<<12)
		w.count("disk full")
		w.after(w.between("full for", 10*time.Millisecond, 300*time.Millisecond), func() { w.fs.SetCapacity(0) })
	})
	every(w.plan.stopStart, "stop", 800*time.Millisecond, alive(func(n *node) { w.stop(n) }))
}

// stop ends the process in good order, perhaps followed by a power cut, which
// then takes nothing.
func (w *one) stop(n *node) {
	n.b.Steps(nil) // tells it the time
	err := n.b.Close()
	for _, p := range n.b.Set().Partitions() {
		w.flushed[p.ID()] = p.View().Flushed
	}
	w.note("stopped", int64(w.lives))
	if err != nil {
		w.note("stop failed: " + err.Error())
		w.lose()
		w.failed = false
	} else {
		w.count("stopped cleanly")
		for _, p := range n.b.Set().Partitions() {
			delete(w.losses, p.ID())
		}
	}
	w.node = nil
	if w.odds("power after stop", 3) {
		if err != nil {
			w.lose()
		}
		w.boot++
		w.fs = w.fs.Crash(storage.CrashAny)
	} else {
		w.fs = w.fs.Clone()
	}
	clear(w.acked)
	w.after(w.between("restart", time.Millisecond, 100*time.Millisecond), w.start)
}

// heal ends all faults.
func (w *one) heal() {
	w.note("healed")
	w.healed, w.stalled = true, 0
	w.fs.Heal()
	w.fs.SetCapacity(0)
}

// settled reports whether every record has its outcome and every reader is at
// the end.
func (w *one) settled() bool { return w.unsettled() == "" }

func (w *one) unsettled() string {
	if w.node == nil {
		return "the node is down"
	}
	for _, t := range w.topics {
		if t.id == 0 {
			return "topic " + t.name + " does not exist"
		}
	}
	for _, p := range w.clients {
		if n := p.open(); n > 0 {
			return fmt.Sprintf("producer %d has %d batches without outcome", p.n, n)
		}
	}
	for _, c := range w.readers {
		if at := c.behind(); at != nil {
			return fmt.Sprintf("consumer %d is at %d of %v", c.n, at.position, at.id)
		}
	}
	return ""
}
