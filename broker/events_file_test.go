package broker

import (
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"

	"github.com/teralog/teralog/mem"
	"github.com/teralog/teralog/storage"
	"github.com/teralog/teralog/wire"
)

// A diary is a process that notes events, over a disk that others have used.
type diary struct {
	t  *testing.T
	fs *storage.MemFS
	e  *events
	f  *eventFile
}

func newDiary(t *testing.T) *diary {
	d := &diary{t: t, fs: storage.NewMemFS(1)}
	if err := d.fs.Mkdir("data"); err != nil {
		t.Fatal(err)
	}
	d.restart()
	return d
}

// restart begins a new process.
func (d *diary) restart() {
	d.t.Helper()
	d.e, d.f = &events{}, &eventFile{fs: d.fs, name: "data/" + eventsName}
	if err := d.f.load(d.e); err != nil {
		d.t.Fatal(err)
	}
}

func (d *diary) stop() {
	d.t.Helper()
	if err := d.f.close(d.e); err != nil {
		d.t.Fatal(err)
	}
}

// note notes n events and saves them.
func (d *diary) note(n int) error {
	for range n {
		d.e.add(EventTopicCreated, []slog.Attr{slog.String("topic", "t")}, mem.Now{})
	}
	_, err := d.f.save(d.e)
	return err
}

// want checks what a client that has seen the event numbered since is told, as
// numbers, and in brackets how many are lost.
func (d *diary) want(since uint64, want string) {
	d.t.Helper()
	var got []string
	for {
		found, lost, wake := d.e.after(since, maxEvents)
		if wake != nil {
			break
		}
		if lost > 0 {
			got = append(got, fmt.Sprintf("[%d]", lost))
		}
		since = found[len(found)-1].seq
		got = append(got, fmt.Sprintf("%d-%d", found[0].seq, since))
		for _, v := range found {
			if !strings.HasPrefix(v.line, fmt.Sprintf(`{"seq":%d,`, v.seq)) {
				d.t.Fatalf("event %d is %s", v.seq, v.line)
			}
		}
	}
	if s := strings.Join(got, " "); s != want {
		d.t.Fatalf("told %q, want %q", s, want)
	}
}

// TestEventsRestart stops in order: nothing is lost and no number left out.
func TestEventsRestart(t *testing.T) {
	d := newDiary(t)
	d.note(3)
	d.stop()
	for life := range uint64(3) {
		d.restart()
		d.want(1, fmt.Sprintf("2-%d", life+3))
		d.note(1)
		d.want(2, fmt.Sprintf("3-%d", life+4))
		d.stop()
	}
}

// TestEventsKill kills the process: what it may have told and not saved counts
// as lost.
func TestEventsKill(t *testing.T) {
	d := newDiary(t)
	d.note(3)
	d.restart()
	d.want(1, "2-3")
	d.note(2)
	d.want(1, fmt.Sprintf("2-3 [%d] %d-%d", unknownEvents, unknownEvents+4, unknownEvents+5))
	d.want(10, fmt.Sprintf("[%d] %d-%d", unknownEvents-7, unknownEvents+4, unknownEvents+5))
	d.stop()
	d.restart()
	d.want(unknownEvents+4, fmt.Sprintf("%d-%d", unknownEvents+5, unknownEvents+5))
}

// TestEventsBound writes much more than is kept, over several lives.
func TestEventsBound(t *testing.T) {
	d := newDiary(t)
	for range 40 {
		if err := d.note(maxEvents); err != nil {
			t.Fatal(err)
		}
		if e, err := d.fs.Stat(d.f.name); err != nil || e.Size > maxEventFile || e.Size != d.f.size {
			t.Fatalf("%+v, %v; it is thought to have %d", e, err, d.f.size)
		}
	}
	d.want(0, fmt.Sprintf("[%d] %d-%d", 39*maxEvents, 39*maxEvents+1, 40*maxEvents))
	d.stop()
	d.restart()
	d.want(39*maxEvents+5, fmt.Sprintf("%d-%d", 39*maxEvents+6, 40*maxEvents))
}

// TestEventsTorn cuts the file everywhere: whole lines count, the next process
// goes on behind them.
func TestEventsTorn(t *testing.T) {
	d := newDiary(t)
	d.note(3)
	line := d.f.size / 3
	for n := range d.f.size {
		torn := d.fs.Clone()
		f, err := torn.Open(d.f.name, storage.ReadWrite)
		if err != nil || f.Truncate(n) != nil {
			t.Fatal(err)
		}
		f.Close()
		after := &diary{t: t, fs: torn}
		after.restart()
		after.note(1)
		whole, first := uint64(n/line), uint64(n/line)+unknownEvents+1
		switch {
		case whole == 0:
			after.want(0, "1-1")
		default:
			after.want(0, fmt.Sprintf("1-%d [%d] %d-%d", whole, unknownEvents, first, first))
		}
	}
}

