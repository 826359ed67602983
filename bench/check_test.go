package bench

import (
	"bytes"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"

	"github.com/teralog/teralog/wire"
)

const testRun = 7

// A world is a log that works, whose history is clean by construction.
type world struct {
	r      *rand.Rand
	events []Event
	logs   map[wire.PartitionID][]Read
	next   map[uint32]uint64
	at     map[follower]wire.Offset
	parts  []wire.PartitionID
}

func newWorld(seed uint64) *world {
	w := &world{r: rand.New(rand.NewPCG(seed, 1)), logs: map[wire.PartitionID][]Read{}, next: map[uint32]uint64{}, at: map[follower]wire.Offset{}}
	for p := range int32(3) {
		w.parts = append(w.parts, wire.PartitionID{Topic: 5000, Partition: p})
	}
	return w
}

func (w *world) add(e Event) { w.events = append(w.events, e) }

func (w *world) send(producer uint32, p wire.PartitionID, outcome Outcome, appended bool) ID {
	id := ID{testRun, producer, w.next[producer]}
	w.next[producer]++
	w.add(&Sent{id, p, true})
	at := wire.Offset(-1)
	if appended {
		at = wire.Offset(len(w.logs[p]))
		w.logs[p] = append(w.logs[p], Read{at, 0, id, true})
	}
	if outcome != OK {
		at = -1
	}
	w.add(&Decided{id, outcome, at, 0})
	return id
}

func (w *world) poll(consumer uint32, p wire.PartitionID, most int) *Polled {
	key := follower{consumer, p}
	from := w.at[key]
	reads := w.logs[p][from:min(int(from)+most, len(w.logs[p]))]
	e := &Polled{consumer, p, from, from + wire.Offset(len(reads)), slices.Clone(reads)}
	w.at[key] = e.Next
	w.add(e)
	return e
}

func (w *world) drain() {
	for _, p := range w.parts {
		w.add(&Drained{p, 0, slices.Clone(w.logs[p])})
	}
}

// live makes n random steps of a good log.
func (w *world) live(n int) {
	for range n {
		p := w.parts[w.r.IntN(len(w.parts))]
		switch w.r.IntN(8) {
		case 0, 1, 2, 3:
			w.send(w.r.Uint32N(3), p, OK, true)
		case 4:
			w.send(w.r.Uint32N(3), p, Info, w.r.IntN(2) == 0)
		case 5:
			w.send(w.r.Uint32N(3), p, Fail, false)
		default:
			w.poll(w.r.Uint32N(2), p, 1+w.r.IntN(5))
		}
	}
}

func (w *world) check() map[string]int {
	c := NewChecker(testRun)
	for _, e := range w.events {
		c.Apply(e)
	}
	_, counts := c.Finish()
	return counts
}

// TestCleanHistories expects silence about logs that do nothing wrong.
func TestCleanHistories(t *testing.T) {
	for seed := range uint64(300) {
		w := newWorld(seed)
		w.live(200)
		w.drain()
		if found := w.check(); len(found) != 0 {
			t.Fatalf("seed %d: a clean history gives %v", seed, found)
		}
	}
}

