package cli

import (
	"testing"
	"time"
)

func TestParseWindow(t *testing.T) {
	const ms = 1_000_000_000_000 // 2001-09-09T01:46:40Z
	now := time.UnixMilli(ms)
	f := func(s string, from, to place) {
		t.Helper()
		w, err := parseWindow(s, now)
		if err != nil || w != (window{from, to}) {
			t.Fatalf("parseWindow(%q) = %v, %v, want %v %v", s, w, err, from, to)
		}
	}
	open := place{kind: never}

	f("start", place{kind: atStart}, open)
	f("end", place{kind: atEnd}, open)
	f("+3", place{atStart, 3}, open)
	f("-3", place{atEnd, 3}, open)
	f("42", place{atOffset, 42}, open)
	f("42:", place{atOffset, 42}, open)
	f(":42", place{kind: atStart}, place{atOffset, 42})
	f("7:42", place{atOffset, 7}, place{atOffset, 42})
	f(":end", place{kind: atStart}, place{kind: atEnd})
	f("start:end", place{kind: atStart}, place{kind: atEnd})
	f("-15m", place{atTime, ms - 15*60_000}, open)
	f("@-15m", place{atTime, ms - 15*60_000}, open)
	f("@978307260", place{atTime, 978307260000}, open)
	f("@978307260000:", place{atTime, 978307260000}, open)
	f("@:978307260000", place{kind: atStart}, place{atTime, 978307260000})
	f("@978307260000:978307260001", place{atTime, 978307260000}, place{atTime, 978307260001})
	f("@2001-01-10", place{atTime, 979084800000}, open)
	f("@2001-01-10:2001-01-11", place{atTime, 979084800000}, place{atTime, 979171200000})
	f("@2001-01-10T10:00Z", place{atTime, 979120800000}, open)
	f("@2001-01-10T10:00:00Z:2001-01-10T10:15:00Z", place{atTime, 979120800000}, place{atTime, 979121700000})
	f("@2001-01-10T10:00Z:@2001-01-10T10:15Z", place{atTime, 979120800000}, place{atTime, 979121700000})
	f("@2001-01-10T10:00Z:+15m", place{atTime, 979120800000}, place{atTime, 979121700000})
	f("@-1h:end", place{atTime, ms - 3600_000}, place{kind: atEnd})
	f("@-2h:-1h", place{atTime, ms - 7200_000}, place{atTime, ms - 3600_000})

	bad := func(s string) {
		t.Helper()
		if w, err := parseWindow(s, now); err == nil {
			t.Fatalf("parseWindow(%q) = %v, want an error", s, w)
		}
	}
	bad("")
	bad("begin")
	bad("--3")
	bad("+-3")
	bad("1:2:3")
	bad("9:3")
	bad("@")
	bad("@noon")
	bad("@2001-01-11:2001-01-10")
	bad("99999999999999999999")
}
