package storage

import (
	"bytes"
	"errors"
	"fmt"
	"hash/maphash"
	"io/fs"
	"maps"
	"slices"
	"testing"

	"github.com/teralog/teralog/wire"
)

// A crashRun writes a log on one disk by a script, and judges every disk that a
// power cut could leave meanwhile.
type crashRun struct {
	t     *testing.T
	o     Options
	fs    *MemFS
	l     *Log
	at    string // the step under way
	marks int
	calm  bool // the script by which little is pending at any time

	floor    wire.Offset    // flushed: whatever happens, the log reaches here
	start    wire.Offset    // what the newest trim asked for
	branches [][]wire.Batch // histories the log may have: the one before a truncation, and the one after
	epoch    wire.Epoch     // durable
	more     wire.Batch     // what is appended to each disk recovered

	ops      int             // that could change what a power cut leaves
	sampled  int             // of them, those that left more than wholePending effects
	judged   int             // disks
	expected string          // of the disks in seen
	seen     map[uint64]bool // sums of those judged
}

// Where at most wholePending effects are pending, every subset of them is judged;
// where more are, someSubsets: room for each prefix, each effect alone, each one
// left out, and some by chance.
const (
	wholePending = 12
	someSubsets  = 80
)

const crashPoints = "recovery-points"

// Most batches are a page long, so that a power cut can lose one and keep the next.
var crashOptions = Options{SegmentBytes: 3 * pageSize, IndexInterval: pageSize, SnapshotBytes: 2 * pageSize, RetentionBytes: 4 * pageSize}

func newCrashRun(t *testing.T, o Options) *crashRun {
	r := &crashRun{t: t, o: o, fs: NewMemFS(7), epoch: wire.NoEpoch, branches: make([][]wire.Batch, 1)}
	for _, d := range []string{logDir, testQuarantine} {
		r.fs.Mkdir(d)
	}
	r.fs.SyncDir(".")
	l, err := createLog(r.fs, logDir, "orders", orders3, o, nil, at(1))
	if err != nil {
		t.Fatal(err)
	}
	r.l, r.more = l, maker{mark: 999}.sized(t, pageSize)
	return r
}

func (r *crashRun) append(n, size int) {
	r.at = fmt.Sprintf("append %d×%d", n, size)
	var bs []wire.Batch
	end, now := r.l.View().End(), int64(r.marks+n)
	for range n {
		r.marks++
		b := maker{mark: r.marks, times: []int64{int64(r.marks)}, producer: 9, seq: int32(r.marks - 1)}.sized(r.t, size)
		if _, dup, err := r.l.producers.Stage(b, end, at(now)); dup || err != nil {
			r.t.Fatalf("stage: %v", err)
		}
		end++
		bs = append(bs, b)
	}
	// The batches are stamped before the first byte is written.
	r.branches[0] = append(r.branches[0], bs...)
	mustAppend(r.t, r.l, now, bs...)
	r.l.producers.Commit()
}

func (r *crashRun) flush() {
	r.at = "flush"
	end, err := r.l.Flush()
	if err != nil {
		r.t.Fatal(err)
	}
	r.floor = end
}

func (r *crashRun) checkpoint() {
	r.at = "checkpoint"
	c := r.l.Checkpoint(at(1))
	if c == nil {
		return
	}
	p, err := c.Run()
	if err != nil {
		r.t.Fatal(err)
	}
	r.floor = p.Offset
	if err := pointsFile.write(r.fs, crashPoints, encodePoints(map[wire.PartitionID]Point{p.ID: p})); err != nil {
		r.t.Fatal(err)
	}
	r.l.Checkpointed(p)
}

func (r *crashRun) setEpoch(e wire.Epoch) {
	r.at = fmt.Sprintf("epoch %d", e)
	if err := r.l.SetEpoch(e); err != nil {
		r.t.Fatal(err)
	}
	r.epoch = e
}

