package broker

import (
	"encoding/json"
	"fmt"
	"math"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/teralog/teralog/wire"
)

// put writes one batch of records.
func (r *rig) put(topic wire.TopicID, o wire.BuilderOptions, records ...wire.Record) {
	r.t.Helper()
	o.Topic, o.MaxBytes = topic, wire.MaxBatchBytes
	b := wire.NewBuilder(o)
	for i, rec := range records {
		if ok, err := b.Add(rec.Time, rec.Key, rec.Value, rec.Headers); !ok || err != nil {
			r.t.Fatalf("record %d: %v", i, err)
		}
	}
	built, err := b.Build()
	if err != nil {
		r.t.Fatal(err)
	}
	defer built.Release()
	if res := r.send(append(wire.Batch(nil), built.B...))[0]; res.Code != wire.CodeOK {
		r.t.Fatalf("put: %v: %s", res.Code, res.Message)
	}
}

func offsets(p *recordPage) (all []wire.Offset) {
	for _, r := range p.Records {
		all = append(all, r.Offset)
	}
	return all
}

// TestSearchRecords walks back and forth through batches of five records.
func TestSearchRecords(t *testing.T) {
	r := newRig(t)
	defer r.stop()
	id := r.create("t", 2)
	start := r.now.Wall - 100_000 // a record a second, up to now
	for n := range 20 {
		var batch []wire.Record
		for i := range 5 {
			batch = append(batch, wire.Record{Time: start + int64(5*n+i)*1000, Key: fmt.Appendf(nil, "key-%d", (5*n+i)%10), Value: fmt.Appendf(nil, "%d", 5*n+i),
				Headers: []wire.Header{{Key: []byte("n"), Value: fmt.Appendf(nil, "%d", n)}}})
		}
		r.put(id, wire.BuilderOptions{Codec: []wire.Codec{wire.None, wire.Zstd}[n%2]}, batch...)
	}
	f := func(query string, from, to wire.Offset, want ...wire.Offset) {
		t.Helper()
		p := asked[recordPage](t, r.b, "/api/records?topic=t&partition=0&"+query)
		if got := offsets(&p); !slices.Equal(got, want) || p.From != from || p.To != to || p.Start != 0 || p.Committed != 100 || p.Stopped || len(p.Damaged) > 0 {
			t.Fatalf("%s: %v, looked at %d to %d %+v; want %v, %d to %d", query, got, p.From, p.To, p, want, from, to)
		}
		for _, rec := range p.Records {
			if *rec.Value.Text != fmt.Sprint(rec.Offset) {
				t.Fatalf("the record at %d has the value %s", rec.Offset, *rec.Value.Text)
			}
		}
	}

	f("limit=3", 0, 3, 0, 1, 2)
	f("offset=3&limit=4", 3, 7, 3, 4, 5, 6) // over the end of a batch
	f("offset=98", 98, 100, 98, 99)
	f("offset=100", 100, 100)
	f("before=7&limit=4", 3, 7, 3, 4, 5, 6)
	f("before=3", 0, 3, 0, 1, 2)
	f("before=0", 0, 0)
	f("before=9007199254740991&limit=2", 98, 100, 98, 99) // the newest

	// From a time on.
	f(fmt.Sprintf("time=%d&limit=2", start+41_000), 41, 43, 41, 42)
	f(fmt.Sprintf("time=%d&limit=2", start+40_001), 41, 43, 41, 42)
	f("time=-10s&limit=2", 90, 92, 90, 91)
	f("time=2001-01-01&limit=1", 0, 1, 0)
	f(fmt.Sprintf("time=%d", start+99_001), 100, 100) // younger than all

	// What matches, which takes looking at more.
	f("key=key-7&limit=3", 0, 28, 7, 17, 27)
	f("offset=18&key=key-7&limit=2", 18, 38, 27, 37)
	f("before=27&key=key-7", 0, 27, 7, 17)
	f("before=100&key=key-7&limit=2", 85, 100, 87, 97)
	f("key=key-77", 0, 100)
	f("key=*-7&limit=1", 0, 8, 7)
	f("value=9*&limit=2", 0, 91, 9, 90)
	f("value=*9&offset=80", 80, 100, 89, 99)
	f("header=n=3", 0, 100, 15, 16, 17, 18, 19)
	f("header=n&limit=1", 0, 1, 0)
	f("header=m", 0, 100)
	f("header=n=3&key=key-7", 0, 100, 17)
	if p := asked[recordPage](t, r.b, "/api/records?topic=t&key=key-7&limit=3"); p.Looked != 28 {
		t.Fatalf("looked at %d", p.Looked)
	}
	if p := asked[recordPage](t, r.b, "/api/records?topic=t&partition=1"); p.Records == nil || len(p.Records) != 0 || p.To != 0 {
		t.Fatalf("of an empty partition: %+v", p)
	}
	if n := asked[recordPage](t, r.b, "/api/records?topic=t"); len(n.Records) != 50 {
		t.Fatalf("%d records where no limit is given", len(n.Records))
	}

	// After a trim, the rest; what was before it is out of range.
	trimmed := r.begin(&wire.TrimRequest{Topic: id, Partition: 0, Before: 42}, &wire.TrimResponse{})
	if r.pass(time.Minute); trimmed.answers != 1 || trimmed.err != nil {
		t.Fatal(trimmed.err)
	}
	if p := asked[recordPage](t, r.b, "/api/records?topic=t&before=44"); p.Start != 42 || p.From != 42 || !slices.Equal(offsets(&p), []wire.Offset{42, 43}) {
		t.Fatalf("%+v", p)
	}
	if p := asked[recordPage](t, r.b, "/api/records?topic=t&limit=1"); p.From != 42 || !slices.Equal(offsets(&p), []wire.Offset{42}) {
		t.Fatalf("%+v", p)
	}
	refused(t, r.b, "/api/records?topic=t&before=41", 404, "OUT_OF_RANGE", "offset 41 is outside 42 to 100")
	refused(t, r.b, "/api/records?topic=t&offset=41", 404, "OUT_OF_RANGE", "offset 41 is outside 42 to 100")
	refused(t, r.b, "/api/records?topic=t&offset=101", 404, "OUT_OF_RANGE", "offset 101 is outside 42 to 100")
	if used := r.b.server.Budget.Used(); used != 0 {
		t.Fatalf("%d bytes are still charged", used)
	}
}

