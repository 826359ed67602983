package broker

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/teralog/teralog/mem"
)

// TestAppendEvent has each value's JSON told, and what clients might smuggle in
// escaped: neither a reader of lines nor a terminal may take it for more than a
// value.
func TestAppendEvent(t *testing.T) {
	f := func(want string, fields ...slog.Attr) {
		t.Helper()
		got := "{" + string(appendEvent(nil, EventClientRefused, fields, mem.Now{Wall: 1_000_000_000_000}))[1:]
		want = `{"time":"2001-09-09T01:46:40.000Z","kind":"client_refused","fields":{` + want + `}}`
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
	f(`"t":"`+strings.Repeat("x", maxFieldBytes-1)+`…"`, slog.String("t", strings.Repeat("x", maxFieldBytes-1)+"éé"))
	f(`"\u000a":""`, slog.String("\n", ""))
}

// TestEventLines plants line ends and escape sequences in every value and looks
// for them in the log.
func TestEventLines(t *testing.T) {
	var log bytes.Buffer
	b := &Broker{log: newLog(&log, "debug"), env: Env{Now: func() mem.Now { return mem.Now{} }}}
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
	f(3, 9, 10, 0, 0, 0) // of another life
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

// TestStorm has a client be refused without end: the others' events stay, and
// what is not kept is counted.
func TestStorm(t *testing.T) {
	var e events
	now, kept, told := mem.Now{}, 0, int64(0)
	for i := range 1000 {
		now.Mono = time.Duration(i) * time.Millisecond
		if fields, ok := e.calm(EventClientRefused, []slog.Attr{slog.String("reason", "rate")}, now); ok {
			kept++
			if len(fields) > 1 {
				told += fields[1].Value.Int64()
			}
		}
		if _, ok := e.calm(EventTopicCreated, nil, now); !ok {
			t.Fatal("an event that is not stormy was left out")
		}
	}
	now.Mono = time.Hour
	fields, ok := e.calm(EventClientRefused, nil, now)
	if kept++; !ok || kept != stormBurst+1 {
		t.Fatalf("%d events kept, want %d", kept, stormBurst+1)
	}
	if told += fields[0].Value.Int64(); told+int64(kept) != 1001 {
		t.Fatalf("%d kept and %d told of, of 1001", kept, told)
	}
}

// TestEventFields bounds what one event may hold.
func TestEventFields(t *testing.T) {
	var e events
	fields, _ := e.calm(EventTopicCreated, make([]slog.Attr, maxFields+9), mem.Now{})
	if len(fields) != maxFields {
		t.Fatalf("%d fields", len(fields))
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
	r.delete(id)
	f(start, made, `"kind":"topic_deleted","fields":{"topic":"t","id":"`+fmt.Sprint(id)+`","partitions":2}`)
}
