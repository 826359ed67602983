package bench

import (
	"context"
	"fmt"
	"hash/crc32"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/teralog/teralog/mem"
)

// What a disk and the page cache can do for a log.

// warmMemory writes bytes of a file and throws them away. A virtual machine may
// have given free memory back to its host and pays for it dearly when it is
// used again; what was free only just now is cheap. To be called before
// anything that writes a new file against the clock, probe or engine.
func warmMemory(ctx context.Context, dir string, bytes int64) error {
	_, err := alone(ctx, task{Side: "warm", Dir: dir, Bytes: bytes})
	return err
}

func warm(t task, _ func(string)) (measure, error) {
	f, err := tempFile(t.Dir)
	if err != nil {
		return measure{}, err
	}
	return fillFile(f, t.Bytes)
}

// writeChunk is how much the probes of plain files write or read at once.
const writeChunk = 1 << 20

// fillFile appends bytes to f.
func fillFile(f *os.File, bytes int64) (measure, error) {
	p := sampleValue(writeChunk)
	w := startWatch()
	for at := int64(0); at < bytes; at += int64(len(p)) {
		p = p[:min(int64(len(p)), bytes-at)]
		if _, err := f.WriteAt(p, at); err != nil {
			return measure{}, err
		}
	}
	return w.stop(bytes), nil
}

// probeSync appends n pieces of size bytes to a new file and syncs each. P50
// and P99 are of a write with its fdatasync.
func probeSync(ctx context.Context, dir string, size, n int) (Round, error) {
	m, err := alone(ctx, task{Side: "sync", Dir: dir, Batch: size, Count: n})
	r := roundOf(m, measure{})
	r.P50, r.P99 = m.P50, m.P99
	return r, err
}

func syncEach(t task, _ func(string)) (measure, error) {
	f, err := tempFile(t.Dir)
	if err != nil {
		return measure{}, err
	}
	p := sampleValue(t.Batch)
	var h mem.Hist
	w := startWatch()
	for i := range t.Count {
		from := time.Now()
		if _, err := f.WriteAt(p, int64(i)*int64(len(p))); err != nil {
			return measure{}, err
		}
		if err := fdatasync(f); err != nil {
			return measure{}, err
		}
		h.Record(time.Since(from).Nanoseconds())
	}
	m := w.stop(int64(t.Count) * int64(t.Batch))
	m.P50, m.P99 = quantiles(&h)
	return m, nil
}

// quantiles returns the median and the 99th percentile of nanoseconds, in µs.
func quantiles(h *mem.Hist) (p50, p99 float64) {
	return float64(h.Quantile(0.5)) / 1e3, float64(h.Quantile(0.99)) / 1e3
}

func fdatasync(f *os.File) error {
	return os.NewSyscallError("fdatasync", unix.Fdatasync(int(f.Fd())))
}

// probePaced writes a new file through the page cache, with write-back started
// for each piece of paceEvery bytes by a second thread, since that call may
// block. The time includes the fdatasync at the end.
func probePaced(ctx context.Context, dir string, bytes int64) (Round, error) {
	m, err := alone(ctx, task{Side: "paced", Dir: dir, Bytes: bytes})
	return roundOf(m, measure{}), err
}

const paceEvery = 16 << 20

func paced(t task, _ func(string)) (measure, error) {
	f, err := tempFile(t.Dir)
	if err != nil {
		return measure{}, err
	}
	pieces := make(chan int64, 1<<10)
	done := make(chan error, 1)
	go func() {
		var err error
		for at := range pieces {
			if err == nil {
				err = unix.SyncFileRange(int(f.Fd()), at, paceEvery, unix.SYNC_FILE_RANGE_WRITE)
			}
		}
		done <- os.NewSyscallError("sync_file_range", err)
	}()
	p := sampleValue(writeChunk)
	w := startWatch()
	for at := int64(0); at < t.Bytes; {
		n, err := f.WriteAt(p[:min(int64(len(p)), t.Bytes-at)], at)
		if err != nil {
			return measure{}, err
		}
		if at += int64(n); at%paceEvery == 0 {
			pieces <- at - paceEvery
		}
	}
	close(pieces)
	if err := <-done; err != nil {
		return measure{}, err
	}
	if err := fdatasync(f); err != nil {
		return measure{}, err
	}
	return w.stop(t.Bytes), nil
}

// probeReread is what a start after a crash cannot do without: bring a file to
// disk, drop it from the page cache, read it back and check it. Writing it is
// not timed.
func probeReread(ctx context.Context, dir string, bytes int64) (Round, error) {
	m, err := alone(ctx, task{Side: "reread", Dir: dir, Bytes: bytes})
	return roundOf(m, measure{}), err
}

func reread(t task, _ func(string)) (measure, error) {
	f, err := tempFile(t.Dir)
	if err != nil {
		return measure{}, err
	}
	if _, err := fillFile(f, t.Bytes); err != nil {
		return measure{}, err
	}
	want := crcOfPattern(t.Bytes)
	w := startWatch()
	if err := fdatasync(f); err != nil {
		return measure{}, err
	}
	if err := unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED); err != nil {
		return measure{}, os.NewSyscallError("fadvise", err)
	}
	crc, err := readBack(f, t.Bytes)
	if err != nil {
		return measure{}, err
	}
	if crc != want {
		return measure{}, fmt.Errorf("the file read back has CRC %08x, %08x was written", crc, want)
	}
	return w.stop(t.Bytes), nil
}

func crcOfPattern(bytes int64) (crc uint32) {
	p := sampleValue(writeChunk)
	for ; bytes > 0; bytes -= int64(len(p)) {
		p = p[:min(int64(len(p)), bytes)]
		crc = crc32.Update(crc, castagnoli, p)
	}
	return crc
}

// readAhead is how far the kernel is asked to read ahead, in bytes.
const readAhead = 8 << 20

// readBack reads bytes of f and returns their CRC-32C.
func readBack(f *os.File, bytes int64) (crc uint32, err error) {
	p := make([]byte, readChunk)
	for at := int64(0); at < bytes; {
		if at%readAhead == 0 {
			ahead := int64(readAhead)
			if at == 0 {
				ahead *= 2
			}
			unix.Fadvise(int(f.Fd()), at+2*readAhead-ahead, ahead, unix.FADV_WILLNEED)
		}
		n, err := f.ReadAt(p[:min(int64(len(p)), bytes-at)], at)
		if err != nil {
			return 0, err
		}
		crc = crc32.Update(crc, castagnoli, p[:n])
		at += int64(n)
	}
	return crc, nil
}
