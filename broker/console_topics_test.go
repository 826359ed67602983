package broker

import (
	"fmt"
	"testing"

	"github.com/teralog/teralog/wire"
)

// TestListTopics puts topics in order and cuts them into pages.
func TestListTopics(t *testing.T) {
	r := newRig(t)
	defer r.stop()
	a := r.create("a", 1)
	r.create("b.x", 7, wire.Setting{Key: "flush", Value: "sync"})
	c := r.create("c.x", 2)
	r.write(a, 0, "1")
	r.write(c, 0, "1", "2")
	r.write(c, 1, "3")
	f := func(query string, total int, want ...string) []shownTopic {
		t.Helper()
		got := asked[rows[shownTopic]](t, r.b, "/api/topics?"+query)
		names := []string{}
		for _, row := range got.Rows {
			names = append(names, row.Name)
		}
		if fmt.Sprint(names) != fmt.Sprint(want) || got.Total != total {
			t.Fatalf("%s: %v of %d, want %v of %d", query, names, got.Total, want, total)
		}
		return got.Rows
	}

	all := f("", 3, "a", "b.x", "c.x")
	f("find=.x", 2, "b.x", "c.x")
	f("find=none", 0)
	f("order=desc", 3, "c.x", "b.x", "a")
	f("sort=partitions", 3, "a", "c.x", "b.x")
	f("sort=records&order=desc", 3, "c.x", "a", "b.x")
	f("sort=flush&order=desc", 3, "b.x", "a", "c.x") // rows alike stay in order
	f("limit=2", 3, "a", "b.x")
	f("limit=2&skip=2", 3, "c.x")
	f("skip=100", 3)
	if c := all[2]; c.Records != 3 || c.Appended != 3 || c.Bytes == 0 || c.LastAppend != r.now.Wall || c.Offline != 0 || c.Flush != "async" || all[1].Flush != "sync" || all[1].LastAppend != 0 {
		t.Fatalf("%+v", all)
	}

	bad := func(query, words string) {
		t.Helper()
		refused(t, r.b, "/api/topics?"+query, 400, "INVALID_REQUEST", words)
	}
	bad("sort=colour", "sort is \"colour\"; it is one of name, partitions,")
	bad("order=up", "asc, desc")
	bad("limit=0", "from 1 to 500")
	bad("limit=501", "from 1 to 500")
	bad("limit=two", "limit is \"two\"")
	bad("skip=-1", "from 0")
	bad("skip=99999999999999999999", "skip")
	bad("name=a", `there is no parameter "name"; there are: find, sort, order, skip, limit`)
	bad("find=a&find=b", "given 2 times")
	bad("find=%zz", "%zz")
}

func TestListPartitions(t *testing.T) {
	r := newRig(t)
	defer r.stop2()
	id := r.create("t", 12)
	r.create("s", 1)
	r.write(id, 3, "a", "b")
	r.write(id, 11, "a")
	f := func(query string, total int, want ...string) []shownPartition {
		t.Helper()
		got := asked[rows[shownPartition]](t, r.b, "/api/partitions?"+query)
		names := []string{}
		for _, row := range got.Rows {
			names = append(names, fmt.Sprint(row.Topic, row.Partition))
		}
		if fmt.Sprint(names) != fmt.Sprint(want) || got.Total != total {
			t.Fatalf("%s: %v of %d, want %v of %d", query, names, got.Total, want, total)
		}
		return got.Rows
	}

	f("topic=t&limit=3", 12, "t0", "t1", "t2")
	f("topic=t&skip=9", 12, "t9", "t10", "t11") // numbers, not words
	f("topic=t&order=desc&limit=2", 12, "t11", "t10")
	f("limit=2", 13, "s0", "t0")
	p := f("topic=t&sort=end&order=desc&limit=3", 12, "t3", "t11", "t0")
	if p[0].State != "OK" || p[0].Start != 0 || p[0].Committed != 2 || p[0].End != 2 || p[0].Bytes == 0 || p[0].Leader != 1 || p[0].Directory != "data" {
		t.Fatalf("%+v", p[0])
	}
	if s := asked[rows[shownPartition]](t, r.b, "/api/partitions?topic=s").Settings; len(s) < 5 || s[0].Name == "" {
		t.Fatalf("settings %v", s)
	}
	refused(t, r.b, "/api/partitions?topic=none", 404, "UNKNOWN_TOPIC", `no topic "none"`)
	refused(t, r.b, "/api/partitions?topic=t&limit=501", 400, "INVALID_REQUEST", "from 1 to 500")

	r.b.dirs[0].Fail(errBusy) // any error
	r.settle()
	if p := asked[rows[shownPartition]](t, r.b, "/api/partitions?topic=t").Rows[3]; p.State != "OFFLINE" {
		t.Fatalf("%+v", p)
	}
	if got := asked[rows[shownTopic]](t, r.b, "/api/topics").Rows; got[1].Offline != 12 {
		t.Fatalf("%+v", got)
	}
}

// TestListManyPartitions asks for a page of ten thousand, which is as small as one of
// a hundred.
func TestListManyPartitions(t *testing.T) {
	if testing.Short() {
		t.Skip("ten thousand partitions")
	}
	r := newRig(t)
	defer r.stop()
	r.create("t", 10_000)
	w := get(t, r.b, "/api/partitions?topic=t&sort=end&order=desc")
	if w.Code != 200 || w.Body.Len() > 64<<10 {
		t.Fatalf("%d, %d bytes", w.Code, w.Body.Len())
	}
	if p := asked[rows[shownPartition]](t, r.b, "/api/partitions?topic=t&skip=9999"); p.Total != 10_000 || len(p.Rows) != 1 || p.Rows[0].Partition != 9999 {
		t.Fatalf("%+v", p)
	}
	if o := asked[overview](t, r.b, "/api/overview"); o.Partitions != 10_000 {
		t.Fatalf("%d partitions", o.Partitions)
	}
}
