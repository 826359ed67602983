package measure

import (
	"strings"
	"testing"
	"time"
)

func TestProc(t *testing.T) {
	busy := func(text string, want time.Duration, ok bool) {
		t.Helper()
		if got, err := parseBusy(text); got != want || (err == nil) != ok {
			t.Fatalf("%q: %s, %v", text, got, err)
		}
	}
	busy("cpu  100 20 3 9999 888 4 5 6 0 0\ncpu0 …", 1380*time.Millisecond, true) // neither idle nor waiting for disks
	busy("cpu 1 2 3", 0, false)
	busy("intr 1 2 3 4 5 6 7 8 9", 0, false)
	busy("cpu 1 2 x 4 5 6 7 8", 0, false)

	kB := func(text string, want int64, ok bool) {
		t.Helper()
		if got, err := field(text, "VmHWM:"); got != want || (err == nil) != ok {
			t.Fatalf("%q: %d, %v", text, got, err)
		}
	}
	kB("Name:\tx\nVmHWM:\t    2 kB\nVmRSS:\t 1 kB\n", 2048, true)
	kB("VmRSS:\t 1 kB\n", 0, false)
	kB("VmHWM:\t many kB\n", 0, false)
}

func TestShort(t *testing.T) {
	f := func(v float64, want string) {
		t.Helper()
		if got := Short(v); got != want {
			t.Fatalf("Short(%v) = %q, want %q", v, got, want)
		}
	}

	f(0, "0")
	f(0.1234, "0.123")
	f(1.234, "1.23")
	f(12.34, "12.3")
	f(99.96, "100")
	f(1234, "1234")
	f(12345, "12.3 k")
	f(999_499, "999 k")
	f(999_500, "1.00 M")
	f(32_900_000, "32.9 M")
}

func TestMedian(t *testing.T) {
	f := func(want float64, values ...float64) {
		t.Helper()
		if got := Median(values); got != want {
			t.Fatalf("Median(%v) = %v, want %v", values, got, want)
		}
	}

	f(0)
	f(3, 3)
	f(2, 3, 1, 2)
	f(2.5, 4, 1, 3, 2)
}

// TestRatio leaves out rounds that one side did not finish.
func TestRatio(t *testing.T) {
	zero := 0.
	if got, want := RatioOf([]float64{2, 4, 1 / zero, 0, zero / zero}), (Ratio{3, 2, 4}); got != want {
		t.Fatalf("%+v, want %+v", got, want)
	}
	if got := RatioOf(nil); got != (Ratio{}) {
		t.Fatalf("%+v", got)
	}
}

func TestDrive(t *testing.T) {
	if out, _, err := Drive(t.Context(), "echo", "ok"); err != nil || string(out) != "ok\n" {
		t.Fatalf("%q, %v", out, err)
	}
	_, _, err := Drive(t.Context(), "sh", "-c", "echo so; echo why >&2; exit 3")
	if err == nil || !strings.Contains(err.Error(), "sh: exit status 3: why; so") {
		t.Fatal(err)
	}
}

func TestOneLine(t *testing.T) {
	f := func(text, want string) {
		t.Helper()
		if got := oneLine(text); got != want {
			t.Fatalf("oneLine(%q) = %q, want %q", text, got, want)
		}
	}

	long := strings.Repeat("x", 199)
	f("", "")
	f("why\n", "why")
	f("so\nwhy", "so; why")
	f("first\n"+long+"\nwhy", "why")
	f("why\n"+long, long)
	f("why\n"+long+long, (long + long)[198:])
}

func TestCommandLine(t *testing.T) {
	f := func(want string, args ...string) {
		t.Helper()
		if got := CommandLine("go run .", args); got != want {
			t.Fatalf("%q: %s, want %s", args, got, want)
		}
	}

	f("go run .")
	f("go run . -rounds 3 -o=json", "-rounds", "3", "-o=json")
	f("go run . -only 'produce 100 B/redis'", "-only", "produce 100 B/redis")
	f("go run . 'a$b' '' 'it'\\''s'", "a$b", "", "it's")
}
