package storage

import (
	"errors"
	"fmt"
	"slices"
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