func TestSearchRefused(t *testing.T) {
	r := newRig(t)
	defer r.stop()
	r.create("t", 1)
	f := func(query string, status int, code, words string) {
		t.Helper()
		refused(t, r.b, "/api/records?"+query, status, code, words)
	}

	f("", 400, "INVALID_REQUEST", "which topic?")
	f("topic=none", 404, "UNKNOWN_TOPIC", `no topic "none"`)
	f("topic=<b>", 404, "UNKNOWN_TOPIC", `no topic "<b>"`)
	f("topic=t&partition=1", 404, "UNKNOWN_PARTITION", "1 partitions")
	f("topic=t&partition=-1", 400, "INVALID_REQUEST", `partition is "-1"`)
	f("topic=t&partition=2147483648", 400, "INVALID_REQUEST", "partition")
	f("topic=t&limit=201", 400, "INVALID_REQUEST", "from 1 to 200")
	f("topic=t&limit=0", 400, "INVALID_REQUEST", "from 1 to 200")
	f("topic=t&offset=-1", 400, "INVALID_REQUEST", "not below 0")
	f("topic=t&offset=1e3", 400, "INVALID_REQUEST", "whole number")
	f("topic=t&offset=1", 404, "OUT_OF_RANGE", "outside 0 to 0")
	f("topic=t&before=x", 400, "INVALID_REQUEST", "before")
	f("topic=t&time=yesterday", 400, "INVALID_REQUEST", `"yesterday" is not a time`)
	f("topic=t&time=-1h&offset=3", 400, "INVALID_REQUEST", "give one of them")
	f("topic=t&offset=3&before=3", 400, "INVALID_REQUEST", "give one of them")
	f("topic=t&topic=u", 400, "INVALID_REQUEST", "given 2 times")
	f("topic=t&kee=1", 400, "INVALID_REQUEST", `no parameter "kee"`)

	g := func(query string, status int, code, words string) {
		t.Helper()
		refused(t, r.b, "/api/value?"+query, status, code, words)
	}
	g("topic=t", 400, "INVALID_REQUEST", "which offset?")
	g("topic=t&offset=0", 404, "OUT_OF_RANGE", "outside 0 to 0")
	g("topic=t&offset=0&part=all", 400, "INVALID_REQUEST", "value, key, header")
	g("topic=t&offset=0&part=header&header=-1", 400, "INVALID_REQUEST", "header")

	// Only so many look-ups at once.
	if !r.b.searches.TryTake(maxSearches) {
		t.Fatal("some are taken")
	}
	f("topic=t", 503, "BUSY", "2 look-ups")
	g("topic=t&offset=0", 503, "BUSY", "2 look-ups")
	if w := get(t, r.b, "/api/records?topic=t"); w.Header().Get("Retry-After") != "1" {
		t.Fatalf("%v", w.Header())
	}
	r.b.searches.Give(maxSearches)
	asked[recordPage](t, r.b, "/api/records?topic=t")
	if used := r.b.searches.Used(); used != 0 {
		t.Fatalf("%d look-ups never end", used)
	}
}

