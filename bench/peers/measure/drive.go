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

// CommandLine writes a command so that a shell reads it back.
func CommandLine(name string, args []string) string {
	for _, a := range args {
		if a == "" || strings.Trim(a, plain) != "" {
			a = "'" + strings.ReplaceAll(a, "'", `'\''`) + "'"
		}
		name += " " + a
	}
	return name
}

// plain are the characters that mean nothing to a shell.
const plain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_=+./:,@%"

// oneLine returns the last lines of text as one: as many as are short together,
// and the end of the last one at least.
func oneLine(text string) string {
	const most = 200
	lines := strings.Split(strings.TrimSpace(text), "\n")
	line := lines[len(lines)-1]
	for i := len(lines) - 2; i >= 0 && len(lines[i])+len("; ")+len(line) <= most; i-- {
		line = lines[i] + "; " + line
	}
	return line[max(0, len(line)-most):]
}
