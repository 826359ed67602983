package cli

import (
	"testing"

	"github.com/teralog/teralog/wire"
)

func sample() *line {
	return &line{Topic: "orders", Partition: 3, Offset: 123456, Time: 978307260000, AppendTime: 978307260001,
		Key: []byte("o-17"), Value: []byte("01010001,14,405,MCI,MDW"), Headers: []wire.Header{{Key: []byte("tenantId"), Value: []byte("7")}}}
}

func BenchmarkAppendLine(b *testing.B) {
	l, buf := sample(), make([]byte, 0, 1024)
	b.ReportAllocs()
	for b.Loop() {
		buf = appendLine(buf[:0], l)
	}
}

func BenchmarkParseLine(b *testing.B) {
	text := appendLine(nil, sample())
	b.ReportAllocs()
	for b.Loop() {
		if _, _, err := parseLine(text); err != nil {
			b.Fatal(err)
		}
	}
}
