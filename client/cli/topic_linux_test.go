package cli

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"strings"
	"syscall"
	"testing"
	"unsafe"
)

func TestTopic(t *testing.T) {
	s := newShell(t)
	s.prints("topic ls", "", "TOPIC  PARTITIONS  ID\n")
	s.prints("topic ls -o json", "", "[]\n")
	s.prints("topic create orders -p 3 -c flush=sync -c retention.age=2d --dry-run", "", "topic orders with 3 partitions could be created\n")
	if out := s.run("topic create orders -p 3 -c flush=sync -c retention.age=2d", ""); !strings.HasPrefix(out, "created topic orders with 3 partitions, id ") {
		t.Fatal(out)
	}
	s.fails("topic create orders", "", 4, "TOPIC_EXISTS")
	s.prints("topic create orders --if-not-exists", "", "topic orders exists\n")
	s.fails("topic create a/b", "", 2, "cannot name a topic")
	s.fails("topic create a -p 0", "", 2, "at least one partition")
	s.fails("topic create a -p 100000", "", 2, "a topic has 1 to 10000")
	s.fails("topic create a -c flush", "", 2, "not of the form key=value")
	s.fails("topic create a -c flsh=sync", "", 2, `did you mean "flush"?`)
	s.fails("topic create a -c flush=never", "", 2, "async, interval, sync")
	s.fails("topic create", "", 2, "0 arguments given")
	s.fails("topic create a b", "", 2, "2 arguments given")
	s.fails("topic create a --partitons 3", "", 2, "not defined")
	s.fails("topic create a --dry-rum", "", 2, "did you mean --dry-run?")
	s.fails("topic", "", 2, "Usage: teralog topic")
	s.fails("topic delet orders", "", 2, `did you mean "delete"?`)
	s.fails("topic frobnicate", "", 2, "unknown subcommand")
	s.fails("topic ls -o xml", "", 2, "table, json")
	s.fails("topic describe nothing", "", 3, "UNKNOWN_TOPIC")

	var list []struct {
		Name       string `json:"name"`
		ID         uint64 `json:"id"`
		Partitions int    `json:"partitions"`
	}
	if err := json.Unmarshal([]byte(s.run("topic ls -o json", "")), &list); err != nil || len(list) != 1 || list[0].Name != "orders" || list[0].Partitions != 3 {
		t.Fatalf("%+v, %v", list, err)
	}
	s.run("produce orders -p 1 -q", "a\nb\n")
	s.run("produce orders -p 0 -q --input jsonl", `{"value":"c","time":1700000000000000}`+"\n") // microseconds
	var d struct {
		Future     int               `json:"future_timestamps"`
		Settings   map[string]string `json:"settings"`
		Partitions []struct {
			State        string `json:"state"`
			Start, End   int64
			GreatestTime *int64 `json:"greatest_time"`
			LastAppend   *int64 `json:"last_append_time"`
			Directory    string `json:"directory"`
		} `json:"partitions"`
	}
	if err := json.Unmarshal([]byte(s.run("topic describe orders -o json", "")), &d); err != nil {
		t.Fatal(err)
	}
	if d.Settings["flush"] != "sync" || d.Settings["retention.age"] != "2d" || len(d.Partitions) != 3 ||
		d.Partitions[1].End != 2 || d.Partitions[1].GreatestTime == nil || d.Partitions[2].GreatestTime != nil || d.Partitions[1].State != "OK" || d.Future != 1 {
		t.Fatalf("%+v", d)
	}
	if out := s.run("topic describe orders", ""); !strings.Contains(out, "retention.age       2d") || !strings.Contains(out, "PARTITION  STATE") ||
		!strings.Contains(out, "future timestamps: 1 of 3 partitions") {
		t.Fatal(out)
	}
	for _, help := range []string{"topic --help", "topic create -h", "topic ls --help", "topic describe -h", "topic delete -h", "produce -h", "consume --help", "offsets -h"} {
		if out := s.run(help, ""); !strings.HasPrefix(out, "Usage: teralog "+strings.Fields(help)[0]) {
			t.Fatalf("%s: %q", help, out)
		}
	}

	// A delete is final: without a person to ask it wants to be told so.
	s.fails("topic delete orders", "orders\n", 2, "say --yes")
	if out := s.run("topic delete orders --dry-run", ""); !strings.HasPrefix(out, "would delete topic orders (id ") || !strings.Contains(out, "3 records") {
		t.Fatal(out)
	}
	if out := s.run("topic rm orders --yes", ""); !strings.HasPrefix(out, "deleted topic orders") {
		t.Fatal(out)
	}
	s.fails("topic delete orders --yes", "", 3, "UNKNOWN_TOPIC")
	s.run("topic create orders", "")
}

