package broker

import (
	"bytes"
	"encoding/hex"
	"strings"
	"unicode/utf8"

	"github.com/teralog/teralog/wire"
)

// How much of one record is shown, in bytes, inclusive; the rest is to be had
// from /api/value. So an answer has at most 5 MiB.
const (
	maxShownKey     = 1 << 10
	maxShownValue   = 4 << 10
	maxShownHeaders = 4 << 10 // names and values together
	maxHeadersShown = 32      // headers
)

// A shownRecord is a record as the console gets it.
type shownRecord struct {
	Offset      wire.Offset   `json:"offset"`
	Time        int64         `json:"time"` // ms since the epoch
	Key         *shownBytes   `json:"key"`  // null is null
	Value       *shownBytes   `json:"value"`
	Headers     []shownHeader `json:"headers"`
	HeadersLeft int           `json:"headers_left"` // that are not shown
}

type shownHeader struct {
	Name  shownBytes  `json:"name"`
	Value *shownBytes `json:"value"`
}

// shownBytes are bytes as text if they are text, else as hexadecimal digits.
type shownBytes struct {
	Text *string `json:"text,omitempty"`
	Hex  string  `json:"hex,omitempty"`
	Size int     `json:"size"` // of the whole
	Cut  bool    `json:"cut,omitempty"`
}

func show(r *wire.Record) shownRecord {
	s := shownRecord{
		Offset: r.Offset, Time: r.Time, Headers: []shownHeader{},
		Key: showBytes(r.Key, maxShownKey), Value: showBytes(r.Value, maxShownValue),
	}
	room := maxShownHeaders
	for i, h := range r.Headers {
		if room <= 0 || i == maxHeadersShown {
			s.HeadersLeft = len(r.Headers) - i
			break
		}
		name := showBytes(h.Key, room)
		room -= len(h.Key)
		value := showBytes(h.Value, max(room, 0))
		room -= len(h.Value)
		s.Headers = append(s.Headers, shownHeader{*name, value})
	}
	return s
}

// showBytes shows the first bytes of p, at most limit; nil for null. It copies
// them.
func showBytes(p []byte, limit int) *shownBytes {
	if p == nil {
		return nil
	}
	s := &shownBytes{Size: len(p), Cut: len(p) > limit}
	head := p[:min(len(p), limit)]
	if s.Cut {
		head = wholeRunes(head)
	}
	if isText(head) {
		text := string(head)
		s.Text = &text
		return s
	}
	s.Hex = hex.EncodeToString(p[:min(len(p), limit)])
	return s
}

// wholeRunes returns p without the beginning of a rune at its end.
func wholeRunes(p []byte) []byte {
	for n := 1; n < utf8.UTFMax && n <= len(p); n++ {
		if last := p[len(p)-n:]; utf8.RuneStart(last[0]) {
			if !utf8.FullRune(last) {
				return p[:len(p)-n]
			}
			break
		}
	}
	return p
}

// isText reports whether a person can read p: it is UTF-8, and its only control
// characters are tabs and the ends of lines.
func isText(p []byte) bool {
	return utf8.Valid(p) && bytes.IndexFunc(p, func(r rune) bool {
		return r < ' ' && r != '\t' && r != '\n' && r != '\r' || r == 0x7f
	}) < 0
}

// matching returns whether a record has a key and a value like the patterns, and
// a header as NAME or NAME=PATTERN says. Key and value that are empty take every
// record, NAME= takes a header whose value is empty and not null.
func matching(key, value, header string) func(*wire.Record) bool {
	name, of, valued := strings.Cut(header, "=")
	return func(r *wire.Record) bool {
		if !like(r.Key, key) || !like(r.Value, value) {
			return false
		}
		if header == "" {
			return true
		}
		for _, h := range r.Headers {
			if string(h.Key) != name {
				continue
			}
			if !valued || of != "" && like(h.Value, of) || of == "" && h.Value != nil && len(h.Value) == 0 {
				return true
			}
		}
		return false
	}
}

// like reports whether p is the pattern; a * at its beginning or its end stands
// for any bytes. An empty pattern is like everything.
func like(p []byte, pattern string) bool {
	if pattern == "" {
		return true
	}
	rest, head := strings.CutPrefix(pattern, "*")
	rest, tail := strings.CutSuffix(rest, "*")
	want := []byte(rest)
	switch {
	case p == nil:
		return false
	case head && tail:
		return bytes.Contains(p, want)
	case head:
		return bytes.HasSuffix(p, want)
	case tail:
		return bytes.HasPrefix(p, want)
	}
	return bytes.Equal(p, want)
}
