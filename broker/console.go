package broker

import (
	"bytes"
	"cmp"
	"embed"
	"fmt"
	"hash/crc32"
	"io/fs"
	"net/http"
	"path"
	"time"
)

// The console is the operator's view for people: a page at / that asks the
// addresses below /api. It changes nothing, and needs nothing but this binary.

//go:embed console
var consoleFolder embed.FS

// A consoleFile is one file of the page.
type consoleFile struct {
	kind string // media type
	body []byte
	tag  string // changes with body
}

var consoleFiles = readConsole()

func readConsole() map[string]consoleFile {
	kinds := map[string]string{
		".html": "text/html; charset=utf-8", ".css": "text/css; charset=utf-8",
		".js": "text/javascript; charset=utf-8", ".svg": "image/svg+xml",
	}
	files := map[string]consoleFile{}
	err := fs.WalkDir(consoleFolder, "console", func(p string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		body, err := consoleFolder.ReadFile(p)
		kind := kinds[path.Ext(p)]
		if kind == "" {
			panic(fmt.Sprintf("BUG: nobody knows what %s is", p))
		}
		files[path.Base(p)] = consoleFile{kind, body, fmt.Sprintf(`"%08x"`, crc32.ChecksumIEEE(body))}
		return err
	})
	if err != nil {
		panic(fmt.Sprintf("BUG: the console cannot be read: %v", err))
	}
	return files
}

// consolePolicy lets the page load its own files and ask this broker, and
// nothing else: no script or style within the page, no other address, no frame.
const consolePolicy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; " +
	"base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

// serveConsole answers with a file of the page, with the page itself at /.
func serveConsole(w http.ResponseWriter, r *http.Request) {
	name := cmp.Or(r.PathValue("file"), "index.html")
	f, ok := consoleFiles[name]
	if !ok {
		http.NotFound(w, r)
		return
	}
	h := w.Header()
	guardHeaders(h)
	h.Set("Content-Security-Policy", consolePolicy)
	h.Set("Content-Type", f.kind)
	h.Set("Cache-Control", "no-cache") // ask each time whether the tag is still the same
	h.Set("ETag", f.tag)
	http.ServeContent(w, r, name, time.Time{}, bytes.NewReader(f.body))
}

// guardHeaders keeps a browser from taking an answer for something else, and
// other sites from using it.
func guardHeaders(h http.Header) {
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
}
