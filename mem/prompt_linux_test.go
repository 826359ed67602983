package mem

import (
	"runtime"
	"sync"
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
