package raft

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// A sumMachine counts what it applied and how much that was.
type sumMachine struct {
	mu      sync.Mutex
	applied int
	bytes   int
	state   []byte
}

func (m *sumMachine) Apply(e Entry) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if e.Kind == Command {
		m.applied++
		m.bytes += len(e.Data)
	}
}

func (m *sumMachine) Snapshot() ([]byte, error) { return m.state, nil }

func (m *sumMachine) Restore(b []byte) error {
	m.state = b
	return nil
}

type noTransport struct{}

func (noTransport) Send([]Message) {}

// soloDriver returns the driver of a lone voter that leads.
func soloDriver(t testing.TB, s Store, m Machine, o Options) *Driver {
	t.Helper()
	if mem, ok := s.(*MemStore); ok {
		if err := Bootstrap(mem, Members{Voters: []Peer{peer(1, 0)}}); err != nil {
			t.Fatal(err)
		}
	}
	d, err := NewDriver(Config{Cluster: cluster, Self: peer(1, 0)}, s, noTransport{}, m, o)
	if err != nil {
		t.Fatal(err)
	}
	for !d.Status().Leads {
		d.Tick()
		turnAll(t, d)
	}
	return d
}

func turnAll(t testing.TB, d *Driver) {
	t.Helper()
	for worked := true; worked; {
		var err error
		if worked, err = d.Turn(); err != nil {
			t.Fatal(err)
		}
	}
}

// TestDriverGroups holds that what is proposed between two turns costs one
// fsync together.
func TestDriverGroups(t *testing.T) {
	s, done := NewMemStore(), 0
	d := soloDriver(t, s, &sumMachine{}, Options{})
	before := s.writes
	for range 256 {
		d.Propose([]byte("x"), func(_ Index, err error) {
			if err == nil {
				done++
			}
		})
	}
	turnAll(t, d)
	if done != 256 || s.writes-before != 2 {
		t.Fatalf("%d of 256 are done after %d writes, want one append and one sync", done, s.writes-before)
	}
}

// TestDriverBounds overfills the inbox.
func TestDriverBounds(t *testing.T) {
	d := soloDriver(t, NewMemStore(), &sumMachine{}, Options{MaxCalls: 3, MaxCallBytes: 100, MaxMessages: 2, MaxMessageBytes: 1000})
	f := func(n, bytes, want int) {
		t.Helper()
		busy := 0
		for range n {
			d.Propose(make([]byte, bytes), func(_ Index, err error) {
				if errors.Is(err, ErrBusy) {
					busy++
				}
			})
		}
		if busy != want {
			t.Fatalf("%d proposals of %d bytes: %d are refused, want %d", n, bytes, busy, want)
		}
		turnAll(t, d)
	}

	f(3, 1, 0)
	f(5, 1, 2)    // by number
	f(3, 60, 2)   // by bytes
	f(1, 1000, 0) // one alone may be larger
	for range 5 {
		d.Deliver(Message{})
	}
	if n := len(d.inbox.in.messages); n != 2 {
		t.Fatalf("%d messages wait, want 2: the rest is lost", n)
	}
	turnAll(t, d)
	for range 2 {
		d.Deliver(Message{Entries: []Entry{{Data: make([]byte, 600)}}})
	}
	if n := len(d.inbox.in.messages); n != 1 {
		t.Fatalf("%d messages of 600 bytes wait, want 1", n)
	}
}

// TestDriverStoreFails answers everybody when the store fails, and never says
// that a proposal has no effect if it may.
func TestDriverStoreFails(t *testing.T) {
	s := NewMemStore()
	d := soloDriver(t, s, &sumMachine{}, Options{})
	s.StopAt(2, true) // append, then the sync fails, though all is written
	var first, read, late error
	d.Propose([]byte("x"), func(_ Index, err error) { first = err })
	_, err := d.Turn()
	if !errors.Is(err, ErrStopped) || !errors.Is(first, ErrIndefinite) {
		t.Fatalf("turn: %v, proposal: %v", err, first)
	}
	d.Propose([]byte("y"), func(_ Index, err error) { late = err })
	d.Read(func(_ Index, err error) { read = err })
	if _, again := d.Turn(); !errors.Is(again, ErrStopped) || late != ErrClosed || read != ErrClosed {
		t.Fatalf("afterwards: turn %v, proposal %v, read %v", again, late, read)
	}
	if again := soloRestart(t, s.Restart(nil)); again.Status().Last < d.Status().Last {
		t.Fatalf("what was written is gone: last %d, was %d", again.Status().Last, d.Status().Last)
	}
}

