package storage

import (
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
)

// TestWriteBack follows what the disk is told to write, over two rolls.
func TestWriteBack(t *testing.T) {
	m := NewMemFS(1)
	if err := m.Mkdir("p"); err != nil {
		t.Fatal(err)
	}
	l, err := createLog(m, "p", "orders", orders3, Options{SegmentBytes: 10_000}, nil, at(1))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	var told []string
	m.BeforeOp(func(op Op) error {
		if op.Kind == OpWriteBack {
			told = append(told, fmt.Sprintf("%d+%d %v", op.Off, op.N, op.Wait))
		}
		return nil
	})
	f := func(appends int, want int64, ops ...string) {
		t.Helper()
		for i := range appends {
			mustAppend(t, l, int64(i), maker{}.sized(t, 3000))
		}
		told = nil
		if n, err := l.WriteBack(); n != want || err != nil || !slices.Equal(told, ops) {
			t.Fatalf("told the disk of %d bytes (%v): %q, want %d: %q", n, err, told, want, ops)
		}
	}

	f(0, 0)
	f(2, 6000, "0+6000 false")
	f(1, 3000, "6000+3000 false", "0+6000 true")
	f(4, 12000, "0+9000 false", "0+3000 false", "6000+3000 true")
	f(0, 0, "0+9000 true", "0+3000 true")
	f(0, 0)
	if _, err := l.Flush(); err != nil {
		t.Fatal(err)
	}
	f(1, 3000, "3000+3000 false")

	m.Fail(OpWriteBack, 1, syscall.EIO)
	mustAppend(t, l, 1, maker{}.sized(t, 3000))
	if _, err := l.WriteBack(); !errors.Is(err, ErrSync) {
		t.Fatalf("a disk that does not write: %v", err)
	}
}

// TestWriteBackGivesWay: before each piece is waited for other goroutines run, even if
// there is one processor for all.
func TestWriteBackGivesWay(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	m := NewMemFS(1)
	f := mustOpen(t, m, "f")
	defer f.Close()
	var turns atomic.Int64
	calls, alone := 0, 0
	last := int64(0)
	m.BeforeOp(func(op Op) error {
		if op.Kind == OpWriteBack {
			calls++
			if now := turns.Load(); now == last {
				alone++
			} else {
				last = now
			}
		}
		return nil
	})
	stop := make(chan struct{})
	var others sync.WaitGroup
	others.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				turns.Add(1)
				runtime.Gosched()
			}
		}
	})
	err := haveWritten(f, span{0, 10 * pieceBytes}, true)
	close(stop)
	others.Wait()
	if err != nil || calls != 10 || alone > calls/2 { // the scheduler is not always fair
		t.Errorf("%d calls, %d with nobody before them, %v", calls, alone, err)
	}
}
