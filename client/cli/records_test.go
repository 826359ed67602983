package cli

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"hash"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/teralog/teralog/wire"
)

// TestProduce writes records in every way and looks at what came of them.
func TestProduce(t *testing.T) {
	s := newShell(t)
	s.run("topic create t -p 3", "")
	next := 0 // of partition 2
	f := func(flags, in, out string, want ...string) {
		t.Helper()
		s.prints("produce t -p 2 "+flags, in, out)
		from := next
		next += len(want)
		until := "--until-end"
		if len(want) > 0 {
			until = fmt.Sprintf("-n %d", len(want)) // with acks 0 they may still be on their way
		}
		got := s.run(fmt.Sprintf("consume t -p 2 --from %d %s -o jsonl", from, until), "")
		lines := strings.Split(strings.TrimSuffix(got, "\n"), "\n")
		if len(want) == 0 {
			lines = nil
		}
		if len(lines) != len(want) {
			t.Fatalf("produce %s: %d records, want %d:\n%s", flags, len(lines), len(want), got)
		}
		for i, line := range lines {
			_, tail, _ := strings.Cut(line, `"leaderEpoch":0,`)
			if tail != want[i]+"}" || !strings.HasPrefix(line, fmt.Sprintf(`{"topic":"t","partition":2,"offset":%d,`, from+i)) {
				t.Fatalf("produce %s: record %d is\n%s\nwant\n%s", flags, i, line, want[i])
			}
		}
	}

	f("", "", "")
	f("", "a\n\nlast", "t/2@0\nt/2@1\nt/2@2\n",
		`"key":null,"value":"a","headers":[]`, `"key":null,"value":"","headers":[]`, `"key":null,"value":"last","headers":[]`)
	f("-q", "kept \r\n", "", `"key":null,"value":"kept \r","headers":[]`)
	f("-q -Z", "\n", "", `"key":null,"value":null,"headers":[]`)
	f("-q -K :", "k:v:w\n:v\n", "", `"key":"k","value":"v:w","headers":[]`, `"key":"","value":"v","headers":[]`)
	f("-q -k ''", "v\n", "", `"key":"","value":"v","headers":[]`)
	f("-q -k key -H a=1 -H a=2 -H b=", "v\n", "", `"key":"key","value":"v","headers":[["a","1"],["a","2"],["b",""]]`)
	f("-o jsonl", "x\ny\n", `{"line":1,"topic":"t","partition":2,"offset":9}`+"\n"+`{"line":2,"topic":"t","partition":2,"offset":10}`+"\n",
		`"key":null,"value":"x","headers":[]`, `"key":null,"value":"y","headers":[]`)
	for _, codec := range []string{"none", "gzip", "snappy", "zstd"} {
		v := strings.Repeat(codec, 500)
		f("-q -z "+codec, v+"\n", "", `"key":null,"value":"`+v+`","headers":[]`)
	}
	f("-q --acks 1", "one\n", "", `"key":null,"value":"one","headers":[]`)
	f("-o jsonl --acks 0", "zero\n", `{"line":1,"topic":"t","partition":2,"offset":-1}`+"\n", `"key":null,"value":"zero","headers":[]`)
	f("--acks 0", "zero\n", "t/2\n", `"key":null,"value":"zero","headers":[]`)
	f("-q --input jsonl -H x=y", `{"key":null,"value":{"base64":"/w=="},"headers":[["h",null]]}`+"\n\n"+`{"topic":"other","partition":0,"value":""}`, "",
		`"key":null,"value":{"base64":"/w=="},"headers":[["h",null],["x","y"]]`, `"key":null,"value":"","headers":[["x","y"]]`)

	file := filepath.Join(t.TempDir(), "lines")
	if err := os.WriteFile(file, []byte("from\nfile\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	f("-q --file "+file, "not read\n", "", `"key":null,"value":"from","headers":[]`, `"key":null,"value":"file","headers":[]`)
}

func TestProduceFails(t *testing.T) {
	s := newShell(t)
	s.run("topic create t -p 3", "")
	s.fails("produce u", "v\n", 3, "UNKNOWN_TOPIC")
	s.fails("produce", "", 2, "0 arguments given")
	s.fails("produce t -p 3", "v\n", 2, "partitions 0 to 2")
	s.fails("produce t -p -1", "v\n", 2, "partitions 0 to 2")
	s.fails("produce t -z lz4", "v\n", 2, "-z")
	s.fails("produce t --acks 2", "v\n", 2, "0, 1, all")
	s.fails("produce t --input csv", "v\n", 2, "lines, jsonl")
	s.fails("produce t -o table", "v\n", 2, "text, jsonl")
	s.fails("produce t -H novalue", "v\n", 2, "key=value")
	s.fails("produce t --file /no/such/file", "", 1, "no such file")

	// Some of many: those that can go, go; each failure names its line.
	out := s.fails("produce t -p 0 -K : -o jsonl", "a:1\nno delimiter\nb:2\nc:"+strings.Repeat("x", 2<<20)+"\nd:3\n", 8, "line 2: no \":\" between key and value")
	for line, offset := range map[int]int{1: 0, 3: 1, 5: 2} {
		if !strings.Contains(out, fmt.Sprintf(`{"line":%d,"topic":"t","partition":0,"offset":%d}`, line, offset)) {
			t.Fatalf("line %d is not acknowledged:\n%s", line, out)
		}
	}
	if strings.Count(out, "\n") != 3 {
		t.Fatalf("acknowledged:\n%s", out)
	}
	s.fails("produce t -p 0", strings.Repeat("x", 2<<20)+"\n", 1, "TOO_LARGE")
	s.fails("produce t --input jsonl", "{}\n[]\n", 8, "line 2: ")
	s.fails("produce t --input jsonl", "nonsense\n", 1, "none of 1 records")
	s.fails("produce t --input jsonl", strings.Repeat("nonsense\n", 50), 1, "more failed")
	s.fails("produce t -q", strings.Repeat("x", maxLine+1), 1, "line 1 is longer than 16MiB")
}

// TestProduceInterrupted ends a produce that waits for its input, as Ctrl-C
// does at a terminal: what was read is delivered.
func TestProduceInterrupted(t *testing.T) {
	s := newShell(t)
	s.run("topic create t", "")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	in, typing := io.Pipe()
	defer typing.Close()
	printed, out := io.Pipe()
	ended := make(chan error, 1)
	go func() { ended <- Produce(ctx, []string{"t"}, in, out, io.Discard) }()
	go typing.Write([]byte("typed\n"))
	if line, err := bufio.NewReader(printed).ReadString('\n'); line != "t/0@0\n" {
		t.Fatal(line, err) // acknowledged while the input is still open
	}
	cancel()
	err := <-ended
	if coded, ok := err.(*exitError); !ok || coded.code != exitInterrupted {
		t.Fatalf("%v", err)
	}
	s.prints("consume t --until-end -o raw", "", "typed\n")
}

// TestConsume reads windows by offset and by both clocks.
func TestConsume(t *testing.T) {
	s := newShell(t)
	s.run("topic create t", "")
	for i := range 10 {
		s.run("produce t -q --input jsonl", fmt.Sprintf(`{"value":"%d","time":%d}`+"\n", i, 978_307_200_000+1000*int64((i*7)%10)))
	}
	// by offset 0 … 9, their times in seconds after 2001: 0 7 4 1 8 5 2 9 6 3
	f := func(flags, want string) {
		t.Helper()
		want = strings.ReplaceAll(want+" ", " ", "\n")
		s.prints("consume t -o raw "+flags, "", strings.TrimPrefix(want, "\n"))
	}

	f("--until-end", "0 1 2 3 4 5 6 7 8 9")
	f("--until-end --from start", "0 1 2 3 4 5 6 7 8 9")
	f("--until-end --from end", "")
	f("--until-end --from 7", "7 8 9")
	f("--until-end --from 10", "")
	f("--until-end --from +8", "8 9")
	f("--until-end --from -2", "8 9")
	f("--until-end --from -100", "0 1 2 3 4 5 6 7 8 9")
	f("--from 3:5", "3 4")
	f("--from :2", "0 1")
	f("--from 8:end", "8 9")
	f("--until-end --from 8:1000", "8 9")
	f("-n 3", "0 1 2")
	f("-n 2 --from -3", "7 8")
	f("--from 2:2", "")
	f("--from @978307203:@978307206", "2 5 9")
	f("--from @2001-01-01T00:00:08Z:2001-01-01T00:00:10Z", "4 7")
	f("--from @2001-01-01T00:00:08Z:+1s", "4")
	f("--from @:2001-01-01T00:00:02Z", "0 3")
	f("--from @2001-01-01T00:00:09Z --until-end", "7 8 9") // a place to begin, no window
	f("--from @2002-01-01 --until-end", "")
	f("--from -1h --clock append --until-end", "0 1 2 3 4 5 6 7 8 9")
	f("--from @-1h:end --clock append -n 4", "0 1 2 3")
	f("--from -1h --until-end", "")
	f("-p 0 --from 9:end", "9")

	bad := func(flags string, code int, want string) {
		t.Helper()
		s.fails("consume t "+flags, "", code, want)
	}
	bad("--from yesterday", 2, "not a place in a topic")
	bad("--from 5:3", 2, "ends before it begins")
	bad("--clock wall", 2, "event, append")
	bad("-n -1", 2, "not negative")
	bad("-p 1", 2, "partitions 0 to 0")
	bad("-p x", 2, "partitions 0 to 0")
	bad("-o xml", 2, "text, raw, jsonl")
	bad("--from 11", 7, "OUT_OF_RANGE")
	s.fails("consume u", "", 3, "UNKNOWN_TOPIC")
	s.prints("consume t --from 3:4", "", "0@3\t2001-01-01T00:00:01Z\t(null)\t3\n")
	s.run("produce t -q --input jsonl", `{"time":0,"key":"","value":"a\u001b[2Jb","headers":[["h",null],["h2","x y"]]}`+"\n")
	s.prints("consume t --from 10:11", "", "0@10\t1970-01-01T00:00:00Z\t(empty)\th=(null)\th2=x y\t\"a\\x1b[2Jb\"\n")
}

// TestConsumeWaits checks that without an end consume goes on with what comes,
// and that an interrupt is a good end.
func TestConsumeWaits(t *testing.T) {
	s := newShell(t)
	s.run("topic create t", "")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	printed, out := io.Pipe()
	ended := make(chan error, 1)
	go func() { ended <- Consume(ctx, []string{"t", "-o", "raw", "--from", "end"}, nil, out, io.Discard) }()
	lines := bufio.NewReader(printed)
	got := make(chan string)
	go func() {
		for {
			line, err := lines.ReadString('\n')
			if err != nil {
				close(got)
				return
			}
			got <- line
		}
	}()
	seen := ""
	for i := 0; seen == ""; i++ { // from the end as it finds it, which may be any
		s.run("produce t -q", fmt.Sprintf("%d\n", i))
		select {
		case seen = <-got:
		default:
		}
	}
	n, err := strconv.Atoi(strings.TrimSpace(seen))
	if err != nil {
		t.Fatal(err)
	}
	s.run("produce t -q", "last\n")
	for line := ""; line != "last\n"; n++ {
		if line = <-got; line != "last\n" && line != fmt.Sprintf("%d\n", n+1) {
			t.Fatalf("%q follows %d", line, n)
		}
	}
	cancel()
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	out.Close()
}

// TestRoundTrip pipes what consume prints into produce: the copy has the same
// keys, values, headers and times, whatever bytes they are.
func TestRoundTrip(t *testing.T) {
	s := newShell(t)
	s.run("topic create a -p 4", "")
	s.run("topic create b -p 4", "")
	var in bytes.Buffer
	odd := [][]byte{nil, {}, []byte("plain"), {0xff, 0xfe}, []byte("\x00\n\t\"\\ü\u2028"), []byte(`{"base64":"AA=="}`)}
	for i, k := range odd {
		for j, v := range odd {
			in.Write(appendLine(nil, &line{Topic: "a", Time: int64(1000*i + j), Key: k, Value: v,
				Headers: []wire.Header{{Key: []byte("h"), Value: v}, {Key: []byte("h"), Value: k}, {Key: nonNil(k), Value: nil}}}))
		}
	}
	s.run("produce a --input jsonl -q", in.String())
	first := s.run("consume a --until-end -o jsonl", "")
	s.run("produce b --input jsonl -q -z zstd", first)
	second := s.run("consume b --until-end -o jsonl", "")
	records := func(text string) map[string]int {
		all := map[string]int{}
		for _, l := range strings.Split(strings.TrimSuffix(text, "\n"), "\n") {
			r, hasTime, err := parseLine([]byte(l))
			if err != nil || !hasTime {
				t.Fatal(l, err)
			}
			all[fmt.Sprintf("%d %#v %#v %#v", r.Time, r.Key, r.Value, r.Headers)]++
		}
		return all
	}
	a, b := records(first), records(second)
	if len(a) != len(odd)*len(odd) || len(b) != len(a) {
		t.Fatalf("%d records, and %d in the copy", len(a), len(b))
	}
	for r, n := range a {
		if b[r] != n {
			t.Fatalf("%s is %d times in the copy", r, b[r])
		}
	}
}

// TestFlights loads the flights, keyed by origin and with their own times,
// and reads them back whole and by windows: what their file says is found.
func TestFlights(t *testing.T) {
	if testing.Short() || race {
		t.Skip("231,083 records take their time")
	}
	var truth struct {
		Records int
		PerKey  map[string]struct {
			Records int
			SHA256  string
		}
		Windows []struct {
			From, To          string
			Records, DelaySum int
		}
	}
	text, err := os.ReadFile("../../testdata/flights/flights-2001.expect.json")
	if err == nil {
		err = json.Unmarshal(text, &truth)
	}
	if err != nil {
		t.Fatal(err)
	}
	file, err := os.Open("../../testdata/flights/flights-2001.csv.gz")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	z, err := gzip.NewReader(file)
	if err != nil {
		t.Fatal(err)
	}
	s := newShell(t)
	s.run("topic create flights -p 6", "")
	name := filepath.Join(t.TempDir(), "flights.jsonl")
	var buf bytes.Buffer
	lines := bufio.NewScanner(z)
	lines.Scan() // the names of the columns
	for lines.Scan() {
		at, err := time.Parse("200601021504", "2001"+lines.Text()[:8])
		if err != nil {
			t.Fatal(err)
		}
		buf.Write(appendLine(nil, &line{Time: at.UnixMilli(), Key: []byte(strings.Split(lines.Text(), ",")[3]), Value: lines.Bytes()}))
	}
	if err := os.WriteFile(name, buf.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	acked := s.run("produce flights --input jsonl -o jsonl --file "+name, "")
	if n := strings.Count(acked, "\n"); n != truth.Records {
		t.Fatalf("%d records are acknowledged, want %d", n, truth.Records)
	}
	type seen struct {
		n    int
		hash hash.Hash
	}
	keys := map[string]*seen{}
	for l := range strings.Lines(s.run("consume flights --until-end -o jsonl", "")) {
		_, l, _ = strings.Cut(l, `"key":"`) // nothing in them needs an escape
		key, l, _ := strings.Cut(l, `","value":"`)
		value, _, _ := strings.Cut(l, `"`)
		k := keys[key]
		if k == nil {
			k = &seen{hash: sha256.New()}
			keys[key] = k
		}
		if k.n++; k.n > 1 {
			k.hash.Write([]byte{'\n'})
		}
		io.WriteString(k.hash, value)
	}
	if len(keys) != len(truth.PerKey) {
		t.Fatalf("%d keys, want %d", len(keys), len(truth.PerKey))
	}
	for key, want := range truth.PerKey {
		k := keys[key]
		if k == nil || k.n != want.Records || hex.EncodeToString(k.hash.Sum(nil)) != want.SHA256 {
			t.Fatalf("key %s: %+v, want %+v", key, k, want)
		}
	}
	for _, w := range truth.Windows {
		n, sum := 0, 0
		for l := range strings.Lines(s.run(fmt.Sprintf("consume flights --from @%s:%s -o raw", w.From, w.To), "")) {
			delay, err := strconv.Atoi(strings.Split(l, ",")[1])
			if err != nil {
				t.Fatal(err)
			}
			n, sum = n+1, sum+delay
		}
		if n != w.Records || sum != w.DelaySum {
			t.Fatalf("window %s to %s: %d records, delay %d; want %d, %d", w.From, w.To, n, sum, w.Records, w.DelaySum)
		}
	}
}