// TestEventsNoise reads files that nobody wrote so.
func TestEventsNoise(t *testing.T) {
	f := func(text, want string) {
		t.Helper()
		d := newDiary(t)
		d.f.f.WriteAt([]byte(text), 0)
		d.restart()
		d.want(0, want)
	}

	f("", "")
	f("{}\n", "")
	f("null\n[]\n", "")
	f("{\"seq\":1,\"kind\":\"x\"}\n{\"seq\":1}\n", "1-1") // twice
	f("{\"seq\":2,}\n", "")
	f("{\"seq\":1,\"kind\":\"x\"}\n{\"seq\":-1}\n", "1-1")
	f(strings.Repeat("x", maxEventFile+1), "")
}

// TestEventsFull has no room, then some: the events noted meanwhile are saved,
// as far as they are kept still, and nothing is torn.
func TestEventsFull(t *testing.T) {
	d := newDiary(t)
	d.note(3)
	f := func(kind string, err error) {
		t.Helper()
		d.fs.Fail(kind+":events", 0, err)
		if got := d.note(2); !errors.Is(got, syscall.ENOSPC) {
			t.Fatalf("saved: %v", got)
		}
		d.fs.Heal()
		if err := d.note(1); err != nil {
			t.Fatal(err)
		}
	}

	f(storage.OpWrite, syscall.ENOSPC)
	f(storage.OpWrite, storage.ShortWrite{N: 10, Err: syscall.ENOSPC})
	d.want(0, "1-9")
	d.stop()
	d.restart()
	d.want(0, "1-9")
}

// TestEventsRenewFails keeps the old file when there is no room for a new one.
func TestEventsRenewFails(t *testing.T) {
	f := func(kind string) {
		t.Helper()
		d := newDiary(t)
		d.note(3)
		d.fs.Fail(kind, 1, syscall.ENOSPC)
		if err := d.f.renew(d.e); !errors.Is(err, syscall.ENOSPC) {
			t.Fatalf("renewed: %v", err)
		}
		if err := d.note(1); err != nil {
			t.Fatal(err)
		}
		d.stop()
		d.restart()
		d.want(0, "1-4")
	}

	f(storage.OpOpen + ":.tmp")
	f(storage.OpWrite + ":.tmp")
	f(storage.OpSync + ":.tmp")
	f(storage.OpRename)
}

// TestEventsNoFile cannot make the file at the start, and does so later.
func TestEventsNoFile(t *testing.T) {
	d := newDiary(t)
	d.fs.Fail(storage.OpOpen, 1, syscall.ENOSPC)
	d.fs.Remove(d.f.name)
	d.e, d.f = &events{}, &eventFile{fs: d.fs, name: d.f.name}
	if err := d.f.load(d.e); !errors.Is(err, syscall.ENOSPC) {
		t.Fatal(err)
	}
	if err := d.note(2); err != nil {
		t.Fatal(err)
	}
	d.stop()
	d.restart()
	d.want(0, "1-2")
}

// lines returns the lines of the events that a broker has.
func lines(b *Broker) (all []string) {
	for since := uint64(0); ; {
		found, _, wake := b.events.after(since, maxEvents)
		if wake != nil {
			return all
		}
		for _, v := range found {
			all = append(all, v.line)
			since = v.seq
		}
	}
}

// TestEventsOverRestart stops a broker and starts it again, on a disk that does
// not answer where the events are, then.
func TestEventsOverRestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fs, network := storage.NewMemFS(1), wire.NewMemNet()
		life := func(port int) []string {
			ln, err := network.Listen(fmt.Sprintf("broker:%d", port))
			if err != nil {
				t.Fatal(err)
			}
			l := run(t, fs, "data", ln)
			c := dial(t, network, fmt.Sprintf("broker:%d", port))
			defer c.Close()
			createOn(t, c, fmt.Sprintf("topic%d", port), 1)
			all := lines(l.b)
			if err := l.stop(); err != nil {
				t.Fatal(err)
			}
			return all
		}
		life(1)
		heal := make(chan struct{})
		fs.BeforeOp(func(op storage.Op) error {
			if op.Kind == storage.OpWrite && strings.HasSuffix(op.Name, eventsName) {
				<-heal
			}
			return nil
		})
		all := life(2)
		want := []string{`"start"`, `"topic_created","fields":{"topic":"topic1"`, `"stop"`, `"start"`, `"topic_created","fields":{"topic":"topic2"`}
		if len(all) != len(want) {
			t.Fatalf("%d events: %v", len(all), all)
		}
		for i := range want {
			if !strings.HasPrefix(all[i], fmt.Sprintf(`{"seq":%d,`, i+1)) || !strings.Contains(all[i], `"kind":`+want[i]) {
				t.Errorf("event %d is %s, want %s", i+1, all[i], want[i])
			}
		}
		close(heal)
	})
}

// TestEventsKillEarly kills a process that had noted nothing since a stop in
// order: that the stop was in order says nothing of what came after.
func TestEventsKillEarly(t *testing.T) {
	d := newDiary(t)
	d.note(3)
	d.stop()
	d.restart()
	d.restart()
	d.note(1)
	d.want(3, fmt.Sprintf("[%d] %d-%d", unknownEvents, unknownEvents+4, unknownEvents+4))
}
