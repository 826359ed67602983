package mem

import (
	"syscall"
	"time"
)

// nap sleeps in a system call, which keeps a processor of the runtime.
func nap(d time.Duration) {
	ts := syscall.NsecToTimespec(int64(d))
	syscall.Nanosleep(&ts, nil) // one that a signal cuts short is followed by another
}

const canNap = true
