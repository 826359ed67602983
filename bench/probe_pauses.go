package bench

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// probePauses keeps every processor busy for a time with a thread that does nothing
// but look at the clock. Max is the longest that one of them saw nothing: the
// machine had stopped, or another process, or the machine under a virtual one, had
// taken the processor. The longest latency of a long enough load is no less.
func probePauses(ctx context.Context, lasts time.Duration) (Round, error) {
	m, err := alone(ctx, task{Side: "pauses", Count: int(lasts.Microseconds())})
	return Round{Max: m.Max}, err
}

// pauses looks for Count microseconds.
func pauses(t task, _ func(string)) (measure, error) {
	var may unix.CPUSet
	if err := unix.SchedGetaffinity(0, &may); err != nil {
		return measure{}, fmt.Errorf("processors of this process: %w", err)
	}
	var processors []int
	for i := 0; len(processors) < may.Count(); i++ {
		if may.IsSet(i) {
			processors = append(processors, i)
		}
	}
	lasts := time.Duration(t.Count) * time.Microsecond
	longest := make([]time.Duration, len(processors))
	errs := make([]error, len(processors))
	w := startWatch()
	var watching sync.WaitGroup
	for i, cpu := range processors {
		watching.Go(func() {
			runtime.LockOSThread() // for good: the thread is bound to its processor
			var one unix.CPUSet
			one.Set(cpu)
			if errs[i] = unix.SchedSetaffinity(0, &one); errs[i] == nil {
				longest[i] = longestPause(time.Now, lasts)
			}
		})
	}
	watching.Wait()
	for i, err := range errs {
		if err != nil {
			return measure{}, fmt.Errorf("bind a thread to processor %d: %w", processors[i], err)
		}
	}
	m := w.stop(0)
	m.Max = micros(slices.Max(longest).Nanoseconds())
	return m, nil
}

// longestPause looks at the clock until it has moved on by lasts, and returns its
// greatest step.
func longestPause(clock func() time.Time, lasts time.Duration) (longest time.Duration) {
	last := clock()
	for end := last.Add(lasts); last.Before(end); {
		now := clock()
		longest = max(longest, now.Sub(last))
		last = now
	}
	return longest
}
