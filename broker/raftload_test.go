package broker

import (
	"errors"
	"io"
	"strings"
	"testing"
)

func TestRaftLoadFlags(t *testing.T) {
	f := func(args string, code int) {
		t.Helper()
		err := RaftLoad(t.Context(), strings.Fields(args), nil, io.Discard, io.Discard)
		var exit interface{ ExitCode() int }
		if got := errors.As(err, &exit); got != (code > 0) || got && exit.ExitCode() != code {
			t.Fatalf("%q: %v", args, err)
		}
	}

	f("--help", 0)
	f("--in-flight 0", exitUsage)
	f("--in-flight 16 --seconds 0", exitUsage)
	f("--size 0", exitUsage)
	f("--kills -1", exitUsage)
	f("-o xml", exitUsage)
	f("--nonsense", exitUsage)
}
