package mem

import (
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"unsafe"
)

// TestPrompt: threads that are there, and those that they start, have short
// slices and all else as before.
func TestPrompt(t *testing.T) {
	calls, ok := schedCalls[runtime.GOARCH]
	if !ok {
		t.Skip("the number of the system call is not known here")
	}
	attr := func() (a schedAttr) {
		if _, _, e := syscall.Syscall6(calls[1], 0, uintptr(unsafe.Pointer(&a)), unsafe.Sizeof(a), 0, 0, 0); e != 0 {
			t.Error(e)
		}
		return a
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	was := attr()
	if was.policy != 0 && was.policy != 3 {
		t.Skipf("scheduling policy %d has no slices", was.policy) // only SCHED_OTHER and SCHED_BATCH have
	}
	if err := Prompt(); err != nil {
		t.Fatal(err)
	}
	now := attr()
	if now.runtime == was.runtime && was.runtime == 0 {
		t.Skip("this kernel has no slices of a thread's own")
	}
	if now.runtime != uint64(promptSlice) || now.nice != was.nice || now.policy != was.policy {
		t.Errorf("%+v before, %+v after", was, now)
	}
	var threads sync.WaitGroup
	for range 20 { // each keeps its thread to itself, so there are new ones among them
		threads.Go(func() {
			runtime.LockOSThread()
			if a := attr(); a.runtime != uint64(promptSlice) {
				t.Errorf("a thread has slices of %d ns", a.runtime)
			}
		})
	}
	threads.Wait()
}

// TestYield: two threads on one processor take turns, each of them giving up the
// processor while it is the other's. Without Yield either would look for its turn
// until the kernel takes the processor away, some hundred thousand times.
func TestYield(t *testing.T) {
	const turns, most = 200, 1000
	var turn, looks atomic.Int64
	var threads sync.WaitGroup
	for i := range int64(2) {
		threads.Go(func() {
			runtime.LockOSThread() // for good: nobody else is to run on that processor only
			if err := onFirstProcessor(); err != nil {
				t.Errorf("set the affinity: %v", err)
				turn.Store(turns)
			}
			for turn.Load() < turns {
				if turn.Load()%2 == i {
					turn.Add(1)
					continue
				}
				looks.Add(1)
				Yield()
			}
		})
	}
	threads.Wait()
	if n := looks.Load(); n > turns*most {
		t.Errorf("looked %d times for %d turns", n, turns)
	}
}

// onFirstProcessor binds the thread to the first of the processors it may use.
func onFirstProcessor() error {
	var may, one [16]uint64 // a bit for each
	if _, _, e := syscall.Syscall(syscall.SYS_SCHED_GETAFFINITY, 0, unsafe.Sizeof(may), uintptr(unsafe.Pointer(&may))); e != 0 {
		return e
	}
	for i := range may {
		if may[i] != 0 {
			one[i] = may[i] & -may[i]
			break
		}
	}
	if _, _, e := syscall.Syscall(syscall.SYS_SCHED_SETAFFINITY, 0, unsafe.Sizeof(one), uintptr(unsafe.Pointer(&one))); e != 0 {
		return e
	}
	return nil
}
