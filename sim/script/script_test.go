package script

import (
	"strings"
	"testing"
)

func TestPlay(t *testing.T) {
	echo := func(c *Command) string {
		if c.Name == "silent" {
			return ""
		}
		return c.Name + " " + strings.Join(c.Args, "+") + c.Key("k", "")
	}
	f := func(source, said string, faults int) {
		t.Helper()
		got, bad := play([]byte(source), echo)
		if string(got) != said || len(bad) != faults {
			t.Fatalf("%q says %q with faults %q; want %q with %d", source, got, bad, said, faults)
		}
	}

	f("a 1 2\n----\na 1+2\n", "a 1 2\n----\na 1+2\n", 0)
	f("# x\na k=v\n----\na v\n\nb\n----\nb \n", "# x\na k=v\n----\na v\n\nb\n----\nb \n", 0)
	f("a\nb\n----\na \nb \n", "a\nb\n----\na \nb \n", 0) // a group says it together
	f("silent\n----\n\n", "silent\n----\n\n", 0)         // nothing may be said
	f("a\n----\nb\n", "a\n----\na \n", 1)                // something else was expected
	f("a j=1\n----\na \n", "a j=1\n----\na \n", 1)       // a key that nobody reads
	f("a\n", "a\n", 1)                                   // a command without its dashes
	f("silent\n----\nsilent\n", "silent\n----\n", 1)     // silence where words were expected
}