// TestShownRecords reads records as the console gets them: null and empty apart,
// markup as it is, bytes that are no text as hexadecimal digits, long ones cut.
func TestShownRecords(t *testing.T) {
	r := newRig(t)
	defer r.stop()
	id := r.create("t", 1)
	long := strings.Repeat("ä", 5000) // a rune would be cut in two
	binary := append([]byte{0, 0xff}, strings.Repeat("x", 5000)...)
	var many []wire.Header
	for range 40 {
		many = append(many, wire.Header{Key: []byte("h"), Value: []byte("v")})
	}
	r.put(id, wire.BuilderOptions{},
		wire.Record{},
		wire.Record{Key: []byte{}, Value: []byte{}, Headers: []wire.Header{{Key: []byte{}, Value: nil}, {Key: []byte("e"), Value: []byte{}}}},
		wire.Record{Key: []byte("<b>k</b>"), Value: []byte("<script>alert(1)</script>&\u2028\"\n\t"), Headers: []wire.Header{{Key: []byte("<i>"), Value: []byte("</script>")}}},
		wire.Record{Key: []byte{1, 2, 0xab}, Value: binary},
		wire.Record{Key: []byte("x" + long[:2000]), Value: []byte("x" + long), Headers: []wire.Header{{Key: []byte("big"), Value: []byte(long)}, {Key: []byte("left"), Value: []byte("out")}}},
		wire.Record{Headers: many},
	)
	w := get(t, r.b, "/api/records?topic=t")
	var p struct{ Records []map[string]json.RawMessage }
	if err := json.Unmarshal(w.Body.Bytes(), &p); err != nil {
		t.Fatal(err)
	}
	f := func(n int, field, want string) {
		t.Helper()
		if got := string(p.Records[n][field]); got != want {
			t.Fatalf("%s of %d is %.300s, want %.300s", field, n, got, want)
		}
	}

	f(0, "key", `null`)
	f(0, "value", `null`)
	f(0, "headers", `[]`)
	f(1, "key", `{"text":"","size":0}`)
	f(1, "value", `{"text":"","size":0}`)
	f(1, "headers", `[{"name":{"text":"","size":0},"value":null},{"name":{"text":"e","size":1},"value":{"text":"","size":0}}]`)
	f(2, "key", `{"text":"<b>k</b>","size":8}`)
	f(2, "value", `{"text":"<script>alert(1)</script>&\u2028\"\n\t","size":32}`)
	f(2, "headers", `[{"name":{"text":"<i>","size":3},"value":{"text":"</script>","size":9}}]`)
	f(3, "key", `{"hex":"0102ab","size":3}`)
	f(3, "value", `{"hex":"00ff`+strings.Repeat("78", maxShownValue-2)+`","size":5002,"cut":true}`)
	f(4, "key", `{"text":"x`+long[:maxShownKey-2]+`","size":2001,"cut":true}`)
	f(4, "value", `{"text":"x`+long[:maxShownValue-2]+`","size":10001,"cut":true}`)
	f(4, "headers", `[{"name":{"text":"big","size":3},"value":{"text":"`+long[:maxShownHeaders-4]+`","size":10000,"cut":true}}]`)
	f(4, "headers_left", `1`)
	f(5, "headers_left", `8`)

	// The whole of what was cut.
	g := func(query, want, name string) {
		t.Helper()
		w := get(t, r.b, "/api/value?topic=t&"+query)
		h := w.Header()
		if w.Code != 200 || w.Body.String() != want || h.Get("Content-Type") != "application/octet-stream" || h.Get("X-Content-Type-Options") != "nosniff" ||
			h.Get("Content-Disposition") != `attachment; filename="`+name+`"` {
			t.Fatalf("%s: %d %v, %d bytes, want %d", query, w.Code, h, w.Body.Len(), len(want))
		}
	}
	g("offset=3", string(binary), "t-0-3.value")
	g("offset=4&part=value", "x"+long, "t-0-4.value")
	g("offset=4&part=key", "x"+long[:2000], "t-0-4.key")
	g("offset=4&part=header&header=1", "out", "t-0-4.header")
	g("offset=0", "", "t-0-0.value")
	refused(t, r.b, "/api/value?topic=t&offset=6", 404, "OUT_OF_RANGE", "outside 0 to 6")
	refused(t, r.b, "/api/value?topic=t&offset=4&part=header&header=2", 404, "OUT_OF_RANGE", "2 headers")
}