// TestPlanted plants one anomaly in a clean history and expects it, and
// nothing else, back.
func TestPlanted(t *testing.T) {
	f := func(want string, plant func(w *world)) {
		t.Helper()
		for seed := range uint64(20) {
			w := newWorld(seed)
			w.live(100)
			plant(w)
			if found := w.check(); len(found) != 1 || found[want] == 0 {
				t.Fatalf("seed %d: found %v, want %s alone", seed, found, want)
			}
		}
	}
	p := wire.PartitionID{Topic: 5000, Partition: 1}

	f("A1", func(w *world) { // another record takes an offset that somebody has read
		w.send(9, p, OK, true)
		w.poll(9, p, 1000)
		other := w.send(9, p, Info, false)
		w.logs[p][len(w.logs[p])-1].ID = other
		w.send(9, p, OK, true)
		w.drain()
		w.events = slices.DeleteFunc(w.events, func(e Event) bool { // the record it displaced was never acknowledged
			d, ok := e.(*Decided)
			return ok && d.ID.Producer == 9 && d.ID.Counter == 0
		})
	})
	f("A2", func(w *world) { // a retry is appended again
		id := w.send(9, p, OK, true)
		w.logs[p] = append(w.logs[p], Read{wire.Offset(len(w.logs[p])), 0, id, true})
		w.drain()
	})
	f("A3", func(w *world) { // of a record that nobody sent
		w.logs[p] = append(w.logs[p], Read{wire.Offset(len(w.logs[p])), 0, ID{testRun, 99, 0}, true})
		w.drain()
	})
	f("A3", func(w *world) { // of another run
		w.logs[p] = append(w.logs[p], Read{wire.Offset(len(w.logs[p])), 0, ID{testRun + 1, 0, 0}, true})
		w.drain()
	})
	f("A3", func(w *world) { // sent to another partition
		id := w.send(9, w.parts[0], Info, false)
		w.logs[p] = append(w.logs[p], Read{wire.Offset(len(w.logs[p])), 0, id, true})
		w.drain()
	})
	f("A3", func(w *world) { // damaged
		w.send(9, p, Info, true)
		w.logs[p][len(w.logs[p])-1].Sound = false
		w.drain()
	})
	f("A4", func(w *world) { // failed, and there
		id := w.send(9, p, Fail, false)
		w.logs[p] = append(w.logs[p], Read{wire.Offset(len(w.logs[p])), 0, id, true})
		w.drain()
	})
	f("A4", func(w *world) { // read first, failed later
		id := w.send(9, p, Fail, true)
		decided := w.events[len(w.events)-1]
		w.events = w.events[:len(w.events)-1]
		w.poll(9, p, 1000)
		w.add(decided)
		_ = id
		w.drain()
	})
	f("A5", func(w *world) { // gone from the middle
		w.send(9, p, OK, true)
		w.send(9, p, OK, true)
		n := len(w.logs[p])
		w.logs[p] = slices.Delete(w.logs[p], n-2, n-1)
		w.drain()
	})
	f("A6", func(w *world) { // gone from the end
		w.send(9, p, OK, true)
		w.logs[p] = w.logs[p][:len(w.logs[p])-1]
		w.drain()
	})
	f("A5", func(w *world) { // acknowledged without an offset, and nowhere
		w.send(9, p, OK, false)
		w.drain()
	})
	f("A7", func(w *world) { // a hole inside a poll
		w.send(9, p, OK, true)
		w.send(9, p, OK, true)
		w.send(9, p, OK, true)
		e := w.poll(9, p, 1000)
		e.Reads = slices.Delete(e.Reads, len(e.Reads)-2, len(e.Reads)-1)
		w.drain()
	})
	f("A7", func(w *world) { // a repeat inside a poll
		w.send(9, p, OK, true)
		e := w.poll(9, p, 1000)
		e.Reads = append(e.Reads, e.Reads[len(e.Reads)-1])
		w.drain()
	})
	f("A8", func(w *world) { // a poll begins elsewhere
		w.send(9, p, OK, true)
		w.poll(9, p, 1000)
		w.at[follower{9, p}] = 0
		w.poll(9, p, 1000)
		w.drain()
	})
	f("A8", func(w *world) { // records between two polls are missed
		w.poll(9, p, 1000)
		w.send(9, p, OK, true)
		w.send(9, p, OK, true)
		e := w.poll(9, p, 1000)
		e.Reads = e.Reads[1:]
		w.drain()
	})
	for epoch := range wire.Epoch(2) { // a kill that loses nothing is no excuse
		f("A9", func(w *world) { // the second record overtakes the first
			a := w.send(9, p, OK, true)
			b := w.send(9, p, OK, true)
			n := len(w.logs[p])
			w.logs[p][n-2].ID, w.logs[p][n-1].ID = b, a
			for _, e := range w.events {
				if d, ok := e.(*Decided); ok && d.ID == a {
					d.Offset++
				} else if ok && d.ID == b {
					d.Offset--
					d.Epoch = epoch
				}
			}
			w.drain()
		})
	}
}

