package cli

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"unicode/utf8"

	"github.com/teralog/teralog/wire"
)

// A line is one record as JSON: what `consume -o jsonl` prints and `produce
// --input jsonl` takes. Times are in ms since the Unix epoch. A null key,
// value or header value is null, which is not the empty string; bytes that
// are not UTF-8 are {"base64":"…"}.
type line struct {
	Topic      string
	Partition  int32
	Offset     wire.Offset
	Time       int64
	AppendTime int64
	Epoch      wire.Epoch
	Key, Value []byte
	Headers    []wire.Header
}

// appendLine appends l and a newline to dst.
func appendLine(dst []byte, l *line) []byte {
	dst = append(dst, `{"topic":`...)
	dst = appendJSONString(dst, []byte(l.Topic))
	dst = append(dst, `,"partition":`...)
	dst = strconv.AppendInt(dst, int64(l.Partition), 10)
	dst = append(dst, `,"offset":`...)
	dst = strconv.AppendInt(dst, int64(l.Offset), 10)
	dst = append(dst, `,"time":`...)
	dst = strconv.AppendInt(dst, l.Time, 10)
	dst = append(dst, `,"appendTime":`...)
	dst = strconv.AppendInt(dst, l.AppendTime, 10)
	dst = append(dst, `,"leaderEpoch":`...)
	dst = strconv.AppendInt(dst, int64(l.Epoch), 10)
	dst = append(dst, `,"key":`...)
	dst = appendJSONBytes(dst, l.Key)
	dst = append(dst, `,"value":`...)
	dst = appendJSONBytes(dst, l.Value)
	dst = append(dst, `,"headers":[`...)
	for i, h := range l.Headers {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = append(dst, '[')
		dst = appendJSONBytes(dst, nonNil(h.Key))
		dst = append(dst, ',')
		dst = appendJSONBytes(dst, h.Value)
		dst = append(dst, ']')
	}
	return append(dst, "]}\n"...)
}

func appendJSONBytes(dst, b []byte) []byte {
	switch {
	case b == nil:
		return append(dst, "null"...)
	case utf8.Valid(b):
		return appendJSONString(dst, b)
	}
	dst = append(dst, `{"base64":"`...)
	dst = base64.StdEncoding.AppendEncode(dst, b)
	return append(dst, `"}`...)
}

// appendJSONString writes valid UTF-8 with as few escapes as JSON allows;
// control characters, DEL included, never reach a terminal raw.
func appendJSONString(dst, b []byte) []byte {
	const hex = "0123456789abcdef"
	dst = append(dst, '"')
	for _, c := range b {
		switch {
		case c == '"' || c == '\\':
			dst = append(dst, '\\', c)
		case c == '\n':
			dst = append(dst, '\\', 'n')
		case c == '\t':
			dst = append(dst, '\\', 't')
		case c == '\r':
			dst = append(dst, '\\', 'r')
		case c < ' ' || c == 0x7F:
			dst = append(dst, '\\', 'u', '0', '0', hex[c>>4], hex[c&15])
		default:
			dst = append(dst, c)
		}
	}
	return append(dst, '"')
}

// nonNil turns nil into empty: the key of a header is never null.
func nonNil(b []byte) []byte {
	if b == nil {
		return []byte{}
	}
	return b
}

// jsonBytes reads what appendJSONBytes writes.
type jsonBytes struct{ b []byte }

func (j *jsonBytes) UnmarshalJSON(text []byte) error {
	switch {
	case bytes.Equal(text, []byte("null")):
		j.b = nil
		return nil
	case text[0] == '"' && bytes.IndexByte(text, '\\') < 0 && utf8.Valid(text):
		j.b = nonNil(bytes.Clone(text[1 : len(text)-1])) // most are as they stand
		return nil
	case text[0] == '"':
		var s string
		if err := json.Unmarshal(text, &s); err != nil {
			return err
		}
		j.b = nonNil([]byte(s))
		return nil
	}
	var coded struct {
		Base64 *string `json:"base64"`
	}
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(&coded); err != nil || coded.Base64 == nil {
		return errors.New(`want null, a string or {"base64":"…"}`)
	}
	b, err := base64.StdEncoding.DecodeString(*coded.Base64)
	j.b = nonNil(b)
	return err
}

// parseLine reads one record. Fields may be missing: no topic, partition -1,
// no time (ok tells). Fields the broker gives (offset, appendTime,
// leaderEpoch) are read and have no effect on produce.
func parseLine(text []byte) (l line, hasTime bool, err error) {
	var in struct {
		Topic       string         `json:"topic"`
		Partition   *int32         `json:"partition"`
		Offset      wire.Offset    `json:"offset"`
		Time        *int64         `json:"time"`
		AppendTime  int64          `json:"appendTime"`
		LeaderEpoch wire.Epoch     `json:"leaderEpoch"`
		Key         jsonBytes      `json:"key"`
		Value       jsonBytes      `json:"value"`
		Headers     [][]*jsonBytes `json:"headers"`
	}
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(&in); err != nil {
		return l, false, err
	}
	if _, err := d.Token(); err != io.EOF {
		return l, false, errors.New("more than one JSON value in a line")
	}
	l = line{Topic: in.Topic, Partition: -1, Offset: in.Offset, AppendTime: in.AppendTime, Epoch: in.LeaderEpoch, Key: in.Key.b, Value: in.Value.b}
	if in.Partition != nil {
		l.Partition = *in.Partition
	}
	if in.Time != nil {
		l.Time = *in.Time
	}
	for i, h := range in.Headers {
		if len(h) != 2 || h[0] == nil {
			return l, false, fmt.Errorf("header %d is not a pair [key, value]", i)
		}
		pair := wire.Header{Key: h[0].b}
		if h[1] != nil { // a JSON null leaves the pointer nil
			pair.Value = h[1].b
		}
		l.Headers = append(l.Headers, pair)
	}
	return l, in.Time != nil, nil
}