func (r *crashRun) truncate(to wire.Offset) {
	r.at = fmt.Sprintf("truncate %d", to)
	r.floor = min(r.floor, to)
	r.epoch = min(r.epoch, 0)
	cut := 0
	for cut < len(r.branches[0]) && r.branches[0][cut].NextOffset() <= to {
		cut++
	}
	r.branches = [][]wire.Batch{r.branches[0][:cut:cut], r.branches[0]}
	if err := r.l.Truncate(to); err != nil {
		r.t.Fatal(err)
	}
	r.branches = r.branches[:1] // it was durable: the other one never comes back
	r.marks = cut
}

func (r *crashRun) retain() {
	r.at = "retain"
	before := r.l.View().Start()
	if !r.l.Retain(at(1000), r.floor) {
		r.t.Fatalf("retention removed nothing of %d bytes", r.l.View().Bytes())
	}
	if r.start = r.l.View().Start(); r.start <= before {
		r.t.Fatalf("start %d after %d", r.start, before)
	}
}

func (r *crashRun) reclaim(want bool) {
	r.at = "reclaim"
	n, err := r.l.Reclaim()
	if err != nil || (n > 0) != want {
		r.t.Fatalf("reclaimed %d: %v", n, err)
	}
}

// run plays the whole story; each disk that a death or a power cut may leave
// after each operation is handed to judge.
func (r *crashRun) run(judge func(disk *MemFS, sameBoot bool, how string)) {
	r.fs.AfterOp(func(op Op) {
		if !op.Changes() {
			return
		}
		after := fmt.Sprintf("after %s %s %d+%d", op.Kind, op.Name, op.Off, op.N)
		r.ops++
		r.judged++
		judge(r.fs.Clone(), true, fmt.Sprintf("%s: killed %s", r.at, after))
		limit := 1 << wholePending
		if r.fs.Pending() > wholePending {
			limit = someSubsets
			r.sampled++
		}
		for kept, disk := range r.fs.Crashes(limit) {
			if r.isNew(disk) {
				r.judged++
				judge(disk, false, fmt.Sprintf("%s: power cut %s; %s", r.at, after, kept))
			}
		}
	})
	defer r.fs.AfterOp(nil)
	if r.calm {
		r.calmScript()
		return
	}
	r.script()
}

// isNew reports whether no equal disk was judged yet against the same
// expectations.
func (r *crashRun) isNew(disk *MemFS) bool {
	expected := fmt.Sprint(r.floor, r.start, r.epoch, len(r.branches), len(r.branches[0]))
	if expected != r.expected {
		r.expected, r.seen = expected, map[uint64]bool{}
	}
	sum := disk.sum()
	known := r.seen[sum]
	r.seen[sum] = true
	return !known
}

func (r *crashRun) script() {
	r.setEpoch(0)
	r.append(3, 300)
	r.flush()
	r.append(1, 500)
	r.checkpoint()
	r.append(2, pageSize)
	r.append(2, pageSize) // rolls in the middle
	r.flush()
	r.append(2, pageSize)
	r.checkpoint()
	r.append(5, pageSize) // rolls
	r.setEpoch(1)
	r.append(1, 200)
	r.flush()
	r.append(1, 1000)
	r.truncate(10) // two segments go
	r.setEpoch(2)
	r.append(1, pageSize)
	r.append(2, pageSize)
	r.flush()
	r.append(3, pageSize)
	r.checkpoint()
	r.retain()
	r.reclaim(false)
	r.append(1, 300)
	r.checkpoint()
	r.reclaim(true)
	r.append(1, 300)
}

// open is recovery of a disk as the data directory would ask for it.
func (r *crashRun) open(disk FS, sameBoot bool) (*Log, error) {
	in := openState{Quarantine: testQuarantine, Warm: sameBoot}
	if err := disk.SyncDir("."); err != nil { // as step 2 of a start does
		return nil, err
	}
	b, err := pointsFile.read(disk, crashPoints)
	switch {
	case err == nil:
		ps, err := decodePoints(b)
		if err != nil {
			return nil, err
		}
		if p, ok := ps[orders3]; ok {
			in.Point = &p
		}
	case !errors.Is(err, fs.ErrNotExist):
		return nil, err
	}
	return openLog(disk, logDir, "orders", orders3, r.o, in, at(1))
}

