package wire

import (
	"math/rand/v2"
	"testing"
	"time"
)

func TestParseSize(t *testing.T) {
	f := func(s string, want int64) {
		t.Helper()
		got, err := ParseSize(s)
		if (err != nil) != (want < 0) || err == nil && got != want {
			t.Fatalf("ParseSize(%q) = %d, %v, want %d", s, got, err, want)
		}
	}

	f("0", 0)
	f("4096", 4096)
	f("64KiB", 64<<10)
	f("1.5GiB", 3<<29)
	f("1GB", 1e9)
	f("100k", 100_000)
	f("12B", 12)
	f("", -1)
	f("KiB", -1)
	f("-1", -1)
	f("1.5", -1) // half a byte
	f("1e3", -1)
	f("NaN", -1)
	f("0x10", -1)
	f("9223372036854775807TiB", -1)
	f("12 KiB", -1)
}

func TestParseDuration(t *testing.T) {
	f := func(s string, want time.Duration) {
		t.Helper()
		got, err := ParseDuration(s)
		if (err != nil) != (want < 0) || err == nil && got != want {
			t.Fatalf("ParseDuration(%q) = %v, %v, want %v", s, got, err, want)
		}
	}

	f("0", 0)
	f("0d", 0)
	f("250ms", 250*time.Millisecond)
	f("1h30m", 90*time.Minute)
	f("7d", 7*24*time.Hour)
	f("2w", 14*24*time.Hour)
	f("1w1d1h", 8*24*time.Hour+time.Hour)
	f("", -1)
	f("d", -1)
	f("-1s", -1)
	f("1d2w", -1) // weeks come before days
	f("5", -1)    // no unit
	f("200000d", -1)
	f("106751d24h", -1)
}

func TestParseTime(t *testing.T) {
	now := time.UnixMilli(1_700_000_000_000)
	f := func(s string, want int64) {
		t.Helper()
		got, err := ParseTime(s, now)
		if (err != nil) != (want < 0) || err == nil && got != want {
			t.Fatalf("ParseTime(%q) = %d, %v, want %d", s, got, err, want)
		}
	}

	f("1700000000007", 1_700_000_000_007)
	f("978307260", 978_307_260_000)
	f("978307260000", 978_307_260_000) // ms of before September 2001 have 12 digits
	f("9999999999", 9_999_999_999_000)
	f("2001-01-10", 979_084_800_000)
	f("2001-01-10T10:00Z", 979_120_800_000)
	f("2001-01-10T10:00:00.5Z", 979_120_800_500)
	f("-15m", 1_700_000_000_000-15*60_000)
	f("yesterday", -1)
	f("-", -1)
}

// TestUnitsRoundTrip checks that what is printed reads back as the same number.
func TestUnitsRoundTrip(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 2000 {
		n := int64(r.Uint64N(1<<53)) >> r.UintN(53) << r.UintN(10)
		if got, err := ParseSize(FormatSize(n)); err != nil || got != n {
			t.Fatalf("size %d printed as %s reads as %d, %v", n, FormatSize(n), got, err)
		}
		d := time.Duration(n>>3) / time.Second * time.Second
		if got, err := ParseDuration(FormatDuration(d)); err != nil || got != d {
			t.Fatalf("duration %d printed as %s reads as %d, %v", d, FormatDuration(d), got, err)
		}
	}
}

func TestNearest(t *testing.T) {
	f := func(s, want string) {
		t.Helper()
		if got := Nearest(s, []string{"data-dir", "listen", "flush.bytes"}); got != want {
			t.Fatalf("Nearest(%q) = %q, want %q", s, got, want)
		}
	}

	f("datadir", "data-dir")
	f("lisen", "listen")
	f("flush_bytes", "flush.bytes")
	f("zebra", "")
}
