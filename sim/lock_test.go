//go:build linux

package sim

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestTwoProcesses starts a second broker on the data directory of one that
// runs: it ends at once, says why, and harms nothing.
func TestTwoProcesses(t *testing.T) {
	if testing.Short() {
		t.Skip("starts real processes")
	}
	dir := t.TempDir()
	data, log := filepath.Join(dir, "data"), filepath.Join(dir, "log")
	start := func(path string) *process {
		t.Helper()
		p, err := launch(log, "serve", "--data-dir", path, "--listen", "127.0.0.1:0", "--reserve", "1MiB")
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	first := start(data)
	defer first.kill()
	if err := first.serving(t.Context()); err != nil {
		t.Fatal(err)
	}
	other := filepath.Join(dir, "other") // the same by another name
	if err := os.Symlink(data, other); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{data, other} {
		second := start(path)
		<-second.ended
		text, _ := os.ReadFile(log)
		if code := second.cmd.ProcessState.ExitCode(); code != 1 || !strings.Contains(string(text), "another process uses the data directory "+path) {
			t.Fatalf("the second process ended with %d:\n%s", code, text)
		}
	}
	if err := first.stop(); err != nil {
		t.Fatal(err)
	}
	again := start(data)
	defer again.kill()
	if err := again.serving(t.Context()); err != nil {
		t.Fatal(err)
	}
	if text, _ := os.ReadFile(log); strings.Contains(string(text), "unclean") {
		t.Fatalf("the second process spoilt the first one's stop:\n%s", text)
	}
}
