package cli

import (
	"reflect"
	"testing"

	"github.com/teralog/teralog/wire"
)

func TestAppendLine(t *testing.T) {
	f := func(l line, want string) {
		t.Helper()
		got := string(appendLine(nil, &l))
		if got != want+"\n" {
			t.Fatalf("got  %swant %s", got, want)
		}
		back, hasTime, err := parseLine([]byte(got))
		if err != nil || !hasTime || !reflect.DeepEqual(back, l) {
			t.Fatalf("%s reads back as %+v, %v, want %+v", got, back, err, l)
		}
	}

	f(line{Topic: "t", Partition: 3, Offset: 42, Time: 7, AppendTime: 8, Epoch: 1},
		`{"topic":"t","partition":3,"offset":42,"time":7,"appendTime":8,"leaderEpoch":1,"key":null,"value":null,"headers":[]}`)
	f(line{Topic: "t", Key: []byte{}, Value: []byte("a\"\\\n\t\r\x01\x7fé")},
		`{"topic":"t","partition":0,"offset":0,"time":0,"appendTime":0,"leaderEpoch":0,"key":"","value":"a\"\\\n\t\r\u0001\u007fé","headers":[]}`)
	f(line{Topic: "t", Value: []byte{0xff, 0}, Headers: []wire.Header{{Key: []byte("k"), Value: nil}, {Key: []byte("k"), Value: []byte{}}, {Key: []byte{}, Value: []byte("v")}}},
		`{"topic":"t","partition":0,"offset":0,"time":0,"appendTime":0,"leaderEpoch":0,"key":null,"value":{"base64":"/wA="},"headers":[["k",null],["k",""],["","v"]]}`)
}

func TestParseLine(t *testing.T) {
	bad := func(s string) {
		t.Helper()
		if l, _, err := parseLine([]byte(s)); err == nil {
			t.Fatalf("parseLine(%s) = %+v, want an error", s, l)
		}
	}
	bad(``)
	bad(`{"value":"a"} {"value":"b"}`)
	bad(`{"valu":"a"}`)
	bad(`{"value":5}`)
	bad(`{"value":{"base64":"!"}}`)
	bad(`{"value":{"base64":"AA==","more":1}}`)
	bad(`{"headers":[["k"]]}`)
	bad(`{"headers":[["k","v","w"]]}`)
	bad(`{"headers":[[null,"v"]]}`)
	bad(`{"partition":"0"}`)

	l, hasTime, err := parseLine([]byte(`{"value":"only"}`))
	if err != nil || hasTime || l.Partition != -1 || string(l.Value) != "only" || l.Key != nil {
		t.Fatalf("a record with a value alone reads as %+v, %v", l, err)
	}
}

func FuzzParseLine(f *testing.F) {
	f.Add([]byte(`{"topic":"t","partition":3,"offset":42,"time":7,"key":null,"value":{"base64":"/wA="},"headers":[["k",null]]}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		l, _, err := parseLine(text)
		if err != nil {
			return
		}
		back, _, err := parseLine(appendLine(nil, &l))
		if err != nil || string(back.Key) != string(l.Key) || (back.Key == nil) != (l.Key == nil) || string(back.Value) != string(l.Value) || len(back.Headers) != len(l.Headers) {
			t.Fatalf("%q reads as %+v, and that, printed, as %+v, %v", text, l, back, err)
		}
	})
}
