package broker

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"
)

const unitFile = "../deploy/systemd/teralog.service"

// directives reads a unit; one that is given more than once has all its values.
func directives(t *testing.T) map[string][]string {
	t.Helper()
	text, err := os.ReadFile(unitFile)
	if err != nil {
		t.Fatal(err)
	}
	got := map[string][]string{}
	for line := range strings.Lines(string(text)) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), "="); ok && name[0] != '#' {
			got[name] = append(got[name], value)
		}
	}
	return got
}

// TestUnit holds the unit to what the code does: its exit codes, and times that
// leave room for those a broker takes.
func TestUnit(t *testing.T) {
	unit, c := directives(t), DefaultConfig()
	seconds := func(name string) time.Duration {
		t.Helper()
		n, err := strconv.Atoi(strings.Join(unit[name], " "))
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		return time.Duration(n) * time.Second
	}
	f := func(name, want string) {
		t.Helper()
		if got := strings.Join(unit[name], " "); got != want {
			t.Errorf("%s=%s, want %s", name, got, want)
		}
	}

	f("Type", "notify")
	f("RestartPreventExitStatus", strconv.Itoa(exitIO)+" "+strconv.Itoa(exitConfig))
	f("UMask", "0077")
	f("LimitCORE", "0")
	f("CapabilityBoundingSet", "")
	if got := seconds("TimeoutStopSec"); got < 2*c.DrainTimeout {
		t.Errorf("a stop may take %v, of which requests may take %v", got, c.DrainTimeout)
	}
	if got := seconds("WatchdogSec"); got < 2*c.FlushLost {
		t.Errorf("the watchdog waits %v, a flush %v", got, c.FlushLost)
	}
}

// TestUnitVerified asks systemd, where there is one, what it thinks of the unit.
func TestUnitVerified(t *testing.T) {
	analyze, err := exec.LookPath("systemd-analyze")
	if err != nil {
		t.Skip("there is no systemd-analyze here")
	}
	text, err := os.ReadFile(unitFile)
	if err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable() // the unit's own is not installed here
	if err != nil {
		t.Fatal(err)
	}
	unit := filepath.Join(t.TempDir(), "teralog.service")
	if err := os.WriteFile(unit, []byte(strings.Replace(string(text), "/usr/local/bin/teralog", self, 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command(analyze, "verify", "--man=no", unit).CombinedOutput(); err != nil || len(out) > 0 {
		t.Errorf("verify: %v\n%s", err, out)
	}
	out, err := exec.Command(analyze, "security", "--offline=true", unit).CombinedOutput()
	score := regexp.MustCompile(`exposure level for teralog\.service: ([0-9.]+)`).FindSubmatch(out)
	if err != nil || score == nil {
		t.Fatalf("security: %v\n%s", err, out)
	}
	if n, err := strconv.ParseFloat(string(score[1]), 64); err != nil || n > 1.5 {
		t.Errorf("the exposure is %s of 10; docs/OPERATIONS.md says 1.4", score[1])
	}
}

// TestInstall lays everything out below a folder, twice, and keeps what an
// operator has changed.
func TestInstall(t *testing.T) {
	root := t.TempDir()
	binary := filepath.Join(root, "binary") // stands for ours, which takes long to build
	if err := os.WriteFile(binary, []byte("#!/bin/sh\n[ \"$1\" = version ] || grep -q '^data-dir' \"$3\"\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	install := func() (string, error) {
		cmd := exec.Command("../deploy/install.sh", binary)
		cmd.Env = append(os.Environ(), "DESTDIR="+root)
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	if out, err := install(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, name := range []string{"usr/local/bin/teralog", "etc/systemd/system/teralog.service", "etc/sysctl.d/90-teralog.conf"} {
		if _, err := os.Stat(filepath.Join(root, name)); err != nil {
			t.Error(err)
		}
	}
	config := filepath.Join(root, "etc/teralog/teralog.conf")
	c := DefaultConfig()
	if err := c.ReadFile(config); err != nil || c.DataDirs[0] != "/var/lib/teralog" || c.HTTP == "" {
		t.Fatalf("%+v, %v", c, err)
	}

	if err := os.WriteFile(config, []byte("data-dir = /mine\n"), 0o640); err != nil {
		t.Fatal(err)
	}
	if out, err := install(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if text, err := os.ReadFile(config); err != nil || string(text) != "data-dir = /mine\n" {
		t.Fatalf("%q, %v", text, err)
	}
	// A configuration that the new binary refuses ends it before the old one is gone.
	if err := os.WriteFile(config, []byte("nothing\n"), 0o640); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(root, "usr/local/bin/teralog"), []byte("old"), 0o700); err != nil {
		t.Fatal(err)
	}
	if out, err := install(); err == nil {
		t.Fatalf("installed beside a bad configuration:\n%s", out)
	}
	if text, err := os.ReadFile(filepath.Join(root, "usr/local/bin/teralog")); err != nil || string(text) != "old" {
		t.Fatalf("%q, %v", text, err)
	}
}

// TestOperationsNames holds the handbook to the metrics there are.
func TestOperationsNames(t *testing.T) {
	text, err := os.ReadFile("../docs/OPERATIONS.md")
	if err != nil {
		t.Fatal(err)
	}
	served := map[string]bool{}
	for _, m := range metricRows {
		served[m.name] = true
	}
	names := regexp.MustCompile("`((?:process|go|teralog)_[a-z_]+)`").FindAllStringSubmatch(string(text), -1)
	for _, m := range names {
		if !served[m[1]] {
			t.Errorf("docs/OPERATIONS.md names %s, which /metrics does not serve", m[1])
		}
	}
	if len(names) < 10 {
		t.Errorf("docs/OPERATIONS.md names %d metrics", len(names))
	}
}
