package mem

import (
	"runtime"
	"syscall"
	"unsafe"
)

// StepAside moves the calling thread to another processor of those it may use,
// if it runs on the given one, and reports whether it did. It stays free to run
// on any of them afterwards.
//
// Two threads that wake each other gather on one processor and stay there: a
// kernel that takes the machine for busy, which begins at three fifths of it, no
// longer looks for an idle processor but wakes a thread where it ran last. Each
// then waits until the other sleeps, for most of the time beside a processor that
// does nothing. Apart they stay apart, since where a thread ran last is idle then.
func StepAside(from int) bool {
	calls, ok := processorCalls[runtime.GOARCH]
	if !ok {
		return false
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var here uint32
	if _, _, e := syscall.RawSyscall(calls.getcpu, uintptr(unsafe.Pointer(&here)), 0, 0); e != 0 || int(here) != from {
		return false
	}
	var may processors
	if may.call(calls.getaffinity) != nil {
		return false
	}
	others, ok := may.without(from)
	if !ok || others.call(calls.setaffinity) != nil { // the kernel moves us within the call
		return false
	}
	may.call(calls.setaffinity) // which it was a moment ago: that cannot be refused
	return true
}

// processorCalls are the numbers of the system calls that StepAside needs.
var processorCalls = map[string]struct{ getcpu, setaffinity, getaffinity uintptr }{
	"amd64": {309, 203, 204},
	"arm64": {168, 122, 123},
}

// processors is a set of them, the kernel's cpu_set_t.
type processors [1024 / 64]uint64

// call gets or sets the processors that the calling thread may use.
func (p *processors) call(number uintptr) error {
	if _, _, e := syscall.Syscall(number, 0, unsafe.Sizeof(*p), uintptr(unsafe.Pointer(p))); e != 0 {
		return e
	}
	return nil
}

// without returns p without one of its processors; ok is false if it is not
// among them or none is left.
func (p processors) without(one int) (left processors, ok bool) {
	if one < 0 || one >= 64*len(p) {
		return p, false
	}
	word, bit := one/64, uint64(1)<<(one%64)
	if p[word]&bit == 0 {
		return p, false
	}
	p[word] &^= bit
	return p, p != processors{}
}
