package broker

import (
	"log/slog"
	"strconv"
	"time"
	"unicode"
	"unicode/utf8"
)

// kept returns what is kept of an event's fields: texts are cut, and hold on to
// nothing but themselves.
func kept(fields []slog.Attr) []slog.Attr {
	fields = fields[:min(len(fields), maxFields)]
	all := make([]slog.Attr, 0, len(fields)+1)
	for _, f := range fields {
		f.Value = f.Value.Resolve()
		switch f.Value.Kind() {
		case slog.KindInt64, slog.KindUint64, slog.KindBool, slog.KindDuration:
		default:
			f.Value = slog.StringValue(cut(f.Value.String()))
		}
		all = append(all, slog.Attr{Key: cut(f.Key), Value: f.Value})
	}
	return all
}

// cut returns the beginning of s, at most maxFieldBytes.
func cut(s string) string {
	if len(s) <= maxFieldBytes {
		return s
	}
	n := maxFieldBytes - len("…")
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n] + "…"
}

// eventLine returns an event as JSON.
func eventLine(seq uint64, kind EventKind, fields []slog.Attr, wall int64) string {
	to := strconv.AppendUint([]byte(`{"seq":`), seq, 10)
	to = append(to, `,"time":"`...)
	to = time.UnixMilli(wall).UTC().AppendFormat(to, "2006-01-02T15:04:05.000Z")
	to = append(to, `","kind":"`...)
	to = append(to, kind.String()...)
	to = append(to, `","fields":{`...)
	for i, f := range fields {
		if i > 0 {
			to = append(to, ',')
		}
		to = append(appendText(to, f.Key), ':')
		switch f.Value.Kind() {
		case slog.KindInt64:
			to = strconv.AppendInt(to, f.Value.Int64(), 10)
		case slog.KindUint64:
			to = strconv.AppendUint(to, f.Value.Uint64(), 10)
		case slog.KindBool:
			to = strconv.AppendBool(to, f.Value.Bool())
		default: // durations too, as in the log
			to = appendText(to, f.Value.String())
		}
	}
	return string(append(to, "}}"...))
}

// appendText appends s as a JSON string. What a terminal might obey is escaped,
// beyond what JSON asks for.
func appendText(to []byte, s string) []byte {
	const hex = "0123456789abcdef"
	to = append(to, '"')
	for _, r := range s {
		switch {
		case r == '"' || r == '\\':
			to = append(to, '\\', byte(r))
		case unicode.IsPrint(r):
			to = utf8.AppendRune(to, r)
		case r > 0xffff:
			to = utf8.AppendRune(to, utf8.RuneError)
		default:
			to = append(to, '\\', 'u', hex[r>>12&15], hex[r>>8&15], hex[r>>4&15], hex[r&15])
		}
	}
	return append(to, '"')
}
