package wire

import (
	"fmt"
	"os"
	"strings"
	"testing"
)

// TestProtocolDocument holds the manual to the tables: every API and every
// code with its number and what it promises.
func TestProtocolDocument(t *testing.T) {
	text, err := os.ReadFile("../docs/PROTOCOL.md")
	if err != nil {
		t.Fatal(err)
	}
	want := func(line string) {
		if !strings.Contains(string(text), "\n"+line+"\n") {
			t.Errorf("docs/PROTOCOL.md lacks the line %q", line)
		}
	}
	for _, r := range APIs() {
		want(fmt.Sprintf("### %d %s", r.API, r.API))
		if r.Max > 0 {
			t.Errorf("docs/PROTOCOL.md says that %s is at version 0, it has %d", r.API, r.Max)
		}
	}
	yes := func(b bool) string {
		if b {
			return " yes "
		}
		return " "
	}
	for c := range Code(len(codes)) {
		want(fmt.Sprintf("| %d | %s |%s|%s|", c, c.Error(), yes(c.Definite()), yes(c.Retriable())))
	}
}