// TestLossy checks what a crash may take: a suffix from Keep on, and nothing
// of what was acknowledged after it.
func TestLossy(t *testing.T) {
	p := wire.PartitionID{Topic: 5000, Partition: 1}
	f := func(want string, allowed int, run func(w *world)) {
		t.Helper()
		w := newWorld(1)
		for range 10 {
			w.send(9, p, OK, true)
		}
		w.poll(1, p, 1000)
		run(w)
		w.drain()
		c := NewChecker(testRun)
		for _, e := range w.events {
			c.Apply(e)
		}
		found, counts := c.Finish()
		if want == "" && len(counts) != 0 || want != "" && (len(counts) != 1 || counts[want] == 0) || c.Allowed() != allowed {
			t.Fatalf("found %v, %d allowed, want %q and %d", found, c.Allowed(), want, allowed)
		}
	}
	cut := func(w *world, keep wire.Offset, left int) {
		w.add(&Lossy{p, keep, 1})
		w.add(&Sought{1, p})
		w.logs[p] = w.logs[p][:left]
		w.at[follower{1, p}] = wire.Offset(left)
	}

	f("", 3, func(w *world) { cut(w, 6, 7) })
	f("A6", 0, func(w *world) { w.logs[p] = w.logs[p][:7] }) // no crash, no excuse
	f("A6", 3, func(w *world) { cut(w, 7, 6) })              // one more than allowed
	f("", 3, func(w *world) {                                // another record takes the place of a lost one
		cut(w, 6, 7)
		w.send(9, p, OK, true)
		last := w.events[len(w.events)-1].(*Decided)
		last.Epoch = 1
		w.logs[p][7].Epoch = 1
		w.poll(1, p, 10)
	})
	f("", 4, func(w *world) { // a record in flight is sent again, behind where one after it was
		first := w.send(9, p, Info, false)
		w.events = w.events[:len(w.events)-1]
		w.send(9, p, OK, true)
		cut(w, 6, 7)
		w.logs[p] = append(w.logs[p], Read{12, 1, first, true})
		w.add(&Decided{first, OK, 12, 1})
	})
	f("A1", 3, func(w *world) { // but not under the same epoch
		cut(w, 6, 7)
		w.send(8, p, OK, true)
	})
	f("A5", 1, func(w *world) { // a hole instead of a suffix
		w.add(&Lossy{p, 6, 1})
		w.add(&Sought{1, p})
		w.logs[p] = slices.Delete(w.logs[p], 7, 8)
	})
}

// TestForgottenPlace acknowledges a record of which the broker no longer knows
// where it lies, and which is not at the place where somebody has read it. A crash
// between may have taken that, and retention has since the one that was sent again.
func TestForgottenPlace(t *testing.T) {
	p := wire.PartitionID{Topic: 5000, Partition: 1}
	f := func(want string, start wire.Offset, crashes ...Event) {
		t.Helper()
		w := newWorld(1)
		for range 5 {
			w.send(8, p, Info, true)
		}
		id := ID{testRun, 9, 0}
		w.add(&Sent{id, p, true})
		w.logs[p] = append(w.logs[p], Read{5, 0, id, true})
		w.poll(1, p, 10)
		w.events = append(w.events, crashes...)
		w.add(&Decided{id, OK, -1, wire.NoEpoch})
		last := ID{testRun, 10, 0}
		w.add(&Sent{last, p, true})
		w.add(&Decided{last, OK, 6, 2})
		w.add(&Drained{p, start, []Read{{6, 2, last, true}}})
		if found := w.check(); want == "" && len(found) != 0 || want != "" && found[want] == 0 {
			t.Errorf("start %d, %d crashes: found %v, want %q", start, len(crashes), found, want)
		}
	}

	f("", 6, &Lossy{p, 2, 1})
	f("", 6)
	f("", 4, &Lossy{p, 2, 1})
	f("A5", 4)
	f("A5", 4, &Lossy{p, 6, 1}) // which took nothing of it
}

