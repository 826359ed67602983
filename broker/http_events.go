package broker

import (
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// Bounds of those who follow the events.
const (
	maxFollowers  = 32               // at once, inclusive; they must leave viewers to the other pages
	followStall   = 10 * time.Second // one that takes nothing for so long is dropped
	followSilence = 15 * time.Second // with nothing to tell, an empty line says that all is well
)

// A follower is one answer to GET /events.
type follower struct {
	w      http.ResponseWriter
	stream bool // server-sent events, not lines
}

// serveEvents answers with the events after ?since, each a line of JSON, and
// with ?follow goes on with those to come. Where some are missing a line of kind
// lost stands in their place, with the number of the last of them. An EventSource
// gets server-sent events, and resumes by itself.
func (b *Broker) serveEvents(w http.ResponseWriter, r *http.Request) {
	f := follower{w: w, stream: strings.Contains(r.Header.Get("Accept"), "text/event-stream")}
	since, follow, err := readSince(r, f.stream)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	if follow {
		if b.followers.Add(1) > maxFollowers {
			b.followers.Add(-1)
			http.Error(w, fmt.Sprintf("%d others follow the events already; ask without follow", maxFollowers), http.StatusServiceUnavailable)
			return
		}
		defer b.followers.Add(-1)
	}
	w.Header().Set("Content-Type", "application/x-ndjson; charset=utf-8")
	if f.stream {
		w.Header().Set("Content-Type", "text/event-stream")
	}
	if since < 0 {
		since = int64(b.events.oldest()) - 1
	}
	f.tell(r, &b.events, uint64(since), follow)
}

// tell writes the events after seq until there are no more or, following, until
// the client is gone.
func (f *follower) tell(r *http.Request, e *events, seq uint64, follow bool) {
	silence := time.NewTimer(followSilence)
	defer silence.Stop()
	for {
		found, lost, wake := e.after(seq, 64)
		if wake == nil {
			last := found[len(found)-1].seq
			if f.write(found, lost) != nil {
				return
			}
			seq = last
			continue
		}
		if !follow || f.flush() != nil {
			return
		}
		silence.Reset(followSilence)
		select {
		case <-wake:
		case <-silence.C:
			if _, err := io.WriteString(f.w, f.quiet()); err != nil {
				return
			}
		case <-r.Context().Done():
			return
		}
	}
}

// write writes events, and how many before them are lost.
func (f *follower) write(found []event, lost uint64) error {
	var text []byte
	if lost > 0 {
		seq := found[0].seq - 1
		text = f.line(text, seq, fmt.Sprintf(`{"seq":%d,"kind":"lost","fields":{"events":%d}}`, seq, lost))
	}
	for _, v := range found {
		text = f.line(text, v.seq, v.line)
	}
	f.extend()
	_, err := f.w.Write(text)
	return err
}

func (f *follower) line(to []byte, seq uint64, line string) []byte {
	if !f.stream {
		return append(append(to, line...), '\n')
	}
	return fmt.Appendf(to, "id: %d\ndata: %s\n\n", seq, line)
}

func (f *follower) quiet() string {
	if f.stream {
		return ":\n\n"
	}
	return "\n"
}

// flush sends what was written.
func (f *follower) flush() error {
	f.extend()
	return http.NewResponseController(f.w).Flush()
}

// extend gives the client time to take more. A writer that knows no deadline,
// as in a test, does without.
func (f *follower) extend() {
	http.NewResponseController(f.w).SetWriteDeadline(time.Now().Add(followStall))
}

// readSince returns after which number the client wants to hear, -1 for all
// there is, and whether it stays.
func readSince(r *http.Request, stream bool) (since int64, follow bool, err error) {
	since, follow = -1, stream
	text := r.Header.Get("Last-Event-ID") // what an EventSource saw last
	for name, values := range r.URL.Query() {
		switch name {
		case "since":
			if text == "" {
				text = values[0]
			}
		case "follow":
			if follow = true; values[0] != "" {
				if follow, err = strconv.ParseBool(values[0]); err != nil {
					return 0, false, fmt.Errorf("follow is %q; it is true or false", values[0])
				}
			}
		default:
			return 0, false, fmt.Errorf("%q is not known here; it is since or follow", name)
		}
	}
	if text != "" {
		if since, err = strconv.ParseInt(text, 10, 64); err != nil || since < 0 {
			return 0, false, fmt.Errorf("since is %q; it is the number of an event, or 0", text)
		}
	}
	return since, follow, nil
}

// oldest returns the number of the oldest event kept; the next if there is none.
func (e *events) oldest() uint64 {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.first == e.added {
		return e.last + 1
	}
	return e.slot(e.first).seq
}
