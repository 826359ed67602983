package mem

import (
	"runtime"
	"syscall"
	"testing"
	"unsafe"
)

// TestStepAside: a thread leaves the processor it is on, if it may, and may run
// everywhere as before.
func TestStepAside(t *testing.T) {
	calls, ok := processorCalls[runtime.GOARCH]
	if !ok {
		t.Skip("the numbers of the system calls are not known here")
	}
	runtime.LockOSThread() // and never unlocked: the thread ends with the test
	here := func() int {
		var cpu uint32
		if _, _, e := syscall.RawSyscall(calls.getcpu, uintptr(unsafe.Pointer(&cpu)), 0, 0); e != 0 {
			t.Fatal(e)
		}
		return int(cpu)
	}
	may := func() (p processors) {
		if err := p.call(calls.getaffinity); err != nil {
			t.Fatal(err)
		}
		return p
	}
	was := may()
	if _, others := was.without(here()); !others {
		t.Skip("there is one processor")
	}
	left := 0
	for range 1000 { // the kernel may move the thread of itself at any moment
		from := here()
		if StepAside(from) && here() != from {
			left++
		}
		if now := may(); now != was {
			t.Fatalf("may run on %b, before on %b", now, was)
		}
	}
	if left < 500 {
		t.Errorf("left its processor %d times of 1000", left)
	}
	if StepAside(-1) || StepAside(1<<20) {
		t.Error("left a processor that there is not")
	}

	var bound processors
	at := here()
	bound[at/64] |= 1 << (at % 64)
	if err := bound.call(calls.setaffinity); err != nil {
		t.Fatal(err)
	}
	if StepAside(at) || may() != bound {
		t.Errorf("bound to processor %d, may run on %b", at, may())
	}
}

func TestWithout(t *testing.T) {
	f := func(p processors, one int, left processors, ok bool) {
		t.Helper()
		if got, yes := p.without(one); yes != ok || ok && got != left {
			t.Errorf("%b without %d: %b, %v", p, one, got, yes)
		}
	}
	f(processors{0b11}, 0, processors{0b10}, true)
	f(processors{0b11}, 1, processors{0b01}, true)
	f(processors{0b11}, 2, processors{}, false) // not among them
	f(processors{0b100}, 2, processors{}, false)
	f(processors{0, 1 << 63, 1}, 127, processors{0, 0, 1}, true)
	f(processors{}, 0, processors{}, false)
	f(processors{0b11}, 1024, processors{}, false)
	f(processors{0b11}, -1, processors{}, false)
}
