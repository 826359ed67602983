package bench

import (
	"context"
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// A virtual machine gives memory that is free back to its host, and pays for it when
// it is used again: a new page of a file costs several times as much then. Linux does
// so 2 s after something large was freed, with all that is free, so what a run finds
// would depend on what ran before it, and a broker, which takes a moment to start,
// would find less than a probe. So memory for a run is held until nothing is about to
// be given back, and let go right before it.

// reportAfter is how long it takes until free memory has been given back, and longer
// than a run should take.
const reportAfter = 2200 * time.Millisecond

// freshMemory sees to it that the next new pages, so many bytes of them, are of memory
// that is the machine's own; it takes half of what is free at most.
func freshMemory(ctx context.Context, bytes int64) error {
	var info unix.Sysinfo_t
	if err := unix.Sysinfo(&info); err != nil {
		return fmt.Errorf("how much memory is free: %w", err)
	}
	bytes = min(bytes, int64(info.Freeram)*int64(info.Unit)/2)
	held, err := unix.Mmap(-1, 0, int(bytes), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return fmt.Errorf("%d bytes of memory: %w", bytes, err)
	}
	defer unix.Munmap(held)
	unix.Madvise(held, unix.MADV_HUGEPAGE) // half the price, if there are any
	for at := 0; at < len(held); at += 4 << 10 {
		held[at] = 1
	}
	select {
	case <-time.After(reportAfter):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