// TestTopicDeleteAsks deletes with a person at a terminal, who must type the
// topic's name.
func TestTopicDeleteAsks(t *testing.T) {
	s := newShell(t)
	s.run("topic create orders", "")
	ask := func(answer string, code int, want string) {
		t.Helper()
		user, terminal := openTerminal(t)
		if _, err := user.WriteString(answer); err != nil {
			t.Fatal(err)
		}
		out, notes, got := s.try("topic delete orders", terminal)
		if got != code || !strings.Contains(notes, "Type its name") || !strings.Contains(out+notes, want) {
			t.Fatalf("answer %q: exit %d, %q, %q", answer, got, out, notes)
		}
	}
	ask("yes\n", 1, "nothing was deleted")
	ask("\n", 1, "nothing was deleted")
	ask("orders\n", 0, "deleted topic orders")

	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	s.run("topic create orders", "")
	if _, notes, code := s.try("topic delete orders", null); code != 2 || !strings.Contains(notes, "say --yes") {
		t.Fatalf("nobody is there, and exit %d, %q", code, notes)
	}
}

// openTerminal returns both ends of a pseudo terminal.
func openTerminal(t *testing.T) (user, terminal *os.File) {
	t.Helper()
	user, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		t.Skip("no pseudo terminals here: ", err)
	}
	t.Cleanup(func() { user.Close() })
	var n, unlock int32
	for op, arg := range map[uintptr]*int32{syscall.TIOCSPTLCK: &unlock, syscall.TIOCGPTN: &n} {
		if _, _, errno := syscall.Syscall(syscall.SYS_IOCTL, user.Fd(), op, uintptr(unsafe.Pointer(arg))); errno != 0 {
			t.Fatal(errno)
		}
	}
	terminal, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		t.Skip("no pseudo terminals here: ", err)
	}
	t.Cleanup(func() { terminal.Close() })
	return user, terminal
}

// TestUnreachable checks that a broker that is not there ends a command soon,
// with its own code and what to do.
func TestUnreachable(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := ln.Addr().String()
	ln.Close()
	t.Setenv("TERALOG_SERVERS", addr)
	s := shell{t}
	for _, line := range []string{"topic ls", "produce t", "consume t", "offsets t"} {
		s.fails(line, "v\n", 6, "is a broker running at "+addr)
	}
	s.fails("topic ls --servers nonsense", "", 2, "nonsense")
}

func TestOffsets(t *testing.T) {
	s := newShell(t)
	s.run("topic create t -p 2", "")
	s.run("produce t -q --input jsonl -p 1", `{"value":"a","time":1000}`+"\n"+`{"value":"b","time":3000}`+"\n")
	if out := s.run("offsets t", ""); !strings.Contains(out, "\n1          ok     1       0      0      2    2") {
		t.Fatal(out)
	}
	s.prints("offsets t --at 2000", "", "PARTITION  OFFSET    TIME\n0          none yet  -\n1          none yet  -\n") // seconds
	s.prints("offsets t --at 1970-01-01T00:00:02Z", "", "PARTITION  OFFSET    TIME\n0          none yet  -\n1          1         1970-01-01T00:00:03Z\n")
	s.prints("offsets t --at 1970-01-01T00:00:02Z -o json", "", `[
  {
    "partition": 0,
    "offset": -1,
    "time": -1
  },
  {
    "partition": 1,
    "offset": 1,
    "time": 3000
  }
]
`)
	if out := s.run("offsets t --at -1h --clock append", ""); !strings.Contains(out, "\n1          0 ") {
		t.Fatal(out)
	}
	var d map[string]any
	if err := json.Unmarshal([]byte(s.run("offsets t -o json", "")), &d); err != nil || d["name"] != "t" {
		t.Fatal(d, err)
	}
	s.fails("offsets u", "", 3, "UNKNOWN_TOPIC")
	s.fails("offsets t --at noon", "", 2, "--at")
	s.fails("offsets t --at -1h --clock wall", "", 2, "--clock")
	s.fails("offsets t -o jsonl", "", 2, "table, json")
}