// TestSearchBounds holds a search to each of its bounds, and goes on where it
// ended.
func TestSearchBounds(t *testing.T) {
	r := newRig(t)
	defer r.stop()
	id := r.create("t", 1)
	value := strings.Repeat("v", 1<<20)
	for range 6 {
		r.put(id, wire.BuilderOptions{Codec: wire.Zstd}, wire.Record{Value: []byte(value)})
	}
	p, err := r.b.set.Leader(wire.PartitionID{Topic: id})
	if err != nil {
		t.Fatal(err)
	}
	newSearch := func() *search {
		return &search{b: r.b, v: p.View(), match: matching("none", "", ""), limit: 10, bytes: math.MaxInt64, until: r.now.Mono + maxSearchTime}
	}
	f := func(bound func(*search), back bool, from, to wire.Offset, stopped bool) {
		t.Helper()
		s := newSearch()
		bound(s)
		var err error
		if back {
			err = s.backward(6)
		} else {
			err = s.forward(0)
		}
		s.decoder.Release()
		if p := s.page; err != nil || p.From != from || p.To != to || p.Stopped != stopped {
			t.Fatalf("%d to %d, stopped %v, %v; want %d to %d, %v", p.From, p.To, p.Stopped, err, from, to, stopped)
		}
	}
	gone := make(chan struct{})
	close(gone)

	f(func(*search) {}, false, 0, 6, false)
	f(func(*search) {}, true, 0, 6, false)
	f(func(s *search) { s.bytes = 3 << 20 }, false, 0, 3, true)
	f(func(s *search) { s.bytes = 3 << 20 }, true, 3, 6, true)
	f(func(s *search) { s.bytes = 1 }, false, 0, 1, true) // some progress always
	f(func(s *search) { s.until = r.now.Mono - 1 }, false, 0, 0, true)
	f(func(s *search) { s.until = r.now.Mono - 1 }, true, 6, 6, true)
	f(func(s *search) { s.gone = gone }, false, 0, 0, false)

	// No memory is BUSY, as for a fetch.
	left := r.b.server.Budget.Max() - r.b.server.Budget.Used()
	r.b.server.Budget.TryTake(left)
	refused(t, r.b, "/api/records?topic=t", 503, "BUSY", "memory")
	r.b.server.Budget.Give(left)
	if used := r.b.server.Budget.Used(); used != 0 {
		t.Fatalf("%d bytes are still charged", used)
	}
}

// TestSearchDamage meets a batch that cannot be read, and one too large for
// anybody: both are told, and passed over in both directions.
func TestSearchDamage(t *testing.T) {
	r := newRig(t)
	defer r.stop()
	id := r.create("t", 1)
	r.write(id, 0, "a", "b")
	bad := batchOf(t, wire.BuilderOptions{Topic: id, Codec: wire.Zstd}, strings.Repeat("long ", 1000), "x")
	for i := range 8 {
		bad[wire.HeaderSize+4+i] ^= 0x55
	}
	resum(bad)
	if res := r.send(bad)[0]; res.Code != wire.CodeOK {
		t.Fatal(res.Code)
	}
	r.write(id, 0, "c")
	if res := r.send(hugeBatch(t, id, wire.MaxBatchBytes+10_000-wire.HeaderSize-20))[0]; res.Code != wire.CodeOK {
		t.Fatal(res.Code)
	}
	r.write(id, 0, "d")
	for _, query := range []string{"offset=0", "before=7"} {
		p := asked[recordPage](t, r.b, "/api/records?topic=t&"+query)
		slices.SortFunc(p.Damaged, func(a, b damagedPart) int { return int(a.From - b.From) })
		if got := offsets(&p); !slices.Equal(got, []wire.Offset{0, 1, 4, 6}) || p.From != 0 {
			t.Fatalf("%s: %v", query, got)
		}
		if d := p.Damaged; len(d) != 2 || d[0].From != 2 || d[0].To != 4 || d[1].From != 5 || d[1].To != 6 || !strings.Contains(d[1].Why, "TOO_LARGE") {
			t.Fatalf("%s: %+v", query, d)
		}
	}
	refused(t, r.b, "/api/value?topic=t&offset=2", 500, "CORRUPT", "damaged")
	refused(t, r.b, "/api/value?topic=t&offset=5", 500, "TOO_LARGE", "ask for the stored form")

	// Bytes that the disk has changed are found, remembered and told everywhere.
	for _, name := range r.files(folder) {
		if strings.HasSuffix(name, ".log") {
			r.overwrite(folder+"/"+name, func(b []byte) []byte { b[wire.HeaderSize] ^= 1; return b })
		}
	}
	if p := asked[recordPage](t, r.b, "/api/records?topic=t"); !slices.Equal(offsets(&p), []wire.Offset{6}) || len(p.Damaged) != 1 || p.Damaged[0].From != 0 || p.Damaged[0].To != 6 { // up to what the index knows next
		t.Fatalf("%v, %+v", offsets(&p), p.Damaged)
	}
	if o := asked[overview](t, r.b, "/api/overview"); !o.Ready || len(o.Reasons) != 1 || !strings.Contains(o.Reasons[0], "1 ranges of records are damaged") {
		t.Fatalf("%+v", o.Reasons)
	}
}