func TestHistoryFile(t *testing.T) {
	w := newWorld(3)
	w.live(500)
	w.add(&Lossy{w.parts[0], 3, 2})
	w.add(&Sought{1, w.parts[0]})
	w.drain()
	var file bytes.Buffer
	r := NewRecorder(&file)
	for _, e := range w.events {
		if err := r.Record(e); err != nil {
			t.Fatal(err)
		}
	}
	r.Flush()
	whole := bytes.Clone(file.Bytes())
	n := 0
	err := ReadHistory(&file, func(e Event) error {
		if p, ok := e.(*Polled); ok && len(p.Reads) == 0 {
			p.Reads = w.events[n].(*Polled).Reads // nil and empty are the same
		}
		if d, ok := e.(*Drained); ok && len(d.Reads) == 0 {
			d.Reads = w.events[n].(*Drained).Reads
		}
		if !reflect.DeepEqual(e, w.events[n]) {
			t.Fatalf("event %d is %+v, want %+v", n, e, w.events[n])
		}
		n++
		return nil
	})
	if err != nil || n != len(w.events) {
		t.Fatalf("read %d of %d events: %v", n, len(w.events), err)
	}
	for cut := range whole {
		ReadHistory(bytes.NewReader(whole[:cut]), func(Event) error { return nil }) // must not panic
	}
}

func TestValue(t *testing.T) {
	for size := valueSize; size < 100; size++ {
		id := ID{1, 2, uint64(size)}
		v := AppendValue([]byte("x"), id, size)[1:]
		got, err := ParseValue(v)
		if err != nil || got != id || len(v) != size {
			t.Fatalf("value of %d bytes, want %d, reads as %+v, %v", len(v), size, got, err)
		}
		for bit := range len(v) * 8 {
			v[bit/8] ^= 1 << (bit % 8)
			if _, err := ParseValue(v); err == nil {
				t.Fatalf("bit %d of a value of %d bytes may flip unseen", bit, size)
			}
			v[bit/8] ^= 1 << (bit % 8)
		}
		if _, err := ParseValue(v[:size-1]); err == nil {
			t.Fatalf("a value cut to %d bytes passes", size-1)
		}
	}
}

func FuzzReadHistory(f *testing.F) {
	f.Add([]byte{0, 14, 0, 0, 2, 2, 0})
	f.Fuzz(func(t *testing.T, b []byte) {
		ReadHistory(bytes.NewReader(b), func(Event) error { return nil })
	})
}

// BenchmarkCheck is the cost of one record, sent, acknowledged, polled and
// drained.
func BenchmarkCheck(b *testing.B) {
	p := wire.PartitionID{Topic: 5000}
	c := NewChecker(testRun)
	b.ReportAllocs()
	var reads []Read
	for n := range b.N {
		id := ID{testRun, 1, uint64(n)}
		c.Apply(&Sent{id, p, true})
		c.Apply(&Decided{id, OK, wire.Offset(n), 0})
		reads = append(reads[:0], Read{wire.Offset(n), 0, id, true})
		c.Apply(&Polled{1, p, wire.Offset(n), wire.Offset(n) + 1, reads})
	}
	c.Finish()
}

// TestPages grows across pages and checks that nothing moves.
func TestPages(t *testing.T) {
	var p pages[int]
	p.grow(1)
	first := p.at(0)
	*first = 7
	f := func(n, want int) {
		t.Helper()
		p.grow(n)
		if p.len() != want || p.at(0) != first || *p.at(0) != 7 || n > 1 && *p.at(n - 1) != 0 {
			t.Fatalf("length %d after grow(%d), want %d; first %d", p.len(), n, want, *p.at(0))
		}
	}
	f(pageLen, pageLen)
	f(pageLen+1, pageLen+1)
	f(5, pageLen+1)
	f(10*pageLen-1, 10*pageLen-1)
}
