package sim

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const module = "github.com/teralog/teralog"

// arrows says which room may import which, outside modules included. An
// arrow that is not here is a decision to be made, not a line to be added.
var arrows = map[string][]string{
	".":          {"broker", "bench", "client/cli", "sim", "storage", "wire"},
	"mem":        {"github.com/valyala/bytebufferpool"},
	"raft":       {},
	"wire":       {"mem", "github.com/klauspost/compress", "golang.org/x/sys"},
	"storage":    {"wire", "mem", "golang.org/x/sys"},
	"repl":       {"storage", "wire", "mem"},
	"coord":      {"raft", "storage", "wire", "mem"},
	"broker":     {"coord", "repl", "raft", "storage", "wire", "mem"},
	"client":     {"wire", "mem"},
	"client/cli": {"client", "wire"},
	"bench":      {"client", "wire", "mem", "golang.org/x/sys"},
	"sim":        {"broker", "coord", "repl", "raft", "storage", "wire", "mem", "client", "bench"},
	"sim/script": {},
	"sim/testca": {},

	"broker/pagetest": {}, // tests only
}

// testArrows says what the tests of a room may import beyond its own arrows.
// Every test may import sim/script and sim/testca.
var testArrows = map[string][]string{
	"client":          {"broker", "storage"},
	"client/cli":      {"broker", "storage"},
	"bench":           {"broker", "storage"},
	"broker/pagetest": {"broker", "client", "wire"},
	"sim":             {"golang.org/x/sys"}, // mounts
}

// httpRooms are the rooms in which net/http may stand.
var httpRooms = []string{"broker", "bench", "client/cli"}

// turned are the rooms that the simulator turns: what they decide depends on
// their arguments alone. Only their run.go may read the clock, wait, start a
// goroutine or draw a number.
var turned = []string{"mem", "storage", "raft", "repl", "coord"}

var clockCalls = map[string][]string{
	"time":         {"Now", "Since", "Until", "Sleep", "After", "AfterFunc", "NewTimer", "NewTicker", "Tick"},
	"math/rand":    nil, // nil: no function of the package but New…
	"math/rand/v2": nil,
	"crypto/rand":  nil,
}

// untidy lists what in one source file breaks the rules above.
func untidy(room, name string, src any) (faults []string) {
	fset := token.NewFileSet()
	file, err := parser.ParseFile(fset, name, src, parser.SkipObjectResolution)
	if err != nil {
		return []string{err.Error()}
	}
	test := strings.HasSuffix(name, "_test.go")
	fault := func(pos token.Pos, format string, args ...any) {
		faults = append(faults, fmt.Sprintf("%s: %s", fset.Position(pos), fmt.Sprintf(format, args...)))
	}

	imported := map[string]string{} // name in this file → path
	for _, spec := range file.Imports {
		p, _ := strconv.Unquote(spec.Path.Value)
		as := path.Base(p)
		if as == "v2" {
			as = path.Base(path.Dir(p))
		}
		if spec.Name != nil {
			as = spec.Name.Name
		}
		imported[as] = p
		if !allowed(room, p, test) {
			fault(spec.Pos(), "%s may not import %s", room, p)
		}
	}
	if test || !slices.Contains(turned, room) || path.Base(filepath.ToSlash(name)) == "run.go" {
		return faults
	}
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.GoStmt:
			fault(n.Pos(), "a goroutine starts outside run.go")
		case *ast.SelectorExpr:
			x, ok := n.X.(*ast.Ident)
			if !ok {
				return true
			}
			names, banned := clockCalls[imported[x.Name]]
			if banned && (slices.Contains(names, n.Sel.Name) || names == nil && !strings.HasPrefix(n.Sel.Name, "New") && n.Sel.Name != "PCG" && n.Sel.Name != "Rand") {
				fault(n.Pos(), "%s.%s outside run.go", x.Name, n.Sel.Name)
			}
		}
		return true
	})
	return faults
}

func allowed(room, imp string, test bool) bool {
	first, _, _ := strings.Cut(imp, "/")
	if !strings.Contains(first, ".") {
		return imp != "net/http" && imp != "net/http/pprof" || test || slices.Contains(httpRooms, room)
	}
	if target, ours := strings.CutPrefix(imp, module+"/"); ours {
		imp = target
	}
	list := arrows[room]
	if test {
		list = slices.Concat(list, testArrows[room], []string{room, "sim/script", "sim/testca"})
	}
	return slices.ContainsFunc(list, func(ok string) bool {
		return imp == ok || strings.Contains(ok, ".") && strings.HasPrefix(imp, ok+"/")
	})
}

// TestTidy holds the whole module to the arrows and to the clock rule.
func TestTidy(t *testing.T) {
	files := 0
	err := filepath.WalkDir("..", func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if p != ".." && strings.HasPrefix(d.Name(), ".") || d.Name() == "testdata" {
				return filepath.SkipDir
			}
			if _, err := os.Stat(filepath.Join(p, "go.mod")); err == nil && p != ".." {
				return filepath.SkipDir // a module of its own
			}
			return nil
		}
		if !strings.HasSuffix(p, ".go") {
			return nil
		}
		files++
		rel, _ := filepath.Rel("..", p)
		room := filepath.ToSlash(filepath.Dir(rel))
		if _, known := arrows[room]; !known {
			t.Errorf("%s: room %s is not in the table of arrows", rel, room)
		}
		for _, f := range untidy(room, p, nil) {
			t.Error(f)
		}
		return nil
	})
	if err != nil || files < 20 {
		t.Fatalf("looked at %d files: %v", files, err)
	}
}

// TestUntidy plants each kind of fault.
func TestUntidy(t *testing.T) {
	f := func(room, name, src string, want int) {
		t.Helper()
		if got := untidy(room, name, "package p\n"+src); len(got) != want {
			t.Fatalf("%s %s: %q, want %d faults", room, name, got, want)
		}
	}

	f("mem", "a.go", `import "time"; var t time.Duration`, 0)
	f("mem", "a.go", `import "time"; var t = time.Now()`, 1)
	f("mem", "run.go", `import "time"; var t = time.Now()`, 0)
	f("mem", "a_test.go", `import "time"; var t = time.Now()`, 0)
	f("repl", "a.go", `import clock "time"; var t = clock.After(1)`, 1)
	f("repl", "a.go", `func f() { go f() }`, 1)
	f("wire", "a.go", `func f() { go f() }`, 0)
	f("storage", "a.go", `import "math/rand/v2"; var r = rand.New(rand.NewPCG(1, 2))`, 0)
	f("storage", "a.go", `import "math/rand/v2"; var r = rand.Uint64()`, 1)
	f("coord", "a.go", `import "crypto/rand"; var r = rand.Reader`, 1)
	f("mem", "a.go", `import "`+module+`/wire"`, 1)
	f("storage", "a.go", `import "`+module+`/repl"`, 1)
	f("repl", "a.go", `import "`+module+`/coord"`, 1)
	f("storage", "a.go", `import "golang.org/x/sys/unix"`, 0)
	f("storage", "a.go", `import "github.com/klauspost/compress/zstd"`, 1)
	f("wire", "a.go", `import "github.com/klauspost/compress/zstd"`, 0)
	f("wire", "a.go", `import "net/http"`, 1)
	f("broker", "a.go", `import "net/http"`, 0)
	f("client", "a_test.go", `import "`+module+`/broker"`, 0)
	f("client", "a.go", `import "`+module+`/broker"`, 1)
	f("mem", "a.go", `import "example.org/other"`, 1)
}