// check fails unless l is a log that the script may have left.
func (r *crashRun) check(l *Log) error {
	v, rep := l.View(), l.Recovery()
	if len(rep.Damaged) > 0 || rep.Lost > 0 {
		return fmt.Errorf("damage after a power cut: %v", rep)
	}
	if v.End() < r.floor || v.Start() > r.start {
		return fmt.Errorf("offsets %d to %d, want at most %d to at least %d", v.Start(), v.End(), r.start, r.floor)
	}
	if v.Epoch() < r.epoch {
		return fmt.Errorf("epoch %d, %d was durable", v.Epoch(), r.epoch)
	}
	got, err := contents(v, v.Start(), v.End(), 1<<20)
	if err != nil {
		return err
	}
	for _, x := range v.epochs {
		if x.start > v.End() {
			return fmt.Errorf("epoch %d starts at offset %d, the log ends at %d", x.epoch, x.start, v.End())
		}
	}
	for _, branch := range r.branches {
		if want, end := between(branch, v.Start(), v.End()); end == v.End() && bytes.Equal(got, want) {
			return r.checkProducers(l, branch)
		}
	}
	return fmt.Errorf("offsets %d to %d hold %d bytes that no history has", v.Start(), v.End(), len(got))
}

// between returns the bytes of the batches from start to end, and where they end.
func between(bs []wire.Batch, start, end wire.Offset) (all []byte, at wire.Offset) {
	at = start
	for _, b := range bs {
		if b.BaseOffset() >= start && b.NextOffset() <= end {
			all, at = append(all, b...), b.NextOffset()
		}
	}
	return all, at
}

// checkProducers compares the recovered state with that of the batches.
func (r *crashRun) checkProducers(l *Log, branch []wire.Batch) error {
	want := newProducers(r.o.filled())
	for _, b := range branch {
		if b.NextOffset() <= l.View().End() {
			want.replay(b)
		}
	}
	if got, want := l.producers.encode(orders3, 0), want.encode(orders3, 0); !bytes.Equal(got, want) {
		return fmt.Errorf("producers are\n%x, want\n%x", got, want)
	}
	return nil
}

// calmScript has every kind of step, each begun with little or nothing pending,
// so that what a power cut can leave is judged whole after each operation.
func (r *crashRun) calmScript() {
	rest := func() {
		r.flush()
		r.checkpoint()
	}
	r.setEpoch(0)
	r.append(2, 300)
	rest()
	r.append(1, 500)
	r.checkpoint()
	r.append(1, pageSize)
	rest()
	r.append(1, pageSize)
	rest()
	r.append(1, pageSize) // rolls
	r.flush()
	r.setEpoch(1)
	r.checkpoint()
	r.append(2, 200)
	r.flush()
	r.append(1, 200)
	r.truncate(7)
	r.setEpoch(2)
	rest()
	r.append(1, pageSize)
	rest()
	r.append(1, pageSize)
	rest()
	r.append(1, pageSize) // rolls
	r.flush()
	r.checkpoint()
	r.append(1, pageSize)
	rest()
	r.retain()
	r.reclaim(false)
	r.checkpoint()
	r.reclaim(true)
	r.append(1, 300)
}

// TestEveryPowerCut is TestPowerCuts by another script: every subset of what was
// not fsynced, after every operation, without exception.
func TestEveryPowerCut(t *testing.T) {
	t.Parallel()
	r := newCrashRun(t, crashOptions)
	r.calm = true
	r.run(r.judge)
	t.Logf("%d different disks after %d operations judged", r.judged, r.ops)
	if r.sampled > 0 || r.judged < 1000 {
		t.Fatalf("%d disks were judged, and not all there can be after %d operations", r.judged, r.sampled)
	}
}

