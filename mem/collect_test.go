package mem

import (
	"context"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"testing"
	"testing/synctest"
)

// TestPercentFor gives everybody the room, but for who holds much more or next to
// nothing.
func TestPercentFor(t *testing.T) {
	f := func(inUse uint64, want int) {
		t.Helper()
		if got := percentFor(inUse); got != want {
			t.Fatalf("GOGC %d for %d bytes in use, want %d", got, inUse, want)
		}
	}

	f(0, 400)
	f(garbageRoom/4, 400)
	f(garbageRoom/4+garbageRoom/100, 384)
	f(garbageRoom/2, 200)
	f(garbageRoom-1, 100)
	f(garbageRoom, 100)
	f(100*garbageRoom, 100)
}

// TestCollectRarely: a process has room while it is busy and no longer, unless
// its user has set GOGC.
func TestCollectRarely(t *testing.T) {
	defer debug.SetGCPercent(debug.SetGCPercent(gcPercent))
	if env, set := os.LookupEnv("GOGC"); set {
		defer os.Setenv("GOGC", env)
		os.Unsetenv("GOGC")
	}
	for range 2 { // what other tests left in a sync.Pool goes with the second
		runtime.GC()
	}
	inForce := func() int {
		percent := debug.SetGCPercent(gcPercent)
		debug.SetGCPercent(percent)
		return percent
	}
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		adds := []int64{0, calmWork - 1, calmWork, 10 * calmWork, 0, calmWork, calmWork} // from one look to the next
		var room []bool                                                                  // before each
		done := int64(0)
		CollectRarely(ctx, func() int64 {
			room = append(room, inForce() > gcPercent)
			if done += adds[len(room)-1]; len(room) == len(adds) {
				cancel()
			}
			return done
		})
		if want := []bool{false, false, false, true, true, false, true}; !slices.Equal(room, want) {
			t.Fatalf("room before the looks was %v, want %v", room, want)
		}
	})
	if got := inForce(); got != gcPercent {
		t.Fatalf("GOGC is %d at the end", got)
	}

	t.Setenv("GOGC", "77")
	debug.SetGCPercent(77)
	CollectRarely(t.Context(), nil) // returns at once
	if got := inForce(); got != 77 {
		t.Fatalf("GOGC is %d, its user wanted 77", got)
	}
}
