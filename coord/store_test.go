package coord

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"slices"
	"strings"
	"testing"

	"github.com/teralog/teralog/mem"
	"github.com/teralog/teralog/raft"
	"github.com/teralog/teralog/storage"
	"github.com/teralog/teralog/wire"
)

// A keeper is a metalog of one node of several, as Raft uses it.
type keeper struct {
	*metalog
	dir *storage.Dir
}

func keep(disk storage.FS, boot string) (*keeper, error) {
	return keepAs(disk, boot, 7, 64<<10)
}

func keepAs(disk storage.FS, boot string, id wire.NodeID, reserve int64) (*keeper, error) {
	n := byte(0)
	dir, err := storage.OpenDir(disk, dataDir, storage.DirOptions{
		Node: id, Boot: boot, Format: true, Reserve: reserve, NewID: func() wire.UUID { n++; return wire.UUID{byte(id), n} },
	})
	if err != nil {
		return nil, err
	}
	self := raft.Peer{ID: raft.NodeID(id), Incarnation: raft.UUID(dir.ID())}
	m, err := openMetalog(dir, self, false, slog.New(slog.DiscardHandler), mem.Now{Wall: 1000})
	if err == nil {
		err = dir.Recovered()
	}
	if err != nil {
		return nil, errors.Join(err, dir.Abandon())
	}
	return &keeper{m, dir}, nil
}

// stop is a clean stop.
func (k *keeper) stop() error {
	end, err := k.close()
	if err != nil {
		return errors.Join(err, k.dir.Abandon())
	}
	return k.dir.Close([]storage.CleanEnd{end})
}

// kept is what a store holds, as text to compare.
func kept(s raft.State) (vote, log string) {
	var b strings.Builder
	fmt.Fprintf(&b, "snapshot %d/%d", s.Snapshot.Index, s.Snapshot.Term)
	for _, e := range s.Entries {
		if e.Index > s.Snapshot.Index {
			fmt.Fprintf(&b, " %d/%d:%x", e.Index, e.Term, e.Data[:min(len(e.Data), 4)])
		}
	}
	return fmt.Sprint(s.Vote), b.String()
}

// A ledger is what a store was asked to keep: what it has to hold, and what it
// may hold after a power cut.
type ledger struct {
	disk  storage.FS
	k     *keeper
	now   raft.State // as if nothing were lost
	last  int        // entries of the newest flush
	votes []string   // that a power cut may leave
	logs  []string
}

// may notes that a power cut may leave s from now on.
func (l *ledger) may(s raft.State) {
	vote, log := kept(s)
	l.votes, l.logs = append(l.votes, vote), append(l.logs, log)
}

// settle notes that all that was asked for is durable.
func (l *ledger) settle() {
	l.votes, l.logs = nil, nil
	l.may(l.now)
}

func (l *ledger) vote(t raft.Term, p raft.Peer) error {
	l.now.Vote = raft.Vote{Term: t, For: p}
	l.may(l.now)
	return l.k.SetVote(l.now.Vote)
}

func (l *ledger) sync() error {
	if err := l.k.Sync(); err != nil {
		return err
	}
	l.settle()
	return nil
}

// append adds n entries of size bytes from index first on.
func (l *ledger) append(first raft.Index, t raft.Term, n, size int) error {
	var entries []raft.Entry
	for i := range n {
		at := first + raft.Index(i)
		entries = append(entries, raft.Entry{Index: at, Term: t, Kind: raft.Command, Data: bytes.Repeat([]byte{byte(at), byte(t)}, size/2)})
	}
	before := int(first - l.now.BaseIndex - 1)
	for i := range n + 1 {
		l.now.Entries = append(slices.Clone(l.now.Entries[:before]), entries[:i]...)
		l.may(l.now)
	}
	l.last = n
	return l.k.Append(entries)
}

func (l *ledger) snapshot(i, keepAfter raft.Index, size int) error {
	e := l.now.Entries[i-l.now.BaseIndex-1]
	s := raft.Snapshot{Index: i, Term: e.Term, Members: three, Size: uint64(size)}
	l.now.Snapshot = s
	l.may(l.now)
	err := l.k.SaveSnapshot(s, bytes.Repeat([]byte{byte(i)}, size), keepAfter)
	if err == nil {
		l.settle()
	}
	return err
}

