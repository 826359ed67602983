// Package measure is what the comparisons share: what a process and a machine
// have used, what a sync costs, and how figures are summed up and written.
package measure

import (
	"fmt"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// CPUTime returns the CPU time that a process has used, all its threads
// together. /proc/PID/stat says the same in ticks of 10 ms; the clock of the
// process counts nanoseconds.
func CPUTime(pid int) (time.Duration, error) {
	const scheduler = 2
	var ts unix.Timespec
	if err := unix.ClockGettime(int32(^pid)<<3|scheduler, &ts); err != nil {
		return 0, fmt.Errorf("CPU time of process %d: %w", pid, err)
	}
	return time.Duration(ts.Nano()), nil
}

// PeakBytes returns the most memory that a process has had resident since it
// started.
func PeakBytes(pid int) (int64, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, err
	}
	return field(string(b), "VmHWM:")
}

// field returns the kB that follow name in a file of /proc, in bytes.
func field(text, name string) (int64, error) {
	_, rest, ok := strings.Cut(text, name)
	value, _, _ := strings.Cut(strings.TrimSpace(rest), " kB")
	n, err := strconv.ParseInt(value, 10, 64)
	if !ok || err != nil {
		return 0, fmt.Errorf("no %s in /proc: %w", strings.TrimSuffix(name, ":"), err)
	}
	return n << 10, nil
}

// BusyTime returns the CPU time that the whole machine has used since it
// started, that of the kernel and of interrupts included.
func BusyTime() (time.Duration, error) {
	b, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0, err
	}
	return parseBusy(string(b))
}

// parseBusy adds up the first line of /proc/stat,
//
//	cpu user nice system idle iowait irq softirq steal …
//
// without idle and iowait. It counts in hundredths of a second.
func parseBusy(stat string) (time.Duration, error) {
	line, _, _ := strings.Cut(stat, "\n")
	words := strings.Fields(line)
	if len(words) < 9 || words[0] != "cpu" {
		return 0, fmt.Errorf("/proc/stat begins with %q", line)
	}
	var ticks int64
	for i, w := range words[1:9] {
		n, err := strconv.ParseInt(w, 10, 64)
		if err != nil {
			return 0, fmt.Errorf("/proc/stat: %w", err)
		}
		if i != 3 && i != 4 {
			ticks += n
		}
	}
	return time.Duration(ticks) * 10 * time.Millisecond, nil
}

// A Machine is where figures were taken.
type Machine struct {
	CPU         string  `json:"cpu"`
	Cores       int     `json:"cores"`
	MemoryBytes int64   `json:"memory_bytes"`
	Kernel      string  `json:"kernel"`
	FileSystem  string  `json:"file_system"`
	SyncP50     float64 `json:"fdatasync_4KiB_p50_us"`
	SyncP99     float64 `json:"fdatasync_4KiB_p99_us"`
}

// Describe tells of this machine, and of the file system in which dir lies.
func Describe(dir string) (Machine, error) {
	m := Machine{Cores: runtime.NumCPU(), CPU: "unknown"}
	if b, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		if _, rest, ok := strings.Cut(string(b), "model name"); ok {
			rest, _, _ = strings.Cut(rest, "\n")
			m.CPU = strings.TrimLeft(rest, "\t :")
		}
	}
	if b, err := os.ReadFile("/proc/meminfo"); err == nil {
		m.MemoryBytes, _ = field(string(b), "MemTotal:")
	}
	var uts syscall.Utsname
	if err := syscall.Uname(&uts); err != nil {
		return m, fmt.Errorf("uname: %w", err)
	}
	for _, c := range uts.Release {
		if c == 0 {
			break
		}
		m.Kernel += string(rune(c))
	}
	var fs syscall.Statfs_t
	if err := syscall.Statfs(dir, &fs); err != nil {
		return m, fmt.Errorf("statfs %s: %w", dir, err)
	}
	m.FileSystem = fileSystem(int64(fs.Type))
	var err error
	m.SyncP50, m.SyncP99, err = SyncCost(dir)
	return m, err
}

func fileSystem(magic int64) string {
	switch magic {
	case unix.EXT4_SUPER_MAGIC:
		return "ext4"
	case unix.XFS_SUPER_MAGIC:
		return "xfs"
	case unix.BTRFS_SUPER_MAGIC:
		return "btrfs"
	case unix.TMPFS_MAGIC:
		return "tmpfs (fsync does nothing here)"
	}
	return fmt.Sprintf("type %#x", magic)
}

// SyncCost returns what one fdatasync after an append of 4 KiB takes in dir,
// in microseconds.
func SyncCost(dir string) (p50, p99 float64, err error) {
	f, err := os.CreateTemp(dir, "sync-")
	if err != nil {
		return 0, 0, err
	}
	defer os.Remove(f.Name())
	defer f.Close()
	took := make([]float64, 200)
	for i := range took {
		start := time.Now()
		if _, err := f.Write(make([]byte, 4096)); err != nil {
			return 0, 0, err
		}
		if err := unix.Fdatasync(int(f.Fd())); err != nil {
			return 0, 0, fmt.Errorf("fdatasync %s: %w", f.Name(), err)
		}
		took[i] = float64(time.Since(start).Nanoseconds()) / 1e3
	}
	slices.Sort(took)
	return took[len(took)/2], took[len(took)*99/100], nil
}

func (m Machine) String() string {
	return fmt.Sprintf("%s, %d cores, %s GiB, Linux %s, %s; fdatasync after 4 KiB: P50 %s, P99 %s",
		m.CPU, m.Cores, Short(float64(m.MemoryBytes)/(1<<30)), m.Kernel, m.FileSystem, Micros(m.SyncP50), Micros(m.SyncP99))
}
