package wire

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"
)

// TestCodes: every code has a row, names are unique, and what the protocol
// promises of each outcome stands in the table.
func TestCodes(t *testing.T) {
	names := map[string]Code{}
	for c := range Code(len(codes)) {
		name := c.Error()
		if name == "" || name != strings.ToUpper(name) {
			t.Errorf("code %d is called %q", c, name)
		}
		if other, ok := names[name]; ok {
			t.Errorf("codes %d and %d are both called %s", c, other, name)
		}
		names[name] = c
	}
	if last := CodeOffsetLimit; int(last) != len(codes)-1 {
		t.Errorf("%d rows, the last code is %d", len(codes), last)
	}

	// after these the write may still become visible
	open := map[Code]bool{CodeOK: true, CodeStorageError: true, CodeTimeout: true, CodeNotEnoughReplicasAfterAppend: true, CodeInternal: true}
	for c := range Code(len(codes)) {
		if c.Definite() == open[c] {
			t.Errorf("%s: definite is %v", c, c.Definite())
		}
	}

	f := func(c Code, retriable bool) {
		t.Helper()
		if c.Retriable() != retriable {
			t.Errorf("%s: retriable is %v", c, c.Retriable())
		}
	}
	f(CodeOK, false)
	f(CodeBusy, true)
	f(CodeNotLeader, true)
	f(CodeTimeout, true)
	f(CodeShuttingDown, true)
	f(CodeOffline, true)
	f(CodeInvalidBatch, false)
	f(CodeTopicRecreated, false)
	f(CodeSequenceReused, false)
	f(CodeOutOfRange, false)

	unknown := Code(len(codes))
	if unknown.Definite() || unknown.Retriable() || unknown.Error() != fmt.Sprintf("CODE_%d", len(codes)) {
		t.Errorf("code without a row: %s %v %v", unknown, unknown.Definite(), unknown.Retriable())
	}
}

func TestCodeOf(t *testing.T) {
	f := func(err error, want Code) {
		t.Helper()
		if got := CodeOf(err); got != want {
			t.Errorf("CodeOf(%v) = %s, want %s", err, got, want)
		}
	}

	f(nil, CodeOK)
	f(CodeBusy, CodeBusy)
	f(fmt.Errorf("topic x: %w", CodeUnknownTopic), CodeUnknownTopic)
	f(Errorf(CodeQuota, "tenant %s", "a"), CodeQuota)
	f(fmt.Errorf("more: %w", &Error{Code: CodeBusy, RetryAfter: time.Second}), CodeBusy)
	f(errors.New("something else"), CodeInternal)

	err := fmt.Errorf("produce: %w", Errorf(CodeBusy, "queue of %s full", "x-0"))
	var e *Error
	if !errors.As(err, &e) || !errors.Is(err, CodeBusy) || errors.Is(err, CodeQuota) || err.Error() != "produce: BUSY: queue of x-0 full" {
		t.Errorf("%v", err)
	}
	if got := (&Error{Code: CodeBusy}).Error(); got != "BUSY" {
		t.Errorf("without message: %q", got)
	}
}
