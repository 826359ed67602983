package sim

import (
	"encoding/json"
	"math/rand/v2"
	"os"
	"strings"
	"testing"
	"testing/synctest"
)

// TestTorture is the shortest run of `teralog sim torture`; a long one is for
// the command.
func TestTorture(t *testing.T) {
	if testing.Short() {
		t.Skip("torments a real process for some seconds")
	}
	var out strings.Builder
	err := Torture(t.Context(), []string{"--minutes", "0.02", "--dir", t.TempDir(), "-o", "json"}, nil, &out, os.Stderr)
	if err != nil {
		t.Fatalf("%v\n%s", err, &out)
	}
	var r TortureReport
	if err := json.Unmarshal([]byte(out.String()), &r); err != nil {
		t.Fatal(err)
	}
	for _, k := range nemeses {
		if r.Faults[k.kind] == 0 {
			t.Errorf("no %s", k.kind)
		}
	}
	for _, k := range hostileKinds {
		if r.Hostile[k.name] == 0 {
			t.Errorf("nobody who does this: %s", k.name)
		}
	}
	if r.Acked < 20_000 || r.ReadBack == 0 || r.Behind == 0 || r.Deleted == 0 || r.Lost["sync"] != 0 || len(r.Anomalies) != 0 {
		t.Errorf("%+v", r)
	}
	if r.Lost["async"] == 0 {
		t.Error("a power cut took nothing: it was none")
	}
}

// TestTortureFlags refuses what makes no sense, with the exit code of a bad
// command line.
func TestTortureFlags(t *testing.T) {
	f := func(want string, args ...string) {
		t.Helper()
		err := Torture(t.Context(), args, nil, os.Stderr, os.Stderr)
		coded, ok := err.(interface{ ExitCode() int })
		if !ok || coded.ExitCode() != 2 || !strings.Contains(err.Error(), want) {
			t.Fatalf("%v: %v", args, err)
		}
	}
	f("minutes", "--minutes", "0")
	f("minutes", "--minutes", "NaN")
	f("minutes", "--minutes", "1441")
	f("records", "--records", "999")
	f("-o", "-o", "xml")
	f("help", "--minuets", "1")
	f("unexpected", "now")

	var help strings.Builder
	if err := Torture(t.Context(), []string{"--help"}, nil, &help, os.Stderr); err != nil || !strings.Contains(help.String(), "teralog sim torture --minutes") {
		t.Fatalf("%v\n%s", err, &help)
	}
}

// TestTortureSchedule draws the faults of a run.
func TestTortureSchedule(t *testing.T) {
	f := func(minutes float64, want map[string]int) {
		t.Helper()
		m := &torture{minutes: minutes, rnd: rand.New(rand.NewPCG(1, 1))}
		got := map[string]int{}
		last := strike{}
		for _, s := range m.schedule() {
			if s.at < last.at || s.at.Minutes() > minutes {
				t.Fatalf("%+v after %+v", s, last)
			}
			got[s.by.kind]++
			last = s
		}
		for kind, n := range want {
			if got[kind] != n {
				t.Fatalf("%v minutes: %v, want %v", minutes, got, want)
			}
		}
	}
	f(10, map[string]int{"kill": 60, "pause": 20, "full disk": 5, "failed fsync": 3, "power cut": 5})
	f(0.02, map[string]int{"kill": 1, "pause": 1, "full disk": 1, "failed fsync": 1, "power cut": 1})
}

// TestTortureRest says when a broker has not come to rest.
func TestTortureRest(t *testing.T) {
	before := Footprint{Descriptors: 45, Logs: 10, Sockets: 2, Goroutines: 29, Partitions: 10, Resident: 20 << 20}
	f := func(change func(*Footprint), want string) {
		t.Helper()
		now := before
		change(&now)
		if got := now.exceeds(before); (got == "") != (want == "") || !strings.Contains(got, want) {
			t.Fatalf("%+v: %q, want %q", now, got, want)
		}
	}
	f(func(f *Footprint) {}, "")
	f(func(f *Footprint) { f.Logs += 200; f.Descriptors += 200 }, "") // sealed segments stay open
	f(func(f *Footprint) { f.Sockets += 2; f.Descriptors += 2 + 8 }, "")
	f(func(f *Footprint) { f.Sockets += 3; f.Descriptors += 3 }, "sockets")
	f(func(f *Footprint) { f.Descriptors += 9 }, "descriptors")
	f(func(f *Footprint) { f.Goroutines += 26 }, "")
	f(func(f *Footprint) { f.Goroutines += 27 }, "goroutines")
	f(func(f *Footprint) { f.Resident += 257 << 20 }, "resident")
	f(func(f *Footprint) { f.Deleted++ }, "deleted")
}

// TestTortureFills: the disk is full once a write met that, or once the broker has
// said for a while that it lets none come so far; what it said before is nothing.
func TestTortureFills(t *testing.T) {
	f := func(met bool, before, after string, want bool) {
		t.Helper()
		x := &torture{dir: t.TempDir()}
		if err := os.WriteFile(x.log(), []byte(before+after), 0o600); err != nil {
			t.Fatal(err)
		}
		if met {
			if err := os.WriteFile(x.disk()+metSuffix, nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		synctest.Test(t, func(t *testing.T) {
			x.p = &process{ended: make(chan struct{})}
			if err := x.fills(t.Context(), int64(len(before))); (err == nil) != want {
				t.Errorf("met %v, %q, then %q: %v", met, before, after, err)
			}
		})
	}
	const refused = "level=WARN msg=\"limit reached\" limit=disk-protect\n"
	f(true, "", "", true)
	f(false, "", refused, true)
	f(false, refused, "", false)
	f(false, "", "limit=disk-warn\n", false)
}
