package measure

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// Drive runs a command to its end and returns what it wrote to its standard
// output and the CPU time it took, its own children included. The command ends
// with ctx, and with this process. The error of one that fails holds the end of
// what it said.
func Drive(ctx context.Context, name string, args ...string) (out []byte, cpu time.Duration, err error) {
	cmd := exec.CommandContext(ctx, name, args...)
	Child(cmd)
	var complaint strings.Builder
	cmd.Stderr = &complaint
	if out, err = cmd.Output(); err != nil {
		return nil, 0, fmt.Errorf("%s: %w: %s", filepath.Base(name), err, oneLine(complaint.String()+string(out)))
	}
	return out, cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime(), nil
}

// Child keeps Ctrl-C in a terminal from a command, so that it is ended in
// order, and makes it end with this process if that is killed.
func Child(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}

// oneLine returns the end of text as one line.
func oneLine(text string) string {
	const most = 300
	text = strings.ReplaceAll(strings.TrimSpace(text), "\n", "; ")
	return text[max(0, len(text)-most):]
}
