package wire

import (
	"math"
	"strings"
	"testing"
)

func TestValidName(t *testing.T) {
	f := func(s string, want bool) {
		t.Helper()
		if ValidName(s) != want {
			t.Errorf("ValidName(%q) = %v", s, !want)
		}
	}

	f("flights", true)
	f("Order_event-2.v1", true)
	f("...", true)
	f("-", true)
	f(strings.Repeat("x", 249), true)
	f(strings.Repeat("x", 250), false)
	f("", false)
	f(".", false)
	f("..", false)
	f("a/b", false)
	f("a b", false)
	f("a\x00b", false)
	f("é", false)
	f("а", false) // a Cyrillic look-alike
	f("*", false)
	f("a\\b", false)
}

func TestUUID(t *testing.T) {
	u := UUID{0x12, 0x34, 0x56, 0x78, 0x9a, 0xbc, 0xde, 0xf0, 1, 2, 3, 4, 5, 6, 7, 8}
	const s = "12345678-9abc-def0-0102-030405060708"
	if u.String() != s {
		t.Errorf("String = %s", u)
	}
	if got, err := ParseUUID(s); err != nil || got != u {
		t.Errorf("ParseUUID = %v, %v", got, err)
	}
	for _, bad := range []string{
		"", s[:35], s + "0", strings.ToUpper(s), strings.ReplaceAll(s, "-", "_"),
		strings.Replace(s, "1", "g", 1), "123456789-abc-def0-0102-030405060708", strings.Repeat("é", 18),
	} {
		if got, err := ParseUUID(bad); err == nil || got != (UUID{}) {
			t.Errorf("ParseUUID(%q) = %v, %v", bad, got, err)
		}
	}
}

func TestPartitionID(t *testing.T) {
	if got := (PartitionID{math.MaxUint64, 7}).String(); got != "18446744073709551615-7" {
		t.Error(got)
	}
}

func TestAPIs(t *testing.T) {
	for _, r := range APIs() {
		if !r.API.Known() || !r.API.Supports(r.Min) || !r.API.Supports(r.Max) || r.API.Supports(r.Max+1) || strings.HasPrefix(r.API.String(), "API") {
			t.Errorf("%s: %d to %d", r.API, r.Min, r.Max)
		}
	}
	for _, a := range []API{0, APICommand + 1, math.MaxUint16} {
		if a.Known() || a.Supports(0) || !strings.HasPrefix(a.String(), "API ") {
			t.Errorf("%s is known", a)
		}
	}
	if n := len(APIs()); n != int(APICommand) {
		t.Errorf("%d APIs", n)
	}
}
