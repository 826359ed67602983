package broker

import (
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/teralog/teralog/mem"
	"github.com/teralog/teralog/wire"
)

// A clocked is a rig whose machine's clock people and protocols set.
type clocked struct {
	*rig
	stamp *mem.StampClock
	wall  int64 // what the machine's clock shows, ms
}

// newClocked returns a rig with a topic that keeps a day, and twelve records in
// it, each in a segment of its own, five minutes apart.
func newClocked(t *testing.T) (c *clocked, id wire.TopicID, records []string) {
	c = &clocked{rig: newRig(t)}
	c.wall = c.now.Wall
	c.stamp = mem.NewStampClock(c.now.Mono, c.wall)
	id = c.create("t", 1, wire.Setting{Key: "retention.age", Value: "1d"}, wire.Setting{Key: "segment.bytes", Value: "1MiB"})
	for i := range 12 {
		records = append(records, strconv.Itoa(i)+strings.Repeat("v", 600_000))
		c.write(id, 0, records[i])
		c.until(5*time.Minute, 0)
	}
	return c, id, records
}

// until lets time pass in steps of five seconds, before each of which the
// machine's clock jumps by jump and, with the next one, back.
func (c *clocked) until(d, jump time.Duration) {
	for i := 0; d > 0; i++ {
		if i%2 == 0 {
			c.wall += jump.Milliseconds()
		} else {
			c.wall -= jump.Milliseconds()
		}
		c.now.Mono += 5 * time.Second
		c.wall += 5000
		c.now.Wall, _ = c.stamp.Stamp(c.now.Mono, c.wall)
		c.settle()
		d -= 5 * time.Second
	}
}

// TestWallClock sets the machine's clock while records age and requests wait.
// Whatever it shows, no record is lost that is not old, append times do not go
// back, and what waits does so for as long as it asked.
func TestWallClock(t *testing.T) {
	f := func(name string, jump time.Duration, held bool, play func(c *clocked)) {
		t.Helper()
		c, id, records := newClocked(t)
		last := func() int64 {
			p, err := c.b.Set().Leader(wire.PartitionID{Topic: id})
			if err != nil {
				t.Fatal(err)
			}
			return p.View().Log.LastAppendTime()
		}
		check := func(when string, withheld bool) {
			t.Helper()
			if got := c.readAll(id, 0); !slices.Equal(got, records) {
				t.Fatalf("%s, %s: %d records are left of %d", name, when, len(got), len(records))
			}
			if got := valueOf(t, scraped(t, c.b), "teralog_retention_withheld_bytes", "") > 0; got != withheld {
				t.Fatalf("%s, %s: retention is held: %v", name, when, got)
			}
			before := last()
			records = append(records, "more")
			c.write(id, 0, "more")
			if after := last(); after < before {
				t.Fatalf("%s, %s: append time %d after %d", name, when, after, before)
			}
		}
		play(c)
		wait := fetchOf(id, 0, wire.Offset(len(records)))
		wait.MaxWaitMillis = 20_000
		parked := c.begin(wait, &wire.FetchResponse{})
		c.settle()
		c.wall += jump.Milliseconds()
		c.until(15*time.Second, 0)
		if parked.answers != 0 {
			t.Fatalf("%s: a fetch that waits 20 s was answered within 15", name)
		}
		c.until(5*time.Second, 0)
		if parked.answers != 1 {
			t.Fatalf("%s: a fetch that waits 20 s was not answered after them", name)
		}
		check("at once", false)
		c.until(15*time.Minute, 0) // the stamp clock follows
		check("later", held)
		c.wall -= jump.Milliseconds()
		c.until(15*time.Minute, 0)
		check("with the clock right again", false)
		c.stop()
	}
	still := func(*clocked) {}

	f("an hour ahead", time.Hour, false, still)
	f("an hour back", -time.Hour, false, still)
	f("ten years ahead", 10*365*24*time.Hour, true, still)
	f("ten years back", -10*365*24*time.Hour, false, still)
	f("400 days ahead for 30 s", 0, false, func(c *clocked) {
		c.wall += (400 * 24 * time.Hour).Milliseconds()
		c.until(30*time.Second, 0)
		c.wall -= (400 * 24 * time.Hour).Milliseconds()
	})
	f("to and fro", 0, false, func(c *clocked) { c.until(20*time.Minute, 10*365*24*time.Hour) })
	f("to and fro by an hour", 0, false, func(c *clocked) { c.until(20*time.Minute, time.Hour) })
}

// TestStartWithAWrongClock starts while the machine's clock is years ahead, when
// the stamp clock has nothing to compare it with.
func TestStartWithAWrongClock(t *testing.T) {
	c, id, records := newClocked(t)
	c.stop()
	c.wall += (400 * 24 * time.Hour).Milliseconds()
	c.now.Wall = c.wall
	c.stamp = mem.NewStampClock(c.now.Mono, c.wall)
	c.start()
	c.until(time.Minute, 0)
	c.wall -= (400 * 24 * time.Hour).Milliseconds() // somebody has noticed
	c.until(30*time.Minute, 0)
	if got := c.readAll(id, 0); !slices.Equal(got, records) {
		t.Fatalf("%d records are left of %d", len(got), len(records))
	}
}
