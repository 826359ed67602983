package broker

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/teralog/teralog/wire"
)

// TestRefusals: every refusal is counted, and one a second is an event that says
// how many there were.
func TestRefusals(t *testing.T) {
	r := newRig(t)
	_, _, _ = r.b.events.after(0, 1)
	last := func() uint64 { return r.b.events.last }
	before := last()
	for range 100 {
		r.b.refused(wire.LimitConnections, func() string { return "10.0.0.1:5" })
	}
	if last() != before+1 {
		t.Fatalf("%d events of 100 refusals at once", last()-before)
	}
	r.pass(999 * time.Millisecond)
	r.b.refused(wire.LimitConnections, func() string { t.Error("whose it was is not told"); return "" })
	r.b.refused(wire.LimitMemory, func() string { return "10.0.0.2:5" }) // another one has its own
	if last() != before+2 {
		t.Fatalf("%d events", last()-before)
	}
	r.pass(time.Millisecond)
	r.b.refused(wire.LimitConnections, func() string { return "10.0.0.3:5" })
	found, _, _ := r.b.events.after(before, 10)
	want := []string{`"reason":"connections","remote":"10.0.0.1:5","count":1}`, `"reason":"memory","remote":"10.0.0.2:5","count":1}`,
		`"reason":"connections","remote":"10.0.0.3:5","count":101}`}
	for i, w := range want {
		if i >= len(found) || !strings.Contains(found[i].line, `"client_refused"`) || !strings.Contains(found[i].line, w) {
			t.Fatalf("event %d of %v, want %s", i, found, w)
		}
	}
	var text bytes.Buffer
	writeMetrics(&text, refusalRows, &scrape{b: r.b})
	for _, w := range []string{`{reason="connections"} 102`, `{reason="memory"} 1`, `{reason="disk-slow"} 0`} {
		if !strings.Contains(text.String(), "teralog_refused_total"+w+"\n") {
			t.Fatalf("no %s in\n%s", w, &text)
		}
	}
}
