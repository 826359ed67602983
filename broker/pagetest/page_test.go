package pagetest

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/teralog/teralog/broker"
	"github.com/teralog/teralog/client"
	"github.com/teralog/teralog/wire"
)

// A node is a broker with a console, which keeps its addresses when it is
// started again.
type node struct {
	t            *testing.T
	dir          string
	listen, http string
	stop         func()
	producer     *client.Producer
}

func newNode(t *testing.T) *node {
	n := &node{t: t, dir: t.TempDir(), listen: "127.0.0.1:0", http: "127.0.0.1:0"}
	n.start()
	t.Cleanup(func() { n.stop() })
	return n
}

func (n *node) start() {
	n.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	r, w := io.Pipe()
	ended := make(chan error, 1)
	go func() {
		args := []string{"--data-dir", n.dir, "--listen", n.listen, "--http", n.http, "--reserve", "1MiB",
			"--disk-warn", "100", "--disk-refuse", "100", "--disk-protect", "100"} // however full the machine's disk is
		err := broker.Serve(ctx, args, nil, w, io.Discard)
		w.CloseWithError(io.EOF)
		ended <- err
	}()
	n.stop = func() {
		cancel()
		if err := <-ended; err != nil {
			n.t.Errorf("the broker ends with %v", err)
		}
		n.stop = func() {}
	}
	line, err := bufio.NewReader(r).ReadString('\n')
	if err != nil {
		n.t.Fatalf("no line: %v", <-ended)
	}
	n.listen, n.http = after(line, "listen "), after(line, "http ")
}

// after returns what stands in a ready line between a word and a comma.
func after(line, word string) string {
	_, rest, _ := strings.Cut(line, word)
	addr, _, _ := strings.Cut(rest, ",")
	return addr
}

// load makes topics, writes a few records that are hard to show, and produces to
// one of the topics until the test ends.
func (n *node) load() {
	n.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	c, err := client.New(client.Options{Servers: []string{n.listen}})
	if err != nil {
		n.t.Fatal(err)
	}
	for name, partitions := range map[string]int32{"hard": 1, "busy": 150, "idle": 2} {
		if _, err := c.CreateTopic(ctx, client.TopicSpec{Name: name, Partitions: partitions, Settings: []wire.Setting{{Key: "flush", Value: "sync"}}}); err != nil {
			n.t.Fatal(err)
		}
	}
	p, err := c.NewProducer(client.ProducerOptions{})
	if err != nil {
		n.t.Fatal(err)
	}
	n.producer = p
	text := func(s string) []byte { return []byte(s) }
	for _, r := range []client.Record{
		{Key: text("plain"), Value: text(`{"id": 12345678901234567890, "list": [1, {}]}`)},
		{},
		{Key: []byte{}, Value: []byte{}},
		{Key: text("null"), Value: text("null")},
		{Key: text("<b>key</b>"), Value: text("<img src=x onerror='pwned=1'><script>pwned=1</script>"), Headers: []wire.Header{{Key: text("<i>name</i>"), Value: text("<script>pwned=1</script>")}}},
		{Key: []byte{0, 1, 0xfe}, Value: []byte("\x00binary\xff")},
		{Key: text("long"), Value: []byte(strings.Repeat("0123456789", 1000))},
	} {
		r.Topic = "hard"
		n.write(r)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for i := 0; ctx.Err() == nil; i++ {
			// One record waits for the other, so there is a rate at any speed of
			// the machine.
			p.Produce(ctx, client.Record{Topic: "busy", Key: fmt.Append(nil, i), Value: text("v")})
		}
	}()
	n.t.Cleanup(func() {
		cancel()
		<-ended
		c.Close()
	})
}

// write writes one record, and returns once it is there.
func (n *node) write(r client.Record) {
	n.t.Helper()
	if _, err := n.producer.Produce(context.Background(), r); err != nil {
		n.t.Fatal(err)
	}
}

