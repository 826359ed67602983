package bench

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strings"

	"golang.org/x/sys/unix"
)

// A Machine is what a figure belongs to. What cannot be found out is "unknown"
// or 0.
type Machine struct {
	CPU         string `json:"cpu"`
	Cores       int    `json:"cores"` // that this process may use
	MemoryBytes int64  `json:"memory_bytes"`
	Kernel      string `json:"kernel"`
	FileSystem  string `json:"file_system"` // of the files measured
	Go          string `json:"go"`
	Commit      string `json:"commit"` // of this binary; + says that files had been changed
}

// machineOf describes this machine and the file system of dir.
func machineOf(dir string) Machine {
	m := Machine{Cores: runtime.NumCPU(), Go: runtime.Version() + " " + runtime.GOARCH, FileSystem: fileSystem(dir)}
	m.CPU = procField("/proc/cpuinfo", "model name")
	var kB int64
	if _, err := fmt.Sscan(procField("/proc/meminfo", "MemTotal"), &kB); err == nil {
		m.MemoryBytes = kB << 10
	}
	var u unix.Utsname
	if unix.Uname(&u) == nil {
		m.Kernel = unix.ByteSliceToString(u.Sysname[:]) + " " + unix.ByteSliceToString(u.Release[:])
	}
	m.Commit = commit()
	return m
}

func (m Machine) String() string {
	return fmt.Sprintf("%s, %d cores, %.1f GiB, %s, %s, %s", m.CPU, m.Cores, float64(m.MemoryBytes)/(1<<30), m.Kernel, m.FileSystem, m.Go)
}

// procField returns the first value of a "name: value" line of a file.
func procField(file, name string) string {
	b, err := os.ReadFile(file)
	if err != nil {
		return "unknown"
	}
	for line := range bytes.Lines(b) {
		if k, v, ok := strings.Cut(string(line), ":"); ok && strings.TrimSpace(k) == name {
			return strings.TrimSpace(v)
		}
	}
	return "unknown"
}

// fileSystem returns the type and the device of the mount that dir lies on: the
// last of those with the longest path above it.
func fileSystem(dir string) string {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return "unknown"
	}
	if real, err := filepath.EvalSymlinks(dir); err == nil {
		dir = real
	}
	f, err := os.Open("/proc/self/mounts")
	if err != nil {
		return "unknown"
	}
	defer f.Close()
	found, longest := "unknown", 0
	for s := bufio.NewScanner(f); s.Scan(); {
		// device mount type options 0 0
		parts := strings.Fields(s.Text())
		if len(parts) < 3 {
			continue
		}
		at := strings.ReplaceAll(parts[1], `\040`, " ")
		if (dir == at || strings.HasPrefix(dir, strings.TrimSuffix(at, "/")+"/")) && len(at) >= longest {
			found, longest = parts[2]+" on "+parts[0], len(at)
		}
	}
	return found
}

func commit() string {
	b, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	revision, changed := "unknown", ""
	for _, s := range b.Settings {
		switch {
		case s.Key == "vcs.revision" && len(s.Value) >= 12:
			revision = s.Value[:12]
		case s.Key == "vcs.modified" && s.Value == "true":
			changed = "+"
		}
	}
	if revision == "unknown" {
		return checkedOut()
	}
	return revision + changed
}

// checkedOut asks git what lies in the working directory if this is a program
// of `go run`, which builds from there and notes no commit.
func checkedOut() string {
	if self, err := os.Executable(); err != nil || !strings.Contains(self, "go-build") {
		return "unknown"
	}
	out, err := exec.Command("git", "describe", "--always", "--exclude=*", "--abbrev=12", "--dirty=+").Output()
	if err != nil {
		return "unknown"
	}
	return strings.TrimSpace(string(out))
}