func (l *ledger) install(i raft.Index, t raft.Term, size, chunks int) error {
	s := raft.Snapshot{Index: i, Term: t, Members: three, Size: uint64(size)}
	state := bytes.Repeat([]byte{byte(i)}, size)
	for c := range chunks {
		from, to := size*c/chunks, size*(c+1)/chunks
		if err := l.k.Stage(s, uint64(from), state[from:to]); err != nil {
			return err
		}
	}
	l.now.Snapshot, l.now.BaseIndex, l.now.BaseTerm, l.now.Entries = s, i, t, nil
	l.may(l.now)
	err := l.k.Install(s)
	if err == nil {
		l.settle()
	}
	return err
}

func (l *ledger) restart(boot string) (err error) {
	if err := l.k.stop(); err != nil {
		return err
	}
	l.k, err = keep(l.disk, boot)
	return err
}

var (
	eight = raft.Peer{ID: 8, Incarnation: raft.UUID{8, 1}}
	three = raft.Members{Voters: []raft.Peer{{ID: 7, Incarnation: raft.UUID{7, 1}}, eight, {ID: 9, Incarnation: raft.UUID{9, 1}}}}
)

// steps is the life of a store: all that Raft asks of one, in one order.
func (l *ledger) steps() []func() error {
	first := raft.Entry{Index: 1, Term: 1, Kind: raft.Membership, Data: raft.AppendMembers(nil, three)}
	return []func() error{
		func() error {
			l.settle()
			l.now.Vote.Term = 1
			l.may(l.now)
			l.now.Entries = []raft.Entry{first}
			l.may(l.now)
			if err := raft.Bootstrap(l.k, three); err != nil {
				return err
			}
			l.settle()
			return nil
		},
		func() error { return l.vote(2, eight) },
		l.sync,
		func() error { return l.append(2, 2, 3, 60) },
		l.sync,
		func() error { return l.append(5, 2, 5, 3000) }, // waits for its flush
		func() error { return l.append(10, 2, 1, 200_000) },
		l.sync,
		func() error { return l.vote(3, raft.Peer{}) },
		func() error { return l.append(7, 3, 2, 60) }, // a conflict: cuts 7 to 10
		l.sync,
		func() error { return l.snapshot(4, 0, 5000) },
		func() error { return l.append(9, 3, 2, 60) },
		l.sync,
		func() error { return l.snapshot(8, 4, 5000) },
		func() error { return l.snapshot(9, 8, 5000) },
		func() error { return l.append(11, 3, 1, 60) },
		func() error { return l.install(20, 3, 900, 3) },
		func() error { return l.append(21, 3, 3, 60) },
		l.sync,
		func() error { return l.vote(4, eight) },
		func() error { return l.append(22, 4, 1, 60) }, // a conflict
		l.sync,
		func() error { return l.restart("two") },
		func() error { return l.vote(5, eight) },
		func() error { return l.append(22, 5, 1, 60) }, // below the recovery point of the stop
		l.sync,
		func() error { return l.snapshot(21, 20, 900) },
		func() error { return l.append(23, 5, 1, 60) },
		l.sync,
		func() error { return l.vote(7, raft.Peer{}) },
		func() error { return l.append(24, 7, 2, 60) },
		l.sync,
		func() error { return l.vote(8, eight) },
		func() error { return l.append(24, 5, 1, 60) }, // a conflict, with an older term
		l.sync,
		func() error { return l.append(25, 8, 1, 60) },
		l.sync,
		func() error { return l.append(26, 8, 2, 60) },
		l.sync,
	}
}

// stopStep is the step that stops and starts.
const stopStep = 23