func TestMatching(t *testing.T) {
	f := func(want bool, key, value, header string) {
		t.Helper()
		r := &wire.Record{Key: []byte("order-1"), Headers: []wire.Header{{Key: []byte("a"), Value: []byte{}}, {Key: []byte("a"), Value: []byte("x=1")}, {Key: []byte("n")}}}
		if got := matching(key, value, header)(r); got != want {
			t.Fatalf("key %q, value %q, header %q: %v", key, value, header, got)
		}
	}

	f(true, "", "", "")
	f(true, "order-1", "", "")
	f(false, "order", "", "")
	f(false, "rder-1", "", "")
	f(true, "order*", "", "")
	f(false, "rder*", "", "")
	f(true, "*der*", "", "")
	f(true, "*-1", "", "")
	f(false, "*-2", "", "")
	f(true, "*", "", "")
	f(true, "**", "", "")
	f(false, "", "*", "") // the value is null
	f(true, "", "", "a")
	f(false, "", "", "b")
	f(true, "", "", "a=") // empty
	f(true, "", "", "a=x=1")
	f(true, "", "", "a=*1")
	f(false, "", "", "a=y")
	f(true, "", "", "n")
	f(false, "", "", "n=") // null is not empty
	f(false, "", "", "n=*")
}

func TestShowBytes(t *testing.T) {
	f := func(p string, limit int, text, hex string, cut bool) {
		t.Helper()
		s := showBytes([]byte(p), limit)
		got := "none"
		if s.Text != nil {
			got = *s.Text
		}
		if s.Hex != "" {
			text = "none"
		}
		if got != text || s.Hex != hex || s.Cut != cut || s.Size != len(p) {
			t.Fatalf("%q within %d: %q, %q, %+v", p, limit, got, s.Hex, s)
		}
	}

	f("", 10, "", "", false)
	f("abc", 3, "abc", "", false)
	f("abcd", 3, "abc", "", true)
	f("aä", 3, "aä", "", false)
	f("aäb", 2, "a", "", true)
	f("a€b", 3, "a", "", true)
	f("a€b", 4, "a€", "", true)
	f("a\xf0\x9f\x98\x80b", 4, "a", "", true)
	f("a\x00", 3, "", "6100", false)
	f("a\xff", 3, "", "61ff", false)
	f("a\xe2\x82", 3, "", "61e282", false) // the bytes end there, nothing was cut
	f("a\x1b[0m", 9, "", "611b5b306d", false)
	f("a\r\n\tb", 9, "a\r\n\tb", "", false)
	f("abc", 0, "", "", true)
	if showBytes(nil, 1) != nil {
		t.Fatal("null is something")
	}
}

// FuzzRecordsQuery asks anything: no answer is a fault of the broker's.
func FuzzRecordsQuery(f *testing.F) {
	f.Add("topic=t&partition=0&offset=1&key=*a&header=b%3dc")
	f.Add("topic=t&before=2&time=-1h")
	r := newRig(f)
	id := r.create("t", 1)
	r.write(id, 0, "a", "b")
	f.Fuzz(func(t *testing.T, query string) {
		if _, err := url.ParseRequestURI("/api/records?" + query); err != nil {
			return
		}
		if strings.ContainsAny(query, " \r\n") {
			return // no request line
		}
		w := get(t, r.b, "/api/records?"+query)
		if w.Code >= 500 || !json.Valid(w.Body.Bytes()) {
			t.Fatalf("%d %s", w.Code, w.Body)
		}
	})
}