func soloRestart(t *testing.T, s *MemStore) *Driver {
	t.Helper()
	d, err := NewDriver(Config{Cluster: cluster, Self: peer(1, 0)}, s, noTransport{}, &sumMachine{}, Options{})
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// TestCompaction holds that log and memory stay small however much is proposed,
// and that a restart begins at the snapshot.
func TestCompaction(t *testing.T) {
	s := NewMemStore()
	d := soloDriver(t, s, &sumMachine{state: make([]byte, 1000)}, Options{SnapshotBytes: 10_000})
	most := 0
	for range 5000 {
		d.Propose(make([]byte, 100), func(Index, error) {})
		turnAll(t, d)
		most = max(most, len(d.node.log.entries))
	}
	if want := 2*10_000/124 + 3; most > want {
		t.Fatalf("%d entries in memory, want at most two snapshots' worth, %d", most, want)
	}
	state, _ := s.Restart(nil).Load()
	if state.Snapshot.Index < 4900 || len(state.Entries) > most {
		t.Fatalf("a restart begins at entry %d with %d entries", state.Snapshot.Index, len(state.Entries))
	}
	again := soloRestart(t, s.Restart(nil))
	if got := again.Status(); got.Applied != state.Snapshot.Index || got.Last != d.Status().Last {
		t.Fatalf("%+v, had %+v", got, d.Status())
	}
}

// A hub joins drivers that run.
type hub struct {
	mu      sync.Mutex
	drivers map[Peer]*Driver
	cut     Peer
}

func (h *hub) Send(messages []Message) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, m := range messages {
		if d := h.drivers[m.To]; d != nil && m.To != h.cut && m.From != h.cut {
			d.Deliver(m)
		}
	}
}

// TestRun runs three drivers as they run in a server: they elect a leader,
// commit, replace the leader when it is cut off, and end when they are told to.
func TestRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		h := &hub{drivers: map[Peer]*Driver{}}
		members := Members{Voters: peersOf([]int{1, 2, 3})}
		var ended sync.WaitGroup
		for _, p := range members.Voters {
			s := NewMemStore()
			if err := Bootstrap(s, members); err != nil {
				t.Fatal(err)
			}
			d, err := NewDriver(Config{Cluster: cluster, Self: p}, s, h, &sumMachine{}, Options{})
			if err != nil {
				t.Fatal(err)
			}
			h.drivers[p] = d
		}
		for _, p := range members.Voters {
			ended.Go(func() {
				if err := h.drivers[p].Run(ctx, 10*time.Millisecond); err != nil {
					t.Error(err)
				}
			})
		}
		first := proposeSomewhere(t, h)
		h.mu.Lock()
		h.cut = first
		h.mu.Unlock()
		if second := proposeSomewhere(t, h); second == first {
			t.Fatalf("%v commits though it is cut off", first)
		}
		cancel()
		ended.Wait()
		var late error
		h.drivers[first].Propose(nil, func(_ Index, err error) { late = err })
		if late != ErrClosed {
			t.Fatalf("after the end: %v", late)
		}
	})
}

// proposeSomewhere asks one after the other until one has committed.
func proposeSomewhere(t *testing.T, h *hub) Peer {
	for range 1000 {
		for _, p := range peersOf([]int{1, 2, 3}) {
			answer := make(chan error, 1)
			h.drivers[p].Propose([]byte("x"), func(_ Index, err error) { answer <- err })
			if err := <-answer; err == nil {
				return p
			}
		}
		time.Sleep(10 * time.Millisecond) // of the bubble's clock
	}
	t.Fatal("nobody commits")
	return Peer{}
}
