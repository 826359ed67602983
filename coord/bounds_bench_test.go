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

// BenchmarkBounds proposes a million entries to a node alone whose state has
// 64 MiB, and starts it again: how much the disk held at most, over the state,
// and what the start read, over the state and the entries behind it (which
// recovery, the producers and Raft each read).
func BenchmarkBounds(b *testing.B) {
	const entries, stateBytes = 1_000_000, 64 << 20
	for b.Loop() {
		disk := storage.NewMemFS(1)
		k, err := keepAs(disk, "one", 7, -1)
		if err != nil {
			b.Fatal(err)
		}
		if err := raft.Bootstrap(k, raft.Members{Voters: []raft.Peer{k.self}}); err != nil {
			b.Fatal(err)
		}
		h := &heap{state: make([]byte, stateBytes)}
		d := newAlone(b, k, h)
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
						b.Fatal(err)
					}
				})
			}
			for worked := true; worked; {
				if worked, err = d.Turn(); err != nil {
					b.Fatal(err)
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
			b.Fatal(err)
		}
		again := &heap{}
		newAlone(b, k, again)
		read := disk.CountBytes(storage.OpRead)
		if again.applied > entries/4 || most > 3*stateBytes || read > stateBytes+4*tail+1<<20 {
			b.Fatalf("the disk held %d bytes, the start read %d and applied %d entries", most, read, again.applied)
		}
		b.ReportMetric(float64(most)/stateBytes, "disk/state")
		b.ReportMetric(float64(read)/float64(stateBytes+tail), "read/(state+tail)")
		b.ReportMetric(float64(again.applied), "entries-replayed")
	}
}

// newAlone returns the driver of a node alone that leads.
func newAlone(b *testing.B, k *keeper, m raft.Machine) *raft.Driver {
	k.turn(mem.Now{Wall: 1})
	d, err := raft.NewDriver(raft.Config{Cluster: raft.UUID{1}, Self: k.self, MaxUncommitted: 64 << 20}, k, nobody{}, m, raft.Options{SnapshotBytes: snapshotBytes})
	if err != nil {
		b.Fatal(err)
	}
	for s := d.Status(); !s.Leads || s.Applied < s.Last; s = d.Status() {
		d.Tick()
		if _, err := d.Turn(); err != nil {
			b.Fatal(err)
		}
	}
	return d
}