// run does all steps, up to the first error.
func (l *ledger) run(disk storage.FS) (err error) {
	l.disk = disk
	l.settle() // an empty store
	if l.k, err = keep(disk, "one"); err != nil {
		return err
	}
	for _, step := range l.steps() {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

// check opens what a power cut left: it is one of what it may be, nothing is
// called damaged, opening it again gives the same, and it can be used.
func (l *ledger) check(disk *storage.MemFS) error {
	for _, boot := range []string{"three", "four"} {
		k, err := keep(disk, boot)
		if err != nil {
			return err
		}
		s, err := k.Load()
		if err != nil {
			return err
		}
		vote, log := kept(s)
		if !slices.Contains(l.votes, vote) || !slices.Contains(l.logs, log) || s.Damaged != 0 {
			return fmt.Errorf("vote %s, log %q, damaged %d; it may be %s, %q", vote, log, s.Damaged, l.votes, l.logs)
		}
		l.votes, l.logs = []string{vote}, []string{log}
		if boot == "four" {
			l.now, l.k = s, k
			last := s.BaseIndex + raft.Index(len(s.Entries))
			if err := errors.Join(l.vote(9, eight), l.append(last+1, 9, 2, 60), l.sync()); err != nil {
				return err
			}
			again, err := k.Load()
			vote, log := kept(again)
			if err != nil || vote != l.votes[0] || log != l.logs[0] {
				return fmt.Errorf("it holds %s, %q, not %s, %q: %v", vote, log, l.votes, l.logs, err)
			}
			return k.stop()
		}
		k.abandon()
		k.dir.Abandon()
		disk = disk.Clone()
	}
	return nil
}

// TestStoreCrash stops after every disk operation and leaves every kind of disk
// that a power cut may.
func TestStoreCrash(t *testing.T) {
	stops, crashes := 0, 0
	for finished := false; !finished; stops++ {
		disk := storage.NewMemFS(uint64(stops))
		disk.StopAfter(stops)
		var l ledger
		finished = l.run(disk) == nil
		for name, crashed := range disk.Crashes(6) {
			after := l
			if err := after.check(crashed); err != nil {
				t.Fatalf("stopped after %d operations, %s: %v", stops, name, err)
			}
			crashes++
		}
	}
	if stops < 200 {
		t.Fatalf("there are %d operations", stops)
	}
	t.Logf("%d crashes at %d operations", crashes, stops)
}

// TestStoreFailures lets every disk operation fail once.
func TestStoreFailures(t *testing.T) {
	eio := errors.New("I/O error")
	for _, kind := range []string{storage.OpWrite, storage.OpSync, storage.OpSyncDir, storage.OpRename, storage.OpRead, storage.OpOpen, storage.OpTruncate, storage.OpRemove} {
		for nth := 1; ; nth++ {
			disk := storage.NewMemFS(uint64(nth))
			disk.Fail(kind, nth, eio)
			var l ledger
			if err := l.run(disk); err == nil {
				if disk.Count(kind) < nth {
					break // there are no more
				}
				continue // it was of no account
			}
			disk.Heal()
			if err := l.check(disk.Crash(storage.CrashAny)); err != nil {
				t.Fatalf("%s %d failed: %v", kind, nth, err)
			}
		}
	}
}

// TestStoreLie lets each fsync fail without writing what it was for, and the
// next process find that in memory. What it loads outlives a power cut.
func TestStoreLie(t *testing.T) {
	eio := errors.New("I/O error")
	for nth := 1; ; nth++ {
		disk := storage.NewMemFS(uint64(nth))
		disk.Fail(storage.OpSync, nth, eio)
		var l ledger
		if err := l.run(disk); err == nil {
			break
		}
		disk.Heal()
		disk = disk.Clone() // the process died, the machine lives
		k, err := keep(disk, "one")
		if err != nil {
			continue // it was told that the disk cannot be trusted
		}
		s, err := k.Load()
		if err != nil {
			t.Fatal(err)
		}
		l.votes, l.logs = nil, nil
		l.may(s)
		if err := l.check(disk.Crash(storage.CrashNone)); err != nil {
			t.Fatalf("fsync %d failed: %v", nth, err)
		}
	}
}

// TestStoreFull lets every step meet a disk that is full to some page. It says
// so and has done nothing, or it is done; with room again all goes on.
func TestStoreFull(t *testing.T) {
	refused := 0
	for pages := range int64(8) {
		disk := storage.NewMemFS(uint64(pages))
		l := ledger{disk: disk}
		var err error
		if l.k, err = keepAs(disk, "one", 7, -1); err != nil {
			t.Fatal(err)
		}
		for n, step := range l.steps() {
			total, free, err := disk.Space(dataDir)
			if err != nil {
				t.Fatal(err)
			}
			if n != stopStep { // a stop that cannot write is no clean one
				disk.SetCapacity(total - free + pages<<12)
			}
			before := l.now
			err = step()
			disk.SetCapacity(0)
			if errors.Is(err, raft.ErrNoRoom) {
				refused++
				l.now = before
				err = step()
			}
			if err != nil {
				t.Fatalf("step %d with %d pages: %v", n, pages, err)
			}
		}
		if err := l.check(disk.Crash(storage.CrashAny)); err != nil {
			t.Fatalf("%d pages: %v", pages, err)
		}
	}
	if refused < 10 {
		t.Fatalf("%d steps had no room", refused)
	}
}

// TestStoreDamage flips bits of every byte of every file of a store, and cuts
// each at every byte. What was durable is there, or the store says that it is
// damaged, or does not open; only what came with the last flush may be taken for
// torn.
func TestStoreDamage(t *testing.T) {
	whole := storage.NewMemFS(1)
	var l ledger
	if err := l.run(whole); err != nil {
		t.Fatal(err)
	}
	vote, log := kept(l.now)
	torn := log
	for range l.last {
		torn = torn[:strings.LastIndexByte(torn, ' ')]
	}
	last := l.now.BaseIndex + raft.Index(len(l.now.Entries))
	point, err := l.k.log.View().Find(offsetOf(22), offsetOf(23), 1) // all before it was durable at the last snapshot
	if err != nil {
		t.Fatal(err)
	}
	point.Done()
	outcomes := map[string]int{}
	f := func(how, torn string, spoil func(*storage.MemFS) error) {
		t.Helper()
		disk := whole.Crash(storage.CrashNone)
		if err := spoil(disk); err != nil {
			t.Fatal(err)
		}
		k, err := keep(disk, "three")
		if err != nil {
			outcomes["not opened"]++
			return
		}
		defer func() { k.abandon(); k.dir.Abandon() }()
		s, err := k.Load()
		if err != nil {
			outcomes["not loaded"]++
			return
		}
		if i := s.BaseIndex + raft.Index(len(s.Entries)); s.Snapshot.Index < l.now.Snapshot.Index && i >= l.now.Snapshot.Index {
			s.Snapshot = l.now.Snapshot // the one before, and the entries behind it, stand for it
		}
		gotVote, got := kept(s)
		switch {
		case gotVote != vote:
			t.Fatalf("%s: the vote is %s, it was %s", how, gotVote, vote)
		case got == log && s.Damaged == 0:
			outcomes["whole"]++
		case strings.HasPrefix(log, got) && len(got) >= len(torn):
			outcomes["torn"]++
		case s.Damaged >= last:
			outcomes["damaged"]++
		default:
			t.Fatalf("%s: the log is %q, damaged %d; it was %q", how, got, s.Damaged, log)
		}
	}

	entries, err := whole.ReadDir(dataDir + "/" + metadataName)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		name := dataDir + "/" + metadataName + "/" + e.Name
		for at := range e.Size {
			if e.Name == "vote" && at >= voteSize && at < voteSlot {
				continue // nothing stands there
			}
			f(fmt.Sprintf("byte %d of %s", at, e.Name), torn, func(disk *storage.MemFS) error { return disk.FlipBit(name, at, uint(at%8)) })
			if at%7 == 0 || at > e.Size-100 {
				torn := torn
				if strings.HasSuffix(name, ".log") && at >= point.Off {
					torn = "" // a tail without an end is torn, however long it was
				}
				f(fmt.Sprintf("%s cut at %d", e.Name, at), torn, func(disk *storage.MemFS) error {
					file, err := disk.Open(name, storage.ReadWrite)
					if err != nil {
						return err
					}
					return errors.Join(file.Truncate(at), file.Sync(), file.Close())
				})
			}
		}
		f(e.Name+" removed", torn, func(disk *storage.MemFS) error { return disk.Remove(name) })
	}
	t.Logf("%v", outcomes)
	for _, o := range []string{"not opened", "whole", "torn", "damaged"} {
		if outcomes[o] == 0 {
			t.Errorf("nothing was %s", o)
		}
	}
}

// TestStoreMends damages an entry of a node that has peers: it says so over
// restarts and crashes until a leader has replaced what it lost.
func TestStoreMends(t *testing.T) {
	disk := storage.NewMemFS(1)
	var l ledger
	if err := l.run(disk); err != nil {
		t.Fatal(err)
	}
	r, err := l.k.log.View().Find(offsetOf(23), offsetOf(24), 1)
	if err != nil {
		t.Fatal(err)
	}
	r.Done()
	disk = disk.Crash(storage.CrashNone)
	if err := disk.FlipBit(metadataFiles(t, disk, ".log")[0], r.Off+100, 0); err != nil {
		t.Fatal(err)
	}
	load := func(want raft.Index) *keeper {
		t.Helper()
		disk = disk.Crash(storage.CrashNone)
		k, err := keep(disk, "again")
		if err != nil {
			t.Fatal(err)
		}
		s, err := k.Load()
		if err != nil || s.Damaged != want {
			t.Fatalf("damaged %d, want %d: %v", s.Damaged, want, err)
		}
		return k
	}

	load(27)
	k := load(27)
	if err := k.Append([]raft.Entry{{Index: 23, Term: 5, Kind: raft.NoOp}}); err != nil {
		t.Fatal(err)
	}
	k = load(27) // the log is whole again, and shorter than it was
	err = errors.Join(k.Append([]raft.Entry{{Index: 23, Term: 5, Kind: raft.NoOp}, {Index: 24, Term: 5}, {Index: 25, Term: 8}, {Index: 26, Term: 8}, {Index: 27, Term: 8}}), k.Sync())
	if err != nil {
		t.Fatal(err)
	}
	k = load(27)
	if err := k.Repaired(); err != nil {
		t.Fatal(err)
	}
	load(0)
	if err := k.damage.set(disk, 30); err != nil {
		t.Fatal(err)
	}
	if err := disk.FlipBit(k.path()+"/"+damagedName, 6, 1); err != nil {
		t.Fatal(err)
	}
	if s, err := load(1<<63 - 1).Load(); err != nil || len(s.Entries) == 0 {
		t.Fatalf("a mark that cannot be read: %+v, %v", s, err)
	}
}

// TestStoreChunks sends a snapshot from one store to another. One that is
// damaged is not sent.
func TestStoreChunks(t *testing.T) {
	from, to := storage.NewMemFS(1), storage.NewMemFS(2)
	l := ledger{}
	if err := l.run(from); err != nil {
		t.Fatal(err)
	}
	if err := l.snapshot(24, 21, 100_000); err != nil {
		t.Fatal(err)
	}
	k, err := keep(to, "one")
	if err != nil {
		t.Fatal(err)
	}
	s := l.now.Snapshot
	for at := uint64(0); at < s.Size; {
		b, err := l.k.Chunk(s.Index, at, 3000)
		if err == nil {
			err = k.Stage(s, at, b)
		}
		if err != nil {
			t.Fatal(err)
		}
		at += uint64(len(b))
	}
	if err := k.Install(s); err != nil {
		t.Fatal(err)
	}
	want, err := l.k.State()
	if err != nil {
		t.Fatal(err)
	}
	if got, err := k.State(); err != nil || !bytes.Equal(got, want) {
		t.Fatalf("%d bytes came, %d were sent: %v", len(got), len(want), err)
	}
	if b, err := l.k.Chunk(21, 0, 10); err != nil || len(b) != 10 {
		t.Fatalf("the snapshot before: %v", err)
	}
	if err := from.FlipBit(l.k.snapshotPath(24), 50_000, 0); err != nil {
		t.Fatal(err)
	}
	for _, i := range []raft.Index{8, 24} {
		if _, err := l.k.Chunk(i, 0, 10); !errors.Is(err, raft.ErrNoSnapshot) {
			t.Fatalf("snapshot %d: %v", i, err)
		}
	}
	if err := l.snapshot(24, 21, 100_000); err != nil { // in its own place
		t.Fatal(err)
	}
	for _, i := range []raft.Index{21, 24} {
		if b, err := l.k.Chunk(i, 0, 10); err != nil || len(b) != 10 {
			t.Fatalf("snapshot %d after the newest was written again: %v", i, err)
		}
	}
	if _, err := to.Stat(k.path() + "/" + stagedName); !errors.Is(err, fs.ErrNotExist) {
		t.Fatal("what was staged is still there")
	}
}
