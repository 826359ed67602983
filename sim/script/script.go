// Package script runs tests that read as prose: commands, and below each group
// of them what they are to say.
//
//	# A comment.
//	crash 1
//	propose 2 a acks=all
//	----
//	2: committed=3
//
// A group of commands ends with a line of four dashes; what follows up to an
// empty line, or the end, is the output expected of all of them together.
package script

import (
	"bufio"
	"bytes"
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
)

var rewrite = flag.Bool("script.rewrite", false, "write what the commands say into the scripts, to be read before it is believed")

// A Command is one line: a name, arguments, and arguments of the form key=value.
type Command struct {
	Name string
	Args []string
	Line int // from 1

	keys   map[string]string
	unread map[string]bool
}

// Key returns the value of a key, or otherwise if it is not there.
func (c *Command) Key(name, otherwise string) string {
	v, ok := c.keys[name]
	if !ok {
		return otherwise
	}
	delete(c.unread, name)
	return v
}

// Run executes the commands of a file in order and compares what they say. A
// key that exec never asked for fails the test: it is a misspelling.
func Run(t *testing.T, file string, exec func(c *Command) string) {
	t.Helper()
	source, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	said, faults := play(source, exec)
	if *rewrite {
		if err := os.WriteFile(file, said, 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	for _, f := range faults {
		t.Errorf("%s:%s", file, f)
	}
}

// play executes a script. It returns it with what was said in place of what was
// expected, and where the two differ.
func play(source []byte, exec func(c *Command) string) (said []byte, faults []string) {
	var out bytes.Buffer
	var commands []*Command
	var want []string
	expecting, number, from := false, 0, 0
	finish := func() {
		var got []string
		for _, c := range commands {
			if s := strings.TrimRight(exec(c), "\n"); s != "" {
				got = append(got, strings.Split(s, "\n")...)
			}
			for key := range c.unread {
				faults = append(faults, fmt.Sprintf("%d: %s knows no %s=", c.Line, c.Name, key))
			}
		}
		for _, line := range got {
			fmt.Fprintln(&out, line)
		}
		if !slices.Equal(got, want) {
			faults = append(faults, fmt.Sprintf("%d: got\n%s\nwant\n%s", from, strings.Join(got, "\n"), strings.Join(want, "\n")))
		}
		commands, want, expecting = nil, nil, false
	}
	for lines := bufio.NewScanner(bytes.NewReader(source)); lines.Scan(); {
		line := lines.Text()
		number++
		switch trimmed := strings.TrimSpace(line); {
		case expecting && trimmed == "":
			finish()
			fmt.Fprintln(&out)
		case expecting:
			want = append(want, line)
		case trimmed == "----":
			expecting, from = true, number
			fmt.Fprintln(&out, line)
		default:
			if trimmed != "" && trimmed[0] != '#' {
				commands = append(commands, parse(trimmed, number))
			}
			fmt.Fprintln(&out, line)
		}
	}
	if expecting {
		finish()
	}
	for _, c := range commands {
		faults = append(faults, fmt.Sprintf("%d: %s is not followed by ----", c.Line, c.Name))
	}
	return out.Bytes(), faults
}

func parse(line string, number int) *Command {
	words := strings.Fields(line)
	c := &Command{Name: words[0], Line: number, keys: map[string]string{}, unread: map[string]bool{}}
	for _, w := range words[1:] {
		if key, value, ok := strings.Cut(w, "="); ok {
			c.keys[key], c.unread[key] = value, true
		} else {
			c.Args = append(c.Args, w)
		}
	}
	return c
}
