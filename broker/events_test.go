package broker

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"strings"
	"testing"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/teralog/teralog/mem"
	"github.com/teralog/teralog/wire"
)

// TestEventLine has each value's JSON told, and what clients might smuggle in
// escaped: neither a reader of lines nor a terminal may take it for more than a
// value.
func TestEventLine(t *testing.T) {
	f := func(want string, fields ...slog.Attr) {
		t.Helper()
		got := eventLine(7, EventClientRefused, kept(fields), 1_000_000_000_000)
		want = `{"seq":7,"time":"2001-09-09T01:46:40.000Z","kind":"client_refused","fields":{` + want + `}}`
		if got != want {
			t.Fatalf("%s\nwant %s", got, want)
		}
		if !json.Valid([]byte(got)) {
			t.Fatalf("%s is not JSON", got)
		}
	}

	f(``)
	f(`"a":-1,"b":2,"c":true`, slog.Int("a", -1), slog.Uint64("b", 2), slog.Bool("c", true))
	f(`"took":"1.5s","err":"gone"`, slog.Duration("took", 1500*time.Millisecond), slog.Any("err", errors.New("gone")))
	f(`"t":"a\u000d\u000alevel=ERROR"`, slog.String("t", "a\r\nlevel=ERROR"))
	f(`"t":"\u001b[2J\u009b1m\u202e\u2028"`, slog.String("t", "\x1b[2J\u009b1m\u202e\u2028"))
	f(`"t":"\"\\"`, slog.String("t", `"\`))
	f(`"t":"��é"`, slog.String("t", "\xff\U000e0001é"))
	f(`"t":"`+strings.Repeat("x", maxFieldBytes)+`"`, slog.String("t", strings.Repeat("x", maxFieldBytes)))
	f(`"t":"`+strings.Repeat("x", maxFieldBytes-4)+`…"`, slog.String("t", strings.Repeat("x", maxFieldBytes-4)+"éééé"))
	f(`"\u000a":""`, slog.String("\n", ""))
}

// TestEventLines plants line ends and escape sequences in every value and looks
// for them in the log.
func TestEventLines(t *testing.T) {
	var log bytes.Buffer
	b := &Broker{log: newLog(&log, "debug"), env: Env{Manual: true, Now: func() mem.Now { return mem.Now{} }}}
	const evil = "x\r\nlevel=ERROR msg=\"all is lost\"\x1b[2J\u009b31m\u2028\u202e"
	for k := EventStart; k < endOfKinds; k++ {
		b.event(k, slog.String("topic", evil), slog.String(evil, "v"), slog.Any("err", fmt.Errorf("no: %s", evil)))
	}
	if n := strings.Count(log.String(), "\n"); n != int(endOfKinds-1) {
		t.Fatalf("%d lines for %d events:\n%s", n, endOfKinds-1, &log)
	}
	text := log.String()
	for len(text) > 0 {
		r, n := utf8.DecodeRuneInString(text)
		if r != '\n' && !unicode.IsPrint(r) {
			t.Fatalf("%U stands in the log", r)
		}
		text = text[n:]
	}
}

// TestEventsAfter resumes at every place, and is told what is gone.
func TestEventsAfter(t *testing.T) {
	f := func(noted int, seq uint64, some int, wantFirst uint64, wantCount int, wantLost uint64) {
		t.Helper()
		var e events
		for range noted {
			e.add(EventStart, nil, mem.Now{})
		}
		got, lost, wake := e.after(seq, some)
		if len(got) != wantCount || lost != wantLost || (wake == nil) != (wantCount > 0) {
			t.Fatalf("%d events, %d lost, wake %v; want %d, %d", len(got), lost, wake, wantCount, wantLost)
		}
		for i := range got {
			want := wantFirst + uint64(i)
			if got[i].seq != want || !strings.HasPrefix(got[i].line, fmt.Sprintf(`{"seq":%d,"time":`, want)) {
				t.Fatalf("event %d is number %d, %s; want %d", i, got[i].seq, got[i].line, want)
			}
		}
	}

	f(0, 0, 10, 0, 0, 0)
	f(3, 0, 10, 1, 3, 0)
	f(3, 1, 1, 2, 1, 0)
	f(3, 3, 10, 0, 0, 0)
	f(3, 9, 10, 1, 3, 0) // of another data directory
	f(maxEvents, 0, maxEvents, 1, maxEvents, 0)
	f(maxEvents+5, 0, 2, 6, 2, 5)
	f(maxEvents+5, 5, 2, 6, 2, 0)
	f(maxEvents+5, maxEvents+4, 2, maxEvents+5, 1, 0)
}

// TestEventWakes waits for an event.
func TestEventWakes(t *testing.T) {
	var e events
	_, _, one := e.after(0, 1)
	_, _, two := e.after(0, 1)
	e.add(EventStart, nil, mem.Now{})
	<-one
	<-two
}

// TestStorm has a client be refused without end: what else happens stays, and
// what is not kept is counted.
func TestStorm(t *testing.T) {
	var e events
	now := mem.Now{}
	for i := range 1000 {
		now.Mono = time.Duration(i) * time.Millisecond
		e.add(EventClientRefused, []slog.Attr{slog.String("reason", "rate")}, now)
	}
	e.add(EventTopicCreated, nil, now)
	now.Mono = time.Hour
	e.add(EventClientRefused, nil, now)
	all, _, _ := e.after(0, maxEvents)
	if len(all) != stormBurst+2 || e.count(EventClientRefused) != 1001 || all[stormBurst].kind != EventTopicCreated {
		t.Fatalf("%d events kept, %d counted", len(all), e.count(EventClientRefused))
	}
	if want := fmt.Sprintf(`"fields":{"suppressed":%d}}`, 1000-stormBurst); !strings.HasSuffix(all[stormBurst+1].line, want) {
		t.Fatalf("%s, want %s", all[stormBurst+1].line, want)
	}
}

// TestEventFields bounds what one event may hold.
func TestEventFields(t *testing.T) {
	all := kept(append(make([]slog.Attr, maxFields+9), slog.Attr{}))
	if len(all) != maxFields {
		t.Fatalf("%d fields", len(all))
	}
}

// TestLogEvents is a log that falls behind: it goes on with the newest and says
// what it missed.
func TestLogEvents(t *testing.T) {
	var log bytes.Buffer
	b := &Broker{log: newLog(&log, "debug")}
	for range maxEvents + 3 {
		b.events.add(EventTopicCreated, nil, mem.Now{})
	}
	b.logEvents()
	if got := strings.Count(log.String(), "topic created"); got != maxEvents || !strings.Contains(log.String(), "lost=3\n") {
		t.Fatalf("%d lines: %.200s", got, &log)
	}
	log.Reset()
	b.logEvents()
	if log.Len() > 0 {
		t.Fatalf("logged again: %s", &log)
	}
}

func TestKinds(t *testing.T) {
	seen := map[string]bool{}
	for k := EventStart; k < endOfKinds; k++ {
		if row := kinds[k]; row.name == "" || row.says == "" || seen[row.name] {
			t.Errorf("kind %d: %+v", k, row)
		}
		seen[k.String()] = true
	}
}

// TestWhatIsNoted makes and deletes a topic.
func TestWhatIsNoted(t *testing.T) {
	r := newRig(t)
	f := func(want ...string) {
		t.Helper()
		got, _, _ := r.b.events.after(0, maxEvents)
		if len(got) != len(want) {
			t.Fatalf("%d events, want %d: %v", len(got), len(want), got)
		}
		for i := range want {
			if !strings.Contains(got[i].line, want[i]) {
				t.Errorf("%s does not say %s", got[i].line, want[i])
			}
		}
	}

	start := `"kind":"start","fields":{"version":`
	f(start)
	id := r.create("t", 2)
	made := `"kind":"topic_created","fields":{"topic":"t","id":"` + fmt.Sprint(id) + `","partitions":2}`
	f(start, made)
	r.b.settleTopic(id) // again: nothing new
	f(start, made)
	r.write(id, 0, "a")
	r.write(id, 0, "b")
	r.begin(&wire.TrimRequest{Topic: id, Before: 1}, new(wire.TrimResponse))
	r.pass(5 * time.Second) // until a recovery point has it
	trimmed := `"kind":"log_trimmed","fields":{"topic":"t","part":0,"from":0,"to":1}`
	f(start, made, trimmed)
	r.delete(id)
	f(start, made, trimmed, `"kind":"topic_deleted","fields":{"topic":"t","id":"`+fmt.Sprint(id)+`","partitions":2}`)
}

// TestEventMemory keeps lines of every length, up to the longest there can be,
// over and over: each is told as it was noted, no more are let go of than must
// be, and nothing of an event stays on the heap once it is logged.
func TestEventMemory(t *testing.T) {
	long := make([]slog.Attr, maxFields)
	for i := range long {
		long[i] = slog.String(strings.Repeat("\x1b", maxFieldBytes), strings.Repeat("\x1b", maxFieldBytes))
	}
	b := &Broker{log: newLog(io.Discard, "debug")}
	e := &b.events
	rng := rand.New(rand.NewPCG(1, 2))
	var want []string // of all events
	for range 4 * maxEvents {
		fields := []slog.Attr{slog.String("topic", strings.Repeat("x", rng.IntN(maxFieldBytes)))}
		if rng.IntN(100) == 0 {
			fields = long[:rng.IntN(maxFields+1)]
		}
		e.add(EventTopicCreated, fields, mem.Now{})
		want = append(want, eventLine(e.last, EventTopicCreated, kept(fields), 0))

		bytes, most := 0, 0
		for most < min(len(want), maxEvents) && bytes+len(want[len(want)-1-most]) <= maxLines {
			bytes += len(want[len(want)-1-most])
			most++
		}
		found, _, _ := e.after(0, maxEvents)
		if len(found) != most {
			t.Fatalf("%d events kept of %d, want %d", len(found), e.last, most)
		}
		for i, v := range found {
			if v.line != want[len(want)-most+i] {
				t.Fatalf("event %d of %d is %s, want %s", v.seq, e.last, v.line, want[len(want)-most+i])
			}
		}
	}
	b.logEvents()
	for n := e.first; n < e.added; n++ {
		if v := e.slot(n); v.fields != nil || v.line != "" {
			t.Fatalf("event %d holds %+v", v.seq, v.event)
		}
	}
}
