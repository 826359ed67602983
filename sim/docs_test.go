package sim

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestGuaranteesNameTheirTests looks for every test that the document of
// promises names, and for a test in each of its rows.
func TestGuaranteesNameTheirTests(t *testing.T) {
	text, err := os.ReadFile("../docs/GUARANTEES.md")
	if err != nil {
		t.Fatal(err)
	}
	sources := map[string]string{} // room → all its tests
	named := regexp.MustCompile(`\b([a-z]+(?:/[a-z]+)?)\.(Test[A-Za-z0-9]+)\b`)
	found := 0
	for _, m := range named.FindAllStringSubmatch(string(text), -1) {
		room, test := m[1], m[2]
		if _, read := sources[room]; !read {
			files, _ := filepath.Glob("../" + room + "/*_test.go")
			for _, f := range files {
				b, err := os.ReadFile(f)
				if err != nil {
					t.Fatal(err)
				}
				sources[room] += string(b)
			}
		}
		if !strings.Contains(sources[room], "\nfunc "+test+"(t *testing.T)") {
			t.Errorf("docs/GUARANTEES.md names %s.%s, which does not exist", room, test)
		}
		found++
	}
	if found < 40 {
		t.Errorf("docs/GUARANTEES.md names %d tests", found)
	}
	for n, line := range strings.Split(string(text), "\n") {
		row := strings.HasPrefix(line, "| ") && !strings.Contains(line, "| test |")
		if row && !named.MatchString(line) {
			t.Errorf("docs/GUARANTEES.md:%d: a promise without a test: %s", n+1, line)
		}
	}
}