// TestPowerCuts stops a scripted run after every disk operation, with every
// subset of what was not fsynced (of more than wholePending effects: some), or
// with the page cache alive, and recovers: what was flushed is there, the log is
// a prefix of what was written, a second recovery changes nothing, what was
// recovered outlives the next power cut, and what is appended then stands behind
// it. Subsets that leave equal disks are judged once.
func TestPowerCuts(t *testing.T) {
	t.Parallel()
	r := newCrashRun(t, crashOptions)
	r.run(r.judge)
	t.Logf("%d different disks after %d operations judged: all there can be after %d of them, some after the %d with more than %d effects pending",
		r.judged, r.ops, r.ops-r.sampled, r.sampled, wholePending)
	if r.judged < 5000 {
		t.Fatalf("only %d disks were judged", r.judged)
	}
}

func (r *crashRun) judge(disk *MemFS, sameBoot bool, how string) {
	t := r.t
	l, err := r.open(disk, sameBoot)
	if err == nil {
		err = r.check(l)
	}
	if err != nil {
		t.Fatalf("%s: %v", how, err)
	}
	first := mustContents(t, l.View())
	if disk.Pending() > 0 {
		cut := disk.Crash(CrashNone)
		again, err := r.open(cut, false)
		if err != nil || !bytes.Equal(mustContents(t, again.View()), first) || again.View().End() != l.View().End() {
			t.Fatalf("%s: a power cut after recovery took back what was served: %v", how, err)
		}
	}
	before := disk.sum()
	again, err := r.open(disk, sameBoot)
	if err != nil || disk.sum() != before {
		t.Fatalf("%s: a second recovery changed the disk: %v\n%s", how, err, tree(t, disk))
	}
	if rep := again.Recovery(); rep.Cut > 0 || rep.Zeros > 0 {
		t.Fatalf("%s: a second recovery cut: %v", how, rep)
	}
	r.judgeAppend(disk, again, first, how)
}

// judgeAppend goes on with a recovered log: batches of the size most had before,
// under the same epoch, so that only what recovery made durable keeps the old
// bytes from standing behind the new ones.
func (r *crashRun) judgeAppend(disk *MemFS, l *Log, first []byte, how string) {
	t := r.t
	b := bytes.Clone(r.more)
	mustAppend(t, l, 2000, b)
	longer := append(bytes.Clone(first), b...)
	after, err := r.open(disk.Crash(CrashAny), false)
	if err != nil {
		t.Fatalf("%s: appended, power cut: %v", how, err)
	}
	if got := mustContents(t, after.View()); !bytes.Equal(got, first) && !bytes.Equal(got, longer) {
		t.Fatalf("%s: appended, power cut: %d bytes, neither the %d before nor the %d then: %v", how, len(got), len(first), len(longer), after.Recovery())
	}
	if _, err := l.Flush(); err != nil {
		t.Fatal(err)
	}
	after, err = r.open(disk.Crash(CrashNone), false)
	if err != nil || !bytes.Equal(mustContents(t, after.View()), longer) {
		t.Fatalf("%s: appended, flushed, power cut: %v", how, err)
	}
}

var sumSeed = maphash.MakeSeed()

// sum is equal for disks that hold the same.
func (m *MemFS) sum() uint64 {
	var h maphash.Hash
	h.SetSeed(sumSeed)
	var visit func(name string, n *memNode)
	visit = func(name string, n *memNode) {
		fmt.Fprintln(&h, name, n.isDir, n.seen.size, len(n.names))
		for i, page := range n.seen.pages {
			if page = bytes.TrimRight(page, "\x00"); len(page) > 0 {
				fmt.Fprintln(&h, i)
				h.Write(page)
			}
		}
		for _, name := range slices.Sorted(maps.Keys(n.names)) {
			visit(name, n.names[name])
		}
	}
	visit("", m.root)
	return h.Sum64()
}

// tree lists names and contents of the log and the quarantine.
func tree(t testing.TB, disk FS) string {
	var b bytes.Buffer
	for _, dir := range []string{logDir, testQuarantine} {
		es, err := disk.ReadDir(dir)
		if err != nil && !notExist(err) {
			t.Fatal(err)
		}
		for _, e := range es {
			fmt.Fprintf(&b, "%s/%s %d %x\n", dir, e.Name, e.Size, crcOf(fileBytes(t, disk, dir+"/"+e.Name)))
		}
	}
	return b.String()
}
