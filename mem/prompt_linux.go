package mem

import (
	"os"
	"runtime"
	"strconv"
	"syscall"
	"time"
	"unsafe"
)

// promptSlice is the slice that Prompt asks for: the least there is.
const promptSlice = 100 * time.Microsecond

// Prompt asks the kernel for short slices of processor time, for all threads of
// the process and those they start. Who takes less at once is given it sooner,
// and no less in all. Where many readers or other processes keep every
// processor busy, a request would wait for one behind all their threads, 3 ms
// each. Kernels before 6.12 know no slice of a thread's own: nothing changes.
func Prompt() error {
	tasks, err := os.ReadDir("/proc/self/task")
	if err != nil {
		return err
	}
	for _, t := range tasks {
		tid, err := strconv.Atoi(t.Name())
		if err != nil {
			continue
		}
		if err := promptThread(tid); err != nil && err != syscall.ESRCH { // it has ended
			return os.NewSyscallError("sched_setattr", err)
		}
	}
	return nil
}

// Yield lets threads that wait for this one's processor go first. A thread that
// has just copied much in a system call owes them that: kernels that let nobody
// interrupt such a call make up for it only with the next tick of the clock,
// which at 250 a second is up to 4 ms later.
func Yield() { syscall.Syscall(syscall.SYS_SCHED_YIELD, 0, 0, 0) }

// A schedAttr is the kernel's struct sched_attr, in its first version.
type schedAttr struct {
	size, policy              uint32
	flags                     uint64
	nice                      int32
	priority                  uint32
	runtime, deadline, period uint64
}

// schedCalls are the numbers of sched_setattr and sched_getattr.
var schedCalls = map[string][2]uintptr{"amd64": {314, 315}, "arm64": {274, 275}}

func promptThread(tid int) error {
	calls, ok := schedCalls[runtime.GOARCH]
	if !ok {
		return nil
	}
	var a schedAttr
	if _, _, e := syscall.Syscall6(calls[1], uintptr(tid), uintptr(unsafe.Pointer(&a)), unsafe.Sizeof(a), 0, 0, 0); e != 0 {
		return e
	}
	const other, batch = 0, 3
	if a.policy != other && a.policy != batch {
		return nil // who chose another policy knows better
	}
	a.size, a.runtime = uint32(unsafe.Sizeof(a)), uint64(promptSlice)
	if _, _, e := syscall.Syscall(calls[0], uintptr(tid), uintptr(unsafe.Pointer(&a)), 0); e != 0 {
		return e
	}
	return nil
}
