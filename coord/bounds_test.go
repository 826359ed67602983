package coord

import (
	"testing"

	"github.com/teralog/teralog/mem"
	"github.com/teralog/teralog/raft"
	"github.com/teralog/teralog/storage"
)

// A heap is a machine with a large state.
type heap struct {
	state   []byte
	applied int
}

func (h *heap) Apply(e raft.Entry) {
	h.applied++
	if len(e.Data) > 0 {
		h.state[int(e.Index)*31%len(h.state)] = e.Data[0]
	}
}

func (h *heap) Snapshot() ([]byte, error) { return h.state, nil }

func (h *heap) Restore(b []byte) error {
	h.state = append([]byte(nil), b...)
	return nil
}

// TestStateBounds is BenchmarkBounds with a smaller state.
func TestStateBounds(t *testing.T) {
	if testing.Short() {
		t.Skip("takes a second, and 300 MiB")
	}
	b := stateBounds(t, 500_000, 48<<20)
	t.Logf("%+v", b)
	if b.replayed == 0 || b.disk < 2 { // two snapshots are kept
		t.Fatal("it was not measured")
	}
}

// BenchmarkBounds proposes a million entries to a node alone whose state has
// 64 MiB, and starts it again: how much the disk held at most, over the state,
// and what the start read, over the state and the entries behind it (which
// recovery, the producers and Raft each read).
func BenchmarkBounds(b *testing.B) {
	for b.Loop() {
		r := stateBounds(b, 1_000_000, 64<<20)
		b.ReportMetric(r.disk, "disk/state")
		b.ReportMetric(r.read, "read/(state+tail)")
		b.ReportMetric(float64(r.replayed), "entries-replayed")
	}
}

// bounds is what a state and its log took.
type bounds struct {
	disk     float64 // at most, over the state
	read     float64 // by a start, over the state and the entries behind its snapshot
	replayed int     // entries, by a start
}

// stateBounds measures them, and fails if they are beyond what is promised.
func stateBounds(t testing.TB, entries, stateBytes int) bounds {
	disk := storage.NewMemFS(1)
	k, err := keepAs(disk, "one", 7, -1)
	if err != nil {
		t.Fatal(err)
	}
	if err := raft.Bootstrap(k, raft.Members{Voters: []raft.Peer{k.self}}); err != nil {
		t.Fatal(err)
	}
	h := &heap{state: make([]byte, stateBytes)}
	d := newAlone(t, k, h)
	most := int64(0)
	disk.AfterOp(func(op storage.Op) {
		if op.Kind == storage.OpSync {
			total, free, _ := disk.Space(dataDir)
			most = max(most, total-free)
		}
	})
	for n := 0; n < entries; {
		for range 1000 {
			n++
			d.Propose(make([]byte, 100), func(_ raft.Index, err error) {
				if err != nil {
					t.Fatal(err)
				}
			})
		}
		for worked := true; worked; {
			if worked, err = d.Turn(); err != nil {
				t.Fatal(err)
			}
		}
	}
	disk.AfterOp(nil)
	tail := int64(k.log.View().End()-offsetOf(d.Status().Snapshot)) * 210 // bytes of a batch of 100
	k.abandon()
	k.dir.Abandon()

	disk = disk.Clone()
	disk.ResetCounts()
	if k, err = keepAs(disk, "two", 7, -1); err != nil {
		t.Fatal(err)
	}
	again := &heap{}
	newAlone(t, k, again)
	read := disk.CountBytes(storage.OpRead)
	if state := int64(stateBytes); again.applied > entries/4 || most > 3*state || read > state+4*tail+1<<20 {
		t.Fatalf("the disk held %d bytes, the start read %d and applied %d entries", most, read, again.applied)
	}
	return bounds{float64(most) / float64(stateBytes), float64(read) / float64(int64(stateBytes)+tail), again.applied}
}

// newAlone returns the driver of a node alone that leads.
func newAlone(t testing.TB, k *keeper, m raft.Machine) *raft.Driver {
	k.turn(mem.Now{Wall: 1})
	d, err := raft.NewDriver(raft.Config{Cluster: raft.UUID{1}, Self: k.self, MaxUncommitted: 64 << 20}, k, nobody{}, m, raft.Options{SnapshotBytes: snapshotBytes})
	if err != nil {
		t.Fatal(err)
	}
	for s := d.Status(); !s.Leads || s.Applied < s.Last; s = d.Status() {
		d.Tick()
		if _, err := d.Turn(); err != nil {
			t.Fatal(err)
		}
	}
	return d
}
