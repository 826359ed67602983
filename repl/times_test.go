package repl

import (
	"testing"
	"time"

	"github.com/teralog/teralog/mem"
	"github.com/teralog/teralog/storage"
	"github.com/teralog/teralog/wire"
)

// wantTimes checks how many durations were recorded, and their sum.
func wantTimes(t *testing.T, name string, l *mem.Latency, count int64, sum time.Duration) {
	t.Helper()
	counts, got := l.Read()
	n := int64(0)
	for _, c := range counts {
		n += c
	}
	if n != count || got != sum {
		t.Fatalf("%s: %d times that make %v, want %d and %v", name, n, got, count, sum)
	}
}

// TestTimes has every write wait 5 ms for its turn and 20 ms for the disk, and
// expects that of one turn in timedEvery, once for all it took together.
func TestTimes(t *testing.T) {
	r := newRig(t, Settings{Flush: Sync}, SetConfig{})
	times := r.set.Times()
	const timed = 3
	for range timed * timedEvery {
		for range 2 {
			b := testBatch(t, 0, 0, 1, 0, "v")
			r.p.Produce([]Write{{Batch: b, Acks: wire.AcksAll, Since: r.now().Mono, Done: func(storage.Appended, error) {}}})
		}
		r.ms += 5
		r.p.Turn(r.now())
		r.set.Step(Step{Kind: StepFlushStart, ID: testID}, r.now())
		r.ms += 20
		if v := r.p.View(); r.now().Mono-v.Oldest != 20*time.Millisecond || v.Flushed == v.End {
			t.Fatalf("the oldest byte came at %v, it is %v", v.Oldest, r.now().Mono)
		}
		r.set.Step(Step{Kind: StepFlushDone, ID: testID}, r.now())
		r.p.Turn(r.now())
	}
	wantTimes(t, "queue", &times.Queue, 2*timed, 2*timed*5*time.Millisecond)
	wantTimes(t, "append", &times.Append, timed, 0) // time stands still in a turn
	wantTimes(t, "flush", &times.Flush, 2*timed, 2*timed*20*time.Millisecond)
}

// TestTimesAsync answers at once: nobody waits for the disk.
func TestTimesAsync(t *testing.T) {
	r := newRig(t, Settings{}, SetConfig{})
	for range timedEvery {
		r.do([]string{"produce", "a"})
		r.ms++
		r.p.Turn(r.now())
	}
	wantTimes(t, "append", &r.set.Times().Append, 1, 0)
	wantTimes(t, "flush", &r.set.Times().Flush, 0, 0)
	wantTimes(t, "queue", &r.set.Times().Queue, 0, 0) // it was not said when they came
}

// TestSegmentEvents rolls and trims.
func TestSegmentEvents(t *testing.T) {
	r := newRig(t, Settings{Log: storage.Options{SegmentBytes: 300}}, SetConfig{})
	r.segments = true
	r.play(`
		produce a; turn           | a=0 0≤1≤1,0
		produce b; turn           | b=1 0≤2≤2,0
		produce c; turn           | rolled:2,0 c=2 0≤3≤3,0
		clock 2000; turn; all     | 0≤3≤3,3
		trim 1; turn; all         | trimmed:0,1 1≤3≤3,3
		trim 3; turn; all         | trimmed:1,3 3≤3≤3,3
	`)
}
