package broker

import (
	"strings"
	"testing"
	"time"

	"github.com/teralog/teralog/storage"
	"github.com/teralog/teralog/wire"
)

func TestMarks(t *testing.T) {
	m := Marks{85, 92, 97}
	is := roomy
	f := func(used float64, want fill) {
		t.Helper()
		if is = m.after(is, used); is != want {
			t.Fatalf("at %v %%: %v, want %v", used, is, want)
		}
	}
	f(84.9, roomy)
	f(85, warned)
	f(84.1, warned) // a point below
	f(83.9, roomy)
	f(92, refusing)
	f(91.5, refusing)
	f(97, protected)
	f(96, protected)
	f(95.9, refusing)
	f(91.1, refusing)
	f(90.9, warned)
	f(100, protected)
	f(10, roomy)
	f(98, protected) // several at once

	m = Marks{Warn: 100, Refuse: 100, Protect: 100}
	f(100, roomy) // never
	m = Marks{50, 50, 100}
	f(50, refusing)
	f(49.5, refusing)
	f(48, roomy)
}

// TestFull fills a disk up to each mark, and empties it by deleting.
func TestFull(t *testing.T) {
	r := newRig(t, func(c *Config) { c.Disk = Marks{40, 60, 80} })
	const capacity = 32 << 20
	r.fs.SetCapacity(capacity)
	old, kept := r.create("old", 1), r.create("kept", 1)
	r.write(kept, 0, "v")
	g := &r.b.gauges[0]
	look := func() fill { r.settle(); r.b.look(g); return g.at() }
	events := func(kind, limit string) (n int) {
		found, _, _ := r.b.events.after(0, maxEvents)
		for _, e := range found {
			if strings.Contains(e.line, `"`+kind+`"`) && strings.Contains(e.line, `"`+limit+`"`) {
				n++
			}
		}
		return n
	}
	value := strings.Repeat("v", 900_000)
	produce := func(topic wire.TopicID) wire.ProduceResult {
		return r.send(batchOf(t, wire.BuilderOptions{Topic: topic}, value))[0]
	}
	for look() < refusing {
		if res := produce(old); res.Code != wire.CodeOK {
			t.Fatalf("%v at %d %%: %s", res.Code, g.used.Load(), res.Message)
		}
	}
	if events("limit_reached", "disk-warn") != 1 || events("limit_reached", "disk-refuse") != 1 {
		t.Fatal("the marks passed are no events")
	}
	res := produce(kept)
	if res.Code != wire.CodeDiskFull || res.RetryAfterMillis != 1000 || !strings.Contains(res.Message, "% of the disk of data are used") || !strings.Contains(res.Message, "disk-refuse") {
		t.Fatalf("%+v", res)
	}
	// All else goes on.
	third := r.create("third", 1)
	if got := r.readAll(kept, 0); len(got) != 1 {
		t.Fatal(got)
	}
	do := func(req, resp wire.Message) wire.Code { return wire.CodeOf(r.ask(req, resp)) }
	if c := do(&wire.InitProducerRequest{}, &wire.InitProducerResponse{}); c != wire.CodeOK {
		t.Fatal(c)
	}

	// Somebody else fills it further.
	_, free, _ := r.fs.Space("data")
	r.fs.SetCapacity(capacity - free + capacity/20)
	if look() != protected {
		t.Fatalf("%d %% used", g.used.Load())
	}
	if c := do(&wire.CreateTopicRequest{Name: "fourth", Partitions: 1}, &wire.CreateTopicResponse{}); c != wire.CodeDiskFull {
		t.Fatal(c)
	}
	if c := do(&wire.InitProducerRequest{}, &wire.InitProducerResponse{}); c != wire.CodeDiskFull {
		t.Fatal(c)
	}
	if got := r.readAll(kept, 0); len(got) != 1 {
		t.Fatal(got)
	}
	trim := r.begin(&wire.TrimRequest{Topic: old, Before: 1}, &wire.TrimResponse{})
	r.pass(10 * time.Second)
	if trim.answers != 1 || trim.err != nil {
		t.Fatal(trim.answers, trim.err)
	}
	r.delete(old)
	r.delete(third)
	r.pass(30 * time.Second)
	if look() != roomy || events("limit_left", "disk-protect") != 1 {
		t.Fatalf("%d %% used, %v", g.used.Load(), g.at())
	}
	if res := produce(kept); res.Code != wire.CodeOK {
		t.Fatalf("%+v", res)
	}
	if n := r.b.refusals[wire.LimitDiskFull].n.Load(); n != 3 {
		t.Fatalf("%d refusals counted", n)
	}
}

// TestDiskSlow has one of two disks take no flush for ten seconds. What is
// flushed in the background is acknowledged all the while, until the bound: then
// nothing more is produced to that disk, until it has been well for as long.
// Readers and the other disk notice nothing.
func TestDiskSlow(t *testing.T) {
	inTown(t, func(c *Config) { c.DataDirs, c.DiskSlow = []string{"one", "two"}, 3*time.Second }, func(t *testing.T, l *town) {
		c := dial(t, l.net, "main:1")
		defer c.Close()
		id := createOn(t, c, "t", 2)
		image := l.b.Image()
		on := map[string]int32{}
		for n, place := range image.TopicByID(id).Partitions {
			on[l.b.directory(place.Dir).Path()] = int32(n)
		}
		if len(on) != 2 {
			t.Fatal(on)
		}
		release := make(chan struct{})
		l.fs.BeforeOp(func(op storage.Op) error {
			if op.Kind == storage.OpSync && strings.HasPrefix(op.Name, "one/topics/") {
				<-release
			}
			return nil
		})
		send := func(dir string) wire.ProduceResult {
			return sendOn(t, c, batchOf(t, wire.BuilderOptions{Topic: id, Partition: on[dir]}, "v"))[0]
		}
		began := time.Now()
		sent, refused := 0, time.Duration(0)
		for ; time.Since(began) < 10*time.Second; time.Sleep(100 * time.Millisecond) {
			now := time.Now()
			switch r := send("one"); {
			case r.Code == wire.CodeOK && refused == 0:
				sent++
			case r.Code == wire.CodeDiskSlow && r.RetryAfterMillis > 0:
				if refused == 0 {
					refused = time.Since(began)
				}
			default:
				t.Fatalf("after %v: %+v", time.Since(began), r)
			}
			if r := send("two"); r.Code != wire.CodeOK {
				t.Fatalf("the other disk: %+v", r)
			}
			if time.Since(now) != 0 {
				t.Fatalf("an answer took %v", time.Since(now))
			}
		}
		// The flush began within a second, and is looked at every half.
		if refused < 3*time.Second || refused > 5*time.Second {
			t.Fatalf("refused from %v on", refused)
		}
		var resp wire.FetchResponse
		do(t, c, fetchOf(id, on["one"], 0), &resp)
		if resp.Partitions[0].Committed != wire.Offset(sent) {
			t.Fatalf("%d acknowledged, readers see %d", sent, resp.Partitions[0].Committed)
		}
		close(release)
		healed := time.Now()
		for taken := 0; taken < 2; { // a probe is one alone
			if taken++; send("one").Code != wire.CodeOK {
				taken = 0
				time.Sleep(100 * time.Millisecond)
			}
		}
		if took := time.Since(healed); took < 3*time.Second || took > 7*time.Second {
			t.Fatalf("let in again after %v", took)
		}
		if l.b.refusals[wire.LimitDiskSlow].n.Load() == 0 {
			t.Fatal("not counted")
		}
	})
}
