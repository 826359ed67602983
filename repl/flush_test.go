package repl

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/teralog/teralog/mem"
	"github.com/teralog/teralog/wire"
)

// at is the moment ms milliseconds after the start.
func at(ms int) mem.Now {
	return mem.Now{Mono: time.Duration(ms) * time.Millisecond, Wall: 1_700_000_000_000 + int64(ms)}
}

// TestFlushState tells stories of one log. Each step is a word and a number:
//
//	write@5=100   at 5 ms, one record of 100 bytes is appended
//	start  done=n the flush begins; it landed and covers offsets below n
//	ack@5=n,b     may the write that ends at offset n, byte b, be acknowledged?
//	due=…         when the next flush must start, in ms; "now" is anything past
//	due!=…        the same with an ack that waits
func TestFlushState(t *testing.T) {
	f := func(s Settings, story string) {
		t.Helper()
		f := newFlushState(s, 0)
		clock := 0
		for _, step := range strings.Fields(story) {
			word, arg, _ := strings.Cut(step, "=")
			word, ms, timed := strings.Cut(word, "@")
			if timed {
				clock, _ = strconv.Atoi(ms)
			}
			got := ""
			switch word {
			case "write":
				n, _ := strconv.Atoi(arg)
				f.appended(f.end+1, int64(n), at(clock))
			case "start":
				f.start(false)
			case "done":
				n, _ := strconv.Atoi(arg)
				f.done(wire.Offset(n))
			case "ack", "wait":
				end, written, _ := strings.Cut(arg, ",")
				n, _ := strconv.Atoi(end)
				b, _ := strconv.Atoi(written)
				if f.mayAck(wire.Offset(n), int64(b), at(clock)) != (word == "ack") {
					t.Fatalf("%s: %s does not hold: %+v", story, step, f)
				}
			case "due", "due!":
				due, ok := f.due(word == "due!")
				switch {
				case !ok:
					got = "never"
				case due <= at(clock).Mono:
					got = "now"
				default:
					got = fmt.Sprint(due.Milliseconds())
				}
				if got != arg {
					t.Fatalf("%s: %s, got %s: %+v", story, step, got, f)
				}
			case "counted":
				if fmt.Sprint(f.counted()) != arg {
					t.Fatalf("%s: %s, got %d", story, step, f.counted())
				}
			case "volume":
				if fmt.Sprint(f.volume()) != arg {
					t.Fatalf("%s: %s, got %d", story, step, f.volume())
				}
			default:
				t.Fatalf("unknown step %q", step)
			}
		}
	}

	async := Settings{Flush: Async, FlushBytes: 1000, FlushEvery: time.Second}
	f(async, "due=never")
	f(async, "write@5=100 ack=1,100 counted=1 volume=100 due=1005")           // one second after the first byte
	f(async, "write@5=100 write@700=100 due=1005")                            // later bytes do not put it off
	f(async, "write@5=999 due=1005 write@6=1 due=now")                        // enough bytes are reason enough
	f(async, "write@5=1 start due=never write@50=5000 due=never")             // one at a time
	f(async, "write@5=1 start write@50=7 done=1 due=1050")                    // what the flush missed is dated by itself
	f(async, "write@5=1 start write@50=7 write@60=7 done=1 due=1050")         // by the first such byte
	f(async, "write@5=1 start write@50=7 write@60=7 done=2 due=1050")         // a flush may cover more than it was asked for
	f(async, "write@5=1 start write@50=7 done=2 due=never")                   // or all
	f(async, "write@5=1 start done=1 write@50=7 due=1050")                    // back to nothing, and again
	f(async, "write@5=1 start write@50=7 done=1 start done=2 due=never")      // the second flush has the rest
	f(Settings{}, "write=1 due=1000 write=67108862 due=1000 write=1 due=now") // the defaults: 1 s, 64 MiB

	sync := Settings{Flush: Sync}
	f(sync, "write@5=100 wait=1,100 counted=0 volume=0 due=now start wait=1,100 due=never done=1 ack=1,100 counted=1 volume=100")
	f(sync, "write@5=1 start write@6=1 done=1 ack=1,1 wait=2,2 due=now")  // group commit: the next covers the rest
	f(sync, "write@5=1 start write@6=1 done=2 ack=1,1 ack=2,2 due=never") // a flush that started late covered both
	f(sync, "write@5=1 start write@6=1 write@7=1 done=2 ack=2,2 wait=3,3 counted=2 due=now")
	f(sync, "write@5=1 start write@9000=1 wait=1,1 wait@99000=2,2") // a disk that hangs answers nobody

	interval := Settings{Flush: Interval, FlushBytes: 1000, FlushEvery: 100 * time.Millisecond}
	f(interval, "write@5=100 ack=1,100 counted=1 due=55")             // it starts at half of the time
	f(interval, "write@5=499 due=55 write=1 due=now")                 // or half of the bytes
	f(interval, "write@5=1000 ack=1,1000 write=1 wait=2,1001")        // the bound itself is inside
	f(interval, "write@5=1 write@105=1 ack=2,2 write@106=1 wait=3,3") // in time too
	f(interval, "write@5=1 due=55 due!=now")                          // an ack that waits is reason enough
	f(interval, "write@5=5000 wait=1,5000 start done=1 ack=1,5000")   // larger than the bound: it waits for its flush
	f(interval, "write@5=900 start write@6=900 wait=2,1800 done=1 ack=2,1800 due=now")
	f(interval, "write@5=900 start write@6=100 ack=2,1000 write@7=1 wait=3,1001 wait@90000=3,1001") // a stall does not widen the loss
	f(interval, "write@5=1 start write@50=1 done=1 ack@150=2,2 wait@151=2,2")                       // the age counts from the first byte not covered
	f(Settings{Flush: Interval}, "write=1048576 ack=1,1048576 write=1 wait=2,1048577")              // the defaults: 1 MiB,
	f(Settings{Flush: Interval}, "write@1=1 ack@101=1,1 wait@102=1,1")                              // 100 ms
}

func TestFlushStateBugs(t *testing.T) {
	f := func(what string, do func(*flushState)) {
		t.Helper()
		defer func() {
			if recover() == nil {
				t.Fatalf("%s went unnoticed", what)
			}
		}()
		s := newFlushState(Settings{Flush: Sync}, 7)
		s.appended(9, 100, at(1))
		do(&s)
	}

	f("a flush that landed without a start", func(s *flushState) { s.done(9) })
	f("two flushes at once", func(s *flushState) { s.start(false); s.start(false) })
	f("a flush beyond the end", func(s *flushState) { s.start(false); s.done(10) })
	f("a flush short of what it was asked for", func(s *flushState) { s.start(false); s.done(8) })
}