// helpers are what the test asks the page with.
const helpers = `
	tile = (name) => [...document.querySelectorAll(".tile")].find((t) => t.querySelector(".name").textContent === name).querySelector("b").textContent;
	row = (n) => [...document.querySelectorAll(".record")].find((r) => r.querySelector(".offset").textContent === String(n));
	cell = (n, part) => row(n).querySelector("summary ." + part);
	lastPre = (n) => [...row(n).querySelectorAll("pre")].at(-1);
	head = (name) => [...document.querySelectorAll("th button")].find((b) => b.textContent.startsWith(name));
	first = () => document.querySelector("tbody tr td").textContent;
`

// TestConsole opens the console and looks at it as a person does.
func TestConsole(t *testing.T) {
	if testing.Short() {
		t.Skip("a browser takes some seconds")
	}
	b := openTab(t, 1280, 900)
	n := newNode(t)
	n.load()
	b.open("http://" + n.http + "/")
	b.await(`document.getElementById("standing").textContent === "ready"`)
	b.eval(helpers, nil)
	at := func(part string) {
		t.Helper()
		b.eval(fmt.Sprintf(`location.hash = %q`, part), nil)
	}

	// A live rate, as a number and as a line that grows.
	b.await(`tile("State") === "well"`)
	b.await(`/^[0-9.]+ k?B\/s$/.test(tile("Produced")) && tile("Produced") !== "0 B/s"`)
	b.await(`document.querySelector(".chart polyline").getAttribute("points").split(" ").length >= 3`)
	b.await(`/^[0-9.]+ (µs|ms|s)$/.test(tile("Produce P99"))`)
	b.await(`tile("Topics") === "3"`)
	b.await(`[...document.querySelectorAll(".events b")].some((e) => e.textContent === "topic_created")`)

	// The chart by keyboard.
	b.eval(`document.querySelector(".chart svg").focus(); document.querySelector(".chart svg").dispatchEvent(new KeyboardEvent("keydown", { key: "ArrowLeft", bubbles: true }))`, nil)
	b.await(`!document.querySelector(".chart .tip").hidden && document.querySelector(".chart .tip").textContent.includes("produced")`)

	// Topics, in another order; a live rate there, too.
	at("#/topics")
	b.await(`first() === "busy"`)
	b.await(`/^[0-9].*\/s$/.test(document.querySelector("tbody tr").children[5].textContent) && document.querySelector("tbody tr").children[5].textContent !== "0/s"`)
	b.eval(`head("Partitions").click()`, nil)
	b.await(`head("Partitions").closest("th").getAttribute("aria-sort") === "descending" && first() === "busy"`)
	b.eval(`head("Partitions").click()`, nil)
	b.await(`first() === "hard"`)

	// Partitions, a page at a time.
	at("#/topics/busy")
	b.await(`first() === "0" && document.querySelectorAll("tbody tr").length === 100`)
	b.eval(`[...document.querySelectorAll(".pager button")].find((b) => b.textContent.includes("Next")).click()`, nil)
	b.await(`first() === "100" && document.querySelectorAll("tbody tr").length === 50`)

	// Records: the produced one; null, empty and the word null; markup; bytes.
	at("#/records?topic=hard&at=oldest")
	b.await(`row(0) && cell(0, "key").textContent === "plain"`)
	b.await(`cell(1, "key").querySelector(".badge").textContent === "null" && cell(1, "value").querySelector(".badge").textContent === "null"`)
	b.await(`cell(2, "key").querySelector(".badge").textContent === "empty" && cell(2, "value").querySelector(".badge").textContent === "empty"`)
	b.await(`cell(3, "key").textContent === "null" && !cell(3, "key").querySelector(".badge")`)
	b.await(`cell(4, "key").textContent === "<b>key</b>"`)
	b.await(`cell(5, "value").textContent.startsWith("00 62 69 6e")`)
	b.eval(`document.querySelectorAll(".record").forEach((d) => d.open = true)`, nil)
	b.await(`lastPre(0).textContent.includes('{\n  "id": 12345678901234567890,\n  "list": [\n    1,\n    {}\n  ]\n}')`)
	b.await(`row(4).querySelector("tbody th").textContent === "<i>name</i>" && row(4).querySelector("tbody td").textContent.includes("<script>pwned=1</script>")`)
	b.await(`lastPre(5).textContent.includes("000000  00 62 69 6e 61 72 79 ff")`)
	b.await(`row(6).querySelector(".whole").textContent.includes("cut after 4.10 kB")`)
	b.eval(`row(6).querySelector(".note a").textContent === "fetch all 10.0 kB" ? fetch(row(6).querySelector(".note a").href).then((r) => r.text()).then((t) => { whole = t.length }) : null`, nil)
	b.await(`whole === 10000`)
	b.await(`document.querySelectorAll(".records b, .records i, .records script, .records img").length === 0 && typeof pwned === "undefined"`)

	// The newest, as they come, where no others push them off the page; those that match, too.
	at("#/records?topic=idle&partition=1")
	b.await(`document.querySelector(".live")`)
	n.write(client.Record{Topic: "idle", Partition: 1, Pinned: true, Value: []byte("one more")})
	b.await(`[...document.querySelectorAll(".record .value")].some((v) => v.textContent === "one more")`)
	at("#/records?topic=idle&partition=1&value=*more")
	b.await(`!document.querySelector(".live").hidden && document.querySelectorAll(".record").length === 1`)
	n.write(client.Record{Topic: "idle", Partition: 1, Pinned: true, Value: []byte("and no more")})
	b.await(`document.querySelectorAll(".record").length === 2 && document.querySelector(".record .value").textContent === "and no more"`)

	// What matches, and nothing; a slip is told.
	at("#/records?topic=hard&at=oldest")
	b.await(`row(0)`)
	b.eval(`document.querySelector("[name=key]").value = "*key*"; document.querySelector("form").requestSubmit()`, nil)
	b.await(`document.querySelectorAll(".record").length === 1 && row(4)`)
	b.eval(`document.querySelector("[name=key]").value = "nobody"; document.querySelector("form").requestSubmit()`, nil)
	b.await(`document.querySelector(".records").textContent === "None matched."`)
	at("#/topics/%zz")
	b.await(`document.querySelector(".notice.bad:not([hidden])").textContent.includes('no topic "%zz"')`)
	at("#/records?topic=none")
	b.await(`document.querySelector("[role=alert].notice").textContent.includes('no topic "none"')`)
	at("#/records?topic=hard&at=offset&offset=2")
	b.await(`row(2) && !row(1)`)
	b.eval(`[...document.querySelectorAll(".pager button")].find((b) => b.textContent.includes("Older")).click()`, nil)
	b.await(`row(0) && row(1) && !row(2)`)
	for _, s := range b.complaints() {
		if !strings.Contains(s, "404 (Not Found)") { // of the topics that are not there
			t.Errorf("the page complains: %s", s)
		}
	}

	// On a phone nothing is wider than it, and in the dark it is dark.
	b.size(360, 800, true)
	for _, part := range []string{"#/", "#/topics", "#/topics/hard", "#/records?topic=hard&at=oldest"} {
		at(part)
		b.await(`document.querySelector("main > *") && document.documentElement.scrollWidth <= 360`)
	}
	b.size(1280, 900, false)
	b.eval(`light = getComputedStyle(document.body).backgroundColor`, nil)
	b.dark(true)
	b.await(`getComputedStyle(document.body).backgroundColor !== light`)

	// The broker goes and comes; the page says so and goes on by itself.
	at("#/")
	n.stop()
	b.await(`!document.getElementById("away").hidden && document.getElementById("standing").textContent === "away"`)
	n.start()
	b.await(`document.getElementById("away").hidden && document.getElementById("standing").textContent === "ready"`)
	b.await(`/^[0-9.]+ k?B\/s$/.test(tile("Produced")) && tile("Produced") !== "0 B/s"`)
}
